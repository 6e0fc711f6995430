"""Lists of few elements that kernels note with ``list`` in ``listed.cuh``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred, LeadingBytes
from gcodec.runtime.device import Device

_ROOM = 1 << 10  # elements of the first attempt
_SHARE, _LEAST = 1 << 4, 1 << 14  # a later list has room for 1/_SHARE of n elements, and _LEAST
_WORD = 64  # bits of a number in a list

Launch = Callable[[Array, int], None]
"""Launches a kernel that notes elements in an array with room for a number of elements."""


def listed(device: Device, launch: Launch, room: int = _ROOM) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of elements in rising order, and their values, as int64.

    Parameters
    ----------
    device : Device
    launch : callable
        Launches the kernel; called again with more room if the first attempt has too little.
    room : int
        Number of elements of the first attempt.
    """
    out = _launched(device, launch, room)
    return _ordered(device, launch, device.to_host(out))


def listed_later(device: Device, launch: Launch, n: int) -> Deferred:
    """Return the result of `listed`, whose elements are few out of n, as a `Deferred`."""
    out = _launched(device, launch, min(n, _LEAST + n // _SHARE))
    leading = LeadingBytes(out.view(np.uint8), out[:1].view(np.int64), 2 * _WORD, _WORD)
    return Deferred(device, leading, lambda data: _ordered(device, launch, data))


def _launched(device: Device, launch: Launch, room: int) -> Array:
    out = device.empty(1 + 2 * room, np.uint64)
    out[:1] = 0
    launch(out, room)
    return out


def _ordered(device: Device, launch: Launch, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort a list; make a longer one if it has more elements than room."""
    numbers = data.view(np.int64)
    count = int(numbers[0])
    if 1 + 2 * count > numbers.size:
        return listed(device, launch, count)
    places, values = numbers[1 : 1 + 2 * count].reshape(-1, 2).T
    order = np.argsort(places)
    return places[order], values[order]
