"""Lists of scales, as they are sent: Rice words, Huffman words or rANS, whichever is shortest.

    code in 2 bits · rice: centre in 7 bits · k in 3 bits · rice:k words of zigzag(scale − centre)
                     huffman, rans: least in 7 bits · the string of 0 for a scale of 0, else of
                     scale − least + 1

Codes are 0 rice, 1 huffman, 2 rans, and strings those of `gcodec.entropy`. zigzag(v) is 2v for
v ≥ 0, else −2v − 1. A scale is from 0 to 127; 0 is that of a row or column that is empty, which
is why it is set apart from the others.
"""

from __future__ import annotations

import numpy as np

from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.huffman import Huffman
from gcodec.entropy.rans import RANS
from gcodec.entropy.rice import Rice
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bit_string import BitString

MOST = 127
_CODE, _SCALE, _RICE = 2, 7, 3  # bits
_MOST_RICE = 7
_MANY = 1 << 11  # scales from which on states of rANS may pay


def write(scales: np.ndarray, string: BitString) -> None:
    """Put (k,) uint8 scales at the end of a string."""
    centre = int(np.median(scales))
    k, numbers = _best_rice(scales, centre)
    made = [Rice(k).encode(numbers)]
    least = int(scales[scales > 0].min(initial=MOST))
    moved = np.where(scales > 0, scales.astype(np.int64) - (least - 1), 0)
    made.append(Huffman().encode(moved))
    if scales.size >= _MANY:
        made.append(RANS().encode(moved))
    heads = [centre << _RICE | k, least, least]
    widths = [_SCALE + _RICE, _SCALE, _SCALE]
    code = min(range(len(made)), key=lambda i: made[i].nbits + widths[i])
    _put(string, code << widths[code] | heads[code], _CODE + widths[code])
    string.extend(made[code].data, made[code].nbits)


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
    reader = BitReader(data, at, end, _CODE + _SCALE + _RICE, "a list of scales")
    code, base = reader.take(_CODE), reader.take(_SCALE)
    if code > 2:
        raise Corrupt(f"a list of scales of code {code}")
    if code == 0:
        rice = Rice(reader.take(_RICE))
        numbers, after = rice.decode(data[: -(-end // 8)], count, start=reader.at)
        away = (numbers >> np.uint64(1)).astype(np.int64)
        scales = base + np.where(numbers & np.uint64(1), -1 - away, away)
    else:
        numbers, after = (Huffman(), RANS())[code - 1].decode(
            data[: -(-end // 8)], count, start=reader.at
        )
        scales = np.where(numbers > 0, numbers.astype(np.int64) + (base - 1), 0)
    if after > end:
        raise Truncated(f"the bits end within a list of scales, at bit {end}")
    if count and (int(scales.min()) < 0 or int(scales.max()) > MOST):
        raise Corrupt(f"a scale is not from 0 to {MOST}")
    return scales.astype(np.uint8), after


def _best_rice(scales: np.ndarray, centre: int) -> tuple[int, np.ndarray]:
    """Return the parameter with which words are shortest, and what they are words of."""
    away = scales.astype(np.int64) - centre
    numbers = np.where(away < 0, -1 - 2 * away, 2 * away)
    sizes = [int((numbers >> k).sum()) + k * numbers.size for k in range(_MOST_RICE + 1)]
    return sizes.index(min(sizes)), numbers


def _put(string: BitString, value: int, nbits: int) -> None:
    """Put a number at the end of a string."""
    nbytes = -(-nbits // 8)
    packed = (value << 8 * nbytes - nbits).to_bytes(nbytes, "big")
    string.extend(np.frombuffer(packed, np.uint8), nbits)
