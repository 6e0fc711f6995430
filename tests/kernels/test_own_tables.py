"""Class tables that are fitted to counts: their frequencies, and the bits that symbols take."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.entropy.context import class_tables
from gcodec.entropy.context.class_tables import ALL, TOTAL, ClassTable, TableLimits
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize.scalar_quantize import ESCAPE


def counts_of(seed: int, classes: list[int], top: int) -> np.ndarray:
    """Return counts of a few classes with steep and flat distributions, or a single symbol."""
    rng, counts = np.random.default_rng(seed), np.zeros((CLASSES, 256), np.int64)
    for model in classes:
        sizes = 10.0 ** rng.uniform(0, 6) * np.exp(-np.arange(256) * rng.exponential(0.2))
        counts[model, : 2 * top + 2] = rng.poisson(sizes[: 2 * top + 2])
        counts[model, 1] = 0
        counts[model, [ESCAPE, 6]] += rng.integers(0, 3, 2)
        counts[model, 0] += 1
    return counts


CASES = [
    (0, [5], 0),
    (1, [0, 63], 3),
    (2, [3, 4, 9, 30], 126),
    (3, list(range(64)), 126),
    (4, [7, 10], 60),
]


@pytest.mark.parametrize("kind", [ALL, TableLimits(62, 2)], ids=["all", "few"])
@pytest.mark.parametrize(("seed", "classes", "top"), CASES)
def test_own_tables(seed: int, classes: list[int], top: int, kind: TableLimits) -> None:
    counts = counts_of(seed, classes, top)
    table = ClassTable.own(counts, kind)
    assert (table.first, table.last) == (classes[0], classes[-1])
    for model, row in enumerate(table.frequencies):
        near = min(classes, key=lambda filled: abs(filled - model))
        np.testing.assert_array_equal(row, table.frequencies[near])
        assert row.sum() == TOTAL
        assert row.min() >= 0
        assert row[ESCAPE] >= kind.least_escape
        assert not row[1]
        np.testing.assert_array_equal(row[2:ESCAPE:2], row[3:ESCAPE:2])
        magnitudes = np.flatnonzero(row[:ESCAPE:2])
        np.testing.assert_array_equal(magnitudes, np.arange(magnitudes.size))
        pairs = (counts[near, ::2] + counts[near, 1::2])[1 : kind.most + 1]
        likely = np.flatnonzero(pairs * 2 * TOTAL >= counts[near].sum()) + 1
        assert magnitudes.size - 1 == likely.max(initial=0)


@pytest.mark.parametrize(("seed", "classes", "top"), CASES)
def test_bits_equal_exact_costs(seed: int, classes: list[int], top: int) -> None:
    counts = counts_of(seed, classes, top)
    unrelated = counts_of(seed + 9, [0, 30, 63], 40)
    for table in (ClassTable.own(counts), *class_tables.statics()[:2]):
        costs = class_tables.costs(table.frequencies).ravel().tolist()
        for sample in (counts, unrelated):
            exact = sum(map(int.__mul__, sample.ravel().tolist(), costs)) >> 28
            assert table.nbits(sample) == exact
