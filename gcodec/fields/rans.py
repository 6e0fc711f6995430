"""Strings of rANS, told symbol by symbol: the states, and the words that they take up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gcodec.entropy.tabled import Table
from gcodec.errors import Corrupt, FormatError, Truncated
from gcodec.fields.walk import Kind, Piece, Tell, Told, Walk, Window
from gcodec.kernels.rans_read import Reader
from gcodec.kernels.rans_string import BLOCK
from gcodec.kernels.rans_table import HEAD, LEAST_STATE, ReadTables, read_tables
from gcodec.kernels.rans_vector import LANES, vectors

_STATE, _WORD = 32, 16  # bits


class _Group(NamedTuple):
    """What LANES symbols take.

    Attributes
    ----------
    symbols : list of int
    states : list of int
        Of their lanes, before them.
    taken : list of bool
        Whether the state takes up a word behind the symbol.
    """

    symbols: list[int]
    states: list[int]
    taken: list[bool]


def states(
    walk: Walk, kind: Kind, name: str, table: Table, count: int, tell: Tell
) -> Iterator[Piece]:
    """Tell a string of so many symbols, up to the payload's end.

    A symbol has no bits of its own: it is told with its lane and what it costs, before the word
    that the lane then takes up, if it does.

    Parameters
    ----------
    walk : Walk
    kind, name : str
        Of symbols, and of all bits.
    table : Table
    count : int
    tell : callable
        Gets the symbols.
    """
    tables, window = read_tables(table.numbers, table.log2_total), Window(walk)
    for first in range(0, count, BLOCK):
        if window.closed:
            yield from walk.rest("states and words", count - first, {}, kind)
            return
        size = min(BLOCK, count - first)
        start = walk.at
        yield from walk.fields(kind, "state", _STATE, LANES, _tell_states, little=True)
        # Symbols before those that are wanted cannot be left out, those behind them can.
        want = min(size, window.left) if walk.start <= walk.at else size
        symbols, groups, error = _read(walk, tables, start, want, size)
        shown = 0
        for number, group in enumerate(groups):
            at, nbits = LANES * number, _WORD * sum(group.taken)
            low, high = window.cut(walk.at + np.full(len(group.symbols), nbits))
            if high == 0 or low:  # before those that are wanted, or behind them
                yield from walk.several(name, len(group.symbols), {kind: nbits})
                shown += len(group.symbols)
                continue
            told = tell(first + at, symbols[at : at + high])
            yield from _group(walk, kind, name, table, group, told, first + at)
            shown += high
            if high < len(group.symbols):
                break
        if error is not None and shown == symbols.size:
            raise error
        if shown < size:
            yield from walk.rest("states and words", count - first - shown, {}, kind)
            return


def _tell_states(at: int, values: np.ndarray) -> Iterator[Told]:
    for lane, state in enumerate(values.tolist(), at):
        if state < LEAST_STATE:
            raise Corrupt("a block of symbols begins in a state below 2**16")
        yield Told(state, f"of lane {lane}, where the block begins")


def _group(
    walk: Walk,
    kind: Kind,
    name: str,
    table: Table,
    group: _Group,
    told: Iterable[Told],
    first: int,
) -> Iterator[Piece]:
    for lane, one in enumerate(told):
        symbol, state = group.symbols[lane], group.states[lane]
        frequency = int(table.numbers[symbol])
        cost = (
            f"{table.log2_total - math.log2(frequency):.2f} bits, of lane {lane} at {state:#010x}"
        )
        meaning = ", ".join(filter(None, (one.meaning, cost)))
        yield walk.piece(kind, name, 0, one._replace(meaning=meaning), first + lane)
        if group.taken[lane]:
            at = walk.at // 8
            word = int.from_bytes(walk.data[at : at + 2].tobytes(), "little")
            yield walk.piece(kind, "word", _WORD, Told(word, f"taken up by lane {lane}"))


def _read(
    walk: Walk, tables: ReadTables, start: int, want: int, size: int
) -> tuple[np.ndarray, Iterator[_Group], FormatError | None]:
    """Read symbols of a block of `size` from bit `start` on, by groups; and tell what is wrong."""
    runs = -(-want // LANES)
    ends, behind = np.empty(runs, np.int64), np.empty((runs, LANES), np.uint32)
    read = Reader(tables, walk.data, walk.end // 8, 1, vectors())

    def some(count: int) -> FormatError | None:
        symbols = np.empty(count, np.uint8)
        try:
            read(np.array([start // 8]), symbols, LANES, 0, ends, behind)
        except Truncated as error:
            return error
        except Corrupt as error:
            found[:count] = symbols
            return error if count == size else None  # only a whole block ends in known states
        found[:count] = symbols
        return None

    found = np.empty(want, np.uint8)
    error = some(want)
    if isinstance(error, Truncated):
        low, high = 0, want
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if isinstance(some(middle), Truncated) else (middle, high)
        found = found[:low]
        if low:
            some(low)
    head = walk.data[start // 8 : start // 8 + HEAD].view("<u4").astype(np.uint64)
    before = np.concatenate([head[None], behind[:-1].astype(np.uint64)])
    return found, _groups(tables, found, before), error


def _groups(tables: ReadTables, symbols: np.ndarray, before: np.ndarray) -> Iterator[_Group]:
    shift = np.uint64(tables.log2_total)
    for at in range(0, symbols.size, LANES):
        here = symbols[at : at + LANES]
        x, pair = before[at // LANES][: here.size], tables.pairs[here].astype(np.uint64)
        slot = x & np.uint64((1 << tables.log2_total) - 1)
        left = (pair & np.uint64(0xFFFF)) * (x >> shift) + slot - (pair >> np.uint64(16))
        taken = (left < np.uint64(LEAST_STATE)).tolist()
        yield _Group(here.tolist(), x.tolist(), taken)
