"""mxnet-1bit: the 1-bit gradient compression of Apache MXNet, byte for byte.

For each element v = x (+ residual), the code is 1 and x̂ = 1 if v > t; otherwise the code is 0 and
x̂ = −1. The threshold t only moves the cut. The first element is in the most significant bit of the
first byte; zero bits fill the last 4-byte word. MXNet's message contains neither n nor t. Bits per
element: 1.

NaN has the code 0 and stays in the residual; ±Inf is sent as ±1 at every step and stays in the
residual. MXNet does the same, and no step here casts a NaN.

Source: apache/mxnet, src/kvstore/gradient_compression-inl.h, release 2.0.0b1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.source import Tensor
from gcodec.codec import Codec, register
from gcodec.fields.packed import lookup, packed
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.dequantize import LEVELS_1BIT, LevelString, dequantize
from gcodec.kernels.bits.pack import check_length, check_padding
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize import threshold
from gcodec.kernels.quantize.threshold import ONE_BIT
from gcodec.payload import Payload
from gcodec.runtime.lanes import BLOCK
from gcodec.wire.kinds import Float32
from gcodec.wire.params import param
from gcodec.wire.primitives import FLOATS


class OneBitSymbols(NamedTuple):
    """The packed codes of a tensor.

    Attributes
    ----------
    codes : (4·ceil(n / 32),) uint8 array
        One bit per element.
    """

    codes: np.ndarray


@register(id=4, name="mxnet-1bit")
class MXNet1Bit(Codec):
    """MXNet's 1-bit quantizer: 1 or -1.

    Parameters
    ----------
    threshold : float
        Values above the threshold are sent as 1, others as −1. Decoding does not need it.
    """

    symbols_type = OneBitSymbols
    symbols_dtypes: ClassVar = {"codes": ("uint8",)}
    keeps_nonfinite = True
    has_cuda_kernels = True
    fused_dtypes = FLOATS
    reads_segments = True
    peers: ClassVar = {"mxnet-1bit": "mxnet-1bit"}

    threshold: float = param(
        Float32("a number", lambda t: True), 0.0, "values above it are sent as 1, others as -1"
    )

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n codes in whole 4-byte words."""
        return 8 * ONE_BIT.nbytes(n)

    def _quantize(
        self, values: np.ndarray, seed: int, prior: OneBitSymbols | None
    ) -> OneBitSymbols:
        cut, check = np.float32(self.threshold), self._check_of(values)
        return OneBitSymbols(threshold.quantize(values, ONE_BIT, cut, check=check))

    def _quantize_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: OneBitSymbols | None
    ) -> OneBitSymbols:
        cut, check = np.float32(self.threshold), self._check_of(tensor.values)
        codes = threshold.quantize(tensor.values, ONE_BIT, cut, update=update, check=check)
        return OneBitSymbols(codes)

    def _dequantize_into(
        self, symbols: OneBitSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        self._require(symbols.codes.size == ONE_BIT.nbytes(out.size), out.size)
        dequantize(*self._level_string(symbols, dtype), out, add)

    def _level_string(self, symbols: OneBitSymbols, dtype: str) -> LevelString:
        return LevelString(symbols.codes, LEVELS_1BIT, np.float32(1))

    def _slice_unit(self, n: int) -> int:
        return BLOCK

    def _slice(self, symbols: OneBitSymbols, start: int, stop: int) -> OneBitSymbols:
        return OneBitSymbols(symbols.codes[ONE_BIT.nbytes(start) : ONE_BIT.nbytes(stop)])

    def _pack(self, symbols: OneBitSymbols) -> Payload:
        return Payload(self, {}, symbols.codes, 8 * symbols.codes.size)

    def _unpack(self, payload: Payload, n: int) -> OneBitSymbols:
        check_length(payload.nbits, 8 * ONE_BIT.nbytes(n))
        check_padding(payload.data, n)
        return OneBitSymbols(payload.data)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        return packed(walk, ONE_BIT, n, "sign", "sign", lookup("-+", 1.0))
