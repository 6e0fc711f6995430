"""Scales that make a string shorter than the means of rows and columns do.

The means are the most likely scales of levels that are Poisson; by a table it is known what the
levels cost by any. Each scale of a row is moved by up to two quanta to where the row's symbols
and the scale itself, by how often such occur, take the fewest bits together; so is each of a
column by these. Scales of 0 stay. All sums are of integers.
"""

from __future__ import annotations

import numpy as np

from gcodec.contexts.scales import Scales
from gcodec.entropy import rans
from gcodec.kernels import scale_fit
from gcodec.kernels.class_map import CENTRE
from gcodec.kernels.list_sizes import MOST
from gcodec.kernels.scale_fit import SHIFTS

LEAST = 1 << 10  # symbols, below which scales stay as they are
_POINT = 12  # bits of costs behind the point
_SAMPLES = 1 << 10  # how often scales occur is told in parts of this


def refined(symbols: np.ndarray, scales: Scales, costs: np.ndarray) -> Scales:
    """Move scales to where a string of (n,) uint8 symbols is probably shorter.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scales : Scales
    costs : (64, 128) int64 array
        Of each class and magnitude, in units of 2^-28 bits.
    """
    if symbols.size < LEAST:
        return scales
    matrix, rows, columns = scales
    quantum, group = matrix.quantum, matrix.group
    short = (costs >> rans.POINT - _POINT).astype(np.int32)
    every = columns if group else np.full(matrix.width, CENTRE, np.uint8)
    rows = _moved(rows, scale_fit.row_costs(symbols, rows, every, short, quantum), quantum)
    if not group:
        return Scales(matrix, rows, columns)
    sums = scale_fit.column_costs(symbols, rows, every, short, quantum)
    sums = np.add.reduceat(sums, np.arange(0, matrix.width, group), axis=0)
    each = _moved(columns[::group], sums, quantum)
    return Scales(matrix, rows, np.repeat(each, group)[: matrix.width])


def _moved(scales: np.ndarray, sums: np.ndarray, quantum: int) -> np.ndarray:
    """Return the scales with the least sums, for (k, SHIFTS) of them."""
    moves = (np.arange(SHIFTS) - SHIFTS // 2) * quantum
    most = MOST // quantum * quantum
    every = np.clip(scales.astype(np.int64)[:, None] + moves, quantum, most)
    paid = sums + _list_costs(scales)[every]
    order = np.argsort(np.abs(moves), kind="stable")  # of equals, the nearest
    best = every[np.arange(scales.size), order[paid[:, order].argmin(axis=1)]]
    found: np.ndarray = np.where(scales > 0, best, 0).astype(np.uint8)
    return found


def _list_costs(scales: np.ndarray) -> np.ndarray:
    """Return about what each scale from 0 to 127 costs in a list of such."""
    counts = np.bincount(scales, minlength=MOST + 1)
    shares = np.maximum(counts * _SAMPLES // scales.size, 1)
    logs = rans.log2_table()
    found: np.ndarray = logs[_SAMPLES] - logs[shares] >> rans.POINT - _POINT
    return found
