"""sign: one bit for each element, and one scale for the tensor.

The bit is 1 where x < 0 and 0 elsewhere, also for both zeros. The first element is the most
significant bit of the first byte, and zero bits fill the last byte. x̂ = −s for 1 and s for 0. The
scale s is the mean of |x| (``scale=l1``: scaled sign descent), the root mean square (``l2``: 1-bit
Adam) or 1 (``none``: signSGD). It is a scalar of the message, except with ``none``. Bits per
element: 1.

Sums are float64 sums in the fixed order, and s is rounded once to float32. NaN and Inf are
refused. With l1, x̂ is the vector s·sign(x) nearest to x, so feedback converges.

Example: x = (1, −2, 0, −0, 3), scale=l1 is ``40`` and s = 1.2.

Sources: Bernstein et al., "signSGD", ICML 2018; Karimireddy et al., "Error feedback fixes
SignSGD", ICML 2019; Tang et al., "1-bit Adam", ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.source import Tensor
from gcodec.codec import Codec, register
from gcodec.fields.packed import signs as signs_in
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits import signs
from gcodec.kernels.bits.dequantize import LEVELS_1BIT, LevelString, dequantize
from gcodec.kernels.bits.pack import check_length, check_padding
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.scalar_rules import mean_of, negative
from gcodec.kernels.quantize import threshold
from gcodec.kernels.quantize.threshold import ONE_BIT
from gcodec.payload import Payload
from gcodec.runtime.deferred import when_known
from gcodec.runtime.device import device_of
from gcodec.runtime.lanes import BLOCK
from gcodec.wire.kinds import Choice, Float32
from gcodec.wire.params import Field, param
from gcodec.wire.primitives import FLOATS

_NEGATIVE = np.float32(-(2.0**-149))  # the largest float32 below 0
_SCALE = Field(
    "scale",
    Float32("a finite number from 0 on", lambda s: 0 <= s < math.inf),
    "magnitude of all decoded values",
)


class SignSymbols(NamedTuple):
    """Packed signs and the scale.

    Attributes
    ----------
    bits : (ceil(n / 8),) uint8 array
    n : int
        Number of elements.
    scale : float
        Magnitude of all decoded values.
    """

    bits: np.ndarray
    n: int
    scale: float


@register(id=7, name="sign")
class Sign(Codec):
    """The sign of each element, times one scale.

    Parameters
    ----------
    scale : {"l1", "l2", "none"}
        Scale: the mean of |x|, the root mean square, or 1.
    """

    symbols_type = SignSymbols
    symbols_dtypes: ClassVar = {"bits": ("uint8",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    fused_dtypes = FLOATS
    decoded_factor = 2.0
    reads_segments = True
    peers: ClassVar = {"byteps-onebit": "sign", "signsgd": "sign:scale=none"}

    scale: str = param(
        Choice("l1", "l2", "none"), "l1", "scale: the mean of |x|, the root mean square, or 1"
    )

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the scale, except where it is always 1."""
        return () if self.scale == "none" else (_SCALE,)

    def contraction(self, n: int) -> float | None:
        """Return 1/n for l1, where the error is ‖x‖² − ‖x‖₁²/n, and None otherwise."""
        return 1 / max(n, 1) if self.scale == "l1" else None

    def max_payload_nbits(self, n: int) -> int:
        """Return n, the bits of the signs."""
        return n

    def _quantize(self, values: np.ndarray, seed: int, prior: SignSymbols | None) -> SignSymbols:
        bits, total = signs.quantize(values, squares=self.scale == "l2")

        def check(total: float) -> None:
            if not math.isfinite(total):
                raise nonfinite_error(values)

        when_known(total, check)
        if self.scale == "none":
            return SignSymbols(bits, values.size, 1.0)
        scale = mean_of(total, values.size, root=self.scale == "l2")
        return SignSymbols(bits, values.size, scale)

    def _quantize_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: SignSymbols | None
    ) -> SignSymbols:
        """Quantize in the pass that adds the residual; find the scale of the sum before."""
        x = tensor.values
        # Converting values twice takes longer than reading their sum once more.
        converts_twice = convert.is_converted(x) and self.scale != "none"
        if device_of(x) is not None or (converts_twice and not update.is_in_place):
            return super()._quantize_residual(tensor, update, seed, prior)
        if self.scale == "none":
            bits = self._signs_of_sum(x, update, threshold.ONE, self._check_of(x))
            return SignSymbols(bits, x.size, 1.0)
        squares = self.scale == "l2"
        total = signs.sum_corrected(x, update.residual, update.decay, squares)
        scale = mean_of(total, x.size, root=squares)
        level = convert.round_number(scale, tensor.dtype)
        if not math.isfinite(total) or not math.isfinite(level):
            return super()._quantize_residual(tensor, update, seed, prior)  # raises an error
        return SignSymbols(self._signs_of_sum(x, update, level), x.size, scale)

    def _signs_of_sum(
        self,
        x: np.ndarray,
        update: ResidualUpdate,
        level: np.float32,
        check: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Return the signs of the sum; see `threshold.quantize`."""
        # The codes of elements that are not negative are 1.
        undoes = check is not None and update.is_in_place
        codes = threshold.quantize(x, ONE_BIT, _NEGATIVE, level, update, check, undoes)
        bits = np.invert(codes[: signs.SIGNS.nbytes(x.size)])
        if x.size % 8:
            bits[-1] &= 0xFF << 8 - x.size % 8 & 0xFF
        return bits

    def _dequantize_into(
        self, symbols: SignSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        fits = symbols.n == out.size and symbols.bits.size == signs.SIGNS.nbytes(out.size)
        self._require(fits, out.size)
        dequantize(*self._level_string(symbols, dtype), out, add)

    def _level_string(self, symbols: SignSymbols, dtype: str) -> LevelString:
        level = convert.round_number(negative(symbols.scale), dtype)
        return LevelString(symbols.bits, LEVELS_1BIT, level)

    def _slice_unit(self, n: int) -> int:
        return BLOCK

    def _slice(self, symbols: SignSymbols, start: int, stop: int) -> SignSymbols:
        part = slice(signs.SIGNS.nbytes(start), signs.SIGNS.nbytes(stop))
        return SignSymbols(symbols.bits[part], stop - start, symbols.scale)

    def _pack(self, symbols: SignSymbols) -> Payload:
        scalars = {field.name: symbols.scale for field in self.scalar_fields()}
        return Payload(self, scalars, symbols.bits, symbols.n)

    def _unpack(self, payload: Payload, n: int) -> SignSymbols:
        check_length(payload.nbits, n)
        check_padding(payload.data, n)
        return SignSymbols(payload.data, n, payload.scalars.get("scale", 1.0))

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        size = float(np.float32(payload.scalars.get("scale", 1.0)))
        yield from signs_in(walk, n, size, of_all=True)
        walk.finish()
