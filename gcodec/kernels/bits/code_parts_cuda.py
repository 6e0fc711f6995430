"""Launchers of code_parts.cu; see `gcodec.kernels.bits.code_parts`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits import code_parts
from gcodec.kernels.bits.code_parts import Change
from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.bits.pack_cuda import launch_unpack
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def parts_of(codes: Any, n: int, fmt: MiniFloat, change: Change) -> Any:
    """Return parts of n codes."""
    return _mapped(codes, per_byte(fmt), fmt, change, device_with(codes).empty(n, np.uint8))


def changed(codes: Any, fmt: MiniFloat, change: Change) -> Any:
    """Make parts of codes in their place."""
    return _mapped(codes, 1, fmt, change, codes)


def joined(exponents: Any, data: Any, fmt: MiniFloat) -> Any:
    """Return codes of exponents, and of their signs and mantissas."""
    device, n = device_with(exponents), exponents.size
    planes, out = (device.empty(n, np.uint8) for _ in range(2))
    launch_unpack(data, n, FieldLayout(1 + fmt.mantissa), planes, device.zeros(1, np.uint64))
    bits = np.int32(fmt.mantissa), np.int32(fmt.width - 1)
    arguments = exponents, planes, np.int64(n), *bits, out
    device.launch("code_parts", "join_parts", striding_blocks(n), THREADS, *arguments)
    return out


def launch_map(codes: Any, together: int, table: np.ndarray, out: Any) -> Any:
    """Launch what makes other bytes of codes, of which one or two are in a byte; return these."""
    device, n = device_with(codes), out.size
    arguments = codes, np.int32(together), np.int64(n), device.to_device(table), out
    device.launch("code_parts", "map_codes", striding_blocks(n), THREADS, *arguments)
    return out


def _mapped(codes: Any, together: int, fmt: MiniFloat, change: Change, out: Any) -> Any:
    table = code_parts.changed(np.arange(256).astype(np.uint8), fmt, change)
    return launch_map(codes, together, table, out)
