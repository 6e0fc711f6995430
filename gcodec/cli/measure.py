"""Measure the tensors of a dump, and what codecs make of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gcodec.analysis import fits, rates, stats
from gcodec.analysis.groups import grouped
from gcodec.cli.options import selects
from gcodec.cli.progress import progress
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.limits import Limits
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.entries import Array, Dump, Entry
from gcodec.tensorfiles.safetensors_file import read_index
from gcodec.wire import primitives

if TYPE_CHECKING:
    from gcodec.analysis.candidates import Budget
    from gcodec.analysis.trials import Trial
    from gcodec.cli.report.pictures import Picture
    from gcodec.codec import Codec

_PROBED = 1 << 14  # values of a tensor on which all settings of codecs are tried


class Task(NamedTuple):
    """What to measure.

    Attributes
    ----------
    codecs : tuple of Codec
        To be tried on all tensors.
    budget : Budget or None
        Within which the best codec is searched.
    error : float
        Relative, for which the entropy is told.
    layers : tuple of str
        Globs; see `gcodec.cli.options.selects`.
    most : int or None
        Values of a tensor in its sample; None for all.
    seed : int
    limits : Limits
    quiet : bool
        Whether to show no progress.
    pictures : bool
        Whether to keep what diagrams are drawn of.
    """

    codecs: tuple[Codec, ...]
    budget: Budget | None
    error: float
    layers: tuple[str, ...]
    most: int | None
    seed: int
    limits: Limits
    quiet: bool
    pictures: bool = False


class Sampled(NamedTuple):
    """What a sample of a tensor told.

    Attributes
    ----------
    size : int
        Its values.
    histogram : tuple of int
        See `gcodec.analysis.stats.histogram`.
    shapes : tuple of gcodec.analysis.fits.Fit
        The nearest first.
    entropy : gcodec.analysis.rates.Entropy
    trials : tuple of Trial or str
        One for each codec that was asked for; text says why there is none.
    tries : tuple of Trial
        Of candidates for the best one.
    picture : Picture or None
    """

    size: int
    histogram: tuple[int, ...]
    shapes: tuple[fits.Fit, ...]
    entropy: rates.Entropy
    trials: tuple[Trial | str, ...]
    tries: tuple[Trial, ...]
    picture: Picture | None


class Measured(NamedTuple):
    """A tensor of a dump.

    Attributes
    ----------
    entry : Entry
    size : int
        Its values.
    summary : Summary or None
        Of all of them; None where the tensor is no gradient.
    places : tuple of int
        Flat indices of the first NaN and Inf.
    sampled : Sampled or None
    """

    entry: Entry
    size: int
    summary: stats.Summary | None = None
    places: tuple[int, ...] = ()
    sampled: Sampled | None = None

    @property
    def nonfinite(self) -> int:
        """NaN and Inf among all values."""
        return 0 if self.summary is None else self.summary.nonfinite


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
        candidates = _candidates(dump, entries, task)
        total = sum(math.prod(entry.shape) for entry in entries)
        found: dict[int, Measured] = {}
        with progress(path.name, total, quiet=task.quiet) as advance:
            for group in grouped(entries):
                codecs = candidates
                for place in group:
                    found[place] = _tensor(dump, entries[place], task, codecs)
                    advance(found[place].size)
                    # What did not do well on one of some repeated blocks need not be tried again.
                    codecs = codecs if place != group[0] else _narrowed(found[place], task, codecs)
        tensors = [found[place] for place in range(len(entries))]
        return Contents(path, dump.format, _nbytes(path), dump.metadata, tensors)


def _nbytes(path: Path) -> int:
    if path.name.lower().endswith(".index.json"):
        return sum(
            (path.parent / shard).stat().st_size for shard in set(read_index(path).values())
        )
    return path.stat().st_size


def _tensor(dump: Dump, entry: Entry, task: Task, candidates: list[Codec]) -> Measured:
    size = math.prod(entry.shape)
    if entry.dtype not in primitives.FLOATS:
        return Measured(entry, size)
    values = dump.load(entry)
    summary = stats.summarize(values)
    places = stats.find_nonfinite(values)[1] if summary.nonfinite else ()
    values, seed = _sample(values, entry, task.most, task.seed)
    picture = None
    if task.pictures:
        from gcodec.cli.report.pictures import Picture

        picture = Picture.of(values)
    shapes = fits.fit_all(values)
    histogram = stats.histogram(values, summary.rms)
    if summary.nonfinite:
        values = np.where(np.isfinite(values), values, np.zeros((), values.dtype))
    trials: list[Trial | str] = []
    if task.codecs or candidates:
        from gcodec.analysis.trials import attempt

        trials = [
            attempt(values, codec, seed, entry.name) for codec in (*task.codecs, *candidates)
        ]
    sampled = Sampled(
        values.size,
        histogram,
        shapes,
        rates.entropy_at(values, task.error),
        tuple(trials[: len(task.codecs)]),
        tuple(trial for trial in trials[len(task.codecs) :] if not isinstance(trial, str)),
        picture,
    )
    return Measured(entry, size, summary, places, sampled)


def _sample(values: Array, entry: Entry, most: int | None, seed: int) -> tuple[Array, int]:
    """Return a sample of a tensor, and the seed that the tensor has."""
    own = derive_seed(seed, name=entry.name)
    return (values if most is None else stats.sample(values, most, own)), own


def _candidates(dump: Dump, entries: list[Entry], task: Task) -> list[Codec]:
    """Return what may be best within the budget: what is, on a large tensor and a smaller one."""
    if task.budget is None:
        return []
    from gcodec.analysis.candidates import all_settings, shortlist
    from gcodec.analysis.trials import attempt

    order = [e for e in entries if e.dtype in primitives.FLOATS and math.prod(e.shape) > 0]
    order.sort(key=lambda entry: math.prod(entry.shape))
    probes = {entry.name: entry for entry in (*order[-1:], *order[len(order) // 2 :][:1])}
    settings = all_settings(task.budget)
    tried: list[list[Trial]] = []
    what = f"{dump.path.name}: codecs"
    with progress(what, len(probes) * len(settings), quiet=task.quiet) as advance:
        for entry in probes.values():
            values, seed = _sample(dump.load(entry), entry, _PROBED, task.seed)
            values = np.where(np.isfinite(values), values, np.zeros((), values.dtype))
            tried.append([])
            for codec in settings:
                trial = attempt(values, codec, seed, entry.name)
                tried[-1] += [] if isinstance(trial, str) else [trial]
                advance(1)
    return shortlist(tried, task.budget)


def _narrowed(tensor: Measured, task: Task, codecs: list[Codec]) -> list[Codec]:
    """Return the candidates that a tensor leaves for others of its kind."""
    if task.budget is None or tensor.sampled is None:
        return codecs
    from gcodec.analysis.candidates import shortlist

    return shortlist([tensor.sampled.tries], task.budget)
