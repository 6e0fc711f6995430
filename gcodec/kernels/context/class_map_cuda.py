"""Launchers of class_map.cu; see `gcodec.kernels.context.class_map`.

Scales and sums are on the host, except where an argument is described as an array on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed
from gcodec.kernels.context.class_map import CLASSES, COUNTS, TILE, ScaleArrays
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding
from gcodec.runtime.device import Device

_SEGMENT = 1 << 12  # elements of a row that a warp sums
_BLOCKS, _ROWS = 1 << 11, 64  # largest number of blocks; least rows that a thread sums

DeviceScales = tuple[Array, Array, Array]
"""Scales of rows and of columns, and (2,) int64: the number of column scales, a row's width."""


def map_classes(rows: np.ndarray, columns: np.ndarray, width: int, start: int, out: Array) -> None:
    """Write the classes of the elements from `start` on."""
    map_device_classes(uploaded(device_with(out), rows, columns, width), start, out)


def map_device_classes(scales: DeviceScales, start: int, out: Array) -> None:
    """Write classes by scales on the device."""
    device, n = device_with(out), out.size
    launch_striding(device, "class_map", "map_classes", n, *scales, start, out, n)


def join_symbols(
    symbols: Array,
    rows: np.ndarray,
    columns: np.ndarray,
    width: int,
    start: int,
    unknown: np.ndarray,
    out: Array,
) -> None:
    """Write words of classes and symbols."""
    device, n, escapes = device_with(symbols), symbols.size, unknown.size
    arguments = symbols, *uploaded(device, rows, columns, width), start, out, n
    launch_striding(device, "class_map", "join_symbols", n, *arguments)
    if escapes:
        replaced = device.to_device(unknown), escapes, out, n
        launch_striding(device, "class_map", "join_escapes", escapes, *replaced)


def class_counts(symbols: Array, scale_sets: list[ScaleArrays], step: int) -> np.ndarray:
    """Count the symbols of each class in every `step`-th tile."""
    device = device_with(symbols)
    counts = device.zeros(COUNTS * len(scale_sets), np.uint64)
    for k, scales in enumerate(scale_sets):
        own = counts[COUNTS * k : COUNTS * (k + 1)]
        count_classes(symbols, uploaded(device, *scales), step, own)
    return device.to_host(counts).view(np.int64).reshape(-1, CLASSES, 256)


def count_classes(symbols: Array, scales: DeviceScales, step: int, counts: Array) -> None:
    """Add the counts of the symbols of each class in every `step`-th tile to (COUNTS,) uint64."""
    device, n = device_with(symbols), symbols.size
    grid, arguments = min(-(-n // (step * TILE)), _BLOCKS), (symbols, n, *scales, step, counts)
    device.launch("class_map", "count_classes", grid, THREADS, *arguments)


def escaped_symbols(
    symbols: Array, rows: np.ndarray, columns: np.ndarray, width: int, tops: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols whose magnitudes exceed the largest one of their class."""
    device, n = device_with(symbols), symbols.size
    inputs = symbols, n, *uploaded(device, rows, columns, width), device.to_device(tops)
    launch = partial(launch_striding, device, "class_map", "list_unknown", n, *inputs)
    return listed(device, launch)


def magnitude_sums(
    symbols: Array, matrices: list[tuple[int, bool]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sum the magnitudes of each row and of each column."""
    device, n = device_with(symbols), symbols.size
    lengths = [(-(-n // width), width if columns else 0) for width, columns in matrices]
    ends = np.cumsum(lengths).tolist()
    sums, at = device.zeros(ends[-1], np.uint64), [0, *ends]
    sizes = device.to_device(np.array([(width, width) for width, _ in matrices]).reshape(-1))
    for k, (width, _) in enumerate(matrices):
        first, middle, last = at[2 * k : 2 * k + 3]
        own = sizes[2 * k : 2 * k + 2]
        sum_magnitudes(symbols, own, [width], sums[first:middle], sums[middle:last])
    parts = np.split(device.to_host(sums).view(np.int64), ends[:-1])
    return list(zip(parts[::2], parts[1::2], strict=True))


def sum_magnitudes(
    symbols: Array, sizes: Array, widths: Iterable[int], rows: Array, columns: Array
) -> None:
    """Add up the magnitudes of each row, and of each column if `columns` is not empty.

    Parameters
    ----------
    symbols : (n,) uint8 array on the device
    sizes : (2,) int64 array on the device
        Number of columns to sum, 0 or the width; width of a row.
    widths : iterable of int
        All widths that `sizes` may hold.
    rows, columns : uint64 array on the device
    """
    device, n = device_with(symbols), symbols.size
    segments = max(-(-n // width) * -(-width // _SEGMENT) for width in widths)
    arguments = symbols, n, sizes, rows
    launch_striding(device, "class_map", "sum_rows", 32 * segments, *arguments, per_thread=1)
    if not columns.size:
        return
    across = min(columns.size, THREADS)
    wide, high = -(-columns.size // across), -(-n // columns.size)
    shares = max(min(-(-high // (THREADS // across * _ROWS)), _BLOCKS // wide), 1)
    device.launch("class_map", "sum_columns", (wide, shares), THREADS, symbols, n, sizes, columns)


def uploaded(device: Device, rows: np.ndarray, columns: np.ndarray, width: int) -> DeviceScales:
    """Copy scales to the device, all at once."""
    sizes = np.array([columns.size, width], np.int64)
    copy = device.to_device(np.concatenate([sizes.view(np.uint8), rows, columns]))
    first, last = sizes.nbytes, sizes.nbytes + rows.size
    return copy[first:last], copy[last:], copy[:first].view(np.int64)
