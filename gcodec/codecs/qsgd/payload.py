"""Strings of levels and their signs: writing the shortest one, and reading any of them.

Universal codes (`gcodec.kernels.prefix.level_codes`) assign a fixed codeword to each symbol. The
other codes adapt to the tensor: `huffman` and `rans` to the counts of symbols, `context` to the
scales of rows and columns. They are dense, have tables, and require symbols that fit in a byte.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gcodec.entropy import coder, tabled
from gcodec.entropy.coder import BitSpan, CodedString, Take, WordString, Written, blank, into
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.context.coder import ContextString
from gcodec.entropy.tabled import Table
from gcodec.errors import Corrupt
from gcodec.kernels.bits import coded_mask
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask, nonzero_error
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import (
    dense_string,
    level_codes,
    level_fields,
    scaled_read,
    sparse_string,
)
from gcodec.kernels.prefix.run_level import RunLevelPairs
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import Scale
from gcodec.payload import Candidate, EstimatedCandidate, Selection, write_shortest
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.memory import Drainable, contents, empty_beside, limited, restored
from gcodec.wire.params import Scalars
from gcodec.wire.seek import LOG2_BLOCK, MIN_ELEMENTS, SeekTable

if TYPE_CHECKING:
    from gcodec.kernels.prefix.table_choice_cuda import Gate

TABLED: tuple[tabled.Kind, ...] = ("huffman", "rans")
BYTE_CODES = (*TABLED, "context")  # codes of symbols that fit in a byte
CODES = ("omega", "rice", "packed", *BYTE_CODES)
LARGEST_BYTE_LEVEL = 127  # largest s for which symbols fit in a byte


class Plan(NamedTuple):
    """One way to write the levels of a tensor.

    Attributes
    ----------
    form : "dense" or "sparse"
    code : str
        One of `CODES`.
    scalars : dict of str to int
        Parameters of Rice codes; see `level_codes.Plan`.
    table : Table or None
        Table of "huffman" and "rans"; None if no symbol is coded.
    nbits : int or Deferred
        Bits of the string and its table; for rANS an estimate. 0 for "context", and if there is no
        other plan.
    """

    form: str
    code: str
    scalars: Scalars
    table: Table | None = None
    nbits: int | Deferred = 0


def alphabet(s: int) -> np.ndarray:
    """Return all symbols of levels up to s, in ascending order; −0 has no symbol."""
    return np.delete(np.arange(2 * s + 2), 1).astype(np.uint8)


def longest_nbits(n: int, form: str, code: str, s: int) -> int:
    """Return an upper bound on the bits of the string of n elements, and of its table."""
    if code in TABLED:
        return tabled.longest_nbits(code, n, 2 * s + 1)
    if code == "context":
        return symbol_coder.longest_nbits(n)
    return n * level_codes.longest_nbits(form, code, s)


CONTEXT_PLAN = Plan("dense", "context", {})

PlannedString = tuple[Plan, Written]
"""A plan, and the string that was written by it."""


@dispatched("gcodec.codecs.qsgd.device")
def universal_candidates(
    symbols: np.ndarray | Drainable, s: int, coded: CodedMask, form: str, code: str, lead: int
) -> list[Candidate[PlannedString]]:
    """Return the candidate strings in universal codes.

    The host returns only the shortest of them. See `write` for the parameters.
    """
    best = level_codes.plan(contents(symbols), s, coded, form, code)
    plan = Plan(best.form, best.code, best.scalars, None, best.nbits)
    return [
        Candidate(
            best.nbits,
            lambda gate: write_plan(plan, s, symbols, coded, lead),
            blank=_blank(plan, coded, lead),
        )
    ]


def _blank(plan: Plan, coded: CodedMask, lead: int) -> Callable[[], PlannedString] | None:
    """Return a function that makes a blank string of a plan, if the plan has an exact size."""
    if not plan.nbits or plan.code == "rans" or coded.n >= MIN_ELEMENTS:
        return None
    return lambda: (plan, blank(int(plan.nbits), lead))


def write(
    symbols: np.ndarray | Drainable,
    s: int,
    coded: CodedMask,
    form: str,
    code: str,
    shape: tuple[int, ...],
    lead: int,
    *,
    sized: bool,
) -> Selection[PlannedString]:
    """Write the shortest string of levels.

    Parameters
    ----------
    symbols : (n,) unsigned array
        Released if it is a `Drainable`.
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a codeword in a dense form; all others are 0.
    form : "dense", "sparse" or "auto"
    code : str
        One of `CODES`, or "auto".
    shape : tuple of int
        Shape of the tensor.
    lead : int
        Number of free bytes before the string and its table.
    sized : bool
        See `gcodec.payload.write_shortest`.
    """
    array = contents(symbols)

    def write_context_below(nbits: int) -> PlannedString | None:
        # Symbols that are released here are quantized again if the string is not the shortest.
        # Their memory makes room for the parts of the string, which take up to 1.5 times its
        # bytes.
        part = limited(symbols, 3 * nbits // 16)
        string = symbol_coder.write_shorter(part, shape, BitString(lead), nbits)
        if isinstance(string, int):
            restored(part)
            return None
        return CONTEXT_PLAN, string

    def plan_context() -> Candidate[PlannedString]:
        return symbol_coder.estimated_candidate(
            array, shape, BitString(lead), lambda string: (CONTEXT_PLAN, string)
        )

    if code == "context":
        string = symbol_coder.write(symbols, shape, BitString(lead), coded)
        return Selection([(CONTEXT_PLAN, string)])
    candidates: list[Candidate[PlannedString]] = []
    if code not in TABLED:
        candidates += universal_candidates(symbols, s, coded, form, code, lead)
    adapts = code == "auto" and form != "sparse" and s <= LARGEST_BYTE_LEVEL and coded.n > 0
    if adapts or code in TABLED:
        device = device_of(array) if adapts else None
        count: int | Deferred = coded.n
        if device is not None:
            from gcodec.kernels.bits.coded_mask_cuda import words_in

            count = Deferred(device, words_in(device, coded))
        for plan in tabled_plans(array, s, coded, code):
            writer = functools.partial(write_plan, plan, s, symbols, coded, lead)
            empty = _blank(plan, coded, lead) if sized else None
            candidates.append(Candidate(plan.nbits, writer, count=count, blank=empty))
    if not adapts:
        return write_shortest(candidates, sized=sized)
    context = EstimatedCandidate(
        write_context_below, plan_context, symbol_coder.SHORTEST, lead_nbits=8 * lead
    )
    return write_shortest(candidates, context, sized=sized)


def tabled_plans(symbols: Array, s: int, coded: CodedMask, code: str) -> list[Plan]:
    """Return the plans of dense strings with a table.

    Parameters
    ----------
    symbols : (n,) uint8 array
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a codeword; all others are 0.
    code : str
        One of `TABLED`, or "auto" for both. With "auto" there is no plan if no symbol is coded.
    """
    counts = byte_counts(symbols)
    coded_mask.subtract_uncoded(counts, coded)
    is_empty = device_of(counts) is None and not counts.any()
    if is_empty:
        return [] if code == "auto" else [Plan("dense", code, {})]
    plans = []
    for kind in TABLED:
        if code in ("auto", kind):
            own = Table.own(kind, counts, alphabet(s))
            table, nbits = tabled.best_table(counts, own, kind, alphabet(s))
            plans.append(Plan("dense", kind, {}, table, nbits))
    return plans


def write_plan(
    plan: Plan, s: int, symbols: Any, coded: CodedMask, lead: int, gate: Gate | None = None
) -> PlannedString:
    """Write the string of a plan, except for that of "context".

    Parameters
    ----------
    plan : Plan
    s : int
        The largest level.
    symbols : array, Drainable or callable
        See `dense_string.write`; no callable for "rans" and sparse forms.
    coded, lead
        See `write`.
    gate : Gate, optional
        Gate of a device that selects among strings; see `Candidate`.
    """
    n, blocks = coded.n, (1 << LOG2_BLOCK, lead)
    if plan.code in TABLED:
        if plan.code == "rans":  # the string contains only the symbols of coded elements
            symbols, coded = coded_mask.gathered(symbols, coded)
        if gate is None:
            n = coded.n
        else:
            coded = gate.counted() if plan.code == "rans" else gate.mask(coded)
        return plan, tabled.write(plan.table, symbols, coded, BitString(lead), n)
    if plan.code == "packed":
        return plan, Written(*level_fields.write(symbols, s, coded, *blocks))
    if plan.form == "sparse":
        pairs = level_codes.run_level_code(plan.code, s, plan.scalars)
        data, nbits, *sums = sparse_string.write(pairs, symbols, *blocks)
    else:
        words = level_codes.word_code(plan.code, s, plan.scalars)
        data, nbits, *sums = dense_string.write(
            words, symbols, levels.symbol_dtype(s), coded, *blocks
        )
    return plan, Written(data, nbits, coder.seek_of_blocks(n, nbits, *sums))


class FieldString(NamedTuple):
    """An open string of levels in fields of equal width; see `CodedString` for its methods.

    Attributes
    ----------
    span : BitSpan
        The bits of the fields.
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a field. The symbols of all other elements are 0.
    """

    span: BitSpan
    s: int
    coded: CodedMask

    @property
    def nbits(self) -> int:
        """Number of bits of the fields."""
        return self.coded.words * level_fields.width_of(self.s)

    def refuse_short(self) -> None:
        """Raise `Truncated` if the bits cannot contain all fields."""
        if self.nbits > self.span.nbits:
            raise dense_string.short_error(self.nbits, self.span.nbits)

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Decode all fields; see `CodedString.read`."""
        level_fields.read(self.span.data, self.span.first, self.s, self.coded, take)
        after = self.span.first + self.nbits
        if not bits_follow:
            self.span.refuse_more_words(after)
        return after

    def blocks(self, log2_block: int) -> SeekTable:
        """Return an empty seek table, because any field is found without a table."""
        return coder.no_blocks(log2_block)


class DenseString(NamedTuple):
    """An open string of a dense form; see `CodedString` for its methods.

    Attributes
    ----------
    string : CodedString
        String of the symbols of all elements; with rANS, of the elements in `coded`.
    coded : CodedMask
        The elements whose bucket has a nonzero norm. All other symbols are 0.
    """

    string: CodedString
    coded: CodedMask

    @classmethod
    def open(cls, plan: Plan, s: int, span: BitSpan, coded: CodedMask) -> DenseString:
        """Open the string of a plan, whose table the payload contains.

        Raises
        ------
        FormatError
        """
        if plan.code == "context":
            n = coded.n if coded.words else 0
            return cls(symbol_coder.open(span, n, 2 * s + 1), coded)
        if plan.code in TABLED:
            coded_words = CodedMask.all(coded.words) if plan.code == "rans" else coded
            return cls(tabled.open(plan.code, span, alphabet(s), coded_words), coded)
        string: FieldString | WordString
        if plan.code == "packed":
            string = FieldString(span, s, coded)
        else:
            code = level_codes.word_code(plan.code, s, plan.scalars)
            string = WordString(span, code, coded, levels.symbol_dtype(s))
        string.refuse_short()
        return cls(string, coded)

    def read(
        self, take: Take, *, room: np.ndarray | None = None, bits_follow: bool = False
    ) -> int:
        """Decode the symbols of all elements; see `CodedString.read`.

        `room` is an optional (n,) uint8 array for symbols. `take` may overwrite `room` from the
        last element on, as far as it has received the symbols.
        """
        string, coded = self.string, self.coded
        if isinstance(string, (FieldString, WordString)):
            return string.read(take, bits_follow=bits_follow)
        if isinstance(string, ContextString):
            return string.read(self._checked(take), bits_follow=bits_follow)
        if coded.uncoded is None:
            return string.read(take, bits_follow=bits_follow)
        if room is None:
            room = empty_beside(coded.words, np.uint8, string.span.data)
        symbols = room[: coded.words]
        end = string.read(into(symbols), bits_follow=bits_follow)
        coded_mask.spread(symbols, coded, take)
        return end

    def _checked(self, take: Take) -> Take:
        """Return a `Take` that refuses symbols other than 0 in buckets whose norm is 0."""

        def checked(at: int, symbols: np.ndarray) -> None:
            coded_mask.refuse_nonzero(symbols, self.coded, at)
            take(at, symbols)

        return checked

    def read_scaled(self, scale: Scale, out: np.ndarray) -> bool:
        """Decode all symbols and dequantize them into (n,) float32 `out`, if one loop does both.

        Returns
        -------
        bool
            False if no loop does both; `out` is then unchanged.

        Raises
        ------
        FormatError
            The content of `out` is then undefined.
        """
        string = self.string
        if not isinstance(string, WordString) or isinstance(string.code, TableCode):
            return False
        data, first, end, seek = string.span
        if seek is None:
            return False
        block = 1 << seek.log2_block
        if not scaled_read.is_readable(string.code, scale, self.coded, block, out):
            return False
        string.span.must_cover()
        scaled_read.read(string.code, data, first, end, block, seek.offsets, scale, out)
        return True

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the string; see `CodedString.blocks`."""
        return self.string.blocks(log2_block)


def sparse_elements(
    string: coder.RunLevelString, n: int, scale: Scale
) -> tuple[np.ndarray, np.ndarray]:
    """Decode the sent elements of n in a sparse form; the memory does not depend on n.

    Returns
    -------
    positions : (k,) int64 array
        Positions of the sent elements, in ascending order.
    values : (k,) float32 array

    Raises
    ------
    FormatError
    """
    parts: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by the preceding position

    def place(pairs: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int) -> int:
        ends, symbols = _ends(pairs, bounds, positions, before, n)
        sent = ends[1:] - 1
        if not scale.norms[sent // scale.bucket].all():
            raise nonzero_error()
        parts[before] = sent, dequantized(symbols, sent, scale)
        return int(ends[-1])

    string.read(place)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    positions, values = zip(*(parts[before] for before in sorted(parts)), strict=True)
    return np.concatenate(positions), np.concatenate(values)


def _ends(
    pairs: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of `before` and of each pair, counted from 1, and the pairs' symbols.

    See `run_level_place.place_values` for the parameters.
    """
    gaps, symbols = coder.unpacked(pairs, int(bounds[-1]))
    # As no gap exceeds n < 2^63, the first sum that exceeds n has not wrapped.
    ends = np.concatenate([[np.uint64(before)], gaps]).cumsum(dtype=np.uint64)
    if (gaps > np.uint64(n)).any() or (ends > np.uint64(n)).any():
        raise Corrupt(f"a gap exceeds the {n} elements of the tensor")
    ends = ends.astype(np.int64)
    if positions.size and not np.array_equal(ends[bounds], positions):
        raise Corrupt("the seek table contradicts the payload: a block ends at another element")
    return ends, symbols


def dequantized(symbols: np.ndarray, positions: np.ndarray, scale: Scale) -> np.ndarray:
    """Return the float32 values of the symbols of elements at some positions."""
    norms = Scale(scale.norms[positions // scale.bucket], 1, scale.s)
    out = np.empty(positions.size, np.float32)
    levels.dequantize(symbols.astype(levels.symbol_dtype(scale.s)), norms, 0, out)
    return out
