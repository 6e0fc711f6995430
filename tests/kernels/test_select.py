"""Selection of the largest magnitudes, and operations on elements by their positions."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.kernels.numeric import scatter, select
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.runtime import pool

N = (1 << 20) + 77  # several segments, with an incomplete last word


def sorted_largest(x: np.ndarray, k: int) -> list[int]:
    """Return the positions of the k largest magnitudes by a stable sort."""
    bits = x.view(np.uint32).astype(np.int64) & 0x7FFFFFFF
    return sorted(np.argsort(-bits, kind="stable")[:k].tolist())


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Return the positions that `take_largest` selects, and check its elements."""
    return checked(x, select.take_largest(x, k))


def checked(x: np.ndarray, selection: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    assert selection is not None
    positions, elements = selection
    assert positions.dtype == np.int64
    assert gs.same_bits(elements, x[positions])
    return positions


def spread(kind: str, n: int) -> np.ndarray:
    """Return values that make selection difficult in different ways."""
    rng = np.random.default_rng(n)
    if kind == "equal":
        x = np.full(n, 3.5)
    elif kind == "zeros":
        x = np.zeros(n)
    elif kind == "two":  # in separate bins
        x = rng.choice([1.0, 2.0], n)
    elif kind == "one bin":
        x = 1 + rng.integers(0, 3000, n) * 2.0**-23
    elif kind == "few in one bin":
        x = 1 + rng.integers(0, 3, n) * 2.0**-23
    elif kind == "subnormal":
        x = rng.integers(0, 1000, n) * 2.0**-149
    elif kind == "one large":
        x = np.where(np.arange(n) == n // 2, 1e30, 1e-30)
    else:
        x = rng.standard_normal(n)
    return (x * rng.choice([-1, 1], n)).astype(np.float32)


KINDS = (
    *("normal", "equal", "zeros", "two", "one bin", "few in one bin", "subnormal", "one large"),
)
each_kind = pytest.mark.parametrize("kind", KINDS)


@given(gs.gradients(large=True), st.data())
def test_largest(x: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, x.size))
    assert largest(x, k).tolist() == sorted_largest(x, k)


@pytest.mark.parametrize("least_sampled", [1 << 15, 1 << 20])
@each_kind
def test_largest_of_many(kind: str, least_sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_LEAST_SAMPLED", least_sampled)
    x = spread(kind, 60_000)
    for k in (0, 1, 2, 600, 6_000, 14_999, 15_000, 29_999, 45_000, 59_999, 60_000):
        assert largest(x, k).tolist() == sorted_largest(x, k), k


def sampled(n: int) -> np.ndarray:
    """Return a mask of the elements that a sample contains."""
    taken = list[np.ndarray]()

    def take(values: np.ndarray, places: np.ndarray) -> np.ndarray:
        taken.append(places)
        return values[places]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "take", take)
        select.guess(np.ones(n, np.float32), n // 100)
    mask = np.zeros(n, np.bool_)
    mask[taken[0]] = True
    return mask


def candidates(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what a sample suggests, if it is not misleading."""
    guess = select.guess(x, k)
    if guess is None:
        return None
    return select._candidates(guess, k, x.size, functools.partial(select._take_part, x))


def test_candidates_of_a_sample_include_the_largest() -> None:
    x = spread("normal", N)
    for k in (N // 1000, N // 100, N // 16):
        listed = candidates(x, k)
        assert listed is not None
        places, elements = listed
        assert gs.same_bits(elements, x[places])
        assert set(sorted_largest(x, k)) <= set(places.tolist())
        assert places.size < 1.3 * k + 2000
        assert largest(x, k).tolist() == sorted_largest(x, k)
    assert select.guess(x, N // 15) is None
    assert select.guess(x[: 1 << 19], 100) is None


def mislead(x: np.ndarray, kind: str) -> None:
    """Change the elements of a sample so that it suggests a wrong level."""
    factors = {"too few": 100, "too many": 1e-3, "zeros": 0}
    x[sampled(x.size)] *= np.float32(factors[kind])


@pytest.mark.parametrize("kind", ["too few", "too many", "zeros"])
def test_a_sample_may_mislead(kind: str) -> None:
    x, k = spread("normal", N), N // 100
    mislead(x, kind)
    assert candidates(x, k) is None
    assert largest(x, k).tolist() == sorted_largest(x, k)


@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_non_finite_values_are_candidates(wrong: float) -> None:
    x = spread("normal", N)
    x[np.flatnonzero(~sampled(N))[99]] = wrong
    assert select.take_largest(x, N // 100) is None
    update = ResidualUpdate(np.zeros_like(x), np.float32(1), np.empty_like(x))
    guess = select.guess(x, N // 100, update)
    assert guess is not None
    assert select.take_largest_of_sums(x, update, N // 100, guess) is None


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("kind", ["normal", "too few", "too many"])
def test_largest_of_sums(
    kind: str, saves: bool, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x, residual, k = spread("normal", N), spread("few in one bin", N), N // 100
    if kind != "normal":
        mislead(x, kind)
        mislead(residual, kind)
    wanted, before = x + np.float32(0.5) * residual, residual.copy()
    update = ResidualUpdate(residual, np.float32(0.5), np.empty_like(x))
    if saves:
        update = update._replace(new_residual=residual).saving()
    guess = select.guess(x, k, update)
    assert guess is not None
    positions = checked(wanted, select.take_largest_of_sums(x, update, k, guess))
    assert positions.tolist() == sorted_largest(wanted, k)
    assert gs.same_bits(update.new_residual, wanted)
    update.restore()
    assert gs.same_bits(residual, before)


@given(gs.gradients(large=True), st.data())
def test_at_least(x: np.ndarray, data: st.DataObject) -> None:
    own = [abs(float(x[data.draw(st.integers(0, x.size - 1))]))] if x.size else []
    threshold = np.float32(data.draw(st.sampled_from([0.0, 2.0**-149, 1.0, *own, np.inf])))
    positions = checked(x, select.take_at_least(x, threshold))
    assert positions.tolist() == np.flatnonzero(np.abs(x) >= threshold).tolist()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_non_finite_values_are_detected(n: int, wrong: float) -> None:
    for at in {0, n // 2, n - 1}:
        x = spread("normal", n)
        x[at] = wrong
        assert select.take_largest(x, 0) is None
        assert select.take_largest(x, n) is None
        assert select.take_at_least(x, np.float32(1)) is None
        assert select.take_at_least(x, np.float32(np.inf)) is None


@each_kind
def test_selection_is_independent_of_threads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = spread(kind, N)
    threshold = np.float32(abs(float(x[5])))
    selections: list[list[np.ndarray]] = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        positions = [largest(x, k) for k in (1, N // 100, N // 3)]
        selections.append([*positions, checked(x, select.take_at_least(x, threshold))])
    for selection in selections[1:]:
        for one, two in zip(selections[0], selection, strict=True):
            assert np.array_equal(one, two)
    top = selections[0][1]
    assert top.size == N // 100
    assert top.tolist() == sorted_largest(x, N // 100)


def peak(call: Callable[[], Any]) -> int:
    call()  # compile the kernels first
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("threads", ["1", "2"])
@each_kind
def test_selection_uses_bounded_memory(
    kind: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selection needs little more memory than its result, for any number of candidates."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x = spread(kind, N)
    # With several threads, a segment may wait for the preceding one.
    segments = 1 if threads == "1" else -(-N // pool.SEGMENT)
    scratch = segments * 8 * pool.SEGMENT + int(threads) * (1 << 19)
    for k in (N // 100, N // 4, N // 3):
        assert peak(lambda k=k: select.take_largest(x, k)) <= 1.7 * x.nbytes + scratch, k
    assert peak(lambda: select.take_largest(x, 100)) <= 0.6 * x.nbytes + scratch


@pytest.mark.parametrize("threads", ["1", "3"])
@each_kind
def test_many_are_the_largest(kind: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x = spread(kind, N)
    for k in (N // 4 + 1, N // 2, N - 1, N):
        selection = select.take_many(x, k)
        assert selection is not None
        positions, elements = selection
        expected = largest(x, k)
        for part in (slice(None), slice(70_000, 200_001), slice(999, -1, 1000), slice(-1, None)):
            assert np.array_equal(positions[part], expected[part])
        assert positions.size == k and positions[k // 3] == expected[k // 3]
        assert gs.same_bits(elements, x[expected])


def test_many_need_two_bytes_for_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    x, k = spread("equal", 8 * N), 4 * N
    assert peak(lambda: select.take_many(x, k)) <= 6 * k + 20 * pool.SEGMENT


# --- elements by positions ----------------------------------------------------------------------


def random_positions(n: int, share: float) -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(n).random(n) < share)


@pytest.mark.parametrize("n", [0, 1, 100, 8191, 8192, 8193, 100_000, N])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.3, 1.0])
def test_take_and_put(n: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x, positions = spread("normal", n), random_positions(n, share)
    expected = np.zeros(n, np.float32)
    expected[positions] = x[positions]
    for threads in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        values = scatter.take(x, positions)
        assert gs.same_bits(values, x[positions])
        out = np.full(n, np.nan, np.float32)
        scatter.put(out, positions, values)
        assert gs.same_bits(out, expected)


@pytest.mark.parametrize("scale", [1.0, -1.0, 0.3, 0.0, -0.0, np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("n", [5, 8193, 20_000])
def test_add_equals_a_dense_sum(scale: float, n: int) -> None:
    """The other elements are zeros, which change −0 and NaN in a dense sum."""
    rng = np.random.default_rng(n)
    positions = random_positions(n, 0.2)
    values = rng.choice(np.array([0.0, -0.0, 1, -2, 1e-45, 3e38], np.float32), positions.size)
    for zeros in ([1.0, -7.0], [0.0, -0.0, 1, np.inf, np.nan, -3e38]):
        before = rng.choice(np.array(zeros, np.float32), n)
        decoded = np.zeros(n, np.float32)
        decoded[positions] = values
        out = before.copy()
        with np.errstate(all="ignore"):
            scatter.add(out, positions, values, np.float32(scale))
            assert gs.same_bits(out, before + np.float32(scale) * decoded)
            before += 0  # without −0
            out = before.copy()
            scatter.add(out, positions, values, np.float32(scale), has_minus_zero=False)
            assert gs.same_bits(out, before + np.float32(scale) * decoded)


def test_add_rounds_each_product() -> None:
    out, third = np.ones(1, np.float32), np.float32(1 / 3)
    scatter.add(out, np.zeros(1, np.int64), np.full(1, third), np.float32(3))
    assert out[0] == np.float32(1) + np.float32(3) * third
    x = np.float32(1 + 2.0**-12)
    out = np.full(1, -(x * x), np.float32)
    scatter.add(out, np.zeros(1, np.int64), np.full(1, x), x)
    assert out[0] == 0  # a fused multiply-add would yield the rounding error of the square


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("n", [0, 10, 20_000, N])
def test_positions_out_of_range_are_refused(
    n: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x = np.zeros(n, np.float32)
    for wrong in ([-1], [n], [2**62], [-(2**63)], [0, n], [n + 5, n + 6], [2**63 - 1]):
        positions = np.array(wrong)
        values = np.ones(positions.size, np.float32)
        with pytest.raises(gcodec.ParameterError, match="positions"):
            scatter.take(x, positions)
        with pytest.raises(gcodec.ParameterError, match="positions"):
            scatter.put(x.copy(), positions, values)
        with pytest.raises(gcodec.ParameterError, match="positions"):
            scatter.add(x.copy(), positions, values, np.float32(1))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_falling_positions_are_refused(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x, positions = np.zeros(N, np.float32), np.array([N - 1, N // 2, 5, 700_000, 0])
    with pytest.raises(gcodec.ParameterError, match="rise"):
        scatter.put(x, positions, np.ones(5, np.float32))
    with pytest.raises(gcodec.ParameterError, match="rise"):
        scatter.add(x, positions, np.ones(5, np.float32), np.float32(1))
    assert scatter.take(np.arange(9, dtype=np.float32), np.array([8, 2])).tolist() == [8, 2]
