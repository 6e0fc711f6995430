"""Deep gradient compression: sent elements, accumulators, and convergence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import f32

import gcodec
from gcodec.training import DGC, Communicator, Simulator


class Alone:
    """Rank 0 of a group whose other members send nothing."""

    def __init__(self, size: int = 1) -> None:
        self.rank, self.size = 0, size

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message]


def method(size: int = 1, **settings: Any) -> DGC:
    return DGC(Alone(size), **settings)  # type: ignore[arg-type]


def test_steps_of_worked_example() -> None:
    dgc = method(density=0.25, momentum=0.5, warmup=0)
    sent = [gcodec.decode(dgc.compress({"w": f32(4, -3, 2, 1)}, 0)[0]).tolist() for _ in range(4)]
    # First, u and v are (4 -3 2 1), and (0 -3 2 1) after 4 is sent; then u is (4 -4.5 3 1.5), and
    # v is (4 -7.5 5 2.5); and so on.
    assert sent == [[4, 0, 0, 0], [0, -7.5, 0, 0], [10, 0, 0, 0], [0, 0, 12.25, 0]]
    assert dgc.velocity("w").tolist() == [4, -4.5, 0, 1.875]
    assert dgc.residual("w").tolist() == [4, -7.5, 0, 6.125]


@pytest.mark.parametrize(
    ("density", "warmup", "expected"),
    [
        (0.001, 4, [0.2512, 0.0631, 0.01585, 0.00398, 0.001, 0.001]),
        (0.25**5, 4, [0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625, 0.0009765625]),
        (0.01, 0, [0.01, 0.01]),
        (1.0, 3, [1, 1, 1, 1, 1]),
    ],
)
def test_density_during_warmup(density: float, warmup: int, expected: list[float]) -> None:
    dgc = method(density=density, warmup=warmup)
    densities = [dgc.density_at(epoch) for epoch in range(len(expected))]
    assert densities == pytest.approx(expected, rel=2e-3)
    assert densities[warmup] == dgc.density_at(10**9) == density


@given(
    st.integers(1, 400),
    st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]),
    st.sampled_from(["normal", "equal", "zeros"]),
    st.integers(0, 2**32 - 1),
)
def test_sends_k_elements_and_keeps_the_others(
    n: int, density: float, kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    dgc = method(density=density, warmup=0)
    velocity, residual = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for _ in range(4):
        x = {"normal": random.standard_normal(n), "equal": np.ones(n), "zeros": np.zeros(n)}[kind]
        x = x.astype(np.float32)
        frame = gcodec.Frame.from_bytes(dgc.compress({"w": x}, 0)[0])
        positions, values = frame.decode_sparse()
        assert positions.size == min(n, max(1, round(density * n)))
        velocity = np.float32(0.9) * velocity + x
        total = residual + velocity
        residual, velocity = total.copy(), velocity.copy()
        residual[positions] = velocity[positions] = 0
        assert np.array_equal(dgc.residual("w"), residual)
        assert np.array_equal(dgc.velocity("w"), velocity)
        assert np.array_equal(gcodec.decode(frame.to_bytes()) + residual, total)  # bit for bit
        assert np.array_equal(values, total[positions])
        smallest = np.abs(values).min()
        assert (np.abs(residual) <= smallest).all()


@pytest.mark.parametrize("value", ["bfloat16", "int8", "sign"])
def test_rounding_error_stays_in_residual(value: str) -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    dgc = method(density=0.1, warmup=0, value=value)
    frame = dgc.compress({"w": x}, 0)[0]
    assert np.abs(gcodec.decode(frame) + dgc.residual("w") - x).max() < 1e-6
    sent = gcodec.decode_sparse(frame)[0]
    assert sent.size == 100 and (dgc.velocity("w")[sent] == 0).all()
    assert np.abs(dgc.residual("w")[sent]).max() > 0


def test_clipping_bounds_norm_over_all_tensors() -> None:
    gradients = {"a": f32(30, 0), "b": f32(0, 40)}  # the norm is 50
    for size, clip, factor in ((1, 5.0, 0.1), (4, 5.0, 0.05), (1, 50.0, 1), (4, math.inf, 1)):
        dgc = method(size, density=1.0, clip=clip)
        first, second = map(gcodec.decode, dgc.compress(gradients, 0))
        assert np.allclose([*first, *second], np.float32([30, 0, 0, 40]) * factor)
    # The accumulators are not clipped.
    late = method(density=0.5, warmup=0, momentum=0.0, clip=1.0)
    sent = [gcodec.decode(late.compress({"w": f32(0.75, 0.5)}, 0)[0]).tolist() for _ in range(3)]
    assert sent == [[0.75, 0], [0, 1.0], [1.5, 0]]


def test_momentum_matches_dense_training() -> None:
    """Compare the residuals of elements that were never sent with dense momentum."""
    n, momentum = 50, 0.9
    random = np.random.default_rng(5)
    dgc = method(density=0.1, warmup=0, momentum=momentum)
    sent, moved, velocity = np.zeros(n), np.zeros(n), np.zeros(n)
    never = np.ones(n, bool)
    for _ in range(8):
        x = random.standard_normal(n).astype(np.float32)
        frame = dgc.compress({"w": x}, 0)[0]
        sent += gcodec.decode(frame)
        never[gcodec.decode_sparse(frame)[0]] = False
        velocity = momentum * velocity + x
        moved += velocity
    assert never.any() and not never.all()
    assert np.allclose(dgc.residual("w")[never], moved[never], atol=1e-5)


def test_small_tensors_are_sent_dense() -> None:
    dgc = method(density=0.1, warmup=0, min_size=4, momentum=0.5)
    for step in range(3):
        small, large = dgc.compress({"b": f32(1, 2, 3), "w": f32(1, 2, 3, 4)}, 0)
        assert gcodec.decode(small).tolist() == [v * (2 - 0.5**step) for v in (1, 2, 3)]
        assert gcodec.decode_sparse(large)[0].size == 1
    assert dgc.residual("b").tolist() == [0, 0, 0]


def test_tensor_that_is_small_now_sends_its_residual() -> None:
    """As after a resumption with another `min_size`: all velocities are sent once."""
    large = method(density=0.25, warmup=0, momentum=0)
    [first] = large.compress({"w": f32(1, 2, 3, 4)}, 0)
    small = method(density=0.25, warmup=0, momentum=0, min_size=5)
    small.load_state_dict(large.state_dict())
    for expected in ([6, 7, 8, 5], [5, 5, 5, 5]):
        [second] = small.compress({"w": f32(5, 5, 5, 5)}, 0)
        assert gcodec.decode(first).tolist() == [0, 0, 0, 4]
        assert gcodec.decode(second).tolist() == expected
        assert not small.residual("w").any()


def test_replicas_agree_and_train() -> None:
    size, n, steps = 3, 100, 120
    targets = np.random.default_rng(0).standard_normal((size, n))

    def worker(c: Communicator, target: np.ndarray) -> np.ndarray:
        dgc = DGC(c, density=0.05, warmup=2, momentum=0.5, clip=20.0)
        x = np.zeros(n, np.float32)
        for step in range(steps):
            gradient = (x - target).astype(np.float32)
            rate = np.float32(0.1 / (1 + step / 30))
            x -= rate * dgc.average({"x": gradient}, step // 10)["x"]
        return x

    simulator = Simulator(size)
    replicas = simulator.run(worker, targets)
    assert all(np.array_equal(replicas[0], other) for other in replicas[1:])
    optimum = targets.mean(axis=0)
    assert np.linalg.norm(replicas[0] - optimum) < 0.2 * np.linalg.norm(optimum)
    assert simulator.total < 0.25 * steps * size * (size - 1) * 4 * n


def test_state_dict_round_trip() -> None:
    x = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float32)
    one, other = method(density=0.1), method(density=0.1)
    one.compress({"w": x}, 0)
    state = one.state_dict()
    assert sorted(state) == ["place:rank", "place:size", "residual:w", "velocity:w"]
    other.load_state_dict(state)
    state["residual:w"][:] = 7  # a copy
    assert one.compress({"w": x}, 1) == other.compress({"w": x}, 1)
    for wrong in (
        {"residual:w": x},
        {"velocity:w": x, "residual:w": x[0]},
        {"velocity:w": x, "residual:w": x.astype(np.float64)},
        {"momentum:w": x},
        {1: x},
    ):
        with pytest.raises(gcodec.ParameterError, match="state"):
            other.load_state_dict(wrong)  # type: ignore[arg-type]
    assert np.array_equal(one.residual("w"), other.residual("w"))
    with pytest.raises(ValueError, match="read-only"):
        one.residual("w")[0] = 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: method(density=0), "density=0"),
        (lambda: method(density=1.5), "density=1.5"),
        (lambda: method(momentum=1), "momentum=1"),
        (lambda: method(momentum=math.nan), "momentum=nan"),
        (lambda: method(clip=0), "clip=0"),
        (lambda: method(clip=math.nan), "clip=nan"),
        (lambda: method(warmup=-1), "warmup=-1"),
        (lambda: method(min_size=0.5), "min_size=0.5"),
        (lambda: method(value="float8"), "value='float8'"),
        (lambda: method().average({}, -1), "epoch=-1"),
        (lambda: method().average({}, 0, parameters="w"), "parameters='w'"),
        (lambda: method().average({}, 0, parameters={}, rate="1"), "rate='1'"),
        (lambda: method().average({}, 0, parameters={}, rate=math.inf), "rate=inf"),
        (lambda: method().residual("w"), "name='w'"),
    ],
)
def test_invalid_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError) as caught:
        call()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("rate", [np.float32(0.5), np.int64(1), 1])
def test_rates_of_numpy_are_compared(rate: Any) -> None:
    def work(communicator: Communicator) -> dict[str, np.ndarray]:
        dgc, w = DGC(communicator, density=1, warmup=0), f32(1, 2)
        return dgc.average({"w": w}, 0, parameters={"w": w}, rate=rate)

    for means in Simulator(2).run(work):
        assert means["w"].tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_refused_step_changes_no_state(wrong: float) -> None:
    dgc = method(density=0.5)
    dgc.compress({"a": f32(1, 2), "b": f32(3, 4)}, 0)
    before = dgc.state_dict()
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        dgc.compress({"a": f32(1, 2), "b": f32(3, wrong)}, 0)
    with pytest.raises(gcodec.ParameterError, match=r"b.shape=\(3,\): must be \(2,\)"):
        dgc.compress({"a": f32(1, 2), "b": f32(1, 2, 3)}, 0)
    after = dgc.state_dict()
    assert all(np.array_equal(before[key], after[key]) for key in before)
