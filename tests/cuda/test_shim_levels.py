"""Test bucket norms, bucket levels and random words on a device: the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from samples import LARGE, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.numeric.norms import Norm, norms, read_norms, write_norms
from gcodec.kernels.quantize import levels
from gcodec.runtime.device import Device


@pytest.mark.parametrize("kind", ["l2", "max"])
@pytest.mark.parametrize("bucket", [1, 3, 32, 257, 4096, 4097, 9000, 1 << 40])
def test_norms(gpu: Device, kind: Norm, bucket: int) -> None:
    for x in (gradient(0), gradient(1), gradient(9001), arbitrary_floats(5000)):
        if bucket == 1:
            x = x[:600]
        actual, wanted = norms(gpu.to_device(x), bucket, kind), norms(x, bucket, kind)
        assert same(gpu.to_host(actual), wanted)
        if not np.isfinite(wanted).all():
            continue  # all NaN count as equal
        # Begin after one byte, so the values are not aligned.
        data, here = gpu.zeros(wanted.nbytes + 3, np.uint8), np.zeros(wanted.nbytes + 3, np.uint8)
        write_norms(actual, data[1:])
        write_norms(wanted, here[1:])
        assert same(gpu.to_host(data), here)
        assert same(read_norms(here[1 : 1 + wanted.nbytes]), wanted)


def test_large_norm(gpu: Device) -> None:
    x = gradient(LARGE)
    assert same(gpu.to_host(norms(gpu.to_device(x), LARGE, "l2")), norms(x, LARGE, "l2"))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, -0.0])
def test_no_norms(wrong: float) -> None:
    data = np.zeros(40, np.uint8)
    write_norms(np.array([1, 2, wrong, np.nan], np.float32), data)
    with pytest.raises(gcodec.Corrupt, match=r"not negative.* 8"):
        read_norms(data)


@pytest.mark.parametrize("s", [1, 127, 128, 40000, 1 << 24])
@pytest.mark.parametrize("bucket", [1, 5, 64, 1000])
def test_levels(gpu: Device, s: int, bucket: int) -> None:
    x = gradient(1001)
    x[200:300] *= np.float32(1e-38)  # buckets with tiny norms
    x[300:420] = 0
    actual = norms(x, bucket, "max")
    here = levels.Scale(actual, bucket, s)
    on_device = levels.Scale(gpu.to_device(actual), bucket, s)
    dtype = levels.symbol_dtype(s)
    for first, stop in ((0, 1001), (0, 0), (0, 3), (64, 101), (320, 1001)):
        part, size = x[first:stop], stop - first
        wanted, symbols = np.empty(size, dtype), gpu.empty(size, dtype)
        levels.quantize(part, here, 2**63 + 9, first, wanted)
        levels.quantize(gpu.to_device(part), on_device, 2**63 + 9, first, symbols)
        assert same(gpu.to_host(symbols), wanted)
        for add in (None, np.float32(0.7)):
            values, out = part.copy(), gpu.to_device(part)
            levels.dequantize(wanted, here, first, values, add)
            levels.dequantize(symbols, on_device, first, out, add)
            assert same(gpu.to_host(out), values)


def test_many(gpu: Device) -> None:
    x, bucket = gradient(LARGE), 3000
    actual, wanted, symbols = (
        norms(x, bucket, "l2"),
        np.empty(LARGE, np.uint8),
        gpu.empty(LARGE, np.uint8),
    )
    on_device = levels.Scale(gpu.to_device(actual), bucket, 15)
    levels.quantize(x, levels.Scale(actual, bucket, 15), 4, 0, wanted)
    levels.quantize(gpu.to_device(x), on_device, 4, 0, symbols)
    assert same(gpu.to_host(symbols), wanted)
    out, values = gpu.empty(LARGE, np.float32), np.empty(LARGE, np.float32)
    levels.dequantize(symbols, on_device, 0, out)
    levels.dequantize(wanted, levels.Scale(actual, bucket, 15), 0, values)
    assert same(gpu.to_host(out), values)
