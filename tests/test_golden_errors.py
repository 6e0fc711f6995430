"""Test frames that must be rejected for the reason in their names, and valid foreign frames."""

from __future__ import annotations

import warnings

import pytest
from reference import frame as reference_frame
from sweeps import LONG

import gcodec
from fuzz import targets
from fuzz.bodies import WRITERS
from fuzz.goldens import ROOT, goldens
from fuzz.valid import valid_frames

FOLDER = ROOT / "fuzz" / "golden-errors"
PATHS = sorted(FOLDER.glob("*.gcf"))
EACH = 25 if LONG else 12  # frames per codec


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden_errors(path: object) -> None:
    error, defect, _ = path.name.split(".")  # type: ignore[attr-defined]
    data = path.read_bytes()  # type: ignore[attr-defined]
    assert len(data) <= 4096
    with pytest.raises(gcodec.FormatError) as refused:
        gcodec.decode(data)
    assert type(refused.value).__name__ == error, defect
    assert str(refused.value)
    targets.run("frame", data)
    targets.run("differential", data)


def test_every_kind_of_error_is_covered() -> None:
    kinds = {path.name.partition(".")[0] for path in PATHS}
    assert kinds == {"Truncated", "Corrupt", "Unsupported", "LimitExceeded"}


@pytest.mark.parametrize("codec", gcodec.codecs())
def test_valid_frames_of_other_encoders(codec: str) -> None:
    """Unusual tables, parameters, blocks and explicit defaults decode like the oracle."""
    frames = [one.data for one in valid_frames(7, EACH, [codec])]
    with_tables = 0
    for data in frames:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame = gcodec.Frame.from_bytes(data)
            decoded = frame.decode()
        assert targets.compare(frame)
        assert decoded.shape == frame.shape == reference_frame.parse(data)["shape"]
        with_tables += frame.seek is not None
        targets.run("frame", data)
    ours = {golden.data for golden in goldens()}
    assert not ours & set(frames)
    if codec in ("qsgd", "mxnet-2bit", "terngrad", "minifloat", "topk"):
        assert with_tables
    assert set(WRITERS) == set(gcodec.codecs())
