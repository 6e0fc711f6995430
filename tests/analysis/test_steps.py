"""Measures of a run over its steps, and the steps that files belong to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gcodec.analysis import stats, steps
from gcodec.analysis.settings import Settings
from gcodec.errors import ParameterError
from gcodec.limits import Limits
from gcodec.tensorfiles.dumps import write_dump

SETTINGS = Settings((), None, 0.01, (), 1 << 16, 0, Limits())


def matrix(energies: list[float], shape: tuple[int, int]) -> np.ndarray:
    """Return a matrix whose squared singular values are these."""
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.normal(size=(shape[0], len(energies))))[0]
    right = np.linalg.qr(rng.normal(size=(shape[1], len(energies))))[0]
    return (left * np.sqrt(energies)) @ right.T


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (7, 300_000)])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_rank_counts_singular_values(shape: tuple[int, int], scale: float) -> None:
    values = scale * matrix([90, 8, 1.5, 0.4, 0.1], shape)
    assert stats.energy_rank(values, 0.89) == 1
    assert stats.energy_rank(values, 0.97) == 2
    assert stats.energy_rank(values, 0.99) == 3


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        (np.zeros((3, 4)), 0),
        (np.full((3, 4), np.nan), 0),
        (np.eye(100), 99),
        (np.diag([1.0, np.inf, 1.0]), 2),
        (np.ones((6, 2, 5, 5), np.float32), 1),
        (np.ones((4, 1), np.float16), 1),
    ],
)
def test_rank_of_special_matrices(values: np.ndarray, rank: int) -> None:
    assert stats.energy_rank(values, 0.99) == rank


def test_step_measures_every_gradient(tmp_path: Path) -> None:
    values = matrix([999, 0.5, 0.5], (8, 40)).astype(np.float32)
    values[:, :10] = 0
    path = tmp_path / "x.npz"
    bias = np.array([3, 4, np.nan], np.float64)
    write_dump(path, {"w": values, "bias": bias, "n": np.array(3), "e": np.ones((0, 2))}.items())
    points = {entry.name: point for entry, point in steps.measure_step(path, SETTINGS).items()}
    assert points.keys() == {"w", "bias", "e"}
    assert points["w"].norm == pytest.approx(np.linalg.norm(values))
    assert (points["w"].rank, points["w"].zeros, points["w"].nonfinite) == (1, 80, 0)
    assert points["w"].bits > 1
    assert points["bias"].norm == pytest.approx(5)
    assert (points["bias"].rank, points["bias"].nonfinite) == (None, 1)
    assert points["e"].norm == 0 and math.isnan(points["e"].bits)


def test_rank_of_large_matrices_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, side = tmp_path / "x.npz", 20
    monkeypatch.setattr(steps, "SIDE", side)
    shapes = {"least": (side, 2 * side), "large": (side + 1, 2 * side)}
    write_dump(path, {name: np.ones(shape, np.float16) for name, shape in shapes.items()}.items())
    for most, ranks in ((1 << 16, [1, None]), (None, [1, 1])):  # a part, or all of the values
        points = steps.measure_step(path, SETTINGS._replace(max_values=most)).values()
        assert [point.rank for point in points] == ranks


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a_step0003.pt", "a_step0020.pt"], [3, 20]),
        (["v2-Step_7-9.pt", "v2-step_8-9.pt"], [7, 8]),
        (["2024-1.pt", "2024-5.pt"], [1, 5]),
        (["resnet8.bf16.3.npz", "resnet8.bf16.4.npz"], [3, 4]),
        (["checkpoint-500/model.pt", "checkpoint-1000/model.pt"], [500, 1000]),
        (["run/step1/rank0.pt", "run/step2/rank0.pt"], [1, 2]),
        (["only.pt"], [0]),
    ],
)
def test_steps_come_from_names(names: list[str], expected: list[int]) -> None:
    dumps = {Path("/data") / name: dict[str, str]() for name in names}
    assert list(steps.steps_of(dumps).values()) == expected


def test_steps_come_from_metadata_first() -> None:
    dumps = {Path("b-2.pt"): {"step": "10"}, Path("b-1.pt"): {"step": "30"}}
    assert list(steps.steps_of(dumps).values()) == [10, 30]
    # A number that not every file has is no step.
    dumps = {Path("b-2.pt"): {"step": "10"}, Path("b-1.pt"): {"step": "ten"}}
    assert list(steps.steps_of(dumps).values()) == [2, 1]


@pytest.mark.parametrize("names", [["a.pt", "b.pt"], ["x/a1.pt", "x/b1.pt"]])
def test_unclear_steps_are_refused(names: list[str]) -> None:
    with pytest.raises(ParameterError, match="needs a step of its own"):
        steps.steps_of({Path("/data") / name: {} for name in names})


def test_groups_join_blocks(tmp_path: Path) -> None:
    paths = []
    for k in (1, 2):
        tensors = {"blk.0.w": k * np.eye(4), "blk.1.w": 2 * k * np.eye(4)}
        if k == 2:
            tensors["late"] = np.array([3.0, 0.0])
        paths.append(tmp_path / f"{k}.npz")
        write_dump(paths[-1], tensors.items())
    run = steps.RunStats(paths, [1, 2], [steps.measure_step(path, SETTINGS) for path in paths])
    blocks, late = run.groups(each=False)
    assert (blocks.name, blocks.values, blocks.side) == ("blk.*.w", 32, 4)
    assert blocks.norms() == pytest.approx([math.sqrt(4 + 16), math.sqrt(16 + 64)])
    assert blocks.ranks() == [4, 4]
    assert blocks.zeros() == [0.75, 0.75]
    assert math.isnan(late.norms()[0]) and late.norms()[1] == pytest.approx(3)
    assert late.zeros()[1] == 0.5
    assert [group.name for group in run.groups(each=True)] == ["blk.0.w", "blk.1.w", "late"]
