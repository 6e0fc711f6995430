"""minifloat: each element as a float of a few bits, times a scale Δ that the message stores.

The name of a format states its bits: ``e2m1`` has a sign, two bits of exponent and one bit of
mantissa. With e = j >> M and m = j mod 2^M, the magnitude of code j is (1 + m/2^M)·2^e, or
2·m/2^M if e is 0. With ``style=full`` all codes are valid; ``ieee`` omits the codes of the largest
e, and ``fn`` the last code, where other formats have infinity and NaN. The fp4 of CO3 is ``e2m1``
with ``ieee``. OCP's E4M3 is ``e4m3`` with ``fn``, and its E5M2 is ``e5m2`` with ``ieee``; their
own scales are Δ = 2^-7 and 2^-15.

The ratio r = |x|/Δ is a float32 division, rounded once. The code is that of the magnitude nearest
to r. A tie goes to the even code, and a ratio above the largest magnitude to the code of that
magnitude. If Δ is 0, all codes are 0. x̂ = ±f32(Δ·c) for a magnitude c, and +0 for code 0; there
is no −0. NaN and Inf are refused.

With blocks, the payload starts with a byte B for each block, whose scale is
f32(Δ·(8 + B%8)·2^(B//8 − 31)). One bit string follows, most significant bit first:

- ``code=none``: for each element its sign (1 = negative) and j. Codes of 8 bits are OCP's bytes.
- ``huffman``, ``pair``: a table, then a codeword for each code, or for each pair of codes.
- ``planes``: signs and mantissas, a table, and a codeword for each exponent.
- ``rans``: a table, then rANS of the codes, or of pairs of codes if ``pair`` exists.
- ``context``: the string of `gcodec.entropy.context.coder` of 2j + 1 for a negative code j, and of
  2j for others.

If the table is a codebook, the payload contains only its codewords. Δ and its product with the
largest magnitude are finite and not negative.

Example: Δ = 0.5 in ``e2m1``: (1, −0.6, 0.1, 6) has the codes 2, −1, 0, 7, or ``29 07``, and
decodes to (1, −0.5, 0, 6).

Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0; Chen et al.,
"Convert, compress, correct", arXiv 2203.09044, for ``e2m1`` with ``ieee`` and ``scale=co3``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, check_finite, nonfinite_error
from gcodec.arrays.source import Tensor
from gcodec.codec import Codec, register, residuals
from gcodec.codecs.minifloat import codebooks, coding_choice, describe, scale_search
from gcodec.codecs.minifloat import payload as payload_coding
from gcodec.codecs.minifloat.gennorm import RULES, Rule
from gcodec.codecs.minifloat.payload import CodeString
from gcodec.codecs.minifloat.scale_search import NO_FACTORS, Scales, blocks
from gcodec.entropy.coder import BitSpan
from gcodec.errors import Corrupt, ParameterError
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.pack import check_length, check_padding
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.payload import Payload, Selection, array_of
from gcodec.runtime.deferred import Deferred, map_deferred, require
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import Drainable, drainable, empty_beside
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Choice, Float32, Integer
from gcodec.wire.params import Scalars, param
from gcodec.wire.seek import Blocks

_CO3 = MiniFloat("e2m1", "ieee")
_OVERFLOW = 2.0**128 - 2.0**103  # the least number that float32 rounds to infinity


class MiniFloatSymbols(NamedTuple):
    """The codes and scales of a tensor.

    Attributes
    ----------
    codes : uint8 array
        Codes of up to four bits are stored two in a byte, the first in the high half; if n is odd,
        the last half is zero. Larger codes take a byte each.
    scale : float
        Scale of the tensor.
    n : int
        Number of elements.
    factors : uint8 array
        Byte B of each block, which determines the factor of its scale; empty without blocks.
    shape : tuple of int, optional
        Shape of the tensor; None for a vector.
    """

    codes: np.ndarray
    scale: float
    n: int
    factors: np.ndarray = NO_FACTORS
    shape: tuple[int, ...] | None = None


@register(id=8, name="minifloat")
class MiniFloatCodec(Codec):
    """Floats of 3 to 8 bits, times a scale.

    Parameters
    ----------
    format : {"e2m1", "e1m1", "e1m2", "e3m0", "e2m2", "e3m2", "e4m3", "e5m2"}
        Bits of exponent and mantissa, besides the sign.
    style : {"full", "ieee", "fn"}
        Valid codes: all; all except those of the largest exponent; or all except the last.
    scale : float or {"histogram", "gennorm", "co3"}
        Factor of the magnitudes, at least 0, such that no product exceeds float32. Or the rule
        that computes the factor for each tensor: the least squared error; a table for generalized
        normal distributions; or the rule of CO3's program, for ``e2m1`` with ``ieee``. With
        blocks, the only rule is ``histogram``, which minimizes the squared error of each block.
    code : {"auto", "none", "huffman", "pair", "planes", "rans", "context"}
        Code of the minifloats: fixed width; Huffman codewords for single codes, for pairs, or for
        exponents only; rANS; or rANS with a context, the scales of row and column. ``"auto"`` is
        the shortest.
    table : int or {"auto", "gennorm", "empirical"}
        Table of the entropy code: the number of a codebook for generalized normal distributions;
        the best of these codebooks; or a table of the tensor in the payload. ``"auto"`` is the
        shortest.
    block : int
        Number of elements that share a factor of the scale, which takes a byte; 0 for no blocks.
    """

    symbols_type = MiniFloatSymbols
    symbols_dtypes: ClassVar = {"codes": ("uint8",), "factors": ("uint8",)}
    refuses_nonfinite = True
    reads_segments = True
    has_cuda_kernels = True
    fused_dtypes = ("float32", "float64")
    leaves_rounded = True
    uses_shape = True
    peers: ClassVar = {
        "co3": "minifloat:style=ieee,scale=co3",
        "ocp-fp8-e4m3": "minifloat:format=e4m3,style=fn,scale=0.0078125,code=none",
        "ocp-fp8-e5m2": "minifloat:format=e5m2,style=ieee,scale=3.0517578e-05,code=none",
    }

    format: str = param(Choice(*FORMATS), "e2m1", "bits of exponent and mantissa")
    style: str = param(
        Choice(*STYLES), "full", "omitted codes: none, those of the largest exponent, or the last"
    )
    scale: float | str = param(
        Float32("a finite number from 0 on", lambda s: 0 <= s < math.inf, words=RULES),
        "histogram",
        "factor of the magnitudes, or the rule that computes it",
        in_message=True,
    )
    code: str = param(
        Choice(*coding_choice.CODES, unsent=("auto",)),
        "auto",
        "code of the minifloats; auto: the shortest",
    )
    table: int | str = param(
        Integer(0, 2**32, sent=("empirical",), unsent=("auto", "gennorm")),
        "auto",
        "table of the entropy code: in the payload, or a codebook",
        in_message=True,
    )
    block: int = param(
        Integer(0, 2**32 - 1), 0, "elements that share a scale factor; 0: no blocks"
    )

    def check(self) -> None:
        """Raise `ParameterError` for incompatible parameters; set the table if it is ignored."""
        fmt = self._format
        if self.code in ("none", "context"):
            object.__setattr__(self, "table", "empirical")
        if self.code == "pair" and fmt.width > 4:
            allowed = f"another code: codes of {self.format} have more than four bits"
            raise ParameterError.of("code", self.code, allowed)
        if isinstance(self.table, int) and self.table >= codebooks.number_of(fmt):
            allowed = f"a codebook from 0 to {codebooks.number_of(fmt) - 1}"
            raise ParameterError.of("table", self.table, allowed)
        if self.scale == "co3" and fmt != _CO3:
            raise ParameterError.of("scale", self.scale, "another, except for e2m1 with ieee")
        if self.block and self.scale in ("gennorm", "co3"):
            raise ParameterError.of("scale", self.scale, "histogram or a number with blocks")
        if isinstance(self.scale, float):
            last = float(fmt.magnitudes()[-1])
            if float(np.float32(self.scale)) * last >= _OVERFLOW:
                allowed = f"so small that float32 holds {last:g} times it"
                raise ParameterError.of("scale", self.scale, allowed)

    @property
    def _format(self) -> MiniFloat:
        return MiniFloat(self.format, self.style)

    def variance(self, n: int) -> float | None:
        """Return 1: no element of x̂ is farther from x than 0 is."""
        return 1.0

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of codes of fixed width, or an upper bound for an entropy code."""
        longest = coding_choice.longest_nbits(n, self._format, self.code)
        return 8 * blocks(n, self.block) + longest

    @property
    def seek_blocks(self) -> Blocks | None:
        """The unit of blocks: elements or pairs, or states of rANS; None for fixed width."""
        blocks: Blocks = "states" if self.code in ("rans", "context") else "elements"
        return None if self.code == "none" else blocks

    def seek_count(self, n: int) -> int:
        """Return the number of coded bytes: one for each element, or for each pair."""
        return coding_choice.coded_nbytes(n, self._format, self.code)

    # --- quantize

    def _quantize(
        self, values: np.ndarray, seed: int, prior: MiniFloatSymbols | None
    ) -> MiniFloatSymbols:
        scale, factors = self._scales_of(values)
        codes, finite = Scales.of(scale, self.block, factors).quantize_all(values, self._format)
        require(finite, lambda: nonfinite_error(values))
        n = values.size
        return MiniFloatSymbols(codes, scale, n, factors, self._bound_shape(n))

    def _replace_residual(
        self, tensor: Tensor, update: ResidualUpdate, seed: int, prior: MiniFloatSymbols | None
    ) -> MiniFloatSymbols:
        values = tensor.values
        is_rounded = residuals.leaves_rounded(self, tensor.dtype) and device_of(values) is None
        if not (is_rounded or tensor.dtype in self.fused_dtypes) or self.block:
            # x̂ is rounded to the dtype, or scaled by blocks, before the residual is computed.
            return super()._replace_residual(tensor, update, seed, prior)
        residual, decay = update.residual, update.decay
        if device_of(values) is not None:
            check_corrected(values, residual, decay)
        n, scale = values.size, self._scale_of(values, residual, decay, judges_sum=is_rounded)
        one = Scales.of(scale, 0, NO_FACTORS).one
        update = update._replace(rounded_to=convert.rounding(tensor.dtype))
        codes, finite = minifloat.quantize_tensor(values, one, self._format, update)
        if not finite:
            check_corrected(values, update.former, decay)  # which raises the error
        bound = residuals.ROUNDED_SAFE[tensor.dtype]
        if is_rounded and not abs(scale) * self._format.magnitudes()[-1] < bound:
            residuals.check_range(self, tensor, update)
        return MiniFloatSymbols(codes, scale, n, NO_FACTORS, self._bound_shape(n))

    def _try(self, values: np.ndarray, seed: int) -> tuple[np.ndarray, MiniFloatSymbols]:
        check_finite(values)
        n, (scale, factors) = values.size, self._scales_of(values)
        codes, decoded = Scales.of(scale, self.block, factors).rounded(values, self._format)
        return decoded, MiniFloatSymbols(codes, scale, n, factors, self._bound_shape(n))

    def _scales_of(self, values: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the scale, see `_scale_of`, and the factors of blocks."""
        if self.block:
            return scale_search.search_block_factors(values, self.block, self._format, self.scale)
        return self._scale_of(values), NO_FACTORS

    def _scale_of(
        self,
        values: np.ndarray,
        residual: np.ndarray | None = None,
        decay: np.float32 | None = None,
        *,
        judges_sum: bool = False,
    ) -> Any:
        """Return the scale, a number or a `Deferred`: the parameter, or the result of its rule.

        See `scale_search.search_scale` for the arguments.
        """
        if not isinstance(self.scale, str):
            return self.scale
        rule = cast(Rule, self.scale)
        return scale_search.search_scale(
            values, self._format, rule, residual, decay, judges_sum=judges_sum
        )

    # --- dequantize

    def _dequantize_into(
        self, symbols: MiniFloatSymbols, dtype: str, out: np.ndarray, add: np.float32 | None
    ) -> None:
        self._check_size(symbols, out.size)
        scales = Scales.of(symbols.scale, self.block, symbols.factors)
        scales.dequantize_all(symbols.codes, self._format, out, add)

    def _dequantize_scaled(
        self, symbols: MiniFloatSymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        one = scale_search.scaled_exactly(symbols.scale, scale, self._format)
        if one is None or self.block or dtype not in self.fused_dtypes:
            super()._dequantize_scaled(symbols, dtype, scale, out)
        else:
            self._dequantize_into(symbols._replace(scale=float(one)), dtype, out, None)

    def _slice_unit(self, n: int) -> int:
        return 0 if self.block else per_byte(self._format)

    def _slice(self, symbols: MiniFloatSymbols, start: int, stop: int) -> MiniFloatSymbols:
        part = minifloat.part_of(symbols.codes, start, stop, self._format)
        return MiniFloatSymbols(part, symbols.scale, stop - start)

    def _check_size(self, symbols: MiniFloatSymbols, n: int) -> None:
        nbytes = minifloat.codes_nbytes(n, self._format)
        sizes = symbols.codes.size == nbytes and symbols.factors.size == blocks(n, self.block)
        self._require(symbols.n == n and sizes, n, symbols.shape)

    # --- pack

    def _encode(
        self, values: np.ndarray, seed: int, prior: MiniFloatSymbols | None
    ) -> Payload | Selection[Payload]:
        symbols = self._quantize(values, seed, prior)

        def refill(nbytes: int) -> None:
            stop = min(nbytes * per_byte(self._format), values.size)
            scales = Scales.of(symbols.scale, self.block, symbols.factors)
            first = convert.part(values, 0, stop)
            scales.quantize_first(first, self._format, symbols.codes)

        # Only the coder reads the codes, so it may release their memory.
        return self._pack(symbols, drainable(symbols.codes, refill))

    def _pack(
        self, symbols: MiniFloatSymbols, held: Drainable | None = None
    ) -> Selection[Payload]:
        """Return the payload of symbols, whose codes are released if a `Drainable` has them."""
        _, _, n, factors, shape = symbols
        self._check_size(symbols, n)
        # `_message` copies factors that lie on a device into the payload.
        lead = factors if device_of(factors) is None else np.zeros(factors.size, np.uint8)
        codes = symbols.codes if held is None else held
        fmt, sized = self._format, self._is_sizing
        strings = payload_coding.write(
            codes, n, fmt, self.code, self.table, shape or (n,), lead, sized=sized
        )
        return strings.map(partial(self._message, symbols))

    def _message(
        self, symbols: MiniFloatSymbols, written_codes: payload_coding.WrittenCodes
    ) -> Payload:
        code, book, written = written_codes
        factors = symbols.factors
        if device_of(factors) is not None:
            array_of(written.data)[: factors.size] = factors
        scalars: Scalars
        scalars = {"scale": symbols.scale, "table": map_deferred(_table_name, book)}
        # Parameters that are still on the device are set together with the payload.
        on_host = {key: value for key, value in scalars.items() if type(value) is not Deferred}
        codec = self.replaced(code=code, **on_host)
        scalars |= {key: getattr(codec, key) for key in on_host}
        return Payload(codec, scalars, *written)

    def _unpack(self, payload: Payload, n: int) -> MiniFloatSymbols:
        fmt = self._format
        if self.code == "none":
            self._book(payload)
            check_padding(payload.data, payload.nbits)
            check_length(payload.nbits, 8 * blocks(n, self.block) + n * fmt.width)
            codes = minifloat.unpacked(payload.data[blocks(n, self.block) :], n, fmt)
            minifloat.check(codes, n, fmt)
        else:
            string = self._string(payload, n)
            assert string is not None
            codes = empty_beside(minifloat.codes_nbytes(n, fmt), np.uint8, payload.data)

            def take(at: int, part: np.ndarray) -> None:
                start = minifloat.codes_nbytes(at, fmt)
                codes[start : start + part.size] = part

            string.read(take)
        factors = self._factors(payload, n)
        return MiniFloatSymbols(codes, float(self.scale), n, factors, self._bound_shape(n))

    def _factors(self, payload: Payload, n: int) -> np.ndarray:
        return scale_search.read_factors(
            payload, n, cast(float, self.scale), self.block, self._format
        )

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if self.code == "none" or device_of(payload.data) is not None:
            return super()._decode(payload, n, out)
        # Each range is dequantized where it is read, so no array of codes is needed.
        fmt, string = self._format, self._string(payload, n)
        assert string is not None
        scales = Scales.of(cast(float, self.scale), self.block, self._factors(payload, n))
        values = result_beside(n, np.float32, None) if out is None else out
        stream = minifloat.can_stream(values, fmt)

        def take(at: int, part: np.ndarray) -> None:
            stop = min(at + part.size * per_byte(fmt), n)
            scales.dequantize(part, at, fmt, values[at:stop], stream=stream)

        string.read(take)
        return values

    def _string(self, payload: Payload, n: int) -> CodeString | None:
        if self.code == "none":
            return None
        book = self._book(payload)
        span = BitSpan.of(payload).after(8 * self._factors(payload, n).size)
        return CodeString.open(span, n, self._format, self.code, book)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        scale, count = cast(float, self.scale), blocks(n, self.block)
        factors = yield from describe.factors(
            walk, count, scale, lambda: self._factors(payload, n)
        )
        scales = Scales.of(scale, self.block, factors)
        yield from describe.codes(walk, n, self._format, self.code, self._book(payload), scales)

    def _book(self, payload: Payload) -> int | None:
        """Return the number of the codebook; None if the payload has a table or needs none."""
        table = payload.scalars["table"]
        if table != self.table:
            raise Corrupt(f"table={table}: code={self.code} has no table")
        return self.table if isinstance(self.table, int) else None


def _table_name(book: int | None) -> int | str:
    return "empirical" if book is None else book
