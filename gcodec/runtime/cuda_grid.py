"""Grids of CUDA kernels, and the errors that kernels report to the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred, fetch_later
from gcodec.runtime.device import Device, device_of

THREADS = 256  # per block, unless a kernel declares another number
_MAX_STRIDING_BLOCKS = 1 << 12  # enough to fill any device


def device_with(array: object) -> Device:
    """Return the device that holds an array, which must not be on the host."""
    device = device_of(array)
    assert device is not None
    return device


def blocks(n: int, per_thread: int = 1, threads: int = THREADS) -> int:
    """Return the number of blocks for n elements, `per_thread` elements for each thread."""
    return -(-n // (per_thread * threads))


def striding_blocks(n: int, per_thread: int, threads: int = THREADS) -> int:
    """Return the number of blocks for a grid-stride loop over n elements.

    Each thread processes about `per_thread` elements, or more if n is very large.
    """
    return min(blocks(n, per_thread, threads), _MAX_STRIDING_BLOCKS)


def launch_striding(
    device: Device, source: str, name: str, n: int, *args: object, per_thread: int = 4
) -> None:
    """Launch a kernel that contains a grid-stride loop over n elements; see `Device.launch`."""
    device.launch(source, name, striding_blocks(n, per_thread), THREADS, *args)


def launch_parts(device: Device, source: str, name: str, n: int, part: int, *args: object) -> None:
    """Launch a kernel whose blocks process parts of `part` elements out of n."""
    device.launch(source, name, striding_blocks(n, part, threads=1), THREADS, *args)


def byte_view(symbols: Array) -> tuple[Array, int]:
    """Return the bytes of symbols and the size of one, for kernels that take any width."""
    return symbols.view(np.uint8), symbols.itemsize


def word(device: Device, number: float | np.floating | Deferred) -> Array:
    """Return a float32 number of the host, or a `Deferred` one, as a (1,) array on the device."""
    if type(number) is Deferred:
        return number.words
    return device.to_device(np.array([number], np.float32))


def factor_to_add(add: np.float32 | None) -> tuple[float | np.float32, bool]:
    """Return the factor of values, and whether multiples of them are added, for kernels."""
    return 1.0 if add is None else add, add is not None


def raise_reported(device: Device, words: Array, *errors: Callable[[int], Exception]) -> None:
    """Raise an error if kernels reported one with `report` of ``report.cuh``.

    The error is raised now, or when the outermost call ends; see
    `gcodec.runtime.deferred.fetch_later`.

    Parameters
    ----------
    device : Device
    words : (k,) uint64 array on the device
        The first position that kernels reported for each kind of error; zeros at first.
    *errors : k callables
        Each returns the error of one kind at a position. The first kind takes precedence.
    """

    def check(reports: np.ndarray) -> None:
        for report, error in zip(reports.tolist(), errors, strict=True):
            if report:
                raise error(~report & (1 << 64) - 1)

    fetch_later(device, words, check)
