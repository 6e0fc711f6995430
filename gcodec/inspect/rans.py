"""Strings of rANS, told symbol by symbol: the states, and the words that they take up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.entropy.coder import RansString
from gcodec.errors import Corrupt, FormatError, Truncated
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker, Kind, Tell, Window
from gcodec.kernels.quantize.trellis import add_quantisers
from gcodec.kernels.rans.rans_read import Reader
from gcodec.kernels.rans.rans_runs import BLOCK
from gcodec.kernels.rans.rans_table import LEAST_STATE, LOG2_ALPHABET, STATE_NBYTES
from gcodec.kernels.rans.rans_vector import vector_width

_WORD = 16  # bits


class _Group(NamedTuple):
    """A symbol of each lane.

    Attributes
    ----------
    symbols, states, frequencies : list of int
        States are those before the symbols.
    taken : list of bool
        Whether the state takes up a word behind the symbol.
    total : int
        The log2 of the sum of frequencies.
    """

    symbols: list[int]
    states: list[int]
    frequencies: list[int]
    taken: list[bool]
    total: int


def states(
    walk: FieldWalker, kind: Kind, name: str, string: RansString, tell: Tell
) -> Iterator[FieldSpan]:
    """Describe an opened string up to the end of the payload.

    A symbol has no bits of its own. Its field states its lane and its cost, and precedes the word
    that the lane then takes up, if it does.

    Parameters
    ----------
    walk : FieldWalker
    kind, name : str
        Of symbols, and of all bits.
    string : RansString
    tell : callable
        Receives the symbols.
    """
    blocks, window, lanes = _Blocks(walk, string), Window(walk), string.lanes
    for first in range(0, string.n, BLOCK):
        if window.closed:
            yield from walk.rest("states and words", string.n - first, {}, kind)
            return
        size, start = min(BLOCK, string.n - first), walk.at
        read = partial(_heads, walk, lanes)
        nbits = 8 * STATE_NBYTES
        heads = yield from walk.checked(
            kind, "state", nbits, lanes, _tell_states, read, little=True
        )
        # Symbols before the window must be decoded, those after it need not be.
        want = min(size, window.left) if walk.start <= walk.at else size
        classes = np.empty(0, np.uint8)
        if string.classes_of:
            room = np.empty(size, np.uint8)
            classes = string.classes_of(first, first + size, room)[:want]
        symbols, behind, error = blocks.read(start, classes, want, size)
        shown = 0
        if string.with_trellis:
            classes = classes[: symbols.size].copy()
            add_quantisers(symbols, lanes, classes)
        for at, group in blocks.groups(symbols, classes, np.concatenate([heads[None], behind])):
            low, high = window.cut(_WORD * np.array(group.taken))
            yield from walk.several(name, low, {kind: _WORD * sum(group.taken[:low])})
            told = tell(first + at + low, symbols[at + low : at + high])
            for lane, one in enumerate(told, low):
                yield from _symbol(walk, kind, name, group, lane, one, first + at + lane)
            shown += high
            if high < len(group.symbols):
                break
        if error is not None and shown == symbols.size:
            raise error
        if shown < size:
            yield from walk.rest("states and words", string.n - first - shown, {}, kind)
            return


def _tell_states(at: int, values: np.ndarray) -> Iterator[FieldValue]:
    for lane, state in enumerate(values.tolist(), at):
        yield FieldValue(state, f"of lane {lane}, where the block begins")


def _heads(walk: FieldWalker, lanes: int) -> np.ndarray:
    """Read the states where a block begins."""
    at = walk.at // 8
    found = walk.data[at : at + STATE_NBYTES * lanes].view("<u4").astype(np.uint64)
    if found.min() < LEAST_STATE:
        lane = int(np.argmax(found < LEAST_STATE))
        wrong = at + STATE_NBYTES * lane
        raise Corrupt("a block of symbols begins in a state below 2**16", wrong)
    return found


def _symbol(
    walk: FieldWalker,
    kind: Kind,
    name: str,
    group: _Group,
    lane: int,
    told: FieldValue,
    number: int,
) -> Iterator[FieldSpan]:
    """Tell a symbol, and the word that comes behind it, if one does."""
    cost = f"{group.total - math.log2(group.frequencies[lane]):.2f} bits"
    meaning = f"{cost}, of lane {lane} at {group.states[lane]:#010x}"
    meaning = ", ".join(filter(None, (told.meaning, meaning)))
    yield walk.piece(kind, name, 0, told._replace(meaning=meaning), number)
    if group.taken[lane]:
        at = walk.at // 8
        word = int.from_bytes(walk.data[at : at + 2].tobytes(), "little")
        yield walk.piece(kind, "word", _WORD, FieldValue(word, f"taken up by lane {lane}"))


class _Blocks:
    """The blocks of a string: their symbols, and the states between these."""

    def __init__(self, walk: FieldWalker, string: RansString) -> None:
        self._tables, self._lanes = string.tables, string.lanes
        self._read = Reader(
            string.tables,
            walk.data,
            walk.end // 8,
            1,
            string.lanes,
            string.with_trellis,
            vector_width(),
        )

    def read(
        self, start: int, classes: np.ndarray, want: int, size: int
    ) -> tuple[np.ndarray, np.ndarray, FormatError | None]:
        """Read symbols of a block of `size` from bit `start` on, and what is wrong behind them.

        Returned with them are the states behind each group.
        """
        groups = -(-want // self._lanes)
        ends, behind = np.empty(groups, np.int64), np.empty((groups, self._lanes), np.uint32)
        place, found = np.array([start // 8]), np.empty(want, np.uint8)

        def some(count: int) -> FormatError | None:
            part = found[:count], self._lanes, 0, ends, behind
            try:
                self._read(place, classes[:count], *part)
            except Truncated as error:
                return error
            except Corrupt as error:
                return error if count == size else None  # only it ends in states that are known
            return None

        error = some(want)
        if isinstance(error, Truncated):
            low, high = 0, want
            while high - low > 1:
                middle = (low + high) // 2
                cut = isinstance(some(middle), Truncated)
                low, high = (low, middle) if cut else (middle, high)
            found = found[:low]
            some(low)
        return found, behind.astype(np.uint64), error

    def groups(
        self, symbols: np.ndarray, classes: np.ndarray, before: np.ndarray
    ) -> Iterator[tuple[int, _Group]]:
        """Return the symbols by groups, with the number of the first of each."""
        shift = np.uint64(self._tables.log2_total)
        for at in range(0, symbols.size, self._lanes):
            here = symbols[at : at + self._lanes].astype(np.intp)
            place = here
            if classes.size:
                place = here | classes[at : at + here.size].astype(np.intp) << LOG2_ALPHABET
            x = before[at // self._lanes][: here.size]
            pair = self._tables.pairs[place].astype(np.uint64)
            frequency, slot = (
                pair & np.uint64(0xFFFF),
                x & ((np.uint64(1) << shift) - np.uint64(1)),
            )
            left = frequency * (x >> shift) + slot - (pair >> np.uint64(16))
            taken = (left < np.uint64(LEAST_STATE)).tolist()
            total = self._tables.log2_total
            yield at, _Group(here.tolist(), x.tolist(), frequency.tolist(), taken, total)
