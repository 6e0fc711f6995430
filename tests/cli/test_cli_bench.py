"""`gcodec bench`: sizes and errors are exact; times are only plausible."""

from __future__ import annotations

import csv
import importlib
import json
import os

import command_line
import ml_dtypes
import numpy as np
import pytest
from example_files import DUMP

import gcodec
from gcodec.advisor.machines import find_machine
from gcodec.analysis import synthetic, timing
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.dumps import open_dump, write_dump


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)


def run(*args, code=0):
    return command_line.run("bench", *args, "--rounds", "2", code=code)


def document(*args):
    return command_line.json_of("bench", *args, "--rounds", "2")


def test_bits_and_errors_match_encoded_frames():
    specs = ["raw", "qsgd:bucket=512", "topk:ratio=0.1"]
    layers = "layer*.weight"
    options = [word for spec in specs for word in ("-c", spec)]
    report = document(DUMP, *options, "-L", layers, "--seed", "5")
    with open_dump(DUMP) as dump:
        names = [e.name for e in dump.entries if e.name.startswith("layer")]
        tensors = {e.name: dump.load(e) for e in dump.entries if e.name in names}
        tensors = {name: x for name, x in tensors.items() if name.endswith(".weight")}
    values = sum(x.size for x in tensors.values())
    assert (report["schema"], report["tensors"]) == ("gcodec.bench/1", len(tensors))
    assert (report["values"], report["bytes"]) == (values, 4 * values)
    assert [one["codec"] for one in report["codecs"]] == specs
    for spec, one in zip(specs, report["codecs"], strict=True):
        nbytes = error = signal = 0
        for name, x in tensors.items():
            frame = gcodec.encode(x, spec, seed=derive_seed(5, name=name), name=name)
            nbytes += len(frame)
            wide = x.astype(np.float64)
            error += ((wide - gcodec.decode(frame)) ** 2).sum()
            signal += (wide**2).sum()
        assert one["bits_per_value"] == pytest.approx(8 * nbytes / values, rel=1e-12)
        assert one["error"] == pytest.approx(error / signal, rel=1e-9)
        split = sum(v for k, v in one.items() if k.endswith("_bits_per_value"))
        assert split == pytest.approx(one["bits_per_value"])
        for key in ("encode", "decode", "memcpy"):
            assert one[f"{key}_bytes_per_second"] > 0
        assert one["encode_peak_bytes"] >= nbytes


def timing_of(encode, decode, nbits=800, raw=400):
    return timing.Timing(
        codec=gcodec.parse("raw"),
        values=100,
        raw_nbytes=raw,
        split={"payload": nbits},
        error=0.0,
        encode=encode,
        decode=decode,
        copies=(1.0, 2.0, 8.0),
        encode_peak=0,
        decode_peak=0,
        doubt=None,
    )


def test_timing_ratios():
    one = timing_of((2.0, 4.0, 4.0), (1.0, 1.0, 1.0))
    assert one.rate(one.encode) == 400 / 4
    assert one.to_copy(one.encode) == 0.5  # of 1/2, 2/4, 8/4
    assert one.to_copy(one.decode) == 2
    # At this link speed, 4 + 2·1 s and 800 bits take as long as 3,200 bits.
    assert one.pays_below == (3200 - 800) / 6
    assert 6 + 800 / one.pays_below == pytest.approx(3200 / one.pays_below)
    assert timing_of((1.0,) * 3, (1.0,) * 3, nbits=3201).pays_below == 0


def test_times_all_codecs_by_default():
    report = document("synthetic:gennorm,beta=0.8,n=5000,seed=3")
    assert [one["codec"] for one in report["codecs"]] == [
        str(cls()) for cls in gcodec.codecs().values()
    ]
    assert (report["values"], report["tensors"], report["notes"]) == (5000, 1, [])


def test_output_forms(capsys):
    source = ("synthetic:gennorm,n=3000", "-c", "sign", "-c", "raw", "-c", "minmax:bits=4")
    rows = list(csv.DictReader(run(*source, "--csv").stdout.splitlines()))
    assert [row["codec"] for row in rows] == ["sign", "raw", "minmax:bits=4"]
    assert float(rows[1]["nmse"]) == float(rows[1]["error"]) == 0
    lines = run(*source, "--markdown", "--sort", "bits").stdout.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["sign", "minmax:bits=4", "raw"]
    assert len({line.count("|") for line in lines}) == 1
    table = run(*source, "--sort", "nmse").stdout.splitlines()
    assert [line.split()[0] for line in table[3:]] == ["raw", "minmax:bits=4", "sign"]
    assert "median of 2 rounds" in table[0] and "memcpy" in table[0]
    assert "never" in table[3]
    run(*source, "--sort", "link", "-q")
    run(*source, "--csv", "--json", code=2)


def test_notes_on_samples_and_skipped_tensors(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 40)).astype(np.float32)
    x[3, 3], x[4, 4] = np.nan, np.inf
    tensors = {
        "x": x,
        "half": random.normal(size=1000).astype(ml_dtypes.bfloat16),
        "empty": np.zeros(0, np.float32),
        "steps": np.array([7]),
    }
    path = tmp_path / "a.npz"
    write_dump(path, tensors.items())
    result = run(path, "-c", "raw", "--sample", "320", "--json")
    report = json.loads(result.stdout)
    assert report["values"] == 320
    assert report["bytes"] == 4 * 320, "rows of the tensor that contains the middle value"
    assert any("320 of 3,000 values in 1 tensor" in line for line in report["notes"])
    assert "dtypes that codecs do not take" in result.stderr
    full = json.loads(run(path, "-c", "raw", "--full", "--json").stdout)
    assert full["values"] == 3000
    assert any(line.startswith("2 values NaN or Inf") for line in full["notes"])
    assert full["codecs"][0]["error"] == 0


def test_refusing_codec_is_skipped_or_reported(tmp_path, monkeypatch):
    def refuse(self, values, seed, prior):
        raise gcodec.ParameterError("x: not these")

    monkeypatch.setattr(gcodec.codecs()["sign"], "_encode", refuse)
    source = "synthetic:gennorm,n=100"
    assert any("not these" in line for line in document(source)["notes"])
    assert "sign: tensor 'gennorm:n=100': x: not these" in run(source, "-c", "sign", code=2).stderr


def test_thread_setting_is_restored(monkeypatch):
    monkeypatch.delenv("GCODEC_NUM_THREADS", raising=False)
    assert document("synthetic:gennorm,n=100", "-c", "sign", "-t", "3")["threads"] == 3
    assert "GCODEC_NUM_THREADS" not in os.environ
    monkeypatch.setenv("GCODEC_NUM_THREADS", "2")
    assert document("synthetic:gennorm,n=100", "-c", "sign", "-t", "3")["threads"] == 3
    assert os.environ["GCODEC_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("synthetic:cauchy", 2, "synthetic='cauchy': must be one of gradient, gennorm"),
        ("synthetic:gennorm,beta=0", 2, "beta=0.0: must be a number from 0.1 to 100"),
        ("synthetic:gennorm,beta", 2, "name:key=value"),
        ("synthetic:gennorm,n=300000000", 4, "--max-elems 300000000"),
        ("nothing.npz", 2, "nothing.npz: no such file"),
    ],
)
def test_invalid_sources(source, code, message):
    assert message in run(source, code=code).stderr


def test_synthetic_values_have_no_layers():
    refused = run("synthetic:gennorm,n=100", "-c", "sign", "-L", "*", code=2)
    assert refused.stderr == "gcodec: --layers: synthetic values have no layers\n"


def test_file_of_frames_is_refused(tmp_path):
    path = tmp_path / "a.gcf"
    path.write_bytes(gcodec.encode(np.ones(3, np.float32), "raw"))
    assert "must be one file of tensors" in run(path, code=2).stderr
    write_dump(tmp_path / "i.npz", [("i", np.arange(3))])
    assert "no floating-point tensor" in run(tmp_path / "i.npz", code=2).stderr


@pytest.mark.parametrize("beta", [0.3, 0.8, 1.0, 2.0, 8.0])
def test_synthetic_values_follow_their_distribution(beta):
    from scipy import stats

    drawn = synthetic.parse_synthetic(f"synthetic:gennorm,beta={beta},n=20000,seed=1").draw()
    assert (drawn.dtype, drawn.shape) == (np.float32, (20000,))
    scale = 1 / stats.gennorm.std(beta)
    assert stats.kstest(drawn, stats.gennorm(beta, scale=scale).cdf).pvalue > 0.01
    again = synthetic.parse_synthetic(f"synthetic:gennorm,seed=1,n=20000,beta={beta}")
    assert np.array_equal(again.draw(), drawn)


def test_drawn_gradients_match_fitted_statistics():
    from bench.gradient_fit import fit

    fitted = fit(synthetic.Gradient(shape=(500, 150), seed=1).draw())
    assert fitted[0] == pytest.approx(0.67, abs=0.1)
    assert fitted[1] == pytest.approx(0.33, abs=0.1)
    assert fitted[2] == pytest.approx(synthetic.BETA, abs=0.15)
    assert fitted[3:6] == pytest.approx(np.array(synthetic.SHARES[:3]), rel=0.4)


def test_drawn_gradients_depend_on_parameters_only(monkeypatch):
    drawn = synthetic.parse_synthetic("synthetic:shape=300x70,seed=3").draw()
    assert (drawn.dtype, drawn.shape) == (np.float32, (300, 70))
    again = synthetic.parse_synthetic("synthetic:gradient,seed=3,shape=300x70")
    monkeypatch.setattr(synthetic, "_CHUNK", 1000)
    assert np.array_equal(again.draw(), drawn)
    other = synthetic.parse_synthetic("synthetic:shape=300x70").draw()
    assert not np.array_equal(other, drawn)
    assert abs(np.log(np.square(drawn).mean())) < 0.7


@pytest.mark.parametrize("shape", ["1x1", "1x9", "9", "70x1", "2x3"])
def test_small_drawn_gradients_are_finite(shape):
    drawn = synthetic.parse_synthetic(f"synthetic:shape={shape}").draw()
    assert "x".join(map(str, drawn.shape)) == shape and np.isfinite(drawn).all()


def test_printed_speeds_are_those_of_the_document(monkeypatch):
    timing = importlib.import_module("gcodec.analysis.timing")
    measure, measured = timing.time_codecs, []

    def repeat(*args, **options):
        measured.extend([] if measured else measure(*args, **options))
        return [*measured]

    monkeypatch.setattr(timing, "time_codecs", repeat)
    source = ("synthetic:gennorm,n=100000", "-c", "minmax")
    (codec,) = document(*source)["codecs"]
    (row,) = (line.split() for line in run(*source).stdout.splitlines() if line[:6] == "minmax")
    speeds = [codec[f"{way}_bytes_per_second"] for way in ("encode", "decode")]
    expected = [f"{codec['bits_per_value']:.2f}", *(f"{speed / 1e9:.3g}" for speed in speeds)]
    assert [row[1], row[6], row[8]] == expected


def test_default_source_is_a_drawn_matrix():
    report = document("-c", "powersgd:rank=16", "-c", "dct8", "--rounds", "1")
    powersgd, dct8 = report["codecs"]
    assert report["source"] == "synthetic:shape=1024x1024"
    assert powersgd["bits_per_value"] == pytest.approx(1, rel=0.01)
    assert powersgd["doubt"] is None and "independent" in dct8["doubt"]
    specs = ["-c", "powersgd", "-c", "sign", "-c", "ecsq"]
    printed = run("synthetic:gennorm,n=3000", *specs, "--rounds", "1").stdout
    assert "? powersgd, ecsq: not judged here, as independent values have no rows" in printed


def test_rows_of_a_machine_fit_the_table(tmp_path, monkeypatch):
    result = run(DUMP, "-c", "sign", "-c", "topk:ratio=0.1", "--threads", "1", "--machine", "node")
    module = importlib.import_module("gcodec.advisor.machines")
    listed, printed = module._TABLE.read_text("utf-8"), result.stdout.partition("\n")
    assert printed[0] == listed.partition("\n")[0]
    table = tmp_path / "machines.csv"
    table.write_text(listed + printed[2], "utf-8")
    monkeypatch.setattr(module, "_TABLE", table)
    assert find_machine("epyc-zen4").speeds
    machine = find_machine("node")
    assert [*machine.speeds] == ["sign", "topk:ratio=0.1"]
    assert machine.source.startswith(f"gcodec bench {DUMP} --rounds 2 --threads 1; ")
    assert all(rate > 0 for speed in machine.speeds.values() for rate in speed)
    result = run(DUMP, "-c", "sign", "--machine", "node", "--json", code=2)
    assert "--machine and --json exclude each other" in result.stderr
