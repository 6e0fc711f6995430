"""Test minifloats on a device: the codes, residuals and values of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from samples import LARGE, arbitrary_floats, gradient, same

from gcodec.arrays.sampling import sample
from gcodec.errors import Corrupt
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize import block_scales, minifloat
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from gcodec.runtime.device import Device

SIZES = (0, 1, 7, 33, 2049)
EVERY = [MiniFloat(*both) for both in itertools.product(FORMATS, STYLES)]
SCALES = (0.0, 2.0**-149, 3e-41, 1.1e-38, 1e-30, 0.3, 1e30)


def scale_for(scale: float, fmt: MiniFloat) -> np.float32:
    """Return a scale with which no magnitude exceeds float32."""
    most = np.finfo(np.float32).max / fmt.magnitudes()[-1] / 2
    return np.float32(min(scale, float(most)))


def ties(scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return values near the boundaries between codes, and other values."""
    least = minifloat.least_bits(scale, fmt) if scale > 0 else np.zeros(1, np.int32)
    around = np.add.outer(least, [-1, 0, 1]).ravel().clip(0, 0x7F7FFFFF).astype(np.uint32)
    near = np.concatenate([around, around | np.uint32(1 << 31)]).view(np.float32)
    wide = gradient(301).clip(-99, 99) * np.maximum(scale, np.float32(1e-38))
    return np.concatenate([near, wide])


def codes_and_values_agree(gpu: Device, fmt: MiniFloat, scale: np.float32) -> None:
    x, residual = ties(scale, fmt), gradient(1000, 1)
    n, decay = x.size, np.float32(0.9)
    residual = residual[:n] if n <= 1000 else np.resize(residual, n)
    on_device = gpu.to_device(x)
    codes, _ = minifloat.quantize_tensor(x, scale, fmt)
    quantized, finite = minifloat.quantize_tensor(on_device, scale, fmt)
    assert finite
    assert same(gpu.to_host(quantized), codes)
    minifloat.check(quantized, n, fmt)
    left, memory = np.empty_like(x), gpu.to_device(residual)
    update = ResidualUpdate(residual, decay, left)
    codes, _ = minifloat.quantize_tensor(x, scale, fmt, update)
    for out in (gpu.empty(n, np.float32), memory):
        update = ResidualUpdate(memory, decay, out)
        quantized, _ = minifloat.quantize_tensor(on_device, scale, fmt, update)
        assert same(gpu.to_host(quantized), codes)
        assert same(gpu.to_host(out), left)
    for add in (None, np.float32(-1), np.float32(2.0**-100)):
        out, wanted = gpu.to_device(residual), residual.copy()
        minifloat.dequantize_tensor(codes, scale, fmt, wanted, add)
        minifloat.dequantize_tensor(quantized, scale, fmt, out, add)
        assert same(gpu.to_host(out), wanted)


def test_all_settings(gpu: Device) -> None:
    for fmt, scale in itertools.product(EVERY, SCALES):
        codes_and_values_agree(gpu, fmt, scale_for(scale, fmt))


@pytest.mark.parametrize("fmt", [MiniFloat("e2m1"), MiniFloat("e4m3")], ids=str)
def test_sizes(gpu: Device, fmt: MiniFloat) -> None:
    scale = scale_for(0.3, fmt)
    for n in (*SIZES, LARGE):
        x, out = gradient(n), gpu.empty(n, np.float32)
        codes, _ = minifloat.quantize_tensor(x, scale, fmt)
        quantized, finite = minifloat.quantize_tensor(gpu.to_device(x), scale, fmt)
        assert finite
        assert same(gpu.to_host(quantized), codes)
        minifloat.check(quantized, n, fmt)
        minifloat.dequantize_tensor(quantized, scale, fmt, out)
        wanted = np.empty(n, np.float32)
        minifloat.dequantize_tensor(codes, scale, fmt, wanted)
        assert same(gpu.to_host(out), wanted)
        for at in range(1, 4) if 8 < n < LARGE else ():  # with each alignment of the bytes
            bytes_, rest = codes[at:], n - at * minifloat.per_byte(fmt)
            subset, on_device = np.empty(rest, np.float32), gpu.empty(rest, np.float32)
            minifloat.dequantize_tensor(bytes_, scale, fmt, subset)
            minifloat.dequantize_tensor(quantized[at:], scale, fmt, on_device)
            assert same(gpu.to_host(on_device), subset)


@pytest.mark.parametrize("fmt", [MiniFloat("e2m1"), MiniFloat("e4m3")], ids=str)
def test_nonfinite_values(gpu: Device, fmt: MiniFloat) -> None:
    for wrong in (np.nan, -np.nan, np.inf, -np.inf):
        x = gradient(777)
        x[500] = wrong
        assert not minifloat.quantize_tensor(gpu.to_device(x), scale_for(0.3, fmt), fmt)[1]
    assert not minifloat.quantize_tensor(
        gpu.to_device(arbitrary_floats(9000)), scale_for(1, fmt), fmt
    )[1]


def error_text(codes: np.ndarray, n: int, fmt: MiniFloat) -> str:
    """Return the error message for the codes, empty if they are valid."""
    try:
        minifloat.check(codes, n, fmt)
    except Corrupt as error:
        return str(error)
    return ""


@pytest.mark.parametrize("both", [("e2m1", "fn"), ("e1m1", "full"), ("e5m2", "ieee")], ids=str)
def test_reserved_codes(gpu: Device, both: tuple[str, str]) -> None:
    fmt = MiniFloat(*both)
    sign = 1 << fmt.width - 1
    wrongs = {sign, fmt.top + 1, sign | fmt.top + 1, 2 * sign}
    for n in (1, 2, 33, 2049):
        for wrong in wrongs - set(range(16 if minifloat.per_byte(fmt) == 2 else 256, 257)):
            each = np.full(n + n % 2, 0, np.uint8)
            each[n // 2] = wrong
            if minifloat.per_byte(fmt) == 2:
                codes = each[::2] << np.uint8(4) | each[1::2] & np.uint8(15)
            else:
                codes = each[:n]
            assert error_text(gpu.to_device(codes), n, fmt) == error_text(codes, n, fmt) != ""
    odd = np.array([0x11, 0x11], np.uint8)
    with pytest.raises(Corrupt, match="after the last"):
        minifloat.check(gpu.to_device(odd), 3, MiniFloat("e2m1"))


def test_sample(gpu: Device) -> None:
    x = gradient(5000)
    assert same(gpu.to_host(sample(gpu.to_device(x), 512, 16)), sample(x, 512, 16))


@pytest.mark.parametrize("length", [1, 16, 37, 600])
def test_block_scales(gpu: Device, length: int) -> None:
    for n, scale in ((1, 0.3), (700, 0.25), (700, 2.0**-140), (700, 1e30), (5, 0.0)):
        x, fmt = gradient(n), MiniFloat("e3m2")
        on_device, options = (
            gpu.to_device(x),
            (np.float32(scale), fmt.magnitudes()[-1], fmt.mantissa),
        )
        factors = block_scales.choose_factors(x, length, *options)
        quantized = block_scales.choose_factors(on_device, length, *options)
        assert same(gpu.to_host(quantized), factors)
        each = block_scales.scales_of(options[0], factors)
        assert same(gpu.to_host(block_scales.scales_of(options[0], quantized)), each)
        each, first = block_scales.scales_of(options[0], np.append(factors, 0)), length // 2
        inputs, room = (first, length, each), np.empty(n, np.float32)
        wanted = block_scales.divide(x, *inputs, room)
        quantized = block_scales.divide(on_device, *inputs, gpu.empty(n, np.float32))
        assert same(gpu.to_host(quantized), wanted)
        for add in (None, np.float32(-0.7)):
            out, sums = gpu.to_device(gradient(n, 1)), gradient(n, 1)
            block_scales.multiply(wanted, *inputs, sums, add)
            block_scales.multiply(quantized, *inputs, out, add)
            assert same(gpu.to_host(out), sums)
