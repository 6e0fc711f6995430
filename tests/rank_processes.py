"""Start the ranks of a test as processes, and read what each of them wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_ranks(script: str, size: int, directory: Path, *scenarios: str) -> list[Any]:
    """Run scenarios of a script in `size` processes; return the results of each rank."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "GCODEC_NUM_THREADS": "1",
    }
    words = [sys.executable, "-W", "error", str(ROOT / "tests" / script)]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(size), str(directory), *scenarios],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for rank, text in zip(ranks, printed, strict=True):
        assert rank.returncode == 0, text
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(size)]
