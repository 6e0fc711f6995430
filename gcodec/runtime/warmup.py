"""Compile kernels ahead of their first use, in several processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from itertools import groupby

from gcodec.runtime import kernel_cache
from gcodec.runtime.jit import Kernel
from gcodec.runtime.jit import kernels as all_kernels

_PART_SIZE = 6  # kernels of one factory that a process compiles at a time: they share helpers


def compile_kernels(kernels: Sequence[Kernel], processes: int) -> Iterator[int]:
    """Compile each kernel once, in this process or in several others.

    Yields
    ------
    int
        Number of kernels that were compiled since the preceding value.

    Raises
    ------
    BrokenProcessPool
        If a process was killed.
    """
    parts = partition(kernels)
    if processes == 1:
        yield from map(_compile, parts)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    context = multiprocessing.get_context("spawn")
    # The terminal interrupts all processes; the first process terminates the others.
    ignored = signal.SIGINT, signal.SIG_IGN
    executor = ProcessPoolExecutor(processes, context, signal.signal, ignored)
    try:
        for task in as_completed([executor.submit(_compile, part) for part in parts]):
            yield task.result()
    finally:
        for child in multiprocessing.active_children():
            child.terminate()
        executor.shutdown(cancel_futures=True)


def partition(kernels: Sequence[Kernel]) -> list[list[str]]:
    """Divide the names of kernels into parts for one process each, the largest first."""
    parts = []
    for _, variants in groupby(kernels, lambda kernel: kernel.name.partition(" ")[0]):
        names = [kernel.name for kernel in variants]
        parts += [names[at : at + _PART_SIZE] for at in range(0, len(names), _PART_SIZE)]
    return sorted(parts, key=len, reverse=True)


def _compile(names: list[str]) -> int:
    """Compile kernels that no other process has compiled yet."""
    kernels = {kernel.name: kernel for kernel in all_kernels()}
    for name in names:
        kernel_cache.compiled(kernels[name])
    return len(names)
