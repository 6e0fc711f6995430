"""Link speeds below which compression pays, and the table of machines."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import advisor
from gcodec.advisor import Cluster, Link, Scheme, Work
from gcodec.advisor.machines import find_machine, machines

rates = st.floats(1e6, 1e11)
bandwidths = st.floats(1e5, 1e12)


@given(st.integers(2, 100), st.floats(1, 1e9), st.floats(0, 1), st.floats(1e-6, 1e3))
def test_both_ways_take_equally_long_at_break_even(
    members: int, dense: float, share: float, seconds: float
) -> None:
    nbytes = dense * share
    encode, decode = seconds, seconds / 7
    speed = advisor.break_even(dense, nbytes, encode, decode, members)
    if not speed:
        assert nbytes >= 2 * dense / members
        return
    coding = advisor.coding_time("all-gather", members, encode, decode)
    for factor, sign in ((0.9, -1), (1.1, 1)):
        link = Link(factor * speed)
        gathered = coding + advisor.ring_all_gather(nbytes, members, link)
        difference = gathered - advisor.ring_all_reduce(dense, members, link)
        assert sign * difference > 0


def test_two_phases_take_as_long_as_a_ring_at_break_even() -> None:
    for members, nbytes in ((2, 100.0), (8, 390.0)):
        speed = advisor.break_even(400, nbytes, 3.0, 2.0, members, "two-phase")
        link = Link(speed)
        coding = advisor.coding_time("two-phase", members, 3.0, 2.0)
        exchanged = coding + advisor.two_phase(nbytes, members, link)
        assert exchanged == pytest.approx(advisor.ring_all_reduce(400, members, link))
    with pytest.raises(gcodec.ParameterError, match="collective"):
        advisor.break_even(400, 100, 1, 1, 2, "ring")


def test_break_even_without_coding_or_without_gain() -> None:
    assert advisor.break_even(400, 100, 0, 0) == math.inf
    assert advisor.break_even(400, 400, 1, 1) == advisor.break_even(400, 401, 0, 0) == 0
    assert advisor.break_even(400, 100, 1, 1, members=8) == 0  # 2/8 of 400
    for arguments in ((-1, 1, 1, 1), (1, 1, -1, 1), (1, 1, 1, math.nan), (1, 1, 1, 1, 1)):
        with pytest.raises(gcodec.ParameterError):
            advisor.break_even(*arguments)


@given(
    st.integers(1, 64), st.integers(1, 8), bandwidths, bandwidths,
    st.lists(st.tuples(st.floats(0.01, 40), rates, rates, st.floats(0, 1)), max_size=3),
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.5),
)  # fmt: skip
def test_nothing_is_recommended_that_does_not_pay(
    nodes: int,
    gpus: int,
    between: float,
    inside: float,
    codecs: list[tuple[float, float, float, float]],
    compute: float,
    overlap: float,
    tolerance: float,
) -> None:
    cluster = Cluster(nodes, gpus, Link(between), Link(inside))
    work = Work(10**8, compute, overlap=overlap)
    schemes = [
        Scheme(f"codec {k}", bits, error, encode=encode, decode=decode)
        for k, (bits, encode, decode, error) in enumerate(codecs)
    ]
    advice = advisor.advise(cluster, work, schemes, tolerance)
    for way in advice.best.ways:
        if way.scheme is not None:
            share = between / gpus if way.level == "between" else inside
            assert share < way.scheme.pays_below(work)
            dense = next(plain for plain in advice.dense.ways if plain.level == way.level)
            assert way.time + way.coding <= dense.time * (1 + 1e-9)


def test_gpus_of_a_node_divide_its_link() -> None:
    """A scheme is recommended where it pays for the share of a GPU, but not for the whole link."""
    scheme = Scheme("fast", 4, 0.1, encode=1e9, decode=1e9)
    cluster, work = Cluster(8, 8, Link(4e9), Link(1e12)), Work(10**8, 0)
    assert 4e9 / 8 < scheme.pays_below(work) < 4e9
    ways = advisor.advise(cluster, work, [scheme]).best.ways
    assert {way.level: way.scheme for way in ways} == {"inside": None, "between": scheme}


def test_schemes_have_speeds_of_their_own() -> None:
    work = Work(10**6, 0.1, encode=1e6, decode=2e6)
    slow, fast = Scheme("slow", 8), Scheme("fast", 8, encode=1e9)
    assert slow.coding_seconds(work) == (1.0, 0.5)
    assert fast.coding_seconds(work) == (1e-3, 0.5)
    assert fast.coding_seconds(work, share=0.5) == (5e-4, 0.25)
    assert slow.pays_below(work) == pytest.approx((4e6 - 1e6) / 2)
    with pytest.raises(gcodec.ParameterError, match="encode=0"):
        Scheme("x", 8, encode=0)


def test_table_of_machines_names_codecs_and_sources() -> None:
    for machine in machines().values():
        assert re.search(r"\d{4}-\d\d-\d\d$", machine.source), "a figure has a date"
        for spec, speed in machine.speeds.items():
            assert str(gcodec.parse(spec)) == spec
            assert all(1e6 < rate < 1e12 for rate in speed)
        assert find_machine(machine.name) == machine


BENCH: dict[str, Any] = {
    "schema": "gcodec.bench/1",
    "source": "x.npz",
    "processor": "a processor",
    "values": 100,
    "bytes": 200,
    "codecs": [
        {"codec": "sign", "encode_bytes_per_second": 4e9, "decode_bytes_per_second": 2e9},
    ],
}


def test_file_of_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(BENCH), encoding="utf-8")
    machine = find_machine(str(path))
    assert machine.speeds == {"sign": advisor.CodingSpeed(2e9, 1e9)}
    assert machine.source == "gcodec bench x.npz, a processor"


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{", "[" * 100_000, json.dumps({**BENCH, "schema": "gcodec.advise/1"})]
    + [json.dumps({**BENCH, "bytes": 10**400})]
    + [json.dumps({**BENCH, **change}) for change in ({"values": 0}, {"codecs": 3}, {"bytes": ""})]
    + ["[" * 100_000, json.dumps({**BENCH, "bytes": 10**400})]
    + [json.dumps({**BENCH, "codecs": [{**BENCH["codecs"][0], "encode_bytes_per_second": 0}]})],
    ids=lambda text: text[:9],
)
def test_file_that_is_no_bench_document(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(gcodec.ParameterError, match="a document that gcodec bench --json"):
        find_machine(str(path))


def test_unknown_machine() -> None:
    with pytest.raises(gcodec.ParameterError, match=r"machine='nix': must be epyc-zen4, h100, or"):
        find_machine("nix")
    with pytest.raises(FileNotFoundError):
        find_machine("nix.json")
