"""Levels at random: floor(y), or one more as often as the rest says, so that x is expected."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.codecs.ecsq.quantizer import SearchHints, nbits_of
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, largest, middle
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.errors import ParameterError
from gcodec.kernels.context.escapes import cut_off, symbols_from
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.quantize import levels, scalar_quantize
from gcodec.kernels.quantize.levels import Scale
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, FINE
from gcodec.runtime import pool
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import empty_beside
from gcodec.wire.kinds import binary32

_CHUNK = 1 << 18
_COARSE = (
    2.0**-4
)  # squares of a step for an element, below which 1024ths tell too little of errors
_LOST = 0.9  # of ‖x‖²


class StochasticQuantizer(NamedTuple):
    """Levels at random, unbiased; see `quantizer.Way`."""

    seed: int

    def habits(self) -> SearchHints:
        """Return what helps the search of a step."""
        return SearchHints(self, grown=1)

    def hold(self, x: np.ndarray, step: float, matrix: RowLayout) -> None:
        """Do nothing: what is at random has errors that no scale changes."""

    def release(self) -> None:
        """Do nothing."""

    def quantize(self, x: np.ndarray, step: float, matrix: RowLayout) -> QuantizedLevels:
        """Quantise."""
        return _levels(x, step, matrix, self.seed)

    def squares(self, x: np.ndarray, step: float, matrix: RowLayout) -> float:
        """Return what is left over, as expected."""
        return _squares(x, step)

    def nbits(self, x: np.ndarray, step: float, matrix: RowLayout) -> int:
        """Return about how many bits the string takes."""
        return nbits_of(_levels(x, step, matrix, 0))

    def is_lost(self, x: np.ndarray, step: float, matrix: RowLayout) -> bool:
        """Tell whether the expected error is about as large as the values, or larger."""
        return _squares(x, step) * step**2 > _LOST * float(sum_squares(x))


def _levels(x: np.ndarray, step: float, matrix: RowLayout, seed: int) -> QuantizedLevels:
    """Quantise (n,) float32 values, n > 0, in rows of a matrix; the step is above 0."""
    size = np.float32(step)
    # Not below the largest level: a power of two, so that the norm is exact.
    s = 1 << int(largest(x) / float(size) + 1).bit_length()
    with np.errstate(over="ignore"):
        norm = np.float32(s) * size
    if not np.isfinite(norm):
        raise ParameterError.of("step", binary32(step), "less for values near the end of float32")
    scale, symbols = Scale(np.array([norm]), x.size, s), empty_beside(x.size, np.uint8, x)

    chunk = x.size if device_of(x) is not None else _CHUNK  # which has room for all

    def task(start: int, stop: int) -> np.ndarray:
        told = [np.empty(0, np.int64)]
        for at in range(start, stop, chunk):
            part = x[at : min(at + chunk, stop)]
            wide = empty_beside(part.size, levels.symbol_dtype(s), x)
            levels.quantize(part, scale, seed, at, wide)
            cut_off(wide, symbols[at : at + part.size])
            told.append(symbols_from(wide, ESCAPE)[1])
        return np.concatenate(told)

    beyond = np.concatenate(pool.run(task, x.size, _CHUNK, beside=x))
    return QuantizedLevels(step, middle(), symbols, beyond, Scales.of(symbols, matrix))


def _squares(x: np.ndarray, step: float) -> float:
    """Return what is expected of ‖x − x̂‖² in squares of the step."""
    squares = scalar_quantize.random_squares(x, np.float32(step)) / FINE**2
    if squares >= _COARSE * x.size:
        return squares
    return scalar_quantize.exact_random_squares(x, step)
