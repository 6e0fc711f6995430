"""Codecs that send few elements of a tensor; all others decode to +0."""

from __future__ import annotations

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codec.base import Codec, Symbols
from gcodec.kernels.numeric import convert, scatter
from gcodec.payload import Payload
from gcodec.runtime import Array
from gcodec.runtime.memory import clear
from gcodec.runtime.reuse import result_beside


class SparseCodec(Codec):
    """Base class of codecs whose symbols are positions and values."""

    def _elements(
        self, symbols: Symbols, n: int, beside: Array | None = None
    ) -> tuple[Array, Array]:
        raise NotImplementedError

    def _dequantize(self, symbols: Symbols, out: Array) -> None:
        scatter.put(out, *self._elements(symbols, out.size, out))

    def _dequantize_add(self, symbols: Symbols, dtype: str, scale: np.float32, out: Array) -> None:
        positions, values = self._elements(symbols, out.size, out)
        scatter.add(out, positions, convert.round_to(values, dtype), scale)

    def _read_elements(self, payload: Payload, n: int, beside: Array) -> tuple[Array, Array]:
        return self._elements(self._unpack(payload, n), n, beside)

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        return self._elements(self._unpack(payload, n), n)

    def _decode_as(
        self, dtype: str, payload: Payload, n: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        if dtype == "float32":
            return super()._decode_as(dtype, payload, n, out)
        positions, values = self._decode_sparse(payload, n)
        kind = NUMPY_DTYPES[dtype]
        elements = result_beside(n, kind, None) if out is None else out
        clear(elements)
        converted = np.empty(values.size, kind)
        convert.put(values, dtype, converted)
        bits = f"u{kind.itemsize}"  # NumPy assigns its own dtypes faster
        elements.view(bits)[positions] = converted.view(bits)
        return elements
