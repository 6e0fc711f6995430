"""How each kind of `blockwise` chooses scales, tables and codes.

All arithmetic is float32, except for the sums of a mean, which are float64 in the fixed order of
`gcodec.kernels.numeric.reduce`, or in the order that `_averages` states.
"""

from __future__ import annotations

import math

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codecs.blockwise.layout import ABSMAX, Layout
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.numeric.reduce import INFINITY_BITS, Moments, float_of_bits, moments
from gcodec.kernels.quantize import blockwise
from gcodec.kernels.quantize.value_table import ValueTable
from gcodec.runtime import pool

LARGEST = 2.0**126  # magnitudes up to this decode to finite numbers

_LEAST = np.float32(1e-38)  # what blocks are divided by, at least
_ZERO, _ONE = np.float32(0), np.float32(1)
_FINITE = np.float32(np.finfo(np.float32).max)
_PART = 1 << 16  # elements whose values are summed in order
_CHUNK = 100_000  # elements whose quantiles are taken together, at least


def quantize(x: np.ndarray, layout: Layout, data: np.ndarray) -> None:
    """Write the payload of (n,) float32 values with ``code=none`` to `data`.

    Raises
    ------
    ParameterError
        If a value is NaN or Inf, or above 2^126.
    """
    if not x.size:
        return
    front, codes = data[: layout.front_nbytes], data[layout.front_nbytes :]
    if layout.kind == "uniform8":
        _put(_uniform(x, codes), front)
    elif layout.kind == "quantile8":
        _put(_quantiles(x, codes), front)
    elif layout.kind in ABSMAX:
        scales = _absmax(x, layout.block, layout.table(), codes)
        if not layout.nested:
            _put(scales, front)
            return
        offset = np.float32(moments(scales).total / scales.size)
        inner = front[4 + 4 * layout.outer_blocks :]
        table = ValueTable.of("dynamic8")
        outer = _absmax(scales - offset, layout.nested_block, table, inner)
        _put(np.append(offset, outer), front[: 4 + 4 * layout.outer_blocks])
    else:
        tops = _tops(x, layout.block)
        table = layout.table()
        largest = np.float32(448 if layout.is_multiplier else table.values.size // 2)
        with np.errstate(divide="ignore", over="ignore"):
            factors = largest / tops
        if layout.is_multiplier:
            factors[np.isinf(factors)] = 1
        else:
            factors = np.where(tops > 0, np.minimum(factors, _FINITE), _ONE)
        blockwise.quantize(x, layout.block, factors, _ZERO, table, codes)
        _put(factors if layout.is_multiplier else _ONE / factors, front)


def _put(numbers: np.ndarray, out: np.ndarray) -> None:
    out[:] = numbers.astype("<f4", copy=False).view(np.uint8)


def _tops(x: np.ndarray, block: int) -> np.ndarray:
    """Return the largest magnitudes of blocks; raise `ParameterError` for values above 2^126."""
    tops = norms(x, block, "max")
    _check_largest(x, float(tops.max()))
    return tops


def _check_largest(x: np.ndarray, largest: float) -> None:
    if not math.isfinite(largest):
        raise nonfinite_error(x)
    if largest > LARGEST:
        raise ParameterError("x: must not exceed 2^126 for blockwise")


def _absmax(x: np.ndarray, block: int, table: ValueTable, codes: np.ndarray) -> np.ndarray:
    """Write the codes of x relative to the largest magnitudes of blocks, and return these.

    Full blocks are multiplied by a reciprocal, and a partial one is divided.
    """
    tops = _tops(x, block)
    rest = x.size % block
    if rest:
        tops[-1] = np.maximum(tops[-1], _LEAST)
    full = x.size - rest
    factors = _ONE / np.maximum(tops, _LEAST)
    start = full // table.per_byte
    blockwise.quantize(x[:full], block, factors, _ZERO, table, codes[:start])
    if rest:
        scaled = x[full:] / tops[-1]
        blockwise.quantize(scaled, block, np.ones(1, np.float32), _ZERO, table, codes[start:])
    return tops


def _uniform(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Write 256 equal steps over six standard deviations, and return the mean of each step."""
    of: Moments = moments(x)
    _check_largest(x, float_of_bits(of.largest) if of.largest < INFINITY_BITS else math.inf)
    n = x.size
    mean = np.float32(of.total / n)
    squares = max(0.0, of.squares - of.total * of.total / n)
    sigma = np.float32(math.sqrt(squares / max(n - 1, 1)))
    scale = np.float32(6) * (sigma / np.float32(256))
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.minimum(_ONE / scale, _FINITE)
    if scale:
        table, factors = ValueTable.of("offset8"), np.full(1, factor)
        blockwise.quantize(x, n, factors, mean, table, codes)
    else:
        codes[:] = 255
    return _averages(x, codes)


def _quantiles(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Write the numbers of 256 equally frequent ranges, and return the mean of each range."""
    _check_largest(x, float(norms(x, x.size, "max")[0]))
    borders = _borders(x)[1:-1]

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, _PART):
            part = slice(at, min(at + _PART, stop))
            codes[part] = np.searchsorted(borders, x[part])

    pool.run(task, x.size, _PART)
    return _averages(x, codes)


def _borders(x: np.ndarray) -> np.ndarray:
    """Return 257 quantiles of the quantiles of chunks, as (257,) float32."""
    size = _CHUNK
    if x.size > _CHUNK:
        chunks, rest = divmod(x.size, _CHUNK)
        size = _CHUNK + (rest - 1) // chunks + 1
    rows = [_quantile(np.sort(x[at : at + size])) for at in range(0, x.size, size)]
    return _quantile(np.sort(np.concatenate(rows)))


def _quantile(ordered: np.ndarray) -> np.ndarray:
    """Return the quantiles k/256 of ascending float32 numbers, by linear interpolation."""
    places = np.float32(ordered.size - 1) * (np.arange(257, dtype=np.float32) / np.float32(256))
    below = np.minimum(np.floor(places).astype(np.int64), ordered.size - 1)
    above = np.minimum(below + 1, ordered.size - 1)
    weights = places - np.floor(places)
    low, high = ordered[below], ordered[above]
    width = high - low
    from_low, from_high = low + width * weights, high - width * (_ONE - weights)
    quantiles: np.ndarray = np.where(weights < 0.5, from_low, from_high)
    return quantiles


def _averages(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the mean of the elements of each code, and 0 for a code that does not occur.

    Sums are float64: of 2^16 consecutive elements in order, and then of these sums in order.
    """

    def task(start: int, stop: int) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = []
        for at in range(start, stop, _PART):
            part = slice(at, min(at + _PART, stop))
            sums = np.bincount(codes[part], x[part], 256)
            parts.append((sums, np.bincount(codes[part], minlength=256)))
        return parts

    sums, counts = np.zeros(256), np.zeros(256, np.int64)
    for parts in pool.run(task, x.size, _PART):
        for part_sums, part_counts in parts:
            sums += part_sums
            counts += part_counts
    means: np.ndarray = (sums / np.maximum(counts, 1)).astype(np.float32)
    return means
