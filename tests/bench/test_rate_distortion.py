"""Bits at equal error: how points become figures, and that every codec has some."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sweeps import thinned

import gcodec
from bench import against_nncodec, rate_distortion, rd_grid
from bench.bits import EXAMPLE
from bench.rd_grid import Dial
from bench.rd_points import Curve, Point, at, load, load_all, nmse_of, total

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rate-distortion.md").read_text("utf-8")


def curve(*points: tuple[float, float], between: bool = True) -> Curve:
    return Curve(tuple(Point(*point) for point in points), between)


def test_every_codec_has_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    codecs = gcodec.codecs().items()
    others = {name for name, cls in codecs if cls.id >= 192 or cls.keeps_every_bit}
    assert set(rd_grid.grid()) == set(gcodec.codecs()) - others
    x = np.ones(4096, np.float32)
    for name, dials in rd_grid.grid().items():
        for dial in dials:
            assert {gcodec.parse(spec).name for spec in dial.specs(x)} == {name}
            assert len(dial.values) >= 8 or not dial.between
    monkeypatch.delitem(rd_grid.GRID, "qsgd")
    with pytest.raises(LookupError, match=r"qsgd: no settings in bench\.rd_grid\.GRID"):
        rd_grid.grid()


def test_units_of_parameters() -> None:
    x = np.full(10_000, -3, np.float32)
    assert Dial("a:b={}", (1, "c")).specs(x) == ["a:b=1", "a:b=c"]
    assert Dial("a:b={}", (0.5, 2), "rms").specs(x) == ["a:b=1.5", "a:b=6"]
    assert Dial("a:b={}", (0.001, 0.25), "√n").specs(x) == ["a:b=1", "a:b=25"]
    assert Dial("a:b={}", (0.5,), "rms").specs(np.zeros(9, np.float32)) == ["a:b=0.5"]


def test_bits_between_settings() -> None:
    """Linear in the logarithm of the error, whatever the direction of the dial."""
    points = (0.001, 400.0), (0.1, 200.0), (0.4, 100.0)
    for dial in (curve(*points), curve(*points[::-1])):
        assert dial.at(0.1) == Point(0.1, 200, pytest.approx(math.nan, nan_ok=True), math.nan)
        actual = dial.at(0.01)
        assert actual is not None and actual.nbits == pytest.approx(300)
        actual = dial.at(0.2)
        assert actual is not None and actual.nbits == pytest.approx(150)
        assert dial.at(0.0009) is None
        actual = dial.at(7)
        assert actual is not None and actual.nbits == 100
    actual = curve(*points, between=False).at(0.2)
    assert actual is not None and actual.nbits == 200
    actual = curve((0.0, 64.0), (0.1, 8.0)).at(0.05)
    assert actual is not None and actual.nbits == 64  # nothing is between an error and none


def test_sums_over_tensors() -> None:
    one = [curve((0.1, 50.0), between=False), curve((0.05, 70.0), (0.2, 30.0))]
    other = [curve((0.3, 9.0))]
    actual = at(one, 0.1)
    assert actual is not None and actual.nbits == pytest.approx(50)
    actual = total([one, other], [0.05, 0.3])
    assert actual is not None and actual.nbits == pytest.approx(79)
    assert total([one, other], [0.1, 0.1]) is None


def test_errors_of_tensors() -> None:
    x = np.array([3, 4], np.float32)
    assert nmse_of(x, np.array([3, 3], np.float32)) == pytest.approx(1 / 25)
    assert nmse_of(np.zeros(5, np.float32), np.zeros(5, np.float32)) == 0


def test_large_tensors_count_else_medium_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"large": 1 << 16, "medium": 1 << 12, "small": (1 << 12) - 1}
    data = {name: rng.standard_normal(n, np.float32) for name, n in sizes.items()}
    for names, kept in ((["large", "medium"], "large"), (["medium", "small"], "medium")):
        save_file({name: data[name] for name in names}, path := tmp_path / "dump.safetensors")
        dump = load(path)
        assert dump is not None and [tensor.name for tensor in dump.tensors] == [kept]
    save_file({"small": data["small"]}, path)
    assert load(path) is None


def test_tables_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)) * np.geomspace(0.01, 1, 64)
    save_file({"w": x.astype(np.float32)}, tmp_path / "some.safetensors")
    page, plot = tmp_path / "page.md", tmp_path / "img" / "plot.svg"
    page.write_text("before\n<!-- measured -->\nOLD\n<!-- end of what is measured -->\nafter\n")
    rate_distortion.main([str(tmp_path), "--page", str(page), "--plot", str(plot)])
    text = page.read_text("utf-8")
    assert text.startswith("before\n<!-- measured -->\n\n### Bits per value at an error of 0.02\n")
    assert text.endswith("<!-- end of what is measured -->\nafter\n") and "OLD" not in text
    row = next(line for line in text.splitlines() if line.startswith("| some * |"))
    bits = [float(cell.strip(" *")) for cell in row.split("|")[2:-1] if cell.strip() != "–"]
    assert len(bits) >= 5 and f"**{min(bits):.3f}**" in row
    drawn = plot.read_text("utf-8")
    for name in rd_grid.grid():
        assert f">{name}</text>" in drawn
    assert "Date" not in drawn and "some: 1 tensor, 4,096 values" in capsys.readouterr().err


def test_arguments_are_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("text")
    with pytest.raises(ValueError, match="no <!-- measured -->"):
        rate_distortion.main(["--page", str(page)])
    assert page.read_text() == "text"
    for words in (["--plot", "a.pdf"], [str(tmp_path)]):
        with pytest.raises(SystemExit):
            rate_distortion.main(words)
    error = capsys.readouterr().err
    assert "a.pdf: must end in .svg or .png" in error and "nothing to measure" in error


def test_page_contains_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run measures the columns of all codecs, an ordinary run those of some."""
    (dump,) = load_all([str(EXAMPLE)])
    grid = dict(thinned(rd_grid.grid().items(), 3))
    monkeypatch.setattr(rate_distortion, "grid", lambda: grid)
    measured = rate_distortion.measure(dump)
    for error in rate_distortion.ERRORS:
        _, _, section = PAGE.partition(f"### Bits per value at an error of {error:g}\n")
        heads, _, *rows = section.strip().splitlines()
        row = next(row for row in rows if row.startswith(f"| {rate_distortion.title(dump)} |"))
        cells = [line.strip("| ").split(" | ")[1:] for line in (heads, row)]
        shown = dict(zip(*cells, strict=True))
        assert {f"`{name}`" for name in grid} & shown.keys()
        for name, point in rate_distortion.at_error(dump, measured, error).items():
            text = shown.get(f"`{name}`", "–").strip("* ")
            bits = point.nbits / dump.size if point else None
            assert text == "–" if bits is None else float(text) == pytest.approx(bits, rel=0.01)


def test_page_contains_all_settings() -> None:
    for name, dials in rd_grid.grid().items():
        assert f"| `{name}` | {'<br>'.join(dial.described() for dial in dials)} |" in PAGE
    drawn = (ROOT / "docs" / "img" / "rate-distortion.svg").read_text("utf-8")
    assert all(f">{name}</text>" in drawn for name in rd_grid.grid())


def test_beside_nncodec(tmp_path: Path) -> None:
    """Its points come from another Python, here a program that answers at once."""
    answer = {"fast": [[[0.001, 9000, 0.5, 0.25], [0.9, 9000, 0.5, 0.25]]]}
    python = tmp_path / "python"
    program = f"import sys\nopen(sys.argv[-1], 'w').write({json.dumps(answer)!r})\n"
    python.write_text(f"#!{sys.executable}\n{program}")
    python.chmod(0o755)
    x = np.random.default_rng(0).standard_normal(4500, np.float32)
    save_file({"w": x}, path := tmp_path / "some.safetensors")
    actual = load(path)
    assert actual is not None
    rows = list(against_nncodec.lines([actual], str(python), ["raw"]))
    assert rows[2] == "| some * | 0.02 | NNCodec, fast | 2.000 | 0.0 | 0.0 |"
    assert [row.split(" | ")[1:3] for row in rows[2:]] == [
        [error, coder]
        for error in ("0.02", "0.1", "FP4's")
        for coder in ("NNCodec, fast", "`raw`")
    ]
