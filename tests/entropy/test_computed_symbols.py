"""Symbols that are computed from packed codes where they are read."""

from __future__ import annotations

import numpy as np
import pytest

import gcodec
from gcodec.kernels.bits import computed_symbols
from gcodec.kernels.bits.computed_symbols import ComputedSymbols, parts_in, read_by

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
