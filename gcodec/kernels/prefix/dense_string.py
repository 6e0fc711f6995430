"""Strings with a word for each element, except those of zero-norm buckets, in parallel.

Blocks of a seek table are blocks of elements, uncoded elements included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import SPARE, BitString, SymbolsOf, parts_of, written
from gcodec.kernels.bits.coded_mask import CodedMask, spread_part
from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.prefix.prefix_read import read_blocks
from gcodec.kernels.prefix.prefix_table import WIDE, PrefixCode, least_nbits
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.memory import Drainable, release

_LEAST_ESTIMATED = 1 << 16  # words whose size is estimated by the lengths of a table

_NO_WIDE = np.empty(0, np.uint64)


def _first_nbytes(code: PrefixCode | TableCode, count: int) -> int:
    """Return about how many bytes the first `count` words take."""
    if isinstance(code, TableCode) and count >= _LEAST_ESTIMATED:
        return int(SPARE * code.mean_nbits / 8 * count)
    return count // 2


@dispatched("gcodec.kernels.prefix.dense_string_cuda", by="symbols")
def write(
    code: PrefixCode | TableCode,
    symbols: SymbolsOf | np.ndarray | Drainable,
    dtype: np.dtype[np.generic],
    coded: CodedMask,
    block_size: int,
    lead: int,
    head: tuple[np.ndarray, int] | None = None,
) -> tuple[np.ndarray, int, np.ndarray]:
    """Write the string of a tensor.

    Parameters
    ----------
    code : PrefixCode or TableCode
    symbols : callable or (n,) array
        The symbols of all elements, released if it is a `Drainable`. Or a callable that returns
        the symbols of a range: it may fill the array that it gets for them, and is called on the
        threads of the pool.
    dtype : dtype
        Type of the symbols.
    coded : CodedMask
        Elements that have a word. The mask of a range is used only after its symbols were
        requested.
    block_size : int
        Elements of a block, a power of two up to 2^17.
    lead : int
        Free bytes before the string.
    head : (ceil(k / 8),) uint8 array and k, optional
        Bits between the lead and the words, padded with zeros.

    Returns
    -------
    data : uint8 array
        Lead, head and words.
    nbits : int
        Bits of `data`.
    offsets : (count + 1,) int64 array
        Bit of the string where each block begins, and where the last ends.
    """
    get = parts_of(symbols)
    lengths = np.empty(-(-coded.n // block_size), np.int64)
    chunk = coded.chunk(dtype.itemsize > 1)

    def task(start: int, stop: int) -> BitString:
        string = BitString(0 if start else lead)
        if head and start == 0:
            string.extend(*head)
        room = np.empty(min(stop - start, chunk), dtype)
        for at in range(start, stop, chunk):
            end = min(at + chunk, stop)
            part = get(at, end, room[: end - at])
            bounds, mask = coded.part(at, end, block_size)
            before = string.nbits
            if at == start:
                string.reserve(_first_nbytes(code, end - at))
            ends = write_symbols(code, part if mask is None else part[mask], bounds, string)
            own = lengths[at // block_size : -(-end // block_size)]
            own[:] = ends
            own[1:] -= ends[:-1]
            own[0] -= before
            release(symbols, at, end)
            if at == start:
                used = (string.nbits - before) / 8 / (end - at)
                string.reserve(int(SPARE * used * (stop - end)))
        return string

    data, nbits, _ = written(task, coded.n, block_size)
    return data, nbits, starts_of(lengths)


@dispatched("gcodec.kernels.prefix.dense_string_cuda", by="data")
def read(
    code: PrefixCode | TableCode,
    data: np.ndarray,
    first: int,
    end: int,
    coded: CodedMask,
    block_size: int,
    offsets: np.ndarray | None,
    take: Callable[[int, np.ndarray, np.ndarray], None],
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Read the string of a tensor.

    Parameters
    ----------
    code : PrefixCode or TableCode
    data : uint8 array
    first, end : int
        Bits where the string begins and ends.
    coded : CodedMask
        Elements that have a word.
    block_size : int
        Elements of a block, a power of two.
    offsets : (count + 1,) int64 array, optional
        Bits from `first` to the begin of each block and to the end of the last. Blocks are then
        read in parallel, and the reader verifies the offsets.
    take : callable
        Receives the first element of a range, its symbols as bytes, and the symbols from WIDE on.
        Called on the threads of the pool, for all ranges in any order.
    out : (n,) uint8 array, optional
        Receives the symbols in place of `take`. All elements must have words, of at most a byte.

    Returns
    -------
    (count + 1,) int64 array
        Bits from `first` to the begin of each block and to the end of the last, which may lie
        before `end`.

    Raises
    ------
    FormatError
    """
    # All symbols go to `out`; without it, those of a chunk go to memory that stays cached.
    chunk = coded.chunk(code.wide or coded.uncoded is not None)  # a mask spreads symbols
    chunk = chunk if out is None else max(coded.n, block_size)

    def read_range(start: int, stop: int, step: int, starts: np.ndarray, chained: bool) -> None:
        # Fresh memory for each chunk would cost too much.
        room = min(chunk, stop - start)
        symbols = np.empty(room if out is None else 0, np.uint8)
        wide = np.empty(room, np.uint64) if code.wide else _NO_WIDE
        for at in range(start, stop, chunk):
            upto = min(at + chunk, stop)
            bounds, mask = coded.part(at, upto, step)
            small = symbols[: bounds[-1]] if out is None else out[at:upto]
            large = wide[: small.size]
            marks = starts[(at - start) // step : -(-(upto - start) // step) + 1]
            left = int(stop - at) if mask is None else 0
            read_blocks(code, data, marks, bounds, small, large, end, chained, left)
            if out is not None:
                continue
            if mask is not None:
                small = spread_part(small, mask)
                large = spread_part(large, mask) if large.size else large
            take(at, small, large)

    if offsets is not None and block_size <= chunk:

        def task(start: int, stop: int) -> None:
            starts = first + offsets[start // block_size : -(-stop // block_size) + 1]
            read_range(start, stop, block_size, starts, True)

        pool.run(task, coded.n, block_size)
        return offsets
    step = min(block_size, chunk)
    ends = np.empty(-(-coded.n // step) + 1, np.int64)
    ends[0] = first
    read_range(0, coded.n, step, ends, False)
    read_offsets = ends - first
    if step < block_size:
        read_offsets = np.append(read_offsets[: -1 : block_size // step], read_offsets[-1])
    if offsets is not None and not np.array_equal(read_offsets, offsets):
        raise Corrupt("the seek table is wrong: blocks do not end where it says")
    return read_offsets


def refuse_short(code: PrefixCode | TableCode, coded: CodedMask, nbits: int) -> None:
    """Raise `Truncated` if `nbits` bits cannot hold the words."""
    least = coded.words * least_nbits(code)
    if least > nbits:
        raise short_error(least, nbits)


def short_error(least: int, nbits: int) -> Truncated:
    """Return the error of `nbits` bits, fewer than the least that the words take."""
    return Truncated(f"the payload has {nbits} bits for words of at least {least}")


def widened(symbols: np.ndarray, wide: np.ndarray, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return symbols of bytes, with those from WIDE on from `wide`, as an unsigned type.

    `wide` has no elements if all symbols are below WIDE. The symbols must fit into the type.
    """
    if symbols.dtype == dtype:
        return symbols
    if not wide.size:
        return symbols.astype(dtype)
    out = np.empty(symbols.size, dtype)
    _widener(dtype.name)(symbols, wide, out)
    return out


@factory(lambda: (("uint16",), ("uint32",), ("uint64",)))
def _widener(dtype: str) -> Kernel:
    """Make the kernel that joins symbols of bytes and large ones."""
    unsigned = np.dtype(dtype).type

    @kernel(f"in uint8[], in uint64[], out {dtype}[]", variant=dtype)
    def widen(symbols, wide, out):
        for i in range(symbols.size):  # symbols.size == wide.size == out.size
            out[i] = unsigned(wide[i]) if symbols[i] == WIDE else unsigned(symbols[i])

    return widen
