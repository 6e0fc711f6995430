"""The example on convergence: a few steps of each kind of method, and the page on them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from examples.convergence import report
from examples.convergence.methods import methods
from examples.convergence.runs import Outcome, run
from examples.convergence.tasks import TASKS

KINDS = ("dense", "ecsq", "1-bit, none", "DGC", "PowerSGD", "1-bit Adam")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [run("lstm", name, 0, None, 2) for name in KINDS]


def test_runs(outcomes: list[Outcome]) -> None:
    """Replicas are compared in each run, bit by bit."""
    assert {"dense", *KINDS} <= methods("adam").keys()
    by_name = {outcome.method: outcome for outcome in outcomes}
    assert all(math.isfinite(outcome.score) and not outcome.failure for outcome in outcomes)
    assert by_name["dense"].bits == 48  # 2·(P − 1)/P times 32, of four workers
    assert 3 < by_name["ecsq"].bits < 9
    assert run("lstm", "ecsq", 0, None, 2).score == by_name["ecsq"].score


def test_page(outcomes: list[Outcome], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tasks = {"lstm": TASKS["lstm"]}
    failed = Outcome("lstm", "DCT", 0, math.nan, 0.0, 1.0, "x")
    text = report.page(tasks, [*outcomes, failed], "plot.svg")
    assert "| 1-bit | `sign` | no |" in text
    assert "1 of 1 runs failed" in text
    report.draw(tasks, [*outcomes, failed], tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text("utf-8").count("PowerSGD") >= 1
