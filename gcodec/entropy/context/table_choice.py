"""The selection of scales and of a table for a string of symbols with a class each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.context import class_tables, models
from gcodec.entropy.context.models import ClassSymbols, Statistics, Table, TrellisSymbols
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales
from gcodec.kernels.bits.computed_symbols import ComputedSymbols, Symbols
from gcodec.kernels.context import class_map
from gcodec.kernels.context.matrix_sizes import Prices, matrix_sizes
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES
from gcodec.runtime.deferred import Transient
from gcodec.runtime.device import dispatched

SAMPLE = 1 << 18  # symbols by which plans are compared
_HEAD_NBITS, _STATE_NBITS = 48, 26  # bits of a header; bits of a rANS state that code no symbols
_NBITS_PER_STATE = 1 << 12  # least size of a string for each rANS state
_LEAST_NBITS = 2000  # least size of a string for each class of a table of its own


@dataclass(frozen=True, eq=False)
class Plan(Transient):
    """The scales and the table of a string.

    Attributes
    ----------
    scales : Scales
    table : ClassTable or TrellisTable
    nbits : int
        Estimated bits of scales, table and symbols.
    trellis_symbols : TrellisSymbols, optional
        The symbols, if a trellis is used.
    statistics : Statistics, optional
        Statistics of the symbols, if all of them were examined.
    """

    scales: Scales
    table: Table
    nbits: int
    trellis_symbols: TrellisSymbols | None = None
    statistics: Statistics | None = None


def plan(symbols: Symbols, scales: Scales, sample: int = SAMPLE, lanes: int = 0) -> Plan:
    """Return the plan with the best table, which is static or contained in the payload.

    Parameters
    ----------
    symbols : (n,) uint8 array or ComputedSymbols
        At least one symbol; an array with a trellis.
    scales : Scales
    sample : int
        Approximate number of symbols to examine; 0 for all.
    lanes : int
        Number of interleaved states of a trellis; 0 without a trellis.
    """
    in_trellis = None
    if lanes:
        assert not isinstance(symbols, ComputedSymbols)
        in_trellis = TrellisSymbols(symbols, scales, lanes)
    coded = in_trellis or ClassSymbols(symbols, scales)
    table, nbits, statistics = best_table(coded, sample)
    examined_all = statistics.examined == symbols.size
    nbits += scales.nbits()
    return Plan(scales, table, nbits, in_trellis, statistics if examined_all else None)


def examines_all(n: int) -> bool:
    """Return whether `plan` examines all of n symbols by default."""
    return models.sampling_stride(n, SAMPLE) == 1


def best_table(coded: ClassSymbols | TrellisSymbols, sample: int) -> tuple[Table, int, Statistics]:
    """Return the best table for symbols, the estimated bits of both, and the statistics used.

    The statistics are those of about `sample` symbols, or of all for 0.
    """
    statistics, n = coded.examine(sample), coded.symbols.size
    least = min(statistics.statics_nbits)
    table = coded.table_type.static(statistics.statics_nbits.index(least))
    nbits = least * n // statistics.examined
    if nbits >= _LEAST_NBITS * max(int(np.count_nonzero(statistics.reach)), 1):
        counts = coded.counts(sample) if statistics.counts is None else statistics.counts
        own = coded.table_type.own(counts)
        own_nbits = own.nbits(counts) * n // statistics.examined + own.sent_nbits()
        if own_nbits < nbits:
            table, nbits = own, own_nbits
    return table, nbits, statistics


def with_states(nbits: int) -> int:
    """Add the bits of the header and the rANS states to those of scales, table and symbols."""
    return nbits + _HEAD_NBITS + lanes_of(nbits) * _STATE_NBITS


def lanes_of(nbits: int) -> int:
    """Return the number of interleaved rANS states for a string of `nbits` bits."""
    affordable = [states for states in STATES if states * _NBITS_PER_STATE <= nbits]
    return affordable[-1] if affordable else STATES[0]


@dispatched("gcodec.entropy.context.device")
def best_layout(symbols: np.ndarray, layouts: Sequence[RowLayout], times: int = 1) -> RowLayout:
    """Return the layout with the least estimated size of a string, the first of equals.

    Parameters
    ----------
    symbols : (n,) uint8 array
        At least one symbol: whole rows of the first layout, or all symbols.
    layouts : sequence of RowLayout
    times : int
        Ratio of the number of symbols of the string to n.
    """
    if len(layouts) == 1:
        return layouts[0]
    step = models.sampling_stride(symbols.size, SAMPLE)
    count = class_map.sampled_count(symbols.size, step)
    prices = Prices(ONES, class_tables.statics_costs(), rans.log2_table())
    sizes = [
        nbits.symbols * symbols.size * times // count + nbits.rows * times + nbits.columns
        for nbits in matrix_sizes(symbols, layouts, step, prices)
    ]
    return layouts[sizes.index(min(sizes))]
