"""Lists of scales in a payload: Rice words, Huffman words or rANS, whichever is shortest.

    code in 2 bits · shift in 2 bits · least scale in 7 bits
    rice: center in 7 bits · k in 3 bits · rice:k words of zigzag(u − center)
    huffman, rans: the string of all u

Scales are from 0 to 127. A scale of 0 belongs to an empty row or column, and its u is 0. Any other
scale has u = 1 + ((scale − least) >> shift). The codes are 0 for rice, 1 for huffman and 2 for
rans; `gcodec.entropy` defines their strings. zigzag(v) is 2v for v ≥ 0, and −2v − 1 otherwise.
"""

from __future__ import annotations

import numpy as np

from gcodec.entropy.rans import RANS, entropy_nbits, log2_table
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.sized_integers import LENGTH_NBITS
from gcodec.kernels.context import scale_lists as lists
from gcodec.kernels.context.scale_lists import HEAD, MANY, MOST, SCALE, SHIFT, ListParameters
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.rans import rans_string

_RANS = 2  # the code of rANS strings
_LOG2_INACCURATE = 7  # a string of rANS takes at least the entropy less this share


def write(scales: np.ndarray, string: BitString, least_saving: int = 0) -> None:
    """Append (k,) uint8 scales, k > 0, to a string.

    Words, which are faster, take the place of rANS unless it saves more than `least_saving` bits.
    """
    parameters = lists.list_parameters(scales) if scales.size >= MANY else None
    if parameters is not None and _may_pay(scales, parameters, least_saving):
        least, shift = parameters.least, parameters.shift
        # Up to 128; a difference that wraps around belongs to a scale of 0.
        u = (scales - np.uint8(least) >> np.uint8(shift)) + np.uint8(1)
        coded = RANS().encode(np.where(scales > 0, u, np.uint8(0)))
        if coded.nbits + least_saving < min(parameters.rice_nbits, parameters.words_nbits):
            head = (_RANS << SHIFT | shift) << SCALE | least
            string.extend(np.array([head << 16 - HEAD], ">u2").view(np.uint8), HEAD)
            string.extend(coded.data, coded.nbits)
            return
    lists.put_list(scales, string)


def _may_pay(scales: np.ndarray, parameters: ListParameters, least_saving: int) -> bool:
    """Return whether the string of rANS may save more than `least_saving` bits.

    It takes hardly fewer bits than the entropy, a table, and half of the bits of its states.
    """
    counts = byte_counts(scales)
    entropy = entropy_nbits(counts)
    least = entropy - (entropy >> _LOG2_INACCURATE) + rans_string.heads_nbits(scales.size) // 2
    least += LENGTH_NBITS * int(np.count_nonzero(counts))
    return least + least_saving < min(parameters.rice_nbits, parameters.words_nbits)


def nbits(scales: np.ndarray) -> int:
    """Return the bits of (k,) uint8 scales, k > 0; an estimate where rANS may pay."""
    return lists.nbits(scales, log2_table())


def read(data: np.ndarray, at: int, end: int, count: int) -> tuple[np.ndarray, int]:
    """Read a list.

    Parameters
    ----------
    data : uint8 array
    at, end : int
        Positions of the first bit of the list, and of the end of the bits.
    count : int
        Number of scales.

    Returns
    -------
    scales : (count,) uint8 array
    next : int
        Position of the bit after the list.

    Raises
    ------
    FormatError
    """
    decoded = lists.read_list(data, at, end, count)
    if decoded.code != _RANS:
        return decoded.scales, decoded.after
    numbers, after = RANS().decode(data[: -(-end // 8)], count, start=decoded.after)
    if after > end:
        raise Truncated(f"a list of scales is cut off at bit {end}")
    if count and int(numbers.max()) > (MOST - decoded.least >> decoded.shift) + 1:
        raise Corrupt(f"a list holds a scale that is not from 0 to {MOST}")
    u = numbers.astype(np.int64)
    scales = np.where(u > 0, (u - 1 << decoded.shift) + decoded.least, 0)
    return scales.astype(np.uint8), after
