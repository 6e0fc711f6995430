"""Levels of a step: what a tensor becomes, and what levels stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.ecsq.filter_transform import FilterTransform, InverseInPlace
from gcodec.entropy.coder import into
from gcodec.entropy.context import models
from gcodec.entropy.context.coder import ContextString
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import Scales
from gcodec.errors import Corrupt
from gcodec.inspect.walker import FieldValue
from gcodec.kernels.context import escapes
from gcodec.kernels.context.escapes import symbols_from
from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.numeric.reduce import all_finite, max_abs_bits
from gcodec.kernels.numeric.scatter import replace
from gcodec.kernels.quantize import scalar_quantize
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, FINE
from gcodec.payload import MissedTarget
from gcodec.runtime import pool
from gcodec.runtime.deferred import Deferred, map_deferred
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import empty_beside
from gcodec.wire.params import Field

_MINUS_ZERO = 0x80000000
CENTER = 128  # a centroid in the middle: 256ths of a step, above this
_MIDDLE = np.full(3, CENTER, np.uint8)
_UNIT = FINE // 256


class QuantizedLevels(NamedTuple):
    """What a tensor becomes.

    Attributes
    ----------
    step : float
        As float32; 0 where all is zero.
    centroids : (3,) uint8 array
        Of the magnitudes 1, 2, and those above: how far from the level they lie, in 256ths of a
        step, plus `CENTER`.
    symbols : (n,) uint8 array
        Twice the magnitude of the level, plus 1 where it is negative; `ESCAPE` from 127 on.
    beyond : (k,) int64 array
        The same of those, in order.
    scales : Scales or None
        None where all is zero, or nothing.
    lanes : int
        With a trellis, the states that take turns, and symbols are in halves of a step; see
        `kernels.trellis`. Else 0.
    transform : str
        "dct" where the levels are those of coefficients of `gcodec.codecs.ecsq.filter_transform`,
        else "none".
    places : (k,) int64 array or None
        Where those beyond are, if the host knows that of a device.
    there : optional
        Where a device found them and has not told all yet: what puts and writes them.
    missed : MissedTarget or None
        The target that no step meets.
    """

    step: float
    centroids: np.ndarray
    symbols: np.ndarray
    outliers: np.ndarray
    scales: Scales | None
    lanes: int = 0
    transform: str = "none"
    outlier_positions: np.ndarray | None = None
    on_device: Any = None
    missed: MissedTarget | None = None


def largest(x: np.ndarray) -> float:
    """Return the largest magnitude of (n,) float32 values, 0 of none; not finite where one is."""
    bits = int(max_abs_bits(x)) if x.size else 0
    return float(np.uint32(bits).view(np.float32))


def scaled(x: np.ndarray, factor: float) -> np.ndarray:
    """Return (n,) float32 values times a factor."""
    found = empty_beside(x.size, np.float32, x)
    found.view(np.uint32)[:] = _MINUS_ZERO  # to which anything may be added
    add_scaled(x, np.float32(factor), found)
    return found


def all_zeros(n: int, beside: np.ndarray) -> QuantizedLevels:
    """Return the levels of n zeros, where an array lies."""
    symbols = empty_beside(n, np.uint8, beside)
    symbols[:] = 0
    return QuantizedLevels(0.0, default_centroids(), symbols, np.empty(0, np.int64), None)


def points(unit: float, centroids: np.ndarray) -> np.ndarray:
    """Return what each symbol stands for, as (256,) float32; see `point`."""
    return scalar_quantize.points_of(unit / 256, _moves(centroids).tolist())


def put(levels: QuantizedLevels, unit: float, out: np.ndarray) -> None:
    """Write the (n,) float32 values that levels stand for, where symbols count `unit`."""
    if levels.on_device is not None:
        levels.on_device.put(unit, out)
        return
    values = points(unit, levels.centroids)

    def task(start: int, stop: int) -> None:
        scalar_quantize.put_points(levels.symbols[start:stop], values, out[start:stop])

    pool.run(task, out.size, beside=out)
    if levels.outliers.size:
        places = levels.outlier_positions
        if places is None:
            places, _ = symbols_from(levels.symbols, models.least_escape(levels.lanes > 0))
        replace(out, places, point(levels.outliers, unit, levels.centroids))


def point(symbols: np.ndarray, unit: float, centroids: np.ndarray) -> np.ndarray:
    """Return what symbols stand for: f32((k + d)·unit), the product rounded once; 0 for k = 0."""
    if not symbols.size:
        return np.empty(0, np.float32)
    k = symbols >> 1
    moved = _moves(centroids)[np.minimum(np.maximum(k, 1), 3) - 1]
    with np.errstate(over="ignore"):
        size = ((256 * k + moved) * (unit / 256)).astype(np.float32)
    return np.where(k == 0, np.float32(0), np.where(symbols & 1, -size, size))


def _moves(centroids: np.ndarray) -> np.ndarray:
    """Return how far points lie above levels of each magnitude, in 256ths of a step."""
    return centroids.astype(np.int64) - CENTER


def squares_of(errors: Errors) -> float:
    """Return ‖x − x̂‖² in squares of what errors are counted in, with the best centroids."""
    counts, rests, squares, _ = errors
    for count, rest in zip(counts, rests, strict=True):
        if count:
            moved = _moved(count, rest) * _UNIT
            squares -= moved * (2 * rest - moved * count)
    return squares / FINE**2


def centroids_of(errors: Errors) -> np.ndarray:
    """Return the mean of what each magnitude leaves over, in 256ths, rounded."""
    moved = map(_moved, errors.counts, errors.residues)
    return np.array([CENTER + part for part in moved], np.uint8)


def _moved(count: int, rest: int) -> int:
    """Return the mean of the rests of so many levels, in 256ths, rounded, within bounds."""
    if not count:
        return 0
    found = (2 * rest + _UNIT * count) // (2 * _UNIT * count)
    return -CENTER if found < -CENTER else 255 - CENTER if found > 255 - CENTER else found


def default_centroids() -> np.ndarray:
    """Return centroids of levels that lie in their middle."""
    return _MIDDLE.copy()


_LARGE = 2.0**127  # float32


def scalars_of(levels: QuantizedLevels, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the scalars of a message, given the fields of centroids."""
    names = [field.name for field in fields]
    each = (map_deferred(lambda told, k=k: int(told[k]), levels.centroids) for k in range(3))
    told = {"step": levels.step, "transform": levels.transform}
    return dict(zip(names, each, strict=False)) | told


def symbols_of(string: ContextString, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Read n symbols that are escapes where they are large, and what those stand for.

    And where these are, which on the host can be seen.

    Raises
    ------
    FormatError
    """
    out, (places, symbols) = empty_beside(n, np.uint8, string.span.data), string.outliers
    string.read(into(out))
    with_trellis = string.symbols.with_trellis
    known = symbols < models.least_escape(with_trellis)
    coded = np.where(known, symbols, models.escapes(symbols, with_trellis))
    replace(out, places, coded)
    return out, symbols[~known], None if device_of(out) is None else places[~known]


class Reconstruction(NamedTuple):
    """What turns symbols to values.

    Attributes
    ----------
    unit : float
        What symbols count.
    centroids : (3,) uint8 array
    taps : Taps or None
        None where points are the values.
    """

    unit: float
    centroids: np.ndarray
    transform: FilterTransform | None

    @classmethod
    def of(
        cls, step: Any, parts: int, centroids: np.ndarray, taps: FilterTransform | None
    ) -> Reconstruction:
        """Return those of a step, as float32, of which symbols count so many parts."""
        if type(step) is Deferred:  # and a whole one
            return cls(step, centroids, taps)  # type: ignore[arg-type]
        return cls(float(np.float32(step)) / parts, centroids, taps)

    def put(self, levels: QuantizedLevels, out: np.ndarray) -> None:
        """Write the (n,) float32 values that levels stand for."""
        put(levels, self.unit, out)
        if self.transform is not None:
            self.transform.inverse(out)

    def are_finite(self, levels: QuantizedLevels, top: float = math.inf) -> bool:
        """Tell if all values are, that levels stand for, of values or coefficients up to `top`."""
        most = top / self.unit + 2  # of the magnitudes
        if most < _LARGE and self._are_small(np.array([int(most)]) * 2):
            return True
        if levels.on_device is not None:  # seldom
            return self._are_finite(levels)
        if self._are_small(levels.outliers):
            return True
        points, beyond = self._of_symbols(), levels.outliers
        if not np.isfinite(points).all():  # seldom
            beyond = np.append(beyond, escapes.largest(levels.symbols))
        sizes = self._of(beyond)
        if self.transform is None:
            return bool(np.isfinite(sizes).all())
        if self._stay_finite(points) and self._stay_finite(sizes):
            return True
        return self._are_finite(levels)

    def _are_finite(self, levels: QuantizedLevels) -> bool:
        """Tell it by all values."""
        values = empty_beside(levels.symbols.size, np.float32, levels.symbols)
        self.put(levels, values)
        return bool(all_finite(values))

    def read(self, string: ContextString, start: int, values: np.ndarray) -> None:
        """Write the values from element `start` on, as many as there is room for.

        With taps, they are those of whole filters.

        Raises
        ------
        FormatError
            Where bytes are wrong, or a value passes float32.
        """
        # No symbol need be kept: each range is dequantised where it is read.
        stop, points = start + values.size, self._of_symbols()
        inside = string.outliers.within(start, stop)
        exceptions = Outliers(*(part[inside] for part in string.outliers))
        beyond, sure = self._of(exceptions.symbols), self._are_small(exceptions.symbols)
        if not sure and not np.isfinite(beyond).all():
            raise Corrupt("a value passes float32")
        restored = None if self.transform is None else InverseInPlace(self.transform, values)

        def take(at: int, part: np.ndarray) -> None:
            first, last = max(at, start), min(at + part.size, stop)
            if first >= last:
                return
            here = values[first - start : last - start]
            scalar_quantize.put_points(part[first - at : last - at], points, here)
            if exceptions.positions.size:
                some = exceptions.within(first, last)
                replace(here, exceptions.positions[some] - first, beyond[some])
            if restored is not None:
                restored.written(first - start, last - start)

        string.read_range(start, stop, take)
        if restored is not None:
            restored.finish()
        sure = sure or (self._stay_finite(points) and self._stay_finite(beyond))
        if not sure and not all_finite(values):
            raise Corrupt("a value passes float32")

    def describe(self, at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        """Tell what symbols from element `at` on are, and what they stand for."""
        points, each = (
            self._of(symbols).tolist(),
            1 if self.transform is None else self.transform.size,
        )
        for place, (symbol, point) in enumerate(zip(symbols.tolist(), points, strict=True), at):
            level = -(symbol >> 1) if symbol & 1 else symbol >> 1
            if self.transform is None:
                yield FieldValue(level, element=place, decoded=(point,))
            else:
                start = place // each * each
                yield FieldValue(level, f"coefficient {place - start}: {point:.6g}", element=start)

    def _of_symbols(self) -> np.ndarray:
        return points(self.unit, self.centroids)

    def _of(self, symbols: np.ndarray) -> np.ndarray:
        return point(symbols, self.unit, self.centroids)

    def _are_small(self, beyond: np.ndarray) -> bool:
        """Tell if all values are surely finite, given the symbols that have no points."""
        top = max(ESCAPE, int(beyond.max()) if beyond.size else 0) // 2 + 1  # and a centroid
        taps = 1 if self.transform is None else self.transform.size
        return top * taps * self.unit < _LARGE

    def _stay_finite(self, points: np.ndarray) -> bool:
        """Tell if values are surely finite that are these, or of which these are coefficients."""
        most = 1 if self.transform is None else self.transform.size
        with np.errstate(over="ignore"):
            return bool(np.isfinite(points * np.float32(most)).all())
