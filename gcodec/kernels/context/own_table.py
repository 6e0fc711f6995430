"""The table of classes that suits counts of symbols best, and what they take by it.

A table has frequencies for 64 classes and 256 symbols: those of the magnitudes from 0 to the
largest, both signs alike, and that of escapes; see `gcodec.entropy.context.class_tables`.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.numeric.words import leading_zeros
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, MOST
from gcodec.runtime.jit import kernel

_ALPHABET = 256
_POINT = 28  # bits of logarithms behind the binary point


def own_frequencies(
    counts: np.ndarray, most: int, least_escape: int, log2_total: int
) -> tuple[np.ndarray, int, int]:
    """Make the frequencies of counts.

    Parameters
    ----------
    counts : (64, 256) int64 array
        At least one is not 0, and the sum is below 2^40.
    most : int
        The largest magnitude that may have symbols of its own.
    least_escape : int
        The least frequency of the escape.
    log2_total : int
        Of the sum of the frequencies of a class.

    Returns
    -------
    frequencies : (64, 256) int64 array
        A class of which nothing occurs has those of the nearest that does.
    first, last : int
        Of the classes of which something does.
    """
    found, ends = np.zeros(CLASSES * _ALPHABET, np.int64), np.empty(2, np.int64)
    room = np.empty(MOST + 1, np.int64)
    _find_own(
        counts.reshape(-1), min(most, MOST), least_escape, 1 << log2_total, room, found, ends
    )
    first, last = ends.tolist()
    return found.reshape(CLASSES, _ALPHABET), first, last


def nbits_by(
    counts: np.ndarray, frequencies: np.ndarray, log2_total: int, logs: np.ndarray, escaped: int
) -> int:
    """Return about how many bits symbols take; those of no frequency escape.

    Parameters
    ----------
    counts, frequencies : (64, 256) int64 array
    log2_total : int
    logs : int64 array
        log2 of frequencies in units of 2^-28.
    escaped : int
        Bits, about, of what is told of an escape besides.
    """
    told = frequencies.reshape(-1), log2_total << _POINT, logs, escaped << _POINT
    return int(_nbits_by(counts.reshape(-1), *told))


def sent_nbits(frequencies: np.ndarray, of_top: int, of_length: int) -> int:
    """Return the bits of (classes, 256) frequencies that are sent, class by class.

    That is the largest magnitude in `of_top` bits, and of each frequency that is sent its bits but
    the highest, and how many there are in `of_length` bits.
    """
    return int(_sent_nbits(frequencies.reshape(-1), of_top, of_length))


@kernel("in int64[], int64, int64, int64, out int64[], out int64[], out int64[]")
def _find_own(counts, most, least_escape, total, sizes, found, ends):
    # counts.size == found.size == CLASSES * _ALPHABET, found is 0; sizes.size == MOST + 1 > most.
    ends[0], ends[1] = -1, -1
    for of in range(CLASSES):
        row = counts[of * _ALPHABET : (of + 1) * _ALPHABET]
        out = found[of * _ALPHABET : (of + 1) * _ALPHABET]
        seen = np.int64(0)
        for symbol in range(row.size):
            seen += row[symbol]
        if seen == 0:
            continue
        ends[0], ends[1] = of if ends[0] < 0 else ends[0], of
        top = 0
        for k in range(1, most + 1):
            sizes[k] = row[2 * k] + row[2 * k + 1]
            top = k if 2 * total * sizes[k] >= seen else top
        # Half of the share of each, as there are two signs; at least a slot.
        above, taken = seen - row[0] - row[1], np.int64(0)
        for k in range(1, top + 1):
            above -= sizes[k]
            sizes[k] = max((sizes[k] * total + seen) // (2 * seen), 1)
            taken += 2 * sizes[k]
        # Which leaves a slot for each.
        escape = min(max(above * total // seen, least_escape), total - 1 - 2 * top)
        for _ in range((taken + escape - total) // 2 + 1):  # slots of both signs that are too many
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
    for of in range(CLASSES):
        if found[of * _ALPHABET] > 0:
            before = of
            continue
        behind = of
        while behind < ends[1] and found[behind * _ALPHABET] == 0:
            behind += 1
        near = before
        if of < ends[0] or (behind <= ends[1] and behind - of < of - before):
            near = behind
        for symbol in range(_ALPHABET):
            found[of * _ALPHABET + symbol] = found[near * _ALPHABET + symbol]


@kernel("in int64[], in int64[], int64, in int64[], int64")
def _nbits_by(counts, frequencies, whole, logs, escaped):
    # counts.size == frequencies.size, a multiple of _ALPHABET; frequencies are below logs.size.
    high, low = np.int64(0), np.int64(0)
    for start in range(0, counts.size, _ALPHABET):
        row, out = counts[start : start + _ALPHABET], frequencies[start : start + _ALPHABET]
        above = whole - logs[out[ESCAPE]] + escaped
        seen = np.int64(0)
        for symbol in range(row.size):
            seen |= row[symbol]
        for symbol in range(row.size if seen else 0):
            if row[symbol] > 0:
                known = out[symbol] > 0 and symbol != ESCAPE
                cost = whole - logs[out[symbol]] if known else above
                # In halves, as the products would pass 64 bits.
                high += cost * (row[symbol] >> 16)
                low += cost * (row[symbol] & 0xFFFF)
    return high + (low >> 16) >> (_POINT - 16)


@kernel("in int64[], int64, int64")
def _sent_nbits(frequencies, of_top, of_length):
    # frequencies.size is a multiple of _ALPHABET.
    found = of_top * (frequencies.size // _ALPHABET)
    for start in range(0, frequencies.size, _ALPHABET):
        for symbol in range(2, _ALPHABET, 2):
            frequency = np.uint64(frequencies[start + symbol])
            if frequency > 0:
                found += of_length + 63 - np.int64(leading_zeros(frequency))
    return found
