"""The thread pool: large inputs are cut into fixed segments; the bits never depend on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gcodec.errors import ParameterError
from gcodec.kernels.device import device_of

SEGMENT = 1 << 19  # elements
_THRESHOLD = 1 << 20  # elements from which threads pay for their start

_T = TypeVar("_T")
_pool: tuple[int, ThreadPoolExecutor] | None = None


def thread_count() -> int:
    """Threads in use: ``GCODEC_NUM_THREADS``, else the processors this process may run on."""
    text = os.environ.get("GCODEC_NUM_THREADS")
    if text is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise ParameterError.of("GCODEC_NUM_THREADS", text, "an integer from 1 to 1024")
    return int(text)


def run(task: Callable[[int, int], _T], n: int, unit: int = 1, beside: Any = None) -> list[_T]:
    """Call ``task(start, stop)`` for segments that cover ``range(n)``, and wait for all of them.

    Segments start at multiples of `SEGMENT`, or of its largest part that is a multiple of `unit`
    elements. With one thread, or below about a million elements, there is one call in the calling
    thread; as where tasks work on `beside`, an array on a device, which has threads enough.
    Returned is what the calls returned, in the order of the segments.
    """
    if n < _THRESHOLD or thread_count() == 1 or device_of(beside) is not None:
        return [task(0, n)]
    length = max(SEGMENT // unit, 1) * unit
    starts = range(0, n, length)
    # list() waits, and raises what a task raised.
    return list(_executor().map(lambda start: task(start, min(start + length, n)), starts))


def _executor() -> ThreadPoolExecutor:
    global _pool
    count = thread_count()
    if _pool is None or _pool[0] != count:
        # An executor that is replaced finishes its tasks and its idle threads end with it.
        _pool = (count, ThreadPoolExecutor(count, thread_name_prefix="gcodec"))
    return _pool[1]


def _forget() -> None:
    """In a forked child, drop the pool: its threads do not exist there."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
