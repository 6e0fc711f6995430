"""Histograms of bytes against NumPy, on both sides of each way to count."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.numeric import byte_counts

TILE, FEW = byte_counts._TILE, byte_counts._FEW


@pytest.mark.parametrize("n", (0, 1, 7, TILE - 1, TILE, TILE + 1, 3 * TILE + 100))
@pytest.mark.parametrize("top", (0, 1, 5, FEW - 1, FEW, 255))
def test_counts_are_those_of_numpy(top: int, n: int) -> None:
    rng = np.random.default_rng(top)
    uniform, rare = rng.integers(0, top + 1, n + 1), np.zeros(n + 1, int)
    rare[::5000] = top
    for values in (uniform, rare, np.full(n + 1, top)):
        codes = values.astype(np.uint8)[1:]  # not aligned
        expected = np.bincount(codes, minlength=256)
        assert np.array_equal(byte_counts.byte_counts(codes), expected)


def test_tiles_are_counted_each_in_its_way() -> None:
    codes = np.random.default_rng(0).integers(0, FEW, 6 * TILE).astype(np.uint8)
    codes[TILE + 5] = 255
    codes[4 * TILE : 5 * TILE] = 0
    assert np.array_equal(byte_counts.byte_counts(codes), np.bincount(codes, minlength=256))


@pytest.mark.parametrize(
    ("n", "runs"), ((1000, 1), (1000, 3), ((1 << 20) + 77, 16), ((1 << 38) + 4095, 16))
)
@pytest.mark.parametrize("occurring", (None, (1, 255), (3, 7)))
def test_estimated_counts_are_exact_multiples(
    n: int, runs: int, occurring: tuple[int, int] | None
) -> None:
    sampled = n // runs
    counts = np.zeros(256, np.int64)
    counts[[5, 200]] = 3, 1
    counts[0] = sampled - 4
    low, high = occurring or (1, 0)
    least = [int(low <= high and (k == 0 or low <= k <= high)) for k in range(256)]
    expected = [max(c * n // sampled, k) for c, k in zip(counts.tolist(), least, strict=True)]
    assert byte_counts.estimated_counts(counts, n, sampled, occurring).tolist() == expected
