"""Test conversions, sums with residuals, reductions, and the codec ``raw`` on a device."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree
from samples import LARGE, SIZES, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.numeric import arithmetic, convert, reduce
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import Device

HALVES = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(gpu: Device, dtype: str) -> None:
    widened = convert.from_16_bits(gpu.to_device(HALVES), dtype)
    wanted = convert.from_16_bits(HALVES, dtype)
    assert gpu.to_host(widened).tobytes() == wanted.tobytes()  # including NaN
    # Numbers around each value that round up, down, and to even.
    bits = wanted.view(np.uint32)[:, None] + np.array([0, 1, 0x1000, 0x8000, 2**32 - 1], np.uint32)
    for x in (bits.reshape(-1).view(np.float32), arbitrary_floats(LARGE)):
        actual = convert.to_16_bits(gpu.to_device(x), dtype)
        assert same(gpu.to_host(actual), convert.to_16_bits(x, dtype))


def test_float64(gpu: Device) -> None:
    x = arbitrary_floats(LARGE)
    wide = np.random.default_rng(0).integers(0, 1 << 64, 9001, dtype=np.uint64).view(np.float64)
    near = np.ldexp(1 + np.random.default_rng(1).random(9001), np.arange(9001) % 60 - 160)
    for values in (wide, near, -near, np.array([0.0, -0.0, np.nan, np.inf, 1e39, -1e39])):
        actual = convert.from_float64(gpu.to_device(values))
        assert same(gpu.to_host(actual), convert.from_float64(values))
    assert same(gpu.to_host(convert.to_float64(gpu.to_device(x))), convert.to_float64(x))


def test_finite_or_zero(gpu: Device) -> None:
    x = arbitrary_floats(1000)
    actual = convert.finite_or_zero(gpu.to_device(x))
    assert same(gpu.to_host(actual), convert.finite_or_zero(x))


@pytest.mark.parametrize("decay", [1.0, 0.9, -0.5, 0.0, 1e-40])
def test_arithmetic(gpu: Device, decay: float) -> None:
    x, residual, factor = arbitrary_floats(9001), arbitrary_floats(9001, 1), np.float32(decay)
    on_device = gpu.to_device(x), gpu.to_device(residual)
    with np.errstate(all="ignore"):
        wanted = arithmetic.corrected(x, residual, factor)
    assert same(gpu.to_host(arithmetic.corrected(*on_device, factor)), wanted)
    apart = gpu.empty(9001, np.float32)
    for out in (apart, on_device[1]):
        assert arithmetic.correct(*on_device, factor, out).value == reduce.max_abs_bits(wanted)
        assert same(gpu.to_host(out), wanted)
    out = gpu.to_device(residual)
    arithmetic.add_scaled(on_device[0], factor, out)
    here = residual.copy()
    arithmetic.add_scaled(x, factor, here)
    assert same(gpu.to_host(out), here)


def test_reductions(gpu: Device) -> None:
    for n in (*SIZES, LARGE):
        for x in (gradient(n), arbitrary_floats(n)):
            on_device = gpu.to_device(x)
            actual, wanted = resolved(reduce.moments(on_device)), reduce.moments(x)
            assert actual.largest == wanted.largest
            assert np.array_equal(actual[:2], wanted[:2], equal_nan=True)
            assert reduce.max_abs_bits(on_device) == reduce.max_abs_bits(x)
            assert reduce.all_finite(on_device) == reduce.all_finite(x)
            other = gradient(n, 7)
            pair = on_device, gpu.to_device(other)
            for decay in map(np.float32, (1, 1e-40, 3e38)):
                wanted_finite = reduce.all_finite_corrected(x, other, decay)
                assert reduce.all_finite_corrected(*pair, decay) == wanted_finite


def test_many_tiles(gpu: Device) -> None:
    sums = np.random.default_rng(0).standard_normal(4096 * 5 + 3)
    assert reduce.fold(gpu.to_device(sums)) == reduce.fold(sums)


@pytest.mark.parametrize("spec", ["raw", "raw:dtype=float16", "raw:dtype=bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_raw(gpu: Device, spec: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = arbitrary_floats(1001).astype(dtype)
    frames_agree(gpu, spec, x, nonfinite="propagate")
    frames_agree(gpu, spec, x[:0])
    frames_agree(gpu, spec, x[:1].reshape(()), nonfinite="zero")


def test_raw_feedback(gpu: Device) -> None:
    steps = [np.clip(gradient(1000, k), -1e4, 1e4) for k in range(3)]
    feedback_agrees(gpu, "raw:dtype=float16", steps, decay=0.5)
    feedback_agrees(gpu, "raw:dtype=bfloat16", [x.astype(np.float16) for x in steps])


def test_range_of_dtype(gpu: Device) -> None:
    feedback = gcodec.Feedback("raw:dtype=float16")
    with pytest.raises(gcodec.ParameterError, match="must not exceed the range"):
        feedback.compress("w", gpu.to_device(np.full(3, 1e6, np.float32)))
