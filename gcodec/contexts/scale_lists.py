"""Lists of scales, as they are sent: Rice words, Huffman words or rANS, whichever is shortest.

    code in 2 bits · shift in 2 bits · least in 7 bits
    rice: centre in 7 bits · k in 3 bits · rice:k words of zigzag(u − centre)
    huffman, rans: the string of all u

u is 0 for a scale of 0, which is that of a row or column that is empty, else one more than (scale
− least) >> shift. Codes are 0 rice, 1 huffman, 2 rans, and strings those of `gcodec.entropy`.
zigzag(v) is 2v for v ≥ 0, else −2v − 1. Scales are from 0 to 127.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.entropy import huffman, rans
from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.huffman import Huffman
from gcodec.entropy.rans import RANS
from gcodec.entropy.rice import Rice
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.rans_table import MOST_LOG2

MOST = 127
_CODE, _SHIFT, _SCALE, _RICE = 2, 2, 7, 3  # bits
_PARAMETERS, _MOST_SHIFT = np.arange(8), 3
_ESTIMATED = 1 << 8  # scales from which on their bits are not counted
_TOLD = 6  # bits, about, that tell how often a scale occurs
_MANY = 1 << 11  # scales from which on states of rANS may pay


def write(scales: np.ndarray, string: BitString) -> None:
    """Put (k,) uint8 scales at the end of a string."""
    told = _Told.of(scales)
    sizes = told.sizes()
    made = RANS().encode(told.moved) if scales.size >= _MANY else None
    if made is not None:
        sizes.append(made.nbits)
    code = sizes.index(min(sizes))
    head = (code << _SHIFT | told.shift) << _SCALE | told.least
    _put(string, head, _CODE + _SHIFT + _SCALE)
    if code == 0:
        _put(string, told.centre << _RICE | told.k, _SCALE + _RICE)
        made = Rice(told.k).encode(told.numbers)
    elif code == 1:
        made = Huffman().encode(told.moved)
    assert made is not None
    string.extend(made.data, made.nbits)


def nbits(scales: np.ndarray) -> int:
    """Return the bits of (k,) uint8 scales, k > 0; of many, about: their entropy, and a table."""
    if scales.size < _ESTIMATED:
        return _CODE + _SHIFT + _SCALE + min(_Told.of(scales).sizes())
    counts, logs = np.bincount(scales), rans.log2_table()
    each = counts[counts > 0]
    shift = max(scales.size.bit_length() - MOST_LOG2, 0)
    costs = logs[scales.size >> shift] - logs[np.maximum(each >> shift, 1)]
    return (int(each @ costs) >> rans.POINT) + _TOLD * each.size


class _Told(NamedTuple):
    """Scales as they are told: u of each, how often each u occurs, and the best Rice words."""

    least: int
    shift: int
    moved: np.ndarray
    centre: int
    k: int
    counts: np.ndarray
    rice_nbits: int

    @classmethod
    def of(cls, scales: np.ndarray) -> _Told:
        wide = scales.astype(np.int64)
        live = wide[wide > 0]
        least = int(live.min(initial=MOST))
        apart = int(np.bitwise_or.reduce(live - least)) | 1 << _MOST_SHIFT
        shift = (apart & -apart).bit_length() - 1
        moved = np.where(wide > 0, (wide - least >> shift) + 1, 0)
        counts = np.bincount(moved, minlength=1)
        middle = np.searchsorted(
            np.cumsum(counts), ((moved.size - 1) // 2, moved.size // 2), "right"
        )
        centre = int(middle.sum()) // 2  # the median
        each = _zigzag(np.arange(counts.size) - centre)
        sizes = (each >> _PARAMETERS[:, None]) @ counts + (_PARAMETERS + 1) * moved.size
        k = int(sizes.argmin())
        return cls(least, shift, moved, centre, k, counts, int(sizes[k]))

    @property
    def numbers(self) -> np.ndarray:
        """What Rice words tell."""
        return _zigzag(self.moved - self.centre)

    def sizes(self) -> list[int]:
        """Return the bits of Rice words, what they need besides included, and of Huffman words."""
        return [_SCALE + _RICE + self.rice_nbits, huffman.string_nbits(self.counts)]


def _zigzag(away: np.ndarray) -> np.ndarray:
    return np.where(away < 0, -1 - 2 * away, 2 * away)


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
    most = _CODE + _SHIFT + 2 * _SCALE + _RICE
    reader, bytes_ = BitReader(data, at, end, most, "a list of scales"), data[: -(-end // 8)]
    code, shift, least = reader.take(_CODE), reader.take(_SHIFT), reader.take(_SCALE)
    if code > 2:
        raise Corrupt(f"a list of scales of code {code}")
    if code == 0:
        centre, rice = reader.take(_SCALE), Rice(reader.take(_RICE))
        numbers, after = rice.decode(bytes_, count, start=reader.at)
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
