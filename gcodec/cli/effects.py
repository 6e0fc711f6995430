"""What a codec does to convergence: by its law, and if all gradients were like those measured."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gcodec import advisor
from gcodec.cli.document import number
from gcodec.cli.schemes import Measured


class Course(NamedTuple):
    """A training, as far as bounds depend on it.

    Attributes
    ----------
    problem : advisor.Problem
    steps : int
    workers : int
        That encode with seeds of their own.
    """

    problem: advisor.Problem
    steps: int
    workers: int

    @property
    def plain(self) -> float:
        """The bound without compression."""
        return advisor.plain_bound(self.problem, self.steps)


class Effect(NamedTuple):
    """What follows from a contraction and a variance.

    Attributes
    ----------
    delta, omega : float or None
        See `gcodec.advisor.Law`.
    residual : float
        Bound of the squared norm of the residual, as a multiple of that of a gradient.
    bound : float
        The lesser one of those with feedback and without; both at the same learning rate.
    use : str or None
        "feedback" or "no feedback", whichever has it; None where both are infinite.
    doubled : float
        Steps from which on the bound with feedback is at most twice that without compression.
    """

    delta: float | None
    omega: float | None
    residual: float
    bound: float
    use: str | None
    doubled: float

    def document(self, plain: float) -> dict[str, Any]:
        """Return the effect for a JSON document."""
        return {
            "delta": number(self.delta),
            "omega": number(self.omega),
            "use": self.use,
            "residual_bound": number(self.residual),
            "bound": number(self.bound),
            "times_plain_bound": number(self.bound / plain),
            "steps_to_double": number(self.doubled),
        }


def by_law(measured: Measured, course: Course) -> Effect:
    """Return what the codec promises for all gradients."""
    return _effect(measured.law, course)


def as_measured(measured: Measured, course: Course) -> Effect:
    """Return what it would be if the error of all gradients were the one that was measured."""
    if math.isnan(measured.error):
        return _effect(advisor.Law(None, None), course)
    delta = 1 - measured.error
    omega = measured.error if measured.codec.unbiased else None
    return _effect(advisor.Law(delta if delta > 0 else None, omega), course)


def _effect(law: advisor.Law, course: Course) -> Effect:
    delta = law.delta or 0.0
    omega = math.inf if law.omega is None else law.omega
    problem, steps = course.problem, course.steps
    bounds = {
        "no feedback": advisor.unbiased_bound(omega, course.workers, problem, steps),
        "feedback": advisor.feedback_bound(delta, problem, steps),
    }
    use = min(bounds, key=lambda name: bounds[name])
    return Effect(
        law.delta,
        law.omega,
        advisor.residual_bound(delta),
        bounds[use],
        use if math.isfinite(bounds[use]) else None,
        advisor.steps_to_double(delta, problem),
    )
