"""Lists of scales as Rice words or Huffman words; see `list_sizes`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bit_string import BitString
from gcodec.kernels.jit import kernel
from gcodec.kernels.list_sizes import LENGTH, TOP, Told
from gcodec.kernels.words import put

_ROOM = 16  # bytes more than words take


def put_rice(head: tuple[int, int], scales: np.ndarray, told: Told, string: BitString) -> None:
    """Put a number of so many bits, up to 32, and Rice words of scales at the end of a string."""
    string.reserve(told.rice_nbits // 8 + _ROOM)
    how = told.least, told.shift, told.centre, told.k
    _put_rice(scales, *head, *how, string.data, string.state)


def put_words(
    head: tuple[int, int], scales: np.ndarray, told: Told, lengths: np.ndarray, string: BitString
) -> None:
    """Put a number of so many bits, and Huffman words with their table, at the end of a string.

    Parameters
    ----------
    head, scales, told, string
        See `put_rice`.
    lengths : (k,) uint8 array
        Bits of the word of each u from 0 to the largest, 0 for what does not occur.
    """
    string.reserve(told.words_nbits // 8 + _ROOM)
    codes, how = np.empty(lengths.size, np.uint64), (told.least, told.shift)
    _put_words(scales, *head, *how, lengths, codes, string.data, string.state)


@kernel("in uint8[], int64, int64, int64, int64, int64, int64, out uint8[], out uint64[]")
def _put_rice(scales, head, nbits, least, shift, centre, k, out, state):
    # out has room for all bits, and the slack that putting needs.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    acc, have, at = put(out, at, acc, have, np.uint64(head), np.uint64(nbits))
    low = np.int64((1 << k) - 1)
    for i in range(scales.size):
        scale = np.int64(scales[i])
        away = (scale - least >> shift) + 1 - centre if scale > 0 else -centre
        number = 2 * away if away >= 0 else -1 - 2 * away
        zeros = number >> k
        while zeros > 32:
            acc, have, at = put(out, at, acc, have, np.uint64(0), np.uint64(32))
            zeros -= 32
        word = np.uint64(number & low | 1 << k)
        acc, have, at = put(out, at, acc, have, word, np.uint64(zeros + k + 1))
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel(
    "in uint8[], int64, int64, int64, int64, in uint8[], out uint64[], out uint8[], out uint64[]"
)
def _put_words(scales, head, nbits, least, shift, lengths, codes, out, state):
    # As above; codes.size == lengths.size, more than the largest u and at most 129.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    acc, have, at = put(out, at, acc, have, np.uint64(head), np.uint64(nbits))
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
    state[0], state[1], state[2] = np.uint64(at), acc, have
