"""The benchmark runs; what it measures is asserted nowhere."""

from __future__ import annotations

from pathlib import Path

from rank_processes import run_programs


def test_benchmark_runs() -> None:
    program = ["-m", "bench", "--elements", "5000", "--rounds", "1"]
    (done,) = run_programs([program], Path(__file__).parents[2], [{}])
    assert done.status == 0, done.errors
    for row in ("mxnet-2bit: quantize_residual", "mxnet-2bit: decode_add", "÷ memcpy", "÷ twin"):
        assert row in done.output
