"""Launchers of scatter.cu; see `gcodec.kernels.numeric.scatter`.

Positions and values may lie on the host: what few elements a message sends is read there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.scatter import position_error
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import Device

_MINUS_ZERO = 0x80000000


def take(values: Any, positions: Any) -> Any:
    """Return the elements that are at positions."""
    device, n, k = device_with(values), values.size, positions.size
    places, out = _inside(device, positions, n), device.empty(k, np.uint32)
    what = values.view(np.uint32), np.int64(n), places, np.int64(k), out
    device.launch("scatter", "take_some", striding_blocks(k), THREADS, *what)
    return out.view(np.float32)


def take_to_host(values: Any, positions: Any) -> np.ndarray:
    """Return them on the host."""
    return device_with(values).to_host(take(values, positions))


def replace(array: Any, positions: Any, values: Any) -> None:
    """Write values to positions."""
    device, words = device_with(array), array.dtype == np.float32
    if not positions.size:
        return
    some = _moved(device, values if words else values.astype(np.uint8))
    out, given = (a.view(np.uint32) if words else a for a in (array, some))
    _replace(device, out, _moved(device, positions), given)


def put(out: Any, positions: Any, values: Any) -> None:
    """Write values to positions, and zeros elsewhere."""
    device, bits = device_with(out), out.view(np.uint32)
    places = _rising(device, positions, out.size)
    bits[:] = 0
    _replace(device, bits, places, _moved(device, values).view(np.uint32))


def add(out: Any, positions: Any, values: Any, scale: np.float32) -> None:
    """Add scale·x, x being values at positions, elsewhere 0."""
    with np.errstate(invalid="ignore"):  # it can be NaN
        zero = (scale * np.float32(0)).view(np.uint32)
    device, n, k = device_with(out), out.size, positions.size
    bits, sums = out.view(np.uint32), device.empty(k, np.uint32)
    places, some = _rising(device, positions, n), _moved(device, values).view(np.uint32)
    terms = np.int64(n), places, some, np.int64(k), scale.view(np.uint32), bits, sums
    device.launch("scatter", "add_sums", striding_blocks(k), THREADS, *terms)
    if zero != _MINUS_ZERO:
        device.launch("scatter", "add_zero", striding_blocks(n), THREADS, np.int64(n), zero, bits)
    _replace(device, bits, places, sums)


def _replace(device: Device, out: Any, places: Any, values: Any) -> None:
    name, k = "replace_words" if out.dtype == np.uint32 else "replace_bytes", places.size
    what = np.int64(out.size), places, values, np.int64(k), out
    device.launch("scatter", name, striding_blocks(k), THREADS, *what)


def _moved(device: Device, array: Any) -> Any:
    return array if device.owns(array) else device.to_device(array)


def _inside(device: Device, positions: Any, n: int) -> Any:
    """Return positions on the device; those of the host are looked at first, where none waits."""
    if not device.owns(positions) and (positions.view(np.uint64) >= n).any():
        raise position_error(n)
    return _moved(device, positions)


def _rising(device: Device, positions: Any, n: int) -> Any:
    """Return positions that must rise, too."""
    if not device.owns(positions) and (positions[1:] <= positions[:-1]).any():
        raise position_error(n)
    return _inside(device, positions, n)
