"""``gcodec warmup``: compile all kernels ahead of their first use."""

from __future__ import annotations

import time

import click

from gcodec.cli.options import json_option, quiet_option
from gcodec.cli.outcome import FAILED, FINE
from gcodec.cli.verb import Verb

_MOST_JOBS = 64


@click.command(
    cls=Verb,
    name="warmup",
    examples=[
        ("Compile what is not compiled yet, on all processors.", "gcodec warmup"),
        ("The same in the recipe of a container, in two processes.", "gcodec warmup -j 2 -q"),
    ],
    exits={
        1: "kernels could not be kept in the cache",
        3: "there is no directory to keep them in",
    },
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, _MOST_JOBS),
    metavar="N",
    help="Processes; default: GCODEC_NUM_THREADS, or else as many as there are processors. Each "
    "takes some 400 MiB.",
)
@quiet_option
@json_option
def command(jobs: int | None, quiet: bool, as_json: bool) -> int:
    """Compile all kernels, and keep them for later processes.

    Without this, the first use of a codec compiles its kernels, which takes some seconds. What is
    compiled depends on this release, on those of Python and Numba, and on the processor: call it
    on the machine, or on one of its kind. What is in the cache already is not compiled again,
    unless it is damaged. The cache is in GCODEC_CACHE_DIR, or in the user's cache directory.
    Machines with different processors can share one.
    """
    from gcodec.cli.compiling import compiled
    from gcodec.cli.document import print_document
    from gcodec.cli.progress import progress
    from gcodec.cli.text import count, printable
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
            f"kernels cannot be kept: {jit.cache_fault()} Set GCODEC_CACHE_DIR to a directory of "
            "your own."
        )
    processes = min(jobs or pool.thread_count(), max(len(missing), 1))
    if missing:
        with progress("compiling", len(missing), quiet=quiet or as_json) as advance:
            for done in compiled(missing, processes):
                advance(done)
    lost = [kernel.name for kernel in missing if not kernel.cached]
    seconds = time.monotonic() - started
    if as_json:
        body = {
            "directory": str(directory),
            "kernels": len(kernels),
            "compiled": len(missing) - len(lost),
            "not_kept": lost,
            "processes": processes,
            "seconds": round(seconds, 3),
            "exit_code": FAILED if lost else FINE,
        }
        print_document("warmup", body)
    elif not quiet:
        line = f"{count(len(kernels), 'kernel')}, {len(missing)} compiled in {seconds:.1f} s"
        click.echo(printable(f"{line}   {directory}"))
    if lost and not as_json:
        click.echo(f"gcodec: {count(len(lost), 'kernel')} could not be kept", err=True)
    return FAILED if lost else FINE
