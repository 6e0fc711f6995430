"""Few elements of an array by their positions: taken out, replaced, put among zeros, or added.

Positions are int64 and rising. They, and what is put or added, may lie on the host where the array
is on a device; positions that lie there are right, as kernels made them. What writes goes through
the array by parts that a cache holds, so that each part is filled with zeros, or looked through,
just before its few elements are written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.numeric.convert import is_converted
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import float_bits

_PART = 1 << 13  # elements that are worked on at a time
_MINUS_ZERO = 0x80000000  # of a float32


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def take(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the (k,) elements of (n,) float32 values that are at (k,) positions."""
    out = np.empty(positions.size, np.float32)

    def task(start: int, stop: int) -> int:
        some, room = positions[start:stop], out[start:stop]
        if not is_converted(values):
            return int(_take_some(values, some, room))
        inside = some.view(np.uint64) < np.uint64(values.size)
        room[inside] = values[some[inside]]
        return int(np.count_nonzero(inside))

    _check(sum(pool.run(task, positions.size)), positions, values.size)
    return out


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def take_to_host(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return what `take` does on the host, wherever the values are."""
    return take(values, positions)


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def replace(array: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write (k,) values to (k,) positions of (n,) float32 or uint8 elements, all inside."""
    array[positions] = values


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def put(out: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write (k,) float32 values to (k,) positions of `out`, and zeros elsewhere."""

    def task(start: int, stop: int, some: slice) -> int:
        return int(_put(start, positions[some], values[some], out[start:stop]))

    _by_segment(task, positions, out.size)


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def add(out: np.ndarray, positions: np.ndarray, values: np.ndarray, scale: np.float32) -> None:
    """Add to (n,) float32 `out` scale·x, x being (k,) values at (k,) positions, elsewhere 0.

    Each product is rounded before it is added. So +0 is added where nothing is, which makes +0 of
    −0; or −0, which changes nothing, and costs nothing, if the scale is negative.
    """
    with np.errstate(invalid="ignore"):  # it can be NaN
        zero = scale * np.float32(0)
    sums = np.empty(positions.size, np.float32)

    def task(start: int, stop: int, some: slice) -> int:
        part = out[start:stop]
        return int(_add(start, positions[some], values[some], scale, zero, sums[some], part))

    _by_segment(task, positions, out.size)


def _by_segment(task: Callable[[int, int, slice], int], positions: np.ndarray, n: int) -> None:
    """Run a task on the segments of n elements and the positions in each."""

    def segment(start: int, stop: int) -> int:
        first = np.searchsorted(positions, start) if start else 0
        last = np.searchsorted(positions, stop) if stop < n else positions.size
        return task(start, stop, slice(int(first), int(last)))

    _check(sum(pool.run(segment, n, _PART)), positions, n)


def _check(done: int, positions: np.ndarray, n: int) -> None:
    # No position is done in two segments; so all are if as many are.
    if done != positions.size:
        raise position_error(n)


def position_error(n: int) -> ParameterError:
    """Say that positions are not those of some of n elements."""
    return ParameterError(f"positions: they must rise, and lie within {n} elements")


@kernel("in float32[], in int64[], out float32[]")
def _take_some(values, positions, out):
    # positions.size == out.size
    done = 0
    for j in range(out.size):
        inside = np.uint64(positions[j]) < np.uint64(values.size)
        if inside:
            out[j] = values[positions[j]]
        done += inside
    return done


@kernel("int64, in int64[], in float32[], out float32[]")
def _put(first, positions, values, out):
    # values.size == positions.size; out has the elements from `first` on
    j = 0
    for start in range(0, out.size, _PART):
        part = out[start : start + _PART]
        part[:] = np.float32(0)
        while j < positions.size:
            at = np.uint64(positions[j] - first - start)
            if at >= np.uint64(part.size):
                break
            part[at] = values[j]
            j += 1
    return j


@kernel("int64, in int64[], in float32[], float32, float32, out float32[], out float32[]")
def _add(first, positions, values, scale, zero, sums, out):
    # values.size == sums.size == positions.size; out has the elements from `first` on
    everywhere = float_bits(zero) != np.uint32(_MINUS_ZERO)
    done = 0
    for start in range(0, out.size, _PART):
        part = out[start : start + _PART]
        j = done
        while j < positions.size:
            at = np.uint64(positions[j] - first - start)
            if at >= np.uint64(part.size):
                break
            sums[j] = part[at] + scale * values[j]
            j += 1
        if everywhere:
            changes = zero != 0  # NaN
            for i in range(part.size):
                changes |= float_bits(part[i]) == np.uint32(_MINUS_ZERO)
            if changes:
                for i in range(part.size):
                    part[i] += zero
        for k in range(done, j):  # of which each was found inside
            part[np.uint64(positions[k] - first - start)] = sums[k]
        done = j
    return done
