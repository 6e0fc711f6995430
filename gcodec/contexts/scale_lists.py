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

from gcodec.entropy import huffman, rans
from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.huffman import Huffman
from gcodec.entropy.rans import RANS
from gcodec.entropy.rice import rice
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels import list_sizes
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.list_sizes import CODE, MOST, RICE, SCALE, SHIFT, Told
from gcodec.kernels.list_write import put_rice, put_words

_MANY = 1 << 11  # scales from which on states of rANS may pay


def write(scales: np.ndarray, string: BitString) -> None:
    """Put (k,) uint8 scales at the end of a string."""
    told = list_sizes.told(scales)
    sizes = [told.rice_nbits, told.words_nbits]
    made = RANS().encode(_moved(scales, told)) if scales.size >= _MANY else None
    if made is not None:
        sizes.append(made.nbits)
    code = sizes.index(min(sizes))
    head, nbits = (code << SHIFT | told.shift) << SCALE | told.least, CODE + SHIFT + SCALE
    if code == 0:
        head = (head << SCALE | told.centre) << RICE | told.k
        put_rice((head, nbits + SCALE + RICE), scales, told, string)
    elif code == 1 or made is None:
        lengths = huffman.code_lengths(np.bincount(_moved(scales, told)))
        put_words((head, nbits), scales, told, lengths, string)
    else:
        _put(string, head, nbits)
        string.extend(made.data, made.nbits)


def nbits(scales: np.ndarray) -> int:
    """Return the bits of (k,) uint8 scales, k > 0; of many, about: their entropy, and a table."""
    return list_sizes.nbits(scales, rans.log2_table())


def _moved(scales: np.ndarray, told: Told) -> np.ndarray:
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
    most = CODE + SHIFT + 2 * SCALE + RICE
    reader, bytes_ = BitReader(data, at, end, most, "a list of scales"), data[: -(-end // 8)]
    code, shift, least = reader.take(CODE), reader.take(SHIFT), reader.take(SCALE)
    if code > 2:
        raise Corrupt(f"a list of scales of code {code}")
    if code == 0:
        centre, code_of_k = reader.take(SCALE), rice(reader.take(RICE))
        numbers, after = code_of_k.decode(bytes_, count, start=reader.at)
        away = (numbers >> np.uint64(1)).astype(np.int64)
        moved = centre + np.where(numbers & np.uint64(1), -1 - away, away)
    else:
        numbers, after = (Huffman(), RANS())[code - 1].decode(bytes_, count, start=reader.at)
        moved = numbers.astype(np.int64)
    if after > end:
        raise Truncated(f"the bits end within a list of scales, at bit {end}")
    if count and not 0 <= int(moved.min()) <= int(moved.max()) <= (MOST - least >> shift) + 1:
        raise Corrupt(f"a scale is not from 0 to {MOST}")
    scales = np.where(moved > 0, (moved - 1 << shift) + least, 0)
    return scales.astype(np.uint8), after


def _put(string: BitString, value: int, nbits: int) -> None:
    """Put a number at the end of a string."""
    nbytes = -(-nbits // 8)
    packed = (value << 8 * nbytes - nbits).to_bytes(nbytes, "big")
    string.extend(np.frombuffer(packed, np.uint8), nbits)
