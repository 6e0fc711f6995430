"""Tables of strings as a device makes them: of counts that it has, and without the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.entropy.huffman import LENGTH_NBITS
from gcodec.entropy.rans import STATIC_LOG2_TOTAL, log2_table
from gcodec.entropy.tabled import Kind, Known, Table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, Leading
from gcodec.runtime.device import Device

_TOTALS, _SYMBOLS, _WARP = 4, 256, 32
_WIDEST = {"huffman": 4, "rans": 4 + 14}  # bits of a field of a table
_BEFORE = 4 + 7  # bits besides, of rANS


def best_frequencies(counts: Any) -> tuple[Any, Deferred]:
    """Return frequencies and the log2 of their sum; no frequency where nothing occurs."""
    device = device_with(counts)
    models, sizes = device.empty(_TOTALS * _SYMBOLS, np.int64), device.empty(_TOTALS, np.int64)
    given = counts.view(np.uint64), _constant(device, _logarithms), models, sizes
    device.launch("frequencies", "make_frequencies", _TOTALS, _WARP, *given)
    found, log2_total = device.empty(_SYMBOLS, np.int64), device.empty(1, np.int64)
    made = models, sizes, found, log2_total
    device.launch("frequencies", "choose_frequencies", 1, _SYMBOLS, *made)
    return found, Deferred(device, log2_total)


def code_lengths(counts: Any) -> Any:
    """Make the lengths of Huffman words; no length where nothing occurs."""
    device = device_with(counts)
    lengths = device.empty(_SYMBOLS, np.uint8)
    device.launch("package_merge", "code_lengths", 1, _SYMBOLS, counts.view(np.uint64), lengths)
    return lengths


def front(
    head: Any, kind: str, numbers: Any, log2_total: Any, alphabet: np.ndarray, which: Any = 0
) -> tuple[Leading, Deferred]:
    """Return a head and a table, which is not there where nothing is coded, and their bits.

    The head is a `BitString`, or bytes on the device and how many bits count.
    """
    device = device_with(numbers)
    if isinstance(head, BitString):
        head = device.to_device(head.trimmed()), head.nbits
    known, at = head
    room = -(-(at + _BEFORE + _WIDEST[kind] * alphabet.size) // 32)
    words, nbits = device.zeros(room, np.uint32), device.empty(1, np.int64)
    words.view(np.uint8)[: known.size] = known
    model = (numbers,) if kind == "huffman" else (numbers, log2_total.words)
    name = "put_lengths" if kind == "huffman" else "put_frequencies"
    symbols = device.to_device(alphabet), np.int32(alphabet.size)
    chosen = which.words[:1] if type(which) is Deferred else device.zeros(1, np.int64)
    where = chosen, np.int64(at), words, np.int64(room), nbits
    device.launch("table_front", name, 1, _SYMBOLS, *model, *symbols, *where)
    return Leading(words.view(np.uint8), nbits, 1, 0), Deferred(device, nbits)


def chosen(
    counts: Any, own: Table | None, kind: Kind, alphabet: np.ndarray, known: Known
) -> Table:
    """Choose between tables; which it is, and what there is of it, stays on the device."""
    return chosen_and_size(counts, own, kind, alphabet, known)[0]


def chosen_and_size(
    counts: Any, own: Table | None, kind: Kind, alphabet: np.ndarray, known: Known
) -> tuple[Table, Any]:
    """Return the table that is chosen, and as a (1,) array the bits of table and string."""
    device, others = device_with(counts), _constant(device_with(counts), *known)
    count, log2 = others.shape[0], device.empty(2, np.int64)
    sizes, which = device.empty(1 + count, np.int64), device.empty(3, np.int64)
    log2[:1], log2[1:] = 0, STATIC_LOG2_TOTAL
    total: Any = own.log2_total if own else 0
    if type(total) is Deferred:
        log2[:1] = total.words
    sizes[:1] = 2**63 - 1
    parts: list[tuple[Any, ...]] = [(others, log2[1:], 0, sizes[1:])]
    if own:
        sent = LENGTH_NBITS * (alphabet.size + (kind == "rans"))
        parts.append((own.numbers, log2[:1], sent, sizes))
    for numbers, total, sent, found in parts:
        tables = numbers.size // _SYMBOLS
        if kind == "huffman":
            what = counts, numbers.reshape(-1), np.int64(sent), found
            device.launch("table_choice", "size_words", tables, _SYMBOLS, *what)
        else:
            given = counts.view(np.uint64), _constant(device, _logarithms), numbers.reshape(-1)
            how = total, np.int64(sent), found
            device.launch("frequencies", "size_frequencies", tables, _WARP, *given, *how)
    made = device.empty(_SYMBOLS, others.dtype)
    first = own.numbers if own else made
    pair = first.view(np.uint8), others.reshape(-1).view(np.uint8), np.int64(made.nbytes)
    where = log2[:1], log2[1:], made.view(np.uint8), which
    device.launch(
        "table_choice", "choose_table", 1, _SYMBOLS, sizes, np.int32(count), *pair, *where
    )
    told: Any = Deferred(device, which[1:2]), alphabet, Deferred(device, which[:1])
    return Table(kind, made, *told), which[2:]


def _logarithms() -> np.ndarray:
    return log2_table().astype(np.uint32)


@functools.lru_cache(maxsize=64)
def _constant(device: Device, make: Callable[..., np.ndarray], *given: Any) -> Any:
    table = device.to_device(make(*given))
    device.to_host(table.reshape(-1)[:1])  # once: who uses it next may do so on another stream
    return table
