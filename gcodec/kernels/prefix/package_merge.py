"""Word lengths of an optimal prefix code with a length limit."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel, subroutine

_MAX_COUNT = 2**62


def package_merge(counts: np.ndarray, limit: int) -> tuple[np.ndarray, int]:
    """Return word lengths by the package-merge algorithm.

    A list begins empty. Each of `limit` passes replaces it by the coins, one for each symbol that
    occurs, and the packages, one for each two consecutive elements of the old list, sorted by
    count: of equal counts, coins come first, then lower symbols, then earlier packages. The length
    of a symbol is the number of its coins in the first 2·n − 2 elements of the last list, after
    its packages are opened. A lone symbol has the length 1.

    Parameters
    ----------
    counts : (n,) int64 array
        Counts of symbols, up to 2^62. Sorting those that occur takes quadratic time.
    limit : int
        Largest word length.

    Returns
    -------
    lengths : (n,) uint8 array
        Word length of each symbol; 0 for a symbol that does not occur.
    used : int
        Number of symbols that occur; the lengths are not computed if there are more than 2^limit.
        −1 if a count is out of range.
    """
    words = np.empty(10 * counts.size, np.uint64)
    flags = np.empty((2 * limit + 1) * counts.size, np.uint8)
    lengths = np.zeros(counts.size, np.uint8)
    return lengths, int(_package_lengths(counts, limit, words, flags, lengths))


@subroutine(variant="")
def merge(counts, limit, low, high, coins, lengths):
    """Add the word lengths to `lengths`, which must be zeros; see `package_merge`."""
    # With size = 2 * counts.size: `high` and `low` hold two lists of `size` counts high·2^64+low.
    # A level reads one list and writes the other. `coins` holds a list of flags for each level:
    # whether an element is a coin. Places in a list are below `most`.
    size = 2 * counts.size
    most = size - 2
    have, source = 0, 0  # length and begin of the list that is read
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
        used = 0
        for place in range(wanted):
            used += coins[level * size + place]
        for coin in range(used):  # coins are in the order of symbols
            lengths[coin] += 1
        wanted = 2 * (wanted - used)


@kernel("in int64[], int64, out uint64[], out uint8[], out uint8[]")
def _package_lengths(counts, limit, words, flags, lengths):
    # words.size == 10 * counts.size, flags.size == (2 * limit + 1) * counts.size, and
    # lengths.size == counts.size. Lengths are 0 before the call. n <= counts.size.
    ordered, order = words[: counts.size], words[counts.size : 2 * counts.size]
    used = np.int64(0)
    for symbol in range(counts.size):
        if counts[symbol] < 0 or counts[symbol] > _MAX_COUNT:
            return np.int64(-1)
        used += counts[symbol] > 0
    if used > 1 << limit:
        return used
    n = 0
    for symbol in range(counts.size):
        if counts[symbol] > 0:
            count, place = np.uint64(counts[symbol]), n
            while place > 0 and ordered[place - 1] > count:
                ordered[place], order[place] = ordered[place - 1], order[place - 1]
                place -= 1
            ordered[place], order[place] = count, np.uint64(symbol)
            n += 1
    if n == 1:
        lengths[order[0]] = 1
    if n < 2:
        return used
    lists, own = words[2 * counts.size :], flags[:n]
    own[:] = 0
    merge(ordered[:n], limit, lists[: 4 * n], lists[4 * n : 8 * n], flags[n:], own)
    for k in range(n):
        lengths[order[k]] = own[k]
    return used
