"""Every kernel compiles for every architecture, spills nothing, and uses few registers."""

from __future__ import annotations

import itertools
from pathlib import Path

import nvrtc
import pytest
import shim
from sweeps import LONG

from gcodec.kernels.device import LEAST_ARCHITECTURE, SOURCES

ARCHITECTURES = (LEAST_ARCHITECTURE, 80, 90, 100)
MOST_REGISTERS = 64
# Kernels that may use more, and why is told where they are written.
# Readers keep their place in a string, and where symbols go, in registers: few threads suffice.
MORE_REGISTERS: dict[str, int] = {"read_words": 80, "read_units": 80}


def pairs() -> list[tuple[Path, int]]:
    """Every file with every architecture; in a short run each with one, which take turns."""
    files = sorted(SOURCES.glob("*.cu"))
    if LONG:
        return list(itertools.product(files, ARCHITECTURES))
    return list(zip(files, itertools.cycle(ARCHITECTURES), strict=False))


@pytest.mark.parametrize(
    ("path", "architecture"), pairs(), ids=lambda one: getattr(one, "stem", None)
)
def test_compiles(path, architecture) -> None:
    if nvrtc.library() is None:
        pytest.skip("the package nvidia-cuda-nvrtc is not installed")
    found = nvrtc.compiled(path, architecture)
    names = {name for source, name in shim.kernels() if source == path.stem}
    assert {need.kernel for need in found} == names
    for need in found:
        assert need.spilled == 0, need
        assert need.registers <= MORE_REGISTERS.get(need.kernel, MOST_REGISTERS), need
