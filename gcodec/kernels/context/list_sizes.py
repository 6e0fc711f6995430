"""Lists of scales as they may be told: what Rice words and Huffman words of them take.

Of scales from 0 to 127, a 0 stands for nothing. The others are told by how far they lie above the
least of them, in units of 1, 2, 4 or 8 of which all are multiples; see
`gcodec.entropy.context.scale_lists`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.runtime.jit import kernel, subroutine

MOST = 127  # scale
CODE, SHIFT, SCALE, RICE = 2, 2, 7, 3  # bits of what is told of a list, and of its Rice words
TOP, LENGTH = 8, 4  # bits of the table of Huffman words: of the largest u, and of each length
LONGEST = 12  # bits of a Huffman word
MANY = 1 << 11  # scales from which on states of rANS may pay
_TOLD = 6  # bits, about, that tell how often a scale occurs
_STATES = 860  # and that states take, besides what they tell of scales
_POINT = 28  # bits of logarithms behind the binary point
_ROOM = 2 * (MOST + 2)  # coins and packages of a level
ROOM = 5 * _ROOM + 7  # integers that kernels work in


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
        Bits of Huffman words for u, with their table.
    """

    least: int
    shift: int
    centre: int
    k: int
    rice_nbits: int
    words_nbits: int


def told(scales: np.ndarray) -> Told:
    """Find how (k,) uint8 scales are told."""
    found, room = np.empty(len(Told._fields), np.int64), np.empty(ROOM, np.int64)
    _tell(scales, room, found)
    return Told(*found.tolist())


def nbits(scales: np.ndarray, logs: np.ndarray) -> int:
    """Return the bits of a list of (k,) uint8 scales; where states of rANS may pay, about.

    Parameters
    ----------
    scales : (k,) uint8 array
    logs : (m,) int64 array
        log2 of 1 to m − 1 in units of 2^-28; m − 1 is a power of two, from 2^8 on.
    """
    return int(_nbits(scales, logs, np.empty(ROOM, np.int64)))


@subroutine(variant="")
def _huffman_nbits(counts, most, room):
    """Return the bits of Huffman words for counts, of which `most` + 1 are looked at.

    By package-merge: they are the sum of the cheapest 2n − 2 of the last list. room.size == 3 *
    _ROOM: of coins, and of two lists.
    """
    coins, low, high = room[:_ROOM], room[_ROOM : 2 * _ROOM], room[2 * _ROOM :]
    n, seen = 0, np.int64(0)
    for symbol in range(most + 1):
        if counts[symbol] > 0:
            place = n
            while place > 0 and coins[place - 1] > counts[symbol]:
                coins[place] = coins[place - 1]
                place -= 1
            coins[place] = counts[symbol]
            seen += counts[symbol]
            n += 1
    if n < 2:
        return coins[0] if n else 0
    # Words of l bits take counts as of Fibonacci's rabbits, whose sum is the (l + 2)th of these.
    longest, needed, after = 1, np.int64(3), np.int64(5)
    while longest < LONGEST and needed <= seen:
        longest, needed, after = longest + 1, after, needed + after
    have = 0
    for _ in range(longest):
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


@subroutine(variant="")
def tell(scales, room, found):
    """Write the fields of `Told`; scales are up to MOST, room.size == ROOM, found.size >= 6.

    The first of the room become how often each u occurs, the last _ROOM but 7 that of scales.
    """
    counts, often, room = room[:_ROOM], room[4 * _ROOM : 5 * _ROOM], room[_ROOM : 4 * _ROOM]
    often[: MOST + 1] = 0
    counts[: MOST + 2] = 0
    for i in range(scales.size):
        often[scales[i]] += 1
    least, bits = np.int64(MOST), np.int64(8)
    for scale in range(MOST, 0, -1):
        if often[scale] > 0:
            least = np.int64(scale)
    for scale in range(least, MOST + 1):
        if often[scale] > 0:
            bits |= np.int64(scale) - least
    shift = 0
    while not bits >> shift & 1:
        shift += 1
    counts[0], top = often[0], 0
    for scale in range(least, MOST + 1):
        if often[scale] > 0:
            top = (np.int64(scale) - least >> shift) + 1
            counts[top] = often[scale]
    # The median is the mean of both in the middle.
    low = high = behind = np.int64(0)
    for place in range(top + 1):
        behind += counts[place]
        low += behind <= (scales.size - 1) // 2
        high += behind <= scales.size // 2
    centre = (low + high) // 2
    k, fewest = 0, np.int64(0)
    for parameter in range(1 << RICE):
        total = np.int64((parameter + 1) * scales.size)
        for place in range(top + 1):
            away = np.int64(place) - centre
            total += ((2 * away if away >= 0 else -1 - 2 * away) >> parameter) * counts[place]
        if parameter == 0 or total < fewest:
            k, fewest = parameter, total
    words = _huffman_nbits(counts, top, room)
    found[0], found[1], found[2], found[3] = least, shift, centre, k
    found[4], found[5] = SCALE + RICE + fewest, TOP + LENGTH * (top + 1) + words


@subroutine(variant="")
def list_nbits(scales, logs, room):
    """Return what `nbits` does; room.size == ROOM, and scales are up to MOST."""
    found = room[5 * _ROOM :]
    tell(scales, room, found)
    fewest = CODE + SHIFT + SCALE + min(found[4], found[5])
    if scales.size < MANY:
        return fewest
    drop = 0
    while scales.size >> drop >= logs.size - 1:
        drop += 1
    total, kinds = np.int64(0), np.int64(0)
    for scale in range(MOST + 1):
        count = room[4 * _ROOM + scale]
        if count > 0:
            total += count * (logs[scales.size >> drop] - logs[max(count >> drop, 1)])
            kinds += 1
    return min(fewest, (total >> _POINT) + _TOLD * kinds + _STATES)


@kernel("in uint8[], out int64[], out int64[]")
def _tell(scales, room, found):
    tell(scales, room, found)


@kernel("in uint8[], in int64[], out int64[]")
def _nbits(scales, logs, room):
    return list_nbits(scales, logs, room)
