"""Launchers of microscale.cu; see `gcodec.kernels.quantize.microscale`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize.block_format import (
    LEAST_TENSOR_SCALE,
    MOST_TENSOR_SCALE,
    BlockFormat,
    ScaleRule,
)
from gcodec.kernels.quantize.microscale import Quantization, infinite_scale
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import (
    device_with,
    factor_to_add,
    launch_striding,
    raise_reported,
    word,
)
from gcodec.runtime.deferred import Deferred

_EACH = 8  # elements of a thread


def quantize(
    x: Array,
    quantization: Quantization,
    seed: int | None,
    scales: Array,
    out: Array,
    update: ResidualUpdate | None = None,
    leaves_errors: bool = False,
    rounded_to: int = 0,
) -> Deferred:
    """Write the scales and elements of an array; no residual is added on a device."""
    assert update is None and not leaves_errors and not rounded_to
    fmt, name, tensor_scale = quantization
    device, n, rule = device_with(x), x.size, ScaleRule.of(name, fmt)  # unused for NVFP4
    adds = rule.adds[:1] if rule.is_uniform else rule.adds
    source = x, n, seed or 0, seed is not None, *_elements(fmt), _bits(fmt.largest)
    scale = word(device, tensor_scale), fmt.is_two_level, _bits(rule.divisor), _bits(rule.least)
    all_nan = fmt.is_integer or fmt.is_two_level or name == "rceil"
    nonfinite = fmt.nan_code, all_nan, fmt.nan_scale, infinite_scale(fmt, name)
    top = device.zeros(1, np.uint32)
    target = scales, out, out.size, top
    arguments = *source, *scale, device.to_device(adds), adds.size, *nonfinite, *target
    launch_striding(device, "microscale", "microscale_codes", n, *arguments, per_thread=_EACH)
    return Deferred(device, top)


def dequantize(
    scales: Array,
    data: Array,
    fmt: BlockFormat,
    tensor_scale: float | Deferred,
    out: Array,
    add: np.float32 | None = None,
) -> None:
    """Write the values of elements, or add a multiple of them."""
    device, n = device_with(scales), out.size
    magnitudes = fmt.values()[: 1 << fmt.width - 1]
    last, has_infinity = int(np.isfinite(magnitudes).sum()) - 1, bool(np.isinf(magnitudes).any())
    numbers = *_elements(fmt), last, has_infinity, word(device, tensor_scale), fmt.is_two_level
    arguments = scales, data, data.size, n, *numbers, *factor_to_add(add), out
    launch_striding(device, "microscale", "microscale_values", n, *arguments, per_thread=_EACH)


def tensor_scale_of(bits: Deferred) -> Deferred:
    """Return the scale of a tensor for NVFP4."""
    device, out = bits.device, bits.device.empty(1, np.float32)
    limits = _bits(np.float32(LEAST_TENSOR_SCALE)), _bits(np.float32(MOST_TENSOR_SCALE))
    device.launch("microscale", "tensor_scale_of", 1, 1, bits, *limits, out)
    return Deferred(device, out)


def check_at_most(data: Array, most: int, error: Callable[[int, int], Exception]) -> None:
    """Raise the error of the first byte above `most` when the call ends."""
    device, n = device_with(data), data.size
    wrong = device.zeros(1, np.uint64)
    launch_striding(device, "microscale", "first_above", n, data, n, most, wrong)
    raise_reported(device, wrong, lambda report: error(*divmod(report, 256)))


def _elements(fmt: BlockFormat) -> tuple[int, int, int, int, bool]:
    """Return the threads of a block, and the arguments that describe elements."""
    least = 0 if fmt.is_integer else 1 - fmt.bias
    return fmt.block // _EACH, fmt.width, fmt.mantissa, least, fmt.is_integer


def _bits(number: np.float32) -> np.uint32:
    bits: np.uint32 = np.float32(number).view(np.uint32)
    return bits
