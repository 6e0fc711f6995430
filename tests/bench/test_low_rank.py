"""Test the table and the picture of docs/lowrank.md."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench import low_rank


@pytest.fixture
def dump(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    left, right = random.standard_normal((60, 20)), random.standard_normal((20, 90))
    x = (left * 0.7 ** np.arange(20) @ right).astype(np.float32)
    path = tmp_path / "dump.safetensors"
    save_file({"w": x, "bias": x[0].copy()}, path)
    return str(path)


def test_table_and_picture(dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "picture.svg"
    low_rank.main([dump, "--nmse", "0.1", "--picture", str(target)])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["no", "yes"]
    for row in rows:
        ecsq, lowrank, least = map(float, re.findall(r"\d+\.\d{3}", row))
        assert 0 < least < lowrank < 0.7 * ecsq
    assert ET.parse(target).getroot().tag.endswith("svg")


def test_difference_of_two_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, other = (str(tmp_path / f"{name}.safetensors") for name in ("old", "new", "other"))
    x = np.outer(np.arange(1, 41), np.ones(50)).astype(np.float32)
    save_file({"w": x}, old)
    save_file({"w": x + np.eye(40, 50, dtype=np.float32)}, new)
    save_file({"v": x}, other)
    label, tensors = low_rank.difference(old, new)
    assert label == "new − old"
    assert np.array_equal(tensors["w"], np.eye(40, 50))
    low_rank.main(["--difference", old, new, "--nmse", "0.3"])
    assert capsys.readouterr().out.count("| new − old |") == 2
    with pytest.raises(ValueError, match="contain different tensors"):
        low_rank.difference(old, other)


def test_bound_of_a_matrix_with_equal_singular_values() -> None:
    """All components are alike, so each value gets the bits of a Gaussian at this error."""
    x = np.eye(64, dtype=np.float32)
    assert low_rank.bound(x, 0.01) > 64 * 128 * 2
    assert low_rank.bound(x[0], 0.01) == np.inf
    assert low_rank.bound(np.zeros((4, 4), np.float32), 0.01) == np.inf
