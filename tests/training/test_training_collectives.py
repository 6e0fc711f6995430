"""Collectives of frames on simulated workers: results, sent bytes, and errors."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.training import Communicator, Simulator, all_gather_mean, tree_mean, two_phase_mean
from gcodec.training.collectives import dense_mean, low_rank_mean

SIZES = [1, 2, 3, 5, 8]


def gradients(size: int, *shape: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for _ in range(size)]


def check_same(results: list[Any]) -> None:
    """Check that all ranks have the same bits."""
    first, *remaining = (b"".join(np.asarray(part).tobytes() for part in one) for one in results)
    assert all(other == first for other in remaining)


# --- the simulator ------------------------------------------------------------------------------


def test_collectives_return_and_count_messages() -> None:
    def worker(c: Communicator) -> list[Any]:
        own = bytes([c.rank]) * c.rank
        values = np.array([c.rank, 1], np.float32)
        c.all_reduce(values)
        partner = {0: 2, 2: 0}.get(c.rank)
        return [
            c.all_gather(own),
            c.all_to_all([bytes([c.rank, to]) for to in range(c.size)]),
            values.tolist(),
            c.exchange(partner, own) if partner is not None else None,
            c.broadcast(own, root=1),
        ]

    simulator = Simulator(3)
    results = simulator.run(worker)
    for rank, (gathered, own, total, exchanged, broadcast) in enumerate(results):
        assert gathered == [b"", b"\1", b"\2\2"]
        assert own == [bytes([source, rank]) for source in range(3)]
        assert total == [3, 3]
        assert exchanged == [b"\2\2", None, b""][rank]
        assert broadcast == b"\1"
    assert simulator.sent == {
        "all_gather": [0, 2, 4],
        "all_to_all": [4, 4, 4],
        # Shares have 0, 1 and 1 elements; each rank sends four of the six shares of both rounds.
        "all_reduce": [2 * 8 - 8, 2 * 8 - 4, 2 * 8 - 4],
        "exchange": [0, 0, 2],
        "broadcast": [0, 2, 0],
    }
    assert simulator.total == 6 + 12 + 32 + 2 + 2


def test_workers_share_no_memory() -> None:
    """A worker may change what it has sent and received while others still work."""

    def worker(c: Communicator) -> list[Any]:
        own = bytearray([c.rank])
        gathered = [c.all_gather(own), c.all_to_all([own, own])]
        single = [c.exchange(1 - c.rank, own), c.broadcast(own, root=1)]
        values = np.ones(2, np.float32)
        c.all_reduce(values)
        if c.rank == 1:
            own[0], values[:] = 9, 9
            for messages in gathered:
                messages.clear()
        c.all_gather(b"")
        return [*gathered, *single, values.tolist()]

    first, _ = Simulator(2).run(worker)
    assert first == [[b"\0", b"\1"], [b"\0", b"\1"], b"\1", b"\1", [2, 2]]


def test_bytes_are_counted_by_level() -> None:
    """Workers 0 and 1 share a node, and so do 2 and 3."""

    def worker(c: Any) -> None:
        c.all_gather(bytes(10**c.rank))  # in a ring: 0 sends to 1, and so on
        c.all_to_all([bytes(7)] * 4)
        if c.rank in (0, 3):
            c.exchange(3 - c.rank, bytes(50000))
        c.broadcast(bytes(300000), root=3)

    simulator = Simulator(4, inside=2)
    simulator.run(worker)
    # Each rank passes on all messages but that of its successor.
    assert simulator.levels == {
        "inside": [1101 + 7, 7, 111 + 7, 300000 + 7],
        "between": [50014, 1011 + 14, 14, 1110 + 50014 + 600000],
    }
    assert simulator.total == sum(map(sum, simulator.levels.values()))


def test_groups_have_collectives_of_their_own() -> None:
    def worker(c: Any) -> list[Any]:
        inside = c.group([c.rank // 2 * 2, c.rank // 2 * 2 + 1])
        between = c.group(range(c.rank % 2, 6, 2))
        values = np.full(2, c.rank, np.float32)
        inside.all_reduce(values)
        between.all_reduce(values)
        partner = between.exchange(1 - between.rank, b"x") if between.rank < 2 else b""
        gathered = between.all_gather(bytes([c.rank]))
        swapped = inside.all_to_all([bytes([c.rank, 0]), bytes([c.rank, 1])])
        shared = inside.broadcast(bytes([c.rank]), root=1)
        return [values.tolist(), between.ranks, inside.rank, partner, gathered, swapped, shared]

    simulator = Simulator(6, inside=2)
    for rank, (total, ranks, own, partner, gathered, swapped, shared) in enumerate(
        simulator.run(worker)
    ):
        first = rank - rank % 2
        assert total == [15, 15]
        assert ranks == tuple(range(rank % 2, 6, 2)) and own == rank % 2
        assert partner == (b"x" if rank < 4 else b"")
        assert gathered == [bytes([each]) for each in ranks]
        assert swapped == [bytes([first, own]), bytes([first + 1, own])]
        assert shared == bytes([first + 1])
    # Two values in a ring of two or three, a message each between and inside, and a byte.
    assert simulator.levels["inside"] == [8 + 2, 8 + 2 + 1] * 3
    assert sum(simulator.levels["between"]) == 2 * 4 * 8 + 6 * 2 + 4


def test_groups_that_wait_forever_fail() -> None:
    def worker(c: Any) -> None:
        if c.rank < 2:
            c.group([0, 1] if c.rank else [0, 2]).all_gather(b"")

    with pytest.raises(gcodec.ParameterError, match=r"rank 0 waits in all_gather, rank 1 waits"):
        Simulator(4).run(worker)


def test_groups_and_nodes_are_checked() -> None:
    with pytest.raises(gcodec.ParameterError, match=r"ranks=\[1\]: must be ranks with 0 among"):
        Simulator(2).run(lambda c: c.group([1]))
    with pytest.raises(gcodec.ParameterError, match="inside=3: must be a divisor of 4"):
        Simulator(4, inside=3)


def test_all_reduce_counts_bytes_of_a_ring() -> None:
    from reference import collectives as reference

    for size, n in ((2, 6), (3, 12), (5, 20)):
        net = reference.Network(size, 1.0, 0.0)
        reference.all_reduce(net, np.zeros((size, size, n // size)), 4 * n)
        simulator = Simulator(size)
        simulator.run(lambda c, n=n: c.all_reduce(np.zeros(n, np.float32)))
        assert simulator.sent["all_reduce"] == net.sent


def test_results_do_not_depend_on_thread_schedule() -> None:
    def worker(c: Communicator, wait: float) -> np.ndarray:
        time.sleep(wait)
        values = np.float32([0.1, 1e8, -1e8]) * np.float32(c.rank + 1)
        c.all_reduce(values)
        return values

    runs = [Simulator(4).run(worker, waits) for waits in ([0, 1e-2, 2e-2, 3e-2], [3e-2, 0, 0, 0])]
    check_same([[values] for run in runs for values in run])


def test_worker_error_stops_all_workers() -> None:
    def worker(c: Communicator) -> None:
        c.all_gather(b"")
        if c.rank == 2:
            raise KeyError("of rank 2")
        c.all_gather(b"")

    before = threading.active_count()
    with pytest.raises(KeyError, match="of rank 2"):
        Simulator(4).run(worker)
    assert threading.active_count() == before


def test_interrupted_run_stops_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = []

    def worker(c: Communicator) -> None:
        for _ in range(100_000):
            c.all_gather(b"")
        finished.append(c.rank)

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    before = {*threading.enumerate()}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "join", interrupted)
        Simulator(2).run(worker)
    for thread in {*threading.enumerate()} - before:
        thread.join()
    assert finished == []


def test_stopped_workers_cannot_catch_the_stop() -> None:
    def worker(c: Communicator) -> None:
        if c.rank:
            raise ValueError("first")
        try:
            c.exchange(1, b"")
        except Exception as error:  # a careless worker catches everything
            raise AssertionError from error

    with pytest.raises(ValueError, match="first"):
        Simulator(2).run(worker)


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (lambda c: c.rank or c.all_gather(b""), "rank 0 waits in all_gather, rank 1 has returned"),
        (lambda c: c.exchange(1, b"") if c.rank == 0 else c.all_gather(b""), "exchange with rank"),
        (lambda c: c.all_reduce(np.zeros(1, np.float32)) if c.rank else c.all_gather(b""), "one"),
        (lambda c: c.broadcast(b"", root=c.rank), "broadcast from rank 0 and another"),
        (lambda c: c.all_reduce(np.zeros(1 + c.rank, np.float32)), "values: their shapes differ"),
        (lambda c: c.all_reduce(np.zeros(1)), "values.dtype='float64': must be float32"),
        (lambda c: c.all_to_all([b""]), "messages=1: must be 2"),
        (lambda c: c.exchange(c.rank, b""), "to=0: must be a rank below 2, not 0"),
        (lambda c: c.exchange(-1, b""), "to=-1"),
        (lambda c: c.exchange(2, b""), "to=2: must be a rank below 2, not 0"),
        (lambda c: c.broadcast(b"", root=2), "root=2: must be a rank below 2"),
        (lambda c: c.broadcast(b"", root=-1), "root=-1: must be a rank below 2"),
    ],
)
def test_mismatched_collectives_are_refused(worker: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError, match=message):
        Simulator(2).run(worker)


@pytest.mark.parametrize("size", [0, -1, 1025, 1.5, True, "2"])
def test_size_is_checked(size: Any) -> None:
    with pytest.raises(gcodec.ParameterError, match=r"^size="):
        Simulator(size)


def test_arguments_have_one_item_per_worker() -> None:
    assert Simulator(2).run(lambda c, a, b: (c.rank, a, b), "xy", [1, 2]) == [
        (0, "x", 1),
        (1, "y", 2),
    ]
    with pytest.raises(gcodec.ParameterError, match=r"arguments\[1\]='3 items': must be of 2"):
        Simulator(2).run(lambda c, a, b: None, "xy", [1, 2, 3])


def test_many_exchanges_keep_their_order() -> None:
    def worker(c: Communicator) -> list[bytes]:
        return [c.exchange(1 - c.rank, bytes([c.rank, i])) for i in range(100)]

    for rank, received in enumerate(Simulator(2).run(worker)):
        assert received == [bytes([1 - rank, i]) for i in range(100)]


# --- means --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_all_gather_mean(size: int) -> None:
    grads = gradients(size, 30, 7)
    specs = ["topk:ratio=0.1", "qsgd", "raw", "mxnet-2bit:threshold=auto"]

    def worker(c: Communicator, gradient: np.ndarray) -> list[np.ndarray]:
        codec = specs[c.rank % len(specs)]  # frames name their codec
        frames = [gcodec.encode(gradient, codec, seed=c.rank), gcodec.encode(gradient[0], "raw")]
        return all_gather_mean(c, frames)

    simulator = Simulator(size)
    results = simulator.run(worker, grads)
    check_same(results)
    mean, row_mean = results[0]
    expected = np.zeros((30, 7), np.float32)
    for rank, gradient in enumerate(grads):
        frame = gcodec.encode(gradient, specs[rank % len(specs)], seed=rank)
        expected += gcodec.decode(frame)
    assert np.array_equal(mean, expected / np.float32(size))
    assert np.allclose(row_mean, np.mean([g[0] for g in grads], axis=0), atol=1e-6)
    sent = simulator.sent["all_gather"]
    for rank, gradient in enumerate(grads):
        frame = gcodec.encode(gradient, specs[rank % len(specs)], seed=rank)
        assert sent[rank] == (size - 1) * len(frame + gcodec.encode(gradient[0], "raw"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (40, 3), (3, 40), (0, 4), (1000,)])
def test_two_phase_mean_without_loss(size: int, shape: tuple[int, ...]) -> None:
    grads = gradients(size, *shape)

    def worker(c: Communicator, gradient: np.ndarray) -> list[np.ndarray]:
        feedbacks = gcodec.Feedback("raw"), gcodec.Feedback("raw")
        return [*two_phase_mean(c, {"w": gradient, "b": -gradient}, *feedbacks).values()]

    results = Simulator(size).run(worker, grads)
    check_same(results)
    total = np.zeros(shape, np.float32)
    for gradient in grads:
        total += gradient
    assert np.array_equal(results[0][0], total / np.float32(size))
    assert np.array_equal(results[0][1], -total / np.float32(size))


def test_two_phase_mean_lends_no_memory_in_the_end() -> None:
    """Steps may then write to the arrays of former residuals."""

    def worker(c: Communicator) -> list[int]:
        feedbacks = gcodec.Feedback("sign"), gcodec.Feedback("sign")
        for _ in range(2):
            two_phase_mean(c, {"w": np.arange(6, dtype=np.float32)}, *feedbacks)
        return [len(feedback._tensors._loans) for feedback in feedbacks]

    assert Simulator(2).run(worker) == [[0, 0]] * 2


def test_two_phase_mean_sends_two_frames_for_any_group_size() -> None:
    n = 64_000
    for size in (2, 4, 8):

        def worker(c: Communicator, gradient: np.ndarray) -> Any:
            feedbacks = gcodec.Feedback("sign", rank=c.rank), gcodec.Feedback("sign", rank=c.rank)
            mean = two_phase_mean(c, {"w": gradient}, *feedbacks)["w"]
            residuals = [feedbacks[0].residual(f"{share}/w") for share in range(c.size)]
            return mean, np.concatenate(residuals), feedbacks[1].residual("w")

        simulator = Simulator(size)
        grads = gradients(size, n)
        results = simulator.run(worker, grads)
        check_same([[mean] for mean, _, _ in results])
        # The mean plus the residuals of workers and servers equals the mean gradient.
        kept = sum(residuals.astype(np.float64) for _, residuals, _ in results) / size
        kept += np.concatenate([served for _, _, served in results])
        expected = np.mean(np.float64(grads), axis=0)
        assert np.abs(results[0][0] + kept - expected).max() < 1e-5
        upper = 2 * n / 8 + 2 * size * 50  # a bit for each element, and headers
        assert 2 * n / 8 * (size - 1) / size < simulator.total / size < upper


@pytest.mark.parametrize("size", SIZES)
def test_tree_mean(size: int) -> None:
    grads = gradients(size, 100)

    def worker(c: Communicator, gradient: np.ndarray) -> list[np.ndarray]:
        frames = [gcodec.encode(gradient, "topk:k=5"), gcodec.encode(gradient[:9], "randomk:k=2")]
        return [part for vector in tree_mean(c, frames) for part in vector]

    results = Simulator(size).run(worker, grads)
    check_same(results)
    positions, values, *_ = results[0]
    frames = [gcodec.encode(gradient, "topk:k=5") for gradient in grads]
    expected = np.mean([gcodec.decode(frame) for frame in frames], axis=0)
    sent = np.unique(np.concatenate([gcodec.decode_sparse(frame)[0] for frame in frames]))
    assert positions.tolist() == sent.tolist()
    assert np.allclose(values, expected[sent], rtol=1e-6)
    assert values.dtype == np.float32 and positions.dtype == np.int64


def test_tree_mean_allocates_no_dense_array() -> None:
    shape = (1 << 20, 1 << 20)  # 2^40 elements
    codec = gcodec.parse("randomk:k=3")

    def worker(c: Communicator) -> Any:
        symbols = codec.encode(np.ones(3, np.float32), seed=c.rank)
        frame = gcodec.Frame(symbols.codec, "float32", shape, symbols).to_bytes()
        return tree_mean(c, [frame])[0]

    positions, values = Simulator(3).run(worker)[0]
    assert positions.size == values.size <= 9 and positions.max() >= 2**30


def test_tree_mean_refuses_dense_frames() -> None:
    with pytest.raises(gcodec.ParameterError, match="sends all elements"):
        Simulator(2).run(lambda c: tree_mean(c, [gcodec.encode(np.ones(3, np.float32), "sign")]))


def test_frame_in_place_of_a_sequence_and_codec_in_place_of_feedback() -> None:
    frame = gcodec.encode(np.ones(3, np.float32), "topk:k=1")
    feedback = gcodec.Feedback("sign")
    calls: list[tuple[Any, str]] = [
        (lambda c: all_gather_mean(c, frame), "^frames: must be a sequence"),
        (lambda c: tree_mean(c, frame), "^frames: must be a sequence"),
        (lambda c: two_phase_mean(c, {}, "sign", feedback), "^worker='sign': must be a Feedback"),
        (lambda c: two_phase_mean(c, {}, feedback, "sign"), "^server='sign': must be a Feedback"),
        (
            lambda c: two_phase_mean(c, {}, feedback, feedback, whole="no"),
            "^whole='no': must be True or False",
        ),
    ]
    for call, message in calls:
        with pytest.raises(gcodec.ParameterError, match=message):
            Simulator(2).run(call)


@pytest.mark.parametrize("size", [2, 3])
def test_tree_mean_refuses_sums_above_float32(size: int) -> None:
    frame = gcodec.encode(np.array([3e38, 1, 0], np.float32), "topk:k=2")

    def worker(c: Communicator) -> str:
        with pytest.raises(gcodec.ParameterError) as caught:
            tree_mean(c, [frame])
        return str(caught.value)

    messages = Simulator(size).run(worker)
    assert set(messages) == {"frames: their sum must not exceed float32 (on rank 0)"}


def test_dense_mean() -> None:
    def worker(c: Communicator) -> list[np.ndarray]:
        return dense_mean(c, [np.full((2, 3), c.rank, np.float32), np.ones(1, np.float32)])

    simulator = Simulator(4)
    results = simulator.run(worker)
    check_same(results)
    assert results[0][0].tolist() == [[1.5] * 3] * 2 and results[0][1].tolist() == [1]
    assert simulator.total == 2 * 3 * 7 * 4
    assert Simulator(2).run(lambda c: dense_mean(c, [])) == [[], []]


@pytest.mark.parametrize("call", [all_gather_mean, tree_mean])
def test_mismatched_messages_are_refused(call: Any) -> None:
    def worker(c: Communicator) -> Any:
        x = np.ones(4 if c.rank == 1 else 5, np.float32)
        return call(c, [gcodec.encode(x, "topk:k=1")])

    with pytest.raises(gcodec.Corrupt, match="rank 1 sent tensors of other shapes than rank 0"):
        Simulator(2).run(worker)

    def garbled(c: Communicator) -> Any:
        frame = gcodec.encode(np.ones(4, np.float32), "topk:k=1")
        return call(c, [frame[:-1] + b"!" if c.rank == 1 else frame])

    with pytest.raises(gcodec.FormatError, match=r"the message of rank 1: .*checksum"):
        Simulator(2).run(garbled)


class DamagedLink:
    """Communicator of which one rank receives a damaged message in one of its collectives."""

    def __init__(self, communicator: Communicator, receiver: int, collective: int) -> None:
        self.rank, self.size = communicator.rank, communicator.size
        self._communicator, self._left = communicator, collective
        self._is_damaged = self.rank == receiver

    def _received(self, messages: list[bytes]) -> list[bytes]:
        self._left -= 1
        if not self._is_damaged or self._left:
            return messages
        return [bytes([message[0], *message[1:-1], message[-1] ^ 1]) for message in messages]

    def all_gather(self, message: bytes) -> list[bytes]:
        return self._received(self._communicator.all_gather(message))

    def all_to_all(self, messages: Any) -> list[bytes]:
        return self._received(self._communicator.all_to_all(messages))

    def exchange(self, to: int, message: bytes) -> bytes:
        [received] = self._received([self._communicator.exchange(to, message) or b"\0\0"])
        return received

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        return self._communicator.broadcast(message, root)

    def all_reduce(self, values: np.ndarray) -> None:
        self._communicator.all_reduce(values)


def errors_of(size: int, call: Any) -> list[str]:
    """Run a function as each worker, and return the types and texts of their errors."""

    def worker(c: Communicator) -> str:
        try:
            call(c)
        except gcodec.GcodecError as error:
            return f"{type(error).__name__}: {error}"
        return "none"

    return Simulator(size).run(worker)


def test_message_that_one_rank_cannot_read_fails_all_ranks() -> None:
    feedbacks = [[gcodec.Feedback("sign") for _ in range(2)] for _ in range(3)]

    def two_phases(c: Communicator) -> Any:
        link = DamagedLink(c, receiver=1, collective=1)
        return two_phase_mean(link, {"w": np.ones((6, 2), np.float32)}, *feedbacks[c.rank])

    first, *others = errors_of(3, two_phases)
    assert first.startswith("Corrupt: the message of rank 0: ") and "(on rank 1)" in first
    assert others == [first] * 2
    assert all(feedback.state_dict() == {} for pair in feedbacks for feedback in pair)

    def tree(c: Communicator) -> Any:
        link = DamagedLink(c, receiver=2, collective=1)
        return tree_mean(link, [gcodec.encode(np.ones(9, np.float32), "topk:k=2")])

    first, *others = errors_of(4, tree)
    assert first.startswith("Corrupt: the message of rank 3: ") and "(on rank 2)" in first
    assert others == [first] * 3


class GarbledLink(DamagedLink):
    """Communicator of which a rank receives messages that look like refusals."""

    def _received(self, messages: list[bytes]) -> list[bytes]:
        received = super()._received(messages)
        return messages if received == messages else [b"?\xff"] * len(messages)


def test_garbled_refusal_is_a_format_error() -> None:
    def two_phases(c: Communicator) -> Any:
        pair = gcodec.Feedback("sign"), gcodec.Feedback("sign")
        link = GarbledLink(c, receiver=c.rank, collective=1)
        return two_phase_mean(link, {"w": np.ones((6, 2), np.float32)}, *pair)

    assert errors_of(2, two_phases) == ["Corrupt: \ufffd"] * 2


class ForgedLink(DamagedLink):
    """Communicator of which a rank receives valid frames of a tensor of another shape."""

    def _received(self, messages: list[bytes]) -> list[bytes]:
        forged = gcodec.encode(np.ones(7, np.float32), "topk:k=1")
        received = super()._received(messages)
        return messages if received == messages else [forged] * len(messages)

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        [received] = self._received([self._communicator.broadcast(message, root)])
        return received


def test_mean_of_another_shape_is_refused() -> None:
    feedbacks = [[gcodec.Feedback("raw") for _ in range(2)] for _ in range(2)]

    def two_phases(c: Communicator) -> Any:
        link = ForgedLink(c, receiver=1, collective=2)
        return two_phase_mean(link, {"w": np.ones((6, 2), np.float32)}, *feedbacks[c.rank])

    def tree(c: Communicator) -> Any:
        link = ForgedLink(c, receiver=1, collective=2)
        return tree_mean(link, [gcodec.encode(np.ones(9, np.float32), "topk:k=2")])

    for call in (two_phases, tree):
        reason = "Corrupt: rank 0 sent tensors of other shapes than rank 1"
        assert errors_of(2, call) == ["none", reason]
    assert all(feedback.state_dict() == {} for feedback in feedbacks[1])


def test_mean_that_is_not_finite_leaves_feedback_unchanged() -> None:
    def worker(c: Communicator) -> bool:
        pair = [gcodec.Feedback("raw", nonfinite="propagate") for _ in range(2)]
        gradients = {"w": np.arange(8, dtype=np.float32), "b": np.ones(4, np.float32)}
        two_phase_mean(c, gradients, *pair)
        before = [feedback.state_dict() for feedback in pair]
        gradients["b"][c.rank] = np.nan
        means = two_phase_mean(c, gradients, *pair)
        after = [feedback.state_dict() for feedback in pair]
        assert np.isnan(means["b"]).any() and np.isfinite(means["w"]).all()
        return all(
            old.keys() == new.keys() and all(np.array_equal(old[key], new[key]) for key in old)
            for old, new in zip(before, after, strict=True)
        )

    assert Simulator(2).run(worker) == [True] * 2


@pytest.mark.parametrize(("size", "value", "start"), [(1, 1e20, 1e30), (5, 8e37, 0.25)])
def test_factors_above_float32_are_refused(size: int, value: float, start: float) -> None:
    """The first factor exceeds it on each rank, the second one only as a sum over the ranks."""
    matrix, rows = np.zeros((5, 6), np.float32), np.full((1, 6), start, np.float32)
    matrix[2, 3] = value

    def worker(c: Communicator) -> Any:
        return low_rank_mean(c, [matrix], [rows], [])

    reason = "ParameterError: matrices: factors must not exceed float32"
    assert errors_of(size, worker) == [reason] * size


def test_integers_of_another_rank_are_refused() -> None:
    def gathered(c: Communicator) -> Any:
        return all_gather_mean(c, [gcodec.encode(np.ones(4, "f4" if c.rank else "i4"), "raw")])

    first, second = errors_of(2, gathered)
    assert first.startswith("ParameterError: frame.dtype='int32': ")  # its own frame
    assert second == "Corrupt: rank 0 sent integers, booleans or floats of 8 bits"


@pytest.mark.parametrize("dense", range(4))
def test_tree_mean_fails_on_all_ranks(dense: int) -> None:
    def tree(c: Communicator) -> Any:
        spec = "sign" if c.rank == dense else "topk:k=2"
        return tree_mean(c, [gcodec.encode(np.ones(9, np.float32), spec)])

    reason = f"ParameterError: frame: sign sends all elements; use decode (on rank {dense})"
    assert errors_of(4, tree) == [reason] * 4
