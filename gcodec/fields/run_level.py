"""Descriptions of strings of run–level pairs: a gap and a signed symbol each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from gcodec.entropy.coder import unpacked
from gcodec.errors import FormatError
from gcodec.fields.walker import CHUNK, DescribeElements, FieldSpan, FieldValue, FieldWalker
from gcodec.fields.words import lengths, most_that_read, positions_of, read, split_of, word
from gcodec.kernels.prefix.prefix_table import WIDE
from gcodec.kernels.prefix.run_level import RunLevelCode, RunLevelPairs
from gcodec.kernels.prefix.run_level_read import read_pair_blocks

_SUMMARY_CHUNK = 1 << 16  # number of pairs that are read at a time if none is described

_GapsAndSymbols = tuple[np.ndarray, np.ndarray]  # (k,) uint64 each


def run_level_pairs(
    walk: FieldWalker, code: RunLevelCode, n: int, describe: DescribeElements
) -> Iterator[FieldSpan]:
    """Describe a string of pairs up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first pair.
    code : RunLevelCode
        Codes of gaps and symbols.
    n : int
        Number of elements of the tensor.
    describe : callable
        Describes elements and their symbols; see `DescribeElements`.

    Raises
    ------
    FormatError
    """
    window, number, last = walk.window(), 0, 0
    error: FormatError | None = None
    while walk.at < walk.end and error is None:
        is_open = not window.closed
        size = min(CHUNK, window.left) if is_open and walk.start <= walk.at else _SUMMARY_CHUNK
        (gaps, symbols), error = _readable(walk, code, size)
        positions, error = positions_of(gaps, last, n, error)
        gaps, symbols = gaps[: positions.size], symbols[: positions.size]
        gap_nbits, nbits = lengths(code.gap, gaps), lengths(code.symbol, symbols)
        low, high = window.cut(gap_nbits + nbits) if is_open else (0, 0)
        yield from _several(walk, gap_nbits[:low], nbits[:low])
        values = describe(positions[low:high] - 1, symbols[low:high]) if high > low else ()
        for k, level in zip(range(low, high), values, strict=True):
            gap = FieldValue(int(gaps[k]), element=int(positions[k]) - 1)
            symbol = int(symbols[k])
            yield from word(walk, "index", "gap", code.gap, int(gaps[k]), gap, number + k)
            yield from word(walk, "level", "level", code.symbol, symbol, level, number + k)
        yield from _several(walk, gap_nbits[high:], nbits[high:])
        number += positions.size
        last = int(positions[-1]) if positions.size else last
    if error is not None:
        yield from _lone_gap(walk, code, n, last, number)
        raise error


def _readable(
    walk: FieldWalker, code: RunLevelCode, size: int
) -> tuple[_GapsAndSymbols, FormatError | None]:
    """Read up to `size` pairs before the first invalid one; return them and its error."""

    def read(count: int) -> _GapsAndSymbols:
        wide = count if code.symbol.top >= WIDE else 0
        room = RunLevelPairs(
            np.empty(count, np.uint8),
            np.empty(count, np.uint8),
            np.empty(count, np.uint64),
            np.empty(wide, np.uint64),
        )
        pairs = 0
        if count:
            starts, counts = np.array([walk.at]), np.array([count])
            pairs, _ = read_pair_blocks(code, walk.data, starts, counts, room, walk.end, False)
        return unpacked(room, pairs)

    return most_that_read(read, size)


def _several(walk: FieldWalker, gap_nbits: np.ndarray, nbits: np.ndarray) -> Iterator[FieldSpan]:
    level = split_of("level", int(nbits.sum()), nbits.size)
    yield from walk.summary("pair", nbits.size, {"index": int(gap_nbits.sum()), **level})


def _lone_gap(
    walk: FieldWalker, code: RunLevelCode, n: int, last: int, number: int
) -> Iterator[FieldSpan]:
    """Describe the next gap if it is valid and only its symbol is not."""
    with contextlib.suppress(FormatError):
        # The kernel does not apply the shift of the code to the values that it reads.
        (value,), _ = read(walk, code.gap._replace(shift=0), 1)
        gap = int(value) - code.gap.shift
        if last + gap <= n:
            value = FieldValue(gap, element=last + gap - 1)
            yield from word(walk, "index", "gap", code.gap, gap, value, number)
