"""Strings of symbols by class as a device writes them: it decides, and the host tells what it did.

Scales, a table and exceptions come to the host with the string, and it writes of them what comes
before the symbols.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.coder import Written, seek_of_runs
from gcodec.entropy.context import class_tables, models, table_choice
from gcodec.entropy.context.class_tables import SENT, ClassTable
from gcodec.entropy.context.coder import put_head
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales, matrices, some_rows
from gcodec.entropy.context.table_choice import Best
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import class_map, context_plan_cuda
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table_cuda import write_model_tables
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.payload import PrefixedBytes
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, Leading, mapped, wanted
from gcodec.runtime.device import Device, placed
from gcodec.wire.seek import SeekTable

_EVERY, _LEAST = 1 << 4, 1 << 14  # elements to an exception, for which there is room; and of few
_WORD = 64  # bits of the numbers of a list


class Planned(NamedTuple):
    """How symbols are best written.

    Attributes
    ----------
    scales : Scales
    table : Chosen
    every : tuple of Matrix
    """

    scales: context_plan_cuda.Scales
    table: context_plan_cuda.Chosen
    every: tuple[RowLayout, ...]

    @property
    def nbits(self) -> Any:
        """About how many bits it takes, as a (1,) array."""
        return self.table.told[3:]


def write(
    symbols: Any, shape: tuple[int, ...], front: BitString, coded: CodedMask | None = None
) -> Written:
    """Write the string of a tensor; see `gcodec.entropy.context.symbol_coder.write`."""
    if not symbols.size:
        nbits = front.nbits
        return Written(placed(front.trimmed(), symbols), nbits)
    return write_planned(plan(symbols, shape), symbols, front, symbols.size, coded)


def plan(symbols: Any, shape: tuple[int, ...]) -> Planned:
    """Plan the string of symbols, of which there are some."""
    return planned(best_scales(symbols, symbols, shape), symbols.size, matrices(shape))


def best_scales(symbols: Any, by: Any, shape: tuple[int, ...]) -> context_plan_cuda.Scales:
    """Find the scales of symbols, and count these, in the matrix that is best for others."""
    n, every, sample = symbols.size, matrices(shape), table_choice.SAMPLE
    some = some_rows(by, every[0].width, sample)
    steps = models.share(n, sample), models.share(some.size, sample)
    seen, constants = class_map.seen(some.size, steps[1]), _constants(device_with(symbols))
    how = some, every, steps, seen, constants, symbols is by
    return context_plan_cuda.best_scales(symbols, *how)


def best_matrix(symbols: Any, every: Sequence[RowLayout], times: int = 1) -> Best:
    """Return the best matrix; see `gcodec.entropy.context.table_choice.best_matrix`. Waits."""
    if len(every) == 1:
        return Best(every[0])
    step, device = models.share(symbols.size, table_choice.SAMPLE), device_with(symbols)
    seen = class_map.seen(symbols.size, step)
    how = times, every, step, seen, _constants(device)
    return Best(every[int(Deferred(device, context_plan_cuda.best_matrix(symbols, *how)))])


def scales_in(matrix: RowLayout, symbols: Any) -> context_plan_cuda.Scales:
    """Find the scales of symbols in a matrix, and count none."""
    constants = _constants(device_with(symbols))
    return context_plan_cuda.best_scales(symbols, symbols, [matrix], (0, 1), 1, constants)


def string_nbits(scales: context_plan_cuda.Scales, symbols: Any) -> Deferred:
    """Return about how many bits the string of symbols takes, all counted."""
    found = context_plan_cuda.counted(scales, symbols, 1)
    told = _table(found, symbols.size, 0).told[3:]
    nbits: Deferred = mapped(table_choice.with_states, Deferred(device_with(symbols), told))
    return nbits


def counted(scales: context_plan_cuda.Scales, symbols: Any) -> context_plan_cuda.Scales:
    """Count other symbols, or some of them, by these scales."""
    return context_plan_cuda.counted(
        scales, symbols, models.share(symbols.size, table_choice.SAMPLE)
    )


def planned(scales: context_plan_cuda.Scales, n: int, every: tuple[RowLayout, ...]) -> Planned:
    """Plan the string of n symbols that were counted, given the matrices there were to choose."""
    return Planned(scales, _table(scales, n, table_choice.SAMPLE), every)


def _table(scales: context_plan_cuda.Scales, n: int, sample: int) -> context_plan_cuda.Chosen:
    """Choose the table for n symbols, of which about a sample were counted, or for 0 all."""
    looked_at = class_map.seen(n, models.share(n, sample))
    constants = _constants(device_with(scales.counts))
    return context_plan_cuda.best_table(scales, n, looked_at, constants)


def write_planned(
    planned: Planned,
    symbols: Any,
    front: BitString,
    count: Any,
    coded: CodedMask | None = None,
    wide: Any = None,
) -> Written:
    """Write it, of so many symbols: of all, or as a device has yet to tell of none.

    What symbols are that were cut off is in `wide`, as uint32.
    """
    device, n, lead = device_with(symbols), symbols.size, front.trimmed()
    scales, table, every = planned
    room = min(n, _LEAST + n // _EVERY)
    merged, listed = context_plan_cuda.joined(symbols, scales, table.tops, room, wide)
    tables = write_model_tables(table.frequencies, class_tables.LOG2_TOTAL)
    states, log2_run = (Deferred(device, table.told[k : k + 1]) for k in (1, 2))
    how: Any = count, lead, log2_run, states
    data, bits, runs = rans_string.write(tables, merged, *how)
    if coded is not None:
        wanted(coded.silent)

    def listed_again(count: int) -> np.ndarray:
        """Ask for exceptions of which there are more than there was room for."""
        _, found = context_plan_cuda.joined(symbols, scales, table.tops, count, wide)
        return device.to_host(found)

    parts = scales.which, table.told, table.ends, scales.rows, scales.columns
    some = Leading(listed.view(np.uint8), listed[:1].view(np.int64), 2 * _WORD, _WORD)
    found = _Told.of(device, (*parts, table.frequencies, some), every, n, coded, listed_again)
    made = functools.cache(found.head)

    def nbits_of(bits: int) -> int:
        return 8 * lead.size if found.silent else bits + 8 * made().size

    def seek_of(bits: int, runs: Any) -> SeekTable | None:
        if found.silent or runs.states.shape[1] != LANES:
            return None
        seek: SeekTable | None = seek_of_runs(n, nbits_of(bits), runs)
        return seek

    nbits, seek = mapped(nbits_of, bits), mapped(seek_of, bits, runs)
    prefixed: Any = PrefixedBytes(data, lead.size, made, bits)
    return Written(prefixed, nbits, seek)


class _Told(NamedTuple):
    """What a device tells of a string, once it is known.

    Attributes
    ----------
    parts : list of Later
        The number of the matrix, what is told of the table, its ends, scales of rows and of
        columns, frequencies, and the list of exceptions.
    every : tuple of Matrix
    n : int
        Symbols.
    coded : CodedMask or None
    again : callable
        Lists so many exceptions.
    """

    parts: list[Deferred]
    every: tuple[RowLayout, ...]
    n: int
    coded: CodedMask | None
    again: Any

    @classmethod
    def of(cls, device: Device, arrays: tuple[Any, ...], *rest: Any) -> _Told:
        """Have it fetched with what the host next waits for."""
        parts = [Deferred(device, array, np.array) for array in arrays]
        for part in parts:
            wanted(part)
        return cls(parts, *rest)

    @property
    def silent(self) -> bool:
        """Whether no element has a word, so that there is no string."""
        return self.coded is not None and not self.coded.words

    def head(self) -> np.ndarray:
        """Return the bytes before the symbols."""
        which, told, ends, rows, columns, frequencies, listed = (p.value for p in self.parts)
        matrix = self.every[int(which[0])]
        rows = rows[: -(-self.n // matrix.width)]
        scales = Scales(matrix, rows, columns[: matrix.width if matrix.group else 0])
        number, lanes = told[:2].tolist()
        table = class_tables.static(number) if number != SENT else self._own(frequencies, ends)
        listed = listed.view(np.uint64)
        count = int(listed[0])
        if 2 * count > listed.size - 1:
            listed = self.again(count)
        pairs = listed[1 : 1 + 2 * count].view(np.int64).reshape(-1, 2)
        pairs = pairs[np.argsort(pairs[:, 0])]
        string = BitString()
        put_head(string, table, lanes, scales, Outliers(*np.ascontiguousarray(pairs.T)))
        return string.trimmed()

    @staticmethod
    def _own(frequencies: np.ndarray, ends: np.ndarray) -> ClassTable:
        rows = frequencies.astype(np.int64).reshape(class_map.CLASSES, -1)
        return ClassTable(SENT, rows, *ends[:2].tolist())


@functools.lru_cache(maxsize=8)
def _constants(device: Device) -> context_plan_cuda.Constants:
    tables = [table.frequencies for table in class_tables.statics()]
    given = np.stack(tables).astype(np.uint16).reshape(-1), rans.log2_table()
    frequencies, logs = map(device.to_device, given)
    costs = device.to_device(class_tables.statics_costs())
    device.to_host(costs.reshape(-1)[:1])  # once: who uses it next may do so on another stream
    return context_plan_cuda.Constants(costs, frequencies, logs, len(tables), ONES)
