"""Quantized levels, and the reconstruction of values from levels.

A symbol is twice the magnitude k of a level, plus 1 if the level is negative. With step Δ, level k
is reconstructed as ±f32((k + (c − 128)/256)·Δ), where c is the centroid of k = 1, of k = 2, or of
all larger k; level 0 is 0. With a trellis, k counts halves of a step. If the levels are those of
transform coefficients, the inverse filter transform follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from gcodec.arrays.source import is_plain_array
from gcodec.codecs.ecsq.filter_transform import FilterTransform, InverseInPlace
from gcodec.entropy.coder import Written
from gcodec.entropy.context import models
from gcodec.entropy.context.coder import ContextString
from gcodec.entropy.context.scale_model import Scales
from gcodec.entropy.context.table_choice import Plan
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.walker import FieldValue
from gcodec.kernels.bits.computed_symbols import as_array
from gcodec.kernels.context import escapes
from gcodec.kernels.context.escapes import symbols_from
from gcodec.kernels.context.outlier_lists import NUMBER_NBITS
from gcodec.kernels.numeric import scatter
from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.numeric.convert import round_to
from gcodec.kernels.numeric.reduce import all_finite, float_of_bits, max_abs_bits
from gcodec.kernels.quantize import scalar_quantize
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import CENTER, ESCAPE, FINE, points_of
from gcodec.payload import MissedTarget
from gcodec.runtime import Array, pool
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.memory import empty_beside

_MINUS_ZERO = 0x80000000
_UNIT = FINE // 256
_LARGE = 2.0**127  # magnitudes below this do not exceed float32
LARGEST_OUTLIER = (1 << NUMBER_NBITS) - 1  # of a string
_BYTES = np.arange(256)


class LevelsOnDevice(Protocol):
    """Levels on a device whose centroids, outliers and scales are deferred values."""

    def put(self, unit: float, out: Array) -> None:
        """Write the (n,) float32 reconstruction, where symbols count `unit`."""

    def write(self) -> Written:
        """Write the string of the symbols."""


class QuantizedLevels(NamedTuple):
    """The levels of a tensor, and the scalars that reconstruct values from them.

    Attributes
    ----------
    step : float
        A float32 number; 0 if all values are 0.
    centroids : (3,) uint8 array
        For magnitude 1, for 2, and for larger ones: the offset of the reconstruction point from
        the level, in 256ths of a step, plus `CENTER`.
    symbols : (n,) uint8 array
        Twice the magnitude of the level, plus 1 if it is negative; an escape for an outlier. With
        a trellis, they count halves of a step.
    outliers : (k,) int64 array
        The symbols that escapes stand for, in order.
    scales : Scales or None
        None if all values are 0, or if there are none.
    lanes : int
        Number of interleaved rANS states with a trellis; 0 without a trellis.
    transform : str
        "dct" if the levels are those of filter transform coefficients, else "none".
    outlier_positions : (k,) int64 array or None
        Positions of the outliers, if the symbols lie on a device and the host knows the positions.
    on_device : LevelsOnDevice or None
        What reconstructs and writes the levels while a device has not yet sent all numbers.
    missed : MissedTarget or None
        The target that no step meets.
    plan : Plan or None
        Plan of the string, if rate control has made it.
    """

    step: float
    centroids: np.ndarray
    symbols: np.ndarray
    outliers: np.ndarray
    scales: Scales | None
    lanes: int = 0
    transform: str = "none"
    outlier_positions: np.ndarray | None = None
    on_device: LevelsOnDevice | None = None
    missed: MissedTarget | None = None
    plan: Plan | None = None


def largest(x: np.ndarray) -> float:
    """Return the largest magnitude of (n,) float32 values: not finite if a value is not."""
    return float_of_bits(max_abs_bits(x)) if x.size else 0.0


def scaled(x: np.ndarray, factor: float) -> np.ndarray:
    """Return (n,) float32 values times a factor."""
    product = empty_beside(x.size, np.float32, x)
    product.view(np.uint32)[:] = _MINUS_ZERO  # adding −0 changes no value
    add_scaled(x, np.float32(factor), product)
    return product


def all_zeros(n: int, beside: np.ndarray) -> QuantizedLevels:
    """Return the levels of n zeros, in the memory where the array `beside` lies."""
    symbols = empty_beside(n, np.uint8, beside)
    symbols[:] = 0
    return QuantizedLevels(0.0, default_centroids(), symbols, np.empty(0, np.int64), None)


def default_centroids() -> np.ndarray:
    """Return centroids that reconstruct each level at k·Δ exactly."""
    return np.full(3, CENTER, np.uint8)


def check_centroids(centroids: Any) -> None:
    """Raise `ParameterError` unless these are centroids; a device may not have sent them yet."""
    if type(centroids) is Deferred:
        return
    if not is_plain_array(centroids, ("uint8",)) or centroids.size != 3:
        allowed = "3 integers from 0 to 255, as a uint8 array"
        raise ParameterError.of("symbols.centroids", centroids, allowed)


def point_table(unit: float, centroids: np.ndarray) -> np.ndarray:
    """Return the reconstruction points of all uint8 symbols, as (256,) float32."""
    return points_of(_BYTES, unit, centroids)


def reconstruct(levels: QuantizedLevels, unit: float, out: np.ndarray) -> None:
    """Write the points of levels whose symbols count `unit` to an (n,) float32 array."""
    if levels.on_device is not None:
        levels.on_device.put(unit, out)
    else:
        _put_points(levels, lambda symbols: points_of(symbols, unit, levels.centroids), out)


def _put_points(
    levels: QuantizedLevels, points: Callable[[np.ndarray], np.ndarray], out: np.ndarray
) -> None:
    """Write the points of levels, given the points of any symbols."""
    table = points(_BYTES)

    def task(start: int, stop: int) -> None:
        scalar_quantize.put_points(levels.symbols[start:stop], table, out[start:stop])

    pool.run(task, out.size, beside=out)
    if levels.outliers.size:
        scatter.replace(out, _positions_of_outliers(levels), points(levels.outliers))


def _positions_of_outliers(levels: QuantizedLevels) -> np.ndarray:
    if levels.outlier_positions is not None:
        return levels.outlier_positions
    if not levels.outliers.size:
        return np.empty(0, np.int64)
    positions, _ = symbols_from(levels.symbols, models.least_escape(levels.lanes > 0))
    return positions


def with_positions(levels: QuantizedLevels) -> QuantizedLevels:
    """Return levels on the host with the positions of their outliers, for `part_of`."""
    return levels._replace(outlier_positions=_positions_of_outliers(levels))


def part_of(levels: QuantizedLevels, start: int, stop: int) -> QuantizedLevels:
    """Return the levels `start` to `stop - 1`, without scales, of levels `with_positions`."""
    positions = levels.outlier_positions
    assert positions is not None
    first, last = np.searchsorted(positions, (start, stop))
    return levels._replace(
        symbols=levels.symbols[start:stop],
        outliers=levels.outliers[first:last],
        scales=None,
        outlier_positions=positions[first:last] - start,
    )


def squares_of(errors: Errors) -> float:
    """Return ‖x − x̂‖² with the best centroids, in squares of the unit that symbols count."""
    squares = errors.squares
    for count, residue in zip(errors.counts, errors.residues, strict=True):
        offset = _mean_residue(count, residue) * _UNIT
        squares -= offset * (2 * residue - offset * count)
    return squares / FINE**2


def centroids_of(errors: Errors) -> np.ndarray:
    """Return the best centroids: the mean residue of each magnitude."""
    offsets = map(_mean_residue, errors.counts, errors.residues)
    return np.array([CENTER + offset for offset in offsets], np.uint8)


def _mean_residue(count: int, residue: int) -> int:
    """Return the mean residue of `count` levels in 256ths of a unit, limited to centroids."""
    if not count:
        return 0
    mean = (2 * residue + _UNIT * count) // (2 * _UNIT * count)
    return max(-CENTER, min(mean, 255 - CENTER))


class Reconstruction(NamedTuple):
    """The map from symbols to values.

    Attributes
    ----------
    unit : float
        The step, or half of it with a trellis: symbols count this unit.
    centroids : (3,) uint8 array
    transform : FilterTransform or None
        None if the levels are not those of coefficients.
    """

    unit: float
    centroids: np.ndarray
    transform: FilterTransform | None

    def put(self, levels: QuantizedLevels, out: np.ndarray) -> None:
        """Write the reconstruction of levels to an (n,) float32 array."""
        reconstruct(levels, self.unit, out)
        if self.transform is not None:
            self.transform.inverse(out)

    def add(self, levels: QuantizedLevels, dtype: str, scale: np.float32, out: np.ndarray) -> None:
        """Add ``scale`` times the reconstruction, rounded to `dtype`, to an array on the host.

        The levels are not those of coefficients.
        """
        table = round_to(point_table(self.unit, self.centroids), dtype)
        positions, sums = _positions_of_outliers(levels), out[:0]
        if positions.size:
            points = round_to(points_of(levels.outliers, self.unit, self.centroids), dtype)
            sums = out[positions] + scale * points

        def task(start: int, stop: int) -> None:
            scalar_quantize.put_points(levels.symbols[start:stop], table, out[start:stop], scale)

        pool.run(task, out.size)
        scatter.replace(out, positions, sums)  # instead of what their escapes have added

    def put_scaled(
        self, levels: QuantizedLevels, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        """Write what `add` makes of an array of zeros, in which a product −0 becomes +0."""

        def points(symbols: np.ndarray) -> np.ndarray:
            exact = points_of(symbols, self.unit, self.centroids)
            return np.float32(0) + scale * round_to(exact, dtype)

        _put_points(levels, points, out)

    def are_finite(self, levels: QuantizedLevels, top: float = math.inf) -> bool:
        """Return whether all reconstructed values are finite.

        `top` is the largest magnitude that was quantized, if it is known.
        """
        largest_level = top / self.unit + 2
        if largest_level < _LARGE and self._is_small(2 * int(largest_level)):
            return True
        levels = levels._replace(symbols=as_array(levels.symbols))
        if levels.on_device is None:
            outliers = levels.outliers
            if self._is_small(int(outliers.max(initial=0))):
                return True
            table = point_table(self.unit, self.centroids)
            if not np.isfinite(table).all():  # rare; then only symbols that occur matter
                outliers = np.append(outliers, escapes.largest(levels.symbols))
            points = points_of(outliers, self.unit, self.centroids)
            if self.transform is None:
                return bool(np.isfinite(points).all())
            if self._stay_finite(table) and self._stay_finite(points):
                return True
        values = empty_beside(levels.symbols.size, np.float32, levels.symbols)  # rare
        self.put(levels, values)
        return bool(all_finite(values))

    def read(self, string: ContextString, start: int, values: np.ndarray) -> None:
        """Decode the (k,) float32 values from element `start` on.

        With a transform, `start` and k are multiples of the size of a filter.

        Raises
        ------
        FormatError
            If the string is damaged, or a value exceeds float32.
        """
        # Each range of symbols is dequantized when it is decoded, so no symbol is stored.
        stop, table = start + values.size, point_table(self.unit, self.centroids)
        outliers = string.outliers.part(start, stop)
        is_finite = self._is_small(LARGEST_OUTLIER) or self._is_small(outliers.largest)
        if not is_finite:
            points = points_of(outliers.symbols, self.unit, self.centroids)
            if not np.isfinite(points).all():
                raise Corrupt("a value exceeds float32")
            is_finite = self._stay_finite(table) and self._stay_finite(points)
        inverse = None if self.transform is None else InverseInPlace(self.transform, values)

        def take(at: int, symbols: np.ndarray) -> None:
            first, last = max(at, start), min(at + symbols.size, stop)
            if first >= last:
                return
            part = values[first - start : last - start]
            scalar_quantize.put_points(symbols[first - at : last - at], table, part)
            if outliers.positions.size:
                places, large = outliers.part(first - start, last - start)
                scatter.replace(part, places, points_of(large, self.unit, self.centroids))
            if inverse is not None:
                inverse.written(first - start, last - start)

        string.read_range(start, stop, take)
        if inverse is not None:
            inverse.finish()
        if not is_finite and not all_finite(values):
            raise Corrupt("a value exceeds float32")

    def describe(self, at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        """Describe the levels and points of (k,) int64 symbols from element `at` on."""
        points = points_of(symbols, self.unit, self.centroids).tolist()
        for position, (symbol, point) in enumerate(zip(symbols.tolist(), points, strict=True), at):
            level = -(symbol >> 1) if symbol & 1 else symbol >> 1
            if self.transform is None:
                yield FieldValue(level, element=position, decoded=(point,))
            else:
                index = position % self.transform.size
                meaning = f"coefficient {index}: {point:.6g}"
                yield FieldValue(level, meaning, element=position - index)

    @property
    def _gain(self) -> int:
        """Factor by which values may exceed the largest point."""
        return 1 if self.transform is None else self.transform.size

    def _is_small(self, largest_outlier: int) -> bool:
        """Return whether all values are surely finite, given the largest symbol of an outlier."""
        top = max(ESCAPE, largest_outlier) // 2 + 1  # the centroid adds less than 1
        return top * self._gain * self.unit < _LARGE

    def _stay_finite(self, points: np.ndarray) -> bool:
        """Return whether the values of these points are surely finite."""
        with np.errstate(over="ignore"):
            return bool(np.isfinite(points * np.float32(self._gain)).all())
