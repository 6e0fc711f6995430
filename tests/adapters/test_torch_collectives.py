"""Collectives of the DDP hook in real processes: exactness, state, bytes and faults."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rank_processes import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")

import gcodec.torch  # noqa: E402
from gcodec import advisor  # noqa: E402
from gcodec.advisor import Link, break_even  # noqa: E402
from gcodec.errors import ParameterError  # noqa: E402
from gcodec.torch import agreement, choice  # noqa: E402
from gcodec.torch.exchange import Traffic  # noqa: E402
from gcodec.torch.factors import Factors  # noqa: E402
from gcodec.torch.messages import Part  # noqa: E402
from gcodec.torch.nodes import Nodes, find_nodes  # noqa: E402
from gcodec.torch.saved_state import Place, SavedState, redistribute  # noqa: E402
from gcodec.training import Simulator  # noqa: E402
from gcodec.training.collectives import share_of  # noqa: E402

PAIR = (
    *("two_phase", "other_codec", "sizes", "dense_bits", "automatic", "resume", "counted"),
    *(
        "factors",
        "unused_factors",
        "resume_factors",
        "mismatch",
        "loaded_late",
        "arguments",
        "gone_in_shares",
        "gone_in_means",
        "flipped_share",
    ),
    *("flipped_mean", "slow"),
)
FOUR = (
    *("two_phase", "hierarchical", "inside_then_two_phase", "from_torchrun"),
    *("resume_hierarchical", "restart", "peers", "refused", "nonfinite", "gone_inside"),
    *("after_other_groups", "some_then_all"),
    *("gone_between", "gone_at_last", "gone_in_choice", "flipped_between", "killed"),
)
Ranks = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Return a function that returns the results of both ranks for a scenario."""
    results = run_ranks("collective_ranks.py", 2, tmp_path_factory.mktemp("pair"), *PAIR)
    return lambda scenario: [rank[scenario] for rank in results]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Return a function that returns the results of four ranks for a scenario."""
    results = run_ranks("collective_ranks.py", 4, tmp_path_factory.mktemp("four"), *FOUR)
    return lambda scenario: [rank[scenario] for rank in results if scenario in rank]


def check_exact(seen: list[Any], collective: str) -> None:
    for rank in seen:
        assert rank["wrong"] == []
        assert rank["kept"]
        assert rank["digest"] == seen[0]["digest"]
        assert rank["collective"] == collective
        assert rank["pays_below"]


@pytest.mark.parametrize("scenario", ["two_phase", "other_codec"])
def test_two_phases_equal_the_reference(pair: Ranks, scenario: str) -> None:
    check_exact(pair(scenario), "two-phase")
    assert pair(scenario)[0]["shape"] == [40, 48]


def test_two_phases_of_four_ranks(four: Ranks) -> None:
    """One of the matrices has fewer rows than there are ranks."""
    check_exact(four("two_phase"), "two-phase")


@pytest.mark.parametrize(
    "scenario", ["hierarchical", "after_other_groups", "inside_then_two_phase", "from_torchrun"]
)
def test_nodes_average_inside_first(four: Ranks, scenario: str) -> None:
    check_exact(four(scenario), "hierarchical")
    assert four(scenario)[0]["shape"] == [20, 48]


def test_rules_see_sizes_of_shares_without_feedback_too(pair: Ranks) -> None:
    for rank in pair("sizes"):
        first, second = rank["digests"]
        assert first == second


def test_dense_tensors_have_the_bits_of_gathering(pair: Ranks) -> None:
    for rank in pair("dense_bits"):
        first, second = rank["digests"]
        assert first == second


def test_groups_of_some_ranks_do_not_disturb_those_of_all(four: Ranks) -> None:
    groups = [[0, 1], [0, 1], [0, 1, 2, 3], [1, 2], [2, 3], [1, 3], [0, 1, 2, 3], [0, 1]]
    for rank, seen in enumerate(four("some_then_all")):
        assert seen["met"] == [*(group for group in groups if rank in group), [0, 1, 2, 3]]


def test_groups_with_the_same_data_agree(four: Ranks) -> None:
    ranks = four("peers")
    assert [rank["digests"] for rank in ranks] == [ranks[0]["digests"]] * 4


def test_advisor_chooses_once_and_says_why(pair: Ranks) -> None:
    first, second = pair("automatic")
    assert first["digest"] == second["digest"]
    assert second["messages"] == []
    [message] = first["messages"]
    for rank in (first, second):
        before, chosen, again = rank["collectives"]
        assert before == "auto"
        assert chosen == again
        assert rank["alone"] == ["gather", "ddp_hook: collective gather: there is one rank"]
        place, arrays, collective = rank["refused"]
        assert place.startswith("state['place']=Place(local=0, inside=2, ")
        assert arrays.startswith("state='residual:x': must be residual:NAME of float32")
        assert collective == "auto"
        assert rank["keys"] == ["iteration", "rank", "size"]
        assert f"sign, {chosen}, step 3" in rank["text"]
        assert message.startswith(f"ddp_hook: collective {chosen}: a step of 2,995 values takes ")
    assert "MB/s" in message


@pytest.mark.parametrize(
    ("ranks", "scenario"),
    [("pair", "resume"), ("pair", "resume_factors"), ("four", "resume_hierarchical")],
)
def test_resumed_run_has_the_same_bits(
    ranks: str, scenario: str, request: pytest.FixtureRequest
) -> None:
    seen = request.getfixturevalue(ranks)(scenario)
    for rank in seen:
        whole, again = rank["digests"]
        assert whole == again == seen[0]["digests"][0]
        assert rank["refused"].startswith("state")
        if scenario != "resume_factors":
            assert "must be Place(" in rank["refused"]
            assert rank["refused"].endswith("load_state_dicts takes the states of all ranks")


def test_averaged_factors_match_those_of_torch(pair: Ranks) -> None:
    first, second = pair("factors")
    assert first == second
    assert first["far"] < 1e-4
    assert first["keys"][:2] == ["2:residual:weight", "2:start:weight"]
    assert first["same"]
    assert first["nan"]
    assert first["residual"] == [32, 48]
    assert first["sent"] == 6 * 4 * (2 * (32 + 48) + 32)  # factors, and the bias


def test_factors_of_unused_parameters_wait(pair: Ranks) -> None:
    for rank in pair("unused_factors"):
        assert rank["kept"]
        assert rank["far"] < 1e-3


def test_restart_with_other_ranks_keeps_what_is_owed(four: Ranks) -> None:
    first, second, *others = four("restart")
    assert first == second
    assert [rank["results"] for rank in others] == [[], []]
    assert len(first["results"]) == 6
    for result in first["results"]:
        assert result["some"]
        assert result["kept"]
        assert result["iteration"] == 5
        assert str(result["refused"]).startswith("state='residual:x': must be the residual of a")
        assert result["warned"] == [
            "ddp_hook: the states of ranks [3] are missing; what they had not sent is lost"
        ]


def test_counted_bytes_are_those_on_the_wire(pair: Ranks) -> None:
    """The lengths of all messages of ``sign`` are known, so each phase takes one call."""
    for rank in pair("counted"):
        buckets = rank["buckets"]
        assert rank["calls"] == {"all-to-all": buckets, "all-gather": buckets}
        assert rank["sent"] == rank["received"]
        assert rank["sent"] <= rank["wire"] <= rank["sent"] + buckets * 600


@pytest.mark.parametrize("scenario", ["gone_in_shares", "gone_in_means"])
def test_rank_that_vanishes_is_named(pair: Ranks, scenario: str) -> None:
    check_gone(pair(scenario), 1)


@pytest.mark.parametrize(
    "scenario", ["gone_inside", "gone_between", "gone_at_last", "gone_in_choice"]
)
def test_rank_that_vanishes_in_a_hierarchy_is_named(four: Ranks, scenario: str) -> None:
    check_gone(four(scenario), 1)


def test_killed_rank_is_named(four: Ranks) -> None:
    seen = four("killed")
    assert len(seen) == 3
    check_gone([seen[0], None, *seen[1:]], 1)


def check_gone(seen: list[Any], gone: int) -> None:
    for rank, result in enumerate(seen):
        if rank != gone:
            # Another node may have finished the first bucket.
            assert result["error"].startswith("ddp_hook: step 2: the bucket of '")
            assert f": no answer from rank {gone}: " in result["error"]
            assert result["seconds"] < 20  # less than the timeout of 30 seconds
            assert result["same"]


def test_slow_rank_is_named(pair: Ranks) -> None:
    first, second = pair("slow")
    assert "step 2: the bucket of 'second.bias': no answer from rank 1: " in first["error"]
    assert first["seconds"] < 15
    assert second["error"]
    assert first["same"]
    assert second["same"]


def test_flipped_share_fails_all_ranks(pair: Ranks) -> None:
    for rank in pair("flipped_share"):
        assert rank["error"].startswith(
            "ddp_hook: step 2: the bucket of 'second.bias': the message of rank 0 is not of this "
            "bucket: "
        )
        assert rank["error"].endswith(", on rank 1")
        assert rank["same"]


@pytest.mark.parametrize(
    ("ranks", "scenario"), [("pair", "flipped_mean"), ("four", "flipped_between")]
)
def test_flipped_mean_fails_its_receiver_at_once(
    ranks: str, scenario: str, request: pytest.FixtureRequest
) -> None:
    """The others fail when they meet it next, and learn why."""
    seen = request.getfixturevalue(ranks)(scenario)
    for rank in seen:
        error = rank["error"] or rank["following"]
        assert ": the message of rank " in error
        assert " is not of this bucket: " in error
        assert rank["seconds"] < 20
        assert not rank["error"] or rank["same"]
    assert seen[1]["error"]


def test_refusal_of_one_rank_fails_all(four: Ranks) -> None:
    seen = four("refused")
    for rank in seen:
        for error, is_same in rank["results"]:
            assert "cannot be encoded, on rank 1" in error
            assert error.startswith("ddp_hook: step 2: the bucket of ")
            assert is_same


def test_infinite_gradient_reaches_all_ranks(four: Ranks) -> None:
    for rank in four("nonfinite"):
        assert rank["results"] == [[None, ["second.weight"], True]] * 2


def test_other_arguments_are_refused(pair: Ranks) -> None:
    first, second = pair("mismatch")
    assert first == second
    collective, codec, hierarchical, count, nodes = first["errors"]
    assert "collective='two-phase' on rank 0, 'gather' on rank 1" in collective
    assert "second=[{'codec': 'sign'}] on rank 0, [{'codec': 'minmax'}] on rank 1" in codec
    assert "collective='hierarchical' on rank 0, 'gather' on rank 1" in hierarchical
    assert "inside=1 on rank 0, 2 on rank 1" in count
    assert nodes.startswith("inside: the nodes must have equally many ranks")


def test_states_that_are_loaded_after_the_first_step_are_compared(pair: Ranks) -> None:
    first, second = pair("loaded_late")
    assert first == second
    text = "states of the same step before the same exchange: these have loaded"
    for _ in range(4):
        same, lone, other = (error.partition(", on")[0] for error in first["errors"][:3])
        assert (same, lone, other) == ("same 3", f"{text} none, 1", f"{text} 1, 2")
        del first["errors"][:3]
    [chosen] = first["errors"]
    assert chosen.startswith("ddp_hook: the ranks differ: collective of the state=None on rank 0")


def test_invalid_arguments(pair: Ranks) -> None:
    expected = ["collective", "inside", "inside", "inside", "policy", "states", "states"]
    for rank in pair("arguments"):
        assert rank["refusals"] == expected


class Group:
    """A communicator of which only the size and the link matter."""

    def __init__(self, size: int, link: Link) -> None:
        self.size, self.link = size, link

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message] * self.size


@pytest.mark.parametrize(
    ("bits", "gpus", "inside", "expected"),
    [
        (0.0001, 1, 1e11, (False, False)),  # short messages, for which latency counts
        (8, 1, 1e11, (False, True)),
        (8, 4, 1e11, (True, True)),
        (0.001, 8, 1e11, (True, False)),
        (8, 4, 1e6, (False, True)),  # nodes whose ranks are not better connected
    ],
)
def test_choice_follows_the_advisor(
    bits: float, gpus: int, inside: float, expected: tuple[bool, bool], monkeypatch: Any
) -> None:
    monkeypatch.setattr(choice, "measure_link", lambda group: group.link)
    slow = Link(1e8 / gpus, latency=1e-3)
    nodes = Nodes(cast(Any, Group(gpus, Link(inside))), cast(Any, Group(16 // gpus, slow)))
    coding = choice.Coding(bits, 1e-12, 1e-12, 0.1)
    chosen = choice.choose_collective(coding, 10**8, Group(16, slow), nodes)
    assert chosen[:2] == expected
    assert f"{bits:.3g} bits per value" in chosen.reason


def test_choice_follows_the_slowest_rank_and_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank measures others, and all choose the same."""
    links = [Link(1e8), Link(1e6)]
    codings = [choice.Coding(8, 1e-9, 1e-8, 0.1), choice.Coding(2, 1e-8, 1e-9, 0.2)]
    monkeypatch.setattr(choice, "measure_link", lambda group: links[group.rank])

    def worker(communicator: Any) -> choice.Choice:
        coding = codings[communicator.rank]
        return choice.choose_collective(coding, 10**6, communicator, None)

    first, second = Simulator(2).run(worker)
    assert first == second
    measured = "8 bits per value, coding 100 and 100 million values per second, links of 1 MB/s"
    assert measured in first.reason


def test_measured_coding_is_that_of_compressed_values() -> None:
    codec, x = gcodec.parse("topk:k=1"), np.array([[3, 4, np.inf, np.nan]], np.float32)
    dense = Part("b", np.ones(5, np.float32), None)
    empty = Part("e", np.zeros((0, 3), np.float32), codec)
    assert choice.measure_coding([dense, empty]) == choice.Coding(0.0, 0.0, 0.0, 0.0)
    measured = choice.measure_coding([dense, Part("w", x, codec), empty])
    frame = gcodec.encode(np.nan_to_num(x, posinf=0), codec, name="w")
    assert measured.bits == 8 * len(frame) / 4
    assert measured.error == pytest.approx(9 / 25)
    assert min(measured.encode, measured.decode) > 0
    zeros = choice.measure_coding([Part("w", np.zeros_like(x), codec)])
    assert zeros.error == 0


def test_measured_link_is_that_of_the_fastest_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, link, calls = [0.0], Link(1e8, latency=1e-3), list[int]()

    def all_gather(message: bytes, head_nbytes: int) -> list[bytes]:
        assert head_nbytes == len(message)
        calls.append(len(message))
        is_disturbed = len(calls) % 3 != 2
        clock[0] += advisor.ring_all_gather(len(message), 4, link) + 0.5 * is_disturbed
        return [message] * 4

    monkeypatch.setattr(choice, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    measured = choice.measure_link(cast(Any, SimpleNamespace(size=4, all_gather=all_gather)))
    assert measured.bandwidth == pytest.approx(1e8)
    assert measured.latency == pytest.approx(1e-3)


def test_factors_of_a_dropped_step_are_undone() -> None:
    """The state is that of the last completed step, even during a step."""
    codecs = {"a": "powersgd:rank=1", "b": "powersgd:rank=2", "c": None}

    def parts(rank: int, step: int) -> list[Part]:
        rng = np.random.default_rng([rank, step])
        return [
            Part(name, rng.standard_normal((20, 12), np.float32), spec and gcodec.parse(spec))
            for name, spec in codecs.items()
        ]

    def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
        return first.keys() == second.keys() and all(
            np.array_equal(first[key], second[key]) for key in first
        )

    def worker(communicator: Any) -> None:
        factors, twin = (Factors(communicator, 3) for _ in range(2))
        for step in range(3):
            means = []
            for each in (factors, twin):
                bucket = parts(communicator.rank, step)
                each.average(bucket, step, Traffic())
                each.commit()
                means.append([part.values for part in bucket])
            assert all(map(np.array_equal, *means))
            before = factors.state_dict()
            assert any(key.startswith("1:residual:a") for key in before)
            assert any(key.startswith("2:residual:b") for key in before)
            for _ in range(2):  # two buckets of a step that is dropped
                factors.average(parts(communicator.rank, 7), step, Traffic())
                assert same(factors.state_dict(), before)
            factors.rollback()
            assert same(factors.state_dict(), before)
            assert np.array_equal(factors.residual("a"), before["1:residual:a"])
        for state in ({"residual:a": np.ones((20, 12))}, {**before, "x:start:a": np.ones(3)}):
            with pytest.raises(ParameterError, match="must be RANK:KEY of a Power"):
                factors.load_state_dict(state)
        assert same(factors.state_dict(), before)
        with pytest.raises(ParameterError, match="name='c': must be one that was compressed"):
            factors.residual("c")

    Simulator(2).run(worker)


KINDS = [(4, 1, 0), (3, 1, 1), (4, 2, 0), (6, 2, 1), (2, 2, 0)]  # ranks, of a node, two phases


def owed_by(factors: Factors) -> dict[str, np.ndarray]:
    """Return the residuals in a state of factors, each of which has one rank, by parameter."""
    pairs = [(key.split(":"), x) for key, x in factors.state_dict().items()]
    residuals = [(name, x) for (_, kind, name), x in pairs if kind == "residual"]
    assert len(dict(residuals)) == len(residuals)
    return dict(residuals)


@pytest.mark.parametrize("spec", ["powersgd:rank=1", "powersgd:rank=3", "powersgd:rank=9", None])
def test_factors_of_another_rank_keep_residuals(spec: str | None) -> None:
    """Rank 9 has more values than the matrix, so it is dense, as without a codec."""
    codec = gcodec.parse("powersgd:rank=2")
    is_factored = spec in ("powersgd:rank=1", "powersgd:rank=3")

    def worker(communicator: Any) -> np.ndarray:
        rng = np.random.default_rng(communicator.rank)
        total = np.zeros((12, 10))

        def step(factors: Factors, codec: Any) -> None:
            values = {name: rng.standard_normal((12, 10), np.float32) for name in ("head", "body")}
            total[...] += values["head"]
            rest = gcodec.parse("powersgd:rank=2")
            parts = [Part(name, x, codec) for name, x in values.items()]
            factors.average([parts[0], parts[1]._replace(codec=rest)], 0, Traffic())
            total[...] -= parts[0].values

        first, second = (Factors(communicator, seed=0) for _ in range(2))
        step(first, codec)
        first.commit()
        state, other = first.state_dict(), spec and gcodec.parse(spec)
        second.load_state_dict(state)
        before = total.copy()
        step(second, other)
        assert second.state_dict().keys() == state.keys()  # during the step
        second.rollback()
        assert all(np.array_equal(x, second.state_dict()[key]) for key, x in state.items())
        total[...] = before
        step(second, other)
        second.commit()
        second.load_state_dict(second.state_dict())
        owed = owed_by(second)
        assert owed.keys() == ({"head", "body"} if is_factored else {"body"})
        return total - owed.get("head", 0)

    assert abs(sum(Simulator(2).run(worker))).max() < 1e-5


def test_factors_of_matrices_that_a_state_knows_otherwise() -> None:
    """Keep the residual of a dense matrix that takes no part, and refuse another shape."""
    codec, rng = gcodec.parse("powersgd:rank=1"), np.random.default_rng(6)
    values = {name: rng.standard_normal((9, 8), np.float32) for name in ("head", "layer")}

    def worker(communicator: Any) -> tuple[int, bool]:
        factors = Factors(communicator, seed=0)
        factors.average([Part(name, x.copy(), codec) for name, x in values.items()], 0, Traffic())
        factors.commit()
        residual = factors.residual("head").copy()
        unused, layer = np.zeros_like(residual), values["layer"].copy()
        parts = [Part("head", unused, None), Part("layer", layer, codec)]
        factors.average(parts, 1, Traffic())
        for each in (codec, None):
            with pytest.raises(ParameterError, match=r"^layer.shape=\(8, 9\): must be \(9, 8\)$"):
                factors.average([Part("layer", values["layer"].T.copy(), each)], 2, Traffic())
        rank = int(np.linalg.matrix_rank(layer))
        return rank, np.array_equal(residual, factors.residual("head")) and not unused.any()

    assert Simulator(2).run(worker) == [(1, True)] * 2


def places(size: int, inside: int, two_phase: int) -> list[Place]:
    return [
        Place(rank % inside, inside, rank // inside, size // inside, two_phase)
        for rank in range(size)
    ]


@pytest.mark.parametrize(("before", "after"), [*itertools.product(KINDS, KINDS)])
def test_redistribution_keeps_what_is_owed(
    before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(5)
    shapes = {"a": (7, 5), "b": (2, 3, 5), "none": (4, 4)}

    def arrays(shares: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        residuals = {f"residual:{k}": rng.standard_normal(x.shape) for k, x in shares.items()}
        return residuals | {f"step:{k}": np.array(3) for k in shares}

    def shares_of(place: Place) -> list[dict[str, np.ndarray]]:
        named = [(n, np.zeros(shape)) for n, shape in shapes.items() if n != "none"]
        parts = list(zip(*(place.shares(n, w, w) for n, w in named), strict=True))
        return [{k: x for part in kind for k, x in part.items() if x.size} for kind in parts]

    def owed(states: list[SavedState], name: str) -> np.ndarray:
        total = np.zeros(shapes[name])
        for place, worker, server in states:
            workers, servers = place.shares(name, total, total)
            for key, share in workers.items():
                share += worker.get(f"residual:{key}", np.zeros(share.shape)) / place.nodes
            for key, share in servers.items():
                share += server.get(f"residual:{key}", np.zeros(share.shape))
        return total

    states = [SavedState(p, *map(arrays, shares_of(p))) for p in places(*before)]
    restored = [SavedState(p, *redistribute(states, p, shapes)) for p in places(*after)]
    for name in shapes:
        np.testing.assert_allclose(owed(restored, name), owed(states, name), 1e-5, 1e-6)
    for place, worker, _ in restored:
        expected, _ = shares_of(place)
        assert {key for key in worker if key.startswith("step:")} == {
            f"step:{k}" for k in expected
        }
        assert all(worker[f"residual:{key}"].shape == x.shape for key, x in expected.items())


@pytest.mark.parametrize(("own", "place"), [([0, 5], 0), ([2, 3], 2), ([5, 0], 2), ([3, 2], 0)])
def test_nodes_in_any_order_of_ranks(
    own: list[int], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank averages the share of its place between nodes, where groups sort their ranks."""
    rank, nodes = own[0], [[0, 5], [1, 4], [2, 3]]

    def apart(ranks: list[int], *options: Any) -> SimpleNamespace:
        return SimpleNamespace(rank=sorted(ranks).index(rank))

    monkeypatch.setattr("gcodec.torch.nodes.TorchCommunicator", SimpleNamespace(apart=apart))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    texts = [json.dumps(node).encode() for node in nodes]
    world = SimpleNamespace(ranks=list(range(6)), all_gather=lambda text: texts)
    assert find_nodes(cast(Any, world), sorted(own), None, "gloo").between.rank == place


def test_residuals_of_other_parameters_are_refused() -> None:
    place = Place(0, 1, 0, 1, 0)
    state = SavedState(place, {"residual:x": np.ones(3), "step:x": np.array(1)}, {})
    for shapes in ({"x": (4,)}, {"y": (3,)}):
        with pytest.raises(ParameterError, match="residual:x"):
            redistribute([state], place, shapes)
    state = SavedState(place, {"residual:x": np.ones(3)}, {})
    with pytest.raises(ParameterError, match="'residual:x': must be with a step count"):
        redistribute([state], place, {"x": (3,)})


def test_shares_cover_a_tensor() -> None:
    for shape, size in itertools.product([(7, 5), (2, 3), (1, 1), (9, 2, 2)], (1, 2, 3, 4)):
        x = np.arange(np.prod(shape)).reshape(shape)
        parts = [share_of(x, i, size).reshape(-1) for i in range(size)]
        np.testing.assert_array_equal(np.concatenate(parts), x.reshape(-1))
        if shape[0] >= size:  # whole rows
            assert {share_of(x, i, size).shape[1:] for i in range(size)} == {shape[1:]}


@pytest.mark.parametrize(
    "place", [[0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [1, 1, 0, 1, 0], [0, 1, -1, 2, 1]]
)
def test_states_without_a_possible_place_are_refused(place: list[int]) -> None:
    state, _ = gcodec.torch.ddp_hook("sign", model=torch.nn.Linear(8, 8))
    with pytest.raises(ParameterError, match=r"^state\['place'\]"):
        state.load_state_dicts([{"iteration": 0, "rank": 0, "size": 1, "place": place}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iteration": 4}, r"^states: iteration=4: must be 3, as in the first state$"),
        ({"size": 3}, r"^states: size=3: must be 2, as in the first state$"),
        ({"rank": 2}, r"^states: rank=2: must be a rank below the size 2$"),
        ({"rank": 0}, r"^states: ranks=\[0, 0\]: must be all different$"),
    ],
)
def test_states_that_do_not_belong_together_are_refused(
    change: dict[str, int], message: str
) -> None:
    state, _ = gcodec.torch.ddp_hook("sign", model=torch.nn.Linear(8, 8))
    states = [{"iteration": 3, "rank": rank, "size": 2} for rank in range(2)]
    with pytest.raises(ParameterError, match=message):
        state.load_state_dicts([states[0], states[1] | change])
    assert state.iteration == 0


@pytest.fixture
def alone() -> Iterator[None]:
    """Make a process group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_loaded_state_replaces_those_of_another_run() -> None:
    """Before the advisor has chosen a collective, which the states of another run wait for."""
    model = torch.nn.Linear(8, 8)
    state, _ = gcodec.torch.ddp_hook("topk:k=3", model=model, collective="auto", min_numel=0)
    before = state.state_dict()
    counters = {"iteration": 5, "size": 2, "step:weight": torch.tensor(2)}
    residuals = [{"rank": rank, "residual:weight": torch.ones(8, 8) * rank} for rank in range(2)]
    state.load_state_dicts([counters | residual for residual in residuals])
    restored = state.state_dict()
    assert state.iteration == restored["iteration"] == 5
    assert torch.equal(restored["residual:weight"], torch.full((8, 8), 0.5))
    state.load_state_dict(before)
    assert state.state_dict() == before
    assert state.iteration == 0


@pytest.mark.usefixtures("alone")
def test_residuals_without_feedback_are_named() -> None:
    arrays = {"residual:weight": torch.ones(8, 8), "step:weight": torch.tensor(2)}
    counters = {"iteration": 5, "rank": 0, "size": 1}
    model = torch.nn.Linear(8, 8)
    hook, _ = gcodec.torch.ddp_hook("sign", model=model, feedback=False, min_numel=0)
    comm = gcodec.torch.fsdp_comm("sign", feedback=False)
    worker = {f"worker:{key}": x for key, x in arrays.items()}
    warned = "the state has residuals, but there is no feedback; what they contain is lost"
    with pytest.warns(UserWarning, match=f"^ddp_hook: {warned}"):
        hook.load_state_dict(counters | arrays)
    with pytest.warns(UserWarning, match=f"^ddp_hook: {warned}"):
        hook.load_state_dicts([counters | arrays])
    with pytest.warns(UserWarning, match=f"^fsdp_comm: {warned}"):
        comm.load_state_dict({"step": 5, "rank": 0, "size": 1} | worker)
    hook.load_state_dict(hook.state_dict())
    comm.load_state_dict(comm.state_dict())


@pytest.mark.usefixtures("alone")
def test_states_with_and_without_factors_are_distinguished() -> None:
    model = torch.nn.Linear(8, 8)
    options = {"model": model, "min_numel": 0}
    plain, _ = gcodec.torch.ddp_hook("sign", **options)
    factors, _ = gcodec.torch.ddp_hook("powersgd:rank=1", collective="factors", **options)
    counters = {"iteration": 5, "rank": 0, "size": 1}
    arrays = {"residual:weight": torch.ones(8, 8), "step:weight": torch.tensor(2)}
    plain.load_state_dict(counters | arrays)
    with pytest.raises(ParameterError, match="a hook without collective='factors', as this"):
        plain.load_state_dict(counters | {"0:residual:weight": torch.ones(8, 8)})
    with pytest.raises(ParameterError, match="load_state_dicts takes the states of all ranks"):
        factors.load_state_dict(plain.state_dict())
    assert factors.iteration == 0
    factors.load_state_dicts([plain.state_dict()])
    assert torch.equal(factors.residual("weight"), torch.ones(8, 8))
    factors.load_state_dict(factors.state_dict())
    plain.load_state_dicts([factors.state_dict()])
    assert torch.equal(plain.residual("weight"), torch.ones(8, 8))


@pytest.mark.parametrize("inside", [1, 4])
@pytest.mark.parametrize("two_phase", [0, 1])
def test_break_even_link_of_a_place(
    inside: int, two_phase: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count what a rank sends, receives and codes, by hand, and compare with the advisor."""
    nodes, dense, message, encode, decode = 3, 16e6, 1e6, 0.5, 0.25
    state, _ = gcodec.torch.ddp_hook("sign")
    place = Place(0, inside, 1, nodes, two_phase)
    monkeypatch.setattr(type(state), "_place", place)
    assert np.isnan(state.pays_below)
    state.gradient_nbytes = int(inside * dense)
    traffic = state._traffic
    if two_phase:  # shares to the other nodes, a mean to them; a mean has the size of a share
        traffic.received_nbytes = int(2 * (nodes - 1) / nodes * message)
        traffic.encode_seconds, traffic.decode_seconds = encode * (1 + 1 / nodes), 2 * decode
        expected = break_even(dense, message, encode, decode, nodes, "two-phase")
    else:
        traffic.message_nbytes = int(message)
        traffic.encode_seconds, traffic.decode_seconds = encode, nodes * decode
        expected = break_even(dense, message, encode, decode, nodes)
    assert state.pays_below == pytest.approx(8 * expected, rel=1e-6)
    monkeypatch.setattr(type(state), "_place", place._replace(node=0, nodes=1))
    assert np.isnan(state.pays_below)


class Scripted:
    """A key-value store in which some keys appear only when they have been asked for once."""

    def __init__(self, *late: str) -> None:
        self.values: dict[str, str] = {}
        self.late = set(late)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        is_late = keys[0] in self.late
        self.late -= {*keys}
        return keys[0] in self.values and not is_late

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


@pytest.mark.parametrize(
    ("reports", "late", "expected"),
    [
        ({0: "", 1: "a reason"}, [], ([2], ["a reason"])),
        ({0: "", 1: "", 2: ""}, [1], ([1], [])),
        ({0: "", 1: "", 2: "a reason"}, [1], ([], ["a reason"])),
        ({0: "", 1: "", 2: ""}, [], ([], [])),
    ],
)
def test_roll_call_names_absent_and_late_ranks(
    reports: dict[int, str], late: list[int], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Scripted(*(agreement._failure_key("group", rank) for rank in late))
    monkeypatch.setattr(agreement, "_store", lambda: store)
    monkeypatch.setattr(agreement, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(agreement, "_LATE_SECONDS", 0)
    for rank, reason in reports.items():
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        agreement.report_failure("group", reason)
    agreement.report_failure("another group", "another reason")
    assert agreement.roll_call("group", range(3), 0.2) == expected


def test_store_that_does_not_answer_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the connection is closed")

    monkeypatch.setattr(agreement, "_store", fail)
    agreement.report_failure("group", "a reason")
    assert agreement.roll_call("group", [0, 1], 0.1) == ([], [])


@pytest.mark.parametrize("can_delete", [True, False])
def test_greatest_number_of_each_call(can_delete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the same ranks do not mix, and their keys do not become more with each of them."""
    store = torch.distributed.HashStore()
    if not can_delete:
        store = Undeletable(store)
    monkeypatch.setattr(agreement, "_store", lambda: store)

    def member(number: int) -> list[int]:
        return [
            agreement.greatest_of([4, 2], number * (-1) ** call, timedelta(seconds=60))
            for call in range(6)
        ]

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(member, (1, 3)))
    assert results == [[3, -1] * 3] * 2
    assert agreement.greatest_of([7], 5, None) == 5
    if can_delete:
        assert store.num_keys() == 1 + 2 + 1 + 1  # counts, and the numbers of the last calls


class Undeletable:
    """A store that cannot delete keys, as some stores of torch cannot."""

    def __init__(self, store: Any) -> None:
        self.add, self.set, self.get, self.wait = store.add, store.set, store.get, store.wait

    def delete_key(self, key: str) -> None:
        raise RuntimeError("this store deletes nothing")


def test_names_that_only_another_rank_has_are_compared() -> None:
    texts = [json.dumps(values).encode() for values in ({"a": 1}, {"a": 1, "b": 2})]
    group = cast(Any, SimpleNamespace(all_gather=lambda text: texts))
    with pytest.raises(ParameterError, match=r"^f: the ranks differ: b=None on rank 0, 2 on ra"):
        agreement.check_agreement(group, "f", {"a": 1})
    texts[1] = texts[0]
    agreement.check_agreement(group, "f", {"a": 1})
