"""How symbols with a class each are best written: with which scales, and with which table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.context import class_tables, models
from gcodec.entropy.context.models import ByClass, ByTrellis, Look, Table
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales
from gcodec.kernels.context import class_map
from gcodec.kernels.context.matrix_sizes import Prices, matrix_sizes
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES
from gcodec.runtime.device import dispatched

SAMPLE = 1 << 18  # symbols by which plans are compared
_NUMBERS_NBITS, _STATE_NBITS = 48, 26  # of which a state's other bits tell symbols
_BITS_PER_STATE = 1 << 12  # of a string, from which on so many states cost little
_WORTH = 2000  # bits for each class, from which on a table of their own may pay


class Plan(NamedTuple):
    """How symbols are written.

    Attributes
    ----------
    scales : Scales
    table : ClassTable or TrellisTable
    nbits : int
        Of scales, table and symbols, estimated.
    turns : ByTrellis, optional
        The symbols, where there is a trellis.
    complete : bool
        Whether the table is known to have all symbols.
    """

    scales: Scales
    table: Table
    nbits: int
    turns: ByTrellis | None = None
    complete: bool = False


def plan(
    symbols: np.ndarray,
    scales: Scales,
    sample: int = SAMPLE,
    lanes: int = 0,
) -> Plan:
    """Return the plan with the best table, a static one or one that is sent.

    Parameters
    ----------
    symbols : (n,) uint8 array
        n > 0.
    scales : Scales
    sample : int
        About how many symbols are looked at; 0 for all.
    lanes : int
        With a trellis, the states that take turns; else 0.
    """
    turns = ByTrellis.of(symbols, scales, lanes) if lanes else None
    coded: ByClass | ByTrellis = turns or ByClass(symbols, scales)
    table, nbits, look = best_table(coded, sample)
    complete = look.seen == symbols.size and coded.knows_all(table, look)
    return Plan(scales, table, nbits + scales.nbits(), turns, complete)


def best_table(coded: ByClass | ByTrellis, sample: int) -> tuple[Table, int, Look]:
    """Return the best table for symbols, about the bits of both, and what symbols look like.

    About `sample` symbols are looked at; for 0 all.
    """
    look, n = coded.look(sample), coded.symbols.size
    table: Table = coded.static(look.sizes.index(min(look.sizes)))
    nbits = min(look.sizes) * n // look.seen
    if nbits >= _WORTH and nbits >= _WORTH * np.count_nonzero(look.reach):
        counts = coded.counts(sample) if look.counts is None else look.counts
        own: Any = coded.own(counts)
        if (found := own.nbits(counts) * n // look.seen + own.sent_nbits()) < nbits:
            table, nbits = own, found
    return table, nbits, look


def with_states(nbits: int) -> int:
    """Return the bits with those of numbers, and of as many states as pay."""
    return nbits + _NUMBERS_NBITS + lanes_of(nbits) * _STATE_NBITS


def lanes_of(nbits: int) -> int:
    """Return how many states pay for a string of so many bits."""
    found = STATES[0]
    for states in STATES:
        found = states if states * _BITS_PER_STATE <= nbits else found
    return found


class Best(NamedTuple):
    """What is best.

    Attributes
    ----------
    matrix : Matrix
    """

    matrix: RowLayout


@dispatched("gcodec.entropy.context.device")
def best_matrix(symbols: np.ndarray, every: Sequence[RowLayout], times: int = 1) -> Best:
    """Return the matrix with which a string is probably shortest; the first of equals.

    Parameters
    ----------
    symbols : (n,) uint8 array
        n > 0: of whole rows of the first matrix, or of all.
    every : sequence of Matrix
    times : int
        How many times as many symbols there are.
    """
    if len(every) == 1:
        return Best(every[0])
    step = models.share(symbols.size, SAMPLE)
    seen = class_map.seen(symbols.size, step)
    prices = Prices(ONES, class_tables.statics_costs(), rans.log2_table(), rans.POINT)
    found = matrix_sizes(symbols, every, step, prices)
    sizes = [
        told.symbols * symbols.size * times // seen + told.rows * times + told.columns
        for told in found
    ]
    return Best(every[sizes.index(min(sizes))])
