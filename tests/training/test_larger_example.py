"""The larger GPT of the convergence example: its two exchanges, its curves and their page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

pytest.importorskip("torch")

import torch

from examples.convergence import larger
from examples.convergence.larger import INNER, Curve, run
from examples.convergence.runs import trained
from examples.convergence.tasks import Task, large_gpt
from gcodec.training import Simulator

ROOT = Path(__file__).parents[2]
CURVES = ROOT / "examples" / "convergence" / "larger.jsonl"


@pytest.fixture(scope="module")
def task() -> Task:
    return large_gpt(16, 1, 16, 8)._replace(steps=2 * INNER)


@pytest.fixture(scope="module")
def values(task: Task) -> int:
    return sum(p.numel() for p in task.model().parameters())


def test_dense_exchanges_send_all_values(task: Task, values: int) -> None:
    """A ring of two workers sends each value once, in each step or in each round."""
    in_every_step, in_rounds = (run(task, exchange, "dense", 0) for exchange in larger.EXCHANGES)
    assert in_every_step.sent == 4 * values * task.steps
    assert in_rounds.sent == 4 * values * task.steps / INNER
    for curve in (in_every_step, in_rounds):
        assert curve.points[-1][0] == task.steps
        assert 0 < curve.score < 6  # untrained: ln 256 = 5.5


@pytest.mark.parametrize("exchange", larger.EXCHANGES)
def test_runs_repeat_and_send_less(task: Task, exchange: str) -> None:
    """Each run compares its replicas bit by bit."""
    dense, *curves = (run(task, exchange, name, 0) for name in ("dense", *["lowrank 0.1"] * 2))
    assert curves[0].points == curves[1].points
    assert curves[0].sent < dense.sent
    assert curves[0].score != dense.score


def test_weights_are_written_at_each_validation(task: Task, tmp_path: Path) -> None:
    run(task, "gradients", "dense", 0, tmp_path)
    path = tmp_path / "gradients-dense-0" / f"step{task.steps:04}.safetensors"
    shapes = {name: tuple(p.shape) for name, p in task.model().named_parameters()}
    assert {name: x.shape for name, x in load_file(path).items()} == shapes


def test_rounds_of_one_worker_are_plain_steps(task: Task) -> None:
    """With an outer rate of 1 and no momentum, the outer step ends where the worker went."""
    plain, method = task._replace(rate=1.0, momentum=0.0), larger.METHODS["dense"]

    def scored(train: larger.Train) -> float:
        model = trained(
            plain, Simulator(1), 0, lambda model, one: train(plain, method, model, one, 0)
        )
        return plain.score(model)

    by_steps, by_rounds = scored(larger.train_means), scored(larger.train_rounds)
    assert by_rounds == pytest.approx(by_steps, rel=1e-3)
    torch.manual_seed(0)  # that of the model before its steps
    assert by_rounds < plain.score(plain.model()) - 0.05  # the text is that of any Python


def test_command_reuses_stored_curves(tmp_path: Path) -> None:
    """The command writes only between the marks of its topic."""
    pytest.importorskip("matplotlib")
    results, page = tmp_path / "some.jsonl", tmp_path / "page.md"
    stored = [
        Curve(exchange, name, 0, [[24, 1e6 / (1 + rank), 3.0], [48, 2e6 / (1 + rank), 2.5]], 1.0)
        for exchange, (_, names) in larger.EXCHANGES.items()
        for rank, name in enumerate(names)
    ]
    results.write_text("".join(json.dumps(curve) + "\n" for curve in stored))
    marks = "<!-- measured{0} --> OLD <!-- end of what is measured{0} -->"
    page.write_text(marks.format("") + marks.format(": larger"))
    words = [f"--results={results}", f"--page={page}", f"--plot={tmp_path / 'plot.svg'}"]
    done = CliRunner().invoke(larger.main, words, catch_exceptions=False)
    assert not done.exit_code
    assert larger.read_curves(results) == stored
    text = page.read_text("utf-8")
    assert text.startswith(marks.format(""))
    assert text.count("OLD") == 1
    assert "| ecsq 0.1 | `ecsq:nmse=0.1` | 2.500 | +0.0 % | 1.00 |" in text
    assert "lowrank 0.3" in (tmp_path / "plot.svg").read_text("utf-8")
    page.write_text(marks.format(""))
    with pytest.raises(ValueError, match="no <!-- measured: larger -->"):
        CliRunner().invoke(larger.main, words, catch_exceptions=False)


def test_page_contains_the_curves() -> None:
    kept = larger.read_curves(CURVES)
    assert len({curve[:3] for curve in kept}) == len(kept)
    assert {curve[:2] for curve in kept} >= {
        (exchange, name) for exchange, (_, names) in larger.EXCHANGES.items() for name in names
    }
    text = "\n".join(larger.lines(large_gpt(), kept))
    page = (ROOT / "docs" / "convergence.md").read_text("utf-8")
    begin, end = "<!-- measured: larger -->", "<!-- end of what is measured: larger -->"
    assert f"{begin}\n\n{text}\n\n{end}" in page
    drawn = (ROOT / "docs" / "img" / "larger.svg").read_text("utf-8")
    assert all(title in drawn for title in larger.TITLES.values())
