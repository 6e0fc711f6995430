"""terngrad: 0 or ±s for each element, rounded stochastically and unbiased; 2 bits or fewer.

The scale is s = min(max|x|, c·σ), with σ² = max(0, Σx²/n − (Σx/n)²). With r = |x|/s, limited to
1, an element is sent as sign(x)·s with probability r, and as 0 otherwise. E x̂ is therefore x
clipped at ±s. The scale is a scalar of the message. The caller may specify it, as in the paper,
where all workers use the largest of their scales; then only that scale clips.

``pack`` selects the layout of the codes:

- ``chapter``: 00 = 0, 01 = +1, 10 = −1; four codes in a byte, the first in the lowest bits. Zeros
  fill the last byte.
- ``terngrad``, the layout of the original program: codes 0, 1, 2 for −1, 0, +1, followed by one to
  four padding codes 0, 1, 2, 3. Byte i of Q contains the codes i, i + Q, i + 2Q and i + 3Q, the
  first in the lowest bits.
- ``base3``: five codes in a byte, c0 + 3·c1 + 9·c2 + 27·c3 + 81·c4, with 0, 1, 2 for 0, +1, −1.
- ``rans``: a frequency table, and rANS of the bytes of ``base3``.
- ``context``: the string of `gcodec.entropy.context.coder` of the symbols 0, 2, 3 for 0, +1, −1.

Bits per element: 2, 2 and 1.6; with ``rans`` and ``context`` the entropy of the codes, which is
below 1.6 if most are 0.

Sums are float64 sums in the fixed order, s is rounded once to float32, and r is one float32
division. If σ² is below 2^-40 of Σx²/n, it is only the rounding error of the sums. Such a tensor
is not clipped, so that a constant tensor decodes exactly. −0 is 0; NaN and Inf are refused.

Example: codes (+1, 0, −1, 0, +1) are ``21 01`` in ``chapter``, ``62 85`` in ``terngrad`` and
``64`` in ``base3``.

Sources: Wen et al., "TernGrad", NIPS 2017; wenwei202/terngrad ec4f75e.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from gcodec.arrays.nonfinite import check_finite, check_top
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import inspect
from gcodec.codec import Codec, register
from gcodec.entropy import tabled
from gcodec.entropy.coder import BitSpan, CodedString, into
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.errors import ParameterError
from gcodec.fields import tabled as tabled_fields
from gcodec.fields.contexts import context_string
from gcodec.fields.packed import lookup, packed
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.dequantize import LEVELS_LOW_FIRST, LevelString
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import arithmetic, convert, scalar_rules
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import max_abs_bits, moments
from gcodec.kernels.quantize import scalar_quantize, ternary
from gcodec.kernels.quantize.ternary import FIVES, codes_of, symbols_of
from gcodec.payload import Payload
from gcodec.runtime.deferred import as_float32, one_wait
from gcodec.runtime.device import device_of
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import aligned_zeros, empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Choice, Float32
from gcodec.wire.params import Field, param
from gcodec.wire.primitives import FLOATS
from gcodec.wire.seek import Blocks

_SCALE = Field(
    "scale",
    Float32("a finite number from 0 on", lambda s: 0 <= s < math.inf),
    "magnitude of nonzero decoded values",
)


class TernarySymbols(NamedTuple):
    """Packed codes and the scale.

    Attributes
    ----------
    codes : uint8 array
        Codes in the layout of the codec; for ``rans`` and ``context`` in that of ``base3``.
    scale : float
        Magnitude of nonzero decoded values.
    shape : tuple of int, optional
        Shape of the tensor; ``context`` needs it.
    """

    codes: np.ndarray
    scale: float
    shape: tuple[int, ...] | None = None


@register(id=5, name="terngrad")
class TernGrad(Codec):
    """Ternary values, unbiased except for clipping.

    Parameters
    ----------
    clip : float
        Clipping point in standard deviations; 0 clips nothing.
    packing : {"chapter", "terngrad", "base3", "rans", "context"}
        Layout of the codes; ``pack`` in specs.
    """

    symbols_type = TernarySymbols
    symbols_dtypes: ClassVar = {"codes": ("uint8",)}
    refuses_nonfinite = True
    has_cuda_kernels = True
    fused_dtypes = FLOATS
    decoded_factor = 2.0
    reads_segments = True
    uses_shape = True
    peers: ClassVar = {"terngrad": "terngrad:pack=terngrad"}

    clip: float = param(
        Float32("a finite number from 0 on", lambda c: 0 <= c < math.inf),
        2.5,
        "clipping point in standard deviations; 0: no clipping",
    )
    packing: str = param(
        Choice("chapter", "terngrad", "base3", "rans", "context"),
        "chapter",
        "2 bits in order, or in strides with padding; 5 codes in a byte; these bytes as rANS; "
        "codes as rANS by the scales of rows and columns",
        name="pack",
    )

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the scale."""
        return (_SCALE,)

    @property
    def unbiased(self) -> bool:
        """Whether nothing is clipped."""
        return self.clip == 0

    def variance(self, n: int) -> float | None:
        """Return (√n − 1)/2 from E‖x − x̂‖² = Σ|x|(s − |x|) if nothing is clipped, else None."""
        return (math.sqrt(max(n, 1)) - 1) / 2 if self.clip == 0 else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n codes in whole bytes, or the bound of an entropy code."""
        nbytes = ternary.packed_nbytes(n, self._pack_rule)
        if self.packing == "context":
            return symbol_coder.longest_nbits(n)
        if self.packing != "rans":
            return 8 * nbytes
        return tabled.longest_nbits("rans", nbytes, FIVES.size) if n else 0

    @property
    def _pack_rule(self) -> ternary.Pack:
        return cast(ternary.Pack, "base3" if self._is_coded else self.packing)

    @property
    def _is_coded(self) -> bool:
        return self.packing in ("rans", "context")

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: states of rANS; None for codes of fixed width."""
        return "states" if self._is_coded else None

    def seek_count(self, n: int) -> int:
        """Return the number of coded symbols: bytes of five codes, or single codes."""
        return n if self.packing == "context" else ternary.packed_nbytes(n, "base3")

    def scale_of(self, x: TensorLike) -> float:
        """Return the scale that the codec computes for a tensor.

        Parameters
        ----------
        x : array
            See `gcodec.encode`.

        Raises
        ------
        ParameterError, TypeError
        """
        with one_wait():
            return float(self._scale_of(inspect(x, "x").read().values))

    def quantize(
        self,
        x: TensorLike,
        *,
        seed: int = 0,
        prior: TernarySymbols | None = None,
        scale: float | None = None,
    ) -> TernarySymbols:
        """Quantize, optionally with a specified scale; see `Codec.quantize`.

        Parameters
        ----------
        x : array of n elements
        seed : int
            Seed of the stochastic rounding, from 0 to 2**64 - 1.
        prior : TernarySymbols, optional
            Not used.
        scale : float, optional
            Scale at which values are clipped, such as the largest `scale_of` of all workers. It
            must be above 0 unless all of x is 0.

        Returns
        -------
        TernarySymbols

        Raises
        ------
        ParameterError, TypeError
        """
        if scale is None:
            return super().quantize(x, seed=seed, prior=prior)
        checked_scale = _SCALE.kind.check("scale", scale)
        tensor = inspect(x, "x").read()
        codec = self._bound_to(tensor)
        with one_wait():
            bits = check_finite(tensor.values)
            if checked_scale == 0 and bits:
                raise ParameterError.of("scale", scale, "above 0, unless all of x is 0")
            return codec._with_scale(tensor.values, checked_scale, check_seed(seed))

    def encode(
        self,
        x: TensorLike,
        *,
        seed: int = 0,
        prior: TernarySymbols | None = None,
        scale: float | None = None,
    ) -> Payload:
        """Quantize and pack; see `quantize`."""
        if scale is None:
            return super().encode(x, seed=seed, prior=prior)
        return self.pack(self.quantize(x, seed=seed, prior=prior, scale=scale))

    def _quantize(
        self, values: np.ndarray, seed: int, prior: TernarySymbols | None
    ) -> TernarySymbols:
        return self._with_scale(values, self._scale_of(values), seed)

    def _quantize_in_place(
        self, values: np.ndarray, statistics: ValueStatistics, dtype: str, seed: int
    ) -> TernarySymbols:
        scale = self._scale_of(values, statistics)
        return self._with_scale(values, scale, seed, convert.round_number(scale, dtype))

    def _with_scale(
        self, values: np.ndarray, scale: float, seed: int, level: np.float32 | None = None
    ) -> TernarySymbols:
        """Quantize; with the `level` of decoded values, leave the errors in `values`."""
        codes = ternary.quantize(values, as_float32(scale), seed, self._pack_rule, level)
        return TernarySymbols(codes, scale, self._bound_shape(values.size))

    def _add_residual(self, x: np.ndarray, update: ResidualUpdate) -> ValueStatistics:
        add = arithmetic.add_residual_with_moments if self.clip else arithmetic.add_residual
        return add(x, update)

    def _quantize_with_statistics(
        self,
        values: np.ndarray,
        statistics: ValueStatistics,
        seed: int,
        prior: TernarySymbols | None,
    ) -> TernarySymbols:
        return self._with_scale(values, self._scale_of(values, statistics), seed)

    def _scale_of(self, values: np.ndarray, statistics: ValueStatistics | None = None) -> float:
        """Return the scale, given what is known about the values."""
        if not self.clip:
            bits: Any = max_abs_bits(values) if statistics is None else statistics.top_bits
            check_top(bits, values)
            return scalar_rules.size_of(bits)
        sums = (statistics and statistics.moments) or moments(values)
        check_top(sums.largest, values)
        return scalar_rules.clipped_size(*sums, values.size, float(np.float32(self.clip)))

    def _dequantize_into(
        self, symbols: TernarySymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        nbytes = ternary.packed_nbytes(out.size, self._pack_rule)
        self._require(symbols.codes.size == nbytes, out.size, symbols.shape)
        level = convert.round_number(symbols.scale, dtype)
        ternary.dequantize_ternary(symbols.codes, level, out, self._pack_rule, add)

    def _level_string(self, symbols: TernarySymbols, dtype: str) -> LevelString | None:
        if self._pack_rule != "chapter":
            return None
        level = convert.round_number(symbols.scale, dtype)
        return LevelString(symbols.codes, LEVELS_LOW_FIRST, level)

    def _slice_unit(self, n: int) -> int:
        # The codes of ``terngrad`` lie in strides; ``context`` stores no array of codes.
        return 0 if self.packing in ("terngrad", "context") else ternary.TRITS * BLOCK

    def _slice(self, symbols: TernarySymbols, start: int, stop: int) -> TernarySymbols:
        first, last = (ternary.packed_nbytes(at, self._pack_rule) for at in (start, stop))
        return TernarySymbols(symbols.codes[first:last], symbols.scale)

    def _check_symbols(self, symbols: TernarySymbols) -> None:
        if self._pack_rule != "base3" or device_of(symbols.codes) is not None:
            return  # other packings have no table, and a device made its codes itself
        if (symbols.codes >= FIVES.size).any():
            raise ParameterError(f"symbols: bytes of five codes must be below {FIVES.size}")

    def _pack(self, symbols: TernarySymbols) -> Payload:
        scalars, codes = {"scale": symbols.scale}, symbols.codes
        if self.packing == "context":
            shape = symbols.shape
            if shape is None or ternary.packed_nbytes(math.prod(shape), "base3") != codes.size:
                raise ParameterError.of(
                    "symbols.shape", shape, "the shape of the tensor of the codes"
                )
            coded_symbols = symbols_of(codes, math.prod(shape))
            return Payload(self, scalars, *symbol_coder.write(coded_symbols, shape, BitString()))
        if self.packing != "rans" or not codes.size:
            return Payload(self, scalars, codes, 8 * codes.size)
        table = Table.own("rans", byte_counts(codes), FIVES)
        coded = CodedMask.all(codes.size)
        written = tabled.write(table, codes, coded, BitString(), codes.size)
        return Payload(self, scalars, *written)

    def _unpack(self, payload: Payload, n: int) -> TernarySymbols:
        codes, string = payload.data, self._string(payload, n)
        if string is not None:
            codes = empty_beside(self.seek_count(n), np.uint8, payload.data)
            string.read(into(codes))
        else:
            check_length(payload.nbits, self.max_payload_nbits(n))
        if self.packing == "context":
            codes = codes_of(codes)
        ternary.check(codes, n, self._pack_rule)
        return TernarySymbols(codes, payload.scalars["scale"], self._bound_shape(n))

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if self.packing != "context":
            return super()._decode(payload, n, out)
        # Each range is dequantized as soon as it is read, so no array of codes is needed.
        string, points = self._string(payload, n), aligned_zeros(256, np.float32)
        points[[2, 3]] = np.float32(payload.scalars["scale"]) * np.array([1, -1], np.float32)
        values = result_beside(n, np.float32, payload.data) if out is None else out

        def take(at: int, part: np.ndarray) -> None:
            scalar_quantize.put_points(part, points, values[at : at + part.size])

        assert string is not None  # a string of the packing "context"
        string.read(take)
        return values

    def _string(self, payload: Payload, n: int) -> CodedString | None:
        if self.packing == "context":
            return symbol_coder.open(BitSpan.of(payload), n, 3)
        if self.packing == "rans":
            coded = CodedMask.all(self.seek_count(n))
            return tabled.open("rans", BitSpan.of(payload), FIVES, coded)
        return None

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        scale, nbytes = float(np.float32(payload.scalars["scale"])), self.seek_count(n)
        values = 0.0, scale, -scale  # of the digits of base3

        def describe(byte: int, number: int) -> FieldValue:
            digits = [byte // 3**k % 3 for k in range(ternary.TRITS)]
            length = n - ternary.TRITS * number
            if byte >= FIVES.size:
                raise ternary.digits_error()
            if any(digits[length:]):
                raise ternary.pad_digits_error(number)
            decoded = tuple(values[digit] for digit in digits[:length])
            text = " ".join("0+-"[digit] for digit in digits[:length])
            return FieldValue(byte, text, element=ternary.TRITS * number, decoded=decoded)

        five = describe_each(describe)
        if self.packing == "chapter":
            level = lookup("0+- ", scale)
            yield from packed(walk, ternary.CHAPTER, n, "level", "code", level)
        elif self.packing == "terngrad":
            level = lookup("-0+ ", scale)
            yield from packed(walk, ternary.STRIDED, n, "level", "code", level)
        elif self.packing == "base3":
            yield from walk.fields("level", "five codes", 8, nbytes, five)
        elif self.packing == "context":
            level = lookup("0 +-", scale)
            yield from context_string(walk, "code", n, describe_each(level))
        else:
            coded, meaning = CodedMask.all(nbytes), "five codes of base3".format
            table = yield from tabled_fields.table(walk, "rans", FIVES, coded, meaning)
            yield from tabled_fields.string(walk, table, "level", "five codes", nbytes, five)
        walk.finish()
