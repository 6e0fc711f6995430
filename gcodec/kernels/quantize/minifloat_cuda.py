"""Launchers of minifloat.cu; see `gcodec.kernels.quantize.minifloat`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.bits.pack_cuda import launch_check_padding
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import (
    MOST_STEPS,
    code_error,
    codes_nbytes,
    half_error,
    least_middles,
    per_byte,
)
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import (
    THREADS,
    device_with,
    factor_to_add,
    launch_striding,
    raise_reported,
    word,
)
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device

_EACH = 8  # elements of a thread
_Scale = float | np.float32 | Deferred


def quantize_tensor(
    x: Array, scale: _Scale, fmt: MiniFloat, update: ResidualUpdate | None = None
) -> tuple[Array, Any]:
    """Return the codes of a tensor, and whether all values are finite; a sum must be."""
    device, n = device_with(x), x.size
    out, top = device.empty(codes_nbytes(n, fmt), np.uint8), device.zeros(1, np.uint32)
    rule = _Rule.of(device, scale, fmt)
    residual, decay, new_residual, *_ = update or (x, np.float32(0), x)
    source = x, residual, new_residual, n, update is not None, decay.view(np.uint32)
    coder = rule.steps, per_byte(fmt) == 2, fmt.mantissa, fmt.top, fmt.width, rule.points
    _launch(device, "minifloat_codes", n, *source, *coder, out, top)
    if update is not None:
        return out, True
    return out, Deferred(device, top, lambda words: bool(words[0] < INFINITY_BITS))


def dequantize_tensor(
    codes: Array, scale: _Scale, fmt: MiniFloat, out: Array, add: np.float32 | None = None
) -> None:
    """Write the values of codes, or add a multiple of them."""
    device, n = device_with(codes), out.size
    source = codes, n, per_byte(fmt) == 2, _Rule.of(device, scale, fmt).points
    _launch(device, "minifloat_values", n, *source, *factor_to_add(add), out)


def check(codes: Array, n: int, fmt: MiniFloat) -> None:
    """Raise `Corrupt` unless the bytes are n valid codes."""
    device, pairs = device_with(codes), per_byte(fmt) == 2
    wrong = device.zeros(2, np.uint64)
    rule = pairs, 1 << fmt.width - 1, fmt.top
    _launch(device, "first_wrong", codes.size * per_byte(fmt), codes, codes.size, *rule, wrong)
    if pairs:
        launch_check_padding(codes, 4 * n, "msb", wrong[1:])
    raise_reported(device, wrong, lambda report: code_error(*divmod(report, 256)), half_error)


class _Rule(NamedTuple):
    """The tables of a scale on the device.

    Attributes
    ----------
    steps : (MOST_STEPS + 1,) uint32 array
        Thresholds of the codes; divisor.
    points : (256,) uint32 array
        Values of all bytes, as bits of float32.
    """

    steps: Array
    points: Array

    @classmethod
    def of(cls, device: Device, scale: _Scale, fmt: MiniFloat) -> _Rule:
        """Make the tables of a scale, a float32 or a `Deferred`."""
        middles, levels = _constants(fmt)
        rule = cls(device.empty(MOST_STEPS + 1, np.uint32), device.empty(256, np.uint32))
        steps = device.to_device(middles), middles.size
        arguments = *steps, device.to_device(levels), fmt.top, fmt.width, *rule
        device.launch("minifloat", "make_rule", 1, THREADS, word(device, scale), *arguments)
        return rule


@functools.cache
def _constants(fmt: MiniFloat) -> tuple[np.ndarray, np.ndarray]:
    """Return the thresholds of |x|/Δ, for formats of up to four bits, and the magnitudes."""
    pairs = per_byte(fmt) == 2
    return least_middles(fmt)[: MOST_STEPS * pairs], fmt.magnitudes()


def _launch(device: Device, name: str, n: int, *arguments: object) -> None:
    launch_striding(device, "minifloat", name, n, *arguments, per_thread=_EACH)
