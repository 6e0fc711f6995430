"""Entropies and bounds, against plain formulas."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gcodec.analysis.rates import entropy_at, shannon_lower_bound


def sample(beta: float, n: int = 30_000) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.gamma(1 / beta, size=n) ** (1 / beta) * random.choice([-1.0, 1.0], n)


@pytest.mark.parametrize("error", [0.5, 0.1, 0.01, 1e-6])
@pytest.mark.parametrize("beta", [0.4, 1.0, 2.0])
def test_entropy_is_of_the_named_quantizer(beta, error):
    x = 1e-4 * sample(beta)
    actual = entropy_at(x.reshape(30, -1), error)
    levels = np.rint(x / actual.step)
    residual = x - actual.step * levels
    assert actual.error == pytest.approx(residual @ residual / (x @ x), rel=1e-4)
    assert 0.98 * error <= actual.error <= error
    shares = np.unique(levels, return_counts=True)[1] / x.size
    assert actual.bits == pytest.approx(-shares @ np.log2(shares), rel=1e-3)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_uniform_quantizer_is_a_quarter_bit_above_the_bound(beta):
    x = sample(beta, 400_000)
    excess = entropy_at(x, 1e-3).bits - shannon_lower_bound(beta, 1e-3)
    assert excess == pytest.approx(math.log2(math.pi * math.e / 6) / 2, abs=0.04)


def test_bound_of_a_normal_is_its_rate():
    for error in (1e-4, 0.01, 0.25):
        assert shannon_lower_bound(2.0, error) == pytest.approx(-math.log2(error) / 2)
    assert shannon_lower_bound(2.0, 2.0) == 0
    assert shannon_lower_bound(0.5, 0.01) < shannon_lower_bound(1.0, 0.01)


def test_errors_of_many_values_are_accurate():
    """Sums of 2^23 float32 squares lose digits; the test adds up float64."""
    x = 1 + np.random.default_rng(3).random(1 << 23, dtype=np.float32) * np.float32(0.01)
    actual = entropy_at(x, 0.01)
    wide = x.astype(np.float64)
    rest = wide - np.rint(wide / actual.step) * actual.step
    assert actual.error == pytest.approx(float(rest @ rest) / float(wide @ wide), rel=1e-4)


def test_odd_tensors():
    for nothing in (np.zeros(0), np.zeros(5, np.float32), np.array([np.nan, np.inf])):
        assert entropy_at(nothing, 0.01) == (0, 0, 0)
    assert entropy_at(np.full(8, 3.0), 0.01).bits == 0
    for x in (np.array([1.0]), np.array([1.0, 1e-30]), np.array([1e300, -1e300, 1e-300])):
        actual = entropy_at(x, 0.01)
        limit = math.log2(x.size) * (1 + 1e-12)  # Logarithms differ in the last digit.
        assert actual.error <= 0.01 and 0 <= actual.bits <= limit
    with_nan = np.array([1, np.nan, 2, -3], ml_dtypes.bfloat16)
    assert entropy_at(with_nan, 0.01) == entropy_at(np.array([1.0, 2.0, -3.0]), 0.01)
    for error in (1.0, 5.0, 1.7e308):  # without any level but 0
        assert entropy_at(np.array([1.0, 2.0, -3.0]), error) == (6, 0, 1)
    assert entropy_at(np.arange(9.0), 5e-324).error == 0


@pytest.mark.parametrize("error", [1e300, 1e308, math.inf])
def test_any_step_meets_an_enormous_error(error):
    actual = entropy_at(np.array([1.0, 2.0, -3.0]), error)
    assert actual.bits == 0 and 0 <= actual.error <= error
