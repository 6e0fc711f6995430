"""Values as classes, bytes for an entropy coder, and raw bits within the classes.

The symbol of 0 is 0. The symbol of a value v > 0 is 1 more than the class of the distance v; see
`gap_classes`, which also defines the raw bits.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.kernels.prefix.gap_classes import class_of, least_distance
from gcodec.runtime import pool
from gcodec.runtime.jit import kernel

_PUT = 56  # most bits of one `put`
_SYMBOLS = np.arange(256)
_RAW_NBITS = np.maximum((_SYMBOLS - 4) >> 2, 0)
_TABLE = _RAW_NBITS.astype(np.uint8)


def most_symbol(nbits: int) -> int:
    """Return the symbol of the largest value of `nbits` bits."""
    return 1 + class_of((1 << nbits) - 1)


def symbols_of(values: np.ndarray) -> np.ndarray:
    """Return the (k,) uint8 symbols of (k,) uint64 values."""
    out = np.empty(values.size, np.uint8)
    pool.run(lambda a, b: _classify_values(values[a:b], out[a:b]), values.size)
    return out


def raw_nbits(counts: np.ndarray) -> int:
    """Return the number of raw bits, by the (256,) counts of the symbols."""
    return int(counts @ _RAW_NBITS)


def write_raw(values: np.ndarray, symbols: np.ndarray, nbits: int, string: BitString) -> None:
    """Append the `nbits` raw bits of values above 0 to a string."""
    string.reserve(nbits // 8 + 1)
    _write_raw_values(values, symbols, _TABLE, string.data, string.state)


def read(data: np.ndarray, first: int, end: int, symbols: np.ndarray) -> np.ndarray:
    """Return the (k,) uint64 values of symbols above 0, whose raw bits are from `first` to `end`.

    Raises
    ------
    Truncated
        If the symbols have more raw bits.
    Corrupt
        If they have fewer.
    """
    values = np.empty(symbols.size, np.uint64)
    sums = pool.run(
        lambda start, stop: (start, int(_TABLE[symbols[start:stop]].sum(dtype=np.int64))),
        symbols.size,
    )
    begins, at = {}, first
    for start, nbits in sums:
        begins[start] = at
        at += nbits
    if at != end:
        error = Truncated if at > end else Corrupt
        raise error(f"the values have {at - first} bits within classes, the payload {end - first}")

    def task(start: int, stop: int) -> None:
        _read_raw_values(data, begins[start], symbols[start:stop], _TABLE, values[start:stop])

    pool.run(task, symbols.size)
    return values


@kernel("in uint64[], out uint8[]")
def _classify_values(values, symbols):
    for i in range(values.size):  # symbols.size == values.size
        value = values[i]
        raw = np.uint64(61) - min(leading_zeros(value), np.uint64(61))
        upper = np.uint64(value >> raw)  # from 4 to 7, or the value itself
        symbols[i] = np.uint8(np.uint64(4) * raw + upper)


@kernel("in uint64[], in uint8[], in uint8[], out uint8[], out uint64[]")
def _write_raw_values(values, symbols, raws, out, state):
    # symbols.size == values.size; out has room for all bits, and for the slack of `put`.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    for i in range(values.size):
        raw = np.int64(raws[symbols[i]])
        bits = values[i] - least_distance(np.int64(symbols[i]) - 1, raw)
        upper = max(raw - _PUT, 0)
        if upper:
            acc, have, at = put(out, at, acc, have, bits >> np.uint64(_PUT), np.uint64(upper))
            bits &= np.uint64((1 << _PUT) - 1)
        acc, have, at = put(out, at, acc, have, bits, np.uint64(raw - upper))
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel("in uint8[], int64, in uint8[], in uint8[], out uint64[]")
def _read_raw_values(data, at, symbols, raws, values):
    # raws.size == 256; values.size == symbols.size; a symbol has at most 62 raw bits.
    for i in range(symbols.size):
        raw = np.int64(raws[symbols[i]])
        bits = peek(data, at) >> np.uint64(63 - raw) >> np.uint64(1)
        values[i] = least_distance(np.int64(symbols[i]) - 1, raw) + bits
        at += raw
