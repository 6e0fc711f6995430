"""Launchers of scatter.cu; see `gcodec.kernels.scatter`.

Positions and values may lie on the host: what few elements a message sends is read there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.errors import ParameterError
from gcodec.kernels.device import Device
from gcodec.scalars import note

_MINUS_ZERO = 0x80000000


def take(values: Any, positions: Any) -> Any:
    """Return the elements that are at positions."""
    device, found = device_with(values), _taken(values, positions)
    _check(device, found[:1], values.size)
    return found[1:].view(np.float32)


def take_to_host(values: Any, positions: Any) -> np.ndarray:
    """Return them on the host."""
    told = device_with(values).to_host(_taken(values, positions))
    _refuse(told[0], values.size)
    return told[1:].view(np.float32)


def _taken(values: Any, positions: Any) -> Any:
    """Return the bits of the elements, and before them what `_refuse` looks at."""
    device, k = device_with(values), positions.size
    out = device.empty(k + 1, np.uint32)
    out[:1] = 0
    arguments = values.view(np.uint32), np.int64(values.size), _moved(device, positions)
    what = *arguments, np.int64(k), out[1:], out[:1]
    device.launch("scatter", "take_some", striding_blocks(k), THREADS, *what)
    return out


def replace(array: Any, positions: Any, values: Any) -> None:
    """Write values to positions."""
    device, k, words = device_with(array), positions.size, array.dtype == np.float32
    if not k:
        return
    some = _moved(device, values if words else values.astype(np.uint8))
    out, given = (a.view(np.uint32) if words else a for a in (array, some))
    what = np.int64(array.size), _moved(device, positions), given, np.int64(k), out
    name = "replace_words" if words else "replace_bytes"
    device.launch("scatter", name, striding_blocks(k), THREADS, *what)


def put(out: Any, positions: Any, values: Any) -> None:
    """Write values to positions, and zeros elsewhere."""
    device, n, k = device_with(out), out.size, positions.size
    bits, wrong = out.view(np.uint32), device.zeros(1, np.uint32)
    places, some = _moved(device, positions), _moved(device, values).view(np.uint32)
    bits[:] = 0
    arguments = np.int64(n), places, some, np.int64(k), bits, wrong
    device.launch("scatter", "put", striding_blocks(k), THREADS, *arguments)
    _check(device, wrong, n)


def add(out: Any, positions: Any, values: Any, scale: np.float32) -> None:
    """Add scale·x, x being values at positions, elsewhere 0."""
    with np.errstate(invalid="ignore"):  # it can be NaN
        zero = (scale * np.float32(0)).view(np.uint32)
    device, n, k = device_with(out), out.size, positions.size
    bits, wrong = out.view(np.uint32), device.zeros(1, np.uint32)
    places, some = _moved(device, positions), _moved(device, values).view(np.uint32)
    sums = device.empty(k, np.uint32)
    where, grid = (np.int64(n), places), striding_blocks(k)
    factor = scale.view(np.uint32)
    arguments = *where, some, np.int64(k), factor, bits, sums, wrong
    device.launch("scatter", "add_sums", grid, THREADS, *arguments)
    if zero != _MINUS_ZERO:
        device.launch("scatter", "add_zero", striding_blocks(n), THREADS, np.int64(n), zero, bits)
    device.launch("scatter", "put_sums", grid, THREADS, *where, sums, np.int64(k), bits)
    _check(device, wrong, n)


def _moved(device: Device, array: Any) -> Any:
    return array if device.owns(array) else device.to_device(array)


def _check(device: Device, wrong: Any, n: int) -> None:
    note(device, wrong, lambda told: _refuse(told[0], n))


def _refuse(wrong: np.uint32, n: int) -> None:
    if wrong:
        raise ParameterError(f"positions: they must rise, and lie within {n} elements")
