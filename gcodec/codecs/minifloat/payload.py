"""Strings of codes of minifloats, written and read by a plan of `coding_choice`.

With ``code=context`` a code is told as twice that of its magnitude, plus 1 where it is negative.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.minifloat.coding_choice import (
    KINDS,
    Plan,
    alphabet,
    coded_nbytes,
    is_paired,
    plane_nbits,
    plans,
    static,
)
from gcodec.entropy import tabled
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.context.symbol_coder import SymbolString
from gcodec.entropy.tabled import String
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.code_parts import changed, joined, parts_of, take_parts
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, packer, unpack_fields, unpacker
from gcodec.kernels.prefix.dense_string import SymbolsOf
from gcodec.kernels.prefix.table_choice_cuda import Gate
from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.payload import Candidate, EstimatedCandidate, Selection, write_shortest
from gcodec.runtime.deferred import Deferred, when_known
from gcodec.runtime.device import device_of, host, placed
from gcodec.runtime.memory import Drainable, contents, drainable, empty_beside, limited, restored
from gcodec.wire.seek import SeekTable


class Written(NamedTuple):
    """A payload.

    Attributes
    ----------
    code : str
    book : int or None
        The codebook, if it has one.
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the payload is too short for one, or has no blocks.
    """

    code: str
    book: int | None
    data: np.ndarray
    nbits: int
    seek: SeekTable | None


def write(
    codes: np.ndarray | Drainable,
    n: int,
    fmt: MiniFloat,
    code: str,
    book: int | str,
    shape: tuple[int, ...],
    lead: np.ndarray,
) -> Selection[Written]:
    """Write the shortest payload of n codes.

    Parameters
    ----------
    codes : uint8 array
        Codes as `gcodec.kernels.quantize.minifloat` stores them. A `Drainable` is released.
    n : int
        Number of codes.
    fmt : MiniFloat
    code : str
        One of `CODES`, or "auto".
    book : int or str
        See `coding_choice.plans`. The code "context" has tables of its own, and "auto" includes it
        only if `book` allows a table of its own.
    shape : tuple of int
        Shape of the tensor.
    lead : uint8 array
        Bytes that precede the codes.
    """
    # The codes that are released for a context string are quantized again if it is not the
    # shortest: half of them, and as many bytes as float32 scales of blocks take.
    part = limited(codes, contents(codes).nbytes // 2 + 4 * lead.size)

    def symbols() -> Any:
        return drainable(parts_of(part, n, fmt, "signs last"))

    def write_context_below(nbits: int) -> Written | None:
        string = symbol_coder.write_shorter(symbols(), shape, _front(lead), nbits)
        if string is None:
            restored(part)
            return None
        return Written("context", None, *string)

    def plan_context() -> Candidate[Written]:
        written = functools.partial(Written, "context", None)
        return symbol_coder.estimated_candidate(symbols(), shape, _front(lead), written)

    def write_plan(plan: Plan, gate: Gate | None) -> Written:
        if plan.table is None:
            return _plain(contents(codes), n, fmt, plan.code, lead, gate)
        elements = coded(n, fmt, plan.code)
        if gate is not None:
            is_rans = plan.table.kind == "rans"
            elements = gate.counted() if is_rans else gate.mask(elements)
        string = write_tabled(codes, n, fmt, plan, lead, elements)
        return Written(plan.code, plan.book, *string)

    if code == "context":
        string = symbol_coder.write(symbols(), shape, _front(lead))
        return Selection([Written("context", None, *string)])
    candidates = []
    for plan in plans(contents(codes), n, fmt, code, book):
        raw = plane_nbits(n, fmt) if plan.code == "planes" else 0
        count = coded_nbytes(n, fmt, plan.code) if plan.table else n * fmt.width
        writer = functools.partial(write_plan, plan)
        candidates.append(Candidate(plan.nbits, writer, raw, count))
    if code != "auto" or book not in ("auto", "empirical") or not n:
        return write_shortest(candidates)
    context = EstimatedCandidate(
        write_context_below, plan_context, symbol_coder.SHORTEST, 8 * lead.size
    )
    return write_shortest(candidates, context)


def _plain(
    codes: np.ndarray, n: int, fmt: MiniFloat, code: str, lead: np.ndarray, gate: Gate | None
) -> Written:
    """Return the payload of codes in fixed width; the host fetches it if its gate is open."""
    data, nbits = minifloat.packed(codes, n, fmt), 8 * lead.size + n * fmt.width
    if gate is None:
        data = _behind(lead, data, lead.size + data.size) if lead.size else data
        return Written(code, None, data, nbits, None)
    words = gate.count.words
    fetched: Any = Deferred(gate.device, words, lambda _: nbits, (words, 1, 8 * lead.size))
    return Written(code, None, _behind(lead, data, -(-nbits // 32) * 4), fetched, None)


def write_tabled(
    given_codes: np.ndarray | Drainable,
    n: int,
    fmt: MiniFloat,
    found: Plan,
    lead: np.ndarray,
    some: CodedMask,
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write a payload by a plan that has a table, of symbols that are live."""
    codes = contents(given_codes)
    if found.code == "planes":
        return _in_planes(codes, n, fmt, found, lead, some)

    def symbols_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        unpacker(4, True)(codes[start // 2 : -(-stop // 2)], room)
        return room

    given: SymbolsOf | np.ndarray | Drainable = symbols_of
    if found.symbols is not None:
        given = found.symbols
    elif is_paired(fmt, found.code) or per_byte(fmt) == 1:
        given = given_codes
    elif device_of(codes) is not None:  # which has room for all
        given = unpack_fields(codes, n, FieldLayout(4))
    return tabled.write(found.table, given, some, _front(lead), n)


def _in_planes(
    codes: np.ndarray, n: int, fmt: MiniFloat, found: Plan, lead: np.ndarray, some: CodedMask
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write a payload of signs and mantissas, and of words for exponents."""
    plane, layout = parts_of(codes, n, fmt, "planes"), FieldLayout(1 + fmt.mantissa)
    # Of as many as end on a byte; the others are joined to what follows.
    whole = n - n % 8
    packed, rest = (pack_fields(part, layout) for part in (plane[:whole], plane[whole:]))
    del plane
    head: Any = rest, plane_nbits(n - whole, fmt)
    if found.symbols is None:
        head = BitString()
        head.extend(host(rest), plane_nbits(n - whole, fmt))

    def exponents_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        take_parts(codes[start // per_byte(fmt) :], fmt, "exponents", room)
        return room

    given: SymbolsOf | np.ndarray = exponents_of
    if found.symbols is not None:
        given = found.symbols
    elif device_of(codes) is not None:  # which has room for all
        given = parts_of(codes, n, fmt, "exponents")
    before = lead.size + packed.size
    data, nbits, seek = tabled.write(found.table, given, some, head, n, before)
    data[: lead.size], data[lead.size : before] = placed(lead, data), packed
    return data, nbits, seek


def _behind(lead: np.ndarray, data: np.ndarray, size: int) -> np.ndarray:
    """Return `size` bytes that start with a lead and the data after it, where the data lie."""
    whole, end = empty_beside(size, np.uint8, data), lead.size + data.size
    whole[: lead.size], whole[lead.size : end] = placed(lead, data), data
    return whole


def _last(symbols: np.ndarray) -> Any:
    device = device_of(symbols)
    return symbols[-1] if device is None else Deferred(device, symbols[-1:])


def _front(lead: np.ndarray) -> BitString:
    front = BitString()
    front.extend(lead, 8 * lead.size)
    return front


class CodedPayload(NamedTuple):
    """A payload that is read, of codes that have tables.

    Attributes
    ----------
    string : String or SymbolString
    n : int
        Codes.
    fmt : MiniFloat
    code : str
    """

    string: String | SymbolString
    n: int
    fmt: MiniFloat
    code: str

    @classmethod
    def of(
        cls,
        data: np.ndarray,
        nbits: int,
        n: int,
        fmt: MiniFloat,
        code: str,
        book: int | None,
        seek: SeekTable | None,
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
        seek : SeekTable or None
            The table of the payload. Blocks are then read side by side, and must be so.

        Raises
        ------
        FormatError
        """
        first = plane_nbits(n, fmt) if code == "planes" else 0
        if first > nbits:
            raise Truncated(f"the payload has {nbits} bits, signs and mantissas {first}")
        if code == "context":
            largest = 2 * fmt.top + 1
            return cls(SymbolString.of(data, 0, nbits, n, largest, seek), n, fmt, code)
        some = coded(n, fmt, code)
        string: String
        if book is not None:
            string = String(static(fmt, code, book), data, first, nbits, some, seek)
        else:
            where = data, first, nbits, alphabet(fmt, code)
            string = String.behind(KINDS[code], *where, some, seek)
        string.refuse_short()
        return cls(string, n, fmt, code)

    def read(self, take: tabled.Take, *, bits_follow: bool = False) -> int:
        """Read all codes, on the threads of the pool; return the bit behind them.

        Parameters
        ----------
        take : callable
            Gets the first of a range of elements, an even one, and the bytes that hold its codes.
        bits_follow : bool
            Whether the payload may end behind them.

        Raises
        ------
        FormatError
        """
        return self.string.read(self._taking(take), bits_follow=bits_follow)

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where the blocks of the string begin, by reading it."""
        return self.string.blocks(log2_block)

    def _taking(self, take: tabled.Take) -> tabled.Take:
        """Return what takes the symbols of the string and makes codes of them."""

        def pairs(at: int, symbols: np.ndarray) -> None:
            if 2 * (at + symbols.size) > self.n:
                when_known(_last(symbols), check_last)
            take(2 * at, symbols)

        def check_last(byte: int) -> None:
            if byte & 15:
                raise Corrupt("the code behind the last element is not zero")

        def singles(at: int, symbols: np.ndarray) -> None:
            count = symbols.size
            if self.code == "planes":
                # A range begins with a multiple of 8 elements.
                assert isinstance(self.string, String)
                data = self.string.data[plane_nbits(at, self.fmt) // 8 :]
                symbols = joined(symbols, data, self.fmt)
            elif self.code == "context":
                symbols = changed(symbols, self.fmt, "signs first")
            if per_byte(self.fmt) == 2 and device_of(symbols) is not None:
                symbols = pack_fields(symbols, FieldLayout(4))
            elif per_byte(self.fmt) == 2:
                held = np.empty(-(-count // 2), np.uint8)
                packer(4, True)(symbols, held, False)
                symbols = held
            if self.code == "planes":
                minifloat.check(symbols, count, self.fmt)
            take(at, symbols)

        return pairs if is_paired(self.fmt, self.code) else singles


def coded(n: int, fmt: MiniFloat, code: str) -> CodedMask:
    """Return that all of the bytes have words that stand for n codes."""
    return CodedMask.all(coded_nbytes(n, fmt, code))
