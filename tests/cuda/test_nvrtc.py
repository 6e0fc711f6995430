"""Every kernel compiles for every architecture, spills nothing, and uses few registers."""

from __future__ import annotations

import nvrtc
import pytest
import shim

from gcodec.kernels.device import LEAST_ARCHITECTURE, SOURCES

ARCHITECTURES = (LEAST_ARCHITECTURE, 80, 90, 100)
MOST_REGISTERS = 64
# Kernels that may use more, and why is told where they are written.
# Readers keep their place in a string, and where symbols go, in registers: few threads suffice.
MORE_REGISTERS: dict[str, int] = {"read_words": 80, "read_units": 80}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("path", sorted(SOURCES.glob("*.cu")), ids=lambda path: path.stem)
def test_compiles(path, architecture) -> None:
    if nvrtc.library() is None:
        pytest.skip("the package nvidia-cuda-nvrtc is not installed")
    found = nvrtc.compiled(path, architecture)
    names = {name for source, name in shim.kernels() if source == path.stem}
    assert {need.kernel for need in found} == names
    for need in found:
        assert need.spilled == 0, need
        assert need.registers <= MORE_REGISTERS.get(need.kernel, MOST_REGISTERS), need
