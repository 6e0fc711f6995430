"""Arrays of integers as strings of prefix words."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString, written
from gcodec.kernels.prefix.codewords import UNIVERSAL, Rule
from gcodec.kernels.prefix.dense_string import widened
from gcodec.kernels.prefix.prefix_read import read_blocks
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime import pool
from gcodec.runtime.jit import Kernel, factory, kernel

_CHUNK = 1 << 18  # values whose bytes stay in the second-level cache


def lengths(code: PrefixCode, values: np.ndarray) -> np.ndarray:
    """Return the word lengths of (n,) uint64 values in bits; at most 2**64 − 1."""
    out = np.empty(values.size, np.uint64)
    loop, parameter = _measurer(code.rule), np.uint64(code.parameter)
    pool.run(lambda start, stop: loop(values[start:stop], parameter, out[start:stop]), out.size)
    return out


def write(
    code: PrefixCode | TableCode, values: np.ndarray, head: tuple[np.ndarray, int] | None = None
) -> tuple[np.ndarray, int]:
    """Write the words of (n,) unsigned values, after an optional head; see `dense_string.write`.

    Returns
    -------
    data : (ceil(nbits / 8),) uint8 array
    nbits : int
    """

    def task(start: int, stop: int) -> BitString:
        string = BitString()
        if head and start == 0:
            string.extend(*head)
        for at in range(start, stop, _CHUNK):
            part = values[at : min(at + _CHUNK, stop)]
            write_symbols(code, part, np.array([part.size]), string)
        return string

    data, nbits, _ = written(task, values.size, 1)
    return data, nbits


def read(
    code: PrefixCode | TableCode, data: np.ndarray, nbits: int, count: int, start: int = 0
) -> tuple[np.ndarray, int]:
    """Read `count` words from bit `start` on of a string that ends at bit `nbits`.

    Returns
    -------
    values : (count,) uint64 array
    end : int
        Bit after the last word.

    Raises
    ------
    FormatError
    """
    values = np.empty(count, np.uint64)
    for at in range(0, count, _CHUNK):
        out = values[at : at + _CHUNK]
        small, wide = np.empty(out.size, np.uint8), np.empty(out.size * code.wide, np.uint64)
        starts = np.array([start, 0])
        bounds, left = np.array([out.size]), count - at
        read_blocks(code, data, starts, bounds, small, wide, nbits, False, left)
        out[:] = widened(small, wide, out.dtype)
        start = int(starts[1])
    return values, start


@factory(lambda: ((rule,) for rule in UNIVERSAL))
def _measurer(rule: Rule) -> Kernel:
    word_of = rule.word

    @kernel("in uint64[], uint64, out uint64[]", variant=rule.name)
    def measure(values, parameter, out):
        for i in range(out.size):  # values.size == out.size
            zeros, _, _, nbits = word_of(values[i], parameter)
            total = zeros + np.uint64(nbits)
            out[i] = total if total >= zeros else np.uint64(2**64 - 1)

    return measure
