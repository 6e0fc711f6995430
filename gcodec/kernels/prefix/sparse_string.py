"""Strings with a run–level pair for each nonzero element, in parallel; see `run_level`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import SPARE, BitString, written
from gcodec.kernels.prefix.run_level import RunLevelCode, RunLevelPairs, count_pairs
from gcodec.kernels.prefix.run_level_read import read_pair_blocks
from gcodec.kernels.prefix.run_level_write import write_pairs
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, release

_CHUNK = 1 << 20  # elements that are written at a time
_READ = 1 << 16  # pairs that are read at a time
Place = Callable[[RunLevelPairs, np.ndarray, np.ndarray, int], int]
"""Receives pairs; see `read`."""


@dispatched("gcodec.kernels.prefix.sparse_string_cuda", by="symbols")
def write(
    code: RunLevelCode, symbols: np.ndarray | Drainable, block_size: int, lead: int
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Write the string of a tensor.

    Parameters
    ----------
    code : RunLevelCode
    symbols : (n,) unsigned array
        Released if it is a `Drainable`.
    block_size : int
        Pairs of a block.
    lead : int
        Free bytes before the string.

    Returns
    -------
    data : uint8 array
        Lead and string.
    nbits : int
        Bits of `data`.
    offsets, positions : (count + 1,) int64 array
        Bit of the string where each block begins, and where the last ends; position of the pair
        before each block, and of the last.
    """
    array = contents(symbols)

    def count(start: int, stop: int) -> tuple[int, int, int]:
        number, last = 0, 0
        for at in range(start, stop, _CHUNK):
            pairs, position = count_pairs(array[at : min(at + _CHUNK, stop)])
            number, last = number + pairs, at + position if position else last
        return start, number, last

    before, number, last = {}, 0, 0
    for start, pairs, position in pool.run(count, array.size, _CHUNK):
        before[start] = number, last
        number, last = number + pairs, position or last
    offsets = np.empty(-(-number // block_size) + 1, np.int64)
    positions = np.empty(offsets.size, np.int64)

    def task(start: int, stop: int) -> BitString:
        string = BitString(lead if start == 0 else 0)
        number, last = before[start]
        for at in range(start, stop, _CHUNK):
            part = array[at : min(at + _CHUNK, stop)]
            used = string.nbits
            if at == start:
                string.reserve(part.size // 4)
            number, last = write_pairs(
                code, part, at, number, last, block_size, string, offsets, positions
            )
            release(symbols, at, at + part.size)
            if at == start:
                per_element = (string.nbits - used) / 8 / part.size
                string.reserve(int(SPARE * per_element * (stop - at - part.size)))
        return string

    data, nbits, starts = written(task, array.size, _CHUNK)
    firsts = [-(-number // block_size) for number, _ in before.values()]
    for begin, first, after in zip(starts.values(), firsts, [*firsts[1:], None], strict=True):
        offsets[first:after] += begin - 8 * lead
    offsets[-1], positions[-1] = nbits - 8 * lead, last
    return data, nbits, offsets, positions


@dispatched("gcodec.kernels.prefix.sparse_string_cuda", by="data")
def read(
    code: RunLevelCode,
    data: np.ndarray,
    first: int,
    end: int,
    block_size: int,
    table: tuple[np.ndarray, np.ndarray] | None,
    place: Place,
) -> tuple[np.ndarray, np.ndarray]:
    """Read the string of a tensor.

    Parameters
    ----------
    code : RunLevelCode
    data : uint8 array
    first, end : int
        Bits where the string begins and ends.
    block_size : int
        Pairs of a block.
    table : (offsets, positions), optional
        Seek table; see `write`. Blocks are then read in parallel, and the reader verifies the
        table.
    place : callable
        Receives pairs, the ends of their blocks, the positions of the last pair of each block (of
        no elements without a table), and the position of the preceding pair; returns the position
        of the last pair. Called on the threads of the pool if there is a table.

    Returns
    -------
    offsets, positions : int64 array
        Seek table; see `write`.

    Raises
    ------
    FormatError
    """
    if table is not None and block_size <= _READ:
        _read_blocks(code, data, first, end, block_size, table, place)
        return table
    step = min(block_size, _READ)
    pairs = RunLevelPairs.empty(code, step)
    marks = [(0, 0)]
    at, last, number = first, 0, 0
    while at < end:
        bounds = np.array([step])
        bounds[0], at = read_pair_blocks(code, data, np.array([at]), bounds, pairs, end, False)
        last = place(pairs, bounds, np.empty(0, np.int64), last)
        number += int(bounds[0])
        if number % block_size == 0:
            marks.append((at - first, last))
    if number % block_size:
        marks.append((end - first, last))
    offsets, positions = np.array(marks, np.int64).T.copy()
    if table is not None and not all(map(np.array_equal, (offsets, positions), table)):
        raise Corrupt("the seek table is wrong: blocks do not end where it says")
    return offsets, positions


def _read_blocks(
    code: RunLevelCode,
    data: np.ndarray,
    first: int,
    end: int,
    block_size: int,
    table: tuple[np.ndarray, np.ndarray],
    place: Place,
) -> None:
    """Read the blocks of a seek table in parallel, several small ones at a time; see `read`."""
    offsets, positions = table
    count, together = offsets.size - 1, _READ // block_size

    def task(start: int, stop: int) -> None:
        pairs = RunLevelPairs.empty(code, min(_READ, stop - start))
        stop_block = -(-stop // block_size)
        for b in range(start // block_size, stop_block, together):
            last = min(b + together, stop_block)
            bounds = np.arange(1, last - b + 1) * block_size
            starts = first + offsets[b : last + 1]
            bounds[-1], _ = read_pair_blocks(code, data, starts, bounds, pairs, end, True)
            if bounds[-1] != (last - b) * block_size and last != count:
                raise Corrupt("the seek table is wrong: a block has too few values")
            place(pairs, bounds, positions[b + 1 : last + 1], int(positions[b]))

    pool.run(task, count * block_size, block_size)
