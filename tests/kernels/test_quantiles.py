"""Sums by code: the kernel adds what NumPy adds, in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.quantize import quantiles


@pytest.mark.parametrize("n", [0, 1, 511, 5000, 600_000])
@pytest.mark.parametrize("top", [2, 256])
def test_sums_by_code_have_the_bits_of_numpy(n: int, top: int) -> None:
    rng = np.random.default_rng(n)
    values = np.append(rng.standard_normal(n) * np.exp2(rng.integers(-60, 60, n)), [np.inf])
    codes = np.append(rng.integers(0, top, n), [top - 1]).astype(np.uint8)
    x = values.astype(np.float32)
    (sums, counts), (expected, numbers) = (
        (np.zeros(quantiles.CODES), np.zeros(quantiles.CODES, np.int64)) for _ in range(2)
    )
    for part in (slice(0, n // 2), slice(n // 2, None)):  # sums go on where they ended
        quantiles.sums_of_codes(x[part], codes[part], sums, counts)
    quantiles.bin_sums(x, codes, expected, numbers)
    np.testing.assert_array_equal(sums.view(np.uint64), expected.view(np.uint64))
    np.testing.assert_array_equal(counts, numbers)
