"""Selection of the largest magnitudes, and elements taken, put and added by their positions."""

from __future__ import annotations

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
from gcodec.runtime import pool

N = (1 << 20) + 77  # several segments, and several words that are not whole


def sorted_largest(x: np.ndarray, k: int) -> list[int]:
    """Sort all, the stable way."""
    bits = x.view(np.uint32).astype(np.int64) & 0x7FFFFFFF
    return sorted(np.argsort(-bits, kind="stable")[:k].tolist())


def spread(kind: str, n: int) -> np.ndarray:
    """Values that make selection hard in different ways."""
    rng = np.random.default_rng(n)
    if kind == "equal":
        x = np.full(n, 3.5)
    elif kind == "zeros":
        x = np.zeros(n)
    elif kind == "two":  # each in a bin of its own
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
    found = select.largest(x, k)
    assert found is not None and found.dtype == np.int64
    assert found.tolist() == sorted_largest(x, k)


@each_kind
def test_largest_of_many(kind: str) -> None:
    x = spread(kind, 60_000)
    for k in (0, 1, 2, 600, 6_000, 14_999, 15_000, 29_999, 45_000, 59_999, 60_000):
        found = select.largest(x, k)
        assert found is not None and found.tolist() == sorted_largest(x, k), k


@given(gs.gradients(large=True), st.data())
def test_at_least(x: np.ndarray, data: st.DataObject) -> None:
    own = [abs(float(x[data.draw(st.integers(0, x.size - 1))]))] if x.size else []
    threshold = np.float32(data.draw(st.sampled_from([0.0, 2.0**-149, 1.0, *own, np.inf])))
    found = select.at_least(x, threshold)
    assert found is not None and found.dtype == np.int64
    assert found.tolist() == np.flatnonzero(np.abs(x) >= threshold).tolist()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(n: int, wrong: float) -> None:
    for at in {0, n // 2, n - 1}:
        x = spread("normal", n)
        x[at] = wrong
        assert select.largest(x, 0) is None
        assert select.largest(x, n) is None
        assert select.at_least(x, np.float32(1)) is None
        assert select.at_least(x, np.float32(np.inf)) is None


@each_kind
def test_threads_select_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = spread(kind, N)
    threshold = np.float32(abs(float(x[5])))
    found: list[list[np.ndarray | None]] = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        largest = [select.largest(x, k) for k in (1, N // 100, N // 3)]
        found.append([*largest, select.at_least(x, threshold)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert one is not None and two is not None and np.array_equal(one, two)
    top = found[0][1]
    assert top is not None and top.size == N // 100
    assert top.tolist() == sorted_largest(x, N // 100)


def peak(call: Callable[[], Any]) -> int:
    call()  # compiled now
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("threads", ["1", "2"])
@each_kind
def test_memory_of_selection(kind: str, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many candidates there are, it is little more than the input at most."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x = spread(kind, N)
    scratch = int(threads) * (4 * pool.SEGMENT + (1 << 19))
    for k in (N // 100, N // 4, N // 3):
        assert peak(lambda k=k: select.largest(x, k)) <= 1.35 * x.nbytes + scratch, k
    assert peak(lambda: select.largest(x, 100)) <= 0.6 * x.nbytes + scratch


# --- by positions -------------------------------------------------------------------------------


def some_positions(n: int, share: float) -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(n).random(n) < share)


@pytest.mark.parametrize("n", [0, 1, 100, 8191, 8192, 8193, 100_000, N])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.3, 1.0])
def test_take_and_put(n: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x, positions = spread("normal", n), some_positions(n, share)
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
def test_add_is_the_sum_of_all(scale: float, n: int) -> None:
    """The elements that are not sent are zeros, which a sum sees, too."""
    rng = np.random.default_rng(n)
    positions = some_positions(n, 0.2)
    values = rng.choice(np.array([0.0, -0.0, 1, -2, 1e-45, 3e38], np.float32), positions.size)
    for zeros in ([1.0, -7.0], [0.0, -0.0, 1, np.inf, np.nan, -3e38]):
        before = rng.choice(np.array(zeros, np.float32), n)
        decoded = np.zeros(n, np.float32)
        decoded[positions] = values
        out = before.copy()
        with np.errstate(all="ignore"):
            scatter.add(out, positions, values, np.float32(scale))
            assert gs.same_bits(out, before + np.float32(scale) * decoded)


def test_add_rounds_each_product() -> None:
    out, third = np.ones(1, np.float32), np.float32(1 / 3)
    scatter.add(out, np.zeros(1, np.int64), np.full(1, third), np.float32(3))
    assert out[0] == np.float32(1) + np.float32(3) * third
    x = np.float32(1 + 2.0**-12)
    out = np.full(1, -(x * x), np.float32)
    scatter.add(out, np.zeros(1, np.int64), np.full(1, x), x)
    assert out[0] == 0  # and not what the square lost


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("n", [0, 10, 20_000, N])
def test_positions_outside_are_refused(
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
def test_positions_that_fall_are_refused(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    x, positions = np.zeros(N, np.float32), np.array([N - 1, N // 2, 5, 700_000, 0])
    with pytest.raises(gcodec.ParameterError, match="rise"):
        scatter.put(x, positions, np.ones(5, np.float32))
    with pytest.raises(gcodec.ParameterError, match="rise"):
        scatter.add(x, positions, np.ones(5, np.float32), np.float32(1))
    assert scatter.take(np.arange(9, dtype=np.float32), np.array([8, 2])).tolist() == [8, 2]
