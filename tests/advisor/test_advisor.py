"""Costs of collectives, compared with a simulation that moves the data, and worked examples."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import collectives

import gcodec
from gcodec import advisor
from gcodec.advisor import Cluster, Link, Scheme, Work

GBIT = 1e9 / 8
# 64 nodes with 8 GPUs, 100 Gbit/s between and 600 GB/s inside nodes; 10⁹ float16 values, 100 ms.
LARGE = Cluster(64, 8, Link(100 * GBIT), Link(600e9))
WORK = Work(10**9, 0.1, bits=16)

counts = st.integers(1, 40)
amounts = st.floats(0, 1e12)
links = st.builds(Link, st.floats(1e3, 1e13), st.sampled_from([0.0, 1e-6, 1e-3, 1.0]))
close = {"rel": 1e-9, "abs": 1e-12}


# --- collectives --------------------------------------------------------------------------------


@given(counts, amounts, links)
def test_costs_match_simulation(members: int, nbytes: float, link: Link) -> None:
    others = members - 1
    for name, simulate, predict, steps, sent in (
        ("ring", collectives.all_reduce, advisor.ring_all_reduce, 2 * others, 2 / members),
        (
            "two-phase",
            collectives.two_phase,
            advisor.two_phase,
            members * (others > 0),
            2 / members,
        ),
        ("all-gather", collectives.all_gather, advisor.ring_all_gather, others, 1),
    ):
        net = collectives.Network(members, link.bandwidth, link.latency)
        data = np.random.default_rng(members).integers(0, 1000, (members, members))
        expected = data.sum(0)
        simulate(net, data, nbytes)
        assert (data == expected).all(), name
        assert net.steps == [steps] * members
        assert net.sent == pytest.approx([sent * (members - 1) * nbytes] * members, **close)
        assert predict(nbytes, members, link) == pytest.approx(net.time, **close)
    net = collectives.Network(members, link.bandwidth, link.latency)
    collectives.reduce_scatter(net, np.zeros((members, members)), nbytes)
    assert advisor.ring_reduce_scatter(nbytes, members, link) == pytest.approx(net.time, **close)


def test_costs_of_worked_examples() -> None:
    link = Link(12.5e9, 1e-5)
    assert advisor.ring_all_reduce(2e9, 64, link) == pytest.approx(0.315 + 126e-5)
    assert advisor.ring_all_gather(0.6e9, 64, link) == pytest.approx(3.024 + 63e-5)
    # The shares of the first phase start together; the sums travel in a ring.
    assert advisor.two_phase(0.6e9, 64, link) == pytest.approx(0.0945 + 64e-5)
    assert advisor.all_to_all(0.6e9, 64, link) == pytest.approx(0.0945 / 2 + 1e-5)
    # 175·10⁹ float32 values over 400 Gbit/s take 28 s for very many members.
    assert advisor.ring_all_reduce(7e11, 2**20, Link(400 * GBIT)) == pytest.approx(28, rel=1e-5)
    for cost in (advisor.ring_all_reduce, advisor.ring_all_gather, advisor.two_phase):
        assert cost(1e9, 1, link) == 0
        assert cost(0, 3, Link(1e9)) == 0


@given(counts, counts, amounts, amounts, links)
def test_costs_are_monotonic(a: int, b: int, m: float, n: float, link: Link) -> None:
    for cost in (advisor.ring_all_reduce, advisor.ring_all_gather, advisor.two_phase):
        low, high = sorted((cost(min(m, n), min(a, b), link), cost(max(m, n), max(a, b), link)))
        assert low <= high * (1 + 1e-12)
        assert cost(max(m, n), max(a, b), link) == high or low == pytest.approx(high)
        wider = Link(2 * link.bandwidth, link.latency)
        assert cost(m, a, wider) <= cost(m, a, link)
        later = Link(link.bandwidth, link.latency + 1)
        assert cost(m, a, later) >= cost(m, a, link)


@given(st.integers(2, 10**6), amounts, links)
def test_all_gather_limit_matches_dense_ring(members: int, nbytes: float, link: Link) -> None:
    dense = advisor.ring_all_reduce(nbytes, members, link)
    limit = advisor.all_gather_limit(nbytes, members, link)
    assert advisor.ring_all_gather(limit, members, link) == pytest.approx(dense, **close)
    longer = advisor.ring_all_gather(1.01 * limit + 1, members, link)
    assert longer > dense * (1 + 1e-9)


@given(st.integers(2, 10**6), st.floats(0, 1e6), links)
def test_message_sizes_invert_the_times(members: int, time: float, link: Link) -> None:
    for cost, size, steps in (
        (advisor.two_phase, advisor.two_phase_within, members),
        (advisor.ring_all_gather, advisor.all_gather_within, members - 1),
    ):
        nbytes = size(time, members, link)
        if nbytes is None:
            assert steps * link.latency > time
        else:
            assert cost(nbytes, members, link) == pytest.approx(time, rel=1e-9, abs=1e-9)


# --- plans --------------------------------------------------------------------------------------


@given(
    st.integers(1, 6), st.integers(1, 6), amounts, amounts, links, links,
    st.sampled_from(["ring", "two-phase", "all-gather"]),
)  # fmt: skip
def test_plans_match_simulation(
    nodes: int, gpus: int, dense: float, sent: float, between: Link, inside: Link, collective: str
) -> None:
    values = 8 * 10**9
    work = Work(values, 1.0, bits=max(dense / 1e12 * 64, 1e-9))
    nbytes = values * work.bits / 8
    message = values * (sent / 1e12) / 8 if collective != "ring" else nbytes
    cluster = Cluster(nodes, gpus, between, inside)
    chosen = []
    for level in cluster.levels:
        options = advisor.ways(cluster, work, level, [Scheme("x", sent / 1e12)])
        wanted = collective if level == "between" else "ring"
        chosen.append(next(way for way in options if way.collective == wanted))
    plan = advisor.plan(work, chosen)
    ends = [(link.bandwidth, link.latency) for link in (between, inside)]
    time, _ = collectives.hierarchical(nodes, gpus, ends[0], ends[1], nbytes, collective, message)
    assert plan.communication == pytest.approx(time, **close)
    assert plan.step == pytest.approx(1 + time)
    assert plan.hidden == pytest.approx(max(1, time))


def test_ways_of_worked_example() -> None:
    dense = advisor.dense_plan(LARGE, WORK)
    inside, between = dense.ways
    assert (inside.level, between.level) == ("inside", "between")
    assert inside.time == pytest.approx(2 * 7 / 8 * 2 / 600)
    assert between.time == pytest.approx(0.315)
    assert dense.communication == dense.hidden == pytest.approx(0.3208333333)
    assert dense.step == pytest.approx(0.4208333333)
    ways = advisor.ways(LARGE, WORK, "between", [Scheme("top 10 %", 4.8)])
    assert [way.collective for way in ways] == ["ring", "all-gather", "two-phase"]
    assert [way.time for way in ways] == pytest.approx([0.315, 3.024, 0.0945])
    assert ways[1].time / ways[0].time == pytest.approx(9.6)


def test_no_all_gather_inside_one_of_several_nodes() -> None:
    scheme = Scheme("x", 1)
    inside = advisor.ways(LARGE, WORK, "inside", [scheme])
    assert [way.collective for way in inside] == ["ring", "two-phase"]
    alone = Cluster(1, 8, inside=Link(600e9))
    assert [way.collective for way in advisor.ways(alone, WORK, "inside", [scheme])] == [
        *("ring", "all-gather", "two-phase")
    ]
    assert alone.levels == ("inside",)
    assert Cluster(3, 1, Link(1)).levels == ("between",)
    assert Cluster().levels == ()


def test_coding_times() -> None:
    work = Work(8000, 1.0, encode=1000, decode=2000)
    cluster = Cluster(4, 2, Link(1e9), Link(1e9))
    _, gather, shares = advisor.ways(cluster, work, "between", [Scheme("x", 1)])
    assert advisor.coding_time("ring", 4, 1.0, 2.0) == 0  # of tensors that are not encoded
    assert gather.coding == 4000 / 1000 + 4 * 4000 / 2000  # one encode, four decodes
    assert shares.coding == (4000 + 1000) / 1000 + (4 * 1000 + 4 * 1000) / 2000
    inside = advisor.ways(cluster, work, "inside", [Scheme("x", 1)])[1]
    assert inside.coding == (8000 + 4000) / 1000 + (2 * 4000 + 2 * 4000) / 2000
    plan = advisor.plan(work, [inside, gather])
    assert plan.coding == inside.coding + gather.coding
    # Only communication overlaps the computation.
    assert plan.communication < 1
    assert plan.hidden == 1 + plan.coding < plan.step


def test_overlap_of_worked_example() -> None:
    cluster = Cluster(2, 1, Link(1e9))
    work = Work(10**9, 2.0, bits=24)  # communication takes 3 s
    for overlap, hidden in ((0, 5.0), (0.5, 4.0), (1, 3.0)):
        plan = advisor.dense_plan(cluster, Work(10**9, 2.0, bits=24, overlap=overlap))
        assert (plan.step, plan.hidden) == pytest.approx((5.0, hidden))
    half = advisor.ways(cluster, work, "between", [Scheme("x", 1)])[2]
    assert advisor.plan(work, [half]).hidden == 2.0


def test_balance_of_worked_example() -> None:
    bits_of = {(b.level, b.collective): b.bits for b in advisor.balance(LARGE, WORK)}
    left = 0.1 - 2 * 7 / 8 * 2 / 600
    assert bits_of["between", "two-phase"] == pytest.approx(16 * left / 0.315)
    assert bits_of["between", "all-gather"] == pytest.approx(8 * left * 12.5e9 / 63 / 1e9)
    # The link between nodes alone takes longer than the computation.
    assert bits_of["inside", "two-phase"] is None
    # Without links inside nodes, 100 of 315 ms remain.
    (shares, gather) = advisor.balance(Cluster(64, 1, Link(12.5e9)), WORK)
    assert shares.bits == pytest.approx(16 * 100 / 315)
    assert gather.bits == pytest.approx(8 * 0.1 * 12.5 / 63)
    # 64 latencies of 1.58 ms exceed the computation, and 63 of them do not.
    late = advisor.balance(Cluster(64, 1, Link(12.5e9, 1.58e-3)), WORK)
    left = 0.1 - 63 * 1.58e-3
    assert late[0].bits is None and late[1].bits == pytest.approx(8 * left * 12.5 / 63)


@given(
    st.integers(2, 100), st.integers(1, 8), links, links, st.floats(1e-3, 10),
    st.integers(1, 10**12),
)  # fmt: skip
def test_communication_equals_computation_at_balance(
    nodes: int, gpus: int, between: Link, inside: Link, compute: float, values: int
) -> None:
    cluster, work = Cluster(nodes, gpus, between, inside), Work(values, compute)
    dense = advisor.dense_plan(cluster, work)
    for b in advisor.balance(cluster, work):
        other_ways = [way for way in dense.ways if way.level != b.level]
        empty_ways = advisor.ways(cluster, work, b.level, [Scheme("nothing", 0)])
        if b.bits is None:
            nothing = next(way for way in empty_ways if way.collective == b.collective)
            assert advisor.plan(work, [*other_ways, nothing]).communication > compute * (1 - 1e-9)
        elif b.bits <= 1e6:
            scheme = Scheme("x", b.bits)
            ways = advisor.ways(cluster, work, b.level, [scheme])
            own = next(way for way in ways if way.collective == b.collective)
            communication = advisor.plan(work, [*other_ways, own]).communication
            assert communication == pytest.approx(compute, rel=1e-6)


# --- advice -------------------------------------------------------------------------------------

SCHEMES = [
    Scheme("8 bits", 8, 1e-4),
    Scheme("4 bits", 4, 0.01),
    Scheme("1 bit", 1, 0.4),
    Scheme("1 %", 0.24, 0.8),
    Scheme("nothing", 0, 1.0, converges=False),
    Scheme("hearsay", 0.01),
]


def advised(cluster: Cluster, work: Work, **options: Any) -> list[str]:
    return [way.how for way in advisor.advise(cluster, work, SCHEMES, **options).best.ways]


def test_no_compression_on_fast_links() -> None:
    # One node with fast links does not use the link between nodes.
    assert advised(Cluster(1, 8, Link(1.0), Link(600e9)), WORK) == ["ring"]
    assert advised(LARGE, Work(10**9, 0.4, bits=16)) == ["ring", "ring"]


def test_smallest_error_within_tolerance_is_advised() -> None:
    assert advised(LARGE, WORK) == ["ring", "two-phase 4 bits"]
    assert advised(LARGE, Work(10**9, 0.2, bits=16)) == ["ring", "two-phase 8 bits"]
    slow = Cluster(64, 8, Link(25 * GBIT), Link(600e9))
    assert advised(slow, WORK) == ["ring", "two-phase 1 bit"]
    # With two nodes, gathering is as fast as two phases and has half the error.
    assert advised(Cluster(2, 1, Link(GBIT)), Work(10**9, 4.5)) == ["all-gather 4 bits"]
    # The links inside nodes are slow too.
    pcie = Cluster(64, 8, Link(100 * GBIT), Link(12e9))
    assert advised(pcie, WORK) == ["two-phase 4 bits", "two-phase 1 bit"]


def test_fewer_bits_pay_without_overlap() -> None:
    work = Work(10**9, 0.1, bits=16, overlap=0)
    # The fastest step takes 104.8 ms; 110.6 ms with a ring inside nodes, 107.6 ms with 8 bits.
    assert advised(LARGE, work) == ["two-phase 8 bits", "two-phase 1 %"]
    assert advised(LARGE, work, tolerance=0.06) == ["ring", "two-phase 1 %"]
    assert advised(LARGE, work, tolerance=0.2) == ["ring", "two-phase 1 bit"]
    assert advised(LARGE, work, tolerance=10) == ["ring", "ring"]


def test_slow_coding_is_not_advised() -> None:
    fast = Cluster(2, 1, Link(1e9))
    work = Work(10**9, 1.0, bits=16)
    assert advised(fast, work) == ["all-gather 8 bits"]
    slow = Work(10**9, 1.0, bits=16, encode=1e9, decode=1e9)
    assert advised(fast, slow) == ["ring"]


def test_unusable_schemes_are_never_advised() -> None:
    hopeless = Cluster(64, 1, Link(1e6))
    assert advised(hopeless, WORK) == ["two-phase 1 %"]
    for scheme in (SCHEMES[4], SCHEMES[5]):
        best = advisor.advise(hopeless, WORK, [scheme]).best
        assert [way.how for way in best.ways] == ["ring"]


def test_errors_of_a_plan_are_the_sum_of_those_of_its_messages() -> None:
    cluster = Cluster(4, 2, Link(1e9), Link(1e10))
    schemes = [Scheme("known", 4, error=0.01), Scheme("unknown", 1)]
    options = [advisor.ways(cluster, WORK, level, schemes) for level in cluster.levels]
    encodings = {"ring": 0, "all-gather": 1, "two-phase": 2}
    for chosen in itertools.product(*options):
        is_known = all(way.scheme is None or way.scheme.name == "known" for way in chosen)
        expected = sum(0.01 * encodings[way.collective] for way in chosen) if is_known else None
        assert advisor.plan(WORK, chosen).error == expected


def test_single_gpu_needs_no_communication() -> None:
    advice = advisor.advise(Cluster(), WORK, SCHEMES)
    assert advice.best == advice.dense and advice.best.ways == () and advice.ways == ()
    assert advice.best.step == advice.best.hidden == 0.1
    assert advice.balances == ()
    with pytest.raises(gcodec.ParameterError, match="level='inside': must be one of none"):
        advisor.ways(Cluster(), WORK, "inside", [])


@given(
    st.integers(1, 64), st.integers(1, 8), links, links, st.floats(0, 10), st.floats(0, 1),
    st.floats(0, 1),
)  # fmt: skip
def test_advice_is_never_slower_than_dense(
    nodes: int,
    gpus: int,
    between: Link,
    inside: Link,
    compute: float,
    overlap: float,
    tolerance: float,
) -> None:
    cluster = Cluster(nodes, gpus, between, inside)
    work = Work(10**8, compute, overlap=overlap)
    advice = advisor.advise(cluster, work, SCHEMES, tolerance=tolerance)
    assert advice.best.hidden <= (1 + tolerance) * advice.dense.hidden * (1 + 1e-12)
    strict = advisor.advise(cluster, work, SCHEMES, tolerance=0)
    assert strict.best.hidden <= advice.best.hidden * (1 + 1e-12)
    assert advice.best.error is not None and strict.best.error is not None
    assert advice.best.error <= strict.best.error
    fewer = advisor.advise(cluster, work, SCHEMES[:2], tolerance=0)
    assert strict.best.hidden <= fewer.best.hidden * (1 + 1e-12)
    for plan in (advice.best, advice.dense):
        assert max(compute, plan.communication) <= plan.hidden * (1 + 1e-12) or overlap < 1
        assert plan.hidden <= plan.step


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link(0), "bandwidth=0: must be a finite number"),
        (lambda: Link(-1.0), "bandwidth=-1.0"),
        (lambda: Link(math.nan), "bandwidth=nan"),
        (lambda: Link(math.inf), "bandwidth=inf"),
        (lambda: Link("fast"), "bandwidth='fast'"),
        (lambda: Link(1, -1e-6), "latency=-1e-06"),
        (lambda: Link(1, math.inf), "latency=inf"),
        (lambda: Cluster(0), "nodes=0: must be an integer from 1"),
        (lambda: Cluster(1.5), "nodes=1.5"),
        (lambda: Cluster(True), "nodes=True"),
        (lambda: Cluster(2), "between=None: must be a Link, for 2 nodes"),
        (lambda: Cluster(1, 2), "inside=None: must be a Link, for 2 gpus"),
        (lambda: Cluster(2, 1, 1e9), "between=1000000000.0: must be a Link"),
        (lambda: Work(0, 1.0), "values=0: must be an integer from 1"),
        (lambda: Work(1, -1.0), "compute=-1.0: must be a finite number of seconds"),
        (lambda: Work(1, math.nan), "compute=nan"),
        (lambda: Work(1, 1, bits=0), "bits=0"),
        (lambda: Work(1, 1, bits=65), "bits=65"),
        (lambda: Work(1, 1, overlap=1.1), "overlap=1.1: must be a share from 0 to 1"),
        (lambda: Work(1, 1, encode=0), "encode=0"),
        (lambda: Work(1, 1, decode=math.nan), "decode=nan"),
        (lambda: Scheme("x", -1), "bits=-1"),
        (lambda: Scheme("x", 1, -0.1), "error=-0.1"),
        (lambda: advisor.advise(Cluster(), WORK, [], tolerance=-1), "tolerance=-1"),
        (lambda: advisor.ring_all_reduce(-1, 2, Link(1)), "nbytes=-1"),
        (lambda: advisor.ring_all_gather(math.nan, 2, Link(1)), "nbytes=nan"),
        (lambda: advisor.two_phase(1, 0, Link(1)), "members=0"),
        (lambda: advisor.two_phase_within(1, 1, Link(1)), "members=1: must be 2 or more"),
        (lambda: advisor.all_gather_within(-1, 2, Link(1)), "time=-1"),
        (lambda: advisor.all_gather_limit(1, 2**31, Link(1)), "members=2147483648"),
        (lambda: advisor.all_gather_limit(1, 2, None), "link=None: must be a Link"),
        (lambda: advisor.two_phase(1, 2, 1e9), "link=1000000000.0"),
        (lambda: advisor.two_phase_within(1, 0, Link(1)), "members=0: must be 2 or more"),
        (lambda: advisor.two_phase_within(1, 2, None), "link=None"),
        (lambda: advisor.coding_time("tree", 2, 1, 1), "collective='tree': must be one of ring"),
        (lambda: advisor.break_even(-1, 1, 1, 1), "dense_nbytes=-1"),
        (lambda: advisor.break_even(1, 1, 1, 1, collective="ring"), "collective='ring'"),
        (lambda: advisor.ways(None, WORK, "between", []), "cluster=None: must be a Cluster"),
        (lambda: advisor.dense_plan(Cluster(), 1), "work=1: must be a Work"),
        (lambda: advisor.advise(Cluster(2, 1, Link(1)), WORK, ["sign"]), "schemes='sign'"),
        (lambda: advisor.plan(None, []), "work=None: must be a Work"),
        (lambda: advisor.plan(WORK, None), "chosen=None: must be a Sequence"),
        (lambda: advisor.plan(WORK, ["ring"]), "chosen='ring': must be a Way"),
        (lambda: advisor.find_machine(None), "machine=None"),
        (lambda: Scheme("x", 1, converges="no"), "converges='no'"),
        (lambda: Scheme(None, 1), "name=None"),
    ],
)
def test_invalid_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(gcodec.ParameterError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_results_stay_finite_or_infinite() -> None:
    slow = Link(5e-324, 1e300)
    cluster = Cluster(2**31 - 1, 2**31 - 1, slow, slow)
    advice = advisor.advise(cluster, Work(2**63 - 1, 1e300), SCHEMES)
    assert not math.isnan(advice.best.hidden) and not math.isnan(advice.dense.step)
