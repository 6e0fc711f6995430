"""Test products with thin matrices on a device, and powersgd: the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import gradient, same

import gcodec
from gcodec.kernels.numeric import low_rank, products
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.runtime.device import Device

# More columns and rows than one pass adds up, and few columns or rows.
SHAPES = ((3, 9000), (9000, 3), (70, 300), (40, 33))


@pytest.mark.parametrize("scale", [1.0, 2.0**-120, 2.0**100])
def test_factors(gpu: Device, scale: float) -> None:
    # The scale determines the units, and the shape the passes.
    for m, k in SHAPES if scale == 1.0 else SHAPES[2:]:
        matrix = (gradient(m * k).clip(-99, 99) * np.float32(scale)).reshape(m, k)
        on_device = gpu.to_device(matrix)
        for rank in (1, 2, 5):
            options, before = (rank, 7, low_rank.STREAM), None
            for _ in range(2):
                inputs = None if before is None else gpu.to_device(before)
                top, kept = max_abs_bits(on_device.reshape(-1)), max_abs_bits(matrix.reshape(-1))
                wanted = low_rank.step(matrix, *options, before, kept)
                assert same(gpu.to_host(low_rank.step(on_device, *options, inputs, top)), wanted)
                before = wanted[rank * m :].reshape(rank, k).copy()
                before[0] = -0.0  # a row that the kernel skips
            left, right = (gradient(rank * n, n).reshape(rank, n) for n in (m, k))
            out, actual = np.empty(m * k, np.float32), gpu.empty(m * k, np.float32)
            products.put_product(left, right, out)
            products.put_product(gpu.to_device(left), gpu.to_device(right), actual)
            assert same(gpu.to_host(actual), out)


def test_dependent_rows(gpu: Device) -> None:
    """Matrices with a dimension below the rank, and a zero matrix."""
    row, column = gradient(60).clip(-9, 9), gradient(5000, 1).clip(-9, 9)
    for matrix in (np.outer(row, column), np.zeros((60, 5000), np.float32)):
        flat = matrix.astype(np.float32)
        for x in (flat, np.ascontiguousarray(flat.T)):
            on_device = gpu.to_device(x)
            wanted = low_rank.step(x, 3, 1, low_rank.STREAM, None, max_abs_bits(x.reshape(-1)))
            top = max_abs_bits(on_device.reshape(-1))
            assert same(
                gpu.to_host(low_rank.step(on_device, 3, 1, low_rank.STREAM, None, top)), wanted
            )


def test_prior_may_be_on_the_host(gpu: Device) -> None:
    """A residual that moves between host and device brings its factors along."""
    steps = [gradient(600, s).clip(-9, 9).reshape(20, 30) for s in range(4)]
    mixed, here = (gcodec.Feedback("powersgd:rank=2", seed=3) for _ in range(2))
    for k, x in enumerate(steps):
        inputs = gpu.to_device(x) if k % 2 else x
        assert mixed.compress("w", inputs) == here.compress("w", x)
    loaded = gcodec.Feedback("powersgd:rank=2", seed=3)
    loaded.load_state_dict(mixed.state_dict())
    assert loaded.compress("w", gpu.to_device(steps[0])) == here.compress("w", steps[0])


def test_frames(gpu: Device) -> None:
    for spec in ("powersgd", "powersgd:rank=1", "powersgd:rank=6"):
        for shape in ((40, 57), (6, 5, 7), (30,), (0, 4), (3, 3)):
            x = gradient(int(np.prod(shape))).clip(-99, 99).reshape(shape)
            frame = frames_agree(gpu, spec, x, seed=3)
            same_verdict(gpu, frame, [30, 31, 700])
        frames_agree(gpu, spec, x.astype(np.float16))
        feedback_agrees(
            gpu, spec, [gradient(600, s).clip(-9, 9).reshape(20, 30) for s in range(3)]
        )


def test_refusals(gpu: Device) -> None:
    x = np.full((30, 30), 3e38, np.float32)
    with pytest.raises(gcodec.ParameterError, match="must not exceed float32"):
        gcodec.encode(gpu.to_device(x), "powersgd")
    x[4, 5] = np.nan
    with pytest.raises(gcodec.ParameterError, match="the first at flat index 125"):
        gcodec.encode(gpu.to_device(x), "powersgd")


@pytest.mark.parametrize("size", [1.0, 2.0**124, 2.0**126])
def test_residuals_near_float32_limits(gpu: Device, size: float) -> None:
    """A bound proves the residual finite, or the device checks the values."""
    random = np.random.default_rng(1)
    x = (np.float32(size) * np.clip(random.standard_normal((24, 30)), -1, 1)).astype(np.float32)
    feedback_agrees(gpu, "powersgd:rank=2", [x, np.zeros_like(x)], decay=1.0)
