"""The table of `bench.collectives`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from bench.collectives import sent_nbytes, table


def test_table(tmp_path: Path) -> None:
    (tmp_path / "2").write_text("plain all-reduce|4000000|0\n`sign`, gather|1|1")
    hierarchical = "`sign`, hierarchical|2000000|500000"
    (tmp_path / "4").write_text(f"plain all-reduce|6000000|0\n`sign`, gather|3|3\n{hierarchical}")
    assert list(table([2, 4], tmp_path)) == [
        "| hook | 2 ranks | 4 ranks |",
        "|---|---:|---:|",
        "| plain all-reduce | 4 | 6 |",
        "| `sign`, gather | 1e-06 | 3e-06 |",
        "| `sign`, hierarchical | – | 2, 0.5 between nodes |",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the counters are those of Linux")
def test_loopback_is_counted() -> None:
    assert sent_nbytes() >= 0
