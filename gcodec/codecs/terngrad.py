"""terngrad: 0 or ±s for each element, at random and unbiased: 2 bits, or 1.6, or fewer.

s = min(max|x|, c·σ), with the deviation σ² = max(0, Σx²/n − (Σx/n)²); r = |x|/s, 1 from |x| = s
on. An element is sent as sign(x)·s with probability r, else as 0: so E x̂ is x clipped at s. The
scale is a scalar of the message. It may be given, as in the paper, where all workers take the
largest of theirs: then nothing else is clipped.

Packs: ``chapter``: 00 = 0, 01 = +1, 10 = −1, four in a byte, the first in the lowest bits, filled
up with zeros. ``terngrad`` (the original program): codes 0, 1, 2 for −1, 0, +1; always one to four
pad codes 0, 1, 2, 3 behind them; byte i of Q holds codes i, i + Q, i + 2Q, i + 3Q, the first in
the lowest bits. ``base3``: five in a byte, c0 + 3·c1 + 9·c2 + 27·c3 + 81·c4, with 0, 1, 2 for 0,
+1, −1. ``rans``: a table of frequencies, and rANS of the bytes of ``base3``. ``context``: the
string of `gcodec.entropy.context.coder` of 0, 2, 3 for 0, +1, −1. Bits per element: 2, 2, 1.6;
with ``rans`` and ``context`` what the codes tell, fewer than 1.6 where most are 0.

Sums are taken in float64 in the fixed order, s is rounded once to float32, and r is one float32
division. Where σ² is below 2^-40 of Σx²/n, it is the rounding of the sums: such a tensor is not
clipped, so that a constant one is exact. −0 is 0; NaN and Inf are refused.

Example: codes (+1, 0, −1, 0, +1) are ``21 01`` in ``chapter``, ``62 85`` in ``terngrad`` and
``64`` in ``base3``.

Sources: Wen et al., "TernGrad", NIPS 2017; wenwei202/terngrad ec4f75e.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from gcodec.arrays.nonfinite import check_top
from gcodec.arrays.source import inspect
from gcodec.codec import Codec, register
from gcodec.entropy import tabled
from gcodec.entropy.coder import BitSpan, CodedString, ignore, into
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.errors import Corrupt, ParameterError
from gcodec.inspect import tabled as tabled_fields
from gcodec.inspect.contexts import context_string, each
from gcodec.inspect.packed import lookup, packed
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.numeric import convert, scalar_rules
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import max_abs_bits, moments
from gcodec.kernels.quantize import scalar_quantize, ternary
from gcodec.kernels.quantize.ternary import FIVES, codes_of, symbols_of
from gcodec.payload import Payload
from gcodec.runtime.deferred import as_float32, one_wait
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import drainable, empty_beside
from gcodec.wire.kinds import Choice, Float32
from gcodec.wire.params import Field, param
from gcodec.wire.seek import Blocks, SeekTable


def codes_in(
    walk: FieldWalker, packing: str, n: int, scale: float, count: int
) -> Iterator[FieldSpan]:
    """Tell the codes of n elements.

    Parameters
    ----------
    walk : FieldWalker
    packing : str
        How they are packed.
    n : int
    scale : float
        What code +1 stands for.
    count : int
        Bytes that five codes each take.
    """
    scale = float(np.float32(scale))
    values = 0.0, scale, -scale  # of the digits of base3, and of the codes of chapter

    def five(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        for number, byte in enumerate(codes.tolist(), at):
            digits = [byte // 3**k % 3 for k in range(ternary.TRITS)]
            here = n - ternary.TRITS * number
            if byte >= FIVES.size or any(digits[here:]):
                raise Corrupt(f"a byte of {byte} is none of five codes of {n}")
            decoded = tuple(values[digit] for digit in digits[:here])
            text = " ".join("0+-"[digit] for digit in digits[:here])
            yield FieldValue(byte, text, element=ternary.TRITS * number, decoded=decoded)

    if packing in ("chapter", "terngrad"):
        strided = packing == "terngrad"
        layout, texts = (ternary.STRIDED, "-0+ ") if strided else (ternary.CHAPTER, "0+- ")
        yield from packed(walk, layout, n, "level", "code", lookup(texts, scale))
    elif packing == "base3":
        yield from walk.fields("level", "five codes", 8, count, five)
    elif packing == "context":
        level = lookup("0 +-", scale)
        yield from context_string(walk, "level", "code", n, each(level))
    else:
        coded, meaning = CodedMask.all(count), "five codes of base3".format
        table = yield from tabled_fields.table(walk, "rans", FIVES, coded, meaning)
        yield from tabled_fields.string(walk, table, "level", "five codes", count, five)
    walk.finish()


_SCALE = Field(
    "scale", Float32("a number, not negative", lambda s: 0 <= s < math.inf), "the size of x̂ ≠ 0"
)


class TernarySymbols(NamedTuple):
    """Packed codes and the scale.

    Attributes
    ----------
    codes : uint8 array
        Packed as the codec packs; with ``rans`` and ``context`` as with ``base3``.
    scale : float
    shape : tuple of int, optional
        Of the tensor; needed with ``context``.
    """

    codes: np.ndarray
    scale: float
    shape: tuple[int, ...] | None = None


@register(id=5, name="terngrad")
class TernGrad(Codec):
    """Ternary values at random, unbiased but for the clipping.

    Parameters
    ----------
    clip : float
        Values are clipped at this many standard deviations; 0 clips nothing.
    packing : {"chapter", "terngrad", "base3", "rans", "context"}
        The layout of the codes; ``pack`` in specs.
    """

    refuses_nonfinite = True
    has_cuda_kernels = True
    reads_segments = True
    uses_shape = True

    clip: float = param(
        Float32("a number from 0 on, finite", lambda c: 0 <= c < math.inf),
        2.5,
        "clip at so many standard deviations; 0: not at all",
    )
    packing: str = param(
        Choice("chapter", "terngrad", "base3", "rans", "context"),
        "chapter",
        "2 bits in order, or in strides with pad codes; 5 codes in a byte; these as rANS; codes "
        "as rANS by the scales of rows and columns",
        name="pack",
    )

    def scalar_fields(self) -> tuple[Field, ...]:
        """Return the scale."""
        return (_SCALE,)

    @property
    def unbiased(self) -> bool:
        """True where nothing is clipped."""
        return self.clip == 0

    def variance(self, n: int) -> float | None:
        """Return (√n − 1)/2 where nothing is clipped, None else: E‖x − x̂‖² = Σ|x|(s − |x|)."""
        return (math.sqrt(max(n, 1)) - 1) / 2 if self.clip == 0 else None

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of n codes, in whole bytes; or the most that rANS makes of them."""
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
        """States, with ``rans`` and ``context``."""
        return "states" if self._is_coded else None

    def seek_count(self, n: int) -> int:
        """Return how many bytes five codes each take; or the codes."""
        return n if self.packing == "context" else ternary.packed_nbytes(n, "base3")

    def scale_of(self, x: Any) -> float:
        """Return the scale that this tensor gets when none is given.

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
        x: Any,
        *,
        seed: int = 0,
        prior: TernarySymbols | None = None,
        scale: float | None = None,
    ) -> TernarySymbols:
        """Quantise with a scale of one's own, or one that workers share; see `Codec.quantize`.

        Parameters
        ----------
        x : array of n elements
        seed : int
            From 0 to 2**64 - 1.
        prior : TernarySymbols, optional
            Not used.
        scale : float, optional
            Where values are clipped, such as the largest `scale_of` of all workers. Above 0,
            unless all of x is 0.

        Returns
        -------
        TernarySymbols

        Raises
        ------
        ParameterError, TypeError
        """
        if scale is None:
            symbols: TernarySymbols = super().quantize(x, seed=seed, prior=prior)
            return symbols
        given = _SCALE.kind.check("scale", scale)
        tensor = inspect(x, "x").read()
        codec = self._bound_to(tensor)
        with one_wait():
            bits = max_abs_bits(tensor.values)
            check_top(bits, tensor.values)
            if given == 0 and bits:
                raise ParameterError.of("scale", scale, "above 0, or all of x 0")
            return codec._with_scale(tensor.values, given, check_seed(seed))

    def encode(
        self,
        x: Any,
        *,
        seed: int = 0,
        prior: TernarySymbols | None = None,
        scale: float | None = None,
    ) -> Payload:
        """Quantise and pack; see `quantize`."""
        if scale is None:
            return super().encode(x, seed=seed, prior=prior)
        return self.pack(self.quantize(x, seed=seed, prior=prior, scale=scale))

    def _quantize(
        self, values: np.ndarray, seed: int, prior: TernarySymbols | None
    ) -> TernarySymbols:
        return self._with_scale(values, self._scale_of(values), seed)

    def _with_scale(self, values: np.ndarray, scale: float, seed: int) -> TernarySymbols:
        codes = ternary.quantize(values, as_float32(scale), seed, self._pack_rule)
        return TernarySymbols(codes, scale, self._bound_shape(values.size))

    def _scale_of(self, values: np.ndarray) -> float:
        if not self.clip:
            bits = max_abs_bits(values)
            check_top(bits, values)
            return scalar_rules.size_of(bits)
        found = moments(values)
        check_top(found.largest, values)
        return scalar_rules.clipped_size(*found, values.size, float(np.float32(self.clip)))

    def _dequantize(self, symbols: TernarySymbols, out: np.ndarray) -> None:
        self._check_size(symbols, out)
        scale = as_float32(symbols.scale)
        ternary.dequantize_ternary(symbols.codes, scale, out, self._pack_rule)

    def _dequantize_add(
        self, symbols: TernarySymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        self._check_size(symbols, out)
        level = convert.round_number(symbols.scale, dtype)
        ternary.dequantize_ternary(symbols.codes, level, out, self._pack_rule, add=scale)

    def _slice_unit(self, n: int) -> int:
        # The codes of ``terngrad`` lie in strides; those of ``context`` are not kept at all.
        return 0 if self.packing in ("terngrad", "context") else ternary.TRITS * BLOCK

    def _slice(self, symbols: TernarySymbols, start: int, stop: int) -> TernarySymbols:
        first, last = (ternary.packed_nbytes(at, self._pack_rule) for at in (start, stop))
        return TernarySymbols(symbols.codes[first:last], symbols.scale)

    def _check_size(self, symbols: TernarySymbols, out: np.ndarray) -> None:
        nbytes = ternary.packed_nbytes(out.size, self._pack_rule)
        self._require(symbols.codes.size == nbytes, out.size, symbols.shape)

    def _pack(self, symbols: TernarySymbols) -> Payload:
        scalars, codes = {"scale": symbols.scale}, symbols.codes
        if self.packing == "context":
            shape = symbols.shape
            if shape is None or ternary.packed_nbytes(math.prod(shape), "base3") != codes.size:
                raise ParameterError.of("symbols.shape", shape, "that of the codes")
            given = drainable(symbols_of(codes, math.prod(shape)))
            return Payload(self, scalars, *symbol_coder.write(given, shape, BitString()))
        if self.packing != "rans" or not codes.size:
            return Payload(self, scalars, codes, 8 * codes.size)
        table = Table.own("rans", byte_counts(codes), FIVES)
        coded, head = CodedMask.all(codes.size), BitString()
        made = tabled.write(table, codes, coded, head, codes.size)
        return Payload(self, scalars, *made)

    def _unpack(self, payload: Payload, n: int) -> TernarySymbols:
        codes = payload.data
        if self._is_coded:
            string = self._string(payload, n)
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
        # No code need be kept: each range is dequantised where it is read.
        string, points = self._string(payload, n), np.zeros(256, np.float32)
        points[[2, 3]] = np.float32(payload.scalars["scale"]) * np.array([1, -1], np.float32)
        values = empty_beside(n, np.float32, payload.data) if out is None else out

        def take(at: int, part: np.ndarray) -> None:
            scalar_quantize.put_points(part, points, values[at : at + part.size])

        string.read(take)
        return values

    def _string(self, payload: Payload, n: int) -> CodedString:
        span = BitSpan.of(payload)
        if self.packing == "context":
            return symbol_coder.open(span, n, 3)
        return tabled.open("rans", span, FIVES, CodedMask.all(self.seek_count(n)))

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        return self._string(payload, n).blocks(log2_block)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        return codes_in(walk, self.packing, n, payload.scalars["scale"], self.seek_count(n))

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        if not self._is_coded:
            return super()._bare_nbits(n, data, scalars)
        string = self._string(Payload(self, scalars, data, 8 * data.size), n)
        return string.read(ignore, bits_follow=True)
