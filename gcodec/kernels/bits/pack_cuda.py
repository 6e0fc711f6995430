"""Launchers of pack.cu; see `gcodec.kernels.bits.pack`."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, check_length, pad_error
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


def pack_fields(codes: Array, layout: FieldLayout) -> Array:
    """Pack codes into bytes."""
    layout._check()
    device, n = device_with(codes), codes.size
    out = device.empty(layout.nbytes(n), np.uint8)
    size = layout._field_bytes(n)
    form = layout.width, layout.order == "msb", layout.pad == "count"
    if layout.strided:
        out[size:] = 0
        launch_striding(device, "pack", "pack_stride", size, codes, n, *form, out[:size], size)
    else:  # the kernel also writes the zeros that complete words and align the result
        arguments = codes, n, layout._codes(n), *form, _turn(layout), out, out.size
        groups = -(-out.size // layout.width)
        launch_striding(device, "pack", "pack_groups", groups, *arguments)
    return out


def unpack_fields(data: Array, n: int, layout: FieldLayout) -> Array:
    """Unpack n codes."""
    layout._check()
    check_length(8 * data.size, 8 * layout.nbytes(n))
    device, size = device_with(data), layout._field_bytes(n)
    codes, wrong = device.empty(n, np.uint8), device.zeros(2, np.uint64)
    # Errors are reported in the order in which the host checks for them.
    if layout.strided:
        padding, pad = wrong[:1], wrong[1:]
        form = layout.width, layout.order == "msb", layout.pad == "count"
        launch_check_padding(data, 8 * size, "msb", padding)
        arguments = data, n, *form, size, codes, pad
        launch_striding(device, "pack", "unpack_stride", size, *arguments)
        raise_reported(
            device,
            wrong,
            lambda at: padding_error(at, 8 * size),
            lambda at: pad_error(at % size),
        )
    else:
        pad, padding = wrong[:1], wrong[1:]
        nbits = 8 * size if layout.pad == "count" else n * layout.width
        straight = _turned(data) if _turn(layout) else data
        launch_check_padding(straight, nbits, layout.order, padding)
        launch_unpack(straight, n, layout, codes, pad)
        raise_reported(
            device, wrong, lambda _: pad_error(size - 1), lambda at: padding_error(at, nbits)
        )
    return codes


def launch_unpack(data: Array, n: int, layout: FieldLayout, codes: Array, wrong: Array) -> None:
    """Launch a kernel that unpacks n contiguous codes, and reports the first wrong pad code."""
    total = layout._codes(n)
    form = layout.width, layout.order == "msb", layout.pad == "count"
    arguments = data, data.size, n, total, *form, codes, wrong
    launch_striding(device_with(data), "pack", "unpack_groups", total, *arguments, per_thread=8)


def _turn(layout: FieldLayout) -> int:
    """Return the mask that reverses the offsets of bytes within a word."""
    return 3 if layout.word == 4 and layout.order == "msb" else 0


def _turned(data: Array) -> Array:
    """Return words with their bytes reversed."""
    device, count = device_with(data), data.size // 4
    out = device.empty(data.size, np.uint8)
    words = device.flat(data).view(np.uint32), count, out.view(np.uint32)
    launch_striding(device, "ranges", "swapped", count, *words)
    return out
