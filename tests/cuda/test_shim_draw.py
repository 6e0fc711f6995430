"""Test randomly drawn positions on a device against those of the CPU."""

from __future__ import annotations

import pytest
from samples import same

from gcodec.kernels.numeric.draw import draw
from gcodec.runtime.device import Device


@pytest.mark.parametrize("n", [1, 2, 31, 33, 1000, 40_000])
def test_draws(gpu: Device, n: int) -> None:
    where = gpu.empty(0, "float32")
    for k in {0, 1, n // 100, n // 3, n // 2, n // 2 + 1, n - 1, n}:
        for seed in (0, 2**64 - 1):
            assert same(gpu.to_host(draw(n, k, seed, where)), draw(n, k, seed))
