"""Strings of codes of minifloats: writing the shortest one, and reading any of them.

With ``code=context`` the symbol of a code is twice the code of its magnitude, plus 1 if negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
    sized: bool,
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
    writer = _Writer(codes, n, fmt, lead)
    context = _ContextWriter(writer, shape)
    if code == "context":
        return context.only()
    array = contents(codes)
    candidates: Sequence[Plan]
    bounded: list[tuple[int, Callable[[], Candidate[WrittenCodes]]]] = []
    if code == "auto" and n and device_of(array) is None:
        histogram = coding_choice.Histogram.of(array, n, fmt)
        candidates = [Plan("none", None, None, n * fmt.width)]

        def priced(name: str) -> Candidate[WrittenCodes]:
            return writer.candidate(histogram.plan(name, book), sized)

        bounded = [(floor, partial(priced, name)) for name, floor in histogram.floors().items()]
    else:
        candidates = coding_choice.plans(array, n, fmt, code, book)
    allows_context = code == "auto" and book in ("auto", "empirical") and n
    return write_shortest(
        [writer.candidate(plan, sized) for plan in candidates],
        context.candidate() if allows_context else None,
        bounded=bounded,
        sized=sized,
    )


class _Writer(NamedTuple):
    """Writes codes by a plan; see `write` for the attributes."""

    codes: np.ndarray | Drainable
    n: int
    fmt: MiniFloat
    lead: np.ndarray

    @property
    def array(self) -> np.ndarray:
        """The codes, whether or not they are released."""
        array: np.ndarray = contents(self.codes)
        return array

    def candidate(self, plan: Plan, sized: bool) -> Candidate[WrittenCodes]:
        """Return the payload of a plan as a candidate; `sized` as for `write`."""
        n, fmt = self.n, self.fmt
        raw = plane_nbits(n, fmt) if plan.code == "planes" else 0
        count = coded_nbytes(n, fmt, plan.code) if plan.table else n * fmt.width
        blank_string = self._blank(plan, raw) if sized else None
        return Candidate(plan.nbits, partial(self._write, plan), raw, count, blank_string)

    def _blank(self, plan: Plan, raw: int) -> Callable[[], WrittenCodes] | None:
        """Return a function that makes a blank string of a plan, if the plan has an exact size."""
        if not plan.nbits or plan.code == "rans" or self.n >= MIN_ELEMENTS:
            return None
        return lambda: (plan.code, plan.book, blank(int(plan.nbits) + raw, self.lead.size))

    def _write(self, plan: Plan, gate: Gate | None) -> WrittenCodes:
        if plan.table is None:
            return self._write_plain(plan.code, gate)
        elements = coded(self.n, self.fmt, plan.code)
        if gate is not None:
            is_rans = plan.table.kind == "rans"
            elements = gate.counted() if is_rans else gate.mask(elements)
        return plan.code, plan.book, self._write_tabled(plan, elements)

    def _write_plain(self, code: str, gate: Gate | None) -> WrittenCodes:
        """Return the payload in fixed width; the host fetches it if the gate is open."""
        lead = self.lead
        data = minifloat.packed(self.array, self.n, self.fmt)
        nbits = 8 * lead.size + self.n * self.fmt.width
        if gate is None:
            data = _with_lead(lead, data, lead.size + data.size) if lead.size else data
            return code, None, Written(data, nbits)
        words = gate.count.words
        fetched: Any = Deferred(gate.device, words, lambda _: nbits, (words, 1, 8 * lead.size))
        return code, None, Written(_with_lead(lead, data, -(-nbits // 32) * 4), fetched)

    def _write_tabled(self, plan: Plan, mask: CodedMask) -> Written:
        """Write the payload of a plan that has a table."""
        n, fmt, lead = self.n, self.fmt, self.lead
        if plan.code != "planes":
            return tabled.write(plan.table, self._symbols(plan), mask, BitString.of(lead), n)
        plane, layout = parts_of(self.array, n, fmt, "planes"), FieldLayout(1 + fmt.mantissa)
        # The plane of the first `whole` elements ends on a byte; the remainder precedes the table.
        whole = n - n % 8
        packed, remainder = (pack_fields(part, layout) for part in (plane[:whole], plane[whole:]))
        del plane
        head: Any = remainder, plane_nbits(n - whole, fmt)
        if plan.symbols is None:
            head = BitString()
            head.extend(host(remainder), plane_nbits(n - whole, fmt))
        before = lead.size + packed.size
        written = tabled.write(plan.table, self._symbols(plan), mask, head, n, before)
        data = written.data
        data[: lead.size], data[lead.size : before] = beside(lead, data), packed
        return written

    def _symbols(self, plan: Plan) -> SymbolsOf | np.ndarray | Drainable:
        """Return the coded bytes, or on the host a function that returns those of a range."""
        array, fmt = self.array, self.fmt

        def exponents_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
            take_parts(array[start // per_byte(fmt) :], fmt, "exponents", room)
            return room

        def halves_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
            unpacker(4, True)(array[start // 2 : -(-stop // 2)], room)
            return room

        symbols: SymbolsOf | np.ndarray | Drainable = self.codes
        if plan.symbols is not None:
            symbols = plan.symbols
        elif device_of(array) is not None:  # a device has memory for all symbols at once
            symbols = coding_choice.coded_bytes(array, self.n, fmt, plan.code)
        elif plan.code == "planes":
            symbols = exponents_of
        elif per_byte(fmt) == 2 and not is_paired(fmt, plan.code):
            symbols = halves_of
        return symbols


class _ContextWriter:
    """Writes codes with contexts.

    Attributes
    ----------
    writer : _Writer
    shape : tuple of int
        Shape of the tensor.
    plan : ContextPlan or None
        Plan of the string, once it is known.
    nbits : int
        Bits of the string, estimated, or exact once it has been written.
    """

    def __init__(self, writer: _Writer, shape: tuple[int, ...]) -> None:
        self.writer = writer
        self.shape = shape
        self.plan: ContextPlan | None = None
        self.nbits = symbol_coder.SHORTEST

    def only(self) -> Selection[WrittenCodes]:
        """Write the string, which is the only candidate."""
        symbols, front = self._symbols(self._released()), BitString.of(self.writer.lead)
        return Selection([("context", None, symbol_coder.write(symbols, self.shape, front))])

    def candidate(self) -> EstimatedCandidate:
        """Return the string as a candidate whose size is estimated before it is written."""
        least, lead = symbol_coder.SHORTEST, self.writer.lead
        return EstimatedCandidate(self._write_below, self._planned, least, 8 * lead.size)

    def _write_below(self, nbits: int) -> WrittenCodes | None:
        """Write the string if it has fewer than `nbits` bits."""
        if nbits <= self.nbits:
            return None
        part = self._released()
        symbols = self._symbols(part)
        self.plan = self.plan or symbol_coder.plan(contents(symbols), self.shape)
        front = BitString.of(self.writer.lead)
        string = symbol_coder.write_shorter(symbols, self.shape, front, nbits, self.plan)
        if isinstance(string, int):
            self.nbits = string
            del symbols  # frees memory before codes are written again
            restored(part)
            return None
        return "context", None, string

    def _planned(self) -> Candidate[WrittenCodes]:
        """Return the string as a candidate whose size is estimated on a device."""
        symbols, front = self._symbols(self._released()), BitString.of(self.writer.lead)
        return symbol_coder.estimated_candidate(
            symbols, self.shape, front, lambda string: ("context", None, string)
        )

    def _released(self) -> Any:
        """Return the codes; writing the string releases a part of their memory.

        They are quantized again if the string is not the shortest. The limit is half of the codes,
        plus the bytes of float32 scales of blocks.
        """
        return limited(
            self.writer.codes, self.writer.array.nbytes // 2 + 4 * self.writer.lead.size
        )

    def _symbols(self, part: Any) -> Any:
        n, fmt = self.writer.n, self.writer.fmt
        if device_of(self.writer.array) is not None:
            return parts_of(part, n, fmt, "signs last")
        return symbols_in(part, per_byte(fmt), partial(_read_symbols, fmt), n)


def _read_symbols(fmt: MiniFloat, codes: np.ndarray) -> np.ndarray:
    """Return the symbols of bytes of codes."""
    symbols = np.empty(per_byte(fmt) * codes.size, np.uint8)
    take_parts(codes, fmt, "signs last", symbols)
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
