"""How codes of minifloats are written: in fixed width, or by how often they, or parts, occur.

    none      all bits of each code
    huffman   a word for each code
    pair      a word for each two codes, of up to four bits
    planes    sign and mantissa as they are, then a word for each exponent
    rans      rANS of the codes, of each two where they have up to four bits
    context   rANS of each code, by what the scales of row and column lead to expect

What is coded are bytes: a code, two of them as they lie in memory, or an exponent. Where codebooks
are asked for, their counts of codes give those of such bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.minifloat import codebooks
from gcodec.entropy import tabled
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.code_parts import parts_of
from gcodec.kernels.bits.pack import FieldLayout, unpack_fields
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.runtime.deferred import mapped
from gcodec.runtime.device import device_of, host

CODES = ("none", "huffman", "pair", "planes", "rans", "context")
TABLED = CODES[1:-1]


class Plan(NamedTuple):
    """How the codes of a tensor are written.

    Attributes
    ----------
    code : str
    book : int or None
        The codebook; None where the string has a table of its own, or needs none.
    table : Table or None
        None with the codes "none" and "context".
    nbits : int
        Of the payload; of rANS an estimate, and the most where there is no other plan.
    symbols : uint8 array or None
        What is coded, where it was made to be counted: on a device, which chooses the table.
    """

    code: str
    book: int | None
    table: Table | None
    nbits: int
    symbols: np.ndarray | None = None


def coded_nbytes(n: int, fmt: MiniFloat, code: str) -> int:
    """Return how many bytes stand for n codes in an entropy-coded string."""
    return -(-n // 2) if is_paired(fmt, code) else n


def is_paired(fmt: MiniFloat, code: str) -> bool:
    """Whether a byte stands for two codes."""
    # With rANS it halves what states take, in bits and in time.
    return code == "pair" or (code == "rans" and per_byte(fmt) == 2)


def plane_nbits(n: int, fmt: MiniFloat) -> int:
    """Return the bits of the signs and mantissas of n codes."""
    return n * (1 + fmt.mantissa)


def longest_nbits(n: int, fmt: MiniFloat, code: str) -> int:
    """Return the most bits of the payload of n codes; with code "auto", those of "none"."""
    if code in ("none", "auto") or not n:
        return n * fmt.width
    if code == "context":
        return symbol_coder.longest_nbits(n)
    raw = plane_nbits(n, fmt) if code == "planes" else 0
    return raw + tabled.longest_nbits(
        KINDS[code], coded_nbytes(n, fmt, code), alphabet(fmt, code).size
    )


def plan(codes: np.ndarray, n: int, fmt: MiniFloat, code: str, book: int | str) -> Plan:
    """Return the plan of the shortest payload, but for "context"; the first of equals.

    Parameters
    ----------
    codes : uint8 array
        As `kernels.minifloat` keeps them.
    n : int
        Codes.
    fmt : MiniFloat
    code : str
        One of `CODES`, or "auto".
    book : int or str
        A codebook, "empirical" for none, "gennorm" for the best one, "auto" for any of these.
    """
    if code in ("none", "context") or not n:
        return Plan("none" if code == "auto" else code, None, None, n * fmt.width)
    if code != "auto" and isinstance(book, int):  # there is no choice that counts could decide
        return Plan(code, book, static(fmt, code, book), longest_nbits(n, fmt, code))
    if code != "auto" and device_of(codes) is not None:
        return _plan_there(codes, n, fmt, code, book)
    held = host(byte_counts(codes))
    plans = [Plan("none", None, None, n * fmt.width)] if code == "auto" else []
    for one in TABLED if code == "auto" else (code,):
        if one != "pair" or per_byte(fmt) == 2:
            plans += _plans(held, n, fmt, one, book)
    return min(plans, key=lambda plan: plan.nbits)


def _plans(held: np.ndarray, n: int, fmt: MiniFloat, code: str, book: int | str) -> Iterator[Plan]:
    """Return a plan for each table that may be taken."""
    counts = held if is_paired(fmt, code) else _parts(_code_counts(held, n, fmt), code, fmt)
    raw = plane_nbits(n, fmt) if code == "planes" else 0
    if book in ("auto", "empirical"):
        table = Table.own(KINDS[code], counts, alphabet(fmt, code))
        yield Plan(code, None, table, raw + table.nbits(counts))
    if book != "empirical":
        for number in books(fmt, book):
            table = static(fmt, code, number)
            yield Plan(code, number, table, raw + table.nbits(counts))


def _plan_there(codes: np.ndarray, n: int, fmt: MiniFloat, code: str, book: int | str) -> Plan:
    """Return the plan of a code whose table a device makes or chooses, by counts that it has."""
    symbols, kind = symbols_of(codes, n, fmt, code), KINDS[code]
    counts, own = byte_counts(symbols), None
    if book in ("auto", "empirical"):
        own = Table.own(kind, counts, alphabet(fmt, code))
    most = longest_nbits(n, fmt, code)
    if own is not None and book == "empirical":
        return Plan(code, None, own, most, symbols)
    made = tabled.chosen(counts, own, kind, alphabet(fmt, code), known_books(fmt, code, book))
    return Plan(code, book_of(made, fmt, book), made, most, symbols)


def known_books(fmt: MiniFloat, code: str, book: int | str) -> tabled.Known:
    """Return what `tabled.chosen` is given to make the tables of all codebooks that are known."""
    return static_numbers, fmt, code, books(fmt, book)


def books(fmt: MiniFloat, book: int | str) -> tuple[int, ...]:
    """Return the numbers of the codebooks that may be taken."""
    if isinstance(book, int):
        return (book,)
    return () if book == "empirical" else tuple(range(codebooks.number_of(fmt)))


def book_of(table: Table, fmt: MiniFloat, book: int | str) -> Any:
    """Return the number of the codebook that was chosen; None for a table of its own."""
    every = books(fmt, book)
    return mapped(lambda which: every[which - 1] if which else None, table.which)


def symbols_of(codes: np.ndarray, n: int, fmt: MiniFloat, code: str) -> np.ndarray:
    """Return the bytes that are coded, which stay on the device."""
    if code == "planes":
        return parts_of(codes, n, fmt, "exponents")
    if is_paired(fmt, code) or per_byte(fmt) == 1:
        return codes
    return unpack_fields(codes, n, FieldLayout(4))


def static_numbers(fmt: MiniFloat, code: str, some: tuple[int, ...]) -> np.ndarray:
    """Return those of the tables of some codebooks, each (256,); see `Table`."""
    every = range(codebooks.number_of(fmt))
    found = np.stack([static(fmt, code, number).numbers for number in every])
    return found[np.array(some, np.int64)]


KINDS: dict[str, tabled.Kind] = {code: "huffman" for code in TABLED}
KINDS["rans"] = "rans"


@functools.cache
def static(fmt: MiniFloat, code: str, book: int) -> Table:
    """Return the table of a codebook."""
    counts = codebooks.counts(fmt, book)
    if is_paired(fmt, code):
        digits = np.zeros(16, np.int64)
        digits[: counts.size] = counts
        products = np.outer(digits, digits).reshape(-1)
        return Table.static(KINDS[code], _shares(products) if code == "rans" else products)
    return Table.static(KINDS[code], _parts(counts, code, fmt))


def _shares(products: np.ndarray) -> np.ndarray:
    """Return as frequencies of rANS the products of counts, both with the sum `codebooks.TOTAL`.

    All are rounded down, but those that occur to 1 at least. The largest one takes the rest.
    """
    found: np.ndarray = np.maximum(products // codebooks.TOTAL, products > 0)
    found[products.argmax()] += codebooks.TOTAL - int(found.sum())
    return found


@functools.cache
def alphabet(fmt: MiniFloat, code: str) -> np.ndarray:
    """Return the bytes that may occur in a string, rising."""
    codes = np.arange(1 << fmt.width)
    magnitudes = codes & (1 << fmt.width - 1) - 1
    valid = (magnitudes <= fmt.top) & (codes != 1 << fmt.width - 1)
    if is_paired(fmt, code):
        digits = np.zeros(16, np.bool_)
        digits[: valid.size] = valid
        return np.flatnonzero(np.outer(digits, digits)).astype(np.uint8)
    return np.flatnonzero(_parts(valid.astype(np.int64), code, fmt)).astype(np.uint8)


def _code_counts(held: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Return how often each code occurs, as (256,) int64."""
    if per_byte(fmt) == 1:
        return held
    counts = np.zeros(256, np.int64)
    square = held.reshape(16, 16)
    counts[:16] = square.sum(axis=0) + square.sum(axis=1)
    counts[0] -= n % 2  # behind the last code
    return counts


def _parts(counts: np.ndarray, code: str, fmt: MiniFloat) -> np.ndarray:
    """Return how often each byte of a string occurs, given that of the codes, as (256,) int64."""
    found = np.zeros(256, np.int64)
    if code == "planes":
        cube = counts[: 1 << fmt.width].reshape(2, 1 << fmt.exponent, 1 << fmt.mantissa)
        found[: 1 << fmt.exponent] = cube.sum(axis=(0, 2))
    else:
        found[: min(counts.size, 256)] = counts[:256]
    return found
