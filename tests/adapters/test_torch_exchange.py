"""Exchanges over gloo between threads of one process, and the messages that they send."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402

import gcodec.torch  # noqa: E402
from gcodec import Feedback, ParameterError, Policy  # noqa: E402
from gcodec.errors import FormatError, GcodecError  # noqa: E402
from gcodec.feedback import derive_seed  # noqa: E402
from gcodec.torch import TorchCommunicator  # noqa: E402
from gcodec.torch.agreement import Refused  # noqa: E402
from gcodec.torch.exchange import (  # noqa: E402
    Exchange,
    Gathered,
    InsideFirst,
    Traffic,
    TwoPhase,
    shares_of,
)
from gcodec.torch.messages import BucketCoder, Key, Part  # noqa: E402

SIZE, INSIDE = 4, 2
SHAPES = {"matrix": (5, 3), "dense": (7,), "scalar": (), "empty": (0, 3)}
EXACT = Policy({"*": "raw"})
KINDS = ("gather", "two-phase", "inside", "inside, two-phase")


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def in_threads(work: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
    """Call a function as `map` does, in parallel; return its results, and errors of gcodec."""

    def run(*each: Any) -> Any:
        try:
            return work(*each)
        except GcodecError as error:
            return error

    calls = list(zip(*arguments, strict=True))
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, *zip(*calls, strict=True)))


class Groups:
    """Groups of threads, as torch.distributed makes them of processes."""

    def __init__(self) -> None:
        self._store = dist.HashStore()

    def member(self, ranks: Sequence[int], rank: int) -> TorchCommunicator:
        """Join the group of some ranks; all of them call this."""
        place, name = list(ranks).index(rank), ", ".join(map(str, ranks))
        store = dist.PrefixStore(name, self._store)
        group = dist.ProcessGroup(store, place, len(ranks))
        gloo = dist.ProcessGroup.BackendType.GLOO
        group._set_default_backend(gloo)
        backend = dist.ProcessGroupGloo(store, place, len(ranks), timedelta(seconds=60))
        group._register_backend(torch.device("cpu"), gloo, backend)
        member = TorchCommunicator(group)
        member.ranks = list(ranks)
        return member

    def members(self, size: int) -> list[TorchCommunicator]:
        return in_threads(lambda rank: self.member(range(size), rank), range(size))


class Member(NamedTuple):
    """A member of an exchange, and the communicator and the encoder of its first messages."""

    exchange: Exchange
    outer: TorchCommunicator
    coder: BucketCoder


def exchanges(kind: str) -> list[Member]:
    groups = Groups()

    def join(rank: int) -> Member:
        node, local = divmod(rank, INSIDE)
        is_inside = kind.startswith("inside")
        ranks = range(local, SIZE, INSIDE) if is_inside else range(SIZE)
        outer = groups.member(ranks, rank)
        coder, server = (
            BucketCoder(Feedback(EXACT, rank=rank), 0, rank, Key(None)) for _ in range(2)
        )
        exchange: Exchange = Gathered(outer, coder)
        if kind.endswith("two-phase"):
            exchange = TwoPhase(outer, coder, server, EXACT, EXACT)
        if is_inside:
            inside = groups.member(range(node * INSIDE, (node + 1) * INSIDE), rank)
            exchange = InsideFirst(inside, exchange, EXACT)
        return Member(exchange, outer, coder)

    return in_threads(join, range(SIZE))


def bucket(step: int, rank: int) -> list[Part]:
    """Return parts of integers, whose means are exact; one part at odd steps."""
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    whole = np.random.default_rng([step, rank]).integers(-99, 99, sum(sizes)).astype(np.float32)
    rows = np.split(whole, np.cumsum(sizes)[:-1])
    parts = [
        Part(name, row.reshape(shape), None if name == "dense" else gcodec.parse("raw"))
        for (name, shape), row in zip(SHAPES.items(), rows, strict=True)
    ]
    return parts[:1] if step % 2 else parts


def average(members: Sequence[Member], step: int) -> tuple[list[Any], list[Traffic]]:
    """Average a bucket; return the parts of each member, or its error, and the traffic."""
    traffics = [Traffic() for _ in members]

    def work(rank: int) -> list[Part]:
        parts = bucket(step, rank)
        members[rank].exchange.average(parts, step, traffics[rank])
        return parts

    return in_threads(work, range(len(members))), traffics


def check_means(results: Sequence[Sequence[Part]], step: int) -> None:
    buckets = [bucket(step, rank) for rank in range(SIZE)]
    for parts in results:
        for number, part in enumerate(parts):
            mean = sum(each[number].values for each in buckets) / np.float32(SIZE)
            assert np.array_equal(part.values, mean), part.name


@pytest.mark.parametrize("kind", KINDS)
def test_exchange_writes_the_mean_and_counts_the_bytes(kind: str) -> None:
    members = exchanges(kind)
    for step in range(3):
        start = time.perf_counter()
        results, traffics = average(members, step)
        seconds = time.perf_counter() - start
        check_means(results, step)
        # Each message goes to all other members of its group, or one share to each of them.
        others = members[0].outer.size - 1
        for traffic in traffics:
            assert traffic.encode_seconds > 0 and traffic.decode_seconds > 0
            assert traffic.encode_seconds + traffic.decode_seconds < seconds
            if not kind.endswith("two-phase"):
                assert traffic.sent_nbytes == others * traffic.message_nbytes
            assert traffic.sent_nbytes >= traffic.message_nbytes > 0
        assert sum(each.sent_nbytes for each in traffics) == sum(
            each.received_nbytes for each in traffics
        )
        shares = shares_of(bucket(step, 0), INSIDE, EXACT)
        longest = max(sum(part.values.size for part in share) for share in shares)
        row_nbytes = 4 * (longest + 1)  # the last number tells whether the mean is complete
        inside = 2 * (INSIDE - 1) * row_nbytes if kind.startswith("inside") else 0
        assert [each.inside_nbytes for each in traffics] == [inside] * SIZE
    slots = ["matrix", "matrix, shares"] if kind.endswith("two-phase") else ["matrix"]
    assert all(member.outer.knows(slot) for member in members for slot in slots)


@pytest.mark.parametrize("kind", KINDS)
def test_refusal_of_one_member_reaches_all(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = exchanges(kind)
    average(members, 0)

    def refuse(*arguments: Any) -> list[bytes]:
        raise ParameterError("x: cannot be encoded")

    with monkeypatch.context() as patch:
        patch.setattr(members[1].coder, "encode_shares", refuse)
        results, _ = average(members, 1)
    for error in results:
        assert isinstance(error, Refused)
        assert str(error) == "x: cannot be encoded, on rank 1"
    results, _ = average(members, 2)
    check_means(results, 2)


def damaging(method: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
    """Return a method of a communicator that flips the last bit of the first message."""

    def call(*arguments: Any, **options: Any) -> list[bytes]:
        first, *others = method(*arguments, **options)
        return [first[:-1] + bytes([first[-1] ^ 1]), *others]

    return call


@pytest.mark.parametrize(
    ("kind", "failed"),
    [("gather", [1]), ("two-phase", [1]), ("inside", [0, 1]), ("inside, two-phase", [0, 1])],
)
def test_damaged_mean_fails_its_receiver_and_the_node(
    kind: str, failed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = exchanges(kind)
    average(members, 0)
    outer = members[1].outer
    with monkeypatch.context() as patch:
        patch.setattr(outer, "all_gather", damaging(outer.all_gather))
        results, _ = average(members, 1)
    reason = f"the message of rank {outer.ranks[0]} is not of this bucket: "
    for rank, result in enumerate(results):
        assert isinstance(result, GcodecError) == (rank in failed)
        if rank == 1:
            assert isinstance(result, FormatError) and str(result).startswith(reason)
        elif rank in failed:
            assert not isinstance(result, Refused)  # the other node has the mean
            assert str(result).startswith(reason) and str(result).endswith(", on rank 1")
    results, _ = average(members, 2)
    check_means(results, 2)


@pytest.mark.parametrize("kind", ["two-phase", "inside, two-phase"])
def test_damaged_share_fails_all_members(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its receiver says so in place of the mean of the share."""
    members = exchanges(kind)
    average(members, 0)
    outer = members[1].outer
    with monkeypatch.context() as patch:
        patch.setattr(outer, "all_to_all", damaging(outer.all_to_all))
        results, _ = average(members, 1)
    for result in results:
        assert isinstance(result, Refused)
        reason = f"the message of rank {outer.ranks[0]} is not of this bucket: "
        assert str(result).startswith(reason) and str(result).endswith(", on rank 1")
    results, _ = average(members, 2)
    check_means(results, 2)


@pytest.mark.parametrize("prefixed", [False, True])
def test_rules_pick_the_codecs_of_shares_by_their_sizes(prefixed: bool) -> None:
    policy = Policy([{"max_bytes": 12, "codec": "raw"}, {"codec": "sign"}])
    parts = [Part("w", np.arange(7, dtype=np.float32), policy.codec("w", (7,), "float32"))]
    parts.append(Part("dense", np.arange(2, dtype=np.float32), None))
    shares = shares_of(parts, 2, policy, prefixed=prefixed)
    for index, (coded, dense) in enumerate(shares):
        prefix = f"{index}/" if prefixed else ""
        assert [coded.name, dense.name] == [f"{prefix}w", f"{prefix}dense"]
        assert [str(coded.codec), dense.codec] == [("raw", "sign")[index], None]
        assert all(
            np.shares_memory(x.values, y.values)
            for x, y in zip((coded, dense), parts, strict=True)
        )
    for place, part in enumerate(parts):
        joined = np.concatenate([share[place].values for share in shares])
        assert np.array_equal(joined, part.values)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_exchange_has_no_groups(kind: str) -> None:
    for exchange, outer, _ in exchanges(kind):
        exchange.close()
        exchange.close()
        assert not hasattr(outer, "group")
        if isinstance(exchange, InsideFirst):
            assert not hasattr(exchange._inside, "group")


@pytest.fixture
def three() -> list[TorchCommunicator]:
    return Groups().members(3)


@pytest.mark.parametrize("head", [0, 1, 9, 10, 11, 1000])
@pytest.mark.parametrize(
    "lengths",
    [
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[10, 10, 10], [10, 10, 10], [10, 10, 10]],
        [[0, 10, 0], [0, 0, 0], [0, 0, 0]],  # only the first member knows that one is long
        [[1, 200, 3], [40, 5, 0], [0, 0, 8]],
    ],
)
def test_messages_of_any_length(
    lengths: list[list[int]], head: int, three: list[TorchCommunicator]
) -> None:
    messages = [
        [bytes([rank, to]) * (length // 2) + b"x" * (length % 2) for to, length in enumerate(row)]
        for rank, row in enumerate(lengths)
    ]
    received = in_threads(TorchCommunicator.all_to_all, three, messages, [head] * 3)
    assert received == [[messages[rank][to] for rank in range(3)] for to in range(3)]
    second = [row[1] for row in messages]
    gathered = in_threads(TorchCommunicator.all_gather, three, second, [head] * 3)
    assert gathered == [second] * 3


def test_recurring_exchange_takes_one_collective_for_messages_of_similar_length(
    three: list[TorchCommunicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("all_gather", "all_to_all_single"):
        real = getattr(dist, name)
        monkeypatch.setattr(
            dist, name, lambda *a, real=real, name=name, **k: calls.append(name) or real(*a, **k)
        )

    def counted(method: str, length: int, slot: str | None) -> float:
        calls.clear()
        messages = [b"x" * (length if rank == 1 else 3) for rank in range(3)]
        sent = messages if method == "all_gather" else [[message] * 3 for message in messages]
        results = in_threads(lambda m: getattr(m, method)(sent[m.rank], slot=slot), three)
        assert results == [messages] * 3
        return len(calls) / 3

    for method in ("all_gather", "all_to_all"):
        assert not three[0].knows(method)
        assert counted(method, 800, method) == 2
        assert three[0].knows(method)
        # The head has room for 9/8 of the longest message and 64 bytes.
        assert [counted(method, n, method) for n in (800, 964, 1149, 1148, 800)] == [1, 1, 2, 1, 1]
        assert counted(method, 800, None) == 2
        assert counted(method, 800, f"another {method}") == 2


def test_sums_keep_shape_and_order(three: list[TorchCommunicator]) -> None:
    arrays = [np.arange(12, dtype=np.float32).reshape(3, 4).T * (rank + 1) for rank in range(3)]
    in_threads(TorchCommunicator.all_reduce, three, arrays)
    for array in arrays:
        assert np.array_equal(array, np.arange(12).reshape(3, 4).T * 6)
    for wrong in (np.zeros(3), np.broadcast_to(np.float32(0), 3)):
        with pytest.raises(ParameterError, match=r"^values: must be a writable float32 array$"):
            three[0].all_reduce(wrong)


def test_wrong_numbers_of_messages_and_ranks_are_refused(three: list[TorchCommunicator]) -> None:
    with pytest.raises(ParameterError, match=r"^messages=2: must be 3, one for each rank$"):
        three[0].all_to_all([b"", b""])
    for rank in (-1, 3):
        for call in (three[0].exchange, lambda rank, text: three[0].broadcast(text, rank)):
            with pytest.raises(ParameterError, match=f"={rank}: must be a rank below 3$"):
                call(rank, b"")


def test_pairs_and_broadcasts(three: list[TorchCommunicator]) -> None:
    messages = [b"", b"one", b"number two"]
    for root in range(3):
        sent = in_threads(TorchCommunicator.broadcast, three, messages, [root] * 3)
        assert sent == [messages[root]] * 3
    assert in_threads(TorchCommunicator.broadcast, three, [b"first", b"", b""]) == [b"first"] * 3
    for first, second in ((0, 1), (2, 1), (0, 2)):
        pair, places = [three[first], three[second]], [second, first]
        own = [messages[first], messages[second]]
        swapped = in_threads(TorchCommunicator.exchange, pair, places, own)
        assert swapped == [messages[second], messages[first]]
    assert three[1].exchange(1, b"mine") == b"mine"


def test_messages_are_counted_in_bytes(three: list[TorchCommunicator]) -> None:
    """A pair whose messages have other lengths than stated ends its process."""
    words = [np.arange(5.0) + rank for rank in range(3)]
    expected = [array.tobytes() for array in words]
    messages: list[Any] = [words[0], memoryview(words[1]), bytearray(expected[2])]
    pair = in_threads(TorchCommunicator.exchange, three[:2], [1, 0], messages[:2])
    assert pair == [expected[1], expected[0]]
    for rank, message in enumerate(messages):
        own = three[rank].exchange(rank, message)
        assert (type(own), own) == (bytes, expected[rank])
        sent = in_threads(TorchCommunicator.broadcast, three, messages, [rank] * 3)
        assert sent == [expected[rank]] * 3
    for head in (0, 3):
        gathered = in_threads(TorchCommunicator.all_gather, three, messages, [head] * 3)
        assert gathered == [expected] * 3
        rows = [[message] * 3 for message in messages]
        assert in_threads(TorchCommunicator.all_to_all, three, rows, [head] * 3) == [expected] * 3


@pytest.mark.parametrize("message", ["text", None, [1], memoryview(b"abcd")[::2]])
def test_other_messages_are_refused_before_anything_is_sent(
    message: Any, three: list[TorchCommunicator]
) -> None:
    calls: list[Callable[[Any], object]] = [
        *(three[0].all_gather, three[0].broadcast, lambda m: three[0].all_to_all([m] * 3)),
        *(lambda m: three[0].exchange(0, m), lambda m: three[0].exchange(1, m)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^message is of type .*: must be bytes-like, in one"):
            call(message)


def test_process_groups_need_torch_distributed() -> None:
    for make in (TorchCommunicator, TorchCommunicator.apart):
        with pytest.raises(ParameterError, match=r"^group: call torch\.distributed\.init_process"):
            make()


# --- messages -----------------------------------------------------------------------------------

CODECS = {
    "coded": "terngrad",
    "dense": None,
    "zero": "sign",
    "small": "minmax",
    "infinite": "qsgd",
    "tiny": "minmax",
    "also dense": None,
}
POLICY = Policy({name: spec or "raw" for name, spec in CODECS.items()} | {"*": "qsgd"})


def gradients(step: int, rank: int) -> list[Part]:
    """Return parts of which one is 0 after the first step, and one contains Inf on rank 1."""
    rng, parts = np.random.default_rng([step, rank]), []
    for name, spec in CODECS.items():
        shape = (40, 30) if name in ("coded", "zero", "infinite") else (3,)
        values = rng.standard_normal(shape, np.float32) * (name != "zero" or not step)
        if name == "infinite" and rank == 1:
            values[2, 2] = np.inf
        parts.append(Part(name, values, spec and gcodec.parse(spec)))
    return parts


def coders_of(has_feedback: bool, key: bytes | None, group_below: int = 0) -> list[BucketCoder]:
    return [
        BucketCoder(
            Feedback(POLICY, seed=5, rank=rank) if has_feedback else None,
            *(5, rank, Key(key), group_below),
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize("has_feedback", [False, True])
@pytest.mark.parametrize("key", [None, b"secret"])
def test_mean_is_that_of_the_frames_of_all_ranks(has_feedback: bool, key: bytes | None) -> None:
    coders = coders_of(has_feedback, key)
    memories = [Feedback(POLICY, seed=5, rank=rank) for rank in range(2)]
    for step in range(3):
        buckets = [gradients(step, rank) for rank in range(2)]
        expected = [np.zeros_like(part.values) for part in buckets[0]]
        for rank, parts in enumerate(buckets):
            for (name, values, codec), total in zip(parts, expected, strict=True):
                if codec is None or np.isinf(values).any():
                    total += values / 2
                elif values.any():  # otherwise the residual waits, too
                    seed = derive_seed(5, name=name, step=step, rank=rank)
                    frame = gcodec.encode(values, codec, seed=seed)
                    if has_feedback:
                        frame = memories[rank].compress(name, values)
                    gcodec.decode_add(frame, total, scale=0.5)
        messages = [
            coder.encode(parts, step) for coder, parts in zip(coders, buckets, strict=True)
        ]
        for coder, parts, message in zip(coders, buckets, messages, strict=True):
            bound = coder.max_nbytes(parts)
            assert bound is not None and (len(message) <= bound) == (coder is coders[0])
            coder.average(parts, messages)
            coder.commit()
            for part, total in zip(parts, expected, strict=True):
                assert np.array_equal(part.values, total), part.name
    for coder, memory in zip(coders, memories, strict=True):
        coder.encode(gradients(3, 0), 3)
        coder.rollback()
        state, kept = coder.state_dict(), memory.state_dict() if has_feedback else {}
        assert state.keys() == kept.keys()
        assert all(np.array_equal(state[name], array) for name, array in kept.items())


@pytest.mark.parametrize("key", [None, b"secret"])
def test_small_tensors_share_frames_with_the_same_mean(key: bytes | None) -> None:
    grouped, apart = coders_of(True, key, group_below=100), coders_of(True, key)
    lengths = []
    for coders in (grouped, apart):
        buckets = [gradients(0, rank) for rank in range(2)]
        for part in itertools.chain(*buckets):
            if part.name in ("small", "tiny"):
                part.values[...] = [-1, 0, 1]
        messages = [coder.encode(parts, 0) for coder, parts in zip(coders, buckets, strict=True)]
        lengths.append(len(messages[0]))
        coders[1].average(buckets[1], messages)
        for part in buckets[1]:
            if part.name in ("small", "tiny"):
                np.testing.assert_allclose(part.values, [-1, 0, 1], atol=1e-2)
    assert lengths[0] != lengths[1]


@pytest.mark.parametrize("group_below", [0, 100])
@pytest.mark.parametrize("key", [None, b"secret"])
def test_messages_of_other_buckets_are_refused(key: bytes | None, group_below: int) -> None:
    coders = coders_of(True, key, group_below)
    buckets = [gradients(0, rank) for rank in range(2)]
    first, second = (coder.encode(parts, 0) for coder, parts in zip(coders, buckets, strict=True))
    start = 16 if key else 0
    wrong = [second[:end] for end in range(0, len(second), 97)]
    renamed = [part._replace(name=f"{part.name} of another layer") for part in gradients(0, 1)]
    wrong.append(coders_of(True, key, group_below)[1].encode(renamed, 0))
    for is_small in (False, True):
        reshaped = [
            part._replace(values=part.values[None]) if (part.values.size < 9) == is_small else part
            for part in gradients(0, 1)
        ]
        wrong.append(coders_of(True, key, group_below)[1].encode(reshaped, 0))
    wrong += [second + b"\0", second + first[start + 5 :], first + second]
    kinds = second[start : start + 5]
    for place in range(5):
        for kind in {*range(5)} - ({1, 2} if kinds[place] in (1, 2) else {kinds[place]}):
            changed = kinds[:place] + bytes([kind]) + kinds[place + 1 :]
            wrong.append(second[:start] + changed + second[start + 5 :])
    for message in wrong:
        parts = gradients(0, 0)
        with pytest.raises(FormatError, match=r"^the message of rank 1 is not of this bucket: ."):
            coders[0].average(parts, [first, message])
    coders[0].average(buckets[0], [first, second])


def test_message_that_lacks_its_kinds_is_refused() -> None:
    coder = coders_of(True, None)[0]
    parts = [part for part in gradients(0, 0) if part.codec is not None]
    message = coder.encode(parts, 0)
    for end in range(len(parts)):
        with pytest.raises(FormatError, match="its kinds are missing or unknown"):
            coder.average(parts, [message[:end]])


def test_tags_add_as_many_bytes_as_their_bound_allows() -> None:
    parts = [Part(name, np.ones(99, np.float32), gcodec.parse("raw")) for name in ("a", "bb")]
    dense = Part("dense", np.ones(5, np.float32), None)
    for bucket in (parts, [*parts, dense], [dense]):
        coders = [coders_of(False, key)[0] for key in (None, b"secret")]
        plain, tagged = (len(coder.encode(bucket, 0)) for coder in coders)
        bounds = [coder.max_nbytes(bucket) or 0 for coder in coders]
        assert bounds[0] >= plain
        assert bounds[1] - bounds[0] == tagged - plain


def test_tags_name_the_sender() -> None:
    part = Part("w", np.ones(9, np.float32), gcodec.parse("sign"))
    sender = BucketCoder(Feedback("sign"), 0, 0, Key(b"secret"), sender=7)
    receiver = BucketCoder(Feedback("sign", rank=1), 0, 1, Key(b"secret"))
    message, own = sender.encode([part], 0), receiver.encode([part], 0)
    for rank in (0, 1):
        with pytest.raises(FormatError, match="it does not bear the tag of this key"):
            receiver.average([part], [message, own], [rank, 1])
    receiver.average([part], [message, own], [7, 1])
    assert np.array_equal(part.values, np.ones(9))


def test_gradient_that_begins_with_zeros_is_sent() -> None:
    coder, values = coders_of(False, None)[0], np.zeros(5000, np.float32)
    values[-1] = 1
    part = Part("w", values.copy(), gcodec.parse("raw"))
    coder.average([part], [coder.encode([part], 0)])
    assert np.array_equal(part.values, values)


def test_gradient_whose_sum_exceeds_float32_is_sent_as_it_is() -> None:
    coder = BucketCoder(Feedback("mxnet-2bit"), 0, 0, Key(None))
    part = Part("w", np.full(9, 3e38, np.float32), gcodec.parse("mxnet-2bit"))
    for step in range(2):
        message = coder.encode([part], step)
    coder.average([part], [message])
    assert np.array_equal(part.values, np.full(9, 3e38, np.float32))


@pytest.mark.parametrize("has_feedback", [False, True])
def test_finite_gradient_that_a_codec_refuses_is_named(has_feedback: bool) -> None:
    coder = coders_of(has_feedback, None)[0]
    part = Part("w", np.ones((40, 30), np.float32), gcodec.parse("qsgd"))
    coder.encode([part], 0)
    part.values[...] = 3e38
    with pytest.raises(ParameterError, match=r"^tensor 'w': .*norm must not exceed"):
        coder.encode([part], 0)
    part.values[0, 0] = np.nan  # loss scalers must find it
    coder.average([part], [coder.encode([part], 0)])
    assert np.isnan(part.values[0, 0]) and part.values[1, 1] == np.float32(3e38)
