"""Launchers of pack.cu; see `gcodec.kernels.pack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, positions, striding_blocks
from gcodec.errors import Corrupt


def check_padding(data: Any, nbits: int, order: str = "msb") -> None:
    """Raise `Corrupt` unless all bits behind the first `nbits` are zero."""
    at, used = divmod(nbits, 8)
    spare = 0xFF >> used if order == "msb" else 0xFF << used & 0xFF
    device, n = device_with(data), data.size
    if at >= n:
        return
    wrong = device.zeros(1, np.uint64)
    arguments = data, np.int64(at), np.int64(n), np.uint32(spare), wrong
    device.launch("pack", "check_zero", striding_blocks(n - at), THREADS, *arguments)
    (found,) = positions(device, wrong)
    if found is not None:
        what = "bit" if used and found == at else "byte"
        raise Corrupt(f"a padding {what} is not zero", found)
