"""Test that bench.positions prints the rows of docs/topk.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench import positions
from bench.bits import tensors

PAGE = (Path(__file__).parents[2] / "docs" / "topk.md").read_text("utf-8")


def test_rows_of_the_page() -> None:
    # Uniform positions are drawn for a size; no value of the array counts, not even a NaN.
    data = {"uniform": [np.full(1 << 20, np.nan, np.float32)], "example": tensors("example")}
    table = list(positions.lines(data))
    assert len(table) == 7
    assert f"\n{table[0]}\n" in PAGE
    assert all(f"\n{row}\n" in PAGE for row in table[2:]), table
