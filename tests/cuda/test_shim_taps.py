"""Test the filter transform on a device: the coefficients, frames and values of the CPU."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import gradient, same

import gcodec
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.kernels.transform import small_transform
from gcodec.kernels.transform.basis import basis
from gcodec.runtime.device import Device

SIZES = ((1, 3, 3), (1, 1, 2), (1, 5, 7), (3, 3, 3), (4, 1, 1), (16, 8, 8), (1, 16, 16))
SPECS = (
    *("ecsq", "ecsq:transform=dct,step=0.0005", "ecsq:nmse=0.2", "ecsq:bits=2,transform=dct"),
    *("ecsq:transform=dct,step=0.001,rounding=stochastic", "ecsq:step=0.001"),
)
SHAPES = ((16, 3, 3, 3), (40, 8, 5), (12, 3, 7, 7), (2, 40, 2, 1, 3))


def filters(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return filters with correlated taps."""
    rng = np.random.default_rng([seed, *shape])
    shared = rng.laplace(0, 1e-3, shape[:2]).reshape(*shape[:2], *[1] * (len(shape) - 2))
    return (rng.laplace(0, 1e-3, shape) + shared).astype(np.float32)


def test_transforms(gpu: Device) -> None:
    for sizes, scale in itertools.product(SIZES, (1.0, 2.0**-130, 2.0**100)):
        matrices = basis(sizes[0]).tobytes(), basis(sizes[1]).tobytes(), basis(sizes[2]).tobytes()
        size = math.prod(sizes)
        for count in (1, (1 << 11) // size + 3):
            x = (gradient(count * size).clip(-9, 9) * np.float32(scale)).astype(np.float32)
            wanted, on_device = np.empty_like(x), gpu.to_device(x)
            small_transform.transform(x, sizes, matrices, wanted)
            actual = gpu.empty(x.size, np.float32)
            small_transform.transform(on_device, sizes, matrices, actual)
            assert same(gpu.to_host(actual), wanted)
            assert same(gpu.to_host(on_device), x)
            small_transform.transform(on_device, sizes, matrices, on_device)
            assert same(gpu.to_host(on_device), wanted)


def test_frames(gpu: Device) -> None:
    for shape, spec in itertools.product(SHAPES, SPECS):
        frame = frames_agree(gpu, spec, filters(shape), seed=5)
        assert "transform=dct" in str(gcodec.Frame.from_bytes(frame).codec)
    for shape in SHAPES:
        frames_agree(gpu, "ecsq:transform=dct", np.zeros(shape, np.float32))
        frames_agree(gpu, "ecsq:transform=dct", filters(shape).astype(np.float16))


def test_limits_of_float32(gpu: Device) -> None:
    for scale in (2.0**-70, 2.0**-100, 2.0**-139, 2.0**125):
        for spec in ("ecsq", "ecsq:transform=dct"):
            x = filters((16, 3, 3, 3))
            frames_agree(gpu, spec, (x / np.abs(x).max() * np.float32(scale)).astype(np.float32))
    x = np.full((4, 3, 3, 3), 3e38, np.float32)
    with pytest.raises(gcodec.ParameterError, match="when it is transformed"):
        gcodec.encode(gpu.to_device(x), "ecsq:transform=dct")
    with pytest.raises(gcodec.ParameterError, match="transform"):
        gcodec.encode(gpu.to_device(x.reshape(-1)), "ecsq:transform=dct")


def test_feedback(gpu: Device) -> None:
    feedback_agrees(gpu, "ecsq:nmse=0.1", [filters((16, 3, 3, 3), k) for k in range(3)])


def test_damaged(gpu: Device) -> None:
    x = filters((16, 8, 3, 3))
    assert FilterTransform.of(x.shape) is not None
    frame = gcodec.encode(x, "ecsq:transform=dct,step=0.001")
    bits = 8 * gcodec.Frame.from_bytes(frame).payload.data.size
    same_verdict(gpu, frame, [0, 3, 11, 25, 90, bits // 2, bits - 1])
    huge = gcodec.Frame.from_bytes(frame)
    scalars = {**huge.payload.scalars, "step": 1e38}
    codec = gcodec.parse("ecsq:transform=dct,step=1e38")
    wrong = gcodec.Frame(
        codec, "float32", x.shape, huge.payload._replace(codec=codec, scalars=scalars)
    ).to_bytes()
    same_verdict(gpu, wrong, [bits - 1])
    with pytest.raises(gcodec.Corrupt, match="float32"):
        gcodec.decode(wrong, like=gpu.to_device(x))
