"""Minifloats on a device: the codes, residuals and values of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from samples import LARGE, anything, gradient, same

from gcodec import minifloat_scales
from gcodec.errors import Corrupt
from gcodec.gennorm import sample
from gcodec.kernels import minifloat
from gcodec.kernels.device import Device
from gcodec.minifloat_scales import NO_FACTORS, Scales
from gcodec.minifloats import FORMATS, STYLES, MiniFloat

SIZES = (0, 1, 7, 33, 2049)
EVERY = [MiniFloat(*both) for both in itertools.product(FORMATS, STYLES)]
SCALES = (0.0, 2.0**-149, 3e-41, 1.1e-38, 1e-30, 0.3, 1e30)


def scales_for(scale: float, fmt: MiniFloat) -> Scales:
    """Return a scale by which no magnitude passes float32."""
    most = np.finfo(np.float32).max / fmt.magnitudes()[-1] / 2
    return Scales.of(min(scale, float(most)), 0, NO_FACTORS)


def ties(scales: Scales, fmt: MiniFloat) -> np.ndarray:
    """Return values around those where codes change, and any others."""
    least = minifloat.least_bits(scales.one, fmt) if scales.one > 0 else np.zeros(1, np.int32)
    around = np.add.outer(least, [-1, 0, 1]).ravel().clip(0, 0x7F7FFFFF).astype(np.uint32)
    near = np.concatenate([around, around | np.uint32(1 << 31)]).view(np.float32)
    wide = gradient(301).clip(-99, 99) * np.maximum(scales.one, np.float32(1e-38))
    return np.concatenate([near, wide])


@pytest.mark.parametrize("fmt", EVERY, ids=str)
def test_all_ways(gpu: Device, fmt: MiniFloat) -> None:
    for scales in (scales_for(scale, fmt) for scale in SCALES):
        x, residual = ties(scales, fmt), gradient(1000, 1)
        n, decay = x.size, np.float32(0.9)
        residual = residual[:n] if n <= 1000 else np.resize(residual, n)
        codes = np.empty(minifloat.codes_nbytes(n, fmt), np.uint8)
        found, there = gpu.empty(codes.size, np.uint8), gpu.to_device(x)
        assert minifloat_scales.quantize(x, scales, fmt, codes)
        assert minifloat_scales.quantize(there, scales, fmt, found)
        assert same(gpu.to_host(found), codes)
        minifloat.check(found, n, fmt)
        kept, memory = residual.copy(), gpu.to_device(residual)
        minifloat_scales.quantize_residual(x, kept, decay, scales, fmt, codes)
        minifloat_scales.quantize_residual(there, memory, decay, scales, fmt, found)
        assert same(gpu.to_host(found), codes)
        assert same(gpu.to_host(memory), kept)
        for add in (None, np.float32(-1), np.float32(2.0**-100)):
            out, wanted = gpu.to_device(residual), residual.copy()
            minifloat_scales.dequantize(codes, scales, fmt, wanted, add)
            minifloat_scales.dequantize(found, scales, fmt, out, add)
            assert same(gpu.to_host(out), wanted)


@pytest.mark.parametrize("fmt", [MiniFloat("e2m1"), MiniFloat("e4m3")], ids=str)
def test_sizes(gpu: Device, fmt: MiniFloat) -> None:
    scales = scales_for(0.3, fmt)
    for n in (*SIZES, LARGE):
        x, codes = gradient(n), np.empty(minifloat.codes_nbytes(n, fmt), np.uint8)
        found, out = gpu.empty(codes.size, np.uint8), gpu.empty(n, np.float32)
        assert minifloat_scales.quantize(x, scales, fmt, codes)
        assert minifloat_scales.quantize(gpu.to_device(x), scales, fmt, found)
        assert same(gpu.to_host(found), codes)
        minifloat.check(found, n, fmt)
        minifloat_scales.dequantize(found, scales, fmt, out)
        wanted = np.empty(n, np.float32)
        minifloat_scales.dequantize(codes, scales, fmt, wanted)
        assert same(gpu.to_host(out), wanted)


@pytest.mark.parametrize("fmt", [MiniFloat("e2m1"), MiniFloat("e4m3")], ids=str)
def test_what_is_not_finite(gpu: Device, fmt: MiniFloat) -> None:
    for wrong in (np.nan, -np.nan, np.inf, -np.inf):
        x = gradient(777)
        x[500] = wrong
        out = gpu.empty(minifloat.codes_nbytes(777, fmt), np.uint8)
        assert not minifloat_scales.quantize(gpu.to_device(x), scales_for(0.3, fmt), fmt, out)
    out = gpu.empty(minifloat.codes_nbytes(9000, fmt), np.uint8)
    assert not minifloat_scales.quantize(gpu.to_device(anything(9000)), scales_for(1, fmt), fmt, out)


@pytest.mark.parametrize("fmt", [MiniFloat("e2m1", "fn"), MiniFloat("e1m1"), MiniFloat("e5m2", "ieee")])
def test_codes_that_are_none(gpu: Device, fmt: MiniFloat) -> None:
    sign = 1 << fmt.width - 1
    for n in (1, 2, 33, 2049):
        for wrong in {sign, fmt.top + 1, sign | fmt.top + 1, min(2 * sign, 255)} - {2 * fmt.top}:
            each = np.full(n + n % 2, 0, np.uint8)
            each[n // 2] = wrong
            if minifloat.per_byte(fmt) == 2:
                codes = each[::2] << np.uint8(4) | each[1::2] & np.uint8(15)
            else:
                codes = each[:n]
            told = []
            for given in (codes, gpu.to_device(codes)):
                try:
                    minifloat.check(given, n, fmt)
                    told.append(None)
                except Corrupt as error:
                    told.append((str(error), error.args))
            assert told[0] == told[1]
    odd = np.array([0x11, 0x11], np.uint8)
    with pytest.raises(Corrupt, match="behind the last"):
        minifloat.check(gpu.to_device(odd), 3, MiniFloat("e2m1"))


def test_sample(gpu: Device) -> None:
    x = gradient(5000)
    assert same(gpu.to_host(sample(gpu.to_device(x), 512, 16)), sample(x, 512, 16))
