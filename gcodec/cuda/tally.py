"""Counts of symbols and gaps on a device; see `gcodec.kernels.tally`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gcodec.cuda.grid import device_with
from gcodec.cuda.scan import maxima_before
from gcodec.kernels.tally import PARAMETERS, Numbers, Tally
from gcodec.scalars import Later, fetch

_THREADS = 256
_TILE = 16 * _THREADS  # symbols that a block of threads looks at, one tile after the other
_MOST = 1 << 11  # blocks of threads
_SIZES, _NEAR = 64, 256
_NUMBERS = {"zigzag": 0, "levels": 1, "gaps": 2}


def tally(symbols: Any, rice: Sequence[Numbers] = ()) -> Tally:
    """Count the (n,) unsigned symbols of a tensor, and all that `best_rice` needs."""
    counts = _counts(symbols, "tally", 3 * _SIZES)
    each = (_numbers(symbols, numbers) for numbers in rice)
    found, *others = fetch(device_with(symbols), counts, *each)
    above, levels, gaps = found.reshape(3, _SIZES)
    return Tally(above, levels, gaps, dict(zip(rice, others, strict=True)))


def best_rice(symbols: Any, numbers: Numbers, counts: Tally, silent: int = 0) -> tuple[int, int]:
    """Find the best parameter of a Rice code, by counts that are on the host."""
    found = counts.rice[numbers].tolist()
    few, planes, far = found[:_NEAR], found[_NEAR:-1], found[-1]
    words, lengths = sum(few) + far - silent, []
    for k in range(PARAMETERS):  # in Python's integers, which are of any size
        sums = sum(count * (number >> k) for number, count in enumerate(few))
        sums += sum(count << bit - k for bit, count in enumerate(planes) if bit >= k)
        lengths.append(sums + words * (1 + k))
    best = lengths.index(min(lengths))
    return best, lengths[best]


def rice_parameter(symbols: Any, numbers: Numbers, words: Any = None) -> Later:
    """Return the parameter that `best_rice` finds, as far as sums stay below 2^64.

    Of those that are 0, only so many have a word that all are as many as a (1,) array tells.
    """
    device, k = device_with(symbols), device_with(symbols).empty(1, np.int64)
    silent = symbols.size if words is not None else 0
    given = _numbers(symbols, numbers).view(np.uint64), np.int64(silent)
    known = device.zeros(1, np.int64) if words is None else words
    device.launch("tally", "best_parameter", 1, _SIZES, *given, known, k)
    return Later(device, k)


def _numbers(symbols: Any, numbers: Numbers) -> Any:
    what = np.int32(_NUMBERS[numbers])
    return _counts(symbols, "count_numbers", _NEAR + _SIZES, what)


def _counts(symbols: Any, name: str, size: int, *args: Any) -> Any:
    device = device_with(symbols)
    tiles = -(-symbols.size // _TILE)
    part = symbols.view(np.uint8), np.int32(symbols.itemsize), np.int64(symbols.size)
    numbers, lasts = (device.empty(tiles, np.int64) for _ in range(2))
    maxima, counts = device.empty(tiles + 1, np.int64), device.zeros(size, np.uint64)
    device.launch("unit_write", "count_units", tiles, _THREADS, *part, numbers, lasts)
    maxima_before(device, lasts, maxima)
    blocks = min(tiles, _MOST)
    device.launch("tally", name, blocks, _THREADS, *part, maxima, *args, counts)
    return counts.view(np.int64)
