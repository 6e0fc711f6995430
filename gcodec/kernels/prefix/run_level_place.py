"""Run–level pairs to a tensor: symbols, or the values of levels, at their positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.coded_mask import nonzero_error
from gcodec.kernels.prefix.codewords import CORRUPT
from gcodec.kernels.prefix.prefix_read import BROKEN, check
from gcodec.kernels.prefix.prefix_table import WIDE
from gcodec.kernels.prefix.run_level import FAR, RunLevelPairs
from gcodec.kernels.quantize.levels import KINDS, TINY, Scale, can_stream, dequantize, symbol_dtype
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel

_CLOSE = 32  # elements per pair up to which it pays to dequantize all elements
_SILENT = -4  # error: a value in a bucket whose norm is 0
_NO_SCALE = np.empty(0, np.float32), 1, 1  # of symbols


@dispatched("gcodec.kernels.prefix.run_level_place_cuda", by="out")
def place(
    pairs: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int, out: np.ndarray
) -> int:
    """Write symbols to their positions.

    Parameters
    ----------
    pairs : RunLevelPairs
    bounds : (count,) int64 array
        Ends of blocks of pairs; the last is the number of pairs.
    positions : (count,) int64 array
        Position of the last pair of each block, to be verified; of no elements without a table.
    before : int
        Position of the preceding pair.
    out : (n,) unsigned array
        Zeros for all elements of the tensor, to which the symbols are written.

    Returns
    -------
    int
        Position of the last pair.

    Raises
    ------
    Corrupt
    """
    status = np.zeros(2, np.int64)
    last = _placer(out.dtype)(*pairs, bounds, positions, before, *_NO_SCALE, out, status)
    return _checked(last, status, positions, out.size)


@dispatched("gcodec.kernels.prefix.run_level_place_cuda", by="out")
def place_values(
    pairs: RunLevelPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    scale: Scale,
    out: np.ndarray,
) -> int:
    """Write the values of levels to (n,) float32 zeros; see `place` and `levels`."""
    status = np.zeros(2, np.int64)
    if positions.size and (last := _placed_closely(pairs, bounds, positions, before, scale, out)):
        return last
    quantizer = scale.norms, scale.bucket, np.uint32(scale.s)
    last = _placer(out.dtype)(*pairs, bounds, positions, before, *quantizer, out, status)
    if status[0] == _SILENT:
        raise nonzero_error()
    return _checked(last, status, positions, out.size)


def _placed_closely(
    pairs: RunLevelPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    scale: Scale,
    out: np.ndarray,
) -> int:
    """Place symbols, then dequantize them all; faster than `place_values` for dense symbols.

    Returns
    -------
    int
        Position of the last pair; 0 if nothing was written, because the symbols are sparse or
        invalid.
    """
    last, status = int(positions[-1]), np.zeros(2, np.int64)
    if not before < last <= min(before + _CLOSE * int(bounds[-1]), out.size):
        return 0
    if not scale.norms[before // scale.bucket : -(-last // scale.bucket)].all():
        return 0
    symbols = np.zeros(last - before, symbol_dtype(scale.s))
    moved = positions - before
    _placer(symbols.dtype)(*pairs, bounds, moved, 0, *_NO_SCALE, symbols, status)
    if status[0] < 0:
        return 0
    dequantize(symbols, scale, before, out[before:last], stream=can_stream(out))
    return last


def _checked(last: Any, status: np.ndarray, positions: np.ndarray, n: int) -> int:
    if status[0] == CORRUPT:
        raise Corrupt(f"a gap passes the {n} elements of the tensor")
    check(status, positions.size > 0)
    return int(last)


@factory(lambda: ((kind,) for kind in (*KINDS, np.dtype(np.float32))))
def _placer(kind: np.dtype[np.generic]) -> Kernel:
    """Make the kernel that places symbols, or the values of their levels as float32."""
    dtype, is_value = kind.name, kind.kind == "f"
    cast = getattr(np, dtype)

    @kernel(
        "in uint8[], in uint8[], in uint64[], in uint64[], in int64[], in int64[], int64, "
        f"in float32[], int64, uint32, out {dtype}[], out int64[]",
        variant=dtype,
    )
    def place_pairs(
        gaps, symbols, far, wide, bounds, positions, before, norms, bucket, s, out, status
    ):
        # far and wide have as many elements as gaps, unless no gap is FAR, no symbol WIDE. For
        # values, norms.size == ceil(out.size / bucket), and bucket <= out.size.
        last, i, bucket_end = before, 0, np.int64(0)
        step, factor, tiny = np.float64(0), np.float32(0), False
        for b in range(bounds.size):
            while i < bounds[b]:  # at most gaps.size
                gap = far[i] if gaps[i] == FAR else np.uint64(gaps[i])
                if gap > np.uint64(out.size - last):
                    status[0], status[1] = CORRUPT, i
                    return last
                last += np.int64(gap)
                symbol = wide[i] if symbols[i] == WIDE and wide.size else np.uint64(symbols[i])
                i += 1
                if not is_value:
                    out[last - 1] = cast(symbol)
                    continue
                if last > bucket_end:
                    k = (last - 1) // bucket  # so below norms.size
                    bucket_end = (k + 1) * bucket
                    norm = np.float64(norms[k])
                    if norm == 0:
                        status[0], status[1] = _SILENT, i - 1
                        return last
                    step = norm / np.float64(s)
                    factor, tiny = np.float32(step), norm < TINY
                level = np.int64(symbol >> np.uint64(1))
                value = np.float32(level) * factor
                if tiny:
                    value = np.float32(np.float64(level) * step)
                # Signs are random, so that a branch would be mispredicted half of the time.
                out[last - 1] = value * np.float32(1 - 2 * np.int64(symbol & np.uint64(1)))
            if positions.size and positions[b] != last:
                status[0], status[1] = BROKEN, b
                return last
        return last

    return place_pairs
