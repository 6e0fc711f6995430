"""MXNet's quantisers on a device: the bytes and residuals of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, refused_alike
from samples import LARGE, SIZES, anything, gradient, same

import gcodec
from gcodec.kernels import threshold
from gcodec.kernels.device import Device

THRESHOLDS = tuple(map(np.float32, (0.5, 1.0, 2.0**-126, np.inf)))


@pytest.mark.parametrize("cut", THRESHOLDS, ids=str)
def test_2bit(gpu: Device, cut: np.float32) -> None:
    for n in (*SIZES, LARGE):
        x, residual = anything(n), anything(n, 1)
        there, kept = gpu.to_device(x), gpu.to_device(residual)
        assert same(
            gpu.to_host(threshold.quantize_2bit(there, cut)), threshold.quantize_2bit(x, cut)
        )
        scalars = np.float32(0.9), cut, np.float32(cut * np.float32(1.001))
        found = threshold.quantize_2bit_residual(there, kept, *scalars)
        assert same(gpu.to_host(found), threshold.quantize_2bit_residual(x, residual, *scalars))
        assert same(gpu.to_host(kept), residual)


@pytest.mark.parametrize(
    "cut", [np.float32(c) for c in (0, -0.0, -1, 0.5, 1e-40, np.nan)], ids=str
)
def test_1bit(gpu: Device, cut: np.float32) -> None:
    for n in SIZES:
        x, residual = anything(n), anything(n, 1)
        there, kept = gpu.to_device(x), gpu.to_device(residual)
        assert same(
            gpu.to_host(threshold.quantize_1bit(there, cut)), threshold.quantize_1bit(x, cut)
        )
        found = threshold.quantize_1bit_residual(there, kept, np.float32(1), cut)
        wanted = threshold.quantize_1bit_residual(x, residual, np.float32(1), cut)
        assert same(gpu.to_host(found), wanted)
        assert same(gpu.to_host(kept), residual)


SPECS = ("mxnet-2bit", "mxnet-2bit:threshold=auto", "mxnet-2bit:threshold=1e-3,server=yes")


@pytest.mark.parametrize("spec", [*SPECS, "mxnet-1bit", "mxnet-1bit:threshold=0.1"])
def test_codecs(gpu: Device, spec: str) -> None:
    for n in (0, 1, 5, 1000):
        x = np.clip(gradient(n), -100, 100)
        frame = frames_agree(gpu, spec, x)
        refused_alike(gpu, frame, [1, 2, 100, -1, -2, -9, -30])
    frames_agree(gpu, spec, x.astype(np.float16).reshape(10, 100))
    feedback_agrees(gpu, spec, [gradient(777, k).clip(-9, 9) for k in range(3)])
    steps = [gradient(777, k).clip(-9, 9).astype(np.float16) for k in range(3)]
    feedback_agrees(gpu, spec, steps, decay=0.9)


@pytest.mark.parametrize("spec", ["mxnet-2bit", "mxnet-1bit", "sign", "terngrad"])
def test_many(gpu: Device, spec: str) -> None:
    x = gradient(LARGE)
    frame = gcodec.encode(x, spec, seed=1)
    assert gcodec.encode(gpu.to_device(x), spec, seed=1) == frame
    assert same(gpu.to_host(gcodec.decode(frame, like=gpu.to_device(x))), gcodec.decode(frame))


def test_nan_stays(gpu: Device) -> None:
    steps = [anything(500, k) for k in range(2)]
    feedback_agrees(gpu, "mxnet-2bit", steps, nonfinite="propagate")


def test_what_is_not_there(gpu: Device) -> None:
    x = gradient(100)
    there = gpu.to_device(x)
    with pytest.raises(TypeError, match="takes no arrays on a CUDA device yet: copy them"):
        gcodec.encode(there, "mxnet-2bit:form=sparse")
    with pytest.raises(TypeError, match="takes no arrays on a CUDA device yet: copy them"):
        gcodec.decode(gcodec.encode(x, "mxnet-2bit:form=sparse"), like=there)
