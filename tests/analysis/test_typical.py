"""The typical costs of codecs are those of the example gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec.analysis.typical import EXAMPLE, TYPICAL
from gcodec.tensorfiles.dumps import open_dump

PATH = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"
_OTHERS = range(192, 256)  # ids of codecs that tests register


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    with open_dump(PATH) as dump:
        return {entry.name: dump.load(entry) for entry in dump.entries}


def test_all_codecs_have_a_typical_cost(tensors: dict[str, np.ndarray]) -> None:
    assert set(TYPICAL) == {k for k, cls in gcodec.codecs().items() if cls.id not in _OTHERS}
    size = sum(x.size for x in tensors.values())
    assert f"{size:,} values in {len(tensors)} tensors" in EXAMPLE


@pytest.mark.parametrize("name", sorted(TYPICAL))
def test_typical_costs_are_those_of_the_example(name: str, tensors: dict[str, np.ndarray]) -> None:
    nbytes, error, energy = 0, 0.0, 0.0
    for key, x in tensors.items():
        frame, wide = gcodec.encode(x, name, name=key), x.astype(np.float64)
        nbytes += len(frame)
        error += float(((wide - gcodec.decode(frame)) ** 2).sum())
        energy += float((wide**2).sum())
    bits = 8 * nbytes / sum(x.size for x in tensors.values())
    assert TYPICAL[name].bits == pytest.approx(bits, abs=0.006)
    assert TYPICAL[name].nmse == pytest.approx(error / energy, rel=0.06)
