"""The k largest coefficients of each chunk, by magnitude; of equal ones the first.

Magnitudes are compared as the integers of their bits. The k-th largest of the largest of each
group of elements bounds the k-th largest of all from below: few elements are looked at one by one.
"""

from __future__ import annotations

import functools

import numpy as np

from gcodec.kernels.jit import Kernel, inline, kernel
from gcodec.kernels.reduce import INFINITY_BITS

_MAGNITUDE = np.int32(0x7FFFFFFF)
_WIDTHS = (32, 8)  # elements of a group
_COARSE = 14  # bits that the bound is not exact to


def largest(y: np.ndarray, k: int, places: np.ndarray, values: np.ndarray) -> bool:
    """Select from each chunk; tell whether all of its elements are finite.

    Parameters
    ----------
    y : (m, size) float32 array
    k : int
        From 1 to size.
    places : (m, k) int32 array
        Set to where in their chunk the elements are, rising.
    values : (m, k) float32 array
        Set to the elements.
    """
    size = y.shape[1]
    width = next((width for width in _WIDTHS if 2 * k * width <= size), 1)
    tops, some = np.empty(-(-size // width), np.int32), np.empty((2, size + 1), np.int32)
    flat = y.reshape(-1).view(np.int32), size, k
    scratch = tops, some[0], some[1]
    found = values.reshape(-1).view(np.int32)
    return bool(_selecting(width)(*flat, *scratch, places.reshape(-1), found))


@inline
def at_least(keys, bound):
    """Count the keys that are not below a bound."""
    count = np.int32(0)
    for i in range(keys.size):
        count = np.int32(count + np.int32(keys[i] >= bound))
    return count


@inline
def kth_largest(keys, k, lowest):
    """Return the k-th largest of keys, without the bits below one."""
    found = np.int32(0)
    bit = np.int32(30)
    while bit >= lowest:
        trial = np.int32(found | np.int32(np.int32(1) << bit))
        if at_least(keys, trial) >= k:
            found = trial
        bit = np.int32(bit - 1)
    return found


@functools.cache
def _selecting(width: int) -> Kernel:
    """Make the kernel for groups of so many elements."""

    @kernel(
        "in int32[], int64, int64, out int32[], out int32[], out int32[], out int32[], "
        "out int32[]",
        variant=f"{width}",
    )
    def select_largest(bits, size, k, tops, at, keys, places, found):
        # places.size == found.size == k * (bits.size / size); tops.size == ceil(size / width) >= k
        # where width > 1; at.size == keys.size == size + 1.
        for chunk in range(bits.size // size):
            part = bits[chunk * size : chunk * size + size]
            for g in range(size // width):
                group = part[g * width : g * width + width]
                top = np.int32(0)
                for i in range(width):
                    top = max(top, np.int32(group[i] & _MAGNITUDE))
                tops[g] = top
            if size % width:
                top = np.int32(0)
                for i in range(size - size % width, size):
                    top = max(top, np.int32(part[i] & _MAGNITUDE))
                tops[tops.size - 1] = top
            most = np.int32(0)
            for g in range(tops.size):
                most = max(most, tops[g])
            if most >= INFINITY_BITS:
                return False
            bound = kth_largest(tops, k, _COARSE)
            # What is not below the bound, in order: at least k elements, and at most size.
            count = 0
            for g in range(tops.size):
                if tops[g] >= bound:
                    for i in range(g * width, min(g * width + width, size)):
                        key = np.int32(part[i] & _MAGNITUDE)
                        at[count] = i
                        keys[count] = key
                        count += key >= bound
            few = keys[:count]
            last = kth_largest(few, k, np.int32(0))
            ties = k - at_least(few, np.int32(last + 1))
            # Those above the k-th largest, and the first ones that are equal to it: k in all.
            out = chunk * k
            for j in range(count):
                tie = few[j] == last
                if few[j] > last or (tie and ties > 0):
                    places[out] = at[j]
                    found[out] = part[at[j]]
                    out += 1
                    ties -= tie
        return True

    return select_largest
