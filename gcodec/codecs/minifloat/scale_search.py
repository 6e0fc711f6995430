"""The scales of a tensor of minifloats: one for all elements, or one for each block of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.intake import check_top
from gcodec.arrays.sampling import sample
from gcodec.codecs.minifloat.gennorm import ENOUGH, Rule, scale_of
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.kernels.quantize import block_scales, minifloat
from gcodec.kernels.quantize.block_scales import choose_factors, scales_of
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.payload import Payload
from gcodec.runtime import pool
from gcodec.runtime.deferred import Deferred, single
from gcodec.runtime.device import device_of, dispatched, host
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import aligned_empty, empty_beside
from gcodec.wire.kinds import binary32

NO_FACTORS, NO_SCALES = np.empty(0, np.uint8), np.empty(0, np.float32)

_ONE = np.float32(1)
_PART = 1 << 14  # elements that stay in a cache while they are divided or multiplied


class Scales(NamedTuple):
    """What elements are divided by before they are coded.

    Attributes
    ----------
    one : float32 or Later
        The scale of the tensor.
    block : int
        Elements of a block; 0 where there are none.
    each : float32 array
        The scale of each block.
    """

    one: np.float32
    block: int
    each: np.ndarray

    @classmethod
    def of(cls, scale: Any, block: int, factors: np.ndarray) -> Scales:
        """Make them of the scale, whose sign does not matter, and the bytes of the blocks.

        What a device has yet to tell is not negative.
        """
        one = single(scale if type(scale) is Deferred else abs(scale))
        return cls(one, block, scales_of(one, factors) if block else NO_SCALES)

    def quantize_all(self, x: np.ndarray, fmt: MiniFloat) -> tuple[np.ndarray, bool]:
        """Return the codes of a tensor, and whether all of it is finite; see `quantize`."""
        if not self.block:
            return minifloat.quantize_tensor(x, self.one, fmt)
        if device_of(x) is not None:  # which has room for all at once
            room = empty_beside(x.size, np.float32, x)
            ratios = block_scales.divide(x, 0, self.block, self.each, room)
            return minifloat.quantize_tensor(ratios, _ONE, fmt)
        out = aligned_empty(minifloat.codes_nbytes(x.size, fmt), np.uint8)
        return out, self.quantize_first(x, fmt, out)

    def quantize_first(self, x: np.ndarray, fmt: MiniFloat, out: np.ndarray) -> bool:
        """Write the codes of the first elements to `out`, on the threads of the pool.

        Return whether all are finite. If they end within a byte, they must be all elements.
        """

        def task(start: int, stop: int) -> bool:
            part = minifloat.part_of(out, start, stop, fmt)
            return self.quantize(x[start:stop], start, fmt, part)

        return all(pool.run(task, x.size, BLOCK))

    def dequantize_all(
        self, codes: np.ndarray, fmt: MiniFloat, out: np.ndarray, add: np.float32 | None = None
    ) -> None:
        """Dequantise a tensor, on the threads of the pool; see `dequantize`."""
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
        """Quantise elements from number `first` on; see `kernels.minifloat.quantize`.

        With blocks, all elements must be finite.
        """
        if not self.block:
            return minifloat.quantize(x, self.one, fmt, out)
        room = np.empty(min(_PART, x.size), np.float32)
        for at in range(0, x.size, _PART):
            some = x[at : at + _PART]
            ratios = block_scales.divide(some, first + at, self.block, self.each, room)
            part = minifloat.part_of(out, at, at + some.size, fmt)
            minifloat.quantize(ratios, _ONE, fmt, part)
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
        """Dequantise elements from number `first` on; see `kernels.minifloat.dequantize`."""
        if not self.block:
            minifloat.dequantize(codes, self.one, fmt, out, add, stream=stream)
            return
        room = np.empty(min(_PART, out.size), np.float32)
        for at in range(0, out.size, _PART):
            some = out[at : at + _PART]
            values = some if add is None else room[: some.size]
            part = minifloat.part_of(codes, at, at + some.size, fmt)
            minifloat.dequantize(part, _ONE, fmt, values)
            block_scales.multiply(values, first + at, self.block, self.each, some, add)


def blocks(n: int, block: int) -> int:
    """Return how many blocks n elements have."""
    return -(-n // block) if block else 0


@dispatched("gcodec.codecs.minifloat.scale_search_cuda")
def searched(
    values: np.ndarray,
    fmt: MiniFloat,
    rule: Rule,
    residual: np.ndarray | None = None,
    decay: np.float32 | None = None,
) -> float:
    """Find the scale of a tensor, or of its sum with a multiple of the residual.

    It is that of a sample of a large tensor, or of all where most elements are 0.

    Parameters
    ----------
    values : (n,) float32 array
    fmt : MiniFloat
    rule : "histogram", "gennorm" or "co3"
    residual : (n,) float32 array, optional
    decay : float32, optional
    """
    both = (values,) if residual is None else (values, residual)
    found = tuple(map(sample, both))
    if found[0].size < values.size and np.count_nonzero(found[0].view(np.int32)) < ENOUGH:
        found = both
    some = found[0] if decay is None else arithmetic.corrected(found[0], found[1], decay)
    return binary32(scale_of(some, fmt, rule))


def found_for(
    values: np.ndarray, block: int, fmt: MiniFloat, scale: float | str
) -> tuple[float, np.ndarray]:
    """Find the scale, unless it is given as a number, and the bytes of the blocks.

    Parameters
    ----------
    values : (n,) float32 array
    block : int
    fmt : MiniFloat
    scale : float or str

    Returns
    -------
    scale : float
        By which the largest magnitude becomes about the last level, or what was given.
    factors : (ceil(n / block),) uint8 array

    Raises
    ------
    ParameterError
        For NaN and Inf.

    On a device both stay there.
    """
    top_bits, top = max_abs_bits(values), fmt.magnitudes()[-1]
    check_top(top_bits, values)
    if isinstance(scale, str):
        scale = block_scales.largest_scale(top_bits, top)
    one = Scales.of(scale, 0, NO_FACTORS).one
    return scale, choose_factors(values, block, one, top, fmt.mantissa)


def read_factors(payload: Payload, n: int, scale: float, block: int, fmt: MiniFloat) -> np.ndarray:
    """Return the bytes of blocks, at the start of a payload.

    Raises
    ------
    FormatError
        If they are not there, or if a code may stand for what passes float32.
    """
    count = blocks(n, block)
    if not count:
        return NO_FACTORS
    if payload.nbits < 8 * count:
        raise Truncated(f"the payload has {payload.nbits} bits, but {count} blocks a byte each")
    factors = host(payload.data[:count])
    with np.errstate(over="ignore"):
        largest = Scales.of(scale, block, factors).each * fmt.magnitudes()[-1]
    if not np.isfinite(largest).all():
        at = int(np.argmin(np.isfinite(largest)))
        raise Corrupt(f"block {at} has a scale by which codes pass float32", at)
    return factors
