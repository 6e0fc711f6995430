"""Test whole frames of sparse codecs and of plain codes on a device."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import arbitrary_floats, gradient, same

import gcodec
from gcodec.runtime.device import Device

SPARSE = ("topk", "topk:value=int8,k=40", "topk:value=sign", "topk:threshold=0.5,value=float16")
SPARSE += ("randomk:ratio=0.05", "randomk:ratio=0.8,value=bfloat16,unbiased=yes")
CODES = ("minifloat:code=none", "minifloat:code=none,format=e4m3,style=fn,scale=0.25")
CODES += ("minifloat:code=none,format=e1m1", "minifloat:code=none,format=e3m2")
CODES += ("minifloat:code=none,block=32", "minifloat:code=huffman,block=7,format=e4m3,scale=0.1")
DCT = ("dct8:chunk=8x8,k=6", "dct8:layout=tiles,chunk=16x16,k=9,values=affine8")
DCT += ("dct8:chunk=6x5x4", "dct8:chunk=8x8,k=6,values=float32")


@pytest.mark.parametrize("spec", SPARSE + CODES)
def test_frames(gpu: Device, spec: str) -> None:
    for n, dtype in ((1530, "float32"), (510, "float16"), (0, "float32")):
        x = gradient(n).clip(-100, 100).astype(dtype).reshape(n // 17, 17)
        frames_agree(gpu, spec, x, seed=3)


@pytest.mark.parametrize("spec", SPARSE + CODES)
def test_feedback(gpu: Device, spec: str) -> None:
    steps = [gradient(1000, step).clip(-100, 100) for step in range(2)]
    feedback_agrees(gpu, spec, steps, decay=0.9)


@pytest.mark.parametrize("spec", [*CODES, "minifloat:code=huffman"])
def test_damage(gpu: Device, spec: str) -> None:
    frame = gcodec.encode(gradient(301).clip(-9, 9), spec)
    same_verdict(gpu, frame, [0, 3, 700, 1207, 2407])


@pytest.mark.parametrize("spec", DCT)
def test_decoded_chunks(gpu: Device, spec: str) -> None:
    x = gradient(1500).clip(-100, 100).reshape(30, 50)
    frame = gcodec.encode(x, spec)
    out, acc, wanted = gpu.to_device(np.zeros_like(x)), gpu.to_device(x), x.copy()
    gcodec.decode(frame, out=out)
    assert same(gpu.to_host(out), gcodec.decode(frame))
    gcodec.decode_add(frame, acc, -0.5)
    gcodec.decode_add(frame, wanted, -0.5)
    assert same(gpu.to_host(acc), wanted)


def test_payload_from_a_device(gpu: Device) -> None:
    x = gradient(300)
    payload = gcodec.parse("topk").encode(gpu.to_device(x))
    moved = payload._replace(data=gpu.to_device(payload.data))
    assert same(payload.codec.decode(moved, 300), payload.codec.decode(payload, 300))


@pytest.mark.parametrize("spec", DCT)
def test_chunks(gpu: Device, spec: str) -> None:
    x = np.random.default_rng(0).standard_normal((70, 52)).astype(np.float32)
    frames_agree(gpu, spec, x)


def test_chunks_with_feedback(gpu: Device) -> None:
    steps = [np.random.default_rng(k).standard_normal(500).astype(np.float32) for k in range(2)]
    feedback_agrees(gpu, DCT[0], steps)


@pytest.mark.parametrize("spec", (*SPARSE, *CODES, *DCT))
def test_nonfinite_values(gpu: Device, spec: str) -> None:
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(gpu.to_device(arbitrary_floats(300)), spec)


def test_one_wait(gpu: Device) -> None:
    x = gpu.to_device(gradient(5000))
    if not hasattr(gpu, "fetched"):
        pytest.skip("a real device does not count")
    gcodec.encode(x, "topk")
    assert gpu.fetched == 1
    gcodec.encode(x, "dct8:chunk=8x8")  # copies the transform's bases to the device
    before = gpu.fetched
    gcodec.encode(x, "dct8:chunk=8x8")
    assert gpu.fetched == before + 1
