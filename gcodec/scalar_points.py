"""What levels stand for: points, or the values of which points are the coefficients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec import scalar_levels
from gcodec.contexts import models
from gcodec.contexts.exceptions import Exceptions
from gcodec.contexts.strings import ContextString
from gcodec.errors import Corrupt
from gcodec.fields.walk import Told
from gcodec.kernels import escapes, scalar_quantize
from gcodec.kernels.device import device_of
from gcodec.kernels.memory import empty_beside
from gcodec.kernels.reduce import all_finite
from gcodec.kernels.scalar_quantize import ESCAPE
from gcodec.kernels.scatter import replace
from gcodec.params import Field
from gcodec.scalar_levels import Levels
from gcodec.scalars import Later, mapped
from gcodec.taps import Restored, Taps

_LARGE = 2.0**127  # float32


def scalars_of(levels: Levels, fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the scalars of a message, given the fields of centroids."""
    names = [field.name for field in fields]
    each = (mapped(lambda told, k=k: int(told[k]), levels.centroids) for k in range(3))
    told = {"step": levels.step, "transform": levels.transform}
    return dict(zip(names, each, strict=False)) | told


def symbols_of(string: ContextString, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Read n symbols that are escapes where they are large, and what those stand for.

    And where these are, which on the host can be seen.

    Raises
    ------
    FormatError
    """
    out, (places, symbols) = empty_beside(n, np.uint8, string.data), string.exceptions

    def take(at: int, part: np.ndarray) -> None:
        out[at : at + part.size] = part

    string.read(take)
    known = symbols < models.least_escape(string.with_trellis)
    coded = np.where(known, symbols, models.escapes(symbols, string.with_trellis))
    replace(out, places, coded)
    return out, symbols[~known], None if device_of(out) is None else places[~known]


class Points(NamedTuple):
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
    taps: Taps | None

    @classmethod
    def of(cls, step: Any, parts: int, centroids: np.ndarray, taps: Taps | None) -> Points:
        """Return those of a step, as float32, of which symbols count so many parts."""
        if type(step) is Later:  # and a whole one
            return cls(step, centroids, taps)  # type: ignore[arg-type]
        return cls(float(np.float32(step)) / parts, centroids, taps)

    def put(self, levels: Levels, out: np.ndarray) -> None:
        """Write the (n,) float32 values that levels stand for."""
        scalar_levels.put(levels, self.unit, out)
        if self.taps is not None:
            self.taps.inverse(out)

    def are_finite(self, levels: Levels, top: float = math.inf) -> bool:
        """Tell if all values are, that levels stand for, of values or coefficients up to `top`."""
        most = top / self.unit + 2  # of the magnitudes
        if most < _LARGE and self._are_small(np.array([int(most)]) * 2):
            return True
        if levels.there is not None:  # seldom
            return self._are_finite(levels)
        if self._are_small(levels.beyond):
            return True
        points, beyond = self._of_symbols(), levels.beyond
        if not np.isfinite(points).all():  # seldom
            beyond = np.append(beyond, escapes.largest(levels.symbols))
        sizes = self._of(beyond)
        if self.taps is None:
            return bool(np.isfinite(sizes).all())
        if self._stay_finite(points) and self._stay_finite(sizes):
            return True
        return self._are_finite(levels)

    def _are_finite(self, levels: Levels) -> bool:
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
        inside = string.exceptions.within(start, stop)
        exceptions = Exceptions(*(part[inside] for part in string.exceptions))
        beyond, sure = self._of(exceptions.symbols), self._are_small(exceptions.symbols)
        if not sure and not np.isfinite(beyond).all():
            raise Corrupt("a value passes float32")
        restored = None if self.taps is None else Restored(self.taps, values)

        def take(at: int, part: np.ndarray) -> None:
            first, last = max(at, start), min(at + part.size, stop)
            if first >= last:
                return
            here = values[first - start : last - start]
            scalar_quantize.put_points(part[first - at : last - at], points, here)
            if exceptions.places.size:
                some = exceptions.within(first, last)
                replace(here, exceptions.places[some] - first, beyond[some])
            if restored is not None:
                restored.written(first - start, last - start)

        string.read_range(start, stop, take)
        if restored is not None:
            restored.finish()
        sure = sure or (self._stay_finite(points) and self._stay_finite(beyond))
        if not sure and not all_finite(values):
            raise Corrupt("a value passes float32")

    def tell(self, at: int, symbols: np.ndarray) -> Iterator[Told]:
        """Tell what symbols from element `at` on are, and what they stand for."""
        points, each = self._of(symbols).tolist(), 1 if self.taps is None else self.taps.size
        for place, (symbol, point) in enumerate(zip(symbols.tolist(), points, strict=True), at):
            level = -(symbol >> 1) if symbol & 1 else symbol >> 1
            if self.taps is None:
                yield Told(level, element=place, decoded=(point,))
            else:
                start = place // each * each
                yield Told(level, f"coefficient {place - start}: {point:.6g}", element=start)

    def _of_symbols(self) -> np.ndarray:
        return scalar_levels.points(self.unit, self.centroids)

    def _of(self, symbols: np.ndarray) -> np.ndarray:
        return scalar_levels.point(symbols, self.unit, self.centroids)

    def _are_small(self, beyond: np.ndarray) -> bool:
        """Tell if all values are surely finite, given the symbols that have no points."""
        top = max(ESCAPE, int(beyond.max()) if beyond.size else 0) // 2 + 1  # and a centroid
        taps = 1 if self.taps is None else self.taps.size
        return top * taps * self.unit < _LARGE

    def _stay_finite(self, points: np.ndarray) -> bool:
        """Tell if values are surely finite that are these, or of which these are coefficients."""
        most = 1 if self.taps is None else self.taps.size
        with np.errstate(over="ignore"):
            return bool(np.isfinite(points * np.float32(most)).all())
