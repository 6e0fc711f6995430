"""Lists of scales as Rice words or Huffman words; see `list_sizes`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.list_sizes import (
    CODE,
    LENGTH,
    LONGEST,
    MOST,
    RICE,
    ROOM,
    SCALE,
    SHIFT,
    TOP,
    tell,
)
from gcodec.kernels.numeric.words import put
from gcodec.kernels.prefix.package_merge import merge
from gcodec.kernels.prefix.rice_words import put_rice
from gcodec.runtime.jit import kernel, subroutine

_KINDS = MOST + 2  # of what a list may have
_LIST = 4 * _KINDS  # elements of both lists of package-merge
_WORST, _ROOM = 10, 16  # bits of a Rice word at most, and bytes that words take besides


def put_list(scales: np.ndarray, string: BitString) -> None:
    """Put (k,) uint8 scales at the end of a string, k > 0, in the words that are shorter."""
    string.reserve(scales.size * _WORST // 8 + _ROOM)
    room, words = np.empty(ROOM, np.int64), np.empty(2 * _LIST + 2 * _KINDS, np.uint64)
    bytes_ = np.empty((2 * LONGEST + 2) * _KINDS, np.uint8)
    _put_list(scales, room, words, bytes_, string.data, string.state)


@subroutine(variant="")
def _put_rice(scales, least, shift, centre, k, out, at, acc, have):
    for i in range(scales.size):
        scale = np.int64(scales[i])
        away = (scale - least >> shift) + 1 - centre if scale > 0 else -centre
        number = 2 * away if away >= 0 else -1 - 2 * away
        acc, have, at = put_rice(out, at, acc, have, number, k)
    return acc, have, at


@subroutine(variant="")
def _find_lengths(counts, top, words, bytes_):
    """Write the lengths of the Huffman words of u up to `top` to the first bytes.

    Of words and bytes there are as many as `put_list` makes.
    """
    lengths, sorted_, order = bytes_[:_KINDS], words[:_KINDS], words[_KINDS : 2 * _KINDS]
    n = 0
    for u in range(top + 1):
        lengths[u] = 0
        if counts[u] > 0:
            place = n
            while place > 0 and sorted_[place - 1] > np.uint64(counts[u]):
                sorted_[place], order[place] = sorted_[place - 1], order[place - 1]
                place -= 1
            sorted_[place], order[place] = np.uint64(counts[u]), np.uint64(u)
            n += 1
    found, coins = bytes_[_KINDS : _KINDS + n], bytes_[2 * _KINDS :]
    found[:] = np.uint8(n < 2)
    low, high = words[2 * _KINDS : 2 * _KINDS + _LIST], words[2 * _KINDS + _LIST :]
    if n > 1:
        merge(sorted_[:n], LONGEST, low, high, coins, found)
    for i in range(n):
        lengths[order[i]] = found[i]


@subroutine(variant="")
def _put_words(scales, least, shift, lengths, codes, out, at, acc, have):
    # codes.size == lengths.size, more than the largest u.
    acc, have, at = put(out, at, acc, have, np.uint64(lengths.size - 1), np.uint64(TOP))
    longest = np.int64(0)
    for u in range(lengths.size):
        acc, have, at = put(out, at, acc, have, np.uint64(lengths[u]), np.uint64(LENGTH))
        longest = max(longest, np.int64(lengths[u]))
    # Canonical words: consecutive numbers, shifted wherever words become longer.
    code = np.uint64(0)
    for length in range(1, longest + 1):
        code <<= np.uint64(1)
        for u in range(lengths.size):
            if lengths[u] == length:
                codes[u] = code
                code += np.uint64(1)
    for i in range(scales.size):
        scale = np.int64(scales[i])
        u = (scale - least >> shift) + 1 if scale > 0 else 0
        acc, have, at = put(out, at, acc, have, codes[u], np.uint64(lengths[u]))
    return acc, have, at


@kernel("in uint8[], out int64[], out uint64[], out uint8[], out uint8[], out uint64[]")
def _put_list(scales, room, words, bytes_, out, state):
    # room.size == ROOM; out has room for Rice words of the largest parameter, of which none is
    # longer than _WORST, and the slack that putting needs. The shortest words are no longer.
    told = room[ROOM - 6 :]
    tell(scales, room, told)
    least, shift, centre, k = told[0], told[1], told[2], told[3]
    top = np.int64(0)
    for i in range(scales.size):
        top = max(top, np.int64(scales[i]))
    top = (top - least >> shift) + 1 if top > 0 else 0
    by_words = told[5] < told[4]
    at, acc, have = np.int64(state[0]), state[1], state[2]
    head, nbits = (np.int64(by_words) << SHIFT | shift) << SCALE | least, CODE + SHIFT + SCALE
    if by_words:
        acc, have, at = put(out, at, acc, have, np.uint64(head), np.uint64(nbits))
        _find_lengths(room, top, words, bytes_)
        lengths, codes = bytes_[: top + 1], words[: top + 1]
        acc, have, at = _put_words(scales, least, shift, lengths, codes, out, at, acc, have)
    else:
        head, nbits = (head << SCALE | centre) << RICE | k, nbits + SCALE + RICE
        acc, have, at = put(out, at, acc, have, np.uint64(head), np.uint64(nbits))
        acc, have, at = _put_rice(scales, least, shift, centre, k, out, at, acc, have)
    state[0], state[1], state[2] = np.uint64(at), acc, have
