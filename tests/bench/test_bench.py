"""The benchmark runs; what it measures is asserted nowhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from rank_processes import run_programs


def test_benchmark_runs_and_replaces_the_tables_of_a_page(tmp_path: Path) -> None:
    page, root = tmp_path / "speed.md", Path(__file__).parents[2]
    shutil.copy(root / "docs" / "speed.md", page)
    before = page.read_text("utf-8")
    program = ["-m", "bench", "--elements", "5000", "--rounds", "1", "--page", str(page)]
    (done,) = run_programs([program], root, [{}])
    assert done.status == 0, done.errors
    for row in ("mxnet-2bit: quantize_residual", "mxnet-2bit: decode_add", "÷ memcpy", "÷ twin"):
        assert row in done.output
    (done,) = run_programs([[*program, "--bfloat16"]], root, [{}])
    assert done.status == 0, done.errors
    after = page.read_text("utf-8")
    assert _words(after) == _words(before) and after != before


def _words(page: str) -> list[list[str]]:
    """Return the cells of each line without numbers."""
    return [
        [cell for cell in line.split("|") if not cell.strip().replace(".", "").isdigit()]
        for line in page.splitlines()
    ]
