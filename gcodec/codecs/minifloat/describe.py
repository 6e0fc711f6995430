"""Descriptions of payloads of minifloats: factors of blocks, and codes in any entropy code."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import cast

import numpy as np

from gcodec.codecs.minifloat import coding_choice, payload
from gcodec.codecs.minifloat.scale_search import Scales
from gcodec.errors import Corrupt
from gcodec.fields import tabled
from gcodec.fields.contexts import context_string
from gcodec.fields.walker import CHUNK, DescribeSymbols, FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.fields import read_fields
from gcodec.kernels.bits.pack import FieldLayout, pack_fields
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import code_error, per_byte


def factors(
    walk: FieldWalker, count: int, scale: float, read: Callable[[], np.ndarray]
) -> Generator[FieldSpan, None, np.ndarray]:
    """Describe and return the factors of blocks, which `read` returns."""

    def block_factors(at: int, factors: np.ndarray) -> Iterator[FieldValue]:
        scales = Scales.of(scale, 1, factors.astype(np.uint8)).each
        pairs = zip(factors.tolist(), scales.tolist(), strict=True)
        for number, (factor, block_scale) in enumerate(pairs, at):
            yield FieldValue(factor, f"block {number}: scale {block_scale:.9g}")

    return walk.checked("scale", "factor", 8, count, block_factors, read)


def codes(
    walk: FieldWalker, n: int, fmt: MiniFloat, code: str, book: int | None, scales: Scales
) -> Iterator[FieldSpan]:
    """Describe the codes of n elements, up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
    n : int
        Number of elements.
    fmt : MiniFloat
    code : str
        One of `coding_choice.CODES`.
    book : int or None
        Number of the codebook; None if the payload contains a table or needs none.
    scales : Scales
    """
    values = _Values(fmt, scales)
    describer = cast(DescribeSymbols, values.codes)
    if code == "none":
        yield from walk.fields("level", "code", fmt.width, n, describer)
    elif code == "context":
        largest = 2 * fmt.top + 1
        yield from context_string(walk, "code", n, values.folded, largest=largest)
    else:
        name, planes = "code", walk.at
        if code == "planes":
            yield from _planes(walk, n, fmt)
            name, describer = "exponent", values.exponents(walk.data, planes)
        pairs = coding_choice.is_paired(fmt, code)
        if pairs:
            name, describer = "pair", values.pairs(n)
        coder, coded = coding_choice.KINDS[code], payload.coded(n, fmt, code)
        if book is None:
            alphabet, meaning = coding_choice.alphabet(fmt, code), values.meaning(code, pairs)
            table = yield from tabled.table(walk, coder, alphabet, coded, meaning)
        else:
            table = coding_choice.static(fmt, code, book) if coded.words else None
        yield from tabled.string(walk, table, "level", name, coded.words, describer)
    walk.finish()


def _planes(walk: FieldWalker, n: int, fmt: MiniFloat) -> Iterator[FieldSpan]:
    """Describe the plane of signs and mantissas."""
    first, width = walk.at, 1 + fmt.mantissa
    fit = min(n, (walk.end - first) // width)
    low, high = walk.window().cut_even(first, width, fit)
    yield from walk.summary("sign and mantissa", low, {"sign": low, "level": low * fmt.mantissa})
    for at in range(low, high, CHUNK):
        plane = read_fields(walk.data, first + at * width, width, min(CHUNK, high - at))
        for number, field in enumerate(plane.tolist(), at):
            sign, mantissa = divmod(field, 1 << fmt.mantissa)
            yield walk.span("sign", "sign", 1, FieldValue("-" if sign else "+"), number)
            if fmt.mantissa:
                yield walk.span("level", "mantissa", fmt.mantissa, FieldValue(mantissa), number)
    left = fit - high
    yield from walk.summary(
        "sign and mantissa", left, {"sign": left, "level": left * fmt.mantissa}
    )
    walk.require((n - fit) * width)


class _Values:
    """Describes codes and the values that they decode to."""

    def __init__(self, fmt: MiniFloat, scales: Scales) -> None:
        self._fmt, self._scales = fmt, scales
        self._sign = 1 << fmt.width - 1
        self._magnitudes = fmt.magnitudes()

    def codes(
        self, at: int, codes: np.ndarray, symbols: np.ndarray | None = None
    ) -> Iterator[FieldValue]:
        """Describe codes from element `at` on, which are coded as `symbols` or as they are."""
        shown, values = codes if symbols is None else symbols, self._decoded(at, codes)
        parts = zip(codes.tolist(), shown.tolist(), values.tolist(), strict=True)
        for element, (code, symbol, value) in enumerate(parts, at):
            magnitude = code & self._sign - 1
            if magnitude > self._fmt.top or code == self._sign:
                raise code_error(element, code)
            number = self._magnitudes[magnitude] * (-1 if code & self._sign else 1)
            meaning = f"code {self._text(code)}, {number:g}"
            yield FieldValue(symbol, meaning, element=element, decoded=(value,))

    def folded(self, at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        """Describe symbols whose lowest bit is the sign, from element `at` on."""
        return self.codes(at, symbols >> 1 | (symbols & 1) * self._sign, symbols)

    def exponents(self, data: np.ndarray, planes: int) -> DescribeSymbols:
        """Return a describer of exponents; signs and mantissas begin at the bit `planes`."""
        mantissa = self._fmt.mantissa

        def exponent_values(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
            width = 1 + mantissa
            plane = read_fields(data, planes + at * width, width, symbols.size)
            codes = symbols.astype(np.int64) << mantissa
            codes |= plane & (1 << mantissa) - 1 | plane >> mantissa << self._fmt.width - 1
            return self.codes(at, codes, symbols)

        return exponent_values

    def pairs(self, n: int) -> DescribeSymbols:
        """Return a describer of pairs of the codes of n elements."""

        def pair_values(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
            halves = np.stack([symbols >> 4, symbols & 15], axis=1).reshape(-1)
            codes = self.codes(2 * at, halves)
            for number, symbol in enumerate(symbols.tolist(), at):
                first, second = next(codes), next(codes)
                if 2 * number + 1 == n and symbol & 15:
                    raise Corrupt("the code after the last element is not zero")
                decoded = (first.decoded + second.decoded)[: n - 2 * number]
                yield FieldValue(symbol, self._pair(symbol), element=2 * number, decoded=decoded)

        return pair_values

    def meaning(self, code: str, pairs: bool) -> tabled.Meaning:
        """Return a describer of the symbols of a table."""
        if code == "planes":
            return "exponent {}".format
        return self._pair if pairs else lambda symbol: f"code {self._text(symbol)}"

    def _text(self, code: int) -> str:
        magnitude = code & self._sign - 1
        return f"-{magnitude}" if code & self._sign else f"{magnitude}"

    def _pair(self, symbol: int) -> str:
        return f"codes {self._text(symbol >> 4)}, {self._text(symbol & 15)}"

    def _decoded(self, at: int, codes: np.ndarray) -> np.ndarray:
        """Return the float32 values of codes from element `at` on."""
        packed = codes.astype(np.uint8)
        if per_byte(self._fmt) == 2:
            packed = pack_fields(packed, FieldLayout(4))
        scale, block, each = self._scales
        if block:
            last = each.size * block - 1  # the padding code of a pair belongs to no block
            each = each[np.minimum(np.arange(at, at + codes.size), last) // block]
        out = np.empty(codes.size, np.float32)
        Scales(scale, int(block > 0), each).dequantize(packed, 0, self._fmt, out)
        return out
