"""`gcodec inspect` and `gcodec codecs`."""

from __future__ import annotations

import csv
import json
import re
import shlex
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from command_line import json_of, run
from example_files import DUMP as EXAMPLE
from example_files import ROOT

import gcodec
from gcodec.analysis import timing
from gcodec.cli.main import cli
from gcodec.codec import registered
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.dumps import open_dump, write_dump

EVIL = ("[red]x[/red]", "\x1b[31mevil", "a\nb", "\u202egnp")


inspected = partial(json_of, "inspect")


def dump(folder, **tensors):
    path = folder / "dump.safetensors"
    write_dump(path, tensors.items())
    return path


def gaussian(n=1000, seed=0):
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


def test_table_of_the_example_dump():
    result = run("inspect", EXAMPLE)
    lines = result.stdout.splitlines()
    headline = "29 tensors   77,754 values   float32   306.1 KiB   model=resnet8_digits"
    assert lines[0].startswith("resnet8_digits_step0300.safetensors   safetensors   ")
    assert headline in lines[0] and "step=300" in lines[0]
    row = next(line for line in lines if line.startswith("layer3.conv2.weight"))
    assert row.split()[1:8] == ["64x64x3x3", "float32", "36,864", "2.4e-03", "1.7e-02", "0", "0"]
    assert "█" in row
    assert re.search(r" gennorm 1\.29  0\.04\d ", row)
    assert "best fit beta    W2  at 0.01" in lines[2]
    assert sum("float32" in line for line in lines[1:]) == 29
    assert lines[-1].split()[:2] == ["total", "77,754"]
    assert result.stderr == f"next: gcodec inspect {EXAMPLE} --max-nmse 0.01\n"
    assert "\x1b" not in result.output
    assert run("inspect", "-q", EXAMPLE).stderr == ""


def test_bits_and_errors_match_real_frames():
    spec = "mxnet-2bit:threshold=0.01"
    fits = inspected(EXAMPLE, "-c", spec)["files"][0]
    squares = errors = nbytes = 0
    with open_dump(EXAMPLE) as opened:
        for entry, row in zip(opened.entries, fits["tensors"], strict=True):
            x = opened.load(entry)
            seed = derive_seed(0, name=entry.name)
            frame = gcodec.encode(x, spec, seed=seed, name=entry.name)
            wide = x.astype(np.float64)
            error = np.sum((wide - gcodec.decode(frame)) ** 2)
            (fit,) = row["codecs"]
            assert row["name"] == entry.name
            assert fit["codec"] == spec
            assert fit["bytes"] == len(frame)
            assert fit["bits_per_value"] == 8 * len(frame) / x.size
            assert fit["nmse"] == pytest.approx(error / np.sum(wide**2), rel=1e-9)
            nbytes += len(frame)
            errors += error
            squares += np.sum(wide**2)
    (total,) = fits["total"]["codecs"]
    assert total["bits_per_value"] == pytest.approx(8 * nbytes / 77_754)
    assert total["nmse"] == pytest.approx(errors / squares, rel=1e-9)
    assert fits["metadata"]["step"] == "300"


def test_nearest_distribution_is_shown(tmp_path):
    random = np.random.default_rng(0)
    tensors = {
        "normal": random.normal(size=20_000),
        "laplace": random.laplace(size=20_000),
        "heavy": random.gamma(2, size=20_000) ** 2 * random.choice([-1, 1], 20_000),
        "few": random.normal(size=15),
        "zeros": np.zeros(50),
    }
    path = dump(tmp_path, **{name: x.astype(np.float32) for name, x in tensors.items()})
    rows = {row["name"]: row for row in inspected(path)["files"][0]["tensors"]}
    assert rows["few"]["fits"] == rows["zeros"]["fits"] == []
    for name, beta in (("normal", 2), ("laplace", 1), ("heavy", 0.5)):
        fits = rows[name]["fits"]
        assert [fit["w2_in_rms"] for fit in fits] == sorted(fit["w2_in_rms"] for fit in fits)
        assert sorted((fit["distribution"], fit["method"]) for fit in fits) == [
            ("gennorm", "likelihood"),
            ("gennorm", "moments"),
            ("laplace", "likelihood"),
            ("normal", "likelihood"),
        ]
        assert fits[0]["beta"] == pytest.approx(beta, rel=0.06)
        assert fits[0]["w2_in_rms"] < 0.1 and fits[0]["ks"] < 0.02
        (normal,) = (fit for fit in fits if fit["distribution"] == "normal")
        assert normal["sigma"] == pytest.approx(rows[name]["rms"], rel=1e-6)
        assert normal["alpha"] == pytest.approx(normal["sigma"] * 2**0.5, rel=1e-6)
    lines = run("inspect", path).stdout.splitlines()
    (heavy,) = (line for line in lines if line.startswith("heavy"))
    assert re.search(r" gennorm 0\.[45]\d  0\.\d{3} ", heavy)


def test_names_are_escaped_in_text_and_exact_in_json(tmp_path):
    path = dump(tmp_path, **{name: gaussian(9) for name in EVIL})
    for args in (["inspect", path], ["encode", path, "-c", "raw"]):
        output = run(*args).output
        assert "\x1b" not in output and "\u202e" not in output
    shown = run("inspect", path).stdout
    for text in ("[red]x[/red]", r"\x1b[31mevil", r"a\nb", r"\u202egnp"):
        assert sum(line.startswith(text) for line in shown.splitlines()) == 1
        assert text in run("inspect", path.with_suffix(".gcf")).stdout
    assert {row["name"] for row in inspected(path)["files"][0]["tensors"]} == set(EVIL)


def test_dtypes_are_escaped(tmp_path):
    """A header of .npy can contain any text as its dtype."""
    text = b"{'descr': '\x1b[31m\n', 'fortran_order': False, 'shape': (3,), }"
    path = tmp_path / "evil.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    shown = run("inspect", path).stdout
    assert "\x1b" not in shown and len(shown.splitlines()) == 5
    assert shown.count(r"\x1b[31m\n") == 3


def test_color_is_for_terminals_and_never_from_names(tmp_path):
    path = dump(tmp_path, **{"\x1b[31mevil": np.array([1, np.nan], np.float32)})
    colored = run("inspect", path, env={"FORCE_COLOR": "1", "COLUMNS": "200"}).stdout
    assert "\x1b[31m" in colored and r"\x1b[31mevil" in colored
    plain = {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    assert "\x1b[31m" not in run("inspect", path, env=plain).stdout


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_narrow_terminal_omits_whole_columns(columns):
    env = {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm"}
    result = run("inspect", EXAMPLE, "--top", "3", "-c", "sign", "-c", "minmax", env=env)
    lines = re.sub("\x1b\\[[0-9]*m", "", result.stdout).splitlines()
    assert all(len(line) <= columns for line in lines[1:])
    assert any("best fit" in line for line in lines) == (columns >= 100)
    assert f"not shown at {columns} columns: " in result.stderr
    assert lines[-1].split()[0] == "total" and "8.4e-03" in lines[-1]


def test_requested_codecs_stay_longer_than_other_columns():
    specs = ("sign", "minmax", "topk", "terngrad", "raw")
    words = [word for spec in specs for word in ("-c", spec)]
    result = run("inspect", EXAMPLE, "--top", "3", *words, "--width", "120")
    assert {*specs} <= {word for line in result.stdout.splitlines()[1:3] for word in line.split()}
    assert "distribution" in result.stderr


def test_long_names_are_shortened_in_the_middle(tmp_path):
    name = "first." + "x" * 100 + ".last"
    lines = run("inspect", dump(tmp_path, **{name: gaussian(9)})).stdout.splitlines()
    assert any(line.startswith("first.x") and "…" in line and ".last" in line for line in lines)


def test_ascii_stream_gets_ascii_output(tmp_path):
    path = dump(tmp_path, ü=gaussian())
    result = CliRunner(charset="ascii").invoke(cli, ["inspect", str(path)])
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if line.startswith(r"\xfc"))
    assert "@" in row


def test_nonfinite_values_are_located(tmp_path):
    bad = gaussian()
    bad[[17, 40]] = np.nan, np.inf
    result = run("inspect", dump(tmp_path, good=gaussian(), bad=bad), "-c", "minmax")
    assert "! 2 NaN or Inf: bad[17], bad[40]" in result.stdout
    assert "tried with 0 in their place" in result.stdout
    assert result.stderr.rstrip().endswith("--nonfinite zero")
    document = inspected(tmp_path / "dump.safetensors", "-c", "minmax")["files"][0]
    worse = dump(tmp_path, a=np.full(50, np.nan, np.float32), b=bad)
    assert "! 52 NaN or Inf: a[0], a[1], a[2], b[17], b[40] and 47 more" in (
        run("inspect", worse).stdout
    )
    row = next(row for row in document["tensors"] if row["name"] == "bad")
    assert (row["nonfinite"], row["first_nonfinite"]) == (2, [17, 40])
    bad[[17, 40]] = 0
    wide = bad.astype(np.float64)
    decoded = gcodec.decode(gcodec.encode(bad, "minmax"))
    assert row["codecs"][0]["nmse"] == pytest.approx(np.sum((wide - decoded) ** 2) / (wide @ wide))


def test_integer_tensors_are_no_gradients(tmp_path):
    path = dump(
        tmp_path,
        **{
            "w": gaussian(),
            "bn1.steps": np.array(3),
            "bn2.steps": np.array(4),
            "i[0]": np.ones(2, int),
        },
    )
    result = run("inspect", path, "--each", "-c", "sign")
    assert result.stdout.count("not a gradient: int64") == 3
    assert run("inspect", path).stdout.count("not a gradient: int64") == 3  # bn1 is no number
    rows = {row["name"]: row for row in inspected(path)["files"][0]["tensors"]}
    assert rows["bn1.steps"]["note"] == "not a gradient: int64"
    assert "rms" not in rows["bn1.steps"]
    lines = run("inspect", path, "--csv", "--max-nmse", "0.01").stdout.splitlines()
    records = {record["tensor"]: record for record in csv.DictReader(lines)}
    assert {key for key, cell in records["i[0]"].items() if cell} == {
        *("file", "tensor", "shape", "dtype", "values")
    }
    assert records["w"]["zeros"] == "0" and 0 < float(records["w"]["best_nmse"]) <= 0.01


def test_suggested_command_excludes_only_what_frames_cannot_store(tmp_path):
    path, more = tmp_path / "x.npz", {"step": np.array(7), "mask": np.ones(3, bool)}
    np.savez(path, w=gaussian(), **more, **{"a.step": gaussian().astype(ml_dtypes.float8_e4m3fn)})
    words = shlex.split(run("inspect", path, "-c", "sign").stderr.rpartition("next: gcodec ")[2])
    assert words[-2:] == ["-L", "!a.step"]
    run(*words, "-o", tmp_path / "x.gcf")
    loaded = gcodec.load_file(tmp_path / "x.gcf")
    assert {*loaded} == {"w", *more} and loaded["step"] == 7 and loaded["mask"].all()


def test_suggested_command_keeps_every_bit_with_lossless(tmp_path):
    tensors = {"w": gaussian(), "f8": abs(gaussian()).astype(ml_dtypes.float8_e8m0fnu)}
    tensors["w"][3] = np.nan
    path, frames, back = (tmp_path / name for name in ("x.safetensors", "x.gcf", "b.safetensors"))
    header = {
        "w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]},
        "f8": {"dtype": "F8_E8M0", "shape": [1000], "data_offsets": [4000, 5000]},
    }
    text, data = json.dumps(header).encode(), b"".join(x.tobytes() for x in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)

    def suggested(path, *layers):
        inspected = run("inspect", path, "-c", "lossless", *layers)
        return shlex.split(inspected.stderr.rpartition("next: gcodec ")[2])

    assert suggested(path) == ["encode", str(path), "-c", "lossless"]
    run(*suggested(path), "-o", frames)
    run("decode", frames, "-o", back)
    assert back.read_bytes() == path.read_bytes()
    archive = tmp_path / "x.npz"
    np.savez(archive, **tensors)
    assert suggested(archive)[2:] == ["-c", "lossless", "-L", "!f8"]
    assert suggested(path, "-L", "*")[2:] == ["-c", "lossless", "-L", "*", "-L", "!f8"]


def test_suggested_codec_is_within_the_budget_for_all_tensors(tmp_path):
    """The best codec for most values fits two-valued tensors alone, so encode must choose."""
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], 4000).astype(np.float32)
    other = dump(tmp_path, signs=signs, normal=gaussian(30, 40))
    advice = run("inspect", other, "--max-nmse", 0.01).stderr
    assert "mxnet-1bit is the best for 99 % of the values" in advice
    words = shlex.split(advice.rpartition("next: gcodec ")[2])
    assert words[-1] == "auto:nmse=0.01"
    run(*words, "-o", tmp_path / "a.gcf")
    run("compare", other, tmp_path / "a.gcf", "--max-nmse", 0.01)
    words = shlex.split(run("inspect", other, "--max-nmse", 0.5).stderr.rpartition("gcodec ")[2])
    run(*words, "-o", tmp_path / "b.gcf")
    run("compare", other, tmp_path / "b.gcf", "--max-nmse", 0.5)


def test_suggested_codec_is_within_the_budget_for_narrow_dtypes(tmp_path):
    """Rounding to float16 or bfloat16 moves the error of ecsq beyond its target."""
    path, frames, random = tmp_path / "x.npz", tmp_path / "x.gcf", np.random.default_rng(0)
    a, b, c = (random.standard_normal(shape) for shape in ((100, 100), (50, 60), (50, 60)))
    wide, short, half = a.astype("f4"), b.astype(ml_dtypes.bfloat16), (1e-6 * c).astype("f2")
    np.savez(path, wide=wide, short=short, half=half)
    for bound in (1e-3, 1e-4):
        advice = run("inspect", path, "--max-nmse", bound).stderr
        assert f"ecsq:nmse={bound} is the best for" in advice
        words = shlex.split(advice.rpartition("next: gcodec ")[2])
        assert words[-1] == f"auto:nmse={bound}"
        run(*words, "-fo", frames)
        run("compare", path, frames, "--max-nmse", bound)


def test_suggested_codec_of_repeated_blocks_is_one_that_aims_at_the_budget(tmp_path):
    """On the biases, others are the best, so ecsq is tried on the first of them only."""
    random = np.random.default_rng(0)
    biases = {f"h.{i}.bias": random.standard_normal(64, np.float32) for i in range(8)}
    path = dump(tmp_path, w=random.standard_normal((300, 200), np.float32), **biases)
    advice = run("inspect", path, "--max-nmse", 1e-4).stderr
    assert shlex.split(advice.rpartition("next: gcodec ")[2])[-1] == "ecsq:nmse=0.0001"


def test_no_codec_within_a_budget_of_bits_is_worse_than_sending_nothing(tmp_path):
    """The shortest frames of a few small values decode to ±1."""
    path = dump(tmp_path, w=gaussian(2000), **{"fc3.bias": 0.03 * gaussian(10)})
    document = json.loads(run("inspect", path, "--max-bits", 27, "--json").stdout)["files"][0]
    bests = {tensor["name"]: tensor["best"] for tensor in document["tensors"]}
    assert bests["fc3.bias"] is None and bests["w"]["nmse"] == 0
    assert document["total"]["best"]["nmse"] == 0
    assert document["total"]["best"]["values"] == 2000


def test_codecs_of_matrices_that_need_feedback_are_named(tmp_path):
    """They are no candidates, but send many gradients of matrices in far fewer bits."""
    path = dump(tmp_path, w=np.outer(gaussian(64), gaussian(80)), v=gaussian(300))
    for bound, spec in (
        ("--max-nmse=0.02", "lowrank:nmse=0.02"),
        ("--max-bits=1", "lowrank:bits=1.0"),
    ):
        note = f"lowrank needs feedback and was not tried: -c {spec} shows it\n"
        assert note in run("inspect", path, bound).stderr
        assert note not in run("inspect", path, bound, "-c", spec).stderr
        assert note not in run("inspect", path, bound, "-L", "v").stderr, "a vector"
    for options in ([], ["--max-nmse=2"]):  # lowrank takes no such nmse
        assert "was not tried" not in run("inspect", path, *options).stderr


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int4"])
def test_small_types_of_ml_dtypes_in_npy_files(tmp_path, dtype):
    path = tmp_path / "x.npz"
    np.savez(path, w=gaussian(), x=gaussian().astype(getattr(ml_dtypes, dtype)))
    advice = (
        "numpy.save stores float8 and other types of ml_dtypes as bytes without a name; convert "
        "the array before you save it, as in x.astype('float32'), which keeps every value"
    )
    shown = "float8" if dtype == "float8_e5m2" else "<V1"
    result = run("inspect", path)
    assert f"not a gradient: {shown}" in result.stdout
    assert f"x: {advice}" in result.stderr.splitlines()
    rows = {row["name"]: row for row in inspected(path)["files"][0]["tensors"]}
    assert rows["x"]["note"] == f"not a gradient: {shown}; {advice}"
    stderr = run("encode", path, "-c", "raw", code=3).stderr
    assert stderr.endswith(f"; {advice}, or exclude it with -L '!x'\n")
    with open_dump(path) as opened, pytest.raises(gcodec.Unsupported, match="cannot be loaded; n"):
        opened.load(opened.entries[1])


def test_degenerate_tensors_cause_no_division_by_zero(tmp_path):
    path = dump(
        tmp_path,
        empty=np.zeros((0, 3), np.float32),
        zeros=np.zeros(5, np.float32),
        scalar=np.array(2, np.float32),
        nan=np.array([np.nan], np.float32),
        huge=np.full(4, 3e38, np.float32),
        wide=np.array([1e300, 1.0]),
    )
    codecs = ["-c", "minmax", "-c", "sign"]
    result = run("inspect", path, *codecs)
    assert "wide: no minmax and no sign" in result.stderr
    rows = {row["name"]: row for row in inspected(path, *codecs)["files"][0]["tensors"]}
    assert rows["empty"]["rms"] is None
    assert rows["empty"]["codecs"][0]["bits_per_value"] is None
    assert rows["zeros"]["codecs"][0]["nmse"] == 0
    one_bit = inspected(path, "-c", "mxnet-1bit")["files"][0]["tensors"]  # ±1, whatever it gets
    assert next(row for row in one_bit if row["name"] == "zeros")["codecs"][0]["nmse"] == "inf"
    assert rows["huge"]["rms"] == pytest.approx(3e38)
    assert "problem" in rows["wide"]["codecs"][0]


def test_empty_dump_has_an_empty_table(tmp_path):
    assert "0 tensors" in run("inspect", dump(tmp_path)).stdout


def test_layers_sort_and_top():
    kept = inspected(EXAMPLE, "-L", "*.conv?.weight", "-L", "!layer3.*", "--sort", "size")
    suggested = run(
        "inspect", EXAMPLE, "-L", "*.bias", "-c", "minmax", "-c", "sign"
    ).stderr.rstrip()
    assert suggested.endswith("-c sign -L '*.bias'")
    names = [row["name"] for row in kept["files"][0]["tensors"]]
    assert names == [f"layer{i}.conv{j}.weight" for i, j in ((2, 2), (2, 1), (1, 1), (1, 2))]
    by_bits = inspected(EXAMPLE, "--sort", "bits", "-c", "minmax")["files"][0]["tensors"]
    bits = [row["codecs"][0]["bits_per_value"] for row in by_bits]
    assert bits == sorted(bits, reverse=True)
    by_error = inspected(EXAMPLE, "--sort", "nmse", "-c", "mxnet-1bit")["files"][0]["tensors"]
    errors = [row["codecs"][0]["nmse"] for row in by_error]
    assert errors == sorted(errors, reverse=True)
    lines = run("inspect", EXAMPLE, "--sort", "name", "--top", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["bn1.bias", "bn1.weight", "(27", "total"]
    assert "77,754" in lines[-1]
    assert "matches --layers nope" in run("inspect", EXAMPLE, "-L", "nope", code=2).stderr


def test_bits_of_a_rank_are_doubtful_on_some_rows(tmp_path):
    path = dump(tmp_path, x=gaussian(25_600).reshape(400, 64))
    note = "powersgd: the bits depend on how many rows"
    args = ["inspect", path, "--sample", "6400", "-c", "powersgd"]
    assert note in run(*args).stderr
    assert note not in run(*args, "--full").stderr
    assert note not in run(*args[:-1], "sign").stderr


def test_sampling_of_large_tensors_is_noted(tmp_path):
    x = gaussian(50_000)
    x[49_999] = np.nan
    path = dump(tmp_path, x=x)
    result = run("inspect", path, "--sample", "20000")
    assert "1 tensor of more than 20,000 values: distribution, fit, entropy of a sample" in (
        result.stderr
    )
    assert "20,000 of 50,000 values, seed 0;" in result.stderr
    assert "a sample" not in run("inspect", path, "--full", "--sample", "1").stderr
    row = inspected(path, "--sample", "20000")["files"][0]["tensors"][0]
    assert (row["values"], row["measured"], row["nonfinite"]) == (50_000, 20_000, 1)
    assert row["rms"] == pytest.approx(np.sqrt(np.mean(x[:-1].astype(float) ** 2)))
    again, other = (inspected(path, "--sample", "20000", "--seed", seed) for seed in "01")
    assert again == inspected(path, "--sample", "20000") != other
    assert again["files"][0]["sample"] == {"values_per_tensor": 20_000, "seed": 0}
    whole = inspected(path, "--full")["files"][0]["tensors"][0]
    assert whole["measured"] == 50_000
    assert sum(whole["histogram"]["counts"]) == 49_999


def test_sizes_of_frame_parts(tmp_path):
    path = tmp_path / "a.gcf"
    frames = [
        gcodec.encode(gaussian(10).reshape(2, 5), "mxnet-1bit", name="first"),
        gcodec.encode(gaussian(0), "raw"),
    ]
    path.write_bytes(b"".join(frames))
    document = inspected(path)["files"][0]
    first, second = document["frames"]
    assert (first["name"], second["name"]) == ("first", None)
    assert (first["shape"], first["dtype"], first["values"]) == ([2, 5], "float32", 10)
    assert (first["start"], second["start"]) == (0, len(frames[0]))
    assert (first["payload_bytes"], first["checksum_bytes"]) == (4, 8)
    assert first["header_bytes"] == len(frames[0]) - 12
    assert (first["ratio"], second["bits_per_value"]) == (40 / len(frames[0]), None)
    assert document["total"]["bytes"] == sum(map(len, frames)) == document["bytes"]
    shown = run("inspect", path).stdout
    assert "first" in shown and "(frame 1)" in shown and "mxnet-1bit" in shown
    selected = inspected(path, "-L", "f*")["files"][0]
    assert selected["frames"] == [first] and selected["total"]["bytes"] == len(frames[0])
    refused = run("inspect", path, "-L", "second", code=2)
    assert refused.stderr == f"gcodec: {path}: no frame matches --layers second\n"


def test_many_refused_tensors_are_counted(tmp_path):
    large = {f"t{i}": np.full(100 + i, 3e38, np.float32) for i in range(10)}
    notes = run("inspect", dump(tmp_path, **large), "-c", "randomk:unbiased=yes").stderr
    assert notes.count(": no randomk:unbiased=yes: ") == 8
    assert "\nand 2 more such tensors; --json lists all of them\n" in notes
    assert "\nthe total of a codec is that of the tensors that it accepts\n" in notes


@pytest.mark.parametrize("options", [("--over-steps",), ("--report", "page.html")])
def test_options_for_files_refuse_stdin(options):
    pytest.importorskip("matplotlib")
    refused = run("inspect", "-", *options, code=2, input=b"")
    assert refused.stderr == f"gcodec: {options[0]}: needs files, and - is none\n"


def test_codecs_lists_all_registered_codecs():
    lines = run("codecs").stdout.splitlines()
    names = list(registered(with_base=True))
    assert {*names} == {*gcodec.codecs(), "patch"}
    for name in names:
        assert any(line.split()[:1] == [name] for line in lines)
    document = json_of("codecs")
    assert document["schema"] == "gcodec.codecs/1"
    assert [c["name"] for c in document["codecs"]] == names
    (raw,) = json_of("codecs", "raw")["codecs"]
    assert (raw["id"], raw["max_bits_per_value"]) == (1, 32)
    assert raw["parameters"][0]["default"] == "float32"


@pytest.mark.parametrize("name", sorted(gcodec.codecs()))
def test_codecs_describes_one_codec(name):
    shown = run("codecs", name).stdout
    assert shown.startswith(f"{name}   id {gcodec.codecs()[name].id}\n")
    assert " bits/value of whole frames, nmse" in shown
    assert " bits/value of the payload of a large tensor, with default parameters" in shown
    for declared in gcodec.codecs()[name].declared():
        assert declared.name in shown and declared.doc in shown


@pytest.mark.parametrize("spec", ["topk:threshold=0.0", "ecsq:bits=0.0", "lowrank:bits=0.0"])
def test_codecs_shows_no_default_that_specs_refuse(spec):
    name, _, pair = spec.partition(":")
    with pytest.raises(gcodec.ParameterError):
        gcodec.parse(spec)
    shown = run("codecs", name).stdout
    assert pair not in shown and f"\n  {pair.partition('=')[0]} (not set)\n" in shown


def test_codecs_shows_a_command_that_works_for_patch():
    shown = run("codecs", "patch").stdout
    assert "try it    gcodec diff OLD.safetensors NEW.safetensors\n" in shown


def test_codecs_refuses_an_unknown_name():
    assert "one of raw" in run("codecs", "nope", code=2).stderr


def test_sparse_tensors_are_passed_over_with_a_note(tmp_path, monkeypatch):
    path = ROOT / "tests" / "dumps" / "sparse.pt"
    message = "passed over embedding.coo: its layout is 'torch.sparse_coo', and not dense\n"
    result = run("inspect", path)
    assert "2 tensors" in result.stdout and message in result.stderr
    (file,) = inspected(path)["files"]
    assert file["omitted"].keys() == {"embedding.coo", "csr"}
    assert message not in run("inspect", path, "-L", "dense").stderr
    result = run("encode", path, "-c", "sign", "-o", tmp_path / "x.gcf")
    assert "2 tensors" in result.stdout and message in result.stderr
    shown = run("encode", path, "-c", "sign", "-o", tmp_path / "y.gcf", "--json").stdout
    assert json.loads(shown)["files"][0]["omitted"].keys() == {"embedding.coo", "csr"}
    assert "csr" in run("compare", path, tmp_path / "x.gcf").stderr
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)
    bench = ["bench", path, "-c", "sign", "--rounds", "1"]
    link = ["--nodes", "2", "--between", "1MB/s", "--machine", "epyc-zen4"]
    advise = ["advise", path, "--step-time", "1ms", *link, "-c", "sign"]
    for args in (bench, advise):
        assert message in run(*args).stderr
        assert message not in run(*args, "-L", "dense").stderr
    assert message.rstrip() in json_of(*bench)["notes"]
    assert json_of(*advise)["source"]["omitted"].keys() == {"embedding.coo", "csr"}


def test_files_of_one_name_are_shown_with_their_paths(tmp_path, monkeypatch):
    """Such as model.safetensors in the folder of each checkpoint."""
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)  # of the report, of which no time is read
    one, two = tmp_path / "1" / "m.npz", tmp_path / "2" / "m.npz"
    other = dump(tmp_path, w=gaussian())
    for path in (one, two):
        path.parent.mkdir()
        np.savez(path, w=gaussian())
    report = tmp_path / "x.html"
    result = run("inspect", one, other, two, "--report", report)
    shown = result.stdout
    assert result.stderr.endswith(f"\nwrote {report}\n")
    titles = [str(one), other.name, str(two)]
    assert [line.split("   ")[0] for line in shown.splitlines() if "1 tensor" in line] == titles
    page = report.read_text("utf-8")
    assert all(f"<h1>{t}</h1>" in page and f"SHA-256 of {t}<" in page for t in titles)
    frames = [tmp_path / "1" / "m.gcf", tmp_path / "2" / "m.gcf"]
    run("encode", one, two, "-c", "sign")
    assert all(f"{path}   gcf" in run("inspect", *frames).stdout for path in frames)
    assert run("compare", one, two).stdout.startswith(f"{one} : {two}   ")
    assert run("compare", one, frames[0]).stdout.startswith("m.npz : m.gcf   ")


def test_folder_of_a_distributed_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)  # of the report, of which no time is read
    path = ROOT / "tests" / "dumps" / "sharded"
    (file,) = inspected(path, "--max-err", "0.1")["files"]
    assert (file["format"], len(file["tensors"])) == ("distcp", 7)
    assert file["bytes"] == sum(part.stat().st_size for part in path.iterdir())
    run("encode", path, "-c", "raw", "-o", f"{tmp_path}/")
    result = run("compare", path, tmp_path / "sharded.gcf", "--max-err", "1e-12")
    assert "7 tensors" in result.stdout
    report = tmp_path / "x.html"
    run("inspect", path, "--max-err", "0.1", "--report", report, "-q")
    assert "SHA-256 of __1_0.distcp" in report.read_text("utf-8")
