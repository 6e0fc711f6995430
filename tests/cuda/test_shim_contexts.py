"""Test codecs with context codes by scales of rows and columns: frames must equal the CPU's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import LARGE, gradient, same

import gcodec
from gcodec.runtime.device import Device

SPECS = (
    "ecsq:step=0.25",
    "ecsq:step=0.25,rounding=stochastic",
    "ecsq",
    "terngrad:pack=context",
    "qsgd:code=context,bucket=64",
    "qsgd:code=auto",
    "minifloat",
    "minifloat:code=context,format=e3m2",
)


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return a gradient with a scale for each row and column."""
    random = np.random.default_rng([rows, columns, seed])
    x = random.standard_normal((rows, columns))
    x *= np.exp2(random.normal(0, 1.5, (rows, 1)) + random.normal(0, 1, columns))
    return x.astype(np.float32)


SHAPES = ((40, 57), (2, 3, 5, 16), (1, 9), (1, 1))


def test_frames(gpu: Device) -> None:
    for shape, spec in itertools.product(SHAPES, SPECS):
        x = matrix(shape[0], int(np.prod(shape[1:]))).reshape(shape)
        frames_agree(gpu, spec, x, seed=5)


def test_zero_and_empty_tensors(gpu: Device) -> None:
    for spec in SPECS:
        frames_agree(gpu, spec, np.zeros((9, 30), np.float32))
        frames_agree(gpu, spec, np.empty(0, np.float32))
        frames_agree(gpu, spec, matrix(30, 31).astype(np.float16))


def test_feedback(gpu: Device) -> None:
    for spec in SPECS:
        feedback_agrees(gpu, spec, [matrix(20, 30, k) for k in range(3)])


def test_nonfinite_values(gpu: Device) -> None:
    x = matrix(9, 30)
    x[3, 4] = np.inf
    for spec in SPECS:
        with pytest.raises(gcodec.ParameterError, match="the first at flat index 94"):
            gcodec.encode(gpu.to_device(x), spec)


def test_escapes(gpu: Device) -> None:
    """Escaped levels, more of them than initially reserved, and levels without a symbol."""
    x = matrix(60, 64)
    x[:, 5], x[11], x[7, 9] = 130, np.arange(64) * 300, -40000
    specs = ("ecsq:step=1", "ecsq:step=1,rounding=stochastic", "ecsq:step=0.01")
    for spec in specs:
        frames_agree(gpu, spec, x)
    frames_agree(gpu, "qsgd:code=context,s=127,norm=max", x)
    x[::2, ::2] = 1e6  # the majority
    frames_agree(gpu, "ecsq:step=1", x)


def test_limits_of_float32(gpu: Device) -> None:
    x = matrix(16, 32)
    for scale in (2.0**-100, 2.0**-140, 2.0**100):
        frames_agree(gpu, "ecsq", (x * np.float32(scale)).astype(np.float32))
    for spec in ("ecsq:step=1e38", "ecsq:step=2e38,rounding=stochastic"):
        for wide in (np.float32(3e38), np.float32(3.4e38)):
            inputs = np.full((9, 9), wide)
            try:
                gcodec.encode(inputs, spec)
            except gcodec.ParameterError as error:
                with pytest.raises(gcodec.ParameterError) as raised:
                    gcodec.encode(gpu.to_device(inputs), spec)
                assert str(raised.value) == str(error)
            else:
                frames_agree(gpu, spec, inputs)


def test_targets(gpu: Device) -> None:
    dense = matrix(64, 60)
    # The errors of these are too small for the fixed-point sums in parts of a step.
    sparse = np.where(np.random.default_rng(0).random(dense.shape) < 0.02, dense, np.float32(0))
    cases = ("nmse=0.3", dense), ("bits=1.5", dense), ("nmse=0.01", sparse)
    for target, x in cases:
        frames_agree(gpu, f"ecsq:{target}", x)


@pytest.mark.parametrize("setting", ["rounding=nearest", "rounding=stochastic", "trellis=yes"])
def test_impossible_targets(gpu: Device, setting: str) -> None:
    small, huge = matrix(4, 9), np.full((3, 7), 3e38, np.float32)
    cases = [(target, small) for target in ("bits=0.01", "bits=31", "nmse=1e-20")]
    cases += [(target, huge) for target in ("bits=0.5", "nmse=0.02")]
    for target, x in cases:
        frames_agree(gpu, f"ecsq:{target},{setting}", x)


def test_planes(gpu: Device) -> None:
    cases = itertools.product((1, 8, 203), ("", ",format=e4m3"), ("", ",block=32"))
    for n, fmt, block in cases:
        frames_agree(gpu, f"minifloat:code=planes{fmt}{block}", gradient(n).clip(-9, 9))


def test_damaged(gpu: Device) -> None:
    x = matrix(40, 57)
    x[:, 5] *= 200
    for spec in (SPECS[0], SPECS[3], SPECS[4], SPECS[-1]):
        frame = gcodec.encode(x, spec)
        bits = 8 * gcodec.Frame.from_bytes(frame).payload.data.size
        flips = np.random.default_rng(3).integers(0, bits, 12).tolist()
        same_verdict(gpu, frame, [0, 3, 11, 25, 90, *flips, bits - 1])


def test_large(gpu: Device) -> None:
    """More than a block of rANS, a sample, and the bytes of the first fetch."""
    x = matrix(LARGE // 8 + 1, 9)
    frame = gcodec.encode(x, "ecsq:step=0.05")
    on_device = gpu.to_device(x)
    assert gcodec.encode(on_device, "ecsq:step=0.05") == frame
    assert same(gpu.to_host(gcodec.decode(frame, like=on_device)), gcodec.decode(frame))
    bare = gcodec.Frame.from_bytes(frame).without_seek().to_bytes()
    assert same(gpu.to_host(gcodec.decode(bare, like=on_device)), gcodec.decode(frame))
