"""From units to a tensor: symbols, or what they stand for, at their positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.prefix.codewords import CORRUPT
from gcodec.kernels.prefix.prefix_read import BROKEN, check
from gcodec.kernels.prefix.prefix_table import WIDE
from gcodec.kernels.prefix.run_level import FAR, RunLevelPairs
from gcodec.kernels.quantize.levels import KINDS, TINY, Scale, dequantize, streams, symbol_dtype
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel

_CLOSE = 32  # elements for each value, up to which it pays to dequantise all of them
_SILENT = -4  # a value in a bucket whose norm is 0


@dispatched("gcodec.kernels.prefix.run_level_place_cuda", by="out")
def place(
    units: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int, out: np.ndarray
) -> int:
    """Write symbols to their positions.

    Parameters
    ----------
    units : Units
    bounds : (count,) int64 array
        Ends of blocks of units; the last tells how many units there are.
    positions : (count,) int64 array
        Of the last unit of each block; of no elements where they are not known.
    before : int
        Position of the last unit before these.
    out : (n,) unsigned array
        Of the whole tensor; zeros.

    Returns
    -------
    int
        The position of the last unit.

    Raises
    ------
    Corrupt
    """
    status = np.zeros(2, np.int64)
    last = _placer(out.dtype)(*units, bounds, positions, before, out, status)
    return _checked(last, status, positions, out.size)


@dispatched("gcodec.kernels.prefix.run_level_place_cuda", by="out")
def place_values(
    units: RunLevelPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    scale: Scale,
    out: np.ndarray,
) -> int:
    """Write to (n,) float32 zeros what symbols of levels stand for; see `place` and `levels`."""
    status = np.zeros(2, np.int64)
    if positions.size and (last := _placed_closely(units, bounds, positions, before, scale, out)):
        return last
    where = *units, bounds, positions, before
    last = _place_values(*where, scale.norms, scale.bucket, np.uint32(scale.s), out, status)
    if status[0] == _SILENT:
        raise Corrupt("a value lies in a bucket whose norm is 0")
    return _checked(last, status, positions, out.size)


def _placed_closely(
    units: RunLevelPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    scale: Scale,
    out: np.ndarray,
) -> int:
    """Do what `place_values` does by way of symbols, which pays where values lie closely.

    Returns
    -------
    int
        The position of the last unit; 0 if nothing was done, as values lie far apart or something
        is wrong.
    """
    last, status = int(positions[-1]), np.zeros(2, np.int64)
    if not before < last <= min(before + _CLOSE * int(bounds[-1]), out.size):
        return 0
    if not scale.norms[before // scale.bucket : -(-last // scale.bucket)].all():
        return 0
    symbols = np.zeros(last - before, symbol_dtype(scale.s))
    _placer(symbols.dtype)(*units, bounds, positions - before, 0, symbols, status)
    if status[0] < 0:
        return 0
    dequantize(symbols, scale, before, out[before:last], stream=streams(out))
    return last


def _checked(last: Any, status: np.ndarray, positions: np.ndarray, n: int) -> int:
    if status[0] == CORRUPT:
        raise Corrupt(f"a gap passes the {n} elements of the tensor")
    check(status, positions.size > 0)
    return int(last)


@factory(lambda: ((kind,) for kind in KINDS))
def _placer(kind: np.dtype[Any]) -> Kernel:
    dtype = kind.name
    cast = getattr(np, dtype)

    @kernel(
        "in uint8[], in uint8[], in uint64[], in uint64[], in int64[], in int64[], int64, "
        f"out {dtype}[], out int64[]",
        variant=dtype,
    )
    def place_units(gaps, symbols, far, wide, bounds, positions, before, out, status):
        # far and wide have as many elements as gaps, unless no gap is FAR, no symbol WIDE
        last, i = before, 0
        for b in range(bounds.size):
            while i < bounds[b]:  # at most gaps.size
                gap = far[i] if gaps[i] == FAR else np.uint64(gaps[i])
                if gap > np.uint64(out.size - last):
                    status[0], status[1] = CORRUPT, i
                    return last
                last += np.int64(gap)
                symbol = symbols[i]
                out[last - 1] = cast(wide[i]) if symbol == WIDE and wide.size else cast(symbol)
                i += 1
            if positions.size and positions[b] != last:
                status[0], status[1] = BROKEN, b
                return last
        return last

    return place_units


@kernel(
    "in uint8[], in uint8[], in uint64[], in uint64[], in int64[], in int64[], int64, "
    "in float32[], int64, uint32, out float32[], out int64[]"
)
def _place_values(
    gaps, symbols, far, wide, bounds, positions, before, norms, bucket, s, out, status
):
    # norms.size == ceil(out.size / bucket), bucket <= out.size; for the rest see place_units
    last, i, bucket_end = before, 0, np.int64(0)
    step, factor, tiny = np.float64(0), np.float32(0), False
    for b in range(bounds.size):
        while i < bounds[b]:  # at most gaps.size
            gap = far[i] if gaps[i] == FAR else np.uint64(gaps[i])
            if gap > np.uint64(out.size - last):
                status[0], status[1] = CORRUPT, i
                return last
            last += np.int64(gap)
            if last > bucket_end:
                k = (last - 1) // bucket  # so below norms.size
                bucket_end = (k + 1) * bucket
                norm = np.float64(norms[k])
                if norm == 0:
                    status[0], status[1] = _SILENT, i
                    return last
                step = norm / np.float64(s)
                factor, tiny = np.float32(step), norm < TINY
            symbol = wide[i] if symbols[i] == WIDE and wide.size else np.uint64(symbols[i])
            level = np.int64(symbol >> np.uint64(1))
            value = np.float32(level) * factor
            if tiny:
                value = np.float32(np.float64(level) * step)
            # Signs are as good as random: a branch would guess every second one wrong.
            out[last - 1] = value * np.float32(1 - 2 * np.int64(symbol & np.uint64(1)))
            i += 1
        if positions.size and positions[b] != last:
            status[0], status[1] = BROKEN, b
            return last
    return last
