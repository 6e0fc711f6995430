"""minifloat: each element as a float of a few bits, times a scale Δ that a message carries.

A format names its bits: ``e2m1`` has a sign, two bits of exponent, one of mantissa. The magnitude
of code j is (1 + m/2^M)·2^e with e = j >> M and m = j mod 2^M, but 2·m/2^M where e is 0. With
``style=full`` all codes are in use; ``ieee`` leaves out those of the largest e, ``fn`` the last
one: other formats have infinity and NaN there. CO3's fp4 is ``e2m1`` with ``ieee``. OCP's E4M3 is
``e4m3`` with ``fn`` and E5M2 is ``e5m2`` with ``ieee``, whose own scales are Δ = 2^-7 and 2^-15.

r = |x|/Δ is a float32 division, rounded once. The code is that of the magnitude nearest to r; a
tie goes to the even code, what passes the largest magnitude to that one. Where Δ is 0, all codes
are 0. x̂ = ±f32(Δ·c), and +0 for code 0: there is no −0. NaN and Inf are refused.

Payload of ``code=none``, one MSB-first string: for each element its sign (1 = negative) and j, so
the bytes of OCP where a code has 8 bits. Else a table, unless it is that of a codebook, and a
string: ``huffman``, a word for each code; ``pair``, for each two; ``planes``, signs and mantissas
before the table, and a word for each exponent; ``rans``, rANS of the codes, of each two where
``pair`` exists; or ``context``, the string of `gcodec.entropy.context.coder` of 2j + 1 for a
negative code j, and 2j for others. Δ is finite and not negative, and so is its product with the
largest magnitude. A byte B for each block comes first: its Δ is f32(Δ·(8 + B%8)·2^(B//8 − 31)).

Example: Δ = 0.5 in ``e2m1``: (1, −0.6, 0.1, 6) is 2, −1, 0, 7, or ``29 07``: (1, −0.5, 0, 6).

Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0; Chen et al.,
"Convert, compress, correct", arXiv 2203.09044, for ``e2m1`` with ``ieee`` and ``scale=co3``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from gcodec.arrays.nonfinite import check_corrected, nonfinite_error
from gcodec.arrays.source import Tensor
from gcodec.codec import Codec, register
from gcodec.codecs.minifloat import codebooks, coding_choice, describe
from gcodec.codecs.minifloat import payload as payload_coding
from gcodec.codecs.minifloat.gennorm import RULES, Rule
from gcodec.codecs.minifloat.payload import CodeString
from gcodec.codecs.minifloat.scale_search import (
    NO_FACTORS,
    Scales,
    blocks,
    read_factors,
    search_block_factors,
    search_scale,
)
from gcodec.entropy.coder import BitSpan, ignore
from gcodec.errors import Corrupt, ParameterError
from gcodec.inspect.walker import FieldSpan, FieldWalker
from gcodec.kernels.bits.pack import check_length, check_padding
from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.payload import Payload, Selection, array_of
from gcodec.runtime.deferred import Deferred, map_deferred, require
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import Drainable, drainable, empty_beside
from gcodec.wire.kinds import Choice, Float32, Integer
from gcodec.wire.params import param
from gcodec.wire.seek import Blocks, SeekTable

_CO3 = MiniFloat("e2m1", "ieee")


class MiniFloatSymbols(NamedTuple):
    """Codes and the scale.

    Attributes
    ----------
    codes : uint8 array
        Of up to four bits: two in a byte, the first in the high half, which leaves a last half
        zero where n is odd. Of more bits: a byte each.
    scale : float
    n : int
        Elements.
    factors : uint8 array
        What the scale is multiplied by in each block, as a byte tells it; empty without blocks.
    shape : tuple of int, optional
        Of the tensor; None for a vector.
    """

    codes: np.ndarray
    scale: float
    n: int
    factors: np.ndarray = NO_FACTORS
    shape: tuple[int, ...] | None = None


@register(id=8, name="minifloat")
class MiniFloatCodec(Codec):
    """Floats of a few bits, times a scale.

    Parameters
    ----------
    format : {"e2m1", "e1m1", "e1m2", "e3m0", "e2m2", "e3m2", "e4m3", "e5m2"}
        Bits of exponent and mantissa; there is a sign besides.
    style : {"full", "ieee", "fn"}
        All codes in use; without those of the largest exponent; without the last one.
    scale : float or {"histogram", "gennorm", "co3"}
        What magnitudes are multiplied by, from 0 on, such that none passes float32. Or what it is
        found by, for each tensor: the least squared error; a table for generalised normal
        distributions; the rule of CO3's program, for ``e2m1`` with ``ieee``. With blocks, of
        these only ``histogram``, by the squared error of each block.
    code : {"auto", "none", "huffman", "pair", "planes", "rans", "context"}
        How the codes are written: as they are, or entropy-coded, one by one, two at a time, the
        exponents only, by rANS, or by rANS and the scales of rows and columns; or the shortest.
    table : int or {"auto", "gennorm", "empirical"}
        Of the entropy code: a codebook for GenNorm values, by its number; the best of them; one
        of the tensor's own, in the payload; ``auto`` takes what is shortest.
    block : int
        Elements that share a factor of the scale, a byte; 0: none does.
    """

    refuses_nonfinite = True
    has_cuda_kernels = True
    uses_shape = True

    format: str = param(Choice(*FORMATS), "e2m1", "bits of exponent and mantissa")
    style: str = param(
        Choice(*STYLES),
        "full",
        "codes left out: none, those of the largest exponent, the last",
    )
    scale: float | str = param(
        Float32("a number from 0 on, finite", lambda s: 0 <= s < math.inf, words=RULES),
        "histogram",
        "what magnitudes are multiplied by, or the rule that finds it",
        in_message=True,
    )
    code: str = param(
        Choice(*coding_choice.CODES, unsent=("auto",)),
        "auto",
        "how codes are written; auto: the shortest",
    )
    table: int | str = param(
        Integer(0, 2**32, sent=("empirical",), unsent=("auto", "gennorm")),
        "auto",
        "of the entropy code: its own, a static one, or the shortest",
        in_message=True,
    )
    block: int = param(Integer(0, 2**32 - 1), 0, "elements that share a factor; 0: none")

    def check(self) -> None:
        """Refuse what does not fit together; without an entropy code there is one table only."""
        fmt = self._format
        if self.code in ("none", "context"):
            object.__setattr__(self, "table", "empirical")
        if self.code == "pair" and fmt.width > 4:
            allowed = f"another one: {self.format} has codes of more than four bits"
            raise ParameterError.of("code", self.code, allowed)
        if isinstance(self.table, int) and self.table >= codebooks.number_of(fmt):
            allowed = f"a codebook from 0 to {codebooks.number_of(fmt) - 1}"
            raise ParameterError.of("table", self.table, allowed)
        if self.scale == "co3" and fmt != _CO3:
            raise ParameterError.of("scale", self.scale, "another one, but for e2m1 with ieee")
        if self.block and self.scale in ("gennorm", "co3"):
            raise ParameterError.of("scale", self.scale, "histogram or a number, with blocks")
        if isinstance(self.scale, float):
            with np.errstate(over="ignore"):
                largest = np.float32(self.scale) * fmt.magnitudes()[-1]
            if not np.isfinite(largest):
                allowed = f"such that float32 holds its product with {fmt.magnitudes()[-1]:g}"
                raise ParameterError.of("scale", self.scale, allowed)

    @property
    def _format(self) -> MiniFloat:
        return MiniFloat(self.format, self.style)

    def variance(self, n: int) -> float | None:
        """Return 1: x̂ is never farther from x than 0 is."""
        return 1.0

    def max_payload_nbits(self, n: int) -> int:
        """Return the bits of the codes as they are, or of the longest words and a table."""
        longest = coding_choice.longest_nbits(n, self._format, self.code)
        return 8 * blocks(n, self.block) + longest

    @property
    def seek_blocks(self) -> Blocks | None:
        """What is coded where words differ in length: elements, pairs, or states of rANS."""
        blocks: Blocks = "states" if self.code in ("rans", "context") else "elements"
        return None if self.code == "none" else blocks

    def seek_count(self, n: int) -> int:
        """Return how many bytes are coded: one for each element, or each pair."""
        return coding_choice.coded_nbytes(n, self._format, self.code)

    # --- quantise

    def _quantize(
        self, values: np.ndarray, seed: int, prior: MiniFloatSymbols | None
    ) -> MiniFloatSymbols:
        fmt, block = self._format, self.block
        factors = NO_FACTORS
        if block:
            scale, factors = search_block_factors(values, block, fmt, self.scale)
        else:
            scale = self._scale_of(values)
        codes, finite = Scales.of(scale, block, factors).quantize_all(values, fmt)
        require(finite, lambda: nonfinite_error(values))
        n = values.size
        return MiniFloatSymbols(codes, scale, n, factors, self._bound_shape(n))

    def _quantize_residual(
        self,
        tensor: Tensor,
        residual: np.ndarray,
        decay: np.float32,
        seed: int,
        prior: Any,
        out: np.ndarray,
    ) -> MiniFloatSymbols:
        values = tensor.values
        if tensor.dtype not in ("float32", "float64") or self.block:  # x̂ is rounded to it first
            symbols: MiniFloatSymbols
            symbols = super()._quantize_residual(tensor, residual, decay, seed, prior, out)
            return symbols
        check_corrected(values, residual, decay)
        n, scale = values.size, self._scale_of(values, residual, decay)
        how = Scales.of(scale, 0, NO_FACTORS).one, self._format
        codes = minifloat.quantize_tensor_residual(values, residual, decay, *how, out)
        return MiniFloatSymbols(codes, scale, n, NO_FACTORS, self._bound_shape(n))

    def _scale_of(self, values: np.ndarray, *residual: Any) -> Any:
        """Return the scale, which is given or found by a rule: a number or a `Deferred`."""
        if not isinstance(self.scale, str):
            return self.scale
        return search_scale(values, self._format, cast(Rule, self.scale), *residual)

    # --- dequantise

    def _dequantize(self, symbols: MiniFloatSymbols, out: np.ndarray) -> None:
        self._dequantize_into(symbols, out, None)

    def _dequantize_add(
        self, symbols: MiniFloatSymbols, dtype: str, scale: np.float32, out: np.ndarray
    ) -> None:
        if dtype in ("float16", "bfloat16"):  # x̂ is rounded to it first
            super()._dequantize_add(symbols, dtype, scale, out)
        else:
            self._dequantize_into(symbols, out, scale)

    def _dequantize_into(
        self, symbols: MiniFloatSymbols, out: np.ndarray, add: np.float32 | None
    ) -> None:
        self._check_size(symbols, out.size)
        scales = Scales.of(symbols.scale, self.block, symbols.factors)
        scales.dequantize_all(symbols.codes, self._format, out, add)

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
            scales.quantize_first(values[:stop], self._format, symbols.codes)

        return self._packed(symbols, drainable(symbols.codes, refill))  # which nobody else reads

    def _pack(self, symbols: MiniFloatSymbols) -> Payload | Selection[Payload]:
        return self._packed(symbols, symbols.codes)

    def _packed(
        self, symbols: MiniFloatSymbols, codes: np.ndarray | Drainable
    ) -> Payload | Selection[Payload]:
        """Return the message of symbols, given the array of their codes, maybe a `Drainable`."""
        _, _, n, factors, shape = symbols
        self._check_size(symbols, n)
        # What a device has is put into a payload when there is one.
        lead = factors if device_of(factors) is None else np.zeros(factors.size, np.uint8)
        strings = payload_coding.write(
            codes, n, self._format, self.code, self.table, shape or (n,), lead
        )
        return strings.map(partial(self._message, symbols))

    def _message(self, symbols: MiniFloatSymbols, coded_as: payload_coding.CodedAs) -> Payload:
        scale, factors = symbols.scale, symbols.factors
        code, book, written = coded_as
        if device_of(factors) is not None:
            array_of(written.data)[: factors.size] = factors
        # The codec gets with the message what a device has yet to tell.
        told: dict[str, Any] = {"scale": scale, "table": map_deferred(_table_name, book)}
        known = {key: value for key, value in told.items() if type(value) is not Deferred}
        codec = self.replaced(code=code, **known)
        scalars = told | {key: getattr(codec, key) for key in known}
        return Payload(codec, scalars, *written)

    def _unpack(self, payload: Payload, n: int) -> MiniFloatSymbols:
        fmt = self._format
        if self.code == "none":
            self._check_table(payload)
            check_padding(payload.data, payload.nbits)
            check_length(payload.nbits, 8 * blocks(n, self.block) + n * fmt.width)
            codes = minifloat.unpacked(payload.data[blocks(n, self.block) :], n, fmt)
            minifloat.check(codes, n, fmt)
        else:
            string = self._string(payload, n)
            codes = empty_beside(minifloat.codes_nbytes(n, fmt), np.uint8, payload.data)

            def take(at: int, part: np.ndarray) -> None:
                start = minifloat.codes_nbytes(at, fmt)
                codes[start : start + part.size] = part

            string.read(take)
        factors = self._factors(payload, n)
        return MiniFloatSymbols(codes, float(self.scale), n, factors, self._bound_shape(n))

    def _factors(self, payload: Payload, n: int) -> np.ndarray:
        return read_factors(payload, n, cast(float, self.scale), self.block, self._format)

    def _decode(self, payload: Payload, n: int, out: np.ndarray | None = None) -> np.ndarray:
        if self.code == "none" or device_of(payload.data) is not None:
            return super()._decode(payload, n, out)
        # No code need be kept: each range is dequantised where it is read.
        fmt, string = self._format, self._string(payload, n)
        scales = Scales.of(cast(float, self.scale), self.block, self._factors(payload, n))
        values = empty_beside(n, np.float32, None) if out is None else out
        stream = minifloat.streams(values, fmt)

        def take(at: int, part: np.ndarray) -> None:
            stop = min(at + part.size * per_byte(fmt), n)
            scales.dequantize(part, at, fmt, values[at:stop], stream=stream)

        string.read(take)
        return values

    def _string(self, payload: Payload, n: int) -> CodeString:
        """Open the string of an entropy code."""
        self._check_table(payload)
        span = BitSpan.of(payload)
        book = self.table if isinstance(self.table, int) else None
        span = span.after(8 * self._factors(payload, n).size)
        return CodeString.open(span, n, self._format, self.code, book)

    def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
        scale, count = cast(float, self.scale), blocks(n, self.block)
        found = yield from describe.factors(walk, count, scale, lambda: self._factors(payload, n))
        self._check_table(payload)
        book = self.table if isinstance(self.table, int) else None
        how = self._format, self.code, book, Scales.of(scale, self.block, found)
        yield from describe.codes(walk, n, *how)

    def _check_table(self, payload: Payload) -> None:
        if payload.scalars["table"] != self.table:
            raise Corrupt(f"table {payload.scalars['table']}, but code={self.code} has none")

    def _index(self, payload: Payload, n: int, log2_block: int) -> SeekTable:
        return self._string(payload, n).blocks(log2_block)

    def _bare_nbits(self, n: int, data: np.ndarray, scalars: dict[str, Any]) -> int:
        if self.code == "none":
            return super()._bare_nbits(n, data, scalars)
        payload = Payload(self, scalars, data, 8 * data.size)
        string = self._string(payload, n)
        return string.read(ignore, bits_follow=True)


def _table_name(book: int | None) -> int | str:
    return "empirical" if book is None else book
