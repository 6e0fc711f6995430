"""Entropy codes of minifloat codes, and the plans among which the encoder selects.

none      the codes in their fixed width
huffman   a Huffman codeword for each code
pair      a Huffman codeword for each pair of codes of up to four bits
planes    sign and mantissa in fixed width, and a Huffman codeword for each exponent
rans      rANS of the codes; of pairs of codes if these have up to four bits
context   rANS of each code with a context: the scales of its row and column

The coded symbols are bytes: a code, the byte of two codes in memory, or an exponent. A codebook
stores counts of codes, which determine the counts of these bytes.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.codecs.minifloat import codebooks
from gcodec.entropy import rans, tabled
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.code_parts import parts_of
from gcodec.kernels.bits.pack import FieldLayout, unpack_fields
from gcodec.kernels.numeric.byte_counts import byte_counts, least_nbits
from gcodec.kernels.prefix.table_code import LONGEST
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred, map_deferred
from gcodec.runtime.device import device_of

CODES = ("none", "huffman", "pair", "planes", "rans", "context")
TABLED = CODES[1:-1]
KINDS: dict[str, tabled.Kind] = {code: "huffman" for code in TABLED}
KINDS["rans"] = "rans"
_LONGEST_PART = LONGEST + 8  # bits of a codeword, and of a sign and a mantissa


class Plan(NamedTuple):
    """One way to write the codes of a tensor.

    Attributes
    ----------
    code : str
        One of `CODES`, except "context".
    book : int or None
        Number of the codebook, possibly a `Deferred`; None if the payload contains a table or
        needs none.
    table : Table or None
        Table of the code; None for the code "none", and if there are no codes.
    nbits : int or Deferred
        Bits of table and string, without the plane of "planes"; for rANS an estimate. 0 if there
        is no other plan.
    symbols : uint8 array or None
        The coded bytes, if a device has computed them to count them.
    """

    code: str
    book: int | None
    table: Table | None
    nbits: int | Deferred = 0
    symbols: Array | None = None


def coded_nbytes(n: int, fmt: MiniFloat, code: str) -> int:
    """Return the number of bytes that are coded for n codes."""
    return -(-n // 2) if is_paired(fmt, code) else n


def is_paired(fmt: MiniFloat, code: str) -> bool:
    """Return whether a coded byte contains two codes."""
    # For rANS, pairs halve the number of symbols, and with it the time.
    return code == "pair" or (code == "rans" and per_byte(fmt) == 2)


def plane_nbits(n: int, fmt: MiniFloat) -> int:
    """Return the bits of the plane of signs and mantissas of n codes."""
    return n * (1 + fmt.mantissa)


def longest_nbits(n: int, fmt: MiniFloat, code: str) -> int:
    """Return an upper bound on the bits of the payload of n codes; "auto" has that of "none"."""
    if code in ("none", "auto") or not n:
        return n * fmt.width
    if code == "context":
        return symbol_coder.longest_nbits(n)
    raw = plane_nbits(n, fmt) if code == "planes" else 0
    return raw + tabled.longest_nbits(
        KINDS[code], coded_nbytes(n, fmt, code), alphabet(fmt, code).size
    )


def plans(codes: Array, n: int, fmt: MiniFloat, code: str, book: int | str) -> list[Plan]:
    """Return the plans among which the shortest is selected, except that of "context".

    Parameters
    ----------
    codes : uint8 array
        Codes as `gcodec.kernels.quantize.minifloat` stores them.
    n : int
        Number of codes.
    fmt : MiniFloat
    code : str
        One of `CODES`, or "auto".
    book : int or str
        Number of a codebook, "empirical" for a table in the payload, "gennorm" for the best
        codebook, or "auto" for any of these.
    """
    plain = Plan("none" if code == "auto" else code, None, None, n * fmt.width)
    if code == "none" or not n:
        return [plain]
    if code != "auto" and isinstance(book, int):
        return [Plan(code, book, static(fmt, code, book))]
    if code != "auto":
        return [_tabled_plan(codes, n, fmt, code, book)]
    return [plain, *(_tabled_plan(codes, n, fmt, name, book) for name in tabled_codes(fmt))]


def tabled_codes(fmt: MiniFloat) -> list[str]:
    """Return the codes of a format that have a table."""
    return [code for code in TABLED if code != "pair" or per_byte(fmt) == 2]


class Histogram(NamedTuple):
    """Counts on the host of the codes of a tensor.

    Attributes
    ----------
    n : int
        Number of codes.
    fmt : MiniFloat
    counts : (256,) int64 array
        Counts of the bytes that store the codes.
    """

    n: int
    fmt: MiniFloat
    counts: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, n: int, fmt: MiniFloat) -> Histogram:
        """Count n codes, which are stored as in memory."""
        return cls(n, fmt, byte_counts(codes))

    def floors(self) -> dict[str, int]:
        """Return a lower bound of the bits of each code that has a table."""
        # rANS codes the bytes that store the codes. All other codes are prefix codes of these
        # bytes, apart from a codeword for the padding after an odd number of codes. No code takes
        # fewer bits than the entropy of the bytes.
        entropy = least_nbits(self.counts, rans.log2_table())
        floors = dict.fromkeys(tabled_codes(self.fmt), entropy - _LONGEST_PART)
        floors["rans"] = entropy + rans.least_overhead(coded_nbytes(self.n, self.fmt, "rans"))
        return floors

    def plan(self, code: str, book: int | str) -> Plan:
        """Return the plan of a code with its best table; see `plans` for `book`."""
        counts = self.counts
        if not is_paired(self.fmt, code):
            counts = _parts(_code_counts(counts, self.n, self.fmt), code, self.fmt)
        return _best_plan(counts, None, self.fmt, code, book)


def _tabled_plan(codes: Array, n: int, fmt: MiniFloat, code: str, book: int | str) -> Plan:
    """Return the plan of a code with its best table."""
    if device_of(codes) is None:
        return Histogram.of(codes, n, fmt).plan(code, book)
    symbols = coded_bytes(codes, n, fmt, code)
    return _best_plan(byte_counts(symbols), symbols, fmt, code, book)


def _best_plan(
    counts: Array, symbols: Array | None, fmt: MiniFloat, code: str, book: int | str
) -> Plan:
    """Return the plan of a code with the best table for counts of the bytes that it codes."""
    kind, bytes_of = KINDS[code], alphabet(fmt, code)
    own = Table.own(kind, counts, bytes_of) if book in ("auto", "empirical") else None
    books = static_tables(fmt, code, book) if book != "empirical" else None
    table, nbits = tabled.best_table(counts, own, kind, bytes_of, books)
    first = book if isinstance(book, int) else 0
    number = map_deferred(lambda index: first + index - 1 if index else None, table.which)
    return Plan(code, number, table, nbits, symbols)


def coded_bytes(codes: Array, n: int, fmt: MiniFloat, code: str) -> Array:
    """Return the bytes that are coded, on the device of the codes."""
    if code == "planes":
        return parts_of(codes, n, fmt, "exponents")
    if is_paired(fmt, code) or per_byte(fmt) == 1:
        return codes
    return unpack_fields(codes, n, FieldLayout(4))


@functools.cache
def static_tables(fmt: MiniFloat, code: str, book: int | str) -> tabled.StaticTables:
    """Return a function that returns the tables of the codebooks that `book` allows."""
    books = [book] if isinstance(book, int) else range(codebooks.number_of(fmt))
    numbers = np.stack([static(fmt, code, number).numbers for number in books])
    return lambda: numbers


@functools.cache
def static(fmt: MiniFloat, code: str, book: int) -> Table:
    """Return the table of a codebook."""
    counts = codebooks.counts(fmt, book)
    if not is_paired(fmt, code):
        return Table.static(KINDS[code], _parts(counts, code, fmt))
    products = _pairs(counts)
    return Table.static(KINDS[code], _frequencies(products) if code == "rans" else products)


def _frequencies(products: np.ndarray) -> np.ndarray:
    """Return products of counts as frequencies of rANS, whose sum is `codebooks.TOTAL`.

    All are rounded down, but to 1 at least if the product is not 0. The largest takes the
    remainder.
    """
    frequencies: np.ndarray = np.maximum(products // codebooks.TOTAL, products > 0)
    frequencies[products.argmax()] += codebooks.TOTAL - int(frequencies.sum())
    return frequencies


@functools.cache
def alphabet(fmt: MiniFloat, code: str) -> np.ndarray:
    """Return the bytes that may occur in a string, in ascending order."""
    codes = np.arange(1 << fmt.width)
    magnitudes = codes & (1 << fmt.width - 1) - 1
    valid = (magnitudes <= fmt.top) & (codes != 1 << fmt.width - 1)
    counts = _pairs(valid) if is_paired(fmt, code) else _parts(valid, code, fmt)
    return np.flatnonzero(counts).astype(np.uint8)


def _pairs(counts: np.ndarray) -> np.ndarray:
    """Return the (256,) products of the counts of up to 16 codes, for each pair of codes."""
    padded = np.zeros(16, np.int64)
    padded[: counts.size] = counts
    return np.outer(padded, padded).reshape(-1)


def _code_counts(histogram: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Return the (256,) counts of codes for the histogram of the bytes that store them."""
    if per_byte(fmt) == 1:
        return histogram
    counts = np.zeros(256, np.int64)
    square = histogram.reshape(16, 16)
    counts[:16] = square.sum(axis=0) + square.sum(axis=1)
    counts[0] -= n % 2  # padding after the last code
    return counts


def _parts(counts: np.ndarray, code: str, fmt: MiniFloat) -> np.ndarray:
    """Return the (256,) counts of coded bytes for counts of codes; of exponents for "planes"."""
    parts = np.zeros(256, np.int64)
    if code == "planes":
        cube = counts[: 1 << fmt.width].reshape(2, 1 << fmt.exponent, 1 << fmt.mantissa)
        parts[: 1 << fmt.exponent] = cube.sum(axis=(0, 2))
    else:
        parts[: min(counts.size, 256)] = counts[:256]
    return parts
