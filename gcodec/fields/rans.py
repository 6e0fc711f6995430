"""Descriptions of rANS strings: the states, the symbols, and the words that lanes read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from gcodec.entropy.coder import RansString
from gcodec.errors import Corrupt, FormatError
from gcodec.fields import walker
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, Kind
from gcodec.fields.words import most_that_read
from gcodec.kernels.quantize.trellis import add_quantizers
from gcodec.kernels.rans.rans_read import Reader
from gcodec.kernels.rans.rans_runs import BLOCK
from gcodec.kernels.rans.rans_table import LEAST_STATE, LOG2_ALPHABET, STATE_NBYTES, ReadTables
from gcodec.kernels.rans.rans_vector import vector_width

_WORD_NBITS = 16


def rans_string(
    walk: FieldWalker, kind: Kind, name: str, string: RansString, describe: DescribeSymbols
) -> Iterator[FieldSpan]:
    """Describe an opened string up to the end of the payload.

    A symbol has no bits of its own. Its field states its lane and its cost. If the lane reads a
    word after that symbol, the word follows as a field of its own.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first state.
    kind, name : str
        Kind of all bits, and name of a symbol.
    string : RansString
        The opened string.
    describe : callable
        Describes symbols; see `DescribeSymbols`.

    Raises
    ------
    FormatError
    """
    window, lanes, tables = walk.window(), string.lanes, string.tables
    described = 0  # number of symbols
    while described < string.n and not window.closed:  # for each block
        first, start = described, walk.at
        size = min(BLOCK, string.n - first)
        heads = yield from walk.checked(
            kind,
            "state",
            8 * STATE_NBYTES,
            lanes,
            _describe_states,
            partial(_heads, walk, lanes),
            little=True,
        )
        # Symbols before the window must be decoded; those after it need not be.
        count = min(size, window.left) if walk.start <= walk.at else size
        classes = np.empty(0, np.uint8)
        if string.classes_of:
            classes = string.classes_of(first, first + size, np.empty(size, np.uint8))[:count]
        symbols, after, error = _read(walk, string, start, classes, count, size)
        if string.with_trellis:
            classes = classes[: symbols.size].copy()
            add_quantizers(symbols, lanes, classes)
        before = np.concatenate([heads[None], after])
        for at in range(0, symbols.size, lanes):  # for each group of a symbol per lane
            group = symbols[at : at + lanes]
            state = before[at // lanes][: group.size]
            group_classes = classes[at : at + group.size]
            frequencies, reads_word = _decoded(tables, group, group_classes, state)
            low, high = window.cut(_WORD_NBITS * reads_word)
            yield from walk.summary(name, low, {kind: _WORD_NBITS * int(reads_word[:low].sum())})
            for lane, value in enumerate(describe(first + at + low, group[low:high]), low):
                cost = tables.log2_total - math.log2(frequencies[lane])
                meaning = f"{cost:.2f} bits, lane {lane} at state {int(state[lane]):#010x}"
                value = value._replace(meaning=", ".join(filter(None, (value.meaning, meaning))))
                yield walk.span(kind, name, 0, value, first + at + lane)
                if reads_word[lane]:
                    yield _word(walk, kind, lane)
            described += high
            if high < group.size:
                break
        if error is not None and described == first + symbols.size:
            raise error
        if described < first + size:
            break
    yield from walk.remainder(kind, "states and words", string.n - described)


_describe_states = walker.describe_each(
    lambda state, lane: FieldValue(state, f"state of lane {lane} at the start of the block")
)


def _word(walk: FieldWalker, kind: Kind, lane: int) -> FieldSpan:
    """Describe the word that a lane reads."""
    data = walk.data[walk.at // 8 : walk.at // 8 + 2].tobytes()
    note = f"16-bit word that refills lane {lane}"
    return walk.span(kind, "word", _WORD_NBITS, FieldValue(int.from_bytes(data, "little"), note))


def _heads(walk: FieldWalker, lanes: int) -> np.ndarray:
    """Read the states at the start of a block."""
    at = walk.at // 8
    heads = walk.data[at : at + STATE_NBYTES * lanes].view("<u4").astype(np.uint64)
    if heads.min() < LEAST_STATE:
        offset = at + STATE_NBYTES * int(np.argmax(heads < LEAST_STATE))
        raise Corrupt("a block of symbols begins in a state below 2**16", offset)
    return heads


def _read(
    walk: FieldWalker, string: RansString, start: int, classes: np.ndarray, count: int, size: int
) -> tuple[np.ndarray, np.ndarray, FormatError | None]:
    """Read `count` symbols of a block of `size` from bit `start` on, or those that are valid.

    Returns
    -------
    symbols : uint8 array
        The valid symbols.
    states : (groups, lanes) uint64 array
        States after each group, which has a symbol of each lane.
    error : FormatError or None
        Error after these symbols.
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
            if count == size:  # only a whole block must end in the initial states of the encoder
                last_states.append(error)
        return symbols, states.astype(np.uint64)

    (symbols, states), error = most_that_read(read, count)
    return symbols, states, error or next(iter(last_states), None)


def _decoded(
    tables: ReadTables, symbols: np.ndarray, classes: np.ndarray, states: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the frequencies of one symbol per lane, and whether its lane then reads a word."""
    place = symbols.astype(np.intp)
    if classes.size:
        place |= classes.astype(np.intp) << LOG2_ALPHABET
    total, pairs = np.uint64(1 << tables.log2_total), tables.pairs[place].astype(np.uint64)
    frequencies, cumulative = pairs & np.uint64(0xFFFF), pairs >> np.uint64(16)
    after = frequencies * (states // total) + states % total - cumulative
    return frequencies, after < np.uint64(LEAST_STATE)
