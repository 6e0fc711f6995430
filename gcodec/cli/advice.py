"""Put advice together: what was asked for, what was measured, and what follows."""

from __future__ import annotations

from typing import NamedTuple

from gcodec import advisor
from gcodec.cli.effects import Course, as_measured, by_law
from gcodec.cli.schemes import Measured, Source
from gcodec.errors import ParameterError


class Asked(NamedTuple):
    """What advice is asked for.

    Attributes
    ----------
    cluster : advisor.Cluster
    work : advisor.Work
    tolerance : float
    problem : advisor.Problem
    steps : int
    """

    cluster: advisor.Cluster
    work: advisor.Work
    tolerance: float
    problem: advisor.Problem
    steps: int


class Advised:
    """The advice on one cluster.

    Parameters
    ----------
    asked : Asked
    source : Source
        What the codecs were measured on.
    measured : list of Measured
    named : tuple of (str, float)
        What is known by its bits per value only.

    Attributes
    ----------
    advice : advisor.Advice
    course : Course
    laws, here : list of Effect
        Of each codec.
    uses : dict of str to str
        Whether to use a codec with feedback, by its spec; those missing are of no use.

    Raises
    ------
    ParameterError
    """

    def __init__(
        self,
        asked: Asked,
        source: Source,
        measured: list[Measured],
        named: tuple[tuple[str, float], ...],
    ) -> None:
        names = [*(str(m.codec) for m in measured), *(name for name, _ in named)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ParameterError.of("--bits", min(twice), "a name that nothing else has")
        self.cluster, self.work = asked.cluster, asked.work
        self.source, self.measured = source, measured
        nodes, gpus = asked.cluster.nodes, asked.cluster.gpus
        self.course = Course(asked.problem, asked.steps, nodes if nodes > 1 else gpus)
        self.laws = [by_law(m, self.course) for m in measured]
        self.here = [as_measured(m, self.course) for m in measured]
        effects = list(zip(measured, self.here, strict=True))
        self.uses = {str(m.codec): here.use for m, here in effects if here.use is not None}
        schemes = [
            advisor.Scheme(str(m.codec), m.bits, m.error, here.use is not None)
            for m, here in effects
            if m.problem is None
        ]
        schemes += [advisor.Scheme(name, bits) for name, bits in named]
        self.advice = advisor.advise(asked.cluster, asked.work, schemes, asked.tolerance)

    def dense(self, level: advisor.Level) -> advisor.Way:
        """Return the way in which nothing is compressed at a level."""
        return next(way for way in self.advice.dense.ways if way.level == level)

    def alone(self, way: advisor.Way) -> advisor.Plan:
        """Return the plan that takes this way, and nothing compressed at the other level."""
        dense = self.advice.dense.ways
        return advisor.plan(self.work, [way if d.level == way.level else d for d in dense])

    def slow_gathers(self, level: advisor.Level) -> list[advisor.Way]:
        """Return the all-gathers of a level that take longer than not compressing."""
        dense = self.dense(level).time
        ways = [way for way in self.advice.ways if way.level == level]
        return [way for way in ways if way.collective == "all-gather" and way.time > dense]

    def gather_limit(self, level: advisor.Level) -> float:
        """Return from how many bits per value on an all-gather takes longer."""
        members, link = self.cluster.group(level)
        assert link is not None  # there is no level without one
        nbytes = self.work.values * self.work.bits / 8
        return 8 * advisor.all_gather_limit(nbytes, members, link) / self.work.values
