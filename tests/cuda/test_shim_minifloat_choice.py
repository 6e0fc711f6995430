"""Test selection of the shortest minifloat code on a device: host frames, with a single wait."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree
from samples import some_of
from shim import ShimDevice
from test_waits import sample

import gcodec
from gcodec.runtime.device import Device

SPECS = (
    "minifloat:block=32",
    "minifloat:block=7,format=e4m3,code=planes",
    "minifloat:block=5,code=none",
    "minifloat",
    "minifloat:format=e4m3,style=fn",
    "minifloat:table=empirical",
    "minifloat:table=gennorm",
    "minifloat:table=3",
    "minifloat:format=e3m2,scale=gennorm",
)


def tensors() -> list[np.ndarray]:
    """Return tensors with various shortest codes."""
    random = np.random.default_rng(0)
    return [
        sample(),
        sample()[:3],
        sample().reshape(8, -1, 16, 4),
        np.zeros((20, 30), np.float32),
        np.ones(5, np.float32),
        np.zeros(0, np.float32),
        random.standard_normal(3001).astype(np.float32),
        random.integers(-3, 4, 5001).astype(np.float32),
        random.uniform(-6, 6, 700).astype(np.float32),
    ]


def test_frames(gpu: Device) -> None:
    codes = set()
    for x, spec in some_of(gpu, list(itertools.product(tensors(), SPECS)), 4):
        codes.add(gcodec.Frame.from_bytes(frames_agree(gpu, spec, x)).codec.code)
    assert len(codes) > 2
    for spec in SPECS[:6]:
        feedback_agrees(gpu, spec, [sample()[:9], sample()[9:18]])


def test_payloads(gpu: Device) -> None:
    """Payloads stay on the device, whichever code is the shortest."""
    for x in tensors()[:3]:
        payload = gcodec.parse("minifloat").encode(gpu.to_device(x))
        wanted = gcodec.parse("minifloat").encode(x)
        assert payload.codec == wanted.codec
        assert payload.nbits == wanted.nbits
        assert gpu.owns(payload.data)
        assert payload.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_selection_when_the_estimate_is_wrong(dtype: str) -> None:
    """If the context string only seemed shorter, the truly shortest string is written as well."""
    random = np.random.default_rng(0)
    with gcodec.runtime.device.use(ShimDevice()) as gpu:
        gcodec.encode(gpu.to_device(random.uniform(-6, 6, 10)), "minifloat:block=32")  # tables
        seen = set()
        for n in (5001, 7000):
            x = random.uniform(-6, 6, n).astype(dtype)
            on_device, before, launched = gpu.to_device(x), gpu.fetched, len(gpu.launched)
            frame = gcodec.encode(on_device, "minifloat:block=32")
            assert gpu.fetched == before + 1
            assert frame == gcodec.encode(x, "minifloat:block=32")
            assert "write_classed" in gpu.launched[launched:]
            seen.add(gcodec.Frame.from_bytes(frame).codec.code)
        assert seen - {"context"}
