"""Kernels that use a sum with a residual while it is in the cache do what separate passes do."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.numeric.arithmetic import (
    ResidualUpdate,
    add_residual,
    add_residual_with_moments,
)
from gcodec.kernels.numeric.reduce import moments, sum_squares
from gcodec.kernels.quantize.scalar_quantize import (
    add_residual_plainly,
    plain_levels,
    plain_levels_and_top,
)
from gcodec.kernels.transform.dct_select import largest, largest_of_sums
from gcodec.runtime.memory import aligned_empty

_DECAY = np.float32(0.9)
_SIZES = (1, 31, 32, 70, 4099, 1 << 22)  # the last one is written past the cache


def _update(n: int, *, in_place: bool) -> tuple[np.ndarray, np.ndarray, ResidualUpdate]:
    """Return (n,) values, their sums with a residual, and the update of the residual."""
    x, residual = np.random.default_rng(n).standard_normal((2, n), dtype=np.float32)
    left = residual if in_place else aligned_empty(n, np.float32)
    update = ResidualUpdate(residual, _DECAY, left)
    return x, x + _DECAY * residual, update.saving() if in_place else update


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", _SIZES)
def test_plain_levels_of_sums(n: int, in_place: bool) -> None:
    x, sums, update = _update(n, in_place=in_place)
    former = update.residual.copy()
    step, (symbols, wanted) = np.float32(0.3), np.empty((2, n), np.uint8)
    top = add_residual_plainly(x, update, step, symbols)
    plain_levels(sums, step, wanted)
    np.testing.assert_array_equal(symbols, wanted)
    np.testing.assert_array_equal(update.new_residual, sums)
    assert top == int(np.abs(sums).max().view(np.uint32))
    update.restore()
    np.testing.assert_array_equal(update.residual, former)
    other = ResidualUpdate(former, _DECAY, np.empty(n, np.float32))
    assert top == add_residual(x, other).top_bits


@pytest.mark.parametrize("n", _SIZES)
def test_plain_levels_and_the_largest_magnitude(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    step, (symbols, wanted) = np.float32(0.3), np.empty((2, n), np.uint8)
    top = plain_levels_and_top(x, step, symbols)
    plain_levels(x, step, wanted)
    np.testing.assert_array_equal(symbols, wanted)
    assert top == int(np.abs(x).max().view(np.uint32))
    for wrong in (np.inf, -np.inf, np.nan, -np.nan):
        for at in {0, n // 2, n - 1}:
            damaged = x.copy()
            damaged[at] = wrong
            top = plain_levels_and_top(damaged, step, symbols)
            assert top == int(np.abs(damaged[at]).view(np.uint32))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", _SIZES)
def test_moments_have_the_sum_of_squares(n: int, in_place: bool) -> None:
    """All passes add squares in one order, so it does not matter which one a step is chosen by."""
    x, sums, update = _update(n, in_place=in_place)
    squares = sum_squares(sums)
    assert moments(sums).squares == squares
    known = add_residual_with_moments(x, update).moments
    assert known is None or known.squares == squares
    assert known is not None or n < 1 << 22


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("size", "k"), [(1, 1), (7, 2), (64, 2), (256, 9)])
@pytest.mark.parametrize("chunks", [1, 5, 1 << 14])
def test_largest_of_sums(size: int, k: int, chunks: int, in_place: bool) -> None:
    x, sums, update = _update(size * chunks, in_place=in_place)
    former = update.residual.copy()
    places, values = np.empty((2, chunks, k), np.int32), np.empty((2, chunks, k), np.float32)
    assert largest(sums.reshape(chunks, size), k, places[0], values[0])
    assert largest_of_sums(x.reshape(chunks, size), update, k, places[1], values[1])
    np.testing.assert_array_equal(places[1], places[0])
    np.testing.assert_array_equal(values[1], values[0])
    np.testing.assert_array_equal(update.new_residual, sums)
    update.restore()
    np.testing.assert_array_equal(update.residual, former)


def test_sums_that_are_not_finite() -> None:
    x, _, update = _update(640, in_place=True)
    former = update.residual.copy()
    x[130] = np.inf
    places, values = np.empty((10, 2), np.int32), np.empty((10, 2), np.float32)
    assert not largest_of_sums(x.reshape(10, 64), update, 2, places, values)
    update.restore()  # the kernel has replaced all of the residual
    np.testing.assert_array_equal(update.residual, former)
