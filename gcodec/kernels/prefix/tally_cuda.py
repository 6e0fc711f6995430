"""Parameters of Rice codes that a device finds, by counts of symbols and gaps."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.scan_cuda import maxima_before
from gcodec.kernels.prefix.tally import Numbers
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import byte_view, device_with
from gcodec.runtime.deferred import Deferred

_THREADS = 256
_TILE = 16 * _THREADS  # symbols that a block of threads counts at a time
_MOST = 1 << 11  # blocks of threads
_SIZES, _NEAR = 64, 256
_NUMBERS = {"zigzag": 0, "levels": 1, "gaps": 2}


def rice_parameter(symbols: Array, numbers: Numbers, words: Array | None = None) -> Deferred:
    """Return the parameter that `best_rice` finds, as far as sums stay below 2^64.

    `words` is the number of elements that have a word, as a (1,) array; by default all have one.
    All others must be 0.
    """
    device, n, tiles = device_with(symbols), symbols.size, -(-symbols.size // _TILE)
    part = *byte_view(symbols), n
    pairs, lasts = (device.empty(tiles, np.int64) for _ in range(2))
    maxima = device.empty(tiles + 1, np.int64)
    counts, parameter = device.zeros(_NEAR + _SIZES, np.uint64), device.empty(1, np.int64)
    device.launch("run_level_write", "count_units", tiles, _THREADS, *part, pairs, lasts)
    maxima_before(device, lasts, maxima)
    arguments = *part, maxima, _NUMBERS[numbers], counts
    device.launch("tally", "count_numbers", min(tiles, _MOST), _THREADS, *arguments)
    coded = (0, device.zeros(1, np.int64)) if words is None else (n, words)
    device.launch("tally", "best_parameter", 1, _SIZES, counts, *coded, parameter)
    return Deferred(device, parameter)
