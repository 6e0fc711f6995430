"""Trellis-coded quantization: the path through the trellis that minimizes D + λR.

The encoder alternates between paths and tables. Plain levels give the scales and the number of
rANS states. The first table is the static one whose path over a sample of elements has the lowest
Lagrangian cost. The path by this table, on a sample of runs, gives the next table and the
centroids; after some rounds, the last table is used for all runs. This iteration converges to a
local optimum near its start, and so do the scales, which are refined where that saves bits. The
Lagrange multiplier λ is 0.12 squared steps for each bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.codecs.ecsq import reconstruction
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer, scales_at
from gcodec.codecs.ecsq.quantizer import CachedQuantizer, Quantizer, SearchHints
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels
from gcodec.entropy import rans
from gcodec.entropy.context import class_tables, scale_model, table_choice, trellis_tables
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.models import (
    ClassSymbols,
    TrellisSymbols,
    misses_classes,
    sampling_stride,
)
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.kernels.context import lane_order
from gcodec.kernels.context.escapes import symbols_from
from gcodec.kernels.numeric.scatter import replace, take
from gcodec.kernels.quantize import scalar_quantize, trellis, trellis_search
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.trellis import ODD
from gcodec.runtime.device import host
from gcodec.runtime.memory import empty_beside

_LAMBDA = 0.48  # price of a bit, in squares of half a step
_SAMPLE_NBITS = 1 << 17  # approximate bits of the sample from which tables are made
_ROUNDS = 3
_MIN_SEARCHED = 1 << 10  # elements; below, plain levels choose the first table
_PIECES, _PIECE = 8, 1 << 10  # number of samples on which static tables are tried, and their size
_LANES = 8  # rANS states assumed for these samples
# See `SearchHints`.
_AHEAD, _AHEAD_OF_BITS = 0.3, 0.27
_HOLD_RANGE = 0.03


class Setting(NamedTuple):
    """Everything that determines the best path.

    Attributes
    ----------
    scales : Scales
    lanes : int
        Number of interleaved rANS states.
    table : TrellisTable
        Prices of the levels.
    moved : (3,) float32 array
        Offsets of the reconstruction points of levels 1, 2 and above, in halves of a step.
    """

    scales: Scales
    lanes: int
    table: TrellisTable
    moved: np.ndarray


class TrellisQuantizer(CachedQuantizer[Setting]):
    """Levels on the best path; see `Quantizer`.

    Parameters
    ----------
    rough : Quantizer, optional
        Quantizer for the first trials of rate control.
    """

    parts = 2

    def __init__(self, rough: Quantizer | None = None) -> None:
        super().__init__()
        self._rough = rough or DeadZoneQuantizer()

    def hints(self) -> SearchHints:
        """Return what helps rate control to find a step."""
        return SearchHints(self._rough, _AHEAD, _AHEAD_OF_BITS, _HOLD_RANGE)

    def prepare(self, x: np.ndarray, step: float, layout: RowLayout) -> Setting:
        """Return the setting of a step, starting from the held one if there is any."""
        held = self._held[1] if self._held and self._held[0] == (x.size, layout) else None
        return tuned(x, step, scales_at(x, step, layout), held)

    def quantize_with(
        self, x: np.ndarray, step: float, setting: Setting
    ) -> tuple[QuantizedLevels, Errors]:
        """Return levels with default centroids, and their errors in halves of a step."""
        return best(x, step, setting)


def tuned(x: np.ndarray, step: float, scales: Scales, start: Setting | None) -> Setting:
    """Return the setting with which values are quantized.

    Parameters
    ----------
    x : (n,) float32 array
        n > 0.
    step : float
    scales : Scales
        Scales of plain levels.
    start : Setting or None
        Setting of a similar step, from which one round is enough.
    """
    symbols = empty_beside(x.size, np.uint8, x)
    scalar_quantize.plain_levels(x, np.float32(step), symbols)
    plan = table_choice.plan(symbols, scales)
    assert isinstance(plan.table, ClassTable)
    costs = class_tables.costs(plan.table.frequencies)[:, ::2]
    scales = scale_model.refined(symbols, scales, costs)
    lanes = table_choice.lanes_of(plan.nbits)
    sample = max(x.size * _SAMPLE_NBITS // plan.nbits, 1)
    # Only the sampled runs will be on a path, so the sample itself must have all classes.
    at_plain_levels = TrellisSymbols(symbols, scales, lanes)
    while (stride := sampling_stride(x.size, sample)) > 1 and misses_classes(
        at_plain_levels.counts(sample), scales, x.size
    ):
        sample *= 2
    if start is None:
        table = _first_table(x, step, symbols, scales)
        setting = Setting(scales, lanes, table, np.zeros(3, np.float32))
    else:
        setting = start._replace(scales=scales, lanes=lanes)
    for _ in range(_ROUNDS if start is None else 1):
        errors = _search(x, step, setting, stride, symbols)
        if stride == 1:
            costs = setting.table.magnitude_costs()
            setting = setting._replace(scales=scale_model.refined(symbols, setting.scales, costs))
        models = TrellisSymbols(symbols, setting.scales, setting.lanes)
        next_table, *_ = table_choice.best_table(models, sample)
        assert isinstance(next_table, TrellisTable)
        setting = setting._replace(table=next_table, moved=_offsets(errors))
    return setting


def best(x: np.ndarray, step: float, setting: Setting) -> tuple[QuantizedLevels, Errors]:
    """Quantize values along the best path; centroids keep their default.

    Parameters
    ----------
    x : (n,) float32 array
        n > 0.
    step : float
        Distance of the points of one quantizer, above 0.
    setting : Setting

    Returns
    -------
    levels : QuantizedLevels
    errors : Errors
        Errors in halves of a step.
    """
    symbols = empty_beside(x.size, np.uint8, x)
    errors = _search(x, step, setting, 1, symbols)
    outliers = np.empty(0, np.int64)
    if errors.escapes:
        positions, escapes = symbols_from(symbols, ODD)
        nearest = trellis_search.outlier_symbols(host(take(x, positions)), _factor(step), escapes)
        # The level nearest to an escaped value may have a symbol, although no model codes it.
        is_symbol, outliers = nearest < ODD, nearest[nearest >= ODD]
        replace(symbols, positions[is_symbol], nearest[is_symbol])
    levels = QuantizedLevels(
        step, reconstruction.default_centroids(), symbols, outliers, setting.scales, setting.lanes
    )
    return levels, errors


def _first_table(x: np.ndarray, step: float, symbols: np.ndarray, scales: Scales) -> TrellisTable:
    """Return the static table whose path has the lowest Lagrangian cost on a sample."""
    if x.size < _MIN_SEARCHED:
        return trellis_tables.static_for(ClassSymbols(symbols, scales).counts(0))
    last, whole = x.size - _PIECE, x.size <= _PIECES * _PIECE
    starts = [last * k // (_PIECES - 1) for k in range(_PIECES)]
    parts = [(0, x.size)] if whole else [(at, at + _PIECE) for at in starts]
    positions = np.concatenate([np.arange(i, j) for i, j in parts])
    sample, classes = host(take(x, positions)), scales.classes_at(positions).astype(np.uint8)
    factor, moved = _factor(step), np.zeros(3, np.float32)
    path, in_turns, class_turns = (np.empty(sample.size, np.uint8) for _ in range(3))
    lane_order.to_turns(classes, _LANES, class_turns)

    def lagrangian(table: TrellisTable) -> float:
        trellis_search.best_levels(
            sample, factor, lambda i, j, _: classes[i:j], _prices(table), moved, _LANES, 1, path
        )
        errors = trellis_search.errors_of(sample, factor, 1, path)
        lane_order.to_turns(path, _LANES, in_turns)
        models = class_turns.copy()
        trellis.add_quantizers(in_turns, _LANES, models)
        nbits = trellis.symbols_nbits(in_turns, models, table.costs, rans.POINT)
        return reconstruction.squares_of(errors) + _LAMBDA * nbits

    return min(trellis_tables.statics(), key=lagrangian)


def _prices(table: TrellisTable) -> np.ndarray:
    """Return λ times the bits of each level, in squares of half a step."""
    return (table.costs * (_LAMBDA / 2.0**rans.POINT)).astype(np.float32).reshape(-1)


def _search(
    x: np.ndarray, step: float, setting: Setting, stride: int, symbols: np.ndarray
) -> Errors:
    """Write the symbols of one in `stride` runs; return their errors in halves of a step."""
    scales, lanes, table, moved = setting
    factor = _factor(step)
    trellis_search.best_levels(
        x, factor, scales.classes, _prices(table), moved, lanes, stride, symbols
    )
    return trellis_search.errors_of(x, factor, stride, symbols)


def _factor(step: float) -> np.float32:
    """Return the float32 inverse of half a step."""
    return scalar_quantize.inverse(np.float32(np.float32(step) / 2))


def _offsets(errors: Errors) -> np.ndarray:
    """Return the offsets of the best reconstruction points, in halves of a step."""
    centroids = reconstruction.centroids_of(errors).astype(np.int64)
    return ((centroids - scalar_quantize.CENTER) / 256).astype(np.float32)
