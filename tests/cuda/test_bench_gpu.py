"""Test the benchmark of devices on the shim."""

from __future__ import annotations

import pytest
import shim

from bench import gpu
from gcodec.runtime.device import use


@pytest.mark.skipif(shim.COMPILER is None, reason="there is no g++")
def test_table() -> None:
    specs = "sign", "terngrad:pack=base3", "topk"
    with use(shim.ShimDevice()) as device:
        lines = list(gpu.table(gpu.rows(device, specs, (0.01, 20e-3), rounds=1)))
    assert len(lines) == 2 + 2 * len(specs)
    assert {line.count("|") for line in lines} == {10}
