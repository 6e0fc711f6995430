"""From units to a tensor on a device; see `gcodec.kernels.prefix.run_level_place`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.prefix.codewords_cuda import NO_ERROR
from gcodec.kernels.quantize.levels import Scale
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import note
from gcodec.runtime.device import Device

_LEFT, _SILENT = 64, 4  # of a status


class PlacedPairs(NamedTuple):
    """Units whose positions are known, as those that were read on a device.

    Attributes
    ----------
    symbols : (n,) unsigned array
    positions : (n,) int64 array
        From 1 on, rising.
    count : (1,) int64 array
        How many there are of these.
    """

    symbols: Any
    positions: Any
    count: Any


def place(
    units: PlacedPairs, bounds: np.ndarray, positions: np.ndarray, before: int, out: Any
) -> int:
    """Write symbols to their positions; blocks were looked at when they were read."""
    _launch("place_units", units, out.view(np.uint8), out.size)
    return before


def place_values(
    units: PlacedPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    scale: Scale,
    out: Any,
) -> int:
    """Write to (n,) float32 zeros what symbols of levels stand for."""
    device = device_with(out)
    norms = scale.norms if device.owns(scale.norms) else device.to_device(scale.norms)
    in_units_of = norms, np.int64(scale.bucket), np.uint32(scale.s)
    _launch("place_values", units, out, out.size, *in_units_of)
    return before


def _launch(name: str, units: PlacedPairs, out: Any, n: int, *args: Any) -> None:
    device = device_with(out)
    room = units.symbols.size
    status = device.to_device(np.array([NO_ERROR]))
    grid = striding_blocks(room)
    symbols = units.symbols.view(np.uint8), np.int32(units.symbols.itemsize)
    device.launch(
        *("run_level_place", name, grid, THREADS, *symbols, units.positions),
        *(units.count, np.int64(room), *args, out, np.int64(n), status),
    )
    _check(device, status, n)


def _check(device: Device, status: Any, n: int) -> None:
    def told(found: np.ndarray) -> None:
        if found[0] == NO_ERROR:
            return
        if found[0] % _LEFT == _SILENT:
            raise Corrupt("a value lies in a bucket whose norm is 0")
        raise Corrupt(f"a gap passes the {n} elements of the tensor")

    note(device, status, told)
