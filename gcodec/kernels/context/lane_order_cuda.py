"""Launchers of lane_order.cu; see `gcodec.kernels.context.lane_order`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def to_turns(flat: Any, lanes: int, out: Any) -> None:
    """Put elements in the order in which they are coded."""
    _launch("to_turns", flat, lanes, out)


def from_turns(turns: Any, lanes: int, out: Any) -> None:
    """Put elements back in the order of the tensor."""
    _launch("from_turns", turns, lanes, out)


def _launch(name: str, given: Any, lanes: int, out: Any) -> None:
    n = given.size
    arguments = given, np.int64(n), np.int32(lanes), out
    device_with(given).launch("lane_order", name, striding_blocks(n), THREADS, *arguments)
