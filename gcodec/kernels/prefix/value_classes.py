"""Values as classes, bytes for an entropy coder, and raw bits within the classes.

A value from 0 to 3 is its own class. A larger value of b + 3 bits has the class 4·b + 4 + the two
bits after its leading one; the b bits after these are stored verbatim.

Rising positions have the classes of their gaps: of the differences from the preceding position, or
from −1 for the first. No gap is 0, so that the class of a gap is 1 less.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.words import leading_zeros, peek, put_long
from gcodec.runtime import pool
from gcodec.runtime.jit import Kernel, factory, inline, kernel

_RAW_NBITS = [np.maximum((np.arange(least, least + 256) - 4) >> 2, 0) for least in (0, 1)]
_PART = 1 << 18  # values whose classes stay in a cache
_BLOCK = 1 << 16  # elements whose positions share their upper bits
_TABLES = [nbits.astype(np.uint8) for nbits in _RAW_NBITS]


class ComputedPositions(Protocol):
    """Rising positions that are computed where they are read, in place of an int64 array."""

    @property
    def size(self) -> int:
        """Number of positions."""

    def __getitem__(self, places: int | slice) -> np.ndarray:
        """Return an array of the positions of a slice, or of one position."""


@dataclass(frozen=True)
class AllPositions:
    """The positions of all elements of a tensor, in place of an int64 array of them.

    Attributes
    ----------
    size : int
    """

    size: int

    def __getitem__(self, places: int | slice) -> np.ndarray:
        """Return an array of the positions of a slice, or of one position."""
        if isinstance(places, int):
            return np.array(places % self.size)
        return np.arange(*places.indices(self.size), dtype=np.int64)


class PackedPositions:
    """Rising positions in 16 bits each; a block of 2^16 elements shares the upper bits.

    Parameters
    ----------
    room : int
        Largest number of positions.
    """

    def __init__(self, room: int) -> None:
        self._low = np.empty(room, np.uint16)
        self._before = [0]  # number of positions that precede each block, and of all

    @property
    def size(self) -> int:
        """Number of positions."""
        return self._before[-1]

    def append(self, places: np.ndarray, n: int) -> None:
        """Append positions in the next n elements; all preceding elements are whole blocks."""
        ends = np.append(np.arange(_BLOCK, n, _BLOCK), n)
        end = self.size
        self._low[end : end + places.size] = places.astype(np.uint16)
        self._before += (end + np.searchsorted(places, ends)).tolist()

    def drop(self) -> None:
        """Free the memory of the positions; see `Drainable.drop`."""
        self._low = np.empty(0, np.uint16)

    def __getitem__(self, places: int | slice) -> np.ndarray:
        """Return an array of the positions of a slice, or of one position."""
        if isinstance(places, int):
            at = places % self.size
            return self[at : at + 1][0]
        start, stop, step = places.indices(self.size)
        low = np.ascontiguousarray(self._low[start:stop:step])
        positions = np.empty(low.size, np.int64)
        first = bisect_right(self._before, start) - 1
        for block in range(first, bisect_left(self._before, stop)):
            bounds = (-((start - before) // step) for before in self._before[block : block + 2])
            own = slice(*(max(bound, 0) for bound in bounds))
            _unpack(low[own], block * _BLOCK, positions[own])
        return positions


class Classes(NamedTuple):
    """The classes of values, or of the gaps of positions.

    Attributes
    ----------
    least : int
        The value of class 0: 0 for values, 1 for gaps.
    """

    least: int

    def class_of(self, value: int) -> int:
        """Return the class of a value or gap."""
        raw = max(value.bit_length() - 3, 0)
        return 4 * raw + (value >> raw) - self.least

    def classes(self, values: np.ndarray) -> np.ndarray:
        """Return the (k,) uint8 classes of (k,) uint64 values or int64 positions below 2^62."""
        out = np.empty(values.size, np.uint8)

        def task(start: int, stop: int) -> None:
            self.classify(values, start, stop, out[start:stop])

        pool.run(task, values.size)
        return out

    def classify(
        self, values: np.ndarray | ComputedPositions, start: int, stop: int, out: np.ndarray
    ) -> np.ndarray:
        """Write the classes of a range of values to a (stop - start,) uint8 array; return it."""
        part = values[start:stop].view(np.uint64)
        _classifier(self.least)(part, self._before(values, start), out)
        return out

    def counts(self, values: np.ndarray | ComputedPositions) -> np.ndarray:
        """Count the classes of values, as a (256,) int64 array."""

        def task(start: int, stop: int) -> np.ndarray:
            counts, room = np.zeros(256, np.int64), np.empty(min(_PART, stop - start), np.uint8)
            for at in range(start, stop, _PART):
                end = min(at + _PART, stop)
                counts += byte_counts(self.classify(values, at, end, room[: end - at]))
            return counts

        return pool.run_added(task, values.size)

    def raw_nbits(self, counts: np.ndarray) -> int:
        """Return the number of raw bits, by the (256,) counts of the classes."""
        return int(counts @ _RAW_NBITS[self.least])

    def write_raw(
        self, values: np.ndarray | ComputedPositions, nbits: int, string: BitString
    ) -> None:
        """Append the `nbits` raw bits of values within their classes to a string."""
        if not nbits:
            return
        string.reserve(nbits // 8 + 1)
        room, run = np.empty(min(_PART, values.size), np.uint8), _writer(self.least)
        for start in range(0, values.size, _PART):
            stop = min(start + _PART, values.size)
            classes = self.classify(values, start, stop, room[: stop - start])
            part, before = values[start:stop].view(np.uint64), self._before(values, start)
            run(part, before, classes, _TABLES[self.least], string.data, string.state)

    def read(
        self, data: np.ndarray, first: int, end: int, classes: np.ndarray, n: int = 2**64 - 1
    ) -> np.ndarray:
        """Return the values of (k,) classes whose raw bits are those from `first` to `end`.

        Returns
        -------
        (k,) uint64 array of values, or (k,) int64 array of positions below n

        Raises
        ------
        Truncated
            If the classes have more raw bits.
        Corrupt
            If they have fewer, or if a position is not below n.
        """
        table, run = _TABLES[self.least], _reader(self.least)
        sums = pool.run(
            lambda start, stop: (start, int(_raw_nbits(classes[start:stop], table))), classes.size
        )
        begins, at = {}, first
        for start, nbits in sums:
            begins[start] = at
            at += nbits
        if at != end:
            error, what = Truncated if at > end else Corrupt, "gaps" if self.least else "values"
            nbits = at - first
            raise error(f"the {what} have {nbits} bits within classes, the payload {end - first}")
        if first == end and not self.least:  # each class has a single value
            return classes.astype(np.uint64)
        values = np.empty(classes.size, np.uint64)

        def task(start: int, stop: int) -> tuple[int, int, bool, int]:
            part, room = classes[start:stop], values[start:stop]
            return start, stop, *run(data, begins[start], np.uint64(n), part, table, room)

        segments = pool.run(task, classes.size)
        if not self.least:
            return values
        # Each segment is read as if it were the first, then moved by the end of the preceding one.
        base, positions = 0, values.view(np.int64)
        for start, stop, fits, last in segments:
            if not fits or base + last > n:
                raise Corrupt(f"a position passes the {n} elements")
            if base:
                positions[start:stop] += base
            base += last
        return positions

    def _before(self, values: np.ndarray | ComputedPositions, start: int) -> np.uint64:
        """Return what precedes a value, from which a gap is counted."""
        before = int(values[start - 1]) if start else -1
        return np.uint64(before % 2**64 if self.least else 0)


VALUES, GAPS = Classes(0), Classes(1)


@kernel("in uint16[], int64, out int64[]")
def _unpack(low, first, positions):
    for i in range(positions.size):  # low.size == positions.size
        positions[i] = first + np.int64(low[i])


@inline
def _least_value(number, raw):
    """Return the least value with the class `number` of values, which has `raw` raw bits."""
    return np.uint64(number - 4 * raw) << np.uint64(raw)


# In the following kernels, raws.size == 256; classes and values have the same size. A value counts
# from 0 if `least` is 0, and otherwise from the preceding one, which is `before` at first.


@factory(lambda: ((0,), (1,)))
def _classifier(least: int) -> Kernel:
    @kernel("in uint64[], uint64, out uint8[]", variant=str(least))
    def classify(values, before, classes):
        for i in range(values.size):
            value = values[i] - before
            before = values[i] if least else np.uint64(0)
            raw = np.uint64(61) - min(leading_zeros(value), np.uint64(61))
            upper = np.uint64(value >> raw)  # from 4 to 7, or the value itself
            classes[i] = np.uint8(np.uint64(4) * raw + upper - np.uint64(least))

    return classify


@factory(lambda: ((0,), (1,)))
def _writer(least: int) -> Kernel:
    @kernel(
        "in uint64[], uint64, in uint8[], in uint8[], out uint8[], out uint64[]",
        variant=str(least),
    )
    def write_raw(values, before, classes, raws, out, state):
        # out has room for all bits, and for the slack of `put`.
        at, acc, have = np.int64(state[0]), state[1], state[2]
        for i in range(values.size):
            raw = np.int64(raws[classes[i]])
            bits = values[i] - before - _least_value(np.int64(classes[i]) + least, raw)
            before = values[i] if least else np.uint64(0)
            acc, have, at = put_long(out, at, acc, have, bits, np.uint64(raw))
        state[0], state[1], state[2] = np.uint64(at), acc, have

    return write_raw


@kernel("in uint8[], in uint8[]")
def _raw_nbits(classes, raws):
    total = 0
    for i in range(classes.size):
        total += np.int64(raws[classes[i]])
    return total


@factory(lambda: ((0,), (1,)))
def _reader(least: int) -> Kernel:
    @kernel(
        "in uint8[], int64, uint64, in uint8[], in uint8[], out uint64[]",
        variant=str(least),
        vectorized=False,
    )
    def read_raw(data, at, n, classes, raws, values):
        # Returns whether all are up to n, and the last one. The gaps have classes of those up to
        # n <= 2^62, so that no sum passes 64 bits.
        last = np.uint64(0)
        for i in range(classes.size):
            raw = np.int64(raws[classes[i]])
            bits = peek(data, at) >> np.uint64(63 - raw) >> np.uint64(1)
            value = _least_value(np.int64(classes[i]) + least, raw) + bits
            last = last + value if least else value
            at += raw
            if last > n:
                return False, last
            values[i] = last - np.uint64(least)
        return True, last

    return read_raw
