"""raw: the values themselves, as little-endian float32, float16 or bfloat16.

The baseline, and the file to copy for a codec of one's own.

Symbols: the bit patterns. Layout: element after element, 32 or 16 bits each, little-endian.
Lossless for values of the payload's dtype, −0, NaN and their payloads included; others are rounded
to nearest, ties to even, beyond the range to infinity. Bits per element: 32 or 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec.codec import Codec
from gcodec.fields.walk import Piece, Told, Walk
from gcodec.kernels import convert
from gcodec.kernels.convert import is_converted, whole
from gcodec.kernels.memory import aligned_copy
from gcodec.kernels.pack import check_length
from gcodec.kinds import Choice
from gcodec.params import param
from gcodec.payload import Payload
from gcodec.registry import register
from gcodec.wire import ITEMSIZE


class RawSymbols(NamedTuple):
    """Bit patterns of the values.

    Attributes
    ----------
    bits : (n,) uint32 or uint16 array
    """

    bits: np.ndarray


@register(id=1, name="raw")
class Raw(Codec):
    """The values themselves.

    Parameters
    ----------
    dtype : {"float32", "float16", "bfloat16"}
        Of the payload; the frame keeps the tensor's own besides.
    """

    has_twins = True
    reads_segments = True

    dtype: str = param(Choice("float32", "float16", "bfloat16"), "float32", "dtype of the payload")

    @property
    def unbiased(self) -> bool:
        """True where nothing is rounded."""
        return self.dtype == "float32"

    def contraction(self, n: int) -> float | None:
        """Return 1 (no error) for float32, None else: what underflows is lost."""
        return 1.0 if self.dtype == "float32" else None

    def variance(self, n: int) -> float | None:
        """Return 0 for float32, None else."""
        return 0.0 if self.dtype == "float32" else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n values."""
        return 8 * ITEMSIZE[self.dtype] * n

    def _quantize(self, values: np.ndarray, seed: int, prior: RawSymbols | None) -> RawSymbols:
        if self.dtype == "float32":
            # Symbols outlive the caller's array.
            copied = whole(values) if is_converted(values) else aligned_copy(values)
            return RawSymbols(copied.view(np.uint32))
        return RawSymbols(convert.to_16_bits(values, self.dtype))

    def _encode(self, values: np.ndarray, seed: int, prior: RawSymbols | None) -> Payload:
        given: Any = values
        # Bits that stay as they are are those of the caller's own array.
        if is_converted(given) and given.dtype == self.dtype and not given.finite:
            return self._pack(RawSymbols(given.source))
        if type(given) is np.ndarray and self.dtype == "float32":
            return self._pack(RawSymbols(given.view(np.uint32)))
        return self._pack(self._quantize(values, seed, prior))

    def _dequantize(self, symbols: RawSymbols, out: np.ndarray) -> None:
        self._require(symbols.bits.size == out.size, out.size)
        if self.dtype == "float32":
            out.view(np.uint32)[:] = symbols.bits
        else:
            out[:] = convert.from_16_bits(symbols.bits, self.dtype)

    def _pack(self, symbols: RawSymbols) -> Payload:
        return Payload(self, {}, symbols.bits.view(np.uint8), 8 * symbols.bits.nbytes)

    def _unpack(self, payload: Payload, n: int) -> RawSymbols:
        check_length(payload.nbits, self.max_payload_nbits(n))
        return RawSymbols(payload.data.view(np.uint32 if self.dtype == "float32" else np.uint16))

    def _describe(self, payload: Payload, n: int, walk: Walk) -> Iterator[Piece]:
        def tell(at: int, bits: np.ndarray) -> Iterator[Told]:
            own = bits.astype(np.uint32 if self.dtype == "float32" else np.uint16)
            values = np.empty(bits.size, np.float32)
            self._dequantize(RawSymbols(own), values)
            for element, value in enumerate(values.tolist(), at):
                yield Told(value, element=element, decoded=(value,))

        width = 8 * ITEMSIZE[self.dtype]
        yield from walk.fields("value", "value", width, n, tell, little=True)
        walk.finish()
