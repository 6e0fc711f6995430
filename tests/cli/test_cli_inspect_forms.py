"""`gcodec inspect`: budgets, repeated blocks, forms of output, and imports."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from command_line import json_of, run
from example_files import DUMP as EXAMPLE
from safetensors.numpy import save_file

import gcodec
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.dumps import open_dump, write_dump

EVIL = (
    *("[red]x[/red]", "\x1b[31mevil", "a\nb", "\u202egnp", "<script>1</script>"),
    *("=cmd|' /C calc'!A0", "w|`x`*y*", "$a$"),
)


def blocks(folder):
    """Write a dump of three blocks, with one NaN in the last block, and of one other tensor."""
    random = np.random.default_rng(0)
    tensors = {
        f"blk.{i}.{part}": random.laplace(size=(20, 100)).astype(np.float32)
        for i in range(3)
        for part in ("q", "k")
    }
    tensors["blk.2.k"][1, 1] = np.nan
    tensors["head"] = random.normal(size=2000).astype(np.float32)
    path = folder / "blocks.safetensors"
    write_dump(path, tensors.items())
    return path


@pytest.mark.parametrize("verb", ["inspect", "bench"])
@pytest.mark.parametrize("forms", [("--csv", "--markdown"), ("--json", "--csv")])
def test_two_forms_exclude_each_other(verb, forms):
    stderr = run(verb, EXAMPLE, *forms[::-1], code=2).stderr
    assert f"{forms[0]} and {forms[1]} exclude each other" in stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("looking")


def within(path, document, *, max_nmse=np.inf, max_bits=np.inf):
    """Check that the best codec of every tensor is within the budget, and its measurements."""
    with open_dump(path) as dump:
        tensors = {entry.name: dump.load(entry) for entry in dump.entries}
    for row in document["tensors"]:
        best, x = row["best"], np.nan_to_num(tensors[row["name"]])
        seed = derive_seed(0, name=row["name"])
        frame = gcodec.encode(x, best["codec"], seed=seed, name=row["name"])
        error = x.astype(float) - gcodec.decode(frame)
        assert best["nmse"] == pytest.approx(np.sum(error**2) / np.sum(x.astype(float) ** 2))
        assert best["bits_per_value"] == 8 * len(frame) / x.size
        assert best["nmse"] <= max_nmse and best["bits_per_value"] <= max_bits


def test_repeated_blocks_share_a_row_and_a_codec(folder):
    path = blocks(folder)
    result = run("inspect", path, "--max-nmse", "0.05")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[3:]][:4] == ["blk.*.k", "blk.*.q", "head", "total"]
    assert "blk.*.q ×3  20x100  float32   6,000" in result.stdout
    assert "! 1 NaN or Inf: blk.2.k[101]" in result.stdout
    assert "next: gcodec encode" in result.stderr and "--nonfinite zero" in result.stderr
    document = json_of("inspect", path, "--max-nmse", "0.05")["files"][0]
    assert [group["name"] for group in document["groups"]] == ["blk.*.k", "blk.*.q", "head"]
    assert document["groups"][0]["tensors"] == ["blk.0.k", "blk.1.k", "blk.2.k"]
    assert document["budget"] == {"max_nmse": 0.05, "max_bits": None, "max_err": 0.05}
    within(path, document, max_nmse=0.05)
    # The total weighs the codecs of the rows by their shares of the values.
    groups = {group["name"]: group["best"] for group in document["groups"]}
    bits = (6 * groups["blk.*.k"]["bits_per_value"] + 6 * groups["blk.*.q"]["bits_per_value"]) / 14
    bits += 2 * groups["head"]["bits_per_value"] / 14
    assert document["total"]["best"]["bits_per_value"] == pytest.approx(bits)
    each = run("inspect", path, "--each").stdout
    assert "blk.1.q" in each and "×" not in each


def test_best_codec_within_a_bit_budget(folder):
    path = blocks(folder)
    document = json_of("inspect", path, "--max-bits", "4")["files"][0]
    within(path, document, max_bits=4)
    both = run("inspect", path, "--max-bits", "1", "--max-nmse", "1e-6")
    assert "no codec within nmse ≤ 1e-06, bits/v ≤ 1 for blk.*.k, blk.*.q, head" in both.stderr
    assert (
        both.stdout.splitlines()[-1].split()[-4:] == ["-", "-", "-", "-"] or "NaN" in both.stdout
    )


def test_best_codec_is_never_larger_than_raw(folder):
    """Search for tensors of few values; the large tensors from which settings come hide them."""
    path = folder / "few.safetensors"
    random = np.random.default_rng(3)
    sizes = {"large": 40_000, "median": 500, "six": 6, "two": 2, "one": 1}
    write_dump(path, [(k, random.laplace(size=n).astype(np.float32)) for k, n in sizes.items()])
    for option in (("--max-nmse", "1e-4"), ("--max-nmse", "0.3"), ("--max-bits", "300")):
        result = run("inspect", path, *option, "-c", "raw", "--json")
        for row in json.loads(result.stdout)["files"][0]["tensors"]:
            assert row["best"]["bits_per_value"] <= row["codecs"][0]["bits_per_value"]
    note = run("inspect", path, "--max-nmse", "1e-4").stderr
    assert "the values alone take no more bits than the smallest frame: one, six, two; " in note


def test_earlier_names_are_aliases(folder):
    path = blocks(folder)
    earlier = run("inspect", path, "--max-err", "0.05", "--sort", "err", "--csv").stdout
    assert earlier == run("inspect", path, "--max-nmse", "0.05", "--sort", "nmse", "--csv").stdout
    assert "nmse" in run("inspect", path, "--sort", "error", code=2).stderr


def test_entropy_at_the_requested_error(folder):
    path = blocks(folder)
    (head,) = json_of("inspect", path, "-L", "head")["files"][0]["tensors"]
    assert head["entropy"]["nmse"] == pytest.approx(0.01, rel=0.01)
    # A quarter of a bit above the rate of a normal distribution.
    assert head["entropy"]["bits_per_value"] == pytest.approx(3.32 + 0.25, abs=0.05)
    assert "entropy\nat 0.2" not in run("inspect", path).stdout
    shown = run("inspect", path, "-c", "sign", "--max-nmse", "0.2", "--width", "200").stdout
    assert "at 0.2" in shown and "nmse ≤ 0.2" in shown and "sign" in shown


def test_output_forms(folder):
    path = blocks(folder)
    lines = [json.loads(line) for line in run("inspect", path, "--jsonl").stdout.splitlines()]
    assert [line["name"] for line in lines][:2] == ["blk.0.k", "blk.0.q"] and len(lines) == 7
    assert all(line["schema"] == "gcodec.inspect.line/1" for line in lines)
    rows = list(csv.DictReader(io.StringIO(run("inspect", path, "--csv", "-c", "sign").stdout)))
    assert [row["tensor"] for row in rows] == [line["name"] for line in lines]
    assert float(rows[0]["rms"]) == lines[0]["rms"] and float(rows[0]["sign nmse"]) < 1
    markdown = run("inspect", path, "--markdown", "--top", "1").stdout.splitlines()
    assert markdown[0].startswith("blocks.safetensors   safetensors   7 tensors")
    cells = [len(re.split(r"(?<!\\)\|", line)) for line in markdown[2:]]
    assert len(set(cells)) == 1 and len(cells) == 5
    assert markdown[-2].startswith("| (2 more) |") and markdown[-1].startswith("| total |")
    assert "pass one of them" in run("inspect", path, "--json", "--csv", code=2).stderr


def test_width_and_color(folder):
    path = blocks(folder)
    result = run("inspect", path, "--width", "60")
    assert max(map(len, result.stdout.splitlines()[1:])) <= 60
    assert "not shown at 60 columns: " in result.stderr
    colored = {"FORCE_COLOR": "1", "COLUMNS": "200", "TERM": "xterm-256color"}
    assert "\x1b[31m" in run("inspect", path, env=colored).stdout
    assert "\x1b[31m" not in run("inspect", path, "--no-color", env=colored).stdout


def test_names_are_escaped_in_every_form(tmp_path):
    path = tmp_path / "evil.safetensors"
    values = np.random.default_rng(0).normal(size=20).astype(np.float32)
    save_file({name: values for name in EVIL}, path, metadata={"model": "\x1b[2J<b>|"})
    run("encode", path, "-c", "raw")
    for source in (path, path.with_suffix(".gcf")):
        for form in ([], ["--csv"], ["--markdown"], ["--jsonl"], ["--json"]):
            output = run("inspect", source, *form).output
            assert "\x1b" not in output and "\u202e" not in output
            assert "a\nb" not in output
        assert "[red]x[/red]" in run("inspect", source).stdout
        markdown = run("inspect", source, "--markdown").stdout
        assert "<" not in markdown and r"w\|\`x\`\*y\*" in markdown
        assert ",'=cmd|' /C calc'!A0," in run("inspect", source, "--csv").stdout
        lines = run("inspect", source, "--jsonl").stdout.splitlines()
        assert {json.loads(line)["name"] for line in lines} == set(EVIL)


def test_inspecting_a_dump_imports_no_compiler():
    code = (
        "import sys\nfrom gcodec.cli.main import main\n"
        f"main(['inspect', '--json', {str(EXAMPLE)!r}], standalone_mode=False)\n"
        "heavy = ('scipy.stats', 'matplotlib', 'numba', 'llvmlite', 'torch')\n"
        "print(*[name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    # Only llvmlite knows which levels of processors this one can run.
    environment = {key: value for key, value in os.environ.items() if key != "GCODEC_TARGET"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(done.stdout)["exit_code"] == 0
    assert done.stderr.split() == []


def test_large_file_of_frames_is_listed_by_headers(tmp_path):
    """The payloads of the file are holes that are never read."""
    path = tmp_path / "large.gcf"
    small = gcodec.Frame.from_bytes(gcodec.encode(np.zeros(4, np.float32), "raw", name="w"))
    n = 1 << 26
    large = replace(small, shape=(n,), payload=small.payload._replace(nbits=32 * n))
    with open(path, "wb") as file:
        for i in range(40):
            file.write(replace(large, name=f"blk.{i}.w").header())
            file.seek(4 * n + 4, os.SEEK_CUR)
        file.truncate()
    assert path.stat().st_size > 10e9
    if path.stat().st_blocks * 512 > 1e7:
        pytest.skip("this file system has no holes")
    run("inspect", path, "--top", "1")  # imports
    start = time.process_time()
    result = run("inspect", path)
    assert time.process_time() - start < 1
    assert "40 frames   2,684,354,560 values   10.0 GiB" in result.stdout
    assert "blk.39.w  raw" in result.stdout
    assert "payloads were not read; next: gcodec verify" in result.stderr
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert "frame 39: the bytes end too early" in run("inspect", path, code=1).stderr


@pytest.mark.parametrize("option", ["--codec=sign", "--max-nmse=0.1", "--max-bits=2"])
def test_note_that_no_codec_is_tried_on_frames(tmp_path, option):
    path = tmp_path / "w.gcf"
    path.write_bytes(gcodec.encode(np.ones(9, np.float32), "sign", name="w"))
    note = "no codec was tried on frames; gcodec decode makes a dump"
    assert note in run("inspect", path, option).stderr
    assert note not in run("inspect", path, "--top=1").stderr


def test_command_that_verifies_frames_with_tags_passes_a_key(tmp_path):
    path = tmp_path / "w.gcf"
    frame = gcodec.encode(np.ones(9, np.float32), "sign", name="w")
    path.write_bytes(frame + gcodec.encode(np.ones(9, np.float32), "sign", key=b"secret"))
    suggestion = f"next: gcodec verify --key-file KEY {path}\n"
    assert run("inspect", path).stderr.endswith(suggestion)
    path.write_bytes(frame)
    assert run("inspect", path).stderr.endswith(f"next: gcodec verify {path}\n")


def test_oversized_header_is_refused(tmp_path):
    path = tmp_path / "hostile.gcf"
    with open(path, "wb") as file:
        file.write(
            bytes.fromhex("4743460101010101 04") + b"\xff\xff\xff\xff\x1f"
        )  # a name of 8 GiB
        file.truncate(9 << 30)
    refused = run("inspect", path, code=4)
    assert "frame 0: the header has more than 67108864 bytes" in refused.stderr


def test_totals_count_the_values_that_they_cover(tmp_path):
    path = tmp_path / "dump.npz"
    x = np.random.default_rng(0).normal(size=4000)
    np.savez(path, few=x[:9], wide=x[:100] * 1e300, many=x.astype(np.float32))
    result = run("inspect", path, "--max-bits", "2", "-c", "sign", "--json")
    total = json.loads(result.stdout)["files"][0]["total"]
    assert total["values"] == 4109 and total["best"]["values"] == 4000
    assert total["codecs"][0]["values"] == 4009  # sign refuses a float64 beyond float32
    notes = run("inspect", path, "--max-bits", "2", "-c", "sign").stderr
    assert "for few, wide; the total is that of 4,000 other values\n" in notes
    assert "the total of a codec is that of the tensors that it accepts\n" in notes
