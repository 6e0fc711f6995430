"""Rows of the table of a dump: a tensor each, or the tensors of repeated blocks together."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gcodec.analysis.groups import grouped, pattern_of
from gcodec.cli.measure import Measured, Sampled
from gcodec.wire import primitives

if TYPE_CHECKING:
    from gcodec.analysis.candidates import Budget
    from gcodec.analysis.trials import Trial


class Cost(NamedTuple):
    """What a codec makes of the tensors of a row, or of all of them.

    Attributes
    ----------
    codec : str
        Its spec; empty where there are several.
    bits : float
        Per value.
    error : float
        Relative, over all of the tensors.
    """

    codec: str
    bits: float
    error: float


class Shape(NamedTuple):
    """The nearest distribution of the tensors of a row.

    Attributes
    ----------
    name : str
        That of most of them.
    beta, w2, ks : float
        Medians over those.
    """

    name: str
    beta: float
    w2: float
    ks: float


class Row:
    """Some tensors that are told about together.

    Parameters
    ----------
    members : list of Measured
        At least one, of one dtype and shape unless the row is that of the total.
    """

    def __init__(self, members: list[Measured]) -> None:
        self.members = members
        self.values = sum(member.size for member in members)
        self.gradients = [m for m in members if m.summary is not None and m.sampled is not None]
        self.nonfinite = sum(member.nonfinite for member in members)

    @property
    def name(self) -> str:
        """The tensor's name, or what the names have in common."""
        name = self.members[0].entry.name
        return name if len(self.members) == 1 else pattern_of(name)

    @property
    def zeros(self) -> int:
        """Exact zeros."""
        return sum(m.summary.zeros for m in self.members if m.summary is not None)

    @property
    def gradient_values(self) -> int:
        """Values of those tensors that are gradients."""
        return sum(m.size for m in self.gradients)

    @property
    def raw_bits(self) -> float:
        """Bits per value of their dtypes."""
        bits = sum(8 * primitives.ITEMSIZE[m.entry.dtype] * m.size for m in self.gradients)
        return bits / self.gradient_values if self.gradient_values else math.nan

    @property
    def rms(self) -> float:
        """Root mean square of all their values; NaN where there is none."""
        known = [
            (m.size - m.nonfinite, m.summary.rms)
            for m in self.gradients
            if m.summary is not None and not math.isnan(m.summary.rms)
        ]
        return joint(known) if known else math.nan

    @property
    def max_abs(self) -> float:
        """Largest magnitude; NaN where there is none."""
        known = (m.summary.max_abs for m in self.gradients if m.summary is not None)
        return max((value for value in known if not math.isnan(value)), default=math.nan)

    @property
    def histogram(self) -> tuple[int, ...]:
        """Sum of the histograms, each over multiples of its own rms."""
        return tuple(map(sum, zip(*(s.histogram for s in self._sampled()), strict=True)))

    @property
    def shape(self) -> Shape | None:
        """The nearest distribution; None where there are too few values."""
        nearest = [s.shapes[0] for s in self._sampled() if s.shapes]
        if not nearest:
            return None
        name = Counter(fit.name for fit in nearest).most_common(1)[0][0]
        same = [fit for fit in nearest if fit.name == name]
        return Shape(
            name,
            statistics.median(fit.shape.beta for fit in same),
            statistics.median(fit.w2 for fit in same),
            statistics.median(fit.ks for fit in same),
        )

    @property
    def entropy(self) -> float:
        """Mean entropy in bits per value, where the error is the task's."""
        known = [(m.size, m.sampled.entropy.bits) for m in self.gradients if m.sampled]
        count = sum(size for size, _ in known)
        return sum(size * bits for size, bits in known) / count if count else math.nan

    def trials(self, place: int) -> list[tuple[int, Trial]]:
        """Return their sizes, and what one of the codecs of the task made of them."""
        known = ((m.size, m.sampled.trials[place]) for m in self.gradients if m.sampled)
        return [(size, trial) for size, trial in known if not isinstance(trial, str)]

    def best(self, budget: Budget) -> list[tuple[int, Trial]]:
        """Return the same of the best codec that is within the budget for each of them."""
        found: dict[str, list[tuple[int, Trial]]] = {}
        for member in self.gradients:
            for trial in member.sampled.tries if member.sampled is not None else ():
                if member.size and budget.allows(trial.bits, trial.error):
                    found.setdefault(str(trial.codec), []).append((member.size, trial))
        filled = sum(member.size > 0 for member in self.gradients)

        def cost_of(pairs: list[tuple[int, Trial]]) -> tuple[float, float]:
            cost = together(pairs)
            return (math.inf, math.inf) if cost is None else budget.cost(cost.bits, cost.error)

        fitting = (pairs for pairs in found.values() if len(pairs) == filled)
        return min(fitting, key=cost_of, default=[])

    def _sampled(self) -> list[Sampled]:
        return [m.sampled for m in self.gradients if m.sampled is not None]


def rows_of(tensors: list[Measured], *, each: bool) -> list[Row]:
    """Return the rows of tensors: repeated blocks in one, unless `each` is to have its own."""
    if each:
        return [Row([tensor]) for tensor in tensors]
    groups = grouped(tensor.entry for tensor in tensors)
    return [Row([tensors[place] for place in group]) for group in groups]


def together(trials: Iterable[tuple[int, Trial]]) -> Cost | None:
    """Join trials of tensors of these sizes; None where they have no values."""
    known = [(size, trial) for size, trial in trials if size]
    values = sum(size for size, _ in known)
    if not values:
        return None
    from gcodec.analysis.trials import squared_ratio

    specs = {str(trial.codec) for _, trial in known}
    bits = sum(size * trial.bits for size, trial in known) / values
    error = joint((size, trial.rms_error) for size, trial in known)
    rms = joint((size, trial.rms) for size, trial in known)
    return Cost(specs.pop() if len(specs) == 1 else "", bits, squared_ratio(error, rms))


def joint(parts: Iterable[tuple[int, float]]) -> float:
    """Return the root mean square of tensors of these sizes and root mean squares."""
    known = list(parts)
    # hypot scales, so that it does not overflow where squares would.
    root = math.hypot(*(math.sqrt(size) * rms for size, rms in known))
    return root / math.sqrt(sum(size for size, _ in known) or 1)
