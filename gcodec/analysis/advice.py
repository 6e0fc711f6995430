"""Measure codecs on a gradient, and derive the advice for a cluster and for convergence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcodec import advisor
from gcodec.advisor import Law, law_of
from gcodec.advisor.machines import Machine
from gcodec.analysis import stats
from gcodec.analysis.groups import omissions, selects
from gcodec.analysis.host import processor
from gcodec.analysis.samples import Sample, doubt, draw_sample, load_sample
from gcodec.analysis.settings import Settings
from gcodec.analysis.synthetic import parse_synthetic
from gcodec.analysis.timing import TIMED_VALUES, draw_step, load_step, quick_speeds
from gcodec.analysis.trials import Trial, attempt, total_cost, weighted_mean
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.runtime.pool import thread_count
from gcodec.tensorfiles.dumps import open_dump
from gcodec.wire import primitives

SYNTHETIC_RMS = 1e-3
"""Root mean square of synthetic values, about that of gradients of a mean loss."""


class MeasuredCodec(NamedTuple):
    """Measurements of a codec on a gradient.

    Attributes
    ----------
    codec : Codec
        The codec.
    bits : float
        Bits per value of whole frames.
    error : float
        The nmse.
    law : Law
        Law of the codec for tensors of these sizes.
    problem : str or None
        Reason why the codec refuses a tensor; then the other fields contain no measurements.
    doubt : str or None
        Reason why the measured values say little about the codec.
    """

    codec: Codec
    bits: float
    error: float
    law: Law = Law(None, None)
    problem: str | None = None
    doubt: str | None = None


class Source(NamedTuple):
    """The source of the measured values.

    Attributes
    ----------
    name : str
        Name for messages.
    values : int
        Number of values of the whole gradient.
    bits : float
        Bits of an uncompressed value.
    skipped : int
        Number of tensors that are no gradients.
    nonfinite : int
        Number of measured values that were NaN or Inf, and are taken as 0.
    omitted : dict of str to str
        Tensors that the reader passes over, and the reasons.
    """

    name: str
    values: int
    bits: float
    skipped: int
    nonfinite: int
    omitted: dict[str, str]


def measure_dump(path: Path, settings: Settings) -> tuple[Source, list[MeasuredCodec]]:
    """Measure codecs on a dump, one tensor in memory at a time.

    Raises
    ------
    ParameterError
        If there are no values to measure.
    FormatError, OSError
        If the file cannot be read.
    """
    codecs = settings.codecs
    trials: list[list[tuple[Sample, Trial | str]]] = [[] for _ in codecs]
    nonfinite = 0
    with open_dump(path, limits=settings.limits) as dump:
        entries = [entry for entry in dump.entries if selects(settings.layers, entry.name)]
        floats = [entry for entry in entries if entry.dtype in primitives.FLOATS]
        total = sum(entry.size for entry in floats)
        if not total:
            raise ParameterError("there are no values of a gradient to measure here")
        with settings.progress(path.name, total) as advance:
            for entry in floats:
                if entry.size:
                    sample = load_sample(dump, entry, settings.max_values, settings.seed)
                    measured = [attempt(sample, codec) for codec in codecs]
                    nonfinite += sample.nonfinite
                    sample = sample._replace(values=np.empty(0))  # free the memory
                    for results, trial in zip(trials, measured, strict=True):
                        results.append((sample, trial))
                advance(entry.size)
        omitted = omissions(dump, settings.layers)
    bits = weighted_mean((entry.size, 8 * primitives.ITEMSIZE[entry.dtype]) for entry in floats)
    source = Source(path.name, total, bits, len(entries) - len(floats), nonfinite, omitted)
    return source, list(map(combined, codecs, trials))


def measure_synthetic(text: str, settings: Settings) -> tuple[Source, list[MeasuredCodec]]:
    """Measure codecs on synthetic values with the root mean square `SYNTHETIC_RMS`.

    Parameters
    ----------
    text : str
        See `gcodec.analysis.synthetic.parse_synthetic`.
    settings : Settings
        Settings of the measurement.

    Raises
    ------
    ParameterError
        If `text` names no distribution.
    LimitExceeded
        If it names more values than the limits allow.
    """
    sample = draw_sample(parse_synthetic(text), "synthetic", settings)
    if rms := stats.rms_error(sample.values):
        np.multiply(sample.values, np.float32(SYNTHETIC_RMS / rms), out=sample.values)
    measured = []
    with settings.progress("synthetic", len(settings.codecs)) as advance:
        for codec in settings.codecs:
            measured.append(combined(codec, [(sample, attempt(sample, codec))]))
            advance(1)
    name = f"{text}, of rms {SYNTHETIC_RMS:g}"
    return Source(name, sample.size, 32, skipped=0, nonfinite=0, omitted={}), measured


def measure_machine(source: str, settings: Settings) -> Machine:
    """Measure the coding speeds of this machine in one or two seconds.

    Parameters
    ----------
    source : str
        Path of a dump, see `gcodec.analysis.timing.load_step`; or synthetic values, see
        `gcodec.analysis.synthetic.parse_synthetic`.
    settings : Settings
        Settings of the measurement, except for the number of values.
    """
    if source.startswith("synthetic:"):
        samples = [draw_step(source, settings)]
    else:
        samples = load_step(Path(source), settings._replace(max_values=TIMED_VALUES)).samples
    speeds = quick_speeds(samples, settings)
    threads = thread_count()
    facts = (source, processor(), f"{threads} thread{'' if threads == 1 else 's'}")
    return Machine("this machine", ", ".join(facts), speeds)


def combined(codec: Codec, results: list[tuple[Sample, Trial | str]]) -> MeasuredCodec:
    """Combine the trials of a codec on all tensors; see `MeasuredCodec`."""
    trials = [(sample.size, trial) for sample, trial in results if not isinstance(trial, str)]
    problems = (f"{sample.name}: {trial}" for sample, trial in results if isinstance(trial, str))
    problem, cost = next(problems, None), total_cost(trials)
    if problem is not None or cost is None:
        return MeasuredCodec(codec, math.nan, math.nan, problem=problem)
    law = law_of(codec, [size for size, _ in trials])
    reason = doubt(codec, [sample for sample, _ in results])
    return MeasuredCodec(codec, cost.bits, cost.error, law, None, reason)


class Training(NamedTuple):
    """A training run, as far as bounds on its convergence depend on it.

    Attributes
    ----------
    problem : advisor.Problem
        Constants of the loss function.
    steps : int
        Number of steps.
    workers : int
        Number of workers that encode with seeds of their own.
    """

    problem: advisor.Problem
    steps: int
    workers: int

    @property
    def plain_bound(self) -> float:
        """Bound on the mean squared gradient without compression."""
        return advisor.plain_bound(self.problem, self.steps)


class Effect(NamedTuple):
    """The effect of a codec on convergence.

    Attributes
    ----------
    delta, omega : float or None
        See `gcodec.advisor.Law`.
    residual : float
        Bound on the squared norm of the residual, as a multiple of that of a gradient.
    bound : float
        Bound on the mean squared gradient: the lower one of the bounds with error feedback and
        without, both at the same learning rate.
    use : str or None
        "feedback" or "no feedback", whichever has this bound; None if both are infinite.
    steps_to_double : float
        Number of steps after which the bound with feedback is at most twice that without
        compression.
    """

    delta: float | None
    omega: float | None
    residual: float
    bound: float
    use: str | None
    steps_to_double: float

    @classmethod
    def of(cls, law: Law, training: Training) -> Effect:
        """Return the effect of a codec with this law."""
        delta = law.delta or 0.0
        omega = math.inf if law.omega is None else law.omega
        problem, steps = training.problem, training.steps
        bounds = {
            "no feedback": advisor.unbiased_bound(omega, training.workers, problem, steps),
            "feedback": advisor.feedback_bound(delta, problem, steps),
        }
        use = min(bounds, key=lambda name: bounds[name])
        return cls(
            law.delta,
            law.omega,
            advisor.residual_bound(delta),
            bounds[use],
            use if math.isfinite(bounds[use]) else None,
            advisor.steps_to_double(delta, problem),
        )


class CodecEffects(NamedTuple):
    """A codec, and its effect on convergence.

    Attributes
    ----------
    codec : MeasuredCodec
        The codec.
    by_law : Effect
        Effect that its law guarantees.
    as_measured : Effect
        Effect if the measured error held for all gradients.
    """

    codec: MeasuredCodec
    by_law: Effect
    as_measured: Effect


class ClusterAdvice:
    """The advice on one cluster.

    Parameters
    ----------
    cluster : advisor.Cluster
        The cluster.
    work : advisor.Work
        Work of a step.
    training : Training
        The training run.
    tolerance : float
        Share by which a step may exceed the shortest one if that preserves more of the gradient.
    source : Source
        Source of the measured values.
    codecs : list of MeasuredCodec
        Codecs to consider.
    other_schemes : tuple of (str, float)
        Names and bits per value of further schemes, whose errors are unknown.
    machine : Machine or None
        Coding speeds. Speeds of `work` that are not infinite replace them. None if only the
        speeds of `work` count.

    Attributes
    ----------
    cluster, work, training, source, codecs, machine
        The parameters.
    advice : advisor.Advice
        The plans.
    effects : list of CodecEffects
        Effects of each codec.
    uses : dict of str to str
        Whether to use a codec with feedback, by its spec; useless codecs are missing.

    Raises
    ------
    ParameterError
        If two schemes have the same name.
    """

    def __init__(
        self,
        cluster: advisor.Cluster,
        work: advisor.Work,
        training: Training,
        tolerance: float,
        source: Source,
        codecs: list[MeasuredCodec],
        other_schemes: tuple[tuple[str, float], ...],
        machine: Machine | None,
    ) -> None:
        names = [*(str(m.codec) for m in codecs), *(name for name, _ in other_schemes)]
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise ParameterError.of("--bits", min(duplicates), "a name that nothing else has")
        self.cluster, self.work, self.training = cluster, work, training
        self.source, self.codecs, self.machine = source, codecs, machine
        self.effects = [
            CodecEffects(m, Effect.of(m.law, training), Effect.of(_measured_law(m), training))
            for m in codecs
        ]
        uses = ((str(m.codec), measured.use) for m, _, measured in self.effects)
        self.uses = {name: use for name, use in uses if use is not None}
        schemes = [self._scheme(m) for m in codecs if m.problem is None and m not in self.untimed]
        schemes += [advisor.Scheme(name, bits) for name, bits in other_schemes]
        self.advice = advisor.advise(cluster, work, schemes, tolerance)

    def _scheme(self, measured: MeasuredCodec) -> advisor.Scheme:
        name, encode, decode = str(measured.codec), None, None
        if self.machine is not None:
            speed = self.machine.speeds[name]
            encode = speed.encode if math.isinf(self.work.encode) else None
            decode = speed.decode if math.isinf(self.work.decode) else None
        is_useful = name in self.uses
        return advisor.Scheme(name, measured.bits, measured.error, is_useful, encode, decode)

    @property
    def untimed(self) -> list[MeasuredCodec]:
        """Codecs that are left out because the machine has no coding speed for them."""
        if self.machine is None:
            return []
        speeds = self.machine.speeds
        return [m for m in self.codecs if m.problem is None and str(m.codec) not in speeds]

    def scheme(self, codec: Codec) -> advisor.Scheme | None:
        """Return the scheme of a codec, or None if it was not considered."""
        schemes = (way.scheme for way in self.advice.ways if way.scheme is not None)
        return next((scheme for scheme in schemes if scheme.name == str(codec)), None)

    def dense(self, level: advisor.Level) -> advisor.Way:
        """Return the uncompressed collective of a level."""
        return next(way for way in self.advice.dense.ways if way.level == level)

    def ways(self, level: advisor.Level) -> list[advisor.Way]:
        """Return all collectives of a level that were considered."""
        return [way for way in self.advice.ways if way.level == level]

    def plan_of(self, way: advisor.Way) -> advisor.Plan:
        """Return the plan that uses this collective, and no compression at the other level."""
        dense = self.advice.dense.ways
        return advisor.plan(self.work, [way if d.level == way.level else d for d in dense])

    def gather_limit(self, level: advisor.Level) -> float:
        """Return the bits per value above which an all-gather is slower than no compression."""
        members, link = self.cluster.group(level)
        assert link is not None  # a level without a link does not exist
        nbytes = self.work.values * self.work.bits / 8
        return 8 * advisor.all_gather_limit(nbytes, members, link) / self.work.values


def _measured_law(measured: MeasuredCodec) -> Law:
    """Return the law of a codec if the measured error held for all gradients."""
    if math.isnan(measured.error):
        return Law(None, None)
    delta = 1 - measured.error
    return Law(delta if delta > 0 else None, measured.error if measured.codec.unbiased else None)
