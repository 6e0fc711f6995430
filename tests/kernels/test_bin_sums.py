"""The bins of values, their sums and their counts equal those of NumPy, in the written order."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.quantize.bin_sums import sort_into

TIES = np.array([-1e30, -2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 1e30, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize("bins", [2, 3, 4, 16, 255, 256])
@pytest.mark.parametrize("width", [1.0, 0.3, 1e-45, 3e38])
def test_bins_equal_those_of_numpy(bins: int, width: float) -> None:
    normal = np.random.default_rng(bins).standard_normal(5000) * bins / 5
    with np.errstate(over="ignore"):
        values = np.concatenate([TIES, width * np.concatenate([TIES, normal])]).astype(np.float32)
    codes, sums, counts = sort_into(values, np.float32(width), bins)
    with np.errstate(over="ignore"):
        numbers = np.rint(values / np.float32(width) + np.float32(bins // 2))
    expected = np.clip(numbers, 0, bins - 1).astype(np.uint8)
    np.testing.assert_array_equal(codes, expected)
    assert set(codes) >= {0, bins // 2, bins - 1}
    in_order = np.bincount(expected, values.astype(np.float64), bins)
    np.testing.assert_array_equal(sums.view(np.uint64), in_order.view(np.uint64))
    np.testing.assert_array_equal(counts, np.bincount(expected, minlength=bins))


def test_no_values_have_no_bins() -> None:
    codes, sums, counts = sort_into(np.empty(0, np.float32), np.float32(1), 4)
    assert codes.size == 0
    assert sums.tolist() == counts.tolist() == [0, 0, 0, 0]
