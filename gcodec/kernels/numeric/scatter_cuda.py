"""Launchers of scatter.cu; see `gcodec.kernels.numeric.scatter`.

Positions and values may be on the host, because messages with few elements are parsed there.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.scatter import MINUS_ZERO, added_zero, position_error
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding
from gcodec.runtime.device import Device, beside


def take(values: Array, positions: Array) -> Array:
    """Return the elements at positions."""
    device, n = device_with(values), values.size
    return _taken(values, _inside(device, positions, n), 1)


def take_runs(values: Array, chosen: Array, length: int) -> Array:
    """Return the elements of whole runs of float32 values."""
    return _taken(values, beside(chosen, values), length)


def replace(array: Array, positions: Array, values: Array) -> None:
    """Write values to positions."""
    if positions.size:
        values = values if array.dtype == np.float32 else values.astype(np.uint8)
        _replace(array, beside(positions, array), beside(values, array))


def put(out: Array, positions: Array, values: Array) -> None:
    """Write values to positions, and zeros elsewhere."""
    positions = _rising(device_with(out), positions, out.size)
    out.view(np.uint32)[:] = 0
    _replace(out, positions, beside(values, out))


def add(
    out: Array,
    positions: Array,
    values: Array,
    scale: np.float32,
    has_minus_zero: bool = True,
) -> None:
    """Add scale·x, where x is zero except for the values at positions."""
    zero = added_zero(scale, has_minus_zero).view(np.uint32)
    device, n, k = device_with(out), out.size, positions.size
    sums, positions = device.empty(k, np.float32), _rising(device, positions, n)
    terms = n, positions, beside(values, out), k, scale.view(np.uint32), out, sums
    launch_striding(device, "scatter", "add_sums", k, *terms)
    if zero != MINUS_ZERO:
        launch_striding(device, "scatter", "add_zero", n, n, zero, out)
    _replace(out, positions, sums)


def _taken(values: Array, chosen: Array, length: int) -> Array:
    """Return runs of elements, given their numbers on the device."""
    device, n = device_with(values), chosen.size * length
    out = device.empty(n, np.float32)
    arguments = values, values.size, chosen, chosen.size, length, out
    launch_striding(device, "scatter", "take_runs", n, *arguments)
    return out


def _replace(out: Array, positions: Array, values: Array) -> None:
    """Write values to positions, both on the device."""
    name = "replace_words" if out.itemsize == 4 else "replace_bytes"
    arguments = out.size, positions, values, positions.size, out
    launch_striding(device_with(out), "scatter", name, positions.size, *arguments)


def _inside(device: Device, positions: Array, n: int) -> Array:
    """Return positions on the device; positions of the host are checked, which needs no wait."""
    if device.owns(positions):
        return positions
    if (positions.view(np.uint64) >= n).any():
        raise position_error(n)
    return device.to_device(positions)


def _rising(device: Device, positions: Array, n: int) -> Array:
    """Return positions on the device; positions of the host must also rise."""
    if not device.owns(positions) and (positions[1:] <= positions[:-1]).any():
        raise position_error(n)
    return _inside(device, positions, n)
