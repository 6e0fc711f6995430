"""Quantization and coding on a device, without waiting for numbers where possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codecs.ecsq import reconstruction
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer
from gcodec.codecs.ecsq.quantizer import COARSE, CachedQuantizer, Quantizer, with_outliers
from gcodec.codecs.ecsq.rate_control import check_step
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels
from gcodec.codecs.ecsq.stochastic import StochasticQuantizer
from gcodec.codecs.ecsq.trellis import TrellisQuantizer
from gcodec.entropy.coder import Written
from gcodec.entropy.context import device as contexts
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout, Scales, row_layouts
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import context_plan_cuda
from gcodec.kernels.context.escapes import cut_off
from gcodec.kernels.context.escapes_cuda import escaped
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import Scale
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize_cuda import plain_levels, put_wide, rated_by
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, Transient, map_deferred, prefetch, when_known

# For steps in this range a common factor of all values changes no level, and no multiple of the
# step that a level may stand for exceeds float32.
_SMALLEST_STEP, _LARGEST_STEP = 2.0**-90, 2.0**100
_MAX_LEVEL = 1 << 23  # all levels are smaller


def levels_at(
    x: Array, step: float, shape: tuple[int, ...], quantizer: Quantizer
) -> QuantizedLevels | None:
    """Return the levels; see `gcodec.codecs.ecsq.quantizer.levels_at`."""
    if not isinstance(quantizer, (StochasticQuantizer, DeadZoneQuantizer)) or not x.size:
        return None
    if not _SMALLEST_STEP <= step <= _LARGEST_STEP:
        return None
    top: Any = max_abs_bits(x)
    plain = _plain(x, step)
    if isinstance(quantizer, StochasticQuantizer):
        quantized = _stochastic(x, step, quantizer.seed)
        scales = contexts.best_scales(quantized.symbols, plain, shape)
    else:
        scales = contexts.best_scales(plain, plain, shape)
        quantized = _deadzone(x, step, scales)
        scales = contexts.counted(scales, quantized.symbols)

    def check(bits: int) -> None:
        largest = float(np.uint32(bits).view(np.float32))
        if not math.isfinite(largest):
            raise nonfinite_error(x)
        if largest:
            check_step(largest, step)

    when_known(top, check)
    deferred_step = Deferred(top.device, top.words, lambda bits: step if bits[0] else 0.0)
    return _DeviceLevels(*quantized, scales, row_layouts(shape), top, step).levels(deferred_step)


def quantizer_for(x: Array, quantizer: Quantizer) -> Quantizer:
    """Return the quantizer for a device; see `gcodec.codecs.ecsq.quantizer.quantizer_for`."""
    if isinstance(quantizer, StochasticQuantizer):
        return _DeviceStochasticQuantizer(quantizer.seed)
    if isinstance(quantizer, TrellisQuantizer):
        return TrellisQuantizer(_DeviceDeadZoneQuantizer())
    return _DeviceDeadZoneQuantizer() if type(quantizer) is DeadZoneQuantizer else quantizer


class _Quantized(NamedTuple):
    """Quantized values on a device.

    Attributes
    ----------
    symbols : (n,) uint8 array
    wide : (n,) uint32 array
        The symbols before large ones are replaced by an escape.
    sums : (8,) uint64 array
        See `Errors`; zeros if centroids are in the middle.
    """

    symbols: Array
    wide: Array
    sums: Array


class _DeviceDeadZoneQuantizer(CachedQuantizer[Any]):
    """`DeadZoneQuantizer` on a device, with scales that stay there; see `Quantizer`."""

    _fine = False  # whether the error of the last step was computed from all values

    def hold_scales(self, x: Array, step: float, layout: RowLayout) -> None:
        """Use the scales of this step for other steps too."""
        if self._held is not None or self._last is None or self._last[0] != (x.size, step, layout):
            self._last, scales = None, self.prepare(x, step, layout)
        else:
            scales = self._last[1]
        self._held = (x.size, layout), scales

    def prepare(self, x: Array, step: float, layout: RowLayout) -> context_plan_cuda.Scales:
        """Return the scales of plain levels."""
        return contexts.scales_in(layout, _plain(x, step))

    def quantize_with(
        self, x: Array, step: float, setting: context_plan_cuda.Scales
    ) -> tuple[QuantizedLevels, Any]:
        """Return symbols without escapes, and their deferred errors."""
        symbols = device_with(x).empty(x.size, np.uint8)
        sums = rated_by(x, np.float32(step), context_plan_cuda.classes(setting, x.size), symbols)
        errors = Deferred(device_with(x), sums, lambda words: Errors.of(words.view(np.int64)))
        return QuantizedLevels(
            step, reconstruction.default_centroids(), symbols, np.empty(0, np.int64), None
        ), errors

    def quantize(self, x: Array, step: float, layout: RowLayout) -> QuantizedLevels:
        """Quantize the values."""
        scales = self._scales(x, step, layout)
        quantized = _deadzone(x, step, scales)
        scales = contexts.counted(scales, quantized.symbols)
        return _DeviceLevels(*quantized, scales, (layout,)).levels(step)

    def squared_error(self, x: Array, step: float, layout: RowLayout) -> float:
        """Return ‖x − x̂‖² in squares of the step.

        The call waits once, unless the step is finer than the last one, and so fine that the error
        must be computed from all values.
        """
        errors: Any = self._quantized(x, step, layout)[1]
        prefetch(errors)
        exact = self.exact_error(x, step, layout) if self._fine else None
        squares = reconstruction.squares_of(errors.value)
        self._fine = squares < COARSE * x.size
        if not self._fine:
            return squares
        return self.exact_error(x, step, layout) if exact is None else exact

    def nbits(self, x: Array, step: float, layout: RowLayout) -> int:
        """Return the estimated bits of the string."""
        scales = self._scales(x, step, layout)
        return _nbits(scales, _deadzone(x, step, scales))

    def _scales(self, x: Array, step: float, layout: RowLayout) -> context_plan_cuda.Scales:
        """Return the scales with which a step quantizes: the last, the held, or its own."""
        scales: context_plan_cuda.Scales | None = self.cached_setting(x, step, layout)
        return self.prepare(x, step, layout) if scales is None else scales


class _DeviceStochasticQuantizer(StochasticQuantizer):
    """`StochasticQuantizer` on a device, with levels that stay there; see `Quantizer`."""

    def quantize(self, x: Array, step: float, layout: RowLayout) -> QuantizedLevels:
        """Quantize the values."""
        if not _SMALLEST_STEP <= step <= _LARGEST_STEP:
            return super().quantize(x, step, layout)
        quantized = _stochastic(x, step, self.seed)
        scales = contexts.scales_in(layout, quantized.symbols)
        scales = contexts.counted(scales, quantized.symbols)
        return _DeviceLevels(*quantized, scales, (layout,)).levels(step)

    def nbits(self, x: Array, step: float, layout: RowLayout) -> int:
        """Return the estimated bits of the string."""
        if not _SMALLEST_STEP <= step <= _LARGEST_STEP:
            return super().nbits(x, step, layout)
        quantized = _stochastic(x, step, 0)
        return _nbits(contexts.scales_in(layout, quantized.symbols), quantized)


def _nbits(scales: context_plan_cuda.Scales, quantized: _Quantized) -> int:
    """Return the estimated bits of the string of symbols."""
    estimate = contexts.string_nbits(scales, quantized.symbols)
    deferred_outliers = escaped(quantized.wide)
    prefetch(deferred_outliers)
    nbits = int(estimate)  # this also waits for the outliers
    outliers = Outliers(*deferred_outliers.value)
    return with_outliers(nbits, outliers.positions.size, lambda: outliers)


def _plain(x: Array, step: float) -> Array:
    """Return the symbols of the nearest levels, without signs."""
    symbols = device_with(x).empty(x.size, np.uint8)
    plain_levels(x, np.float32(step), symbols)
    return symbols


def _deadzone(x: Array, step: float, scales: context_plan_cuda.Scales) -> _Quantized:
    """Quantize with the dead zones that belong to scales."""
    device, n = device_with(x), x.size
    symbols, wide = device.empty(n, np.uint8), device.empty(n, np.uint32)
    sums = rated_by(x, np.float32(step), context_plan_cuda.classes(scales, n), symbols, wide)
    return _Quantized(symbols, wide, sums)


def _stochastic(x: Array, step: float, seed: int) -> _Quantized:
    """Quantize with stochastic rounding."""
    device, n = device_with(x), x.size
    symbols, wide = device.empty(n, np.uint8), device.empty(n, np.uint32)
    scale = Scale(np.array([np.float32(_MAX_LEVEL) * np.float32(step)]), n, _MAX_LEVEL)
    levels.quantize(x, scale, seed, 0, wide)
    cut_off(wide, symbols)
    return _Quantized(symbols, wide, device.zeros(8, np.uint64))


@dataclass(frozen=True, eq=False)
class _DeviceLevels(Transient):
    """Quantized levels on a device; see `LevelsOnDevice`.

    Attributes
    ----------
    symbols, wide, sums : array
        See `_Quantized`.
    scales : context_plan_cuda.Scales
        The scales, with counts of the symbols.
    layouts : tuple of RowLayout
        The layouts among which the device selected that of the scales.
    top : Deferred or None
        Bits of the largest magnitude; None if that is known not to be 0.
    step : float
        The step; 0 if `top` is None.
    """

    symbols: Array
    wide: Array
    sums: Array
    scales: context_plan_cuda.Scales
    layouts: tuple[RowLayout, ...]
    top: Deferred | None = None
    step: float = 0.0

    def put(self, unit: float, out: Array) -> None:
        """Write the (n,) float32 reconstruction, where symbols count `unit`."""
        step = unit if self.top is None else self.step
        put_wide(self.wide, self.sums, float(np.float32(step)), out)

    def write(self) -> Written:
        """Write the string of the symbols, which is empty if all values are 0."""
        n, coded = self.symbols.size, None
        if self.top is not None:
            all_zero: Any = Deferred(self.top.device, self.top.words, lambda bits: bits == 0)
            coded = CodedMask(n, n, all_zero)
        planned = contexts.planned(self.scales, n, self.layouts)
        return contexts.write_planned(planned, self.symbols, BitString(), n, coded, self.wide)

    def levels(self, step: Any) -> QuantizedLevels:
        """Return the levels, with deferred centroids, outliers and scales."""
        outliers = map_deferred(itemgetter(1), escaped(self.wide))
        centroids: Any = Deferred(
            device_with(self.sums),
            self.sums,
            lambda sums: reconstruction.centroids_of(Errors.of(sums.view(np.int64))),
        )
        scales: Any = self._deferred_scales()
        if self.top is None:  # the search for a step keeps all numbers for the next tensor
            for number in (centroids, outliers, scales):
                prefetch(number)
        return QuantizedLevels(step, centroids, self.symbols, outliers, scales, on_device=self)

    def _deferred_scales(self) -> Deferred:
        """Return the scales, or None if all values are 0."""
        device, (rows, columns, _, which, *_) = device_with(self.sums), self.scales
        size = rows.size + columns.size
        words = device.empty(2 + -(-size // 8), np.int64)
        words[:1], words[1:2] = which, 1
        if self.top is not None:
            words.view(np.uint32)[2:3] = self.top.words
        data = words.view(np.uint8)[16 : 16 + size]
        data[: rows.size], data[rows.size :] = rows, columns

        def scales(fetched: np.ndarray) -> Scales | None:
            if not fetched.view(np.uint32)[2]:
                return None
            layout, parts = self.layouts[int(fetched[0])], fetched.view(np.uint8)[16:]
            height = -(-self.symbols.size // layout.width)
            own_columns = parts[rows.size :][: layout.width if layout.group else 0]
            return Scales(layout, parts[:height].copy(), own_columns.copy())

        return Deferred(device, words, scales)
