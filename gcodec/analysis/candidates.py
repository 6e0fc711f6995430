"""Choose the codecs to try on a tensor, within a budget.

The candidates are settings of every registered codec, which follow from its declared parameters.
All of them are tried on small samples of a few tensors, and the best of these on all tensors, so
that the cost is known in advance. A trial ends where its error turns out to be far outside of the
budget. ``raw`` is always tried on all tensors: where the header of a frame outweighs its payload,
no codec may be shorter.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gcodec.analysis.samples import Sample
from gcodec.analysis.trials import Trial, attempt
from gcodec.codec import Codec, registered
from gcodec.codecs.raw import Raw
from gcodec.errors import ParameterError
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Param

_LADDER = tuple(2.0**k for k in range(-4, 7))  # times the default of a number
_FEW = 16  # largest number of values of a parameter that are all tried
_TOGETHER = 256  # elements that share a scale, where by default all of them do
_BEST, _NEAR = 3, 1  # settings that are kept of those within the budget, and of those just outside
_OUTSIDE = 4.0  # how far outside, as a factor of the error; of the bits, its square root
# Lower bounds of error and bits with a trellis, relative to those without one.
_TRELLIS_ERROR, _TRELLIS_BITS = 0.9, 0.85


class Budget(NamedTuple):
    """Bounds on the error and the size of a message.

    Attributes
    ----------
    max_nmse : float or None
        Largest nmse.
    max_bits : float or None
        Largest number of bits per value, for the whole frame.
    """

    max_nmse: float | None = None
    max_bits: float | None = None

    @property
    def most_error(self) -> float:
        """Largest nmse at which a codec is a candidate: somewhat above that of the budget."""
        return math.inf if self.max_nmse is None else _OUTSIDE * self.max_nmse

    def allows(self, bits: float, error: float, slack: float = 1.0) -> bool:
        """Return whether a message is within the budget, or outside by less than a factor.

        An nmse above 1 is not, unless `max_nmse` allows it: sending nothing has a smaller error.
        """
        most_error = 1.0 if self.max_nmse is None else slack * self.max_nmse
        return error <= most_error and (
            self.max_bits is None or bits <= slack**0.5 * self.max_bits
        )

    def barely_exceeded(self, bits: float, error: float) -> bool:
        """Return whether a message is just outside of the budget."""
        return self.allows(bits, error, _OUTSIDE) and not self.allows(bits, error)

    def cost(self, bits: float, error: float) -> tuple[float, float]:
        """Return a sort key: bits first if the error is bounded, otherwise the error first."""
        return (error, bits) if self.max_nmse is None else (bits, error)

    def __str__(self) -> str:
        """Return the bounds as text."""
        parts = [] if self.max_nmse is None else [f"nmse ≤ {self.max_nmse:g}"]
        parts += [] if self.max_bits is None else [f"bits/v ≤ {self.max_bits:g}"]
        return ", ".join(parts)


def settings(cls: type[Codec], budget: Budget | None = None) -> tuple[Codec, ...]:
    """Return settings of a codec.

    A number takes its default and multiples of it, or all its values if they are few. A word takes
    each of its values, or only ``auto`` if that exists. One parameter varies at a time, with one
    scale for all elements and, if the codec has that parameter, with one for each 256 elements.
    The parameters ``nmse`` and ``bits`` also take the bounds of the budget.
    """
    usual = {d.name: "auto" if "auto" in d.kind.unsent else d.default for d in cls.declared()}
    shared = [d.name for d in cls.declared() if _is_share(d)]
    targets = {} if budget is None else {"nmse": budget.max_nmse, "bits": budget.max_bits}
    aimed = [{k: bound} for k, bound in targets.items() if k in usual and bound is not None]
    codecs: dict[str, Codec] = {}
    for base in (usual, *(usual | {name: _TOGETHER} for name in shared)):
        varied = (
            base | {d.name: value}
            for d in cls.declared()
            if usual[d.name] == d.default != "auto"
            for value in _others(d)
        )
        for mapping in (base, *varied, *(base | target for target in aimed)):
            # Parameters may not fit together, and a number may be out of range.
            with contextlib.suppress(ParameterError):
                codec = cls.from_mapping(mapping)
                codecs.setdefault(str(codec), codec)
    return tuple(codecs.values())


def all_settings(budget: Budget | None = None) -> tuple[Codec, ...]:
    """Return the settings of every registered codec that needs no error feedback."""
    classes = (cls for cls in registered().values() if not cls.needs_feedback)
    return tuple(codec for cls in classes for codec in settings(cls, budget))


def try_all(sample: Sample, codecs: Sequence[Codec], budget: Budget) -> list[Trial]:
    """Return the trials of ``raw``, and of all codecs within `Budget.most_error`, in order.

    If none of them is within the budget, as on a tensor of few values, whose header outweighs its
    payload, then all other settings are tried, and those within the budget follow.
    """
    attempts = [attempt(sample, codec, _wanted(codec, budget)) for codec in codecs]
    trials = [trial for trial in attempts if isinstance(trial, Trial)]
    if not any(budget.allows(trial.bits, trial.error) for trial in trials):
        others = (
            attempt(sample, codec, lambda error, bits: budget.allows(bits, error))
            for codec in all_settings(budget)
            if codec not in codecs
        )
        trials += [t for t in others if isinstance(t, Trial) and budget.allows(t.bits, t.error)]
    return trials


def probe(
    sample: Sample,
    codecs: Sequence[Codec],
    budget: Budget,
    advance: Callable[[int], object] = lambda amount: None,
) -> list[Trial]:
    """Try codecs on a sample, except those that `shortlist` cannot choose.

    Parameters
    ----------
    sample : Sample
        The sample.
    codecs : sequence of Codec
        The candidates. Trials begin with ``raw``, which needs no kernels of its own, and with the
        last codecs, which tend to take the fewest bits: what they reach excludes others.
    budget : Budget
        Budget of the candidates.
    advance : callable
        Receives 1 after each trial.

    Returns
    -------
    list of Trial
        The trials, in the order of `codecs`.
    """
    tried: dict[int, Trial] = {}

    def turn(at: int) -> tuple[bool, bool, int]:
        return not isinstance(codecs[at], Raw), _has_trellis(codecs[at]), -at

    for at in sorted(range(len(codecs)), key=turn):
        codec, trials = codecs[at], [*tried.values()]
        is_wanted = _wanted(codec, budget, trials)
        if is_wanted(*_estimate(codec, trials)):
            trial = attempt(sample, codec, is_wanted)
            if isinstance(trial, Trial):
                tried[at] = trial
        advance(1)
    return [tried[at] for at in sorted(tried)]


def _has_trellis(codec: Codec) -> bool:
    return getattr(codec, "trellis", "no") == "yes"


def _estimate(codec: Codec, tried: Sequence[Trial]) -> tuple[float, float]:
    """Return an error and bits per value below which a codec remains, by trials of others.

    A trellis saves 5 to 8 % of the bits at the same error, as `ECSQ` states.
    """
    if _has_trellis(codec):
        plain = str(codec.replaced(trellis="no"))
        for trial in tried:
            if str(trial.codec) == plain:
                return _TRELLIS_ERROR * trial.error, _TRELLIS_BITS * trial.bits
    return 0.0, 0.0


def _wanted(
    codec: Codec, budget: Budget, tried: Sequence[Trial] = ()
) -> Callable[[float, float], bool]:
    """Return a predicate of lower bounds: whether a codec is worth a trial.

    It is not if its error is far outside of the budget, or if it takes more bits than the trials
    that `shortlist` would choose now and is not the most exact.
    """
    inside = sorted(t.bits for t in tried if budget.allows(t.bits, t.error))
    outside = sorted(t.bits for t in tried if budget.barely_exceeded(t.bits, t.error))
    smallest_error = min((trial.error for trial in tried), default=-math.inf)

    def is_wanted(error: float, bits: float) -> bool:
        if isinstance(codec, Raw) or budget.max_nmse is None or error <= smallest_error:
            return True
        most_bits = outside[_NEAR - 1] if len(outside) >= _NEAR else math.inf
        if error <= budget.max_nmse:  # it may be inside or outside
            most_inside = inside[_BEST - 1] if len(inside) >= _BEST else math.inf
            most_bits = max(most_bits, most_inside)
        return error <= budget.most_error and bits <= most_bits

    return is_wanted


def shortlist(probes: Iterable[Sequence[Trial]], budget: Budget) -> list[Codec]:
    """Choose the settings to try on all tensors.

    Parameters
    ----------
    probes : iterable of sequences of Trial
        Trials of all settings on each of a few tensors.
    budget : Budget
        Bounds that the settings should meet.

    Returns
    -------
    list of Codec
        For each tensor, the best settings within the budget, one just outside, and the one with
        the smallest error; and those of ``raw``.
    """
    chosen: dict[str, Codec] = {}
    for trials in probes:
        order = sorted(trials, key=lambda t: budget.cost(t.bits, t.error))
        inside = [t for t in order if budget.allows(t.bits, t.error)]
        outside = [t for t in order if budget.barely_exceeded(t.bits, t.error)]
        exact = sorted(trials, key=lambda t: (t.error, t.bits))
        raw = [t for t in exact if isinstance(t.codec, Raw)]
        for trial in (*inside[:_BEST], *outside[:_NEAR], *exact[:1], *raw):
            chosen.setdefault(str(trial.codec), trial.codec)
    return list(chosen.values())


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other point dominates in bits and error.

    Parameters
    ----------
    points : sequence of (bits, error)
        Rate and distortion of each point.

    Returns
    -------
    list of int
        Indices of the points, in ascending order of bits.
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: points[i]):
        if not front or points[place][1] < points[front[-1]][1]:
            front.append(place)
    return front


def _is_share(declared: Param) -> bool:
    """Return whether a parameter, such as `bucket`, counts the elements that share a scale.

    Such a parameter is 0 by default: all elements then share one.
    """
    kind = declared.kind
    is_large = isinstance(kind, Integer) and kind.low == 0 and kind.high > _TOGETHER
    return is_large and declared.default == 0


def _others(declared: Param) -> Iterator[object]:
    """Yield the values of a parameter to try besides its default; see `settings`."""
    kind, default = declared.kind, declared.default
    if isinstance(kind, Choice):
        yield from (word for word in kind.sent if word != default)
    elif isinstance(kind, Integer) and kind.high - kind.low < _FEW:
        yield from (value for value in range(kind.low, kind.high + 1) if value != default)
    elif isinstance(default, (int, float)) and default > 0:
        for factor in _LADDER:
            yield round(factor * default) if isinstance(kind, Integer) else factor * default
