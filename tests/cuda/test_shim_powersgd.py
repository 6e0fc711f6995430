"""Products of matrices with thin ones on a device, and powersgd: the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, refused_alike
from samples import gradient, same, share_of

import gcodec
from gcodec import low_rank
from gcodec.kernels import products
from gcodec.kernels.device import Device

# More columns than are added at a time, and more rows; and few of either.
SHAPES = ((3, 9000), (9000, 3), (70, 300), (40, 33))


@pytest.mark.parametrize("scale", [1.0, 2.0**-120, 2.0**100])
def test_products(gpu: Device, scale: float) -> None:
    for m, k in share_of(gpu, SHAPES):
        matrix = (gradient(m * k).clip(-99, 99) * np.float32(scale)).reshape(m, k)
        there = gpu.to_device(matrix)
        for rank in (1, 5):
            q = low_rank.fixed(low_rank.start(7, rank, k))
            p = low_rank.times_transposed(matrix, q)
            assert same(low_rank.times_transposed(there, q), p)
            factors = low_rank.fixed(p)
            wanted = low_rank.times(matrix, factors)
            assert same(low_rank.times(there, factors), wanted)
            left, right = (gradient(rank * n, n).reshape(rank, n) for n in (m, k))
            out, found = np.empty(m * k, np.float32), gpu.empty(m * k, np.float32)
            products.put_product(left, right, out)
            products.put_product(left, right, found)
            assert same(gpu.to_host(found), out)


def test_frames(gpu: Device) -> None:
    for spec in share_of(gpu, ("powersgd", "powersgd:rank=1", "powersgd:rank=6")):
        for shape in ((40, 57), (6, 5, 7), (30,), (0, 4), (3, 3)):
            x = gradient(int(np.prod(shape))).clip(-99, 99).reshape(shape)
            frame = frames_agree(gpu, spec, x, seed=3)
            refused_alike(gpu, frame, [30, 31, 700])
        frames_agree(gpu, spec, x.astype(np.float16))
        feedback_agrees(
            gpu, spec, [gradient(600, s).clip(-9, 9).reshape(20, 30) for s in range(3)]
        )


def test_what_is_refused(gpu: Device) -> None:
    x = np.full((30, 30), 3e38, np.float32)
    with pytest.raises(gcodec.ParameterError, match="must not pass float32"):
        gcodec.encode(gpu.to_device(x), "powersgd")
    x[4, 5] = np.nan
    with pytest.raises(gcodec.ParameterError, match="the first at flat index 125"):
        gcodec.encode(gpu.to_device(x), "powersgd")


@pytest.mark.parametrize("size", [1.0, 2.0**124, 2.0**126])
def test_residuals_near_the_end_of_float32(gpu: Device, size: float) -> None:
    """Whether what is left is finite is told by a bound, or looked for."""
    random = np.random.default_rng(1)
    x = (np.float32(size) * np.clip(random.standard_normal((24, 30)), -1, 1)).astype(np.float32)
    feedback_agrees(gpu, "powersgd:rank=2", [x, np.zeros_like(x)], decay=1.0)
