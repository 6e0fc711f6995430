"""How codes of minifloats are written: in fixed width, or by how often they, or parts, occur.

    none      all bits of each code
    huffman   a word for each code
    pair      a word for each two codes, of up to four bits
    planes    sign and mantissa as they are, then a word for each exponent
    rans      rANS of the codes, of each two where they have up to four bits

What is coded are bytes: a code, two of them as they lie in memory, or an exponent. Where codebooks
are asked for, their counts of codes give those of such bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec import codebooks
from gcodec.entropy import tabled
from gcodec.entropy.tabled import String, Table
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.byte_counts import byte_counts
from gcodec.kernels.dense_string import Live
from gcodec.kernels.minifloat import check
from gcodec.kernels.minifloat_block import per_byte
from gcodec.kernels.pack import FieldLayout, pack_fields, packer, unpack_fields, unpacker
from gcodec.minifloats import MiniFloat
from gcodec.seek import SeekTable

CODES = ("none", "huffman", "pair", "planes", "rans")


class Plan(NamedTuple):
    """How the codes of a tensor are written.

    Attributes
    ----------
    code : str
    book : int or None
        The codebook; None where the string has a table of its own, or needs none.
    table : Table or None
        None with the code "none".
    nbits : int
        Of the payload; of rANS an estimate, and the most where there is no other plan.
    """

    code: str
    book: int | None
    table: Table | None
    nbits: int


def coded(n: int, fmt: MiniFloat, code: str) -> int:
    """Return how many bytes stand for n codes in an entropy-coded string."""
    return -(-n // 2) if paired(fmt, code) else n


def paired(fmt: MiniFloat, code: str) -> bool:
    """Whether a byte stands for two codes."""
    # With rANS it halves what states take, in bits and in time.
    return code == "pair" or (code == "rans" and per_byte(fmt) == 2)


def longest_nbits(n: int, fmt: MiniFloat, code: str) -> int:
    """Return the most bits of the payload of n codes; with code "auto", those of "none"."""
    if code in ("none", "auto") or not n:
        return n * fmt.width
    raw = _raw(n, fmt) if code == "planes" else 0
    return raw + tabled.longest_nbits(KINDS[code], coded(n, fmt, code), alphabet(fmt, code).size)


def plan(codes: np.ndarray, n: int, fmt: MiniFloat, code: str, book: int | str) -> Plan:
    """Return the plan of the shortest payload; the first of equals.

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
    if code == "none" or not n:
        return Plan("none" if code == "auto" else code, None, None, n * fmt.width)
    if code != "auto" and isinstance(book, int):  # there is no choice that counts could decide
        return Plan(code, book, static(fmt, code, book), longest_nbits(n, fmt, code))
    held = byte_counts(codes)
    plans = [Plan("none", None, None, n * fmt.width)] if code == "auto" else []
    for one in CODES[1:] if code == "auto" else (code,):
        if one != "pair" or per_byte(fmt) == 2:
            plans += _plans(held, n, fmt, one, book)
    return min(plans, key=lambda plan: plan.nbits)


def _plans(held: np.ndarray, n: int, fmt: MiniFloat, code: str, book: int | str) -> Iterator[Plan]:
    """Return a plan for each table that may be taken."""
    counts = held if paired(fmt, code) else _parts(_codes(held, n, fmt), code, fmt)
    raw = _raw(n, fmt) if code == "planes" else 0
    if book in ("auto", "empirical"):
        table = Table.own(KINDS[code], counts, alphabet(fmt, code))
        yield Plan(code, None, table, raw + table.nbits(counts))
    if book != "empirical":
        books = range(codebooks.number_of(fmt)) if isinstance(book, str) else (book,)
        for number in books:
            table = static(fmt, code, number)
            yield Plan(code, number, table, raw + table.nbits(counts))


KINDS: dict[str, tabled.Kind] = {code: "huffman" for code in CODES}
KINDS["rans"] = "rans"


def static(fmt: MiniFloat, code: str, book: int) -> Table:
    """Return the table of a codebook."""
    counts = codebooks.counts(fmt, book)
    if paired(fmt, code):
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
    if paired(fmt, code):
        digits = np.zeros(16, np.bool_)
        digits[: valid.size] = valid
        return np.flatnonzero(np.outer(digits, digits)).astype(np.uint8)
    return np.flatnonzero(_parts(valid.astype(np.int64), code, fmt)).astype(np.uint8)


def _codes(held: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
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


# --- strings


def write(
    codes: np.ndarray, n: int, fmt: MiniFloat, plan: Plan, lead: np.ndarray
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write the payload of n codes by a plan that has a table.

    Parameters
    ----------
    codes : uint8 array
        As `kernels.minifloat` keeps them.
    n : int
    fmt : MiniFloat
    plan : Plan
    lead : uint8 array
        Bytes that come before them.

    Returns
    -------
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the payload is too short for one.
    """
    assert plan.table is not None
    head = BitString()
    head.extend(lead, 8 * lead.size)
    if plan.code == "planes":
        plane = _plane(codes, n, fmt)
        head.extend(pack_fields(plane, FieldLayout(1 + fmt.mantissa)), _raw(n, fmt))

    def symbols_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        if paired(fmt, plan.code):
            return codes[start:stop]
        symbols = codes[start:stop]
        if per_byte(fmt) == 2:
            unpacker(4, True)(codes[start // 2 : -(-stop // 2)], room)
            symbols = room
        if plan.code == "planes":
            np.right_shift(symbols, np.uint8(fmt.mantissa), out=room)
            room &= np.uint8((1 << fmt.exponent) - 1)
            symbols = room
        return symbols

    return tabled.write(plan.table, symbols_of, live(n, fmt, plan.code), head, n)


class CodedPayload(NamedTuple):
    """A payload that is read, of codes that have a table.

    Attributes
    ----------
    string : String
    n : int
        Codes.
    fmt : MiniFloat
    code : str
    """

    string: String
    n: int
    fmt: MiniFloat
    code: str

    @classmethod
    def of(
        cls, data: np.ndarray, nbits: int, n: int, fmt: MiniFloat, code: str, book: int | None
    ) -> CodedPayload:
        """Read the table; check what can be told without reading the string.

        Parameters
        ----------
        data : uint8 array
        nbits : int
        n : int
            Codes.
        fmt : MiniFloat
        code : str
        book : int or None
            The codebook; None where the payload has a table.

        Raises
        ------
        FormatError
        """
        first = _raw(n, fmt) if code == "planes" else 0
        if first > nbits:
            raise Truncated(f"the payload has {nbits} bits, signs and mantissas {first}")
        some = live(n, fmt, code)
        if book is not None:
            string = String(static(fmt, code, book), data, first, nbits, some)
        else:
            where = data, first, nbits, alphabet(fmt, code)
            string = String.behind(KINDS[code], *where, some)
        string.refuse_short()
        return cls(string, n, fmt, code)

    def read(
        self, take: tabled.Take, seek: SeekTable | None = None, *, bits_follow: bool = False
    ) -> int:
        """Read all codes, on the threads of the pool; return the bit behind them.

        Parameters
        ----------
        take : callable
            Gets the first of a range of elements, an even one, and the bytes that hold its codes.
        seek : SeekTable, optional
        bits_follow : bool
            Whether the payload may end behind them.

        Raises
        ------
        FormatError
        """
        return self.string.read(self._taking(take), seek, bits_follow=bits_follow)

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where the blocks of the string begin, by reading it."""
        return self.string.blocks(log2_block)

    def _taking(self, take: tabled.Take) -> tabled.Take:
        """Return what takes the symbols of the string and makes codes of them."""

        def pairs(at: int, symbols: np.ndarray) -> None:
            if 2 * (at + symbols.size) > self.n and symbols[-1] & 15:
                raise Corrupt("the code behind the last element is not zero")
            take(2 * at, symbols)

        def singles(at: int, symbols: np.ndarray) -> None:
            count = symbols.size
            if self.code == "planes":
                symbols = self._joined(at, symbols)
            if per_byte(self.fmt) == 2:
                held = np.empty(-(-count // 2), np.uint8)
                packer(4, True)(symbols, held, False)
                symbols = held
            if self.code == "planes":
                check(symbols, count, self.fmt)
            take(at, symbols)

        return pairs if paired(self.fmt, self.code) else singles

    def _joined(self, at: int, exponents: np.ndarray) -> np.ndarray:
        """Join exponents with the signs and mantissas of their elements."""
        width, mantissa = 1 + self.fmt.mantissa, np.uint8(self.fmt.mantissa)
        codes, plane = exponents << mantissa, np.empty(exponents.size, np.uint8)
        # A range begins with a multiple of 8 elements.
        unpacker(width, True)(self.string.data[at * width // 8 :], plane)
        codes |= plane & np.uint8((1 << self.fmt.mantissa) - 1)
        plane >>= mantissa
        plane <<= np.uint8(self.fmt.width - 1)
        codes |= plane
        return codes


def live(n: int, fmt: MiniFloat, code: str) -> Live:
    """Return that all of the bytes have words that stand for n codes."""
    return Live.all(coded(n, fmt, code))


def _raw(n: int, fmt: MiniFloat) -> int:
    """Return the bits of the signs and mantissas of n codes."""
    return n * (1 + fmt.mantissa)


def _plane(codes: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Return the signs and mantissas of n codes, a byte for each."""
    if per_byte(fmt) == 2:
        codes = unpack_fields(codes, n, FieldLayout(4))
    plane = codes >> np.uint8(fmt.width - 1)
    plane <<= np.uint8(fmt.mantissa)
    plane |= codes & np.uint8((1 << fmt.mantissa) - 1)
    return plane
