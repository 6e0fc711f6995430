"""Strings that have a word for each element, but for those of silent buckets, in parallel.

Blocks of a seek table are blocks of elements, silent ones too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString, written
from gcodec.kernels.bits.coded_mask import CodedMask, spread_part
from gcodec.kernels.prefix.prefix_read import read_blocks
from gcodec.kernels.prefix.prefix_table import WIDE, PrefixCode, least_nbits
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, release

_SPARE = 1.01  # room that is kept for a string to turn out longer than it began

SymbolsOf = Callable[[int, int, np.ndarray], np.ndarray]


def parts_of(symbols: SymbolsOf | np.ndarray | Drainable) -> SymbolsOf:
    """Return what returns parts of an array, where that is given in its place."""
    array = contents(symbols)
    if isinstance(array, np.ndarray):
        return lambda start, stop, _: array[start:stop]
    return array  # type: ignore[no-any-return]


@dispatched("gcodec.kernels.prefix.dense_string_cuda", by="symbols")
def write(
    code: PrefixCode | TableCode,
    symbols: SymbolsOf | np.ndarray | Drainable,
    dtype: np.dtype[Any],
    coded: CodedMask,
    every: int,
    lead: int,
    head: tuple[np.ndarray, int] | None = None,
) -> tuple[np.ndarray, int, np.ndarray]:
    """Write the string of a tensor.

    Parameters
    ----------
    code : PrefixCode or TableCode
    symbols : callable or (n,) array
        The symbols of all elements, which are released if it is a `Drainable`; or what returns
        those of a range, where it may use an array of as many for it, and is called on the
        threads of the pool.
    dtype : dtype
        Of the symbols.
    coded : CodedMask
        Of a range it is not asked before the symbols of that were.
    every : int
        Elements of a block, a power of two up to 2^17.
    lead : int
        Bytes that are left free before the string.
    head : (ceil(k / 8),) uint8 array and k, optional
        Bits between these and the string, zeros behind them.

    Returns
    -------
    data : uint8 array
    nbits : int
        Of lead, head and string.
    offsets : (count + 1,) int64 array
        Bit of the string where each block begins, and where the last ends.
    """
    get = parts_of(symbols)
    lengths = np.empty(-(-coded.n // every), np.int64)
    chunk = coded.chunk(dtype.itemsize > 1)

    def task(start: int, stop: int) -> BitString:
        string = BitString(lead if start == 0 else 0)
        if head and start == 0:
            string.extend(*head)
        room = np.empty(min(stop - start, chunk), dtype)
        for at in range(start, stop, chunk):
            end = min(at + chunk, stop)
            part = get(at, end, room[: end - at])
            bounds, mask = coded.part(at, end, every)
            before = string.nbits
            if at == start:
                string.reserve((end - at) // 2)
            ends = write_symbols(code, part if mask is None else part[mask], bounds, string)
            lengths[at // every : -(-end // every)] = ends
            lengths[at // every + 1 : -(-end // every)] -= ends[:-1]
            lengths[at // every] -= before
            release(symbols, at, end)
            if at == start:
                used = (string.nbits - before) / 8 / (end - at)
                string.reserve(int(_SPARE * used * (stop - end)))
        return string

    data, nbits, _ = written(task, coded.n, every)
    return data, nbits, np.concatenate([[0], np.cumsum(lengths)])


@dispatched("gcodec.kernels.prefix.dense_string_cuda", by="data")
def read(
    code: PrefixCode | TableCode,
    data: np.ndarray,
    first: int,
    end: int,
    coded: CodedMask,
    every: int,
    offsets: np.ndarray | None,
    take: Callable[[int, np.ndarray, np.ndarray], None],
) -> np.ndarray:
    """Read the string of a tensor.

    Parameters
    ----------
    code : PrefixCode or TableCode
    data : uint8 array
    first, end : int
        Bits where the string begins and ends.
    coded : CodedMask
    every : int
        Elements of a block, a power of two.
    offsets : (count + 1,) int64 array, optional
        Where blocks begin, from `first` on, and where the last ends. Blocks are then read side by
        side, and must be so.
    take : callable
        Gets the first element of a range, its symbols as bytes, and the symbols from WIDE on;
        called on the threads of the pool, for all ranges in any order.

    Returns
    -------
    (count + 1,) int64 array
        Where blocks begin, and where the last ends, which may be before `end`.

    Raises
    ------
    FormatError
    """
    read_part = _PartReader(code, data, coded, end, take)
    chunk = coded.chunk(code.wide or coded.silent is not None)  # symbols are spread by a mask
    if offsets is not None and every <= chunk:

        def task(start: int, stop: int) -> None:
            room = read_part.room(min(chunk, stop - start))
            for at in range(start, stop, chunk):
                upto = min(at + chunk, stop)
                starts = first + offsets[at // every : -(-upto // every) + 1]
                read_part(at, upto, every, starts, True, *room)

        pool.run(task, coded.n, every)
        return offsets
    step = min(every, chunk)
    ends = np.empty(-(-coded.n // step) + 1, np.int64)
    ends[0] = first
    room = read_part.room(min(chunk, coded.n))
    for at in range(0, coded.n, chunk):
        upto = min(at + chunk, coded.n)
        read_part(at, upto, step, ends[at // step : -(-upto // step) + 1], False, *room)
    found = np.append(ends[: -1 : every // step], ends[-1]) - first
    if offsets is not None and not np.array_equal(found, offsets):
        raise Corrupt("the seek table is wrong: blocks do not end where it says")
    return found


def refuse_short(code: PrefixCode | TableCode, coded: CodedMask, nbits: int) -> None:
    """Raise `Truncated` if so many bits cannot hold the words."""
    least = coded.words * least_nbits(code)
    if least > nbits:
        raise Truncated(f"the payload has {nbits} bits for words of at least {least}")


class _PartReader(NamedTuple):
    """Reads the symbols of a range of elements, and has them taken."""

    code: PrefixCode | TableCode
    data: np.ndarray
    coded: CodedMask
    end: int
    take: Callable[[int, np.ndarray, np.ndarray], None]

    def room(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Make room for the symbols of a range: fresh memory for each would cost too much."""
        wide = count if self.code.wide else 0
        return np.empty(count, np.uint8), np.empty(wide, np.uint64)

    def __call__(
        self,
        at: int,
        upto: int,
        every: int,
        starts: np.ndarray,
        chained: bool,
        symbols: np.ndarray,
        wide: np.ndarray,
    ) -> None:
        bounds, mask = self.coded.part(at, upto, every)
        symbols, wide = symbols[: bounds[-1]], wide[: bounds[-1]]
        read_blocks(self.code, self.data, starts, bounds, symbols, wide, self.end, chained)
        if mask is not None:
            symbols, wide = (
                spread_part(symbols, mask),
                spread_part(wide, mask) if wide.size else wide,
            )
        self.take(at, symbols, wide)


def widened(symbols: np.ndarray, wide: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return symbols, of bytes and what is too large for them, as an unsigned type."""
    out = symbols if symbols.dtype == dtype else symbols.astype(dtype)
    if wide.size:
        large = symbols == WIDE
        out[large] = wide[large]
    return out
