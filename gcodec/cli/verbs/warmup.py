"""``gcodec warmup``: compile all kernels ahead of their first use."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import click

from gcodec.cli import options
from gcodec.cli.outcome import FAILED, FINE, CheckFailed

if TYPE_CHECKING:
    from gcodec.runtime.jit import Kernel

_MAX_JOBS = 64
_PART_SIZE = 6  # kernels of one factory that a process compiles at a time: they share callees


@click.command(
    cls=options.Verb,
    name="warmup",
    examples=[
        ("Compile the missing kernels on all processors.", "gcodec warmup"),
        ("Compile them while building a container, in two processes.", "gcodec warmup -j 2 -q"),
    ],
    exits={
        1: "kernels could not be stored in the cache",
        3: "there is no directory to store them in",
    },
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, _MAX_JOBS),
    metavar="N",
    help="Number of processes; default: GCODEC_NUM_THREADS, or else the number of processors. "
    "Each process needs about 400 MiB.",
)
@options.quiet
@options.json
def command(jobs: int | None, quiet: bool, as_json: bool) -> int:
    """Compile all kernels, and store them for later processes.

    Without this, the first use of a codec compiles its kernels, which takes several seconds. The
    compiled code depends on the releases of gcodec, Python and Numba, and on the processor: run
    this command on the machine itself, or on one of the same kind. Kernels in the cache are not
    compiled again unless they are damaged. The cache is in GCODEC_CACHE_DIR, or in the user's
    cache directory. Machines with different processors can share it.
    """
    from gcodec.cli.render.output import print_document, progress
    from gcodec.cli.render.text import count, printable
    from gcodec.errors import CompilerDisabled, Unsupported
    from gcodec.runtime import jit, pool

    if fault := jit.compiler_fault():
        raise CompilerDisabled(fault)
    started = time.monotonic()
    kernels = jit.kernels()
    missing = [kernel for kernel in kernels if not kernel.cached]
    directory = jit.cache_directory()
    if directory is None or (missing and jit.cache_fault()):
        raise Unsupported(
            f"kernels cannot be stored: {jit.cache_fault()} Set GCODEC_CACHE_DIR to a directory "
            "of your own."
        )
    processes = min(jobs or pool.thread_count(), max(len(missing), 1))
    if missing:
        with progress("compiling", len(missing), quiet=quiet or as_json) as advance:
            for number in compile_kernels(missing, processes):
                advance(number)
    lost = [kernel.name for kernel in missing if not kernel.cached]
    code = FAILED if lost else FINE
    seconds = time.monotonic() - started
    if as_json:
        body = {
            "directory": str(directory),
            "kernels": len(kernels),
            "compiled": len(missing) - len(lost),
            "not_kept": lost,
            "processes": processes,
            "seconds": round(seconds, 3),
            "exit_code": code,
        }
        print_document("warmup", body)
        return code
    if not quiet:
        line = f"{count(len(kernels), 'kernel')}, {len(missing)} compiled in {seconds:.1f} s"
        click.echo(printable(f"{line}   {directory}"))
    if lost:
        click.echo(f"gcodec: {count(len(lost), 'kernel')} could not be stored", err=True)
    return code


def compile_kernels(kernels: list[Kernel], processes: int) -> Iterator[int]:
    """Compile each kernel once, in this process or in several others.

    Yields
    ------
    int
        Number of kernels that were compiled since the preceding value.

    Raises
    ------
    CheckFailed
        If a process was killed.
    """
    parts = partition(kernels)
    if processes == 1:
        yield from map(_compile, parts)
        return
    import multiprocessing
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")
    # The terminal interrupts all processes; the first process terminates the others.
    ignored = signal.SIGINT, signal.SIG_IGN
    executor = ProcessPoolExecutor(processes, context, signal.signal, ignored)
    try:
        for task in as_completed([executor.submit(_compile, part) for part in parts]):
            yield task.result()
    except BrokenProcessPool:
        raise CheckFailed(
            "a compiling process was killed, perhaps for lack of memory; -j 1 needs the least"
        ) from None
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
        executor.shutdown(cancel_futures=True)


def partition(kernels: list[Kernel]) -> list[list[str]]:
    """Divide the names of kernels into parts for one process each, the largest first."""
    parts = []
    for _, variants in groupby(kernels, lambda kernel: kernel.name.partition(" ")[0]):
        names = [kernel.name for kernel in variants]
        parts += [names[at : at + _PART_SIZE] for at in range(0, len(names), _PART_SIZE)]
    return sorted(parts, key=len, reverse=True)


def _compile(names: list[str]) -> int:
    """Compile kernels, or load those that another process has compiled."""
    from gcodec.runtime import jit

    kernels = {kernel.name: kernel for kernel in jit.kernels()}
    for name in names:
        kernels[name].built  # noqa: B018
    return len(names)
