"""Strings with a run–level pair for each nonzero element, on a device.

See `gcodec.kernels.prefix.sparse_string`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.scan_cuda import maxima_before, sums_before
from gcodec.kernels.prefix.codewords import OMEGA
from gcodec.kernels.prefix.codewords_cuda import (
    NO_ERROR,
    TILE,
    Words,
    note_status,
    reader_grid,
    rule_of,
    written,
)
from gcodec.kernels.prefix.prefix_table import PrefixCode, least_nbits, read_singles
from gcodec.kernels.prefix.run_level import NEAR, RunLevelCode
from gcodec.kernels.prefix.run_level_place_cuda import PlacedPairs
from gcodec.kernels.prefix.run_level_read import GAP_WINDOW
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, byte_view, device_with
from gcodec.runtime.deferred import Deferred

Place = Callable[[PlacedPairs, np.ndarray, np.ndarray, int], int]


class Measured(NamedTuple):
    """A string that is measured on a device, but not written yet.

    Attributes
    ----------
    part, words : tuple
        Kernel arguments for symbols, and for the words of gaps and symbols.
    numbers, maxima : (tiles + 1,) int64 array on the device
        Number of pairs before each tile, and position of the last of them.
    offsets : (tiles + 2,) int64 array on the device
        Sums of bits: 0, with the lead, and with each tile. Setting the last sum to 0 prevents the
        string from being written.
    block_size : int
        Pairs of a block.
    most : int or None
        Upper bound for the bits of the pairs; None if there is none.
    """

    part: tuple[Array, int, int]
    words: tuple[object, ...]
    numbers: Array
    maxima: Array
    offsets: Array
    block_size: int
    most: int | None

    @classmethod
    def of(
        cls,
        gap: PrefixCode | Words,
        symbol: PrefixCode | Words,
        symbols: Array,
        block_size: int,
        lead: int,
    ) -> Measured:
        """Measure a string that follows a lead of bytes."""
        device, n, (counts, maxima) = device_with(symbols), symbols.size, count_pairs(symbols)
        tiles = counts.size
        numbers = device.empty(tiles + 1, np.int64)
        sums_before(device, counts, numbers)
        lengths, offsets = (device.empty(tiles + extra, np.int64) for extra in (1, 2))
        gaps, levels = Words.of(device, gap, NEAR), Words.of(device, symbol)
        words = gaps.table, gaps.rule, gaps.shift, *levels[:-1]
        part = *byte_view(symbols), n
        most = None
        if levels.longest is not None and gap.rule is OMEGA:
            most = n * (1 + levels.longest)  # the worst case has no zeros
        string = cls(part, words, numbers, maxima, offsets, block_size, most)
        lengths[:1] = 8 * lead
        string._launch("measure", *words, maxima, lengths[1:])
        sums_before(device, lengths, offsets)
        return string

    @property
    def end(self) -> Array:
        """The total number of bits, as a (1,) array on the device."""
        return self.offsets[-1:]

    def deferred_marks(self) -> tuple[Deferred, Deferred, Deferred]:
        """Return the total number of bits, and the offsets and positions of blocks."""
        device, block_size = device_with(self.offsets), self.block_size
        most = -(-self.part[-1] // block_size)
        marks = device.empty(2 * most + 4, np.int64)
        sums = self.maxima, self.offsets[1:], self.numbers
        self._launch("mark", *self.words, *sums, block_size, marks[: 2 * most], most)
        totals = self.numbers[-1:], self.maxima[-1:], self.offsets[1:2], self.end
        for k, number in enumerate(totals, 2 * most):
            marks[k : k + 1] = number

        def blocks_of(marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            count, last, first, end = (int(x) for x in marks[2 * most :])
            blocks = -(-count // block_size)
            starts, positions = np.append(marks[:blocks], end), marks[most : most + blocks]
            return starts - first, np.append(positions, max(last, 0))

        nbits = Deferred(device, marks, lambda marks: int(marks[-1]), (marks[-1:], 1, 0))
        starts = Deferred(device, marks, lambda marks: blocks_of(marks)[0])
        return nbits, starts, Deferred(device, marks, lambda marks: blocks_of(marks)[1])

    def put(self, out: Array) -> None:
        """Write the string to (words,) uint32 that are zero except for the lead."""
        self._launch("write", *self.words, self.maxima, self.offsets[1:], out, out.size)

    def _launch(self, name: str, *args: object) -> None:
        device, tiles = device_with(self.offsets), self.numbers.size - 1
        device.launch("run_level_write", f"{name}_pairs", tiles, THREADS, *self.part, *args)


def count_pairs(symbols: Array) -> tuple[Array, Array]:
    """Count the pairs of each tile.

    Returns
    -------
    counts : (tiles,) int64 array on the device
    maxima : (tiles + 1,) int64 array on the device
        Position of the last nonzero symbol preceding each tile, and of the last of all.
    """
    device, tiles = device_with(symbols), -(-symbols.size // TILE)
    counts, lasts = (device.empty(tiles, np.int64) for _ in range(2))
    arguments = *byte_view(symbols), symbols.size, counts, lasts
    device.launch("run_level_write", "count_pairs", tiles, THREADS, *arguments)
    maxima = device.empty(tiles + 1, np.int64)
    maxima_before(device, lasts, maxima)
    return counts, maxima


def write(
    code: RunLevelCode, symbols: Array, block_size: int, lead: int
) -> tuple[Array, int | Deferred, np.ndarray | Deferred, np.ndarray | Deferred]:
    """Write the string of a tensor; see `gcodec.kernels.prefix.sparse_string.write`.

    The results stay on the device as in `gcodec.kernels.prefix.dense_string_cuda.write`.
    """
    string = Measured.of(code.gap, code.symbol, symbols, block_size, lead)
    data, nbits, starts, ends = written(string, symbols.size, lead, symbols[:0])
    return data, nbits, starts, ends


def read(
    code: RunLevelCode,
    data: Array,
    first: int,
    end: int,
    block_size: int,
    table: tuple[np.ndarray, np.ndarray] | None,
    place: Place,
) -> tuple[np.ndarray, np.ndarray]:
    """Read the string of a tensor; see `gcodec.kernels.prefix.sparse_string.read`.

    `place` receives all pairs at once. Without a table, one thread reads the string.
    """
    device = device_with(data)
    end = min(end, 8 * data.size)
    least = least_nbits(code.gap) + least_nbits(code.symbol)
    room = (end - first) // least + 1  # for pairs
    chained = table is not None
    blocks = table[0].size - 1 if table is not None else -(-room // block_size)
    room = min(room, blocks * block_size)
    entries = np.concatenate(table) if table is not None else np.zeros(2 * blocks + 2, np.int64)
    marks = device.to_device(np.append(entries, [0, 0, NO_ERROR]))
    symbols = device.empty(room, np.min_scalar_type(code.symbol.top))
    positions = device.empty(room, np.int64)
    string = data, data.size, end, marks[:-3], first, blocks, block_size, chained, room
    gaps = device.to_device(read_singles(code.gap, GAP_WINDOW, NEAR))
    gap_rule, _, gap_shift, gap_parameter = rule_of(code.gap)
    singles = device.to_device(read_singles(code.symbol))
    codes = gaps, gap_rule, gap_shift, gap_parameter, code.gap.top, singles, *rule_of(code.symbol)
    targets = symbols.itemsize, symbols.view(np.uint8), positions, marks[-3:-1], marks[-1:]
    arguments = *string, *codes, code.symbol.top, *targets
    device.launch("run_level_read", "read_pairs", *reader_grid(blocks, chained), *arguments)
    note_status(device, marks[-1:], chained)
    pairs = PlacedPairs(symbols, positions, marks[-3:-2])
    place(pairs, np.array([room]), np.empty(0, np.int64), 0)
    if table is not None:
        return table
    marks = device.to_host(marks)
    rows = int(marks[-2]) + 1
    return marks[:rows], marks[blocks + 1 : blocks + 1 + rows]
