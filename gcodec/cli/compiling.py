"""Compile kernels in several processes, none of them twice."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby

from gcodec.cli.outcome import CheckFailed
from gcodec.runtime import jit
from gcodec.runtime.jit import Kernel

_PART = 6  # kernels of one factory for a process at a time: they share what they call


def _parts(kernels: list[Kernel]) -> list[list[str]]:
    """Cut the names of kernels into parts for one process each, the largest first."""
    parts = []
    for _, variants in groupby(kernels, lambda kernel: kernel.name.partition(" ")[0]):
        names = [kernel.name for kernel in variants]
        parts += [names[at : at + _PART] for at in range(0, len(names), _PART)]
    return sorted(parts, key=len, reverse=True)


def compiled(kernels: list[Kernel], processes: int) -> Iterator[int]:
    """Compile kernels, in other processes if there shall be several.

    Yields
    ------
    int
        How many more are done.

    Raises
    ------
    CheckFailed
        If a process came to an end before its work.
    """
    parts = _parts(kernels)
    if processes == 1:
        yield from map(_compile, parts)
        return
    executor = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), _ignore_interrupts
    )
    try:
        tasks = [executor.submit(_compile, part) for part in parts]
        for task in concurrent.futures.as_completed(tasks):
            yield task.result()
    except BrokenProcessPool:
        raise CheckFailed(
            "a process that compiled was ended from outside, perhaps for want of memory; "
            "-j 1 needs the least"
        ) from None
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
        executor.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    # The terminal sends them to all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile(names: list[str]) -> int:
    """Compile kernels, or load them where another process was faster."""
    known = {kernel.name: kernel for kernel in jit.kernels()}
    for name in names:
        known[name].built  # noqa: B018
    return len(names)
