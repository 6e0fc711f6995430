"""Additional training steps that compression costs: bounds that follow from a codec's law.

A codec may guarantee a contraction, ‖x − x̂‖² ≤ (1 − δ)·‖x‖² (`Codec.contraction`), or a variance,
E‖x − x̂‖² ≤ ω·‖x‖² (`Codec.variance`), and E x̂ = x (`Codec.unbiased`). Training with error
feedback needs a contraction, at least in expectation; a variance ω below 1 is a contraction of
1 − ω. Training without feedback needs a variance and an unbiased codec.

The bounds apply to (1/T)·Σ E‖∇f(xₜ)‖² over T steps x ← x − γ·(mean of the sent gradients), if f
has L-smooth gradients, f(x₀) − min f ≤ Δ, and E‖g‖² ≤ G² for the unbiased gradient g of each
worker. ``docs/advise.md`` derives them. Sources: Karimireddy et al., "Error feedback fixes
SignSGD and other gradient compression schemes", ICML 2019, for the proof with feedback; Alistarh
et al., "QSGD", NIPS 2017, for the proof without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from gcodec.advisor.links import check_members
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between, check_integer, check_type

_SMALLEST, _LARGEST = 1e-30, 1e30  # bounds on inputs that exclude overflow and underflow


class Law(NamedTuple):
    """Guarantees of a codec for every gradient.

    Attributes
    ----------
    delta : float or None
        Contraction δ > 0 with E‖x − x̂‖² ≤ (1 − δ)·‖x‖², or None without this guarantee.
    omega : float or None
        Variance ω with E‖x − x̂‖² ≤ ω·‖x‖² and E x̂ = x, or None without this guarantee.

    Examples
    --------
    >>> from gcodec.advisor import law_of
    >>> import gcodec
    >>> law_of(gcodec.parse("sign"), [1000])
    Law(delta=0.001, omega=None)
    """

    delta: float | None
    omega: float | None


@dataclasses.dataclass(frozen=True)
class Problem:
    """Constants of the minimized function on which the bounds depend.

    Parameters
    ----------
    gap : float
        Δ, the largest possible decrease of the loss. All constants are from 1e-30 to 1e30.
    smoothness : float
        L, the Lipschitz constant of the gradient.
    moment : float
        G², the largest E‖g‖² of one worker's gradient.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> from gcodec.advisor import Problem
    >>> Problem(gap=2).best_rate(steps=100)
    0.2
    """

    gap: float = 1.0
    smoothness: float = 1.0
    moment: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _positive(field.name, getattr(self, field.name))

    def best_rate(self, steps: float) -> float:
        """Return the learning rate that minimizes `plain_bound`, √(2Δ / (L·G²·T))."""
        _positive("steps", steps)
        return math.sqrt(2 * self.gap / steps / self.smoothness / self.moment)


def law_of(codec: Codec, sizes: Iterable[int]) -> Law:
    """Return the law of a codec for a gradient whose tensors are encoded separately.

    The law has the smallest contraction and the largest variance of all tensors.

    Parameters
    ----------
    codec : Codec
        Codec whose law is wanted.
    sizes : iterable of int
        Number of elements of each tensor.

    Returns
    -------
    Law

    Raises
    ------
    ParameterError
        If there are no elements, or an argument is of another type.

    Examples
    --------
    >>> import gcodec
    >>> law_of(gcodec.parse("topk:ratio=0.01"), [1000, 10_000])
    Law(delta=0.01, omega=None)
    >>> law_of(gcodec.parse("qsgd:s=15,bucket=512"), [10**6])
    Law(delta=0.4311111111111111, omega=0.5688888888888889)
    """
    check_type("codec", codec, Codec)
    allowed = "integers from 0 to 2**63 - 1"
    if not isinstance(sizes, Iterable):
        raise ParameterError.of("sizes", sizes, allowed)
    nonzero_sizes = sorted({check_integer("sizes", n, 0, 2**63 - 1, allowed) for n in sizes} - {0})
    if not nonzero_sizes:
        raise ParameterError.of("sizes", nonzero_sizes, "sizes of tensors, one of them above 0")
    deltas, omegas = [], []
    for size in nonzero_sizes:
        contraction, variance = codec.contraction(size), codec.variance(size)
        variance = math.inf if variance is None else variance
        deltas.append(max(0.0 if contraction is None else contraction, 1 - variance))
        omegas.append(variance if codec.unbiased else math.inf)
    delta, omega = min(deltas), max(omegas)
    return Law(delta if delta > 0 else None, omega if math.isfinite(omega) else None)


def residual_bound(delta: float) -> float:
    """Return a bound R on the residual e of error feedback: E‖e‖² ≤ R·G² at every step.

    The bound (1 − δ)/(1 − √(1 − δ))² is tight, and at most the better known 4·(1 − δ)/δ².

    Parameters
    ----------
    delta : float
        Contraction, from 0 (nothing is sent) to 1 (no loss).

    Returns
    -------
    float
        Bound; infinite for a contraction of 0.

    Raises
    ------
    ParameterError
        If `delta` is out of range.

    Examples
    --------
    >>> residual_bound(1), residual_bound(0.75), residual_bound(0)
    (0.0, 1.0, inf)
    """
    delta = check_between("delta", delta, 0, 1, "a number from 0 to 1")
    if not delta:
        return math.inf
    # 1 − r is computed as δ/(1 + r), without cancellation.
    r = math.sqrt(1 - delta)
    return (r * (1 + r) / delta) * (r * (1 + r) / delta)


def plain_bound(problem: Problem, steps: float, rate: float | None = None) -> float:
    """Bound the mean of E‖∇f‖² without compression: Δ/(γ·T) + γ·L·G²/2.

    Parameters
    ----------
    problem : Problem
        Constants of the problem.
    steps : float
        T, from 1e-30 to 1e30.
    rate : float, optional
        γ, the learning rate, from 1e-30 to 1e30. Default: `Problem.best_rate`.

    Returns
    -------
    float

    Raises
    ------
    ParameterError
        If an argument is out of range.

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
        Variance ω, at least 0; infinite without a guarantee.
    workers : int
        Number of workers, which round independently, with different seeds.
    problem, steps, rate
        See `plain_bound`.

    Returns
    -------
    float

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> unbiased_bound(99, 1, Problem(gap=2), steps=100)  # random-k of 1 %
    10.1
    """
    check_type("problem", problem, Problem)
    omega = check_between("omega", omega, 0, math.inf, "a number, at least 0")
    workers = check_members("workers", workers)
    steps = _positive("steps", steps)
    rate = problem.best_rate(steps) if rate is None else _positive("rate", rate)
    noise = problem.smoothness * problem.moment * (1 + omega / workers) / 2
    return problem.gap / rate / steps + rate * noise


def feedback_bound(
    delta: float, problem: Problem, steps: float, rate: float | None = None
) -> float:
    """Bound the mean of E‖∇f‖² with error feedback.

    With A, the value of `plain_bound`, and H = γ²·L²·G²·`residual_bound`, the bound is
    (√H + √(H + 4·A))²/4. It is A for a lossless codec, at most 2·A + H, and infinite if nothing
    is sent.

    Parameters
    ----------
    delta : float
        Contraction, from 0 to 1; see `residual_bound`.
    problem, steps, rate
        See `plain_bound`.

    Returns
    -------
    float

    Raises
    ------
    ParameterError
        If an argument is out of range.

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
    """Return the number of steps T after which `feedback_bound` is twice `plain_bound`.

    The learning rate is `Problem.best_rate` for T. The result, 8·(L·Δ/G²)·`residual_bound`², is
    finite for every δ > 0, so the relative cost of compression with feedback vanishes.

    Parameters
    ----------
    delta : float
        Contraction, from 0 to 1; see `residual_bound`.
    problem : Problem
        Constants of the problem.

    Returns
    -------
    float

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> steps_to_double(0.75, Problem())
    8.0
    """
    check_type("problem", problem, Problem)
    residual = residual_bound(delta)
    return 8 * problem.smoothness * problem.gap / problem.moment * residual * residual


def _positive(name: str, value: object) -> float:
    return check_between(name, value, _SMALLEST, _LARGEST, "a number from 1e-30 to 1e30")
