"""Launchers of byte_sums.cu; see `gcodec.kernels.context.byte_sums`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.byte_sums import PlaneSums
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding
from gcodec.runtime.deferred import fetch

_SOURCE = "byte_sums"
_SEGMENT = 1 << 12  # elements of a row that a warp sums
_BLOCKS, _ROWS = 1 << 11, 64  # largest number of blocks; least rows that a thread sums


def plane_sums(
    bits: Array,
    shift: int,
    width: int,
    period: int | None = None,
    *,
    has_columns: bool = False,
) -> PlaneSums:
    """Sum the first plane of (n,) bit patterns of floats, or (n,) bytes of it."""
    device, n, period = device_with(bits), bits.size, period or width
    patterns = bits.view(np.uint8), bits.itemsize, shift, n
    rows = -(-n // period)
    sums = device.zeros(2 * rows + 2 * width * has_columns, np.uint64)
    ends = device.zeros(2 * rows, np.uint32)
    tasks = 32 * rows * -(-width // _SEGMENT)
    of_rows = sums[:rows], sums[rows : 2 * rows], ends[:rows], ends[rows:]
    lines = *patterns, width, period
    launch_striding(device, _SOURCE, "sum_plane_rows", tasks, *lines, *of_rows, per_thread=1)
    if has_columns:
        wide = -(-width // THREADS)
        shares = max(min(-(-rows // _ROWS), _BLOCKS // wide), 1)
        columns = sums[2 * rows :]
        device.launch(_SOURCE, "sum_plane_columns", (wide, shares), THREADS, *lines, columns)
    totals, extremes = fetch(device, sums, ends)
    row_sums, row_counts = totals.view(np.int64)[: 2 * rows].reshape(2, rows)
    column_sums, column_counts = totals.view(np.int64)[2 * rows :].reshape(2, -1)
    least, greatest = extremes.reshape(2, rows)[:, : 0 if has_columns else rows]
    least = np.where(least > 0, 256 - least.astype(np.int64), 0).astype(np.uint8)
    lines_sums = (row_sums, row_counts), (column_sums, column_counts)
    return PlaneSums(*lines_sums, least, greatest.astype(np.uint8))
