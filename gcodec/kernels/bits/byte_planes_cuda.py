"""Launchers of byte_planes.cu; see `gcodec.kernels.bits.byte_planes`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.byte_planes import GROUP, distance_above
from gcodec.kernels.numeric.scan import starts_of
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding
from gcodec.runtime.deferred import fetch

_SOURCE = "byte_planes"


def take_others(
    bits: Array, shift: int, out: Array, stride: int, coded: np.ndarray | None = None
) -> None:
    """Write the other planes of (n,) bit patterns."""
    distance = distance_above(bits.itemsize, shift)
    patterns = bits.view(np.uint8), bits.itemsize, shift, distance, bits.size
    device = device_with(bits)
    if coded is None:
        launch_striding(device, _SOURCE, "take_others", bits.size, *patterns, stride, out)
    else:
        starts = device.to_device(starts_of(coded))
        device.launch(_SOURCE, "take_coded", coded.size, THREADS, *patterns, starts, stride, out)


def coded_counts(bits: Array, shift: int) -> tuple[np.ndarray, int]:
    """Count the coded elements among (n,) bit patterns of floats."""
    device, groups = device_with(bits), -(-bits.size // GROUP)
    counts, hidden = device.empty(groups, np.uint16), device.zeros(1, np.uint64)
    patterns = bits.view(np.uint8), bits.itemsize, shift, bits.size
    device.launch(_SOURCE, "count_coded", groups, THREADS, *patterns, counts, hidden)
    fetched_counts, fetched_hidden = fetch(device, counts, hidden)
    return fetched_counts, int(fetched_hidden[0])
