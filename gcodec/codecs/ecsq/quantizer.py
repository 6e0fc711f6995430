"""The interface of quantizers that rate control searches with, and the parts that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from gcodec.codecs.ecsq import reconstruction
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels
from gcodec.entropy.context import coder, table_choice
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.computed_symbols import as_array
from gcodec.kernels.context.class_tables import OUTLIER_NBITS
from gcodec.kernels.context.escapes import symbols_from
from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime.device import dispatched, host
from gcodec.runtime.memory import empty_beside

# Mean squared error, in squared steps, below which sums in 1024ths of a step are too inaccurate.
COARSE = 2.0**-6
_FEW = 1024  # bits for each outlier; with fewer outliers than this, counting them is accurate


class SearchHints(NamedTuple):
    """Properties of a quantizer that help rate control to find a step.

    Attributes
    ----------
    rough : Quantizer
        A faster quantizer for the first trials.
    ahead, ahead_of_bits : float
        Octaves by which steps are larger than those of `rough`, at the same error and at the same
        number of bits; approximate.
    hold_range : float
        Octaves of the step within which the scales of one step suit another, and may be held.
    error_coefficient : int
        The number c in the approximation ‖x̂‖² = ‖x‖² + c·‖x − x̂‖².
    """

    rough: Quantizer
    ahead: float = 0.0
    ahead_of_bits: float = 0.0
    hold_range: float = 0.06
    error_coefficient: int = -1


class Quantizer(Protocol):
    """A map from values to levels for any step.

    In all methods `x` contains n > 0 float32 values in the rows of `layout`, and `step` is
    positive.
    """

    def hints(self) -> SearchHints:
        """Return what helps rate control to find a step."""

    def hold_scales(self, x: np.ndarray, step: float, layout: RowLayout) -> None:
        """Use the scales of this step for all steps from now on.

        Scales that change with the step make error and bits jump past a target.
        """

    def release_scales(self) -> None:
        """Compute scales for each step again."""

    def quantize(self, x: np.ndarray, step: float, layout: RowLayout) -> QuantizedLevels:
        """Quantize the values."""

    def squared_error(self, x: np.ndarray, step: float, layout: RowLayout) -> float:
        """Return ‖x − x̂‖² in squared steps; for stochastic rounding, its expectation."""

    def nbits(self, x: np.ndarray, step: float, layout: RowLayout) -> int:
        """Return the approximate number of bits of the string."""

    def diverges(self, x: np.ndarray, step: float, layout: RowLayout) -> bool:
        """Return whether the step is so coarse that the residual would grow forever."""


_S = TypeVar("_S")


class CachedQuantizer(Generic[_S]):
    """A quantizer that keeps its last result, because rate control asks for bits and error.

    It quantizes with a *setting* that depends on the step: scales, and possibly tables.
    """

    parts: ClassVar[int] = 1  # of a step, in which errors are counted

    def __init__(self) -> None:
        self._last: tuple[object, _S, QuantizedLevels, Errors] | None = None
        self._held: tuple[object, _S] | None = None

    def hints(self) -> SearchHints:
        """Return what helps rate control to find a step."""
        return SearchHints(self)

    def hold_scales(self, x: np.ndarray, step: float, layout: RowLayout) -> None:
        """Use the setting of this step for all steps from now on."""
        key = x.size, step, layout
        # Levels that were quantized with a held setting differ from those with the step's own.
        if self._held is not None or self._last is None or self._last[0] != key:
            self._last = None  # free its memory first
            self._last = key, *self.prepare_and_quantize(x, step, layout)
        self._held = (x.size, layout), self._last[1]

    def release_scales(self) -> None:
        """Compute a setting for each step again."""
        self._last = self._held = None

    def quantize(self, x: np.ndarray, step: float, layout: RowLayout) -> QuantizedLevels:
        """Quantize the values."""
        levels, errors = self._quantized(x, step, layout)
        return levels._replace(centroids=reconstruction.centroids_of(errors))

    def squared_error(self, x: np.ndarray, step: float, layout: RowLayout) -> float:
        """Return ‖x − x̂‖² in squared steps."""
        _, errors = self._quantized(x, step, layout)
        squares = reconstruction.squares_of(errors) / self.parts**2
        return squares if squares >= COARSE * x.size else self.exact_error(x, step, layout)

    def exact_error(self, x: np.ndarray, step: float, layout: RowLayout) -> float:
        """Return ‖x − x̂‖² in squared steps, by reconstructing all values."""
        residual = empty_beside(x.size, np.float32, x)
        levels = self.quantize(x, step, layout)
        levels = levels._replace(symbols=as_array(levels.symbols))
        reconstruction.reconstruct(levels, step / self.parts, residual)
        add_scaled(x, np.float32(-1), residual)
        return float(sum_squares(residual)) / step**2

    def nbits(self, x: np.ndarray, step: float, layout: RowLayout) -> int:
        """Return the approximate number of bits of the string."""
        levels, errors = self._quantized(x, step, layout)
        if levels.plan is None and not levels.lanes and table_choice.examines_all(x.size):
            assert self._last is not None and levels.scales is not None
            levels = levels._replace(plan=table_choice.plan(levels.symbols, levels.scales))
            self._last = *self._last[:2], levels, errors
        return nbits_of(levels)

    def diverges(self, x: np.ndarray, step: float, layout: RowLayout) -> bool:
        """Return whether all levels are 0, or the error is at least that of zeros."""
        levels, _ = self._quantized(x, step, layout)
        if int(host(byte_counts(levels.symbols))[0]) == x.size:
            return True
        return self.squared_error(x, step, layout) * step**2 >= float(sum_squares(x))

    def cached_setting(self, x: np.ndarray, step: float, layout: RowLayout) -> _S | None:
        """Return the setting that was last used for this step, or else the held one."""
        if self._last is not None and self._last[0] == (x.size, step, layout):
            return self._last[1]
        if self._held is not None and self._held[0] == (x.size, layout):
            return self._held[1]
        return None

    def _quantized(
        self, x: np.ndarray, step: float, layout: RowLayout
    ) -> tuple[QuantizedLevels, Errors]:
        key = x.size, step, layout  # distinguishes a tensor from a sample of its rows
        if self._last is None or self._last[0] != key:
            setting = self.cached_setting(x, step, layout)
            self._last = None  # free its memory first
            if setting is None:
                self._last = key, *self.prepare_and_quantize(x, step, layout)
            else:
                self._last = key, setting, *self.quantize_with(x, step, setting)
        return self._last[2:]

    def prepare_and_quantize(
        self, x: np.ndarray, step: float, layout: RowLayout
    ) -> tuple[_S, QuantizedLevels, Errors]:
        """Return the setting of a step, and the result of quantizing with it."""
        setting = self.prepare(x, step, layout)
        return setting, *self.quantize_with(x, step, setting)

    def prepare(self, x: np.ndarray, step: float, layout: RowLayout) -> _S:
        """Return the setting of a step."""
        raise NotImplementedError

    def quantize_with(
        self, x: np.ndarray, step: float, setting: _S
    ) -> tuple[QuantizedLevels, Errors]:
        """Return levels with default centroids, and their errors in parts of a step."""
        raise NotImplementedError


def nbits_of(levels: QuantizedLevels) -> int:
    """Return the approximate number of bits of the string of levels, not all of them 0."""
    assert levels.scales is not None
    plan = levels.plan or table_choice.plan(levels.symbols, levels.scales, 0, levels.lanes)
    if levels.lanes:
        # The search of a path takes so long that writing the string does not matter.
        return int(coder.write(plan, levels.symbols, levels.outliers, BitString())[1])

    def outliers() -> Outliers:
        positions, _ = symbols_from(levels.symbols, ESCAPE)
        return Outliers(positions, levels.outliers)

    nbits = table_choice.with_states(plan.nbits)
    return with_outliers(nbits, levels.outliers.size, outliers)


def with_outliers(nbits: int, count: int, outliers: Callable[[], Outliers]) -> int:
    """Return the bits of a string, given an estimate that includes `count` outliers.

    Where outliers are frequent, their list is written to count its bits.
    """
    if count * _FEW < nbits:
        return nbits
    written = BitString()
    outliers().put(written)
    return nbits + written.nbits - OUTLIER_NBITS * count


@dispatched("gcodec.codecs.ecsq.device")
def quantizer_for(x: np.ndarray, quantizer: Quantizer) -> Quantizer:
    """Return a quantizer that works where the values are; on a device, with kernels alone."""
    return quantizer


@dispatched("gcodec.codecs.ecsq.device")
def levels_at(
    x: np.ndarray, step: float, shape: tuple[int, ...], quantizer: Quantizer
) -> QuantizedLevels | None:
    """Quantize with a known step, without fetching anything about the values first.

    Parameters
    ----------
    x : (n,) float32 array
        An invalid array raises its error when the call next waits for the device.
    step : float
        A float32 number.
    shape : tuple of int
        Shape of the tensor.
    quantizer : Quantizer

    Returns
    -------
    QuantizedLevels or None
        None on the host, and with a trellis, where this is not possible.
    """
    return None
