"""Blocks of small floats with a shared scale, one fraction at a time.

Source: ``docs/wire-format.md``, microscale.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import ans, lossless, philox, tabled
from .lossless import CLASSES, HUFFMAN, RANS, Plane
from .seek import Table
from .universal import Corrupt, Truncated, fixed, payload_bits, to_bytes, to_text

Floats = NDArray[np.float32]
CODES = ("none", "huffman", "rans", "context")
METHODS = {"huffman": HUFFMAN, "rans": RANS, "context": CLASSES}
RULES = ("floor", "rceil", "ceil", "even")


class Format(NamedTuple):
    """Bits of exponent and mantissa, bias, and the codes of the largest element and of NaN."""

    exponent: int
    mantissa: int
    bias: int
    top: int
    nan: int
    block: int = 32

    @property
    def width(self) -> int:
        """Bits of an element."""
        return 8 if not self.exponent else 1 + self.exponent + self.mantissa


FORMATS = {
    "mxfp8e4m3": Format(4, 3, 7, 0x7E, 0x7F),
    "mxfp8e5m2": Format(5, 2, 15, 0x7B, 0x7F),
    "mxfp6e2m3": Format(2, 3, 1, 0x1F, 0x0C),
    "mxfp6e3m2": Format(3, 2, 3, 0x1F, 0x0E),
    "mxfp4": Format(2, 1, 1, 0x07, 0x03),
    "mxint8": Format(0, 6, 0, 0x7F, 0),
    "nvfp4": Format(2, 1, 1, 0x07, 0x04, 16),
}


@functools.cache
def value_of(name: str, code: int) -> float:
    """Return the number of an element."""
    fmt = FORMATS[name]
    if name == "mxint8":
        return (code - 256 if code > 127 else code) / 64
    size = code & (1 << fmt.width - 1) - 1
    if (name == "mxfp8e4m3" and size == 0x7F) or (name == "mxfp8e5m2" and size > 0x7C):
        return math.nan
    e, m = divmod(size, 1 << fmt.mantissa)
    value = math.ldexp(m + (1 << fmt.mantissa if e else 0), max(e, 1) - fmt.bias - fmt.mantissa)
    if name == "mxfp8e5m2" and size == 0x7C:
        value = math.inf
    return -value if code >> fmt.width - 1 else value


def largest(name: str) -> float:
    """Return the largest element that the encoder writes."""
    return value_of(name, FORMATS[name].top)


def _exponent(v: Fraction) -> int:
    """Return the exponent of a positive number."""
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if v >= Fraction(2) ** e else e - 1


def scale_of(name: str, rule: str, top: float) -> int:
    """Return the byte of the scale of a block with a finite largest magnitude, in an MX format."""
    if not top:
        return 0
    fmt, a = FORMATS[name], Fraction(top)
    last = _exponent(Fraction(largest(name)))
    if rule == "rceil":
        quotient = np.float32(top) / np.float32(largest(name))
        log2 = np.float32(math.log2(quotient)) if quotient else np.float32(-math.inf)
        return 127 + int(np.clip(np.ceil(log2), -127, 127))
    if top < 2.0**-126:  # the exponent field of a subnormal number is 0
        e, above = -127, True
        if rule == "even" and a >= (2 - Fraction(1, 1 << fmt.mantissa + 1)) * Fraction(2) ** -127:
            e = -126
    else:
        e = _exponent(a)
        above = a > Fraction(2) ** e
        if rule == "even" and a >= (2 - Fraction(1, 1 << fmt.mantissa + 1)) * Fraction(2) ** e:
            e += 1
    return min(max(e + (rule == "ceil" and above) - last + 127, 0), 254)


@functools.cache
def _levels(name: str) -> list[float]:
    """Return the numbers of the codes without sign, in ascending order."""
    return [value_of(name, code) for code in range(FORMATS[name].top + 1)]


def _codes(name: str, r: Sequence[float], words: Sequence[int] | None) -> list[int]:
    """Round magnitudes to codes without sign: to nearest, or with random words.

    A magnitude has at most 24 significant bits and the distance of two levels is a power of two,
    so all differences and quotients are exact.
    """
    levels = _levels(name)
    results = []
    for i, size in enumerate(r):
        v = min(size, levels[-1])
        at = bisect.bisect_right(levels, v) - 1
        if v > levels[at]:
            part = (v - levels[at]) / (levels[at + 1] - levels[at])
            if words is None:
                at += part > 0.5 or (part == 0.5 and at % 2)
            else:
                at += (words[i] >> 1) < math.floor(part * 2**31)
        results.append(int(at))
    return results


def _signed(name: str, x: Sequence[float], codes: Sequence[int]) -> list[int]:
    """Give codes the signs of x."""
    fmt, signs = FORMATS[name], [math.copysign(1, v) < 0 for v in x]
    if name == "mxint8":
        return [-c % 256 if s else c for c, s in zip(codes, signs, strict=True)]
    return [c | s << fmt.width - 1 for c, s in zip(codes, signs, strict=True)]


def _nan_block(name: str, rule: str, x: Sequence[float]) -> tuple[int, list[int]]:
    fmt = FORMATS[name]
    sign = 1 << fmt.width - 1
    if name == "mxint8":
        return 255, [0] * len(x)
    if name == "nvfp4" or rule == "rceil":
        return 0x7F if name == "nvfp4" else 255, [fmt.nan] * len(x)
    codes = []
    for v in x:
        is_negative = math.copysign(1, v) < 0 or math.isinf(v)
        codes.append((0 if math.isfinite(v) else fmt.nan) | (sign if is_negative else 0))
    return 255, codes


def block(
    name: str, rule: str, x: Sequence[float], tensor_scale: float, words: Sequence[int] | None
) -> tuple[int, list[int]]:
    """Return the scale and the codes of a block."""
    if any(math.isnan(v) for v in x):
        return _nan_block(name, rule, x)
    top = max(abs(v) for v in x)
    if name == "nvfp4":
        with np.errstate(all="ignore"):
            quotient = np.float32(top) / np.float32(6) / np.float32(tensor_scale)
            quotient = min(max(quotient, np.float32(2.0**-6)), np.float32(448))
            (scale,) = _codes("mxfp8e4m3", [float(quotient)], None)
            number = np.float32(value_of("mxfp8e4m3", scale))
            factor = np.float32(1) / np.float32(tensor_scale) / number
            r = [abs(float(np.float32(v) * factor)) for v in x]
        return scale, _signed(name, x, _codes(name, r, words))
    last = _exponent(Fraction(largest(name)))
    if math.isinf(top):
        scale = 254 if rule == "rceil" or name == "mxint8" else 255 - last
    else:
        scale = scale_of(name, rule, top)
    exponent = max(scale, 1) - 127
    if rule == "rceil" and scale == 0:
        exponent = 0
    sizes = [math.ldexp(abs(v), -exponent) for v in x]  # exact: float64 contains all quotients
    return scale, _signed(name, x, _codes(name, sizes, words))


def tensor_scale_of(x: Floats) -> float:
    """Return the scale of a tensor in NVFP4 that is not given."""
    top = np.abs(x).max(initial=np.float32(0)) / np.float32(448 * 6)
    return min(max(float(top), 2.0**-120), float(np.float32(1e35)))


def quantize(
    name: str, rule: str, x: Floats, tensor_scale: float = 1.0, seed: int | None = None
) -> tuple[list[int], list[int]]:
    """Return all scales and all codes."""
    values, size = [float(v) for v in x], FORMATS[name].block
    words = None if seed is None else philox.words(seed, len(values))
    scales, codes = [], []
    for at in range(0, len(values), size):
        own = None if words is None else words[at : at + size]
        scale, part = block(name, rule, values[at : at + size], tensor_scale, own)
        scales.append(scale)
        codes += part
    return scales, codes


# --- bytes --------------------------------------------------------------------------------------


def data_of(name: str, codes: Sequence[int]) -> list[int]:
    """Return the bytes of elements."""
    if FORMATS[name].width > 4:
        return list(codes)
    padded = [*codes, *[0] * (len(codes) % 2)]
    return [low | high << 4 for low, high in zip(padded[::2], padded[1::2], strict=True)]


def symbol_of(name: str, code: int) -> int:
    """Return the symbol of a code in a context string."""
    if name == "mxint8":
        return 2 * code if code < 128 else 2 * (256 - code) - 1
    sign = 1 << FORMATS[name].width - 1
    return 2 * (code % sign) + code // sign


def code_of(name: str, symbol: int) -> int:
    """Return the code of a symbol in a context string."""
    if name == "mxint8":
        return -(symbol + 1) // 2 % 256 if symbol % 2 else symbol // 2
    if symbol >> FORMATS[name].width:
        raise Corrupt(f"the symbol {symbol}")
    return symbol // 2 + (symbol % 2 << FORMATS[name].width - 1)


class Message(NamedTuple):
    """The choices of an encoder: the code, whether scales have words, and the elements' plane."""

    name: str
    code: str
    scales: list[int]
    codes: list[int]
    has_words: bool = False
    plane: Plane | None = None


def message(name: str, code: str, scales: list[int], codes: list[int]) -> Message:
    """Return the message that gcodec writes, for any code but "context"."""
    plane = None
    if code != "none":
        plane = lossless.tabled_plane(METHODS[code], data_of(name, codes))
    words = lossless.string(lossless.tabled_plane(HUFFMAN, scales)) if scales else ""
    return Message(name, code, scales, codes, len(words) < 8 * len(scales), plane)


def write(m: Message) -> tuple[bytes, int]:
    """Return the payload and its number of bits."""
    if m.code == "none" or not m.codes:
        data = bytes(m.scales) + bytes(data_of(m.name, m.codes))
        return data, 8 * len(data)
    text = front(m)
    assert m.plane is not None
    text += lossless.string(m.plane)
    return to_bytes(text), len(text)


def front(m: Message) -> str:
    """Return the bits before the string of the elements."""
    if not m.has_words:
        return fixed(0, 8) + to_text(bytes(m.scales))
    text = fixed(1, 8) + lossless.string(lossless.tabled_plane(HUFFMAN, m.scales))
    return text + "0" * (-len(text) % 8)


def seek_table(m: Message, log2_block: int) -> Table:
    """Return the seek table of the string of the elements."""
    assert m.plane is not None
    if m.code == "context":
        assert m.plane.scales is not None
        from . import contexts

        each = contexts.classes_of(len(m.plane.values), *m.plane.scales)
        models = [m.plane.model[c] for c in each]
        lengths, states = ans.blocks_each(m.plane.values, models, log2_block)
        return Table(log2_block, lengths, None, states)
    _, low, high, coded, model = m.plane.model
    places = lossless.places_of(coded, low, high)
    return tabled.seek_table(m.code, places, model, log2_block)


def _plain(name: str, data: bytes, nbits: int, n: int) -> tuple[list[int], list[int]]:
    size = FORMATS[name].block
    count = (n + size - 1) // size
    wanted = count + (n if FORMATS[name].width > 4 else (n + 1) // 2)
    if nbits != 8 * wanted:
        raise (Truncated if nbits < 8 * wanted else Corrupt)("another length")
    return list(data[:count]), list(data[count:])


def read(name: str, code: str, data: bytes, nbits: int, n: int) -> tuple[list[int], list[int]]:
    """Return the scales and the codes of a payload, or raise ValueError."""
    fmt = FORMATS[name]
    bits = payload_bits(data, nbits)
    if code == "none":
        scales, elements = _plain(name, data, nbits, n)
    elif not n:
        if nbits:
            raise Corrupt("bits of no elements")
        return [], []
    else:
        count = (n + fmt.block - 1) // fmt.block
        method = bits.number(8)
        if method > 1:
            raise Corrupt(f"scales in the way {method}")
        if method:
            scales = lossless._read_string(bits, HUFFMAN, count, 1)
            bits.fill()
        else:
            scales = list(to_bytes(bits.take(8 * count)))
        many = n if code == "context" or fmt.width > 4 else (n + 1) // 2
        elements = lossless._read_string(bits, METHODS[code], many, 1)
        if bits.at < nbits:
            raise Corrupt("bits after the last element")
    if name == "nvfp4" and any(scale > 0x7F for scale in scales):
        raise Corrupt("a negative scale")
    if code == "context":
        return scales, [code_of(name, symbol) for symbol in elements]
    if fmt.width == 4:
        codes = [code for byte in elements for code in (byte & 15, byte >> 4)]
        if any(codes[n:]):
            raise Corrupt("fill that is not zero")
        return scales, codes[:n]
    if any(element >> fmt.width for element in elements):
        raise Corrupt("an element of more than six bits")
    return scales, elements


def values(
    name: str, scales: Sequence[int], codes: Sequence[int], tensor_scale: float = 1.0
) -> Floats:
    """Return the numbers of elements."""
    with np.errstate(all="ignore"):
        if name == "nvfp4":
            numbers = np.array([value_of("mxfp8e4m3", scale) for scale in scales], np.float32)
            factors = np.float32(tensor_scale) * numbers
        else:
            powers = [math.nan if scale == 255 else math.ldexp(1, scale - 127) for scale in scales]
            factors = np.array(powers, np.float32)
        elements = np.array([value_of(name, code) for code in codes], np.float32)
        return elements * np.repeat(factors, FORMATS[name].block)[: len(codes)]


def decode(
    name: str, code: str, data: bytes, nbits: int, n: int, tensor_scale: float = 1.0
) -> Floats:
    """Return the values of a payload, or raise ValueError."""
    return values(name, *read(name, code, data, nbits, n), tensor_scale)
