"""Symbols that are computed from packed codes where they are read.

An entropy coder reads the symbols of a tensor several times: it samples them, adds them up, and
writes them. An array of all of them would take a byte for each element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from gcodec.kernels.bits.pack import packer, unpacker
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.words import store_word
from gcodec.runtime import pool
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import Drainable, contents, drop, release

# Symbols up to which an array of all takes less time, as the C library reuses its memory.
_FEW = 1 << 25
_SHORT = 4 / 3  # bits of a symbol, for which a byte takes over 1.2 times input and string
_RARE = 64  # symbols for each one that may take more bits than its width
_PART = 1 << 18  # symbols that are computed at a time, and that stay in a cache


Read = Callable[[np.ndarray], np.ndarray]
"""Returns the symbols of packed codes, possibly followed by a few more bytes."""


class ComputedSymbols:
    """(n,) uint8 symbols on the host; a slice of them is a new array.

    Parameters
    ----------
    packed : uint8 array or Drainable
        Codes of the symbols; a `Drainable` is released together with its symbols.
    each : int
        Number of symbols of a byte of `packed`.
    read : callable
        See `Read`.
    size : int
        Number of symbols.
    """

    is_converted: ClassVar[bool] = True  # so `pool.run` keeps segments short
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, packed: np.ndarray | Drainable, each: int, read: Read, size: int) -> None:
        self.size = size
        self._packed, self._each, self._read = contents(packed), each, read
        self._held = packed

    def __getitem__(self, places: slice) -> np.ndarray:
        """Return the symbols of a contiguous slice."""
        start, stop, _ = places.indices(self.size)
        first, last = start // self._each, -(-stop // self._each)
        at = first * self._each
        return self._read(self._packed[first:last])[start - at : stop - at]

    def done(self, start: int, stop: int) -> None:
        """Release a range of symbols, which begins with a byte; see `Drainable.done`."""
        release(self._held, start // self._each, -(-stop // self._each))

    def drop(self) -> None:
        """Release all symbols; see `Drainable.drop`."""
        drop(self._held)

    def whole(self) -> np.ndarray:
        """Return an array of all symbols."""
        if self.size <= _PART:
            return self[:]
        symbols = np.empty(self.size, self.dtype)

        def task(start: int, stop: int) -> None:
            symbols[start:stop] = self[start:stop]

        pool.run(task, self.size, beside=self)
        return symbols

    def rows(self, width: int, stride: int) -> np.ndarray:
        """Return one in `stride` rows of `width` symbols, one after the other."""
        starts = np.arange(0, self.size // width, stride) * width
        first, skipped = np.divmod(starts, self._each)
        count = -(-(width + self._each - 1) // self._each)
        places = np.minimum(first[:, None] + np.arange(count), self._packed.size - 1)
        symbols = self._read(self._packed[places].reshape(-1))[: places.size * self._each]
        symbols = symbols.reshape(starts.size, -1)
        if width % self._each == 0:
            return symbols[:, :width].reshape(-1)
        return np.take_along_axis(symbols, skipped[:, None] + np.arange(width), 1).reshape(-1)


class NarrowSymbols(ComputedSymbols):
    """(n,) symbols on the host in 4 or 8 bits each, and a list of the few that take more.

    Parameters
    ----------
    fill : callable
        Writes the symbols of a range, which begins at a multiple of `unit`, to an array. It is
        called on the threads of the pool.
    n : int
        Number of symbols.
    dtype : dtype
        An unsigned type.
    width : int
        4 or 8.
    unit : int
    beside : array, optional
        See `pool.run`.

    Attributes
    ----------
    is_complete : bool
        False if too many symbols take more bits; then there are no symbols.
    """

    def __init__(
        self,
        fill: Callable[[int, int, np.ndarray], object],
        n: int,
        dtype: np.dtype[Any],
        width: int,
        unit: int = 1,
        beside: Any = None,
    ) -> None:
        # No function may refer to this object, whose memory would wait for the garbage collector.
        self.dtype = dtype
        write_fields, read_fields = packer(width, True), unpacker(width, True)
        step = max(_PART // unit, 1) * math.lcm(unit, 8)
        codes = np.empty(-(-n * width // 8), np.uint8)

        def pack(start: int, stop: int) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
            places, values = [np.empty(0, np.int64)], [np.empty(0, dtype)]
            room, left = np.empty(min(step, stop - start), dtype), (stop - start) // _RARE
            for at in range(start, stop, step):
                end = min(at + step, stop)
                part = room[: end - at]
                fill(at, end, part)
                if part.max() >> width:
                    wide = np.flatnonzero(part >> width)
                    left -= wide.size
                    if left < 0:
                        return None
                    places.append(wide + at)
                    values.append(part[wide])
                    part[wide] = 0
                own = codes[at * width // 8 : -(-end * width // 8)]
                if width == 8:
                    own[:] = part
                else:
                    write_fields(part.astype(np.uint8, copy=False), own)
            return places, values

        def unpacked(codes: np.ndarray) -> np.ndarray:
            if width == 8:
                return codes.astype(dtype)
            symbols = np.empty(8 // width * codes.size, np.uint8)
            read_fields(codes, symbols)
            return symbols.astype(dtype, copy=False)

        super().__init__(Drainable(codes), 8 // width, unpacked, n)
        lists = pool.run(pack, n, step, beside)
        self.is_complete = None not in lists
        if self.is_complete:
            self._places, self._values = (
                np.concatenate([array for arrays in kind for array in arrays])
                for kind in zip(*lists, strict=True)
            )

    @staticmethod
    def width_of(sample: np.ndarray) -> int | None:
        """Return the width for symbols like those of an unsigned array; None for no width."""
        for width in (4, 8):
            if np.count_nonzero(sample >> width) <= sample.size // (2 * _RARE):
                return width if width < 8 * sample.itemsize else None
        return None

    def __getitem__(self, places: slice) -> np.ndarray:
        """Return the symbols of a contiguous slice."""
        symbols = super().__getitem__(places)
        if self._places.size:
            start, stop, _ = places.indices(self.size)
            first, last = np.searchsorted(self._places, (start, stop))
            symbols[self._places[first:last] - start] = self._values[first:last]
        return symbols

    def rows(self, width: int, stride: int) -> np.ndarray:
        """Return one in `stride` rows of `width` symbols, one after the other."""
        symbols = super().rows(width, stride)
        row, column = np.divmod(self._places, width)
        chosen = (row % stride == 0) & (row < self.size // width)
        symbols[row[chosen] // stride * width + column[chosen]] = self._values[chosen]
        return symbols

    def listed(self, least: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the int64 positions of the symbols from `least` on, and these symbols.

        `least` is above all symbols that are not listed.
        """
        chosen = self._values >= least
        return self._places[chosen], self._values[chosen]


Symbols = np.ndarray | ComputedSymbols


def as_array(symbols: Symbols) -> np.ndarray:
    """Return symbols as an array, in their memory."""
    return symbols.whole() if isinstance(symbols, ComputedSymbols) else symbols


def have_short_string(symbols: np.ndarray) -> bool:
    """Return whether a byte for each of (n,) uint8 symbols is much beside their entropy."""
    shares = byte_counts(symbols) / symbols.size
    return -float((shares * np.log2(np.maximum(shares, 1 / symbols.size))).sum()) < _SHORT


def is_few(n: int) -> bool:
    """Return whether an array of n symbols takes less time than symbols that are computed."""
    return n <= _FEW


def symbols_in(packed: np.ndarray | Drainable, each: int, read: Read, size: int) -> Symbols:
    """Return the symbols of packed codes; few of them as an array. See `ComputedSymbols`."""
    symbols = ComputedSymbols(packed, each, read, size)
    return symbols.whole() if is_few(size) else symbols


def read_by(table: np.ndarray) -> Read:
    """Return a function that looks the symbols of each byte up in a (256, each) uint8 table."""
    each = table.shape[1]  # 8 at most
    padded = np.zeros((256, 8), np.uint8)
    padded[:, :each] = table
    words = padded.view("<u8").reshape(-1).astype(np.uint64)

    def read(packed: np.ndarray) -> np.ndarray:
        symbols = np.empty(packed.size * each + 8 - each, np.uint8)
        _put_words(packed, words, each, symbols)
        return symbols

    return read


def parts_in(
    symbols: Symbols, start: int, stop: int, unit: int = 1, step: int = 1
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the symbols of a range, part by part, each with its first element.

    Parameters
    ----------
    symbols : (n,) uint8 array or ComputedSymbols
        An array is a single part.
    start, stop : int
        `start` is a multiple of `unit`.
    unit : int
        Parts begin at multiples of this number of elements.
    step : int
        The caller needs only every `step`-th unit, counted from element 0.
    """
    if isinstance(symbols, np.ndarray):
        yield start, symbols[start:stop]
        return
    length = unit if step > 1 else max(4 * _PART // unit, 1) * unit
    for at in range(start, stop, length):
        if at // unit % step == 0:
            yield at, symbols[at : min(at + length, stop)]


@kernel("in uint8[], in uint64[], int64, out uint8[]")
def _put_words(packed, words, each, symbols):
    # words.size == 256; symbols.size == packed.size * each + 8 - each, and each is from 1 to 8.
    for j in range(packed.size):
        store_word(symbols, j * each, words[packed[j]])
