"""Codecs that send few elements of a tensor; all others decode to +0."""

from __future__ import annotations

import numpy as np

from gcodec.codec.base import Codec, Symbols
from gcodec.kernels.numeric import convert, scatter
from gcodec.payload import Payload
from gcodec.runtime import Array


class SparseCodec(Codec):
    """Base class of codecs whose symbols are positions and values."""

    def _elements(
        self, symbols: Symbols, n: int, beside: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the positions of the sent elements of n, and their float32 values.

        Positions are int64 in ascending order. Both may lie where the array `beside` lies.
        """
        raise NotImplementedError

    def _dequantize(self, symbols: Symbols, out: Array) -> None:
        scatter.put(out, *self._elements(symbols, out.size, out))

    def _dequantize_add(self, symbols: Symbols, dtype: str, scale: np.float32, out: Array) -> None:
        positions, values = self._elements(symbols, out.size, out)
        scatter.add(out, positions, convert.round_to(values, dtype), scale)

    def _decode_sparse(self, payload: Payload, n: int) -> tuple[np.ndarray, np.ndarray]:
        return self._elements(self._unpack(payload, n), n)
