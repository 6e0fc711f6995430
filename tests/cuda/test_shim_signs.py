"""Test signs, their sums, and the codec ``sign`` on a device: the bytes of the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
from samples import LARGE, SIZES, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.bits import signs
from gcodec.runtime.device import Device

SPECS = ("sign", "sign:scale=l2", "sign:scale=none")


@pytest.mark.parametrize("squares", [False, True])
def test_quantize(gpu: Device, squares: bool) -> None:
    for n in (*SIZES, LARGE):
        x = gradient(n)
        bits, total = signs.quantize(gpu.to_device(x), squares)
        wanted, sum_ = signs.quantize(x, squares)
        assert total == sum_
        assert same(gpu.to_host(bits), wanted)


def test_quantize_anything(gpu: Device) -> None:
    x = arbitrary_floats(9001)
    bits, total = signs.quantize(gpu.to_device(x), squares=False)
    assert not math.isfinite(total)
    assert same(gpu.to_host(bits), signs.quantize(x, squares=False)[0])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_frames(gpu: Device, spec: str, dtype: str) -> None:
    with np.errstate(over="ignore"):
        x = np.clip(gradient(4097), -1e4, 1e4).astype(dtype).reshape(17, 241)
    on_device = gpu.to_device(x)
    frame = gcodec.encode(on_device, spec)
    assert frame == gcodec.encode(x, spec)
    decoded = gcodec.decode(frame, like=on_device)
    assert gpu.owns(decoded)
    assert same(gpu.to_host(decoded), gcodec.decode(frame))


def test_decoding_into(gpu: Device) -> None:
    x = gradient(300)
    frame = gcodec.encode(x, "sign")
    out, acc = gpu.to_device(np.zeros_like(x)), gpu.to_device(x)
    gcodec.decode(frame, out=out)
    assert same(gpu.to_host(out), gcodec.decode(frame))
    wanted = x.copy()
    gcodec.decode_add(frame, acc, -0.5)
    gcodec.decode_add(frame, wanted, -0.5)
    assert same(gpu.to_host(acc), wanted)


def test_payload_stays(gpu: Device) -> None:
    x = gradient(100)
    codec = gcodec.parse("sign")
    payload = codec.encode(gpu.to_device(x))
    assert gpu.owns(payload.data)
    assert payload.tobytes() == codec.encode(x).tobytes()
    assert same(gpu.to_host(codec.decode(payload, 100)), codec.decode(codec.encode(x), 100))


def test_feedback(gpu: Device) -> None:
    on_device, here = gcodec.Feedback("sign", decay=0.9), gcodec.Feedback("sign", decay=0.9)
    for step in range(3):
        x = gradient(1000, step)
        assert on_device.compress("w", gpu.to_device(x)) == here.compress("w", x)
        assert gpu.owns(on_device.residual("w"))
        assert same(gpu.to_host(on_device.residual("w")), here.residual("w"))


def test_padding(gpu: Device) -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(gradient(13), "sign"))
    wrong = frame.payload._replace(data=frame.payload.data | np.uint8(1))
    with pytest.raises(gcodec.Corrupt, match="padding bit"):
        frame.codec.decode(wrong._replace(data=gpu.to_device(wrong.data)), 13)


def test_nonfinite(gpu: Device) -> None:
    x = gpu.to_device(arbitrary_floats(100))
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(x, "sign")
    zeroed = gcodec.encode(x, "sign", nonfinite="zero")
    assert zeroed == gcodec.encode(arbitrary_floats(100), "sign", nonfinite="zero")
