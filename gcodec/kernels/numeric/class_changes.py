"""Changes between two arrays of bit patterns, counted and applied by classes of the old elements.

The context of an element is a byte of its old bit pattern: its bits from bit `shift` on. Bounds
divide the contexts into at most 6 classes, numbered from 0 on. The difference of two bit patterns
is the distance of their ranks, modulo the number of patterns: floats are ranked by their values,
with −0 before 0 and NaN at both ends, integers by their bits. Differences are signed; they are
stored as 2·d for d ≥ 0 and as −2·d − 1 for d < 0, so that 0 is the only one of equal patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.numeric.words import count_ones, masked_above, trailing_zeros, unequal
from gcodec.runtime import Array, pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine

MOST_CLASSES = 6
CONTEXTS = 256
_ITEMSIZES = (1, 2, 4, 8)
_STEP = 64  # elements whose classes a kernel compares at once
_APART = 2 * CONTEXTS + 8  # entries from one table of counts to the next
_TABLES = 4  # equal neighbors would wait for each other's count
_NEVER = 1 << 62  # elements before a change that does not come
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

    def levels(self, dtype: np.dtype[Any], bounds: Sequence[int]) -> tuple[Any, np.ndarray]:
        """Return the mask of the context, and the patterns that contexts of classes exceed."""
        most = (1 << 8 * dtype.itemsize - 1) - 1
        levels = np.full(MOST_CLASSES - 1, most, dtype)
        levels[: len(bounds)] = [(bound << self.shift) - 1 for bound in bounds]
        return dtype.type(0xFF << self.shift & most), levels


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
        counts = np.zeros(_TABLES * _APART, np.int64)
        run(old[start:stop], new[start:stop], np.uint64(contexts.shift), counts)
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
    run, levels = _split(old.itemsize), contexts.levels(old.dtype, bounds)
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
    run, levels = _count(bits.itemsize), contexts.levels(bits.dtype, bounds)

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
    run, levels = _apply(old.itemsize), contexts.levels(old.dtype, bounds)
    offsets = starts_of([part.size for part in places])
    all_places, all_differences = np.concatenate(places), np.concatenate(differences)
    before = np.cumsum(sizes.sizes, axis=0) - sizes.sizes

    def task(start: int, stop: int) -> None:
        row = sizes.starts[start]
        state = np.zeros((3, MOST_CLASSES), np.int64)
        state[2] = _NEVER
        for k, part in enumerate(places):
            first = int(before[row, k])
            low, high = np.searchsorted(part, [first, first + int(sizes.sizes[row, k])])
            state[:2, k] = low + offsets[k], high + offsets[k]
            if low < high:
                state[2, k] = part[low] - first
        flat, target = state.reshape(-1), out[start:stop]
        if out is not old:
            target[:] = old[start:stop]
        run(target, *levels, contexts.is_float, all_places, all_differences, flat)

    pool.run(task, old.size, _STEP)


@inline
def _rank(pattern, is_float, sign):
    """Return the rank of a bit pattern, as uint64; `sign` is its highest bit."""
    if not is_float:
        return pattern
    if pattern & sign:
        return ~pattern & (sign | (sign - np.uint64(1)))
    return pattern | sign


@inline
def _pattern(rank, is_float, sign):
    """Return the bit pattern of a rank."""
    if not is_float:
        return rank
    if rank & sign:
        return rank ^ sign
    return ~rank & (sign | (sign - np.uint64(1)))


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _tally(itemsize: int) -> Kernel:
    word = f"uint{8 * itemsize}[]"

    @kernel(f"in {word}, in {word}, uint64, out int64[]", variant=str(itemsize))
    def tally_contexts(old, new, shift, counts):
        # new.size == old.size; counts.size == _TABLES * _APART
        whole = old.size // _TABLES
        for i in range(whole):
            for k in range(_TABLES):
                a, b = old[_TABLES * i + k], new[_TABLES * i + k]
                context = (np.uint64(a) >> shift) & _BYTE
                counts[np.uint64(k * _APART) + context + np.uint64(CONTEXTS) * (a != b)] += 1
        for i in range(_TABLES * whole, old.size):
            context = (np.uint64(old[i]) >> shift) & _BYTE
            counts[context + np.uint64(CONTEXTS) * (old[i] != new[i])] += 1

    return tally_contexts


@inline
def _class_of(pattern, mask, levels):
    """Return the class of a bit pattern."""
    kind = 0
    for k in range(MOST_CLASSES - 1):  # levels.size == MOST_CLASSES - 1
        kind += np.int64(pattern & mask > levels[k])
    return kind


@inline
def _members(bits, at, mask, levels):
    """Return a mask of each class of the 64 elements from `at` on; bit k is that of `at` + k."""
    b = masked_above(bits, at, mask, levels[0])
    c = masked_above(bits, at, mask, levels[1])
    d = masked_above(bits, at, mask, levels[2])
    e = masked_above(bits, at, mask, levels[3])
    f = masked_above(bits, at, mask, levels[4])
    return ~b, b & ~c, c & ~d, d & ~e, e & ~f, f


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _count(itemsize: int) -> Kernel:
    word = f"uint{8 * itemsize}"

    @kernel(f"in {word}[], {word}, in {word}[], out int64[]", str(itemsize), vectorized=False)
    def count_classes(bits, mask, levels, counts):
        # levels.size == MOST_CLASSES - 1; counts.size == MOST_CLASSES == 6. The 64 elements from
        # each `at` on exist.
        whole = bits.size - bits.size % 64
        for at in range(0, whole, 64):
            a, b, c, d, e, f = _members(bits, at, mask, levels)
            counts[0] += np.int64(count_ones(a))
            counts[1] += np.int64(count_ones(b))
            counts[2] += np.int64(count_ones(c))
            counts[3] += np.int64(count_ones(d))
            counts[4] += np.int64(count_ones(e))
            counts[5] += np.int64(count_ones(f))
        for i in range(whole, bits.size):
            counts[_class_of(bits[i], mask, levels)] += 1

    return count_classes


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _split(itemsize: int) -> Kernel:
    word, sign = f"uint{8 * itemsize}", np.uint64(1 << 8 * itemsize - 1)

    @subroutine
    def split_members(old, new, at, members, changed, kind, is_float, state, places, differences):
        """Write the changes of a class among the elements from `at` on that a mask selects."""
        top, rest = sign | (sign - np.uint64(1)), members & changed
        while rest:
            bit = trailing_zeros(rest)
            i, fill = at + np.int64(bit), state[MOST_CLASSES + kind]
            if 0 <= fill < places.size:  # unless another thread has changed the arrays
                before = members & ((_ONE << bit) - _ONE)
                places[fill] = state[kind] + np.int64(count_ones(before))
                a, b = np.uint64(old[i]), np.uint64(new[i])
                d = (_rank(b, is_float, sign) - _rank(a, is_float, sign)) & top
                minus = top if d & sign else np.uint64(0)
                differences[fill] = ((d << _ONE) ^ minus) & top
                state[MOST_CLASSES + kind] = fill + 1
            rest &= rest - _ONE
        state[kind] += np.int64(count_ones(members))

    arrays = f"in {word}[], in {word}[], {word}, in {word}[], boolean, out int64[], out int64[]"

    @kernel(f"{arrays}, out uint64[]", variant=str(itemsize), vectorized=False)
    def split_changes(old, new, mask, levels, is_float, state, places, differences):
        # new.size == old.size; levels.size == MOST_CLASSES - 1; state has for each of 6 classes
        # the number of preceding elements, and the index of its next change;
        # differences.size == places.size. The 64 elements from each `at` on exist.
        whole = old.size - old.size % 64
        for at in range(0, whole, 64):
            a, b, c, d, e, f = _members(old, at, mask, levels)
            on = unequal(old, new, at)
            split_members(old, new, at, a, on, 0, is_float, state, places, differences)
            split_members(old, new, at, b, on, 1, is_float, state, places, differences)
            split_members(old, new, at, c, on, 2, is_float, state, places, differences)
            split_members(old, new, at, d, on, 3, is_float, state, places, differences)
            split_members(old, new, at, e, on, 4, is_float, state, places, differences)
            split_members(old, new, at, f, on, 5, is_float, state, places, differences)
        for i in range(whole, old.size):
            kind, on = _class_of(old[i], mask, levels), np.uint64(old[i] != new[i])
            split_members(old, new, i, _ONE, on, kind, is_float, state, places, differences)

    return split_changes


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _apply(itemsize: int) -> Kernel:
    word, sign = f"uint{8 * itemsize}", np.uint64(1 << 8 * itemsize - 1)
    store = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[itemsize]
    end, waits = MOST_CLASSES, 2 * MOST_CLASSES

    @subroutine
    def apply_to_members(bits, at, members, kind, is_float, places, differences, state):
        """Apply the changes of a class among the elements from `at` on that a mask selects."""
        count, wait = np.int64(count_ones(members)), state[waits + kind]
        top = sign | (sign - np.uint64(1))
        while wait < count:
            for _ in range(wait):
                members &= members - _ONE
            i = at + np.int64(trailing_zeros(members))
            index = state[kind]
            count -= wait + 1
            members &= members - _ONE
            wait = np.int64(_NEVER)
            if index < state[end + kind]:  # which is at most places.size
                d = differences[index]
                d = (d >> _ONE) ^ (np.uint64(0) - (d & _ONE))
                rank = (_rank(np.uint64(bits[i]), is_float, sign) + d) & top
                bits[i] = store(_pattern(rank, is_float, sign))
                state[kind] = index + 1
                if index + 1 < state[end + kind]:
                    wait = places[index + 1] - places[index] - 1
        state[waits + kind] = wait - count

    arrays = f"out {word}[], {word}, in {word}[], boolean, in int64[], in uint64[], out int64[]"

    @kernel(arrays, variant=str(itemsize), vectorized=False)
    def apply_changes(bits, mask, levels, is_float, places, differences, state):
        # levels.size == MOST_CLASSES - 1; state has for each of 6 classes: the index of its next
        # change, the end of its changes, and the number of its elements before that change. The
        # 64 elements from each `at` on exist. As places rise, no such number is negative.
        whole = bits.size - bits.size % 64
        for at in range(0, whole, 64):
            a, b, c, d, e, f = _members(bits, at, mask, levels)
            apply_to_members(bits, at, a, 0, is_float, places, differences, state)
            apply_to_members(bits, at, b, 1, is_float, places, differences, state)
            apply_to_members(bits, at, c, 2, is_float, places, differences, state)
            apply_to_members(bits, at, d, 3, is_float, places, differences, state)
            apply_to_members(bits, at, e, 4, is_float, places, differences, state)
            apply_to_members(bits, at, f, 5, is_float, places, differences, state)
        for i in range(whole, bits.size):
            kind = _class_of(bits[i], mask, levels)
            apply_to_members(bits, i, _ONE, kind, is_float, places, differences, state)

    return apply_changes
