"""How many blocks a kernel gets, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.deferred import Deferred, note
from gcodec.runtime.device import Device, device_of

THREADS = 256  # of a block, where a kernel does not say more
_MOST = 1 << 12  # blocks of a kernel whose threads go on until all is done: enough for any device


def device_with(array: Any) -> Device:
    """Return the device of an array that lies on one."""
    device = device_of(array)
    assert device is not None
    return device


def blocks(n: int, per_thread: int = 1, threads: int = THREADS) -> int:
    """Return how many blocks do n elements, so many by each thread."""
    return -(-n // (per_thread * threads))


def striding_blocks(n: int, per_thread: int = 4, threads: int = THREADS) -> int:
    """Return how many blocks do n elements, where a thread goes on as long as there are any.

    Each thread gets so many, or fewer, or where there are very many elements more.
    """
    return min(blocks(n, per_thread, threads), _MOST)


def word(device: Device, number: Any) -> Any:
    """Return the bits of a float32 number, the host's or a `Deferred`, as a (1,) array there."""
    if type(number) is Deferred:
        return number.words.view(np.uint32)
    return device.to_device(np.array([number], np.float32).view(np.uint32))


def reported(device: Device, words: Any, check: Callable[..., None]) -> None:
    """Have `check` called with what kernels noted by `report` in report.cuh.

    That is the first position of each word, or None; it may be told when the call ends.
    """

    def told(found: np.ndarray) -> None:
        check(*((~word) & (1 << 64) - 1 if word else None for word in found.tolist()))

    note(device, words, told)
