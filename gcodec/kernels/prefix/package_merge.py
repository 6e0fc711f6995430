"""Word lengths of an optimal prefix code with a length limit."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel, subroutine

_MAX_COUNT = 2**62
_HEAVY = _MAX_COUNT + 1  # count of all packages that must come after all coins


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
    lengths = np.zeros(counts.size, np.uint8)
    scratch = np.empty(scratch_size(counts.size, limit), np.int64)
    return lengths, int(_package_lengths(counts, limit, scratch, lengths))


def scratch_size(size: int, limit: int) -> int:
    """Return how many int64 `word_lengths` needs for `size` counts."""
    return (6 + 2 * limit) * size


@subroutine
def word_lengths(counts, limit, scratch, lengths):
    """Write the word lengths of counts, at most 2^limit of them above 0; see `package_merge`."""
    # counts.size == lengths.size, and scratch.size >= scratch_size(counts.size, limit). Of the n
    # symbols that occur, `coins` are the counts, rising, and `order` the symbols. Each level reads
    # a list of up to 2n elements and writes another one; `coins_upto` holds, for each level and
    # place, the number of coins up to there.
    coins, order = scratch[: counts.size], scratch[counts.size : 2 * counts.size]
    n = 0
    for symbol in range(counts.size):
        lengths[symbol] = 0
        if counts[symbol] > 0:
            place = n
            while place > 0 and coins[place - 1] > counts[symbol]:
                coins[place], order[place] = coins[place - 1], order[place - 1]
                place -= 1
            coins[place], order[place] = counts[symbol], symbol
            n += 1
    if n == 1:
        lengths[order[0]] = 1
    if n < 2:
        return
    lists, coins_upto = scratch[2 * counts.size :], scratch[6 * counts.size :]
    most, have, source = 2 * n - 2, 0, 0  # places of a list; length and begin of the list to read
    for level in range(limit):
        target = 2 * n - source
        packages, coin, package, place = have // 2, 0, 0, 0
        while place < most and (coin < n or package < packages):
            count = np.int64(_HEAVY)
            if package < packages:
                first = lists[source + 2 * package]
                count = first + min(lists[source + 2 * package + 1], count - first)
            if coin < n and coins[coin] <= count:
                lists[target + place] = coins[coin]
                coin += 1
            else:
                lists[target + place] = count
                package += 1
            coins_upto[level * most + place] = coin
            place += 1
        have, source = place, target
    wanted = most
    for level in range(limit - 1, -1, -1):
        used = coins_upto[level * most + wanted - 1] if wanted > 0 else np.int64(0)
        for coin in range(used):
            lengths[order[coin]] += 1
        wanted = 2 * (wanted - used)


@kernel("in int64[], int64, out int64[], out uint8[]")
def _package_lengths(counts, limit, scratch, lengths):
    # See `word_lengths`.
    used = np.int64(0)
    for symbol in range(counts.size):
        if counts[symbol] < 0 or counts[symbol] > _MAX_COUNT:
            return np.int64(-1)
        used += counts[symbol] > 0
    if used <= 1 << limit:
        word_lengths(counts, limit, scratch, lengths)
    return used
