"""Context strings that a device plans and writes; the host adds their headers.

The scales, the table and the outliers reach the host together with the string. From these, the
host builds the header that precedes the symbols.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.coder import Written, seek_of_runs
from gcodec.entropy.context import class_tables, models
from gcodec.entropy.context.class_tables import SENT, ClassTable
from gcodec.entropy.context.coder import put_head
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales, row_layouts, sampled_rows
from gcodec.entropy.context.table_choice import SAMPLE, with_states
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import class_map, context_plan_cuda
from gcodec.kernels.context.class_tables import LOG2_TOTAL
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_runs import Runs
from gcodec.kernels.rans.rans_table import write_tables
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.payload import HeaderlessBytes
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, map_deferred, prefetch
from gcodec.runtime.device import Device, beside
from gcodec.wire.seek import SeekTable


class Planned(NamedTuple):
    """The plan of a string.

    Attributes
    ----------
    scales : context_plan_cuda.Scales
        The scales, and the counts of symbols by class.
    table : context_plan_cuda.Chosen
        The selected table.
    layouts : tuple of RowLayout
        The layouts among which that of the scales was selected.
    """

    scales: context_plan_cuda.Scales
    table: context_plan_cuda.Chosen
    layouts: tuple[RowLayout, ...]

    @property
    def nbits(self) -> Deferred:
        """Estimated number of bits of the string."""
        return Deferred(device_with(self.table.decision), self.table.decision[3:])


def write(
    symbols: Array, shape: tuple[int, ...], front: BitString, coded: CodedMask | None = None
) -> Written:
    """Write the string of a tensor; see `gcodec.entropy.context.symbol_coder.write`."""
    if not symbols.size:
        nbits = front.nbits
        return Written(beside(front.trimmed(), symbols), nbits)
    return write_planned(plan(symbols, shape), symbols, front, symbols.size, coded)


def plan(symbols: Array, shape: tuple[int, ...]) -> Planned:
    """Plan the string of the symbols of a tensor, at least one."""
    return planned(best_scales(symbols, symbols, shape), symbols.size, row_layouts(shape))


def best_scales(
    symbols: Array, reference: Array, shape: tuple[int, ...]
) -> context_plan_cuda.Scales:
    """Find the scales of symbols, in the layout that suits the `reference` symbols best.

    The symbols are counted too.
    """
    layouts = row_layouts(shape)
    rows = sampled_rows(reference, layouts[0].width, SAMPLE)
    steps = models.sampling_stride(symbols.size, SAMPLE), models.sampling_stride(rows.size, SAMPLE)
    return context_plan_cuda.best_scales(
        symbols,
        rows,
        layouts,
        steps,
        class_map.sampled_count(rows.size, steps[1]),
        _constants(device_with(symbols)),
        symbols is reference,
    )


def best_layout(symbols: Array, layouts: Sequence[RowLayout], times: int = 1) -> RowLayout:
    """Return the best layout; see `gcodec.entropy.context.table_choice.best_layout`.

    The call waits for the device.
    """
    if len(layouts) == 1:
        return layouts[0]
    step, device = models.sampling_stride(symbols.size, SAMPLE), device_with(symbols)
    seen = class_map.sampled_count(symbols.size, step)
    index = context_plan_cuda.best_layout(symbols, times, layouts, step, seen, _constants(device))
    return layouts[int(Deferred(device, index))]


def scales_in(layout: RowLayout, symbols: Array) -> context_plan_cuda.Scales:
    """Find the scales of symbols in a layout, without counting symbols."""
    constants = _constants(device_with(symbols))
    return context_plan_cuda.best_scales(symbols, symbols, [layout], (0, 1), 1, constants)


def string_nbits(scales: context_plan_cuda.Scales, symbols: Array) -> Deferred:
    """Return the estimated number of bits of the string, from the counts of all symbols."""
    constants = _constants(device_with(symbols))
    plan = planned(context_plan_cuda.counted(scales, symbols, 1, constants), symbols.size, ())
    return map_deferred(with_states, plan.nbits)


def counted(scales: context_plan_cuda.Scales, symbols: Array) -> context_plan_cuda.Scales:
    """Add to scales the counts of symbols by class, of a sample if there are many symbols."""
    step = models.sampling_stride(symbols.size, SAMPLE)
    return context_plan_cuda.counted(scales, symbols, step, _constants(device_with(symbols)))


def planned(scales: context_plan_cuda.Scales, n: int, layouts: tuple[RowLayout, ...]) -> Planned:
    """Plan the string of n symbols; `scales` contain the counts of all of them, or of a sample."""
    constants = _constants(device_with(scales.counts))
    return Planned(scales, context_plan_cuda.best_table(scales, n, constants), layouts)


def write_planned(
    planned: Planned,
    symbols: Array,
    front: BitString,
    count: int | Deferred,
    coded: CodedMask | None = None,
    wide: Array | None = None,
) -> Written:
    """Write the string of a plan.

    Parameters
    ----------
    planned : Planned
    symbols : (n,) uint8 array
    front : BitString
        Whole bytes that precede the string.
    count : int or Deferred
        Number of symbols to write: all, or none.
    coded : CodedMask, optional
        The elements that have a word. If there are none, there is no string.
    wide : (n,) uint32 array, optional
        The symbols before they were cut off to bytes.

    Returns
    -------
    Written
        `HeaderlessBytes`, and a `Deferred` number of bits and seek table.
    """
    device, n, lead = device_with(symbols), symbols.size, front.trimmed()
    scales, table, layouts = planned
    merged, outliers = context_plan_cuda.joined(symbols, scales, table.tops, wide)
    tables = write_tables(table.frequencies, LOG2_TOTAL)
    deferred_count: Any = count
    log2_run: Any = Deferred(device, table.decision[2:3])
    lanes: Any = Deferred(device, table.decision[1:2])
    string: Any = rans_string.write(tables, merged, deferred_count, lead, log2_run, lanes)
    data, bits, runs = string
    if coded is not None:
        prefetch(coded.uncoded)

    arrays = scales.which, table.decision, table.ends, scales.rows, scales.columns
    parts = (*arrays, table.frequencies)
    deferred = [*(Deferred(device, part, np.asarray) for part in parts), outliers]
    for part in deferred:
        prefetch(part)

    @functools.cache
    def header() -> np.ndarray:
        return _header([part.value for part in deferred], layouts, n)

    def nbits_of(bits: int) -> int:
        is_empty = coded is not None and not coded.words
        return 8 * lead.size if is_empty else bits + 8 * header().size

    def seek_of(bits: int, runs: Runs) -> SeekTable | None:
        is_empty = coded is not None and not coded.words
        if is_empty or runs.states.shape[1] != LANES:
            return None
        return seek_of_runs(n, nbits_of(bits), runs)

    unfinished: Any = HeaderlessBytes(data, lead.size, header, bits)
    return Written(unfinished, map_deferred(nbits_of, bits), map_deferred(seek_of, bits, runs))


def _header(parts: Sequence[Any], layouts: tuple[RowLayout, ...], n: int) -> np.ndarray:
    """Return the bytes that precede the n symbols of a string.

    Parameters
    ----------
    parts : sequence
        Index of the layout; number, lanes and class range of the table; scales of rows and of
        columns; frequencies. See `context_plan_cuda.Scales` and `context_plan_cuda.Chosen`. The
        last part is the positions and the symbols of the outliers.
    layouts : tuple of RowLayout
        The layouts among which the device selected one.
    n : int
        Number of symbols.
    """
    which, table_numbers, ends, rows, columns, frequencies, outliers = parts
    layout = layouts[int(which[0])]
    rows = rows[: -(-n // layout.width)]
    scales = Scales(layout, rows, columns[: layout.width if layout.group else 0])
    number, lanes = table_numbers[:2].tolist()
    if number != SENT:
        table = ClassTable.static(number)
    else:
        own = frequencies.astype(np.int64).reshape(class_map.CLASSES, -1)
        table = ClassTable(SENT, own, *ends[:2].tolist())
    string = BitString()
    put_head(string, table, lanes, scales, Outliers(*outliers))
    return string.trimmed()


@functools.lru_cache(maxsize=8)
def _constants(device: Device) -> context_plan_cuda.Constants:
    """Return the constants of plans on the device, copied there once."""
    tables = [table.frequencies for table in class_tables.statics()]
    frequencies = device.to_device(np.stack(tables).astype(np.uint16).reshape(-1))
    logs, costs = map(device.to_device, (rans.log2_table(), class_tables.statics_costs()))
    device.to_host(costs.reshape(-1)[:1])  # wait: the next user may work on another stream
    return context_plan_cuda.Constants(
        costs, frequencies, logs, len(tables), ONES, device.to_device(class_tables.class_nbits())
    )
