"""Measurements for the diagrams of a report: rates and errors, bits by kind, link speeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import gcodec
from gcodec.analysis.advice import MeasuredCodec, combined
from gcodec.analysis.candidates import all_settings, pareto
from gcodec.analysis.measure import TensorGroup
from gcodec.analysis.samples import Sample, load_sample
from gcodec.analysis.settings import Settings
from gcodec.analysis.timing import TIMED_VALUES, Timing, load_step, split_bits, time_codecs
from gcodec.analysis.trials import Trial, attempt
from gcodec.tensorfiles.entries import Dump

_MAX_TENSORS, _MAX_VALUES = 8, 1 << 15  # for rates and errors: tensors, and values of each
_MAX_LINKS = 12  # codecs whose link speeds are measured
ROUNDS = 5
"""Number of measurements of link speeds."""


def measure_rates(
    dump: Dump, groups: Sequence[TensorGroup], settings: Settings
) -> tuple[list[MeasuredCodec], list[Sample]]:
    """Try all settings of all codecs on samples of the largest tensors of a dump.

    Returns
    -------
    points : list of MeasuredCodec
        Settings that accept all samples.
    samples : list of Sample
        The samples.
    """
    entries = [gradient.entry for group in groups for gradient in group.gradients]
    entries = [entry for entry in entries if entry.size]
    entries = sorted(entries, key=lambda entry: -entry.size)[:_MAX_TENSORS]
    codecs = all_settings()
    trials: list[list[tuple[Sample, Trial | str]]] = [[] for _ in codecs]
    samples = []
    with settings.progress("rates and distortions", len(entries) * len(codecs)) as advance:
        for entry in entries:
            sample = load_sample(dump, entry, _MAX_VALUES, settings.seed)
            samples.append(sample)
            for codec, results in zip(codecs, trials, strict=True):
                results.append((sample, attempt(sample, codec)))
                advance(1)
    measured = map(combined, codecs, trials)
    return [point for point in measured if math.isfinite(point.error)], samples


def measure_split(
    dump: Dump, groups: Sequence[TensorGroup], settings: Settings
) -> list[tuple[TensorGroup, dict[str, float]]]:
    """Return the bits per value by kind that the best codec needs for the first tensor of groups.

    Groups for which no codec is within the budget are left out.
    """
    split = []
    for group in groups:
        trials = group.best(settings.budget)
        if not trials:
            continue
        sample = load_sample(dump, group.gradients[0].entry, settings.max_values, settings.seed)
        codec = trials[0][1].codec
        frame = gcodec.encode(sample.values, codec, seed=sample.seed, name=sample.name)
        bits = split_bits([frame])
        split.append((group, {k: n / sample.values.size for k, n in bits.items() if n}))
    return split


def measure_links(
    path: Path, points: Sequence[MeasuredCodec], settings: Settings
) -> tuple[list[Timing], list[Sample]]:
    """Time settings on the Pareto front on the tensors that ``gcodec advise`` times.

    Returns
    -------
    timings : list of Timing
        Measurements of each setting that accepts all samples, over `ROUNDS` rounds.
    samples : list of Sample
        The tensors; none if there is nothing to time.
    """
    useful = [point for point in points if point.error < 1]
    front = [useful[i] for i in pareto([(point.bits, point.error) for point in useful])]
    if not front:
        return [], []
    step = load_step(path, settings._replace(max_values=TIMED_VALUES))
    codecs = [point.codec for point in front[:: -(-len(front) // _MAX_LINKS)]]
    timings = time_codecs(codecs, step.samples, ROUNDS, settings.progress, refusals=[])
    return timings, step.samples


def fitted_shapes(groups: Sequence[TensorGroup]) -> list[tuple[float, float]]:
    """Return the share of all values and the shape β of each tensor's fitted distribution."""
    total = sum(group.gradient_values for group in groups)
    shapes = []
    for group in groups:
        for gradient in group.gradients:
            fit = next((fit for fit in gradient.fits if fit.name == "gennorm"), None)
            if fit is not None:
                share = (gradient.entry.size - gradient.summary.zeros) / total
                shapes.append((share, fit.shape.beta))
    return shapes
