"""Test ranges, uniform levels and the codec ``minmax`` on a device: the bytes of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import LARGE, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.numeric.ranges import ranges, read_ranges, write_ranges
from gcodec.kernels.quantize import uniform
from gcodec.runtime.device import Device

BUCKETS = (1, 2, 31, 100, 4095, 4096, 9000, 10**6)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_ranges(gpu: Device, bucket: int) -> None:
    for n in (0, 1, 33, 9001 if bucket > 2 else 600):
        x = gradient(n)
        (actual, finite), (wanted, _) = ranges(gpu.to_device(x), bucket), ranges(x, bucket)
        assert finite
        assert same(gpu.to_host(actual), wanted)
        data, here = gpu.empty(actual.nbytes, np.uint8), np.empty(wanted.nbytes, np.uint8)
        write_ranges(actual, data)
        write_ranges(wanted, here)
        assert same(gpu.to_host(data), here)
        assert same(gpu.to_host(read_ranges(data)), wanted)
        if n:
            wrong = arbitrary_floats(n + 50)
            assert not ranges(gpu.to_device(wrong), bucket)[1]
            assert not ranges(wrong, bucket)[1]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("seed", [None, 2**64 - 1])
def test_levels(gpu: Device, bits: int, seed: int | None) -> None:
    for n, bucket in ((0, 1), (1, 1), (5, 2), (777, 13), (9001, 4096), (9001, 9001)):
        x = gradient(n)
        actual = ranges(x, bucket)[0]
        size = -(-n * bits // 8)
        here, on_device = np.empty(size, np.uint8), gpu.empty(size, np.uint8)
        uniform.quantize(x, actual, bucket, bits, seed, here)
        uniform.quantize(gpu.to_device(x), gpu.to_device(actual), bucket, bits, seed, on_device)
        assert same(gpu.to_host(on_device), here)
        values, out = np.empty(n, np.float32), gpu.empty(n, np.float32)
        uniform.dequantize(here, actual, bucket, bits, values)
        uniform.dequantize(on_device, gpu.to_device(actual), bucket, bits, out)
        assert same(gpu.to_host(out), values)
        acc = gpu.to_device(x)
        uniform.dequantize(on_device, gpu.to_device(actual), bucket, bits, acc, np.float32(0.3))
        uniform.dequantize(here, actual, bucket, bits, x, np.float32(0.3))
        assert same(gpu.to_host(acc), x)


SPECS = ("minmax", "minmax:bits=4,bucket=100", "minmax:bits=3,bucket=64,rounding=stochastic")


@pytest.mark.parametrize("spec", SPECS)
def test_codec(gpu: Device, spec: str) -> None:
    for n in (0, 1, 63, 1000):
        frame = frames_agree(gpu, spec, gradient(n), seed=5)
        same_verdict(gpu, frame, [0, 1, 7, 31, 63, -1, -2, 70, 100])
    frames_agree(gpu, spec, gradient(1000).clip(-9, 9).astype(np.float16).reshape(8, 125))
    feedback_agrees(gpu, spec, [gradient(500, k) for k in range(3)], decay=0.9)
    feedback_agrees(gpu, spec, [gradient(500, k).clip(-9, 9).astype(np.float16) for k in range(2)])


def test_large(gpu: Device) -> None:
    frames_agree(gpu, "minmax:bits=4", gradient(LARGE))


def test_narrow(gpu: Device) -> None:
    smallest = np.arange(-3, 5, dtype=np.float32) * np.float32(2.0**-149)
    frames_agree(gpu, "minmax:bits=3", smallest)
    frames_agree(gpu, "minmax:bits=8", np.full(77, -1e-40, np.float32))


def test_nonfinite(gpu: Device) -> None:
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(gpu.to_device(arbitrary_floats(100)), "minmax")
