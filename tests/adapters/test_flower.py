"""Flower: updates as frames, feedback in the client's state, and replies that are dropped."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import gcodec
import gcodec.flower
from gcodec.errors import ParameterError

KEY = b"a secret of the clients and the server"
START = {
    "weight": np.random.default_rng(0).standard_normal((40, 30), np.float32),
    "bias": np.zeros(30, np.float32),
    "count": np.array([3], np.int64),
}


TaskIdentity.task_id = TaskIdentity.run_id = 1
TaskIdentity.node_id = 0


def drift(node: int, name: str) -> np.ndarray:
    """Return what a client adds to an array in each round."""
    shape = START[name].shape
    return np.random.default_rng([node, len(name)]).standard_normal(shape, np.float32)


class LocalGrid(Grid):
    """A grid that runs client apps in this process; a function may change what they send."""

    def __init__(self, app: ClientApp, nodes: int, change: Callable[[Message], Any] | None = None):
        self.app, self.change = app, change
        self.contexts = {
            node: Context(1, node, {}, RecordDict(), {}) for node in range(1, nodes + 1)
        }
        self.seen: list[Message] = []
        self.replies: dict[str, Message] = {}
        self.count = 0

    run = None

    def set_run(self, run: Any) -> None:
        pass

    def create_message(self, *parts: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            context = self.contexts[message.metadata.dst_node_id]
            received = Message(RecordDict(dict(message.content)), 0, "train")
            received.__dict__["_metadata"] = message.metadata
            self.seen.append(received)
            reply = self.app(received, context)
            if self.change is not None:
                self.change(reply)
            self.replies[str(self.count)] = reply
            ids.append(str(self.count))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(each) for each in message_ids]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def client_app(*mods: Any) -> ClientApp:
    return with_work(ClientApp(mods=list(mods)))


def with_work(app: ClientApp) -> ClientApp:
    """Return an app with functions that train and evaluate."""

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert set(message.content) == {"arrays", "config"}
        arrays = {name: x.numpy() for name, x in message.content["arrays"].items()}
        for name in ("weight", "bias"):
            arrays[name] = arrays[name] + drift(context.node_id, name)
        arrays["count"] = arrays["count"] + 1
        return reply_to(message, arrays)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        total = float(message.content["arrays"]["weight"].numpy().sum())
        metrics = MetricRecord({"num-examples": 1, "sum": total})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def reply_to(message: Message, arrays: dict[str, np.ndarray]) -> Message:
    records = {
        "arrays": ArrayRecord({name: Array(x) for name, x in arrays.items()}),
        "metrics": MetricRecord({"num-examples": 2}),
    }
    return Message(RecordDict(records), reply_to=message)


def rounds(grid: Any, number: int = 1, evaluate: float = 0.0) -> dict[str, np.ndarray]:
    strategy = FedAvg(fraction_evaluate=evaluate, min_train_nodes=1, min_available_nodes=1)
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    result = strategy.start(grid, arrays, num_rounds=number)
    return {name: x.numpy() for name, x in result.arrays.items()}


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("key", [None, KEY])
def test_lossless_codec_gives_the_plain_average(key: bytes | None, feedback: bool) -> None:
    plain = rounds(LocalGrid(client_app(), 3), 2)
    mod = gcodec.flower.FrameMod("topk:ratio=1", key=key, feedback=feedback)
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 3), key=key)
    for name, values in rounds(grid, 2, evaluate=1.0).items():
        assert values.dtype == plain[name].dtype
        np.testing.assert_allclose(values, plain[name], atol=1e-6)
    assert grid.dropped == []


def test_feedback_spans_rounds() -> None:
    """All updates of a client minus those that arrived equal the residual in its state."""
    mod = gcodec.flower.FrameMod("topk:ratio=0.1")
    local = LocalGrid(client_app(mod), 1)
    grid = gcodec.flower.FrameGrid(local)
    memory = gcodec.Feedback("topk:ratio=0.1", rank=1)
    expected = START["weight"].copy()
    for _ in range(3):
        expected += gcodec.decode(memory.compress("update:arrays/weight", drift(1, "weight")))
    arrived = rounds(grid, 3)["weight"]
    np.testing.assert_allclose(arrived, expected, atol=1e-5)
    record = local.contexts[1].state["gcodec.feedback"]
    residual = record["residual:update:arrays/weight"].numpy()
    total = START["weight"] + 3 * drift(1, "weight")
    np.testing.assert_allclose(arrived + residual, total, atol=1e-5)


def test_feedback_has_the_decay_and_the_seed_of_the_mod() -> None:
    options: dict[str, Any] = {"decay": 0.5, "seed": 7}
    mod = gcodec.flower.FrameMod("randomk:ratio=0.1", **options)
    memory = gcodec.Feedback("randomk:ratio=0.1", rank=1, **options)
    expected = START["weight"].copy()
    for _ in range(2):
        expected += gcodec.decode(memory.compress("update:arrays/weight", drift(1, "weight")))
    arrived = rounds(gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 1)), 2)["weight"]
    np.testing.assert_allclose(arrived, expected, atol=1e-5)


def test_nothing_is_sent_later_without_feedback() -> None:
    mod = gcodec.flower.FrameMod("topk:ratio=0.1", feedback=False)
    sent = gcodec.decode(gcodec.encode(drift(1, "weight"), "topk:ratio=0.1"))
    arrived = rounds(gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 1)), 2)["weight"]
    np.testing.assert_allclose(arrived, START["weight"] + 2 * sent, atol=1e-5)


def test_evaluation_leaves_the_feedback() -> None:
    """A reply to one contains no update, so it does not take the place of the last one."""
    mod = gcodec.flower.FrameMod("topk:ratio=0.1")
    local = LocalGrid(client_app(mod), 2)
    rounds(gcodec.flower.FrameGrid(local), 3, evaluate=1.0)
    memory = gcodec.Feedback("topk:ratio=0.1", rank=1)
    for _ in range(3):
        memory.compress("update:arrays/weight", drift(1, "weight"))
    record = local.contexts[1].state["gcodec.feedback"]
    residual = record["residual:update:arrays/weight"].numpy()
    expected = memory.residual("update:arrays/weight")
    np.testing.assert_allclose(residual, expected, atol=1e-5)


def test_bytes_of_a_round() -> None:
    policy = gcodec.Policy({"bias": "raw", "*": "ecsq:bits=2"})
    mod = gcodec.flower.FrameMod(policy)
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 2), codec="minmax:bucket=64")
    rounds(grid)
    dense = 2 * sum(x.nbytes for x in START.values())
    assert 0.05 * dense < grid.received_nbytes < 0.25 * dense
    assert 0.25 * dense < grid.sent_nbytes < 0.4 * dense


@pytest.mark.parametrize("feedback", [False, True])
def test_policy_sees_whole_names(feedback: bool) -> None:
    arrays = {name: np.zeros((8, 4), np.float32) for name in ("kernel", "dense/kernel")}
    content = {
        "arrays": ArrayRecord({name: Array(x) for name, x in arrays.items()}),
        "gcodec": ConfigRecord({"nonce": "", "accepted": ""}),
    }
    mod = gcodec.flower.FrameMod(gcodec.Policy({"kernel": "raw", "*": "sign"}), feedback=feedback)
    changed = {name: x + 1 for name, x in arrays.items()}
    reply = mod(
        Message(RecordDict(content), 1, "train"),
        Context(1, 1, {}, RecordDict(), {}),
        lambda message, context: reply_to(message, changed),
    )
    frames = reply.content["arrays"].items()
    codecs = {name: gcodec.Frame.from_bytes(x.data).codec.name for name, x in frames}
    assert codecs == {"kernel": "raw", "dense/kernel": "sign"}


def test_clients_compute_from_what_they_decode() -> None:
    mod = gcodec.flower.FrameMod("topk:ratio=1")
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 1), codec="sign", key=None)
    coarse = gcodec.decode(gcodec.encode(START["weight"], "sign"))
    np.testing.assert_allclose(rounds(grid)["weight"], coarse + drift(1, "weight"), atol=1e-6)


@pytest.mark.parametrize("key", [None, KEY])
def test_rounding_errors_of_rounds_differ(key: bytes | None) -> None:
    """All clients of a round decode the same arrays, and those of another round other arrays."""
    seen: dict[int, list[bytes]] = {1: [], 2: []}
    app = ClientApp(mods=[gcodec.flower.FrameMod("raw", key=key)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: x.numpy() for name, x in message.content["arrays"].items()}
        seen[context.node_id].append(arrays["weight"].tobytes())
        return reply_to(message, START)

    rounds(gcodec.flower.FrameGrid(LocalGrid(app, 2), codec="qsgd:s=1", key=key), 2)
    assert seen[1] == seen[2]
    assert len(set(seen[1])) == 2


def of_node(node: int, change: Callable[[Any], Any]) -> Callable[[Message], None]:
    """Return a function that changes the content of the replies of one node."""

    def changed(reply: Message) -> None:
        if reply.metadata.src_node_id == node:
            change(reply.content)

    return changed


def set_frame(content: RecordDict, name: str, change: Callable[[bytes], bytes]) -> None:
    array = content["arrays"][name]
    content["arrays"][name] = Array(array.dtype, array.shape, array.stype, change(array.data))


def flipped(data: bytes) -> bytes:
    return data[:60] + bytes([data[60] ^ 1]) + data[61:]


def another_frame(values: np.ndarray, name: str = "update:arrays/weight") -> Callable[..., bytes]:
    return lambda _: gcodec.encode(values, "raw", name=name, nonfinite="propagate")


def renamed(content: RecordDict) -> None:
    content["arrays"]["other"] = content["arrays"].pop("weight")


def other_metrics(content: RecordDict) -> None:
    content["metrics"] = MetricRecord({"examples": 2})


def examples(number: Any) -> Callable[[RecordDict], None]:
    """Return a function that sets the metric which weights an update."""

    def change(content: RecordDict) -> None:
        content["metrics"] = MetricRecord({"num-examples": number})

    return change


def another_record(content: RecordDict) -> None:
    content["more"] = MetricRecord()


@pytest.mark.parametrize("key", [None, KEY])
def test_counters_stay_exact_although_strategies_average_them_as_floats(
    key: bytes | None,
) -> None:
    """PyTorch's models turn the float64 counters that FedAvg returns into int64 again."""
    app = ClientApp(mods=[gcodec.flower.FrameMod("topk:ratio=0.1", key=key)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: x.numpy() for name, x in message.content["arrays"].items()}
        seen.append(float(arrays["count"][0]))
        arrays["count"] = (arrays["count"] + 1000).astype(np.int64)
        return reply_to(message, arrays)

    seen: list[float] = []
    local = LocalGrid(app, 2)
    grid = gcodec.flower.FrameGrid(local, codec="sign:scale=none", key=key, max_norm=100)
    assert rounds(grid, 3)["count"] == [3003]
    assert grid.dropped == []
    assert seen == [3, 3, 1003, 1003, 2003, 2003]


@pytest.mark.parametrize("mods", [[gcodec.flower.FrameMod("sign")], []])
def test_clients_may_return_narrower_floats_than_they_receive(mods: list[Any]) -> None:
    """Some strategies return float64, which the models of clients turn into float32 again."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weight = message.content["arrays"]["weight"].numpy().astype(np.float32)
        return reply_to(message, {"weight": weight + np.float32(0.5)})

    grid = gcodec.flower.FrameGrid(LocalGrid(app, 2), max_norm=100)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    arrays = ArrayRecord({"weight": Array(np.ones(900))})
    result = strategy.start(grid, arrays, num_rounds=2)
    assert grid.dropped == []
    np.testing.assert_array_equal(result.arrays["weight"].numpy(), np.full(900, 2.0))
    if mods:
        assert grid.received_nbytes < 4 * 250


def test_integers_in_place_of_floats_count_in_the_norm() -> None:
    start = {"weight": np.zeros(9, np.float32)}
    app = ClientApp(mods=[gcodec.flower.FrameMod("raw")])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        size = 1000 if context.node_id == 2 else 1
        return reply_to(message, {"weight": np.full(9, size, np.int16)})

    grid = gcodec.flower.FrameGrid(LocalGrid(app, 2), max_norm=10)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    arrays = ArrayRecord({name: Array(x) for name, x in start.items()})
    result = strategy.start(grid, arrays, num_rounds=1)
    assert grid.dropped == [(2, "the update has a norm of 3e+03")]
    assert result.arrays["weight"].numpy().tolist() == [1] * 9


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: set_frame(c, "weight", lambda x: x[:-1]), "too early|tag"),
        (
            lambda c: set_frame(c, "weight", lambda x: x[:60] + bytes([x[60] ^ 1]) + x[61:]),
            "sum|tag",
        ),
        (lambda c: set_frame(c, "weight", lambda x: b"\x80\x04."), "not a frame"),
        (lambda c: set_frame(c, "weight", another_frame(np.zeros(3, np.float32))), "shape|tag"),
        (
            lambda c: set_frame(c, "weight", another_frame(np.zeros(30, np.float32))),
            "another shape|tag",  # although the difference could be broadcast
        ),
        (
            lambda c: set_frame(
                c, "weight", another_frame(np.zeros(3, np.float32), "value:arrays/weight")
            ),
            "another shape|tag",
        ),
        (lambda c: set_frame(c, "weight", another_frame(np.zeros(2000, np.float32))), "limit|tag"),
        (lambda c: set_frame(c, "weight", another_frame(START["weight"] * np.nan)), "NaN|tag"),
        (lambda c: set_frame(c, "weight", another_frame(START["weight"] * 1e9)), "norm|tag"),
        (lambda c: set_frame(c, "weight", another_frame(START["weight"], "x")), "'x'|tag"),
        (
            lambda c: set_frame(
                c,
                "weight",
                another_frame(START["weight"].astype(np.float64), "value:arrays/weight"),
            ),
            "another shape or dtype|tag",
        ),
        (renamed, "other arrays"),
        (other_metrics, "metrics"),
        (another_record, "metrics"),
        (examples(float("inf")), "metrics"),
        (examples(-4), "'num-examples' is -4|tag"),
        (examples(1e300), "'num-examples' is 1e+300|tag"),
        (examples([2]), "metrics"),
    ],
)
def test_damaged_or_hostile_reply_is_dropped(
    key: bytes | None, change: Callable[[Any], Any], reason: str
) -> None:
    """The round goes on with the other clients, and the reason names what is wrong."""
    app = client_app(gcodec.flower.FrameMod("topk:ratio=1", key=key))
    local = LocalGrid(app, 3, of_node(2, change))
    grid = gcodec.flower.FrameGrid(local, key=key, max_norm=1e4)
    values = rounds(grid)["weight"]
    ((node, text),) = grid.dropped
    assert node == 2
    assert any(word in text for word in reason.split("|")), text
    expected = START["weight"] + (drift(1, "weight") + drift(3, "weight")) / 2
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_changed_metrics_are_dropped_where_there_is_a_key() -> None:
    app = client_app(gcodec.flower.FrameMod("topk:ratio=1", key=KEY))
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 3, of_node(2, examples(3))), key=KEY)
    rounds(grid)
    assert grid.dropped == [(2, "the metrics do not bear the tag of this key")]


def test_metrics_may_arrive_in_another_order() -> None:
    """The mappings of a protocol need not keep theirs."""

    def reverse(reply: Message) -> None:
        metrics = reply.content["metrics"]
        reply.content["metrics"] = MetricRecord(dict(reversed(metrics.items())))

    app = client_app(gcodec.flower.FrameMod("topk:ratio=1", key=KEY))
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 2, reverse), key=KEY)
    rounds(grid, evaluate=1.0)
    assert grid.dropped == []


@pytest.mark.parametrize("change", [RecordDict.clear, other_metrics, examples([1])])
def test_odd_reply_to_an_evaluation_is_dropped(change: Callable[[Any], Any]) -> None:
    """The strategy would end the run because of it."""

    def change_evaluation(content: RecordDict) -> None:
        if not content.array_records:
            change(content)

    app = client_app(gcodec.flower.FrameMod("topk:ratio=1"))
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 3, of_node(2, change_evaluation)))
    values = rounds(grid, 2, evaluate=1.0)["weight"]
    assert grid.dropped == [(2, "other metrics than most clients")] * 2
    total = START["weight"] + 2 * sum(drift(node, "weight") for node in (1, 2, 3)) / 3
    np.testing.assert_allclose(values, total, atol=1e-5)


@pytest.mark.parametrize("evaluate", [0.0, 1.0])
def test_replies_without_examples_change_nothing(evaluate: float) -> None:
    """A mean of weights that are all 0 would end the run."""

    def idle(reply: Message) -> None:
        examples(0)(reply.content)

    local = LocalGrid(client_app(gcodec.flower.FrameMod("topk:ratio=0.1")), 2, idle)
    grid = gcodec.flower.FrameGrid(local)
    assert rounds(grid, 2, evaluate) == {}  # the strategy has no mean
    reason = "the metric 'num-examples' of all replies is 0"
    each_round = [(1, reason), (2, reason)] * (1 + (evaluate > 0))
    assert sorted(grid.dropped) == sorted(each_round * 2)
    local.change = None
    arrived = rounds(grid)["weight"]
    memory = [gcodec.Feedback("topk:ratio=0.1", rank=node) for node in (1, 2)]
    sent = [
        gcodec.decode(own.compress("update:arrays/weight", drift(node, "weight")))
        for node, own in enumerate(memory, 1)
    ]
    np.testing.assert_allclose(arrived, START["weight"] + sum(sent) / 2, atol=1e-6)


def test_one_reply_without_examples_is_accepted() -> None:
    app = client_app(gcodec.flower.FrameMod("topk:ratio=1"))
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 3, of_node(2, examples(0))))
    values = rounds(grid)["weight"]
    assert grid.dropped == []
    expected = START["weight"] + (drift(1, "weight") + drift(3, "weight")) / 2
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_weights_of_another_name_are_checked() -> None:
    def change(reply: Message) -> None:
        weight = -4 if reply.metadata.src_node_id == 2 else 1
        reply.content["metrics"] = MetricRecord({"weight": weight, "num-examples": -1})

    app = client_app(gcodec.flower.FrameMod("topk:ratio=1"))
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 3, change), weighted_by="weight")
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=1,
        weighted_by_key="weight",
    )
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    values = strategy.start(grid, arrays, num_rounds=1).arrays["weight"].numpy()
    assert grid.dropped == [(2, "the metric 'weight' is -4")]
    expected = START["weight"] + (drift(1, "weight") + drift(3, "weight")) / 2
    np.testing.assert_allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_new_arrays_of_a_reply_are_finite(dtype: str) -> None:
    """Frames may have dtypes that NumPy does not have itself."""

    def add_array(content: RecordDict) -> None:
        values = np.full(3, np.nan).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        frame = gcodec.encode(values, "raw", name="value:new/x", nonfinite="propagate")
        content["new"] = ArrayRecord({"x": Array(dtype, (3,), "gcodec.frame", frame)})

    local = LocalGrid(client_app(gcodec.flower.FrameMod("sign")), 1, of_node(1, add_array))
    grid = gcodec.flower.FrameGrid(local)
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    list(grid.send_and_receive([Message(content, 1, "evaluate")]))
    assert grid.dropped == [(1, "'new/x' contains NaN or Inf")]


@pytest.mark.parametrize("by_server", [False, True])
def test_dtypes_that_flower_does_not_keep_are_named(by_server: bool) -> None:
    half = ArrayRecord({"weight": Array(np.ones((40, 30), ml_dtypes.bfloat16))})

    def work(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": half}), reply_to=message)

    app = ClientApp(mods=[gcodec.flower.FrameMod("sign")])
    app.train()(work)
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 1))
    sent = half if by_server else ArrayRecord({"weight": Array(START["weight"])})
    message = Message(RecordDict({"arrays": sent, "config": ConfigRecord()}), 1, "train")
    text = "'weight' is of dtype bfloat16, which Flower does not keep: convert it to float32"
    if by_server:
        with pytest.raises(TypeError, match=text):
            grid.send_and_receive([message])
        return
    [reply] = grid.send_and_receive([message])
    assert reply.error.reason == f"gcodec.flower: the client's reply: {text}"


@pytest.mark.parametrize(("count", "is_dropped"), [(1, False), (2, True)])
def test_new_arrays_of_a_reply_are_bounded_together(count: int, is_dropped: bool) -> None:
    """A short frame may contain a large array, and a reply to an evaluation may have many."""

    def add_arrays(content: RecordDict) -> None:
        frames = {}
        for name in map(str, range(count)):
            frame = gcodec.encode(np.ones(1000), "topk:k=1", name=f"value:new/{name}")
            frames[name] = Array("float64", (1000,), "gcodec.frame", frame)
        content["new"] = ArrayRecord(frames)

    local = LocalGrid(client_app(gcodec.flower.FrameMod("sign")), 1, of_node(1, add_arrays))
    grid = gcodec.flower.FrameGrid(local, limits=gcodec.Limits(1500, 8000))
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    list(grid.send_and_receive([Message(content, 1, "evaluate")]))
    reasons = [reason for _, reason in grid.dropped]
    assert is_dropped == any("the reply has 2000 elements" in reason for reason in reasons)
    assert len(reasons) == is_dropped


def test_dropped_update_is_sent_again() -> None:
    """The client's residual returns to what it was, so the server misses one round only."""
    mod = gcodec.flower.FrameMod("topk:ratio=0.1")
    seen: list[int] = []

    def damage(reply: Message) -> None:
        seen.append(1)
        if len(seen) == 2:
            set_frame(reply.content, "weight", lambda data: data[:-1])

    local = LocalGrid(client_app(mod), 1, damage)
    grid = gcodec.flower.FrameGrid(local)
    rounds(grid, 3)
    memory = gcodec.Feedback("topk:ratio=0.1", rank=1)
    for _ in range(2):
        memory.compress("update:arrays/weight", drift(1, "weight"))
    residual = local.contexts[1].state["gcodec.feedback"]["residual:update:arrays/weight"]
    np.testing.assert_allclose(
        residual.numpy(), memory.residual("update:arrays/weight"), atol=1e-5
    )
    assert len(grid.dropped) == 1


@pytest.mark.parametrize("is_first_dropped", [False, True])
def test_second_grid_of_a_run_continues_the_feedback(is_first_dropped: bool) -> None:
    """It has accepted no update, but does not know of any that was dropped either."""
    mod = gcodec.flower.FrameMod("topk:ratio=0.1")
    seen: list[int] = []

    def damage(reply: Message) -> None:
        seen.extend([1] * len(reply.content.array_records))
        if len(seen) == 3 and reply.content.array_records and is_first_dropped:
            set_frame(reply.content, "weight", lambda data: data[:-1])

    local = LocalGrid(client_app(mod), 1, damage)
    dropped = []
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    for number in (2, 2):
        grid = gcodec.flower.FrameGrid(local)
        content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        list(grid.send_and_receive([Message(content, 1, "evaluate")]))
        rounds(grid, number)
        dropped += grid.dropped
    memory = gcodec.Feedback("topk:ratio=0.1", rank=1)
    for _ in range(4 - is_first_dropped):
        memory.compress("update:arrays/weight", drift(1, "weight"))
    residual = local.contexts[1].state["gcodec.feedback"]["residual:update:arrays/weight"]
    np.testing.assert_allclose(
        residual.numpy(), memory.residual("update:arrays/weight"), atol=1e-5
    )
    assert len(dropped) == is_first_dropped


@pytest.mark.parametrize("codec", ["topk:ratio=0.1", "lowrank"])
def test_array_may_get_another_shape(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its residual is left out; the clients would refuse all further rounds."""
    local = LocalGrid(client_app(gcodec.flower.FrameMod(codec)), 2)
    grid = gcodec.flower.FrameGrid(local)
    rounds(grid, 2)
    monkeypatch.setitem(START, "weight", np.zeros((41, 30), np.float32))
    before = START["weight"].copy()
    assert not np.array_equal(rounds(grid, 2)["weight"], before)
    residual = local.contexts[1].state["gcodec.feedback"]["residual:update:arrays/weight"]
    assert residual.numpy().shape == (41, 30)
    assert grid.dropped == []


def test_messages_that_have_expired_are_forgotten() -> None:
    local = LocalGrid(client_app(gcodec.flower.FrameMod("sign")), 1)
    grid = gcodec.flower.FrameGrid(local)
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    config = ConfigRecord({})
    for ttl in (1e-3, 60.0):
        content = RecordDict({"arrays": arrays, "config": config})
        ids = grid.push_messages([Message(content, 1, "train", ttl=ttl)])
        time.sleep(0.01)
    assert list(grid._sent) == list(ids)


def test_replay_of_an_older_reply_is_dropped() -> None:
    mod = gcodec.flower.FrameMod("topk:ratio=1", key=KEY)
    seen: list[Any] = []

    def replay(reply: Message) -> None:
        if reply.metadata.src_node_id == 1:
            seen.append(RecordDict(dict(reply.content)))
            if len(seen) == 2:
                reply.content = seen[0]

    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 2, replay), key=KEY)
    rounds(grid, 2)
    assert [(node, "tag" in text) for node, text in grid.dropped] == [(1, True)]


def test_reply_to_no_message_is_dropped() -> None:
    def strange(reply: Message) -> None:
        if reply.metadata.src_node_id == 1:
            reply.metadata.__dict__["_reply_to_message_id"] = "another"

    mod = gcodec.flower.FrameMod("topk:ratio=1")
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 2, strange))
    values = rounds(grid)["weight"]
    assert grid.dropped == [(1, "a reply to no message of this grid")]
    np.testing.assert_allclose(values, START["weight"] + drift(2, "weight"), atol=1e-6)


def test_seeds_of_rounds_differ_without_feedback() -> None:
    """The same update is rounded differently in the next round."""
    frames: list[bytes] = []

    def look(reply: Message) -> None:
        frames.append(reply.content["arrays"]["weight"].data)

    mod = gcodec.flower.FrameMod("qsgd:bucket=64", feedback=False)
    local = LocalGrid(client_app(mod), 1, look)
    rounds(gcodec.flower.FrameGrid(local), 2)
    again = LocalGrid(client_app(mod), 1, look)
    rounds(gcodec.flower.FrameGrid(again), 2)
    assert frames[0] != frames[1]
    assert frames[0] == frames[2]


@pytest.mark.parametrize("feedback", [False, True])
def test_rounding_errors_of_clients_and_rounds_differ(feedback: bool) -> None:
    """For the same received arrays and the same update."""
    mod, frames = gcodec.flower.FrameMod("qsgd:s=1", feedback=feedback), set[bytes]()
    changed = {"weight": START["weight"] + drift(1, "weight")}
    for node in (1, 2):
        context = Context(1, node, {}, RecordDict(), {})
        for _ in range(2):
            content = {
                "arrays": ArrayRecord({"weight": Array(START["weight"])}),
                "gcodec": ConfigRecord({"nonce": "", "accepted": ""}),
            }
            message = Message(RecordDict(content), node, "train")
            reply = mod(message, context, lambda message, context: reply_to(message, changed))
            frames.add(reply.content["arrays"]["weight"].data)
    assert len(frames) == 4


@pytest.mark.parametrize("is_reflected", [False, True])
def test_array_that_the_client_has_not_tagged_is_dropped(is_reflected: bool) -> None:
    """A plain array, or the frame that the server has sent."""

    class Recording(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            frames.extend(message.content["arrays"]["weight"] for message in messages)
            return super().push_messages(messages)

    def replace(content: RecordDict) -> None:
        content["arrays"]["weight"] = frames[0] if is_reflected else Array(START["weight"])

    frames: list[Array] = []
    app = client_app(gcodec.flower.FrameMod("topk:ratio=1", key=KEY))
    local = Recording(app, 1, of_node(1, replace))
    grid = gcodec.flower.FrameGrid(local, key=KEY)
    content = {"arrays": ArrayRecord({n: Array(x) for n, x in START.items()})}
    message = Message(RecordDict({**content, "config": ConfigRecord()}), 1, "train")
    list(grid.send_and_receive([message]))
    ((_, reason),) = grid.dropped
    assert ("tag" if is_reflected else "'arrays/weight' is not a frame") in reason


def test_client_refuses_the_frame_of_another_array() -> None:
    frame = gcodec.encode(START["weight"], "raw", name="value:arrays/other")
    array = Array("float32", START["weight"].shape, "gcodec.frame", frame)
    content = {
        "arrays": ArrayRecord({"weight": array}),
        "gcodec": ConfigRecord({"nonce": "", "accepted": ""}),
    }
    mod, context = gcodec.flower.FrameMod("sign"), Context(1, 1, {}, RecordDict(), {})
    reply = mod(Message(RecordDict(content), 1, "train"), context, lambda *arguments: None)
    assert "'weight' has a frame of 'value:arrays/other'" in reply.error.reason


@pytest.mark.parametrize("records", [{}, {"metrics": MetricRecord({"loss": 0.5})}])
def test_replies_without_weights_are_accepted(records: dict[str, Any]) -> None:
    app = ClientApp(mods=[gcodec.flower.FrameMod("raw")])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = RecordDict({"arrays": message.content["arrays"], **records})
        return Message(content, reply_to=message)

    grid = gcodec.flower.FrameGrid(LocalGrid(app, 1))
    content = RecordDict({"arrays": ArrayRecord({"weight": Array(START["weight"])})})
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    assert reply.has_content() and grid.dropped == []


def test_messages_without_a_reply_are_forgotten() -> None:
    class Silent(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            return []

    grid = gcodec.flower.FrameGrid(Silent(client_app(gcodec.flower.FrameMod("sign")), 1))
    arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    assert list(grid.send_and_receive([Message(content, 1, "train")])) == []
    assert grid._sent == {}


def test_key_of_each_client() -> None:
    keys = {1: b"one", 2: b"two"}
    mod = gcodec.flower.FrameMod("topk:ratio=1", key=keys[1])
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 2), key=keys.__getitem__)
    values = rounds(grid)["weight"]
    np.testing.assert_allclose(values, START["weight"] + drift(1, "weight"), atol=1e-6)


def test_every_client_needs_a_key() -> None:
    """A lookup that returns None must not accept replies without tags."""
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(), 2), key={1: KEY}.get)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="key: must return bytes for the node 2"):
        rounds(grid)


def test_arrays_of_either_byte_order_are_updated() -> None:
    mod = gcodec.flower.FrameMod("topk:ratio=1")
    grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 1))
    start = {name: x.astype(x.dtype.newbyteorder()) for name, x in START.items()}
    record = ArrayRecord({name: Array(x) for name, x in start.items()})
    content = RecordDict({"arrays": record, "config": ConfigRecord()})
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    assert not grid.dropped
    values = reply.content["arrays"]["weight"].numpy()
    np.testing.assert_allclose(values, START["weight"] + drift(1, "weight"), atol=1e-6)
    assert reply.content["arrays"]["count"].numpy().tolist() == [4]


def errors_of(mod: Any, grid: Callable[[Grid], Grid]) -> list[str]:
    local = LocalGrid(client_app(mod), 1)
    record = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(x) for name, x in START.items()}),
            "config": ConfigRecord(),
        }
    )
    replies = grid(local).send_and_receive([Message(record, 1, "train")])
    return [str(reply.error.reason) for reply in replies if reply.has_error()]


def test_client_with_a_key_refuses_other_servers() -> None:
    mod = gcodec.flower.FrameMod("sign", key=KEY)
    assert errors_of(mod, lambda grid: grid) == [
        "gcodec.flower: the server does not use a FrameGrid"
    ]
    (error,) = errors_of(mod, lambda grid: gcodec.flower.FrameGrid(grid, key=b"other"))
    assert "the server's message" in error
    (error,) = errors_of(mod, gcodec.flower.FrameGrid)
    assert "is not a frame" in error


def test_client_refuses_messages_without_nonces() -> None:
    class Careless(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            for message in messages:
                del message.content.config_records["gcodec"]["accepted"]
            return super().push_messages(messages)

    local = Careless(client_app(gcodec.flower.FrameMod("sign")), 1)
    record = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})
    grid = gcodec.flower.FrameGrid(local)
    (reply,) = grid.send_and_receive([Message(record, 1, "train")])
    assert "has no nonces" in reply.error.reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.complex64(1), "x has dtype complex64"),
        (np.float32(np.nan), "grad of 'update:arrays/weight' holds 3 NaN or Inf"),
    ],
)
def test_client_refuses_to_send_what_no_frame_stores(value: Any, reason: str) -> None:
    app = ClientApp(mods=[gcodec.flower.FrameMod("sign")])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_to(message, {"weight": np.full(3, value)})

    content = RecordDict({"arrays": ArrayRecord({"weight": Array(np.zeros(3, np.float32))})})
    grid = gcodec.flower.FrameGrid(LocalGrid(app, 1))
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    assert f"the client's reply: {reason}" in reply.error.reason


@pytest.mark.parametrize("options", [{"key": KEY}, {"codec": "lossless"}])
def test_arrays_may_exceed_the_default_limits(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcodec.limits.DEFAULT_LIMITS", gcodec.Limits(16, 64))
    key, limits = options.get("key"), gcodec.Limits(max_elements=1200)

    def replies(mod: gcodec.flower.FrameMod) -> list[Message]:
        grid = gcodec.flower.FrameGrid(LocalGrid(client_app(mod), 1), **options)
        arrays = ArrayRecord({name: Array(x) for name, x in START.items()})
        content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        return list(grid.send_and_receive([Message(content, 1, "train")]))

    (reply,) = replies(gcodec.flower.FrameMod("lossless", key=key, limits=limits))
    np.testing.assert_allclose(
        reply.content["arrays"]["weight"].numpy(), START["weight"] + drift(1, "weight"), 1e-6
    )
    (reply,) = replies(gcodec.flower.FrameMod("lossless", key=key))
    assert "has 1200 elements, more than max_elements=16" in reply.error.reason


def test_server_without_frames_sees_plain_arrays() -> None:
    assert errors_of(gcodec.flower.FrameMod("sign"), lambda grid: grid) == []


def test_client_without_the_mod_sends_plain_arrays() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_to(message, {n: x.numpy() for n, x in message.content["arrays"].items()})

    grid = gcodec.flower.FrameGrid(LocalGrid(app, 1))
    np.testing.assert_array_equal(rounds(grid)["weight"], START["weight"])


@pytest.mark.parametrize(
    "options", [{"key": "text"}, {"feedback": 1}, {"decay": 2}, {"seed": -1}, {"limits": 5}]
)
def test_invalid_arguments_of_the_mod(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        gcodec.flower.FrameMod("sign", **options)


@pytest.mark.parametrize(
    "options",
    [{"key": 5}, {"max_norm": 0}, {"codec": "no such codec"}, {"limits": 5}, {"weighted_by": 5}],
)
def test_invalid_arguments_of_the_grid(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        gcodec.flower.FrameGrid(LocalGrid(client_app(), 1), **options)


def test_programs_of_the_guide_run(capsys: pytest.CaptureFixture[str]) -> None:
    guide = Path(__file__).parents[2] / "docs" / "federated.md"
    client, server = re.findall(r"^```py\n(.*?)^```$", guide.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {"KEY": KEY}
    exec(client, names)
    grid = LocalGrid(with_work(names["app"]), 3)
    names["initial_arrays"] = ArrayRecord({name: Array(x) for name, x in START.items()})
    exec(server, names)
    names["main"](grid, None)
    dropped, _, nbytes = capsys.readouterr().out.rpartition(" ")
    assert dropped == "[]" and 0 < int(nbytes) < 3 * 10 * START["weight"].nbytes
