"""Changes between two arrays of bit patterns, counted and applied by classes of the old elements.

The context of an element is a byte of its old bit pattern: its bits from bit `shift` on. Bounds
divide the contexts into at most 6 classes, numbered from 0 on. The difference of two bit patterns
is the distance of their ranks, modulo the number of patterns: floats are ranked by their values,
with −0 before 0 and NaN at both ends, integers by their bits. Differences are signed; they are
stored as 2·d for d ≥ 0 and as −2·d − 1 for d < 0, so that 0 is the only one of equal patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.numeric.words import (
    at_least,
    bytes_above,
    count_ones,
    place_of_one,
    trailing_zeros,
    unequal,
)
from gcodec.runtime import Array, pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import Emitter, block, lanes

MOST_CLASSES = 6
CONTEXTS = 256
_ITEMSIZES = (1, 2, 4, 8)
_STEP = 64  # elements whose classes a kernel compares at once
_APART = 2 * CONTEXTS + 8  # entries from one table of counts to the next
_TABLES = 4  # equal neighbors would wait for each other's count
_PARTS = 64  # parts of 64 elements: a chunk, whose changes are found class by class
_COPIED = 1 << 17  # elements that are still in the cache when their changes are applied
_above = bytes_above(MOST_CLASSES - 1)
_BYTE, _ONE = np.uint64(0xFF), np.uint64(1)


class Contexts(NamedTuple):
    """How bit patterns are ranked, and where their contexts lie.

    Attributes
    ----------
    shift : int
        Lowest bit of the context.
    is_float : bool
        Whether patterns are ranked as floats.
    """

    shift: int
    is_float: bool

    def levels(self, bounds: Sequence[int]) -> tuple[np.uint64, np.uint64]:
        """Return the shift, and the contexts that those of classes exceed as bytes of a word."""
        levels = [bound - 1 for bound in bounds] + [255] * (MOST_CLASSES - 1 - len(bounds))
        return np.uint64(self.shift), np.uint64(int.from_bytes(levels, "little"))


class Tally(NamedTuple):
    """Numbers of elements by their contexts.

    Attributes
    ----------
    elements, changed : (segments, 256) int64 array
        All elements, and those that change, of each segment of the thread pool. A device has one
        segment; its numbers are on the host, too.
    """

    elements: np.ndarray
    changed: np.ndarray


def by_class(counts: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
    """Return the (segments, 6) sums of (segments, 256) counts by class."""
    table = np.searchsorted(np.array(bounds, np.int64), np.arange(CONTEXTS), "right")
    return counts @ (table[:, None] == np.arange(MOST_CLASSES))


@dispatched("gcodec.kernels.numeric.class_changes_cuda")
def tally(old: np.ndarray, new: np.ndarray, contexts: Contexts) -> Tally:
    """Count (n,) elements and changes by their contexts."""
    run = _tally(old.itemsize)

    def task(start: int, stop: int) -> np.ndarray:
        counts, keys = np.zeros(_TABLES * _APART, np.int64), np.empty(64, np.uint16)
        run(old[start:stop], new[start:stop], np.uint64(contexts.shift), counts, keys)
        return counts.reshape(_TABLES, _APART).sum(axis=0)[: 2 * CONTEXTS]

    counts = np.stack(pool.run(task, old.size, _STEP))
    equal, changed = counts[:, :CONTEXTS], counts[:, CONTEXTS:]
    return Tally(equal + changed, changed)


@dispatched("gcodec.kernels.numeric.class_changes_cuda")
def split(
    old: np.ndarray, new: np.ndarray, contexts: Contexts, bounds: Sequence[int], known: Tally
) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes of (n,) elements, those of the first class first.

    Parameters
    ----------
    old, new : (n,) unsigned array
    contexts : Contexts
    bounds : sequence of int
        The least context of each class but the first.
    known : Tally
        What `tally` returned.

    Returns
    -------
    places : (k,) int64 array
        Position of each changed element among the elements of its class. On the host, also for
        elements on a device.
    differences : (k,) uint64 array
    """
    run, levels = _split(old.itemsize), contexts.levels(bounds)
    elements, changed = (by_class(counts, bounds) for counts in known)
    places = np.empty(int(changed.sum()), np.int64)
    differences = np.empty(places.size, np.uint64)
    ranks = np.cumsum(elements, axis=0) - elements
    starts = np.cumsum(changed.sum(axis=0)) - changed.sum(axis=0)
    fills = starts + np.cumsum(changed, axis=0) - changed
    starting = pool.run(lambda start, stop: start, old.size, _STEP)
    row_of = {start: row for row, start in enumerate(starting)}

    def task(start: int, stop: int) -> None:
        row, part = row_of[start], slice(start, stop)
        state = np.concatenate([ranks[row], fills[row]])
        flags = *levels, contexts.is_float
        run(old[part], new[part], *flags, state, places, differences)

    pool.run(task, old.size, _STEP)
    return places, differences


class ClassSizes(NamedTuple):
    """Numbers of elements of each class.

    Attributes
    ----------
    totals : (6,) int64 array
        Numbers of all elements; of a device, a `Deferred` array of as many as there are classes.
    sizes : array
        Numbers of each segment of the thread pool, (segments, 6) int64. Of a device, those that
        precede each part of the elements, class by class; see ``class_changes.cu``.
    starts : dict
        Row of each segment by its first element; empty for a device.
    """

    totals: Array
    sizes: Array
    starts: dict[int, int]


@dispatched("gcodec.kernels.numeric.class_changes_cuda")
def class_sizes(bits: np.ndarray, contexts: Contexts, bounds: Sequence[int]) -> ClassSizes:
    """Count (n,) elements by their classes, given the least context of each but the first."""
    run, levels = _count(bits.itemsize), contexts.levels(bounds)

    def task(start: int, stop: int) -> tuple[int, np.ndarray]:
        counts = np.zeros(MOST_CLASSES, np.int64)
        run(bits[start:stop], *levels, counts)
        return start, counts

    rows = pool.run(task, bits.size, _STEP)
    starts = {start: row for row, (start, _) in enumerate(rows)}
    sizes = np.stack([counts for _, counts in rows])
    return ClassSizes(sizes.sum(axis=0), sizes, starts)


@dispatched("gcodec.kernels.numeric.class_changes_cuda")
def apply(
    old: np.ndarray,
    contexts: Contexts,
    bounds: Sequence[int],
    sizes: ClassSizes,
    places: Sequence[np.ndarray],
    differences: Sequence[np.ndarray],
    out: np.ndarray,
) -> None:
    """Write (n,) changed bit patterns.

    Parameters
    ----------
    old : (n,) unsigned array
    contexts : Contexts
    bounds : sequence of int
        The least context of each class but the first.
    sizes : ClassSizes
        What `class_sizes` returned.
    places, differences : sequence of arrays
        For each class, rising positions below its size, and differences; see `split`.
    out : (n,) unsigned array
        Either `old` itself or an array that does not share its memory.
    """
    run, levels = _apply(old.itemsize), contexts.levels(bounds)
    offsets, all_places = starts_of([part.size for part in places]), np.concatenate(places)
    all_differences = np.concatenate(differences, dtype=old.dtype, casting="same_kind")
    before = np.cumsum(sizes.sizes, axis=0) - sizes.sizes

    def task(start: int, stop: int) -> None:
        state = np.zeros((3, MOST_CLASSES), np.int64)
        state[2] = before[sizes.starts[start]]
        for k, part in enumerate(places):
            first = np.searchsorted(part, state[2, k])
            state[:2, k] = offsets[k] + first, offsets[k] + part.size
        changes = all_places, all_differences, state.reshape(-1)
        room = [np.empty(MOST_CLASSES * _PARTS, dtype) for dtype in (np.uint64, np.uint16)]
        for at in range(start, stop, _COPIED):
            target = out[at : min(at + _COPIED, stop)]
            if out is not old:
                target[:] = old[at : at + target.size]
            run(target, *levels, contexts.is_float, *changes, *room)

    pool.run(task, old.size, _STEP)


@inline
def _flips(is_float, sign):
    """Return the bits in which patterns and ranks differ: of negative floats, and of others."""
    if is_float:
        return sign | (sign - np.uint64(1)), sign
    return np.uint64(0), np.uint64(0)


@inline
def _rank(pattern, sign, negative, other):
    """Return the rank of a bit pattern, as uint64; `sign` is its highest bit."""
    return pattern ^ (negative if pattern & sign else other)


@inline
def _pattern(rank, sign, negative, other):
    """Return the bit pattern of a rank."""
    return rank ^ (other if rank & sign else negative)


@block("old", "new", "at", "shift", "keys")
def _store_keys(e: Emitter) -> None:
    """Write the contexts of the 64 elements from `at` on, and 256 more if they change, as uint16.

    Numba would compute each on its own, which takes longer than to count it.
    """
    builder, kind = e.builder, lanes(16, 64)
    firsts = [e.address(name, "at") for name in ("old", "new")]
    nbits = firsts[0].type.pointee.width
    a, b = (e.fetched(first, lanes(nbits, 64), nbits // 8) for first in firsts)
    contexts = builder.zext(e.bytes_of(a, e.args["shift"]), kind)
    changes = builder.zext(builder.icmp_unsigned("!=", a, b), kind)
    keys = builder.or_(contexts, builder.shl(changes, kind([8] * 64)))
    for k in range(0, 64, 16):  # the loads that follow wait longer for stores of 64 bytes
        e.store(e.picked(keys, range(k, k + 16)), e.element(e.args["keys"], k), 2)


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _tally(itemsize: int) -> Kernel:
    arrays = ", ".join([f"in uint{8 * itemsize}[]"] * 2)

    @kernel(f"{arrays}, uint64, out int64[], out uint16[]", str(itemsize), vectorized=False)
    def tally_contexts(old, new, shift, counts, keys):
        # new.size == old.size; counts.size == _TABLES * _APART and _TABLES == 4; keys.size == 64,
        # and keys are below 2 * CONTEXTS. The 64 elements from each `at` on exist.
        whole, apart = old.size - old.size % 64, np.uint64(_APART)
        for at in range(0, whole, 64):
            _store_keys(old, new, at, shift, keys)
            for i in range(0, 64, 4):
                counts[np.uint64(keys[i])] += 1
                counts[np.uint64(keys[i + 1]) + apart] += 1
                counts[np.uint64(keys[i + 2]) + np.uint64(2) * apart] += 1
                counts[np.uint64(keys[i + 3]) + np.uint64(3) * apart] += 1
        for i in range(whole, old.size):
            context = (np.uint64(old[i]) >> shift) & _BYTE
            counts[context + np.uint64(CONTEXTS) * (old[i] != new[i])] += 1

    return tally_contexts


@subroutine
def _above_to_end(bits, at, shift, levels):
    """Return the masks of `_above` for the elements from `at` on, which are fewer than 64."""
    b = c = d = e = f = np.uint64(0)
    for i in range(at, bits.size):
        context, place = np.uint64(bits[i]) >> shift & _BYTE, np.uint64(i - at)
        b |= np.uint64(context > levels & _BYTE) << place
        c |= np.uint64(context > levels >> np.uint64(8) & _BYTE) << place
        d |= np.uint64(context > levels >> np.uint64(16) & _BYTE) << place
        e |= np.uint64(context > levels >> np.uint64(24) & _BYTE) << place
        f |= np.uint64(context > levels >> np.uint64(32) & _BYTE) << place
    return b, c, d, e, f


@inline
def _members(bits, at, shift, levels):
    """Return a mask of each class of up to 64 elements from `at` on; bit k is that of `at` + k."""
    if at + 64 <= bits.size:
        present = ~np.uint64(0)
        b, c, d, e, f = _above(bits, at, shift, levels)
    else:
        count = max(bits.size - at, 0)
        present = (_ONE << np.uint64(count)) - _ONE
        b, c, d, e, f = _above_to_end(bits, at, shift, levels)
    return present & ~b, b & ~c, c & ~d, d & ~e, e & ~f, f


@inline
def _changes(old, new, at):
    """Return a mask of the changed ones of up to 64 elements from `at` on."""
    if at + 64 <= old.size:
        return unequal(old, new, at)
    changed = np.uint64(0)
    for i in range(at, old.size):
        changed |= np.uint64(old[i] != new[i]) << np.uint64(i - at)
    return changed


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _count(itemsize: int) -> Kernel:
    word = f"uint{8 * itemsize}"

    @kernel(f"in {word}[], uint64, uint64, out int64[]", str(itemsize), vectorized=False)
    def count_classes(bits, shift, levels, counts):
        # counts.size == MOST_CLASSES == 6
        for at in range(0, bits.size, 64):
            a, b, c, d, e, f = _members(bits, at, shift, levels)
            counts[0] += np.int64(count_ones(a))
            counts[1] += np.int64(count_ones(b))
            counts[2] += np.int64(count_ones(c))
            counts[3] += np.int64(count_ones(d))
            counts[4] += np.int64(count_ones(e))
            counts[5] += np.int64(count_ones(f))

    return count_classes


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _split(itemsize: int) -> Kernel:
    word, sign = f"uint{8 * itemsize}", np.uint64(1 << 8 * itemsize - 1)

    @subroutine
    def split_members(old, new, at, members, changed, kind, flips, state, places, differences):
        """Write the changes of a class among the elements from `at` on that a mask selects."""
        top, rest = sign | (sign - np.uint64(1)), members & changed
        while rest:
            bit = trailing_zeros(rest)
            i, fill = at + np.int64(bit), state[MOST_CLASSES + kind]
            if 0 <= fill < places.size:  # unless another thread has changed the arrays
                before = members & ((_ONE << bit) - _ONE)
                places[fill] = state[kind] + np.int64(count_ones(before))
                a, b = np.uint64(old[i]), np.uint64(new[i])
                d = (_rank(b, sign, *flips) - _rank(a, sign, *flips)) & top
                minus = top if d & sign else np.uint64(0)
                differences[fill] = ((d << _ONE) ^ minus) & top
                state[MOST_CLASSES + kind] = fill + 1
            rest &= rest - _ONE
        state[kind] += np.int64(count_ones(members))

    arrays = f"in {word}[], in {word}[], uint64, uint64, boolean, out int64[], out int64[]"

    @kernel(f"{arrays}, out uint64[]", variant=str(itemsize), vectorized=False)
    def split_changes(old, new, shift, levels, is_float, state, places, differences):
        # new.size == old.size; state has for each of 6 classes the number of preceding elements,
        # and the index of its next change; differences.size == places.size.
        flips = _flips(is_float, sign)
        for at in range(0, old.size, 64):
            a, b, c, d, e, f = _members(old, at, shift, levels)
            on = _changes(old, new, at)
            split_members(old, new, at, a, on, 0, flips, state, places, differences)
            split_members(old, new, at, b, on, 1, flips, state, places, differences)
            split_members(old, new, at, c, on, 2, flips, state, places, differences)
            split_members(old, new, at, d, on, 3, flips, state, places, differences)
            split_members(old, new, at, e, on, 4, flips, state, places, differences)
            split_members(old, new, at, f, on, 5, flips, state, places, differences)

    return split_changes


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _apply(itemsize: int) -> Kernel:
    word, sign = f"uint{8 * itemsize}", np.uint64(1 << 8 * itemsize - 1)
    store = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[itemsize]
    ends, firsts, top = MOST_CLASSES, 2 * MOST_CLASSES, sign | (sign - np.uint64(1))

    @inline
    def note(own, size, row, members, before):
        """Write the mask of a part, and how many members of the chunk precede it."""
        members[row], before[row] = own, np.uint16(size)
        return size + np.int64(count_ones(own))

    @subroutine
    def find_members(bits, start, shift, levels, members, before):
        """Write a mask of each class for each 64 elements of the chunk from `start` on.

        Also write how many elements of the class precede them in the chunk. Return the sizes of
        the classes in the chunk.
        """
        sa = sb = sc = sd = se = sf = 0
        for part in range(_PARTS):
            a, b, c, d, e, f = _members(bits, start + 64 * part, shift, levels)
            sa = note(a, sa, part, members, before)
            sb = note(b, sb, _PARTS + part, members, before)
            sc = note(c, sc, 2 * _PARTS + part, members, before)
            sd = note(d, sd, 3 * _PARTS + part, members, before)
            se = note(e, se, 4 * _PARTS + part, members, before)
            sf = note(f, sf, 5 * _PARTS + part, members, before)
        return sa, sb, sc, sd, se, sf

    @subroutine
    def apply_to_class(
        bits, start, members, before, kind, size, flips, places, differences, state
    ):
        """Apply the changes of a class, which has `size` members in the chunk from `start` on."""
        index, end, first = state[kind], state[ends + kind], state[firsts + kind]
        row = np.uint64(_PARTS * kind)
        # No branch depends on where a change lies: that could not be predicted.
        while index < end and places[index] - first < size:
            number = places[index] - first  # of the member in the chunk
            later = at_least(before, row, np.uint16(number + 1))  # parts that begin after it
            part = trailing_zeros(later) - _ONE
            below = np.uint64(number) - np.uint64(before[row + part])
            i = np.uint64(start) + np.uint64(64) * part
            i += place_of_one(members[row + part], below)
            d = np.uint64(differences[index])
            d = (d >> _ONE) ^ (np.uint64(0) - (d & _ONE))
            rank = (_rank(np.uint64(bits[i]), sign, *flips) + d) & top
            bits[i] = store(_pattern(rank, sign, *flips))
            index += 1
        state[kind], state[firsts + kind] = index, first + size

    arrays = f"out {word}[], uint64, uint64, boolean, in int64[], in {word}[], out int64[]"

    @kernel(f"{arrays}, out uint64[], out uint16[]", variant=str(itemsize), vectorized=False)
    def apply_changes(bits, shift, levels, is_float, places, differences, state, members, before):
        # members and before have _PARTS elements for each of 6 classes. state has for each class:
        # the index of its next change, the end of its changes, which is at most places.size ==
        # differences.size, and the number of its elements that precede. As places rise, and those
        # below this number have been applied, no `number` is negative; the number of a member has
        # a part, as before[row] is 0, and a bit in its mask, which is that of an element.
        flips = _flips(is_float, sign)
        for start in range(0, bits.size, 64 * _PARTS):
            sizes = find_members(bits, start, shift, levels, members, before)
            for kind in range(MOST_CLASSES):
                size = sizes[kind]
                apply_to_class(
                    bits, start, members, before, kind, size, flips, places, differences, state
                )

    return apply_changes
