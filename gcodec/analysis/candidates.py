"""Which codecs to try on a tensor, and which of them is the best within a budget.

This is the one place where candidates come from: settings of every registered codec, made of what
it declares of its parameters. All of them are tried on small samples of a few tensors, and what
did well there on the rest, so that the cost is known beforehand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gcodec.analysis.trials import Trial
from gcodec.codec import Codec, registered
from gcodec.errors import ParameterError
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Param

_LADDER = tuple(2.0**k for k in range(-4, 7))  # times the default of a number
_FEW = 16  # values of a parameter of which all are tried
_TOGETHER = 256  # elements that share a scale, where by default all of them do
_BEST, _NEAR = 3, 1  # settings that are kept of those within the budget, and of those just outside
_OUTSIDE = 4.0  # how far outside, as a factor of the error; of the bits, its square root


class Budget(NamedTuple):
    """What a message may cost.

    Attributes
    ----------
    max_err : float or None
        Most relative error ‖x − x̂‖² / ‖x‖².
    max_bits : float or None
        Most bits per value, the whole frame counted.
    """

    max_err: float | None = None
    max_bits: float | None = None

    def allows(self, bits: float, error: float, slack: float = 1.0) -> bool:
        """Tell whether a message is within the budget, or outside by less than a factor."""
        return (self.max_err is None or error <= slack * self.max_err) and (
            self.max_bits is None or bits <= slack**0.5 * self.max_bits
        )

    def cost(self, bits: float, error: float) -> tuple[float, float]:
        """Return what to compare: bits where the error is bounded, and else the error."""
        return (error, bits) if self.max_err is None else (bits, error)

    def __str__(self) -> str:
        """Name the bounds."""
        parts = [] if self.max_err is None else [f"error ≤ {self.max_err:g}"]
        parts += [] if self.max_bits is None else [f"bits/v ≤ {self.max_bits:g}"]
        return ", ".join(parts)


def settings(cls: type[Codec], budget: Budget | None = None) -> tuple[Codec, ...]:
    """Return settings of a codec.

    Of a parameter that is a number, these have its default, multiples of that, or all values where
    they are few; of one that is a word, each, or ``auto`` alone where there is that. One parameter
    is varied at a time: with all elements sharing a scale and, where that can be chosen, with 256.
    Parameters ``nmse`` and ``bits`` have also what a budget says.
    """
    usual = {d.name: "auto" if "auto" in d.kind.unsent else d.default for d in cls.declared()}
    shared = [d.name for d in cls.declared() if _is_share(d)]
    aims = {} if budget is None else {"nmse": budget.max_err, "bits": budget.max_bits}
    aimed = [{name: aim} for name, aim in aims.items() if name in usual and aim is not None]
    found: dict[str, Codec] = {}
    for base in (usual, *(usual | {name: _TOGETHER} for name in shared)):
        varied = (
            base | {d.name: value}
            for d in cls.declared()
            if usual[d.name] == d.default != "auto"
            for value in _others(d)
        )
        for mapping in (base, *varied, *(base | aim for aim in aimed)):
            # Parameters may not fit together, and a number may be out of range.
            with contextlib.suppress(ParameterError):
                codec = cls.from_mapping(mapping)
                found.setdefault(str(codec), codec)
    return tuple(found.values())


def all_settings(budget: Budget | None = None) -> tuple[Codec, ...]:
    """Return the settings of every registered codec."""
    return tuple(codec for cls in registered().values() for codec in settings(cls, budget))


def shortlist(probes: Iterable[Sequence[Trial]], budget: Budget) -> list[Codec]:
    """Choose which settings to try on all tensors.

    Parameters
    ----------
    probes : iterable of sequences of Trial
        Of each of a few tensors, what all settings made of it.
    budget : Budget

    Returns
    -------
    list of Codec
        The best of each within the budget, what is just outside, and what has the least error.
    """
    chosen: dict[str, Codec] = {}
    for trials in probes:
        order = sorted(trials, key=lambda t: budget.cost(t.bits, t.error))
        inside = [t for t in order if budget.allows(t.bits, t.error)]
        outside = [
            t
            for t in order
            if budget.allows(t.bits, t.error, _OUTSIDE) and not budget.allows(t.bits, t.error)
        ]
        exact = sorted(trials, key=lambda t: (t.error, t.bits))
        for trial in (*inside[:_BEST], *outside[:_NEAR], *exact[:1]):
            chosen.setdefault(str(trial.codec), trial.codec)
    return list(chosen.values())


def best(trials: Iterable[Trial], budget: Budget) -> Trial | None:
    """Return the best of the trials within the budget; None where none is."""
    within = [t for t in trials if budget.allows(t.bits, t.error)]
    return min(within, key=lambda t: budget.cost(t.bits, t.error), default=None)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points no other one has at most the bits and at most the error of.

    Parameters
    ----------
    points : sequence of (bits, error)

    Returns
    -------
    list of int
        Places, by rising bits.
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: points[i]):
        if not front or points[place][1] < points[front[-1]][1]:
            front.append(place)
    return front


def _is_share(declared: Param) -> bool:
    kind = declared.kind
    is_large = isinstance(kind, Integer) and kind.low == 0 and kind.high > _TOGETHER
    return is_large and declared.default == 0


def _others(declared: Param) -> Iterator[Any]:
    kind, default = declared.kind, declared.default
    if isinstance(kind, Choice):
        yield from (word for word in kind.sent if word != default)
    elif isinstance(kind, Integer) and kind.high - kind.low < _FEW:
        yield from (value for value in range(kind.low, kind.high + 1) if value != default)
    elif isinstance(default, (int, float)) and default > 0:
        for factor in _LADDER:
            yield round(factor * default) if isinstance(kind, Integer) else factor * default
