"""``gcodec warmup``: compile kernels ahead of their first use."""

from __future__ import annotations

import time

import click

from gcodec.cli import options
from gcodec.cli.outcome import FAILED, FINE, CheckFailed

_MAX_JOBS = 64


@options.verb(
    "warmup",
    ("Compile the missing kernels on all processors.", "gcodec warmup"),
    ("Compile them while building a container, in two processes.", "gcodec warmup -j 2 -q"),
    ("Compile what two codecs need.", "gcodec warmup sign minmax:bits=4"),
    exits={
        1: "kernels could not be stored in the cache",
        3: "there is no directory to store them in",
    },
)
@click.argument("codecs", metavar="[CODEC]...", nargs=-1, shell_complete=options.complete_spec)
@click.option(
    "-j",
    "--jobs",
    type=options.Integer(1, _MAX_JOBS),
    metavar="N",
    help="Number of processes; default: GCODEC_NUM_THREADS, or else the number of processors. "
    "Each process needs about 400 MiB. The kernels of given codecs take one process.",
)
@options.quiet
@options.json
def command(codecs: tuple[str, ...], jobs: int | None, quiet: bool, as_json: bool) -> int:
    """Compile kernels in advance, and store them for later processes.

    Without this command, the first use of a codec compiles its kernels, which takes seconds,
    unless a wheel of gcodec carries them. The kernels that this command compiles are for the exact
    processor. They can be faster than those of a wheel, and later processes prefer them: run the
    command on the machine itself, or on one of the same kind. Kernels in the cache are not
    compiled again unless they are damaged. The cache is in GCODEC_CACHE_DIR, or in the user's
    cache directory. Machines with different processors can share it.

    Without a CODEC, gcodec compiles all kernels. For a CODEC such as ecsq:nmse=0.01, it encodes
    and decodes a small tensor, and compiles the kernels that this needs.
    """
    from concurrent.futures.process import BrokenProcessPool

    import gcodec
    from gcodec.cli.render.output import print_document, progress
    from gcodec.cli.render.text import count, printable
    from gcodec.errors import CompilerDisabled, Unsupported
    from gcodec.runtime import jit, kernel_cache, pool
    from gcodec.runtime.warmup import compile_kernels

    if fault := kernel_cache.compiler_fault():
        raise CompilerDisabled(fault)
    specs = [gcodec.parse(codec) for codec in codecs]
    started = time.monotonic()
    kernels = jit.kernels()
    missing = kernel_cache.missing(kernels)
    directory, fault = kernel_cache.directory(), kernel_cache.fault()
    if directory is None or (missing and fault):
        raise Unsupported(
            f"kernels cannot be stored: {fault} Set GCODEC_CACHE_DIR to a directory of your own."
        )
    kernel_cache.entry_code()
    processes = 1 if codecs else min(jobs or pool.thread_count(), max(len(missing), 1))
    if specs:
        gcodec.warmup(*specs)
        kernels = kernel_cache.loaded()
        missing = [kernel for kernel in missing if kernel in kernels]
    elif missing:
        with progress("compiling", len(missing), quiet=quiet or as_json) as advance:
            try:
                for number in compile_kernels(missing, processes):
                    advance(number)
            except BrokenProcessPool:
                raise CheckFailed(
                    "a compiling process was killed, perhaps for lack of memory; -j 1 needs the "
                    "least"
                ) from None
    lost = [kernel.name for kernel in kernel_cache.missing(missing)]
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
