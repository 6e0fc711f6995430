"""Stochastic rounding: y becomes floor(y), or floor(y) + 1 with probability y − floor(y)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.ecsq.deadzone import has_short_string
from gcodec.codecs.ecsq.quantizer import SearchHints, nbits_of
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, default_centroids, largest
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.errors import ParameterError
from gcodec.kernels.bits.computed_symbols import NarrowSymbols
from gcodec.kernels.context.escapes import cut_off, symbols_from
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.quantize import levels, scalar_quantize
from gcodec.kernels.quantize.levels import Scale
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, FINE
from gcodec.runtime import pool
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import empty_beside
from gcodec.wire.kinds import binary32

_CHUNK = 1 << 18  # elements whose wide symbols stay in the cache
# Mean squared error, in squared steps, below which sums in 1024ths of a step are too inaccurate.
_COARSE = 2.0**-4
_DIVERGES = 0.9  # error as a share of ‖x‖²


class StochasticQuantizer(NamedTuple):
    """An unbiased quantizer; see `Quantizer`.

    Attributes
    ----------
    seed : int
        Seed of the random bits.
    narrow : bool
        Whether many symbols may be `NarrowSymbols`, if their string is short.
    """

    seed: int
    narrow: bool = False

    def hints(self) -> SearchHints:
        """Return what helps rate control to find a step."""
        return SearchHints(self, error_coefficient=1)

    def hold_scales(self, x: np.ndarray, step: float, layout: RowLayout) -> None:
        """Do nothing: scales do not affect stochastic rounding."""

    def release_scales(self) -> None:
        """Do nothing."""

    def quantize(self, x: np.ndarray, step: float, layout: RowLayout) -> QuantizedLevels:
        """Quantize the values."""
        single = np.float32(step)
        # The number of levels is a power of two above the largest level: the norm is exact.
        s = 1 << int(largest(x) / float(single) + 1).bit_length()
        with np.errstate(over="ignore"):
            norm = np.float32(s) * single
        if not np.isfinite(norm):
            allowed = "less for values near the end of float32"
            raise ParameterError.of("step", binary32(step), allowed)
        scale = Scale(np.array([norm]), x.size, s)
        chunk = x.size if device_of(x) is not None else _CHUNK  # a device has room for all
        escaped: dict[int, np.ndarray] = {}  # by the first element of a chunk

        def fill(start: int, stop: int, out: np.ndarray) -> None:
            wide = empty_beside(stop - start, levels.symbol_dtype(s), x)
            levels.quantize(x[start:stop], scale, self.seed, start, wide)
            cut_off(wide, out)
            escaped[start] = symbols_from(wide, ESCAPE)[1]

        def task(start: int, stop: int) -> None:
            for at in range(start, stop, chunk):
                end = min(at + chunk, stop)
                fill(at, end, symbols[at:end])

        symbols: Any = None
        if self.narrow and has_short_string(x, step):
            symbols = NarrowSymbols(fill, x.size, np.dtype(np.uint8), 4, beside=x)
        if symbols is None or not symbols.is_complete:
            escaped.clear()
            symbols = empty_beside(x.size, np.uint8, x)
            pool.run(task, x.size, _CHUNK, beside=x)
        outliers = np.concatenate([escaped[start] for start in sorted(escaped)])
        scales = Scales.of(symbols, layout)
        return QuantizedLevels(step, default_centroids(), symbols, outliers, scales)

    def squared_error(self, x: np.ndarray, step: float, layout: RowLayout) -> float:
        """Return the expectation of ‖x − x̂‖² in squared steps."""
        squares = scalar_quantize.random_squares(x, np.float32(step)) / FINE**2
        if squares >= _COARSE * x.size:
            return squares
        return scalar_quantize.exact_random_squares(x, step)

    def nbits(self, x: np.ndarray, step: float, layout: RowLayout) -> int:
        """Return the approximate number of bits of the string."""
        return nbits_of(self._replace(seed=0).quantize(x, step, layout))

    def diverges(self, x: np.ndarray, step: float, layout: RowLayout) -> bool:
        """Return whether the expected error reaches or exceeds 0.9 of the energy of the values."""
        squares = self.squared_error(x, step, layout) * step**2
        return squares > _DIVERGES * float(sum_squares(x))
