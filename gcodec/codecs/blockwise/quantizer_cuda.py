"""Quantizers of kinds with a fixed table on a device; see `gcodec.codecs.blockwise.quantizer`."""

from __future__ import annotations

import numpy as np

from gcodec.codecs.blockwise.layout import ABSMAX, Layout
from gcodec.codecs.blockwise.quantizer import (
    KERNELS,
    Loops,
    check_largest,
    factor_rule,
    write_nested,
)
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.reduce import Moments, float_of_bits
from gcodec.kernels.quantize import blockwise_cuda
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import when_known
from gcodec.runtime.device import host


def quantize(
    x: Array,
    layout: Layout,
    data: Array,
    loops: Loops = KERNELS,
    update: ResidualUpdate | None = None,
    known: Moments | None = None,
) -> float:
    """Write the payload of values; no residual is added on a device.

    The host quantizes nested scales, which are few.
    """
    assert update is None
    if not x.size:
        return 0.0
    device, front, codes = device_with(x), data[: layout.front_nbytes], data[layout.front_nbytes :]
    scales = device.empty(layout.blocks, np.float32) if layout.nested else front.view(np.float32)
    kind: blockwise_cuda.Kind = "factor" if layout.is_multiplier else "reciprocal"
    if layout.kind in ABSMAX:
        kind = "magnitude"
    rule = factor_rule(layout), layout.table(), kind
    bits = blockwise_cuda.quantize_blocks(x, layout.block, *rule, scales, codes)
    when_known(bits, lambda bits: check_largest(x, float(float_of_bits(bits))))
    if layout.nested:
        on_host = np.empty(front.size, np.uint8)
        write_nested(host(scales), layout, on_host, loops)
        front[:] = device.to_device(on_host)
    return 0.0
