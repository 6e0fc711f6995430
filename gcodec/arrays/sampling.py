"""Samples of tensors: runs of neighbours from everywhere, the same wherever a tensor lies."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.scatter import take_runs

MANY = 1 << 21
"""Elements from which on a scale is that of a sample of as many."""

_RUN = 1 << 10  # neighbours in a large sample: memory is slow where it is not read in order


def sample(values: np.ndarray, most: int = MANY, together: int = _RUN) -> np.ndarray:
    """Take some of the elements of a tensor, from everywhere; all of a small one.

    Which ones they are depends on the size of the tensor only.

    Parameters
    ----------
    values : (n,) array
    most, together : int
        Elements to take, and how many of these are neighbours each.
    """
    if values.size <= most:
        return values
    return take_runs(values, runs_of(values.size, most, together), together)


def runs_of(n: int, most: int, together: int) -> np.ndarray:
    """Return which runs of n elements, more than `most`, a sample has; see `sample`."""
    runs, shares = n // together, np.arange(most // together + 1, dtype=np.int64)
    starts = shares * runs // (shares.size - 1)
    # A run lies anywhere in its share: what repeats in a tensor must not repeat in the sample.
    anywhere = shares[:-1] * 0x9E3779B1 % (1 << 32)
    found: np.ndarray = starts[:-1] + (anywhere * np.diff(starts) >> 32)
    return found
