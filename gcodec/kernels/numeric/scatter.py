"""Few elements of an array by their positions: taken, replaced, put among zeros, or added.

Positions are int64 and rising. For an array on a device, positions and new values may be on the
host. Positions on a device are not checked, because they result from kernels. Functions that write
process the array in parts that fit into a cache: they fill a part with zeros, or scan it, just
before they write its few elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.numeric.cache_lines import prefetch
from gcodec.kernels.numeric.convert import is_converted, selected
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, lanes
from gcodec.runtime.memory import float_bits

_AHEAD = 32  # positions between an element that is read and the element that is prefetched
_PART = 1 << 13  # elements that are processed at a time
MINUS_ZERO = 0x80000000  # bits of a float32


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def take(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the (k,) elements of (n,) float32 values at (k,) positions."""
    out = np.empty(positions.size, np.float32)

    def task(start: int, stop: int) -> int:
        places, part = positions[start:stop], out[start:stop]
        if not is_converted(values):
            return int(_take_elements(values, places, part))
        inside = places.view(np.uint64) < np.uint64(values.size)
        part[inside] = values[places[inside]]
        return int(np.count_nonzero(inside))

    _check(sum(pool.run(task, positions.size)), positions, values.size)
    return out


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def take_runs(values: np.ndarray, chosen: np.ndarray, length: int) -> np.ndarray:
    """Return the elements of whole runs of neighbors.

    Parameters
    ----------
    values : (n,) array or ConvertedArray
        Runs begin at multiples of their length.
    chosen : (m,) int64 array
        Numbers of runs.
    length : int
        Number of elements in a run.

    Returns
    -------
    (m * length,) array
    """
    whole = values.size // length

    def take_rows(array: np.ndarray) -> np.ndarray:
        return array[: whole * length].reshape(whole, length).take(chosen, axis=0).ravel()

    return selected(values, take_rows)


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def replace(array: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write (k,) values to (k,) valid positions of (n,) float32 or uint8 elements."""
    array[positions] = values


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def put(out: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write (k,) float32 values to (k,) positions of `out`, and zeros elsewhere."""

    def task(start: int, stop: int, k: slice) -> int:
        return int(_put(start, positions[k], values[k], out[start:stop]))

    _by_segment(task, positions, out.size)


@dispatched("gcodec.kernels.numeric.scatter_cuda")
def add(
    out: np.ndarray,
    positions: np.ndarray,
    values: np.ndarray,
    scale: np.float32,
    has_minus_zero: bool = True,
) -> None:
    """Add scale·x to (n,) float32 `out`; x is zero except for (k,) values at (k,) positions.

    Each product is rounded before it is added. The product of a zero is +0, which changes −0 to
    +0; or −0 if the scale is negative, which changes nothing. If the caller knows that no element
    of `out` is −0, only the elements at the positions are read and written.
    """
    zero = added_zero(scale, has_minus_zero)

    def task(start: int, stop: int, k: slice) -> int:
        part = out[start:stop]
        if zero == 0 and np.signbit(zero):
            return int(_add_elements(start, positions[k], values[k], scale, part))
        least = np.empty(1, np.int32)
        return int(_add_everywhere(start, positions[k], values[k], scale, zero, least, part))

    _by_segment(task, positions, out.size)


def added_zero(scale: np.float32, has_minus_zero: bool) -> np.float32:
    """Return what `add` adds to elements at no position: +0, NaN, or −0, which changes nothing."""
    with np.errstate(invalid="ignore"):  # the product can be NaN
        zero = np.float32(scale * np.float32(0))
    return zero if has_minus_zero or zero != 0 else np.float32(-0.0)


def _by_segment(task: Callable[[int, int, slice], int], positions: np.ndarray, n: int) -> None:
    """Run a task for each segment of n elements and the slice of its positions."""

    def segment(start: int, stop: int) -> int:
        first = np.searchsorted(positions, start) if start else 0
        last = np.searchsorted(positions, stop) if stop < n else positions.size
        return task(start, stop, slice(int(first), int(last)))

    _check(sum(pool.run(segment, n, _PART)), positions, n)


def _check(done: int, positions: np.ndarray, n: int) -> None:
    # Segments process disjoint sets of positions, so the sum tells whether all are processed.
    if done != positions.size:
        raise position_error(n)


def position_error(n: int) -> ParameterError:
    """Return the error of positions that do not rise, or exceed n elements."""
    return ParameterError(f"positions: they must rise, and lie within {n} elements")


@kernel("in float32[], in int64[], out float32[]")
def _take_elements(values, positions, out):
    # positions.size == out.size
    done = 0
    for j in range(out.size):
        prefetch(values, positions[min(j + _AHEAD, out.size - 1)])
        inside = np.uint64(positions[j]) < np.uint64(values.size)
        if inside:
            out[j] = values[positions[j]]
        done += inside
    return done


@kernel("int64, in int64[], in float32[], out float32[]")
def _put(first, positions, values, out):
    # values.size == positions.size; out contains the elements from `first` on
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


@kernel("int64, in int64[], in float32[], float32, out float32[]")
def _add_elements(first, positions, values, scale, out):
    # values.size == positions.size; out contains the elements from `first` on
    for j in range(positions.size):
        at = np.uint64(positions[j] - first)
        if at >= np.uint64(out.size):
            return j
        prefetch(out, positions[min(j + _AHEAD, positions.size - 1)] - first)
        out[at] += scale * values[j]
    return positions.size


@block("array", "i", "stop", "least")
def _least_pattern(e: Emitter) -> None:
    """Find the least bit pattern, as int32, of the elements from i to stop: that of −0, if any is.

    Their number is a positive multiple of 32.
    """
    array, kind = e.args["array"], lanes(32)

    def body(i: Value, least: Value) -> list[Value]:
        return [e.smaller(e.fetched(e.builder.gep(array, [i]), kind), least)]

    stop, first = e.args["stop"], e.args["i"]
    (least,) = e.count(first, stop, first.type(BLOCK), [kind([0x7FFFFFFF] * BLOCK)], body)
    e.builder.store(e.reduced("smin", least), e.args["least"])


@kernel("int64, in int64[], in float32[], float32, float32, out int32[], out float32[]")
def _add_everywhere(first, positions, values, scale, zero, least, out):
    # values.size == positions.size; out contains the elements from `first` on; zero: +0 or NaN;
    # least.size == 1
    j = 0
    for start in range(0, out.size, _PART):
        part = out[start : start + _PART]
        changes = zero != 0  # NaN
        whole = part.size - part.size % BLOCK
        if whole:  # this scan also moves the part into the cache
            _least_pattern(part, 0, whole, least)
            changes |= np.uint32(least[0]) == np.uint32(MINUS_ZERO)
        for i in range(whole, part.size):
            changes |= float_bits(part[i]) == np.uint32(MINUS_ZERO)
        if changes:
            for i in range(part.size):
                if j < positions.size and positions[j] == first + start + i:
                    part[i] += scale * values[j]
                    j += 1
                else:
                    part[i] += zero
            continue
        while j < positions.size:
            at = np.uint64(positions[j] - first - start)
            if at >= np.uint64(part.size):
                break
            part[at] += scale * values[j]
            j += 1
    return j
