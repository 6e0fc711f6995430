"""Levels of a known step as a device finds them, and their string, before the host knows any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from gcodec.arrays.intake import nonfinite_error
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer
from gcodec.codecs.ecsq.quantizer import (
    COARSE,
    CachedQuantizer,
    Quantizer,
    SearchHints,
    with_outliers,
)
from gcodec.codecs.ecsq.rate_control import check_step
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, centroids_of, middle, squares_of
from gcodec.codecs.ecsq.stochastic import StochasticQuantizer
from gcodec.codecs.ecsq.trellis import TrellisQuantizer
from gcodec.entropy.context import device as contexts
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout, Scales, matrices
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import context_plan_cuda
from gcodec.kernels.context.escapes import cut_off
from gcodec.kernels.context.escapes_cuda import symbols_beyond
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import Scale
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.rated_levels_cuda import rated_by
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.quantize.scalar_quantize_cuda import plain_levels, put_wide
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, Passing, mapped, wanted, when_known

# Between these a factor that all is moved by changes no level, and none of as many levels as there
# may be is beyond float32.
_LEAST, _MOST = 2.0**-90, 2.0**100
_MANY = 1 << 23  # levels, of which there are fewer


def levels_at(
    x: Any, step: float, shape: tuple[int, ...], quantizer: Quantizer
) -> QuantizedLevels | None:
    """Return the levels; see `gcodec.codecs.ecsq.quantizer.levels_at`."""
    if (
        not isinstance(quantizer, (StochasticQuantizer, DeadZoneQuantizer))
        or not x.size
        or not _LEAST <= step <= _MOST
    ):
        return None
    top: Any = max_abs_bits(x)
    plain = _plain(x, step)
    if isinstance(quantizer, StochasticQuantizer):
        found = _at_random(x, step, quantizer.seed)
        scales = contexts.best_scales(found[0], plain, shape)
    else:
        scales = contexts.best_scales(plain, plain, shape)
        found = _nearest(x, step, scales)
        scales = contexts.counted(scales, found[0])

    def check(bits: int) -> None:
        largest = _number(bits)
        if not math.isfinite(largest):
            raise nonfinite_error(x)
        if largest:
            check_step(largest, step)

    when_known(top, check)
    told: Any = Deferred(top.device, top.words, lambda bits: step if bits[0] else 0.0)
    return _Found(*found, scales, matrices(shape), top, step).levels(told)


def quantizer_for(x: Any, quantizer: Quantizer) -> Quantizer:
    """Return the quantizer that works on the device of the values."""
    if isinstance(quantizer, StochasticQuantizer):
        return _AtRandom(quantizer.seed)
    if isinstance(quantizer, TrellisQuantizer):
        return TrellisQuantizer(_Nearest())
    return _Nearest() if type(quantizer) is DeadZoneQuantizer else quantizer


class _Nearest(CachedQuantizer[Any]):
    """Levels that are best for bits and error, of scales that stay there; see `Quantizer`."""

    _fine = False  # whether errors of the last step had to be told by all values

    def hints(self) -> SearchHints:
        """Return what helps the search of a step."""
        return SearchHints(self)

    def hold_scales(self, x: Any, step: float, matrix: RowLayout) -> None:
        """Take scales of this step at other steps too; by these its own levels will be found."""
        if self._held is not None or self._last is None or self._last[0] != (x.size, step, matrix):
            self._last, by = None, self.prepare(x, step, matrix)
        else:
            by = self._last[1]
        self._held = (x.size, matrix), by

    def prepare(self, x: Any, step: float, matrix: RowLayout) -> context_plan_cuda.Scales:
        """Return the scales of plain levels."""
        return contexts.scales_in(matrix, _plain(x, step))

    def quantize_with(
        self, x: Any, step: float, setting: context_plan_cuda.Scales
    ) -> tuple[QuantizedLevels, Any]:
        """Find symbols, and what they leave over when the host asks."""
        symbols = device_with(x).empty(x.size, np.uint8)
        sums = rated_by(x, np.float32(step), context_plan_cuda.classes(setting, x.size), symbols)
        none = np.empty(0, np.int64)
        errors = Deferred(device_with(x), sums, lambda told: Errors.of(told.view(np.int64)))
        return QuantizedLevels(step, middle(), symbols, none, None), errors

    def quantize(self, x: Any, step: float, matrix: RowLayout) -> QuantizedLevels:
        """Quantise."""
        by = self._by(x, step, matrix)
        symbols, wide, sums = _nearest(x, step, by)
        scales = contexts.counted(by, symbols)
        return _Found(symbols, wide, sums, scales, (matrix,)).levels(step)

    def squared_error(self, x: Any, step: float, matrix: RowLayout) -> float:
        """Return what is left over; waits once if steps are as fine as before, or as coarse."""
        errors: Any = self._quantized(x, step, matrix)[1]
        wanted(errors)
        exact = self.exact_error(x, step, matrix) if self._fine else None
        squares = squares_of(errors.value)
        self._fine = squares < COARSE * x.size
        if not self._fine:
            return squares
        return self.exact_error(x, step, matrix) if exact is None else exact

    def nbits(self, x: Any, step: float, matrix: RowLayout) -> int:
        """Return about how many bits the string takes."""
        by = self._by(x, step, matrix)
        symbols, wide, _ = _nearest(x, step, by)
        return _nbits(by, symbols, wide)

    def _by(self, x: Any, step: float, matrix: RowLayout) -> context_plan_cuda.Scales:
        """Return the scales by which levels of a step are found, or were at last."""
        found: context_plan_cuda.Scales | None = self.cached_setting(x, step, matrix)
        return self.prepare(x, step, matrix) if found is None else found


class _AtRandom(StochasticQuantizer):
    """Levels at random that stay there; see `Quantizer`."""

    def quantize(self, x: Any, step: float, matrix: RowLayout) -> QuantizedLevels:
        """Quantise."""
        if not _LEAST <= step <= _MOST:
            return super().quantize(x, step, matrix)
        symbols, wide, sums = _at_random(x, step, self.seed)
        scales = contexts.counted(contexts.scales_in(matrix, symbols), symbols)
        return _Found(symbols, wide, sums, scales, (matrix,)).levels(step)

    def nbits(self, x: Any, step: float, matrix: RowLayout) -> int:
        """Return about how many bits the string takes."""
        if not _LEAST <= step <= _MOST:
            return super().nbits(x, step, matrix)
        symbols, wide, _ = _at_random(x, step, 0)
        return _nbits(contexts.scales_in(matrix, symbols), symbols, wide)


def _nbits(scales: context_plan_cuda.Scales, symbols: Any, wide: Any) -> int:
    """Return about how many bits the string of symbols takes."""
    told, beyond = contexts.string_nbits(scales, symbols), symbols_beyond(wide, ESCAPE)
    wanted(beyond)
    nbits, found = int(told), Outliers(*beyond.value)  # of which the first waits for both
    return with_outliers(nbits, found.places.size, lambda: found)


def _plain(x: Any, step: float) -> Any:
    """Return plain levels."""
    symbols = device_with(x).empty(x.size, np.uint8)
    plain_levels(x, np.float32(step), symbols)
    return symbols


def _nearest(x: Any, step: float, scales: context_plan_cuda.Scales) -> tuple[Any, Any, Any]:
    """Return symbols, those that are not cut off, and the sums of `Errors`."""
    device, n = device_with(x), x.size
    symbols, wide = device.empty(n, np.uint8), device.empty(n, np.uint32)
    sums = rated_by(x, np.float32(step), context_plan_cuda.classes(scales, n), symbols, wide)
    return symbols, wide, sums


def _at_random(x: Any, step: float, seed: int) -> tuple[Any, Any, Any]:
    """Return the same of levels at random, with sums that are 0."""
    device, n = device_with(x), x.size
    symbols, wide = device.empty(n, np.uint8), device.empty(n, np.uint32)
    scale = Scale(np.array([np.float32(_MANY) * np.float32(step)]), n, _MANY)
    levels.quantize(x, scale, seed, 0, wide)
    cut_off(wide, symbols)
    return symbols, wide, device.zeros(8, np.uint64)


@dataclass(frozen=True, eq=False)
class _Found(Passing):
    """Levels that a device knows, and the host does not.

    Attributes
    ----------
    symbols, wide : uint8 and uint32 arrays
        The second are not cut off.
    sums : (8,) uint64 array
        See `Errors`; zeros where centroids are in the middle.
    scales : Scales
        With counts of the symbols.
    every : tuple of Matrix
        Those among which these are of one.
    top : Deferred or None
        Bits of the largest magnitude; None where that is known not to be 0.
    """

    symbols: Any
    wide: Any
    sums: Any
    scales: context_plan_cuda.Scales
    every: tuple[RowLayout, ...]
    top: Deferred | None = None
    step: float = 0.0

    def put(self, unit: float, out: Any) -> None:
        """Write the (n,) float32 values that they stand for, where symbols count `unit`."""
        size = unit if self.top is None else self.step
        put_wide(self.wide, self.sums, float(np.float32(size)), out)

    def write(self) -> tuple[Any, Any, Any]:
        """Write their string; there is none where all is 0."""
        n, coded = self.symbols.size, None
        if self.top is not None:
            silent: Any = Deferred(self.top.device, self.top.words, lambda bits: bits == 0)
            coded = CodedMask(n, n, silent)
        planned = contexts.planned(self.scales, n, self.every)
        return contexts.write_planned(planned, self.symbols, BitString(), n, coded, self.wide)

    def levels(self, step: Any) -> QuantizedLevels:
        """Return the levels, of which the host learns more when it asks."""
        device = device_with(self.sums)
        centroids: Any = Deferred(device, self.sums, _centroids)
        beyond: Any = mapped(itemgetter(1), symbols_beyond(self.wide, ESCAPE))
        told = centroids, self.symbols, beyond, self._told_scales()
        if self.top is None:  # who looked for a step keeps all for the next time
            for part in told:
                wanted(part)
        return QuantizedLevels(step, *told, there=self)

    def _told_scales(self) -> Any:
        """Return the scales, or None where all is 0."""
        device, (rows, columns, _, which, *_) = device_with(self.sums), self.scales
        words = device.empty(2 + -(-(rows.size + columns.size) // 8), np.int64)
        given = words.view(np.uint8)
        words[:1], words[1:2] = which, 1
        if self.top is not None:
            words.view(np.uint32)[2:3] = self.top.words
        given[16 : 16 + rows.size] = rows
        given[16 + rows.size : 16 + rows.size + columns.size] = columns

        def made(told: np.ndarray) -> Scales | None:
            if not told.view(np.uint32)[2]:
                return None
            matrix, parts = self.every[int(told[0])], told.view(np.uint8)[16:]
            height = -(-self.symbols.size // matrix.width)
            across = parts[rows.size :][: matrix.width if matrix.group else 0]
            return Scales(matrix, parts[:height].copy(), across.copy())

        return Deferred(device, words, made)


def _number(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def _centroids(sums: np.ndarray) -> np.ndarray:
    return centroids_of(Errors.of(sums.view(np.int64)))
