"""Strings that have a unit for each element that is not 0, on a device.

See `gcodec.kernels.sparse_string`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.cuda.codewords import (
    NO_ERROR,
    has_room,
    most_nbits,
    raise_status,
    rule_of,
    write_singles,
)
from gcodec.cuda.grid import device_with
from gcodec.cuda.scan import maxima_before, sums_before
from gcodec.cuda.unit_place import PlacedUnits
from gcodec.kernels.codewords import OMEGA
from gcodec.kernels.device import Device
from gcodec.kernels.prefix_table import least_nbits, read_singles, ready
from gcodec.kernels.unit_read import GAP_WINDOW
from gcodec.kernels.unit_table import NEAR
from gcodec.kernels.units import UnitCode
from gcodec.scalars import Later, note

_THREADS = 256
_TILE = 16 * _THREADS  # symbols that a block of threads writes
_FEW = 1 << 14  # blocks that are read by few threads together, so that all processors have some

Place = Callable[[PlacedUnits, np.ndarray, np.ndarray, int], int]


def write(code: UnitCode, symbols: Any, every: int, lead: int) -> tuple[Any, Any, Any, Any]:
    """Write the string of a tensor; see `gcodec.cuda.dense_string.write` for what stays there."""
    device = device_with(symbols)
    n = symbols.size
    tiles, most = -(-n // _TILE), -(-n // every)
    counts, lasts, lengths = (device.empty(tiles, np.int64) for _ in range(3))
    numbers, maxima, offsets = (device.empty(tiles + 1, np.int64) for _ in range(3))
    marks = device.empty(2 * most + 3, np.int64)  # and the sums of all
    gaps = device.to_device(ready(*code.gap.words(NEAR)))
    rule, _, *numbers_of_gap = rule_of(code.gap)
    unit = gaps, rule, *numbers_of_gap, write_singles(device, code.symbol), *rule_of(code.symbol)
    part = symbols.view(np.uint8), np.int32(symbols.itemsize), np.int64(n)

    def launch(name: str, *args: Any) -> None:
        device.launch("unit_write", f"{name}_units", tiles, _THREADS, *part, *args)

    launch("count", counts, lasts)
    sums_before(device, counts, numbers)
    maxima_before(device, lasts, maxima)
    launch("measure", *unit, maxima, lengths)
    sums_before(device, lengths, offsets)
    launch(
        *("mark", *unit, maxima, offsets, numbers),
        *(np.int64(every), marks[: 2 * most], np.int64(most)),
    )
    for k, sums in enumerate((numbers, maxima, offsets)):
        marks[2 * most + k : 2 * most + k + 1] = sums[-1:]

    def blocks_of(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count, last, size = (int(x) for x in found[2 * most :])
        blocks = -(-count // every)
        starts, positions = np.append(found[:blocks], size), found[most : most + blocks]
        return starts, np.append(positions, max(last, 0))

    starts: Any = Later(device, marks, lambda found: blocks_of(found)[0])
    ends: Any = Later(device, marks, lambda found: blocks_of(found)[1])
    longest = most_nbits(code.symbol) if code.gap.rule is OMEGA else None
    # One unit behind another takes most for each element.
    room = None if longest is None else 8 * lead + n * (1 + longest)
    nbits: Any = Later(device, marks, lambda f: 8 * lead + int(f[-1]), (marks[-1:], 1, 8 * lead))
    if room is None or not has_room(room, n):
        found = device.to_host(marks)
        starts, ends, nbits = (later.tell(found) for later in (starts, ends, nbits))
        room = nbits
    out = device.zeros(-(-room // 32), np.uint32)
    launch("write", *unit, maxima, offsets, np.int64(8 * lead), out, np.int64(out.size))
    data = out.view(np.uint8)
    return data if type(nbits) is Later else data[: -(-room // 8)], nbits, starts, ends


def read(
    code: UnitCode,
    data: Any,
    first: int,
    end: int,
    every: int,
    table: tuple[np.ndarray, np.ndarray] | None,
    place: Place,
) -> tuple[np.ndarray, np.ndarray]:
    """Read the string of a tensor; see `gcodec.kernels.sparse_string.read`.

    `place` gets all units at once. Without a table, one thread reads all.
    """
    device = device_with(data)
    end = min(end, 8 * data.size)
    least = least_nbits(code.gap) + least_nbits(code.symbol)
    room = (end - first) // least + 1  # of units
    chained = table is not None
    blocks = table[0].size - 1 if table is not None else -(-room // every)
    room = min(room, blocks * every)
    known = np.concatenate(table) if table is not None else np.zeros(2 * blocks + 2, np.int64)
    marks = device.to_device(np.append(known, [0, 0, NO_ERROR]))
    symbols = device.empty(room, np.min_scalar_type(code.symbol.top))
    positions = device.empty(room, np.int64)
    threads = 32 if blocks <= _FEW else 128
    device.launch(
        *("unit_read", "read_units", -(-blocks // threads) if chained else 1, threads),
        *(data, np.int64(data.size), np.int64(end), marks[:-3], np.int64(first)),
        *(np.int64(blocks), np.int64(every), np.int32(chained), np.int64(room)),
        *_read_arguments(device, code),
        *(np.int32(symbols.itemsize), symbols.view(np.uint8), positions),
        *(marks[-3:-1], marks[-1:]),
    )
    note(device, marks[-1:], lambda told: raise_status(int(told[0]), chained))
    units = PlacedUnits(symbols, positions, marks[-3:-2])
    place(units, np.array([room]), np.empty(0, np.int64), 0)
    if table is not None:
        return table
    found = device.to_host(marks)
    rows = int(found[-2]) + 1
    return found[:rows], found[blocks + 1 : blocks + 1 + rows]


def _read_arguments(device: Device, code: UnitCode) -> tuple[Any, ...]:
    gaps = device.to_device(read_singles(code.gap, GAP_WINDOW, NEAR))
    rule, _, *numbers = rule_of(code.gap)
    singles = device.to_device(read_singles(code.symbol))
    tops = np.uint64(code.gap.top), np.uint64(code.symbol.top)
    return gaps, rule, *numbers, tops[0], singles, *rule_of(code.symbol), tops[1]
