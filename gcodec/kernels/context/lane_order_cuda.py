"""Launchers of lane_order.cu; see `gcodec.kernels.context.lane_order`."""

from __future__ import annotations

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding


def to_turns(flat: Array, lanes: int, out: Array) -> None:
    """Reorder elements from tensor order to coding order."""
    n = flat.size
    launch_striding(device_with(flat), "lane_order", "to_turns", n, flat, n, lanes, out)


def from_turns(turns: Array, lanes: int, out: Array) -> None:
    """Reorder elements from coding order to tensor order."""
    n = turns.size
    launch_striding(device_with(turns), "lane_order", "from_turns", n, turns, n, lanes, out)
