"""Checks shared by tests of whole codecs: device and host must agree on all results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import gradient, same

import gcodec
from gcodec.feedback.states import is_no_residual
from gcodec.runtime.device import Device, host


def frames_agree(gpu: Device, spec: str, x: np.ndarray, **arguments: Any) -> bytes:
    """Check that the device and the host encode and decode `x` to the same frames and values."""
    on_device = gpu.to_device(x)
    frame = gcodec.encode(x, spec, **arguments)
    assert gcodec.encode(on_device, spec, **arguments) == frame
    decoded = gcodec.decode(frame, like=on_device)
    assert gpu.owns(decoded)
    assert same(gpu.to_host(decoded), gcodec.decode(frame)), spec
    assert same(gpu.to_host(on_device), x), "the input was written to"
    if x.dtype == np.float32:
        into = gpu.to_device(np.ones_like(x))
        gcodec.decode(frame, out=into)
        assert same(gpu.to_host(into), gcodec.decode(frame)), spec
        acc, wanted = gpu.to_device(x), x.copy()
        gcodec.decode_add(frame, acc, 0.75)
        gcodec.decode_add(frame, wanted, 0.75)
        assert same(gpu.to_host(acc), wanted), spec
        scales = [0.75, -2]
        gcodec.decode_sum([frame, frame], out=acc, scale=scales)
        wanted = gcodec.decode_sum([frame, frame], scale=scales)
        assert same(gpu.to_host(acc), wanted), spec
    return frame


def feedback_agrees(gpu: Device, spec: str, steps: list[np.ndarray], **arguments: Any) -> None:
    """Check that the device and the host compress the steps to the same frames and residuals."""
    on_device, here = (gcodec.Feedback(spec, seed=3, **arguments) for _ in range(2))
    for x in steps:
        assert on_device.compress("w", gpu.to_device(x)) == here.compress("w", x)
        residual, expected = on_device.residual("w"), here.residual("w")
        assert gpu.owns(residual) != is_no_residual(residual)
        assert is_no_residual(residual) == is_no_residual(expected)
        assert same(host(residual), expected), spec
    states = on_device.state_dict(), here.state_dict()
    assert all(same(states[0][key], states[1][key]) for key in states[1])


def block_codec_agrees(gpu: Device, spec: str, **arguments: Any) -> None:
    """Check frames, damaged frames and residuals of a codec with blocks."""
    for n in (0, 1, 63, 1000):
        frame = frames_agree(gpu, spec, gradient(n).clip(-1e30, 1e30), **arguments)
        same_verdict(gpu, frame, [0, 1, 7, 31, 63, -1, -2, -5, 70, 100])
    frames_agree(gpu, spec, gradient(1000).clip(-9, 9).astype(np.float16).reshape(8, 125))
    steps = [gradient(500, k).clip(-1e30, 1e30) for k in range(3)]
    feedback_agrees(gpu, spec, steps, decay=0.9)
    feedback_agrees(gpu, spec, [gradient(500, k).clip(-9, 9).astype(np.float16) for k in range(2)])


def same_verdict(gpu: Device, frame: bytes, flips: list[int]) -> None:
    """Check that the device and the host give the same outcome for a payload with flipped bits."""
    known = gcodec.Frame.from_bytes(frame)
    for flip in flips:
        data = known.payload.data.copy()
        if data.size:
            data[flip // 8 % data.size] ^= np.uint8(1 << flip % 8)
        here, on_device = (known.payload._replace(data=d) for d in (data, gpu.to_device(data)))
        try:
            wanted = known.codec.decode(here, known.shape)
        except gcodec.FormatError as error:
            with pytest.raises(type(error)) as raised:
                known.codec.decode(on_device, known.shape)
            assert str(raised.value) == str(error)
        else:
            assert same(host(known.codec.decode(on_device, known.shape)), wanted)
