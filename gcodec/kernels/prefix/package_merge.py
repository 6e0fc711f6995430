"""Word lengths of an optimal prefix code with a length limit."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel, subroutine


def package_merge(counts: np.ndarray, limit: int) -> np.ndarray:
    """Return word lengths by the package-merge algorithm.

    A list begins empty. Each of `limit` passes replaces it by the coins, one for each symbol, and
    the packages, one for each two consecutive elements of the old list, sorted by count: of equal
    counts, coins come first, then lower symbols, then earlier packages. The length of a
    symbol is the number of its coins in the first 2·n − 2 elements of the last list, after its
    packages are opened.

    Parameters
    ----------
    counts : (n,) uint64 array
        Counts of at least 2 symbols, below 2^63 and not falling.
    limit : int
        Largest word length; n <= 2**limit.

    Returns
    -------
    (n,) uint8 array
        Word length of each symbol.
    """
    size = 2 * counts.size
    low, high = np.empty(2 * size, np.uint64), np.empty(2 * size, np.uint64)
    coins, lengths = np.empty(limit * size, np.uint8), np.zeros(counts.size, np.uint8)
    _merge(counts, limit, low, high, coins, lengths)
    return lengths


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


@kernel("in uint64[], int64, out uint64[], out uint64[], out uint8[], out uint8[]")
def _merge(counts, limit, low, high, coins, lengths):
    merge(counts, limit, low, high, coins, lengths)
