"""Levels of two quantisers that take turns: the path that is best for error and bits together.

Plain levels tell scales and states that take turns; a search of few elements by each static table
tells by which of them error and bits together are least. The path by that table, on some runs of
the tensor, tells the table and the centroids by which levels are found next; after some rounds, on
all runs. A table and the path that is best by it draw each other to fewer bits, but not out of the
neighbourhood where they begin; and so do scales, which are moved where that pays. A bit is worth
0.12 of the square of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.codecs.ecsq import reconstruction
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer, scales_at
from gcodec.codecs.ecsq.quantizer import Kept, Quantizer, SearchHints
from gcodec.codecs.ecsq.reconstruction import CENTRE, QuantizedLevels
from gcodec.entropy import rans
from gcodec.entropy.context import class_tables, scale_model, table_choice, trellis_tables
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.models import ByClass, ByTrellis, share
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.kernels.context import lane_order
from gcodec.kernels.context.escapes import symbols_from
from gcodec.kernels.numeric.scatter import replace, take_to_host
from gcodec.kernels.quantize import scalar_quantize, trellis, trellis_search
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.trellis import ODD
from gcodec.runtime.memory import empty_beside

_WORTH = 0.48  # of a bit, in squares of half a step
_TELLING = 1 << 17  # bits, about, of the elements that tell the table
_ROUNDS = 3
_LEAST = 1 << 10  # elements, below which plain levels tell the first table
_PIECES, _PIECE = 8, 1 << 10  # on which tables are tried, and the elements of each
_LANES = 8  # by which these are searched
# See `quantizer.Habits`.
_AHEAD, _AHEAD_OF_BITS = 0.3, 0.27
_SAME = 0.03


class Setting(NamedTuple):
    """By what a path is searched.

    Attributes
    ----------
    scales : Scales
    lanes : int
        States that take turns.
    table : TrellisTable
    moved : (3,) float32 array
        How far from the levels 1, 2, and those above, points lie, in halves of a step.
    """

    scales: Scales
    lanes: int
    table: TrellisTable
    moved: np.ndarray


class TrellisQuantizer(Kept[Setting]):
    """Levels on the best path; see `quantizer.Way`."""

    halves = 2

    def __init__(self, rough: Quantizer | None = None) -> None:
        super().__init__()
        self._rough = rough or DeadZoneQuantizer()

    def habits(self) -> SearchHints:
        """Return what helps the search of a step."""
        return SearchHints(self._rough, _AHEAD, _AHEAD_OF_BITS, _SAME)

    def prepare(self, x: np.ndarray, step: float, matrix: RowLayout) -> Setting:
        """Find by what the path of this step is searched, from what is held if there is."""
        held = self._held[1] if self._held and self._held[0] == (x.size, matrix) else None
        return tuned(x, step, scales_at(x, step, matrix), held)

    def find(self, x: np.ndarray, step: float, by: Setting) -> tuple[QuantizedLevels, Errors]:
        """Find levels, all but their centroids, and what they leave over, in halves of a step."""
        return best(x, step, by)


def tuned(x: np.ndarray, step: float, scales: Scales, start: Setting | None = None) -> Setting:
    """Return by what (n,) float32 values, n > 0, are quantised.

    Parameters
    ----------
    x : (n,) float32 array
    step : float
    scales : Scales
        Of plain levels.
    start : Setting, optional
        Of a step near this one: a round is enough.
    """
    symbols = empty_beside(x.size, np.uint8, x)
    scalar_quantize.plain_levels(x, np.float32(step), symbols)
    plan = table_choice.plan(symbols, scales)
    assert isinstance(plan.table, ClassTable)
    costs = class_tables.costs(plan.table.frequencies)[:, ::2]
    scales = scale_model.refined(symbols, scales, costs)
    lanes = table_choice.lanes_of(plan.nbits)
    sample = max(x.size * _TELLING // plan.nbits, 1)
    every = share(x.size, sample)
    if start is None:
        table = _first_table(x, step, symbols, scales)
        found = Setting(scales, lanes, table, np.zeros(3, np.float32))
    else:
        found = start._replace(scales=scales, lanes=lanes)
    for _ in range(_ROUNDS if start is None else 1):
        errors = _search(x, step, found, every, symbols)
        if every == 1:
            costs = found.table.magnitude_costs()
            found = found._replace(scales=scale_model.refined(symbols, found.scales, costs))
        turns = ByTrellis.of(symbols, found.scales, found.lanes, every)
        next_table, *_ = table_choice.best_table(turns, sample)
        assert isinstance(next_table, TrellisTable)
        found = found._replace(table=next_table, moved=_moved(errors))
    return found


def best(x: np.ndarray, step: float, by: Setting) -> tuple[QuantizedLevels, Errors]:
    """Quantise (n,) float32 values, n > 0; centroids are left in their middle.

    Parameters
    ----------
    x : (n,) float32 array
    step : float
        Above 0: the distance of the points of one quantiser.
    by : Setting

    Returns
    -------
    levels : Levels
    errors : Errors
        In halves of a step.
    """
    symbols = empty_beside(x.size, np.uint8, x)
    errors = _search(x, step, by, 1, symbols)
    beyond = np.empty(0, np.int64)
    if errors.escapes:
        places, escapes = symbols_from(symbols, ODD)
        found = trellis_search.beyond(take_to_host(x, places), _factor(step), escapes)
        # The nearest level to what escapes may have a symbol, though no model has it.
        known, beyond = found < ODD, found[found >= ODD]
        replace(symbols, places[known], found[known])
    return QuantizedLevels(
        step, reconstruction.middle(), symbols, beyond, by.scales, by.lanes
    ), errors


def _first_table(x: np.ndarray, step: float, symbols: np.ndarray, scales: Scales) -> TrellisTable:
    """Return the static table with which a path is probably best, for plain levels."""
    if x.size < _LEAST:
        return trellis_tables.static_for(ByClass(symbols, scales).counts(0))
    last, whole = x.size - _PIECE, x.size <= _PIECES * _PIECE
    starts = [last * k // (_PIECES - 1) for k in range(_PIECES)]
    parts = [(0, x.size)] if whole else [(at, at + _PIECE) for at in starts]
    places = np.concatenate([np.arange(i, j) for i, j in parts])
    some, classes = take_to_host(x, places), scales.classes_at(places).astype(np.uint8)
    factor, moved = _factor(step), np.zeros(3, np.float32)
    found, turns, in_turns = (np.empty(some.size, np.uint8) for _ in range(3))
    lane_order.to_turns(classes, _LANES, in_turns)

    def paid(table: TrellisTable) -> float:
        told = some, factor, lambda i, j, _: classes[i:j], _costs(table), moved, _LANES, 1
        trellis_search.best_levels(*told, found)
        errors = trellis_search.errors_of(some, factor, 1, found)
        lane_order.to_turns(found, _LANES, turns)
        models = in_turns.copy()
        trellis.add_quantisers(turns, _LANES, models)
        nbits = trellis.symbols_nbits(turns, models, table.costs, rans.POINT)
        return reconstruction.squares_of(errors) + _WORTH * nbits

    return min(trellis_tables.statics(), key=paid)


def _costs(table: TrellisTable) -> np.ndarray:
    """Return what levels cost, in squares of half a step."""
    return (table.costs * (_WORTH / 2.0**rans.POINT)).astype(np.float32).reshape(-1)


def _search(x: np.ndarray, step: float, by: Setting, every: int, symbols: np.ndarray) -> Errors:
    """Find symbols, of one in `every` runs; return what they leave over, in halves of a step."""
    told = x, _factor(step), by.scales.classes, _costs(by.table), by.moved, by.lanes
    trellis_search.best_levels(*told, every, symbols)
    return trellis_search.errors_of(x, _factor(step), every, symbols)


def _factor(step: float) -> np.float32:
    return scalar_quantize.inverse(np.float32(np.float32(step) / 2))


def _moved(errors: Errors) -> np.ndarray:
    centroids = reconstruction.centroids_of(errors).astype(np.int64)
    found: np.ndarray = ((centroids - CENTRE) / 256).astype(np.float32)
    return found
