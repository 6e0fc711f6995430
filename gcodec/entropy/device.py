"""The tables of entropy-coded strings, computed and selected on a device from counts there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.entropy.huffman import LENGTH_NBITS
from gcodec.entropy.rans import STATIC_LOG2_TOTAL, log2_table
from gcodec.entropy.tabled import Kind, StaticTables, Table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, LeadingBytes
from gcodec.runtime.device import Device

_TOTALS, _SYMBOLS, _WARP = 4, 256, 32
_FIELD_NBITS = {"huffman": 4, "rans": 4 + 14}  # most bits of one symbol's field in a table
_FIXED_NBITS = 4 + 7  # most other bits of a table of rANS


def best_frequencies(counts: Array) -> tuple[Array, Deferred]:
    """Return frequencies, 0 for symbols that do not occur, and the log2 of their sum."""
    device = device_with(counts)
    models, sizes = device.empty(_TOTALS * _SYMBOLS, np.int64), device.empty(_TOTALS, np.int64)
    inputs = counts.view(np.uint64), _constant(device, _logarithms)
    device.launch("frequencies", "make_frequencies", _TOTALS, _WARP, *inputs, models, sizes)
    best = device.empty(_SYMBOLS, np.int64), device.empty(1, np.int64)
    device.launch("frequencies", "choose_frequencies", 1, _SYMBOLS, models, sizes, *best)
    return best[0], Deferred(device, best[1])


def code_lengths(counts: Array) -> Array:
    """Return the lengths of Huffman codewords, 0 for symbols that do not occur."""
    device = device_with(counts)
    lengths = device.empty(_SYMBOLS, np.uint8)
    device.launch("package_merge", "code_lengths", 1, _SYMBOLS, counts.view(np.uint64), lengths)
    return lengths


def front(
    head: BitString | tuple[Array, int],
    kind: Kind,
    numbers: Array,
    log2_total: Deferred,
    alphabet: np.ndarray,
    which: int | Deferred = 0,
) -> tuple[LeadingBytes, Deferred]:
    """Return a head followed by a table, and their bits.

    The table is left out if no symbol occurs, or if `which` is the number of a static table. The
    head is a `BitString`, or bytes on the device and the number of valid bits in them.
    """
    device = device_with(numbers)
    if isinstance(head, BitString):
        head = device.to_device(head.trimmed()), head.nbits
    data, head_nbits = head
    size = -(-(head_nbits + _FIXED_NBITS + _FIELD_NBITS[kind] * alphabet.size) // 32)
    words, nbits = device.zeros(size, np.uint32), device.empty(1, np.int64)
    words.view(np.uint8)[: data.size] = data
    selected = which.words[:1] if isinstance(which, Deferred) else device.zeros(1, np.int64)
    name = "put_frequencies" if kind == "rans" else "put_lengths"
    model = (numbers, log2_total.words) if kind == "rans" else (numbers,)
    symbols = device.to_device(alphabet), np.int32(alphabet.size)
    output = selected, np.int64(head_nbits), words, np.int64(size), nbits
    device.launch("table_front", name, 1, _SYMBOLS, *model, *symbols, *output)
    return LeadingBytes(words.view(np.uint8), nbits, 1, 0), Deferred(device, nbits)


def best_table(
    counts: Array,
    own: Table | None,
    kind: Kind,
    alphabet: np.ndarray,
    static_tables: StaticTables | None = None,
) -> tuple[Table, Deferred]:
    """Select the best table; see `gcodec.entropy.tabled.best_table`."""
    device = device_with(counts)
    static: Any = None if static_tables is None else _constant(device, static_tables)
    count = 0 if static is None else static.shape[0]
    sizes, log2_totals = device.empty(1 + count, np.int64), device.empty(2, np.int64)
    sizes[:1], log2_totals[:1], log2_totals[1:] = 2**63 - 1, 0, STATIC_LOG2_TOTAL
    if own is not None:
        log2_total: Any = own.log2_total
        if type(log2_total) is Deferred:
            log2_totals[:1] = log2_total.words
        sent_nbits = LENGTH_NBITS * (alphabet.size + (kind == "rans"))
        _size_strings(kind, counts, own.numbers, log2_totals[:1], sent_nbits, sizes)
        if static is None:
            return own, Deferred(device, sizes)
    _size_strings(kind, counts, static, log2_totals[1:], 0, sizes[1:])
    numbers, selected = device.empty(_SYMBOLS, static.dtype), device.empty(3, np.int64)
    own_numbers = numbers if own is None else own.numbers
    tables = own_numbers.view(np.uint8), static.reshape(-1).view(np.uint8)
    inputs = sizes, np.int32(count), *tables, np.int64(numbers.nbytes)
    outputs = numbers.view(np.uint8), selected
    totals = log2_totals[:1], log2_totals[1:]
    device.launch("table_choice", "choose_table", 1, _SYMBOLS, *inputs, *totals, *outputs)
    deferred: list[Any] = [Deferred(device, selected[k : k + 1]) for k in range(3)]
    which, log2_total, nbits = deferred
    return Table(kind, numbers, log2_total, alphabet, which), nbits


def _size_strings(
    kind: Kind, counts: Array, numbers: Array, log2_total: Array, sent_nbits: int, sizes: Array
) -> None:
    """Write the length of table and string, in bits, to `sizes` for each of several tables."""
    device, count, numbers = device_with(counts), numbers.size // _SYMBOLS, numbers.reshape(-1)
    output = np.int64(sent_nbits), sizes
    if kind == "huffman":
        device.launch("table_choice", "size_words", count, _SYMBOLS, counts, numbers, *output)
        return
    inputs = counts.view(np.uint64), _constant(device, _logarithms), numbers, log2_total
    device.launch("frequencies", "size_frequencies", count, _WARP, *inputs, *output)


def _logarithms() -> np.ndarray:
    return log2_table().astype(np.uint32)


@functools.lru_cache(maxsize=64)
def _constant(device: Device, make: Callable[[], np.ndarray]) -> Array:
    """Return the array of a function on the device; copy it there once."""
    array = device.to_device(make())
    device.to_host(array.reshape(-1)[:1])  # wait: the next user may work on another stream
    return array
