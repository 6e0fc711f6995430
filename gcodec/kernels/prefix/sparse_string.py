"""Strings that have a unit for each element that is not 0, in parallel; see `units`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString, written
from gcodec.kernels.prefix.prefix_table import WIDE
from gcodec.kernels.prefix.run_level import RunLevelCode, RunLevelPairs, count_units
from gcodec.kernels.prefix.run_level_read import read_unit_blocks
from gcodec.kernels.prefix.run_level_write import write_units
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, release

_CHUNK = 1 << 20  # elements that are written at a time
_READ = 1 << 16  # units that are read at a time
Place = Callable[[RunLevelPairs, np.ndarray, np.ndarray, int], int]

_SPARE = 1.01  # room that is kept for a string to turn out longer than it began


@dispatched("gcodec.kernels.prefix.sparse_string_cuda", by="symbols")
def write(
    code: RunLevelCode, symbols: np.ndarray | Drainable, every: int, lead: int
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Write the string of a tensor.

    Parameters
    ----------
    code : UnitCode
    symbols : (n,) unsigned array
        Released if it is a `Drainable`.
    every : int
        Units of a block.
    lead : int
        Bytes that are left free before the string.

    Returns
    -------
    data : uint8 array
    nbits : int
        Of lead and string.
    offsets, positions : (count + 1,) int64 array
        Bit of the string where each block begins, and where the last ends; the position of the
        last unit before each, and of the last.
    """
    array = contents(symbols)

    def count(start: int, stop: int) -> tuple[int, int, int]:
        number, last = 0, 0
        for at in range(start, stop, _CHUNK):
            found, position = count_units(array[at : min(at + _CHUNK, stop)])
            number, last = number + found, at + position if position else last
        return start, number, last

    before, number, last = {}, 0, 0
    for start, found, position in pool.run(count, array.size, _CHUNK):
        before[start] = number, last
        number, last = number + found, position or last
    offsets = np.empty(-(-number // every) + 1, np.int64)
    positions = np.empty(offsets.size, np.int64)

    def task(start: int, stop: int) -> BitString:
        string = BitString(lead if start == 0 else 0)
        number, last = before[start]
        for at in range(start, stop, _CHUNK):
            part = array[at : min(at + _CHUNK, stop)]
            used = string.nbits
            if at == start:
                string.reserve(part.size // 4)
            marks = string, offsets, positions
            number, last = write_units(code, part, at, number, last, every, *marks)
            release(symbols, at, at + part.size)
            if at == start:
                grown = (string.nbits - used) / 8 / part.size
                string.reserve(int(_SPARE * grown * (stop - at - part.size)))
        return string

    data, nbits, starts = written(task, array.size, _CHUNK)
    firsts = [-(-number // every) for number, _ in before.values()]
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
    every: int,
    table: tuple[np.ndarray, np.ndarray] | None,
    place: Place,
) -> tuple[np.ndarray, np.ndarray]:
    """Read the string of a tensor.

    Parameters
    ----------
    code : UnitCode
    data : uint8 array
    first, end : int
        Bits where the string begins and ends.
    every : int
        Units of a block.
    table : (offsets, positions), optional
        As `write` returns them. Blocks are then read side by side, and must be so.
    place : callable
        Takes units, the ends of their blocks, the positions of the last of each if they are known,
        and the position before them; returns the position of the last. Called on the threads of
        the pool if there is a table.

    Returns
    -------
    offsets, positions : int64 array
        As `write` returns them.

    Raises
    ------
    FormatError
    """
    if table is not None and every <= _READ:
        offsets, positions = table
        count = offsets.size - 1

        def task(start: int, stop: int) -> None:
            units = _room(code, min(_READ, stop - start))
            for b in range(start // every, -(-stop // every), _READ // every):
                last = min(b + _READ // every, -(-stop // every))
                bounds = np.arange(1, last - b + 1) * every
                starts = first + offsets[b : last + 1]
                bounds[-1], _ = read_unit_blocks(code, data, starts, bounds, units, end, True)
                if bounds[-1] != (last - b) * every and last != count:
                    raise Corrupt("the seek table is wrong: a block has too few values")
                place(units, bounds, positions[b + 1 : last + 1], int(positions[b]))

        pool.run(task, count * every, every)
        return table
    return _read_on(code, data, first, end, every, table, place)


def _read_on(
    code: RunLevelCode,
    data: np.ndarray,
    first: int,
    end: int,
    every: int,
    table: tuple[np.ndarray, np.ndarray] | None,
    place: Place,
) -> tuple[np.ndarray, np.ndarray]:
    """Read a string from its begin to its end; see `read`."""
    step = min(every, _READ)
    units = _room(code, step)
    offsets, positions = [0], [0]
    at, last, number = first, 0, 0
    while at < end:
        bounds = np.array([step])
        count, at = read_unit_blocks(code, data, np.array([at]), bounds, units, end, False)
        bounds[0] = count
        last = place(units, bounds, np.empty(0, np.int64), last)
        number += count
        if number % every == 0:
            offsets.append(at - first)
            positions.append(last)
    if number % every:
        offsets.append(end - first)
        positions.append(last)
    found = np.array(offsets, np.int64), np.array(positions, np.int64)
    if table is not None and not all(map(np.array_equal, found, table)):
        raise Corrupt("the seek table is wrong: blocks do not end where it says")
    return found


def _room(code: RunLevelCode, count: int) -> RunLevelPairs:
    """Make room for units."""
    wide = count if code.symbol.top >= WIDE else 0
    return RunLevelPairs(
        np.empty(count, np.uint8),
        np.empty(count, np.uint8),
        np.empty(count, np.uint64),
        np.empty(wide, np.uint64),
    )
