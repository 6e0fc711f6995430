"""Tables of rANS models, indexed by symbol or by slot.

There is one model for all symbols, or one for each class of symbols. The tables of several models
follow each other, so that the class is the upper part of an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.numeric.words import leading_zeros
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.memory import aligned_empty, float_bits

LEAST_LOG2, MOST_LOG2 = 12, 15  # log2 of the sum of all frequencies
LEAST_STATE = 1 << 16
STATE_NBYTES = 4  # bytes of each state before the words of a block
LOG2_ALPHABET = 8

_COUNT_NBITS = 34  # of the counts that are compared, so that no product exceeds 63 bits
_MOST = np.int64(2**63 - 1)

_BELOW = 1 - 1.5 * 2.0**-23  # see `_halved_reciprocal`
COMPACT = 1 << 12  # limit of a field of `ReadTables.entries`


class WriteTables(NamedTuple):
    """Tables of an encoder, indexed by the symbol with its class above it.

    Attributes
    ----------
    log2_total : int
    classed : bool
        Whether symbols have classes; they are then uint16, the class above the symbol.
    entries : (256 * classes,) uint64 array
        `pairs` in the upper half. The lower half holds the bits of a float32 whose product with
        half a state is the quotient of the state by the frequency, or one less.
    reciprocals : (256 * classes,) uint64 array
        2^(32 + log2_total) divided by the frequency, rounded up. The product with a state,
        shifted back, is the exact quotient.
    pairs : (256 * classes,) uint32 array
        The frequency in the lower 16 bits, the symbol's first slot above.
    """

    log2_total: int
    classed: bool
    entries: np.ndarray
    reciprocals: np.ndarray
    pairs: np.ndarray


class ReadTables(NamedTuple):
    """Tables of a decoder, each with a part for each class.

    Attributes
    ----------
    log2_total : int
    classed : bool
    slots : (2**log2_total * classes,) uint8 array
        The symbol of each slot.
    pairs : (256 * classes,) uint32 array
        See `WriteTables`.
    entries : (2**log2_total * classes,) uint32 array, or of no elements
        The symbol of each slot in 8 bits, the slot's place among the symbol's slots in 12, the
        frequency in 12. Empty if these fields are too narrow, or if the table would not stay in
        the first-level cache.
    """

    log2_total: int
    classed: bool
    slots: np.ndarray
    pairs: np.ndarray
    entries: np.ndarray


def check_frequencies(frequencies: np.ndarray, log2_total: int) -> None:
    """Raise `ParameterError` unless the kernels can use these frequencies.

    Parameters
    ----------
    frequencies : (256,) or (classes, 256) int64 array
        Frequency of each byte, from 0 to 2^15 − 1; those of each model add up to 2^log2_total.
    log2_total : int
        Log2 of the sum, from 12 to 15.
    """
    if not LEAST_LOG2 <= log2_total <= MOST_LOG2:
        raise ParameterError.of("log2_total", log2_total, f"from {LEAST_LOG2} to {MOST_LOG2}")
    alike = frequencies.shape[-1:] == (256,) and frequencies.dtype == np.int64
    if not alike or frequencies.min() < 0 or frequencies.max() >> MOST_LOG2:
        raise ParameterError("frequencies: must be 256 int64 from 0 to 2**15 - 1")
    if (frequencies.sum(-1) != 1 << log2_total).any():
        raise ParameterError(f"frequencies: must add up to 2**{log2_total}")


@dispatched("gcodec.kernels.rans.rans_table_cuda")
def write_tables(
    frequencies: np.ndarray, log2_total: int, models: Sequence[slice] = (slice(None),)
) -> WriteTables:
    """Return the tables of an encoder; see `check_frequencies`.

    The tables of models that are not in one of the ranges `models` are undefined.
    """
    size = frequencies.size
    pairs, entries = aligned_empty(size, np.uint32), aligned_empty(size, np.uint64)
    reciprocals = np.empty(size, np.uint64)
    for each in models:
        check_frequencies(frequencies[each], log2_total)
        parts = [_part(array, 256, each) for array in (entries, reciprocals, pairs)]
        _fill_entries(frequencies[each].reshape(-1), log2_total, *parts)
    return WriteTables(log2_total, frequencies.ndim > 1, entries, reciprocals, pairs)


def _part(table: np.ndarray, size: int, models: slice) -> np.ndarray:
    """Return the entries of some models in a table with `size` entries for each model."""
    return table.reshape(-1, size)[models].reshape(-1)


@inline
def _halved_reciprocal(frequency):
    """Return the float32 factor for a frequency of at least 1; see `WriteTables.entries`.

    A state x is below f·2^20 when the encoder divides it, so that q = floor(x / f) < 2^20. The
    encoder multiplies y = floor(x / 2), rounded to float32, and rounds the product: two relative
    errors of up to 2^-24. The factor is 2/f, reduced by a relative 2^-23 to 2^-22. So the product
    never exceeds x/f; and for f > 1 it is at least (x - 1)/f, reduced by a relative 2^-21.4, which
    exceeds q - 1/2 - 2^-1.4 > q - 1. For f = 1 the factor is 2, and the product x or x - 1.
    """
    below = np.float32(2.0 / np.float64(frequency) * _BELOW)
    return below if frequency > 1 else np.float32(2)


def read_tables(
    frequencies: np.ndarray, log2_total: int, models: Sequence[slice] = (slice(None),)
) -> ReadTables:
    """Return the tables of a decoder; see `check_frequencies`.

    The tables of models that are not in one of the ranges `models` are undefined.
    """
    total, size, most = 1 << log2_total, frequencies.size, 0
    for each in models:
        check_frequencies(frequencies[each], log2_total)
        most = max(most, frequencies[each].max())
    pairs, slots = aligned_empty(size, np.uint32), aligned_empty(size // 256 * total, np.uint8)
    is_compact = total <= COMPACT and most < COMPACT
    entries = aligned_empty(slots.size if is_compact else 0, np.uint32)
    for each in models:
        by_slot = [_part(array, total, each) for array in (slots, entries)]
        own = _part(pairs, 256, each)
        _fill_slots(frequencies[each].reshape(-1), total, *by_slot, own)
    return ReadTables(log2_total, frequencies.ndim > 1, slots, pairs, entries)


def fitted_frequencies(counts: np.ndarray, log2_total: int, logs: np.ndarray) -> np.ndarray:
    """Return the frequencies with which a string is shortest.

    Parameters
    ----------
    counts : (k,) int64 array
        Occurrences of each symbol, at least 1; their sum is below 2^46.
    log2_total : int
        Log2 of the sum of the frequencies, which are below 2^15.
    logs : (2**15 + 1,) int64 array
        log2 of each index in units of 2^-28.
    """
    out, gains, losses = (np.empty(counts.size, np.int64) for _ in range(3))
    _fit_frequencies(counts, 1 << log2_total, logs, out, gains, losses)
    return out


@kernel("in int64[], int64, in int64[], out int64[], out int64[], out int64[]", vectorized=False)
def _fit_frequencies(counts, total, logs, out, gains, losses):
    # All arrays but `logs` have one size, and counts.size <= total.
    # First the counts are scaled to about the total, none of them below 1: `gains` marks those
    # that are above.
    share, rest = np.int64(total), np.int64(0)
    for i in range(counts.size):
        rest += counts[i]
        gains[i] = 1
    shift = max(np.int64(64 - _COUNT_NBITS) - np.int64(leading_zeros(np.uint64(rest))), 0)
    more = True
    while more:
        fewer, less = share, rest
        for i in range(counts.size):
            if gains[i] and counts[i] * share < rest:
                gains[i] = 0
                fewer, less = fewer - 1, less - counts[i]
        more = fewer < share
        share, rest = fewer, less
    spare = np.int64(total)
    for i in range(counts.size):
        out[i] = (2 * counts[i] * share + rest) // (2 * rest) if gains[i] else 1
        spare -= out[i]
    # `gains` and `losses` become the bits saved by raising frequencies by 1, and lost by lowering
    # them by 1. Gains fall and losses rise with each step, so the greedy choice is optimal.
    for i in range(counts.size):
        _compare(i, counts, shift, logs, out, gains, losses)
    while True:
        up, down = 0, 0
        for i in range(1, counts.size):
            if gains[i] > gains[up]:
                up = i
        # Logarithms are rounded, so a frequency might seem to gain in both directions. The one
        # that would rise is no candidate to fall, even if all others are 1.
        least = _MOST if up == 0 else losses[0]
        for i in range(1, counts.size):
            if i != up and losses[i] < least:
                down, least = i, losses[i]
        if spare == 0 and gains[up] <= least:
            break
        before = spare
        if before >= 0:
            out[up] += 1
            spare -= 1
            _compare(up, counts, shift, logs, out, gains, losses)
        if before <= 0:
            out[down] -= 1
            spare += 1
            _compare(down, counts, shift, logs, out, gains, losses)


@inline
def _compare(i, counts, shift, logs, out, gains, losses):
    count, frequency = counts[i] >> shift, out[i]
    gains[i] = count * (logs[frequency + 1] - logs[frequency])
    losses[i] = count * (logs[frequency] - logs[frequency - 1]) if frequency > 1 else _MOST


@inline
def _pair(frequency, first):
    """Return an element of `WriteTables.pairs`."""
    # A first slot of 2^15 belongs to a symbol without slots.
    return np.uint32(frequency | first << 16)


@kernel("in int64[], int64, out uint64[], out uint64[], out uint32[]", vectorized=False)
def _fill_entries(frequencies, log2_total, entries, reciprocals, pairs):
    # All arrays have one size, a multiple of 256.
    dividend, first = (np.uint64(1) << np.uint64(32 + log2_total)) - np.uint64(1), np.int64(0)
    for i in range(frequencies.size):
        if i % 256 == 0:
            first = np.int64(0)
        frequency = max(frequencies[i], np.int64(1))
        pairs[i] = _pair(frequencies[i], first)
        factor = np.uint64(float_bits(_halved_reciprocal(frequency)))
        entries[i] = np.uint64(pairs[i]) << np.uint64(32) | factor
        reciprocals[i] = dividend + np.uint64(1)
        if frequency > 1:
            reciprocals[i] = (dividend + np.uint64(frequency)) // np.uint64(frequency)
        first += frequencies[i]


@kernel("in int64[], int64, out uint8[], out uint32[], out uint32[]")
def _fill_slots(frequencies, total, slots, entries, pairs):
    # The 256 frequencies of each model add up to `total`. slots.size is the sum of all
    # frequencies; entries.size is that, or 0; pairs.size == frequencies.size.
    for first in range(0, frequencies.size, 256):
        own = frequencies[first : first + 256]
        start = (first >> 8) * total
        is_repeated = first > 0
        if is_repeated:
            before = frequencies[first - 256 : first]
            for symbol in range(own.size):  # before.size == own.size
                is_repeated &= own[symbol] == before[symbol]
        if is_repeated:  # classes without symbols of their own have the model of a neighbor
            copy, copied = slots[start : start + total], slots[start - total : start]
            for k in range(copy.size):  # copied.size == copy.size
                copy[k] = copied[k]
            copy_32, copied_32 = entries[start : start + total], entries[start - total : start]
            for k in range(copy_32.size):  # none, or as many
                copy_32[k] = copied_32[k]
            for symbol in range(own.size):
                pairs[first + symbol] = pairs[first - 256 + symbol]
            continue
        at = start
        for symbol in range(own.size):
            frequency = own[symbol]
            pairs[first + symbol] = _pair(frequency, at - start)
            if frequency == 0:
                continue
            part, part_32 = slots[at : at + frequency], entries[at : at + frequency]
            for k in range(part.size):
                part[k] = np.uint8(symbol)
            base = np.uint32(symbol) | np.uint32(frequency) << np.uint32(20)
            for k in range(part_32.size):
                part_32[k] = np.uint32(base + np.uint32(k << 8))
            at += frequency
