"""minmax: 2^b equidistant levels from the smallest to the largest value, b bits for each element.

The payload is one bit string, most significant bit first. For each bucket of elements it contains
the smallest and largest value as binary32, then b bits for each element: q from 0 to L = 2^b − 1.
With r = (x − low)·(L/(high − low)), q is r rounded to nearest with ties to even, or rounded
stochastically with E q = r. With D = (high − low)/L, x̂ = low + q·D where |low| ≤ |high|, else
high + (q − L)·D. Bits per element: b, plus 64 for each bucket.

All arithmetic is float64, and x̂ is rounded once to float32, so no range is too small or too large.
The smallest and largest values decode exactly. So does a bucket of one distinct value, or of up to
2^b consecutive float32 numbers that do not cross a power of two. −0 becomes +0; NaN and Inf are
refused. In a bucket of one distinct value all q are 0.

Example: x = (−1, 0.2, 1, 0.6), bits=2 is ``bf 80 00 00 3f 80 00 00 2e`` and decodes to (−1, 1/3,
1, 1/3).

Source: min-max (affine) quantization, as in Banner et al., NeurIPS 2018; this layout is gcodec's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_top, nonfinite_error
from gcodec.codec import Codec, register
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.pack import FieldLayout, check_length, pack_fields
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics, add_residual
from gcodec.kernels.numeric.convert import rounding
from gcodec.kernels.numeric.ranges import (
    RANGE_NBYTES,
    check_ranges,
    ranges,
    read_ranges,
    write_ranges,
)
from gcodec.kernels.quantize import uniform
from gcodec.payload import Payload
from gcodec.runtime.deferred import require
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import clear, empty_beside
from gcodec.wire.kinds import Choice, Integer
from gcodec.wire.params import param


class MinMaxSymbols(NamedTuple):
    """Ranges and packed codes, as in the payload.

    Attributes
    ----------
    data : uint8 array
        The payload: ranges, then codes, in one array to avoid a copy of the codes.
    n : int
        Number of elements.
    """

    data: np.ndarray
    n: int


@register(id=6, name="minmax")
class MinMax(Codec):
    """Even steps from the smallest to largest value.

    Parameters
    ----------
    bits : int
        Bits of a code, from 1 to 8.
    bucket : int
        Number of elements that share a range; 0 for one range for the tensor.
    rounding : {"nearest", "stochastic"}
        Rounding to the nearest level, or stochastically to one of the two neighbors, which is
        unbiased.
    """

    symbols_type = MinMaxSymbols
    symbols_dtypes: ClassVar = {"data": ("uint8",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    fused_dtypes = ("float32", "float64")
    leaves_rounded = True
    decoded_factor = 4.0
    reads_segments = True

    bits: int = param(Integer(1, 8), 8, "bits of a code")
    bucket: int = param(Integer(0, 2**32 - 1), 0, "elements that share a range; 0: all")
    rounding: str = param(
        Choice("nearest", "stochastic"),
        "nearest",
        "to the nearest level, or stochastically, which is unbiased",
    )

    @property
    def unbiased(self) -> bool:
        """True where rounding is stochastic."""
        return self.rounding == "stochastic"

    @property
    def takes_up_to(self) -> float:  # type: ignore[override]
        """Magnitude up to which errors are finite; with one random bit they can be the range."""
        is_coarse = self.bits == 1 and self.rounding == "stochastic"
        return 2.0**126 if is_coarse else math.inf

    def contraction(self, n: int) -> float | None:
        """Return 1 − (m − 2)/(2·L²) for buckets of m elements if that is above 0, else None."""
        delta = 1 - self._error(n)
        return delta if self.rounding == "nearest" and delta > 0 else None

    def variance(self, n: int) -> float | None:
        """Return (m − 2)/(2·L²) for buckets of m elements, two of which are exact."""
        return self._error(n)

    def _error(self, n: int) -> float:
        """Bound the error relative to ‖x‖²: (high − low)² ≤ 2·‖x‖², and at most half a step."""
        last = (1 << self.bits) - 1
        return max(self._bucket(n) - 2, 0) / (2.0 * last**2)

    def _bucket(self, n: int) -> int:
        return max(min(self.bucket or n, n), 1)

    def _ranges_nbytes(self, n: int) -> int:
        return RANGE_NBYTES * -(-n // self._bucket(n))

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of ranges and codes."""
        return 8 * self._ranges_nbytes(n) + n * self.bits

    def _quantize(
        self, values: np.ndarray, seed: int, prior: MinMaxSymbols | None
    ) -> MinMaxSymbols:
        return self._quantized(values, seed)

    def _add_residual(self, x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
        return add_residual(x, update, self._bucket(x.size))

    def _quantize_in_place(
        self, values: np.ndarray, statistics: ValueStatistics, dtype: str, seed: int
    ) -> MinMaxSymbols:
        return self._quantized(
            values, seed, statistics, leaves_errors=True, rounded_to=rounding(dtype)
        )

    def _quantize_with_statistics(
        self,
        values: np.ndarray,
        statistics: ValueStatistics,
        seed: int,
        prior: MinMaxSymbols | None,
    ) -> MinMaxSymbols:
        return self._quantized(values, seed, statistics)

    def _quantized(
        self,
        values: np.ndarray,
        seed: int,
        statistics: ValueStatistics | None = None,
        *,
        leaves_errors: bool = False,
        rounded_to: int = 0,
    ) -> MinMaxSymbols:
        """Quantize values, perhaps given their `ValueStatistics`.

        With `leaves_errors`, the values are replaced by their quantization errors; see
        `uniform.quantize`.
        """
        n, known = values.size, statistics and statistics.ranges
        bucket_ranges, finite = known or ranges(values, self._bucket(n))
        require(finite, lambda: nonfinite_error(values))
        data = self._room(values)
        write_ranges(bucket_ranges, data)
        codes = data[self._ranges_nbytes(n) :]
        numbers = self._bucket(n), self.bits, self._key(seed)
        uniform.quantize(values, bucket_ranges, *numbers, codes, leaves_errors, rounded_to)
        return MinMaxSymbols(data, n)

    def _quantize_sum(
        self, x: np.ndarray, update: ResidualUpdate, seed: int
    ) -> tuple[MinMaxSymbols, int] | None:
        n, bucket = x.size, self._bucket(x.size)
        if not n or not uniform.adds_residual(bucket):
            return None
        data = self._room(x)
        codes, numbers = data[self._ranges_nbytes(n) :], (self.bits, self._key(seed))
        bucket_ranges, top = uniform.quantize_sum(x, update, bucket, *numbers, codes)
        check_top(top, x)
        write_ranges(bucket_ranges, data)
        return MinMaxSymbols(data, n), top

    def _room(self, values: np.ndarray) -> np.ndarray:
        """Return room for the payload of values."""
        return empty_beside(-(-self.max_payload_nbits(values.size) // 8), np.uint8, values)

    def _key(self, seed: int) -> int | None:
        """Return the seed if rounding is stochastic, else None."""
        return seed if self.rounding == "stochastic" else None

    def _try(self, values: np.ndarray, seed: int) -> tuple[np.ndarray, MinMaxSymbols]:
        bucket = self._bucket(values.size)
        bucket_ranges, finite = ranges(values, bucket)
        require(finite, lambda: nonfinite_error(values))
        rounded = uniform.rounded(values, bucket_ranges, bucket, self.bits, self._key(seed))
        zeros = np.zeros_like(self._room(values))  # only their number matters
        return rounded, MinMaxSymbols(zeros, values.size)

    def _dequantize_into(
        self, symbols: MinMaxSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        nbytes = -(-self.max_payload_nbits(out.size) // 8)
        self._require(symbols.n == out.size and symbols.data.size == nbytes, out.size)
        codes, bucket_ranges = self._parts(symbols)
        uniform.dequantize(codes, bucket_ranges, self._bucket(out.size), self.bits, out, add)

    def _adder(
        self, symbols: MinMaxSymbols, dtype: str, scale: np.float32
    ) -> Callable[[int, int, np.ndarray, bool], None]:
        if dtype not in self.fused_dtypes:
            return super()._adder(symbols, dtype, scale)
        add_part = uniform.adder(*self._parts(symbols), self._bucket(symbols.n), self.bits, scale)

        def add(start: int, stop: int, out: np.ndarray, is_fresh: bool) -> None:
            if is_fresh:
                clear(out)
            add_part(start, stop, out)

        return add

    def _slice_unit(self, n: int) -> int:
        bucket = self._bucket(n)
        return math.lcm(bucket if bucket < n else 1, BLOCK)

    def _slice(self, symbols: MinMaxSymbols, start: int, stop: int) -> MinMaxSymbols:
        bucket, codes = self._bucket(symbols.n), self._ranges_nbytes(symbols.n)
        ranges = slice(RANGE_NBYTES * (start // bucket), RANGE_NBYTES * -(-stop // bucket))
        part = slice(codes + start * self.bits // 8, codes + -(-stop * self.bits // 8))
        data = np.concatenate((symbols.data[ranges], symbols.data[part]))
        return MinMaxSymbols(data, stop - start)

    def _parts(self, symbols: MinMaxSymbols) -> tuple[np.ndarray, np.ndarray]:
        start = self._ranges_nbytes(symbols.n)
        return symbols.data[start:], read_ranges(symbols.data[:start])

    def _pack(self, symbols: MinMaxSymbols) -> Payload:
        return Payload(self, {}, symbols.data, self.max_payload_nbits(symbols.n))

    def _unpack(self, payload: Payload, n: int) -> MinMaxSymbols:
        nbits = self.max_payload_nbits(n)
        check_length(payload.nbits, nbits)
        check_ranges(payload.data, self._ranges_nbytes(n), nbits)
        return MinMaxSymbols(payload.data, n)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        bucket = self._bucket(n)
        count = self._ranges_nbytes(n) // RANGE_NBYTES

        def end(value: float, number: int) -> FieldValue:
            name = "high" if number % 2 else "low"
            return FieldValue(value, f"bucket {number // 2}", name=name, number=number // 2)

        def checked() -> np.ndarray:
            data = payload.data[: RANGE_NBYTES * count]
            check_ranges(data, data.size, 8 * data.size)
            return read_ranges(data)

        ends = describe_each(end, "float32")
        bucket_ranges = yield from walk.checked("scale", "low, high", 32, 2 * count, ends, checked)

        def describe(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
            own = bucket_ranges[np.arange(at, at + codes.size) // bucket]
            values, data = np.empty(codes.size, np.float32), codes.astype(np.uint8)
            uniform.dequantize(
                pack_fields(data, FieldLayout(self.bits)), own, 1, self.bits, values
            )
            parts = zip(codes.tolist(), values.tolist(), strict=True)
            for element, (code, value) in enumerate(parts, at):
                yield FieldValue(code, element=element, decoded=(value,))

        yield from walk.fields("level", "code", self.bits, n, describe)
        walk.finish()
