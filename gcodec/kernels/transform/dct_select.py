"""The k largest coefficients of each chunk, by magnitude; the first of equal ones are taken.

Magnitudes are compared as the integers of their bits. A group of elements has a maximum; the k-th
largest of these maxima is a lower bound of the k-th largest element, so the kernel compares few
elements one by one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gcodec.kernels.numeric.arithmetic import NO_TERMS, TERMS, ResidualUpdate, add_tile
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.numeric.words import count_ones, trailing_zeros
from gcodec.kernels.transform.dct_forward import panels_of, transform
from gcodec.kernels.transform.dct_inverse import Sizes
from gcodec.runtime.cover import streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, kernel, subroutine
from gcodec.runtime.lanes import AHEAD, BLOCK, SIGN, Emitter, Value, block, fence, lanes

_MAGNITUDE = np.int32(SIGN - 1)
_SHIFTS = (5, 3, 0)  # logarithms of the number of elements in a group
_FEW = 4  # selected elements whose keys are found one after the other


@dispatched("gcodec.kernels.transform.dct_select_cuda")
def largest(y: np.ndarray, k: int, places: np.ndarray, values: np.ndarray) -> bool:
    """Select from each chunk; return whether all elements are finite.

    Parameters
    ----------
    y : (m, size) float32 array
        Chunks of coefficients.
    k : int
        Number of coefficients to select from a chunk, from 1 to size.
    places : (m, k) int32 array
        Set to the places of the selected coefficients in their chunk, rising.
    values : (m, k) float32 array
        Set to the selected coefficients.
    """
    terms = NO_TERMS[0], *NO_TERMS, False
    return _select(y.reshape(-1), y.shape[1], terms, k, places, values)


def largest_of_sums(
    x: np.ndarray, update: ResidualUpdate, k: int, places: np.ndarray, values: np.ndarray
) -> bool:
    """Do what `largest` does for (m, size) sums x + decay·residual, and write the sums.

    The sums become the new residual of the update. An update in place saves the residual.
    """
    size = x.shape[1]
    streaming = size % BLOCK == 0 and streams(update.separate_output)
    sums = np.empty(size, np.float32)
    terms = sums, *update.terms(x.reshape(-1)), streaming
    is_finite = _select(sums, size, terms, k, places, values)
    update.mark_replaced()
    return is_finite


def largest_of_transforms(
    x: np.ndarray,
    sizes: Sizes,
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    folds: tuple[int, int, int],
    y: np.ndarray,
    k: int,
    places: np.ndarray,
    values: np.ndarray,
    update: ResidualUpdate | None = None,
) -> bool:
    """Do what `largest` does for the transforms of chunks; see `dct_forward.forward`.

    `y` is scratch memory of `dct_forward.batch_of(sizes)` elements. With an update, the residual
    is added first, and the sums become the new residual. An update in place saves the residual.
    """
    size = math.prod(sizes)
    terms: tuple[Any, ...] = (x, *NO_TERMS[1:]) if update is None else update.terms(x)
    streaming = update is not None and size % BLOCK == 0 and streams(update.separate_output)
    transformed = y.size, *sizes, *tables, *folds, *panels_of(sizes)
    out = places.reshape(-1), values.reshape(-1).view(np.int32)
    chunks = *terms, streaming, *transformed, y, y.view(np.int32)
    is_finite = _transform_and_select(*chunks, k, *_room(size, k), *out)
    if update is not None:
        update.mark_replaced()
    return bool(is_finite)


def _select(
    y: np.ndarray,
    size: int,
    terms: tuple[Any, ...],
    k: int,
    places: np.ndarray,
    values: np.ndarray,
) -> bool:
    """Select from chunks of y, or of the sums of terms, which y contains one after the other."""
    out = places.reshape(-1), values.reshape(-1).view(np.int32)
    return bool(_select_largest(y.view(np.int32), *terms, size, k, *_room(size, k), *out))


def _room(size: int, k: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the shift of groups, and scratch memory, for k of `size` elements."""
    shift = next((shift for shift in _SHIFTS if 2 * k << shift <= size), 0)
    at, keys = np.empty((2, size), np.int32)
    return shift, np.empty(-(-size >> shift), np.int32), np.empty(1, np.uint32), at, keys


def _keys(e: Emitter) -> Value:
    """Emit the magnitudes of 32 elements of x from i on as integers."""
    bits = e.load(e.address("x", "i"), lanes(32))
    return e.builder.and_(bits, bits.type([SIGN - 1] * BLOCK))


def _finding(shift: int) -> Intrinsic:
    """Make the block that stores the largest key of each group, from group g on, of 32 keys."""
    groups = BLOCK >> shift

    @block("x", "i", "tops", "g")
    def find_tops(e: Emitter) -> None:
        builder, keys, count = e.builder, _keys(e), BLOCK
        while count > groups:
            count //= 2
            # Neighbors are compared; or halves, which takes less time, if there is one group.
            first, step = (count, 1) if groups == 1 else (1, 2)
            places = (lanes(32, count)([at + step * k for k in range(count)]) for at in (0, first))
            low, high = (builder.shuffle_vector(keys, keys, half) for half in places)
            keys = e.larger(low, high)
        e.store(keys, e.address("tops", "g"))

    return find_tops


_find_one, _find_four, _find_all = map(_finding, _SHIFTS)


@block("x", "i", "bound", "mask")
def _find_mask(e: Emitter) -> None:
    """Store a mask of the keys, of 32, that are not below a bound; the first is the lowest bit."""
    from llvmlite import ir

    above = e.builder.icmp_signed(">=", _keys(e), e.splat(e.args["bound"]))
    e.builder.store(e.builder.bitcast(above, ir.IntType(BLOCK)), e.args["mask"])


@subroutine
def _count_from(keys, size, bound):
    """Count the first `size` keys that are not below a bound."""
    count = np.int32(0)
    for i in range(size):
        count = np.int32(count + np.int32(keys[i] >= bound))
    return np.int64(count)


@subroutine
def _bound_of(keys, size, k, more, low, high):
    """Return a lower bound of k to k + `more` of the first keys; or the k-th largest key.

    The k-th largest key is at least low, and below high.
    """
    if k <= _FEW:  # passing from one of the largest keys to the next takes less time than halving
        while _count_from(keys, size, high) < k:
            following = low
            for i in range(size):
                following = max(following, keys[i] if keys[i] < high else low)
            high = following
        return high
    while np.int64(high) - low > 1:
        middle = np.int32(low + (np.int64(high) - low) // 2)
        count = _count_from(keys, size, middle)
        if count >= k:
            low = middle
            if count <= k + more:
                break
        else:
            high = middle
    return low


@kernel(
    f"in int32[], out float32[], {TERMS}, boolean, int64, int64, int64, out int32[], "
    "out uint32[], out int32[], out int32[], out int32[], out int32[]"
)
def _select_largest(
    x, sums, terms, streaming, size, k, shift, tops, mask, at, keys, places, values
):
    # If the terms are empty, x are the bits of all chunks. Otherwise, they are those of `sums`,
    # which has room for one chunk; all terms have the same size, but the backup may have none.
    # places.size == values.size == k * (elements / size); tops.size == ceil(size / 2**shift) >= k,
    # and `shift` is in _SHIFTS; at.size == keys.size == size.
    whole, sparse = size - size % BLOCK, shift == _SHIFTS[0]
    is_finite = True
    for chunk in range(places.size // k):
        base = chunk * size
        if terms[0].size > 0:
            add_tile(terms, base, size, sums, streaming, max(size, AHEAD))
            base = 0
        if sparse:
            for g in range(whole // BLOCK):
                _find_one(x, base + g * BLOCK, tops, g)
        else:
            for i in range(0, whole, BLOCK):
                if shift:
                    _find_four(x, base + i, tops, i >> _SHIFTS[1])
                else:
                    _find_all(x, base + i, tops, i)
        tops[whole >> shift :] = 0
        for i in range(whole, size):
            tops[i >> shift] = max(tops[i >> shift], np.int32(x[base + i] & _MAGNITUDE))
        most = np.int32(0)
        for g in range(tops.size):
            most = max(most, tops[g])
        if most >= INFINITY_BITS:
            is_finite = False
            continue
        above = np.int32(most + 1)
        bound = _bound_of(tops, tops.size, k, k >> 3, np.int32(0), above)
        least = bound if sparse else np.int32(0)  # only then, a top is that of a whole block
        # List the elements not below the bound, in order: at least k, and at most size.
        count = 0
        for i in range(0, whole, BLOCK):
            if tops[i // BLOCK] < least:
                continue
            _find_mask(x, base + i, bound, mask)
            word = mask[0]
            end = count + np.int64(count_ones(word))
            for j in range(count, max(end, count + 2)):  # count <= i
                place = i + np.int64(trailing_zeros(word) & np.uint32(BLOCK - 1))
                at[j] = place
                keys[j] = np.int32(x[base + place] & _MAGNITUDE)
                word = np.uint32(word & np.uint32(word - np.uint32(1)))
            count = end
        for i in range(whole, size):
            key = np.int32(x[base + i] & _MAGNITUDE)
            if key >= bound:
                at[count] = i
                keys[count] = key
                count += 1
        last = _bound_of(keys, count, k, 0, bound, above)
        ties = k - _count_from(keys, count, np.int32(last + 1))
        # Take the elements above the k-th largest, and the first ones equal to it, k in all.
        out = chunk * k
        for j in range(count):
            tie = keys[j] == last
            if keys[j] > last or (tie and ties > 0):
                places[out] = at[j]
                values[out] = x[base + at[j]]
                out += 1
                ties -= tie
    if streaming:
        fence()
    return is_finite


@kernel(
    f"{TERMS}, boolean, int64, (int64, int64, int64), (in float32[], in float32[], in float32[]), "
    "(int64, int64, int64), (out float32[], out float32[]), out float32[], in int32[], int64, "
    "int64, (out int32[], out uint32[], out int32[], out int32[]), out int32[], out int32[]"
)
def _transform_and_select(
    terms, streaming, batch, sizes, tables, folds, panels, y, bits, k, shift, room, places, values
):
    # y.size == bits.size == batch, and bits are those of y. Without a residual, the terms are x
    # alone. For all others, see `dct_forward.transform` and `_select_largest`.
    size = sizes[0] * sizes[1] * sizes[2]
    x, residual, decay, new_residual, backup = terms
    nothing = x[:0], residual[:0], decay, new_residual[:0], backup[:0]
    transformed = batch, sizes, tables, folds, panels
    is_finite = True
    for start in range(0, x.size, batch):
        count = min(batch, x.size - start)
        part = y[:count]
        if residual.size > 0:
            add_tile(terms, start, count, part, streaming, batch)
            transform(part, *transformed, part)
        else:
            transform(x[start : start + count], *transformed, part)
        first, stop = start // size * k, (start + count) // size * k
        selected = size, k, shift, *room, places[first:stop], values[first:stop]
        is_finite &= _select_largest(bits[:count], part[:0], nothing, False, *selected)
    if streaming:
        fence()
    return is_finite
