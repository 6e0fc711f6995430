"""Launchers of pack.cu; see `gcodec.kernels.bits.pack`."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, check_length
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding, raise_reported


def check_padding(data: Array, nbits: int, order: str = "msb") -> None:
    """Raise `Corrupt` unless all bits after the first `nbits` are zero."""
    device = device_with(data)
    wrong = device.zeros(1, np.uint64)
    if launch_check_padding(data, nbits, order, wrong):
        raise_reported(device, wrong, lambda at: padding_error(at, nbits))


def launch_check_padding(data: Array, nbits: int, order: str, wrong: Array) -> bool:
    """Launch a kernel that reports the first nonzero byte of padding to a word.

    Returns
    -------
    bool
        Whether there is padding, and a kernel was launched.
    """
    at, used = divmod(nbits, 8)
    spare = 0xFF >> used if order == "msb" else 0xFF << used & 0xFF
    n = data.size
    if at >= n:
        return False
    launch_striding(device_with(data), "pack", "check_zero", n - at, data, at, n, spare, wrong)
    return True


def padding_error(at: int, nbits: int) -> Corrupt:
    """Return the error of a nonzero padding byte after `nbits` bits."""
    unit = "bit" if nbits % 8 and at == nbits // 8 else "byte"
    return Corrupt(f"a padding {unit} is not zero", at)


def pack_to(codes: Array, layout: FieldLayout, out: Array) -> None:
    """Pack codes into an array of exactly their bytes."""
    width, arguments = layout.width, (codes, codes.size, layout.width, layout.order == "msb")
    groups = -(-out.size // width)
    launch_striding(device_with(out), "pack", "pack_groups", groups, *arguments, out, out.size)


def unpack_fields(data: Array, n: int, layout: FieldLayout) -> Array:
    """Unpack n codes."""
    check_length(8 * data.size, 8 * layout.nbytes(n))
    check_padding(data, n * layout.width, layout.order)
    return unpacked(data, n, layout)


def unpacked(data: Array, n: int, layout: FieldLayout) -> Array:
    """Return n codes from the start of `data`, whose other bytes are not checked."""
    device = device_with(data)
    codes = device.empty(n, np.uint8)
    arguments = data, data.size, n, layout.width, layout.order == "msb", codes
    launch_striding(device, "pack", "unpack_groups", n, *arguments, per_thread=8)
    return codes
