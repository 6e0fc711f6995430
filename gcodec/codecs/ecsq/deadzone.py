"""The default quantizer: each level minimizes error plus the price of its bits.

Values are quantized twice. Plain rounding gives the levels from which the scales of rows and
columns are estimated; these scales give the prices for the levels that are sent. The result is a
uniform quantizer whose dead zone is wider where the class of an element expects small levels. See
`gcodec.kernels.quantize.scalar_quantize` and `gcodec.kernels.quantize.rated_levels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.codecs.ecsq.quantizer import CachedQuantizer
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, default_centroids
from gcodec.entropy.context import scale_model
from gcodec.entropy.context.scale_model import ONES, RowLayout, Scales
from gcodec.kernels.bits.computed_symbols import NarrowSymbols, have_short_string, is_few
from gcodec.kernels.context.escapes import elements_from
from gcodec.kernels.quantize.rated_levels import (
    Errors,
    rate_part,
    rated_levels,
    rated_magnitudes,
    scaled_levels,
)
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, plain_levels, plain_sums
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import empty_beside

_SAMPLE, _RUN = 1 << 16, 1 << 7  # elements of the sample that estimates bits, and of its runs
_NO_OUTLIERS = np.empty(0, np.int64)


class DeadZoneQuantizer(CachedQuantizer[Scales]):
    """Levels that minimize D + λR for each element on its own; see `Quantizer`.

    Parameters
    ----------
    plain : (n,) uint8 array, optional
        Symbols of the plain levels of the first values and the first step that are quantized. The
        quantizer writes the symbols of its own levels to the same array.
    narrow : bool
        Whether many symbols may be `NarrowSymbols`, if their string is short.
    """

    def __init__(self, plain: np.ndarray | None = None, *, narrow: bool = False) -> None:
        super().__init__()
        self._plain, self._narrow = plain, narrow

    def prepare(self, x: np.ndarray, step: float, layout: RowLayout) -> Scales:
        """Return the scales of plainly rounded levels."""
        return scales_at(x, step, layout)

    def quantize_with(
        self, x: np.ndarray, step: float, setting: Scales
    ) -> tuple[QuantizedLevels, Errors]:
        """Return levels with default centroids, and their errors in steps."""
        sums: list[np.ndarray] = []
        if self._narrow and has_short_string(x, step):

            def fill(start: int, stop: int, out: np.ndarray) -> None:
                sums.append(rate_part(x, np.float32(step), setting.arrays, start, out))

            narrow = NarrowSymbols(fill, x.size, np.dtype(np.uint8), 4, beside=x)
            if narrow.is_complete:
                errors = Errors.of(np.sum(sums, axis=0))
                return _with_outliers(x, step, narrow, setting, errors), errors
        symbols = empty_beside(x.size, np.uint8, x)
        errors = rated_levels(x, np.float32(step), setting.arrays, symbols)
        return _with_outliers(x, step, symbols, setting, errors), errors

    def prepare_and_quantize(
        self, x: np.ndarray, step: float, layout: RowLayout
    ) -> tuple[Scales, QuantizedLevels, Errors]:
        """Return the scales of plainly rounded levels, and the levels that these scales give."""
        plain, self._plain = self._plain, None
        if plain is None and self._narrow and has_short_string(x, step):
            return super().prepare_and_quantize(x, step, layout)
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


def has_short_string(x: np.ndarray, step: float) -> bool:
    """Return whether levels are better `NarrowSymbols` than an array, by a sample."""
    if is_few(x.size) or device_of(x) is not None:
        return False
    sample = scale_model.sampled_rows(x, _RUN, _SAMPLE)
    symbols = np.empty(sample.size, np.uint8)
    plain_levels(sample, np.float32(step), symbols)
    return NarrowSymbols.width_of(symbols) == 4 and have_short_string(symbols)


def _with_outliers(
    x: np.ndarray, step: float, symbols: Any, scales: Scales, errors: Errors
) -> QuantizedLevels:
    """Return levels for their symbols, with the symbols of outliers, which are not clipped."""
    outliers = _NO_OUTLIERS
    if errors.escapes:
        positions, values = elements_from(x, symbols, ESCAPE)
        magnitudes = rated_magnitudes(values, np.float32(step), scales.classes_at(positions))
        outliers = 2 * magnitudes + (values < 0)
    return QuantizedLevels(step, default_centroids(), symbols, outliers, scales)
