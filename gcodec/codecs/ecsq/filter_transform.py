"""The taps of the filters of convolutions, and their discrete cosine transform.

A convolution has a filter for each of its outputs and inputs, and the gradients of the taps of one
are alike: neighbours mostly agree in sign. The transform moves what they share to one coefficient.
It is orthonormal, so an error is the same before and after it. Each coefficient is a column of its
own to the scale model, as each tap was; where their scales differ more than those of taps did,
levels take fewer bits.
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

_FIRST_AXIS, _MOST_AXES = 2, 3  # outputs and inputs lie before the taps
_LONGEST = 16  # axis
_SAMPLE, _RUN = 1 << 14, 1 << 9  # elements of which the gain is found, and of those side by side
_MOSTLY = 2  # of so many runs one is looked at, where all are transformed at once
_GAIN = 0.035  # bits of an element, below which it takes as many without, or fewer
_UNSURE = 0.8  # more, over the number of filters
_FLOOR = 2.0**-20  # of the squares of a filter, so that they have a logarithm
_FINE = 2.0**-19  # of the largest coefficient that there may be: steps that can have levels
_SMALL, _LARGE = 2.0**-120, 2.0**120  # steps and sums that float32 has room around


class FilterTransform(NamedTuple):
    """What filters look like.

    Attributes
    ----------
    sizes : (int, int, int)
        Of their axes; the first ones are 1 where there are fewer.
    """

    sizes: Sizes

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, shape: tuple[int, ...]) -> FilterTransform | None:
        """Return the taps of a tensor, all dimensions but the first two; None where none are."""
        sizes = shape[_FIRST_AXIS:]
        if len(sizes) > _MOST_AXES or not all(1 <= size <= _LONGEST for size in sizes):
            return None
        if not 1 < math.prod(sizes) <= small_transform.MOST:
            return None
        one, two, three = (1,) * (_MOST_AXES - len(sizes)) + sizes
        return cls((one, two, three))

    @property
    def size(self) -> int:
        """How many a filter has.

        So many times the largest coefficient no value is above, nor the other way round.
        """
        return math.prod(self.sizes)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the coefficients of (n,) float32 values."""
        out = empty_beside(x.size, np.float32, x)
        self._along(x, _matrices(self.sizes, True), out)
        return out

    def inverse(self, values: np.ndarray) -> None:
        """Make values of (n,) float32 coefficients, in place."""
        self._along(values, _matrices(self.sizes, False), values)

    def _along(self, x: np.ndarray, by: Matrices, out: np.ndarray) -> None:
        def task(start: int, stop: int) -> None:
            small_transform.transform(x[start:stop], self.sizes, by, out[start:stop])

        pool.run(task, x.size, self.size, beside=x)

    def paying(
        self, x: np.ndarray, top: float, lift: float, step: Callable[[np.ndarray], float]
    ) -> np.ndarray | None:
        """Return coefficients if levels of them probably take fewer bits than those of values.

        That is by the coding gain of the transform, half the mean octaves by which the squares of
        a coefficient are less than those of a tap, each filter counting as much as any other.
        Where float32 has little room for steps, or above values, values are left alone.

        Parameters
        ----------
        x : (n,) float32 array
            Whole filters, not all zero.
        top : float
            The largest magnitude.
        lift : float
            What values were multiplied by.
        step : callable
            Returns about the step that there will be, given some of the values.

        Returns
        -------
        (n,) float32 array or None
        """
        size = self.size
        length = -(-min(_RUN, x.size) // size) * size
        whole, every = x.size - x.size % length, max(x.size // _SAMPLE, 1)

        def looked_at(values: np.ndarray) -> np.ndarray:
            runs = values[:whole]
            return runs if every == 1 else flattened(runs.reshape(-1, length)[::every])

        some = host(looked_at(x))
        least = max(_FINE * math.sqrt(size) * top, _SMALL * lift)
        if not least <= step(some) <= top <= _LARGE / size:
            return None
        coefficients = None
        if every <= _MOSTLY and device_of(x) is None:  # else only those that are looked at
            coefficients = self.forward(x)
            here = looked_at(coefficients)
        else:
            here = self.forward(some)
        shares, live = coding_gain.shares_of(some, here, size)
        before, after = (sum(map(math.log2, part)) for part in (shares + _FLOOR).tolist())
        if not live or before - after < 2 * size * (_GAIN + _UNSURE / live):
            return None
        return self.forward(x) if coefficients is None else coefficients


class Restored:
    """Values that coefficients are written to, part by part, and which become values there.

    Parameters
    ----------
    taps : Taps
    values : (n,) float32 array
        Whole filters.
    """

    def __init__(self, taps: FilterTransform, values: np.ndarray) -> None:
        self.taps, self.values = taps, values
        self._by = _matrices(taps.sizes, False)
        self._cut: set[int] = set()

    def written(self, start: int, stop: int) -> None:
        """Transform the filters of which all coefficients are in this part, on this thread."""
        count = self.taps.size
        first, last = -(-start // count) * count, stop // count * count
        self._cut.update(at // count for at in (start, stop) if at % count)
        self._transform(first, last)

    def finish(self) -> None:
        """Transform the others, when all parts are written."""
        count = self.taps.size
        for number in self._cut:
            self._transform(number * count, (number + 1) * count)

    def _transform(self, start: int, stop: int) -> None:
        if start < stop:
            here = self.values[start:stop]
            small_transform.transform(here, self.taps.sizes, self._by, here)


@functools.lru_cache(maxsize=32)
def _matrices(sizes: Sizes, forward: bool) -> Matrices:
    """Return the bases of axes, or transposed, as transforms take them."""
    bases = [basis(n).T if forward else basis(n) for n in sizes]
    one, two, three = (np.ascontiguousarray(matrix).tobytes() for matrix in bases)
    return one, two, three
