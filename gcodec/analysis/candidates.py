"""The codecs to try on a tensor, and the best of them within a budget.

This module is the only source of candidates: settings of every registered codec, derived from its
declared parameters. `gcodec.analysis` tries all settings on small samples of a few tensors, and
only the best of them on all tensors, which bounds the cost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gcodec.analysis.trials import Trial
from gcodec.codec import Codec, registered
from gcodec.errors import ParameterError
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Param

_LADDER = tuple(2.0**k for k in range(-4, 7))  # multiples of the default of a number
_FEW = 16  # a parameter with fewer values is tried with all of them
_TOGETHER = 256  # elements per scale, for codecs in which all elements share one by default
_BEST, _NEAR = 3, 1  # number of settings that are kept within the budget, and just outside
_OUTSIDE = 4.0  # largest excess of the error just outside, as a factor; its square root for bits


class Budget(NamedTuple):
    """Bounds for the error and the size of a message.

    Attributes
    ----------
    max_err : float or None
        Largest relative error ‖x − x̂‖² / ‖x‖².
    max_bits : float or None
        Largest number of bits per value, including the frame.
    """

    max_err: float | None = None
    max_bits: float | None = None

    def allows(self, bits: float, error: float, slack: float = 1.0) -> bool:
        """Return whether a message is within the budget, or exceeds it by at most a factor."""
        return (self.max_err is None or error <= slack * self.max_err) and (
            self.max_bits is None or bits <= slack**0.5 * self.max_bits
        )

    def cost(self, bits: float, error: float) -> tuple[float, float]:
        """Return a sort key: the bits first if the error is bounded, otherwise the error first."""
        return (error, bits) if self.max_err is None else (bits, error)

    def __str__(self) -> str:
        """Name the bounds."""
        parts = [] if self.max_err is None else [f"error ≤ {self.max_err:g}"]
        parts += [] if self.max_bits is None else [f"bits/v ≤ {self.max_bits:g}"]
        return ", ".join(parts)


def settings(cls: type[Codec], budget: Budget | None = None) -> tuple[Codec, ...]:
    """Return settings of a codec.

    The settings vary one parameter at a time. A numeric parameter takes its default and multiples
    of it, or all values if they are few; a choice takes every value, or only ``auto`` if there is
    one. A codec with a parameter for the number of elements that share a scale is tried with all
    elements together and with groups of 256. The parameters ``nmse`` and ``bits`` also take the
    bounds of the budget.
    """
    usual = {d.name: "auto" if "auto" in d.kind.unsent else d.default for d in cls.declared()}
    shared = [d.name for d in cls.declared() if _is_share(d)]
    bounds = {} if budget is None else {"nmse": budget.max_err, "bits": budget.max_bits}
    targets = [{name: b} for name, b in bounds.items() if name in usual and b is not None]
    codecs: dict[str, Codec] = {}
    for base in (usual, *(usual | {name: _TOGETHER} for name in shared)):
        varied = (
            base | {d.name: value}
            for d in cls.declared()
            if usual[d.name] == d.default != "auto"
            for value in _alternatives(d)
        )
        for mapping in (base, *varied, *(base | target for target in targets)):
            # Parameters may contradict each other, and a number may be out of range.
            with contextlib.suppress(ParameterError):
                codec = cls.from_mapping(mapping)
                codecs.setdefault(str(codec), codec)
    return tuple(codecs.values())


def all_settings(budget: Budget | None = None) -> tuple[Codec, ...]:
    """Return the settings of every registered codec."""
    return tuple(codec for cls in registered().values() for codec in settings(cls, budget))


def shortlist(probes: Iterable[Sequence[Trial]], budget: Budget) -> list[Codec]:
    """Return the settings to try on all tensors.

    Parameters
    ----------
    probes : iterable of sequences of Trial
        For each of a few tensors, the trials of all settings.
    budget : Budget
        Bounds for the message.

    Returns
    -------
    list of Codec
        For each tensor, the best settings within the budget, the best one just outside, and the
        one with the smallest error.
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
    """Return the best trial within the budget; None if there is none."""
    within = [t for t in trials if budget.allows(t.bits, t.error)]
    return min(within, key=lambda t: budget.cost(t.bits, t.error), default=None)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the Pareto front: the points that no other point beats in both bits and error.

    Parameters
    ----------
    points : sequence of (bits, error)
        Rate and error of each point.

    Returns
    -------
    list of int
        Indices of the points on the front, by increasing bits.
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


def _alternatives(declared: Param) -> Iterator[object]:
    """Yield the values to try in place of the default of a parameter."""
    kind, default = declared.kind, declared.default
    if isinstance(kind, Choice):
        yield from (word for word in kind.sent if word != default)
    elif isinstance(kind, Integer) and kind.high - kind.low < _FEW:
        yield from (value for value in range(kind.low, kind.high + 1) if value != default)
    elif isinstance(default, (int, float)) and default > 0:
        for factor in _LADDER:
            yield round(factor * default) if isinstance(kind, Integer) else factor * default
