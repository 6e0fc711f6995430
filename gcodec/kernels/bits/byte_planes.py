"""Byte planes: one byte of each element by itself, and the bytes of all other bits.

The first plane contains the 8 bits of each bit pattern from bit `shift` on. Those of floats of 16
and 32 bits include the exponent, and those of integers are the most significant ones. The other
bits, joined, are the bytes of the other planes, the most significant byte first. So the sign of a
float is the highest bit of the second plane.

The first plane of bfloat16 and float32 may instead contain the first bit of the mantissa, and the
exponent without its highest bit. That bit must be 0, and no plane contains it. So the second plane
has a bit less.

The other planes may leave out the elements whose bits are all 0. The others are coded elements:
each group of 4096 elements has a number of them.
"""

from __future__ import annotations

import functools

import numpy as np

from gcodec.kernels.numeric.byte_counts import add_tables, count_part, count_tables
from gcodec.kernels.numeric.words import (
    arranged,
    at_least,
    count_ones,
    load_word,
    store_word,
)
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, Subroutine, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, lanes

FLOAT_SHIFTS = {2: 7, 4: 23, 8: 52}  # lowest bit of the first plane, by the bytes of a float
MANTISSA_SHIFTS = {2: 6, 4: 22}  # the same of bfloat16 and float32, with a bit of the mantissa
FORMS = (*FLOAT_SHIFTS.items(), *((itemsize, 8 * itemsize - 8) for itemsize in (1, 2, 4, 8)))
"""Bytes of an element and lowest bit of the first plane, of floats and of integers."""
FLOAT_FORMS = *FLOAT_SHIFTS.items(), *MANTISSA_SHIFTS.items()
"""The same of floats alone, with and without a bit of the mantissa."""
ALL_FORMS = *FORMS, *MANTISSA_SHIFTS.items()
"""The same of all first planes."""
_NO_GROUPS = np.empty(0, np.uint16), np.empty(0, np.uint8)
GROUP = 1 << 12  # elements whose coded elements are counted
_COUNTED = 1 << 17  # elements of a task that counts them
_MASKED = 64  # elements whose mask is one word
_BYTE, _EIGHT = np.uint64(255), np.uint64(8)


@dispatched("gcodec.kernels.bits.byte_planes_cuda")
def take_others(
    bits: np.ndarray, shift: int, out: np.ndarray, stride: int, coded: np.ndarray | None = None
) -> None:
    """Write the other planes of (n,) bit patterns, on this thread.

    Plane k begins at ``(k - 1) * stride``. If `coded` contains the numbers of `coded_counts`,
    elements of 0 are left out.
    """
    counts, room = group_arguments(bits.itemsize, coded)
    _others(bits.itemsize, shift)(bits, counts, stride, orders()[0], room, out)


@dispatched("gcodec.kernels.bits.byte_planes_cuda")
def coded_counts(bits: np.ndarray, shift: int) -> tuple[np.ndarray, int]:
    """Count the coded elements among (n,) bit patterns of floats, n > 0.

    Returns
    -------
    counts : (ceil(n / 4096),) uint16 array
        On the host: the number of elements that are not 0, of each group.
    hidden : int
        The number of elements that are not 0 although their byte of the first plane is 0.
    """
    counts = np.empty(-(-bits.size // GROUP), np.uint16)
    loop = _coded_counted(bits.itemsize, shift)

    def task(start: int, stop: int) -> int:
        hidden = np.zeros(1, np.int64)
        loop(bits[start:stop], counts[start // GROUP : -(-stop // GROUP)], hidden)
        return int(hidden[0])

    return counts, sum(pool.run(task, bits.size, _COUNTED))


def count_others(bits: np.ndarray, shift: int, period: int) -> np.ndarray:
    """Count the bytes of the other planes of runs of 2^12 elements.

    Parameters
    ----------
    bits : (n,) unsigned array
        Bit patterns of all elements.
    shift : int
    period : int
        Elements from one run to the next. The last run may be shorter.

    Returns
    -------
    (planes, 256) int64 array
    """
    planes = bits.itemsize - 1
    counts, room = np.zeros((planes, 256), np.int64), np.empty(planes * GROUP, np.uint8)
    _others_counted(bits.itemsize, shift)(bits, period, room, count_tables(), counts.reshape(-1))
    return counts


def distance_above(itemsize: int, shift: int) -> int:
    """Return how far the bits above the first plane are from their place in the other planes."""
    return 9 if (itemsize, shift) in MANTISSA_SHIFTS.items() else 8


def group_arguments(itemsize: int, coded: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return arguments of kernels: the numbers of `coded_counts`, and memory for a group's planes.

    Both are empty if `coded` is None, so that no element is left out.
    """
    return _NO_GROUPS if coded is None else (coded, np.empty(itemsize * GROUP, np.uint8))


@functools.cache
def orders() -> tuple[np.ndarray, np.ndarray]:
    """Return the orders of `arranged` for each mask of 8 bytes: to gather them, and to spread."""
    gather, spread = (np.full((256, 8), 128, np.uint8) for _ in range(2))
    for mask in range(256):
        members = np.array([k for k in range(8) if mask >> k & 1], np.uint8)
        gather[mask, : members.size] = members
        spread[mask, members] = np.arange(members.size)
    words = gather.view("<u8").reshape(-1), spread.view("<u8").reshape(-1)
    return words


@functools.cache
def taking_first(itemsize: int, shift: int) -> Subroutine:
    """Make the subroutine (bits, escape, out) that writes the first plane.

    A byte of 0 is replaced by `escape` unless all bits of its element are 0.
    """
    word = np.dtype(f"uint{8 * itemsize}").type

    @block("bits", "i", "escape", "out")
    def take_block(e: Emitter) -> None:
        builder, kind = e.builder, lanes(8 * itemsize)
        values = e.fetched(e.address("bits", "i"), kind, itemsize)
        first = builder.trunc(builder.lshr(values, kind([shift] * BLOCK)), lanes(8))
        is_escaped = builder.and_(
            builder.icmp_unsigned("==", first, lanes(8)([0] * BLOCK)),
            builder.icmp_unsigned("!=", values, kind([0] * BLOCK)),
        )
        first = builder.select(is_escaped, e.splat(e.args["escape"]), first)
        e.store(first, e.address("out", "i"), 1)

    @subroutine
    def split_first(bits, escape, out):
        whole = out.size // BLOCK * BLOCK  # bits.size == out.size
        for i in range(0, whole, BLOCK):
            take_block(bits, i, escape, out)
        for i in range(whole, out.size):
            byte = np.uint8(word(bits[i] >> word(shift)))
            out[i] = escape if byte == 0 and bits[i] != word(0) else byte

    return split_first


@functools.cache
def taking_others(itemsize: int, shift: int) -> Subroutine:
    """Make the subroutine (bits, stride, out) of `take_others`."""
    word, planes = np.dtype(f"uint{8 * itemsize}").type, itemsize - 1
    low, distance = (1 << shift) - 1, distance_above(itemsize, shift)
    high = (1 << 8 * itemsize) - 1 - low

    @block("bits", "i", "out", "stride")
    def take_block(e: Emitter) -> None:
        builder, kind = e.builder, lanes(8 * itemsize)
        values = e.fetched(e.address("bits", "i"), kind, itemsize)
        above = builder.lshr(values, kind([distance] * BLOCK))
        upper = builder.and_(above, kind([high] * BLOCK))
        rest = builder.or_(upper, builder.and_(values, kind([low] * BLOCK)))
        target = e.address("out", "i")
        for plane in range(planes):
            e.fetch(target)
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
            upper = word(word(bits[i] >> word(distance)) & word(high))
            rest = upper | word(bits[i] & word(low))
            for plane in range(planes):
                by = word(8 * (planes - 1 - plane))
                out[plane * stride + i] = np.uint8(word(rest >> by))

    return split_others


@factory(lambda: FLOAT_FORMS)
def _coded_counted(itemsize: int, shift: int) -> Kernel:
    word = np.dtype(f"uint{8 * itemsize}").type

    @kernel(f"in uint{8 * itemsize}[], out uint16[], out int64[]", variant=f"{itemsize} {shift}")
    def count_coded(bits, counts, hidden):
        # counts.size is the number of groups, and hidden.size 1.
        for group in range(counts.size):
            part = bits[group * GROUP : (group + 1) * GROUP]
            coded, own = word(0), word(0)
            for i in range(part.size):
                is_coded = word(part[i] != word(0))
                coded = word(coded + is_coded)
                is_first = word(word(word(part[i] >> word(shift)) & word(255)) != word(0))
                own = word(own + word(is_coded & word(is_first ^ word(1))))
            counts[group] = np.uint16(coded)
            hidden[0] += np.int64(own)

    return count_coded


@functools.cache
def taking_coded(itemsize: int, shift: int) -> Subroutine:
    """Make the subroutine that writes the other planes of a group without its zeros."""
    take, planes = taking_others(itemsize, shift), itemsize - 1

    @subroutine
    def take_coded(bits, is_coded, count, stride, orders, room, out):
        # `count` bytes of `is_coded`, which has as many elements as `bits`, are not 0; room.size
        # >= planes * GROUP; out.size >= (planes - 1) * stride + count; orders.size == 256.
        if count == bits.size:
            take(bits, stride, out)
        elif count > 0:
            take(bits, GROUP, room)
            for plane in range(planes):
                own = room[plane * GROUP : plane * GROUP + bits.size]
                target = out[plane * stride : plane * stride + count]
                _gather_coded(own, is_coded, orders, target)

    return take_coded


@factory(lambda: ALL_FORMS)
def _others(itemsize: int, shift: int) -> Kernel:
    take, take_coded = taking_others(itemsize, shift), taking_coded(itemsize, shift)
    word, planes = np.dtype(f"uint{8 * itemsize}").type, itemsize - 1

    @kernel(
        f"in uint{8 * itemsize}[], in uint16[], int64, in uint64[], out uint8[], out uint8[]",
        variant=f"{itemsize} {shift}",
    )
    def take_others(bits, counts, stride, orders, room, out):
        # counts.size is 0, or the number of groups. The planes have as many elements as `bits`, or
        # as the sum of the counts: out.size >= (planes - 1) * stride + their size. room.size is
        # itemsize * GROUP if there are counts; see `take_coded`.
        if counts.size == 0:
            take(bits, stride, out)
        at = 0
        for group in range(counts.size):
            part, count = bits[group * GROUP : (group + 1) * GROUP], np.int64(counts[group])
            is_coded = room[planes * GROUP : planes * GROUP + part.size]
            for i in range(part.size):
                is_coded[i] = np.uint8(part[i] != word(0))
            take_coded(part, is_coded, count, stride, orders, room, out[at:])
            at += count

    return take_others


@factory(lambda: ALL_FORMS)
def _others_counted(itemsize: int, shift: int) -> Kernel:
    take, planes = taking_others(itemsize, shift), itemsize - 1

    @kernel(
        f"in uint{8 * itemsize}[], int64, out uint8[], out int64[], out int64[]",
        variant=f"{itemsize} {shift}",
    )
    def count_others(bits, period, room, tables, counts):
        # room.size == planes * GROUP, and counts.size == planes * 256; see `count_part` for
        # `tables`.
        for plane in range(planes):
            tables[:] = 0
            for at in range(0, bits.size, period):
                part = bits[at : at + GROUP]
                take(part, GROUP, room)
                count_part(room[plane * GROUP : plane * GROUP + part.size], tables)
            add_tables(tables, counts[256 * plane : 256 * plane + 256])

    return count_others


@functools.cache
def joining(itemsize: int, shift: int) -> Subroutine:
    """Make the subroutine that joins planes; see `take_others`.

    (first, others, stride, out, streaming): with `streaming`, `out` is aligned to a vector.
    """
    word, planes = np.dtype(f"uint{8 * itemsize}").type, itemsize - 1
    low, distance = (1 << shift) - 1, distance_above(itemsize, shift)
    high = (1 << 8 * (itemsize - 1)) - 1 - low

    def emit(e: Emitter, streaming: bool) -> None:
        builder, kind = e.builder, lanes(8 * itemsize)
        own = builder.zext(e.fetched(e.address("first", "i"), lanes(8), 1), kind)
        source, rest = e.address("others", "i"), kind([0] * BLOCK)
        for _ in range(planes):
            part = builder.zext(e.fetched(source, lanes(8), 1), kind)
            rest = builder.or_(builder.shl(rest, kind([8] * BLOCK)), part)
            source = builder.gep(source, [e.args["stride"]])
        values = builder.shl(own, kind([shift] * BLOCK))
        if planes:
            upper = builder.and_(rest, kind([high] * BLOCK))
            upper = builder.shl(upper, kind([distance] * BLOCK))
            rest = builder.or_(upper, builder.and_(rest, kind([low] * BLOCK)))
            values = builder.or_(rest, values)
        e.store(values, e.address("out", "i"), itemsize, streaming)

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
            upper = word(word(rest & word(high)) << word(distance))
            moved = upper | word(rest & word(low))
            out[i] = word(moved | word(word(first[i]) << word(shift)))

    return join_part


@functools.cache
def joining_coded(itemsize: int, shift: int) -> Subroutine:
    """Make the subroutine that joins the planes of a group without its zeros."""
    join, planes = joining(itemsize, shift), itemsize - 1
    zero = np.dtype(f"uint{8 * itemsize}").type(0)

    @subroutine
    def join_coded(first, escape, count, others, stride, orders, room, out, streaming):
        """Return whether `count` bytes of `first` are not 0, as there must be."""
        # first.size == out.size <= GROUP; others.size >= (planes - 1) * stride + count; room.size
        # >= planes * GROUP; orders.size == 256.
        coded = np.uint16(0)
        for i in range(first.size):
            coded = np.uint16(coded + np.uint16(first[i] != 0))
        if coded != count:
            return False
        if count == 0:
            for i in range(out.size):
                out[i] = zero
            return True
        if count < first.size:
            for plane in range(planes):
                own = others[plane * stride : plane * stride + count]
                _spread_coded(own, first, orders, room[plane * GROUP : plane * GROUP + first.size])
        if escape != 0:
            for i in range(first.size):
                first[i] = np.uint8(0) if first[i] == escape else first[i]
        if count < first.size:
            join(first, room, GROUP, out, streaming)
        else:
            join(first, others, stride, out, streaming)
        return True

    return join_coded


@inline
def _gather_each(plane, is_coded, first, last, at, out):
    """Gather single bytes; return the number of bytes of `out` that are written then."""
    for k in range(first, last):
        if is_coded[k] and at < out.size:
            out[at] = plane[k]
            at += 1
    return at


@kernel("in uint8[], in uint8[], in uint64[], out uint8[]", vectorized=False)
def _gather_coded(plane, is_coded, orders, out):
    # plane.size == is_coded.size; the mask selects out.size elements; orders.size is 256. A word
    # may be stored if eight words fit.
    at, whole = 0, plane.size // _MASKED * _MASKED
    for i in range(0, whole, _MASKED):
        mask = at_least(is_coded, i, np.uint8(1))
        if mask == np.uint64(0):
            continue
        if at + _MASKED > out.size:
            at = _gather_each(plane, is_coded, i, i + _MASKED, at, out)
            continue
        for k in range(i, i + _MASKED, 8):
            own = mask & _BYTE
            store_word(out, at, arranged(load_word(plane, k), orders[own]))
            at += np.int64(count_ones(own))
            mask >>= _EIGHT
    _gather_each(plane, is_coded, whole, plane.size, at, out)


@inline
def _spread_each(data, first, begin, end, at, out):
    """Spread single bytes; return the number of bytes of `data` that are read then."""
    for k in range(begin, end):
        is_coded = first[k] != 0 and at < data.size
        out[k] = data[at] if is_coded else np.uint8(0)
        at += np.int64(is_coded)
    return at


@kernel("in uint8[], in uint8[], in uint64[], out uint8[]", vectorized=False)
def _spread_coded(data, first, orders, out):
    # first.size == out.size; data.size elements of `first` are not 0; orders.size is 256. A word
    # may be loaded if there are eight words.
    at, whole = 0, out.size // _MASKED * _MASKED
    for i in range(0, whole, _MASKED):
        mask = at_least(first, i, np.uint8(1))
        if mask == np.uint64(0):
            for k in range(i, i + _MASKED, 8):
                store_word(out, k, np.uint64(0))
            continue
        if at + _MASKED > data.size:
            at = _spread_each(data, first, i, i + _MASKED, at, out)
            continue
        for k in range(i, i + _MASKED, 8):
            own = mask & _BYTE
            store_word(out, k, arranged(load_word(data, at), orders[own]))
            at += np.int64(count_ones(own))
            mask >>= _EIGHT
    _spread_each(data, first, whole, out.size, at, out)
