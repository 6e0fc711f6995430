"""Lists of scales as Rice words; see `list_sizes` and `gcodec.contexts.scale_lists`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bit_string import BitString
from gcodec.kernels.jit import kernel
from gcodec.kernels.list_sizes import Told
from gcodec.kernels.words import put

_ROOM = 16  # bytes more than words take


def put_rice(head: tuple[int, int], scales: np.ndarray, told: Told, string: BitString) -> None:
    """Put a number of so many bits, up to 32, and Rice words of scales at the end of a string."""
    string.reserve(told.rice_nbits // 8 + _ROOM)
    how = told.least, told.shift, told.centre, told.k
    _put_rice(scales, *head, *how, string.data, string.state)


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
