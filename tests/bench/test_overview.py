"""The picture of the README: its curves, its points, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench import overview
from bench.rate_distortion import measure
from bench.rd_points import Curve, Point, load, load_all

ROOT = Path(__file__).parents[2]


def write_dump(path: Path) -> Path:
    x = np.random.default_rng(0).standard_normal((64, 64)) * np.geomspace(0.01, 1, 64)
    save_file({"w": x.astype(np.float32)}, path)
    return path


def test_picture_has_a_curve_or_a_point_for_each_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = load_all([str(write_dump(tmp_path / "some.safetensors"))])
    monkeypatch.setattr(overview, "load_all", lambda paths: dumps)
    overview.main([str(tmp_path / "overview.svg")])
    drawn = (tmp_path / "overview.svg").read_text("utf-8")
    for name in (*overview._LINES, *overview._POINTS):
        assert f">{name}</text>" in drawn
    assert "bits per value, headers included" in drawn and "Date" not in drawn
    committed = (ROOT / "docs" / "img" / "overview.svg").read_text("utf-8")
    for color in (*overview._LINES.values(), *(color for color, _ in overview._POINTS.values())):
        assert color in drawn and color in committed


def test_point_of_a_codec_is_its_least_error(tmp_path: Path) -> None:
    dump = load(write_dump(tmp_path / "some.safetensors"))
    assert dump is not None
    curves = [[Curve((Point(0.5, 4096.0), Point(0.25, 8192.0)), False)]]
    assert overview.least(dump, curves) == (0.25, 2.0)
    error, bits = overview.least(dump, measure(dump)["sign"])
    assert 0 < error < 1 and 1 < bits < 1.2


def test_other_formats_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        overview.main(["overview.pdf"])
    assert "overview.pdf: must end in .svg or .png" in capsys.readouterr().err
