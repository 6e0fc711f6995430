"""Fields of equal width, up to 62 bits, in a bit string, most significant bit first."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import peek, put_long
from gcodec.runtime.jit import kernel

MOST_NBITS = 62
_PART = 1 << 18  # values that stay in a cache


def write_fields(values: np.ndarray, width: int, string: BitString) -> None:
    """Append the `width` low bits of each of (k,) integers to a string."""
    assert 0 <= width <= MOST_NBITS
    string.reserve(values.size * width // 8 + 1)
    for at in range(0, values.size, _PART):
        part = values[at : at + _PART].astype(np.int64, copy=False)
        _write_fields(part, width, string.data, string.state)


def read_fields(data: np.ndarray, first: int, width: int, count: int) -> np.ndarray:
    """Return `count` fields from bit `first` on, which must be in the data, as int64."""
    assert 0 <= width <= MOST_NBITS and first + count * width <= 8 * data.size
    values = np.empty(count, np.int64)
    _read_fields(data, first, width, values)
    return values


@kernel("in int64[], int64, out uint8[], out uint64[]")
def _write_fields(values, width, out, state):
    # out has room for all bits, and the slack that `put` needs.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for i in range(values.size):
        value = np.uint64(values[i]) & mask
        acc, have, at = put_long(out, at, acc, have, value, np.uint64(width))
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel("in uint8[], int64, int64, out int64[]")
def _read_fields(data, first, width, values):
    if width == 0:
        values[:] = 0
        return
    right = np.uint64(64 - width)
    for i in range(values.size):
        values[i] = np.int64(peek(data, first + i * width) >> right)
