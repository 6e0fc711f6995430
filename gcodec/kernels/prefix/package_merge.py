"""Lengths of the words of an optimal prefix code none of which is too long."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel, subroutine


def package_merge(counts: np.ndarray, limit: int) -> np.ndarray:
    """Make lengths by package-merge.

    A list begins empty. `limit` times, it becomes the coins, one of each symbol, and the packages
    of each two in it that follow each other, sorted by count: of equal ones, coins come first,
    then lower symbols, then earlier packages. A symbol's length is how many of its coins are in
    the first 2·n − 2 of the last list, packages opened up.

    Parameters
    ----------
    counts : (n,) uint64 array
        At least 2, below 2^63, and not falling.
    limit : int
        With n <= 2**limit.

    Returns
    -------
    (n,) uint8 array
    """
    size = 2 * counts.size
    low, high = np.empty(2 * size, np.uint64), np.empty(2 * size, np.uint64)
    coins, lengths = np.empty(limit * size, np.uint8), np.zeros(counts.size, np.uint8)
    _merge(counts, limit, low, high, coins, lengths)
    return lengths


@subroutine(variant="")
def merge(counts, limit, low, high, coins, lengths):
    """Add to lengths, which are zeros; for the others see `package_merge`."""
    # With size = 2 * counts.size: of the numbers high·2^64 + low there are two lists of `size`
    # elements, of which a level reads one and writes the other; of flags whether an element is a
    # coin, a list for each level. Places in a list are below `most`.
    size = 2 * counts.size
    most = size - 2
    have, source = 0, 0  # elements of the list that is read, and where it begins
    for level in range(limit):
        target = size - source
        packages, coin, package, place = have // 2, 0, 0, 0
        sum_low, sum_high = np.uint64(0), np.uint64(0)
        while place < most and (coin < counts.size or package < packages):
            first = source + 2 * package
            if package < packages:
                sum_low = low[first] + low[first + 1]
                sum_high = high[first] + high[first + 1] + np.uint64(sum_low < low[first])
            is_coin = package == packages or (
                coin < counts.size and (sum_high > 0 or counts[coin] <= sum_low)
            )
            if is_coin:
                low[target + place], high[target + place] = counts[coin], 0
                coin += 1
            else:
                low[target + place], high[target + place] = sum_low, sum_high
                package += 1
            coins[level * size + place] = is_coin
            place += 1
        have, source = place, target
    wanted = most
    for level in range(limit - 1, -1, -1):
        found = 0
        for place in range(wanted):
            found += coins[level * size + place]
        for coin in range(found):  # the first coins of a list are those of the first symbols
            lengths[coin] += 1
        wanted = 2 * (wanted - found)


@kernel("in uint64[], int64, out uint64[], out uint64[], out uint8[], out uint8[]")
def _merge(counts, limit, low, high, coins, lengths):
    merge(counts, limit, low, high, coins, lengths)
