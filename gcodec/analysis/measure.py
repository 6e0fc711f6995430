"""Measure the tensors of a dump, and the codecs that are tried on them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from gcodec.analysis import fits, rates, stats
from gcodec.analysis.candidates import Budget, all_settings, probe, shortlist, try_all
from gcodec.analysis.groups import grouped, omissions, pattern_of, selects
from gcodec.analysis.samples import Sample, load_sample, without_nonfinite
from gcodec.analysis.settings import Settings
from gcodec.analysis.trials import Trial, attempt, joint_rms, total_cost, weighted_mean
from gcodec.arrays.nonfinite import find_nonfinite
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.entries import Dump, Entry
from gcodec.wire import primitives

_PROBE_SIZE = 1 << 14  # values of a tensor on which all settings of all codecs are tried


class GradientStats(NamedTuple):
    """Measurements on a tensor of floats: on all its values, and on a sample of them.

    Attributes
    ----------
    entry : Entry
        Entry of the tensor.
    summary : Summary
        Statistics of all values.
    nonfinite_indices : tuple of int
        Flat indices of the first NaN and Inf.
    measured : int
        Number of values in the sample, on which the following attributes are measured.
    histogram : tuple of int
        See `gcodec.analysis.stats.histogram`.
    fits : tuple of gcodec.analysis.fits.Fit
        Fitted distributions, the nearest first.
    entropy : gcodec.analysis.rates.Entropy
        Entropy at the error of the settings.
    trials : tuple of Trial or str
        A trial of each codec of the settings, or the reason why the codec refuses the values.
    candidates : tuple of Trial
        Trials of the candidates for the best codec.
    picture : gcodec.analysis.fits.Picture or None
        Data of diagrams.
    """

    entry: Entry
    summary: stats.Summary
    nonfinite_indices: tuple[int, ...]
    measured: int
    histogram: tuple[int, ...]
    fits: tuple[fits.Fit, ...]
    entropy: rates.Entropy
    trials: tuple[Trial | str, ...]
    candidates: tuple[Trial, ...]
    picture: fits.Picture | None


class TensorStats(NamedTuple):
    """A tensor of a dump.

    Attributes
    ----------
    entry : Entry
        Entry of the tensor.
    gradient : GradientStats or None
        Measurements; None if the tensor is no gradient.
    """

    entry: Entry
    gradient: GradientStats | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.entry.size

    def record(self, codecs: Sequence[str] = ()) -> dict[str, Any]:
        """Return the measurements as a flat record, with the nearest fit.

        Each key has values of one type. A tensor that is no gradient, or has too few values for a
        fit, has 0, NaN and empty texts in place of the measurements that it lacks.

        Parameters
        ----------
        codecs : sequence of str
            Names of the codecs of the settings, whose bits and errors are appended.
        """
        gradient = self.gradient
        summary = None if gradient is None else gradient.summary
        fit = gradient.fits[0] if gradient is not None and gradient.fits else None
        costs = dict[str, float]()
        for name, trial in zip_longest(codecs, () if gradient is None else gradient.trials):
            cost = (trial.bits, trial.error) if isinstance(trial, Trial) else (math.nan, math.nan)
            costs[f"{name} bits_per_value"], costs[f"{name} nmse"] = cost
        return {
            "tensor": self.entry.name,
            "shape": "x".join(map(str, self.entry.shape)),
            "dtype": self.entry.dtype,
            "values": self.size,
            "measured": 0 if gradient is None else gradient.measured,
            "rms": math.nan if summary is None else summary.rms,
            "max_abs": math.nan if summary is None else summary.max_abs,
            "zeros": 0 if summary is None else summary.zeros,
            "nonfinite": 0 if summary is None else summary.nonfinite,
            "fit": "" if fit is None else fit.name,
            "beta": math.nan if fit is None else fit.shape.beta,
            "w2_in_rms": math.nan if fit is None else fit.w2,
            "ks": math.nan if fit is None else fit.ks,
            "entropy_bits": math.nan if gradient is None else gradient.entropy.bits,
            **costs,
        }

    @property
    def group(self) -> TensorGroup:
        """The tensor as a group of one."""
        return TensorGroup([self])


class DumpStats(NamedTuple):
    """Measurements on a dump.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    format : str
        Format of the file.
    files : list of pathlib.Path
        Files that contain the tensors: the file itself, or its shards.
    metadata : dict of str to str
        Metadata of the file.
    tensors : list of TensorStats
        Measurements on the selected tensors.
    omitted : dict of str to str
        Selected tensors that the reader passes over, and the reasons.
    nbytes : int
        Size of all files, which may be gone by now: a copy of standard input is.
    """

    path: Path
    format: str
    files: list[Path]
    metadata: dict[str, str]
    tensors: list[TensorStats]
    omitted: dict[str, str]
    nbytes: int

    @property
    def total(self) -> TensorGroup:
        """All tensors as one group."""
        return TensorGroup(self.tensors)

    def groups(self, *, each: bool) -> list[TensorGroup]:
        """Group the tensors of repeated blocks, or with `each` put each tensor into a group."""
        tensors = {tensor.entry: tensor for tensor in self.tensors}
        groups = grouped(tensors, each=each)
        return [TensorGroup([tensors[entry] for entry in group]) for group in groups]


def measure(path: Path, settings: Settings) -> DumpStats:
    """Measure the tensors of a file; see `measure_tensors`.

    Raises
    ------
    ParameterError
        If the settings select no tensor.
    FormatError, OSError
        If the file cannot be read.
    """
    with open_dump(path, limits=settings.limits) as dump:
        tensors = measure_tensors(dump, settings)
        omitted = omissions(dump, settings.layers)
        nbytes = sum(file.stat().st_size for file in dump.files)
        return DumpStats(path, dump.format, dump.files, dump.metadata, tensors, omitted, nbytes)


def measure_tensors(dump: Dump, settings: Settings) -> list[TensorStats]:
    """Measure the tensors of a dump that the settings select, one in memory at a time.

    Raises
    ------
    ParameterError
        If the settings select no tensor.
    """
    entries = [entry for entry in dump.entries if selects(settings.layers, entry.name)]
    if dump.entries and not entries:
        raise ParameterError(f"no tensor matches --layers {' '.join(settings.layers)}")
    candidates = _candidates(dump, entries, settings)
    total = sum(entry.size for entry in entries)
    tensors: dict[Entry, TensorStats] = {}
    with settings.progress(dump.path.name, total) as advance:
        for group in grouped(entries):
            codecs = candidates
            for entry in group:
                tensors[entry] = tensor = _tensor(dump, entry, settings, codecs)
                advance(tensor.size)
                if entry is group[0] and settings.budget is not None and tensor.gradient:
                    # The other tensors of the group need only the best candidates of this one.
                    codecs = shortlist([tensor.gradient.candidates], settings.budget)
    return [tensors[entry] for entry in entries]


def _tensor(dump: Dump, entry: Entry, settings: Settings, candidates: list[Codec]) -> TensorStats:
    if entry.dtype not in primitives.FLOATS:
        return TensorStats(entry)
    values = dump.load(entry)
    summary = stats.summarize(values)
    indices = find_nonfinite(values)[1] if summary.nonfinite else ()
    seed = derive_seed(settings.seed, name=entry.name)
    values = stats.sample(values, settings.max_values, seed)
    sample = Sample(entry.name, entry.size, without_nonfinite(values)[0], seed)
    trials = [attempt(sample, codec) for codec in settings.codecs]
    gradient = GradientStats(
        entry=entry,
        summary=summary,
        nonfinite_indices=indices,
        measured=values.size,
        histogram=stats.histogram(values, summary.rms),
        fits=fits.fit_all(values),
        entropy=rates.entropy_at(sample.values, settings.error),
        trials=tuple(trials),
        candidates=tuple(try_all(sample, candidates, settings.budget)) if settings.budget else (),
        picture=fits.Picture.of(values) if settings.keep_pictures else None,
    )
    return TensorStats(entry, gradient)


def _candidates(dump: Dump, entries: list[Entry], settings: Settings) -> list[Codec]:
    """Return candidates for the best codec: the best ones on a large tensor and a median one."""
    if settings.budget is None:
        return []
    order = [entry for entry in entries if entry.dtype in primitives.FLOATS and entry.size]
    order.sort(key=lambda entry: entry.size)
    probes = {entry.name: entry for entry in (*order[-1:], *order[len(order) // 2 :][:1])}
    codecs = all_settings(settings.budget)
    trials: list[list[Trial]] = []
    title = f"{dump.path.name}: codecs"
    with settings.progress(title, len(probes) * len(codecs)) as advance:
        for entry in probes.values():
            sample = load_sample(dump, entry, _PROBE_SIZE, settings.seed)
            trials.append(probe(sample, codecs, settings.budget, advance))
    return shortlist(trials, settings.budget)


class TensorGroup:
    """Tensors that share a row of a table: one tensor, repeated blocks, or all tensors.

    Parameters
    ----------
    members : list of TensorStats
        The tensors.

    Attributes
    ----------
    members : list of TensorStats
        The tensors.
    gradients : list of GradientStats
        Measurements on the members that are gradients.
    """

    def __init__(self, members: list[TensorStats]) -> None:
        self.members = members
        self.gradients = [m.gradient for m in members if m.gradient is not None]

    @property
    def name(self) -> str:
        """Name of the tensor, or the pattern of all names."""
        name = self.members[0].entry.name
        return name if len(self.members) == 1 else pattern_of(name)

    @property
    def values(self) -> int:
        """Number of values."""
        return sum(member.size for member in self.members)

    @property
    def gradient_values(self) -> int:
        """Number of values of the gradients."""
        return sum(gradient.entry.size for gradient in self.gradients)

    @property
    def nonfinite(self) -> int:
        """Number of NaN and Inf."""
        return sum(gradient.summary.nonfinite for gradient in self.gradients)

    @property
    def zeros(self) -> int:
        """Number of exact zeros."""
        return sum(gradient.summary.zeros for gradient in self.gradients)

    @property
    def raw_bits(self) -> float:
        """Mean number of bits per value of the gradients' dtypes."""
        return weighted_mean(
            (g.entry.size, 8 * primitives.ITEMSIZE[g.entry.dtype]) for g in self.gradients
        )

    @property
    def rms(self) -> float:
        """Root mean square of all finite values; NaN if there is none."""
        summaries = (gradient.summary for gradient in self.gradients)
        parts = [(s.size - s.nonfinite, s.rms) for s in summaries if not math.isnan(s.rms)]
        return joint_rms(parts) if parts else math.nan

    @property
    def max_abs(self) -> float:
        """Largest finite magnitude; NaN if there is none."""
        magnitudes = (gradient.summary.max_abs for gradient in self.gradients)
        return max((value for value in magnitudes if not math.isnan(value)), default=math.nan)

    @property
    def histogram(self) -> tuple[int, ...]:
        """Sum of the histograms, each over multiples of the tensor's own rms."""
        return tuple(map(sum, zip(*(g.histogram for g in self.gradients), strict=True)))

    @property
    def fit(self) -> tuple[str, float, float] | None:
        """Distribution that is the nearest one for most tensors, and the medians of its β and W2.

        None if no tensor has enough values.
        """
        nearest = [gradient.fits[0] for gradient in self.gradients if gradient.fits]
        if not nearest:
            return None
        name = Counter(fit.name for fit in nearest).most_common(1)[0][0]
        same = [fit for fit in nearest if fit.name == name]
        beta = statistics.median(fit.shape.beta for fit in same)
        return name, beta, statistics.median(fit.w2 for fit in same)

    @property
    def entropy(self) -> float:
        """Mean entropy in bits per value at the error of the settings; NaN without values."""
        return weighted_mean((g.entry.size, g.entropy.bits) for g in self.gradients)

    def trials(self, place: int) -> list[tuple[int, Trial]]:
        """Return the sizes of the gradients, and the trials of one codec of the settings."""
        trials = ((g.entry.size, g.trials[place]) for g in self.gradients)
        return [(size, trial) for size, trial in trials if not isinstance(trial, str)]

    def best(self, budget: Budget | None) -> list[tuple[int, Trial]]:
        """Return sizes and trials of the best codec that is within the budget for each tensor.

        The list is empty if there is no such codec, or no budget.
        """
        if budget is None:
            return []
        by_codec: dict[str, list[tuple[int, Trial]]] = {}
        for gradient in self.gradients:
            size = gradient.entry.size
            for trial in gradient.candidates:
                if size and budget.allows(trial.bits, trial.error):
                    by_codec.setdefault(str(trial.codec), []).append((size, trial))
        filled = sum(gradient.entry.size > 0 for gradient in self.gradients)

        def budget_cost(trials: list[tuple[int, Trial]]) -> tuple[float, float]:
            cost = total_cost(trials)
            return (math.inf, math.inf) if cost is None else budget.cost(cost.bits, cost.error)

        fitting = (trials for trials in by_codec.values() if len(trials) == filled)
        return min(fitting, key=budget_cost, default=[])
