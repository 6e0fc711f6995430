"""Parameters of Rice codes as a device finds them, by counts of symbols and gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.scan_cuda import maxima_before
from gcodec.kernels.prefix.tally import Numbers
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred

_THREADS = 256
_TILE = 16 * _THREADS  # symbols that a block of threads looks at, one tile after the other
_MOST = 1 << 11  # blocks of threads
_SIZES, _NEAR = 64, 256
_NUMBERS = {"zigzag": 0, "levels": 1, "gaps": 2}


def rice_parameter(symbols: Any, numbers: Numbers, words: Any = None) -> Deferred:
    """Return the parameter that `best_rice` finds, as far as sums stay below 2^64.

    Of those that are 0, only so many have a word that all are as many as a (1,) array tells.
    """
    device, k = device_with(symbols), device_with(symbols).empty(1, np.int64)
    silent = symbols.size if words is not None else 0
    given = _numbers(symbols, numbers), np.int64(silent)
    known = device.zeros(1, np.int64) if words is None else words
    device.launch("tally", "best_parameter", 1, _SIZES, *given, known, k)
    return Deferred(device, k)


def _numbers(symbols: Any, numbers: Numbers) -> Any:
    device, what = device_with(symbols), np.int32(_NUMBERS[numbers])
    tiles = -(-symbols.size // _TILE)
    part = symbols.view(np.uint8), np.int32(symbols.itemsize), np.int64(symbols.size)
    units, lasts = (device.empty(tiles, np.int64) for _ in range(2))
    maxima = device.empty(tiles + 1, np.int64)
    counts = device.zeros(_NEAR + _SIZES, np.uint64)
    device.launch("run_level_write", "count_units", tiles, _THREADS, *part, units, lasts)
    maxima_before(device, lasts, maxima)
    blocks = min(tiles, _MOST)
    device.launch("tally", "count_numbers", blocks, _THREADS, *part, maxima, what, counts)
    return counts
