"""The filter transform: a discrete cosine transform over the taps of each convolution filter.

A convolution has one filter for each pair of output and input channel. The gradients of
neighboring taps mostly agree in sign, and the transform collects what they share in one
coefficient. It is orthonormal, so it preserves squared errors. To the scale model, each
coefficient is a column, as each tap was. Levels take fewer bits where the scales of coefficients
differ more than those of taps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels.transform import coding_gain, small_transform
from gcodec.kernels.transform.basis import basis
from gcodec.kernels.transform.small_transform import Matrices, Sizes
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import empty_beside, flattened

_FIRST_AXIS, _MOST_AXES = 2, 3  # axes 0 and 1 are output and input channels
_LONGEST = 16  # taps along an axis
_SAMPLE, _RUN = 1 << 14, 1 << 9  # elements from which the gain is estimated, in runs of this size
_WHOLE = 2  # if the sample is at least one in this many runs, the whole tensor is transformed
_GAIN = 0.035  # bits for each element that the transform must save
_UNCERTAINTY = 0.8  # is added to the required gain, divided by the number of filters
_FLOOR = 2.0**-20  # added to squares of a filter, so that they have a logarithm
_FINEST = 2.0**-19  # smallest step, relative to the largest possible coefficient
_SMALL, _LARGE = 2.0**-120, 2.0**120  # steps and sums that are far from the limits of float32


class FilterTransform(NamedTuple):
    """The transform of filters of one size.

    Attributes
    ----------
    sizes : (int, int, int)
        Taps along each axis, with ones in front where filters have fewer axes.
    """

    sizes: Sizes

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, shape: tuple[int, ...]) -> FilterTransform | None:
        """Return the transform for a tensor, or None if its shape has no suitable taps."""
        sizes = shape[_FIRST_AXIS:]
        if len(sizes) > _MOST_AXES or not all(1 <= size <= _LONGEST for size in sizes):
            return None
        if not 1 < math.prod(sizes) <= small_transform.MOST:
            return None
        one, two, three = (1,) * (_MOST_AXES - len(sizes)) + sizes
        return cls((one, two, three))

    @property
    def size(self) -> int:
        """Number of taps of a filter.

        The transform is orthonormal, so neither domain exceeds the other's peak by more than this
        factor.
        """
        return math.prod(self.sizes)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the coefficients of (n,) float32 values."""
        out = empty_beside(x.size, np.float32, x)
        self._apply(x, _matrices(self.sizes, True), out)
        return out

    def inverse(self, values: np.ndarray) -> None:
        """Replace (n,) float32 coefficients by the values, in place."""
        self._apply(values, _matrices(self.sizes, False), values)

    def _apply(self, x: np.ndarray, matrices: Matrices, out: np.ndarray) -> None:
        def task(start: int, stop: int) -> None:
            small_transform.transform(x[start:stop], self.sizes, matrices, out[start:stop])

        pool.run(task, x.size, self.size, beside=x)

    def worthwhile_coefficients(
        self, x: np.ndarray, top: float, lift: float, step: Callable[[np.ndarray], float]
    ) -> np.ndarray | None:
        """Return the coefficients if coding them probably takes fewer bits than coding values.

        The criterion is the coding gain of the transform: half the mean number of octaves by which
        the squares of coefficients are below those of taps, with equal weight for each filter.
        Values close to the limits of float32 are not transformed.

        Parameters
        ----------
        x : (n,) float32 array
            Whole filters, not all zero.
        top : float
            Largest magnitude.
        lift : float
            Factor by which the values were multiplied.
        step : callable
            Returns the approximate step, given a sample of the values.

        Returns
        -------
        (n,) float32 array or None
        """
        size = self.size
        length = -(-min(_RUN, x.size) // size) * size
        whole, stride = x.size - x.size % length, max(x.size // _SAMPLE, 1)

        def sample_of(values: np.ndarray) -> np.ndarray:
            runs = values[:whole]
            return runs if stride == 1 else flattened(runs.reshape(-1, length)[::stride])

        sample = host(sample_of(x))
        least = max(_FINEST * math.sqrt(size) * top, _SMALL * lift)
        if not least <= step(sample) <= top <= _LARGE / size:
            return None
        coefficients = None
        if stride <= _WHOLE and device_of(x) is None:
            coefficients = self.forward(x)
            transformed = sample_of(coefficients)
        else:
            transformed = self.forward(sample)
        shares, filters = coding_gain.shares_of(sample, transformed, size)
        before, after = (sum(map(math.log2, part)) for part in (shares + _FLOOR).tolist())
        if not filters or before - after < 2 * size * (_GAIN + _UNCERTAINTY / filters):
            return None
        return self.forward(x) if coefficients is None else coefficients


class InverseInPlace:
    """An array into which coefficients are decoded part by part, and transformed in place.

    Parameters
    ----------
    transform : FilterTransform
    values : (n,) float32 array
        Coefficients of whole filters, which become values.
    """

    def __init__(self, transform: FilterTransform, values: np.ndarray) -> None:
        self.transform, self.values = transform, values
        self._matrices = _matrices(transform.sizes, False)
        self._divided: set[int] = set()

    def written(self, start: int, stop: int) -> None:
        """Transform the filters that lie wholly in the part that was written, on this thread."""
        count = self.transform.size
        first, last = -(-start // count) * count, stop // count * count
        self._divided.update(at // count for at in (start, stop) if at % count)
        self._apply(first, last)

    def finish(self) -> None:
        """Transform the filters that several parts share, after all parts are written."""
        count = self.transform.size
        for number in self._divided:
            self._apply(number * count, (number + 1) * count)

    def _apply(self, start: int, stop: int) -> None:
        if start < stop:
            part = self.values[start:stop]
            small_transform.transform(part, self.transform.sizes, self._matrices, part)


@functools.lru_cache(maxsize=32)
def _matrices(sizes: Sizes, forward: bool) -> Matrices:
    """Return the DCT basis of each axis, transposed for the forward transform, as bytes."""
    bases = [basis(n).T if forward else basis(n) for n in sizes]
    one, two, three = (np.ascontiguousarray(matrix).tobytes() for matrix in bases)
    return one, two, three
