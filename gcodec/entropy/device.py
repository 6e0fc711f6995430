"""Tables of strings as a device makes them: of counts that it has, and without the host."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.cuda.grid import device_with
from gcodec.entropy.rans import log2_table
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.device import Device
from gcodec.scalars import Later, Leading

_TOTALS, _SYMBOLS, _WARP = 4, 256, 32
_WIDEST = {"huffman": 4, "rans": 4 + 14}  # bits of a field of a table
_BEFORE = 4 + 7  # bits besides, of rANS


def best_frequencies(counts: Any) -> tuple[Any, Later]:
    """Return frequencies and the log2 of their sum; no frequency where nothing occurs."""
    device = device_with(counts)
    models, sizes = device.empty(_TOTALS * _SYMBOLS, np.int64), device.empty(_TOTALS, np.int64)
    given = counts.view(np.uint64), _logarithms(device), models, sizes
    device.launch("frequencies", "make_frequencies", _TOTALS, _WARP, *given)
    found, log2_total = device.empty(_SYMBOLS, np.int64), device.empty(1, np.int64)
    made = models, sizes, found, log2_total
    device.launch("frequencies", "choose_frequencies", 1, _SYMBOLS, *made)
    return found, Later(device, log2_total)


def code_lengths(counts: Any) -> Any:
    """Make the lengths of Huffman words; no length where nothing occurs."""
    device = device_with(counts)
    lengths = device.empty(_SYMBOLS, np.uint8)
    device.launch("package_merge", "code_lengths", 1, _SYMBOLS, counts.view(np.uint64), lengths)
    return lengths


def front(
    head: BitString, kind: str, numbers: Any, log2_total: Any, alphabet: np.ndarray
) -> tuple[Leading, Later]:
    """Return a head and a table, which is not there where nothing is coded, and their bits."""
    device, at, known = device_with(numbers), head.nbits, head.trimmed()
    room = -(-(at + _BEFORE + _WIDEST[kind] * alphabet.size) // 32)
    words, nbits = device.zeros(room, np.uint32), device.empty(1, np.int64)
    words.view(np.uint8)[: known.size] = device.to_device(known)
    model = (numbers,) if kind == "huffman" else (numbers, log2_total.words)
    name = "put_lengths" if kind == "huffman" else "put_frequencies"
    symbols = device.to_device(alphabet), np.int32(alphabet.size)
    where = np.int64(at), words, np.int64(room), nbits
    device.launch("table_front", name, 1, _SYMBOLS, *model, *symbols, *where)
    return Leading(words.view(np.uint8), nbits, 1, 0), Later(device, nbits)


@functools.lru_cache(maxsize=8)
def _logarithms(device: Device) -> Any:
    table = device.to_device(log2_table().astype(np.uint32))
    device.to_host(table[:1])  # once: the next one to use it may do so on another stream
    return table
