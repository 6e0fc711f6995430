"""The first use of codecs: ``python -m bench.first_use [--python PYTHON]... [--warmup]``.

Each row is a process of its own that encodes and decodes one small tensor, or runs the README's
command. The table shows its processor seconds with an empty cache, and again with the cache that
the first run has filled. ``--python`` names an interpreter with another installation of gcodec,
such as one from a wheel that carries compiled kernels; by default, the current one is used. The
last rows start eight processes together, and compare them with one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet8_digits_step0300.safetensors"
SPECS = (
    *("sign", "mxnet-2bit", "mxnet-1bit", "minmax:bits=4", "terngrad", "qsgd", "randomk"),
    *(
        "topk",
        "dct8",
        "powersgd",
        "minifloat",
        "qsgd:code=auto",
        "ecsq",
        "ecsq:trellis=yes",
        "lowrank",
    ),
)
ENCODE = """
import numpy as np, gcodec
x = np.random.default_rng(1).laplace(size=(64, 512)).astype(np.float32)
gcodec.decode(gcodec.encode(x, {spec!r}))
"""
COMMAND = "from gcodec.cli.main import main; main()"
PROCESSES = 8


def seconds(commands: list[list[str]], cache: str) -> tuple[float, float]:
    """Run processes together; return their processor seconds, and the time until the last ends."""
    # A process imports the gcodec that its interpreter has, not that of the current directory.
    # Without stored bytecode, each process would compile all Python sources of gcodec.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["GCODEC_CACHE_DIR"] = cache
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    children = [
        subprocess.Popen(
            command, cwd=cache, env=environment, stdout=subprocess.DEVNULL, stderr=sys.stderr
        )
        for command in commands
    ]
    if any([child.wait() for child in children]):
        raise SystemExit("a process failed")
    elapsed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, elapsed


def rows(python: str, warmup: bool) -> list[tuple[str, list[str]]]:
    """Return the name and the command of each row for an interpreter."""
    commands = [(spec, [python, "-c", ENCODE.format(spec=spec)]) for spec in SPECS]
    verb = ["inspect", "--quiet", "--max-nmse", "0.01", str(EXAMPLE)]
    commands.append(("inspect --max-nmse 0.01", [python, "-c", COMMAND, *verb]))
    if warmup:
        commands.append(("warmup", [python, "-c", COMMAND, "warmup", "--quiet", "-j", "2"]))
    return commands


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_use", description=__doc__)
    parser.add_argument("--python", action="append", help="interpreter; may be repeated")
    parser.add_argument("--warmup", action="store_true", help="also compile all kernels")
    options = parser.parse_args()
    for python in options.python or [sys.executable]:
        print(f"{python}\n{'processor seconds':26}{'first':>8}{'again':>8}{'files':>7}")
        with tempfile.TemporaryDirectory() as cache:
            seconds([[python, "-c", "import gcodec; gcodec.codecs()"]], cache)  # stores bytecode
        for name, command in rows(python, options.warmup):
            with tempfile.TemporaryDirectory() as cache:
                first, again = (seconds([command], cache)[0] for _ in range(2))
                files = sum(len(names) for _, _, names in os.walk(cache))
            print(f"{name:26}{first:8.2f}{again:8.2f}{files:7}", flush=True)
        for spec in ("minmax:bits=4", "ecsq"):
            command = [python, "-c", ENCODE.format(spec=spec)]
            used = []
            for count in (1, PROCESSES):
                with tempfile.TemporaryDirectory() as cache:
                    used.append(seconds([command] * count, cache))
            (one, _), (many, elapsed) = used
            print(
                f"{spec}, {PROCESSES} processes   {many:.1f} s, {many / one:.2f} times one process"
                f"   {elapsed:.1f} s until the last one ends",
                flush=True,
            )


if __name__ == "__main__":
    main()
