"""Launchers of threshold.cu; see `gcodec.kernels.quantize.threshold`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.bits.pack_cuda import launch_check_padding, padding_error
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.reduce_cuda import max_abs_bits
from gcodec.kernels.quantize.threshold import ONE, code_error
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding, raise_reported, word
from gcodec.runtime.deferred import Deferred


def quantize(
    x: Array,
    layout: FieldLayout,
    threshold: np.float32,
    level: np.float32 = ONE,
    update: ResidualUpdate | None = None,
    check: Callable[[Deferred], object] | None = None,
    undoes: bool = False,
) -> Array:
    """Return packed codes, and replace the residual, which is never updated in place."""
    device, n = device_with(x), x.size
    out = device.empty(layout.nbytes(n), np.uint8)
    residual, decay, new_residual, *_ = update or (x, np.float32(0), x)
    numbers: tuple[object, ...] = (threshold,)
    if layout.width == 2:  # the threshold and the level may be on the device
        cut = word(device, threshold)
        numbers = cut, cut if update is None else word(device, level)
    arguments = x, residual, new_residual, n, update is not None, decay, *numbers, out, out.size
    launch_striding(device, "threshold", f"quantize_{layout.width}bit", out.size, *arguments)
    if check is not None:
        check(max_abs_bits(new_residual))
    return out


def check_codes_2bit(data: Array, n: int) -> None:
    """Raise `Corrupt` for padding that is not zero, or a code 01."""
    device = device_with(data)
    wrong = device.zeros(2, np.uint64)
    launch_check_padding(data, 2 * n, "msb", wrong[:1])
    n_bytes = data.size
    launch_striding(device, "threshold", "code_01_bits", n_bytes, data, n_bytes, wrong[1:])
    raise_reported(device, wrong, lambda at: padding_error(at, 2 * n), lambda _: code_error())
