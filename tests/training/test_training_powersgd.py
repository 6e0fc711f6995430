"""PowerSGD over workers: means of factors, residuals, and sent bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.training import Communicator, PowerSGD, Simulator
from gcodec.training.powersgd import nbytes


def resnet18() -> list[tuple[int, ...]]:
    """Return the parameter shapes of ResNet-18 for small images of 10 classes."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (10, 512), (10,)]


@pytest.mark.parametrize(("rank", "ratio"), [(1, 243), (2, 136), (4, 72)])
def test_compression_ratios_match_the_paper(rank: int, ratio: int) -> None:
    total = sum(math.prod(shape) for shape in resnet18())
    assert total == 11_173_962
    assert round(4 * total / nbytes(resnet18(), rank)) == ratio


def gradients(size: int, *shape: int, rank: int = 2, noise: float = 0.1) -> list[np.ndarray]:
    random = np.random.default_rng(size)
    m, k = shape[0], math.prod(shape[1:])
    common = random.standard_normal((m, rank)) @ random.standard_normal((rank, k))
    matrices = [common + noise * random.standard_normal((m, k)) for _ in range(size)]
    return [x.reshape(shape).astype(np.float32) for x in matrices]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_means_approach_best_approximation(size: int) -> None:
    grads = gradients(size, 20, 6, 5, rank=3)

    def worker(c: Communicator, x: np.ndarray) -> Any:
        method = PowerSGD(c, rank=3)
        means = []
        for _ in range(6):
            method._residual.clear()  # tests the power method alone
            means.append(method.average({"w": x})["w"])
        return means

    results = Simulator(size).run(worker, grads)
    for means in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], means, strict=True))
    mean = np.mean(grads, axis=0).reshape(20, 30)
    singular = np.linalg.svd(mean, compute_uv=False)
    best = math.sqrt(float((singular[3:] ** 2).sum()))
    errors = [float(np.linalg.norm(x.reshape(20, 30) - mean)) for x in results[0]]
    assert best * 0.999 < errors[-1] < 1.02 * best < errors[0]


def test_single_worker_matches_codec_with_feedback() -> None:
    """Start the codec from the same rows, because its own seed differs."""
    x = gradients(1, 30, 40)[0]

    def worker(c: Communicator) -> np.ndarray:
        method = PowerSGD(c, rank=2)
        start = PowerSGD(c, rank=2)._start_rows("w", 40)
        codec = gcodec.parse("powersgd:rank=2")
        symbols = codec.quantize(np.ones((30, 40), np.float32))
        symbols.bits[-80:] = start.astype(np.float32).view(np.uint32).reshape(-1)
        residual, prior = np.zeros(x.shape, np.float32), symbols
        for _ in range(4):
            prior = codec.quantize_residual(x, residual, prior=prior)
            mean = method.average({"w": x})["w"]
            assert np.allclose(mean, codec.dequantize(prior, x.shape), atol=1e-4)
            assert np.allclose(method.residual("w"), residual, atol=1e-4)
        return mean

    Simulator(1).run(worker)


def test_residuals_conserve_the_sum() -> None:
    size, steps = 3, 12
    grads = gradients(size, 12, 15, rank=6, noise=1.0)

    def worker(c: Communicator, x: np.ndarray) -> Any:
        method = PowerSGD(c, rank=1)
        total = np.zeros(x.shape)
        for step in range(steps):
            total += method.average({"w": x * np.float32(1 + step % 3)})["w"]
        return total, method.residual("w").astype(np.float64)

    results = Simulator(size).run(worker, grads)
    expected = np.mean(np.float64(grads), axis=0) * sum(1 + step % 3 for step in range(steps))
    kept = np.mean([residual for _, residual in results], axis=0)
    assert np.abs(kept).max() > 0.1
    assert np.abs(results[0][0] + kept - expected).max() < 1e-3
    # The residual is what a projection leaves, so it stays bounded.
    assert all(np.linalg.norm(r) < 30 * np.linalg.norm(grads[0]) for _, r in results)


def test_gradient_of_zeros_leaves_later_ones_their_factors() -> None:
    x = gradients(1, 12, 15)[0]

    def worker(c: Communicator) -> np.ndarray:
        method = PowerSGD(c, rank=2)
        assert not method.average({"w": np.zeros_like(x)})["w"].any()
        return method.average({"w": x})["w"]

    for mean in Simulator(2).run(worker):
        assert np.linalg.norm(mean) > 0.5 * np.linalg.norm(x)


def test_residual_waits_while_a_worker_takes_no_part() -> None:
    grads = gradients(2, 12, 15, rank=6, noise=1.0)

    def worker(c: Communicator, x: np.ndarray) -> Any:
        method = PowerSGD(c, rank=1)
        total = method.average({"w": x})["w"].astype(np.float64)
        before = method.residual("w").copy()
        if c.rank:
            total += method.average({"w": np.zeros_like(x)}, waiting=["w"])["w"]
            assert np.array_equal(method.residual("w"), before)
        else:
            total += method.average({"w": x})["w"]
        return total, method.residual("w").astype(np.float64)

    (total, first), (_, second) = Simulator(2).run(worker, grads)
    expected = (2 * np.float64(grads[0]) + grads[1]) / 2
    assert np.abs(total + (first + second) / 2 - expected).max() < 1e-4


def test_one_worker_may_load_residuals_alone() -> None:
    """Each worker has its own, and only momenta must be equal."""

    def worker(c: Communicator, x: np.ndarray) -> np.ndarray:
        method = PowerSGD(c, rank=1)
        method.average({"w": x})
        if c.rank:
            method.load_state_dict(method.state_dict())
        return method.average({"w": x})["w"]

    first, second = Simulator(2).run(worker, gradients(2, 12, 15, noise=1.0))
    assert np.array_equal(first, second)


def test_sent_bytes() -> None:
    size, rank = 4, 2
    shapes = {"w": (64, 3, 7, 7), "b": (64,), "small": (4, 3), "s": (), "empty": (0, 5)}

    def worker(c: Communicator) -> dict[str, np.ndarray]:
        random = np.random.default_rng(c.rank)
        tensors = {name: random.standard_normal(shape) for name, shape in shapes.items()}
        return PowerSGD(c, rank=rank).average(tensors)

    simulator = Simulator(size)
    results = simulator.run(worker)
    assert nbytes(shapes.values(), rank) == 4 * (rank * (64 + 147) + 64 + 12 + 1)
    assert sum(simulator.sent["all_reduce"]) == simulator.total
    assert simulator.total == 2 * (size - 1) * nbytes(shapes.values(), rank)
    for name, shape in shapes.items():
        assert all(np.array_equal(one[name], results[0][name]) for one in results)
        assert results[0][name].shape == shape and results[0][name].dtype == np.float32
    assert [*results[0]] == [*shapes]
    generators = [np.random.default_rng(rank) for rank in range(size)]
    for random in generators:
        random.standard_normal(shapes["w"])
    exact = np.mean([random.standard_normal(64) for random in generators], axis=0)
    assert np.allclose(results[0]["b"], exact, atol=1e-6)


def test_momentum_is_applied_after_the_mean() -> None:
    def worker(c: Communicator) -> list[float]:
        method = PowerSGD(c, momentum=0.5)
        x, path = {"x": np.zeros(1, np.float32)}, []
        for _ in range(3):
            method.step(x, {"x": np.float32([1 + 2 * c.rank])}, rate=0.25)  # the mean is 2
            path.append(float(x["x"][0]))
        return path

    # m is 2, 3, 3.5
    assert Simulator(2).run(worker) == [[-1.0, -2.25, -3.625]] * 2


def test_training_converges() -> None:
    size = 3
    random = np.random.default_rng(3)
    targets = [random.standard_normal((15, 12)) for _ in range(size)]

    def worker(c: Communicator, target: np.ndarray) -> np.ndarray:
        method = PowerSGD(c, rank=1, momentum=0.5)
        x = {"w": np.zeros((15, 12), np.float32)}
        for step in range(120):
            method.step(x, {"w": x["w"] - target}, rate=0.1 / (1 + step / 40))
        return x["w"]

    replicas = Simulator(size).run(worker, targets)
    assert all(np.array_equal(replicas[0], other) for other in replicas)
    optimum = np.mean(targets, axis=0)
    assert np.linalg.norm(replicas[0] - optimum) < 0.1 * np.linalg.norm(optimum)


def test_state_dict_round_trip() -> None:
    grads = gradients(2, 10, 12, noise=1.0)

    def worker(c: Communicator, x: np.ndarray) -> None:
        one, other = PowerSGD(c, rank=1), PowerSGD(c, rank=1, seed=9)
        at = [{"w": np.zeros(x.shape, np.float32), "b": np.zeros(2, np.float32)} for _ in range(2)]
        grads_by_name = {"w": x, "b": x[0, :2]}
        one.step(at[0], grads_by_name, 0.1)
        state = one.state_dict()
        names = ["momentum:b", "momentum:w", "place:rank", "place:size", "residual:w", "start:w"]
        assert sorted(state) == names
        other.load_state_dict(state)
        for name, values in at[0].items():
            at[1][name][...] = values
        for method, parameters in zip((one, other), at, strict=True):
            method.step(parameters, grads_by_name, 0.1)
        assert all(np.array_equal(at[0][name], at[1][name]) for name in grads_by_name)
        for wrong in (
            {"residual:w": state["residual:w"]},
            {"residual:w": state["residual:w"], "start:w": state["start:w"][:, 1:]},
            {"residual:b": x[0], "start:b": x[0]},
            {"other:w": x},
            {"momentum:w": np.float64(x)},
            state | {"momentum:w": x[:, 1:]},
        ):
            with pytest.raises(gcodec.ParameterError, match="state"):
                other.load_state_dict(wrong)
        with pytest.raises(gcodec.ParameterError, match="rank=3: must be 1, as in the run that"):
            PowerSGD(c, rank=3).load_state_dict(state)

    Simulator(2).run(worker, grads)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: PowerSGD(c, 0), "rank=0"),
        (lambda c: PowerSGD(c, momentum=1.5), "momentum=1.5"),
        (lambda c: PowerSGD(c, seed=-1), "seed=-1"),
        (
            lambda c: PowerSGD(c).average({"w": np.float32([1, math.nan])}),
            "gradients: 'w' of rank 0",
        ),
        (lambda c: PowerSGD(c).average({"w": np.full((9, 9), 3e38)}), "matrices: factors must"),
        (lambda c: PowerSGD(c).step({"w": np.ones(1)}, {}, 1), "gradients=[]"),
        (lambda c: PowerSGD(c).step({"w": np.ones(1)}, {"w": np.ones(1)}, 1), "w.dtype='float64'"),
        (lambda c: PowerSGD(c).step({}, {}, "x"), "rate='x'"),
        (
            lambda c: PowerSGD(c).step({"w": np.ones(1, np.float32)}, {"w": np.ones(1)}, 1e39),
            "rate",
        ),
        (lambda c: PowerSGD(c).residual("w"), "name='w'"),
    ],
)
def test_invalid_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError) as caught:
        Simulator(1).run(call)
    assert str(caught.value).startswith(message)
