"""Estimated sizes of strings by matrix, against exact counts and sums."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.entropy import rans
from gcodec.entropy.context import scale_lists
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales, row_layouts
from gcodec.kernels.context import class_map, class_tables
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.context.matrix_sizes import Prices, matrix_sizes

SHAPES = [(1,), (3,), (300,), (64, 64), (9, 1000), (13, 17), (16, 8, 3, 3), (70, 1100), (99_999,)]


def levels_of(shape: tuple[int, ...]) -> np.ndarray:
    """Return symbols, escapes included, of a tensor whose rows and columns differ in scale."""
    rng = np.random.default_rng(len(shape))
    rows = shape[0] if len(shape) > 1 else 1
    x = rng.laplace(0, 0.7, shape).reshape(rows, -1)
    x = (x * np.exp2(rng.normal(0, 1, (rows, 1)) + rng.normal(0, 1, x.shape[1]))).reshape(-1)
    sizes = np.minimum(np.abs(x).astype(np.int64), 127)
    return (2 * sizes + ((x < 0) & (sizes > 0) & (sizes < 127))).astype(np.uint8)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_equal_those_of_counts(shape: tuple[int, ...], step: int) -> None:
    symbols, layouts = levels_of(shape), row_layouts(shape)
    costs = np.random.default_rng(symbols.size).integers(0, 1 << 33, (CLASSES * 256, 3))
    expected = []
    for matrix in layouts:
        scales = Scales.of(symbols, matrix)
        counts = class_map.class_counts(symbols, [scales.arrays], step).ravel()
        exact = [sum(map(int.__mul__, counts.tolist(), row)) >> 28 for row in costs.T.tolist()]
        assert class_tables.counts_nbits(counts, costs).tolist() == exact
        assert class_map.sampled_count(symbols.size, step) == counts.sum()
        columns = scales.columns[:: max(matrix.group, 1)].copy()
        lists = [scale_lists.nbits(part) if part.size else 0 for part in (scales.rows, columns)]
        expected.append((min(exact), *lists))
    prices = Prices(ONES, costs, rans.log2_table())
    assert matrix_sizes(symbols, layouts, step, prices) == expected


def test_costs_of_many_symbols_do_not_overflow() -> None:
    counts = np.array([2**40 - 1, 0, 5])
    costs = np.array([[2**32 + 1], [7], [2**33]])
    exact = (2**32 + 1) * (2**40 - 1) + 5 * 2**33
    assert class_tables.counts_nbits(counts, costs).tolist() == [exact >> 28]


@pytest.mark.parametrize(("n", "step"), [(1, 3), (4096, 2), (4097, 2), (9001, 2), (50_001, 5)])
def test_number_of_sampled_symbols(n: int, step: int) -> None:
    symbols = np.zeros(n, np.uint8)
    scales = Scales.of(symbols, RowLayout(n, 0))
    counts = class_map.class_counts(symbols, [scales.arrays], step)
    assert class_map.sampled_count(n, step) == counts.sum()


def test_counts_of_more_than_2_31_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    n = (1 << 31) + 1
    symbols = np.zeros(n, np.uint8)  # of pages that nothing writes to, so they take no memory
    counts = class_map.class_counts(symbols, [(symbols[:1], symbols[:0], n)], 1)
    assert counts[0, 0, 0] == counts.sum() == n


def test_scales_of_zeros_are_zero() -> None:
    for matrix in (RowLayout(50, 0), RowLayout(10, 1)):
        scales = Scales.of(np.zeros(100, np.uint8), matrix)
        assert not scales.rows.any()
        assert not scales.columns.any()
