"""Strings of codes of minifloats: writing the shortest one, and reading any of them.

With ``code=context`` the symbol of a code is twice the code of its magnitude, plus 1 if negative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcodec.codecs.minifloat import coding_choice
from gcodec.codecs.minifloat.coding_choice import Plan, coded_nbytes, is_paired, plane_nbits
from gcodec.entropy import tabled
from gcodec.entropy.coder import BitSpan, CodedString, Take, Written, blank
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.context.table_choice import Plan as ContextPlan
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf
from gcodec.kernels.bits.code_parts import changed, joined, pack_signs_first, parts_of, take_parts
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.computed_symbols import symbols_in
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, packer, unpacker
from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.payload import (
    Candidate,
    EstimatedCandidate,
    Selection,
    write_shortest,
)
from gcodec.runtime.deferred import Deferred, when_known
from gcodec.runtime.device import beside, device_of, host
from gcodec.runtime.memory import Drainable, contents, empty_beside, limited, restored
from gcodec.wire.seek import MIN_ELEMENTS, SeekTable

if TYPE_CHECKING:
    from gcodec.kernels.prefix.table_choice_cuda import Gate

WrittenCodes = tuple[str, int | None, Written]
"""The code of a payload, the number of its codebook or None, and its bits."""


def write(
    codes: np.ndarray | Drainable,
    n: int,
    fmt: MiniFloat,
    code: str,
    book: int | str,
    shape: tuple[int, ...],
    lead: np.ndarray,
    *,
    sized: bool = False,
) -> Selection[WrittenCodes]:
    """Write the shortest payload of n codes.

    Parameters
    ----------
    codes : uint8 array
        Codes as `gcodec.kernels.quantize.minifloat` stores them; released if a `Drainable`.
    n : int
        Number of codes.
    fmt : MiniFloat
    code : str
        One of `CODES`, or "auto".
    book : int or str
        See `coding_choice.plans`. The code "context" writes its own tables, so "auto" includes it
        only if `book` allows a table in the payload.
    shape : tuple of int
        Shape of the tensor.
    lead : uint8 array
        Bytes that precede the codes.
    sized : bool
        See `gcodec.payload.write_shortest`.
    """
    array = contents(codes)
    context_plan: ContextPlan | None = None
    context_nbits = symbol_coder.SHORTEST  # estimated, or exact once the string has been written

    # Codes that are released for a context string are quantized again if the string is not the
    # shortest. The limit is half of the codes, plus the bytes of float32 scales of blocks.
    def released() -> Any:
        return limited(codes, array.nbytes // 2 + 4 * lead.size)

    def symbols_of(part: Any) -> Any:
        if device_of(array) is not None:
            return parts_of(part, n, fmt, "signs last")
        return symbols_in(part, per_byte(fmt), functools.partial(_read_symbols, fmt), n)

    def write_context_below(nbits: int) -> WrittenCodes | None:
        nonlocal context_plan, context_nbits
        if nbits <= context_nbits:
            return None
        part = released()
        symbols = symbols_of(part)
        context_plan = context_plan or symbol_coder.plan(contents(symbols), shape)
        front = BitString.of(lead)
        string = symbol_coder.write_shorter(symbols, shape, front, nbits, context_plan)
        if isinstance(string, int):
            context_nbits = string
            del symbols  # frees memory before codes are written again
            restored(part)
            return None
        return "context", None, string

    def plan_context() -> Candidate[WrittenCodes]:
        symbols, front = symbols_of(released()), BitString.of(lead)
        return symbol_coder.estimated_candidate(
            symbols, shape, front, lambda string: ("context", None, string)
        )

    def write_plan(plan: Plan, gate: Gate | None) -> WrittenCodes:
        if plan.table is None:
            return _plain(array, n, fmt, plan.code, lead, gate)
        elements = coded(n, fmt, plan.code)
        if gate is not None:
            is_rans = plan.table.kind == "rans"
            elements = gate.counted() if is_rans else gate.mask(elements)
        return plan.code, plan.book, _write_tabled(codes, n, fmt, plan, lead, elements)

    def candidate(plan: Plan) -> Candidate[WrittenCodes]:
        raw = plane_nbits(n, fmt) if plan.code == "planes" else 0
        count = coded_nbytes(n, fmt, plan.code) if plan.table else n * fmt.width
        writer = functools.partial(write_plan, plan)
        return Candidate(
            plan.nbits, writer, raw, count, _blank(plan, n, raw, lead) if sized else None
        )

    if code == "context":
        string = symbol_coder.write(symbols_of(released()), shape, BitString.of(lead))
        return Selection([("context", None, string)])
    bounded: list[tuple[int, Callable[[], Candidate[WrittenCodes]]]] = []
    if code == "auto" and n and device_of(array) is None:
        histogram = coding_choice.Histogram.of(array, n, fmt)

        def priced(code: str) -> Candidate[WrittenCodes]:
            return candidate(histogram.plan(code, book))

        candidates = [candidate(Plan("none", None, None, n * fmt.width))]
        for name, floor in histogram.floors().items():
            bounded.append((floor, functools.partial(priced, name)))
    else:
        candidates = [candidate(plan) for plan in coding_choice.plans(array, n, fmt, code, book)]
    if code != "auto" or book not in ("auto", "empirical") or not n:
        return write_shortest(candidates, bounded=bounded, sized=sized)
    context = EstimatedCandidate(
        write_context_below, plan_context, symbol_coder.SHORTEST, 8 * lead.size
    )
    return write_shortest(candidates, context, bounded=bounded, sized=sized)


def _read_symbols(fmt: MiniFloat, codes: np.ndarray) -> np.ndarray:
    """Return the symbols of bytes of codes."""
    symbols = np.empty(per_byte(fmt) * codes.size, np.uint8)
    take_parts(codes, fmt, "signs last", symbols)
    return symbols


def _blank(plan: Plan, n: int, raw: int, lead: np.ndarray) -> Callable[[], WrittenCodes] | None:
    """Return a function that makes a blank string of a plan, if the plan has an exact size."""
    if not plan.nbits or plan.code == "rans" or n >= MIN_ELEMENTS:
        return None
    return lambda: (plan.code, plan.book, blank(int(plan.nbits) + raw, lead.size))


def _plain(
    codes: np.ndarray, n: int, fmt: MiniFloat, code: str, lead: np.ndarray, gate: Gate | None
) -> WrittenCodes:
    """Return the payload of codes in fixed width; the host fetches it if the gate is open."""
    data, nbits = minifloat.packed(codes, n, fmt), 8 * lead.size + n * fmt.width
    if gate is None:
        data = _with_lead(lead, data, lead.size + data.size) if lead.size else data
        return code, None, Written(data, nbits)
    words = gate.count.words
    fetched: Any = Deferred(gate.device, words, lambda _: nbits, (words, 1, 8 * lead.size))
    return code, None, Written(_with_lead(lead, data, -(-nbits // 32) * 4), fetched)


def _write_tabled(
    codes: np.ndarray | Drainable,
    n: int,
    fmt: MiniFloat,
    plan: Plan,
    lead: np.ndarray,
    mask: CodedMask,
) -> Written:
    """Write the payload of a plan that has a table; see `write`."""
    if plan.code != "planes":
        symbols = _symbols(codes, n, fmt, plan)
        return tabled.write(plan.table, symbols, mask, BitString.of(lead), n)
    plane, layout = parts_of(contents(codes), n, fmt, "planes"), FieldLayout(1 + fmt.mantissa)
    # The plane of the first `whole` elements ends on a byte; the remainder precedes the table.
    whole = n - n % 8
    packed, remainder = (pack_fields(part, layout) for part in (plane[:whole], plane[whole:]))
    del plane
    head: Any = remainder, plane_nbits(n - whole, fmt)
    if plan.symbols is None:
        head = BitString()
        head.extend(host(remainder), plane_nbits(n - whole, fmt))
    before = lead.size + packed.size
    written = tabled.write(plan.table, _symbols(codes, n, fmt, plan), mask, head, n, before)
    data = written.data
    data[: lead.size], data[lead.size : before] = beside(lead, data), packed
    return written


def _symbols(
    codes: np.ndarray | Drainable, n: int, fmt: MiniFloat, plan: Plan
) -> SymbolsOf | np.ndarray | Drainable:
    """Return the coded bytes, or on the host a function that returns those of a range."""
    array = contents(codes)

    def exponents_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        take_parts(array[start // per_byte(fmt) :], fmt, "exponents", room)
        return room

    def halves_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        unpacker(4, True)(array[start // 2 : -(-stop // 2)], room)
        return room

    symbols: SymbolsOf | np.ndarray | Drainable = codes
    if plan.symbols is not None:
        symbols = plan.symbols
    elif device_of(array) is not None:  # a device has memory for all symbols at once
        symbols = coding_choice.coded_bytes(array, n, fmt, plan.code)
    elif plan.code == "planes":
        symbols = exponents_of
    elif per_byte(fmt) == 2 and not is_paired(fmt, plan.code):
        symbols = halves_of
    return symbols


def _with_lead(lead: np.ndarray, data: np.ndarray, size: int) -> np.ndarray:
    """Return `size` bytes that start with the lead and the data, on the device of the data."""
    whole, end = empty_beside(size, np.uint8, data), lead.size + data.size
    whole[: lead.size], whole[lead.size : end] = beside(lead, data), data
    return whole


def _last(symbols: np.ndarray) -> object:
    device = device_of(symbols)
    return symbols[-1] if device is None else Deferred(device, symbols[-1:])


class CodeString(NamedTuple):
    """An open string of codes; see `CodedString` for its methods.

    Attributes
    ----------
    string : CodedString
    span : BitSpan
        Bits of the payload after the factors of blocks.
    n : int
        Number of codes.
    fmt : MiniFloat
    code : str
    """

    string: CodedString
    span: BitSpan
    n: int
    fmt: MiniFloat
    code: str

    @classmethod
    def open(
        cls, span: BitSpan, n: int, fmt: MiniFloat, code: str, book: int | None
    ) -> CodeString:
        """Open the string of n codes.

        Parameters
        ----------
        span : BitSpan
        n : int
        fmt : MiniFloat
        code : str
            An entropy code of `CODES`.
        book : int or None
            The codebook; None if the payload contains a table.

        Raises
        ------
        FormatError
        """
        first = plane_nbits(n, fmt) if code == "planes" else 0
        if first > span.nbits:
            raise Truncated(f"the payload has {span.nbits} bits, its signs and mantissas {first}")
        after = span.after(span.first + first)
        if code == "context":
            string = symbol_coder.open(after, n, 2 * fmt.top + 1)
        elif book is None:
            kind, alphabet = coding_choice.KINDS[code], coding_choice.alphabet(fmt, code)
            string = tabled.open(kind, after, alphabet, coded(n, fmt, code))
        else:
            string = coding_choice.static(fmt, code, book).open(after, coded(n, fmt, code))
        return cls(string, span, n, fmt, code)

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Decode all codes; see `CodedString.read`.

        `take` receives the first element of a range, an even one, and the bytes of its codes.
        """
        take_symbols = self._pairs(take) if is_paired(self.fmt, self.code) else self._singles(take)
        return self.string.read(take_symbols, bits_follow=bits_follow)

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the string; see `CodedString.blocks`."""
        return self.string.blocks(log2_block)

    def _pairs(self, take: Take) -> Take:
        """Return a `Take` of bytes that contain two codes each."""

        def take_pairs(at: int, symbols: np.ndarray) -> None:
            if 2 * (at + symbols.size) > self.n:
                when_known(_last(symbols), check_last)
            take(2 * at, symbols)

        def check_last(byte: int) -> None:
            if byte & 15:
                raise Corrupt("the code after the last element is not zero")

        return take_pairs

    def _singles(self, take: Take) -> Take:
        """Return a `Take` of symbols that contain one code each, or its exponent."""
        data, first, _, _ = self.span

        def take_singles(at: int, symbols: np.ndarray) -> None:
            count = symbols.size
            if self.code == "context" and per_byte(self.fmt) == 2 and device_of(symbols) is None:
                take(at, pack_signs_first(symbols, self.fmt))
                return
            if self.code == "planes":
                # The first element of a range is a multiple of 8.
                plane = data[first // 8 + plane_nbits(at, self.fmt) // 8 :]
                symbols = joined(symbols, plane, self.fmt)
            elif self.code == "context":
                symbols = changed(symbols, self.fmt, "signs first")
            if per_byte(self.fmt) == 2 and device_of(symbols) is not None:
                symbols = pack_fields(symbols, FieldLayout(4))
            elif per_byte(self.fmt) == 2:
                packed = np.empty(-(-count // 2), np.uint8)
                packer(4, True)(symbols, packed)
                symbols = packed
            if self.code == "planes":
                minifloat.check(symbols, count, self.fmt)
            take(at, symbols)

        return take_singles


def coded(n: int, fmt: MiniFloat, code: str) -> CodedMask:
    """Return the mask of the bytes that are coded for n codes: all have codewords."""
    return CodedMask.all(coded_nbytes(n, fmt, code))
