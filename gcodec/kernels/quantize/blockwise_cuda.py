"""Launchers of blockwise.cu; see `gcodec.kernels.quantize.blockwise`."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np

from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.kernels.quantize.blockwise import FactorRule
from gcodec.kernels.quantize.value_table import ValueTable
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, factor_to_add, launch_striding
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import beside

Kind = Literal["magnitude", "reciprocal", "factor"]

_SOURCE = "blockwise"
_KINDS = ("magnitude", "reciprocal", "factor")
_EACH = 8  # elements of a thread


def quantize_blocks(
    x: Array,
    block_size: int,
    rule: FactorRule,
    table: ValueTable,
    kind: Kind,
    scales: Array,
    out: Array,
) -> Deferred:
    """Write the scales of blocks, and the codes of a (n,) float32 array, n > 0.

    Parameters
    ----------
    x : (n,) float32 array
    block_size : int
    rule : FactorRule
    table : ValueTable
    kind : {"magnitude", "reciprocal", "factor"}
        What the scale of a block is: its largest magnitude, the reciprocal of its factor, or its
        factor. With magnitudes, elements of a partial block are divided by its scale.
    scales : (ceil(n / block_size),) float32 array
    out : (ceil(n / table.per_byte),) uint8 array
        A last half that belongs to no element gets the code of 0.

    Returns
    -------
    Deferred
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    """
    device, n = device_with(x), x.size
    tops = norms(x, block_size, "max")
    factors, is_partial = device.empty(tops.size, np.float32), n % block_size > 0
    numbers = rule.numerator.view(np.uint32), rule.least.view(np.uint32), rule.resets
    terms = tops, tops.size, is_partial, *numbers, _KINDS.index(kind), factors, scales
    launch_striding(device, _SOURCE, "block_factors", tops.size, *terms, per_thread=1)
    rest = n - n % block_size if kind == "magnitude" else n
    cells = table.cells
    search = device.to_device(cells.entries), cells.per_sign, cells.first, table.zero
    target = table.per_byte == 2, out, out.size
    arguments = x, n, block_size, factors, rest, *search, *target
    launch_striding(device, _SOURCE, "table_codes", n, *arguments, per_thread=_EACH)
    bits: Any = max_abs_bits(tops)
    return cast(Deferred, bits)


def dequantize(
    codes: Array,
    block_size: int,
    scales: Array,
    values: np.ndarray,
    divides: bool,
    out: Array,
    add: np.float32 | None = None,
) -> None:
    """Write the numbers of codes, or add a multiple of them."""
    device, n = device_with(codes), out.size
    numbers = beside(scales, codes), device.to_device(values), values.size == 16, divides
    arguments = codes, codes.size, n, block_size, *numbers, *factor_to_add(add), out
    launch_striding(device, _SOURCE, "table_values", n, *arguments, per_thread=_EACH)
