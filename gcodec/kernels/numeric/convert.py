"""Conversion between float32 and float16, bfloat16 or float64, of whole arrays or by segments.

Values are rounded to nearest, ties to even, and overflow to infinity. A NaN keeps its sign and the
bits of its payload that fit (at least one), so a conversion to float32 and back preserves all
16-bit patterns. The arithmetic avoids subnormal float32 numbers, so a process that flushes them to
zero gets the same bits.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.jit import Kernel, inline, kernel
from gcodec.runtime.lanes import ROUNDED
from gcodec.runtime.memory import aligned_empty, bits_float, float_bits
from gcodec.runtime.reuse import result_beside

_U13, _U16 = np.uint32(13), np.uint32(16)
_ONE = np.uint32(1)
_ABS = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)
INFINITIES = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
"""Bit patterns of infinity, by dtype."""


class ConvertedArray:
    """(n,) values on the host that are converted to float32 when a segment is read.

    Codecs that read a tensor by segments accept this class in place of a (n,) float32 array, so a
    tensor of another dtype needs no converted copy. Each thread has a buffer for its slices; the
    next slice of the same thread overwrites it. Tasks that take slices pass the array as `beside`
    to `pool.run`, which then keeps segments short.

    Parameters
    ----------
    source : (n,) array
        Contiguous and aligned bit patterns as uint16, or float32 or float64 values.
    dtype : str
        "float16", "bfloat16", "float32" or "float64".
    finite : bool
        Whether NaN and infinity are read as 0.
    """

    is_converted = True

    def __init__(self, source: np.ndarray, dtype: str, *, finite: bool = False) -> None:
        self.source, self.dtype, self.finite = source, dtype, finite
        self.size = source.size

    @functools.cached_property
    def _own(self) -> threading.local:
        """The buffer of each thread."""
        return threading.local()

    def __getitem__(self, places: slice | np.ndarray) -> np.ndarray:
        """Return the float32 values of a contiguous slice, or at (k,) positions."""
        source = self.source[places]
        room = getattr(self._own, "room", None)
        if room is None or room.size < source.size:
            # New memory for each slice would take longer than the conversion.
            room = self._own.room = aligned_empty(source.size, np.float32)
        return self._put(source, room[: source.size])

    def whole(self) -> np.ndarray:
        """Return all values as an (n,) float32 array."""
        out = result_beside(self.size, np.float32, None)

        def task(start: int, stop: int) -> None:
            self._put(self.source[start:stop], out[start:stop])

        pool.run(task, self.size, beside=self if self.finite else None)
        return out

    def part(self, start: int, stop: int) -> ConvertedArray:
        """Return the values `start` to `stop - 1`, which are converted when they are read."""
        return ConvertedArray(self.source[start:stop], self.dtype, finite=self.finite)

    def finite_or_zero(self) -> ConvertedArray:
        """Return the array with NaN and infinity read as 0."""
        return ConvertedArray(self.source, self.dtype, finite=True)

    def _put(self, source: np.ndarray, out: np.ndarray) -> np.ndarray:
        if self.dtype in _FROM_16_BITS:
            _FROM_16_BITS[self.dtype](source, out)
        else:
            with np.errstate(all="ignore"):
                out[:] = source
        if self.finite:
            out[~np.isfinite(out)] = 0
        return out


def is_converted(values: Any) -> bool:
    """Return whether values are a `ConvertedArray`."""
    return type(values) is ConvertedArray


def part(values: Any, start: int, stop: int) -> Any:
    """Return a range of (n,) values, a `ConvertedArray` if they are one."""
    if type(values) is ConvertedArray:
        return values.part(start, stop)
    return values[start:stop]


def selected(values: Any, select: Callable[[Any], Any]) -> Any:
    """Return what a function selects from (n,) values, which may be a `ConvertedArray`.

    The function gets an (n,) array and returns some of its elements as a flat array. The result
    contains their float32 values.
    """
    if type(values) is ConvertedArray:
        return ConvertedArray(select(values.source), values.dtype, finite=values.finite).whole()
    return select(values)


def whole(values: Any) -> np.ndarray:
    """Return (n,) float32 values, which may be a `ConvertedArray`, as an array."""
    return values.whole() if type(values) is ConvertedArray else values


@dispatched("gcodec.kernels.numeric.convert_cuda")
def from_16_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Convert (n,) uint16 bit patterns of `dtype` ("float16" or "bfloat16") to float32."""
    bits = np.require(bits, requirements="A")  # bytes of a frame may be unaligned
    out = result_beside(bits.size, np.float32, None)
    return _segments(_FROM_16_BITS[dtype], bits, out)


@dispatched("gcodec.kernels.numeric.convert_cuda")
def to_16_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert (n,) float32 to uint16 bit patterns of `dtype` ("float16" or "bfloat16")."""
    out = result_beside(x.size, np.uint16, None)
    return _segments(_TO_16_BITS[dtype], x, out)


@dispatched("gcodec.kernels.numeric.convert_cuda")
def from_float64(x: np.ndarray) -> np.ndarray:
    """Convert (n,) float64 to float32."""
    with np.errstate(all="ignore"):
        return x.astype(np.float32)


@dispatched("gcodec.kernels.numeric.convert_cuda")
def to_float64(x: np.ndarray) -> np.ndarray:
    """Convert (n,) float32 to float64."""
    with np.errstate(invalid="ignore"):  # a signaling NaN becomes a quiet one
        return x.astype(np.float64)


@dispatched("gcodec.kernels.numeric.convert_cuda")
def as_booleans(values: np.ndarray) -> np.ndarray:
    """Return (n,) bytes as new uint8 booleans: 1 for each byte that is not 0."""
    return (values != 0).view(np.uint8)


def put(x: np.ndarray, dtype: str, out: np.ndarray) -> None:
    """Write (n,) float32 values to `out` on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        Contiguous, on the host.
    dtype : str
        "float16", "bfloat16" or "float64".
    out : (n,) array of `dtype`
        Contiguous and aligned.
    """
    if dtype in _TO_16_BITS:
        _TO_16_BITS[dtype](x, out.view(np.uint16))
        return
    with np.errstate(invalid="ignore"):  # a signaling NaN becomes a quiet one
        out[:] = x


@dispatched("gcodec.kernels.numeric.convert_cuda")
def finite_or_zero(x: np.ndarray) -> np.ndarray:
    """Replace NaN and infinity in (n,) float32 values by 0."""
    return np.where(np.isfinite(x), x, np.float32(0))


@dispatched("gcodec.kernels.numeric.convert_cuda")
def finite_patterns(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Replace the (n,) bit patterns of NaN and infinity by 0."""
    infinity = bits.dtype.type(INFINITIES[dtype])
    return np.where(bits & infinity == infinity, bits.dtype.type(0), bits)


def round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round (n,) float32 values to `dtype`; return the same array if it is at least float32."""
    if dtype in ("float32", "float64"):
        return x
    return from_16_bits(to_16_bits(x, dtype), dtype)


def rounding(dtype: str) -> int:
    """Return the index in `ROUNDED` of the dtype to which `round_to` rounds."""
    return 0 if dtype == "float64" else ROUNDED.index(dtype)


def add_rounded(x: np.ndarray, dtype: str, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·x to `out`, after rounding x to `dtype`; all are (n,) float32 on one device."""
    add = _ADD_ROUNDED.get(dtype) if device_of(out) is None else None
    if add is None:
        add_scaled(round_to(x, dtype), scale, out)
        return
    pool.run(lambda i, j: add(x[i:j], scale, out[i:j]), out.size)


@dispatched("gcodec.kernels.numeric.convert_cuda")
def round_number(value: float, dtype: str) -> np.float32:
    """Round a number to float32, and the result to `dtype`."""
    return round_to(np.array([value], np.float32), dtype)[0]


def _segments(convert: Kernel, source: np.ndarray, out: np.ndarray) -> np.ndarray:
    def task(start: int, stop: int) -> None:
        convert(source[start:stop], out[start:stop])

    pool.run(task, out.size, beside=source)
    return out


@kernel("in uint16[], out float32[]")
def _from_bfloat16(bits, out):
    for i in range(out.size):  # bits.size == out.size
        out[i] = bits_float(np.uint32(np.uint32(bits[i]) << _U16))


@inline
def _single_to_bfloat(bits):
    """Return the bits of the bfloat16 that is nearest to a float32, both as uint32."""
    odd = np.uint32((bits >> _U16) & _ONE)
    rounded = np.uint32(np.uint32(bits + np.uint32(np.uint32(0x7FFF) + odd)) >> _U16)
    top = np.uint32(bits >> _U16)
    nan = top if top & np.uint32(0x7F) else np.uint32(top | np.uint32(0x40))
    is_nan = np.uint32(bits & _ABS) > _INFINITY
    return nan if is_nan else rounded


@kernel("in float32[], out uint16[]")
def _to_bfloat16(x, out):
    for i in range(out.size):  # x.size == out.size
        out[i] = np.uint16(_single_to_bfloat(float_bits(x[i])))


@kernel("in float32[], float32, out float32[]")
def _add_bfloat16(x, scale, out):
    for i in range(out.size):  # x.size == out.size
        rounded = np.uint32(_single_to_bfloat(float_bits(x[i])) << _U16)
        out[i] += scale * bits_float(rounded)


@inline
def half_to_single(half):
    """Return the bits of the float32 that equals a float16, given its bits as uint32."""
    sign = np.uint32(np.uint32(half & np.uint32(0x8000)) << _U16)
    exponent = np.uint32(half & np.uint32(0x7C00))
    mantissa = np.uint32(half & np.uint32(0x03FF))
    body = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << _U13)
    # Rebias the exponent by 112, or by 224 for infinity and NaN.
    normal = np.uint32(body + np.uint32(0x38000000))
    special = np.uint32(body + np.uint32(0x70000000))
    tiny = float_bits(np.float32(mantissa) * np.float32(2.0**-24))
    value = special if exponent == np.uint32(0x7C00) else normal
    value = tiny if exponent == np.uint32(0) else value
    return np.uint32(value | sign)


@inline
def single_to_half(bits):
    """Return the bits of the float16 that is nearest to a float32, both as uint32."""
    magnitude = np.uint32(bits & _ABS)
    sign = np.uint32(np.uint32(bits >> _U16) & np.uint32(0x8000))
    odd = np.uint32((magnitude >> _U13) & _ONE)
    rounded = np.uint32(np.uint32(magnitude + np.uint32(np.uint32(0xFFF) + odd)) >> _U13)
    normal = np.uint32(rounded - np.uint32(0x1C000))
    # Below 2^-14 one unit is 2^-24, to which the addition of 1/2 rounds.
    sum_ = float_bits(bits_float(magnitude) + np.float32(0.5))
    tiny = np.uint32(sum_ - np.uint32(0x3F000000))
    payload = np.uint32(np.uint32(magnitude >> _U13) & np.uint32(0x3FF))
    payload = payload if payload else np.uint32(0x200)
    value = tiny if magnitude < np.uint32(0x38800000) else normal
    value = np.uint32(0x7C00) if magnitude >= np.uint32(0x47800000) else value
    value = np.uint32(np.uint32(0x7C00) | payload) if magnitude > _INFINITY else value
    return np.uint32(value | sign)


@kernel("in uint16[], out float32[]")
def _from_float16(bits, out):
    for i in range(out.size):  # bits.size == out.size
        out[i] = bits_float(half_to_single(np.uint32(bits[i])))


@kernel("in float32[], out uint16[]")
def _to_float16(x, out):
    for i in range(out.size):  # x.size == out.size
        out[i] = np.uint16(single_to_half(float_bits(x[i])))


@kernel("in float32[], float32, out float32[]")
def _add_float16(x, scale, out):
    for i in range(out.size):  # x.size == out.size
        out[i] += scale * bits_float(half_to_single(single_to_half(float_bits(x[i]))))


_FROM_16_BITS = {"float16": _from_float16, "bfloat16": _from_bfloat16}
_TO_16_BITS = {"float16": _to_float16, "bfloat16": _to_bfloat16}
_ADD_ROUNDED = {"float16": _add_float16, "bfloat16": _add_bfloat16}
