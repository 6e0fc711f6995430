"""Strings of rANS, described symbol by symbol: the states, and the words that they take up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from gcodec.entropy.coder import RansString
from gcodec.errors import Corrupt, FormatError
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker, Kind, Tell, Window
from gcodec.inspect.words import most_that_read
from gcodec.kernels.quantize.trellis import add_quantizers
from gcodec.kernels.rans.rans_read import Reader
from gcodec.kernels.rans.rans_runs import BLOCK
from gcodec.kernels.rans.rans_table import LEAST_STATE, LOG2_ALPHABET, STATE_NBYTES, ReadTables
from gcodec.kernels.rans.rans_vector import vector_width

_WORD = 16  # bits


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
        Kind of all bits, and name of a symbol.
    string : RansString
    tell : callable
        Receives the symbols.
    """
    window, lanes, tables = Window(walk), string.lanes, string.tables
    for first in range(0, string.n, BLOCK):
        if window.closed:
            yield from walk.rest("states and words", string.n - first, {}, kind)
            return
        size, start = min(BLOCK, string.n - first), walk.at
        read_heads, nbits = partial(_heads, walk, lanes), 8 * STATE_NBYTES
        heads = yield from walk.checked(
            kind, "state", nbits, lanes, _tell_states, read_heads, little=True
        )
        # Symbols before the window must be decoded, those after it need not be.
        want = min(size, window.left) if walk.start <= walk.at else size
        classes = np.empty(0, np.uint8)
        if string.classes_of:
            classes = string.classes_of(first, first + size, np.empty(size, np.uint8))[:want]
        symbols, after, error = _read(walk, string, start, classes, want, size)
        if string.with_trellis:
            classes = classes[: symbols.size].copy()
            add_quantizers(symbols, lanes, classes)
        before, shown = np.concatenate([heads[None], after]), 0
        for at in range(0, symbols.size, lanes):
            here = symbols[at : at + lanes]
            state = before[at // lanes][: here.size]
            frequencies, takes = _decoded(tables, here, classes[at : at + here.size], state)
            low, high = window.cut(_WORD * takes)
            yield from walk.several(name, low, {kind: _WORD * int(takes[:low].sum())})
            told = tell(first + at + low, here[low:high])
            for lane, symbol in enumerate(told, low):
                cost = tables.log2_total - math.log2(frequencies[lane])
                meaning = f"{cost:.2f} bits, of lane {lane} at {int(state[lane]):#010x}"
                symbol = symbol._replace(
                    meaning=", ".join(filter(None, (symbol.meaning, meaning)))
                )
                yield walk.piece(kind, name, 0, symbol, first + at + lane)
                if takes[lane]:
                    data = walk.data[walk.at // 8 : walk.at // 8 + 2].tobytes()
                    word = FieldValue(int.from_bytes(data, "little"), f"taken up by lane {lane}")
                    yield walk.piece(kind, "word", _WORD, word)
            shown += high
            if high < here.size:
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
    heads = walk.data[at : at + STATE_NBYTES * lanes].view("<u4").astype(np.uint64)
    if heads.min() < LEAST_STATE:
        lane = int(np.argmax(heads < LEAST_STATE))
        wrong = at + STATE_NBYTES * lane
        raise Corrupt("a block of symbols begins in a state below 2**16", wrong)
    return heads


def _read(
    walk: FieldWalker, string: RansString, start: int, classes: np.ndarray, want: int, size: int
) -> tuple[np.ndarray, np.ndarray, FormatError | None]:
    """Read `want` symbols of a block of `size` from bit `start` on, or as many as are valid.

    Returns
    -------
    symbols : uint8 array
    states : (groups, lanes) uint64 array
        The states after each group of a symbol per lane.
    error : FormatError or None
        The error after these symbols.
    """
    lanes, end = string.lanes, walk.end // 8
    width, tables = vector_width(), string.tables
    read_block = Reader(tables, walk.data, end, 1, lanes, string.with_trellis, width)
    last_states: list[Corrupt] = []

    def read(count: int) -> tuple[np.ndarray, np.ndarray]:
        groups = -(-count // lanes)
        symbols, ends = np.empty(count, np.uint8), np.empty(groups, np.int64)
        states = np.empty((groups, lanes), np.uint32)
        try:
            read_block(np.array([start // 8]), classes[:count], symbols, lanes, 0, ends, states)
        except Corrupt as error:
            if count == size:  # only a whole block must end in states that are known
                last_states.append(error)
        return symbols, states.astype(np.uint64)

    (symbols, states), error = most_that_read(read, want)
    return symbols, states, error or next(iter(last_states), None)


def _decoded(
    tables: ReadTables, symbols: np.ndarray, classes: np.ndarray, states: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequencies of a symbol per lane, and whether its lane then takes up a word."""
    place = symbols.astype(np.intp)
    if classes.size:
        place |= classes.astype(np.intp) << LOG2_ALPHABET
    total, pairs = np.uint64(1 << tables.log2_total), tables.pairs[place].astype(np.uint64)
    frequencies, cumulative = pairs & np.uint64(0xFFFF), pairs >> np.uint64(16)
    after = frequencies * (states // total) + states % total - cumulative
    return frequencies, after < np.uint64(LEAST_STATE)
