"""Laws of training with compressed gradients, on simulated workers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import ParameterError, advisor
from gcodec.training import (
    DGC,
    Communicator,
    OneBitAdam,
    PowerSGD,
    Simulator,
    all_gather_mean,
    tree_mean,
    two_phase_mean,
)


@pytest.mark.parametrize(
    ("spec", "delta"),
    [("topk:k=8", 1 / 8), ("sign", 1 / 64), ("randomk:k=8", 1 / 8)],
)
def test_residuals_of_1000_steps_stay_below_bound(spec: str, delta: float) -> None:
    """E‖e‖² ≤ 4(1 − δ)/δ²·G², only on average for contractions in expectation."""
    n, steps = 64, 1000
    assert advisor.law_of(gcodec.parse(spec), [n]).delta == pytest.approx(delta)
    random = np.random.default_rng(7)
    gradients = random.standard_normal((steps, n))
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)  # so G is 1
    gradients[steps // 2 :] = gradients[-1]  # a constant gradient, which accumulates
    feedback = gcodec.Feedback(spec)
    squares = []
    for gradient in gradients.astype(np.float32):
        feedback.compress("w", gradient)
        squares.append(float((feedback.residual("w").astype(np.float64) ** 2).sum()))
    bound = 4 * (1 - delta) / delta**2
    assert np.mean(squares) <= bound
    assert spec.startswith("randomk") or max(squares) <= bound
    assert max(squares) > 2  # longer than a gradient, so the bound is not vacuous


def three_workers(steps: int, rate: float, feedback: bool) -> np.ndarray:
    """Minimize Σ ⟨a, x⟩² + ¼‖x‖² over rotations a of (−3, 2, 2), sending one element each."""
    a = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])

    def worker(c: Communicator, row: np.ndarray) -> np.ndarray:
        memory = gcodec.Feedback("topk:k=1", rank=c.rank)
        x = np.ones(3)
        for _ in range(steps):
            gradient = np.float32(2 * (row @ x) * row + x / 2)
            frame = gcodec.encode(gradient, "topk:k=1")
            frame = memory.compress("x", gradient) if feedback else frame
            x = x - rate * all_gather_mean(c, [frame])[0]
        return x

    replicas = Simulator(3).run(worker, a)
    assert all(np.array_equal(replicas[0], x) for x in replicas)
    return replicas[0]


def test_topk_diverges_without_feedback() -> None:
    for rate, steps in ((0.2, 10), (0.1, 10)):
        x = three_workers(steps, rate, feedback=False)
        assert x == pytest.approx([(1 + 11 * rate / 6) ** steps] * 3, rel=1e-5)
    assert three_workers(100, 0.05, feedback=False)[0] == pytest.approx(6441.766, rel=1e-5)


def test_topk_converges_with_feedback() -> None:
    x = three_workers(100, 0.05, feedback=True)
    assert np.abs(x).max() == pytest.approx(1.0e-3, rel=0.1)


def test_means_divide_by_all_workers() -> None:
    """Dividing by the number of senders of an element would count rarely sent ones repeatedly."""
    size, n, steps = 4, 40, 30
    gradients = np.random.default_rng(0).standard_normal((steps, size, n)).astype(np.float32)

    def worker(c: Communicator) -> Any:
        feedback = gcodec.Feedback("topk:k=2")
        total, counted = np.zeros(n), np.zeros(n)
        for step in range(steps):
            frame = feedback.compress("w", gradients[step, c.rank])
            total += all_gather_mean(c, [frame])[0]
            sent = [gcodec.decode_sparse(message)[0] for message in c.all_gather(frame)]
            counts = np.bincount(np.concatenate(sent), minlength=n)
            counted += all_gather_mean(c, [frame])[0] * size / np.maximum(counts, 1)
        return total, counted, feedback.residual("w").astype(np.float64)

    results = Simulator(size).run(worker)
    mean = gradients.astype(np.float64).mean(axis=1).sum(axis=0)
    kept = np.mean([residual for _, _, residual in results], axis=0)
    total, counted, _ = results[0]
    assert np.abs(total + kept - mean).max() < 1e-4
    sent = np.linalg.norm(total)
    assert np.linalg.norm(counted - total) > 1.5 * sent


def _gathered(feedback: gcodec.Feedback, c: Communicator) -> Any:
    return lambda step, g: all_gather_mean(c, [feedback.compress("w", g)])[0]


def _tree(feedback: gcodec.Feedback, c: Communicator) -> Any:
    def update(step: int, g: np.ndarray) -> np.ndarray:
        [(positions, values)] = tree_mean(c, [feedback.compress("w", g)])
        mean = np.zeros(g.size, np.float32)
        mean[positions] = values
        return mean.reshape(g.shape)

    return update


def _two_phases(worker: gcodec.Feedback, server: gcodec.Feedback, c: Communicator) -> Any:
    return lambda step, g: two_phase_mean(c, {"w": g}, worker, server)["w"]


def _dgc(method: DGC) -> Any:
    return lambda step, g: np.float32(0.7) * method.average({"w": g}, step // 10)["w"]


def _powersgd(method: PowerSGD) -> Any:
    return lambda step, g: method.average({"w": g})["w"]


METHODS: dict[str, Any] = {
    "gathered": lambda c: _gathered(gcodec.Feedback("qsgd:s=7", seed=3, rank=c.rank), c),
    "tree": lambda c: _tree(gcodec.Feedback("topk:ratio=0.2"), c),
    "two phases": lambda c: _two_phases(
        gcodec.Feedback("minmax:bits=4"), gcodec.Feedback("sign"), c
    ),
    "dgc": lambda c: _dgc(DGC(c, density=0.2, warmup=1, momentum=0.3)),
    "powersgd": lambda c: _powersgd(PowerSGD(c, rank=2)),
}


@pytest.mark.parametrize("name", METHODS)
def test_all_replicas_reach_the_common_optimum(name: str) -> None:
    """Solve least squares, where each worker has some equations and the optimum needs all."""
    size, shape, steps = 3, (12, 6), 60
    random = np.random.default_rng(1)
    truth = random.standard_normal(shape)
    inputs = random.standard_normal((size, 8, shape[0])) / 4
    answers = inputs @ truth

    def worker(c: Communicator) -> np.ndarray:
        update = METHODS[name](c)
        x = np.zeros(shape, np.float32)
        for step in range(steps):
            error = inputs[c.rank] @ x - answers[c.rank]
            gradient = (inputs[c.rank].T @ error).astype(np.float32)
            x -= np.float32(1.2) * update(step, gradient)
        return x

    replicas = Simulator(size).run(worker)
    assert all(replicas[0].tobytes() == x.tobytes() for x in replicas)
    error = np.linalg.norm(replicas[0] - truth) / np.linalg.norm(truth)
    assert error < 0.3
    # No worker could reach the optimum alone, with fewer equations than unknowns.
    alone = [np.linalg.lstsq(inputs[i], answers[i], rcond=None)[0] for i in range(size)]
    assert all(np.linalg.norm(x - truth) > 0.4 * np.linalg.norm(truth) for x in alone)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("method", [DGC, PowerSGD, OneBitAdam])
def test_nonfinite_gradient_skips_step_on_all_ranks(method: Any, wrong: float) -> None:
    def worker(c: Communicator) -> None:
        settings = {"warmup": 1, "min_size": 0} if method is OneBitAdam else {}
        instance = method(c, **settings)
        x = {"v": np.zeros(5, np.float32), "w": np.zeros((5, 6), np.float32)}
        valid = {name: np.ones_like(values) for name, values in x.items()}
        invalid = {name: values.copy() for name, values in valid.items()}
        invalid["w"][2, 3] = wrong
        take = {
            DGC: lambda g: instance.average(g, 0),
            PowerSGD: lambda g: instance.step(x, g, 0.1),
            OneBitAdam: lambda g: instance.step(x, g),
        }[method]
        for _ in range(3):
            before = {**instance.state_dict(), **{name: part.copy() for name, part in x.items()}}
            with pytest.raises(gcodec.ParameterError, match="'w' of rank 1 contains NaN or Inf"):
                take(invalid if c.rank == 1 else valid)
            after = {**instance.state_dict(), **x}
            assert before.keys() == after.keys()
            assert all(np.array_equal(before[key], after[key]) for key in before)
            take(valid)

    Simulator(3).run(worker)


@pytest.mark.parametrize("method", [PowerSGD, OneBitAdam])
def test_parameters_that_differ_are_refused_on_all(method: Any) -> None:
    def worker(c: Communicator) -> None:
        instance = method(c, **({"warmup": 2} if method is OneBitAdam else {}))
        x = {"w": np.full((5, 6), c.rank // 2, np.float32)}
        for _ in range(2):
            with pytest.raises(gcodec.ParameterError, match="parameters: ranks 0 and 2 have diff"):
                instance.step(x, {"w": np.ones((5, 6), np.float32)}, rate=0.1)
        assert (x["w"] == c.rank // 2).all()

    Simulator(3).run(worker)


@pytest.mark.parametrize("method", [PowerSGD, OneBitAdam])
def test_parameters_are_compared_after_a_state_was_loaded(method: Any) -> None:
    def worker(c: Communicator) -> None:
        instance = method(c, **({"warmup": 2} if method is OneBitAdam else {}))
        x, gradients = ({"w": np.full((5, 6), i, np.float32)} for i in range(2))
        instance.step(x, gradients, rate=0.1)
        instance.load_state_dict(instance.state_dict())
        x["w"] += c.rank
        with pytest.raises(gcodec.ParameterError, match="parameters: ranks 0 and 1 have diff"):
            instance.step(x, gradients, rate=0.1)

    Simulator(2).run(worker)


@pytest.mark.parametrize("method", [PowerSGD, OneBitAdam])
def test_parameters_of_other_shapes_are_refused_on_all(method: Any) -> None:
    """Although their bytes are equal."""

    def worker(c: Communicator) -> None:
        instance = method(c, **({"warmup": 2} if method is OneBitAdam else {}))
        shape = (5, 6) if c.rank else (6, 5)
        x, gradients = ({"w": np.full(shape, i, np.float32)} for i in range(2))
        with pytest.raises(gcodec.ParameterError, match="parameters: ranks 0 and 1 have diff"):
            instance.step(x, gradients, rate=0.1)

    Simulator(2).run(worker)


@pytest.mark.parametrize(
    ("method", "settings", "rate", "message"),
    [
        (OneBitAdam, {"betas": (0.8, 0.999)}, 0.1, r'"betas": \[0.9, .* on rank 0, .*\[0.8, '),
        (OneBitAdam, {"warmup": 3}, 0.1, '"warmup": 2, .* on rank 0, and .*"warmup": 3, .*rank 1'),
        (PowerSGD, {"momentum": 0.5}, 0.1, '"momentum": 0.9, .* on rank 0'),
        (PowerSGD, {}, 0.2, r'"rate": 0.1\} on rank 0, and .*"rate": 0.2\} on rank 1'),
    ],
)
def test_arguments_that_differ_are_refused_on_all(
    method: Any, settings: dict[str, Any], rate: float, message: str
) -> None:
    def worker(c: Communicator) -> None:
        common = {"warmup": 2} if method is OneBitAdam else {}
        instance = method(c, **(common | settings if c.rank else common))
        x = {"w": np.zeros((5, 6), np.float32)}
        with pytest.raises(gcodec.ParameterError, match=message):
            instance.step(x, {"w": np.ones((5, 6), np.float32)}, rate=rate if c.rank else 0.1)
        assert not x["w"].any()

    Simulator(2).run(worker)


def test_residuals_of_powersgd_fit_their_rank_only() -> None:
    states: list[dict[str, np.ndarray]] = []

    def worker(c: Communicator) -> None:
        method = PowerSGD(c, rank=1)
        if states:
            with pytest.raises(
                gcodec.ParameterError, match=r"'size'\]=3: must be 2 ranks, because"
            ):
                method.load_state_dict(states[c.rank])
            common = ("momentum", "place")
            method.load_state_dict({k: x for k, x in states[0].items() if k.startswith(common)})
        method.step({"w": np.zeros((5, 6), np.float32)}, {"w": random_matrix(c.rank)}, rate=0.1)
        states.append(method.state_dict())

    def random_matrix(seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal((5, 6), np.float32)

    Simulator(3).run(worker)
    states.sort(key=lambda state: int(state["place:rank"]))
    Simulator(2).run(worker)


@pytest.mark.parametrize("warmup", [2, 9])
@pytest.mark.parametrize("method", [PowerSGD, OneBitAdam])
def test_states_of_some_ranks_only_are_refused_on_all(method: Any, warmup: int) -> None:
    """Parameters of the replicas would differ from then on, or ranks wait in other collectives."""

    def worker(c: Communicator) -> None:
        settings = {"warmup": warmup} if method is OneBitAdam else {}
        x, gradients = ({"w": np.full((5, 6), c.rank + i, np.float32)} for i in range(2))
        x["w"][...] = 0
        first, second = method(c, **settings), method(c, **settings)
        for _ in range(4):
            first.step(x, gradients, rate=0.1)
        if c.rank == 1:
            second.load_state_dict(first.state_dict())
        before = x["w"].copy()
        for _ in range(2):
            with pytest.raises(gcodec.ParameterError, match="ranks 0 and 1 have different states"):
                second.step(x, gradients, rate=0.1)
            assert np.array_equal(x["w"], before)
        second.load_state_dict(first.state_dict())
        second.step(x, gradients, rate=0.1)
        first.step({"w": before}, gradients, rate=0.1)
        assert np.array_equal(x["w"], before)

    Simulator(2).run(worker)


def test_state_that_dgc_loads_later_on_one_rank_is_refused_on_all() -> None:
    """The digest of an earlier state, which all ranks have compared, does not stand for it."""

    def worker(c: Communicator) -> None:
        method, gradients = DGC(c, density=0.5), {"w": np.float32([1, 2, 3])}
        method.load_state_dict({})
        method.average(gradients, 0)
        if c.rank == 1:
            method.load_state_dict(method.state_dict())
        with pytest.raises(gcodec.ParameterError, match="ranks 0 and 1 have different states"):
            method.average(gradients, 0)

    Simulator(2).run(worker)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (DGC, {"density": 0.1}),
        (PowerSGD, {"rank": 1}),
        (OneBitAdam, {"warmup": 9, "min_size": 0}),
        (OneBitAdam, {"warmup": 1, "min_size": 0}),
    ],
)
def test_tensors_that_sit_out_a_step_keep_their_state(
    method: Any, settings: dict[str, Any]
) -> None:
    def worker(c: Communicator) -> None:
        instance = method(c, **settings)
        x = {"v": np.zeros((6, 5), np.float32), "w": np.zeros((5, 6), np.float32)}
        gradients = {
            name: np.random.default_rng(c.rank).standard_normal(array.shape, np.float32)
            for name, array in x.items()
        }

        def take(*names: str) -> None:
            own = {name: gradients[name] for name in names}
            if method is DGC:
                instance.average(own, 9)
            else:
                instance.step({name: x[name] for name in names}, own, rate=0.1)

        take("v", "w")
        take("v", "w")
        before = instance.state_dict()
        take("v")
        after = instance.state_dict()
        of_w = [key for key in before if key.endswith("w")]
        assert of_w and all(np.array_equal(before[key], after[key]) for key in of_w)
        assert before.keys() == after.keys()
        take("v", "w")

    Simulator(2).run(worker)


LARGE = 3e38


@pytest.mark.parametrize(
    ("method", "settings", "name", "values", "message"),
    [
        # The mean overflows, although the gradient of each rank is finite.
        (DGC, {"density": 1.0}, "w", (LARGE, LARGE, LARGE), "their mean"),
        (DGC, {"density": 1.0, "min_size": 10}, "v", (LARGE, LARGE, LARGE), "their mean"),
        (PowerSGD, {}, "v", (LARGE, LARGE, LARGE), "their mean"),
        (OneBitAdam, {"warmup": 9}, "w", (LARGE, LARGE, LARGE), "their mean"),
        (OneBitAdam, {"warmup": 9}, "w", (1e25, 1e25, 1e25), "their mean"),  # the square overflows
        (OneBitAdam, {"warmup": 1}, "v", (LARGE, LARGE, LARGE), "their mean"),  # after some steps
        # A sum overflows on one rank alone.
        (PowerSGD, {"rank": 1}, "w", (1.0, LARGE, 1.0), r"factors.*on rank 1"),
        (DGC, {"density": 0.01}, "w", (1.0, LARGE / 2, 1.0), r"accumulators of 'w'.*on rank 1"),
        (DGC, {"min_size": 10}, "v", (1.0, LARGE / 2, 1.0), r"accumulators of 'v'.*on rank 1"),
        (DGC, {"momentum": 0.0}, "w", (1.0, 3.4028e38, 1.0), r"accumulators of 'w'.*on rank 1"),
        # The step overflows, although the mean and the momentum are finite.
        (PowerSGD, {"momentum": 0.99}, "v", (5e37, 5e37, 5e37), "step of 'v'"),
        (OneBitAdam, {"warmup": 1, "min_size": 0, "rate": 1e8}, "w", (1e37,) * 3, "step of 'w'"),
    ],
)
def test_float32_overflow_changes_no_state_on_any_rank(
    method: Any, settings: Any, name: str, values: Any, message: str
) -> None:
    """Neither state nor parameters change, and no rank waits for a rank that refuses."""

    def worker(c: Communicator) -> int:
        instance = method(c, **settings)
        x = {"v": np.zeros(5, np.float32), "w": np.zeros((5, 6), np.float32)}
        valid = {key: np.ones_like(array) for key, array in x.items()}
        large = {**valid, name: np.full(x[name].shape, values[c.rank], np.float32)}
        take = {
            DGC: lambda g: instance.average(g, 9),
            PowerSGD: lambda g: instance.step(x, g, 0.1),
            OneBitAdam: lambda g: instance.step(x, g),
        }[method]
        take(valid)
        refused = 0
        for _ in range(12):
            before = {**instance.state_dict(), **{key: part.copy() for key, part in x.items()}}
            try:
                take(large)
                continue
            except gcodec.ParameterError as error:
                refused += 1
                assert re.search(message, str(error)), error
            after = {**instance.state_dict(), **x}
            assert before.keys() == after.keys()
            assert all(np.array_equal(before[key], after[key]) for key in before)
        take(valid)
        kept = instance.state_dict()
        assert all(
            np.isfinite(array).all() for array in kept.values() if array.dtype == np.float32
        )
        return refused

    counts = Simulator(3).run(worker)
    assert counts == [counts[0]] * 3
    assert counts[0] > 0


def test_refused_share_leaves_feedback_unchanged() -> None:
    """A worker refuses its gradient, or a server its mean; all ranks must raise."""

    def worker(c: Communicator, refuser: str) -> list[str]:
        own, server = gcodec.Feedback("topk:k=1"), gcodec.Feedback("raw")
        ones = {"a": np.ones((4, 3), np.float32), "b": np.ones(7, np.float32)}
        large = {**ones, "b": np.full(7, LARGE, np.float32)}
        if refuser == "server":
            own = gcodec.Feedback("raw")
        messages = []
        two_phase_mean(c, ones, own, server)
        for _ in range(3):
            before = own.state_dict(), server.state_dict()
            try:
                refuses = refuser == "server" or c.rank == 1
                two_phase_mean(c, large if refuses else ones, own, server)
                messages.append("")
            except gcodec.ParameterError as error:
                messages.append(str(error))
                for old, new in zip(before, (own.state_dict(), server.state_dict()), strict=True):
                    assert old.keys() == new.keys()
                    assert all(np.array_equal(old[key], new[key]) for key in old)
        two_phase_mean(c, ones, own, server)
        return messages

    for refuser, rank in (("worker", 1), ("server", 0)):
        first, *remaining = Simulator(2).run(worker, [refuser, refuser])
        assert remaining == [first]
        assert first[-1].endswith(f"(on rank {rank})")


TAKERS: dict[str, Any] = {
    "DGC": lambda c: (m := DGC(c), lambda g: m.average(g, 0)),
    "PowerSGD": lambda c: (m := PowerSGD(c), m.average),
    "OneBitAdam": lambda c: (m := OneBitAdam(c, warmup=1), lambda g: m.step(g, g)),
}


@pytest.mark.parametrize("method", TAKERS)
@pytest.mark.parametrize("wrong", [None, 5, [("w", np.ones(3, np.float32))]])
def test_non_mappings_are_refused(method: str, wrong: Any) -> None:
    def worker(c: Communicator) -> None:
        instance, take = TAKERS[method](c)
        with pytest.raises(ParameterError, match="a mapping"):
            take(wrong)
        with pytest.raises(ParameterError, match=r"state=.*a mapping"):
            instance.load_state_dict(wrong)

    Simulator(1).run(worker)


@pytest.mark.parametrize("method", TAKERS)
def test_names_must_be_valid_text(method: str) -> None:
    """A number would come back from a state_dict as text, and lose its residual."""

    def worker(c: Communicator) -> None:
        _, take = TAKERS[method](c)
        for name in (1, "\ud800"):
            with pytest.raises(ParameterError, match="name="):
                take({name: np.ones(3, np.float32)})

    Simulator(1).run(worker)


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1), ()])
def test_momentum_shape_must_match_tensor(shape: tuple[int, ...]) -> None:
    def worker(c: Communicator) -> None:
        method = PowerSGD(c)
        method.step({"b": np.zeros(3, np.float32)}, {"b": np.ones(3, np.float32)}, 0.1)
        before = method.state_dict()["momentum:b"]
        with pytest.raises(ParameterError, match=r"b\.shape"):
            method.step({"b": np.zeros(shape, np.float32)}, {"b": np.ones(shape, np.float32)}, 0.1)
        assert np.array_equal(method.state_dict()["momentum:b"], before)
        matrix = np.ones((40, 30), np.float32)
        method.average({"w": matrix})
        state = method.state_dict() | {"momentum:w": matrix[:3]}
        with pytest.raises(ParameterError, match="state"):
            PowerSGD(c).load_state_dict(state)

    Simulator(1).run(worker)


@pytest.mark.parametrize("betas", [(0.9,), 5, None, (0.9, 0.99, 0.999)])
def test_betas_must_be_two_numbers(betas: Any) -> None:
    with pytest.raises(ParameterError, match="betas="):
        Simulator(1).run(lambda c: OneBitAdam(c, warmup=1, betas=betas))
