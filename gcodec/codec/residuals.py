"""Quantizing the sum of a tensor and its residual in as few passes over memory as possible.

The sum u = x + decay·residual is quantized, and u − x̂ is the new residual. A codec that does so
part by part needs one pass (`Codec._quantize_sum`). Otherwise a first pass adds the residual, and
computes the statistics that the quantizer needs (`Codec._add_residual`). A second one quantizes
the sum, and leaves its error (`Codec._quantize_in_place`); if the codec lacks that pass, it
quantizes, and then subtracts the decoded values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gcodec.arrays.nonfinite import check_top
from gcodec.arrays.source import Tensor, read_only
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.numeric.convert import rounding
from gcodec.kernels.numeric.reduce import float_of_bits, newly_infinite
from gcodec.runtime import Array
from gcodec.runtime.deferred import prefetch, when_known
from gcodec.runtime.device import device_of
from gcodec.runtime.lanes import can_round

if TYPE_CHECKING:
    from gcodec.codec.base import Codec, Symbols

_SAFE = 2.0**127  # sums of magnitudes below this bound are finite in float32
# Bounds of magnitudes that remain finite when they are rounded to a dtype.
ROUNDED_SAFE = {"float32": _SAFE, "float64": _SAFE, "bfloat16": _SAFE, "float16": 2.0**15}


def quantize_sum(
    codec: Codec, tensor: Tensor, update: ResidualUpdate, seed: int, prior: Symbols | None
) -> Symbols:
    """Quantize u = x + decay·residual, and write u − x̂ to `update.new_residual`.

    An update in place saves the residual. An error leaves `update.new_residual` undefined, except
    for what `update.restore` restores.

    Raises
    ------
    ParameterError
        If the codec refuses the sum, or the new residual exceeds the range of float32.
    """
    x, is_exact = tensor.values, tensor.dtype in ("float32", "float64")
    if (is_exact or leaves_rounded(codec, tensor.dtype)) and device_of(x) is None:
        try:
            rounded = update._replace(rounded_to=rounding(tensor.dtype))
            quantized = codec._quantize_sum(x, rounded, seed)
            if quantized is not None:
                symbols, most = quantized
                largest = float_of_bits(most)
                bound = ROUNDED_SAFE[tensor.dtype]
                is_safe = is_exact or codec.decoded_factor * max(largest, 1) < bound
                if not (largest <= codec.takes_up_to and is_safe):
                    check_range(codec, tensor, update)
                return symbols
        except ParameterError:
            if not update.saves:
                raise
            update.restore()  # the following steps raise an error that counts sums
    statistics, is_accepted = _corrected(codec, tensor, update)
    values, top_bits = update.new_residual, statistics.top_bits
    if is_accepted:
        return quantize_in_place(codec, values, statistics, tensor.dtype, seed, prior)
    # Symbols on a device are not waited for.
    is_known = codec.bounds_decoded or codec.decoded_factor < math.inf
    is_known = is_known and (codec.symbols_on_host or device_of(values) is None)
    if is_known:
        prefetch(top_bits)  # fetch it together with the numbers that the symbols need
    symbols = quantize_in_place(codec, values, statistics, tensor.dtype, seed, prior)
    largest = float_of_bits(top_bits) if is_known else math.inf
    bound = codec._decoded_bound(symbols, largest) if largest < _SAFE else math.inf
    if not (bound < ROUNDED_SAFE[tensor.dtype] and largest + bound < _SAFE):
        check_range(codec, tensor, update)
    return symbols


def quantize_in_place(
    codec: Codec,
    values: Array,
    statistics: ValueStatistics,
    dtype: str,
    seed: int,
    prior: Symbols | None,
) -> Symbols:
    """Quantize values, and replace them by their quantization errors, values − x̂."""
    symbols = None
    is_fused = dtype in codec.fused_dtypes or leaves_rounded(codec, dtype)
    if is_fused and device_of(values) is None:
        symbols = codec._quantize_in_place(values, statistics, dtype, seed)
    if symbols is not None:
        return symbols
    fixed = values if device_of(values) is not None else read_only(values)
    symbols = codec._quantize_with_statistics(fixed, statistics, seed, prior)
    # u − x̂ is u + (−1)·x̂, bit for bit.
    codec._dequantize_add(symbols, dtype, np.float32(-1), values)
    return symbols


def leaves_rounded(codec: Codec, dtype: str) -> bool:
    """Return whether a quantizer on the host can round x̂ to a dtype, and then subtract it."""
    return codec.leaves_rounded and can_round(dtype)


def _corrected(
    codec: Codec, tensor: Tensor, update: ResidualUpdate
) -> tuple[ValueStatistics, bool]:
    """Write u = x + decay·residual to `update.new_residual`.

    Returns
    -------
    statistics : ValueStatistics
        Largest magnitude of u, and perhaps other numbers.
    is_accepted : bool
        Whether the codec accepts u for sure, and decodes it to finite values. NaN and Inf are
        refused here only if everything else is accepted.
    """
    x, bound = tensor.values, codec.takes_up_to
    # A codec that keeps NaN and Inf accepts them only where the tensor remains unchanged.
    is_known = codec.refuses_nonfinite or (codec.keeps_nonfinite and bound < math.inf)
    is_checkable = is_known and tensor.dtype in ("float32", "float64")
    if bound < math.inf:  # comparing with the bound on a device would wait for it
        is_checkable = is_checkable and device_of(x) is None
    statistics = codec._correct(x, update)
    top_bits = statistics.top_bits
    if is_checkable and bound == math.inf:
        check_top(top_bits, x)
    return statistics, is_checkable and (bound == math.inf or float_of_bits(top_bits) <= bound)


def check_range(codec: Codec, tensor: Tensor, update: ResidualUpdate) -> None:
    """Raise `ParameterError` if a new residual contains NaN or Inf, and the sum does not."""

    def check(is_infinite: bool) -> None:
        if is_infinite:
            raise ParameterError(f"x: must not exceed the range of {codec} or {tensor.dtype}")

    terms = tensor.values, update.former, update.decay
    when_known(newly_infinite(update.new_residual, *terms), check)
