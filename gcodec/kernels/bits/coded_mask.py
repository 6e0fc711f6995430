"""Which elements of a tensor have a word, and their symbols among those of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, release

_CHUNK = 1 << 20  # elements whose symbols stay in a cache
_LESS = 1 << 17  # elements, where more than a byte is kept of each


class CodedMask(NamedTuple):
    """Which elements have a word.

    Attributes
    ----------
    n : int
    bucket : int
        Elements of a bucket.
    silent : (ceil(n / bucket),) bool array, or None
        The buckets whose elements have none; None where all have one. May be filled by and by:
        of those of a range, `part` looks at no others. Or a `Deferred`.
    """

    n: int
    bucket: int
    silent: np.ndarray | None

    @classmethod
    def of(cls, n: int, bucket: int, silent: Any) -> CodedMask:
        """Tell it by the buckets that are silent."""
        some = n > 0 if type(silent) is Deferred else silent.any()
        return cls(n, bucket, silent if some else None)

    @classmethod
    def all(cls, n: int) -> CodedMask:
        """Tell that all of n elements have one."""
        return cls(n, max(n, 1), None)

    @property
    def known_silent(self) -> np.ndarray:
        """Those buckets on the host, if there are any."""
        silent: Any = self.silent
        found: np.ndarray = silent.value if type(silent) is Deferred else silent
        return found

    @property
    def words(self) -> int:
        """How many elements have a word."""
        if self.silent is None:
            return self.n
        known = self.known_silent
        silent = int(known.sum()) * self.bucket
        return self.n - silent + (-self.n % self.bucket if known[-1] else 0)

    def chunk(self, wide: bool) -> int:
        """Tell how many elements to take at a time; `wide` if more than a byte is kept of each."""
        return _LESS if wide else _CHUNK

    def part(self, start: int, stop: int, every: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the words up to the end of each block of a range, and which elements have one."""
        bounds = np.minimum(np.arange(start + every, stop + every, every), stop) - start
        if self.silent is None:
            return bounds, None
        first, last = start // self.bucket, -(-stop // self.bucket)
        some = ~self.silent[first:last]
        if some.all():
            return bounds, None
        edges = np.minimum(np.arange(first, last + 1) * self.bucket, stop)
        mask = np.repeat(some, np.diff(np.maximum(edges, start)))
        counts = np.add.reduceat(mask, bounds - np.diff(bounds, prepend=0), dtype=np.int64)
        return np.cumsum(counts), mask


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def silent_buckets(norms: np.ndarray) -> np.ndarray:
    """Tell which buckets have norms of 0."""
    found: np.ndarray = norms == 0
    return found


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def gathered(
    symbols: np.ndarray | Drainable, coded: CodedMask
) -> tuple[np.ndarray | Drainable, CodedMask]:
    """Return the symbols of the elements that have a word, of those of all; and that all have.

    On a device the host does not know their number yet; there is then room for all. A `Drainable`
    is released, and another one is returned.
    """
    if coded.silent is None:
        return symbols, coded
    array, words = contents(symbols), coded.words
    found, used = np.empty(words, array.dtype), 0
    for at in range(0, coded.n, _LESS):
        part = array[at : at + _LESS]
        _, mask = coded.part(at, at + part.size, part.size)
        some = part if mask is None else part[mask]
        found[used : used + some.size] = some
        used += some.size
        release(symbols, at, at + part.size)
    return Drainable(found), CodedMask.all(words)


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def leave_silent(counts: np.ndarray, coded: CodedMask) -> None:
    """Take those that have no word from (256,) counts of the symbols of all elements."""
    counts[0] -= coded.n - coded.words


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def spread(symbols: np.ndarray, coded: CodedMask, take: Callable[[int, np.ndarray], None]) -> None:
    """Let the symbols of all elements be taken, given those of the ones that have a word.

    The last come first: so symbols may lie where what is made of all elements will.
    """
    behind = symbols.size
    for at in reversed(range(0, coded.n, _LESS)):
        upto = min(at + _LESS, coded.n)
        bounds, mask = coded.part(at, upto, upto - at)
        here = symbols[behind - int(bounds[-1]) : behind]
        take(at, here.copy() if mask is None else spread_part(here, mask))
        behind -= here.size


@dispatched("gcodec.kernels.bits.coded_mask_cuda")
def refuse_silent(symbols: np.ndarray, coded: CodedMask) -> None:
    """Raise `Corrupt` if an element that has no word is not 0."""
    if coded.silent is None:
        return
    for at in range(0, coded.n, _LESS):
        part = symbols[at : at + _LESS]
        _, mask = coded.part(at, at + part.size, part.size)
        if mask is not None and part[~mask].any():
            raise silent_error()


def silent_error() -> Corrupt:
    """Say that an element is not 0 that must be."""
    return Corrupt("a value lies in a bucket whose norm is 0")


def spread_part(symbols: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the symbols of a range of elements, given a mask of those that have one."""
    full = np.zeros(mask.size, symbols.dtype)
    full[mask] = symbols
    return full
