"""Launchers of byte_scales.cu; see `gcodec.kernels.context.byte_scales`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.byte_planes import GROUP, distance_above
from gcodec.kernels.context.byte_scales import (
    NO_SCALES,
    PlaneForm,
    wrong_group,
)
from gcodec.kernels.context.class_map_cuda import uploaded
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.scan import starts_of
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding, raise_reported
from gcodec.runtime.device import Device

_SOURCE = "byte_scales"


def take_runs(bits: Array, form: PlaneForm, start: int, run: int, period: int, out: Array) -> None:
    """Write the first plane of runs of elements, perhaps lowered."""
    device, n, source = device_with(bits), out.size, bits[start:]
    plane = source.view(np.uint8), bits.itemsize, form.shift, form.escape
    launch_striding(device, _SOURCE, "take_plane", n, *plane, run, period, out, n)
    if form.scales is not None:
        scales = *uploaded(device, *form.scales), form.unit, start
        launch_striding(device, _SOURCE, "lower_plane", n, *scales, run, period, out, n)


def count_runs(bits: Array, form: PlaneForm, count: int, run: int, period: int) -> np.ndarray:
    """Count the `count` bytes that `take_runs` would write."""
    device = device_with(bits)
    symbols = device.empty(count, np.uint8)
    take_runs(bits, form, 0, run, period, symbols)
    return device.to_host(byte_counts(symbols))


def join_planes(
    first: Array,
    others: Array,
    stride: int,
    out: Array,
    form: PlaneForm,
    start: int = 0,
    *,
    coded: np.ndarray | None = None,
    streaming: bool = False,
) -> None:
    """Write the bit patterns of elements with these planes."""
    device, n = device_with(out), out.size
    distance = distance_above(out.itemsize, form.shift)
    planes, width = (first, others, stride), (out.itemsize, form.shift, distance)
    elements = *_scales(device, form), start, out.view(np.uint8), n
    if coded is None:
        launch_striding(device, _SOURCE, "join_planes", n, *planes, *width, *elements)
        return
    starts, wrong = device.to_device(starts_of(coded)), device.zeros(1, np.uint64)
    arguments = *planes, *width, form.escape, starts, *elements, wrong
    device.launch(_SOURCE, "join_coded", coded.size, THREADS, *arguments)
    raise_reported(device, wrong, lambda group: wrong_group(start // GROUP + group))


def _scales(device: Device, form: PlaneForm) -> tuple[Array, Array, Array, int, bool]:
    """Return the scales by which bytes are lowered, the unit, and whether bytes are lowered."""
    return *uploaded(device, *(form.scales or NO_SCALES)), form.unit, form.scales is not None
