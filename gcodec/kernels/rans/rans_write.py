"""The writer of rANS blocks: 32 states that take turns, and give off words of 16 bits.

It goes from the last symbol to the first, and so backwards through the words too: what a reader
does first it does last. A state x becomes floor(x / f)·2^P + (x mod f) + c, with f slots of the
symbol of which c is the first; before this, it gives off its lower 16 bits if it would pass 2^32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from gcodec.kernels.rans.rans_table import LEAST_LOG2, LEAST_STATE, MOST_LOG2, WriteTables
from gcodec.kernels.rans.rans_vector import (
    AT,
    CLASSED_LANES,
    KEPT,
    LANES,
    LAST_AT,
    LAST_PLACE,
    PLACE,
    no_groups,
    orders,
    vector_width,
)
from gcodec.kernels.rans.rans_write_vector import writing
from gcodec.runtime.jit import Kernel, factory, kernel, subroutine

_ONE, _FOUR, _SIXTEEN = (np.uint64(k) for k in (1, 4, 16))
_LOW = np.uint64(0xFFFF)


class Writer:
    """Writes blocks, one after the other.

    Parameters
    ----------
    tables : WriteTables
    most : int
        Symbols of a block at most.
    lanes : int
        States that take turns.
    width : int
        Lanes of vectors, 0 for none; only used for LANES states. See `vector_width`.
    """

    def __init__(self, tables: WriteTables, most: int, lanes: int, width: int) -> None:
        width = width if lanes == LANES else 0
        self._loop = _writer(tables.log2_total, tables.classed, lanes, width)
        self._tables = tables.entries, tables.reciprocals, tables.pairs, _compressing()
        # A symbol gives off at most one word; vectors are stored whole, garbage before the words.
        self._words = np.empty(most + LANES + 2 * lanes, np.uint16)
        self._kept = np.zeros(KEPT, np.int64)

    def __call__(
        self, symbols: np.ndarray, every: int, row: int, words: np.ndarray, states: np.ndarray
    ) -> np.ndarray:
        """Write a block.

        Parameters
        ----------
        symbols : (n,) uint8 array, or uint16 where they have classes
            At least one. All must have a frequency.
        every, row : int
            The i-th run of `every` symbols, a multiple of LANES, is told in row + i.
        words : int64 array
            Of each run, the words from its first on to the end of the block.
        states : (rows, lanes) uint32 array
            The states before each run.

        Returns
        -------
        uint8 array
            The bytes of the block, which change with the next.
        """
        self._loop(
            *(symbols, every, row, *self._tables, self._kept, self._words, words),
            states.reshape(-1),
        )
        return self._words[self._kept[AT] :].view(np.uint8)


@functools.cache
def _compressing() -> np.ndarray:
    """Put the words of all lanes but those of a set last, in order."""

    def words_of(members: int) -> list[int]:
        outside = [lane for lane in range(8) if not members >> lane & 1]
        return [-1] * (8 - len(outside)) + outside

    return orders(words_of)


def _models() -> Iterator[tuple[int, bool, int, int]]:
    yield from ((p, False, LANES, vector_width()) for p in range(LEAST_LOG2, MOST_LOG2 + 1))
    yield from ((LEAST_LOG2, True, k, vector_width() if k == LANES else 0) for k in CLASSED_LANES)


@factory(_models)
def _writer(log2_total: int, classed: bool, lanes: int, width: int) -> Kernel:
    variant, kind = f"{log2_total} {classed} {lanes} {width}", "uint16" if classed else "uint8"
    total, above = np.uint64(1 << log2_total), np.uint64(32 - log2_total)
    quotient = np.uint64(32 + log2_total)
    write_groups = writing(log2_total, width) if width else no_groups

    @subroutine(variant=variant)
    def stepped(symbol, state, reciprocals, pairs):
        """Put a symbol; return the state, and 1 if it gave off the lower 16 bits of the other."""
        x, pair = np.uint64(state), np.uint64(pairs[symbol])
        frequency = pair & _LOW
        drop = np.uint64(x >> above >= frequency)
        x >>= drop << _FOUR
        times = (x * reciprocals[symbol]) >> quotient
        return np.uint32(x + times * (total - frequency) + (pair >> _SIXTEEN)), drop

    @subroutine(variant=variant)
    def write_singles(symbols, reciprocals, pairs, states, out, at):
        """Write symbols, the first of lane 0, before the words from `at` on; return where."""
        place, whole = np.uint64(at), symbols.size - symbols.size % lanes
        for k in range(1, symbols.size - whole + 1):
            lane = symbols.size - whole - k
            x, drop = stepped(symbols[whole + lane], states[lane], reciprocals, pairs)
            out[place - _ONE] = np.uint16(states[lane])
            place -= drop
            states[lane] = x
        for first in range(whole - lanes, -1, -lanes):
            for k in range(lanes):  # of a fixed count, so that there is no loop
                lane = np.uint64(lanes - 1 - k)
                x, drop = stepped(symbols[first + lanes - 1 - k], states[lane], reciprocals, pairs)
                out[place - _ONE] = np.uint16(states[lane])
                place -= drop
                states[lane] = x
        return np.int64(place)

    @kernel(
        f"in {kind}[], int64, int64, in uint64[], in uint64[], in uint32[], in uint8[], "
        "out int64[], out uint16[], out int64[], out uint32[]",
        variant=variant,
    )
    def write_block(
        symbols, every, row, entries, reciprocals, pairs, compress, kept, out, words, snapshots
    ):
        # A symbol takes at most one word: out.size >= symbols.size + LANES + 2 * lanes. Symbols
        # are below the tables' sizes; `words` and `snapshots` have the rows of all runs, of 1 and
        # of `lanes`.
        count = (symbols.size + every - 1) // every
        at, i = out.size, symbols.size
        states = snapshots[(row + count - 1) * lanes : (row + count) * lanes]
        for lane in range(lanes):
            states[lane] = LEAST_STATE
        for b in range(count - 1, -1, -1):
            start = b * every
            if b < count - 1:
                before, states = states, snapshots[(row + b) * lanes : (row + b + 1) * lanes]
                for lane in range(lanes):
                    states[lane] = before[lane]
            whole = i - i % LANES if width else start
            at = write_singles(symbols[whole:i], reciprocals, pairs, states, out, at)
            if width:
                kept[AT], kept[PLACE] = at, whole
                kept[LAST_AT], kept[LAST_PLACE] = LANES, start + LANES
                write_groups(symbols, entries, compress, states, kept, 0, out)
                at = kept[AT]
            words[row + b], i = out.size - at, start
        head = out[at - 2 * lanes : at]
        for lane in range(lanes):
            head[2 * lane] = np.uint16(states[lane])
            head[2 * lane + 1] = np.uint16(states[lane] >> np.uint32(16))
        kept[AT] = at - 2 * lanes

    return write_block
