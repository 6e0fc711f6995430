"""Strings of levels and their signs: the shortest is written, and any of them is read."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.qsgd.coding_choice import (
    MOST_OF_BYTES,
    TABLED,
    Plan,
    alphabet,
    tabled_plans,
)
from gcodec.entropy import tabled
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.context.symbol_coder import SymbolString
from gcodec.entropy.tabled import String
from gcodec.entropy.word_string import Take, WordString
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask, gathered, refuse_silent, silent_error, spread
from gcodec.kernels.bits.coded_mask_cuda import words_in
from gcodec.kernels.prefix import dense_string, level_codes, scaled_read, sparse_string
from gcodec.kernels.prefix.prefix_table import WIDE
from gcodec.kernels.prefix.run_level import FAR, RunLevelCode, RunLevelPairs
from gcodec.kernels.prefix.table_choice_cuda import Gate
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.kernels.quantize.levels import TINY, Scale, symbol_dtype
from gcodec.payload import Candidate, EstimatedCandidate, Selection, write_shortest
from gcodec.runtime.deferred import Deferred, mapped
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.memory import Drainable, contents, empty_beside, limited, restored
from gcodec.wire.seek import LOG2_BLOCK, SeekTable, first_worthwhile

_NONE = np.empty(0, np.uint64)
CLASSED = Plan("dense", "context", {})


class Written(NamedTuple):
    """A string and its plan.

    Attributes
    ----------
    plan : Plan
    data : uint8 array
        The string, after a lead that is left free.
    nbits : int
        Bits of lead and string.
    seek : SeekTable or None
        None if the payload is too short for a table, or has no blocks.
    """

    plan: Plan
    data: np.ndarray
    nbits: int
    seek: SeekTable | None


def seek_table(n: int, nbits: int, *sums: np.ndarray) -> SeekTable | None:
    """Return the seek table of a string in words, if the payload is worth one."""

    def table(nbits: int, *sums: np.ndarray) -> SeekTable | None:
        return first_worthwhile(n, nbits, SeekTable.of(LOG2_BLOCK, *sums))

    seek: SeekTable | None = mapped(table, nbits, *sums)
    return seek


@dispatched("gcodec.codecs.qsgd.device")
def universal_candidates(
    symbols: np.ndarray | Drainable, s: int, coded: CodedMask, form: str, code: str, lead: int
) -> list[Candidate[Written]]:
    """Return the strings in universal codes among which the shortest is selected.

    On the host that is the shortest of them. See `write` for the parameters.
    """
    best = level_codes.plan(contents(symbols), s, coded, form, code)
    plan = Plan(best.form, best.code, best.scalars)
    return [Candidate(best.nbits, lambda gate: write_plan(plan, s, symbols, coded, lead))]


def write(
    symbols: np.ndarray | Drainable,
    s: int,
    coded: CodedMask,
    form: str,
    code: str,
    shape: tuple[int, ...],
    lead: int,
) -> Selection[Written]:
    """Write the shortest string of levels.

    Parameters
    ----------
    symbols : (n,) unsigned array
        Released if it is a `Drainable`.
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a word in a dense form; all others are 0.
    form : "dense", "sparse" or "auto"
    code : str
        One of `coding_choice.CODES`, or "auto".
    shape : tuple of int
        Shape of the tensor.
    lead : int
        Number of bytes that are left free before the string and its table.
    """
    array = contents(symbols)

    def write_context_below(nbits: int) -> Written | None:
        # The symbols that are released here are quantized again if the string is not the shortest.
        # They make room for the parts of the string, which take up to half as much memory again
        # as they have bytes.
        part = limited(symbols, 3 * nbits // 16)
        string = symbol_coder.write_shorter(part, shape, BitString(lead), nbits)
        if string is None:
            restored(part)
            return None
        return Written(CLASSED, *string)

    def plan_context() -> Candidate[Written]:
        written = functools.partial(Written, CLASSED)
        return symbol_coder.estimated_candidate(array, shape, BitString(lead), written)

    if code == "context":
        string = symbol_coder.write(symbols, shape, BitString(lead), coded)
        return Selection([Written(CLASSED, *string)])
    candidates: list[Candidate[Written]] = []
    if code not in TABLED:
        candidates += universal_candidates(symbols, s, coded, form, code, lead)
    adapts = code == "auto" and form != "sparse" and s <= MOST_OF_BYTES and coded.n > 0
    if adapts or code in TABLED:
        device = device_of(array) if adapts else None
        count = coded.n if device is None else Deferred(device, words_in(device, coded))
        for plan in tabled_plans(array, s, coded, code):
            writer = functools.partial(write_plan, plan, s, symbols, coded, lead)
            candidates.append(Candidate(plan.nbits, writer, count=count))
    if not adapts:
        return write_shortest(candidates)
    context = EstimatedCandidate(
        write_context_below, plan_context, symbol_coder.SHORTEST, lead_nbits=8 * lead
    )
    return write_shortest(candidates, context)


def write_plan(
    plan: Plan,
    s: int,
    symbols: Any,
    coded: CodedMask,
    lead: int,
    gate: Gate | None = None,
) -> Written:
    """Write the string of a plan, except for that of "context".

    Parameters
    ----------
    plan : Plan
    s : int
    symbols : array, Drainable or callable
        See `dense_string.write`; no callable for "rans" and sparse forms.
    coded, lead
        See `write`.
    gate : Gate, optional
        For a device that selects among strings; see `Candidate`.
    """
    n, blocks = coded.n, (1 << LOG2_BLOCK, lead)
    if plan.code in TABLED:
        if plan.code == "rans":  # the string contains only the symbols of coded elements
            symbols, coded = gathered(symbols, coded)
        if gate is None:
            n = coded.n
        else:
            coded = gate.counted() if plan.code == "rans" else gate.mask(coded)
        return Written(plan, *tabled.write(plan.table, symbols, coded, BitString(lead), n))
    if plan.form == "sparse":
        pairs = level_codes.unit_code(plan.code, s, plan.scalars)
        data, nbits, *sums = sparse_string.write(pairs, symbols, *blocks)
    else:
        words = level_codes.word_code(plan.code, s, plan.scalars)
        data, nbits, *sums = dense_string.write(words, symbols, symbol_dtype(s), coded, *blocks)
    seek = None if plan.code == "packed" else seek_table(n, nbits, *sums)
    return Written(plan, data, nbits, seek)


class DenseString(NamedTuple):
    """The string of a dense form that is read, its table behind it.

    Attributes
    ----------
    string : WordString, String or SymbolString
        Of a universal code, behind a table, or with classes.
    coded : CodedMask
        Which elements have a word; a string of rANS knows nothing of others. With classes, all
        have a symbol if one has a word, and those that have none are 0.
    """

    string: WordString | String | SymbolString
    coded: CodedMask

    @classmethod
    def of(
        cls,
        plan: Plan,
        s: int,
        data: np.ndarray,
        first: int,
        end: int,
        coded: CodedMask,
        seek: SeekTable | None,
    ) -> DenseString:
        """Read the table, if there is one; check what can be told without reading the string.

        Parameters
        ----------
        plan : Plan
            Its table is read from the data.
        s : int
        data : uint8 array
        first, end : int
            Bits where table and string begin, and where the string ends.
        coded : CodedMask
        seek : SeekTable or None
            The table of the payload. Blocks are then read side by side, and must be so.

        Raises
        ------
        FormatError
        """
        string: WordString | String | SymbolString
        if plan.code == "context":
            n = coded.n if coded.words else 0
            return cls(SymbolString.of(data, first, end, n, 2 * s + 1, seek), coded)
        if plan.code in TABLED:
            coded_words = CodedMask.all(coded.words) if plan.code == "rans" else coded
            kind: Any = plan.code
            string = String.behind(kind, data, first, end, alphabet(s), coded_words, seek)
        else:
            code = level_codes.word_code(plan.code, s, plan.scalars)
            string = WordString(code, data, first, end, coded, seek)
        string.refuse_short()
        return cls(string, coded)

    def read(
        self,
        take: Take,
        *,
        room: np.ndarray | None = None,
        bits_follow: bool = False,
    ) -> int:
        """Read all; return the bit behind it.

        Parameters
        ----------
        take : callable
            See `dense_string.read`.
        room : (n,) uint8 array, optional
            May be used for symbols; `take` may write there, from its last element on, what it
            makes of those that it is given.
        bits_follow : bool
            Whether the string may end before it is told to.

        Raises
        ------
        FormatError
        """
        if isinstance(self.string, WordString):
            return self.string.read(take, bits_follow=bits_follow)

        def taken(at: int, part: np.ndarray) -> None:
            take(at, part, _NONE)

        def checked(at: int, part: np.ndarray) -> None:
            if device_of(part) is not None:  # which has room for all
                refuse_silent(part, self.coded)
            else:
                _, mask = self.coded.part(at, at + part.size, part.size)
                if mask is not None and part[~mask].any():
                    raise silent_error()
            taken(at, part)

        words = self.coded.words
        if words and isinstance(self.string, SymbolString):
            return self.string.read(checked, bits_follow=bits_follow)
        if self.coded.silent is None or (self._skips_silent and words):
            return self.string.read(taken, bits_follow=bits_follow)
        if room is None:
            room = empty_beside(words, np.uint8, self.string.data)
        symbols = room[:words]

        def keep(at: int, part: np.ndarray) -> None:
            symbols[at : at + part.size] = part

        end = self.string.read(keep, bits_follow=bits_follow)
        spread(symbols, self.coded, taken)
        return end

    def read_scaled(self, scale: Scale, out: np.ndarray) -> bool:
        """Read all and write the values to (n,) float32 `out`, where one loop does both.

        Returns
        -------
        bool
            Whether one does; if not, nothing is done.

        Raises
        ------
        FormatError
            What `out` holds is not defined then.
        """
        string = self.string
        if not isinstance(string, WordString) or string.seek is None:
            return False
        code, seek = string.code, string.seek
        if isinstance(code, TableCode) or not scaled_read.reads(code, scale, self.coded, out):
            return False
        seek.must_cover(string.end - string.first)
        where = string.first, string.end, 1 << seek.log2_block, seek.offsets
        scaled_read.read(code, string.data, *where, scale, out)
        return True

    @property
    def _skips_silent(self) -> bool:
        """Whether the string itself leaves out elements that have no word."""
        return isinstance(self.string, String) and self.string.coded is self.coded

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all."""
        return self.string.blocks(log2_block)


class SparseString(NamedTuple):
    """The string of a sparse form that is read.

    Attributes
    ----------
    code : UnitCode
    data : uint8 array
    first, end : int
        Bits where it begins and ends.
    seek : SeekTable or None
        The table of the payload. Blocks are then read side by side, and must be so.
    """

    code: RunLevelCode
    data: np.ndarray
    first: int
    end: int
    seek: SeekTable | None

    def read(self, place: sparse_string.Place, log2_block: int = LOG2_BLOCK) -> SeekTable:
        """Read all; return where blocks begin: those of the table, or of this size."""
        known, seek = None, self.seek
        if seek is not None and seek.positions is not None:
            seek.must_cover(self.end - self.first)
            log2_block, known = seek.log2_block, (seek.offsets, seek.positions)
        where = self.first, self.end, 1 << log2_block
        sums = sparse_string.read(self.code, self.data, *where, known, place)
        return SeekTable.of(log2_block, *sums)

    def elements(self, n: int, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
        """Read the elements that are sent of n; memory does not depend on n.

        Returns
        -------
        positions : (k,) int64 array
            Rising.
        values : (k,) float32 array

        Raises
        ------
        FormatError
        """
        parts: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by the position before them

        def place(
            units: RunLevelPairs, bounds: np.ndarray, positions: np.ndarray, before: int
        ) -> int:
            found = _elements_of(units, bounds, positions, before, n, scale)
            parts[before] = found
            return int(found[0][-1]) + 1 if found[0].size else before

        self.read(place)
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        positions, values = zip(*(parts[before] for before in sorted(parts)), strict=True)
        return np.concatenate(positions), np.concatenate(values)


def _elements_of(
    units: RunLevelPairs,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    n: int,
    scale: Scale,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements that units of levels are; see `run_level_place.place_values`.

    Returns
    -------
    positions : (k,) int64 array
        From 0 on, rising.
    values : (k,) float32 array

    Raises
    ------
    Corrupt
    """
    count = int(bounds[-1])
    gaps, symbols = units.gaps[:count].astype(np.uint64), units.symbols[:count].astype(np.uint64)
    if (far := units.gaps[:count] == FAR).any():
        gaps[far] = units.far[:count][far]
    if units.wide.size and (wide := units.symbols[:count] == WIDE).any():
        symbols[wide] = units.wide[:count][wide]
    # No gap passes n < 2^63, so that the first sum that does has not wrapped.
    ends = np.concatenate([[np.uint64(before)], gaps]).cumsum(dtype=np.uint64)
    if (gaps > np.uint64(n)).any() or (ends > np.uint64(n)).any():
        raise Corrupt(f"a gap passes the {n} elements of the tensor")
    if positions.size and not np.array_equal(ends[bounds].astype(np.int64), positions):
        raise Corrupt("the seek table or the payload is wrong: a block ends at another element")
    places = ends[1:].astype(np.int64) - 1
    norms = scale.norms[places // scale.bucket].astype(np.float64)
    if not norms.all():
        raise silent_error()
    step, sizes = norms / np.float64(scale.s), (symbols >> np.uint64(1)).astype(np.int64)
    with np.errstate(over="ignore", under="ignore"):  # as the kernel rounds
        values = sizes.astype(np.float32) * step.astype(np.float32)
        tiny = norms < TINY
        values[tiny] = (sizes[tiny] * step[tiny]).astype(np.float32)
    values[(symbols & np.uint64(1)).astype(np.bool_)] *= np.float32(-1)
    return places, values
