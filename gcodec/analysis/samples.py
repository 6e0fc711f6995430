"""Finite samples of the tensors of a dump, and drawn values, ready to be encoded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gcodec.analysis import stats
from gcodec.analysis.doubts import Origin
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.entries import Dump, Entry

if TYPE_CHECKING:
    from gcodec.analysis.synthetic import Synthetic


class Sample(NamedTuple):
    """Values of a tensor, all of them or a part.

    Attributes
    ----------
    name : str
        Name of the tensor.
    size : int
        Number of elements of the whole tensor.
    values : array
        Finite values; zeros replace NaN and Inf.
    seed : int
        Seed that the tensor derives from the seed of the run and its name.
    origin : Origin
        Origin of the values.
    nonfinite : int
        Number of values that were replaced.
    """

    name: str
    size: int
    values: stats.Values
    seed: int
    origin: Origin = Origin.WHOLE
    nonfinite: int = 0


def load_sample(dump: Dump, entry: Entry, max_values: int | None, seed: int) -> Sample:
    """Load a tensor, and take a sample of it.

    Parameters
    ----------
    dump : Dump
        Dump that contains the tensor.
    entry : Entry
        Entry of the tensor.
    max_values : int or None
        Number of values in a sample of a larger tensor; None takes all values.
    seed : int
        Seed of the run.
    """
    tensor_seed = derive_seed(seed, name=entry.name)
    values = dump.load(entry)
    if max_values is not None:
        values = stats.sample(values, max_values, tensor_seed)
    origin = Origin.of_sample(entry.shape, values.size, values.ndim)
    size = math.prod(entry.shape)
    finite, nonfinite = without_nonfinite(values)
    return Sample(entry.name, size, finite, tensor_seed, origin, nonfinite)


def draw_sample(synthetic: Synthetic, name: str, seed: int) -> Sample:
    """Draw values, and take them for a tensor with this name."""
    values = synthetic.draw()
    origin = Origin.INDEPENDENT if values.ndim < 2 else Origin.MATRIX
    return Sample(name, values.size, values, derive_seed(seed, name=name), origin)


def without_nonfinite(values: stats.Values) -> tuple[stats.Values, int]:
    """Replace NaN and Inf by zeros; return the values and the number of replaced ones."""
    is_finite = np.isfinite(values)
    nonfinite = values.size - int(np.count_nonzero(is_finite))
    if nonfinite:
        values = np.where(is_finite, values, np.zeros((), values.dtype))
    return values, nonfinite
