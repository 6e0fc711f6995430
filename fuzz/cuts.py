"""Kill the command at random moments: ``python -m fuzz.cuts [--kills N]``.

`gcodec encode` and `gcodec decode` run in forked children, with and without an older file at the
output path. Each child is killed after a random time. Afterwards the path must contain the older
file, the complete new file, or nothing; if the process could catch the signal, no other file may
remain.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from fuzz.fork import fork
from gcodec.cli.main import main as command
from gcodec.tensorfiles.dumps import write_dump

KILLS = 300
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OLD = b"what was here before"


def cuts(kills: int, seed: int = 0, folder: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Kill the given number of children.

    Returns
    -------
    Counter
        Number of occurrences of each outcome: ``old``, ``new`` or ``nothing``, and ``left`` for a
        partial file that a killed process could not remove.
    list of str
        Descriptions of the outcomes that violate the promise.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as scratch:
            return cuts(kills, seed, Path(scratch))
    rng, count, wrong = random.Random(seed), Counter[str](), []
    inputs, calls = _calls(folder)
    whole, longest = {}, {}
    for name, (arguments, target) in calls.items():
        began = time.perf_counter()
        _child(arguments, None, signal.SIGKILL)
        longest[name] = 1.2 * (time.perf_counter() - began)
        whole[name] = target.read_bytes()
    for number in range(kills):
        name = rng.choice(sorted(calls))
        arguments, target = calls[name]
        older, sent = rng.random() < 0.5, rng.choice(SIGNALS)
        target.unlink(missing_ok=True)
        if older:
            target.write_bytes(OLD)
        _child(arguments, rng.uniform(0, longest[name]), sent)
        written = target.read_bytes() if target.exists() else None
        allowed = {OLD: "old"} if older else {None: "nothing"}
        allowed[whole[name]] = "new"
        if written not in allowed:
            wrong.append(f"{name}, kill {number} by {sent.name}: another file")
        count[allowed.get(written, "another")] += 1
        for one in folder.iterdir():
            if one not in inputs:
                count["left"] += 1
                if sent != signal.SIGKILL:
                    wrong.append(f"{name}, kill {number} by {sent.name}: {one.name} is left")
                one.unlink()
    return count, wrong


def _calls(folder: Path) -> tuple[set[Path], dict[str, tuple[list[str], Path]]]:
    """Write the inputs; return all files, and the calls with their output paths."""
    rng = np.random.default_rng(0)
    tensors = {f"w{i}": rng.standard_normal(20_000).astype(np.float32) for i in range(3)}
    dump, frames, output = folder / "given.npz", folder / "given.gcf", folder / "made.gcf"
    back = folder / "made.npz"
    write_dump(dump, tensors.items())
    coded = ["encode", str(dump), "-c", "mxnet-2bit", "-q", "-f", "-o"]
    calls = {
        "encode": ([*coded, str(output)], output),
        "decode": (["decode", str(frames), "-q", "-f", "-o", str(back)], back),
    }
    # Run each call once here, so that no child has to import or compile anything.
    caught = signal.getsignal(signal.SIGTERM)
    with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
        command([*coded, str(frames)], standalone_mode=False)
        command(calls["decode"][0], standalone_mode=False)
    signal.signal(signal.SIGTERM, caught)
    return {dump, frames, output, back}, calls


def _child(arguments: list[str], seconds: float | None, sent: signal.Signals) -> None:
    """Run the command in a child; if a signal is given, send it after some time."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # blocked until the child runs
    child = fork()
    if child == 0:
        code = 1
        # Release what an exception refers to, as the end of a process does.
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            code = int(bool(command(arguments, standalone_mode=False)))
        os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, sent)
    os.waitpid(child, 0)


def main() -> int:
    """Print the outcomes; return 1 if one of them violates the promise."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.cuts", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count, wrong = cuts(options.kills, options.seed)
    print(
        f"{options.kills} kills: " + ", ".join(f"{n} {what}" for what, n in sorted(count.items()))
    )
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
