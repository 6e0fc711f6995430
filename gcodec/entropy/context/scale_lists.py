"""Lists of scales, as they are sent: Rice words, Huffman words or rANS, whichever is shortest.

    code in 2 bits · shift in 2 bits · least in 7 bits
    rice: centre in 7 bits · k in 3 bits · rice:k words of zigzag(u − centre)
    huffman, rans: the string of all u

u is 0 for a scale of 0, which is that of a row or column that is empty, else one more than (scale
− least) >> shift. Codes are 0 rice, 1 huffman, 2 rans, and strings those of `gcodec.entropy`.
zigzag(v) is 2v for v ≥ 0, else −2v − 1. Scales are from 0 to 127.
"""

from __future__ import annotations

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.rans import RANS
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context import scale_lists as lists
from gcodec.kernels.context.scale_lists import (
    CODE,
    MANY,
    MOST,
    SCALE,
    SHIFT,
    ListParameters,
    put_list,
    read_list,
)


def write(scales: np.ndarray, string: BitString) -> None:
    """Put (k,) uint8 scales, k > 0, at the end of a string."""
    if scales.size >= MANY:
        told = lists.list_parameters(scales)
        made = RANS().encode(_moved(scales, told))
        if made.nbits < min(told.rice_nbits, told.words_nbits):
            _put(string, (2 << SHIFT | told.shift) << SCALE | told.least, CODE + SHIFT + SCALE)
            string.extend(made.data, made.nbits)
            return
    put_list(scales, string)


def nbits(scales: np.ndarray) -> int:
    """Return the bits of (k,) uint8 scales, k > 0; about, where states of rANS may pay."""
    return lists.nbits(scales, rans.log2_table())


def _moved(scales: np.ndarray, told: ListParameters) -> np.ndarray:
    """Return u of each scale."""
    wide = scales.astype(np.int64)
    return np.where(wide > 0, (wide - told.least >> told.shift) + 1, 0)


def read(data: np.ndarray, at: int, end: int, count: int) -> tuple[np.ndarray, int]:
    """Read a list.

    Parameters
    ----------
    data : uint8 array
    at, end : int
        Bits where it begins, and where what holds it ends.
    count : int
        Scales.

    Returns
    -------
    scales : (count,) uint8 array
    next : int
        The bit behind it.

    Raises
    ------
    FormatError
    """
    found = read_list(data, at, end, count)
    if found.code == 2:
        numbers, after = RANS().decode(data[: -(-end // 8)], count, start=found.after)
        if after > end:
            raise Truncated(f"the bits end within a list of scales, at bit {end}")
        if count and int(numbers.max()) > (MOST - found.least >> found.shift) + 1:
            raise Corrupt(f"a scale is not from 0 to {MOST}")
        moved = numbers.astype(np.int64)
        scales = np.where(moved > 0, (moved - 1 << found.shift) + found.least, 0)
        return scales.astype(np.uint8), after
    return found.scales, found.after


def _put(string: BitString, value: int, nbits: int) -> None:
    """Put a number at the end of a string."""
    nbytes = -(-nbits // 8)
    packed = (value << 8 * nbytes - nbits).to_bytes(nbytes, "big")
    string.extend(np.frombuffer(packed, np.uint8), nbits)
