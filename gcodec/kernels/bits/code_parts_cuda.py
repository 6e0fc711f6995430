"""Launchers of code_parts.cu; see `gcodec.kernels.bits.code_parts`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits import code_parts
from gcodec.kernels.bits.code_parts import Change
from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.bits.pack_cuda import unpacked
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding


def parts_of(codes: Array, n: int, fmt: MiniFloat, change: Change) -> Array:
    """Return parts of n codes."""
    out = device_with(codes).empty(n, np.uint8)
    return launch_map(codes, per_byte(fmt), _table(fmt, change), out)


def changed(codes: Array, fmt: MiniFloat, change: Change) -> Array:
    """Replace codes by parts of them."""
    return launch_map(codes, 1, _table(fmt, change), codes)


def joined(exponents: Array, data: Array, fmt: MiniFloat) -> Array:
    """Return the codes with given exponents, and with signs and mantissas from `data`."""
    device, n = device_with(exponents), exponents.size
    planes, out = unpacked(data, n, FieldLayout(1 + fmt.mantissa)), device.empty(n, np.uint8)
    arguments = exponents, planes, n, fmt.mantissa, fmt.width - 1, out
    launch_striding(device, "code_parts", "join_parts", n, *arguments)
    return out


def launch_map(codes: Array, per_byte: int, table: np.ndarray, out: Array) -> Array:
    """Map codes, of which each byte contains one or two, to `out` by a table of 256 bytes."""
    device, n = device_with(codes), out.size
    arguments = codes, per_byte, n, device.to_device(table), out
    launch_striding(device, "code_parts", "map_codes", n, *arguments)
    return out


def _table(fmt: MiniFloat, change: Change) -> np.ndarray:
    return code_parts.changed(np.arange(256).astype(np.uint8), fmt, change)
