"""The levels that are best for bits and error of each element alone, by what scales expect.

Levels are found twice: plain ones, from which the scales of rows and columns are taken, and by
these the ones that are sent; see `kernels.scalar_quantize` and `kernels.rated_levels`.
"""

from __future__ import annotations

import numpy as np

from gcodec.codecs.ecsq.quantizer import Kept, SearchHints
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, middle
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales
from gcodec.kernels.context.escapes import elements_from
from gcodec.kernels.quantize import scalar_quantize
from gcodec.kernels.quantize.rated_levels import (
    Errors,
    rated_levels,
    rated_magnitudes,
    scaled_levels,
)
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime.memory import empty_beside

_NONE = np.empty(0, np.int64)


class DeadZoneQuantizer(Kept[Scales]):
    """Levels that are best for bits and error of each element alone; see `quantizer.Way`."""

    def habits(self) -> SearchHints:
        """Return what helps the search of a step."""
        return SearchHints(self)

    def prepare(self, x: np.ndarray, step: float, matrix: RowLayout) -> Scales:
        """Return the scales of plain levels."""
        return scales_at(x, step, matrix)

    def find(self, x: np.ndarray, step: float, by: Scales) -> tuple[QuantizedLevels, Errors]:
        """Find levels, all but their centroids, and what they leave over, in steps."""
        symbols = empty_beside(x.size, np.uint8, x)
        errors = rated_levels(x, np.float32(step), by.arrays, symbols)
        return _rated(x, step, symbols, by, errors), errors

    def anew(
        self, x: np.ndarray, step: float, matrix: RowLayout
    ) -> tuple[Scales, QuantizedLevels, Errors]:
        """Find the scales of plain levels, and levels by these."""
        symbols = empty_beside(x.size, np.uint8, x)
        *told, errors = scaled_levels(x, np.float32(step), matrix, ONES, symbols)
        by = Scales(matrix, *told)
        return by, _rated(x, step, symbols, by, errors), errors


def scales_at(x: np.ndarray, step: float, matrix: RowLayout) -> Scales:
    """Return the scales of plain levels of (n,) float32 values, n > 0; the step is above 0."""
    told = matrix.width, matrix.group > 0
    return Scales.of_sums(x.size, matrix, *scalar_quantize.plain_sums(x, np.float32(step), *told))


def _rated(
    x: np.ndarray, step: float, symbols: np.ndarray, by: Scales, errors: Errors
) -> QuantizedLevels:
    """Return levels given their symbols, with those, not cut off, of what escapes."""
    beyond = _NONE
    if errors.escapes:
        places, some = elements_from(x, symbols, ESCAPE)
        found = rated_magnitudes(some, np.float32(step), by.classes_at(places))
        beyond = 2 * found + (some < 0)
    return QuantizedLevels(step, middle(), symbols, beyond, by)
