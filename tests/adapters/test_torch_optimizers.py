"""DGC and 1-bit Adam as optimizers of torch: the same bits as the methods on arrays."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import gcodec.torch  # noqa: E402
from gcodec import training  # noqa: E402
from gcodec.errors import ParameterError  # noqa: E402
from gcodec.training import Simulator  # noqa: E402

DGC = {"density": 0.05, "momentum": 0.5, "warmup": 1, "min_size": 64, "clip": 1.0}
ADAM = {"warmup": 3, "min_size": 64}


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 20), torch.nn.Tanh(), torch.nn.Linear(20, 9))


def backward(model: Any, step: int, rank: int) -> dict[str, np.ndarray]:
    """Compute gradients that differ from rank to rank, and return copies."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 24, generator=generator)
    model.zero_grad()
    (model(x) - x[:, :9].tanh()).square().mean().backward()
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


def take_steps(optimizer: Any, model: Any, steps: int, rank: int) -> None:
    for step in range(steps):
        backward(model, step, rank)
        optimizer.step()


def values(model: Any) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def make(kind: str, model: Any, communicator: Any, **options: Any) -> Any:
    if kind == "dgc":
        return gcodec.torch.DGC(model, 0.1, **{**DGC, **options}, communicator=communicator)
    options = {"scale": "deepspeed" if kind == "deepspeed" else "l1", **ADAM, **options}
    return gcodec.torch.OneBitAdam(model, 0.01, **options, communicator=communicator)


def equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[n], second[n]) for n in first
    )


def test_dgc_takes_the_steps_of_the_method() -> None:
    def worker(communicator: Any) -> bool:
        model, options = network(), {**DGC, "clip": 0.1, "value": "bfloat16"}
        optimizer = make("dgc", model, communicator, **options)
        method, x = training.DGC(communicator, **options), values(model)
        for step in range(6):
            gradients = backward(model, step, communicator.rank)
            optimizer.epoch = step // 2
            optimizer.step()
            for name, mean in method.average(gradients, step // 2).items():
                x[name] = (
                    torch.from_numpy(x[name]).add_(torch.from_numpy(mean), alpha=-0.1)
                ).numpy()
        return equal(values(model), x)

    assert Simulator(3).run(worker) == [True] * 3


@pytest.mark.parametrize("scale", ["l1", "deepspeed"])
def test_onebit_adam_takes_the_steps_of_the_method(scale: str) -> None:
    def worker(communicator: Any) -> bool:
        model = network()
        optimizer = make(scale, model, communicator, betas=(0.8, 0.99), eps=1e-3)
        x, options = values(model), {**ADAM, "betas": (0.8, 0.99), "epsilon": 1e-3}
        method = training.OneBitAdam(communicator, scale=scale, **options)
        for step in range(7):
            gradients = backward(model, step, communicator.rank)
            optimizer.param_groups[0]["lr"] = rate = 0.01 / (1 + step)
            optimizer.step()
            method.step(x, gradients, rate)
        return equal(values(model), x)

    assert Simulator(3).run(worker) == [True] * 3


def test_warmup_of_onebit_adam_is_adam_of_torch() -> None:
    def worker(communicator: Any) -> bool:
        model, plain = network(), network()
        optimizer = make("adam", model, communicator, warmup=9)
        adam = torch.optim.Adam(plain.parameters(), lr=0.01)
        for step in range(5):
            backward(model, step, 0)
            backward(plain, step, 0)
            optimizer.step()
            adam.step()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)

    assert Simulator(2).run(worker) == [True] * 2


@pytest.mark.parametrize("kind", ["dgc", "adam", "deepspeed"])
def test_resumed_run_has_the_same_bits(kind: str, tmp_path: Any) -> None:
    def worker(communicator: Any) -> tuple[bool, list[float]]:
        model, losses = network(), []
        optimizer = make(kind, model, communicator)
        for step in range(8):
            if step == 5:
                path = tmp_path / f"{communicator.rank}.pt"
                torch.save([model.state_dict(), optimizer.state_dict()], path)
            gradients = backward(model, step, communicator.rank)
            losses.append(float(sum(np.square(g).sum() for g in gradients.values())))
            optimizer.step()
        again = network()
        other = make(kind, again, communicator)
        parts = torch.load(path, weights_only=True)
        again.load_state_dict(parts[0])
        other.load_state_dict(parts[1])
        for step in range(5, 8):
            backward(again, step, communicator.rank)
            other.step()
        return equal(values(model), values(again)), losses

    results = Simulator(2).run(worker)
    assert [same for same, _ in results] == [True] * 2


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_nan_of_one_rank_fails_all_and_changes_nothing(kind: str) -> None:
    def worker(communicator: Any) -> tuple[str, bool]:
        model = network()
        optimizer = make(kind, model, communicator)
        take_steps(optimizer, model, 4, communicator.rank)
        before, x = optimizer.method.state_dict(), values(model)
        backward(model, 4, communicator.rank)
        if communicator.rank == 1:
            model[0].weight.grad[0, 0] = float("nan")
        with pytest.raises(ParameterError) as caught:
            optimizer.step()
        same = equal(before, optimizer.method.state_dict()) and equal(x, values(model))
        return str(caught.value), same

    for error, same in Simulator(2).run(worker):
        assert error == "gradients: '0.weight' of rank 1 contains NaN or Inf"
        assert same


def test_half_precision_and_unused_parameters() -> None:
    def worker(communicator: Any) -> bool:
        model = network().bfloat16()
        optimizer = make("dgc", model, communicator)
        before = values(model.float())
        model.bfloat16()
        model[2].weight.grad = torch.ones_like(model[2].weight) * (communicator.rank + 1)
        optimizer.step()
        after = values(model.float())
        return equal({"0": before["0.weight"]}, {"0": after["0.weight"]}) and not equal(
            before, after
        )

    assert Simulator(2).run(worker) == [True] * 2


@pytest.mark.parametrize("kind", ["dgc", "adam", "diloco"])
def test_tied_weights_take_one_step(kind: str) -> None:
    def worker(communicator: Any) -> list[dict[str, np.ndarray]]:
        results = []
        for is_deduplicated in (True, False):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
            model[1].weight = model[0].weight
            named = list(model.named_parameters(remove_duplicate=is_deduplicated))
            if kind == "diloco":
                outer = torch.optim.SGD(model.parameters(), lr=1.0)
                options = {"every": 2, "min_numel": 64, "communicator": communicator}
                owner = gcodec.torch.DiLoCo(named, outer, "qsgd:s=1", **options)
            else:
                owner = make(kind, named, communicator)
            for step in range(4):
                model.zero_grad()
                model(torch.full((2, 9), step + 1.0)).square().mean().backward()
                if kind == "diloco":
                    torch.optim.SGD(model.parameters(), lr=0.1).step()
                owner.step()
            results.append(values(model))
        return results

    for expected, actual in Simulator(1).run(worker):
        assert equal(expected, actual)


class Elsewhere(torch.Tensor):
    """Tensor that, like one on a CUDA device, has no array of NumPy before it is copied."""

    def cpu(self) -> Any:
        return self.as_subclass(torch.Tensor)

    def numpy(self, **options: Any) -> Any:
        raise TypeError("the tensor is not on the host")

    __array__ = numpy


@pytest.mark.parametrize("kind", ["dgc", "adam", "diloco"])
def test_state_on_another_device_is_loaded(kind: str) -> None:
    def worker(communicator: Any) -> None:
        model = network()
        if kind == "diloco":
            outer = torch.optim.SGD(model.parameters(), lr=1.0)
            options = {"every": 2, "min_numel": 64, "communicator": communicator}
            owner = gcodec.torch.DiLoCo(model, outer, "topk", **options)
        else:
            owner = make(kind, model, communicator)
        for step in range(4):
            backward(model, step, communicator.rank)
            if kind == "diloco":
                torch.optim.SGD(model.parameters(), lr=0.1).step()
            owner.step()
        state = owner.state_dict()
        key = "feedback" if kind == "diloco" else "method"
        moved = {name: x.as_subclass(Elsewhere) for name, x in state[key].items()}
        owner.load_state_dict({**state, key: moved})
        for name, x in owner.state_dict()[key].items():
            assert torch.equal(x, state[key][name])

    Simulator(2).run(worker)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_loss_scaler_is_refused_on_all_ranks(kind: str) -> None:
    """A scaler skips the step of the rank with Inf only, and the others would wait for it."""

    def worker(communicator: Any) -> None:
        model = network()
        optimizer = make(kind, model, communicator)
        scaler = torch.amp.GradScaler("cpu")
        x = torch.full((2, 24), float("inf") if communicator.rank else 1.0)
        scaler.scale(model(x).sum()).backward()
        with pytest.raises(ParameterError, match="scaler='GradScaler'"):
            scaler.step(optimizer)
        backward(model, 0, communicator.rank)
        optimizer.step()

    Simulator(2).run(worker)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_sparse_gradients_have_the_bits_of_dense_ones(kind: str) -> None:
    def worker(communicator: Any) -> list[dict[str, np.ndarray]]:
        results = []
        for sparse in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Embedding(12, 4, sparse=sparse)
            optimizer = make(kind, model, communicator, min_size=0)
            for step in range(4):
                optimizer.zero_grad()
                rows = torch.tensor([step, communicator.rank, step])
                model(rows).square().sum().backward()
                optimizer.step()
            results.append(values(model))
        return results

    for dense, sparse in Simulator(2).run(worker):
        assert equal(dense, sparse)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_refused_state_changes_nothing(kind: str) -> None:
    def worker(communicator: Any) -> None:
        model, other = network(), torch.nn.Linear(24, 9)
        optimizers = [make(kind, each, communicator) for each in (model, other)]
        for each, optimizer in zip((model, other), optimizers, strict=True):
            backward(each, 0, communicator.rank)
            optimizer.step()
        before, foreign = (optimizer.state_dict()["method"] for optimizer in optimizers)
        resized = {key: x[..., :1] if x.ndim else x for key, x in before.items()}
        for method, message in (
            (before, "parameter group"),
            (foreign, ":bias': must be the [a-z]+ of a parameter of the model"),
            (resized, r":0\.bias'\]\.shape=\(1,\): must be \(20,\), as in the model"),
        ):
            with pytest.raises(ValueError, match=message):
                optimizers[0].load_state_dict({**optimizers[1].state_dict(), "method": method})
            after = optimizers[0].state_dict()["method"]
            assert after.keys() == before.keys()
            assert all(torch.equal(after[key], x) for key, x in before.items())

    Simulator(1).run(worker)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_parameters_of_ranks_are_compared(kind: str) -> None:
    """In the first step, and in the first one after a state was loaded."""

    def worker(communicator: Any) -> None:
        model = network()
        optimizer = make(kind, model, communicator)
        for step in range(2):
            kept, before = values(model), optimizer.state_dict()["method"]
            if communicator.rank == 1:
                model.load_state_dict({name: x * 2 for name, x in model.state_dict().items()})
            backward(model, step, communicator.rank)
            with pytest.raises(ParameterError) as caught:
                optimizer.step()
            assert str(caught.value) == (
                "parameters: ranks 0 and 1 have different ones; start all ranks with the same "
                "seed or checkpoint, and freeze the same parameters on all ranks"
            )
            after = optimizer.state_dict()["method"]
            assert all(torch.equal(after[key], x) for key, x in before.items())
            model.load_state_dict({name: torch.from_numpy(x) for name, x in kept.items()})
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())

    Simulator(2).run(worker)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_learning_rates_of_ranks_are_compared(kind: str) -> None:
    def worker(communicator: Any) -> bool:
        model = network()
        optimizer = make(kind, model, communicator)
        before = values(model)
        backward(model, 0, communicator.rank)
        optimizer.param_groups[0]["lr"] = 0.25 * (1 + communicator.rank)
        with pytest.raises(ParameterError, match=r'"rate": 0.25.* on rank 0, and .*"rate": 0.5'):
            optimizer.step()
        return equal(values(model), before)

    assert Simulator(2).run(worker) == [True] * 2


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_ranks_compare_parameters_once(kind: str) -> None:
    def worker(communicator: Any) -> list[bool]:
        model, sent = network(), list[int]()

        def all_gather(message: bytes) -> list[bytes]:
            sent.append(len(message))
            return communicator.all_gather(message)

        relay = SimpleNamespace(
            rank=communicator.rank,
            size=communicator.size,
            all_gather=all_gather,
            all_reduce=communicator.all_reduce,
        )
        optimizer, compared = make(kind, model, relay), []
        for step in range(3):
            sent.clear()
            backward(model, step, communicator.rank)
            optimizer.step()
            compared.append(sent[0] > 0)
        return compared

    assert Simulator(2).run(worker) == [[True, False, False]] * 2


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_closure_computes_gradients_and_the_loss(kind: str) -> None:
    """Also where the caller has disabled gradients."""

    def worker(communicator: Any) -> list[dict[str, np.ndarray]]:
        results = []
        for has_closure in (False, True):
            model = network()
            optimizer = make(kind, model, communicator)

            def closure(model: Any = model) -> Any:
                model.zero_grad()
                loss = model(torch.ones(2, 24)).square().mean()
                loss.backward()
                return loss

            for _ in range(2):
                if has_closure:
                    with torch.no_grad():
                        assert optimizer.step(closure) > 0
                else:
                    closure()
                    assert optimizer.step() is None
            results.append(values(model))
        return results

    for plain, computed in Simulator(1).run(worker):
        assert equal(plain, computed)


@pytest.mark.parametrize("kind", ["dgc", "adam", "deepspeed"])
def test_state_of_other_ranks_is_refused(kind: str) -> None:
    def train(communicator: Any) -> dict[str, Any]:
        model = network()
        optimizer = make(kind, model, communicator)
        take_steps(optimizer, model, 5, communicator.rank)
        return optimizer.state_dict()

    four = Simulator(4).run(train)

    def resume(communicator: Any) -> dict[str, np.ndarray]:
        model, rank = network(), communicator.rank
        optimizer = make(kind, model, communicator)
        with pytest.raises(ParameterError, match=r"state\['size'\]=4: must be 2 ranks, because"):
            optimizer.load_state_dict(four[rank])
        with pytest.raises(ParameterError, match=rf"state\['rank'\]={1 - rank}: must be {rank}, "):
            optimizer.load_state_dict(two[1 - rank])
        means = {k: x for k, x in two[1 - rank]["method"].items() if not k.startswith("worker:")}
        with pytest.raises(ParameterError, match=rf"state\['rank'\]={1 - rank}: must be {rank}, "):
            optimizer.load_state_dict(two[rank] | {"method": means})
        with pytest.raises(ParameterError, match="state: place:rank and place:size must be int"):
            optimizer.load_state_dict(two[rank] | {"method": two[rank]["method"] | wrong})
        # States of former versions have no place.
        former = {key: x for key, x in two[rank]["method"].items() if key not in place}
        optimizer.load_state_dict(two[rank] | {"method": former})
        # What all ranks share fits any number of them.
        kinds = ("worker:", "server:", "velocity:", "residual:")
        common = {key: x for key, x in four[0]["method"].items() if not key.startswith(kinds)}
        optimizer.load_state_dict(four[0] | {"method": common})
        take_steps(optimizer, model, 2, rank)
        return values(model)

    two, place, wrong = Simulator(2).run(train), ("place:rank", "place:size"), {"place:size": 2.5}
    first, second = Simulator(2).run(resume)
    assert equal(first, second)


@pytest.mark.parametrize("kind", ["dgc", "adam", "deepspeed"])
def test_frozen_parameters_stay(kind: str) -> None:
    """Their momenta would move them further."""

    def worker(communicator: Any) -> dict[str, np.ndarray]:
        model = network()
        optimizer = make(kind, model, communicator)
        take_steps(optimizer, model, 4, communicator.rank)
        model[0].requires_grad_(False)
        before = values(model)
        for step in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 24) * (step + communicator.rank)).square().sum().backward()
            optimizer.step()
        after = values(model)
        assert all(np.array_equal(after[n], before[n]) == n.startswith("0.") for n in before)
        return after

    first, second = Simulator(2).run(worker)
    assert equal(first, second)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_functions_that_would_drop_state_are_refused(kind: str) -> None:
    """They also take a step of zeros to make the state of an optimizer that has none."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    def worker(communicator: Any) -> None:
        model = network()
        optimizer = make(kind, model, communicator)
        take_steps(optimizer, model, 5, communicator.rank)
        optimizer.zero_grad()
        before = optimizer.state_dict()
        former = before | {"state": {}}  # of former versions
        for _ in range(2):
            with pytest.raises(KeyError, match=r"save this state_dict by torch\.save: "):
                get_optimizer_state_dict(model, optimizer)
            after = optimizer.state_dict()["method"]
            assert all(torch.equal(after[key], x) for key, x in before["method"].items())
            optimizer.load_state_dict(former)

    Simulator(1).run(worker)


@pytest.mark.parametrize("kind", ["dgc", "adam", "diloco"])
def test_compiled_functions_do_not_trace_steps(kind: str) -> None:
    def worker(communicator: Any) -> list[dict[str, np.ndarray]]:
        results = []
        for compiled in (False, True):
            model = network()
            if kind == "diloco":
                outer = torch.optim.SGD(model.parameters(), lr=1.0)
                options = {"every": 2, "min_numel": 64, "communicator": communicator}
                owner = gcodec.torch.DiLoCo(model, outer, "sign", **options)
            else:
                owner = make(kind, model, communicator)

            def train(x: Any, model: Any = model, owner: Any = owner) -> None:
                model.zero_grad()
                model(x).square().mean().backward()
                if kind == "diloco":
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter -= 0.1 * parameter.grad
                owner.step()

            run = torch.compile(train, backend="eager") if compiled else train
            for step in range(5):
                run(torch.full((2, 24), step + 1.0))
            results.append(values(model))
        return results

    for plain, compiled in Simulator(1).run(worker):
        assert equal(plain, compiled)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
@pytest.mark.parametrize("steps", [2, 5])
def test_parameters_that_one_rank_freezes_are_refused(kind: str, steps: int) -> None:
    """The ranks would send arrays of other sizes; during the warm-up, gloo ends the process."""

    def worker(communicator: Any) -> None:
        model = network()
        optimizer = make(kind, model, communicator)
        take_steps(optimizer, model, steps, communicator.rank)
        for ranks, message in ((1, "parameters: ranks 0 and 1 have different ones"), (2, "")):
            model[0].requires_grad_(communicator.rank < 2 - ranks)
            optimizer.zero_grad()
            model(torch.ones(1, 24)).sum().backward()
            if message:
                with pytest.raises(ParameterError, match=message):
                    optimizer.step()
            else:
                optimizer.step()

    Simulator(2).run(worker)


@pytest.mark.parametrize("kind", ["dgc", "adam"])
def test_copies_are_refused(kind: str) -> None:
    def worker(communicator: Any) -> None:
        optimizer = make(kind, network(), communicator)
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither pickled nor copied; save its state_dict"):
                copied(optimizer)

    Simulator(1).run(worker)


def test_invalid_arguments() -> None:
    def worker(communicator: Any) -> None:
        model = network()
        optimizer = make("dgc", model, communicator)
        with pytest.raises(ParameterError, match="param_group"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        for state in ({}, {"method": 5}):
            with pytest.raises(ParameterError, match="state_dict"):
                optimizer.load_state_dict(state)
        with pytest.raises(ParameterError, match="lr"):
            gcodec.torch.DGC(model, "fast", communicator=communicator)
        before = values(model)
        backward(model, 0, 0)
        optimizer.param_groups[0]["lr"] = float("nan")
        with pytest.raises(ParameterError, match="lr=nan"):
            optimizer.step()
        assert equal(values(model), before)
        optimizer.param_groups[0]["lr"] = 0.1
        with pytest.raises(ParameterError, match="model"):
            gcodec.torch.DGC(5, 0.1, communicator=communicator)
        twice = [("w", p) for p in network()[0].parameters()]
        with pytest.raises(ParameterError, match="two parameters have the name 'w'"):
            make("dgc", twice, communicator)
        with pytest.raises(ParameterError, match="scale"):
            make("adam", model, communicator, scale="l3")
        with pytest.raises(ParameterError, match="dtype"):
            make("adam", network().double(), communicator)

    Simulator(1).run(worker)


def test_only_whole_parts_of_names_are_those_of_wrappers() -> None:
    from gcodec.torch.names import unwrapped

    assert unwrapped("_orig_mod.a._checkpoint_wrapped_module.w") == "a.w"
    assert unwrapped("_orig_mod") == ""
    assert unwrapped("my_orig_mod.w") == "my_orig_mod.w"
