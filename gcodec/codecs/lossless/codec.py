"""lossless: every bit pattern, with the exponents of floats entropy-coded.

Symbols: the bit patterns. A message contains one plane of bytes for each byte of an element. The
first plane of a float contains its exponent, and the first plane of an integer its most
significant byte. With ``mode=fast``, Huffman words code this plane. With ``mode=small``, rANS
does, with models that depend on the means of row and column where this saves bits. The other
planes are stored, unless they are constant, all of their bytes are below 128, or an entropy code
saves a fiftieth. Zeros are left out of all planes but the first. If coding saves nothing, the
message contains the elements themselves, little-endian (``mode=stored``).

All dtypes of frames are accepted, and NaN with any payload, −0 and infinity are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from gcodec.arrays.bit_patterns import bits_of, check_booleans, dtype_beside
from gcodec.arrays.source import NUMPY_DTYPES, shares_memory
from gcodec.codec import Codec, register
from gcodec.codecs.lossless import describe, encoder
from gcodec.codecs.lossless.first_plane import clusters
from gcodec.codecs.lossless.message import Message
from gcodec.codecs.lossless.planes import PlaneLayout
from gcodec.entropy.coder import RansString, WordString, Written
from gcodec.errors import FormatError
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import convert
from gcodec.payload import Payload
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import aligned_copy
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Choice, check_choice
from gcodec.wire.params import param
from gcodec.wire.primitives import DTYPE_CODES, ITEMSIZE, UNCONVERTED
from gcodec.wire.seek import Blocks, SeekTable, refuse_table

_L = TypeVar("_L", bound="Lossless")


class LosslessSymbols(NamedTuple):
    """Bit patterns of the elements.

    Attributes
    ----------
    bits : (n,) unsigned array
        Bit patterns, of as many bits as the dtype has.
    dtype : str
        Dtype of the tensor.
    shape : tuple of int, optional
        Shape of the tensor; None for a vector.
    """

    bits: np.ndarray
    dtype: str
    shape: tuple[int, ...] | None = None


@register(id=15, name="lossless")
class Lossless(Codec):
    """Tensors without any loss, in fewer bits.

    Parameters
    ----------
    mode : {"auto", "fast", "small", "stored"}
        Code of the exponents: Huffman words; or rANS, whose models depend on the means of row and
        column where that pays. ``"auto"`` is the shortest. All modes store the elements themselves
        where that is shorter, as ``"stored"`` always does.
    """

    symbols_type = LosslessSymbols
    symbols_dtypes: ClassVar = {"bits": ("uint8", "uint16", "uint32", "uint64")}
    accepts_all_dtypes = True
    reads_segments = True
    keeps_every_bit = True
    has_cuda_kernels = True
    uses_shape = True
    # Dtype of the tensor, and its planes; `_with_dtype` sets them.
    _dtype: ClassVar[str] = "float32"
    _layout: ClassVar[PlaneLayout] = PlaneLayout.of("float32")

    mode: str = param(
        Choice("fast", "small", "stored", unsent=("auto",)),
        "auto",
        "code of the exponents: Huffman words, rANS by row and column; auto: the shortest",
    )

    @property
    def unbiased(self) -> bool:
        """True: no value is rounded."""
        return True

    def contraction(self, n: int) -> float | None:
        """Return 1: there is no error."""
        return 1.0

    def variance(self, n: int) -> float | None:
        """Return 0: there is no error."""
        return 0.0

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n elements."""
        return 8 * ITEMSIZE[self._dtype] * n

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: elements for Huffman words, states for rANS, None if stored."""
        if self.mode == "stored":
            return None
        return "elements" if self.mode == "fast" else "states"

    def _clusters(self, arrays: Sequence[np.ndarray], dtype: str) -> Sequence[int]:
        if self.mode == "stored":
            return super()._clusters(arrays, dtype)
        return clusters(arrays, dtype, self.mode)

    def _with_dtype(self: _L, dtype: str) -> _L:
        if dtype not in DTYPE_CODES:
            return super()._with_dtype(dtype)
        if dtype == self._dtype:
            return self
        return self._bound(_dtype=dtype, _layout=PlaneLayout.of(dtype))

    @property
    def _values_dtype(self) -> np.dtype[Any]:
        dtype = "float32" if self._dtype in ("float16", "bfloat16") else self._dtype
        values_dtype: np.dtype[Any] = NUMPY_DTYPES[dtype]
        return values_dtype

    # --- quantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: LosslessSymbols | None
    ) -> LosslessSymbols:
        bits = bits_of(values, self._dtype)
        if shares_memory(bits, values) or device_of(bits) is not None:
            bits = aligned_copy(bits)  # symbols outlive the caller's array
        return LosslessSymbols(bits, self._dtype, self._bound_shape(values.size))

    def _dequantize(self, symbols: LosslessSymbols, out: np.ndarray) -> None:
        bits, dtype, shape = symbols
        self._require(bits.size == out.size, out.size, shape)
        if dtype in UNCONVERTED:
            self._require(out.dtype == NUMPY_DTYPES[dtype], out.size)
            out.view(bits.dtype)[:] = bits
        elif dtype == "float32":
            out.view(np.uint32)[:] = bits
        elif dtype == "float64":
            values = bits.view(np.float64)
            out[:] = values if out.dtype == np.float64 else convert.from_float64(values)
        else:
            out[:] = convert.from_16_bits(bits, dtype)

    def _slice_unit(self, n: int) -> int:
        return 1

    def _slice(self, symbols: LosslessSymbols, start: int, stop: int) -> LosslessSymbols:
        return LosslessSymbols(symbols.bits[start:stop], symbols.dtype)

    # --- pack

    def _encode(self, values: np.ndarray, seed: int, prior: LosslessSymbols | None) -> Payload:
        bits = bits_of(values, self._dtype)
        payload = self._packed(bits, self._dtype, self._shape)
        if payload.codec.mode == "stored" and device_of(bits) is not None:
            return payload._replace(data=payload.data.copy())  # outlives the caller's array
        return payload

    def _check_symbols(self, symbols: LosslessSymbols) -> None:
        bits, dtype, shape = symbols
        check_choice("symbols.dtype", dtype, tuple(DTYPE_CODES))
        self._require(bits.dtype == PlaneLayout.of(dtype).bits_dtype, bits.size, shape)

    def _pack(self, symbols: LosslessSymbols) -> Payload:
        return self._packed(*symbols)

    def _packed(self, bits: np.ndarray, dtype: str, shape: tuple[int, ...] | None) -> Payload:
        mode, n = self.mode, bits.size
        if mode == "stored" or not n:
            written, mode = Written(bits.view(np.uint8), 8 * bits.nbytes), "stored"
        else:
            layout = PlaneLayout.of(dtype)
            mode, written = encoder.write(bits, layout, shape or (n,), mode)
        codec = self if mode == self.mode else self.replaced(mode=mode)
        return Payload(codec._with_dtype(dtype), {}, *written)

    def _unpack(self, payload: Payload, n: int) -> LosslessSymbols:
        bits = result_beside(n, self._layout.bits_dtype, payload.data)
        self._read(payload, n, bits)
        return LosslessSymbols(bits, self._dtype, self._bound_shape(n))

    def _read(self, payload: Payload, n: int, out: np.ndarray) -> None:
        """Decode all elements to (n,) bit patterns."""
        if self.mode == "stored" or not n:
            check_length(payload.nbits, self.max_payload_nbits(n))
            refuse_table(payload.seek)
            out.view(np.uint8)[:] = payload.data
        else:
            Message.open(payload, self._layout, n, self.mode).read(out)
            self._layout.restore(out)
        if self._dtype == "bool":
            check_booleans(out)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        dtype = self._values_dtype
        if dtype != NUMPY_DTYPES[self._dtype] or (out is not None and out.dtype != dtype):
            return super()._decode(payload, n, out)
        values = result_beside(n, dtype, payload.data) if out is None else out
        self._read(payload, n, values.view(self._layout.bits_dtype))
        return values

    def _decode_as(
        self, dtype: str, payload: Payload, n: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        if out is None:
            out = result_beside(n, dtype_beside(payload.data, dtype), payload.data)
        self._read(payload, n, out.view(self._layout.bits_dtype))
        return out

    def _decode_range(self, payload: Payload, n: int, start: int, stop: int) -> np.ndarray:
        """Return elements in the dtype of the tensor; see `Codec._decode_range`."""
        if self.mode == "stored" or not n:
            values = self._decode_as(self._dtype, payload, n)[start:stop].copy()
            return values
        part = Message.open(payload, self._layout, n, self.mode).read_range(start, stop)
        self._layout.restore(part)
        if self._dtype == "bool":
            check_booleans(part)
        return part.view(NUMPY_DTYPES[self._dtype])

    def _string(self, payload: Payload, n: int) -> WordString | RansString | None:
        if self.mode == "stored" or not n:
            return None
        return Message.open(payload, self._layout, n, self.mode).first

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        return Message.open(payload, self._layout, n, self.mode).blocks(log2_block)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        if self.mode == "stored" or not n:
            yield from self._stored_values(n, walk)
            return
        try:
            decoded = self._decode(payload._replace(seek=None), n)
        except FormatError:
            decoded = np.empty(0, np.float32)

        def values(start: int, stop: int) -> list[float]:
            part: list[float] = decoded[start:stop].tolist()
            return part

        yield from describe.fields(walk, self._layout, n, self.mode, values)

    def _stored_values(self, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        def describe_values(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
            values = np.empty(bits.size, self._values_dtype)
            patterns = bits.astype(self._layout.bits_dtype)
            self._dequantize(LosslessSymbols(patterns, self._dtype), values)
            for element, value in enumerate(values.tolist(), at):
                yield FieldValue(value, element=element, decoded=(value,))

        width = 8 * self._layout.itemsize
        yield from walk.fields("value", "value", width, n, describe_values, little=True)
        walk.finish()
