"""Measure how the tensors of a training run change from step to step."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcodec.analysis import rates, stats
from gcodec.analysis.groups import grouped, pattern_of, selects
from gcodec.analysis.samples import without_nonfinite
from gcodec.analysis.settings import Settings
from gcodec.analysis.trials import weighted_mean
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.limits import Limits
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.entries import Entry
from gcodec.wire import primitives

ENERGY = 0.99
"""Share of the energy of a matrix in the singular values that its rank counts."""

SIDE, FULL_SIDE = 2048, 8192
"""Smaller sides of the largest matrices whose rank is measured; the latter if all values are."""

_STEP = re.compile(r"step[^0-9]{0,2}([0-9]{1,18})(?![0-9])", re.IGNORECASE)
_LAST = re.compile(r"(?<![0-9])([0-9]{1,18})(?=[^0-9]*$)")


class StepPoint(NamedTuple):
    """Measurements on a tensor at one step.

    Attributes
    ----------
    norm : float
        Euclidean norm of the finite values.
    bits : float
        Entropy at the error of the settings, in bits per value; NaN without values.
    rank : int or None
        Number of singular values with `ENERGY`; None if the tensor is no matrix, or a large one.
    zeros : int
        Number of exact zeros.
    nonfinite : int
        Number of NaN and Inf.
    """

    norm: float
    bits: float
    rank: int | None
    zeros: int
    nonfinite: int


class StepGroup:
    """Tensors that share a row of a table, over all steps of a run.

    Parameters
    ----------
    members : list of Entry
        The tensors.
    points : list of dict
        Measurements at each step, by tensor.

    Attributes
    ----------
    members, points
        The parameters.
    """

    def __init__(self, members: list[Entry], points: Sequence[Mapping[Entry, StepPoint]]) -> None:
        self.members = members
        self.points = points

    @property
    def name(self) -> str:
        """Name of the tensor, or the pattern of all names."""
        name = self.members[0].name
        return name if len(self.members) == 1 else pattern_of(name)

    @property
    def values(self) -> int:
        """Number of values at one step."""
        return sum(member.size for member in self.members)

    @property
    def side(self) -> int:
        """Smaller side of the matrices, the largest possible rank; 0 for tensors of one row."""
        shape = self.members[0].shape
        return min(shape[0], math.prod(shape[1:])) if len(shape) > 1 else 0

    def norms(self) -> list[float]:
        """Return the norm of all members together at each step; NaN where there is none."""
        return self._series(lambda own: math.hypot(*(point.norm for _, point in own)))

    def bits(self) -> list[float]:
        """Return the mean entropy at each step, in bits per value."""
        return self._series(lambda own: weighted_mean((size, point.bits) for size, point in own))

    def ranks(self) -> list[float]:
        """Return the median rank at each step."""

        def median(own: list[tuple[int, StepPoint]]) -> float:
            ranks = [point.rank for _, point in own if point.rank is not None]
            return float(statistics.median(ranks)) if ranks else math.nan

        return self._series(median)

    def zeros(self) -> list[float]:
        """Return the share of zeros at each step, from 0 to 1."""

        def share(own: list[tuple[int, StepPoint]]) -> float:
            total = sum(size for size, _ in own)
            return sum(point.zeros for _, point in own) / total if total else math.nan

        return self._series(share)

    @property
    def nonfinite(self) -> int:
        """Number of NaN and Inf at all steps together."""
        return sum(own[m].nonfinite for own in self.points for m in self.members if m in own)

    def _series(self, measure: Callable[[list[tuple[int, StepPoint]]], float]) -> list[float]:
        series = []
        for points in self.points:
            own = [(m.size, points[m]) for m in self.members if m in points]
            series.append(measure(own) if own else math.nan)
        return series


class RunStats(NamedTuple):
    """Measurements on the dumps of a run.

    Attributes
    ----------
    paths : list of pathlib.Path
        A dump for each step.
    steps : list of int
        The steps, in ascending order.
    points : list of dict
        Measurements at each step, by tensor.
    """

    paths: list[Path]
    steps: list[int]
    points: list[dict[Entry, StepPoint]]

    @property
    def tensors(self) -> list[Entry]:
        """Tensors of all steps, in the order in which they appear."""
        return list(dict.fromkeys(entry for points in self.points for entry in points))

    @property
    def total(self) -> StepGroup:
        """All tensors as one group."""
        return StepGroup(self.tensors, self.points)

    def groups(self, *, each: bool) -> list[StepGroup]:
        """Group the tensors of repeated blocks, or with `each` put each tensor into a group."""
        return [StepGroup(group, self.points) for group in grouped(self.tensors, each=each)]


def read_metadata(path: Path, limits: Limits) -> dict[str, str]:
    """Return the metadata of a dump.

    Raises
    ------
    FormatError, OSError
        If the file cannot be read.
    """
    with open_dump(path, limits=limits) as dump:
        return dump.metadata


def steps_of(dumps: Mapping[Path, Mapping[str, str]]) -> dict[Path, int]:
    """Return the step of each dump of a run.

    The steps are the first of these numbers that all dumps have, and that differ: "step" of the
    metadata; in the name of the file or else of its folder, the number after "step", or the last
    number.

    Parameters
    ----------
    dumps : mapping of pathlib.Path to mapping
        Metadata of each dump.

    Raises
    ------
    ParameterError
        If there are no such numbers.

    Examples
    --------
    >>> steps_of({Path("run8/step20.npz"): {}, Path("run8/step3.npz"): {}}).values()
    dict_values([20, 3])
    """
    schemes: list[Callable[[Path, Mapping[str, str]], int | None]] = [_of_metadata, *_OF_NAMES]
    if len(dumps) == 1:
        schemes.append(lambda path, metadata: 0)
    for scheme in schemes:
        steps = {path: scheme(path, metadata) for path, metadata in dumps.items()}
        numbers = [step for step in steps.values() if step is not None]
        if len(numbers) == len(set(numbers)) == len(dumps):
            return dict(zip(steps, numbers, strict=True))
    declared = [_of_metadata(path, metadata) for path, metadata in dumps.items()]
    count = Counter(declared)
    unclear = [
        path.name
        for path, step in zip(dumps, declared, strict=True)
        if step is None or count[step] > 1
    ]
    names = ", ".join(unclear[:3])
    raise ParameterError(
        f"the steps of {names} are unclear: each file needs a step of its own in its metadata, or "
        "a number in its name or in that of its folder"
    )


def _of_metadata(path: Path, metadata: Mapping[str, str]) -> int | None:
    text = metadata.get("step", "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _of_name(pattern: re.Pattern[str], ancestor: int) -> Callable[..., int | None]:
    def number(path: Path, metadata: Mapping[str, str]) -> int | None:
        parts = path.absolute().parts
        name = parts[-1 - ancestor] if len(parts) > ancestor else ""
        match = pattern.search(name)
        return int(match[1]) if match else None

    return number


_OF_NAMES = [_of_name(pattern, ancestor) for ancestor in (0, 1) for pattern in (_STEP, _LAST)]


def measure_step(path: Path, settings: Settings) -> dict[Entry, StepPoint]:
    """Measure the gradients of a dump that the settings select, one in memory at a time.

    Raises
    ------
    FormatError, OSError
        If the file cannot be read.
    """
    points: dict[Entry, StepPoint] = {}
    with open_dump(path, limits=settings.limits) as dump:
        gradients = [entry for entry in dump.entries if entry.dtype in primitives.FLOATS]
        entries = [entry for entry in gradients if selects(settings.layers, entry.name)]
        total = sum(entry.size for entry in entries)
        with settings.progress(path.name, total) as advance:
            for entry in entries:
                points[entry] = _point(dump.load(entry), entry, settings)
                advance(entry.size)
    return points


def _point(values: stats.Values, entry: Entry, settings: Settings) -> StepPoint:
    summary = stats.summarize(values)
    finite = summary.size - summary.nonfinite
    seed = derive_seed(settings.seed, name=entry.name)
    sample, _ = without_nonfinite(stats.sample(values, settings.max_values, seed))
    rank = None
    if values.ndim > 1 and values.size:
        side = min(values.shape[0], values.size // values.shape[0])
        if side <= (FULL_SIDE if settings.max_values is None else SIDE):
            rank = stats.energy_rank(values, ENERGY)
    return StepPoint(
        norm=summary.rms * math.sqrt(finite) if finite else 0.0,
        bits=rates.entropy_at(sample, settings.error).bits if np.size(sample) else math.nan,
        rank=rank,
        zeros=summary.zeros,
        nonfinite=summary.nonfinite,
    )
