"""Samples of tensors: short runs of neighboring elements from all parts of a tensor.

The choice of elements depends on the tensor's size only, on the host as on a device.
"""

from __future__ import annotations

import functools

import numpy as np

from gcodec.kernels.numeric.scatter import take_runs
from gcodec.runtime import Array

MANY = 1 << 21
"""Size of the samples of larger tensors, in elements."""

_RUN = 1 << 10  # elements in a run of a large sample: memory is slow unless it is read in order


def sample(values: Array, most: int = MANY, together: int = _RUN) -> Array:
    """Return a sample of a tensor, or the tensor itself if it is small.

    Parameters
    ----------
    values : (n,) array
        The tensor.
    most : int
        Number of elements in the sample.
    together : int
        Number of elements in a run.
    """
    if values.size <= most:
        return values
    return take_runs(values, runs_of(values.size, most, together), together)


@functools.lru_cache(maxsize=64)
def runs_of(n: int, most: int, together: int) -> np.ndarray:
    """Return the indices of the sampled runs of n elements, where n > `most`; see `sample`.

    The array is read-only.
    """
    run_count, strata = n // together, np.arange(most // together + 1, dtype=np.int64)
    bounds = strata * run_count // (strata.size - 1)
    # The position within each stratum is pseudo-random, so that a periodic tensor is not sampled
    # at its period.
    fractions = strata[:-1] * 0x9E3779B1 % (1 << 32)
    runs: np.ndarray = bounds[:-1] + (fractions * np.diff(bounds) >> 32)
    runs.flags.writeable = False
    return runs
