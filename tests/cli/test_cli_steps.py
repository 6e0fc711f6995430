"""`gcodec inspect --over-steps`: one table of a run, its forms, and the figure."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from command_line import json_of, run
from safetensors.numpy import save_file

from gcodec.cli.render.text import trend
from gcodec.tensorfiles.dumps import write_dump

DUMPS = Path(__file__).parents[1] / "dumps"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for k in range(4):
        weight = rng.normal(size=(16, 20)).astype(np.float32) * np.float32(0.5**k)
        weight[: 4 * k] = 0
        tensors = {
            "blk.0.w": weight,
            "blk.1.w": 2 * weight,
            "head": np.outer(weight[-1], weight[-2]),
            "bias": weight[-1],
            "count": np.array(k),
        }
        # The names are in another order than the steps.
        path = tmp_path / f"{9 - k}.safetensors"
        save_file(tensors, path, metadata={"step": str(100 * k)})
    return tmp_path


def test_table(folder: Path) -> None:
    lines = run("inspect", folder, "--over-steps").stdout.splitlines()
    assert lines[0] == "4 steps, 0 to 300   4 tensors   1,060 values"
    assert lines[1].split("  ")[0] == "tensor"
    blocks = next(line for line in lines if line.startswith("blk.*.w ×2  16x20"))
    assert "█▄▂▁" in blocks  # the norm falls by half and more each time
    assert blocks.split()[-1] == "75.0"
    head = next(line for line in lines if line.startswith("head"))
    assert head.split()[-4:-2] == ["▄▄▄▄", "1/20"]
    assert next(line for line in lines if line.startswith("bias")).split()[-3] == "-"
    assert lines[-1].startswith("total") and "1,060" in lines[-1]
    assert "count" not in "".join(lines)


def test_one_zero_of_many_values_is_shown(tmp_path: Path) -> None:
    values = np.ones((2, 2**21), np.float32)
    values[0, 0] = 0
    write_dump(tmp_path / "step1.npz", [("few", values[0]), ("most", values[1])])
    write_dump(tmp_path / "step2.npz", [("few", values[0]), ("most", 1 - values[0])])
    lines = run("inspect", tmp_path, "--over-steps", "-q").stdout.splitlines()
    assert [line.split()[-1] for line in lines[2:4]] == ["<0.1", ">99.9"]


def test_narrow_terminals_omit_columns(folder: Path) -> None:
    result = run("inspect", folder, "--over-steps", "--width", "80")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "not shown at 80 columns: shape" in result.stderr
    assert "the number is that of the last step" in result.stderr
    assert run("inspect", folder, "--over-steps", "-q", "--width", "80").stderr == ""


def test_ascii_terminals() -> None:
    assert trend([1, 2, float("nan"), 3], 8) == "▁▅ █"
    assert trend([0, 0, 10, 10], 2) == "▁█"
    assert trend([5, 5], 8) == "▄▄"
    assert trend([0.3, 0.1 + 0.2], 8) == "▄▄"
    assert trend([], 8) == ""


def test_rows_are_sorted_and_selected(folder: Path) -> None:
    def names(*args: object) -> list[str]:
        lines = run("inspect", folder, "--over-steps", *args).stdout.splitlines()[2:-1]
        return [line.split()[0] for line in lines]

    assert names() == ["bias", "blk.*.w", "head"]  # as safetensors stores them
    assert names("--sort", "size") == ["blk.*.w", "head", "bias"]
    assert names("--sort", "name") == ["bias", "blk.*.w", "head"]
    assert names("--each", "--sort", "size")[0:3] == ["head", "blk.0.w", "blk.1.w"]
    assert names("--top", "1", "--sort", "size") == ["blk.*.w", "(2"]
    assert names("-L", "b*", "-L", "!bias") == ["blk.*.w"]
    late = {"late": np.ones(3, np.float32)}
    save_file(late, folder / "late.safetensors", metadata={"step": "400"})
    assert names("-L", "late") == ["late"]
    assert (
        "no gradient matches" in run("inspect", folder, "--over-steps", "-L", "x", code=2).stderr
    )
    assert set(names("--sort", "bits")) == {"bias", "blk.*.w", "head", "late"}


def test_one_file_without_gradients(tmp_path: Path) -> None:
    write_dump(tmp_path / "x.npz", {"n": np.array(3)}.items())
    lines = run("inspect", tmp_path, "--over-steps").stdout.splitlines()
    assert lines[0] == "1 step, 0   0 tensors   0 values"
    assert lines[1].split()[0] == "tensor" and len(lines) == 2


def test_json_and_csv(folder: Path) -> None:
    arguments = ["inspect", folder, "--over-steps", "--max-err", "0.1"]
    document = json_of(*arguments, schema="inspect.steps")
    assert document["error"] == 0.1
    assert [step["step"] for step in document["steps"]] == [0, 100, 200, 300]
    assert document["steps"][0]["file"] == str(folder / "9.safetensors")
    head = next(tensor for tensor in document["tensors"] if tensor["name"] == "head")
    assert [point["rank_99"] for point in head["points"]] == [1, 1, 1, 1]
    assert [point["zeros"] for point in head["points"]] == [0, 0, 0, 0]
    assert head["points"][0]["norm"] > head["points"][1]["norm"] > 0
    group = next(group for group in document["groups"] if group["name"] == "blk.*.w")
    assert group["tensors"] == ["blk.0.w", "blk.1.w"]
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--csv").stdout)))
    assert len(rows) == 16
    assert [row["step"] for row in rows[::4]] == ["0", "100", "200", "300"]
    assert {row["rank_99"] for row in rows if row["tensor"] == "bias"} == {""}
    lines = [json.loads(line) for line in run(*arguments, "--jsonl").stdout.splitlines()]
    assert lines[0]["schema"] == "gcodec.inspect.steps.line/1"
    assert float(rows[0]["norm"]) == lines[0]["norm"]
    assert "| tensor |" not in run(*arguments, "--csv").stdout
    assert "| tensor | shape |" in run(*arguments, "--markdown").stdout


def test_nonfinite_values_have_a_column(folder: Path) -> None:
    bad = {"head": np.array([[1, np.nan], [np.inf, 0]], np.float32)}
    save_file(bad, folder / "late.safetensors", metadata={"step": "400"})
    lines = run("inspect", folder, "--over-steps", "-L", "head").stdout.splitlines()
    assert lines[1].endswith("NaN/Inf")
    assert [line.split()[-1] for line in lines[2:]] == ["0", "2", "2"]  # two shapes, two rows


def test_checkpoints_are_steps(tmp_path: Path) -> None:
    for step in (10, 9):
        shutil.copytree(DUMPS / "sharded", tmp_path / f"step{step}")
    stdout = run("inspect", tmp_path, "--over-steps").stdout
    assert stdout.startswith("2 steps, 9 to 10   6 tensors   ")
    assert "model.conv.weight" in stdout


def test_unreadable_files_are_left_out(folder: Path) -> None:
    (folder / "8.safetensors").write_bytes(b"x")
    result = run("inspect", folder, "--over-steps", code=3)
    assert result.stdout.startswith("3 steps, 0 to 300")
    assert "8.safetensors" in result.stderr
    for path in folder.iterdir():
        path.write_bytes(b"x")
    result = run("inspect", folder, "--over-steps", "--json", code=3)
    assert len(json.loads(result.stdout)["errors"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["--over-steps", "-c", "sign"],
        ["--over-steps", "--max-bits", "3"],
        ["--over-steps", "--report", "x.html"],
        ["--over-steps", "--sort", "err"],
        ["--over-steps", "--plot", "x.pdf"],
        ["--plot", "x.svg"],
    ],
)
def test_options_that_do_not_fit(folder: Path, arguments: list[str]) -> None:
    assert "--over-steps" in run("inspect", folder, *arguments, code=2).stderr


def test_unclear_steps_and_frames_are_refused(folder: Path) -> None:
    path = folder / "9.safetensors"
    shutil.copy(path, folder / "again9.safetensors")
    result = run("inspect", folder, "--over-steps", code=2)
    assert "the steps of 9.safetensors, again9.safetensors are unclear" in result.stderr
    run("encode", path, "-c", "sign", "-o", folder / "x.gcf", "-q")
    result = run("inspect", folder / "x.gcf", "--over-steps", code=2)
    assert "contains frames" in result.stderr
    assert "x.gcf" not in run("inspect", folder, "--over-steps", "--json", code=2).stdout


def test_figure(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["inspect", folder, "--over-steps", "--each"]
    odd = {f"a$_{i}$<b>": np.ones(3, np.float32) for i in range(9)}
    for k in (4, 5):
        save_file(odd, folder / f"odd{k}.safetensors", metadata={"step": str(100 * k)})
    for name, start in (("x.svg", b"<?xml"), ("x.PNG", b"\x89PNG")):
        result = run(*arguments, "--plot", folder / name)
        data = (folder / name).read_bytes()
        assert data.startswith(start)
        assert "the first 8 rows have colors" in result.stderr
        assert result.stderr.endswith(f"\nwrote {folder / name}\n")
        assert run(*arguments, "--plot", folder / name, "-q").stderr == ""
        assert (folder / name).read_bytes() == data
    text = (folder / "x.svg").read_text()
    assert "blk.0.w" in text and "rank of 99 % of the energy" in text
    assert "a$_0$&lt;b&gt;" in text and "a$_8$" not in text
    assert "--s0" not in text and "#0102" not in text  # placeholders of the report's page


def test_figure_needs_gradients(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_dump(tmp_path / "1.npz", [("count", np.array(3))])
    plot = tmp_path / "run.svg"
    refused = run("inspect", tmp_path, "--over-steps", "--plot", plot, code=2)
    assert refused.stderr.endswith("--plot: the files contain no gradients to draw\n")
    assert not plot.exists()


def test_figure_in_a_new_folder(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = folder / "new" / "run.svg"
    run("inspect", folder, "--over-steps", "--plot", plot)
    assert plot.is_file()


def test_figure_is_well_formed_for_any_names(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ["\x1b[31mred", "a\nb", "$x_1$", "_hidden", "<b>&amp;", r"\$"]
    write_dump(tmp_path / "1.safetensors", [(name, np.ones(3, np.float32)) for name in names])
    plot = tmp_path / "run.svg"
    run("inspect", tmp_path, "--over-steps", "--plot", plot)
    texts = [element.text for element in ElementTree.parse(plot).iter() if element.text]
    shown = [r"\x1b[31mred", r"a\nb", "$x_1$", "\u200b_hidden", "<b>&amp;", r"\$"]
    assert set(shown) <= set(texts)
