"""1-bit Adam: Adam during warm-up, then signs of momenta and frozen variances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.training import Communicator, OneBitAdam, Simulator, two_phase_mean


def spread(n: int, seed: int) -> np.ndarray:
    """Return a gradient whose elements differ in size by a factor of 1000."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(n) * np.logspace(0, -3, n)).astype(np.float32)


def test_warmup_equals_adam() -> None:
    rate, b1, b2, epsilon, n = 0.01, 0.9, 0.99, 1e-6, 20

    def worker(c: Communicator) -> np.ndarray:
        adam = OneBitAdam(c, warmup=10, rate=rate, betas=(b1, b2), epsilon=epsilon)
        x = np.ones(n, np.float32)
        for step in range(10):
            adam.step({"x": x}, {"x": spread(n, 10 * step + c.rank)})
        assert adam.frozen
        return x

    replicas = Simulator(3).run(worker)
    assert all(np.array_equal(replicas[0], other) for other in replicas)
    x, m, v = np.ones(n), np.zeros(n), np.zeros(n)
    for step in range(10):
        g = np.mean([spread(n, 10 * step + rank) for rank in range(3)], axis=0)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        root = np.sqrt(v / (1 - b2 ** (step + 1))) + epsilon
        x -= rate * m / (1 - b1 ** (step + 1)) / root
    assert np.allclose(replicas[0], x, rtol=1e-5)


@pytest.mark.parametrize("scale", ["l1", "l2"])
def test_variances_are_frozen_after_warmup(scale: str) -> None:
    n = 2000

    def worker(c: Communicator) -> Any:
        adam = OneBitAdam(c, warmup=5, min_size=0, scale=scale)
        x = np.zeros(n, np.float32)
        for step in range(25):
            if step == 5:
                before = adam.variance("x").copy()
            adam.step({"x": x}, {"x": spread(n, 100 * step + c.rank)})
        assert np.array_equal(before, adam.variance("x"))
        return x, before, adam.momentum("x")

    results = Simulator(4).run(worker)
    for x, v, m in results[1:]:
        for part, other in zip((x, v, m), results[0], strict=True):
            assert np.array_equal(part, other)
    _, v, m = results[0]
    # Variances keep the scale of the squared gradients, which differ by 10^6.
    assert v.max() / v.min() > 1e5
    # Each share has one magnitude.
    assert np.unique(np.abs(m)).size == 4


def test_sends_one_bit_per_element_each_way() -> None:
    n, size = 80_000, 4

    def worker(c: Communicator, steps: int) -> None:
        adam = OneBitAdam(c, warmup=1)
        x = {"w": np.zeros((n // 100, 100), np.float32), "b": np.zeros(9, np.float32)}
        for step in range(steps):
            gradients = {"w": spread(n, step).reshape(-1, 100), "b": spread(9, step)}
            adam.step(x, gradients)

    warm, compressed = Simulator(size), Simulator(size)
    warm.run(worker, [1] * size)
    compressed.run(worker, [2] * size)
    once = warm.sent["all_gather"][0]  # a digest of the parameters, and the settings
    assert once < 200 * (size - 1)
    assert warm.total == 2 * (size - 1) * 4 * (n + 9) + size * once
    assert compressed.sent["all_reduce"][0] - warm.sent["all_reduce"][0] <= 2 * 4 * 9  # for "b"
    shares = compressed.sent["all_to_all"], compressed.sent["all_gather"]
    for sent_by_rank in shares:
        for sent in sent_by_rank:
            assert 0 <= sent - (size - 1) * n / size / 8 < 60 * (size - 1) + once


def test_feedback_conserves_the_sum() -> None:
    """The sum of the momenta plus all residuals equals the sum of the gradients."""
    n, size, steps = 500, 2, 40

    def worker(c: Communicator) -> Any:
        adam = OneBitAdam(c, warmup=1, min_size=0, betas=(0.0, 0.999))
        x, total = np.zeros(n, np.float32), np.zeros(n)
        for step in range(1 + steps):
            adam.step({"x": x}, {"x": spread(n, size * step + c.rank)})
            total += adam.momentum("x")
        state = adam.state_dict()
        kept = [state[f"worker:residual:{share}/x"] for share in range(size)]
        return total, np.concatenate(kept), state["server:residual:x"]

    results = Simulator(size).run(worker)
    kept = np.mean([worker_residual for _, worker_residual, _ in results], axis=0)
    kept += np.concatenate([server_residual for _, _, server_residual in results])
    expected = sum(np.float64(spread(n, at)) for at in range(size * (1 + steps))) / size
    assert np.abs(kept).max() > 0.1  # the residuals are not negligible
    assert np.abs(results[0][0] + kept - expected).max() < 1e-4


@pytest.mark.parametrize("scale", ["l1", "deepspeed"])
def test_tensor_that_is_small_now_sends_its_residuals(scale: str) -> None:
    """As after a resumption with another `min_size`; a refused step sends nothing."""
    n, size = 501, 2

    def worker(c: Communicator) -> Any:
        x, total, expected = np.zeros(n, np.float32), np.zeros(n), np.zeros(n)
        saved: dict[str, np.ndarray] = {}
        for min_size in (0, n + 1):
            adam = OneBitAdam(c, warmup=1, min_size=min_size, betas=(0.0, 0.999), scale=scale)
            if saved:
                adam.load_state_dict(saved)
                with pytest.raises(gcodec.ParameterError, match="exceed float32"):
                    adam.step({"x": x}, {"x": np.full(n, 3e38, np.float32)})
                assert adam.state_dict().keys() == saved.keys()
            for step in range(4):
                gradient = spread(n, 10 * step + c.rank + min_size)
                adam.step({"x": x}, {"x": gradient})
                total += adam.momentum("x")
                expected += gradient
            saved = adam.state_dict()
        assert not any("residual" in key for key in saved)
        return total, expected

    results = Simulator(size).run(worker)
    expected = sum(own for _, own in results) / size
    assert np.abs(results[0][0] - expected).max() < 1e-3


@pytest.mark.parametrize("size", [1, 3])
def test_training_converges(size: int) -> None:
    n = 60
    random = np.random.default_rng(4)
    targets = random.standard_normal((size, n))
    curvature = np.logspace(0, -1.5, n)

    def worker(c: Communicator, target: np.ndarray) -> float:
        adam = OneBitAdam(c, warmup=30, rate=0.05, min_size=0)
        x = np.zeros(n, np.float32)
        for step in range(200):
            rate = 0.05 if step < 100 else 0.05 * 0.97 ** (step - 100)
            adam.step({"x": x}, {"x": (curvature * (x - target)).astype(np.float32)}, rate)
        return float(np.linalg.norm(x - targets.mean(axis=0)))

    start = np.linalg.norm(targets.mean(axis=0))
    assert max(Simulator(size).run(worker, targets)) < 0.2 * start


def test_elements_without_gradient_do_not_move() -> None:
    def worker(c: Communicator) -> list[float]:
        adam = OneBitAdam(c, warmup=2, min_size=0)
        x = np.ones(3, np.float32)
        for step in range(6):
            adam.step({"x": x}, {"x": np.array([1, 0, step > 3], np.float32)})
        return x.tolist()

    moved, *unmoved = Simulator(2).run(worker)[0]
    assert moved < 1 and unmoved == [1, 1]  # no division by the root of 0


def test_state_dict_round_trip() -> None:
    n = 50

    def worker(c: Communicator) -> list[np.ndarray]:
        one, other = (OneBitAdam(c, warmup=2, min_size=8) for _ in range(2))
        xs = [{"x": np.ones(n, np.float32), "b": np.ones(3, np.float32)} for _ in range(2)]
        for step in range(4):
            one.step(xs[0], {"x": spread(n, step + c.rank), "b": spread(3, step)})
        other.load_state_dict(one.state_dict())
        for name, x in xs[0].items():
            xs[1][name][...] = x
        for step in range(4, 7):
            for adam, x in zip((one, other), xs, strict=True):
                adam.step(x, {"x": spread(n, step + c.rank), "b": spread(3, step)})
        return [x[name] for name in ("x", "b") for x in xs]

    for a, b, c, d in Simulator(2).run(worker):
        assert np.array_equal(a, b) and np.array_equal(c, d)


def test_loaded_variances_replace_those_in_use() -> None:
    def worker(c: Communicator) -> list[np.ndarray]:
        one, other = (OneBitAdam(c, warmup=1, min_size=0) for _ in range(2))
        xs = [{"x": np.zeros(50, np.float32)} for _ in range(2)]
        for step in range(3):  # both have frozen their variances, which differ
            one.step(xs[0], {"x": spread(50, step)})
            other.step(xs[1], {"x": spread(50, step) * np.float32(100)})
        other.load_state_dict(one.state_dict())
        xs[1]["x"][...] = xs[0]["x"]
        one.step(xs[0], {"x": spread(50, 3)})
        other.step(xs[1], {"x": spread(50, 3)})
        return [x["x"] for x in xs]

    for one, other in Simulator(2).run(worker):
        assert np.array_equal(one, other)


def test_damaged_state_dict_changes_nothing() -> None:
    def worker(c: Communicator) -> None:
        adam, x = OneBitAdam(c, warmup=1, min_size=8), {"x": np.ones(50, np.float32)}
        states = []
        for step in range(4):
            adam.step(x, {"x": spread(50, step + c.rank)})
            states.append(adam.state_dict())
        with pytest.raises(gcodec.ParameterError, match="state"):
            adam.load_state_dict(states[-2] | {"server:residual:x": np.zeros(3)})
        after = adam.state_dict()
        assert all(np.array_equal(after[key], value) for key, value in states[-1].items())

    Simulator(2).run(worker)


class Alone:
    rank, size = 0, 1

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message]

    def all_reduce(self, values: np.ndarray) -> None:
        pass


def alone(**settings: Any) -> OneBitAdam:
    return OneBitAdam(Alone(), **{"warmup": 1, **settings})  # type: ignore[arg-type]


def ones(n: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {"x": np.ones(n, dtype)}


def moments(n: int) -> dict[str, Any]:
    """Return a state of a momentum of 2 elements and a variance of n elements."""
    momentum, variance = np.ones(2, np.float32), np.ones(n, np.float32)
    return {"step:count": np.int64(1), "momentum:x": momentum, "variance:x": variance}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alone(warmup=0), "warmup=0"),
        (lambda: alone(betas=(1.0, 0.9)), "betas[0]=1.0"),
        (lambda: alone(betas=(0.9, -0.1)), "betas[1]=-0.1"),
        (lambda: alone(epsilon=-1), "epsilon=-1"),
        (lambda: alone(scale="none"), "scale='none'"),
        (lambda: alone(rate="fast"), "rate='fast'"),
        (lambda: alone(rate=math.nan), "rate=nan: must be a number, finite as float32"),
        (lambda: alone().step(ones(2), ones(2), math.inf), "rate=inf"),
        (lambda: alone(min_size=-1), "min_size=-1"),
        (lambda: alone().step(ones(2), {"y": np.ones(2, np.float32)}), "gradients=['y']"),
        (lambda: alone().step(ones(2), ones(3)), "x.shape=(2,)"),
        (lambda: alone().step(ones(2, np.float64), ones(2)), "x.dtype='float64'"),
        (
            lambda: alone().step(ones(2), {"x": np.float32([1, math.nan])}),
            "gradients: 'x' of rank 0",
        ),
        (lambda: alone().step([np.ones(2)], ones(2)), "parameters=["),
        (lambda: alone().step(ones(2), [np.ones(2)]), "gradients=["),
        (lambda: alone().load_state_dict(moments(3)), "state: all groups of arrays"),
        (lambda: alone().load_state_dict(moments(2) | {"variance:x": 1.0}), "state: all groups"),
        (lambda: alone().load_state_dict({}), "state: step:count"),
        (lambda: alone().load_state_dict({"step:count": np.float32(1)}), "state: step:count"),
        (lambda: alone().load_state_dict({"step:count": np.int64(-3)}), "state: step:count"),
        (lambda: alone().load_state_dict({"step:count": np.array([1])}), "state: step:count"),
        (lambda: alone().load_state_dict({"moment:x": np.ones(1)}), "state='moment:x'"),
        (lambda: alone().momentum("x"), "name='x'"),
    ],
)
def test_invalid_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_loaded_step_counts_of_all_ranks_are_compared() -> None:
    def worker(c: Communicator) -> None:
        adam = OneBitAdam(c, warmup=9)
        adam.load_state_dict(moments(2) | {"step:count": np.int64(1 + c.rank)})
        with pytest.raises(gcodec.ParameterError, match="ranks 0 and 1 have different states"):
            adam.step(ones(2), ones(2))

    Simulator(2).run(worker)


def test_new_names_after_warmup_are_refused() -> None:
    adam = alone()
    adam.step(ones(2), ones(2))
    other = {"y": np.ones(2, np.float32)}
    with pytest.raises(gcodec.ParameterError, match="gradients='y': must be one of the names of"):
        adam.step(other, other)
    with pytest.raises(gcodec.ParameterError, match=r"x.shape=\(3,\): must be \(2,\)"):
        adam.step(ones(3), ones(3))


def test_tensors_from_min_size_on_are_compressed() -> None:
    def worker(c: Communicator) -> set[str]:
        adam = OneBitAdam(c, warmup=1, min_size=3)
        x = {f"{n}": np.ones(n, np.float32) for n in (2, 3, 4)}
        for _ in range(2):
            adam.step(x, {name: values.copy() for name, values in x.items()})
        return {key for key in adam.state_dict() if key.startswith("worker:residual")}

    [compressed] = Simulator(1).run(worker)
    assert compressed == {"worker:residual:0/3", "worker:residual:0/4"}


@pytest.mark.parametrize("shape", [(4, 30), (4, 9)])
def test_scale_of_deepspeed(shape: tuple[int, ...]) -> None:
    """Compare the momenta with DeepSpeed's ``compressed_allreduce``."""
    size, steps = 2, 5
    rng = np.random.default_rng(3)
    gradients = rng.standard_normal((1 + steps, size, *shape), dtype=np.float32)

    def worker(c: Communicator) -> list[np.ndarray]:
        adam = OneBitAdam(c, warmup=1, min_size=0, scale="deepspeed")
        x, momenta = np.zeros(shape, np.float32), []
        for step in range(1 + steps):
            adam.step({"x": x}, {"x": gradients[step, c.rank]})
            momenta.append(adam.momentum("x").copy())
        return momenta

    first, second = Simulator(size).run(worker)
    momentum = 0.1 * gradients[0].mean(0)
    worker_errors, server_error = np.zeros((size, *shape)), np.zeros(shape)

    def signs(values: np.ndarray) -> np.ndarray:
        return np.where(values < 0, -1, 1) * np.sqrt(np.square(values).mean())

    for step in range(steps):
        received = np.zeros(shape)
        for rank in range(size):
            sent = 0.9 * momentum + 0.1 * gradients[1 + step, rank] + worker_errors[rank]
            worker_errors[rank] = sent - signs(sent)
            received += signs(sent) / size
        received += server_error
        momentum = np.concatenate([signs(chunk) for chunk in np.split(received, size)])
        server_error = received - momentum
        np.testing.assert_allclose(first[1 + step], momentum, 1e-4)
        np.testing.assert_array_equal(first[1 + step], second[1 + step])


def test_only_signs_are_cut() -> None:
    def worker(c: Communicator) -> None:
        feedback = gcodec.Feedback("topk"), gcodec.Feedback("sign")
        assert two_phase_mean(c, {}, *feedback, whole=True) == {}
        two_phase_mean(c, {"x": np.ones(4, np.float32)}, *feedback, whole=True)

    with pytest.raises(gcodec.ParameterError, match="must be sign, with whole=True"):
        Simulator(2).run(worker)
