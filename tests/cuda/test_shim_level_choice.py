"""Test selection of the shortest form and code of levels on a device, with one wait."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree
from samples import some_of
from shim import ShimDevice
from test_shim_minifloat_choice import tensors
from test_waits import sample

import gcodec
from gcodec.runtime.device import Device

SPECS = (
    "qsgd:code=auto",
    "qsgd:code=auto,bucket=512",
    "qsgd:code=auto,s=2,bucket=64,norm=max",
    "qsgd:code=auto,form=sparse",
    "qsgd:code=auto,s=1000,bucket=100",
    "qsgd:code=auto,form=dense,bucket=7",
    "qsgd:code=auto,s=127,norm=max",
)


def sparse_tensors() -> list[np.ndarray]:
    """Return tensors with few nonzero levels, and tensors with zero-norm buckets."""
    random = np.random.default_rng(1)
    x = random.standard_normal(9000).astype(np.float32)
    with_zero_norms = np.where(np.arange(9000) % 1000 < 512, 0, x)
    few = np.where(random.random(9000) < 0.002, x, 0)
    wide = np.exp(2 * random.standard_normal((64, 100)))
    return [one.astype(np.float32) for one in (with_zero_norms, few, wide)]


def test_frames(gpu: Device) -> None:
    seen = set()
    cases = list(itertools.product((*tensors(), *sparse_tensors()), SPECS))
    for x, spec in some_of(gpu, cases, 4):
        codec = gcodec.Frame.from_bytes(frames_agree(gpu, spec, x)).codec
        seen.add((codec.form, codec.code))
    assert len(seen) > 3
    for spec in SPECS[:3]:
        feedback_agrees(gpu, spec, [sample()[:9], sample()[9:18]])


def test_payloads(gpu: Device) -> None:
    """Payloads stay on the device, whichever string is the shortest."""
    for x in (*tensors()[:3], *sparse_tensors()):
        payload = gcodec.parse("qsgd:code=auto").encode(gpu.to_device(x))
        wanted = gcodec.parse("qsgd:code=auto").encode(x)
        assert payload.codec == wanted.codec
        assert payload.scalars == wanted.scalars
        assert payload.nbits == wanted.nbits
        assert gpu.owns(payload.data)
        assert payload.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_selection_when_the_estimate_is_wrong(dtype: str) -> None:
    """If the context string only seemed shorter, the truly shortest string is written as well."""
    random, spec = np.random.default_rng(0), "qsgd:code=auto,bucket=7"
    with gcodec.runtime.device.use(ShimDevice()) as gpu:
        # The first call copies tables to the device.
        gcodec.encode(gpu.to_device(random.uniform(-6, 6, 10)), spec)
        seen = set()
        for n in (384, 700, 5001):
            x = random.uniform(-6, 6, n).astype(dtype)
            on_device, before, launched = gpu.to_device(x), gpu.fetched, len(gpu.launched)
            frame = gcodec.encode(on_device, spec)
            assert gpu.fetched == before + 1
            assert frame == gcodec.encode(x, spec)
            assert "write_classed" in gpu.launched[launched:]
            seen.add(gcodec.Frame.from_bytes(frame).codec.code)
        assert seen - {"context"}
