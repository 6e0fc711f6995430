"""Parameters of Rice codes that a device finds, by counts of symbols and gaps."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.prefix.sparse_string_cuda import count_pairs
from gcodec.kernels.prefix.tally import Numbers
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, byte_view, device_with
from gcodec.runtime.deferred import Deferred

_MOST = 1 << 11  # blocks of threads
_SIZES, _NEAR = 64, 256
_NUMBERS = {"zigzag": 0, "levels": 1, "gaps": 2}


def rice_parameter(symbols: Array, numbers: Numbers, words: Array | None = None) -> Deferred:
    """Return the parameter that `best_rice` finds, as far as sums stay below 2^64.

    `words` is the number of elements that have a word, as a (1,) array; by default all have one.
    All others must be 0.
    """
    device, n, (pairs, maxima) = device_with(symbols), symbols.size, count_pairs(symbols)
    counts, parameter = device.zeros(_NEAR + _SIZES, np.uint64), device.empty(1, np.int64)
    arguments = *byte_view(symbols), n, maxima, _NUMBERS[numbers], counts
    device.launch("tally", "count_numbers", min(pairs.size, _MOST), THREADS, *arguments)
    coded = (0, device.zeros(1, np.int64)) if words is None else (n, words)
    device.launch("tally", "best_parameter", 1, _SIZES, counts, *coded, parameter)
    return Deferred(device, parameter)
