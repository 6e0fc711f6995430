"""Run–level pairs to a tensor on a device; see `gcodec.kernels.prefix.run_level_place`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.coded_mask import nonzero_error
from gcodec.kernels.prefix.codewords_cuda import NO_ERROR, check_status
from gcodec.kernels.quantize.levels import Scale
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import byte_view, device_with, launch_striding
from gcodec.runtime.device import beside

_SILENT = 4  # number of an error


class PlacedPairs(NamedTuple):
    """Symbols and their positions, as a device reads them.

    Attributes
    ----------
    symbols : (n,) unsigned array
    positions : (n,) int64 array
        Rising, counted from 1.
    count : (1,) int64 array
        Number of valid elements of both.
    """

    symbols: Array
    positions: Array
    count: Array


def place(
    pairs: PlacedPairs, bounds: np.ndarray, positions: np.ndarray, before: int, out: Array
) -> int:
    """Write symbols to their positions; the reader has verified the blocks."""
    _launch("place_pairs", pairs, out.view(np.uint8), out.size)
    return before


def place_values(
    pairs: PlacedPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    scale: Scale,
    out: Array,
) -> int:
    """Write the values of levels to (n,) float32 zeros."""
    norms = beside(scale.norms, out)
    _launch("place_values", pairs, out, out.size, norms, scale.bucket, scale.s)
    return before


def _launch(name: str, pairs: PlacedPairs, out: Array, n: int, *quantizer: object) -> None:
    device, room = device_with(out), pairs.symbols.size
    status = device.to_device(np.array([NO_ERROR]))
    inputs = *byte_view(pairs.symbols), pairs.positions, pairs.count, room, *quantizer
    launch_striding(device, "run_level_place", name, room, *inputs, out, n, status)

    def raise_error(_: int, error: int) -> None:
        if error == _SILENT:
            raise nonzero_error()
        raise Corrupt(f"a gap passes the {n} elements of the tensor")

    check_status(device, status, raise_error)
