"""Byte planes of floats: one byte of each element by itself, and the bytes of all other bits.

The first plane contains the 8 bits of each bit pattern from bit `shift` on, which for floats of 16
and 32 bits include the exponent. The other bits, joined, are the bytes of the other planes, the
most significant byte first. So the sign is the highest bit of the second plane.
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import Kernel, factory, kernel

SHIFTS = {2: 7, 4: 23, 8: 52}  # lowest bit of the first plane, by the bytes of a float


def take_first(bits: np.ndarray, out: np.ndarray) -> None:
    """Write the first plane of (n,) bit patterns of floats to (n,) uint8 `out`."""
    _first(bits.itemsize)(bits, out)


def take_others(bits: np.ndarray, out: np.ndarray, stride: int) -> None:
    """Write the other planes of (n,) bit patterns; plane k begins at ``(k - 1) * stride``."""
    _others(bits.itemsize)(bits, stride, out)


def join_planes(first: np.ndarray, others: np.ndarray, stride: int, out: np.ndarray) -> None:
    """Write the (n,) bit patterns of floats with these planes; see `take_others`."""
    _joined(out.itemsize)(first, others, stride, out)


def gather_coded(plane: np.ndarray, is_coded: np.ndarray, out: np.ndarray) -> None:
    """Write the bytes of the elements that a mask selects to `out`, one after the other.

    Parameters
    ----------
    plane : (n,) uint8 array
    is_coded : (n,) uint8 array
        0 for the elements that are left out, and 1 for others.
    out : uint8 array
        As many elements as the mask selects.
    """
    _gather_coded(plane, is_coded, out)


def spread_coded(data: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
    """Write bytes to the elements whose byte of the first plane is not 0, and 0 to all others.

    Parameters
    ----------
    data : uint8 array
        As many bytes as elements whose byte of `first` is not 0.
    first, out : (n,) uint8 array
    """
    _spread_coded(data, first, out)


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _first(itemsize: int) -> Kernel:
    word, shift = np.dtype(f"uint{8 * itemsize}").type, SHIFTS[itemsize]

    @kernel(f"in uint{8 * itemsize}[], out uint8[]", variant=str(itemsize))
    def take_first(bits, out):
        for i in range(out.size):  # bits.size == out.size
            out[i] = np.uint8(word(bits[i] >> word(shift)))

    return take_first


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _others(itemsize: int) -> Kernel:
    word, shift, planes = np.dtype(f"uint{8 * itemsize}").type, SHIFTS[itemsize], itemsize - 1
    low = (1 << shift) - 1
    high = (1 << 8 * itemsize) - 1 - low

    @kernel(f"in uint{8 * itemsize}[], int64, out uint8[]", variant=str(itemsize))
    def take_others(bits, stride, out):
        # out.size >= (planes - 1) * stride + bits.size
        for plane in range(planes):
            part, by = out[plane * stride : plane * stride + bits.size], 8 * (planes - 1 - plane)
            for i in range(part.size):
                rest = word(word(bits[i] >> word(8)) & word(high)) | word(bits[i] & word(low))
                part[i] = np.uint8(word(rest >> word(by)))

    return take_others


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _joined(itemsize: int) -> Kernel:
    word, shift, planes = np.dtype(f"uint{8 * itemsize}").type, SHIFTS[itemsize], itemsize - 1
    low = (1 << shift) - 1
    high = (1 << 8 * (itemsize - 1)) - 1 - low

    @kernel(f"in uint8[], in uint8[], int64, out uint{8 * itemsize}[]", variant=str(itemsize))
    def join_planes(first, others, stride, out):
        # first.size == out.size; others.size >= (planes - 1) * stride + out.size
        for start in range(0, out.size, 1024):
            target, own = out[start : start + 1024], first[start : start + 1024]
            for i in range(target.size):
                target[i] = word(word(own[i]) << word(shift))
            for plane in range(planes):
                at, by = plane * stride + start, 8 * (planes - 1 - plane)
                part = others[at : at + target.size]
                for i in range(target.size):
                    rest = word(word(part[i]) << word(by))
                    moved = word(word(rest & word(high)) << word(8)) | word(rest & word(low))
                    target[i] = word(target[i] | moved)

    return join_planes


@kernel("in uint8[], in uint8[], out uint8[]", vectorized=False)
def _gather_coded(plane, is_coded, out):
    # plane.size == is_coded.size; the mask selects out.size elements.
    at, last = 0, out.size - 1
    for i in range(plane.size):
        if at > last:
            return
        out[at] = plane[i]
        at += is_coded[i]


@kernel("in uint8[], in uint8[], out uint8[]", vectorized=False)
def _spread_coded(data, first, out):
    # first.size == out.size; data.size elements of `first` are not 0.
    at, last = np.int64(0), np.int64(data.size) - 1
    if last < 0:
        for i in range(out.size):
            out[i] = 0
        return
    for i in range(out.size):
        coded = np.int64(first[i] != 0)
        out[i] = np.uint8(data[min(at, last)] & np.uint8(-coded))
        at += coded
