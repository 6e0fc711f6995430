"""Levels of two quantisers that take turns: the path that is best for error and bits together.

Plain levels tell scales, states that take turns, and which static table is likely. What the best
path costs by that table, on some runs of the tensor, tells the table and the centroids by which
levels are found: the best path again, on all runs. A bit is worth 0.12 of the square of a step.
"""

from __future__ import annotations

import numpy as np

from gcodec import scalar_levels
from gcodec.contexts import strings, trellis_tables
from gcodec.contexts.models import ByClass
from gcodec.contexts.scales import Scales
from gcodec.contexts.trellis_tables import TrellisTable
from gcodec.entropy import rans
from gcodec.kernels import scalar_quantize, trellis_search
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.scalar_quantize import Errors
from gcodec.kernels.trellis import ODD
from gcodec.scalar_levels import CENTRE, Kept, Levels

_WORTH = 0.48  # of a bit, in squares of half a step
_SAMPLE = 1 << 18  # elements, about, that tell the table


class Best(Kept):
    """Levels on the best path; see `scalar_levels.Way`."""

    halves = 2

    def find(self, x: np.ndarray, step: float, scales: Scales) -> tuple[Levels, Errors]:
        """Find levels, and what they leave over, in halves of a step."""
        return best(x, step, scales)


def best(
    x: np.ndarray, step: float, scales: Scales, start: TrellisTable | None = None, passes: int = 1
) -> tuple[Levels, Errors]:
    """Quantise (n,) float32 values, n > 0, by scales of plain levels.

    Parameters
    ----------
    x : (n,) float32 array
    step : float
        Above 0: the distance of the points of one quantiser.
    scales : Scales
    start : TrellisTable, optional
        By which the path is first searched.
    passes : int
        In which the table is found.

    Returns
    -------
    levels : Levels
    errors : Errors
        In halves of a step.
    """
    size, symbols = np.float32(step), aligned_empty(x.size, np.uint8)
    scalar_quantize.plain_levels(x, size, symbols)
    lanes = strings.lanes_of(strings.plan(symbols, scales).nbits)
    table = start or trellis_tables.static_for(ByClass(symbols, scales).counts(_SAMPLE))
    factor, moved = scalar_quantize.inverse(np.float32(size / 2)), np.zeros(3, np.float32)
    sparse = max(1, x.size // _SAMPLE)
    for last in (*[False] * passes, True):
        every = 1 if last else sparse
        costs = (table.costs() * (_WORTH / 2.0**rans.POINT)).astype(np.float32).reshape(-1)
        told = x, factor, scales.classes, costs, moved, lanes
        trellis_search.best_levels(*told, every, symbols)
        errors = trellis_search.errors_of(x, factor, every, symbols)
        centroids = scalar_levels.centroids_of(errors)
        moved = ((centroids.astype(np.int64) - CENTRE) / 256).astype(np.float32)
        if not last:
            found = strings.plan(symbols, scales, _SAMPLE, lanes).table
            assert isinstance(found, TrellisTable)
            table = found
    places = np.flatnonzero(symbols >= ODD)
    beyond = trellis_search.beyond(x[places], factor, symbols[places])
    # The nearest level to what escapes may have a symbol, though no model has it.
    known = beyond < ODD
    symbols[places[known]] = beyond[known]
    return Levels(step, centroids, symbols, beyond[~known], scales, lanes), errors
