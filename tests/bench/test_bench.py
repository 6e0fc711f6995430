"""The benchmark runs; what it measures is asserted nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_benchmark_runs() -> None:
    command = [sys.executable, "-m", "bench", "--elements", "5000", "--rounds", "1"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for row in ("mxnet-2bit: quantize_residual", "mxnet-2bit: decode_add", "÷ memcpy", "÷ twin"):
        assert row in done.stdout
