"""Launchers of byte_planes.cu; see `gcodec.kernels.bits.byte_planes`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.byte_planes import FLOAT_SHIFTS, GROUP
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding
from gcodec.runtime.deferred import fetch
from gcodec.runtime.device import Device

_SOURCE = "byte_planes"


def take_others(
    bits: Array, shift: int, out: Array, stride: int, coded: np.ndarray | None = None
) -> None:
    """Write the other planes of (n,) bit patterns."""
    device, patterns = device_with(bits), (bits.view(np.uint8), bits.itemsize, shift, bits.size)
    if coded is None:
        launch_striding(device, _SOURCE, "take_others", bits.size, *patterns, stride, out)
    else:
        starts = uploaded_starts(device, coded)
        device.launch(_SOURCE, "take_coded", coded.size, THREADS, *patterns, starts, stride, out)


def coded_counts(bits: Array) -> tuple[np.ndarray, int]:
    """Count the coded elements among (n,) bit patterns of floats."""
    device, groups = device_with(bits), -(-bits.size // GROUP)
    counts, hidden = device.empty(groups, np.uint16), device.zeros(1, np.uint64)
    patterns = bits.view(np.uint8), bits.itemsize, FLOAT_SHIFTS[bits.itemsize], bits.size
    device.launch(_SOURCE, "count_coded", groups, THREADS, *patterns, counts, hidden)
    fetched_counts, fetched_hidden = fetch(device, counts, hidden)
    return fetched_counts, int(fetched_hidden[0])


def uploaded_starts(device: Device, coded: np.ndarray) -> Array:
    """Copy the number of coded elements before each group, and of all, to the device."""
    starts = np.zeros(coded.size + 1, np.int64)
    np.cumsum(coded, out=starts[1:])
    return device.to_device(starts)
