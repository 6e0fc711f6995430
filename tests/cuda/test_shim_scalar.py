"""Test uniform quantizers and reconstruction tables on a device: levels and sums of the CPU."""

from __future__ import annotations

import numpy as np
from samples import LARGE, gradient, same

from gcodec.kernels.quantize import scalar_quantize
from gcodec.kernels.quantize.rated_levels import rated_levels, scaled_levels
from gcodec.runtime.device import Device

SIZES = (0, 1, 33, 513, 9001)


def steps_of(x: np.ndarray) -> list[np.float32]:
    """Return steps that give few, many and only zero levels."""
    top = np.abs(x).max(initial=1)
    return [np.float32(top / 3), np.float32(max(top / 2**20, 2.0**-125)), np.float32(1e38)]


def test_plain_levels(gpu: Device) -> None:
    for n in (*SIZES, LARGE):
        x = gradient(n)
        for step in steps_of(x):
            wanted, out = np.empty(n, np.uint8), gpu.empty(n, np.uint8)
            scalar_quantize.plain_levels(x, step, wanted)
            scalar_quantize.plain_levels(gpu.to_device(x), step, out)
            assert same(gpu.to_host(out), wanted)
            for width, columns in ((n, False), (-(-n // 9), True)) if n else ():
                arguments = scalar_quantize.plain_sums(x, step, width, columns)
                sums = scalar_quantize.plain_sums(gpu.to_device(x), step, width, columns)
                assert all(same(*both) for both in zip(sums, arguments, strict=True))


def test_rated_levels(gpu: Device) -> None:
    for n in SIZES:
        x = gradient(n)
        classes = np.random.default_rng(n).integers(0, 64, n).astype(np.uint8)
        for step in steps_of(x):
            wanted, out = np.empty(n, np.uint8), gpu.empty(n, np.uint8)
            of = classes, np.empty(0, np.uint8), 1
            sums = rated_levels(x, step, of, wanted)
            assert rated_levels(gpu.to_device(x), step, of, out) == sums
            assert same(gpu.to_host(out), wanted)
            squares = scalar_quantize.random_squares(x, step)
            assert scalar_quantize.random_squares(gpu.to_device(x), step) == squares


def test_scaled_levels(gpu: Device) -> None:
    for n, matrix in ((1, (1, 0, 1)), (513, (9, 1, 2)), (9001, (500, 3, 1)), (9001, (9001, 0, 1))):
        x = gradient(n)
        for step in steps_of(x):
            wanted, out = np.empty(n, np.uint8), gpu.empty(n, np.uint8)
            *scales, errors = scaled_levels(x, step, matrix, (40, 64), wanted)
            *arguments, sums = scaled_levels(gpu.to_device(x), step, matrix, (40, 64), out)
            assert same(gpu.to_host(out), wanted)
            assert sums == errors
            assert all(same(*both) for both in zip(arguments, scales, strict=True))


def test_subnormal_steps_in(gpu: Device) -> None:
    x = np.arange(0, 1 << 23, 4099, dtype=np.uint32).view(np.float32)
    step = np.float32(2.0**-125)
    wanted, out = np.empty(x.size, np.uint8), gpu.empty(x.size, np.uint8)
    scalar_quantize.plain_levels(x, step, wanted)
    scalar_quantize.plain_levels(gpu.to_device(x), step, out)
    assert same(gpu.to_host(out), wanted)
    squares = scalar_quantize.random_squares(x, step)
    assert squares
    assert scalar_quantize.random_squares(gpu.to_device(x), step) == squares


def test_points(gpu: Device) -> None:
    points = gradient(256)
    for n in SIZES:
        symbols = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
        wanted, actual = gradient(n, 1), gpu.to_device(gradient(n, 1))
        scalar_quantize.put_points(symbols, points, wanted)
        scalar_quantize.put_points(gpu.to_device(symbols), points, actual)
        assert same(gpu.to_host(actual), wanted)
