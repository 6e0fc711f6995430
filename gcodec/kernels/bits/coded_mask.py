"""The coded elements of a tensor: all but those of zero-norm buckets, which have no codeword."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, release

_CHUNK = 1 << 20  # elements whose symbols of one byte fit into a cache
_WIDE_CHUNK = 1 << 17  # the same for larger symbols


class CodedMask(NamedTuple):
    """The coded elements of a tensor.

    Attributes
    ----------
    n : int
        Number of elements.
    bucket : int
        Number of elements in a bucket.
    uncoded : (ceil(n / bucket),) bool array, or None
        Mask of the buckets whose elements are not coded; None if all elements are coded. The array
        may be filled step by step: `part` reads only the buckets of its range. On a device, it is
        a `Deferred`.
    """

    n: int
    bucket: int
    uncoded: np.ndarray | None

    @classmethod
    def of(cls, n: int, bucket: int, uncoded: Any) -> CodedMask:
        """Make the mask of a tensor, given which buckets have no codewords."""
        any_uncoded = n > 0 if type(uncoded) is Deferred else uncoded.any()
        return cls(n, bucket, uncoded if any_uncoded else None)

    @classmethod
    def all(cls, n: int) -> CodedMask:
        """Make the mask of a tensor whose n elements are all coded."""
        return cls(n, max(n, 1), None)

    @property
    def known_uncoded(self) -> np.ndarray:
        """`uncoded` on the host; there must be uncoded buckets."""
        uncoded: Any = self.uncoded
        return uncoded.value if type(uncoded) is Deferred else uncoded

    def on_host(self) -> CodedMask:
        """Return the mask with `uncoded` on the host."""
        return self if self.uncoded is None else self._replace(uncoded=self.known_uncoded)

    @property
    def words(self) -> int:
        """Number of coded elements."""
        if self.uncoded is None:
            return self.n
        mask = self.known_uncoded
        skipped = int(mask.sum()) * self.bucket
        return self.n - skipped + (-self.n % self.bucket if mask[-1] else 0)

    def before(self, at: int) -> int:
        """Return the number of coded elements that precede an element."""
        if self.uncoded is None:
            return at
        return CodedMask.of(at, self.bucket, self.known_uncoded[: -(-at // self.bucket)]).words

    def chunk(self, wide: bool) -> int:
        """Return the number of elements of a chunk; `wide` means symbols of several bytes."""
        return _WIDE_CHUNK if wide else _CHUNK

    def part(self, start: int, stop: int, length: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the coded elements of a range.

        Parameters
        ----------
        start, stop : int
            Range of elements.
        length : int
            Number of elements in a block of the range.

        Returns
        -------
        bounds : (k,) int64 array
            Number of coded elements up to the end of each block.
        mask : (stop - start,) bool array or None
            Mask of the coded elements; None if all are coded.
        """
        bounds = np.arange(length, stop - start + length, length)
        bounds[-1:] = stop - start  # where the last block is shorter
        if self.uncoded is None:
            return bounds, None
        first, last = start // self.bucket, -(-stop // self.bucket)
        coded = ~self.uncoded[first:last]
        if coded.all():
            return bounds, None
        edges = np.minimum(np.arange(first, last + 1) * self.bucket, stop)
        mask = np.repeat(coded, np.diff(np.maximum(edges, start)))
        counts = np.add.reduceat(mask, bounds - np.diff(bounds, prepend=0), dtype=np.int64)
        return np.cumsum(counts), mask


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def zero_norm_buckets(norms: np.ndarray) -> np.ndarray:
    """Return the mask of buckets with norms of 0."""
    return norms == 0


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def gathered(
    symbols: np.ndarray | Drainable, coded: CodedMask
) -> tuple[np.ndarray | Drainable, CodedMask]:
    """Select the symbols of the coded elements from the symbols of all elements.

    Returns
    -------
    symbols : array or Drainable
        Symbols of the coded elements. On a device, undefined symbols follow, because the host does
        not know their number. A `Drainable` input is released.
    coded : CodedMask
        Mask of the result, whose elements are all coded.
    """
    if coded.uncoded is None:
        return symbols, coded
    array, words = contents(symbols), coded.words
    out, used = np.empty(words, array.dtype), 0
    for at in range(0, coded.n, _WIDE_CHUNK):
        part = array[at : at + _WIDE_CHUNK]
        _, mask = coded.part(at, at + part.size, part.size)
        selected = part if mask is None else part[mask]
        out[used : used + selected.size] = selected
        used += selected.size
        release(symbols, at, at + part.size)
    return Drainable(out), CodedMask.all(words)


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def subtract_uncoded(counts: np.ndarray, coded: CodedMask) -> None:
    """Subtract the elements that are not coded from (256,) counts of the symbols of all."""
    counts[0] -= coded.n - coded.words


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def spread(symbols: np.ndarray, coded: CodedMask, take: Callable[[int, np.ndarray], None]) -> None:
    """Pass the symbols of all elements to `take`, in chunks from the last to the first.

    Because of this order, the result of `take` may overwrite the symbols.

    Parameters
    ----------
    symbols : (coded.words,) array
        Symbols of the coded elements.
    coded : CodedMask
    take : callable
        Gets the first element of a chunk, and the symbols of the chunk.
    """
    stop = symbols.size
    for at in reversed(range(0, coded.n, _WIDE_CHUNK)):
        end = min(at + _WIDE_CHUNK, coded.n)
        bounds, mask = coded.part(at, end, end - at)
        part = symbols[stop - int(bounds[-1]) : stop]
        take(at, part.copy() if mask is None else spread_part(part, mask))
        stop -= part.size


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def refuse_nonzero(symbols: np.ndarray, coded: CodedMask, start: int = 0) -> None:
    """Raise `Corrupt` if the symbol of an element in a zero-norm bucket is not 0.

    The first symbol is that of element `start`; on a device, of element 0.
    """
    if coded.uncoded is None:
        return
    for at in range(0, symbols.size, _WIDE_CHUNK):
        part, first = symbols[at : at + _WIDE_CHUNK], start + at
        _, mask = coded.part(first, first + part.size, part.size)
        if mask is not None and part[~mask].any():
            raise nonzero_error()


def nonzero_error() -> Corrupt:
    """Return the error of a nonzero element in a zero-norm bucket."""
    return Corrupt("a value lies in a bucket whose norm is 0")


def spread_part(symbols: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the symbols of a range of elements, given the mask of the coded ones."""
    full = np.zeros(mask.size, symbols.dtype)
    full[mask] = symbols
    return full
