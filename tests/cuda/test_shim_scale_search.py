"""Test the scale search of minifloats on a device: bit-exact results, with no wait."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from samples import arbitrary_floats, gradient

from gcodec.arrays.sampling import MANY
from gcodec.codecs.minifloat.gennorm import RULES
from gcodec.codecs.minifloat.scale_search import search_scale
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from gcodec.runtime.device import Device

EVERY = [MiniFloat(*both) for both in itertools.product(FORMATS, STYLES)]
FEW = 1 << 18  # the most elements measured without sampling


def heavy(n: int, seed: int = 0) -> np.ndarray:
    """Return values with a heavy tail."""
    random = np.random.default_rng([n, seed])
    x = random.standard_normal(n) * np.exp(0.3 * random.standard_normal(n))
    x[:: 1 << 10] *= 300.0
    return x.astype(np.float32)


def tensors(n: int) -> list[np.ndarray]:
    """Return tensors of n values from various distributions."""
    random = np.random.default_rng(n)
    normal = random.standard_normal(n).astype(np.float32)
    tiny = normal * np.float32(2.0**-130)
    return [
        normal,
        random.laplace(size=n).astype(np.float32),
        heavy(n),
        gradient(n).clip(-99, 99),
        np.sign(normal) * np.float32(0.3),
        np.where(random.random(n) < 0.02, normal, np.float32(0)),
        tiny,
        np.full(n, 1e-45, np.float32),
        np.float32(3e38) * np.tanh(normal),
        np.zeros(n, np.float32),
    ]


def agree(gpu: Device, x: np.ndarray, fmt: MiniFloat, rule: str, *residual: np.ndarray) -> None:
    """Check that host and device find the same scale, the device without a wait."""
    decay = [np.float32(0.75)] * len(residual)
    on_device = [gpu.to_device(part) for part in (x, *residual)]
    before = getattr(gpu, "fetched", 0)
    actual = search_scale(on_device[0], fmt, rule, *on_device[1:], *decay)
    assert getattr(gpu, "fetched", 0) == before
    assert float(actual) == search_scale(x, fmt, rule, *residual, *decay), (x.size, fmt, rule)


@pytest.mark.parametrize("n", [0, 1, 2, 77, 3000, 9000])
def test_small(gpu: Device, n: int) -> None:
    cases = [(fmt, rule) for fmt in EVERY for rule in RULES[:2]] + [
        (MiniFloat("e2m1", "ieee"), "co3")
    ]
    each = itertools.cycle(cases[n % len(cases) :] + cases[: n % len(cases)])
    for x in tensors(n):
        for _ in range(3):
            agree(gpu, x, *next(each))


def test_with_a_residual(gpu: Device) -> None:
    for rule in RULES[:2]:
        agree(gpu, gradient(5000).clip(-9, 9), MiniFloat("e2m1"), rule, heavy(5000, 1))


def test_tensors_that_are_sampled(gpu: Device) -> None:
    """Bins of the elements, or bins and a sorted list of the largest elements."""
    n = FEW + 999
    for x, fmt in zip(tensors(n)[:4], EVERY[::6], strict=True):
        agree(gpu, x, fmt, "histogram")
    spread = heavy(n)
    spread[::50_000] *= np.float32(1e4)
    agree(gpu, spread, MiniFloat("e2m1"), "histogram")
    agree(gpu, spread * np.float32(2.0**-120), MiniFloat("e4m3"), "histogram")


def test_samples(gpu: Device) -> None:
    """A sample of many elements suffices if enough of its elements are nonzero."""
    n = MANY + 5000
    x = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    agree(gpu, x, MiniFloat("e2m1"), "histogram")
    x[np.random.default_rng(4).random(n) < 0.95] = 0
    agree(gpu, x, MiniFloat("e2m1"), "histogram", x[::-1].copy())


def test_nonfinite_values_are_harmless(gpu: Device) -> None:
    for n in (3, 5000):
        for fmt in EVERY:
            search_scale(gpu.to_device(arbitrary_floats(n)), fmt, "histogram").value  # noqa: B018
    for x in (np.full(70, np.nan, np.float32), np.full(70, -np.inf, np.float32)):
        search_scale(gpu.to_device(x), MiniFloat("e2m1"), "histogram").value  # noqa: B018
