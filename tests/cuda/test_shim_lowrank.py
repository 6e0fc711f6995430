"""Test lowrank on a device, and the products that its encoder needs: the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import gradient, same

import gcodec
from gcodec.kernels.numeric import low_rank, products
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.runtime.device import Device


def matrix_of_rank(rank: int, m: int, k: int, noise: float, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    left, right = random.standard_normal((m, rank)), random.standard_normal((rank, k))
    x = left * 0.5 ** np.arange(rank) @ right + noise * random.standard_normal((m, k))
    return x.astype(np.float32)


def test_products(gpu: Device) -> None:
    """Products of a matrix with rows of the host, and products that are added."""
    for m, k in ((3, 9000), (9000, 3), (70, 300)):
        matrix = gradient(m * k).clip(-99, 99).reshape(m, k)
        on_device, top = gpu.to_device(matrix), int(max_abs_bits(matrix.reshape(-1)))
        for multiply, size in ((low_rank.times_transposed, k), (low_rank.times, m)):
            rows = low_rank.fixed(low_rank.start(1, 5, size))
            for bits in (None, top):
                assert same(multiply(on_device, rows, bits), multiply(matrix, rows, bits))
        left, right = (gradient(3 * n, n).reshape(3, n) for n in (m, k))
        total, actual = matrix.reshape(-1).copy(), gpu.to_device(matrix.reshape(-1))
        products.add_product(left, right, np.float32(0.3), total)
        factors = gpu.to_device(left), gpu.to_device(right)
        products.add_product(*factors, np.float32(0.3), actual)
        assert same(gpu.to_host(actual), total)


@pytest.mark.parametrize("spec", ["lowrank", "lowrank:nmse=0.01", "lowrank:rank=3,step=0.5"])
def test_frames(gpu: Device, spec: str) -> None:
    shapes = ((60, 70), (6, 10, 40), (30,), (0, 4), (8, 8, 3, 3))
    for shape in shapes:
        n = int(np.prod(shape))
        x = matrix_of_rank(4, 1, n, 0.1).reshape(shape)
        if len(shape) == 2 and n:
            x = matrix_of_rank(4, *shape, 0.1)
        frame = frames_agree(gpu, spec, x, seed=3)
        same_verdict(gpu, frame, [30, 31, 700])
    frames_agree(gpu, spec, matrix_of_rank(3, 40, 50, 0.05).astype(np.float16))


def test_residual(gpu: Device) -> None:
    """A few components and much noise: factors and a residual."""
    x = matrix_of_rank(2, 48, 400, 0.3)
    frame = frames_agree(gpu, "lowrank:nmse=0.02", x)
    codec = gcodec.Frame.from_bytes(frame).codec
    assert codec.rank > 0


def test_feedback(gpu: Device) -> None:
    steps = [matrix_of_rank(4, 40, 50, 0.05, seed) for seed in range(3)]
    feedback_agrees(gpu, "lowrank", steps)


def test_feedback_without_factors(gpu: Device) -> None:
    """Vectors, and matrices of noise, have no factors: each step knows the preceding levels."""
    random = np.random.default_rng(5)
    for shape in ((1200,), (30, 40)):
        steps = [random.standard_normal(shape, np.float32) for _ in range(3)]
        feedback_agrees(gpu, "lowrank", steps)
