"""Test TernGrad's quantizer and its packings on a device: the bytes of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import LARGE, arbitrary_floats, gradient, same

import gcodec
from gcodec.kernels.quantize import ternary
from gcodec.runtime.device import Device

PACKS: tuple[ternary.Pack, ...] = ("chapter", "terngrad", "base3")
SCALES = tuple(map(np.float32, (2.5, 1.0, 1e-40, 3e38)))


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_quantize(gpu: Device, pack: ternary.Pack, scale: np.float32) -> None:
    sizes = (*range(24), 33, 1000, 9001)
    for n in (*sizes, LARGE) if scale == 1 else sizes:
        x = gradient(n)
        quantized = ternary.quantize(gpu.to_device(x), scale, 7 << 40 | 5, pack)
        wanted = ternary.quantize(x, scale, 7 << 40 | 5, pack)
        assert same(gpu.to_host(quantized), wanted), n
        ternary.check(quantized, n, pack)
        for add in (None, np.float32(-0.3), np.float32(np.inf)):
            out, here = gpu.to_device(x), x.copy()
            ternary.dequantize_ternary(quantized, scale, out, pack, add)
            ternary.dequantize_ternary(wanted, scale, here, pack, add)
            assert same(gpu.to_host(out), here), n


@pytest.mark.parametrize("pack", PACKS)
def test_zeros(gpu: Device, pack: ternary.Pack) -> None:
    x, none = np.array([0.0, -0.0] * 9, np.float32), np.float32(0)
    quantized = ternary.quantize(gpu.to_device(x), none, 1, pack)
    assert same(gpu.to_host(quantized), ternary.quantize(x, none, 1, pack))


@pytest.mark.parametrize("pack", PACKS)
def test_codec(gpu: Device, pack: ternary.Pack) -> None:
    cases = list(itertools.product(PACKS, ("", ",clip=0"), (0, 1, 6, 1001)))
    for own, clip, n in cases:
        if own == pack:
            frame = frames_agree(gpu, f"terngrad:pack={pack}{clip}", gradient(n), seed=n)
            same_verdict(gpu, frame, [0, 1, 2, 3, 6, 7, 100, 101, -1, -2, -7, -8, -15, -22])
    spec = f"terngrad:pack={pack}"
    frames_agree(gpu, spec, gradient(100).clip(-9, 9).astype(np.float16).reshape(4, 25))
    feedback_agrees(gpu, spec, [gradient(501, k) for k in range(3)], decay=0.9)
    feedback_agrees(gpu, spec, [gradient(501, k).clip(-9, 9).astype(np.float16) for k in range(2)])


def test_shared_scale(gpu: Device) -> None:
    codec, x = gcodec.parse("terngrad"), gradient(100)
    on_device = gpu.to_device(x)
    assert codec.scale_of(on_device) == codec.scale_of(x)
    payload = codec.encode(on_device, scale=3.0, seed=2)
    assert payload.tobytes() == codec.encode(x, scale=3.0, seed=2).tobytes()


def test_refusals(gpu: Device) -> None:
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(gpu.to_device(arbitrary_floats(100)), "terngrad")
