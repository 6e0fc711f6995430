"""Launchers of ternary.cu; see `gcodec.kernels.quantize.ternary`."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
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
from gcodec.runtime.cuda_grid import (
    device_with,
    factor_to_add,
    launch_striding,
    raise_reported,
    word,
)

_KERNELS = {"chapter": "chapter_bytes", "terngrad": "strided_bytes", "base3": "base3_bytes"}


def quantize(x: Array, scale: np.float32, seed: int, pack: Pack, level: None = None) -> Array:
    """Quantize and pack the codes."""
    device, n = device_with(x), x.size
    out = device.empty(packed_nbytes(n, pack), np.uint8)
    arguments = x, n, word(device, scale), seed, out.size, out
    launch_striding(device, "ternary", _KERNELS[pack], out.size, *arguments)
    return out


def dequantize_base3(data: Array, scale: np.float32, out: Array, add: np.float32 | None) -> None:
    """Write the values of base3 bytes."""
    device = device_with(data)
    arguments = data, out.size, word(device, scale), *factor_to_add(add), out
    launch_striding(device, "ternary", "base3_levels", data.size, *arguments)


def check(data: Array, n: int, pack: Pack) -> None:
    """Raise `FormatError` unless the bytes are those of n packed codes."""
    check_length(8 * data.size, 8 * packed_nbytes(n, pack))
    device, size = device_with(data), data.size
    wrong = device.zeros(2, np.uint64)
    first, second = wrong[:1], wrong[1:]
    if pack == "chapter":
        launch_check_padding(data, 2 * n, "lsb", first)
        launch_striding(device, "ternary", "code_11_bits", size, data, size, second)
        raise_reported(device, wrong, lambda at: padding_error(at, 2 * n), lambda _: code_error())
    elif pack == "terngrad":
        plain = max(size - 4, 0)
        launch_striding(device, "ternary", "code_11_bits", plain, data, plain, first)
        device.launch("ternary", "check_strided", min(size, 1), 4, data, n, plain, size, second)
        raise_reported(device, wrong, lambda _: code_error(), _strided_error)
    elif size:
        end = 3 ** (n - (size - 1) * TRITS)
        launch_striding(device, "ternary", "check_base3", size, data, size, end, wrong)
        last = size - 1
        raise_reported(device, wrong, lambda _: digits_error(), lambda _: pad_digits_error(last))


def _strided_error(report: int) -> Corrupt:
    """Return the error that the kernel ``check_strided`` reports."""
    at, is_pad = divmod(report, 2)
    return pad_error(at) if is_pad else code_error(at)


def symbols_of(codes: Array, n: int) -> Array:
    """Return the symbols of n codes in base3 bytes."""
    device, size = device_with(codes), codes.size
    out = device.empty(n, np.uint8)
    launch_striding(device, "ternary", "base3_symbols", size, codes, size, n, out)
    return out


def codes_of(symbols: Array) -> Array:
    """Return the base3 bytes of symbols."""
    device, n = device_with(symbols), symbols.size
    out = device.empty(packed_nbytes(n, "base3"), np.uint8)
    launch_striding(device, "ternary", "base3_codes", out.size, symbols, n, out, out.size)
    return out
