"""Launchers of pack.cu; see `gcodec.kernels.pack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, positions, striding_blocks
from gcodec.errors import Corrupt


def check_padding(data: Any, nbits: int, order: str = "msb") -> None:
    """Raise `Corrupt` unless all bits behind the first `nbits` are zero."""
    device = device_with(data)
    wrong = device.zeros(1, np.uint64)
    if launch_check_padding(data, nbits, order, wrong):
        (found,) = positions(device, wrong)
        if found is not None:
            raise padding_error(found, nbits)


def launch_check_padding(data: Any, nbits: int, order: str, wrong: Any) -> bool:
    """Launch what reports to a word the first byte of padding that is not zero.

    Returned is whether there is padding, and anything was launched.
    """
    at, used = divmod(nbits, 8)
    spare = 0xFF >> used if order == "msb" else 0xFF << used & 0xFF
    n = data.size
    if at >= n:
        return False
    arguments = data, np.int64(at), np.int64(n), np.uint32(spare), wrong
    device_with(data).launch("pack", "check_zero", striding_blocks(n - at), THREADS, *arguments)
    return True


def padding_error(at: int, nbits: int) -> Corrupt:
    """Say that padding behind `nbits` is not zero in byte `at`."""
    what = "bit" if nbits % 8 and at == nbits // 8 else "byte"
    return Corrupt(f"a padding {what} is not zero", at)
