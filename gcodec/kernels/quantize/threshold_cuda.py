"""Launchers of threshold.cu; see `gcodec.kernels.quantize.threshold`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.bits.pack_cuda import launch_check_padding, padding_error
from gcodec.kernels.quantize.threshold import ONE_BIT, TWO_BIT, code_error
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding, raise_reported, word


def quantize_2bit(x: Array, threshold: np.float32) -> Array:
    """Return packed codes of two bits."""
    return _quantize("quantize_2bit", TWO_BIT, x, (), word(device_with(x), threshold))


def quantize_2bit_residual(
    x: Array,
    residual: Array,
    decay: np.float32,
    threshold: np.float32,
    level: np.float32,
    left: Array,
) -> Array:
    """Return packed codes of v = x + decay·residual; write v minus the decoded value to `left`."""
    numbers = (word(device_with(x), number) for number in (threshold, level))
    return _quantize("quantize_2bit_residual", TWO_BIT, x, (residual, left), decay, *numbers)


def quantize_1bit(x: Array, threshold: np.float32) -> Array:
    """Return packed codes of one bit."""
    return _quantize("quantize_1bit", ONE_BIT, x, (), threshold)


def quantize_1bit_residual(
    x: Array, residual: Array, decay: np.float32, threshold: np.float32, left: Array
) -> Array:
    """Return packed codes of v = x + decay·residual; write v minus the decoded value to `left`."""
    return _quantize("quantize_1bit_residual", ONE_BIT, x, (residual, left), decay, threshold)


def check_codes_2bit(data: Array, n: int) -> None:
    """Raise `Corrupt` for padding that is not zero, or a code 01."""
    device = device_with(data)
    wrong = device.zeros(2, np.uint64)
    launch_check_padding(data, 2 * n, "msb", wrong[:1])
    n_bytes = data.size
    launch_striding(device, "threshold", "code_01_bits", n_bytes, data, n_bytes, wrong[1:])
    raise_reported(device, wrong, lambda at: padding_error(at, 2 * n), lambda _: code_error())


def _quantize(
    name: str, layout: FieldLayout, x: Array, memory: tuple[Array, ...], *scalars: object
) -> Array:
    device, n = device_with(x), x.size
    out = device.empty(layout.nbytes(n), np.uint8)
    arguments = x, *memory, n, *scalars, out, out.size
    launch_striding(device, "threshold", name, out.size, *arguments)
    return out
