"""Launchers of ternary.cu; see `gcodec.kernels.quantize.ternary`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.dequantize_cuda import level_to_add
from gcodec.kernels.bits.pack import check_length, pad_error
from gcodec.kernels.bits.pack_cuda import launch_check_padding, padding_error
from gcodec.kernels.quantize.ternary import (
    TRITS,
    Pack,
    code_error,
    digits_error,
    packed_nbytes,
    pad_digits_error,
)
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks, word

_U32 = np.uint32


def quantize(x: Any, scale: np.float32, seed: int, pack: Pack) -> Any:
    """Quantise and pack the codes."""
    device, n = device_with(x), x.size
    out = device.empty(packed_nbytes(n, pack), np.uint8)
    size = np.int64(out.size)
    arguments = x.view(_U32), np.int64(n), word(device, scale), np.uint64(seed)
    if pack == "chapter":
        grid = striding_blocks(out.size)
        device.launch("ternary", "chapter_blocks", grid, THREADS, *arguments, out)
    elif pack == "terngrad":
        grid = striding_blocks(out.size, per_thread=4)
        device.launch("ternary", "strided_bytes", grid, THREADS, *arguments, size, out)
    else:
        grid = striding_blocks(out.size, per_thread=4)
        device.launch("ternary", "base3_tiles", grid, THREADS, *arguments, out, size)
    return out


def dequantize_base3(data: Any, scale: np.float32, out: Any, add: np.float32 | None) -> None:
    """Write what the trits of bytes stand for."""
    device, n = device_with(data), out.size
    arguments = data, np.int64(n), *level_to_add(device, scale, add), out.view(_U32)
    grid = striding_blocks(data.size)
    device.launch("ternary", "base3_levels", grid, THREADS, *arguments)


def check(data: Any, n: int, pack: Pack) -> None:
    """Raise `FormatError` unless the bytes are those of n packed codes."""
    check_length(8 * data.size, 8 * packed_nbytes(n, pack))
    device, size = device_with(data), data.size
    wrong = device.zeros(4, np.uint64)
    if pack == "chapter":
        launch_check_padding(data, 2 * n, "lsb", wrong[:1])
        _launch_code_11(data, size, wrong[1:2])
    elif pack == "terngrad":
        plain = max(size - 4, 0)
        _launch_code_11(data, plain, wrong[1:2])
        arguments = data, *map(np.int64, (n, plain, size)), wrong[2:]
        device.launch("ternary", "check_strided", min(size, 1), 32, *arguments)
    elif size:
        end = np.uint32(3 ** (n - (size - 1) * TRITS))
        grid, arguments = striding_blocks(size), (data, np.int64(size), end, wrong[2:])
        device.launch("ternary", "check_base3", grid, THREADS, *arguments)

    def told(padding: int | None, code: int | None, first: int | None, second: int | None) -> None:
        if padding is not None:
            raise padding_error(padding, 2 * n)
        if code is not None:
            raise code_error()
        if pack == "base3" and first is not None:
            raise digits_error()
        if pack == "base3" and second is not None:
            raise pad_digits_error(size - 1)
        # Of the last bytes the host's check tells the first that is wrong.
        if first is not None and (second is None or first <= second):
            raise code_error(first)
        if second is not None:
            raise pad_error(second)

    reported(device, wrong, told)


def _launch_code_11(data: Any, plain: int, wrong: Any) -> None:
    arguments = data, np.int64(plain), wrong
    grid = striding_blocks(plain)
    device_with(data).launch("ternary", "code_11_bits", grid, THREADS, *arguments)
