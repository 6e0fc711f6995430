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
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks, word

_KERNELS = {"chapter": "chapter_bytes", "terngrad": "strided_bytes", "base3": "base3_bytes"}


def quantize(x: Array, scale: np.float32, seed: int, pack: Pack) -> Array:
    """Quantize and pack the codes."""
    device, n = device_with(x), x.size
    out = device.empty(packed_nbytes(n, pack), np.uint8)
    source = x.view(np.uint32), np.int64(n), word(device, scale), np.uint64(seed)
    _launch(_KERNELS[pack], out.size, *source, np.int64(out.size), out)
    return out


def dequantize_base3(data: Array, scale: np.float32, out: Array, add: np.float32 | None) -> None:
    """Write the values of base3 bytes."""
    factor = level_to_add(device_with(data), scale, add)
    _launch("base3_levels", data.size, data, np.int64(out.size), *factor, out.view(np.uint32))


def check(data: Array, n: int, pack: Pack) -> None:
    """Raise `FormatError` unless the bytes are those of n packed codes."""
    check_length(8 * data.size, 8 * packed_nbytes(n, pack))
    device, size = device_with(data), data.size
    wrong = device.zeros(4, np.uint64)
    if pack == "chapter":
        launch_check_padding(data, 2 * n, "lsb", wrong[:1])
        _launch("code_11_bits", size, data, np.int64(size), wrong[1:2])
    elif pack == "terngrad":
        plain = max(size - 4, 0)
        _launch("code_11_bits", plain, data, np.int64(plain), wrong[1:2])
        sizes = np.int64(n), np.int64(plain), np.int64(size)
        _launch("check_strided", min(size, 1), data, *sizes, wrong[2:])
    elif size:
        end = np.uint32(3 ** (n - (size - 1) * TRITS))
        _launch("check_base3", size, data, np.int64(size), end, wrong[2:])

    def raise_error(
        padding: int | None, code: int | None, first: int | None, second: int | None
    ) -> None:
        if padding is not None:
            raise padding_error(padding, 2 * n)
        if code is not None:
            raise code_error()
        if pack == "base3" and first is not None:
            raise digits_error()
        if pack == "base3" and second is not None:
            raise pad_digits_error(size - 1)
        # The error is that of the first wrong byte, as on the host.
        if first is not None and (second is None or first <= second):
            raise code_error(first)
        if second is not None:
            raise pad_error(second)

    reported(device, wrong, raise_error)


def symbols_of(codes: Array, n: int) -> Array:
    """Return the symbols of n codes in base3 bytes."""
    out = device_with(codes).empty(n, np.uint8)
    _launch("base3_symbols", codes.size, codes, np.int64(codes.size), np.int64(n), out)
    return out


def codes_of(symbols: Array) -> Array:
    """Return the base3 bytes of symbols."""
    n = symbols.size
    out = device_with(symbols).empty(packed_nbytes(n, "base3"), np.uint8)
    _launch("base3_codes", out.size, symbols, np.int64(n), out, np.int64(out.size))
    return out


def _launch(name: str, n: int, first: Array, *arguments: Any) -> None:
    grid = striding_blocks(n)
    device_with(first).launch("ternary", name, grid, THREADS, first, *arguments)
