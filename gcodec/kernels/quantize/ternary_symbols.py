"""Ternary codes, five in a byte, as symbols of a byte each: 0, 2, 3 for codes 0, 1, 2."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.quantize import ternary
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched

FIVES = np.arange(3**ternary.TRITS).astype(np.uint8)  # bytes of five codes
_POWERS = 3 ** np.arange(ternary.TRITS).astype(np.uint8)
_SYMBOLS = np.array([0, 2, 3], np.uint8)[FIVES[:, None] // _POWERS % 3]
_CHUNK = 1 << 16  # bytes of five codes


@dispatched("gcodec.kernels.quantize.ternary_symbols_cuda")
def symbols_of(codes: np.ndarray, n: int) -> np.ndarray:
    """Return the symbols of n codes, five in a byte, as (n,) uint8."""
    symbols = np.empty((codes.size, ternary.TRITS), np.uint8)

    def task(start: int, stop: int) -> None:
        np.take(_SYMBOLS, codes[start:stop], axis=0, out=symbols[start:stop])

    pool.run(task, codes.size, _CHUNK)
    return symbols.reshape(-1)[:n]


@dispatched("gcodec.kernels.quantize.ternary_symbols_cuda")
def codes_of(symbols: np.ndarray) -> np.ndarray:
    """Return the codes that (n,) uint8 symbols stand for, five in a byte."""
    codes = np.zeros(ternary.packed_nbytes(symbols.size, "base3"), np.uint8)

    def task(start: int, stop: int) -> None:
        part = symbols[ternary.TRITS * start : ternary.TRITS * stop]
        trits = part - (part >> np.uint8(1))
        for k, power in enumerate(_POWERS):
            some = trits[k :: ternary.TRITS]
            codes[start : start + some.size] += power * some

    pool.run(task, codes.size, _CHUNK)
    return codes
