"""Settings of `gcodec.analysis.measure`, which other modules read without importing SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gcodec.analysis.progress import Progress, no_progress
from gcodec.limits import Limits

if TYPE_CHECKING:
    from gcodec.analysis.candidates import Budget
    from gcodec.codec import Codec


class Settings(NamedTuple):
    """Settings of a measurement.

    Attributes
    ----------
    codecs : tuple of Codec
        Codecs to try on all tensors.
    budget : Budget or None
        Budget within which to search the best codec.
    error : float
        Relative error at which the entropy is measured.
    layers : tuple of str
        Globs that select tensors; see `gcodec.analysis.groups.selects`.
    max_values : int or None
        Number of values in a sample of a larger tensor; None measures all values.
    seed : int
        Seed of the run.
    limits : Limits
        Bounds on each tensor.
    progress : Progress
        Receiver of the progress.
    keep_pictures : bool
        Whether to keep the data of diagrams.
    """

    codecs: tuple[Codec, ...]
    budget: Budget | None
    error: float
    layers: tuple[str, ...]
    max_values: int | None
    seed: int
    limits: Limits
    progress: Progress = no_progress
    keep_pictures: bool = False
