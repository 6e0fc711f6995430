"""Tensors whose coding is timed, and link speeds that all views of a dump agree on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import json_of
from example_files import DUMP

import gcodec
from gcodec import advisor
from gcodec.analysis import timing
from gcodec.analysis.advice import MeasuredCodec
from gcodec.analysis.diagrams import measure_links
from gcodec.analysis.settings import Settings
from gcodec.tensorfiles.dumps import write_dump

SPECS = ("sign", "minmax:bits=4", "qsgd:bucket=512", "topk:ratio=0.02", "ecsq")
# Nanoseconds per value.
COSTS = {"_encode": 4.0, "_decode": 1.5, "_copy": 0.1}


def quiet(title: str, total: int) -> Any:
    return nullcontext(lambda amount: None)


@pytest.fixture
def fixed_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock: each value takes a time that depends on the codec only."""

    def seconds(call: Callable[[], object], times: int) -> float:
        stopwatch: Any = call.__self__  # type: ignore[attr-defined]
        values = sum(sample.values.size for sample in stopwatch._samples)
        return 1e-9 * values * len(stopwatch.codec.name) * COSTS[call.__name__]

    monkeypatch.setattr(timing, "_seconds", seconds)


def chosen(specs: tuple[str, ...]) -> list[str]:
    return [word for spec in specs for word in ("-c", spec)]


def advised(spec: str, link: float, *words: str) -> list[str | None]:
    """Return the codecs that are recommended on a link in bits per second, or None for dense."""
    cluster = ("--nodes", 2, "--between", f"{link}b/s", "--step-time", "0s", "--tolerance", 0)
    advice = json_of("advise", DUMP, *cluster, *chosen((spec,)), *words)
    return [way["codec"] for way in advice["best"]["ways"]]


@pytest.mark.usefixtures("fixed_speeds")
def test_bench_report_and_advice_agree_on_break_even() -> None:
    bench = json_of("bench", DUMP, "--rounds", 2, *chosen(SPECS))["codecs"]
    words = ("--step-time", "1ms", "--nodes", 64, "--between", "1Gbit/s")
    advice = json_of("advise", DUMP, *words, *chosen(SPECS))["codecs"]
    settings = Settings(progress=quiet)
    # Fewer bits and larger errors, so that the Pareto front contains all codecs.
    points = [MeasuredCodec(gcodec.parse(spec), k, 0.5 / (k + 1)) for k, spec in enumerate(SPECS)]
    timings, samples = measure_links(DUMP, points, settings)
    assert len(samples) == 29
    report = {str(each.codec): each.pays_below for each in timings}
    assert report.keys() == {*SPECS}
    for ours, theirs in zip(bench, advice, strict=True):
        assert ours["codec"] == theirs["codec"]
        speed = ours["pays_below_bits_per_second"]
        assert theirs["pays_below_bits_per_second"] == pytest.approx(speed, rel=1e-9)
        assert report[ours["codec"]] == pytest.approx(speed, rel=1e-9)


@pytest.mark.usefixtures("fixed_speeds")
@pytest.mark.parametrize("spec", ["sign", "minmax:bits=4", "topk:ratio=0.1", "ecsq"])
def test_advice_recommends_what_pays(spec: str) -> None:
    (bench,) = json_of("bench", DUMP, "--rounds", 1, "-c", spec)["codecs"]
    speed = bench["pays_below_bits_per_second"]
    assert advised(spec, 0.97 * speed) == [spec]
    assert advised(spec, 1.03 * speed) == [None]


@pytest.mark.usefixtures("fixed_speeds")
def test_speeds_of_arguments_replace_measured_ones() -> None:
    words = ("--step-time", "1ms", "--nodes", 2, "--between", "1Gbit/s", "-c", "sign")
    (entry,) = json_of("advise", DUMP, *words, "--encode", "8GB/s")["codecs"]
    assert entry["encode_values_per_s"] == 2e9
    assert entry["decode_values_per_s"] == pytest.approx(1e9 / 4 / 1.5)
    advice = json_of("advise", DUMP, *words, "--encode", "8GB/s", "--decode", "4GB/s")
    assert advice["machine"] is None
    assert advice["codecs"][0]["decode_values_per_s"] == 1e9


@pytest.mark.usefixtures("fixed_speeds")
def test_bench_document_is_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    words = ("bench", DUMP, "--rounds", 1, *chosen(("sign", "ecsq")))
    path.write_text(json.dumps(json_of(*words)), encoding="utf-8")
    cluster = ("--step-time", "1ms", "--nodes", 2, "--between", "1Gbit/s", "--machine", path)
    advice = json_of("advise", DUMP, *cluster)
    assert [entry["codec"] for entry in advice["codecs"]] == ["sign", "ecsq"]
    assert advice["machine"]["name"] == str(path)
    for entry in advice["codecs"]:
        cost = len(entry["codec"])
        assert entry["encode_values_per_s"] == pytest.approx(1e9 / 4 / cost)
        assert entry["decode_values_per_s"] == pytest.approx(1e9 / 1.5 / cost)


@pytest.mark.usefixtures("fixed_speeds")
def test_larger_models_are_timed_on_a_drawn_matrix() -> None:
    words = ("--step-time", "1ms", "--nodes", 2, "--between", "1Gbit/s", "-c", "sign")
    for params, source in (("100k", str(DUMP)), ("200k", "synthetic:shape=128x128")):
        machine = json_of("advise", DUMP, *words, "--params", params)["machine"]
        assert machine["source"].startswith(f"{source}, ")


def loaded(path: Path, values: int | None) -> list[tuple[str, int]]:
    step = timing.load_step(path, Settings(max_values=values))
    return [(sample.name, sample.values.size) for sample in step.samples]


def write_sizes(path: Path, sizes: dict[str, int]) -> None:
    tensors = [(name, np.ones(n, np.float32)) for name, n in sizes.items()]
    write_dump(path, [*tensors, ("count", np.arange(3))])


def test_large_dumps_are_represented_by_whole_tensors(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    sizes = {"e": 50, "a": 10, "b": 20, "c": 30, "d": 40, "none": 0}
    write_sizes(path, sizes)
    everything = [(name, n) for name, n in sizes.items() if n]
    assert loaded(path, None) == loaded(path, 150) == everything
    # Every second one of a, b, c, d, e; then every fourth.
    assert loaded(path, 149) == loaded(path, 60) == [("b", 20), ("d", 40)]
    assert loaded(path, 59) == [("c", 30)]
    for layers, skipped in ((("a", "b"), 0), (("a", "b", "count"), 1)):
        step = timing.load_step(path, Settings(layers=layers))
        assert (step.total, step.skipped) == (30, skipped)
    with pytest.raises(gcodec.ParameterError, match="no floating-point tensor"):
        timing.load_step(path, Settings(layers=("nix",)))


def test_small_tensors_never_represent_a_dump_of_large_ones(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    write_sizes(path, {**{f"norm{k}": 4 for k in range(9)}, "w": 4000, "v": 5000})
    ((name, size),) = loaded(path, 1000)
    assert name == "v" and 900 <= size <= 1000


def test_codec_that_refuses_a_tensor_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)
    sample = timing.draw_step("synthetic:gennorm,n=100", Settings())
    huge = sample._replace(values=np.full(100, 3e38, np.float32))
    codecs = gcodec.parse("sign"), gcodec.parse("randomk:unbiased=yes")
    ((spec, speed),) = timing.quick_speeds([huge], Settings(codecs=codecs, progress=quiet)).items()
    assert spec == "sign"
    assert isinstance(speed, advisor.CodingSpeed) and min(speed) > 0
