"""DiLoCo: replicas, feedback, fragments, groups that change, and checkpoints."""

from __future__ import annotations

import copy
import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from rank_processes import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")

import gcodec  # noqa: E402
import gcodec.torch  # noqa: E402
from gcodec.errors import GcodecError, ParameterError  # noqa: E402
from gcodec.torch import diloco  # noqa: E402
from gcodec.torch.messages import BucketCoder  # noqa: E402
from gcodec.training import Simulator  # noqa: E402

SETTINGS = {"every": 3, "min_numel": 64}


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(24, 20), torch.nn.Tanh(), torch.nn.Linear(20, 9))


class Worker:
    """A replica with an inner optimizer, an outer one, and data of its own."""

    def __init__(
        self,
        communicator: Any,
        codec: Any = "ecsq:bits=2",
        outer: Any = None,
        kind: Any = torch.optim.SGD,
        **options: Any,
    ) -> None:
        self.rank = communicator.rank
        self.model = network(self.rank)
        self.inner = torch.optim.Adam(self.model.parameters(), lr=0.01)
        outer = outer or {"lr": 0.7, "momentum": 0.9, "nesterov": True}
        optimizer = kind(self.model.parameters(), **outer)
        settings = {**SETTINGS, "communicator": communicator, **options}
        self.diloco = gcodec.torch.DiLoCo(self.model, optimizer, codec, **settings)

    def local_step(self, step: int) -> float:
        generator = torch.Generator().manual_seed(100 * step + self.rank)
        x = torch.randn(16, 24, generator=generator)
        self.inner.zero_grad()
        loss = (self.model(x) - x[:, :9].tanh()).square().mean()
        loss.backward()
        self.inner.step()
        return float(loss.detach())

    def train(self, steps: Sequence[int]) -> list[float]:
        losses = []
        for step in steps:
            losses.append(self.local_step(step))
            self.diloco.step()
        return losses

    def values(self) -> dict[str, np.ndarray]:
        return {name: p.detach().numpy().copy() for name, p in self.model.named_parameters()}


def train_on(communicator: Any, own: Worker, steps: Sequence[int]) -> None:
    """Train in another run of the simulator, with the same members."""
    own.diloco._communicator = communicator
    own.train(steps)


def equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


def run(size: int, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
    return Simulator(size).run(function, *arguments)


@pytest.mark.parametrize(
    ("codec", "outer", "options"),
    [
        ("ecsq:bits=2", None, {}),
        ("lowrank:nmse=0.5", None, {}),
        ("qsgd:s=7,bucket=64", None, {}),
        # Settings like SparseLoCo's: few values of few bits, decaying feedback, plain outer SGD.
        ("topk:ratio=0.05,value=int8", {"lr": 1.0}, {"decay": 0.95}),
    ],
)
def test_outer_step_is_that_of_the_mean_of_feedback(
    codec: str, outer: Any, options: dict[str, Any]
) -> None:
    """The replicas have the same bits after each exchange, and those of a loop by hand."""

    def worker(communicator: Any) -> Any:
        own = Worker(communicator, codec, outer, **options)
        starts, exchanged = [own.values()], []
        for step in range(9):
            own.local_step(step)
            exchanged.append(own.values())
            own.diloco.step()
            if step % 3 == 2:
                starts.append(own.values())
        residuals = {n: own.diloco.residual(n).numpy() for n in ("0.weight", "2.weight")}
        return starts, exchanged, residuals, repr(own.diloco)

    workers = run(3, worker)
    reference = network(0)
    optimizer = torch.optim.SGD(
        reference.parameters(), **(outer or {"lr": 0.7, "momentum": 0.9, "nesterov": True})
    )
    memories = [gcodec.Feedback(codec, rank=rank, **options) for rank in range(3)]
    for index in range(3):
        for starts, *_ in workers:
            assert equal(starts[index], dict(named(reference)))
        for name, parameter in reference.named_parameters():
            mean = np.zeros(tuple(parameter.shape), np.float32)
            for (_, exchanged, *_), memory in zip(workers, memories, strict=True):
                difference = parameter.detach().numpy() - exchanged[3 * index + 2][name]
                frame = gcodec.encode(difference, "raw")
                if name.endswith("weight"):
                    frame = memory.compress(name, difference)
                gcodec.decode_add(frame, mean, np.float32(1 / 3))
            parameter.grad = torch.from_numpy(mean)
        optimizer.step()
    for rank, (starts, _, residuals, text) in enumerate(workers):
        assert equal(starts[3], dict(named(reference)))
        for name, residual in residuals.items():
            np.testing.assert_array_equal(residual, memories[rank].residual(name))
        assert "every 3, inner step 9, outer step 3" in text


def named(model: Any) -> list[tuple[str, np.ndarray]]:
    return [(name, p.detach().numpy()) for name, p in model.named_parameters()]


@pytest.mark.parametrize("codec", ["raw", "ecsq:bits=2", "lowrank:nmse=0.5"])
def test_parameters_without_elements_reach_other_workers(codec: str) -> None:
    def worker(communicator: Any) -> list[tuple[str, np.ndarray]]:
        own = network(communicator.rank)
        own.empty = torch.nn.Parameter(torch.zeros(0, 4))
        own.view = torch.nn.Parameter(torch.from_numpy(np.zeros(0, np.float32)))  # of stride 0
        own.scalar = torch.nn.Parameter(torch.tensor(1.0 + communicator.rank))
        outer = torch.optim.SGD(own.parameters(), lr=1.0)
        diloco = gcodec.torch.DiLoCo(own, outer, codec, every=1, communicator=communicator)
        with torch.no_grad():
            for parameter in own.parameters():
                parameter += 1 + communicator.rank
        diloco.step()
        return named(own)

    for (name, first), (_, second) in zip(*run(2, worker), strict=True):
        assert np.array_equal(first, second), name


@pytest.mark.parametrize("codec", ["raw", "ecsq:bits=2", "lowrank:nmse=0.5"])
def test_training_learns(codec: str) -> None:
    def worker(communicator: Any) -> Any:
        outer = {"lr": 0.7, "momentum": 0.5, "nesterov": True}
        own = Worker(communicator, codec, outer)
        losses = own.train(range(90))
        return losses, own.diloco.sent_nbytes, own.diloco.dense_nbytes

    losses, sent, dense = run(2, worker)[0]
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    if codec != "raw":
        assert sent < 0.5 * dense


def test_fragments_are_exchanged_at_different_steps() -> None:
    def worker(communicator: Any) -> Any:
        own = Worker(communicator, fragments=[["0.*"], ["2.*"]], every=4)
        seen = []
        for step in range(8):
            own.local_step(step)
            before = own.values()
            own.diloco.step()
            after = own.values()
            moved = {name[0] for name in before if not np.array_equal(before[name], after[name])}
            seen.append((sorted(moved), after))
        return seen

    first, second = run(2, worker)
    assert [moved for moved, _ in first] == [[], ["0"], [], ["2"]] * 2
    for (moved, values), (_, others) in zip(first, second, strict=True):
        for name in values:
            assert np.array_equal(values[name], others[name]) == (name[0] in moved)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([4, 4, 4, 4], 2, ["01", "23"]),
        ([9, 1], 2, ["0", "1"]),
        ([9, 1, 1], 3, ["0", "12"]),  # one would be empty
        ([2, 2, 0], 2, ["0", "12"]),
        ([0, 0], 2, ["01"]),
        ([], 1, []),
    ],
)
def test_fragments_have_about_equal_sizes(
    sizes: list[int], count: int, expected: list[str]
) -> None:
    parameters = {str(index): torch.zeros(size) for index, size in enumerate(sizes)}
    assert diloco._fragments_of(parameters, count) == [[*names] for names in expected]


def test_mean_is_used_when_the_overlap_has_passed() -> None:
    """The exchanges begin in steps 4 and 8, and take two steps."""

    def worker(communicator: Any) -> list[int]:
        own, seen = Worker(communicator, every=4, overlap=2), []
        for step in range(12):
            own.train([step])
            seen.append(own.diloco.outer_step)
        return seen

    assert run(1, worker) == [[0] * 5 + [1] * 4 + [2] * 3]


def test_nan_of_one_worker_fails_all_and_changes_nothing() -> None:
    def worker(communicator: Any) -> Any:
        own = Worker(communicator)
        own.train(range(3))
        before = copy.deepcopy(own.diloco.state_dict())
        for step in (3, 4):
            own.local_step(step)
            own.diloco.step()
        if communicator.rank == 1:
            with torch.no_grad():
                own.model[0].weight[0, 0] = float("nan")
        with pytest.raises(GcodecError) as caught:
            own.diloco.step()
        after = own.diloco.state_dict()
        own.diloco.restore()
        restored = own.values()
        own.train(range(6, 9))
        return before, after, restored, own.values(), str(caught.value)

    workers = run(2, worker)
    for before, after, restored, last, error in workers:
        assert error == (
            "DiLoCo: outer step 1, fragment 0: the pseudo-gradient of '0.weight' contains NaN or "
            "Inf, on rank 1"
        )
        assert (before["outer_step"], after["outer_step"]) == (1, 1)
        for part in ("outer", "feedback"):
            assert all(torch.equal(before[part][n], after[part][n]) for n in after[part])
        assert equal(restored, workers[0][2])
        assert equal(last, workers[0][3])
        assert all(np.isfinite(x).all() for x in last.values())


@pytest.mark.parametrize("key", [None, b"a secret"])
def test_workers_leave_and_join(key: bytes | None) -> None:
    """The worker that joins receives the outer state; the others continue where they were."""
    survivors = run(3, lambda c: Worker(c, key=key))
    run(3, lambda c, own: train_on(c, own, range(7)), survivors)
    local = [own.values() for own in survivors]
    residuals = [own.diloco.residual("0.weight") for own in survivors]

    def regroup(communicator: Any, own: Worker | None) -> Worker:
        if own is None:
            return Worker(communicator, key=key)
        own.diloco.regroup(communicator)
        return own

    # Rank 1 leaves; a new worker takes rank 0.
    members = run(3, regroup, [None, survivors[0], survivors[2]])
    joined = members[0]
    assert (joined.diloco.inner_step, joined.diloco.outer_step) == (7, 2)
    outer = [own.diloco.state_dict()["outer"] for own in members]
    assert all(torch.equal(outer[0][n], x[n]) for x in outer for n in x)
    assert equal(joined.values(), {name: x.numpy() for name, x in outer[0].items()})
    for own, values, residual in zip(members[1:], local[::2], residuals[::2], strict=True):
        assert equal(own.values(), values)
        assert torch.equal(own.diloco.residual("0.weight"), residual)
    run(3, lambda c, own: train_on(c, own, range(7, 12)), members)
    assert equal(members[0].values(), members[1].values())
    assert equal(members[0].values(), members[2].values())


class Counting(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer whose state contains numbers, of which its steps make use."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                parameter.grad /= state["count"]
        super().step()


@pytest.mark.parametrize(
    ("kind", "outer"),
    [(torch.optim.Adam, {"lr": 0.1}), (Counting, {"lr": 0.7, "momentum": 0.9})],
)
def test_worker_that_joins_receives_the_state_of_other_outer_optimizers(
    kind: Any, outer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deep(seed: int) -> Any:  # from ten parameters on, their numbers sort otherwise as texts
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(12, 12) for _ in range(4)]
        return torch.nn.Sequential(torch.nn.Linear(24, 12), *layers, torch.nn.Linear(12, 9))

    monkeypatch.setattr(sys.modules[__name__], "network", deep)
    survivors = run(2, lambda c: Worker(c, outer=outer, kind=kind))
    run(2, lambda c, own: train_on(c, own, range(6)), survivors)

    def regroup(communicator: Any, own: Worker | None) -> Worker:
        if own is None:
            return Worker(communicator, outer=outer, kind=kind)
        own.diloco.regroup(communicator)
        return own

    members = run(3, regroup, [None, *survivors])
    run(3, lambda c, own: train_on(c, own, range(6, 12)), members)
    assert equal(members[0].values(), members[1].values())


def test_workers_with_the_same_state_do_not_send_it() -> None:
    def worker(communicator: Any) -> int:
        own = Worker(communicator)
        own.train(range(3))
        before = own.diloco.sent_nbytes
        own.diloco.regroup(communicator)
        return own.diloco.sent_nbytes - before

    assert run(2, worker) == [0, 0]


def test_worker_that_missed_an_outer_step_receives_it() -> None:
    """Only one worker got all messages; the others' messages count as sent."""
    workers = run(2, Worker)

    def train(communicator: Any, own: Worker) -> None:
        train_on(communicator, own, range(2))
        own.local_step(2)
        if communicator.rank == 1:
            own.diloco._communicator = Broken(communicator)
            with pytest.raises(GcodecError, match="outer step 0, fragment 0: the cable is cut"):
                own.diloco.step()
            with pytest.raises(GcodecError, match="call regroup first"):
                own.diloco.step()
        else:
            own.diloco.step()

    run(2, train, workers)
    with pytest.raises(GcodecError, match="outer step 0, fragment 0: the cable is cut"):
        workers[1].diloco.state_dict()
    assert not equal(workers[0].values(), workers[1].values())
    run(2, lambda c, own: own.diloco.regroup(c), workers)
    assert equal(workers[0].values(), workers[1].values())
    steps = [int(own.diloco.state_dict()["feedback"]["step:0.weight"]) for own in workers]
    assert steps == [1, 1]
    run(2, lambda c, own: train_on(c, own, range(3, 6)), workers)
    assert equal(workers[0].values(), workers[1].values())


class Broken:
    """A communicator whose messages arrive, but which fails before it returns.

    Before, it works for a number of whole collectives.
    """

    def __init__(self, communicator: Any, whole: int = 0) -> None:
        self._communicator, self._whole = communicator, whole
        self.rank, self.size = communicator.rank, communicator.size

    def all_gather(self, message: bytes) -> list[bytes]:
        messages: list[bytes] = self._communicator.all_gather(message)
        self._whole -= 1
        if self._whole < 0:
            raise OSError("the cable is cut")
        return messages


def test_failed_exchange_is_repeated() -> None:
    """No worker got the messages, so their feedback returns to the state before."""
    workers, twins = run(2, Worker), run(2, Worker)

    def train(communicator: Any, own: Worker) -> None:
        train_on(communicator, own, range(2))
        own.local_step(2)
        own.diloco._communicator = Broken(communicator)
        with pytest.raises(GcodecError):
            own.diloco.step()

    run(2, train, workers)
    run(2, lambda c, own: own.diloco.regroup(c), workers)
    run(2, lambda c, own: train_on(c, own, range(3)), twins)
    for own, twin in zip(workers, twins, strict=True):
        assert equal(own.values(), twin.values())
        assert torch.equal(own.diloco.residual("0.weight"), twin.diloco.residual("0.weight"))


def test_exchange_that_fails_while_it_is_repeated() -> None:
    """All fragments that were due are exchanged once, when a group is complete at last."""
    workers, twins = (run(2, lambda c: Worker(c, every=1, fragments=2)) for _ in range(2))

    def fail(communicator: Any, own: Worker) -> None:
        own.local_step(0)
        own.diloco._communicator = Broken(communicator)
        with pytest.raises(GcodecError, match="outer step 0, fragment 0: the cable is cut"):
            own.diloco.step()

    def fail_again(communicator: Any, own: Worker) -> None:
        with pytest.raises(GcodecError, match="outer step 0, fragment 0: the cable is cut"):
            own.diloco.regroup(Broken(communicator, whole=2))

    run(2, fail, workers)
    run(2, fail_again, workers)
    run(2, lambda c, own: own.diloco.regroup(c), workers)
    run(2, lambda c, own: train_on(c, own, range(1)), twins)
    for own, twin in zip(workers, twins, strict=True):
        assert own.diloco.outer_step == twin.diloco.outer_step == 2
        assert equal(own.values(), twin.values())


def test_worker_that_joins_before_the_first_exchange_continues_with_the_others() -> None:
    survivors = run(2, Worker)
    run(2, lambda c, own: train_on(c, own, range(2)), survivors)

    def regroup(communicator: Any, own: Worker | None) -> int:
        if own is None:
            own = Worker(communicator)
        else:
            own.diloco.regroup(communicator)
        return own.diloco.inner_step

    assert run(3, regroup, [None, *survivors]) == [2] * 3


def flip_first_value(frames: list[np.ndarray]) -> None:
    frames[1][0] ^= 1


def change_header(change: Callable[[dict[str, Any]], object]) -> Callable[..., None]:
    def damage(frames: list[np.ndarray]) -> None:
        header = json.loads(frames[0].tobytes())
        change(header)
        frames[0] = np.frombuffer(json.dumps(header).encode(), np.uint8)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_first_value, "digest"),
        (change_header(lambda header: header.update(numbers=[1])), "state of another worker"),
        (change_header(lambda header: header["tensors"][0].insert(1, "torch.x")), "of another"),
        (
            change_header(lambda header: header["tensors"][0].__setitem__(1, "torch.x")),
            "of another",
        ),
        (change_header(lambda header: header["tensors"][0].__setitem__(2, [7, 7])), "of another"),
        (change_header(lambda header: header.update(groups=[])), "state of another worker"),
        (change_header(lambda header: header.pop("groups")), "state of another worker"),
    ],
)
def test_damaged_state_is_refused(damage: Callable[..., None], message: str) -> None:
    def worker(communicator: Any) -> str:
        relay = Damaging(communicator, damage)
        if communicator.rank == 0:
            Worker(relay)
            return ""
        with pytest.raises(gcodec.FormatError) as caught:
            Worker(relay)
        return str(caught.value)

    assert message in run(2, worker)[1]


def test_state_in_frames_of_other_codecs_is_refused() -> None:
    """Such frames may have many more values than bytes."""

    def worker(communicator: Any) -> None:
        own = Worker(communicator)
        frame = gcodec.encode(np.zeros(1 << 20, np.float32), "topk:k=1", name="header")
        with pytest.raises(gcodec.Corrupt, match="another worker: 'header' is not sent raw"):
            own.diloco._load_state_message(frame, None, "")

    run(1, worker)


def test_damaged_state_is_not_passed_on() -> None:
    """A worker that has received it is the lowest rank of the next group."""
    first, second = workers = run(2, Worker)
    run(2, lambda c, own: train_on(c, own, range(3)), workers)
    expected = first.diloco.state_dict()["outer"]
    state = second.diloco.state_dict()
    second.diloco.load_state_dict({**state, "outer": {n: x + 1 for n, x in expected.items()}})

    def regroup(communicator: Any, own: Worker) -> None:
        relay = Damaging(communicator, flip_first_value)
        if own is first:
            own.diloco.regroup(relay)
            return
        with pytest.raises(gcodec.FormatError, match="digest"):
            own.diloco.regroup(relay)

    run(2, regroup, workers)
    run(2, lambda c, own: own.diloco.regroup(c), [second, first])
    for own in workers:
        outer = own.diloco.state_dict()["outer"]
        assert all(torch.equal(outer[name], x) for name, x in expected.items())


def test_state_of_large_tensors_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own tensors bound the memory, not the default of `Limits`."""
    limits = functools.partial(gcodec.Limits, max_bytes=64)
    monkeypatch.setattr("gcodec.torch.diloco.Limits", limits)
    first, second = run(2, Worker)
    assert equal(first.values(), second.values())


class Damaging:
    """A communicator that damages the decoded frames of a state."""

    def __init__(self, communicator: Any, damage: Callable[..., None]) -> None:
        self._communicator, self._damage = communicator, damage
        self.rank, self.size = communicator.rank, communicator.size

    def all_gather(self, message: bytes) -> list[bytes]:
        gathered: list[bytes] = self._communicator.all_gather(message)
        return gathered

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        received = self._communicator.broadcast(message, root)
        frames = list(gcodec.iter_frames(received))
        arrays = [frame.decode() for frame in frames]
        self._damage(arrays)
        named = zip(arrays, frames, strict=True)
        return b"".join(gcodec.encode(array, "raw", name=frame.name) for array, frame in named)


class Replaying:
    """A communicator that records what rank 1 sends, and delivers it again in place of the next.

    The progress before it, which is not authenticated, is the current one.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator, self.is_armed = communicator, False
        self.rank, self.size = communicator.rank, communicator.size
        self._recorded = b""

    def all_gather(self, message: bytes) -> list[bytes]:
        messages: list[bytes] = self._communicator.all_gather(message)
        start = 1 + diloco._PROGRESS_NBYTES
        if self.is_armed:
            messages[1] = messages[1][:start] + self._recorded
        else:
            self._recorded = messages[1][start:]
        return messages


@pytest.mark.parametrize("regroups", [False, True])
def test_replayed_exchange_is_refused(regroups: bool) -> None:
    """Replay that of the preceding step, or that of the same step in a former group."""

    def worker(communicator: Any) -> None:
        own, relay = Worker(communicator, key=b"a secret"), Replaying(communicator)
        own.diloco._communicator = relay
        state = own.diloco.state_dict()
        own.train(range(3))
        if regroups:
            own.diloco.load_state_dict(state)
            own.diloco.regroup(communicator)
            own.diloco._communicator = relay
        relay.is_armed = True
        with pytest.raises(GcodecError, match="tag"):
            own.train(range(3))

    run(2, worker)


def test_exchange_of_workers_that_agree_takes_one_collective() -> None:
    """Although one worker has received the settings of its outer optimizer from the other."""

    def worker(communicator: Any) -> list[int]:
        own, lengths = Worker(communicator), []
        start = own.diloco.sent_nbytes

        def all_gather(message: bytes) -> list[bytes]:
            lengths.append(len(message))
            return communicator.all_gather(message)

        members = {"rank": communicator.rank, "size": communicator.size}
        own.diloco._communicator = SimpleNamespace(**members, all_gather=all_gather)
        own.train(range(6))
        sent = own.diloco.sent_nbytes - start
        return [len(lengths), sent - sum(lengths), own.diloco.dense_nbytes, start]

    (*first, state), (*second, none) = run(2, worker)
    nbytes = sum(4 * p.numel() for p in network().parameters())
    # A ring of two sends half of all values twice.
    assert first == second == [2, 0, 2 * nbytes]
    assert state > nbytes  # which the other worker receives at first
    assert none == 0


def test_workers_with_different_keys() -> None:
    with pytest.raises(gcodec.FormatError, match="tag"):
        run(2, lambda c: Worker(c, key=bytes([65 + c.rank])))


def test_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole = run(2, Worker)
    run(2, lambda c, own: train_on(c, own, range(8)), whole)
    half = run(2, Worker)
    run(2, lambda c, own: train_on(c, own, range(4)), half)

    def resume(communicator: Any, own: Worker) -> Worker:
        path = tmp_path / f"{own.rank}.pt"
        parts = {"diloco": own.diloco.state_dict(), "model": own.model.state_dict()}
        torch.save(parts | {"inner": own.inner.state_dict()}, path)
        loaded = torch.load(path, weights_only=True)
        again = Worker(communicator)
        again.diloco.load_state_dict(loaded["diloco"])
        again.model.load_state_dict(loaded["model"])
        again.inner.load_state_dict(loaded["inner"])
        again.train(range(4, 8))
        return again

    for own, again in zip(whole, run(2, resume, half), strict=True):
        assert equal(own.values(), again.values())
        assert torch.equal(own.diloco.residual("0.weight"), again.diloco.residual("0.weight"))


def test_state_in_memory_does_not_change() -> None:
    def worker(communicator: Any) -> None:
        own = Worker(communicator)
        own.train(range(4))
        state = own.diloco.state_dict()
        start = [copy.deepcopy(each.state_dict()) for each in (own.model, own.inner)]
        own.train(range(4, 8))
        expected = own.values()
        own.diloco.load_state_dict(state)
        for each, before in zip((own.model, own.inner), start, strict=True):
            each.load_state_dict(before)
        own.train(range(4, 8))
        assert equal(own.values(), expected)

    run(2, worker)


def test_loaded_state_does_not_change() -> None:
    """Training after `load_state_dict` leaves the state that was loaded as it is."""

    def worker(communicator: Any) -> bool:
        own = Worker(communicator)
        own.train(range(3))
        state = own.diloco.state_dict()
        before, after = copy.deepcopy(state["optimizer"]["state"]), state["optimizer"]["state"]
        own.diloco.load_state_dict(state)
        own.train(range(3, 6))
        key = "momentum_buffer"
        return all(torch.equal(after[index][key], before[index][key]) for index in before)

    assert all(run(2, worker))


def test_means_in_a_state_do_not_change() -> None:
    """Although this outer optimizer changes the gradients that it receives."""

    def worker(communicator: Any) -> None:
        outer = {"lr": 0.7, "momentum": 0.9, "nesterov": True, "foreach": True}
        own = Worker(communicator, outer=outer, every=2, overlap=1)
        own.train(range(4))
        state = own.diloco.state_dict()
        [[_, _, means]] = copy.deepcopy(state["in_flight"])
        for _ in range(2):
            own.train(range(4, 6))
            assert all(torch.equal(state["in_flight"][0][2][name], x) for name, x in means.items())
            own.diloco.load_state_dict(state)

    run(1, worker)


def test_workers_with_states_of_different_checkpoints_are_refused() -> None:
    """Without this check, replicas would differ from then on without an error."""

    def worker(communicator: Any) -> list[str]:
        own = Worker(communicator)
        states = [copy.deepcopy(own.diloco.state_dict())]
        own.train(range(6))
        states.append(own.diloco.state_dict())
        other = {**states[1], "outer": {n: x + 1 for n, x in states[1]["outer"].items()}}
        errors = []
        for state in (states[communicator.rank], other if communicator.rank else states[1]):
            own.diloco.load_state_dict(state)
            with pytest.raises(GcodecError) as caught:
                own.train(range(3))
            errors.append(str(caught.value))
        own.diloco.load_state_dict(states[1])
        own.train(range(6))
        return errors

    first, second = run(2, worker)
    for errors in first, second:
        assert "the ranks differ: inner_step=3 on rank 0, 9 on rank 1; all must" in errors[0]
        assert "the ranks differ: digest of the outer state=" in errors[1]


def refused_twice(own: Worker) -> list[str]:
    """Train for two rounds whose exchange is refused; return the errors."""
    errors = []
    for _ in range(2):
        with pytest.raises(GcodecError) as caught:
            own.train(range(3))
        errors.append(str(caught.value))
    return errors


@pytest.mark.parametrize("lone", [0, 1])
def test_worker_that_alone_loads_another_outer_state_is_refused(lone: int) -> None:
    """At the same step; only this worker sends a digest at first, and all of them after that."""

    def worker(communicator: Any) -> list[str]:
        own = Worker(communicator)
        own.train(range(3))
        state = own.diloco.state_dict()
        other = {**state, "outer": {n: x + 1 for n, x in state["outer"].items()}}
        if own.rank == lone:
            own.diloco.load_state_dict(other)
        errors = refused_twice(own)
        own.diloco.load_state_dict(state)
        own.train(range(3))
        return errors

    for errors in run(2, worker):
        for error in errors:
            assert "the ranks differ: digest of the outer state=" in error
        assert f"None on rank {1 - lone}" in errors[0] or "=None on rank 0" in errors[0]
        assert "None" not in errors[1]


def test_worker_that_returns_to_another_round_is_named() -> None:
    def worker(communicator: Any) -> list[str]:
        own = Worker(communicator)
        own.train(range(3))
        state = own.diloco.state_dict()
        own.train(range(3))
        if own.rank == 1:
            own.diloco.load_state_dict(state)
        errors = refused_twice(own)
        own.diloco.regroup(communicator)
        own.train(range(3))
        return errors

    for errors in run(2, worker):
        for step, error in zip((9, 12), errors, strict=True):
            assert f"exchange: the ranks differ: inner_step={step} on rank 0, {step - 3} " in error
            assert error.endswith("must load the same checkpoint, and set outer_optimizer alike")


def test_loaded_state_has_no_exchange_to_repeat() -> None:
    """The refusal of one fragment has left another one that was due."""

    def worker(communicator: Any) -> None:
        own = Worker(communicator, every=1, fragments=2)
        own.train(range(1))
        state = own.diloco.state_dict()
        with torch.no_grad():
            own.model[0].weight[0, 0] = float("nan")
        with pytest.raises(GcodecError, match="contains NaN or Inf"):
            own.diloco.step()
        own.diloco.load_state_dict(state)
        own.diloco.restore()
        own.diloco.regroup(communicator)
        assert own.diloco.outer_step == 2
        own.train(range(1))
        assert own.diloco.outer_step == 4

    run(1, worker)


def test_outer_optimizers_with_other_settings_are_refused() -> None:
    """Each worker would take another outer step."""

    def worker(communicator: Any) -> bool:
        own = Worker(communicator)
        own.train(range(3))
        before = own.diloco.state_dict()["outer"]
        own.diloco._optimizer.param_groups[0]["lr"] = 0.5 + 0.1 * own.rank
        with pytest.raises(GcodecError, match=r"param_groups\[0\]\['lr'\]=0.5 on rank 0, 0.6 on"):
            own.train(range(3))
        after = own.diloco.state_dict()["outer"]
        own.diloco._optimizer.param_groups[0]["lr"] = 0.5
        own.train(range(3))
        return all(torch.equal(after[name], x) for name, x in before.items())

    assert run(2, worker) == [True] * 2


class Replica:
    """A replica of one parameter, whose inner steps are constants."""

    def __init__(self, communicator: Any, value: Any, optimizer: Any, **options: Any) -> None:
        self.weight = torch.nn.Parameter(value)
        self.outer = optimizer([self.weight], **options)
        named = {"weight": self.weight}
        self.diloco = gcodec.torch.DiLoCo(
            named, self.outer, "raw", every=1, communicator=communicator
        )

    def train(self, steps: int) -> Any:
        for step in range(steps):
            with torch.no_grad():
                self.weight += 0.1 * torch.arange(-5, 7).reshape(3, 4).to(self.weight) * (step + 1)
            self.diloco.step()
        return self.weight.detach()


def transposed() -> Any:
    return torch.arange(12.0).reshape(4, 3).t()


def test_fused_optimizers_step_transposed_parameters() -> None:
    """They pair the elements of parameters and gradients in the order of their memory."""

    def worker(communicator: Any) -> tuple[Any, Any]:
        replicas = [
            Replica(communicator, transposed(), torch.optim.Adam, lr=0.5, fused=fused)
            for fused in (False, True)
        ]
        first, second = [own.train(3) for own in replicas]
        return first, second

    [(plain, fused)] = run(1, worker)
    torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize(
    ("value", "optimizer", "options"),
    [
        (transposed(), torch.optim.Adam, {"lr": 0.5, "fused": True}),
        # Its state has float32 tensors for parameters of any dtype.
        (transposed().bfloat16(), torch.optim.ASGD, {"lr": 0.1, "lambd": 0.3}),
    ],
)
def test_received_state_of_the_optimizer_has_its_layout_and_dtype(
    value: Any, optimizer: Any, options: dict[str, Any]
) -> None:
    def begin(communicator: Any) -> Any:
        own = Replica(communicator, value.clone(), optimizer, **options)
        own.train(2)
        return own

    def go_on(communicator: Any, own: Any) -> Any:
        if own is None:
            own = Replica(communicator, value.clone(), optimizer, **options)
        else:
            own.diloco.regroup(communicator)
        own.train(2)
        return own

    first, second = run(2, go_on, [*run(1, begin), None])
    assert torch.equal(first.weight, second.weight)
    kept, received = (own.outer.state[own.weight] for own in (first, second))
    assert kept.keys() == received.keys()
    for name, expected in kept.items():
        own = received[name]
        assert torch.equal(own, expected)
        assert (own.dtype, own.stride()) == (expected.dtype, expected.stride())


def test_loaded_state_of_the_optimizer_has_its_dtypes() -> None:
    """PyTorch rounds it to the dtypes of the parameters."""

    def worker(communicator: Any) -> bool:
        value = transposed().bfloat16()
        first, second = (
            Replica(communicator, value.clone(), torch.optim.NAdam, lr=0.3) for _ in range(2)
        )
        first.train(3)
        second.diloco.load_state_dict(first.diloco.state_dict())
        saved, loaded = (own.outer.state[own.weight]["mu_product"] for own in (first, second))
        return bool(loaded.dtype == saved.dtype and torch.equal(loaded, saved))

    assert run(1, worker) == [True]


def test_momenta_do_not_move_frozen_parameters() -> None:
    def worker(communicator: Any) -> None:
        own = Worker(communicator)
        own.train(range(6))
        own.model[0].requires_grad_(False)
        own.train(range(3))  # exchanges what the worker had changed before
        before = own.values()
        own.inner.zero_grad()  # Adam would move them, too
        own.train(range(3))
        after = own.values()
        assert {n for n in before if np.array_equal(before[n], after[n])} == {"0.weight", "0.bias"}

    run(2, worker)


def test_state_of_a_model_in_ddp_fits_one_without() -> None:
    """The prefix of DDP is no part of names, also not of several wrappers."""

    def worker(communicator: Any) -> None:
        own = Worker(communicator)
        own.train(range(4))
        state = own.diloco.state_dict()
        for wrapped in (
            torch.nn.ModuleDict({"module": network()}),
            torch.nn.ModuleDict({"module": torch.nn.ModuleDict({"module": network()})}),
        ):
            outer = torch.optim.SGD(wrapped.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            options = {**SETTINGS, "communicator": communicator}
            diloco = gcodec.torch.DiLoCo(wrapped, outer, "ecsq:bits=2", **options)
            diloco.load_state_dict(state)
            assert torch.equal(diloco.residual("0.weight"), own.diloco.residual("0.weight"))

    run(1, worker)


def test_child_that_is_called_module_keeps_its_name() -> None:
    model = torch.nn.Module()
    model.module, model.head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    assert gcodec.torch.names.trainable_parameters(model).keys() == {
        *("module.weight", "module.bias", "head.weight", "head.bias")
    }


def test_state_without_residuals_is_named() -> None:
    def worker(communicator: Any) -> None:
        own = Worker(communicator)
        own.train(range(4))
        state = own.diloco.state_dict()
        own.diloco.load_state_dict(state)
        with pytest.warns(UserWarning, match="^DiLoCo: the state has no residuals, so feedback"):
            own.diloco.load_state_dict({**state, "feedback": {}})
        plain = Worker(communicator, "raw")
        plain.train(range(4))
        plain.diloco.load_state_dict(plain.diloco.state_dict())
        plain = Worker(communicator, feedback=False)
        with pytest.warns(UserWarning, match="^DiLoCo: the state has residuals, but there is no"):
            plain.diloco.load_state_dict(state)

    run(1, worker)


@contextmanager
def late_exchanges() -> Iterator[None]:
    """Let the exchanges that begin in the block encode only when it has waited for a while."""
    go_on = threading.Event()
    encode = BucketCoder.encode

    def late(self: BucketCoder, *arguments: Any) -> bytes:
        assert go_on.wait(60)
        return encode(self, *arguments)

    with mock.patch.object(BucketCoder, "encode", late):
        threading.Timer(0.5, go_on.set).start()
        yield
        go_on.set()


def test_exchange_under_way_does_not_change_a_loaded_state() -> None:
    def worker(communicator: Any) -> None:
        own = Worker(communicator, every=2, overlap=1)
        own.train(range(4))
        state = own.diloco.state_dict()
        with late_exchanges():
            own.train(range(4, 6))
            own.diloco.load_state_dict(state)
            own.diloco._thread.shutdown()
        for name, expected in state["feedback"].items():
            assert torch.equal(own.diloco.state_dict()["feedback"][name], expected)

    run(1, worker)


def test_exchange_under_way_when_another_group_begins_counts_once() -> None:
    def worker(communicator: Any) -> int:
        own = Worker(communicator, every=2, overlap=1)
        own.train(range(4))
        with late_exchanges():
            own.train(range(4, 6))
            own.diloco.regroup(communicator)
            own.diloco._thread.shutdown()
        return int(own.diloco.state_dict()["feedback"]["step:0.weight"])

    assert run(1, worker) == [3]


MEANS = {name: torch.zeros_like(p) for name, p in network().named_parameters()}
NARROW = {name: x[..., :1] for name, x in MEANS.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"outer": None},
        {"outer": NARROW},
        {"optimizer": {}},
        {"optimizer": {"state": {}, "param_groups": []}},
        {"feedback": None},
        *(
            {"feedback": {f"residual:{name}": torch.ones(3), f"step:{name}": 1}}
            for name in ("0.weight", "other")
        ),
        {"inner_step": "4"},
        {"in_flight": None},
        {"in_flight": [[0, 5]]},
        {"in_flight": [[1, 5, {}]]},
        {"in_flight": [[0, 5, {}]]},
        {"in_flight": [[0, 5, NARROW]]},
        {"in_flight": [[0, 5, {**MEANS, "of a larger fragment": torch.ones(3)}]]},
        {"inner_step": -1},
        {"outer_step": 2**63},
        *({"in_flight": [[fragment, at, MEANS]]} for fragment, at in ((-1, 5), (0, -5))),
    ],
    ids=str,
)
def test_damaged_state_dict_is_refused(change: dict[str, Any]) -> None:
    def worker(communicator: Any) -> None:
        own = Worker(communicator, every=2)
        own.train(range(2))
        state = {**own.diloco.state_dict(), **change}
        own.train(range(2, 4))
        before = own.diloco.state_dict()
        with pytest.raises(ParameterError, match="state"):
            own.diloco.load_state_dict(state)
        after = own.diloco.state_dict()
        for key in ("feedback", "outer"):
            assert all(torch.equal(after[key][name], x) for name, x in before[key].items())

    run(1, worker)


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"overlap": 3},
        {"mixing": 2},
        {"feedback": "no"},
        {"decay": 2},
        {"exclude": 5},
        {"min_numel": -1},
        {"fragments": 0},
        {"fragments": "0.*"},
        {"fragments": [["0.*"]]},
        {"fragments": 2.5},
        {"fragments": [1]},
        {"model": 5},
        {"state": {}},
        {"key": "text"},
    ],
    ids=str,
)
def test_invalid_arguments(options: dict[str, Any]) -> None:
    (name,) = options

    def worker(communicator: Any) -> None:
        if name == "state":
            Worker(communicator).diloco.load_state_dict(options["state"])
        elif name == "model":
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            gcodec.torch.DiLoCo(5, optimizer, "sign", every=2, communicator=communicator)
        else:
            Worker(communicator, **options)

    with pytest.raises(ParameterError, match=name):
        run(1, worker)


def test_optimizer_of_other_parameters() -> None:
    def worker(communicator: Any) -> None:
        optimizer = torch.optim.SGD(network().parameters(), lr=1.0)
        gcodec.torch.DiLoCo(network(), optimizer, "sign", every=2, communicator=communicator)

    with pytest.raises(ParameterError, match="outer_optimizer: must hold exactly"):
        run(1, worker)


@pytest.mark.parametrize("wrong", [None, "adam", torch.optim.LBFGS])
def test_other_objects_than_optimizers(wrong: Any) -> None:
    def worker(communicator: Any) -> None:
        model = network()
        optimizer = wrong(model.parameters()) if callable(wrong) else wrong
        gcodec.torch.DiLoCo(model, optimizer, "sign", every=2, communicator=communicator)

    with pytest.raises(ParameterError, match=r"(?s)outer_optimizer=.*: must be a torch\.optim"):
        run(1, worker)


def test_other_objects_than_communicators() -> None:
    def worker(communicator: Any) -> None:
        diloco = Worker(communicator).diloco
        with pytest.raises(ParameterError, match="communicator=None: must be a Communicator"):
            diloco.regroup(None)

    run(1, worker)
    for optimizer in (gcodec.torch.DGC, gcodec.torch.OneBitAdam):
        options = {"warmup": 2, "communicator": 3}
        with pytest.raises(ParameterError, match="communicator=3: must be a Communicator"):
            optimizer(network(), 0.1, **options)


def test_settings_of_the_optimizer_must_be_plain() -> None:
    def worker(communicator: Any) -> None:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1.0))
        gcodec.torch.DiLoCo(model, optimizer, "sign", every=2, communicator=communicator)

    with pytest.raises(ParameterError, match="outer_optimizer: its settings must be numbers"):
        run(1, worker)


def test_workers_with_different_arguments() -> None:
    def worker(communicator: Any) -> None:
        Worker(communicator, every=3 + communicator.rank)

    with pytest.raises(ParameterError, match=r"DiLoCo: the ranks differ: every=3 on rank 0, 4"):
        run(2, worker)


def test_exchanges_overlap_with_training(tmp_path: Path) -> None:
    first, second = (
        rank["overlap"] for rank in run_ranks("diloco_ranks.py", 2, tmp_path, "overlap")
    )
    assert first == second
    assert first["wrong"] == []
    assert (first["in_flight"], first["same"], first["outer_steps"]) == (1, True, 4)
    assert first["error"].startswith("the ranks differ: inner_step=8 on rank 0, 2 on rank 1")


def test_worker_dies_and_another_joins(tmp_path: Path) -> None:
    ranks = [rank["elastic"] for rank in run_ranks("diloco_ranks.py", 4, tmp_path, "elastic")]
    survivors, joined = ranks[:2], ranks[3]
    for rank in survivors:
        assert rank["error"].startswith("DiLoCo: outer step 1, fragment 0: ")
        assert rank["seconds"] < 30
    for rank in (*survivors, joined):
        assert rank["regrouped"] == 2  # the exchange that failed is repeated at once
        assert rank["digests"] == joined["digests"]
        assert rank["steps"] == [12, 3]
