"""Launchers of lane_order.cu; see `gcodec.kernels.context.lane_order`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def to_turns(flat: Array, lanes: int, out: Array) -> None:
    """Reorder elements from tensor order to coding order."""
    _launch("to_turns", flat, lanes, out)


def from_turns(turns: Array, lanes: int, out: Array) -> None:
    """Reorder elements from coding order to tensor order."""
    _launch("from_turns", turns, lanes, out)


def _launch(name: str, source: Array, lanes: int, out: Array) -> None:
    n = source.size
    arguments = source, np.int64(n), np.int32(lanes), out
    device_with(source).launch("lane_order", name, striding_blocks(n), THREADS, *arguments)
