"""Symbols that are computed from packed codes where they are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.kernels.bits import computed_symbols
from gcodec.kernels.bits.computed_symbols import (
    ComputedSymbols,
    NarrowSymbols,
    parts_in,
    read_by,
)

SPECS = [
    *("terngrad:pack=context", "mxnet-2bit:threshold=auto,form=context", "minifloat:code=context"),
    *("microscale:format=nvfp4,code=context", "microscale:code=context"),
    *("microscale:format=mxint8,code=context", "mxnet-2bit:threshold=auto,form=auto"),
]
SHAPES = [(70_001,), (1000, 77), (9, 33_333), (3000, 103), (40, 3, 3, 200), (600_007,)]


@pytest.mark.parametrize("each", [1, 2, 4, 5, 8])
def test_slices_and_rows(each: int) -> None:
    rng = np.random.default_rng(each)
    table = rng.integers(0, 256, (256, each)).astype(np.uint8)
    packed = rng.integers(0, 256, 300_000).astype(np.uint8)
    expected = table[packed].reshape(-1)[: 300_000 * each - each // 2]
    symbols = ComputedSymbols(packed, each, read_by(table), expected.size)
    for start, stop in (
        (0, 0),
        (0, 1),
        (7, 20),
        (13, 100_003),
        (expected.size - 3, expected.size),
    ):
        assert np.array_equal(symbols[start:stop], expected[start:stop])
    assert np.array_equal(symbols.whole(), expected)
    for width, stride in ((128, 5), (33, 2), (expected.size // 3, 1)):
        rows = expected[: expected.size // width * width].reshape(-1, width)[::stride]
        assert np.array_equal(symbols.rows(width, stride), rows.reshape(-1))


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("width", [4, 8])
def test_narrow_symbols_equal_an_array(
    width: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    rng, dtype = np.random.default_rng(width), np.dtype(np.uint16)
    expected = rng.integers(0, 1 << width, (5 << 19) + 77).astype(dtype)
    expected[rng.integers(0, expected.size, 9000)] = rng.integers(1 << width, 60_000, 9000)

    def fill(start: int, stop: int, out: np.ndarray) -> None:
        assert start % 100 == 0
        out[:] = expected[start:stop]

    symbols = NarrowSymbols(fill, expected.size, dtype, width, 100)
    assert symbols.is_complete and symbols.dtype == dtype
    for start, stop in ((0, 0), (7, 20), (13, 900_003), (expected.size - 3, expected.size)):
        assert np.array_equal(symbols[start:stop], expected[start:stop])
    assert np.array_equal(symbols.whole(), expected)
    rows = expected[: expected.size // 33 * 33].reshape(-1, 33)[::5]
    assert np.array_equal(symbols.rows(33, 5), rows.reshape(-1))
    places, values = symbols.listed(50_000)
    assert np.array_equal(places, np.flatnonzero(expected >= 50_000))
    assert np.array_equal(values, expected[places])
    expected[:: 1 << 4] = 60_000
    assert not NarrowSymbols(fill, expected.size, dtype, width, 100).is_complete


@pytest.mark.parametrize("code", ["omega", "rice"])
@pytest.mark.parametrize("setting", ["s=15", "s=1,bucket=512", "s=4096", "s=300,bucket=100"])
def test_narrow_levels_of_qsgd_change_nothing(
    setting: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = counted_narrow(monkeypatch)
    x = long_tailed(600_007)
    expected = gcodec.encode(x, f"qsgd:{setting},code={code}", seed=3)
    monkeypatch.setattr(computed_symbols, "_FEW", 0)
    assert gcodec.encode(x, f"qsgd:{setting},code={code}", seed=3) == expected
    assert len(completed) == 1


@pytest.mark.parametrize(
    "setting", ["bits=1", "bits=0.2", "nmse=0.4", "bits=1,rounding=stochastic"]
)
@pytest.mark.parametrize("shape", [(600_007,), (3000, 200)])
def test_narrow_levels_of_ecsq_change_nothing(
    shape: tuple[int, ...], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = counted_narrow(monkeypatch)
    x = long_tailed(math.prod(shape)).reshape(shape)
    expected = gcodec.encode(x, f"ecsq:{setting}", seed=3)
    monkeypatch.setattr(computed_symbols, "_FEW", 0)
    assert gcodec.encode(x, f"ecsq:{setting}", seed=3) == expected
    assert completed and all(completed)


def long_tailed(n: int) -> np.ndarray:
    """Return values of which a few are so large that their symbols are outliers."""
    x = np.random.default_rng(7).laplace(size=n).astype(np.float32)
    x[:: n // 20] *= 1e4
    return x


def counted_narrow(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each `NarrowSymbols` adds whether it is complete."""
    completed: list[bool] = []
    make = NarrowSymbols.__init__

    def counting(self: NarrowSymbols, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords)
        completed.append(self.is_complete)

    monkeypatch.setattr(NarrowSymbols, "__init__", counting)
    return completed


def test_parts_cover_what_the_caller_needs() -> None:
    packed = np.arange(3 << 18, dtype=np.uint32).astype(np.uint8)
    table = np.arange(1024).reshape(256, 4).astype(np.uint8)
    symbols, unit = ComputedSymbols(packed, 4, read_by(table), 4 * packed.size - 3), 96
    expected = symbols.whole()
    parts = list(parts_in(symbols, 0, symbols.size, unit))
    assert len(parts) > 1 and all(at % unit == 0 for at, _ in parts)
    assert np.array_equal(np.concatenate([part for _, part in parts]), expected)
    for at, part in parts_in(symbols, 0, symbols.size, unit, 7):
        assert at // unit % 7 == 0 and np.array_equal(part, expected[at : at + unit])


@pytest.mark.parametrize("spec", SPECS)
def test_frames_do_not_depend_on_the_number_of_symbols_in_memory(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    tensors = [np.exp2(rng.standard_normal(shape)).astype(np.float32) for shape in SHAPES]
    for x in tensors:
        x[::3] *= -0.5
    frames = [gcodec.encode(x, spec) for x in tensors]
    monkeypatch.setattr(computed_symbols, "_FEW", 1 << 10)
    assert [gcodec.encode(x, spec) for x in tensors] == frames
