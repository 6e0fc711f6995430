"""Minifloats: magnitudes, codes, and all forms of their payload, one element at a time.

Source: ``docs/wire-format.md``, minifloat, Huffman words, rANS and seek tables. Magnitudes are
fractions, strings are of 0 and 1. A codebook is a list of the frequency of each code, indexed by
the code; the caller provides it.
"""

from __future__ import annotations

import bisect
import functools
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import canonical as huffman
from . import contexts, leb128, tabled
from .seek import Table
from .universal import Bits, Corrupt, Truncated, fixed, to_bytes, to_text

Floats = NDArray[np.float32]
Book = Sequence[int] | None

FORMATS = ("e2m1", "e1m1", "e1m2", "e3m0", "e2m2", "e3m2", "e4m3", "e5m2")
STYLES = ("full", "ieee", "fn")
CODES = ("none", "huffman", "pair", "planes", "rans")
PLAIN, OWN = "none", 0  # the code without words; the scalar of a table in the payload


class Setting(NamedTuple):
    """The parameters of a codec."""

    format: str = "e2m1"
    style: str = "full"
    code: str = "huffman"
    block: int = 0

    @property
    def bits(self) -> tuple[int, int]:
        """Return the numbers of bits of e and of m."""
        return int(self.format[1]), int(self.format[3])

    @property
    def width(self) -> int:
        """Return the number of bits of a code."""
        return 1 + sum(self.bits)

    @property
    def paired(self) -> bool:
        """Return whether a symbol of the string is a pair of codes."""
        return self.code == "pair" or (self.code == "rans" and self.width <= 4)

    @property
    def kind(self) -> str:
        """Return the entropy code of the string."""
        return "rans" if self.code == "rans" else "huffman"


class Message(NamedTuple):
    """The result of an encoder, and the input of a decoder."""

    setting: Setting
    scale: np.float32
    table: int  # the scalar
    codes: list[int]
    model: list[int]  # lengths or frequencies of the alphabet; empty where nothing is coded
    data: bytes
    nbits: int
    factors: list[int]  # a byte for each block


# --- formats ------------------------------------------------------------------------------------


@functools.cache  # read only, as are the other lists of a setting
def magnitudes(setting: Setting) -> list[Fraction]:
    """Return the magnitudes of valid codes in increasing order from 0."""
    e_bits, m_bits = setting.bits
    results = []
    for e in range(1 << e_bits):
        for m in range(1 << m_bits):
            fraction = Fraction(m, 1 << m_bits)
            results.append((1 + fraction) * 2**e if e else 2 * fraction)
    left_out = {"full": 0, "ieee": 1 << m_bits, "fn": 1}[setting.style]
    return results[: len(results) - left_out]


def code_of(setting: Setting, minus: bool, j: int) -> int:
    """Return the code of magnitude j."""
    return (minus << (setting.width - 1)) + j


def split(setting: Setting, code: int) -> tuple[bool, int]:
    """Return the sign of a code, and the index j of its magnitude."""
    return code >= 1 << (setting.width - 1), code % (1 << (setting.width - 1))


@functools.cache
def alphabet(setting: Setting) -> list[int]:
    """Return the valid codes, in order."""
    top = len(magnitudes(setting)) - 1
    plus = [code_of(setting, False, j) for j in range(top + 1)]
    return plus + [code_of(setting, True, j) for j in range(1, top + 1)]


def check_scale(setting: Setting, scale: np.float32) -> None:
    """Reject a scale that is not a nonnegative number, or is too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.float32(scale) * np.float32(magnitudes(setting)[-1])
    if not (scale >= 0 and np.isfinite(scale) and np.isfinite(largest)):
        raise Corrupt(f"the scale {scale}")


def blocks_of(setting: Setting, n: int) -> int:
    """Return the number of blocks of n elements."""
    return -(-n // setting.block) if setting.block else 0


def scales_of(setting: Setting, scale: float, n: int, factors: Sequence[int]) -> list[np.float32]:
    """Return the scale of each element."""
    if not setting.block:
        return [np.float32(scale)] * n
    assert len(factors) == blocks_of(setting, n)
    results = []
    for byte in factors:
        exact = Fraction(float(scale)) * (8 + byte % 8) * Fraction(2) ** (byte // 8 - 31)
        # The product has at most 4 significant bits more than binary32, and so is exact in
        # binary64.
        with np.errstate(over="ignore", under="ignore"):
            results += [np.float32(float(exact))] * setting.block
    return results[:n]


def check_factors(setting: Setting, scale: float, n: int, factors: Sequence[int]) -> None:
    """Reject factors for which a code has a nonfinite value."""
    top = np.float32(magnitudes(setting)[-1])
    for block_scale in set(scales_of(setting, scale, n, factors)):
        with np.errstate(over="ignore"):
            if not np.isfinite(block_scale * top):
                raise Corrupt(f"the scale {block_scale} of a block")


# --- quantise -----------------------------------------------------------------------------------


def nearest(r: np.float32, levels: Sequence[Fraction]) -> int:
    """Return the index of the level nearest to r, the even one for a tie; levels increase."""
    if np.isinf(r):
        return len(levels) - 1
    exact = Fraction(float(r))
    above = bisect.bisect_left(levels, exact)
    both = range(max(above - 1, 0), min(above + 1, len(levels)))
    return min(both, key=lambda j: (abs(exact - levels[j]), j % 2))


def quantize(x: Floats, setting: Setting, scale: float, factors: Sequence[int] = ()) -> list[int]:
    """Return the code of each element."""
    levels = magnitudes(setting)
    results = []
    values = np.asarray(x, np.float32).reshape(-1)
    scales = scales_of(setting, scale, values.size, factors)
    for value, scale in zip(values, scales, strict=True):
        if not np.isfinite(value):
            raise ValueError("NaN or Inf")
        j = 0
        if scale != 0:
            with np.errstate(over="ignore", under="ignore"):
                j = nearest(abs(value) / scale, levels)
        results.append(code_of(setting, bool(j and value < 0), j))
    return results


def factors_for(x: Floats, setting: Setting, scale: float) -> list[int]:
    """Return gcodec's factors of blocks: those of the least squared error of six candidates.

    (The specification leaves them to the writer; ``docs/minifloat.md`` defines the rule.)
    """
    values = np.asarray(x, np.float32).reshape(-1)
    top = np.float32(magnitudes(setting)[-1])
    results = []
    for at in range(blocks_of(setting, values.size)):
        part = values[at * setting.block : (at + 1) * setting.block]
        largest = Fraction(float(np.abs(part).max()))
        if not largest or not scale:
            results.append(0)
            continue
        with np.errstate(over="ignore", under="ignore"):
            ratio = np.float32(largest) / np.float32(np.float32(scale) * top)
        factors = [Fraction(8 + byte % 8) * Fraction(2) ** (byte // 8 - 31) for byte in range(256)]
        needed = sum(factor <= ratio for factor in factors) - 1
        errors: dict[int, Fraction] = {}
        for byte in range(min(needed + 1, 255), max(needed - 5, -1), -1):
            alone = setting._replace(block=part.size)
            delta = scales_of(alone, scale, 1, [byte])[0]
            with np.errstate(over="ignore"):
                if delta and np.isfinite(delta * top):
                    sent = dequantize(quantize(part, alone, scale, [byte]), alone, scale, [byte])
                    pairs = zip(part.tolist(), sent.tolist(), strict=True)
                    errors[byte] = sum(
                        ((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0)
                    )
        results.append(min(errors, key=lambda byte: (errors[byte], -byte), default=0))
    return results


def dequantize(
    codes: Sequence[int], setting: Setting, scale: float, factors: Sequence[int] = ()
) -> Floats:
    """Return the values of codes."""
    levels = magnitudes(setting)
    out = np.zeros(len(codes), np.float32)
    scales = scales_of(setting, scale, len(codes), factors)
    for i, code in enumerate(codes):
        minus, j = split(setting, code)
        if j:
            with np.errstate(under="ignore"):
                value = scales[i] * np.float32(levels[j])
            out[i] = np.copysign(value, np.float32(-1 if minus else 1))
    return out


# --- symbols ------------------------------------------------------------------------------------


@functools.cache
def symbol_alphabet(setting: Setting) -> list[int]:
    """Return the symbols of the string, in order."""
    codes = alphabet(setting)
    if setting.paired:
        return [16 * a + b for a in codes for b in codes]
    if setting.code == "planes":
        return sorted({exponent(setting, code) for code in codes})
    return codes


def exponent(setting: Setting, code: int) -> int:
    """Return the exponent e of a code."""
    return split(setting, code)[1] >> setting.bits[1]


def symbols_of(setting: Setting, codes: Sequence[int]) -> list[int]:
    """Return the symbols of the string."""
    if setting.paired:
        even = [*codes, 0] if len(codes) % 2 else codes
        return [16 * even[i] + even[i + 1] for i in range(0, len(even), 2)]
    if setting.code == "planes":
        return [exponent(setting, code) for code in codes]
    return list(codes)


def counts_of_book(setting: Setting, book: Sequence[int]) -> list[int]:
    """Return counts of the symbols of the string, according to a codebook."""
    codes = alphabet(setting)
    if setting.paired:
        return [book[a] * book[b] for a in codes for b in codes]
    if setting.code == "planes":
        return [
            sum(book[code] for code in codes if exponent(setting, code) == e)
            for e in symbol_alphabet(setting)
        ]
    return [book[code] for code in codes]


def model_of_book(setting: Setting, book: Sequence[int]) -> list[int]:
    """Return the code lengths or frequencies of a codebook."""
    return list(_model_of_book(setting, tuple(book)))


@functools.cache
def _model_of_book(setting: Setting, book: tuple[int, ...]) -> list[int]:
    counts = counts_of_book(setting, book)
    if setting.kind == "huffman":
        return huffman.lengths_of(counts)
    if setting.paired:
        model = [max(1, count // 2**14) for count in counts]
        model[counts.index(max(counts))] += 2**14 - sum(model)
        return model
    return counts


def places_of(setting: Setting, codes: Sequence[int]) -> list[int]:
    """Return the alphabet indices of the symbols of the string."""
    place = {symbol: at for at, symbol in enumerate(symbol_alphabet(setting))}
    return [place[symbol] for symbol in symbols_of(setting, codes)]


# --- write --------------------------------------------------------------------------------------


def plane(setting: Setting, codes: Sequence[int]) -> str:
    """Return signs and mantissas."""
    m_bits = setting.bits[1]
    parts = [split(setting, code) for code in codes]
    return "".join(fixed(minus, 1) + fixed(j % (1 << m_bits), m_bits) for minus, j in parts)


def write(
    setting: Setting,
    scale: float,
    codes: Sequence[int],
    table: int = OWN,
    book: Book = None,
    model: Sequence[int] | None = None,
    factors: Sequence[int] = (),
) -> Message:
    """Return the message of codes.

    Parameters
    ----------
    table, book
        The scalar and, unless it is `OWN`, the counts of that codebook.
    model
        Lengths or frequencies of a transmitted table; by default those that gcodec makes.
    factors
        One byte for each block.
    """
    check_scale(setting, np.float32(scale))
    check_factors(setting, scale, len(codes), factors)
    used: list[int] = []
    if setting.code == PLAIN:
        text = "".join(fixed(code, setting.width) for code in codes)
    else:
        places = places_of(setting, codes)
        if book is not None:
            used = model_of_book(setting, book)
        elif model is not None:
            used = list(model)
        else:
            used = tabled.model_of(setting.kind, places, len(symbol_alphabet(setting)))
        text = plane(setting, codes) if setting.code == "planes" else ""
        text += tabled.write(setting.kind, places, used, sent=table == OWN)
    data = bytes(factors) + to_bytes(text)
    nbits = 8 * len(factors) + len(text)
    numbers = np.float32(scale), table, list(codes), used
    return Message(setting, *numbers, data, nbits, list(factors))


def encode(
    x: Floats,
    setting: Setting,
    scale: float,
    table: int = OWN,
    book: Book = None,
    factors: Sequence[int] = (),
) -> Message:
    """Return the message of a gradient."""
    codes = quantize(x, setting, scale, factors)
    return write(setting, scale, codes, table, book, None, factors)


# --- read ---------------------------------------------------------------------------------------


def _read_plain(bits: Bits, setting: Setting, n: int) -> list[int]:
    valid = set(alphabet(setting))
    nbits = len(bits.text)
    if (nbits + 7) // 8 < (n * setting.width + 7) // 8:
        raise Truncated("fewer bytes than the codes take")
    if nbits != n * setting.width:
        raise Corrupt("another number of bits than the codes take")
    codes = [bits.number(setting.width) for _ in range(n)]
    if not valid.issuperset(codes):
        raise Corrupt("an invalid code")
    return codes


def _of_pairs(pairs: Sequence[int], n: int) -> list[int]:
    codes = [code for pair in pairs for code in divmod(pair, 16)]
    if any(codes[n:]):
        raise Corrupt("a code after the last element")
    return codes[:n]


def _of_planes(setting: Setting, raw: str, exponents: Sequence[int]) -> list[int]:
    m_bits = setting.bits[1]
    codes = []
    for i, e in enumerate(exponents):
        piece = raw[i * (1 + m_bits) : (i + 1) * (1 + m_bits)]
        codes.append(code_of(setting, piece[0] == "1", (e << m_bits) + int("0" + piece[1:], 2)))
    if not set(alphabet(setting)).issuperset(codes):
        raise Corrupt("planes that together are no valid code")
    return codes


def read(
    setting: Setting,
    data: bytes,
    nbits: int,
    n: int,
    scale: float,
    table: int = OWN,
    book: Book = None,
) -> Message:
    """Return the contents of a payload, or raise `Truncated` or `Corrupt`.

    ``book`` is the codebook that the scalar ``table`` selects, or None if no codebook has that
    number. If a payload has several defects, the error refers to one of them.
    """
    assert len(data) == (nbits + 7) // 8
    check_scale(setting, np.float32(scale))
    if table != OWN and (setting.code in (PLAIN, "context") or book is None):
        raise Corrupt("a table that does not exist")
    if setting.code == "pair" and setting.width > 4:
        raise Corrupt("pairs of codes of more than 4 bits")
    text = to_text(data)
    if "1" in text[nbits:]:
        raise Corrupt("fill that is not zero")
    lead = blocks_of(setting, n)
    if nbits < 8 * lead:
        raise Truncated("fewer bits than a byte for each block")
    check_factors(setting, scale, n, data[:lead])
    # A rANS string begins at a whole byte, with and without preceding bytes.
    bits = Bits(text[8 * lead : nbits])
    agreed = None if book is None or table == OWN else model_of_book(setting, book)
    symbols, model = symbol_alphabet(setting), []
    if setting.code == PLAIN:
        codes = _read_plain(bits, setting, n)
    elif setting.code == "context":
        decoded = contexts.read_symbols(bits, n, 2 * len(magnitudes(setting)) - 1)
        codes = [code_of(setting, bool(symbol % 2), symbol // 2) for symbol in decoded]
    else:
        raw = bits.take(n * (1 + setting.bits[1])) if setting.code == "planes" else ""
        count = (n + 1) // 2 if setting.paired else n
        places, model = tabled.read(setting.kind, bits, count, len(symbols), agreed)
        codes = [symbols[place] for place in places]
        if setting.paired:
            codes = _of_pairs(codes, n)
        if setting.code == "planes":
            codes = _of_planes(setting, raw, codes)
    if bits.at != nbits - 8 * lead:
        raise Corrupt("bits after the last word")
    numbers = np.float32(scale), table, codes, model
    return Message(setting, *numbers, data, nbits, list(data[:lead]))


def decode(
    setting: Setting,
    data: bytes,
    nbits: int,
    n: int,
    scale: float,
    table: int = OWN,
    book: Book = None,
) -> Floats:
    """Return the n values of a payload."""
    message = read(setting, data, nbits, n, scale, table, book)
    return dequantize(message.codes, setting, scale, message.factors)


# --- headers ------------------------------------------------------------------------------------


def parameters(setting: Setting) -> bytes:
    """Return the parameters of a frame; only ``block`` has a default and may be omitted."""
    choices = zip((FORMATS, STYLES, CODES), setting[:3], strict=True)
    block = leb128.encode(setting.block) if setting.block else b""
    return bytes(words.index(word) for words, word in choices) + block


def scalars(message: Message) -> bytes:
    """Return the scalars of a frame."""
    return struct.pack("<f", message.scale) + leb128.encode(message.table)


def seek_table(message: Message, log2_block: int) -> Table:
    """Return the seek table of a message whose codes have no fixed width."""
    assert message.setting.code != PLAIN
    places = places_of(message.setting, message.codes)
    return tabled.seek_table(message.setting.kind, places, message.model, log2_block)
