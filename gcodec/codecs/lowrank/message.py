"""The message: exponents of the components, and the messages of ecsq that code the factors.

    words · zeros to a byte · centroids of right · centroids of left · lengths ·
    scalars of the residual · right factor · left factor · residual

- The words are Elias gamma: the number of leading dimensions that form the rows; 1, or 2 if the
  message contains a residual; the exponent of the first component plus 1; and for each further
  component, the exponent of its predecessor minus its own, plus 1.
- Each of the two factors is a message of ecsq with the step 1, whose three centroids take a byte
  each.
- The lengths are LEB128: the bytes of the right factor; and, if there is a residual, the bytes of
  the left factor, and the bytes of the residual's scalars, which are those of an ecsq frame.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gcodec.codec import Codec, Symbols, registered
from gcodec.entropy.coder import BitSpan
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.context.outlier_lists import NUMBER_NBITS
from gcodec.kernels.numeric import low_rank, products
from gcodec.kernels.prefix import codewords, prefix
from gcodec.kernels.prefix.low_rank_head import read_words
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.payload import Payload
from gcodec.runtime.device import beside, host
from gcodec.wire import targets
from gcodec.wire.primitives import Reader, leb128

GAMMA = PrefixCode(codewords.GAMMA, 0, 1)
MOST_EXPONENT = 2047  # from which on all scales are 0
MOST_SPLIT = 31
_SURELY_FINITE = 2.0**127  # sums of magnitudes below this do not exceed float32
# 1, 2^(-1/4), 2^(-1/2) and 2^(-3/4), rounded to float32.
_MANTISSAS = np.array([0x3F800000, 0x3F5744FD, 0x3F3504F3, 0x3F1837F0], np.uint32).view(np.float32)
_OCTAVES, _QUARTERS = np.divmod(np.arange(MOST_EXPONENT + 1), 4)
_FACTORS = np.ldexp(_MANTISSAS[_QUARTERS].astype(np.float64), -_OCTAVES)  # 2^(-e/4) for each e
_EXPONENT_NBITS = 23  # at most, in Elias gamma
_OTHER_NBITS = 512  # of the rest of a head, at most
# 2^(-7/8), 2^(-5/8), 2^(-3/8) and 2^(-1/8): mantissas between which an exponent is rounded.
_EDGES = np.array([0.5452538663326288, 0.6484197773255048, 0.7711054127039704, 0.9170040432046712])
MOST_POINT = 2.0**NUMBER_NBITS  # points of factors, whose step is 1, are smaller
CENTROIDS = tuple(field.name for field in targets.CENTROIDS)


@functools.lru_cache(maxsize=64)
def ecsq(**parameters: str | float) -> Codec:
    """Return the codec of factors and residuals, which is ecsq."""
    return registered()["ecsq"](**parameters)


@functools.lru_cache(maxsize=256)
def factor_codec(trellis: str, sizes: tuple[int, int]) -> Codec:
    """Return the codec of a factor, an (r, m) or (r, k) matrix."""
    return ecsq(step=1.0, trellis=trellis, transform="none")._with_shape(sizes)


def matrix_sizes(shape: tuple[int, ...], split: int) -> tuple[int, int]:
    """Return the sizes of a matrix whose rows are the first `split` dimensions."""
    return math.prod(shape[:split]), math.prod(shape[split:])


def factor_sizes(split: int, rank: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return k and m; raise `Corrupt` unless a tensor of `shape` has such factors."""
    if split >= len(shape):
        raise Corrupt(f"{split} of {len(shape)} dimensions form the rows")
    m, k = matrix_sizes(shape, split)
    if rank * (m + k) >= m * k:
        raise Corrupt(f"factors of rank {rank} have no fewer values than {m} x {k}")
    return k, m


def head_nbits(n: int) -> int:
    """Return an upper bound of the bits of a head of factors that have less than n values."""
    return math.isqrt(n) * _EXPONENT_NBITS + _OTHER_NBITS


def scales(step: float, exponents: np.ndarray) -> np.ndarray:
    """Return the factor f32(step·2^(-e/4)) of each component, from its (r,) int64 exponent e."""
    out = np.empty(exponents.size, np.float32)
    low_rank.put_scales(float(np.float32(step)), _FACTORS, exponents, out)
    return out


def exponents_of(norms: np.ndarray) -> np.ndarray:
    """Return the exponents of (r,) float64 norms: 4·log2, rounded to an integer, at least 0."""
    mantissas, octaves = np.frexp(norms)  # from 1/2 to below 1
    quarters = np.searchsorted(_EDGES, mantissas, "right") - 4
    exponents = np.clip(4 * octaves.astype(np.int64) + quarters, 0, MOST_EXPONENT)
    return np.minimum.accumulate(exponents)


def points_of(codec: Codec, symbols: Symbols, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the points of the symbols of a factor as an (r, k) float32 array."""
    points = np.empty(math.prod(sizes), np.float32)
    codec._dequantize(symbols, points)
    return points.reshape(sizes)


class LowRankSymbols(NamedTuple):
    """The levels of both factors and of the residual.

    Attributes
    ----------
    split : int
        Number of leading dimensions that form the rows of the matrix; 0 if there are no factors.
    step : float
        A float32 number that scales the factors; 0 if there are none.
    exponents : (r,) int64 array
        Exponents of the components, in descending order; empty if there are no factors.
    right, left : object or None
        Symbols of the factors, as ecsq defines them.
    residual : object or None
        Symbols of the residual, or of the tensor if there are no factors.
    """

    split: int
    step: float
    exponents: np.ndarray
    right: Symbols | None
    left: Symbols | None
    residual: Symbols | None

    @property
    def rank(self) -> int:
        """Number of components."""
        return self.exponents.size

    def points(self, shape: tuple[int, ...], trellis: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the points of both factors, (r, m) and (r, k) float32 arrays."""
        m, k = ((self.rank, size) for size in matrix_sizes(shape, self.split))
        left = points_of(factor_codec(trellis, m), self.left, m)
        return left, points_of(factor_codec(trellis, k), self.right, k)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether these may be the symbols of a tensor of `shape`."""
        if self.residual is not None and self.residual.symbols.size != math.prod(shape):
            return False
        if not self.rank:
            return self.residual is not None
        if self.left is None or self.right is None:
            return False
        m, k = matrix_sizes(shape, self.split)
        counts = self.left.symbols.size, self.right.symbols.size
        return 0 < self.split < len(shape) and counts == (self.rank * m, self.rank * k)


class Product(NamedTuple):
    """The product of factors.

    Attributes
    ----------
    left, right : (r, m) and (r, k) float32 arrays
        The right factor contains the scales.
    """

    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(
        cls, left: np.ndarray, right: np.ndarray, step: float, exponents: np.ndarray
    ) -> Product:
        """Return the product of the points of factors; scale the right factor in place."""
        low_rank.scale_rows(scales(step, exponents), right.reshape(-1))
        return cls(left, right)

    @classmethod
    def of_symbols(cls, symbols: LowRankSymbols, shape: tuple[int, ...], trellis: str) -> Product:
        """Return the product of the symbols of a tensor of `shape`."""
        return cls.of(*symbols.points(shape, trellis), symbols.step, symbols.exponents)

    @property
    def is_finite(self) -> bool:
        """Whether all values of the product, and all partial sums, are finite."""
        if low_rank.most(self.left, self.right) < _SURELY_FINITE:
            return True
        is_finite = np.isfinite(self.right).all() and np.isfinite(self.left).all()
        return bool(is_finite and not low_rank.passes_float32(self.left, self.right))

    def put(self, out: np.ndarray) -> None:
        """Write the product to an (m·k,) float32 array."""
        products.put_product(beside(self.left, out), beside(self.right, out), out)

    def add(self, scale: np.float32, out: np.ndarray) -> None:
        """Add `scale` times the product to an (m·k,) float32 array."""
        products.add_product(beside(self.left, out), beside(self.right, out), scale, out)


@dataclass(frozen=True)
class Parts:
    """The parts of a message.

    Attributes
    ----------
    split : int
        Number of leading dimensions that form the rows of the matrix.
    exponents : (r,) int64 array
        Exponents of the components, in descending order.
    right, left : Payload
        Messages of the factors.
    residual : Payload or None
        Message of the residual.
    """

    split: int
    exponents: np.ndarray
    right: Payload
    left: Payload
    residual: Payload | None

    def write(self) -> tuple[np.ndarray, int]:
        """Return the bytes and the number of bits of the message."""
        head, strings = self._head, [host(self.right.data), host(self.left.data)]
        if self.residual is not None:
            strings.append(host(self.residual.data))
        joined = np.concatenate([np.frombuffer(head, np.uint8), *strings])
        return joined, 8 * joined.size

    @property
    def nbits(self) -> int:
        """The number of bits of the message."""
        strings = self.right.nbits + self.left.nbits
        if self.residual is not None:
            strings += self.residual.nbits
        return 8 * len(self._head) + strings

    @functools.cached_property
    def _head(self) -> bytes:
        falls = self.exponents[:-1] - self.exponents[1:]
        flag = 1 if self.residual is None else 2
        numbers = np.concatenate([[self.split, flag], self.exponents[:1] + 1, falls + 1])
        words = numbers.astype(np.uint64)
        head = prefix.write(GAMMA, words)[0].tobytes()
        for factor in (self.right, self.left):
            head += bytes(int(factor.scalars[name]) for name in CENTROIDS)
        head += leb128(self.right.nbits // 8)
        if self.residual is not None:
            fields = self.residual.codec.write_scalars(self.residual.scalars)
            head += leb128(self.left.nbits // 8) + leb128(len(fields)) + fields
        return head

    @property
    def messages(self) -> tuple[Payload, Payload, Payload | None]:
        """The messages of ecsq, in the order of their strings."""
        return self.right, self.left, self.residual

    def counts(self, n: int) -> tuple[int, int, int]:
        """Return the numbers of symbols of the messages, for a tensor of n values."""
        right, left = (math.prod(part.codec._bound_shape(0)) for part in self.messages[:2])
        return right, left, n

    def product(self, step: float) -> Product:
        """Decode the factors; raise `FormatError`."""
        right, left = (
            part.codec._decode(part, math.prod(sizes)).reshape(sizes)
            for part in (self.right, self.left)
            for sizes in [part.codec._bound_shape(0)]
        )
        return Product.of(left, right, step, self.exponents)

    @classmethod
    def read(cls, payload: Payload, shape: tuple[int, ...]) -> Parts:
        """Read the head of a message of a tensor of `shape`, and find its strings.

        Raises
        ------
        FormatError
        """
        codec, data = payload.codec, host(payload.data)  # factors are small
        split, exponents, centroids, fields, places = read_head(data, payload.nbits, codec.rank)
        if codec.transform != "none":
            raise Corrupt(f"transform={codec.transform} of a tensor with factors")
        sizes, strings = factor_sizes(split, codec.rank, shape), []
        for factor, size, (start, stop) in zip(centroids, sizes, places, strict=False):
            inner = factor_codec(codec.trellis, (codec.rank, size))
            scalars = dict(zip(CENTROIDS, factor, strict=True)) | {
                "step": 1.0,
                "transform": "none",
            }
            strings.append(Payload(inner, scalars, data[start:stop], 8 * (stop - start)))
        residual = None
        if fields is None and payload.seek is not None:
            raise Corrupt("a seek table of a message without a residual")
        if fields is not None:
            start, stop = places[2]
            inner = ecsq(trellis=codec.trellis)
            scalars = inner.read_scalars(fields)
            inner = inner.of_message(scalars)._with_shape(shape)
            if not scalars["step"]:
                raise Corrupt("a residual has the step 0")
            nbits = 8 * (stop - start)
            residual = Payload(inner, scalars, payload.data[start:stop], nbits, payload.seek)
        right, left = strings
        return cls(split, exponents, right, left, residual)


def read_head(
    data: np.ndarray, nbits: int, rank: int
) -> tuple[int, np.ndarray, tuple[bytes, bytes], memoryview | None, list[tuple[int, int]]]:
    """Read the fields that precede the strings of a message, and find the strings.

    Returns
    -------
    split : int
    exponents : (rank,) int64 array
    centroids : (bytes, bytes)
        Centroids of the right and the left factor, three bytes each.
    fields : memoryview or None
        Scalars of the residual's message.
    places : list of (int, int)
        First byte, and byte after the last, of each string.

    Raises
    ------
    FormatError
    """
    if nbits % 8:
        raise Corrupt("the payload is not whole bytes")
    if rank + 2 > nbits:
        raise Truncated(f"{nbits} bits cannot contain {rank} exponents")
    split, flag, largest, words_end, exponents = read_words(data, nbits, rank)
    if split > MOST_SPLIT or flag > 2 or largest > MOST_EXPONENT + 1:
        raise Corrupt("a number of the head is too large")
    if exponents[-1] < 0:
        raise Corrupt("an exponent is below 0")
    centroids_at = BitSpan(data, words_end, nbits).aligned("exponents and centroids").first
    reader = Reader(data.data, centroids_at // 8)
    centroids = bytes(reader.take(3)), bytes(reader.take(3))
    nbytes, fields = [reader.leb128()], None
    if flag == 2:
        nbytes.append(reader.leb128())
        fields = reader.take(reader.leb128())
    places, start = [], reader.at
    for size in nbytes:
        if size > data.size - start:
            raise Truncated(f"{size} bytes wanted, {data.size - start} left of the payload")
        places.append((start, start + size))
        start += size
    places.append((start, data.size))
    return split, exponents, centroids, fields, places
