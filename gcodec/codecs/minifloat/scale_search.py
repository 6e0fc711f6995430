"""The scales of a tensor of minifloats: one for all elements, and a factor for each block."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, check_finite
from gcodec.arrays.sampling import runs_of, sample
from gcodec.codecs.minifloat import gennorm
from gcodec.codecs.minifloat.gennorm import ENOUGH, RULES, SMALL_SAMPLE, Rule, scale_of
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, corrected
from gcodec.kernels.numeric.log_histogram import add_residual_with_histogram
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize import block_scales, minifloat
from gcodec.kernels.quantize.block_scales import choose_factors, scales_of
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.payload import Payload
from gcodec.runtime import Array, pool
from gcodec.runtime.deferred import Deferred, as_float32
from gcodec.runtime.device import device_of, host
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import aligned_empty, empty_beside
from gcodec.wire.kinds import binary32

if TYPE_CHECKING:
    from gcodec.kernels.quantize.scale_search_cuda import Rule as RuleTables

NO_FACTORS, NO_SCALES = np.empty(0, np.uint8), np.empty(0, np.float32)

_ONE = np.float32(1)
_PART = 1 << 14  # elements that stay in a cache while they are divided or multiplied
_NORMAL = 2.0**-126  # least normal float32


class Scales(NamedTuple):
    """The numbers by which elements are divided before they are rounded to minifloats.

    Attributes
    ----------
    one : float32 or Deferred
        The scale of the tensor.
    block : int
        Number of elements of a block; 0 without blocks.
    each : float32 array
        The scale of each block.
    """

    one: np.float32
    block: int
    each: np.ndarray

    @classmethod
    def of(cls, scale: Any, block: int, factors: np.ndarray) -> Scales:
        """Return the scales for a tensor's scale, whose sign is ignored, and factors of blocks.

        A deferred scale must not be negative.
        """
        one = as_float32(scale if type(scale) is Deferred else abs(scale))
        return cls(one, block, scales_of(one, factors) if block else NO_SCALES)

    def quantize_all(self, x: np.ndarray, fmt: MiniFloat) -> tuple[np.ndarray, bool]:
        """Return the codes of a tensor, and whether all values are finite; see `quantize`."""
        if not self.block:
            return minifloat.quantize_tensor(x, self.one, fmt)
        if device_of(x) is not None:  # a device has memory for all ratios at once
            ratios = empty_beside(x.size, np.float32, x)
            ratios = block_scales.divide(x, 0, self.block, self.each, ratios)
            return minifloat.quantize_tensor(ratios, _ONE, fmt)
        out = aligned_empty(minifloat.codes_nbytes(x.size, fmt), np.uint8)
        return out, self.quantize_first(x, fmt, out)

    def rounded(self, x: np.ndarray, fmt: MiniFloat) -> tuple[np.ndarray, np.ndarray]:
        """Return the codes of finite elements, and their values; see `minifloat.rounded`."""
        if not self.block:
            return minifloat.rounded(x, self.one, fmt)
        return minifloat.rounded(x, self.each[np.arange(x.size) // self.block], fmt)

    def quantize_first(self, x: np.ndarray, fmt: MiniFloat, out: np.ndarray) -> bool:
        """Write the codes of the first elements to `out`, and return whether all are finite.

        Work runs on the threads of the pool. Only codes of all elements may end within a byte.
        """

        def task(start: int, stop: int) -> bool:
            part = minifloat.part_of(out, start, stop, fmt)
            return self.quantize(x[start:stop], start, fmt, part)

        return all(pool.run(task, x.size, BLOCK, x))

    def dequantize_all(
        self, codes: np.ndarray, fmt: MiniFloat, out: np.ndarray, add: np.float32 | None
    ) -> None:
        """Dequantize a tensor on the threads of the pool; see `dequantize`."""
        if not self.block:
            minifloat.dequantize_tensor(codes, self.one, fmt, out, add)
            return
        if device_of(out) is not None:
            values = empty_beside(out.size, np.float32, out)
            minifloat.dequantize_tensor(codes, _ONE, fmt, values)
            block_scales.multiply(values, 0, self.block, self.each, out, add)
            return

        def task(start: int, stop: int) -> None:
            part = minifloat.part_of(codes, start, stop, fmt)
            self.dequantize(part, start, fmt, out[start:stop], add)

        pool.run(task, out.size, BLOCK)

    def quantize(self, x: np.ndarray, first: int, fmt: MiniFloat, out: np.ndarray) -> bool:
        """Quantize the elements that start at index `first`; see `minifloat.quantize`.

        With blocks, all elements must be finite.
        """
        if not self.block:
            return minifloat.quantize(x, self.one, fmt, out)
        room = np.empty(min(_PART, x.size), np.float32)
        for at in range(0, x.size, _PART):
            values = x[at : at + _PART]
            ratios = block_scales.divide(values, first + at, self.block, self.each, room)
            codes = minifloat.part_of(out, at, at + values.size, fmt)
            minifloat.quantize(ratios, _ONE, fmt, codes)
        return True

    def dequantize(
        self,
        codes: np.ndarray,
        first: int,
        fmt: MiniFloat,
        out: np.ndarray,
        add: np.float32 | None = None,
        *,
        stream: bool = False,
    ) -> None:
        """Dequantize the elements that start at index `first`; see `minifloat.dequantize`."""
        if not self.block:
            minifloat.dequantize(codes, self.one, fmt, out, add, stream=stream)
            return
        room = np.empty(min(_PART, out.size), np.float32)
        for at in range(0, out.size, _PART):
            target = out[at : at + _PART]
            values = target if add is None else room[: target.size]
            part = minifloat.part_of(codes, at, at + target.size, fmt)
            minifloat.dequantize(part, _ONE, fmt, values)
            block_scales.multiply(values, first + at, self.block, self.each, target, add)


def scaled_exactly(scale: float, factor: np.float32, fmt: MiniFloat) -> np.float32 | None:
    """Return the product of a scale and a factor, if it scales all values as the factor does.

    It does if the factor is a power of two, and no value is subnormal or infinite. Otherwise the
    result is None.
    """
    one, least = np.float32(scale), float(fmt.magnitudes()[1])
    with np.errstate(over="ignore"):
        largest = max(one, one * factor) * fmt.magnitudes()[-1]
    is_exact = math.frexp(factor)[0] == 0.5 and np.isfinite(largest)
    if not is_exact or min(float(one), float(one) * float(factor)) * least < _NORMAL:
        return None
    return one * factor


def blocks(n: int, block: int) -> int:
    """Return the number of blocks of n elements; 0 without blocks."""
    return -(-n // block) if block else 0


def search_scale(
    values: Array,
    fmt: MiniFloat,
    rule: Rule,
    residual: Array | None = None,
    decay: np.float32 | None = None,
    *,
    judges_sum: bool = False,
) -> Any:
    """Find the scale of a tensor, or of its sum with a multiple of the residual.

    The scale of a large tensor is that of a sample, unless most elements of the sample are 0. On a
    device it is a `Deferred` with the same bits, and non-finite values are not detected. On the
    host, non-finite values of a sample of the sum raise `ParameterError`.

    Parameters
    ----------
    values : (n,) float32 array
    fmt : MiniFloat
    rule : "histogram", "gennorm" or "co3"
    residual : (n,) float32 array, optional
    decay : float32, optional
        Factor of the residual.
    judges_sum : bool
        Whether to look for zeros in the sample of the sum, in place of that of the tensor. On a
        device, this has no effect.

    Returns
    -------
    float or Deferred
    """
    if device_of(values) is not None:
        return _searched_on_device(values, fmt, rule, residual, decay)
    tensors = (values,) if residual is None else (values, residual)
    parts = tuple(map(sample, tensors))

    def is_sparse(part: np.ndarray) -> bool:
        return part.size < values.size and int(np.count_nonzero(part.view(np.int32))) < ENOUGH

    if not judges_sum and is_sparse(parts[0]):
        parts = tensors
    if residual is None or decay is None:
        return binary32(scale_of(parts[0], fmt, rule))
    part, top_bits, counts = _sum_of(parts[0], parts[1], decay)
    if judges_sum and is_sparse(part):
        part, top_bits, counts = _sum_of(values, residual, decay)
    if top_bits >= INFINITY_BITS:
        check_corrected(values, residual, decay)
    return binary32(scale_of(part, fmt, rule, counts))


def _sum_of(
    x: np.ndarray, residual: np.ndarray, decay: np.float32
) -> tuple[np.ndarray, int, np.ndarray]:
    """Return x + decay·residual, the bits of its largest magnitude, and its log-histogram."""
    out = empty_beside(x.size, np.float32, None)
    return out, *add_residual_with_histogram(x, ResidualUpdate(residual, decay, out))


def _searched_on_device(
    values: Array, fmt: MiniFloat, rule: Rule, residual: Array | None, decay: np.float32 | None
) -> Deferred:
    from gcodec.kernels.quantize import scale_search_cuda

    part, whole = sample(values), values
    nonzero = scale_search_cuda.nonzero_of(part)
    if residual is not None and decay is not None:
        part = corrected(part, sample(residual), decay)
        if part.size == values.size:
            whole = part
        else:
            whole = scale_search_cuda.all_corrected(values, residual, decay, nonzero)
    runs = np.empty(0, np.int64)
    if part.size > SMALL_SAMPLE[0]:
        runs = np.concatenate([runs_of(each.size, *SMALL_SAMPLE) for each in (part, whole)])
    tables = _rule_tables(fmt, rule)
    return scale_search_cuda.search(part, whole, nonzero, runs, SMALL_SAMPLE[1], tables)


@functools.cache
def _rule_tables(fmt: MiniFloat, rule: Rule) -> RuleTables:
    """Return a rule with the tables that its kernels read."""
    from gcodec.kernels.quantize import scale_search_cuda

    ladder = gennorm.ladder_of(fmt)
    scales = "alphas" if rule == "co3" else f"scales {fmt.format} {fmt.style}"
    rows: list[object] = [gennorm.row("ratios"), gennorm.row("betas"), gennorm.inverse_betas()]
    rows += [gennorm.row(scales), gennorm.roots(), gennorm.fractions(), gennorm.steps_near_one()]
    return scale_search_cuda.Rule(
        RULES.index(rule),
        np.concatenate([np.array(row, np.float64) for row in rows]),
        np.concatenate(ladder[1:4]),
        float(ladder.levels[1]),
        float(ladder.levels[-1]),
        gennorm.largest_scale(ladder),
        ladder.mantissa,
    )


def search_block_factors(
    values: np.ndarray, block: int, fmt: MiniFloat, scale: float | str
) -> tuple[float, np.ndarray]:
    """Find the scale of a tensor with blocks, unless it is a number, and the factors of blocks.

    Parameters
    ----------
    values : (n,) float32 array
    block : int
        Number of elements of a block.
    fmt : MiniFloat
    scale : float or str

    Returns
    -------
    scale : float or Deferred
        The number, or the scale that brings the largest magnitude to about the last level.
    factors : (ceil(n / block),) uint8 array
        On the device of the values.

    Raises
    ------
    ParameterError
        If a value is NaN or Inf.
    """
    top_bits: Any = check_finite(values)
    top = fmt.magnitudes()[-1]
    if isinstance(scale, str):
        scale = block_scales.largest_scale(top_bits, top)
    one = Scales.of(scale, 0, NO_FACTORS).one
    return scale, choose_factors(values, block, one, top, fmt.mantissa)


def read_factors(payload: Payload, n: int, scale: float, block: int, fmt: MiniFloat) -> np.ndarray:
    """Return the factors of blocks, which are the first bytes of a payload.

    Raises
    ------
    FormatError
        If the payload is too short, or if a scale takes a code beyond the range of float32.
    """
    count = blocks(n, block)
    if not count:
        return NO_FACTORS
    if payload.nbits < 8 * count:
        raise Truncated(f"the payload has {payload.nbits} bits, but its factors {count} bytes")
    factors = host(payload.data[:count])
    with np.errstate(over="ignore"):
        largest = Scales.of(scale, block, factors).each * fmt.magnitudes()[-1]
    if not np.isfinite(largest).all():
        at = int(np.argmin(np.isfinite(largest)))
        raise Corrupt(f"the scale of block {at} takes codes beyond float32", at)
    return factors
