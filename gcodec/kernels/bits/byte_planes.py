"""Byte planes of floats: one byte of each element by itself, and the bytes of all other bits.

The first plane contains the 8 bits of each bit pattern from bit `shift` on, which for floats of 16
and 32 bits include the exponent. The other bits, joined, are the bytes of the other planes, the
most significant byte first. So the sign is the highest bit of the second plane.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.kernels.numeric.byte_counts import add_tables, count_part, count_tables
from gcodec.kernels.numeric.words import (
    arranged,
    bytes_at_least,
    count_ones,
    load_word,
    store_word,
)
from gcodec.runtime.jit import Kernel, factory, kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, lanes

SHIFTS = {2: 7, 4: 23, 8: 52}  # lowest bit of the first plane, by the bytes of a float
STREAMED = 32  # alignment in bytes of vectors that bypass the cache
_TILE = 1 << 12  # elements whose planes are counted at a time
_GROUP = 64  # elements whose mask is one word
_BYTE, _EIGHT = np.uint64(255), np.uint64(8)


def take_first(bits: np.ndarray, escape: int, out: np.ndarray) -> None:
    """Write the first plane of (n,) bit patterns of floats to (n,) uint8 `out`.

    A byte of 0 is replaced by `escape` unless all bits of its element are 0.
    """
    _first(bits.itemsize)(bits, np.uint8(escape), out)


def take_others(bits: np.ndarray, out: np.ndarray, stride: int) -> None:
    """Write the other planes of (n,) bit patterns; plane k begins at ``(k - 1) * stride``."""
    _others(bits.itemsize)(bits, stride, out)


def count_others(bits: np.ndarray, period: int) -> np.ndarray:
    """Count the bytes of the other planes of runs of 2^12 floats.

    Parameters
    ----------
    bits : (n,) unsigned array
        Bit patterns of all floats.
    period : int
        Elements from one run to the next. The last run may be shorter.

    Returns
    -------
    (planes, 256) int64 array
    """
    planes = bits.itemsize - 1
    counts, room = np.zeros((planes, 256), np.int64), np.empty(planes * _TILE, np.uint8)
    _others_counted(bits.itemsize)(bits, period, room, count_tables(), counts.reshape(-1))
    return counts


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
    _gather_coded(plane, is_coded, _orders()[0], out)


def spread_coded(data: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
    """Write bytes to the elements whose byte of the first plane is not 0, and 0 to all others.

    Parameters
    ----------
    data : uint8 array
        As many bytes as elements whose byte of `first` is not 0.
    first, out : (n,) uint8 array
    """
    _spread_coded(data, first, _orders()[1], out)


@functools.cache
def _orders() -> tuple[np.ndarray, np.ndarray]:
    """Return the orders of `arranged` for each mask of 8 bytes: to gather them, and to spread."""
    gather, spread = (np.full((256, 8), 128, np.uint8) for _ in range(2))
    for mask in range(256):
        members = np.array([k for k in range(8) if mask >> k & 1], np.uint8)
        gather[mask, : members.size] = members
        spread[mask, members] = np.arange(members.size)
    orders = gather.view("<u8").reshape(-1), spread.view("<u8").reshape(-1)
    return orders


@functools.cache
def taking_first(itemsize: int) -> Any:
    """Make the subroutine (bits, escape, out) of `take_first`."""
    word, shift = np.dtype(f"uint{8 * itemsize}").type, SHIFTS[itemsize]

    @subroutine
    def split_first(bits, escape, out):
        if escape == 0:
            for i in range(out.size):  # bits.size == out.size
                out[i] = np.uint8(word(bits[i] >> word(shift)))
            return
        for i in range(out.size):
            byte = np.uint8(word(bits[i] >> word(shift)))
            out[i] = escape if byte == 0 and bits[i] != word(0) else byte

    return split_first


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _first(itemsize: int) -> Kernel:
    take = taking_first(itemsize)

    @kernel(f"in uint{8 * itemsize}[], uint8, out uint8[]", variant=str(itemsize))
    def take_first(bits, escape, out):
        take(bits, escape, out)  # bits.size == out.size

    return take_first


@functools.cache
def taking_others(itemsize: int) -> Any:
    """Make the subroutine (bits, stride, out) of `take_others`."""
    word, shift, planes = np.dtype(f"uint{8 * itemsize}").type, SHIFTS[itemsize], itemsize - 1
    low = (1 << shift) - 1
    high = (1 << 8 * itemsize) - 1 - low

    @block("bits", "i", "out", "stride")
    def take_block(e: Emitter) -> None:
        builder, kind = e.builder, lanes(8 * itemsize)
        values = e.load(e.address("bits", "i"), kind, itemsize)
        upper = builder.and_(builder.lshr(values, kind([8] * BLOCK)), kind([high] * BLOCK))
        rest = builder.or_(upper, builder.and_(values, kind([low] * BLOCK)))
        target = e.address("out", "i")
        for plane in range(planes):
            moved = builder.lshr(rest, kind([8 * (planes - 1 - plane)] * BLOCK))
            e.store(builder.trunc(moved, lanes(8)), target, 1)
            target = builder.gep(target, [e.args["stride"]])

    @subroutine
    def split_others(bits, stride, out):
        # out.size >= (planes - 1) * stride + bits.size
        whole = bits.size // BLOCK * BLOCK
        for i in range(0, whole, BLOCK):
            take_block(bits, i, out, stride)
        for i in range(whole, bits.size):
            rest = word(word(bits[i] >> word(8)) & word(high)) | word(bits[i] & word(low))
            for plane in range(planes):
                by = word(8 * (planes - 1 - plane))
                out[plane * stride + i] = np.uint8(word(rest >> by))

    return split_others


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _others(itemsize: int) -> Kernel:
    take = taking_others(itemsize)

    @kernel(f"in uint{8 * itemsize}[], int64, out uint8[]", variant=str(itemsize))
    def take_others(bits, stride, out):
        take(bits, stride, out)  # out.size >= (itemsize - 2) * stride + bits.size

    return take_others


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _others_counted(itemsize: int) -> Kernel:
    take, planes = taking_others(itemsize), itemsize - 1

    @kernel(
        f"in uint{8 * itemsize}[], int64, out uint8[], out int64[], out int64[]",
        variant=str(itemsize),
    )
    def count_others(bits, period, room, tables, counts):
        # room.size == planes * _TILE, and counts.size == planes * 256; see `count_part` for
        # `tables`.
        for plane in range(planes):
            tables[:] = 0
            for at in range(0, bits.size, period):
                part = bits[at : at + _TILE]
                take(part, _TILE, room)
                count_part(room[plane * _TILE : plane * _TILE + part.size], tables)
            add_tables(tables, counts[256 * plane : 256 * plane + 256])

    return count_others


@functools.cache
def joining(itemsize: int) -> Any:
    """Make the subroutine that joins planes; see `take_others`.

    (first, others, stride, out, streaming): with `streaming`, `out` is aligned to a vector.
    """
    word, shift, planes = np.dtype(f"uint{8 * itemsize}").type, SHIFTS[itemsize], itemsize - 1
    low = (1 << shift) - 1
    high = (1 << 8 * (itemsize - 1)) - 1 - low

    def emit(e: Emitter, streaming: bool) -> None:
        builder, kind = e.builder, lanes(8 * itemsize)
        own = builder.zext(e.load(e.address("first", "i"), lanes(8), 1), kind)
        source, rest = e.address("others", "i"), kind([0] * BLOCK)
        for _ in range(planes):
            part = builder.zext(e.load(source, lanes(8), 1), kind)
            rest = builder.or_(builder.shl(rest, kind([8] * BLOCK)), part)
            source = builder.gep(source, [e.args["stride"]])
        upper = builder.shl(builder.and_(rest, kind([high] * BLOCK)), kind([8] * BLOCK))
        values = builder.or_(upper, builder.and_(rest, kind([low] * BLOCK)))
        values = builder.or_(values, builder.shl(own, kind([shift] * BLOCK)))
        e.store(values, e.address("out", "i"), STREAMED if streaming else itemsize, streaming)

    @block("first", "others", "i", "stride", "out")
    def join_block(e: Emitter) -> None:
        emit(e, streaming=False)

    @block("first", "others", "i", "stride", "out")
    def stream_block(e: Emitter) -> None:
        emit(e, streaming=True)

    @subroutine
    def join_part(first, others, stride, out, streaming):
        # first.size == out.size; others.size >= (planes - 1) * stride + out.size
        whole = out.size // BLOCK * BLOCK
        if streaming:
            for i in range(0, whole, BLOCK):
                stream_block(first, others, i, stride, out)
        else:
            for i in range(0, whole, BLOCK):
                join_block(first, others, i, stride, out)
        for i in range(whole, out.size):
            rest = word(0)
            for plane in range(planes):
                rest = word(word(rest << word(8)) | word(others[plane * stride + i]))
            moved = word(word(rest & word(high)) << word(8)) | word(rest & word(low))
            out[i] = word(moved | word(word(first[i]) << word(shift)))

    return join_part


@kernel("in uint8[], in uint8[], in uint64[], out uint8[]", vectorized=False)
def _gather_coded(plane, is_coded, orders, out):
    # plane.size == is_coded.size; the mask selects out.size elements; orders.size is 256.
    i, at = 0, 0
    while i + _GROUP <= plane.size:
        mask = bytes_at_least(is_coded, i, np.uint8(1))
        if mask != np.uint64(0):
            if at + _GROUP > out.size:
                break
            for k in range(i, i + _GROUP, 8):
                own = mask & _BYTE
                store_word(out, at, arranged(load_word(plane, k), orders[own]))
                at += np.int64(count_ones(own))
                mask >>= _EIGHT
        i += _GROUP
    for k in range(i, plane.size):
        if is_coded[k] and at < out.size:
            out[at] = plane[k]
            at += 1


@kernel("in uint8[], in uint8[], in uint64[], out uint8[]", vectorized=False)
def _spread_coded(data, first, orders, out):
    # first.size == out.size; data.size elements of `first` are not 0; orders.size is 256.
    i, at = 0, 0
    while i + _GROUP <= out.size:
        mask = bytes_at_least(first, i, np.uint8(1))
        if mask == np.uint64(0):
            for k in range(i, i + _GROUP, 8):
                store_word(out, k, np.uint64(0))
        else:
            if at + _GROUP > data.size:
                break
            for k in range(i, i + _GROUP, 8):
                own = mask & _BYTE
                store_word(out, k, arranged(load_word(data, at), orders[own]))
                at += np.int64(count_ones(own))
                mask >>= _EIGHT
        i += _GROUP
    for k in range(i, out.size):
        is_coded = first[k] != 0 and at < data.size
        out[k] = data[at] if is_coded else np.uint8(0)
        at += np.int64(is_coded)
