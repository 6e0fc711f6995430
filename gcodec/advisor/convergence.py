"""What compression costs in steps: bounds that follow from a codec's own law.

A codec may promise a contraction, ‖x − x̂‖² ≤ (1 − δ)·‖x‖² (`Codec.contraction`), or a variance,
E‖x − x̂‖² ≤ ω·‖x‖² (`Codec.variance`), and that E x̂ = x (`Codec.unbiased`). With feedback the
first is needed, in expectation at least: a variance ω below 1 is a contraction of 1 − ω. Without
feedback the second and the third.

The bounds are of (1/T)·Σ E‖∇f(xₜ)‖² over T steps x ← x − γ·(mean of what the workers sent), for f
with L-smooth gradients, f(x₀) − min f ≤ Δ, and E‖g‖² ≤ G² for the unbiased gradient g of each
worker. ``docs/advise.md`` derives them. Sources: Karimireddy et al., "Error feedback fixes
SignSGD and other gradient compression schemes", ICML 2019, for the argument with feedback;
Alistarh et al., "QSGD", NIPS 2017, for that without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from gcodec.advisor.links import members_of
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between

_LEAST, _LARGEST = 1e-30, 1e30  # nothing that follows from these overflows or vanishes


class Law(NamedTuple):
    """What holds for every gradient.

    Attributes
    ----------
    delta : float or None
        E‖x − x̂‖² ≤ (1 − δ)·‖x‖²; None where nothing above 0 is promised.
    omega : float or None
        E‖x − x̂‖² ≤ ω·‖x‖² with E x̂ = x; None where that is not promised.
    """

    delta: float | None
    omega: float | None


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is minimised, as far as the bounds depend on it.

    Parameters
    ----------
    gap : float
        Δ, by how much the loss can fall; like the others from 1e-30 to 1e30.
    smoothness : float
        L, the Lipschitz constant of the gradient.
    moment : float
        G², the largest E‖g‖² of one worker's gradient.

    Raises
    ------
    ParameterError
    """

    gap: float = 1.0
    smoothness: float = 1.0
    moment: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _positive(field.name, getattr(self, field.name))

    def best_rate(self, steps: float) -> float:
        """Return the learning rate for which `plain_bound` is the least, √(2Δ / (L·G²·T))."""
        _positive("steps", steps)
        return math.sqrt(2 * self.gap / steps / self.smoothness / self.moment)


def law_of(codec: Codec, sizes: Iterable[int]) -> Law:
    """Return what a codec promises for a gradient of tensors that are encoded one by one.

    Parameters
    ----------
    codec : Codec
    sizes : iterable of int
        Elements of each tensor. Of a contraction the least counts, of a variance the largest.

    Raises
    ------
    ParameterError
        If there are no elements.

    Examples
    --------
    >>> import gcodec
    >>> law_of(gcodec.parse("topk:ratio=0.01"), [1000, 10_000])
    Law(delta=0.01, omega=None)
    >>> law_of(gcodec.parse("qsgd:s=15,bucket=512"), [10**6])
    Law(delta=0.4311111111111111, omega=0.5688888888888889)
    """
    wanted = sorted({size for size in sizes if size})
    if not wanted:
        raise ParameterError.of("sizes", wanted, "sizes of tensors, one of them above 0")
    deltas, omegas = [], []
    for size in wanted:
        contraction, variance = codec.contraction(size), codec.variance(size)
        in_mean = None if variance is None else 1 - variance
        known = [delta for delta in (contraction, in_mean) if delta is not None]
        deltas.append(max(known, default=0.0))
        omegas.append(math.inf if variance is None or not codec.unbiased else variance)
    delta, omega = min(deltas), max(omegas)
    return Law(delta if delta > 0 else None, omega if math.isfinite(omega) else None)


def residual_bound(delta: float) -> float:
    """Bound the residual of error feedback: E‖e‖² ≤ this·G², at every step.

    It is (1 − δ)/(1 − √(1 − δ))², which is reached, and at most the better known 4·(1 − δ)/δ².

    Parameters
    ----------
    delta : float
        From 0, where nothing is sent, to 1, where all is.

    Returns
    -------
    float
        Infinite for 0.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> residual_bound(1), residual_bound(0.75), residual_bound(0)
    (0.0, 1.0, inf)
    """
    delta = check_between("delta", delta, 0, 1, "a number from 0 to 1")
    if not delta:
        return math.inf
    # 1 − r = δ/(1 + r), without the cancellation.
    r = math.sqrt(1 - delta)
    return (r * (1 + r) / delta) * (r * (1 + r) / delta)


def plain_bound(problem: Problem, steps: float, rate: float | None = None) -> float:
    """Bound the mean of E‖∇f‖² without compression: Δ/(γ·T) + γ·L·G²/2.

    Parameters
    ----------
    problem : Problem
    steps : float
        T, from 1e-30 to 1e30.
    rate : float, optional
        γ, the learning rate, from 1e-30 to 1e30; else the one for which this bound is the least.

    Returns
    -------
    float

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> plain_bound(Problem(gap=2), steps=100)
    0.2
    """
    return unbiased_bound(0.0, 1, problem, steps, rate)


def unbiased_bound(
    omega: float, workers: int, problem: Problem, steps: float, rate: float | None = None
) -> float:
    """Bound the mean of E‖∇f‖² with an unbiased codec: Δ/(γ·T) + γ·L·G²·(1 + ω/workers)/2.

    Parameters
    ----------
    omega : float
        ω, from 0; infinite where there is no bound.
    workers : int
        That round independently of each other, with seeds of their own.
    problem, steps, rate
        See `plain_bound`.

    Returns
    -------
    float

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> unbiased_bound(99, 1, Problem(gap=2), steps=100)  # random-k of 1 %
    10.1
    """
    omega = check_between("omega", omega, 0, math.inf, "a number from 0 on")
    workers = members_of("workers", workers)
    steps = _positive("steps", steps)
    rate = problem.best_rate(steps) if rate is None else _positive("rate", rate)
    noise = problem.smoothness * problem.moment * (1 + omega / workers) / 2
    return problem.gap / rate / steps + rate * noise


def feedback_bound(
    delta: float, problem: Problem, steps: float, rate: float | None = None
) -> float:
    """Bound the mean of E‖∇f‖² with error feedback.

    With A of `plain_bound` and E = γ²·L²·G²·`residual_bound` it is (√E + √(E + 4·A))²/4: A where
    all is sent, at most 2·A + E, and infinite where nothing is.

    Parameters
    ----------
    delta : float
        From 0 to 1; see `residual_bound`.
    problem, steps, rate
        See `plain_bound`.

    Returns
    -------
    float

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> [feedback_bound(delta, Problem(gap=2), steps=100) for delta in (1, 0.75, 0)]
    [0.2, 0.3116515138991168, inf]
    """
    residual = residual_bound(delta)
    plain = plain_bound(problem, steps, rate)
    rate = problem.best_rate(steps) if rate is None else rate
    error = (rate * problem.smoothness) ** 2 * problem.moment * residual
    return (error + 2 * plain + math.sqrt(error) * math.sqrt(error + 4 * plain)) / 2


def steps_to_double(delta: float, problem: Problem) -> float:
    """Return after how many steps `feedback_bound` is twice `plain_bound`, with the γ best there.

    That is 8·(L·Δ/G²)·`residual_bound`²: what feedback costs fades, however little is sent.

    Parameters
    ----------
    delta : float
        From 0 to 1; see `residual_bound`.
    problem : Problem

    Returns
    -------
    float

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> steps_to_double(0.75, Problem())
    8.0
    """
    residual = residual_bound(delta)
    return 8 * problem.smoothness * problem.gap / problem.moment * residual * residual


def _positive(name: str, value: object) -> float:
    return check_between(name, value, _LEAST, _LARGEST, "a number from 1e-30 to 1e30")
