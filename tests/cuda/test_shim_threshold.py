"""Test MXNet's quantizers on a device: the bytes and residuals of the CPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import LARGE, SIZES, arbitrary_floats, gradient, same, some_of
from test_shim_level_choice import sparse_tensors
from test_shim_minifloat_choice import tensors

import gcodec
from gcodec.kernels.bits import sent_codes
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize import threshold
from gcodec.kernels.quantize.threshold import ONE_BIT, TWO_BIT
from gcodec.runtime.device import Device

THRESHOLDS = tuple(map(np.float32, (0.5, 1.0, 2.0**-126, np.inf)))


@pytest.mark.parametrize("cut", THRESHOLDS, ids=str)
def test_2bit(gpu: Device, cut: np.float32) -> None:
    for n in (*SIZES, LARGE):
        x, residual = arbitrary_floats(n), arbitrary_floats(n, 1)
        on_device, kept = gpu.to_device(x), gpu.to_device(residual)
        codes = threshold.quantize(x, TWO_BIT, cut)
        assert same(gpu.to_host(threshold.quantize(on_device, TWO_BIT, cut)), codes)
        decay, levels = np.float32(0.9), (cut, np.float32(cut * np.float32(1.001)))
        left, wanted = gpu.empty(n, np.float32), np.empty(n, np.float32)
        codes = threshold.quantize(x, TWO_BIT, *levels, ResidualUpdate(residual, decay, wanted))
        for out in (left, kept):
            update = ResidualUpdate(kept, decay, out)
            actual = threshold.quantize(on_device, TWO_BIT, *levels, update)
            assert same(gpu.to_host(actual), codes)
            assert same(gpu.to_host(out), wanted)


@pytest.mark.parametrize(
    "cut", [np.float32(c) for c in (0, -0.0, -1, 0.5, 1e-40, np.nan)], ids=str
)
def test_1bit(gpu: Device, cut: np.float32) -> None:
    for n in SIZES:
        x, residual = arbitrary_floats(n), arbitrary_floats(n, 1)
        on_device, kept = gpu.to_device(x), gpu.to_device(residual)
        codes = threshold.quantize(x, ONE_BIT, cut)
        assert same(gpu.to_host(threshold.quantize(on_device, ONE_BIT, cut)), codes)
        decay = np.float32(1)
        left, wanted = gpu.empty(n, np.float32), np.empty(n, np.float32)
        codes = threshold.quantize(x, ONE_BIT, cut, update=ResidualUpdate(residual, decay, wanted))
        for out in (left, kept):
            update = ResidualUpdate(kept, decay, out)
            actual = threshold.quantize(on_device, ONE_BIT, cut, update=update)
            assert same(gpu.to_host(actual), codes)
            assert same(gpu.to_host(out), wanted)


def test_sent_codes(gpu: Device) -> None:
    for n in (0, 1, 33, 9001):
        for cut in (np.float32(2), np.float32(2.0**-126)):  # sends few elements, and most elements
            codes = threshold.quantize(gradient(n), TWO_BIT, cut)
            on_device, before = gpu.to_device(codes), getattr(gpu, "fetched", 0)
            wanted, actual = sent_codes.sent(codes), sent_codes.sent(on_device)
            assert getattr(gpu, "fetched", 1) == before + 1
            assert all(same(*both) for both in zip(actual, wanted, strict=True))
    all_values = np.array([0, 2, 3], np.uint8)
    assert same(
        gpu.to_host(sent_codes.turned(gpu.to_device(all_values))), sent_codes.turned(all_values)
    )


SPECS = ("mxnet-2bit", "mxnet-2bit:threshold=auto", "mxnet-2bit:threshold=1e-3,server=yes")
FORMS = ("mxnet-2bit:form=sparse", "mxnet-2bit:form=sparse,index=rans,threshold=auto")
FORMS += ("mxnet-2bit:form=context", "mxnet-2bit:form=auto,index=auto,threshold=2")


def test_forms(gpu: Device) -> None:
    for spec in FORMS:
        for n in (0, 1, 1000):
            frame = frames_agree(gpu, spec, np.clip(gradient(n), -100, 100))
            same_verdict(gpu, frame, [1, 2, 100, 200, -1, -2, -9, -30])
        frames_agree(gpu, spec, np.clip(gradient(100), -9, 9).astype(np.float16))
        feedback_agrees(gpu, spec, [np.clip(gradient(500, k), -9, 9) for k in range(3)])


CUTS = ("", ",threshold=2", ",threshold=auto,index=auto", ",threshold=0.01", ",threshold=1.2")


def test_shortest_form_is_selected(gpu: Device) -> None:
    seen = set()
    gcodec.encode(gpu.to_device(gradient(40).clip(-9, 9)), "mxnet-2bit:form=auto")  # tables
    cases = list(itertools.product([*tensors(), *sparse_tensors()], CUTS))
    for x, cut in some_of(gpu, cases, 2):
        on_device, before = gpu.to_device(x), getattr(gpu, "fetched", 0)
        frame = gcodec.encode(on_device, f"mxnet-2bit:form=auto{cut}")
        assert getattr(gpu, "fetched", 1) == before + 1
        assert frame == gcodec.encode(x, f"mxnet-2bit:form=auto{cut}")
        seen.add(gcodec.Frame.from_bytes(frame).codec.form)
    assert len(seen) > 1


@pytest.mark.parametrize("spec", [*SPECS, "mxnet-1bit", "mxnet-1bit:threshold=0.1"])
def test_codecs(gpu: Device, spec: str) -> None:
    for n in (0, 1, 5, 1000):
        x = np.clip(gradient(n), -100, 100)
        frame = frames_agree(gpu, spec, x)
        same_verdict(gpu, frame, [1, 2, 100, -1, -2, -9, -30])
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
    steps = [arbitrary_floats(500, k) for k in range(2)]
    feedback_agrees(gpu, "mxnet-2bit", steps, nonfinite="propagate")
