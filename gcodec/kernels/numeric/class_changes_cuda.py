"""Launchers of class_changes.cu; see `gcodec.kernels.numeric.class_changes`.

The host receives the counts and the changed elements, which are few unless a patch is dense.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcodec.kernels.numeric.class_changes import (
    CONTEXTS,
    MOST_CLASSES,
    ClassSizes,
    Contexts,
    Tally,
)
from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_parts, launch_striding
from gcodec.runtime.deferred import Deferred, fetch
from gcodec.runtime.device import Device

_SOURCE = "class_changes"
_PART = 1024  # elements that a warp processes at a time
_PARTS = 8  # of the warps of a block
_BOUND_NBITS = 12  # of a bound as an argument of kernels


def tally(old: Array, new: Array, contexts: Contexts) -> Tally:
    """Count elements and changes by their contexts."""
    device = device_with(old)
    counts = device.zeros(2 * CONTEXTS, np.uint64)
    pair, form = (old.view(np.uint8), new.view(np.uint8)), (old.itemsize, old.size)
    arguments = (*pair, *form, contexts.shift, counts)
    launch_striding(device, _SOURCE, "tally_contexts", old.size, *arguments, per_thread=16)
    equal, changed = device.to_host(counts).view(np.int64).reshape(2, 1, CONTEXTS)
    return Tally(equal + changed, changed)


def split(
    old: Array, new: Array, contexts: Contexts, bounds: Sequence[int], known: Tally
) -> tuple[np.ndarray, np.ndarray]:
    """Return the changes, those of the first class first."""
    device, total = device_with(old), int(known.changed.sum())
    elements, changed = _counted(device, old, new, contexts, bounds)
    places, differences = device.empty(total, np.int64), device.empty(total, old.dtype)
    classes = _classes(old, contexts, bounds)
    results = total, places, differences.view(np.uint8)
    pair = old.view(np.uint8), new.view(np.uint8)
    arguments = (*pair, *classes, contexts.is_float, elements, changed)
    _launch(device, "write_changes", old.size, *arguments, *results)
    on_host = fetch(device, places, differences)
    return on_host[0], on_host[1].astype(np.uint64)


def class_sizes(bits: Array, contexts: Contexts, bounds: Sequence[int]) -> ClassSizes:
    """Count elements by their classes."""
    device = device_with(bits)
    elements, _ = _counted(device, bits, None, contexts, bounds)
    starts = elements[:: _part_count(bits.size)]  # of each class, and the end of the last one
    return ClassSizes(Deferred(device, starts, np.diff), elements, {})


def apply(
    old: Array,
    contexts: Contexts,
    bounds: Sequence[int],
    sizes: ClassSizes,
    places: Sequence[np.ndarray],
    differences: Sequence[np.ndarray],
    out: Array,
) -> None:
    """Write changed bit patterns."""
    device, dtype = device_with(old), old.dtype
    ends = starts_of([part.size for part in places])
    joined = np.concatenate(places), np.concatenate(differences).astype(dtype).view(np.uint8)
    changes = [device.to_device(array) for array in (ends, *joined)]
    if out is not old:
        out[:] = old
    classes = _classes(old, contexts, bounds)
    arguments = (out.view(np.uint8), *classes, contexts.is_float, sizes.sizes, *changes)
    _launch(device, "apply_changes", old.size, *arguments)


def _counted(
    device: Device, old: Array, new: Array | None, contexts: Contexts, bounds: Sequence[int]
) -> tuple[Array, Array]:
    """Return the numbers of elements, and of changes, that precede each part, class by class.

    Without new elements, there are no numbers of changes.
    """
    count, has_new = (len(bounds) + 1) * _part_count(old.size), new is not None
    numbers = [device.empty(count, np.int64) for _ in range(1 + has_new)]
    other = old if new is None else new
    classes = _classes(old, contexts, bounds)
    arguments = (old.view(np.uint8), other.view(np.uint8), *classes, has_new)
    _launch(device, "count_class_parts", old.size, *arguments, numbers[0], numbers[-1])
    sums = [device.empty(count + 1, np.int64) for _ in numbers]
    for part, before in zip(numbers, sums, strict=True):
        sums_before(device, part, before)
    return sums[0], sums[-1]


def _classes(
    bits: Array, contexts: Contexts, bounds: Sequence[int]
) -> tuple[int, int, int, int, int, int]:
    """Return the arguments of kernels that classify elements, from the width to the parts."""
    filled = [*bounds, *[(1 << _BOUND_NBITS) - 1] * (MOST_CLASSES - 1 - len(bounds))]
    packed = sum(bound << _BOUND_NBITS * k for k, bound in enumerate(filled))
    parts = _part_count(bits.size)
    return bits.itemsize, bits.size, contexts.shift, packed, len(bounds) + 1, parts


def _part_count(n: int) -> int:
    return -(-n // _PART)


def _launch(device: Device, name: str, n: int, *arguments: object) -> None:
    launch_parts(device, _SOURCE, name, n, _PARTS * _PART, *arguments)
