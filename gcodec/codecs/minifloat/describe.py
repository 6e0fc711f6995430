"""Codes of minifloats: in fixed width, in planes, and behind tables."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import cast

import numpy as np

from gcodec.codecs.minifloat import coding_choice, payload
from gcodec.codecs.minifloat.scale_search import Scales
from gcodec.errors import Corrupt
from gcodec.inspect import tabled
from gcodec.inspect.contexts import context_string
from gcodec.inspect.walker import CHUNK, FieldSpan, FieldValue, FieldWalker, Tell, Window
from gcodec.kernels.bits.fields import read_fields
from gcodec.kernels.bits.pack import FieldLayout, pack_fields
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte


def factors(
    walk: FieldWalker, count: int, scale: float, read: Callable[[], np.ndarray]
) -> Generator[FieldSpan, None, np.ndarray]:
    """Tell what the scale is multiplied by in each block, as `read` returns it; return it."""

    def tell(at: int, found: np.ndarray) -> Iterator[FieldValue]:
        each = Scales.of(scale, 1, found.astype(np.uint8)).each.tolist()
        for number, (factor, own) in enumerate(zip(found.tolist(), each, strict=True), at):
            yield FieldValue(factor, f"of block {number}: scale {own:.9g}")

    return walk.checked("scale", "factor", 8, count, tell, read)


def codes(
    walk: FieldWalker, n: int, fmt: MiniFloat, code: str, book: int | None, scales: Scales
) -> Iterator[FieldSpan]:
    """Tell the codes of n elements, up to the payload's end.

    Parameters
    ----------
    walk : FieldWalker
    n : int
    fmt : MiniFloat
    code : str
        One of `coding_choice.CODES`.
    book : int or None
        The codebook, where the payload has no table.
    scales : Scales
    """
    values = _Values(fmt, scales)
    if code == "none":
        yield from walk.fields("level", "code", fmt.width, n, values.singles)
        walk.finish()
        return
    if code == "context":
        yield from context_string(walk, "level", "code", n, values.folded, largest=2 * fmt.top + 1)
        walk.finish()
        return
    planes, tell = walk.at, cast(Tell, values.singles)
    if code == "planes":
        yield from _planes(walk, n, fmt)
        tell = values.exponents(walk.data, planes)
    pairs = coding_choice.is_paired(fmt, code)
    if pairs:
        tell = values.pairs(n)
    coder, coded = coding_choice.KINDS[code], payload.coded(n, fmt, code)
    if book is None:
        alphabet = coding_choice.alphabet(fmt, code)
        found = yield from tabled.table(walk, coder, alphabet, coded, values.meaning(code, pairs))
    else:
        found = coding_choice.static(fmt, code, book) if coded.words else None
    name = "exponent" if code == "planes" else "pair" if pairs else "code"
    yield from tabled.string(walk, found, "level", name, coded.words, tell)
    walk.finish()


def _planes(walk: FieldWalker, n: int, fmt: MiniFloat) -> Iterator[FieldSpan]:
    """Tell signs and mantissas."""
    first, width = walk.at, 1 + fmt.mantissa
    fit = min(n, (walk.end - first) // width)
    low, high = Window(walk).cut_even(first, width, fit)
    yield from walk.several("sign and mantissa", low, {"sign": low, "level": low * fmt.mantissa})
    for at in range(low, high, CHUNK):
        plane = read_fields(walk.data, first + at * width, width, min(CHUNK, high - at))
        for number, both in enumerate(plane.tolist(), at):
            sign, mantissa = divmod(both, 1 << fmt.mantissa)
            yield walk.piece("sign", "sign", 1, FieldValue("-" if sign else "+"), number)
            if fmt.mantissa:
                yield walk.piece("level", "mantissa", fmt.mantissa, FieldValue(mantissa), number)
    left = fit - high
    yield from walk.several(
        "sign and mantissa", left, {"sign": left, "level": left * fmt.mantissa}
    )
    walk.need((n - fit) * width)


class _Values:
    """Tells what codes are, and what they decode to."""

    def __init__(self, fmt: MiniFloat, scales: Scales) -> None:
        self._fmt, self._scales = fmt, scales
        self._sign = 1 << fmt.width - 1
        self._magnitudes = fmt.magnitudes()

    def singles(self, at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        """Tell codes from element `at` on."""
        return self._told(at, codes, codes)

    def folded(self, at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        """Tell symbols of which the lowest bit is the sign, from element `at` on."""
        codes = symbols >> 1 | (symbols & 1) * self._sign
        return self._told(at, codes, symbols)

    def exponents(self, data: np.ndarray, planes: int) -> Tell:
        """Return what tells exponents, given where signs and mantissas begin."""
        mantissa = self._fmt.mantissa

        def tell(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
            width = 1 + mantissa
            plane = read_fields(data, planes + at * width, width, symbols.size)
            codes = symbols.astype(np.int64) << mantissa
            codes |= plane & (1 << mantissa) - 1 | plane >> mantissa << self._fmt.width - 1
            return self._told(at, codes, symbols)

        return tell

    def pairs(self, n: int) -> Tell:
        """Return what tells pairs of the codes of n elements."""

        def tell(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
            both = np.stack([symbols >> 4, symbols & 15], axis=1).reshape(-1)
            each = self._told(2 * at, both, both)
            for number, symbol in enumerate(symbols.tolist(), at):
                one, other = next(each), next(each)
                if 2 * number + 1 == n and symbol & 15:
                    raise Corrupt("the code behind the last element is not zero")
                decoded = (one.decoded + other.decoded)[: n - 2 * number]
                meaning = f"codes {self._text(symbol >> 4)}, {self._text(symbol & 15)}"
                yield FieldValue(symbol, meaning, element=2 * number, decoded=decoded)

        return tell

    def meaning(self, code: str, pairs: bool) -> tabled.Meaning:
        """Return what tells the symbols of a table."""
        if code == "planes":
            return lambda symbol: f"exponent {symbol}"
        if pairs:
            return lambda symbol: f"codes {self._text(symbol >> 4)}, {self._text(symbol & 15)}"
        return lambda symbol: f"code {self._text(symbol)}"

    def _text(self, code: int) -> str:
        magnitude = code & self._sign - 1
        return f"-{magnitude}" if code & self._sign else f"{magnitude}"

    def _told(self, at: int, codes: np.ndarray, symbols: np.ndarray) -> Iterator[FieldValue]:
        found = self._decoded(at, codes).tolist()
        parts = zip(codes.tolist(), symbols.tolist(), found, strict=True)
        for element, (code, symbol, value) in enumerate(parts, at):
            magnitude = code & self._sign - 1
            if magnitude > self._fmt.top or code == self._sign:
                raise Corrupt(f"the code {code:0{self._fmt.width}b} stands for nothing")
            meaning = f"code {self._text(code)}, {self._magnitudes[magnitude]:g}"
            yield FieldValue(symbol, meaning, element=element, decoded=(value,))

    def _decoded(self, at: int, codes: np.ndarray) -> np.ndarray:
        """Return the float32 numbers of codes from element `at` on."""
        held = codes.astype(np.uint8)
        if per_byte(self._fmt) == 2:
            held = pack_fields(held, FieldLayout(4))
        one, block, each = self._scales
        if block:
            last = each.size * block - 1  # what only fills up a pair is of no block
            each = each[np.minimum(np.arange(at, at + codes.size), last) // block]
        out = np.empty(codes.size, np.float32)
        Scales(one, int(block > 0), each).dequantize(held, 0, self._fmt, out)
        return out
