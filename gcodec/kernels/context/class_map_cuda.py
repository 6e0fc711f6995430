"""Launchers of class_map.cu; see `gcodec.kernels.context.class_map`.

Scales and sums are on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed
from gcodec.kernels.context.class_map import CLASSES, ScalesOf
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import Device

_TILE = 1 << 12
_SEGMENT = 1 << 12  # elements of a row that a warp adds up
_BLOCKS, _ROWS = 1 << 11, 64  # at most, and rows that each thread adds up at least


def map_classes(rows: np.ndarray, columns: np.ndarray, width: int, start: int, out: Any) -> None:
    """Write the classes of elements from `start` on."""
    device, n = device_with(out), out.size
    arguments = *_scales(device, rows, columns, width), np.int64(start), out, np.int64(n)
    device.launch("class_map", "map_classes", striding_blocks(n), THREADS, *arguments)


def join_symbols(
    symbols: Any,
    rows: np.ndarray,
    columns: np.ndarray,
    width: int,
    start: int,
    unknown: np.ndarray,
    out: Any,
) -> None:
    """Write classes above symbols."""
    device, n, some = device_with(symbols), np.int64(symbols.size), unknown.size
    arguments = symbols, *_scales(device, rows, columns, width), np.int64(start), out, n
    device.launch("class_map", "join_symbols", striding_blocks(n.item()), THREADS, *arguments)
    if some:
        places = device.to_device(unknown), np.int64(some)
        grid = striding_blocks(some)
        device.launch("class_map", "join_escapes", grid, THREADS, *places, out, n)


def class_counts(symbols: Any, every: list[ScalesOf], step: int) -> np.ndarray:
    """Count symbols of each class in every `step`-th tile."""
    device, n, size = device_with(symbols), symbols.size, CLASSES * 256
    counts = device.zeros(size * len(every), np.uint64)
    grid = min(-(-n // (step * _TILE)), _BLOCKS)
    for k, of in enumerate(every):
        own = np.int64(step), counts[size * k : size * (k + 1)]
        arguments = symbols, np.int64(n), *_scales(device, *of), *own
        device.launch("class_map", "count_classes", grid, THREADS, *arguments)
    return device.to_host(counts).view(np.int64).reshape(-1, CLASSES, 256)


def unknown_symbols(
    symbols: Any, rows: np.ndarray, columns: np.ndarray, width: int, tops: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols whose magnitudes are above the largest of their class."""
    device, n = device_with(symbols), symbols.size
    of = *_scales(device, rows, columns, width), device.to_device(tops)

    def launch(out: Any, room: np.int64) -> None:
        arguments = symbols, np.int64(n), *of, out, room
        device.launch("class_map", "list_unknown", striding_blocks(n), THREADS, *arguments)

    return listed(device, launch)


def magnitude_sums(
    symbols: Any, matrices: list[tuple[int, bool]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Add up the magnitudes of each row and of each column."""
    device, n = device_with(symbols), symbols.size
    sizes = [(-(-n // width), width if columns else 0) for width, columns in matrices]
    ends = np.cumsum(sizes).tolist()
    sums, at = device.zeros(ends[-1], np.uint64), [0, *ends]
    for k, (width, _) in enumerate(matrices):
        first, middle, last = at[2 * k : 2 * k + 3]
        add_magnitudes(symbols, width, sums[first:middle], sums[middle:last])
    found = np.split(device.to_host(sums).view(np.int64), ends[:-1])
    return list(zip(found[::2], found[1::2], strict=True))


def add_magnitudes(symbols: Any, width: int, rows: Any, columns: Any) -> None:
    """Add those of each row, and of each column if there is room for these."""
    device, given = device_with(symbols), (symbols, np.int64(symbols.size), np.int64(width))
    grid = row_blocks(rows.size, width)
    device.launch("class_map", "sum_rows", grid, THREADS, *given, rows)
    if columns.size:
        grids = column_blocks(rows.size, width)
        device.launch("class_map", "sum_columns", grids, THREADS, *given, columns)


def row_blocks(height: int, width: int) -> int:
    """Return how many blocks add up so many rows."""
    return striding_blocks(height * -(-width // _SEGMENT), 1, THREADS // 32)


def column_blocks(height: int, width: int) -> tuple[int, int]:
    """Return how many blocks add up columns of so many rows, and how many share these out."""
    across = min(width, THREADS)
    wide, high = -(-width // across), -(-height // (THREADS // across))
    return wide, max(min(-(-high // _ROWS), _BLOCKS // wide), 1)


def _scales(
    device: Device, rows: np.ndarray, columns: np.ndarray, width: int
) -> tuple[Any, Any, np.int64, np.int64]:
    """Return the scales of a matrix as kernels take them."""
    both = device.to_device(np.concatenate([rows, columns]))
    return both[: rows.size], both[rows.size :], np.int64(columns.size), np.int64(width)
