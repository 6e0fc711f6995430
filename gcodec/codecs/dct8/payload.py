"""The payload of `dct8`: scales, signs, magnitudes or levels, and positions."""

from __future__ import annotations

import numpy as np

from gcodec.codecs.dct8 import levels
from gcodec.codecs.dct8.levels import Levels
from gcodec.entropy import positions as position_coding
from gcodec.entropy.coder import BitSpan, Written
from gcodec.entropy.positions import IndexString
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.fields import read_fields, write_fields
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.prefix import dct_words
from gcodec.kernels.quantize.sign_magnitude import SIGN
from gcodec.runtime.memory import Drainable

INDEX = ("fixed", "rice")

_PART = 64  # chunks that stay in a cache
FEW = 8  # least number of magnitudes of a chunk that have codewords


class ChunkPositions:
    """The positions of (m, k) levels among all elements of m chunks; see `ComputedPositions`.

    Parameters
    ----------
    positions : (m, k) int32 array
        Positions in the chunks.
    size : int
        Number of elements of a chunk.
    """

    def __init__(self, positions: np.ndarray, size: int) -> None:
        self._positions, self._chunk = positions, size
        self.size = positions.size

    def __getitem__(self, places: int | slice) -> np.ndarray:
        """Return an array of the positions of a slice, or of one position."""
        if isinstance(places, int):
            return self[places % self.size :: self.size][0]
        (start, stop, step), k = places.indices(self.size), self._positions.shape[1]
        if step > 1:
            at = np.arange(start, stop, step)
            return self._positions.reshape(-1)[at] + at // k * self._chunk
        first, last = start // k, -(-stop // k)
        begins = self._chunk * np.arange(first, last)[:, None]
        return (self._positions[first:last] + begins).reshape(-1)[
            start - first * k : stop - first * k
        ]


def longest_nbits(count: int, size: int, k: int, values: str, index: str) -> int:
    """Return an upper bound of the bits of `count` chunks of `size` elements."""
    head = dct_words.HEAD_NBITS if values == "sign7" and k >= FEW else 0
    each = {"sign7": 1 + dct_words.NBITS, "affine8": level_nbits(k), "float32": 32}[values]
    nbits = count * (levels.scale_nbits(values) + head + k * each)
    if k == size:
        return nbits
    fixed = count * k * position_nbits(size)
    rice = position_coding.longest_nbits(count * size, count * k, "rice")
    return nbits + {"fixed": fixed, "rice": rice, "auto": min(fixed, rice)}[index]


def write(
    chunks: Levels, positions: np.ndarray, size: int, values: str, index: str
) -> tuple[str, Written]:
    """Write the payload of chunks.

    Parameters
    ----------
    chunks : Levels
    positions : (coded, k) int32 array
        Position of each level in its chunk.
    size : int
        Number of elements of a chunk.
    values, index : str
        See `DCT8`.

    Returns
    -------
    index : "fixed" or "rice"
        Code of the positions.
    written : Written
    """
    scales = levels.write_scales(chunks.scales, values)
    m, k = chunks.codes.shape
    string = BitString(0, scales.size + (5 if values == "float32" else 3) * chunks.codes.size)
    string.extend(scales, 8 * scales.size)
    if values == "float32":
        for at in range(0, m, _PART):
            string.put(chunks.codes[at : at + _PART].astype(">u4").tobytes())
    elif values == "affine8":
        write_fields(chunks.codes.reshape(-1), level_nbits(k), string)
    else:
        string.extend(np.packbits(chunks.codes.reshape(-1) >= SIGN), m * k)
        _write_magnitudes(chunks.codes & dct_words.MOST, string)
    if k == size or not m:
        return INDEX[0] if index == "auto" else index, Written(string.trimmed(), string.nbits)
    fixed = m * k * position_nbits(size)
    if index != "fixed":
        among_all = ChunkPositions(positions, size)
        plans = position_coding.plans_of(among_all, m * size, "rice")
        if index == "rice" or plans[0].nbits < fixed:
            front = Drainable(string.trimmed()), string.nbits
            _, rice = position_coding.write(among_all, m * size, "rice", front, plans)
            return "rice", rice._replace(seek=None)
    write_fields(positions.reshape(-1), position_nbits(size), string)
    return "fixed", Written(string.trimmed(), string.nbits)


class Reader:
    """Reader of the parts of a payload, in their order; raises `Truncated` and `Corrupt`.

    Parameters
    ----------
    data : uint8 array
        Bytes of the payload.
    end : int
        Number of bits of the payload.
    """

    def __init__(self, data: np.ndarray, end: int) -> None:
        check_padding(data, end)
        self.data, self.at, self.end = data, 0, end

    def scales(self, count: int, k: int, values: str) -> np.ndarray:
        """Read the scales of `count` chunks of k levels."""
        if values == "float32":  # no bits, but every chunk has levels
            self._require(32 * count * k)
        self._pass(count * levels.scale_nbits(values))
        return levels.read_scales(self.data, count, values)

    def codes(self, m: int, k: int, values: str) -> np.ndarray:
        """Read the (m, k) levels of the m chunks with a nonzero scale."""
        if values == "float32":
            self._pass(32 * m * k)  # nothing precedes them
            patterns = self.data[: 4 * m * k].view(">u4").astype(np.uint32)
            check_finite(patterns)
            return patterns.reshape(m, k)
        if values == "affine8":
            nbits = level_nbits(k)
            codes = self._fields(m * k, nbits).astype(np.uint8).reshape(m, k)
            return codes * np.uint8(255) if k <= 2 else codes
        first = self.at // 8  # scales are whole bytes
        self._pass(m * k)
        is_negative = np.unpackbits(self.data[first:], count=m * k).reshape(m, k)
        magnitudes = self._magnitudes(m, k)
        if (is_negative > magnitudes).any():
            raise Corrupt("a value of 0 is negative")
        return magnitudes | is_negative * np.uint8(SIGN)

    def positions(self, m: int, k: int, size: int, index: str) -> np.ndarray:
        """Read the (m, k) int32 positions in chunks, up to the end of the payload."""
        if k == size or not m:
            self._finish()
            return np.tile(np.arange(k, dtype=np.int32), (m, 1))
        if index == "rice":
            span = BitSpan(self.data, self.at, self.end)
            string = IndexString(span, "rice", m * k, m * size)
            positions = string.read().reshape(m, k) - size * np.arange(m)[:, None]
            if (positions[:, 0] < 0).any() or (positions[:, -1] >= size).any():
                raise count_error(k)
        else:
            positions = self._fields(m * k, position_nbits(size)).reshape(m, k)
            self._finish()
            if (positions[:, -1] >= size).any() or (np.diff(positions, axis=1) <= 0).any():
                raise position_error(size)
        return positions.astype(np.int32)

    def _magnitudes(self, m: int, k: int) -> np.ndarray:
        if k == 1:
            return np.full((m, k), dct_words.MOST, np.uint8)
        if k < FEW:
            return self._fields(m * k, dct_words.NBITS).astype(np.uint8).reshape(m, k)
        magnitudes, self.at = dct_words.read(self.data, self.at, self.end, m, k)
        return magnitudes

    def _fields(self, count: int, width: int) -> np.ndarray:
        first = self.at
        self._pass(count * width)
        return read_fields(self.data, first, width, count)

    def _pass(self, nbits: int) -> None:
        self._require(nbits)
        self.at += nbits

    def _require(self, nbits: int) -> None:
        if nbits > self.end - self.at:
            raise Truncated(
                f"the payload has {self.end - self.at} more bits, but {nbits} are needed"
            )

    def _finish(self) -> None:
        if self.at < self.end:
            raise Corrupt(f"the payload has {self.end - self.at} bits after its last value")


def check_finite(patterns: np.ndarray) -> None:
    """Raise `Corrupt` if one of (n,) uint32 bit patterns of float32 is that of NaN or infinity."""
    wrong = (patterns & INFINITY_BITS) == INFINITY_BITS
    if wrong.any():
        raise Corrupt("a coefficient is not finite", 4 * int(np.argmax(wrong)))


def _write_magnitudes(magnitudes: np.ndarray, string: BitString) -> None:
    """Append (m, k) magnitudes; a single one is the largest and not in the payload."""
    k = magnitudes.shape[1]
    if k >= FEW:
        dct_words.write(magnitudes, string)
    elif k > 1:
        write_fields(magnitudes.reshape(-1), dct_words.NBITS, string)


def level_nbits(k: int) -> int:
    """Return the bits of a level of affine8; if k is up to 2, levels are ends of the range."""
    return min(k - 1, 1) if k <= 2 else 8


def position_nbits(size: int) -> int:
    """Return the bits of a position in a chunk of `size` elements."""
    return (size - 1).bit_length()


def position_error(size: int) -> Corrupt:
    """Make the error for positions that are not below `size`, or not in ascending order."""
    return Corrupt(f"positions are not in ascending order, or not below {size}")


def count_error(k: int) -> Corrupt:
    """Make the error for a chunk with another number of positions than k."""
    return Corrupt(f"a chunk does not have {k} positions")
