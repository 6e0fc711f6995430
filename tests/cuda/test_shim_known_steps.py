"""Test levels of ``ecsq`` with a given step on a device, for which the host does not wait."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from checks import feedback_agrees
from samples import arbitrary_floats, gradient, same, some_of
from test_shim_level_choice import sparse_tensors
from test_shim_minifloat_choice import tensors
from test_waits import sample

import gcodec
from gcodec.runtime.device import Device, host

STEPS = ("0.01", "0.5", "1e-05", "3e-20", "1e30")
ODD_STEPS = ("1e-30", "3e38", "0")  # steps that the host checks first
WAYS = ("", ",rounding=stochastic")
SPECS = [f"ecsq:step={step}{way}" for step in STEPS for way in WAYS]
ODD = [f"ecsq:step={step}{way}" for step in ODD_STEPS for way in WAYS]


def outcome(x: Any, spec: str) -> bytes | str:
    try:
        frame: bytes = gcodec.encode(x, spec, seed=3)
    except gcodec.ParameterError as error:
        return str(error)
    return frame


def test_frames(gpu: Device) -> None:
    # The first call copies tables to the device.
    gcodec.encode(gpu.to_device(np.ones(9, np.float32)), "ecsq:step=1")
    one, seen = sample()[:20, :30] / 20, set()
    subset = [np.float32(top) * one.clip(-1, 1) for top in (1e-16, 4e6, 5e36, 3e38)]
    tiny = [np.float32(top) * one for top in (1e-38, 1e-44)]
    cases = list(itertools.product((*tensors(), *sparse_tensors(), *subset), SPECS))
    cases += itertools.product(tiny, (spec for spec in SPECS if "1e30" not in spec))
    for x, spec in some_of(gpu, cases, 3):
        on_device, before = gpu.to_device(x), getattr(gpu, "fetched", 0)
        actual, waited = outcome(on_device, spec), getattr(gpu, "fetched", 0) - before
        assert actual == outcome(x, spec), spec
        assert waited <= 1 or x.ndim > 2, spec
        seen.add(type(actual))
    assert len(seen) == 2
    for spec in ODD:
        assert outcome(gpu.to_device(sample()), spec) == outcome(sample(), spec)


@pytest.mark.parametrize("spec", ["ecsq:step=0.01", "ecsq:step=0.3,rounding=stochastic"])
def test_symbols(gpu: Device, spec: str) -> None:
    """Symbols are resolved on access, and equal those of the host."""
    codec = gcodec.parse(spec)
    for x in (sample(), np.zeros(40, np.float32), gradient(5000).clip(-9, 9)):
        on_device, here = codec.quantize(gpu.to_device(x), seed=1), codec.quantize(x, seed=1)
        assert on_device.step == here.step
        assert (on_device.scales is None) == (here.scales is None)
        if here.scales is not None:
            assert on_device.scales.layout == here.scales.layout
            assert all(map(np.array_equal, on_device.scales[1:], here.scales[1:]))
        for name in ("centroids", "symbols", "outliers"):
            assert same(host(getattr(on_device, name)), getattr(here, name)), name
        assert codec.pack(on_device).tobytes() == codec.pack(here).tobytes()


def test_feedback(gpu: Device) -> None:
    for spec in SPECS[:6]:
        feedback_agrees(gpu, spec, [sample()[:40, :50] * np.float32(k) for k in (1, 0, 2)])
        half = [gradient(700, k).clip(-9, 9).astype(np.float16) for k in range(3)]
        feedback_agrees(gpu, spec, half, decay=0.9)


def test_more_outliers_than_room(gpu: Device) -> None:
    x = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    assert outcome(gpu.to_device(x), "ecsq:step=0.001") == outcome(x, "ecsq:step=0.001")


def test_nonfinite_values(gpu: Device) -> None:
    for n, spec in itertools.product((1, 300, 5000), SPECS[:4]):
        x = arbitrary_floats(n)
        x[0] = np.inf
        assert outcome(gpu.to_device(x), spec) == outcome(x, spec)
