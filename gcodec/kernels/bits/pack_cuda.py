"""Launchers of pack.cu; see `gcodec.kernels.bits.pack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, check_length, pad_error
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks


def check_padding(data: Any, nbits: int, order: str = "msb") -> None:
    """Raise `Corrupt` unless all bits behind the first `nbits` are zero."""
    device = device_with(data)
    wrong = device.zeros(1, np.uint64)
    if launch_check_padding(data, nbits, order, wrong):

        def told(at: int | None) -> None:
            if at is not None:
                raise padding_error(at, nbits)

        reported(device, wrong, told)


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


def pack_fields(codes: Any, layout: FieldLayout) -> Any:
    """Pack codes into bytes."""
    layout._check()
    device, n = device_with(codes), codes.size
    out = device.empty(layout.nbytes(n), np.uint8)
    size = layout._field_bytes(n)
    count = np.int32(layout.pad == "count")
    shape = np.int32(layout.width), np.int32(layout.order == "msb"), count
    if layout.strided:
        out[size:] = 0
        arguments = codes, np.int64(n), *shape, out[:size], np.int64(size)
        device.launch("pack", "pack_stride", striding_blocks(size), THREADS, *arguments)
    else:
        # Whole words and what aligns them are zeros.
        lengths = np.int64(n), np.int64(layout._codes(n))
        rest = np.int64(_turn(layout)), out, np.int64(out.size)
        grid = striding_blocks(-(-out.size // layout.width))
        device.launch("pack", "pack_groups", grid, THREADS, codes, *lengths, *shape, *rest)
    return out


def unpack_fields(data: Any, n: int, layout: FieldLayout) -> Any:
    """Unpack n codes."""
    layout._check()
    check_length(8 * data.size, 8 * layout.nbytes(n))
    device, size = device_with(data), layout._field_bytes(n)
    codes, wrong = device.empty(n, np.uint8), device.zeros(2, np.uint64)
    count = layout.pad == "count"
    shape = np.int32(layout.width), np.int32(layout.order == "msb"), np.int32(count)
    if layout.strided:
        launch_check_padding(data, 8 * size, "msb", wrong[:1])
        arguments = data, np.int64(n), *shape, np.int64(size), codes, wrong[1:]
        device.launch("pack", "unpack_stride", striding_blocks(size), THREADS, *arguments)
    else:
        bits = 8 * size if count else n * layout.width
        straight = _turned(data) if _turn(layout) else data
        launch_check_padding(straight, bits, layout.order, wrong[:1])
        launch_unpack(straight, n, layout, codes, wrong[1:])

    def told(padding: int | None, pad: int | None) -> None:
        # In the order in which the host looks.
        if pad is not None and not layout.strided:
            raise pad_error(size - 1)
        if padding is not None:
            raise padding_error(padding, 8 * size if layout.strided or count else n * layout.width)
        if pad is not None:
            raise pad_error(pad % size)

    reported(device, wrong, told)
    return codes


def launch_unpack(data: Any, n: int, layout: FieldLayout, codes: Any, wrong: Any) -> None:
    """Launch what unpacks n contiguous codes, and reports to a word the first wrong pad code."""
    total, count = layout._codes(n), np.int32(layout.pad == "count")
    lengths = np.int64(data.size), np.int64(n), np.int64(total)
    shape = np.int32(layout.width), np.int32(layout.order == "msb")
    arguments = data, *lengths, *shape, count, codes, wrong
    blocks = striding_blocks(total, per_thread=8)
    device_with(data).launch("pack", "unpack_groups", blocks, THREADS, *arguments)


def _turn(layout: FieldLayout) -> int:
    """Return what turns the places of bytes in a word over."""
    return 3 if layout.word == 4 and layout.order == "msb" else 0


def _turned(data: Any) -> Any:
    """Return words with their bytes in the other order."""
    device = device_with(data)
    out, count = device.empty(data.size, np.uint8), data.size // 4
    arguments = device.flat(data).view(np.uint32), np.int64(count), out.view(np.uint32)
    device.launch("ranges", "swapped", striding_blocks(count), THREADS, *arguments)
    return out
