"""`gcodec advise`, and the page of the documentation about it."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from click.testing import CliRunner
from example_files import DUMP as EXAMPLE
from example_files import ROOT

import gcodec
from gcodec import advisor
from gcodec.analysis import timing
from gcodec.cli.main import cli
from gcodec.tensorfiles.dumps import write_dump

PAGE = ROOT / "docs" / "advise.md"
EXERCISES = ROOT / "docs" / "advise-exercises.md"
# 10⁹ values of float16 on 64 nodes with 8 GPUs, 100 Gbit/s between and 600 GB/s inside them.
LARGE = ["--params", "1B", "--dtype", "float16", "--step-time", "100ms", "--nodes", "64"]
LARGE += ["--gpus", "8", "--between", "100Gbit/s", "--inside", "600GB/s"]
BITS = ["--bits", "top-10%=4.8"]
INSTANT = ["--encode", "1e9TB/s", "--decode", "1e9TB/s"]


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each speed once, because no test depends on speeds of this machine."""
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(timing, "_QUICK_ROUNDS", 1)


run = partial(command_line.run, "advise")
advised = partial(command_line.json_of, "advise")


def level(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in document["levels"] if entry["level"] == name)


def way(document: dict[str, Any], codec: str | None, collective: str) -> dict[str, Any]:
    ways = level(document, "between")["ways"]
    return next(w for w in ways if (w["codec"], w["collective"]) == (codec, collective))


def test_exercise_matches_the_formulas() -> None:
    advice = advised(*LARGE, *BITS)
    assert advice["work"]["values"] == 10**9 and advice["work"]["bits_per_value"] == 16
    assert advice["cluster"]["between"] == {"bytes_per_s": 12.5e9, "latency_s": 0}
    dense = advice["dense"]
    assert dense["step_s"] == pytest.approx(0.42083333) and dense["speedup"] == 1
    assert dense["step_with_overlap_s"] == pytest.approx(0.32083333)
    assert level(advice, "inside")["dense_s"] == pytest.approx(2 * 7 / 8 * 2 / 600)
    between = level(advice, "between")
    assert between["members"] == 64 and between["dense_s"] == pytest.approx(0.315)
    assert between["all_gather_limit_bits_per_value"] == pytest.approx(0.5)
    balanced = between["balanced_bits_per_value"]
    assert balanced["two-phase"] == pytest.approx(4.78307, rel=1e-5)
    assert balanced["all-gather"] == pytest.approx(0.149471, rel=1e-5)
    assert level(advice, "inside")["balanced_bits_per_value"] == {"two-phase": None}
    gathered = way(advice, "top-10%", "all-gather")
    assert gathered["communication_s"] == pytest.approx(3.024)
    assert gathered["slower_than_dense"] and gathered["times_dense"] == pytest.approx(9.6)
    assert gathered["speedup"] == pytest.approx(0.42083333 / 3.12983333)
    assert gathered["speedup_with_overlap"] == pytest.approx(0.32083333 / 3.02983333)
    shares = way(advice, "top-10%", "two-phase")
    assert not shares["slower_than_dense"] and shares["times_dense"] == pytest.approx(0.3)
    assert shares["step_s"] == pytest.approx(0.1 + 0.0945 + 0.0058333333)
    # A scheme of unknown error is never recommended.
    assert advice["best"] == dense and advice["codecs"] == []


def test_large_ratios_have_no_exponents() -> None:
    words = ["--params", "1M", "--step-time", "1s"]
    slow = [*words, "--nodes", "3000", "--between", "1kbit/s", "--bits", "x=20", "--bits", "y=1"]
    result = run(*slow)
    assert "x 938x" in result.stdout and "two-phase 0.0005 bits/v (63,979x less)" in result.stdout
    assert [line.split()[2] for line in result.stderr.splitlines()] == ["x", "y"]
    fast = run(*words, "--nodes", "2", "--between", "1Gbit/s", "--bits", "x=1").stdout
    assert "two-phase 1,000 bits/v (dense has less)" in fast and "e+" not in fast


def test_slow_all_gather_is_flagged() -> None:
    text = run(*LARGE, *BITS).stdout
    assert (
        "! all-gather over 64 nodes is slower than dense from 0.5 bits/v on: top-10% 9.6x" in text
    )
    row = next(line for line in text.splitlines() if line.startswith("top-10%"))
    assert row.split() == [
        *("top-10%", "4.80", "3.3", "-", "3.02", "s", "94.5", "ms", "0", "s", "200", "ms"),
        *("2.1x", "100", "ms", "3.2x", "any"),
    ]
    assert "two-phase 4.78 bits/v (3.35x less), all-gather 0.149 bits/v (107x less)" in text
    measured = run(EXAMPLE, *LARGE, *INSTANT, "-c", "topk:ratio=0.1").stdout
    assert re.search(r"slower than dense .*: topk:ratio=0.1 7\.5", measured)
    # 0.1 % of the values are less than 2/64 of the gradient.
    fewer = run(EXAMPLE, *LARGE, "-c", "topk:ratio=0.001,value=float16").stdout
    assert "slower" not in fewer


def test_measurements_on_a_dump_match_inspect() -> None:
    specs = ["raw", "minifloat", "qsgd:bucket=512", "mxnet-2bit"]
    advice = advised(EXAMPLE, "--step-time", "6ms", "--nodes", 4, "--between", "10MB/s", *INSTANT,
                   *(word for spec in specs for word in ("-c", spec)))  # fmt: skip
    assert advice["work"]["values"] == 77_754 and advice["work"]["bits_per_value"] == 32
    inspected = CliRunner().invoke(
        cli, ["inspect", "--json", str(EXAMPLE), *(w for s in specs for w in ("-c", s))]
    )
    total = json.loads(inspected.stdout)["files"][0]["total"]["codecs"]
    for ours, theirs in zip(advice["codecs"], total, strict=True):
        assert ours["codec"] == theirs["codec"]
        assert ours["bits_per_value"] == pytest.approx(theirs["bits_per_value"], rel=1e-12)
        assert ours["nmse"] == pytest.approx(theirs["nmse"], rel=1e-9)
    assert [w["codec"] for w in advice["best"]["ways"]] == ["minifloat"]
    assert advice["best"]["ways"][0]["use"] == "feedback"
    assert advice["best"]["speedup_with_overlap"] == pytest.approx(46.6524 / 6)


def test_effects_by_law_and_as_measured() -> None:
    specs = ("raw", "qsgd:bucket=512", "topk:k=1", "mxnet-2bit", "minifloat")
    advice = advised(EXAMPLE, *LARGE, *(word for spec in specs for word in ("-c", spec)))
    raw, qsgd, topk, silent, minifloat = advice["codecs"]
    plain = advice["convergence"]["plain_bound"]
    assert plain == pytest.approx(math.sqrt(2 / 10_000))
    assert advice["convergence"]["workers"] == 64
    assert raw["law"]["delta"] == 1 and raw["law"]["omega"] == 0
    assert raw["law"]["times_plain_bound"] == 1 and raw["law"]["residual_bound"] == 0
    omega = 512 / (4 * 15 * 15)
    assert qsgd["law"]["omega"] == pytest.approx(omega) and qsgd["unbiased"]
    assert qsgd["law"]["times_plain_bound"] == pytest.approx(1 + omega / 64 / 2)
    assert qsgd["measured"]["use"] == "no feedback"
    assert topk["law"]["delta"] == pytest.approx(1 / 36_864) and topk["law"]["omega"] is None
    delta = topk["law"]["delta"]
    bound = advisor.feedback_bound(delta, advisor.Problem(), 10_000)
    assert topk["law"]["bound"] == pytest.approx(bound)
    assert topk["measured"]["delta"] == pytest.approx(1 - topk["nmse"])
    # The default threshold sends nothing of this gradient.
    assert silent["nmse"] == 1 and silent["measured"]["use"] is None
    assert silent["measured"]["bound"] == silent["law"]["bound"] == "inf"
    assert silent["measured"]["residual_bound"] == "inf"
    assert minifloat["law"]["bound"] == "inf"
    assert minifloat["measured"]["times_plain_bound"] < 1.1
    text = run(EXAMPLE, *LARGE, "-c", "mxnet-2bit").stdout
    assert re.search(r"^mxnet-2bit .* inf +inf .* inf +inf +not at all", text, re.MULTILINE)
    assert re.search(r"^between nodes +dense, ring ", text, re.MULTILINE)


@pytest.mark.parametrize(("width", "count"), [(70, 0), (200, 3)])
def test_residuals_are_explained_where_they_are_shown(width: int, count: int) -> None:
    environment = {"FORCE_COLOR": "1", "COLUMNS": f"{width}"}
    text = run(EXAMPLE, *LARGE, "-c", "sign", env=environment).stdout
    assert text.count("residual") == count  # two headers and a line, or none


def test_all_codecs_are_measured_on_drawn_values_by_default() -> None:
    advice = advised("--params", "20k", "--step-time", "1ms", "--nodes", "4", "--between", "1MB/s")
    assert {entry["codec"] for entry in advice["codecs"]} == set(gcodec.codecs())
    assert advice["source"]["name"].startswith("synthetic:shape=64x64")
    again = advised("synthetic:gennorm,beta=2,n=20000", "--step-time", "1ms", "--nodes", "4",
                    "--between", "1MB/s", "-c", "minifloat")  # fmt: skip
    assert again["work"]["values"] == 20_000
    first = next(entry for entry in advice["codecs"] if entry["codec"] == "minifloat")
    assert 0 < again["codecs"][0]["nmse"] < first["nmse"] < 0.1


def test_low_rank_codecs_are_measured_on_a_matrix() -> None:
    advice = advised(*LARGE, "-c", "powersgd:rank=16", "-c", "ecsq", "-c", "dct8")
    assert advice["source"]["name"].startswith("synthetic:shape=2048x2048")
    powersgd, ecsq, dct8 = advice["codecs"]
    assert powersgd["bits_per_value"] == pytest.approx(0.5, rel=0.01)
    assert powersgd["nmse"] < 0.5 and powersgd["doubt"] is None and ecsq["doubt"] is None
    assert "independent" in dct8["doubt"]
    assert way(advice, "powersgd:rank=16", "two-phase")["times_dense"] < 0.05


def test_codecs_that_values_cannot_judge_are_named(tmp_path: Path) -> None:
    words = ("--step-time", "1ms", "--nodes", "4", "--between", "1MB/s")
    specs = ("powersgd", "ecsq", "qsgd:code=context", "minifloat:code=auto", "qsgd", "topk")
    chosen = [word for spec in specs for word in ("-c", spec)]
    advice = advised("synthetic:gennorm,n=20000", *words, *chosen)
    doubts = {entry["codec"].split(":")[0]: entry["doubt"] for entry in advice["codecs"]}
    assert [entry["doubt"] is not None for entry in advice["codecs"]] == [True] * 4 + [False] * 2
    assert "no rows and columns" in doubts["powersgd"]
    text = run("synthetic:gennorm,n=20000", *words, *chosen).stdout
    assert re.search(r"^\? powersgd, ecsq, qsgd:code=context, .*: not judged here, as", text, re.M)
    path = tmp_path / "d.npz"
    write_dump(path, [("w", np.ones((512, 64), np.float32)), ("b", np.ones(512, np.float32))])
    for sample, expected in (("100000", None), ("8192", "how many rows"), ("100", "no rows and")):
        advice = advised(path, *words, "--sample", sample, "-c", "powersgd")
        (entry,) = advice["codecs"]
        assert entry["doubt"] is None if expected is None else expected in entry["doubt"]


def test_codec_without_a_speed_is_left_out() -> None:
    words = ("--step-time", "1ms", "--nodes", "4", "--between", "1MB/s", "--machine", "epyc-zen4")
    result = run(EXAMPLE, *words, "-c", "sign", "-c", "qsgd:s=3")
    assert "no qsgd:s=3: its coding speed is unknown; gcodec bench --json" in result.stderr
    assert "coding speeds of epyc-zen4: gcodec bench synthetic:shape=2048x2048" in result.stderr
    assert re.search(r"^between nodes +sign, ", result.stdout, re.MULTILINE)
    document = advised(EXAMPLE, *words, "-c", "sign", "-c", "qsgd:s=3")
    sign, qsgd = document["codecs"]
    assert document["machine"]["name"] == "epyc-zen4"
    assert sign["pays_below_bits_per_second"] > 1e9
    assert qsgd["pays_below_bits_per_second"] is None and qsgd["problem"] is None
    assert {way["codec"] for way in level(document, "between")["ways"]} == {None, "sign"}


def test_no_codec_of_a_processor_is_recommended_at_100_gbits() -> None:
    for params in ("10M", "1B"):
        advice = advised(EXAMPLE, "--params", params, "--step-time", "1ms", "--nodes", "64",
                         "--between", "100Gbit/s", "--machine", "epyc-zen4")  # fmt: skip
        assert advice["best"] == advice["dense"]


def test_levels_latencies_and_coding() -> None:
    advice = advised("--params", "8M", "--step-time", "1ms", "--gpus", "4", "--inside", "8GB/s",
                   "--inside-latency", "10us", "--encode", "4GB/s", "--decode", "8GB/s",
                   "--overlap", "0.5", "--bits", "x=8")  # fmt: skip
    assert [entry["level"] for entry in advice["levels"]] == ["inside"]
    ring, gather, shares = advice["levels"][0]["ways"]
    assert ring["communication_s"] == pytest.approx(6 * (10e-6 + 32e6 / 4 / 8e9))
    assert gather["communication_s"] == pytest.approx(3 * (10e-6 + 8e6 / 8e9))
    assert gather["coding_s"] == pytest.approx(8e6 / 1e9 + 4 * 8e6 / 2e9)
    assert shares["coding_s"] == pytest.approx(8e6 / 1e9 * 1.25 + 2 * 8e6 / 2e9)
    dense = advice["dense"]
    assert dense["step_with_overlap_s"] == pytest.approx(0.5e-3 + ring["communication_s"])


def test_one_gpu() -> None:
    result = run("--params", 10, "--step-time", "1s", "--bits", "x=1")
    assert "nothing to send" in result.stdout
    advice = advised("--params", 10, "--step-time", "1s", "--bits", "x=1")
    assert advice["levels"] == [] and advice["best"]["step_s"] == 1


def test_latency_alone_takes_longer_than_computation() -> None:
    words = ["--params", "1M", "--step-time", "1ms", "--nodes", "4", "--between", "1Gbit/s"]
    slow = run(*words, "--between-latency", "1s", "--bits", "x=1").stdout
    assert "   between nodes 125 MB/s after 1 s   1 ms a step\n" in slow
    assert "takes as long as computation at no rate: latency and the other level alone" in slow
    # An all-gather waits for 3 latencies, and two phases for 4, which exceed the computation.
    faster = run(*words, "--between-latency", "300us", "--bits", "x=1").stdout
    bits = 8 * (1e-3 - 3 * 300e-6) * 1e9 / 8 / 3 / 1e6
    assert f"computation at: all-gather {bits:.3g} bits/v" in faster


def test_integer_and_nonfinite_tensors(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    x[3] = np.nan
    tensors = {"\x1b[31mw": x, "count": np.arange(3), "none": np.zeros((0, 2), np.float32)}
    write_dump(path, tensors.items())
    result = run(path, "--step-time", "1ms", "--nodes", "2", "--between", "1MB/s", "-c", "sign")
    assert result.stdout.startswith("500 values of 32 bits   2 nodes x 1 GPU")
    assert "skipped 1 tensor: no gradients" in result.stderr and "\x1b" not in result.output
    assert "1 value NaN or Inf: taken as 0" in result.stderr
    advice = advised(
        path, "--step-time", "1ms", "--nodes", "2", "--between", "1MB/s", "-c", "sign"
    )
    assert 0.3 < advice["codecs"][0]["nmse"] < 0.5
    assert (advice["source"]["tensors_left_out"], advice["source"]["nonfinite"]) == (1, 1)


def test_codec_that_refuses_a_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    write_dump(path, [("w[red]", np.full(100, 3e38, np.float32))])
    spec = "randomk:unbiased=yes"
    words = ("--step-time", "1ms", "--nodes", "2", "--between", "1kB/s", "-c", spec)
    result = run(path, *words)
    assert re.search(rf"^no {spec}: w\[red\]: ", result.stderr, re.MULTILINE)
    (entry,) = advised(path, *words)["codecs"]
    assert entry["problem"] and entry["nmse"] is None and entry["measured"]["bound"] == "inf"
    write_dump(path, [("w", np.zeros(100, np.float32))])
    (entry,) = advised(path, *words)["codecs"]
    assert entry["nmse"] == 0


BASE = ["--params", "10", "--step-time", "1ms", "--bits", "x=1"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--step-time", "1ms"], 2, "give --params N, or a SOURCE"),
        (["--params", "10"], 2, "--step-time"),
        ([*BASE, "--nodes", "2"], 2, "--between is missing: 2 nodes need a link"),
        ([*BASE, "--gpus", "2"], 2, "--inside is missing: 2 GPUs of a node need a link"),
        ([*BASE, "--between", "100"], 2, "'--between': '100': must be a speed"),
        ([*BASE, "--between", "12,5GB/s"], 2, "'12,5GB/s': must be a speed"),
        ([*BASE, "--between", "0GB/s"], 2, "'0GB/s': must be a speed above 0"),
        ([*BASE, "--between", "1e9999GB/s"], 2, "must be a speed"),
        ([*BASE, "--between", "nanGB/s"], 2, "must be a speed"),
        ([*BASE, "--between", "-1GB/s"], 2, "must be a speed"),
        ([*BASE, "--encode", "3B/s"], 2, "'3B/s': must be a speed of at least 4B/s"),
        ([*BASE, "--inside-latency", "-1us"], 2, "must be a time of at least 0s"),
        ([*BASE, "--inside-latency", "5"], 2, "'5': must be a time"),
        ([*BASE, "--nodes", "0"], 2, "must be a whole number from 1"),
        ([*BASE, "--nodes", "1e11", "--between", "1B/s"], 2, "nodes=100000000000: must be"),
        ([*BASE, "--params", "1.5"], 2, "'1.5': must be a whole number"),
        ([*BASE, "--params", "1e400"], 2, "must be a whole number"),
        ([*BASE, "--params", "many"], 2, "must be a whole number"),
        ([*BASE, "--bits", "x"], 2, "'x': must be a name and bits"),
        (
            [*BASE, "--machine", "nix"],
            2,
            "machine='nix': must be epyc-zen4, h100, or a .json file",
        ),
        ([*BASE, "--machine", "nix.json"], 3, "nix.json: No such file"),
        ([*BASE, "--bits", "x=-1"], 2, "must be a name and bits"),
        ([*BASE, "--bits", "=1"], 2, "must be a name and bits"),
        ([*BASE, "--bits", "x=2"], 2, "--bits='x': must be a name that nothing else has"),
        ([*BASE, "--overlap", "2"], 2, "--overlap"),
        ([*BASE, "--overlap", "nan"], 2, "'nan': must be a number from 0 to 1"),
        ([*BASE, "--tolerance", "nan"], 2, "'nan': must be a number of at least 0"),
        ([*BASE, "--tolerance", "inf"], 2, "tolerance=inf"),
        ([*BASE, "--gap", "nan"], 2, "'nan': must be a number from 1e-30 to 1e+30"),
        (["synthetic:gennorm,n=2000000000", *BASE, "-c", "sign"], 4, "--max-elems 2000000000"),
        (["synthetic:gennorm,beta=nan", *BASE], 2, "beta=nan: must be"),
        (["synthetic:nix", *BASE], 2, "synthetic='nix'"),
        ([*BASE, "--steps", "0"], 2, "must be a whole number"),
        ([*BASE, "-c", "nix"], 2, "codec='nix'"),
        (["nix.npz", "--step-time", "1ms"], 2, "nix.npz: no such file"),
        ([__file__, "--step-time", "1ms"], 2, ".py: must be a file named .safetensors,"),
        ([EXAMPLE, "--step-time", "1ms", "-L", "nix"], 2, "no values of a gradient"),
        ([EXAMPLE, "--step-time", "1ms", "--max-elems", "10"], 4, "--max-elems"),
    ],
)
def test_bad_arguments(args: list[object], code: int, message: str) -> None:
    result = run(*args, code=code)
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not result.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100Gbit/s", 12.5e9), ("100 Gbps", 12.5e9), ("100gbps", 12.5e9), ("12.5GB/s", 12.5e9)]
    + [("1e3 kB/s", 1e6), ("1MiB/s", 2.0**20), ("8b/s", 1.0), ("1.5TB/s", 1.5e12)]
    + [(".5GB/s", 5e8), ("1,000.5kB/s", 1000.5e3), ("2.e3B/s", 2000.0)],
)
def test_speed_units(text: str, expected: float) -> None:
    advice = advised(*BASE, "--nodes", "2", "--between", text)
    assert advice["cluster"]["between"]["bytes_per_s"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100ms", 0.1), ("0.1 s", 0.1), ("2min", 120), ("1h", 3600), ("20us", 2e-5), ("7ns", 7e-9)]
    + [("20µs", 2e-5), ("0s", 0)],
)
def test_duration_units(text: str, expected: float) -> None:
    advice = advised("--params", "1", "--bits", "x=1", "--step-time", text)
    assert advice["work"]["compute_s"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1e9", 10**9), ("7B", 7 * 10**9), ("1.5M", 1_500_000), ("2k", 2000), ("1,000", 1000)]
    + [("10_000", 10_000), ("1T", 10**12), ("9223372036854775807", 2**63 - 1)],
)
def test_count_suffixes(text: str, expected: int) -> None:
    advice = advised("--step-time", "1ms", "--bits", "x=1", "--params", text)
    assert advice["work"]["values"] == expected


# --- docs/advise.md -----------------------------------------------------------------------------


def rows(title: str, page: Path = EXERCISES) -> list[list[str]]:
    """Return the rows of the first table of a section."""
    section = page.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = re.findall(r"^\| .* \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1:]]


def seconds(cell: str) -> float | None:
    return None if cell == "–" else float(cell.removesuffix(" ms").replace(",", "")) / 1e3


def test_documented_machines() -> None:
    documented = [row for row in rows("Machines", PAGE) if not row[0].startswith("---")]
    expected = [
        [machine.name, f"`{spec}`", *(f"{4 * rate / 1e9:.3g}" for rate in speed)]
        for machine in advisor.machines().values()
        for spec, speed in machine.speeds.items()
    ]
    assert documented == expected
    text = PAGE.read_text("utf-8").replace("`", "")
    for machine in advisor.machines().values():
        command, place, date = machine.source.split("; ")
        assert f"Source: {command}, {place}, {date}." in text


def test_documented_chapter_table() -> None:
    clusters = {
        "NVLink, one node": advisor.Cluster(1, 8, inside=advisor.Link(600e9)),
        "100 Gbit/s, 64 nodes": advisor.Cluster(64, 8, advisor.Link(12.5e9), advisor.Link(600e9)),
        "25 Gbit/s, 64 nodes": advisor.Cluster(64, 8, advisor.Link(3.125e9), advisor.Link(600e9)),
        "1 Gbit/s after 20 ms, 4 sites": advisor.Cluster(
            4, 8, advisor.Link(0.125e9, 0.02), advisor.Link(600e9)
        ),
    }
    bits = {"8 bits": 8, "top-10 %": 2.07, "top-1 %": 0.241, "rank-r, 0.01": 0.32}
    bits["rank-r, 0.001"] = 0.032
    work = advisor.Work(10**9, 0.1, bits=16)
    table = rows("The chapter's table")
    assert {row[0] for row in table} == set(clusters)
    for link, dense, limit, name, gathered, shared in table:
        cluster = clusters[link]
        own = advisor.dense_plan(cluster, work).ways[-1]
        assert seconds(dense) == pytest.approx(own.time, rel=1e-3)
        balances = [b for b in advisor.balance(cluster, work) if b.level == own.level]
        balance = next(b.bits for b in balances if b.collective == "two-phase")
        documented = None if limit == "none" else float(limit.removesuffix(" bits"))
        assert documented == (None if balance is None else pytest.approx(balance, rel=4e-3))
        if name == "none":
            continue
        ways = advisor.ways(cluster, work, "between", [advisor.Scheme(name, bits[name])])
        for cell, way in zip((gathered, shared), ways[1:], strict=True):
            documented = seconds(cell)
            assert documented is None or documented == pytest.approx(way.time, abs=6e-4, rel=2e-4)


def test_documented_exercise_three() -> None:
    cluster = advisor.Cluster(64, 8, advisor.Link(12.5e9), advisor.Link(600e9))
    work = advisor.Work(10**9, 0.1, bits=16)
    inside, dense = advisor.dense_plan(cluster, work).ways
    table = rows("Exercise 3: 64 nodes, 100 Gbit/s")
    assert len(table) == 8
    for name, bits, ratio, gathered, shared, step, overlapped in table:
        scheme = advisor.Scheme(name, float(bits))
        assert 16 / scheme.bits == pytest.approx(float(ratio), rel=2e-3)
        _, gather, shares = advisor.ways(cluster, work, "between", [scheme])
        if name == "dense":
            shares = dense
        documented_gather = seconds(gathered)
        assert documented_gather is None or documented_gather == pytest.approx(
            gather.time, rel=1e-3
        )
        plan = advisor.plan(work, [inside, shares])
        for cell, time in ((shared, shares.time), (step, plan.step), (overlapped, plan.hidden)):
            assert seconds(cell) == pytest.approx(time, rel=5e-3)


def test_documented_exercise_four() -> None:
    for alpha, error, rank, ratio in rows("Exercise 4: the rank for a ratio of 100"):
        energy = np.arange(1, 4097) ** (-2 * float(alpha))
        left = np.sqrt(energy[20:].sum() / energy.sum())
        assert error == f"{100 * left:.1f} %"
        r = int(rank.replace(",", ""))
        assert energy[r:].sum() <= 0.01 * energy.sum() < energy[r - 1 :].sum()
        assert float(ratio) == pytest.approx(2048 / r, abs=0.005, rel=2e-3)
