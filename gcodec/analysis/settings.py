"""Settings of measurements, which other modules read without importing SciPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from gcodec.limits import Limits

if TYPE_CHECKING:
    from gcodec.analysis.candidates import Budget
    from gcodec.codec import Codec


Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Function that takes the title and the total amount (None if unknown) of a piece of work, and
returns a context manager. That yields a function to be called with each amount of work that is
done."""


class Settings(NamedTuple):
    """Settings of a measurement.

    Attributes
    ----------
    codecs : tuple of Codec
        Codecs to measure on all tensors.
    budget : Budget or None
        Budget within which to search the best codec.
    error : float
        The nmse at which the entropy is measured.
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

    codecs: tuple[Codec, ...] = ()
    budget: Budget | None = None
    error: float = 0.01
    layers: tuple[str, ...] = ()
    max_values: int | None = None
    seed: int = 0
    limits: Limits = Limits()
    progress: Progress = lambda title, total: nullcontext(lambda amount: None)
    keep_pictures: bool = False
