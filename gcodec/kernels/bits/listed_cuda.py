"""Few elements that kernels note by `list` in listed.cuh, put in order and fetched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.deferred import Deferred, Leading
from gcodec.runtime.device import Device

_FEW = 1 << 10  # for which there is room at first
_WORD = 64  # bits of the numbers of a list


def listed(
    device: Device, launch: Callable[[Any, np.int64], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of elements, rising, and their values, as int64.

    Parameters
    ----------
    device : Device
    launch : callable
        Launches the kernel, given where it notes, and for how many there is room; again with more
        where there was too little.
    """
    room = _FEW
    while True:
        out = device.empty(1 + 2 * room, np.uint64)
        out[:1] = 0
        launch(out, np.int64(room))
        found = device.to_host(out).view(np.int64)
        if (count := int(found[0])) <= room:
            break
        room = count
    return _ordered(found, count)


def listed_later(device: Device, launch: Callable[[Any, np.int64], None], room: int) -> Deferred:
    """Return what `listed` does, fetched with other things if there is room for so many."""
    out = device.empty(1 + 2 * room, np.uint64)
    out[:1] = 0
    launch(out, np.int64(room))

    def made(told: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = told.view(np.int64)
        count = int(found[0])
        return listed(device, launch) if count > room else _ordered(found, count)

    some = Leading(out.view(np.uint8), out[:1].view(np.int64), 2 * _WORD, _WORD)
    return Deferred(device, some, made)


def _ordered(found: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    places, values = found[1 : 1 + 2 * count].reshape(-1, 2).T
    order = np.argsort(places)
    return places[order], values[order]
