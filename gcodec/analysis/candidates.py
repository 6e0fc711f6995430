"""Choose the codecs to try on a tensor, within a budget.

The candidates are settings of every registered codec, which follow from its declared parameters.
All of them are tried on small samples of a few tensors, and the best of these on all tensors, so
that the cost is known in advance. ``raw`` is always tried on all tensors: where the header of a
frame outweighs its payload, no codec may be shorter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gcodec.analysis.trials import Trial
from gcodec.codec import Codec, registered
from gcodec.codecs.raw import Raw
from gcodec.errors import ParameterError
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import Param

_LADDER = tuple(2.0**k for k in range(-4, 7))  # times the default of a number
_FEW = 16  # values of a parameter of which all are tried
_TOGETHER = 256  # elements that share a scale, where by default all of them do
_BEST, _NEAR = 3, 1  # settings that are kept of those within the budget, and of those just outside
_OUTSIDE = 4.0  # how far outside, as a factor of the error; of the bits, its square root


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

    def allows(self, bits: float, error: float, slack: float = 1.0) -> bool:
        """Tell whether a message is within the budget, or outside by less than a factor."""
        return (self.max_nmse is None or error <= slack * self.max_nmse) and (
            self.max_bits is None or bits <= slack**0.5 * self.max_bits
        )

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
        outside = [
            t
            for t in order
            if budget.allows(t.bits, t.error, _OUTSIDE) and not budget.allows(t.bits, t.error)
        ]
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
