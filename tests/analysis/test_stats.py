"""Statistics of tensors, against plain formulas."""

from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from gcodec.analysis import fits, rates, samples, stats
from gcodec.arrays.nonfinite import find_nonfinite


def normal(n: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(5).normal(size=n).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("n", [1, 7, (1 << 17) + 5])
def test_summary_follows_the_plain_formulas(dtype, n):
    x = normal(n, dtype)
    x[::3] = 0
    wide = x.astype(np.float64)
    actual = stats.summarize(x)
    assert actual.size == n
    assert actual.zeros == np.count_nonzero(wide == 0)
    assert actual.max_abs == np.abs(wide).max()
    assert actual.rms == pytest.approx(math.sqrt(np.mean(wide**2)), rel=1e-12)
    assert actual.nonfinite == 0
    assert sum(stats.histogram(x, actual.rms)) == n


def test_memory_order_does_not_matter():
    x = normal(600).reshape(20, 30)
    assert stats.summarize(np.asfortranarray(x)) == stats.summarize(x)
    assert find_nonfinite(np.array([[1, np.nan], [2, 3]], order="F")) == (1, (1,))


def test_histogram_is_centered_and_keeps_the_tails():
    x = np.array([-100.0, 0.0, -0.0, 1e-9, 100.0], np.float32)
    rms = stats.summarize(x).rms
    assert stats.histogram(x, rms) == (0,) * 4 + (1, 0, 0, 3, 0, 0, 1) + (0,) * 4
    spike = np.zeros(1000, np.float32)
    spike[0], spike[1] = 50, -50
    counts = stats.histogram(spike, stats.summarize(spike).rms)
    assert (counts[0], counts[stats.BINS // 2], counts[-1]) == (1, 998, 1)


@pytest.mark.parametrize(
    ("values", "rms"),
    [
        (np.full(10, 3e38, np.float32), np.float32(3e38)),
        (np.full(10, 1e308), 1e308),
        (np.full(10, 5e-324), 5e-324),
        (np.full(10, 1e-45, np.float32), np.float32(1e-45)),
    ],
)
def test_extreme_values_neither_overflow_nor_vanish(values, rms):
    assert stats.summarize(values).rms == pytest.approx(float(rms), rel=1e-12)
    assert stats.rms_error(values) == pytest.approx(float(rms), rel=1e-12)


def test_zeros_before_tiny_values_do_not_overflow():
    """A chunk of zeros has no unit that a later chunk could be too small for."""
    x = np.zeros((1 << 17) + 10)
    x[-10:] = 1e-200
    expected = 1e-200 * math.sqrt(10 / x.size)
    summary = stats.summarize(x)
    assert summary.rms == pytest.approx(expected, rel=1e-12)
    assert (summary.max_abs, summary.zeros) == (1e-200, 1 << 17)
    assert stats.rms_error(x, np.zeros_like(x)) == pytest.approx(expected, rel=1e-12)


def test_empty_zero_and_nonfinite_tensors():
    empty = stats.summarize(np.zeros((0, 3), np.float32))
    assert empty.size == empty.zeros == empty.nonfinite == 0
    assert sum(stats.histogram(np.zeros(0), math.nan)) == 0
    assert math.isnan(empty.rms) and math.isnan(empty.max_abs)
    zeros = stats.summarize(np.zeros(4, np.float32))
    assert (zeros.zeros, zeros.rms, zeros.max_abs) == (4, 0, 0)
    assert stats.histogram(np.zeros(4), 0.0)[stats.BINS // 2] == 4
    mixed = stats.summarize(np.array([np.nan, 3, np.inf, -4], np.float32))
    assert (mixed.size, mixed.nonfinite, mixed.max_abs) == (4, 2, 4)
    assert mixed.rms == pytest.approx(math.sqrt(12.5))


def test_nonfinite_values_are_counted_and_the_first_located():
    x = normal(300_000)
    for place in (131_071, 131_072, 200_000, 299_999):
        x[place] = np.nan if place % 2 else np.inf
    assert find_nonfinite(x) == (4, (131_071, 131_072, 200_000))
    assert find_nonfinite(x, most=1) == (4, (131_071,))
    assert find_nonfinite(normal(5)) == (0, ())


def test_rms_error():
    x, y = normal(1000), np.zeros(1000, np.float32)
    assert stats.rms_error(x, x) == 0
    assert stats.rms_error(x, y) == stats.rms_error(x)
    assert stats.rms_error(x, x + np.float32(0.5)) == pytest.approx(0.5, rel=1e-6)
    assert stats.rms_error(y[:0], y[:0]) == 0
    assert stats.rms_error(y, np.full(1000, np.inf, np.float32)) == math.inf


def test_sample_is_seeded_and_of_blocks_in_order():
    x = np.arange(1_000_000, dtype=np.float32)
    sampled = stats.sample(x, 50_000, seed=1)
    assert 49_000 <= sampled.size <= 50_000
    assert np.array_equal(sampled, stats.sample(x, 50_000, seed=1))
    assert not np.array_equal(sampled, stats.sample(x, 50_000, seed=2))
    steps = np.diff(sampled)
    assert (steps > 0).all()  # No value occurs twice.
    assert np.count_nonzero(steps > 1) < 20
    assert sampled[-1] > 900_000 and sampled[0] < 100_000


@pytest.mark.parametrize("count", [1, 3, 4097, 9999, 10_000, 20_000])
def test_small_tensors_are_sampled_whole(count):
    x = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    sampled = stats.sample(x, count, seed=0)
    assert 0.9 * min(count, x.size) <= sampled.size <= min(count, x.size)
    rows = sampled if sampled.ndim == 2 else x[:0]
    assert (rows[:, :1] + np.arange(100) == rows).all() and (rows[:, 0] % 100 == 0).all()
    assert (sampled.ndim == 2) == (count >= 1600)


def test_row_samples_keep_other_dimensions():
    x = np.arange(60_000, dtype=np.float32).reshape(1000, 3, 4, 5)
    sampled = stats.sample(x, 6000, seed=3)
    assert sampled.shape == (100, 3, 4, 5)
    assert (np.diff(sampled[:, 0, 0, 0]) > 0).all() and sampled[-1, 0, 0, 0] > 40_000
    assert np.array_equal(sampled, stats.sample(np.asfortranarray(x), 6000, seed=3))
    assert stats.sample(x.reshape(2, -1), 6000, seed=3).ndim == 1


def test_no_float64_copy():
    x = normal(4_000_000, np.float16)
    tracemalloc.start()
    stats.summarize(x)
    find_nonfinite(x)
    stats.rms_error(x, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (ml_dtypes.bfloat16, np.uint16(0x7F81)),
        (np.float16, np.uint16(0x7C01)),
        (np.float32, np.uint32(0x7F800001)),
        (np.float64, np.uint64(0x7FF0000000000001)),
    ],
)
def test_signaling_nan_is_counted_without_a_warning(dtype, bits):
    clean = normal(400, dtype).reshape(20, 20)
    clean[:, ::5] = 0
    x = clean.copy()
    x.view(bits.dtype)[:, ::5] = bits
    assert find_nonfinite(x) == (80, (0, 5, 10))
    assert stats.summarize(x).nonfinite == 80
    assert not math.isfinite(stats.rms_error(x))
    finite, nonfinite = samples.without_nonfinite(x)
    assert nonfinite == 80
    np.testing.assert_array_equal(finite, clean)
    assert stats.energy_rank(x, 0.99) == stats.energy_rank(clean, 0.99)
    assert fits.fit_all(x) == fits.fit_all(clean)
    picture = fits.Picture.of(x)
    assert picture is not None
    assert (picture.values, picture.zeros) == (320, 0)
    assert rates.entropy_at(x, 0.01) == rates.entropy_at(clean[clean != 0], 0.01)
