"""Tables of classes: the bits that symbols take with several tables, and the best table for them.

A table has frequencies for 64 classes and 256 symbols. The two signs of a magnitude have equal
frequencies; see `gcodec.entropy.context.class_tables`. All sums are sums of integers.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.class_map import (
    CLASSES,
    SCALES,
    TALLY,
    TILE,
    ScaleArrays,
    count_tables,
    take_counts,
    tally,
)
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, MOST
from gcodec.runtime.jit import inline, kernel, subroutine

_ALPHABET = 256
_PART = 32  # counts that are usually all 0
LOG2_TOTAL = 12
_TOTAL = 1 << LOG2_TOTAL  # sum of the frequencies of a class
POINT = 28  # fractional bits of logarithms and costs
OUTLIER_NBITS = 20  # approximate bits of an entry in the list of outliers
_TOP, _LENGTH = 7, 4  # bits of the largest magnitude of a class, and of the length of a frequency
_WHOLE, _OUTLIER = LOG2_TOTAL << POINT, OUTLIER_NBITS << POINT
_ENDS, _INVALID = -1, -2  # errors that the reader of a table reports


def counts_nbits(counts: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return the bits that symbols take with each table, given the counts of the symbols.

    Parameters
    ----------
    counts : (k,) int64 array
        Not negative.
    costs : (k, tables) int64 array
        Cost of each symbol in units of 2^-28 bits, below 2^33.

    Returns
    -------
    (tables,) int64 array
        Rounded down.
    """
    sums = np.zeros(2 * costs.shape[1], np.int64)
    _add_counts(counts, costs.reshape(-1), sums)
    return np.array(_joined_halves(sums))


def symbols_nbits(
    symbols: np.ndarray, scales: ScaleArrays, step: int, costs: np.ndarray
) -> tuple[list[int], np.ndarray]:
    """Return the bits that (n,) uint8 symbols take with each table, and the reach of each class.

    The calling thread counts all symbols.

    Parameters
    ----------
    symbols, scales, step
        Symbols, their scales, and the distance of the tiles that are counted; see
        `class_map.class_counts`.
    costs
        See `counts_nbits`.

    Returns
    -------
    nbits : list of int
    reach : (CLASSES,) uint8 array
        See `class_map.reach`.
    """
    classes, joined = np.empty(TILE, np.uint8), np.empty(TILE, np.uint16)
    sums, reach = np.zeros(2 * costs.shape[1], np.int64), np.zeros(CLASSES, np.uint8)
    counts, tables = np.empty(_ALPHABET, np.int32), count_tables()
    flat, total = costs.reshape(-1), counts[:0]
    add_symbols(
        symbols, *scales, 0, step, classes, joined, tables, counts, total, flat, sums, reach
    )
    return _joined_halves(sums), reach


def read_models(
    data: np.ndarray, at: int, end: int, count: int, most: int, least_escape: int
) -> tuple[np.ndarray, int]:
    """Read the frequencies of consecutive classes; see `gcodec.entropy.context.class_tables`.

    Parameters
    ----------
    data : uint8 array
    at, end : int
        The first bit, and the end of the bits.
    count : int
        Number of classes.
    most, least_escape : int
        See `own_frequencies`.

    Returns
    -------
    frequencies : (count, 256) int64 array
    next : int
        The bit after the table.

    Raises
    ------
    FormatError
        If the bits end within the table, or the frequencies are invalid.
    """
    frequencies = np.zeros((count, _ALPHABET), np.int64)
    following = int(_read_models(data, at, end, most, least_escape, frequencies.reshape(-1)))
    if following == _ENDS:
        raise Truncated(f"the bits end within a class table, at bit {end}")
    if following == _INVALID:
        raise Corrupt(f"frequencies of a class do not add up to {_TOTAL}")
    return frequencies, following


def own_frequencies(
    counts: np.ndarray, most: int, least_escape: int
) -> tuple[np.ndarray, int, int]:
    """Compute the frequencies that suit counts best.

    Parameters
    ----------
    counts : (64, 256) int64 array
        At least one is not 0, and their sum is below 2^40.
    most : int
        Largest magnitude that may have symbols of its own.
    least_escape : int
        Least frequency of the escape symbol.

    Returns
    -------
    frequencies : (64, 256) int64 array
        A class without symbols gets those of the nearest class that has some.
    first, last : int
        First and last class with symbols.
    """
    frequencies, ends = np.zeros(CLASSES * _ALPHABET, np.int64), np.empty(2, np.int64)
    sizes = np.empty(MOST + 1, np.int64)
    _find_own(counts.reshape(-1), min(most, MOST), least_escape, sizes, frequencies, ends)
    first, last = ends.tolist()
    return frequencies.reshape(CLASSES, _ALPHABET), first, last


def largest_magnitudes(frequencies: np.ndarray) -> np.ndarray:
    """Return the largest magnitude that has symbols, for each class, as (64,) uint8.

    All smaller magnitudes must have symbols, too.
    """
    tops = np.empty(len(frequencies), np.uint8)
    _find_tops(frequencies.reshape(-1), tops)
    return tops


def nbits_by(counts: np.ndarray, frequencies: np.ndarray, logs: np.ndarray) -> int:
    """Return about how many bits symbols take; a symbol without frequency is escaped.

    Parameters
    ----------
    counts, frequencies : (64, 256) int64 array
    logs : int64 array
        log2 of frequencies in units of 2^-28.
    """
    return int(_nbits_by(counts.reshape(-1), frequencies.reshape(-1), logs))


def sent_nbits(frequencies: np.ndarray) -> int:
    """Return the bits that (classes, 256) frequencies take in a message."""
    nothing = np.empty(0, np.uint8), np.empty(0, np.uint64)
    return int(_put_models(frequencies.reshape(-1), *nothing))


def put_models(frequencies: np.ndarray, string: BitString) -> None:
    """Append the frequencies of consecutive classes to a string."""
    string.reserve(sent_nbits(frequencies) // 8 + 1)
    _put_models(frequencies.reshape(-1), string.data, string.state)


def _joined_halves(sums: np.ndarray) -> list[int]:
    """Return the integral parts of sums whose high and low halves were added up separately."""
    highs, lows = sums.reshape(2, -1).tolist()
    return [high + (low >> 16) >> POINT - 16 for high, low in zip(highs, lows, strict=True)]


# --- costs with several tables -------------------------------------------------------------------


@inline
def _add_one(count, costs, first, sums):
    """Add the costs of a symbol, which begin at `first`, times its count."""
    # In halves, as the products would exceed 64 bits.
    tables = sums.size // 2
    above, below = count >> 16, count & 0xFFFF
    own, high, low = costs[first : first + tables], sums[:tables], sums[tables:]
    whole = tables - tables % 4
    for t in range(0, whole, 4):  # unrolled, as there are only a few tables
        low[t] += own[t] * below
        low[t + 1] += own[t + 1] * below
        low[t + 2] += own[t + 2] * below
        low[t + 3] += own[t + 3] * below
    for t in range(whole, tables):
        low[t] += own[t] * below
    for t in range(tables if above else 0):
        high[t] += own[t] * above


@kernel("in int64[], in int64[], out int64[]", vectorized=False)
def _add_counts(counts, costs, sums):
    # 2 * costs.size == counts.size * sums.size
    tables = sums.size // 2
    for start in range(0, counts.size, _PART):
        part, bits = counts[start : start + _PART], np.int64(0)
        for k in range(part.size):
            bits |= part[k]
        for k in range(part.size if bits else 0):
            _add_one(part[k], costs, (start + k) * tables, sums)


@kernel(
    f"in uint8[], {SCALES}, int64, int64, {TALLY}, out int32[], out int32[], in int64[], "
    "out int64[], out uint8[]"
)
def add_symbols(symbols, scales, start, step, room, counts, total, costs, sums, reach):
    """Add the costs of symbols with each table to `sums`, in halves, and write their reach.

    `class_map.tally` describes the room. counts.size == 256, 2 * costs.size == COUNTS *
    sums.size; `reach` has CLASSES elements, or none. `total`, of 256 elements or none, is raised
    by the counts of all classes.
    """
    low, high, top = tally(symbols, scales, start, step, room)
    for row in range(low, high + 1):
        last = take_counts(room[2], row, top, counts)
        add_of_class(counts[: max(last + 1, 0)], row, costs, sums)
        for k in range(last + 1 if total.size > 0 else 0):
            total[k] = np.int32(total[k] + counts[k])
        if reach.size > 0:
            reach[row] = np.uint8((last + 2) >> 1)


@subroutine
def add_of_class(counts, row, costs, sums):
    """Add the costs of the first symbols of a class, given their counts, in halves."""
    tables = sums.size // 2
    for k in range(counts.size):
        if counts[k] > 0:
            _add_one(np.int64(counts[k]), costs, ((row << 8) + k) * tables, sums)


# --- the best table ------------------------------------------------------------------------------


@kernel("in int64[], int64, int64, out int64[], out int64[], out int64[]", vectorized=False)
def _find_own(counts, most, least_escape, sizes, frequencies, ends):
    # counts.size == frequencies.size == CLASSES * _ALPHABET; frequencies are 0; sizes.size == MOST
    # + 1 > most.
    total = np.int64(_TOTAL)
    ends[0], ends[1] = -1, -1
    for model in range(CLASSES):
        row = counts[model * _ALPHABET : (model + 1) * _ALPHABET]
        out = frequencies[model * _ALPHABET : (model + 1) * _ALPHABET]
        count = np.int64(0)
        for symbol in range(row.size):
            count += row[symbol]
        if count == 0:
            continue
        ends[0], ends[1] = model if ends[0] < 0 else ends[0], model
        top = 0
        for k in range(1, most + 1):
            sizes[k] = row[2 * k] + row[2 * k + 1]
            top = k if 2 * total * sizes[k] >= count else top
        # The two signs share the slots of a magnitude; each has at least one.
        above, taken = count - row[0] - row[1], np.int64(0)
        for k in range(1, top + 1):
            above -= sizes[k]
            sizes[k] = max((sizes[k] * total + count) // (2 * count), 1)
            taken += 2 * sizes[k]
        # The limit leaves a slot for each symbol.
        escape = min(max(above * total // count, least_escape), total - 1 - 2 * top)
        for _ in range((taken + escape - total) // 2 + 1):  # take back excess slots of both signs
            largest = 1
            for k in range(2, top + 1):
                largest = k if sizes[k] > sizes[largest] else largest
            sizes[largest] -= 1
            taken -= 2
        for k in range(1, top + 1):
            out[2 * k] = out[2 * k + 1] = sizes[k]
        out[ESCAPE] = escape
        out[0] = total - escape - taken
    before = ends[0]
    for model in range(CLASSES):
        if frequencies[model * _ALPHABET] > 0:
            before = model
            continue
        following = model
        while following < ends[1] and frequencies[following * _ALPHABET] == 0:
            following += 1
        near = before
        if model < ends[0] or (following <= ends[1] and following - model < model - before):
            near = following
        for symbol in range(_ALPHABET):
            frequencies[model * _ALPHABET + symbol] = frequencies[near * _ALPHABET + symbol]


@kernel("in int64[], out uint8[]", vectorized=False)
def _find_tops(frequencies, tops):
    # frequencies.size == _ALPHABET * tops.size
    for k in range(tops.size):
        model, top = frequencies[k * _ALPHABET : (k + 1) * _ALPHABET], 0
        while 2 * top + 2 < ESCAPE and model[2 * top + 2] > 0:
            top += 1
        tops[k] = np.uint8(top)


@kernel("in int64[], in int64[], in int64[]", vectorized=False)
def _nbits_by(counts, frequencies, logs):
    # counts.size == frequencies.size, a multiple of _ALPHABET; frequencies are below logs.size.
    high, low = np.int64(0), np.int64(0)
    for start in range(0, counts.size, _ALPHABET):
        row, model = counts[start : start + _ALPHABET], frequencies[start : start + _ALPHABET]
        escape_cost = _WHOLE - logs[model[ESCAPE]] + _OUTLIER
        bits = np.int64(0)
        for symbol in range(row.size):
            bits |= row[symbol]
        for symbol in range(row.size if bits else 0):
            if row[symbol] > 0:
                has_slots = model[symbol] > 0 and symbol != ESCAPE
                cost = _WHOLE - logs[model[symbol]] if has_slots else escape_cost
                # In halves, as the products would exceed 64 bits.
                high += cost * (row[symbol] >> 16)
                low += cost * (row[symbol] & 0xFFFF)
    return high + (low >> 16) >> (POINT - 16)


@kernel("in int64[], out uint8[], out uint64[]", vectorized=False)
def _put_models(frequencies, out, state):
    # frequencies.size is a multiple of _ALPHABET; of a model, the escape and the magnitudes up to
    # the largest one have frequencies above 0. `state` is that of a BitString, and out has room
    # for the bits and the slack of `put`; or both are empty, and the bits are only counted.
    # Returns their number.
    nbits, at, acc, have = np.int64(0), np.int64(0), np.uint64(0), np.uint64(0)
    if state.size > 0:
        at, acc, have = np.int64(state[0]), state[1], state[2]
    for first in range(0, frequencies.size, _ALPHABET):
        model, top = frequencies[first : first + _ALPHABET], 0
        while top < MOST and model[2 * top + 2] > 0:
            top += 1
        nbits += _TOP
        if state.size > 0:
            acc, have, at = put(out, at, acc, have, np.uint64(top), np.uint64(_TOP))
        for magnitude in range(top + 1):  # in place of magnitude 0, the escape
            frequency = np.uint64(model[2 * magnitude] if magnitude > 0 else model[ESCAPE])
            length = np.uint64(64) - np.uint64(leading_zeros(frequency))
            stored = max(length, np.uint64(1)) - np.uint64(1)  # the highest bit is 1
            nbits += _LENGTH + np.int64(stored)
            if state.size > 0:
                rest = frequency & ((np.uint64(1) << stored) - np.uint64(1))
                acc, have, at = put(out, at, acc, have, length, np.uint64(_LENGTH))
                acc, have, at = put(out, at, acc, have, rest, stored)
    if state.size > 0:
        state[0], state[1], state[2] = np.uint64(at), acc, have
    return nbits


@kernel("in uint8[], int64, int64, int64, int64, out int64[]", vectorized=False)
def _read_models(data, at, end, most, least_escape, frequencies):
    # 0 <= at, end <= 8 * data.size. frequencies holds _ALPHABET zeros for each model; most is at
    # most MOST, so that the symbols of a magnitude precede ESCAPE < _ALPHABET. Returns the bit
    # after the table, or an error.
    for first in range(0, frequencies.size, _ALPHABET):
        model = frequencies[first : first + _ALPHABET]
        top = np.int64(peek(data, at) >> np.uint64(64 - _TOP))
        at += _TOP
        is_valid, rest = top <= most, np.int64(_TOTAL)
        for magnitude in range(top + 1):  # in place of magnitude 0, the escape
            length = np.int64(peek(data, at) >> np.uint64(64 - _LENGTH))
            at += _LENGTH
            frequency = np.int64(0)
            if length > 0:  # the highest bit, which is 1, is not stored
                frequency = np.int64(1) << (length - 1)
            if length > 1:
                frequency |= np.int64(peek(data, at) >> np.uint64(65 - length))
                at += length - 1
            if at > end:
                return _ENDS
            is_valid &= frequency >= (least_escape if magnitude == 0 else 1)
            rest -= frequency if magnitude == 0 else 2 * frequency
            if magnitude == 0:
                model[ESCAPE] = frequency
            elif magnitude <= most:
                model[2 * magnitude] = model[2 * magnitude + 1] = frequency
        if not is_valid or not 0 < rest < _TOTAL:
            return _INVALID
        model[0] = rest
    return at
