"""How levels and their signs are written: which form and code is shortest, and its string.

Universal codes (`kernels.level_codes`) give each symbol a word, whatever occurs. `huffman` and
`rans` go by how often each occurs: they are dense, have a table, and exist where a symbol is a
byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.tabled import String, Table
from gcodec.errors import Corrupt
from gcodec.kernels import dense_string, level_codes, sparse_string
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.byte_counts import byte_counts
from gcodec.kernels.dense_string import Live
from gcodec.kernels.levels import symbol_dtype
from gcodec.seek import LOG2_BLOCK, MIN_ELEMENTS, SeekTable, worthwhile

TABLED: tuple[tabled.Kind, ...] = ("huffman", "rans")
CODES = ("omega", "rice", "packed", *TABLED)
MOST_TABLED = 127  # the largest s of which symbols are bytes

_NONE = np.empty(0, np.uint64)

DenseTake = Callable[[int, np.ndarray, np.ndarray], None]
SymbolsOf = Callable[[int, int, np.ndarray], np.ndarray]


class Plan(NamedTuple):
    """How the levels of a tensor are written.

    Attributes
    ----------
    form : "dense" or "sparse"
    code : str
    scalars : dict of str to int
        Of the Rice codes; see `level_codes.Plan`.
    table : Table or None
        Of "huffman" and "rans".
    """

    form: str
    code: str
    scalars: Mapping[str, int]
    table: Table | None = None


def alphabet(s: int) -> np.ndarray:
    """Return all symbols of levels up to s, rising: there is no −0."""
    return np.delete(np.arange(2 * s + 2), 1).astype(np.uint8)


def longest_nbits(n: int, form: str, code: str, s: int) -> int:
    """Return the most bits of the string of n elements, and of its table."""
    if code in TABLED:
        return tabled.longest_nbits(code, n, 2 * s + 1)
    return n * level_codes.longest_nbits(form, code, s)


def plan(symbols: np.ndarray, s: int, live: Live, form: str, code: str) -> Plan:
    """Return the plan of the shortest string; the first of equals.

    Parameters
    ----------
    symbols : (n,) unsigned array
    s : int
        The largest level.
    live : Live
        Which elements have a word in a dense form; all others are 0.
    form, code : str
        Those to take; "auto" for any.
    """
    plans: list[tuple[int, Plan]] = []
    if code not in TABLED:
        found = level_codes.plan(symbols, s, live.words, form, code)
        plans.append((found.nbits, Plan(found.form, found.code, found.scalars)))
    if (code in TABLED or code == "auto") and form != "sparse" and s <= MOST_TABLED and live.words:
        counts = byte_counts(symbols)
        counts[0] -= symbols.size - live.words
        for kind in TABLED:
            if code in (kind, "auto"):
                table = Table.own(kind, counts, alphabet(s))
                plans.append((table.nbits(counts), Plan("dense", kind, {}, table)))
    if not plans:  # nothing to code
        return Plan("dense", code, {})
    return min(plans, key=lambda plan: plan[0])[1]


def write_dense(
    plan: Plan, s: int, symbols_of: SymbolsOf, live: Live, lead: int
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write the string of a dense form.

    Parameters
    ----------
    plan : Plan
    s : int
    symbols_of : callable
        See `dense_string.write`. With "rans" all elements must be live.
    live : Live
    lead : int
        Bytes that are left free before the string and its table.

    Returns
    -------
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the payload is too short for one, or has no blocks.
    """
    if plan.code in TABLED:
        head = BitString(lead)
        if plan.table is None:
            return head.trimmed(), 8 * lead, None
        return tabled.write(plan.table, symbols_of, live, head, live.n)
    code = level_codes.word_code(plan.code, s, plan.scalars)
    where = live, 1 << LOG2_BLOCK, lead
    data, nbits, offsets = dense_string.write(code, symbols_of, symbol_dtype(s), *where)
    fixed = plan.code == "packed"
    return data, nbits, None if fixed else _worthwhile(live.n, nbits, offsets)


def write_sparse(
    plan: Plan, s: int, symbols: np.ndarray, lead: int
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write the string of a sparse form; see `write_dense`."""
    code = level_codes.unit_code(plan.code, s, plan.scalars)
    data, nbits, *sums = sparse_string.write(code, symbols, 1 << LOG2_BLOCK, lead)
    return data, nbits, _worthwhile(symbols.size, nbits, *sums)


def _worthwhile(n: int, nbits: int, *sums: np.ndarray) -> SeekTable | None:
    if n < MIN_ELEMENTS:
        return None
    table = SeekTable.of(LOG2_BLOCK, *sums)
    return table if worthwhile(table, n, nbits) else None


class LevelString(NamedTuple):
    """A string of levels that is read, with its table.

    Attributes
    ----------
    plan : Plan
        Its table is read from the data.
    s : int
    data : uint8 array
    first, end : int
        Bits where table and string begin, and where the string ends.
    live : Live
    """

    plan: Plan
    s: int
    data: np.ndarray
    first: int
    end: int
    live: Live

    @classmethod
    def of(
        cls, plan: Plan, s: int, data: np.ndarray, first: int, end: int, live: Live
    ) -> LevelString:
        """Check what can be told without reading the string.

        Raises
        ------
        FormatError
        """
        string = cls(plan, s, data, first, end, live)
        if plan.code in TABLED:
            string._tabled().refuse_short()
        elif plan.form == "dense":
            code = level_codes.word_code(plan.code, s, plan.scalars)
            dense_string.refuse_short(code, live, end - first)
        return string

    def read_dense(
        self,
        take: DenseTake,
        seek: SeekTable | None = None,
        *,
        room: np.ndarray | None = None,
        bits_follow: bool = False,
    ) -> int:
        """Read a dense form; return the bit behind it.

        Parameters
        ----------
        take : callable
            See `dense_string.read`.
        seek : SeekTable, optional
        room : (n,) uint8 array, optional
            May be used for symbols; `take` may write there, from its last element on, what it
            makes of those that it is given.
        bits_follow : bool
            Whether the string may end before `end`.

        Raises
        ------
        FormatError
        """
        if self.plan.code in TABLED:
            return self._read_tabled(take, seek, room, bits_follow)
        log2_block, offsets = LOG2_BLOCK, None
        if seek is not None:
            seek.must_cover(self.end - self.first)
            log2_block, offsets = seek.log2_block, seek.offsets
        end = self.first + int(self._read_words(take, log2_block, offsets)[-1])
        if end < self.end and not bits_follow:
            raise Corrupt(f"the payload has {self.end - end} bits behind its last word")
        return end

    def _read_words(
        self, take: DenseTake, log2_block: int, offsets: np.ndarray | None
    ) -> np.ndarray:
        code = level_codes.word_code(self.plan.code, self.s, self.plan.scalars)
        where = self.first, self.end, self.live, 1 << log2_block
        return dense_string.read(code, self.data, *where, offsets, take)

    def read_sparse(
        self,
        place: sparse_string.Place,
        seek: SeekTable | None = None,
        log2_block: int = LOG2_BLOCK,
    ) -> SeekTable:
        """Read a sparse form; return where its blocks begin."""
        known = None
        if seek is not None and seek.positions is not None:
            seek.must_cover(self.end - self.first)
            log2_block, known = seek.log2_block, (seek.offsets, seek.positions)
        code = level_codes.unit_code(self.plan.code, self.s, self.plan.scalars)
        where = self.first, self.end, 1 << log2_block
        sums = sparse_string.read(code, self.data, *where, known, place)
        return SeekTable.of(log2_block, *sums)

    def dense_blocks(self, log2_block: int) -> SeekTable:
        """Find where the blocks of a dense form begin, by reading it."""
        if self.plan.code in TABLED:
            return self._tabled().blocks(log2_block)
        return SeekTable.of(log2_block, self._read_words(_ignore, log2_block, None))

    def _tabled(self) -> String:
        kind: Any = self.plan.code
        # rANS knows nothing of elements that have no symbol.
        live = Live.all(self.live.words) if kind == "rans" else self.live
        return String.behind(kind, self.data, self.first, self.end, alphabet(self.s), live)

    def _read_tabled(
        self, take: DenseTake, seek: SeekTable | None, room: np.ndarray | None, bits_follow: bool
    ) -> int:
        string = self._tabled()
        if self.live.silent is None or (string.live is self.live and self.live.words):
            return string.read(
                lambda at, part: take(at, part, _NONE), seek, bits_follow=bits_follow
            )
        symbols = np.empty(self.live.n, np.uint8) if room is None else room
        symbols = symbols[: self.live.words]

        def keep(at: int, part: np.ndarray) -> None:
            symbols[at : at + part.size] = part

        end = string.read(keep, seek, bits_follow=bits_follow)
        self.live.spread(symbols, lambda at, part: take(at, part, _NONE))
        return end


def _ignore(at: int, small: np.ndarray, wide: np.ndarray) -> None:
    """Take symbols of which only the ends of their words are wanted."""
