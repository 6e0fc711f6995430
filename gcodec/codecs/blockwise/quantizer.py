"""How each kind of `blockwise` chooses scales, tables and codes.

All arithmetic is float32, except for the sums of a mean, which are float64 in the fixed order of
`gcodec.kernels.numeric.reduce`, or in the order that `_averages` states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, nonfinite_error
from gcodec.codecs.blockwise.layout import ABSMAX, TABLE_SENT, Layout
from gcodec.errors import ParameterError
from gcodec.kernels.numeric import convert, reduce
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, correct
from gcodec.kernels.numeric.reduce import Moments, float_of_bits, max_abs_bits, moments
from gcodec.kernels.quantize import blockwise, quantiles, standard_scores
from gcodec.kernels.quantize.value_table import ValueTable
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.lanes import ROUNDED

LARGEST = 2.0**126  # magnitudes up to this decode to finite numbers

_LEAST = np.float32(1e-38)  # what blocks are divided by, at least
_ZERO, _ONE = np.float32(0), np.float32(1)
_FINITE = np.float32(np.finfo(np.float32).max)
_RECIPROCAL = blockwise.FactorRule(_ONE, _LEAST, False)
_PART = 1 << 16  # elements whose values are summed in order
_CHUNK = 100_000  # elements whose quantiles are taken together, at least


def accepts_update(layout: Layout) -> bool:
    """Return whether `quantize` can add a residual and replace it, in the pass over values."""
    if layout.kind in TABLE_SENT or layout.nested or layout.has_means or not layout.n:
        return False
    return blockwise.accepts_update(layout.n, layout.block)


class Loops(NamedTuple):
    """The loops of a quantizer; see the functions of `gcodec.kernels.quantize`."""

    quantize: Callable[..., None]
    quantize_relative: Callable[..., tuple[np.ndarray, np.ndarray]]
    of_ranks: Callable[..., np.ndarray]
    find_ranges: Callable[..., None]
    sums_of_codes: Callable[..., None]


KERNELS = Loops(
    blockwise.quantize,
    blockwise.quantize_relative,
    quantiles.of_ranks,
    quantiles.find_ranges,
    quantiles.sums_of_codes,
)
NUMPY = Loops(
    blockwise.rounded,
    blockwise.rounded_relative,
    quantiles.sorted_ranks,
    quantiles.search_ranges,
    quantiles.bin_sums,
)
"""The same without kernels of a kind, for finite values. NumPy takes longer than the kernels, but
needs no time to compile them."""


@dispatched("gcodec.codecs.blockwise.quantizer_cuda")
def quantize(
    x: np.ndarray,
    layout: Layout,
    data: np.ndarray,
    loops: Loops = KERNELS,
    update: ResidualUpdate | None = None,
    known: Moments | None = None,
) -> float:
    """Write the payload of (n,) float32 values with ``code=none`` to `data`.

    `known` has the moments of the values, if they are known.

    With an `update`, which only kernels accept, the payload is that of the sum; see
    `accepts_update`. An error leaves the new residual undefined.

    Returns
    -------
    float
        Largest magnitude of the values, or of the sum; 0 for layouts that accept no update.

    Raises
    ------
    ParameterError
        If a value is NaN or Inf, or above 2^126.
    """
    if not x.size:
        return 0.0
    front, codes = data[: layout.front_nbytes], data[layout.front_nbytes :]
    if layout.kind == "uniform8":
        _put(_uniform(x, codes, loops, known), front)
    elif layout.kind == "quantile8":
        _put(_quantiles(x, codes, loops), front)
    elif layout.has_means:
        means, deviations = front.view(np.float32).reshape(2, -1)
        check_largest(x, standard_scores.write_means(x, layout.block, means))
        standard_scores.quantize(x, layout.block, means, deviations, codes)
    elif layout.kind in ABSMAX:
        scales = _absmax(x, layout.block, layout.table(), codes, loops, update)
        if not layout.nested:
            _put(scales, front)
            return float(scales.max())
        write_nested(scales, layout, front, loops)
    else:
        rules = factor_rule(layout), layout.table()
        tops, factors = loops.quantize_relative(x, layout.block, *rules, codes, update)
        top = float(tops.max())
        check_largest(x, top, update)
        with np.errstate(under="ignore"):
            _put(factors if layout.is_multiplier else _ONE / factors, front)
        return top
    return 0.0


def factor_rule(layout: Layout) -> blockwise.FactorRule:
    """Return how the factors of blocks follow from their largest magnitudes."""
    if layout.kind in ABSMAX:
        return _RECIPROCAL
    largest = np.float32(448 if layout.is_multiplier else layout.table().values.size // 2)
    return blockwise.FactorRule(largest, _ZERO, layout.is_multiplier)


def write_nested(scales: np.ndarray, layout: Layout, front: np.ndarray, loops: Loops) -> None:
    """Write nested scales, which are codes of ``dynamic8`` themselves."""
    offset = np.float32(moments(scales).total / scales.size)
    inner = front[4 + 4 * layout.outer_blocks :]
    table = ValueTable.of("dynamic8")
    outer = _absmax(scales - offset, layout.nested_block, table, inner, loops)
    _put(np.append(offset, outer), front[: 4 + 4 * layout.outer_blocks])


def _put(numbers: np.ndarray, out: np.ndarray) -> None:
    out[:] = numbers.astype("<f4", copy=False).view(np.uint8)


def check_largest(x: np.ndarray, largest: float, update: ResidualUpdate | None = None) -> None:
    """Raise `ParameterError` if the largest magnitude of x is not finite, or is above 2^126."""
    if not math.isfinite(largest):
        if update is not None:
            check_corrected(x, update.former, update.decay)
        raise nonfinite_error(x)
    if largest > LARGEST:
        raise ParameterError("x: must not exceed 2^126 for blockwise")


def _absmax(
    x: np.ndarray,
    block: int,
    table: ValueTable,
    codes: np.ndarray,
    loops: Loops,
    update: ResidualUpdate | None = None,
) -> np.ndarray:
    """Write the codes of x relative to the largest magnitudes of blocks, and return these.

    Full blocks are multiplied by a reciprocal, and a partial one is divided. See `quantize` for
    the update.
    """
    rest = x.size % block
    full = x.size - rest
    start = full // table.per_byte
    tops = np.empty(-(-x.size // block), np.float32)
    head, own = convert.part(x, 0, full), update and update.part(0, full)
    tops[: full // block], _ = loops.quantize_relative(
        head, block, _RECIPROCAL, table, codes[:start], own
    )
    last = x[full:]
    if rest and update is not None:
        own = update.part(full, x.size)
        last = own.new_residual
        correct(x[full:], own.save(), own.decay, last)
        own.mark_replaced()
    if rest:
        tops[-1] = np.maximum(float_of_bits(max_abs_bits(last)), _LEAST)
    check_largest(x, float(tops.max()), update)
    if rest:
        with np.errstate(under="ignore"):
            scaled, one = last / tops[-1], np.ones(1, np.float32)
        loops.quantize(scaled, block, one, _ZERO, table, codes[start:])
        if update is not None:
            decoded, dtype = np.empty_like(last), ROUNDED[update.rounded_to]
            blockwise.dequantize(codes[start:], block, tops[-1:], table.values, False, decoded)
            convert.add_rounded(decoded, dtype, np.float32(-1), last)
    return tops


def _uniform(x: np.ndarray, codes: np.ndarray, loops: Loops, known: Moments | None) -> np.ndarray:
    """Write 256 equal steps over six standard deviations, and return the mean of each step."""
    total, squares, top = known or moments(x)
    check_largest(x, float_of_bits(top) if top < reduce.INFINITY_BITS else math.inf)
    n = x.size
    mean = np.float32(total / n)
    squares = max(0.0, squares - total * total / n)
    sigma = np.float32(math.sqrt(squares / max(n - 1, 1)))
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        scale = np.float32(6) * (sigma / np.float32(256))
        factor = np.minimum(_ONE / scale, _FINITE)
    if scale:
        table, factors = ValueTable.of("offset8"), np.full(1, factor)
        loops.quantize(x, n, factors, mean, table, codes)
    else:
        codes[:] = 255
    return _averages(x, codes, loops)


def _quantiles(x: np.ndarray, codes: np.ndarray, loops: Loops) -> np.ndarray:
    """Write the numbers of 256 equally frequent ranges, and return the mean of each range."""
    check_largest(x, float_of_bits(max_abs_bits(x)))
    table = quantiles.range_table(_borders(x, loops)[1:-1])

    def task(start: int, stop: int) -> None:
        loops.find_ranges(x[start:stop], *table, codes[start:stop])

    pool.run(task, x.size, 1, x)
    return _averages(x, codes, loops)


def _borders(x: np.ndarray, loops: Loops) -> np.ndarray:
    """Return 257 quantiles of the quantiles of chunks, as (257,) float32."""
    size = _CHUNK
    if x.size > _CHUNK:
        chunks, rest = divmod(x.size, _CHUNK)
        size = _CHUNK + (rest - 1) // chunks + 1

    def task(start: int, stop: int) -> np.ndarray:
        values = x[start:stop]
        rows = [_quantile(values[at : at + size], loops) for at in range(0, values.size, size)]
        return np.concatenate(rows)

    return _quantile(np.concatenate(pool.run(task, x.size, size, x)), loops)


def _quantile(x: np.ndarray, loops: Loops) -> np.ndarray:
    """Return the quantiles k/256 of float32 numbers, by linear interpolation."""
    places = np.float32(x.size - 1) * (np.arange(257, dtype=np.float32) / np.float32(256))
    below = np.minimum(np.floor(places).astype(np.int64), x.size - 1)
    above = np.minimum(below + 1, x.size - 1)
    weights = places - np.floor(places)
    ranks, inverse = np.unique(np.append(below, above), return_inverse=True)
    low, high = loops.of_ranks(x, ranks)[inverse].reshape(2, -1)
    width = high - low
    with np.errstate(under="ignore"):
        from_low, from_high = low + width * weights, high - width * (_ONE - weights)
    return np.where(weights < 0.5, from_low, from_high)


def _averages(x: np.ndarray, codes: np.ndarray, loops: Loops) -> np.ndarray:
    """Return the mean of the elements of each code, and 0 for a code that does not occur.

    Sums are float64: of 2^16 consecutive elements in order, and then of these sums in order.
    """
    parts = -(-x.size // _PART)
    part_sums = np.zeros((parts, quantiles.CODES))
    part_counts = np.zeros((parts, quantiles.CODES), np.int64)

    def task(start: int, stop: int) -> None:
        values = x[start:stop]
        for at in range(start, stop, _PART):
            part, end = at // _PART, min(at + _PART, stop)
            own = part_sums[part], part_counts[part]
            loops.sums_of_codes(values[at - start : end - start], codes[at:end], *own)

    pool.run(task, x.size, _PART, x)
    sums = np.zeros(quantiles.CODES)
    for own in part_sums:
        sums += own
    counts = part_counts.sum(axis=0)
    with np.errstate(under="ignore"):
        return (sums / np.maximum(counts, 1)).astype(np.float32)
