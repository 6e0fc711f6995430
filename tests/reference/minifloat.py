"""Minifloats: magnitudes, codes, and all forms of their payload.

Source: ``docs/wire-format.md``, minifloat, Huffman words, rANS and seek tables. Magnitudes are
fractions, strings are of 0 and 1. A codebook is a list of the frequency of each code, indexed by
the code; the caller provides it.
"""

from __future__ import annotations

import bisect
import functools
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import canonical as huffman
from . import contexts, leb128, tabled
from .seek import Table
from .universal import Bits, Corrupt, Truncated, fixed, payload_bits, to_bytes

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
        largest = np.float32(scale) * np.float32(levels_of(setting)[-1])
    if not (scale >= 0 and np.isfinite(scale) and np.isfinite(largest)):
        raise Corrupt(f"the scale {scale}")


def blocks_of(setting: Setting, n: int) -> int:
    """Return the number of blocks of n elements."""
    return -(-n // setting.block) if setting.block else 0


def scales_of(setting: Setting, scale: float, n: int, factors: Sequence[int]) -> Floats:
    """Return the scale of each element."""
    if not setting.block:
        return np.full(n, scale, np.float32)
    assert len(factors) == blocks_of(setting, n)
    # The product has at most 4 significant bits more than binary32, and so is exact in binary64.
    exact = [math.ldexp(float(scale) * (8 + byte % 8), byte // 8 - 31) for byte in factors]
    with np.errstate(over="ignore", under="ignore"):
        return np.repeat(np.array(exact).astype(np.float32), setting.block)[:n]


def check_factors(setting: Setting, scale: float, n: int, factors: Sequence[int]) -> None:
    """Reject factors for which a code has a nonfinite value."""
    top = np.float32(levels_of(setting)[-1])
    with np.errstate(over="ignore"):
        if not np.isfinite(scales_of(setting, scale, n, factors) * top).all():
            raise Corrupt("the scale of a block")


# --- quantize -----------------------------------------------------------------------------------


@functools.cache
def levels_of(setting: Setting) -> NDArray[np.float64]:
    """Return the magnitudes as floats, which are exact."""
    return np.array(magnitudes(setting), float)


def nearest(r: Floats, levels: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the level nearest to each r, the even one for a tie; levels increase."""
    middles = (levels[:-1] + levels[1:]) / 2  # exact
    low = np.searchsorted(middles, r)  # below it lie all middles less than r
    is_tie = middles[np.minimum(low, len(middles) - 1)] == r
    return low + (is_tie & (low % 2 == 1))


def quantize(x: Floats, setting: Setting, scale: float, factors: Sequence[int] = ()) -> list[int]:
    """Return the code of each element."""
    values = np.asarray(x, np.float32).reshape(-1)
    scales = scales_of(setting, scale, values.size, factors)
    if not np.isfinite(values).all():
        raise ValueError("NaN or Inf")
    with np.errstate(over="ignore", under="ignore"):
        r = np.divide(np.abs(values), scales, out=np.zeros_like(values), where=scales != 0)
    j = nearest(r, levels_of(setting))
    minus = (j > 0) & (values < 0)
    results: list[int] = ((minus << (setting.width - 1)) + j).tolist()
    return results


def factors_for(x: Floats, setting: Setting, scale: float) -> list[int]:
    """Return gcodec's factors of blocks: those of the least squared error of six candidates.

    (The specification leaves them to the writer; ``docs/minifloat.md`` defines the rule.)
    """
    values = np.asarray(x, np.float32).reshape(-1)
    top = np.float32(levels_of(setting)[-1])
    results = []
    for at in range(blocks_of(setting, values.size)):
        part = values[at * setting.block : (at + 1) * setting.block]
        largest = Fraction(float(np.abs(part).max()))
        if not largest or not scale:
            results.append(0)
            continue
        with np.errstate(over="ignore", under="ignore"):
            ratio = np.float32(largest) / np.float32(np.float32(scale) * top)
        needed = bisect.bisect_right(_factors(), float(ratio)) - 1
        errors: dict[int, int] = {}
        for byte in range(min(needed + 1, 255), max(needed - 5, -1), -1):
            alone = setting._replace(block=part.size)
            delta = scales_of(alone, scale, 1, [byte])[0]
            with np.errstate(over="ignore"):
                if delta and np.isfinite(delta * top):
                    sent = dequantize(quantize(part, alone, scale, [byte]), alone, scale, [byte])
                    pairs = zip(_integers(part), _integers(sent), strict=True)
                    errors[byte] = sum((a - b) ** 2 for a, b in pairs)
        results.append(min(errors, key=lambda byte: (errors[byte], -byte), default=0))
    return results


@functools.cache
def _factors() -> list[float]:
    """Return the factor of each byte, in ascending order."""
    return [math.ldexp(8 + byte % 8, byte // 8 - 31) for byte in range(256)]


def _integers(x: Floats) -> list[int]:
    """Return numbers as multiples of the least binary32."""
    return [int(math.ldexp(value, 149)) for value in x.tolist()]


def dequantize(
    codes: Sequence[int], setting: Setting, scale: float, factors: Sequence[int] = ()
) -> Floats:
    """Return the values of codes, whose signs are independent of that of the scale."""
    levels = levels_of(setting).astype(np.float32)
    each, half = np.array(codes, np.int64), 1 << (setting.width - 1)
    j = each % half
    with np.errstate(under="ignore"):
        values = np.abs(scales_of(setting, scale, len(codes), factors)) * levels[j]
    return np.where(j == 0, np.float32(0), np.where(each >= half, -values, values))


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
    check_scale(setting, np.float32(scale))
    if table != OWN and (setting.code in (PLAIN, "context") or book is None):
        raise Corrupt("a table that does not exist")
    if setting.code == "pair" and setting.width > 4:
        raise Corrupt("pairs of codes of more than 4 bits")
    text = payload_bits(data, nbits).text
    lead = blocks_of(setting, n)
    if nbits < 8 * lead:
        raise Truncated("fewer bits than a byte for each block")
    check_factors(setting, scale, n, data[:lead])
    # A rANS string begins at a whole byte, with and without preceding bytes.
    bits = Bits(text[8 * lead :])
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
