"""raw: the values themselves, as little-endian float32, float16 or bfloat16.

This codec is the baseline, and the file to start from when you write a codec.

Symbols: the bit patterns. Layout: element after element, 32 or 16 bits each, little-endian. The
codec is lossless for values of the payload's dtype, including −0 and the payload bits of NaN.
Other values are rounded to nearest with ties to even, and to infinity beyond the range. Bits per
element: 32 or 16.

Tensors of integers, booleans and floats of 8 bits travel in their own dtype, which the frame
states: 8 to 64 bits per element, and booleans as one byte of 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from gcodec.arrays.bit_patterns import bits_dtype
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codec import Codec, register
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.convert import from_16_bits, is_converted, to_16_bits, whole
from gcodec.payload import Payload
from gcodec.runtime import Array
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import aligned_copy
from gcodec.wire.kinds import Choice
from gcodec.wire.params import param
from gcodec.wire.primitives import FLOATS, ITEMSIZE

_R = TypeVar("_R", bound="Raw")


class RawSymbols(NamedTuple):
    """Bit patterns of the values.

    Attributes
    ----------
    bits : (n,) uint32 or uint16 array
        For tensors that travel in their own dtype, an array of unsigned integers of its width.
    """

    bits: np.ndarray


@register(id=1, name="raw")
class Raw(Codec):
    """The values themselves, the lossless baseline.

    Parameters
    ----------
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of the payload. The frame also stores the tensor's own dtype. Tensors of
        integers, booleans and floats of 8 bits travel in their own dtype and leave this parameter
        at its default.
    """

    symbols_type = RawSymbols
    symbols_dtypes: ClassVar = {"bits": ("uint8", "uint16", "uint32", "uint64")}
    has_cuda_kernels = True
    accepts_all_dtypes = True
    reads_segments = True
    peers: ClassVar = {"fp16": "raw:dtype=float16", "bf16": "raw:dtype=bfloat16"}
    # Dtype of a tensor that travels in its own; `_with_dtype` sets it.
    _own_dtype: ClassVar[str | None] = None

    dtype: str = param(Choice("float32", "float16", "bfloat16"), "float32", "dtype of the payload")

    @property
    def unbiased(self) -> bool:
        """True where no value is rounded."""
        return self.dtype == "float32"

    def contraction(self, n: int) -> float | None:
        """Return 1 (no error) for float32; None otherwise, because small values underflow."""
        return 1.0 if self.dtype == "float32" else None

    def variance(self, n: int) -> float | None:
        """Return 0 for float32, None otherwise."""
        return 0.0 if self.dtype == "float32" else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n values."""
        return 8 * ITEMSIZE[self._own_dtype or self.dtype] * n

    def _with_dtype(self: _R, dtype: str) -> _R:
        super()._with_dtype(dtype)  # refuses other dtypes
        own = None if dtype in FLOATS else dtype
        if own is not None and self.dtype != "float32":
            allowed = f"left out for a tensor of {dtype}, which travels in its own dtype"
            raise ParameterError.of("dtype", self.dtype, allowed)
        return self if own == self._own_dtype else self._bound(_own_dtype=own)

    @property
    def _values_dtype(self) -> np.dtype[Any]:
        return NUMPY_DTYPES[self._own_dtype or "float32"]

    @property
    def _bits_dtype(self) -> np.dtype[Any]:
        """Dtype of the bit patterns."""
        return bits_dtype(ITEMSIZE[self._own_dtype or self.dtype])

    def _quantize(self, values: np.ndarray, seed: int, prior: RawSymbols | None) -> RawSymbols:
        if self._own_dtype == "bool":
            # The memory of a boolean may contain bytes above 1; they all mean True.
            return RawSymbols((values.view(np.uint8) != 0).view(np.uint8))
        if self._own_dtype or self.dtype == "float32":
            # Symbols outlive the caller's array, so they need a copy.
            copied = whole(values) if is_converted(values) else aligned_copy(values)
            return RawSymbols(copied.view(self._bits_dtype))
        return RawSymbols(to_16_bits(values, self.dtype))

    def _encode(self, values: np.ndarray, seed: int, prior: RawSymbols | None) -> Payload:
        source: Any = values
        # If the bits do not change, the payload is a view of the caller's own array.
        if is_converted(source) and source.dtype == self.dtype and not source.finite:
            return self._pack(RawSymbols(source.source))
        if type(source) is np.ndarray and self.dtype == "float32" and self._own_dtype != "bool":
            return self._pack(RawSymbols(source.view(self._bits_dtype)))
        return self._pack(self._quantize(values, seed, prior))

    def _sends(self, values: Array) -> bool:
        is_plain: bool = type(values) is np.ndarray and values.dtype == np.float32
        return is_plain and self._own_dtype is None and self.dtype == "float32"

    def _dequantize(self, symbols: RawSymbols, out: np.ndarray) -> None:
        fits = symbols.bits.dtype == self._bits_dtype and symbols.bits.size == out.size
        self._require(fits, out.size)
        if self._own_dtype or self.dtype == "float32":
            out.view(self._bits_dtype)[:] = symbols.bits
        else:
            out[:] = from_16_bits(symbols.bits, self.dtype)

    def _dequantize_add(
        self, symbols: RawSymbols, dtype: str, scale: np.float32, out: Array
    ) -> None:
        is_single = dtype == "float32" and self.dtype == "float32" and self._own_dtype is None
        if is_single and device_of(out) is None:
            self._require(symbols.bits.nbytes == out.nbytes, out.size)
            arithmetic.add_scaled(symbols.bits.view(np.uint8), scale, out)
        else:
            super()._dequantize_add(symbols, dtype, scale, out)

    def _slice_unit(self, n: int) -> int:
        return 1

    def _slice(self, symbols: RawSymbols, start: int, stop: int) -> RawSymbols:
        return RawSymbols(symbols.bits[start:stop])

    def _check_symbols(self, symbols: RawSymbols) -> None:
        self._require(symbols.bits.dtype == self._bits_dtype, symbols.bits.size)

    def _pack(self, symbols: RawSymbols) -> Payload:
        return Payload(self, {}, symbols.bits.view(np.uint8), 8 * symbols.bits.nbytes)

    def _unpack(self, payload: Payload, n: int) -> RawSymbols:
        check_length(payload.nbits, self.max_payload_nbits(n))
        if self._own_dtype == "bool" and n and int(payload.data.max()) > 1:
            wrong = int(np.argmax(payload.data > 1))
            raise Corrupt(f"the byte {payload.data[wrong]} is neither true nor false", wrong)
        return RawSymbols(payload.data.view(self._bits_dtype))

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        def describe(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
            values = np.empty(bits.size, self._values_dtype)
            self._dequantize(RawSymbols(bits.astype(self._bits_dtype)), values)
            for element, value in enumerate(values.tolist(), at):
                yield FieldValue(value, element=element, decoded=(value,))

        width = 8 * ITEMSIZE[self._own_dtype or self.dtype]
        if self._own_dtype == "bool":

            def read() -> RawSymbols:
                return self._unpack(payload, n)

            yield from walk.checked("value", "value", width, n, describe, read, little=True)
        else:
            yield from walk.fields("value", "value", width, n, describe, little=True)
        walk.finish()
