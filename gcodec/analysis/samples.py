"""Finite samples of the tensors of a dump, and synthetic values, ready to be encoded."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gcodec.analysis import stats
from gcodec.analysis.settings import Settings
from gcodec.codec import Codec
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.entries import Dump, Entry
from gcodec.wire.kinds import Choice

if TYPE_CHECKING:
    from gcodec.analysis.synthetic import Synthetic


class Origin(enum.Enum):
    """Origin of measured values, which can lack a property that a codec relies on."""

    WHOLE = "a tensor of a dump"
    ROWS = "some rows of a tensor"
    FLAT = "flat samples of tensors"
    INDEPENDENT = "independent values"
    MATRIX = "a synthetic matrix"


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
    values = stats.sample(dump.load(entry), max_values, tensor_seed)
    size, origin = entry.size, Origin.WHOLE
    if values.size < size and len(entry.shape) > 1:
        origin = Origin.ROWS if values.ndim > 1 else Origin.FLAT
    finite, nonfinite = without_nonfinite(values)
    return Sample(entry.name, size, finite, tensor_seed, origin, nonfinite)


def draw_sample(synthetic: Synthetic, name: str, settings: Settings) -> Sample:
    """Draw values within the limits, and take them for a tensor with this name."""
    settings.limits.check("the tensor", synthetic.count(), 4 * synthetic.count())
    values = synthetic.draw()
    origin = Origin.INDEPENDENT if values.ndim < 2 else Origin.MATRIX
    return Sample(name, values.size, values, derive_seed(settings.seed, name=name), origin)


def without_nonfinite(values: stats.Values) -> tuple[stats.Values, int]:
    """Replace NaN and Inf by zeros; return the values and the number of replaced ones."""
    with np.errstate(invalid="ignore"):  # NumPy warns of a signaling NaN in bfloat16
        is_finite = np.isfinite(values)
    nonfinite = values.size - int(np.count_nonzero(is_finite))
    if nonfinite:
        values = np.where(is_finite, values, np.zeros((), values.dtype))
    return values, nonfinite


def doubt(codec: Codec, samples: Iterable[Sample]) -> str | None:
    """Return the reason why a codec cannot be judged on samples; None if it can be."""
    # Of several entropy codes, only the context code depends on rows and columns.
    codes = [
        getattr(codec, declared.name)
        for declared in codec.declared()
        if isinstance(declared.kind, Choice) and "context" in declared.kind.words
    ]
    uses_rows = codec.uses_shape and (not codes or not {"context", "auto"}.isdisjoint(codes))
    uses_neighbors = codec.name == "dct8" or getattr(codec, "transform", None) == "dct"
    for origin in dict.fromkeys(sample.origin for sample in samples):
        if uses_rows and origin in (Origin.FLAT, Origin.INDEPENDENT):
            return f"{origin.value} have no rows and columns to make use of"
        if origin is Origin.ROWS and hasattr(codec, "rank"):
            return "its bits depend on how many rows there are, and only some were measured"
        if uses_neighbors and origin in (Origin.INDEPENDENT, Origin.MATRIX):
            return "neighbors of synthetic values are independent, so a transform gains nothing"
    return None
