"""Positions as classes of distances, bytes for an entropy coder, and raw bits within the classes.

The distance v of a position is its difference from the preceding position, or from −1 for the
first. A distance v from 1 to 3 has the class v − 1. A longer distance of b + 3 bits has the class
4·b + 3 + the two bits after its leading one; the b bits after these are stored verbatim.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.runtime import pool
from gcodec.runtime.jit import inline, kernel

_PUT = 56  # most bits of one `put`
_CLASSES = np.arange(256)
_RAW_NBITS = np.maximum((_CLASSES - 3) >> 2, 0)
_TABLE = _RAW_NBITS.astype(np.uint8)


def class_of(distance: int) -> int:
    """Return the class of a distance from 1 on."""
    if distance < 4:
        return distance - 1
    raw = distance.bit_length() - 3
    return 4 * raw + 3 + (distance >> raw & 3)


def classes(positions: np.ndarray) -> np.ndarray:
    """Return the (k,) uint8 classes of (k,) int64 positions, rising and below 2^62."""
    out = np.empty(positions.size, np.uint8)

    def task(start: int, stop: int) -> None:
        before = int(positions[start - 1]) if start else -1
        _classify(positions[start:stop], before, out[start:stop])

    pool.run(task, positions.size)
    return out


def raw_nbits(counts: np.ndarray) -> int:
    """Return the number of raw bits, by the (256,) counts of the classes."""
    return int(counts @ _RAW_NBITS)


def write_raw(positions: np.ndarray, classes: np.ndarray, nbits: int, string: BitString) -> None:
    """Append the `nbits` raw bits within classes to a string."""
    string.reserve(nbits // 8 + 1)
    _write_raw(positions, classes, _TABLE, string.data, string.state)


def read(data: np.ndarray, first: int, end: int, n: int, classes: np.ndarray) -> np.ndarray:
    """Return the (k,) int64 positions of classes whose raw bits are those from `first` to `end`.

    Raises
    ------
    Truncated
        If the classes have more raw bits.
    Corrupt
        If they have fewer, or if a position is not below n.
    """
    positions = np.empty(classes.size, np.int64)
    sums = pool.run(
        lambda start, stop: (start, _raw_nbits(classes[start:stop], _TABLE)), classes.size
    )
    begins, at = {}, first
    for start, nbits in sums:
        begins[start] = at
        at += int(nbits)
    if at != end:
        error = Truncated if at > end else Corrupt
        raise error(f"the gaps have {at - first} bits within classes, the payload {end - first}")

    def task(start: int, stop: int) -> tuple[int, int, int]:
        room = positions[start:stop]
        return start, stop, _read_raw(data, begins[start], n, classes[start:stop], _TABLE, room)

    # Each segment is read as if it were the first, then moved by the end of the preceding one.
    base = 0
    for start, stop, last in pool.run(task, classes.size):
        if last < 0 or base + last > n:
            raise Corrupt(f"a position passes the {n} elements")
        if base:
            positions[start:stop] += base
        base += int(last)
    return positions


@kernel("in int64[], int64, out uint8[]")
def _classify(positions, before, classes):
    for i in range(positions.size):  # classes.size == positions.size
        distance = np.uint64(positions[i] - before)
        before = positions[i]
        raw = np.uint64(61) - min(leading_zeros(distance), np.uint64(61))
        upper = np.uint64(distance >> raw)  # from 4 to 7, or the distance itself
        classes[i] = np.uint8(np.uint64(4) * raw + upper - np.uint64(1))


@inline
def least_distance(symbol, raw):
    """Return the least distance of a class with `raw` raw bits."""
    return np.uint64(np.int64(symbol) + 1 - 4 * raw) << np.uint64(raw)


@kernel("in int64[], in uint8[], in uint8[], out uint8[], out uint64[]")
def _write_raw(positions, classes, raws, out, state):
    # classes.size == positions.size; out has room for all bits, and for the slack of `put`.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    before = np.int64(-1)
    for i in range(positions.size):
        raw = np.int64(raws[classes[i]])
        bits = np.uint64(positions[i] - before) - least_distance(classes[i], raw)
        before = positions[i]
        upper = max(raw - _PUT, 0)
        if upper:
            acc, have, at = put(out, at, acc, have, bits >> np.uint64(_PUT), np.uint64(upper))
            bits &= np.uint64((1 << _PUT) - 1)
        acc, have, at = put(out, at, acc, have, bits, np.uint64(raw - upper))
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel("in uint8[], in uint8[]")
def _raw_nbits(classes, raws):
    # raws.size == 256
    total = 0
    for i in range(classes.size):
        total += np.int64(raws[classes[i]])
    return total


@kernel("in uint8[], int64, int64, in uint8[], in uint8[], out int64[]", vectorized=False)
def _read_raw(data, at, n, classes, raws, positions):
    # Returns the last position plus 1, or -1 if that exceeds n. The classes are those of distances
    # up to n <= 2^62; positions.size == classes.size.
    last = np.uint64(0)
    for i in range(classes.size):
        raw = np.int64(raws[classes[i]])
        last += least_distance(classes[i], raw) + (
            peek(data, at) >> np.uint64(63 - raw) >> np.uint64(1)
        )
        at += raw
        if last > np.uint64(n):
            return np.int64(-1)
        positions[i] = np.int64(last) - 1
    return np.int64(last)
