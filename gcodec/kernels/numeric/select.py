"""The k largest magnitudes of an array, or all magnitudes not below a threshold.

Magnitudes are compared as integers, the bits of |x|, without rounding; the first of equal ones are
taken. A sample of many elements suggests a level that a few more than k exceed, and one pass
gathers these candidates. If they are too few or too many, or if there are few elements in all, a
histogram of the upper bits determines the bin of the smallest of the k magnitudes. Further
histograms divide the bin down to a single number. If most elements are candidates, for example
because many are equal, the histograms count the array itself, because a list of candidates would
be as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.arithmetic import TERMS, ResidualUpdate, add_tile
from gcodec.kernels.numeric.log_histogram import FINITE, SHIFT, log_histogram
from gcodec.kernels.numeric.reduce import INFINITY_BITS, max_abs_bits
from gcodec.kernels.numeric.scatter import take
from gcodec.kernels.numeric.words import count_ones, magnitudes_above, trailing_zeros
from gcodec.kernels.prefix.value_classes import PackedPositions
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.lanes import fence
from gcodec.runtime.memory import magnitude_bits, tile_beside

_CUT = 9  # bits by which a histogram divides a bin
_FEW = 4  # candidates are gathered if their number falls by at least this factor
_WORD = 64  # elements that are compared at once
_LAST = np.uint64(_WORD - 1)
_LEAST_SAMPLED = 1 << 20  # elements from which on a sample takes less time than a histogram
_RARE = 16  # elements for each of the largest, where the memory of more candidates matters little
_RUNS, _RUN = 1 << 12, 8  # runs of neighbors in a sample, and elements of a run
_SAFETY = 5  # standard deviations that a sample may err by before one of the k largest is missed
_TABLES = 4  # equal neighbors would wait for each other's count

_TILE = 1 << 10  # elements of a sum that are compared while they are in the cache

_Room = tuple[np.ndarray, np.ndarray]  # for places in a segment as int32, and for elements
_TakePart = Callable[[int, int, np.int32, _Room], int]
"""Writes places and elements above a level in a segment, and returns their number."""


class Guess(NamedTuple):
    """What a sample suggests about the largest magnitudes.

    Attributes
    ----------
    level : int
        Bits of a magnitude that a few more than k exceed.
    most : int
        How many may exceed it.
    """

    level: int
    most: int


@dispatched("gcodec.kernels.numeric.select_cuda")
def take_largest(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Select the k largest magnitudes; the first of equal ones are taken.

    Parameters
    ----------
    values : (n,) float32 array
    k : int
        Number of magnitudes, from 0 to n.

    Returns
    -------
    (k,) int64 and (k,) float32 arrays, or None
        Positions, rising, and elements, both on the host; None if the values contain NaN or
        infinity.
    """
    suggested, candidates = guess(values, k), None
    if suggested is not None:
        candidates = _candidates(suggested, k, values.size, partial(_take_part, values))
    return _largest_among(values, k, candidates)


def take_many(values: np.ndarray, k: int) -> tuple[PackedPositions, np.ndarray] | None:
    """Do what `take_largest` does, on the host, for more than a quarter of the values."""
    return _largest_among(values, k, None, PackedPositions(k))


def take_largest_of_sums(
    x: np.ndarray, update: ResidualUpdate, k: int, suggested: Guess
) -> tuple[np.ndarray, np.ndarray] | None:
    """Do what `take_largest` does for the sums x + decay·residual, and write the sums.

    The sums become the new residual of the update. An update in place saves the residual. The
    guess is that of `guess` for the sums.
    """
    streaming = streams(update.separate_output)

    def take_part(start: int, stop: int, level: np.int32, room: _Room) -> int:
        own = update.part(start, stop)
        sums = tile_beside(_TILE, own.separate_output)
        count = _take_sums_above(*own.terms(x[start:stop]), streaming, sums, level, *room)
        own.mark_replaced()
        return int(count)

    candidates = _candidates(suggested, k, x.size, take_part)
    return _largest_among(update.new_residual, k, candidates)


def guess(values: np.ndarray, k: int, update: ResidualUpdate | None = None) -> Guess | None:
    """Return a level that a few more than k magnitudes probably exceed, from a sample.

    The result is None if there are too few values for a sample, if k is too large a share of them,
    or if the sample suggests no level. With an update, the magnitudes are those of the sums.
    """
    n = values.size
    if n < _LEAST_SAMPLED or not 0 < k <= n // _RARE:
        return None
    stride = (n // _RUNS - 1) | 1  # odd, so that runs lie in many columns of a matrix
    places = (stride * np.arange(_RUNS).reshape(-1, 1) + np.arange(_RUN)).reshape(-1)
    sample = take(values, places)
    if update is not None:
        with np.errstate(all="ignore"):
            sample += update.decay * take(update.residual, places)
    hits = -(-k * sample.size // n)
    rank = hits + _SAFETY * (math.isqrt(hits) + 1)
    place, inside, above = _bin_of(log_histogram(sample), rank)
    most = (inside + above) * n // sample.size * 5 // 4
    return Guess((place << SHIFT) - 1, most) if place and _FEW * most <= n else None


def _candidates(
    suggested: Guess, k: int, n: int, take_part: _TakePart
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements that include the k largest; None if the guess is wrong."""
    positions, elements = np.empty(suggested.most, np.int64), np.empty(suggested.most, np.float32)
    count = _list_parts(take_part, n, suggested.level, positions, elements)
    if not k <= count <= suggested.most:
        return None
    for array in (positions, elements):
        array.resize(count, refcheck=False)
    return positions, elements


def _largest_among(
    values: np.ndarray,
    k: int,
    listed: tuple[np.ndarray, np.ndarray] | None,
    packed: PackedPositions | None = None,
) -> Any:
    """Select from candidates, given by positions and elements, or for None from all values.

    In the latter case, the positions are written to `packed` if it is given.
    """
    places, candidates = (None, values) if listed is None else listed
    counts = log_histogram(candidates)
    if counts[FINITE:].any():  # NaN and infinity are candidates, being the largest
        return None
    if k in (0, values.size) and packed is None:
        positions = np.arange(k)
        return positions, take(values, positions)
    low, shift, need = 0, SHIFT, k
    while True:
        place, inside, above = _bin_of(counts, need)
        low += place << shift
        need -= above  # to take from the bin of 2^shift levels from `low` on; k − need are above
        if need == inside or shift == 0:
            break
        count = k - need + inside
        if _FEW * count <= candidates.size:
            if places is None:
                places, candidates = np.empty(count, np.int64), np.empty(count, np.float32)
                _list_parts(partial(_take_part, values), values.size, low - 1, places, candidates)
            else:
                _keep_largest(places, candidates, low - 1, 0)
        finer = max(shift - _CUT, 0)
        counts, shift = _counts_within(candidates, low, finer, 1 << shift - finer), finer
    level, ties = (low - 1, 0) if need == inside else (low, need)
    if places is not None:
        _keep_largest(places, candidates, level, ties)
        return places, candidates
    del candidates
    chosen, elements = packed or np.empty(k, np.int64), np.empty(k, np.float32)
    _list_parts(partial(_take_part, values), values.size, level, chosen, elements, ties)
    return chosen, elements


@dispatched("gcodec.kernels.numeric.select_cuda")
def take_at_least(
    values: np.ndarray, threshold: np.float32
) -> tuple[np.ndarray, np.ndarray] | None:
    """Select all magnitudes not below a threshold, which is not NaN; see `take_largest`."""
    level = int(threshold.view(np.int32)) if threshold > 0 else 0
    positions, elements = _above(values, level - 1)
    return None if max_abs_bits(elements) >= INFINITY_BITS else (positions, elements)


def _bin_of(counts: np.ndarray, need: int) -> tuple[int, int, int]:
    """Return the bin of the last of the `need` largest, its count, and the counts above it."""
    totals = np.cumsum(counts[::-1])
    place = int(np.searchsorted(totals, need))
    inside = int(counts[-1 - place])
    return counts.size - 1 - place, inside, int(totals[place]) - inside


def _above(values: np.ndarray, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the (m,) int64 positions and the elements whose magnitudes' bits exceed a level."""

    def task(start: int, stop: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
        size = min(stop - start, pool.SEGMENT)
        places, elements = np.empty(size, np.int32), np.empty(size, np.float32)
        parts = []
        for at in range(start, stop, pool.SEGMENT):
            part = values[at : min(at + pool.SEGMENT, stop)]
            count = _take_above(part, np.int32(level), places, elements)
            parts.append((at, places[:count].copy(), elements[:count].copy()))
        return parts

    parts = [part for parts in pool.run(task, values.size) for part in parts]
    count, end = sum(part.size for _, part, _ in parts), 0
    positions, elements = np.empty(count, np.int64), np.empty(count, np.float32)
    for at, part, own_elements in parts:
        span = slice(end, end + part.size)
        np.add(part, at, out=positions[span], dtype=np.int64)
        elements[span] = own_elements
        end += part.size
    return positions, elements


def _list_parts(
    take_part: _TakePart,
    n: int,
    level: int,
    positions: np.ndarray | PackedPositions,
    elements: np.ndarray,
    ties: int = 0,
) -> int:
    """Write positions and elements above a level, and those of the first `ties` that equal it.

    There is no other memory of this size. Return their number. If there is not enough room, some
    of them are missing.
    """
    end, least = 0, level - (ties > 0)
    rooms: list[_Room] = []  # that no task uses; fresh memory for each segment would cost too much

    def task(start: int, stop: int) -> tuple[_Room, int, bool]:
        try:
            room = rooms.pop()
        except IndexError:
            size = min(pool.SEGMENT, n)
            room = np.empty(size, np.int32), np.empty(size, np.float32)
        has_ties = least < level
        return room, take_part(start, stop, np.int32(least), room), has_ties

    def append(start: int, part: tuple[_Room, int, bool]) -> None:
        nonlocal end, least, ties
        room, size, has_ties = part
        if has_ties:
            size, ties = _keeper("int32")(np.int32(level), ties, room[0][:size], room[1][:size])
            least = level - (ties > 0)
        if end + size <= elements.size:
            places = room[0][:size]
            if isinstance(positions, PackedPositions):
                positions.append(places, min(pool.SEGMENT, n - start))
            else:
                np.add(places, start, out=positions[end : end + size], dtype=np.int64)
            elements[end : end + size] = room[1][:size]
        end += size
        rooms.append(room)

    pool.run_in_order(task, append, n, pool.SEGMENT)
    return end


def _take_part(values: np.ndarray, start: int, stop: int, level: np.int32, room: _Room) -> int:
    return int(_take_above(values[start:stop], level, *room))


def _keep_largest(places: np.ndarray, elements: np.ndarray, level: int, ties: int) -> None:
    """Drop all but the magnitudes whose bits exceed a level, and the first `ties` that equal it.

    Both arrays own their memory, and nobody else uses it.
    """
    count, _ = _keeper("int64")(np.int32(level), ties, places, elements)
    for array in (places, elements):
        array.resize(count, refcheck=False)


def _counts_within(values: np.ndarray, low: int, shift: int, bins: int) -> np.ndarray:
    """Count the magnitudes in `bins` bins of 2^shift levels each, from level `low` on."""

    def task(start: int, stop: int) -> np.ndarray:
        tables = np.zeros(_TABLES * (bins + 1), np.int64)
        for at in range(start, stop, pool.SEGMENT):
            part = values[at : min(at + pool.SEGMENT, stop)]
            _count_within(part, np.uint32(low), np.uint32(shift), tables)
        return tables

    tables = pool.run_added(task, values.size).reshape(_TABLES, bins + 1)
    return tables.sum(axis=0)[:bins]


@inline
def _append_above(values, first, level, places, elements, count):
    """Append the elements of a part that begins with element `first`; return their new number."""
    # count <= first, and places.size == elements.size >= first + values.size. Few words have more
    # than two bits, so two places are written at once, whether or not they count.
    whole = values.size - values.size % _WORD
    for i in range(0, whole, _WORD):
        mask = magnitudes_above(values, i, level)
        end = count + np.int64(count_ones(mask))
        for k in range(count, count + 2):
            at = i + np.int64(trailing_zeros(mask) & _LAST)  # the first one if none is left
            places[k] = np.int32(first + at)
            elements[k] = values[at]
            mask &= mask - np.uint64(1)
        for k in range(count + 2, end):
            at = i + np.int64(trailing_zeros(mask))
            places[k] = np.int32(first + at)
            elements[k] = values[at]
            mask &= mask - np.uint64(1)
        count = end
    for i in range(whole, values.size):
        if np.int32(magnitude_bits(values[i])) > level:
            places[count] = np.int32(first + i)
            elements[count] = values[i]
            count += 1
    return count


@kernel("in float32[], int32, out int32[], out float32[]")
def _take_above(values, level, places, elements):
    # places.size == elements.size >= values.size
    return _append_above(values, 0, level, places, elements, 0)


@kernel(f"{TERMS}, boolean, out float32[], int32, out int32[], out float32[]")
def _take_sums_above(terms, streaming, sums, level, places, elements):
    # places.size == elements.size >= n, the number of elements of the terms; the backup has as
    # many or none. sums.size == _TILE.
    n, count = terms[0].size, 0
    for tile in range(0, n, _TILE):
        size = min(n - tile, _TILE)
        add_tile(terms, tile, size, sums, streaming, _TILE)
        count = _append_above(sums[:size], tile, level, places, elements, count)
    if streaming:
        fence()
    return count


@factory(lambda: (("int32",), ("int64",)))
def _keeper(kind: str) -> Kernel:
    """Make the kernel that drops elements, and counts those kept and the ties that are left."""

    @kernel(f"int32, int64, out {kind}[], out float32[]", variant=kind)
    def keep(level, ties, places, elements):
        # places.size == elements.size. No element is written before it is read: count <= i.
        count = 0
        for i in range(elements.size):
            place, element = places[i], elements[i]
            bits = np.int32(magnitude_bits(element))
            tie = bits == level and ties > 0
            places[count], elements[count] = place, element
            count += bits > level or tie
            ties -= tie
        return count, ties

    return keep


@kernel("in float32[], uint32, uint32, out int64[]")
def _count_within(values, low, shift, tables):
    # tables.size == _TABLES * (bins + 1). The last bin of each table counts the magnitudes outside
    # the others; the difference of a magnitude below `low` wraps around to a large number.
    bins = np.uint32(tables.size // _TABLES - 1)
    whole = values.size - values.size % _TABLES
    for i in range(0, whole, _TABLES):
        for table in range(_TABLES):
            size = magnitude_bits(values[i + table])
            place = min(np.uint32(np.uint32(size - low) >> shift), bins)
            tables[np.uint64(place) + np.uint64(table) * np.uint64(bins + np.uint32(1))] += 1
    for i in range(whole, values.size):
        size = magnitude_bits(values[i])
        tables[np.uint64(min(np.uint32(np.uint32(size - low) >> shift), bins))] += 1
