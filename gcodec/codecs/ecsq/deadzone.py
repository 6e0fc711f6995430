"""The default quantizer: each level minimizes error plus the price of its bits.

Values are quantized twice. Plain rounding gives the levels from which the scales of rows and
columns are estimated; these scales give the prices for the levels that are sent. The result is a
uniform quantizer whose dead zone is wider where the class of an element expects small levels. See
`gcodec.kernels.quantize.scalar_quantize` and `gcodec.kernels.quantize.rated_levels`.
"""

from __future__ import annotations

import numpy as np

from gcodec.codecs.ecsq.quantizer import CachedQuantizer
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, default_centroids
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales
from gcodec.kernels.context.escapes import elements_from
from gcodec.kernels.quantize.rated_levels import (
    Errors,
    rated_levels,
    rated_magnitudes,
    scaled_levels,
)
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, plain_sums
from gcodec.runtime.memory import empty_beside

_NO_OUTLIERS = np.empty(0, np.int64)


class DeadZoneQuantizer(CachedQuantizer[Scales]):
    """Levels that minimize D + λR for each element on its own; see `Quantizer`.

    Parameters
    ----------
    plain : (n,) uint8 array, optional
        Symbols of the plain levels of the first values and the first step that are quantized. The
        quantizer writes the symbols of its own levels to the same array.
    """

    def __init__(self, plain: np.ndarray | None = None) -> None:
        super().__init__()
        self._plain = plain

    def prepare(self, x: np.ndarray, step: float, layout: RowLayout) -> Scales:
        """Return the scales of plainly rounded levels."""
        return scales_at(x, step, layout)

    def quantize_with(
        self, x: np.ndarray, step: float, setting: Scales
    ) -> tuple[QuantizedLevels, Errors]:
        """Return levels with default centroids, and their errors in steps."""
        symbols = empty_beside(x.size, np.uint8, x)
        errors = rated_levels(x, np.float32(step), setting.arrays, symbols)
        return _with_outliers(x, step, symbols, setting, errors), errors

    def prepare_and_quantize(
        self, x: np.ndarray, step: float, layout: RowLayout
    ) -> tuple[Scales, QuantizedLevels, Errors]:
        """Return the scales of plainly rounded levels, and the levels that these scales give."""
        plain, self._plain = self._plain, None
        symbols = empty_beside(x.size, np.uint8, x) if plain is None else plain
        arguments = x, np.float32(step), layout, ONES, symbols
        rows, columns, errors = scaled_levels(*arguments, is_plain=plain is not None)
        scales = Scales(layout, rows, columns)
        return scales, _with_outliers(x, step, symbols, scales, errors), errors


def scales_at(x: np.ndarray, step: float, layout: RowLayout) -> Scales:
    """Return the scales of plainly rounded levels.

    Parameters
    ----------
    x : (n,) float32 array
        n > 0.
    step : float
        Above 0.
    layout : RowLayout
    """
    sums = plain_sums(x, np.float32(step), layout.width, layout.group > 0)
    return Scales.of_sums(x.size, layout, *sums)


def _with_outliers(
    x: np.ndarray, step: float, symbols: np.ndarray, scales: Scales, errors: Errors
) -> QuantizedLevels:
    """Return levels for their symbols, with the symbols of outliers, which are not clipped."""
    outliers = _NO_OUTLIERS
    if errors.escapes:
        positions, values = elements_from(x, symbols, ESCAPE)
        magnitudes = rated_magnitudes(values, np.float32(step), scales.classes_at(positions))
        outliers = 2 * magnitudes + (values < 0)
    return QuantizedLevels(step, default_centroids(), symbols, outliers, scales)
