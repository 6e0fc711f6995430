"""Strings that have a unit for each element that is not 0, on a device.

See `gcodec.kernels.prefix.sparse_string`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.scan_cuda import maxima_before, sums_before
from gcodec.kernels.prefix.codewords import OMEGA
from gcodec.kernels.prefix.codewords_cuda import NO_ERROR, Words, has_room, raise_status, rule_of
from gcodec.kernels.prefix.prefix_table import PrefixCode, least_nbits, read_singles
from gcodec.kernels.prefix.run_level import RunLevelCode
from gcodec.kernels.prefix.run_level_place_cuda import PlacedPairs
from gcodec.kernels.prefix.run_level_read import GAP_WINDOW
from gcodec.kernels.prefix.run_level_table import NEAR
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, note
from gcodec.runtime.device import Device

_THREADS = 256
_TILE = 16 * _THREADS  # symbols that a block of threads writes
_FEW = 1 << 14  # blocks that are read by few threads together, so that all processors have some

Place = Callable[[PlacedPairs, np.ndarray, np.ndarray, int], int]


class Measured(NamedTuple):
    """A string whose length a device knows, and which is to be written.

    Attributes
    ----------
    part, unit : tuple
        What kernels are told of symbols, and of words.
    numbers, maxima : (tiles + 1,) int64 array on the device
        Units before each tile, and the position of the last of them.
    offsets : (tiles + 2,) int64 array on the device
        Bits of nothing, of the lead, and with each tile. Nothing is written where there are no
        bits in all.
    every : int
    most : int or None
        Bits that there may be; None where that is not known.
    """

    part: tuple[Any, ...]
    unit: tuple[Any, ...]
    numbers: Any
    maxima: Any
    offsets: Any
    every: int
    most: int | None

    @classmethod
    def of(
        cls,
        gap: PrefixCode | Words,
        symbol: PrefixCode | Words,
        symbols: Any,
        every: int,
        lead: int,
    ) -> Measured:
        """Measure a string behind a lead of bytes."""
        device, n, tiles = device_with(symbols), symbols.size, -(-symbols.size // _TILE)
        counts, lasts = (device.empty(tiles, np.int64) for _ in range(2))
        numbers, maxima = (device.empty(tiles + 1, np.int64) for _ in range(2))
        lengths, offsets = (device.empty(tiles + more, np.int64) for more in (1, 2))
        gaps, words = Words.of(device, gap, NEAR), Words.of(device, symbol)
        unit = gaps.table, gaps.rule, gaps.shift, *words[:-1]
        part = symbols.view(np.uint8), np.int32(symbols.itemsize), np.int64(n)
        most = None
        if words.longest is not None and gap.rule is OMEGA:
            most = n * (1 + words.longest)  # one unit behind another takes most for each element
        made = cls(part, unit, numbers, maxima, offsets, every, most)
        made._launch("count", counts, lasts)
        sums_before(device, counts, numbers)
        maxima_before(device, lasts, maxima)
        lengths[:1] = 8 * lead
        made._launch("measure", *unit, maxima, lengths[1:])
        sums_before(device, lengths, offsets)
        return made

    @property
    def end(self) -> Any:
        """The word of all bits."""
        return self.offsets[-1:]

    def told(self) -> tuple[Deferred, Deferred, Deferred]:
        """Return the bits of all; those, and positions, before blocks and behind the last."""
        device, every = device_with(self.offsets), self.every
        most = -(-int(self.part[-1]) // every)
        marks = device.empty(2 * most + 4, np.int64)
        self._launch(
            *("mark", *self.unit, self.maxima, self.offsets[1:], self.numbers),
            *(np.int64(every), marks[: 2 * most], np.int64(most)),
        )
        told = self.numbers[-1:], self.maxima[-1:], self.offsets[1:2], self.end
        for k, number in enumerate(told, 2 * most):
            marks[k : k + 1] = number

        def blocks_of(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            count, last, first, end = (int(x) for x in found[2 * most :])
            blocks = -(-count // every)
            starts, positions = np.append(found[:blocks], end), found[most : most + blocks]
            return starts - first, np.append(positions, max(last, 0))

        nbits = Deferred(device, marks, lambda found: int(found[-1]), (marks[-1:], 1, 0))
        starts = Deferred(device, marks, lambda found: blocks_of(found)[0])
        return nbits, starts, Deferred(device, marks, lambda found: blocks_of(found)[1])

    def put(self, out: Any) -> None:
        """Write the string to words that are zero but for the lead."""
        where = self.maxima, self.offsets[1:], out, np.int64(out.size)
        self._launch("write", *self.unit, *where)

    def _launch(self, name: str, *args: Any) -> None:
        device, tiles = device_with(self.offsets), self.numbers.size - 1
        device.launch("run_level_write", f"{name}_units", tiles, _THREADS, *self.part, *args)


def write(code: RunLevelCode, symbols: Any, every: int, lead: int) -> tuple[Any, Any, Any, Any]:
    """Write the string of a tensor.

    See `gcodec.kernels.prefix.dense_string_cuda.write` for what stays there.
    """
    device = device_with(symbols)
    string = Measured.of(code.gap, code.symbol, symbols, every, lead)
    nbits: Any
    starts: Any
    ends: Any
    nbits, starts, ends = string.told()
    most = None if string.most is None else string.most + 8 * lead
    if most is None or not has_room(most, symbols.size):
        found = device.to_host(nbits.words)
        starts, ends, most = (later.tell(found) for later in (starts, ends, nbits))
        nbits = most
    out = device.zeros(-(-most // 32), np.uint32)
    string.put(out)
    data = out.view(np.uint8)
    return data if type(nbits) is Deferred else data[: -(-most // 8)], nbits, starts, ends


def read(
    code: RunLevelCode,
    data: Any,
    first: int,
    end: int,
    every: int,
    table: tuple[np.ndarray, np.ndarray] | None,
    place: Place,
) -> tuple[np.ndarray, np.ndarray]:
    """Read the string of a tensor; see `gcodec.kernels.prefix.sparse_string.read`.

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
        *("run_level_read", "read_units", -(-blocks // threads) if chained else 1, threads),
        *(data, np.int64(data.size), np.int64(end), marks[:-3], np.int64(first)),
        *(np.int64(blocks), np.int64(every), np.int32(chained), np.int64(room)),
        *_read_arguments(device, code),
        *(np.int32(symbols.itemsize), symbols.view(np.uint8), positions),
        *(marks[-3:-1], marks[-1:]),
    )
    note(device, marks[-1:], lambda told: raise_status(int(told[0]), chained))
    units = PlacedPairs(symbols, positions, marks[-3:-2])
    place(units, np.array([room]), np.empty(0, np.int64), 0)
    if table is not None:
        return table
    found = device.to_host(marks)
    rows = int(found[-2]) + 1
    return found[:rows], found[blocks + 1 : blocks + 1 + rows]


def _read_arguments(device: Device, code: RunLevelCode) -> tuple[Any, ...]:
    gaps = device.to_device(read_singles(code.gap, GAP_WINDOW, NEAR))
    rule, _, *numbers = rule_of(code.gap)
    singles = device.to_device(read_singles(code.symbol))
    tops = np.uint64(code.gap.top), np.uint64(code.symbol.top)
    return gaps, rule, *numbers, tops[0], singles, *rule_of(code.symbol), tops[1]
