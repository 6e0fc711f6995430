"""Run programs that need PyTorch in processes of their own, and read what each of them wrote.

Importing PyTorch with its distributed packages takes several seconds of processor time, and
importing all codecs half a second. On Linux, one server imports them for each process that runs
tests, and each program is a fork of it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import gcodec.codecs

ROOT = Path(__file__).parents[1]
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "GCODEC_NUM_THREADS": "1"}
PROCESSES = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    codecs = [f"gcodec.codecs.{module.name}" for module in iter_modules(gcodec.codecs.__path__)]
    PROCESSES.set_forkserver_preload(
        ["torch", "torch.distributed.fsdp", "torch._dynamo", "llvmlite.binding", "gcodec.torch"]
        + codecs
    )


class Done(NamedTuple):
    """Exit status of a program, and what it wrote to both streams."""

    status: int | None
    output: str
    errors: str


def run_programs(
    programs: Sequence[Sequence[str]], folder: Path, environments: Sequence[Mapping[str, str]]
) -> list[Done]:
    """Run programs at the same time, with warnings as errors; end all of them after 300 seconds.

    Parameters
    ----------
    programs : sequence of sequences of str
        Path of a script, or ``-c`` and its text, or ``-m`` and the name of a module; and its
        arguments.
    folder : Path
        Working directory of the programs.
    environments : sequence of mappings of str to str
        For each program, variables that differ from those of this process.
    """
    common = {**os.environ, "PYTHONPATH": str(ROOT)}
    variables = [{**common, **environment} for environment in environments]
    with tempfile.TemporaryDirectory() as outputs:
        paths = [Path(outputs) / str(number) for number in range(2 * len(programs))]
        processes = [
            PROCESSES.Process(target=_run, args=(folder, *arguments))
            for arguments in zip(programs, variables, paths[::2], paths[1::2], strict=True)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + 300
        try:
            for process in processes:
                process.join(max(0, end - time.monotonic()))
        finally:
            for process in processes:
                process.kill()
                process.join()
        texts = [path.read_text("utf-8", "replace") if path.exists() else "" for path in paths]
    return [
        Done(process.exitcode, output, errors)
        for process, output, errors in zip(processes, texts[::2], texts[1::2], strict=True)
    ]


def _run(
    folder: Path,
    words: Sequence[str],
    variables: Mapping[str, str],
    output: Path,
    errors: Path,
) -> None:
    """Run a program in this process as the interpreter would."""
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    warnings.simplefilter("error")
    first, *rest = words
    try:
        if first == "-c":
            sys.argv, sys.path[0] = [first, *rest[1:]], ""
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        elif first == "-m":
            sys.argv, sys.path[0] = rest, str(folder)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = list(words), str(Path(first).parent)
            runpy.run_path(first, run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run_ranks(script: str, size: int, directory: Path, *scenarios: str) -> list[Any]:
    """Run scenarios of a script in `size` processes; return the results of each rank."""
    words = str(ROOT / "tests" / script), str(size), str(directory), *scenarios
    programs = [[words[0], str(rank), *words[1:]] for rank in range(size)]
    for done in run_programs(programs, Path.cwd(), [LOOPBACK] * size):
        assert done.status == 0, done.output + done.errors
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(size)]
