"""Ways to find the levels of a step, as a search of the step asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, centroids_of, put, squares_of
from gcodec.entropy.context import coder, table_choice
from gcodec.entropy.context.class_tables import EXCEPTION_NBITS
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.escapes import symbols_from
from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime.device import dispatched, host
from gcodec.runtime.memory import empty_beside

COARSE = 2.0**-6  # squares of a step for an element, below which 1024ths tell too little
_FEW = 1024  # bits to one level that escapes, from which on it is enough to count these


class SearchHints(NamedTuple):
    """What helps the search of a step.

    Attributes
    ----------
    rough : Way
        A quicker one, to begin with.
    ahead, ahead_of_bits : float
        By about how many octaves steps of the same error, and of as many bits, are larger than
        those of `rough`.
    same : float
        Octaves within which scales are as good as those of the step itself.
    grown : int
        ‖x̂‖² is about ‖x‖², and this times ‖x − x̂‖².
    """

    rough: Quantizer
    ahead: float = 0.0
    ahead_of_bits: float = 0.0
    same: float = 0.06
    grown: int = -1


class Quantizer(Protocol):
    """How levels are found."""

    def habits(self) -> SearchHints:
        """Return what helps the search of a step."""

    def hold(self, x: np.ndarray, step: float, matrix: RowLayout) -> None:
        """Take scales of this step for these values at other steps too.

        Scales that change from step to step make the error jump past a target.
        """

    def release(self) -> None:
        """Take scales of each step again."""

    def quantize(self, x: np.ndarray, step: float, matrix: RowLayout) -> QuantizedLevels:
        """Quantise (n,) float32 values, n > 0, in rows of a matrix; the step is above 0."""

    def squares(self, x: np.ndarray, step: float, matrix: RowLayout) -> float:
        """Return ‖x − x̂‖² in squares of the step; at random, the expectation."""

    def nbits(self, x: np.ndarray, step: float, matrix: RowLayout) -> int:
        """Return about how many bits the string takes."""

    def is_lost(self, x: np.ndarray, step: float, matrix: RowLayout) -> bool:
        """Tell whether the step is so coarse that feedback would keep adding up for ever."""


_By = TypeVar("_By")


class Kept(Generic[_By]):
    """Levels that a search of bits and error finds, the last ones kept; see `Quantizer`.

    They are found by what a step leads to: scales, and maybe more.
    """

    halves: ClassVar[int] = 1  # that a step has, where errors are counted in parts of one

    def __init__(self) -> None:
        self._last: tuple[Any, _By, QuantizedLevels, Errors] | None = None
        self._held: tuple[Any, _By] | None = None

    def hold(self, x: np.ndarray, step: float, matrix: RowLayout) -> None:
        """Take scales of this step at other steps too."""
        key = x.size, step, matrix
        # Levels that were found by what is held are others.
        if self._held is not None or self._last is None or self._last[0] != key:
            self._last = None  # before there are others
            self._last = key, *self.anew(x, step, matrix)  # whose errors are asked for next
        self._held = (x.size, matrix), self._last[1]

    def release(self) -> None:
        """Take scales of each step again."""
        self._last = self._held = None

    def quantize(self, x: np.ndarray, step: float, matrix: RowLayout) -> QuantizedLevels:
        """Quantise."""
        found, errors = self._found(x, step, matrix)
        return found._replace(centroids=centroids_of(errors))

    def squares(self, x: np.ndarray, step: float, matrix: RowLayout) -> float:
        """Return what is left over."""
        _, errors = self._found(x, step, matrix)
        squares = squares_of(errors) / self.halves**2
        return squares if squares >= COARSE * x.size else self.left_over(x, step, matrix)

    def left_over(self, x: np.ndarray, step: float, matrix: RowLayout) -> float:
        """Return what is left over, by all values that levels stand for."""
        left = empty_beside(x.size, np.float32, x)
        put(self.quantize(x, step, matrix), step / self.halves, left)
        add_scaled(x, np.float32(-1), left)
        return float(sum_squares(left)) / step**2

    def nbits(self, x: np.ndarray, step: float, matrix: RowLayout) -> int:
        """Return about how many bits the string takes."""
        return nbits_of(self._found(x, step, matrix)[0])

    def is_lost(self, x: np.ndarray, step: float, matrix: RowLayout) -> bool:
        """Tell whether all levels are 0, or leave over as much as if they were."""
        levels, _ = self._found(x, step, matrix)
        if int(host(byte_counts(levels.symbols))[0]) == x.size:
            return True
        return self.squares(x, step, matrix) * step**2 >= float(sum_squares(x))

    def known(self, x: np.ndarray, step: float, matrix: RowLayout) -> _By | None:
        """Return what levels of the step were found by at last, or else what is held."""
        if self._last is not None and self._last[0] == (x.size, step, matrix):
            return self._last[1]
        if self._held is not None and self._held[0] == (x.size, matrix):
            return self._held[1]
        return None

    def _found(
        self, x: np.ndarray, step: float, matrix: RowLayout
    ) -> tuple[QuantizedLevels, Errors]:
        key = x.size, step, matrix  # of a tensor, and of some of its rows
        if self._last is None or self._last[0] != key:
            by = self.known(x, step, matrix)
            self._last = None  # before there are others
            told = self.anew(x, step, matrix) if by is None else (by, *self.find(x, step, by))
            self._last = key, *told
        return self._last[2:]

    def anew(
        self, x: np.ndarray, step: float, matrix: RowLayout
    ) -> tuple[_By, QuantizedLevels, Errors]:
        """Return what levels of a step are found by, and what is found."""
        by = self.prepare(x, step, matrix)
        return by, *self.find(x, step, by)

    def prepare(self, x: np.ndarray, step: float, matrix: RowLayout) -> _By:
        """Return what levels of a step are found by."""
        raise NotImplementedError

    def find(self, x: np.ndarray, step: float, by: _By) -> tuple[QuantizedLevels, Errors]:
        """Find levels, all but their centroids, and what they leave over."""
        raise NotImplementedError


def nbits_of(levels: QuantizedLevels) -> int:
    """Return about how many bits the string of levels takes, of which some are not 0."""
    assert levels.scales is not None
    plan = table_choice.plan(levels.symbols, levels.scales, 0, levels.lanes)
    if levels.lanes:
        # A path takes so long that its string may be written, too.
        return int(coder.write(plan, levels.symbols, levels.beyond, BitString())[1])

    def beyond() -> Outliers:
        places, _ = symbols_from(levels.symbols, ESCAPE)
        return Outliers(places, levels.beyond)

    nbits = table_choice.with_states(plan.nbits)
    return with_beyond(nbits, levels.beyond.size, beyond)


def with_beyond(nbits: int, count: int, beyond: Callable[[], Outliers]) -> int:
    """Return the bits of a string of levels, given those with a guess at so many exceptions.

    Which these are is asked only where the guess may tell too little.
    """
    if count * _FEW < nbits:
        return nbits
    told = BitString()
    beyond().put(told)
    return nbits + told.nbits - EXCEPTION_NBITS * count


@dispatched("gcodec.codecs.ecsq.device")
def way_for(x: np.ndarray, way: Quantizer) -> Quantizer:
    """Return the way of values where they are, which a device may have in kernels alone."""
    return way


@dispatched("gcodec.codecs.ecsq.device")
def levels_at(
    x: np.ndarray, step: float, shape: tuple[int, ...], way: Quantizer
) -> QuantizedLevels | None:
    """Return the levels of a step without a look at the values first; None where that cannot be.

    So on the host, or with a trellis.

    Parameters
    ----------
    x : (n,) float32 array
        What is wrong of it is raised when all is known.
    step : float
        As float32.
    shape : tuple of int
    way : Way
    """
    return None
