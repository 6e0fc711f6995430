"""Positions in the Elias–Fano code: low bits verbatim, increases of the high bits in unary.

For k of n positions, the low bits are the floor(log2(n / k)) lowest. A string stores the low bits
of all positions; then, for each position, as many zeros as its high part exceeds that of the
preceding position, or 0 for the first, and a one.

Sources: Elias, "Efficient storage and retrieval by content and address of static files", 1974;
Fano, "On the number of bits required to implement an associative memory", 1971.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.fields import read_fields, write_fields
from gcodec.kernels.numeric.words import leading_zeros, peek
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED
from gcodec.kernels.prefix.value_classes import ComputedPositions
from gcodec.runtime.jit import kernel

_PART = 1 << 18  # positions that stay in a cache


def low_width(n: int, k: int) -> int:
    """Return the number of low bits of each of k of n positions."""
    return (n // k).bit_length() - 1


def nbits(positions: np.ndarray | ComputedPositions, n: int) -> int:
    """Return the length in bits of the string of (k,) int64 positions, rising and below n."""
    k = positions.size
    width = low_width(n, k)
    return k * (width + 1) + (int(positions[-1]) >> width)


def write(positions: np.ndarray | ComputedPositions, n: int, string: BitString) -> None:
    """Append positions to a string; see `nbits`."""
    k = positions.size
    width = low_width(n, k)
    size = k + (int(positions[-1]) >> width)
    ones = np.zeros(-(-size // 8), np.uint8)
    for at in range(0, k, _PART):
        part = positions[at : at + _PART]
        write_fields(part, width, string)
        _write_ones(part, width, at, ones)
    string.extend(ones, size)


def offsets(lasts: np.ndarray, n: int, k: int, block_size: int) -> np.ndarray:
    """Return the bits from the end of the low bits to each block of positions, and to the end.

    `lasts` are the position before each block, and the last one, counted from 1.
    """
    before = np.maximum(lasts - 1, 0) >> low_width(n, k)
    return np.asarray(before + np.append(np.arange(0, k, block_size), k))


@kernel("in int64[], int64, int64, out uint8[]")
def _write_ones(positions, width, first, ones):
    # `positions` are a part of all k positions, which starts at number `first` of them.
    # ones.size == ceil((k + (p >> width)) / 8), where p is the last of all k positions.
    for i in range(positions.size):
        place = (positions[i] >> width) + first + i
        ones[place >> 3] |= np.uint8(0x80 >> (place & 7))


def read_blocks(
    data: np.ndarray,
    end: int,
    n: int,
    low: int,
    width: int,
    block_size: int,
    chained: bool,
    starts: np.ndarray,
    lasts: np.ndarray,
    positions: np.ndarray,
) -> None:
    """Read blocks of positions; see `gap_rice.read_gap_blocks`.

    Parameters
    ----------
    low : int
        Bit where the low bits of the first position begin.
    width : int
        Number of low bits of each position.
    """
    lows = read_fields(data, low, width, positions.size)
    _read_upper(data, end, n, width, block_size, chained, lows, starts, lasts, positions)


@kernel(
    "in uint8[], int64, int64, int64, int64, boolean, in int64[], out int64[], out int64[], "
    "out int64[]"
)
def _read_upper(data, end, n, width, block_size, chained, lows, starts, lasts, positions):
    # lows.size == positions.size
    blocks = starts.size - 1
    most = n >> width
    for b in range(blocks):
        at, last = starts[b], lasts[b] - 1
        high = last >> width if last >= 0 else np.int64(0)
        i, stop = b * block_size, min((b + 1) * block_size, positions.size)
        while i < stop:
            word = peek(data, at)  # zeros after the data; `most` bounds their number
            used = 0
            while word and i < stop:
                zeros = np.int64(leading_zeros(word))
                word = word << np.uint64(zeros) << np.uint64(1)
                used += zeros + 1
                high += zeros
                position = np.int64(np.uint64(high) << np.uint64(width)) | lows[i]
                if high > most or position <= last or position >= n:
                    starts[blocks] = CORRUPT
                    return
                positions[i] = position
                last = position
                i += 1
            if i < stop:
                high += 64 - used
                used = 64
                if high > most:  # so nothing passes 63 bits; zeros may lie after the end
                    starts[blocks] = TRUNCATED if at + used > end else CORRUPT
                    return
            at += used
        if at > end:
            starts[blocks] = TRUNCATED
            return
        if chained:
            if at != starts[b + 1] or last + 1 != lasts[b + 1]:
                starts[blocks] = CORRUPT
                return
        else:
            starts[b + 1], lasts[b + 1] = at, last + 1
