"""Test table codes of other codecs on a device: frames must equal those of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree
from samples import same

import gcodec
from gcodec.runtime.device import Device

SPECS = (
    "minifloat:code=huffman",
    "minifloat:code=huffman,table=empirical",
    "minifloat:code=huffman,format=e4m3,scale=0.01,block=32",
    "minifloat:code=pair,scale=0.5",
    "minifloat:code=pair,table=gennorm",
    "minifloat:code=planes,format=e4m3",
    "minifloat:code=planes,format=e2m2,table=empirical,block=7",
    "minifloat:code=planes,table=3",
    "minifloat:code=rans,table=gennorm",
    "minifloat:code=rans,table=empirical",
    "minifloat:code=rans",
    "minifloat:code=rans,format=e4m3",
    "minifloat:code=huffman,format=e2m2,table=gennorm",
    "terngrad:pack=rans",
    "terngrad:pack=rans,clip=0",
)


def sample(n: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng([n, seed])
    return (random.standard_normal(n) * random.random(n)).astype(np.float32)


def test_frames(gpu: Device) -> None:
    for spec, n in itertools.product(SPECS, (0, 1, 37, 3001)):
        frames_agree(gpu, spec, sample(n), seed=4)


@pytest.mark.parametrize("spec", ["minifloat:code=huffman", "terngrad:pack=rans"])
def test_feedback(gpu: Device, spec: str) -> None:
    feedback_agrees(gpu, spec, [sample(1000, step) for step in range(3)])


def test_one_wait(gpu: Device) -> None:
    """The device chooses the table, so the host waits only once."""
    if not hasattr(gpu, "fetched"):
        pytest.skip("a real device does not count")
    x = gpu.to_device(sample(1000))
    for spec in ("code=huffman", "code=planes,format=e4m3", "code=rans", "code=pair,table=5"):
        gcodec.encode(x, f"minifloat:scale=0.1,{spec}")  # copies tables to the device
        before = gpu.fetched
        gcodec.encode(x, f"minifloat:scale=0.1,{spec}")
        assert gpu.fetched - before == 1


def test_seek_tables(gpu: Device) -> None:
    x = sample(70_000)
    on_device = gpu.to_device(x)
    for spec in ("minifloat:code=huffman", "minifloat:code=rans,format=e4m3"):
        frame = gcodec.encode(on_device, spec)
        assert frame == gcodec.encode(x, spec)
        known = gcodec.Frame.from_bytes(frame)
        assert known.seek is not None
        for one in (known, known.without_seek()):
            decoded = gpu.to_host(gcodec.decode(one.to_bytes(), like=on_device))
            assert same(decoded, gcodec.decode(frame))


def test_last_odd_element_of_pairs(gpu: Device) -> None:
    """With an odd number of codes, the last byte contains one code too many."""
    codec = gcodec.parse("minifloat:code=pair,scale=1.0,table=0")
    payload = codec.encode(np.ones(8, np.float32))
    for data in (payload.data, gpu.to_device(payload.data)):
        with pytest.raises(gcodec.Corrupt, match="after the last element"):
            codec.decode(payload._replace(data=data), 7)
