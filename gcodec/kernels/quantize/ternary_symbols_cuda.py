"""Launchers of ternary_symbols.cu; see `gcodec.kernels.quantize.ternary_symbols`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.quantize.ternary import packed_nbytes
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def symbols_of(codes: Any, n: int) -> Any:
    """Return the symbols of n codes, five in a byte."""
    device, size = device_with(codes), codes.size
    out = device.empty(n, np.uint8)
    arguments = codes, np.int64(size), np.int64(n), out
    grid = striding_blocks(size)
    device.launch("ternary_symbols", "trit_symbols", grid, THREADS, *arguments)
    return out


def codes_of(symbols: Any) -> Any:
    """Return the codes that symbols stand for, five in a byte."""
    device, n = device_with(symbols), symbols.size
    out = device.empty(packed_nbytes(n, "base3"), np.uint8)
    arguments = symbols, np.int64(n), out, np.int64(out.size)
    grid = striding_blocks(out.size)
    device.launch("ternary_symbols", "trit_codes", grid, THREADS, *arguments)
    return out
