"""The values of a sparse message: rounded floats, bytes with scales, or signs.

The values come first in the payload, in the order of their positions, which follow. Numbers are
big-endian, so the payload is one bit string, most significant bit first.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from gcodec.arrays.source import is_plain_array
from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.bits import byte_blocks, signs
from gcodec.kernels.bits.dequantize import LEVELS_1BIT
from gcodec.kernels.bits.dequantize import dequantize as dequantize_levels
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.norms import read_norms, write_norms
from gcodec.runtime.memory import aligned_empty
from gcodec.wire.primitives import ITEMSIZE

VALUES = ("float32", "float16", "bfloat16", "int8", "sign")

_SCALE_NBITS = 32
_INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
CODE_DTYPES = {name: np.dtype(f"u{ITEMSIZE[name]}") for name in _INFINITY}
"""Dtypes of the bit patterns of floats."""
_NO_SCALES = np.empty(0, np.float32)


class SparseValues(NamedTuple):
    """Quantized values, as the payload stores them.

    Attributes
    ----------
    scales : float32 array
        "int8": the step of each block of `byte_blocks.SIZE` values. "sign": the magnitude of all
        values, if there are any. Floats: empty.
    codes : uint32, uint16 or uint8 array
        Floats: (k,) bit patterns. "int8": (k,) uint8, in two's complement. "sign": (ceil(k / 8),)
        uint8, one bit per value from the highest bit on, 1 for negative values, padded with zeros.
    """

    scales: np.ndarray
    codes: np.ndarray


def quantize(values: np.ndarray, value: str) -> SparseValues:
    """Quantize (k,) finite float32 values; "float32" returns a view of them.

    Values above the largest 16-bit float become that float, so error feedback can send the
    difference later.
    """
    if value == "sign":
        bits, total = signs.quantize(values, squares=False)
        scales = np.full(min(values.size, 1), total / max(values.size, 1), np.float32)
        return SparseValues(scales, bits)
    if value == "int8":
        return SparseValues(*byte_blocks.quantize(values))
    if value == "float32":
        return SparseValues(_NO_SCALES, values.view(np.uint32))
    codes = convert.to_16_bits(values, value)
    infinity = codes.dtype.type(_INFINITY[value])
    codes -= (codes & infinity) == infinity
    return SparseValues(_NO_SCALES, codes)


def fits(quantized: SparseValues, value: str, k: int) -> bool:
    """Return whether these are k quantized values."""
    scales, codes = quantized
    dtype = CODE_DTYPES.get(value, np.dtype(np.uint8))
    if not is_plain_array(scales, ("float32",)) or not is_plain_array(codes, (dtype,)):
        return False
    size = -(-k // 8) if value == "sign" else k
    return scales.size == scales_of(k, value) and codes.size == size


def dequantize(quantized: SparseValues, value: str, k: int) -> np.ndarray:
    """Return the (k,) float32 numbers of quantized values; "float32" returns a view of them.

    Raises
    ------
    ParameterError
        If there are not k values.
    """
    scales, codes = quantized
    if not fits(quantized, value, k):
        raise ParameterError(f"symbols: they do not have {k} values")
    if value == "sign":
        out = aligned_empty(k, np.float32)
        if k:
            dequantize_levels(codes, LEVELS_1BIT, -scales[0], out)
        return out
    if value == "int8":
        return byte_blocks.dequantize(scales, codes)
    if value == "float32":
        return codes.view(np.float32)
    return convert.from_16_bits(codes, value)


def nbits(k: int, value: str) -> int:
    """Return the number of bits of k values, scales included."""
    return _SCALE_NBITS * scales_of(k, value) + k * width_of(value)


def packed(
    quantized: SparseValues, value: str, k: int, *, is_own: bool = False
) -> tuple[np.ndarray, int]:
    """Return the bytes of k values, and the number of valid bits.

    If nobody else uses the codes (`is_own`), the bytes of floats may take their memory.
    """
    scales, codes = quantized
    total = nbits(k, value)
    if is_own and value in CODE_DTYPES and sys.byteorder == "little":
        return codes.byteswap(inplace=True).view(np.uint8), total
    data = np.empty(-(-total // 8), np.uint8)
    write_norms(scales, data)
    data[scales.nbytes :].view(codes.dtype.newbyteorder(">"))[:] = codes
    return data, total


def read(data: np.ndarray, k: int, value: str) -> SparseValues:
    """Read k values from the first bits of a payload, which the caller has checked to be enough.

    Raises
    ------
    Corrupt
        If a number is not finite, a scale is negative, or a byte is the unused code −128.
    """
    return SparseValues(read_scales(data, k, value), read_codes(data, k, value))


def read_scales(data: np.ndarray, k: int, value: str) -> np.ndarray:
    """Read the scales of k values; see `read`."""
    scales = read_norms(data[: 4 * scales_of(k, value)])
    if value == "int8" and byte_blocks.steps_pass_float32(scales):
        index = next(
            i for i in range(scales.size) if byte_blocks.steps_pass_float32(scales[i : i + 1])
        )
        raise Corrupt("a step is so large that values may be infinite", 4 * index)
    return scales


def read_codes(data: np.ndarray, k: int, value: str) -> np.ndarray:
    """Read the codes of k values; see `read`."""
    start, end = 4 * scales_of(k, value), -(-nbits(k, value) // 8)
    body = data[start:end]
    if value == "sign":
        codes = body.copy()
        if k % 8:  # the first positions may share the last byte
            codes[-1] &= 0xFF << 8 - k % 8 & 0xFF
        return codes
    if value == "int8":
        if (unused := body == 0x80).any():
            raise Corrupt("the value −128 stands for nothing", start + int(np.argmax(unused)))
        return body
    dtype = CODE_DTYPES[value]
    codes = body.view(dtype.newbyteorder(">")).astype(dtype)
    infinity = dtype.type(_INFINITY[value])
    if (codes & infinity).max(initial=0) == infinity:  # true for NaN, too
        index = int(np.argmax(codes & infinity == infinity))
        raise Corrupt("a value is not finite", start + index * dtype.itemsize)
    return codes


def width_of(value: str) -> int:
    """Return the number of bits of a value, without scales."""
    return {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "sign": 1}[value]


def scales_of(k: int, value: str) -> int:
    """Return the number of scales of k values."""
    return {"int8": -(-k // byte_blocks.SIZE), "sign": min(k, 1)}.get(value, 0)
