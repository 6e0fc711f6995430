"""Lists of small integers as they may be told: what Rice words and Huffman words of them take.

Of integers from 0 to 127, a 0 stands for nothing. The others are told by how far they lie above
the least of them, in units of 1, 2, 4 or 8 of which all are multiples; see
`gcodec.contexts.scale_lists`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.jit import kernel, subroutine

MOST = 127  # of the integers
_MOST_SHIFT, _PARAMETERS = 3, 8
_LONGEST = 12  # bits of a Huffman word
_ROOM = 2 * (MOST + 2)  # coins and packages of a level


class Told(NamedTuple):
    """How a list is told.

    Attributes
    ----------
    least, shift : int
        u of an integer is 0 for 0, else one more than (integer − least) >> shift.
    centre : int
        The median of all u.
    k : int
        Of the Rice words that are shortest, for zigzag(u − centre).
    rice_nbits : int
        Bits of these.
    words_nbits : int
        Bits of Huffman words for u; of none or one of them, one for each.
    top : int
        The largest u.
    """

    least: int
    shift: int
    centre: int
    k: int
    rice_nbits: int
    words_nbits: int
    top: int


def told(values: np.ndarray) -> Told:
    """Find how (k,) uint8 integers are told."""
    found = np.empty(len(Told._fields), np.int64)
    _tell(values, np.zeros(MOST + 2, np.int64), np.empty(3 * _ROOM, np.int64), found)
    return Told(*found.tolist())


def entropy(values: np.ndarray, logs: np.ndarray, drop: int) -> tuple[int, int]:
    """Return the entropy of (k,) uint8 integers, and how many different ones there are.

    Parameters
    ----------
    values : (k,) uint8 array
    logs : int64 array
        Of numbers from 0 on; they are the unit of the entropy.
    drop : int
        Bits that are left out of counts, so that there are logarithms of them.
    """
    found = np.empty(2, np.int64)
    _add_up_entropy(values, logs, drop, np.zeros(256, np.int64), found)
    total, kinds = found.tolist()
    return total, kinds


@subroutine(variant="")
def _huffman_nbits(counts, most, room):
    """Return the bits of Huffman words for counts, of which `most` + 1 are looked at.

    By package-merge: they are the sum of the cheapest 2n − 2 of the last list. room.size == 3 *
    _ROOM, of which coins are a third, and lists the others.
    """
    coins, low, high = room[:_ROOM], room[_ROOM : 2 * _ROOM], room[2 * _ROOM :]
    n = 0
    for symbol in range(most + 1):
        if counts[symbol] > 0:
            place = n
            while place > 0 and coins[place - 1] > counts[symbol]:
                coins[place] = coins[place - 1]
                place -= 1
            coins[place] = counts[symbol]
            n += 1
    if n < 2:
        return coins[0] if n else 0
    have = 0
    for _ in range(_LONGEST):
        coin, package, place = 0, 0, 0
        while place < 2 * n - 2 and (coin < n or 2 * package + 1 < have):
            both = low[2 * package] + low[2 * package + 1] if 2 * package + 1 < have else 0
            if both == 0 or (coin < n and coins[coin] <= both):
                high[place] = coins[coin]
                coin += 1
            else:
                high[place] = both
                package += 1
            place += 1
        have = place
        low, high = high, low
    total = np.int64(0)
    for place in range(have):
        total += low[place]
    return total


@kernel("in uint8[], out int64[], out int64[], out int64[]")
def _tell(values, counts, room, found):
    # Values are up to MOST; counts: MOST + 2 zeros; room.size == 3 * _ROOM; found.size == 7.
    least, bits = np.int64(MOST), np.int64(1 << _MOST_SHIFT)
    for i in range(values.size):
        if values[i] > 0:
            least = min(least, np.int64(values[i]))
    for i in range(values.size):
        if values[i] > 0:
            bits |= np.int64(values[i]) - least
    shift = 0
    while not bits >> shift & 1:
        shift += 1
    top = 0
    for i in range(values.size):
        place = (np.int64(values[i]) - least >> shift) + 1 if values[i] > 0 else 0
        counts[place] += 1
        top = max(top, place)
    # The median is the mean of both in the middle.
    low = high = behind = np.int64(0)
    for place in range(top + 1):
        behind += counts[place]
        low += behind <= (values.size - 1) // 2
        high += behind <= values.size // 2
    centre = (low + high) // 2
    k, fewest = 0, np.int64(0)
    for parameter in range(_PARAMETERS):
        nbits = np.int64((parameter + 1) * values.size)
        for place in range(top + 1):
            away = np.int64(place) - centre
            nbits += ((2 * away if away >= 0 else -1 - 2 * away) >> parameter) * counts[place]
        if parameter == 0 or nbits < fewest:
            k, fewest = parameter, nbits
    found[0], found[1], found[2], found[3], found[4] = least, shift, centre, k, fewest
    found[5], found[6] = _huffman_nbits(counts, top, room), top


@kernel("in uint8[], in int64[], int64, out int64[], out int64[]")
def _add_up_entropy(values, logs, drop, counts, found):
    # counts: 256 zeros; logs.size > values.size >> drop.
    for i in range(values.size):
        counts[values[i]] += 1
    total, kinds = np.int64(0), np.int64(0)
    for value in range(counts.size):
        count = counts[value]
        if count > 0:
            total += count * (logs[values.size >> drop] - logs[max(count >> drop, 1)])
            kinds += 1
    found[0], found[1] = total, kinds
