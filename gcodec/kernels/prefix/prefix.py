"""Arrays of integers as strings of prefix words."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.codewords import UNIVERSAL, Rule
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime import pool
from gcodec.runtime.jit import Kernel, factory, kernel

_BLOCK = 1 << 17  # integers of a block, whose offset is not used


def lengths(code: PrefixCode, values: np.ndarray) -> np.ndarray:
    """Return the word lengths of (n,) uint64 values in bits; at most 2**64 − 1."""
    out = np.empty(values.size, np.uint64)
    loop, parameter = _measurer(code.rule), np.uint64(code.parameter)
    pool.run(lambda start, stop: loop(values[start:stop], parameter, out[start:stop]), out.size)
    return out


def write(
    code: PrefixCode | TableCode,
    values: np.ndarray,
    head: tuple[np.ndarray, int] | None = None,
) -> tuple[np.ndarray, int]:
    """Write the words of (n,) unsigned values, after an optional head; see `dense_string.write`.

    Returns
    -------
    data : (ceil(nbits / 8),) uint8 array
    nbits : int
    """
    all_coded = CodedMask.all(values.size)
    data, nbits, _ = dense_string.write(code, values, values.dtype, all_coded, _BLOCK, 0, head)
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

    def take(at: int, small: np.ndarray, wide: np.ndarray) -> None:
        values[at : at + small.size] = dense_string.widened(small, wide, values.dtype)

    all_coded = CodedMask.all(count)
    offsets = dense_string.read(code, data, start, nbits, all_coded, _BLOCK, None, take)
    return values, start + int(offsets[-1])


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
