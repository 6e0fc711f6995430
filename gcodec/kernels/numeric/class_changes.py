"""Changes between two arrays of bit patterns, counted and applied by classes of the old elements.

The context of an element is a byte of its old bit pattern: its bits from bit `shift` on. A table
maps contexts to at most 6 classes, numbered from 0 on. The difference of two bit patterns is the
distance of their ranks, modulo the number of patterns: floats are ranked by their values, with −0
before 0 and NaN at both ends, integers by their bits. Differences are signed; they are stored as
2·d for d ≥ 0 and as −2·d − 1 for d < 0, so that 0 is the only one of equal patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.words import trailing_zeros
from gcodec.runtime import pool
from gcodec.runtime.jit import Kernel, factory, inline, kernel

MOST_CLASSES = 6
_CONTEXTS = 256
_ITEMSIZES = (1, 2, 4, 8)
_STEP = 8  # elements for which a kernel tests at once whether one of them changes
_APART = 2 * _CONTEXTS + 8  # entries from one table of counts to the next
_TABLES = 4  # equal neighbors would wait for each other's count
_NEVER = 1 << 62  # elements before a change that does not come
_WIDTH = 10  # bits of the counter of a class; the highest one becomes 0 when it passes 0
_FIELD = (1 << _WIDTH - 1) - 1  # most elements that a counter counts
_HIGH = np.uint64(sum(1 << _WIDTH * kind + _WIDTH - 1 for kind in range(MOST_CLASSES)))
_SUMMED = (1 << _WIDTH) - 1  # most elements whose steps may be added without overflow
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


class Tally(NamedTuple):
    """Numbers of elements by their contexts.

    Attributes
    ----------
    elements, changed : (segments, 256) int64 array
        All elements, and those that change, of each segment of the thread pool.
    """

    elements: np.ndarray
    changed: np.ndarray


def by_class(counts: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the (segments, 6) sums of (segments, 256) counts by class."""
    sums: np.ndarray = counts @ (table[:, None] == np.arange(MOST_CLASSES))
    return sums


def tally(old: np.ndarray, new: np.ndarray, contexts: Contexts) -> Tally:
    """Count (n,) elements and changes by their contexts."""
    run = _tally(old.itemsize)

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(_TABLES * _APART, np.int64)
        run(old[start:stop], new[start:stop], np.uint64(contexts.shift), counts)
        own: np.ndarray = counts.reshape(_TABLES, _APART).sum(axis=0)[: 2 * _CONTEXTS]
        return own

    counts = np.stack(pool.run(task, old.size, _STEP))
    equal, changed = counts[:, :_CONTEXTS], counts[:, _CONTEXTS:]
    return Tally(equal + changed, changed)


def split(
    old: np.ndarray, new: np.ndarray, contexts: Contexts, table: np.ndarray, known: Tally
) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes of (n,) elements, those of the first class first.

    Parameters
    ----------
    old, new : (n,) unsigned array
    contexts : Contexts
    table : (256,) uint8 array
        Class of each context.
    known : Tally
        What `tally` returned.

    Returns
    -------
    places : (k,) int64 array
        Position of each changed element among the elements of its class.
    differences : (k,) uint64 array
    """
    run = _split(old.itemsize)
    elements, changed = (by_class(counts, table) for counts in known)
    places = np.empty(int(changed.sum()), np.int64)
    differences = np.empty(places.size, np.uint64)
    ranks = np.cumsum(elements, axis=0) - elements
    starts = np.cumsum(changed.sum(axis=0)) - changed.sum(axis=0)
    fills = starts + np.cumsum(changed, axis=0) - changed
    row_of = dict[int, int]()
    for start in pool.run(lambda start, stop: start, old.size, _STEP):
        row_of[start] = len(row_of)

    def task(start: int, stop: int) -> None:
        row, part = row_of[start], slice(start, stop)
        shift, is_float = np.uint64(contexts.shift), contexts.is_float
        state = np.concatenate([ranks[row], fills[row]])
        run(old[part], new[part], shift, is_float, table, state, places, differences)

    pool.run(task, old.size, _STEP)
    return places, differences


class ClassSizes(NamedTuple):
    """Numbers of elements of each class.

    Attributes
    ----------
    starts : dict
        Row of each segment of the thread pool, by its first element.
    sizes : (segments, 6) int64 array
    """

    starts: dict[int, int]
    sizes: np.ndarray

    @property
    def totals(self) -> np.ndarray:
        """The (6,) numbers of all segments."""
        totals: np.ndarray = self.sizes.sum(axis=0)
        return totals


def class_sizes(bits: np.ndarray, contexts: Contexts, table: np.ndarray) -> ClassSizes:
    """Count (n,) elements by their classes; `table` contains the class of each context."""
    run, steps = _count(bits.itemsize), _steps_of(table)

    def task(start: int, stop: int) -> tuple[int, np.ndarray]:
        counts = np.zeros(MOST_CLASSES, np.int64)
        run(bits[start:stop], np.uint64(contexts.shift), steps, counts)
        return start, counts

    rows = pool.run(task, bits.size, _STEP)
    starts = {start: row for row, (start, _) in enumerate(rows)}
    return ClassSizes(starts, np.stack([counts for _, counts in rows]))


def apply(
    bits: np.ndarray,
    contexts: Contexts,
    table: np.ndarray,
    sizes: ClassSizes,
    places: Sequence[np.ndarray],
    differences: Sequence[np.ndarray],
) -> None:
    """Apply changes to (n,) bit patterns in place.

    Parameters
    ----------
    bits : (n,) unsigned array
    contexts : Contexts
    table : (256,) uint8 array
        Class of each context.
    sizes : ClassSizes
        What `class_sizes` returned.
    places, differences : sequence of arrays
        For each class, rising positions below its size, and differences; see `split`.
    """
    run, steps = _apply(bits.itemsize), _steps_of(table)
    offsets = np.cumsum([0, *(part.size for part in places)])
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
        shift, is_float = np.uint64(contexts.shift), contexts.is_float
        flat = state.reshape(-1)
        run(bits[start:stop], shift, is_float, steps, all_places, all_differences, flat)

    pool.run(task, bits.size, _STEP)


def _steps_of(table: np.ndarray) -> np.ndarray:
    """Return 1 in the counter of its class for each context, as (256,) uint64."""
    steps: np.ndarray = _ONE << (table.astype(np.uint64) * np.uint64(_WIDTH))
    return steps


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
    def tally(old, new, shift, counts):
        # new.size == old.size; counts.size == _TABLES * _APART
        whole = old.size // _TABLES
        for i in range(whole):
            for k in range(_TABLES):
                a, b = old[_TABLES * i + k], new[_TABLES * i + k]
                context = (np.uint64(a) >> shift) & _BYTE
                counts[np.uint64(k * _APART) + context + np.uint64(_CONTEXTS) * (a != b)] += 1
        for i in range(_TABLES * whole, old.size):
            context = (np.uint64(old[i]) >> shift) & _BYTE
            counts[context + np.uint64(_CONTEXTS) * (old[i] != new[i])] += 1

    return tally


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _split(itemsize: int) -> Kernel:
    word, sign = f"uint{8 * itemsize}[]", np.uint64(1 << 8 * itemsize - 1)
    arrays = "in uint8[], out int64[], out int64[], out uint64[]"

    @kernel(f"in {word}, in {word}, uint64, boolean, {arrays}", variant=str(itemsize))
    def split(old, new, shift, is_float, table, state, places, differences):
        # new.size == old.size; table.size == 256; state contains the number of preceding elements
        # of each of 6 classes, and the index of its next change.
        mask = sign | (sign - np.uint64(1))
        for i in range(old.size):
            a = np.uint64(old[i])
            kind = min(np.int64(table[(a >> shift) & _BYTE]), MOST_CLASSES - 1)
            if old[i] != new[i]:
                at = state[MOST_CLASSES + kind]
                if at < places.size:  # unless another thread has changed the arrays
                    b = np.uint64(new[i])
                    d = (_rank(b, is_float, sign) - _rank(a, is_float, sign)) & mask
                    places[at] = state[kind]
                    minus = mask if d & sign else np.uint64(0)
                    differences[at] = ((d << _ONE) ^ minus) & mask
                    state[MOST_CLASSES + kind] = at + 1
            state[kind] += 1

    return split


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _count(itemsize: int) -> Kernel:
    @kernel(f"in uint{8 * itemsize}[], uint64, in uint64[], out int64[]", variant=str(itemsize))
    def count(bits, shift, steps, counts):
        # steps.size == 256; counts.size == MOST_CLASSES
        for start in range(0, bits.size, _SUMMED):
            part = bits[start : start + _SUMMED]
            total = np.uint64(0)
            for i in range(part.size):
                total += steps[(np.uint64(part[i]) >> shift) & _BYTE]
            for kind in range(MOST_CLASSES):
                counts[kind] += np.int64((total >> np.uint64(_WIDTH * kind)) & np.uint64(_SUMMED))

    return count


@inline
def _step(bits, i, shift, steps):
    return steps[(np.uint64(bits[i]) >> shift) & _BYTE]


@inline
def _counts_on(left):
    """Return whether no counter has passed 0."""
    return np.int64(left & _HIGH == _HIGH)


@inline
def _latest(before, after):
    """Return counters after an element, or those before it if one of them would pass 0."""
    return after if after & _HIGH == _HIGH else before


@factory(lambda: ((itemsize,) for itemsize in _ITEMSIZES))
def _apply(itemsize: int) -> Kernel:
    sign = np.uint64(1 << 8 * itemsize - 1)
    arrays = f"out uint{8 * itemsize}[], uint64, boolean, in uint64[], in int64[], in uint64[]"
    store = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[itemsize]

    @kernel(f"{arrays}, out int64[]", variant=str(itemsize), vectorized=False)
    def apply(bits, shift, is_float, steps, places, differences, state):
        # steps.size == 256; state has for each of 6 classes: the index of its next change, the
        # end of its changes, which is at most places.size, and the elements before that change.
        # The counter of a class in `left` is 512 and the number of its elements that pass before
        # the next one is visited; the rest of that number is in `state`.
        mask = sign | (sign - np.uint64(1))
        left = np.uint64(0)
        for kind in range(MOST_CLASSES):
            now = min(state[2 * MOST_CLASSES + kind], _FIELD)
            state[2 * MOST_CLASSES + kind] -= now
            left |= np.uint64(_FIELD + 1 + now) << np.uint64(_WIDTH * kind)
        at = 0
        while at < bits.size:
            if bits.size - at >= 8:
                a = left - _step(bits, at, shift, steps)
                b = a - _step(bits, at + 1, shift, steps)
                c = b - _step(bits, at + 2, shift, steps)
                d = c - _step(bits, at + 3, shift, steps)
                e = d - _step(bits, at + 4, shift, steps)
                f = e - _step(bits, at + 5, shift, steps)
                g = f - _step(bits, at + 6, shift, steps)
                h = g - _step(bits, at + 7, shift, steps)
                if h & _HIGH == _HIGH:
                    left = h
                    at += 8
                    continue
                # All elements before the one that is visited pass.
                passed = _counts_on(a) + _counts_on(b) + _counts_on(c) + _counts_on(d)
                passed += _counts_on(e) + _counts_on(f) + _counts_on(g)
                at += passed
                left = _latest(_latest(_latest(left, a), b), c)
                left = _latest(_latest(_latest(_latest(left, d), e), f), g)
            step = _step(bits, at, shift, steps)
            left -= step
            if left & _HIGH != _HIGH:
                kind = min(np.int64(trailing_zeros(step)) // _WIDTH, MOST_CLASSES - 1)
                wait = state[2 * MOST_CLASSES + kind]
                if wait > 0:
                    wait -= 1
                else:
                    index = state[kind]
                    wait = _NEVER
                    if index < state[MOST_CLASSES + kind]:
                        difference = differences[index]
                        difference = (difference >> _ONE) ^ (np.uint64(0) - (difference & _ONE))
                        rank = _rank(np.uint64(bits[at]), is_float, sign)
                        bits[at] = store(_pattern((rank + difference) & mask, is_float, sign))
                        state[kind] = index + 1
                        if index + 1 < state[MOST_CLASSES + kind]:
                            wait = places[index + 1] - places[index] - 1
                now = min(wait, _FIELD)
                state[2 * MOST_CLASSES + kind] = wait - now
                left += np.uint64(1 + now) << np.uint64(_WIDTH * kind)
            at += 1

    return apply
