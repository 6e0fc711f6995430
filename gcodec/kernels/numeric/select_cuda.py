"""Launchers of select.cu; see `gcodec.kernels.numeric.select`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS, SHIFT
from gcodec.kernels.numeric.log_histogram_cuda import counts_of
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import Device

_PART = 4096  # elements of a warp
_WIDE = 1024  # threads of a block that adds up what others counted
_TOP = 2  # of the state: the bits of the largest magnitude


def largest(values: Any, k: int) -> Any:
    """Find the k largest magnitudes."""
    device = device_with(values)
    out = device.empty(k, np.int64)
    top = _find_largest(device, values, k, out)[_TOP:]
    return out if int(device.to_host(top)[0]) < INFINITY_BITS else None


def at_least(values: Any, threshold: np.float32) -> Any:
    """Find all magnitudes from a threshold on."""
    found = _from(values, threshold)
    return None if found is None else found[1:]


def take_largest(values: Any, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements of the k largest, on the host."""
    device = device_with(values)
    found = device.empty(k + 1, np.int64)
    found[:1] = _find_largest(device, values, k, found[1:])[_TOP:]
    return _taken(device, values, found)


def take_at_least(values: Any, threshold: np.float32) -> tuple[np.ndarray, np.ndarray] | None:
    """Return those from a threshold on, on the host."""
    found = _from(values, threshold)
    return None if found is None else _taken(device_with(values), values, found)


def _find_largest(device: Device, values: Any, k: int, out: Any) -> Any:
    """Write the positions of the k largest magnitudes; return the state."""
    n = values.size
    if 0 < k < n:
        state = _state(device, k, 0)
        counts = counts_of(device, values)
        sizes = np.int64(BINS), np.int64(SHIFT)
        device.launch("select", "choose_bin", 1, _WIDE, counts, *sizes, state)
        counts = device.zeros(1 << SHIFT, np.uint64)
        found = values.view(np.uint32), np.int64(n), state, counts
        device.launch("select", "count_within", striding_blocks(n), THREADS, *found)
        sizes = np.int64(1 << SHIFT), np.int64(0)
        device.launch("select", "choose_bin", 1, _WIDE, counts, *sizes, state)
    else:
        state = _state(device, 0, -1 if k else INFINITY_BITS)
    _write(device, values, state, *_counted(device, values, state), out)
    return state


def _from(values: Any, threshold: np.float32) -> Any:
    """Return a zero, and the positions of all magnitudes from a threshold on."""
    device = device_with(values)
    level = int(threshold.view(np.int32)) if threshold > 0 else 0
    state = _state(device, 0, level - 1)
    above, equal = _counted(device, values, state)
    told = device.empty(2, np.int64)
    told[:1], told[1:] = above[-1:], state[_TOP:]
    count, top = device.to_host(told).tolist()
    if top >= INFINITY_BITS:
        return None
    out = device.empty(count + 1, np.int64)
    out[:1] = 0
    _write(device, values, state, above, equal, out[1:])
    return out


def _taken(device: Device, values: Any, found: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Fetch positions and their elements at once, unless the largest magnitude is not finite.

    That stands before the positions.
    """
    k, n = found.size - 1, values.size
    told = device.empty(found.size + -(-k // 2), np.int64)
    told[: found.size] = found
    elements = told[found.size :].view(np.uint32)
    what = values.view(np.uint32), np.int64(n), found[1:], np.int64(k), elements
    device.launch("scatter", "take_some", striding_blocks(k), THREADS, *what)
    fetched = device.to_host(told)
    if int(fetched[0]) >= INFINITY_BITS:
        return None
    return fetched[1 : k + 1], fetched[k + 1 :].view(np.float32)[:k]


def _state(device: Device, need: int, level: int) -> Any:
    """Return how many are to be found that are equal to a level, the level, and no magnitude."""
    return device.to_device(np.array([need, level, 0], np.int64))


def _counted(device: Device, values: Any, state: Any) -> tuple[Any, Any]:
    """Return how many are above the level, or equal to it, before each part, and in all."""
    n = values.size
    parts = -(-n // _PART)
    above, equal = (device.zeros(parts + 1, np.int64) for _ in range(2))
    arguments = values.view(np.uint32), np.int64(n), state, above, equal
    device.launch("select", "count_parts", _blocks(n), THREADS, *arguments)
    device.launch("select", "scan_parts", 2, _WIDE, np.int64(parts), above, equal)
    return above, equal


def _write(device: Device, values: Any, state: Any, above: Any, equal: Any, out: Any) -> None:
    arguments = values.view(np.uint32), np.int64(values.size), state, above, equal
    grid = _blocks(values.size) if out.size else 0
    device.launch("select", "write_positions", grid, THREADS, *arguments, out, np.int64(out.size))


def _blocks(n: int) -> int:
    return striding_blocks(n, _PART * THREADS // 32)
