"""Fitted distributions and their distances, against SciPy and plain definitions."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from scipy import special
from scipy import stats as scipy_stats

from gcodec.analysis import fits
from gcodec.analysis.fits import Shape
from gcodec.codecs.minifloat import gennorm
from gcodec.kernels.numeric.log_histogram import log_histogram
from gcodec.kernels.quantize.scale_errors import Overview


def sample(beta, n, alpha=1.0):
    random = np.random.default_rng(0)
    signs = random.choice([-1.0, 1.0], n)
    return alpha * signs * random.gamma(1 / beta, size=n) ** (1 / beta)


def likelihood(values):
    return next(
        fit.shape
        for fit in fits.fit_all(values)
        if fit.name == "gennorm" and fit.method == "likelihood"
    )


@pytest.mark.parametrize("beta", [0.4, 0.7, 1.0, 1.5, 2.0])
def test_likelihood_agrees_with_scipy(beta):
    x = sample(beta, 20_000, alpha=1e-4).astype(np.float32)
    wanted, _, alpha = scipy_stats.gennorm.fit(x.astype(float), floc=0)
    actual = likelihood(x)
    assert actual.beta == pytest.approx(wanted, rel=0.005)
    assert actual.alpha == pytest.approx(alpha, rel=0.015)


@pytest.mark.parametrize("beta", [0.3, 0.6, 1.0, 3.0])
def test_likelihood_recovers_parameters(beta):
    actual = likelihood(sample(beta, 1_000_000).astype(np.float32))
    assert actual.beta == pytest.approx(beta, rel=0.006)
    assert actual.alpha == pytest.approx(1, rel=0.03)


def test_shape_is_robust():
    x = sample(0.6, 100_000).astype(np.float32)
    clean = likelihood(x).beta
    assert likelihood(np.concatenate([x, np.zeros_like(x)])).beta == pytest.approx(clean, rel=0.01)
    tiny = np.geomspace(1e-30, 1e-5, 50_000, dtype=np.float32)
    assert likelihood(np.concatenate([x, tiny])).beta == pytest.approx(clean, rel=0.02)
    nonfinite = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert likelihood(np.concatenate([x, nonfinite])).beta == clean
    large = np.full(5, 1000 * x.std(), np.float32)
    assert likelihood(np.concatenate([x, large])).beta == pytest.approx(clean, rel=0.08)


def test_odd_tensors():
    assert likelihood(np.full(50, 3e38, np.float32)).beta == 4
    assert 0.15 <= likelihood(np.array([1e-30] * 8 + [1] * 8, np.float32)).beta <= 4
    for few in (np.zeros(0), np.zeros(100), np.ones(15), np.full(100, np.nan)):
        assert fits.fit_all(few) == ()
    assert len(fits.fit_all(np.full(16, -1e-40))) == 4
    assert all(map(math.isfinite, fits.fit_all(np.full(20, 1e300))[0][2]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_fits_name_the_distribution_and_scale_with_the_values(dtype):
    for beta, name in ((2.0, "normal"), (1.0, "laplace"), (0.5, "gennorm")):
        x = sample(beta, 40_000, alpha=1 / 64).astype(dtype).reshape(200, 200)
        actual = fits.fit_all(x)
        assert len(actual) == 4
        assert [fit.w2 for fit in actual] == sorted(fit.w2 for fit in actual)
        (matching,) = (f for f in actual if (f.name, f.method) == (name, "likelihood"))
        assert matching.w2 < min(2 * actual[0].w2, 0.1)
        assert matching.ks < 0.01
        assert matching.shape.beta == pytest.approx(beta, rel=0.05)
        assert matching.shape.alpha == pytest.approx(1 / 64, rel=0.1)
        assert matching.shape.sigma == pytest.approx(x.astype(float).std(), rel=0.05)


def test_zeros_and_nonfinite_values_are_left_out():
    x = sample(1.0, 3000)
    mixed = np.concatenate([[np.nan, np.inf], np.zeros(5000), x, [-np.inf, -0.0]])
    assert fits.fit_all(mixed) == fits.fit_all(x)


def test_moments_agree_with_codecs():
    for beta in (0.3, 0.7, 1.0, 2.0):
        x = sample(beta, 50_000, alpha=1e-3).astype(np.float32)
        (actual,) = (fit.shape for fit in fits.fit_all(x) if fit.method == "moments")
        table = gennorm.fit_moments(Overview.of(log_histogram(x)))
        assert actual.beta == pytest.approx(table.beta, rel=0.003)
        assert actual.alpha == pytest.approx(table.alpha, rel=0.01)


def quantiles(shape, u):
    """Return quantiles of a generalized normal distribution."""
    inside = special.gammaincinv(1 / shape.beta, np.abs(2 * u - 1)) ** (1 / shape.beta)
    return shape.alpha * np.sign(u - 0.5) * inside


@pytest.mark.parametrize("shape", [Shape(2.0, 1.4), Shape(1.0, 0.7), Shape(0.5, 0.1)])
@pytest.mark.parametrize("n", [1, 2, 16, 129, 1000])
def test_wasserstein_equals_the_integral(shape, n):
    x = np.sort(sample(1.3, n))
    fine = 150_000 // n
    u = (np.arange(n * fine) + 0.5) / (n * fine)
    plain = math.sqrt(np.mean((np.repeat(x, fine) - quantiles(shape, u)) ** 2))
    # The midpoint rule misses part of the outermost steps, where quantiles grow without bound.
    assert fits.RankedValues.of(x).wasserstein(shape) == pytest.approx(plain, rel=0.003, abs=1e-3)


@pytest.mark.parametrize("beta", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("shape", [Shape(2.0, 2**0.5), Shape(1.0, 0.7), Shape(0.5, 0.1)])
def test_groups_change_the_distance_little(beta, shape, monkeypatch):
    fits._partial_moments.cache_clear()
    x = np.sort(sample(beta, 30_001))
    x /= x.std()
    grouped = fits.RankedValues.of(x).wasserstein(shape)
    monkeypatch.setattr(fits, "_groups", lambda n: np.arange(n + 1))
    fits._partial_moments.cache_clear()
    ungrouped = fits.RankedValues.of(x).wasserstein(shape)
    fits._partial_moments.cache_clear()
    assert grouped == pytest.approx(ungrouped, rel=2e-3, abs=1e-4)


@pytest.mark.parametrize("n", [2, 3, 127, 128, 129, 130, 1000, 1_000_000])
def test_groups_cover_all_ranks_and_keep_the_ends(n):
    edges = fits._groups(n)
    assert (edges[0], edges[-1]) == (0, n)
    assert (np.diff(edges) > 0).all()
    single = min(32, n // 2)
    assert (edges[: single + 1] == np.arange(single + 1)).all()
    assert (n - edges[::-1] == edges).all()
    assert edges.size < 310


@pytest.mark.parametrize("n", [5, 1000, 50_000])
def test_kolmogorov_agrees_with_scipy(n):
    x = np.sort(sample(1.0, n))
    for shape in (Shape(2.0, 1.4), Shape(1.0, 1.0)):
        cdf = scipy_stats.gennorm(shape.beta, scale=shape.alpha).cdf
        assert fits.RankedValues.of(x).kolmogorov(shape) == pytest.approx(
            scipy_stats.kstest(x, cdf).statistic, abs=1 / 1024
        )


def test_kolmogorov_with_ties():
    x = np.concatenate([np.linspace(-2, -1, 500), np.zeros(9000), np.linspace(1, 2, 500)])
    assert fits.RankedValues.of(x).kolmogorov(Shape(2.0, 1.0)) == pytest.approx(0.45, abs=1e-3)
