"""Launchers of scatter.cu; see `gcodec.kernels.scatter`.

Positions and values may lie on the host: what few elements a message sends is read there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.errors import ParameterError
from gcodec.kernels.device import Device

_MINUS_ZERO = 0x80000000


def take(values: Any, positions: Any) -> Any:
    """Return the elements that are at positions."""
    device = device_with(values)
    places, k = _moved(device, positions), positions.size
    out, wrong = device.empty(k, np.float32), device.zeros(1, np.uint32)
    arguments = values.view(np.uint32), np.int64(values.size), places, np.int64(k)
    device.launch(
        "scatter", "take_some", striding_blocks(k), THREADS, *arguments, out.view(np.uint32), wrong
    )
    _check(device, wrong, values.size)
    return out


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
    if device.to_host(wrong)[0]:
        raise ParameterError(f"positions: they must rise, and lie within {n} elements")
