"""Launchers of select.cu; see `gcodec.kernels.numeric.select`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS, SHIFT
from gcodec.kernels.numeric.log_histogram_cuda import counts_of
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding, striding_blocks
from gcodec.runtime.device import Device

_PART = 1024  # elements that a warp processes
_WIDE = 1024  # threads of a block that sums counts
_TOP = 2  # index of the largest magnitude's bits in the state


def take_largest(values: Array, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements of the k largest magnitudes, on the host."""
    device, n = device_with(values), values.size
    if 0 < k < n:
        state = _state(device, k, 0)
        bins = counts_of(device, values)
        device.launch("select", "choose_bin", 1, _WIDE, bins, BINS, SHIFT, state)
        bins = device.zeros(1 << SHIFT, np.uint64)
        launch_striding(device, "select", "count_within", n, values, n, state, bins)
        device.launch("select", "choose_bin", 1, _WIDE, bins, 1 << SHIFT, 0, state)
    else:
        state = _state(device, 0, -1 if k else INFINITY_BITS)
    selection = device.empty(k + 1, np.int64)
    _write(device, values, state, *_counted(device, values, state), selection[1:])
    selection[:1] = state[_TOP:]
    return _taken(device, values, selection)


def take_at_least(values: Array, threshold: np.float32) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements of the magnitudes not below a threshold, on the host."""
    device = device_with(values)
    level = int(threshold.view(np.int32)) if threshold > 0 else 0
    state = _state(device, 0, level - 1)
    above, equal = _counted(device, values, state)
    summary = device.empty(2, np.int64)
    summary[:1], summary[1:] = above[-1:], state[_TOP:]
    count, top = device.to_host(summary).tolist()
    if top >= INFINITY_BITS:
        return None
    selection = device.empty(count + 1, np.int64)
    selection[:1] = 0
    _write(device, values, state, above, equal, selection[1:])
    return _taken(device, values, selection)


def _taken(
    device: Device, values: Array, selection: Array
) -> tuple[np.ndarray, np.ndarray] | None:
    """Fetch positions and elements together, unless the largest magnitude is not finite.

    The bits of the largest magnitude precede the positions in `selection`.
    """
    k = selection.size - 1
    joint = device.empty(selection.size + -(-k // 2), np.int64)
    joint[: selection.size] = selection
    elements = joint[selection.size :].view(np.uint32)
    arguments = values, values.size, selection[1:], k, 1, elements
    launch_striding(device, "scatter", "take_runs", k, *arguments)
    fetched = device.to_host(joint)
    if int(fetched[0]) >= INFINITY_BITS:
        return None
    return fetched[1 : k + 1], fetched[k + 1 :].view(np.float32)[:k]


def _state(device: Device, need: int, level: int) -> Array:
    """Return the number of magnitudes to take that equal a level, the level, and a zero."""
    return device.to_device(np.array([need, level, 0], np.int64))


def _counted(device: Device, values: Array, state: Array) -> tuple[Array, Array]:
    """Count the magnitudes above the level, and equal to it, preceding each part, and in all."""
    n = values.size
    parts = -(-n // _PART)
    above, equal = (device.zeros(parts + 1, np.int64) for _ in range(2))
    arguments = values, n, state, above, equal
    device.launch("select", "count_parts", _blocks(n), THREADS, *arguments)
    device.launch("select", "scan_parts", 2, _WIDE, parts, above, equal)
    return above, equal


def _write(
    device: Device, values: Array, state: Array, above: Array, equal: Array, out: Array
) -> None:
    n = values.size
    arguments = values, n, state, above, equal, out, out.size
    grid = _blocks(n) if out.size else 0
    device.launch("select", "write_positions", grid, THREADS, *arguments)


def _blocks(n: int) -> int:
    return striding_blocks(n, _PART // 32)
