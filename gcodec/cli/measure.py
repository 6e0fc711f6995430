"""Measure the tensors of a dump, and what codecs make of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec import wire
from gcodec.cli.options import selects
from gcodec.cli.progress import progress
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.gradients import fits as distributions
from gcodec.gradients import stats
from gcodec.gradients.dumps import open_dump
from gcodec.gradients.entries import Array, Dump, Entry
from gcodec.gradients.safetensors_file import read_index
from gcodec.limits import Limits
from gcodec.seeds import derive_seed


class Task(NamedTuple):
    """What to measure.

    Attributes
    ----------
    codecs : tuple of Codec
    layers : tuple of str
        Globs; see `gcodec.cli.options.selects`.
    most : int or None
        Values of a tensor to measure; None for all.
    seed : int
    limits : Limits
    quiet : bool
        Whether to show no progress.
    """

    codecs: tuple[Codec, ...]
    layers: tuple[str, ...]
    most: int | None
    seed: int
    limits: Limits
    quiet: bool


class Fit(NamedTuple):
    """What a codec makes of the values that were measured.

    Attributes
    ----------
    nbytes : int
        Of the frame.
    bits : float
        Per value; NaN where there are no values.
    rms, rms_error : float
        Of the values x that were encoded, and of x − x̂.
    """

    nbytes: int
    bits: float
    rms: float
    rms_error: float

    @property
    def error(self) -> float:
        """‖x − x̂‖² / ‖x‖²; for x = 0 that is 0 if x̂ = 0, and else inf."""
        return squared_ratio(self.rms_error, self.rms)


def squared_ratio(error: float, signal: float) -> float:
    """Return (error / signal)², where nothing is a perfect copy of nothing."""
    if not signal:
        return math.inf if error else 0.0
    return (error / signal) * (error / signal)


class Measured(NamedTuple):
    """A tensor of a dump.

    Attributes
    ----------
    entry : Entry
    size : int
        Its values.
    summary : Summary or None
        Of the values that were measured; None where the tensor is no gradient.
    nonfinite : int
        NaN and Inf among all values.
    places : tuple of int
        Flat indices of the first of them.
    fits : tuple of Fit or str
        One for each codec; text says why there is none.
    shapes : tuple of gcodec.gradients.fits.Fit
        Distributions that were fitted to the values that were measured, the nearest first.
    """

    entry: Entry
    size: int
    summary: stats.Summary | None = None
    nonfinite: int = 0
    places: tuple[int, ...] = ()
    fits: tuple[Fit | str, ...] = ()
    shapes: tuple[distributions.Fit, ...] = ()


class Contents(NamedTuple):
    """A dump, measured.

    Attributes
    ----------
    path : pathlib.Path
    format : str
    nbytes : int
        Of the file, or of its shards.
    metadata : dict of str to str
    tensors : list of Measured
    """

    path: Path
    format: str
    nbytes: int
    metadata: dict[str, str]
    tensors: list[Measured]


def measure(path: Path, task: Task) -> Contents:
    """Measure the tensors of a dump that the task selects, one in memory at a time.

    Raises
    ------
    ParameterError
        If it selects none.
    FormatError, OSError
        If the file cannot be read.
    """
    with open_dump(path, limits=task.limits) as dump:
        entries = [entry for entry in dump.entries if selects(task.layers, entry.name)]
        if dump.entries and not entries:
            raise ParameterError(f"no tensor matches --layers {' '.join(task.layers)}")
        total = sum(math.prod(entry.shape) for entry in entries)
        tensors = []
        with progress(path.name, total, quiet=task.quiet) as advance:
            for entry in entries:
                tensors.append(_tensor(dump, entry, task))
                advance(tensors[-1].size)
        return Contents(path, dump.format, _nbytes(path), dump.metadata, tensors)


def _nbytes(path: Path) -> int:
    if path.name.lower().endswith(".index.json"):
        return sum(
            (path.parent / shard).stat().st_size for shard in set(read_index(path).values())
        )
    return path.stat().st_size


def _tensor(dump: Dump, entry: Entry, task: Task) -> Measured:
    size = math.prod(entry.shape)
    if entry.dtype not in wire.DTYPE_CODES:
        return Measured(entry, size)
    values = dump.load(entry)
    seed = derive_seed(task.seed, name=entry.name)
    nonfinite, places = stats.find_nonfinite(values)
    if task.most is not None and size > task.most:
        values = stats.sample(values, task.most, seed)
    summary = stats.summarize(values)
    shapes = distributions.fit_all(values, seed)
    if nonfinite:
        values = np.where(np.isfinite(values), values, np.zeros((), values.dtype))
    rms = stats.rms_error(values)
    fits = tuple(_fit(values, rms, codec, seed, entry.name) for codec in task.codecs)
    return Measured(entry, size, summary, nonfinite, places, fits, shapes)


def _fit(values: Array, rms: float, codec: Codec, seed: int, name: str) -> Fit | str:
    try:
        frame = gcodec.encode(values, codec, seed=seed, name=name)
    except ParameterError as error:
        return str(error)
    # A frame that was made here needs no protection from itself.
    decoded = gcodec.decode(frame, limits=Limits(1 << 62, 1 << 62))
    bits = 8 * len(frame) / values.size if values.size else math.nan
    return Fit(len(frame), bits, rms, stats.rms_error(values, decoded))
