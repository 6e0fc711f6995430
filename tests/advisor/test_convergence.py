"""Laws of codecs over several tensors, and their bounds, compared with training runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import advisor
from gcodec.advisor import Law, Problem, law_of

deltas = st.floats(0, 1)
problems = st.builds(Problem, *[st.floats(1e-3, 1e3)] * 3)
lengths = st.floats(1, 1e9)


# --- laws ---------------------------------------------------------------------------------------


def test_laws_of_codecs() -> None:
    law = {spec: law_of(gcodec.parse(spec), [100, 10_000, 0]) for spec in SPECS}
    assert law["raw"] == Law(1, 0)
    assert law["topk:k=5"] == Law(5 / 10_000, None)
    assert law["sign"] == Law(1 / 10_000, None)
    assert law["mxnet-2bit"] == law["mxnet-1bit"] == law["terngrad"] == Law(None, None)
    assert law["terngrad:clip=0"] == Law(None, 99 / 2)
    assert law["qsgd:s=4"] == Law(None, 100 / 4)  # √n/s
    assert law["qsgd:s=100"] == Law(0.75, 0.25)
    # Without the factor n/k, random-k is a contraction in expectation, but biased.
    assert law["randomk"].omega is None
    assert law["randomk"].delta == pytest.approx(0.01)
    assert law["randomk:unbiased=yes"] == Law(None, 99)
    assert law["minifloat"] == Law(None, None)
    nothing = gcodec.codecs()["randomk"](k=0)
    assert law_of(nothing, [100, 10_000, 0]) == Law(None, None)


SPECS = [
    *("raw", "topk:k=5", "sign", "mxnet-2bit", "mxnet-1bit", "terngrad", "terngrad:clip=0"),
    *("qsgd:s=4", "qsgd:s=100", "randomk", "randomk:unbiased=yes", "minifloat"),
]


SIZES = [1, 64, 1000, 300]


def lawful() -> list[str]:
    specs = [*gcodec.codecs(), "qsgd:s=100", "terngrad:clip=0"]
    return [spec for spec in specs if law_of(gcodec.parse(spec), SIZES) != Law(None, None)]


@pytest.mark.parametrize("spec", lawful())
def test_laws_hold_for_all_tensors_together(spec: str) -> None:
    codec = gcodec.parse(spec)
    random = np.random.default_rng(3)
    tensors = [random.standard_t(3, n).astype(np.float32) * 10.0**-i for i, n in enumerate(SIZES)]
    energy = sum(float((x.astype(np.float64) ** 2).sum()) for x in tensors)
    law = law_of(codec, SIZES)
    errors = []
    for seed in range(10):
        decoded = [codec.decode(codec.encode(x, seed=seed), x.shape) for x in tensors]
        parts = zip(tensors, decoded, strict=True)
        errors.append(sum(float(((x - y).astype(np.float64) ** 2).sum()) for x, y in parts))
    mean = float(np.mean(errors)) / energy
    assert law.delta is None or mean <= (1 - law.delta) * 1.02
    assert law.omega is None or mean <= law.omega * 1.02 + 1e-9


def test_law_of_no_elements_is_refused() -> None:
    for sizes in ([], [0, 0]):
        with pytest.raises(gcodec.ParameterError, match="sizes="):
            law_of(gcodec.parse("raw"), sizes)


# --- the residual -------------------------------------------------------------------------------


@given(st.floats(1e-6, 1))
def test_residual_bound_is_tight(delta: float) -> None:
    r = math.sqrt(1 - delta)
    bound = advisor.residual_bound(delta)
    assert bound <= 4 * (1 - delta) / delta**2 * (1 + 1e-9)
    # If a codec sends (1 − r)·x, the residual of a constant gradient 1 is the sum of all r^t.
    limit = r / (1 - r) if delta > 1e-3 else None
    if limit is not None:
        assert bound == pytest.approx(limit**2, rel=1e-9)
    residual = 0.0
    for _ in range(1000):
        residual = r * (residual + 1)
        assert residual**2 <= bound * (1 + 1e-9)
    if delta > 0.1:
        assert residual**2 == pytest.approx(bound)


def test_residual_bound_limits() -> None:
    assert advisor.residual_bound(0) == math.inf
    assert advisor.residual_bound(5e-324) == math.inf
    assert advisor.residual_bound(1) == 0
    assert advisor.residual_bound(1e-9) == pytest.approx(4e18)


@pytest.mark.parametrize(
    "spec", ["topk:k=3", "topk:k=30", "randomk:k=30", "sign", "qsgd:s=100", "minmax:bits=5"]
)
def test_feedback_residuals_stay_below_bound(spec: str) -> None:
    n = 100
    random = np.random.default_rng(1)
    delta = law_of(gcodec.parse(spec), [n]).delta
    assert delta is not None
    feedback = gcodec.Feedback(spec)
    constant = random.standard_normal(n)
    largest, squares = 0.0, []
    for step in range(100):
        gradient = np.float32(constant if step % 2 else random.standard_normal(n))
        largest = max(largest, float((gradient.astype(np.float64) ** 2).sum()))
        feedback.compress("w", gradient)
        squares.append(float((feedback.residual("w").astype(np.float64) ** 2).sum()))
    bound = advisor.residual_bound(delta) * largest
    assert np.mean(squares) <= bound if spec.startswith("randomk") else max(squares) <= bound


# --- convergence --------------------------------------------------------------------------------


def test_bounds_of_worked_example() -> None:
    problem = Problem(gap=2, smoothness=3, moment=5)
    plain = 2 / (0.01 * 1000) + 0.01 * 3 * 5 / 2
    assert advisor.plain_bound(problem, 1000, 0.01) == pytest.approx(plain)
    noise = 0.01 * 3 * 5 * (1 + 7 / 4) / 2
    assert advisor.unbiased_bound(7, 4, problem, 1000, 0.01) == pytest.approx(0.2 + noise)
    error = (0.01 * 3) ** 2 * 5 * 1  # for δ = 3/4 the residual is at most as long as a gradient
    bound = advisor.feedback_bound(0.75, problem, 1000, 0.01)
    assert bound == pytest.approx((math.sqrt(error) + math.sqrt(error + 4 * plain)) ** 2 / 4)
    assert problem.best_rate(1000) == pytest.approx(math.sqrt(4 / (15 * 1000)))


def test_bounds_are_infinite_if_nothing_is_sent() -> None:
    assert advisor.feedback_bound(0, Problem(), 1e9) == math.inf
    assert advisor.feedback_bound(0, Problem(), 1e9, 1e-9) == math.inf
    assert advisor.unbiased_bound(math.inf, 10**6, Problem(), 1e9) == math.inf
    assert advisor.steps_to_double(0, Problem()) == math.inf


@given(problems, lengths, deltas, deltas)
def test_bounds_are_monotonic(problem: Problem, steps: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    plain = advisor.plain_bound(problem, steps)
    bounds = [advisor.feedback_bound(delta, problem, steps) for delta in (low, high, 1)]
    assert bounds[0] >= bounds[1] * (1 - 1e-9) and bounds[1] >= bounds[2] * (1 - 1e-9)
    assert bounds[2] == pytest.approx(plain)
    if low > 1e-100:
        error = (problem.best_rate(steps) * problem.smoothness) ** 2 * problem.moment
        error *= advisor.residual_bound(low)
        assert bounds[0] <= (2 * plain + error) * (1 + 1e-9)
        later = advisor.feedback_bound(low, problem, 100 * steps)
        assert later < bounds[0]
    omegas = [advisor.unbiased_bound(w, 4, problem, steps) for w in (0, low, high, 1e9)]
    assert omegas == sorted(omegas) and omegas[0] == pytest.approx(plain)
    workers = [advisor.unbiased_bound(9, w, problem, steps) for w in (1, 2, 1000)]
    assert workers == sorted(workers, reverse=True)


@given(problems, lengths, st.floats(1e-6, 1e6))
def test_best_rate_minimizes_plain_bound(problem: Problem, steps: float, factor: float) -> None:
    best = advisor.plain_bound(problem, steps)
    rate = problem.best_rate(steps) * factor
    assert advisor.plain_bound(problem, steps, rate) >= best * (1 - 1e-9)


@given(problems, st.floats(0.01, 0.99))
def test_steps_to_double(problem: Problem, delta: float) -> None:
    steps = advisor.steps_to_double(delta, problem)
    if 1e-30 <= steps <= 1e30:
        ratio = advisor.feedback_bound(delta, problem, steps) / advisor.plain_bound(problem, steps)
        assert ratio == pytest.approx(2)


def quadratic(spec: str, workers: int, rate: float, steps: int, seed: int) -> dict[str, Any]:
    """Minimize ½·xᵀ·diag(λ)·x with noise per worker; return the constants of a bound."""
    random = np.random.default_rng(seed)
    n = 64
    scales = np.linspace(0.1, 1.0, n)
    x = random.standard_normal(n)
    start = float((scales * x * x).sum() / 2)
    codec, plain = gcodec.parse(spec), spec.startswith(("qsgd:s=2", "randomk:unbiased"))
    feedbacks = [gcodec.Feedback(spec, rank=rank, seed=seed) for rank in range(workers)]
    squares, moment = [], 0.0
    for step in range(steps):
        gradient = scales * x
        squares.append(float(gradient @ gradient))
        sent = np.zeros(n)
        for rank, feedback in enumerate(feedbacks):
            mine = np.float32(gradient + 0.3 * random.standard_normal(n))
            moment = max(moment, float(gradient @ gradient) + 0.09 * n)
            if plain:
                payload = codec.encode(mine, seed=seed * 10**6 + step * workers + rank)
                sent += codec.decode(payload, n)
            else:
                sent += gcodec.decode(feedback.compress("w", mine))
        x = x - rate * sent / workers
    return {"mean": np.mean(squares), "gap": start, "moment": moment, "last": squares[-1]}


@pytest.mark.parametrize(
    "spec",
    [
        *("raw", "topk:ratio=0.05", "randomk:ratio=0.1", "sign", "minmax:bits=4"),
        *("qsgd:s=2", "randomk:unbiased=yes,ratio=0.25"),
    ],
)
@pytest.mark.parametrize("rate", [0.3, 0.02])
def test_training_runs_stay_below_bounds(spec: str, rate: float) -> None:
    steps, workers = 60, 2
    law = law_of(gcodec.parse(spec), [64])
    runs = [quadratic(spec, workers, rate, steps, seed) for seed in range(2)]
    mean = float(np.mean([run["mean"] for run in runs]))
    problem = Problem(
        max(run["gap"] for run in runs), smoothness=1.0, moment=max(run["moment"] for run in runs)
    )
    bounds = []
    if law.omega is not None:
        bounds.append(advisor.unbiased_bound(law.omega, workers, problem, steps, rate))
    if law.delta is not None and not spec.startswith(("qsgd:s=2", "randomk:unbiased")):
        bounds.append(advisor.feedback_bound(law.delta, problem, steps, rate))
    assert bounds and mean <= min(bounds)
    if spec == "raw" and rate == 0.3:
        assert mean > 0.05 * bounds[0]  # the bound is not vacuous


def test_biased_codec_diverges_without_feedback() -> None:
    """The largest components of three workers cancel, so only residuals reach the sum."""
    a = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    for feedback, low, high in ((True, 0.0, 2e-3), (False, 6000.0, 7000.0)):
        x, rate = np.ones(3), 0.05
        memories = [gcodec.Feedback("topk:k=1") for _ in a]
        for _ in range(100):
            total = np.zeros(3)
            for row, memory in zip(a, memories, strict=True):
                gradient = np.float32(2 * (row @ x) * row + x / 2)
                frame = memory.compress("w", gradient) if feedback else None
                total += gcodec.decode(frame or gcodec.encode(gradient, "topk:k=1"))
            x = x - rate * total / 3
        assert low <= np.abs(x).max() <= high


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: advisor.residual_bound(-0.1), "delta=-0.1: must be a number from 0 to 1"),
        (lambda: advisor.residual_bound(1.1), "delta=1.1"),
        (lambda: advisor.residual_bound(math.nan), "delta=nan"),
        (lambda: advisor.feedback_bound("x", Problem(), 1), "delta='x'"),
        (lambda: advisor.unbiased_bound(-1, 1, Problem(), 1), "omega=-1"),
        (lambda: advisor.unbiased_bound(1, 0, Problem(), 1), "workers=0"),
        (lambda: advisor.plain_bound(Problem(), 0), "steps=0: must be a number from 1e-30 to"),
        (lambda: advisor.plain_bound(Problem(), 1, 0), "rate=0"),
        (lambda: advisor.feedback_bound(1, Problem(), 1, math.inf), "rate=inf"),
        (lambda: advisor.plain_bound(None, 1), "problem=None: must be a Problem"),
        (lambda: advisor.steps_to_double(1, 1.0), "problem=1.0"),
        (lambda: law_of("sign", [1]), "codec='sign': must be a Codec"),
        (lambda: law_of(gcodec.parse("sign"), [1.5]), "sizes=1.5"),
        (lambda: law_of(gcodec.parse("sign"), 5), "sizes=5"),
        (lambda: Problem(gap=0), "gap=0"),
        (lambda: Problem(smoothness=math.nan), "smoothness=nan"),
        (lambda: Problem(moment=1e31), "moment=1e+31"),
    ],
)
def test_invalid_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError) as caught:
        make()
    assert str(caught.value).startswith(message)
