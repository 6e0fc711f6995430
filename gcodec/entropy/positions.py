"""Positions of the sent elements of a sparse message: the index codes and their strings.

- ``rice``: gaps as Rice codewords with an adaptive parameter (`kernels.prefix.gap_rice`).
- ``eliasfano``: low bits as they are, high bits in unary (`kernels.prefix.elias_fano`).
- ``bitmap``: a bit for each element (`kernels.bits.bitmap`).
- ``rans``, ``huffman``: a table, the classes of gaps (`kernels.prefix.value_classes`), and then
  the bits within classes.

A string ends with the payload. A string of no positions has no bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.entropy import rans, tabled
from gcodec.entropy.coder import BitSpan, CodedString, Written, into, no_blocks
from gcodec.entropy.tabled import Table
from gcodec.errors import Corrupt, ParameterError, Truncated, Unsupported
from gcodec.kernels.bits import bitmap
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.byte_counts import least_nbits
from gcodec.kernels.prefix import elias_fano, gap_rice
from gcodec.kernels.prefix.codewords import TRUNCATED
from gcodec.kernels.prefix.value_classes import GAPS, AllPositions, ComputedPositions
from gcodec.runtime import pool
from gcodec.runtime.memory import Drainable, contents, drop
from gcodec.wire import seek as seek_tables
from gcodec.wire.kinds import Choice, Float64, Integer
from gcodec.wire.seek import LOG2_BLOCK, MIN_ELEMENTS, Blocks, SeekTable

MOST = 2**62
"""Largest number of elements of a tensor whose positions can be coded."""
RATIO = 0.01
"""Default share of elements that are sent."""

COUNT = Integer(0, MOST, sent=("ratio",), asked=1)  # a message may send nothing
SHARE = Float64("a number above 0, up to 1", lambda ratio: 0 < ratio <= 1)


def sent(n: int, k: int | str, ratio: float) -> int:
    """Return the number of n elements that are sent: k, or the share `ratio` and at least one."""
    return min(n, k if isinstance(k, int) else max(1, round(ratio * n)))


def rise(positions: np.ndarray, n: int) -> bool:
    """Return whether (k,) int64 positions rise, and lie within n elements."""
    if not positions.size:
        return True
    is_inside = positions[0] >= 0 and positions[-1] < n
    return bool(is_inside and (positions[1:] > positions[:-1]).all())


TABLED: tuple[tabled.Kind, ...] = ("rans", "huffman")
CODES = ("rice", "eliasfano", "bitmap", *TABLED)
INDEX = Choice(*CODES, unsent=("auto",))


def alphabet(n: int) -> np.ndarray:
    """Return the classes of the gaps that n elements can have."""
    return np.arange(GAPS.class_of(n) + 1, dtype=np.uint8)


def lasts_of(positions: Positions, block: int) -> np.ndarray:
    """Return the position before each block of positions, and the last one, counted from 1."""
    return np.concatenate([[0], positions[block - 1 : -1 : block] + 1, positions[-1:] + 1])


def seek_blocks(code: str) -> Blocks | None:
    """Return the unit of the blocks of a seek table; None if the code has no blocks."""
    blocks: dict[str, Blocks | None] = {"bitmap": None, "rans": "states"}
    return blocks.get(code, "values")


def longest_nbits(n: int, k: int, code: str) -> int:
    """Return an upper bound of the bits of k positions in n elements."""
    if not k:
        return 0
    width = n.bit_length()
    blocks = -(-k // gap_rice.BLOCK)
    longest = {
        "rice": k * (width + 4) + blocks * gap_rice.MOST_HEADER_NBITS,
        "eliasfano": k * (elias_fano.low_width(n, k) + 1) + (n >> elias_fano.low_width(n, k)),
        "bitmap": n,
    }
    for kind in TABLED:
        longest[kind] = tabled.longest_nbits(kind, k, alphabet(n).size) + k * max(width - 3, 0)
    return min(longest.values()) if code == "auto" else longest[code]


class IndexString(NamedTuple):
    """The positions of a payload; `read` returns all of them at once.

    Attributes
    ----------
    span : BitSpan
        Bits of the string, which ends with the payload.
    code : str
        The index code.
    k : int
        Number of positions. The payload stores a value for each, so k is at most its length in
        bits.
    n : int
        Number of elements of the tensor.
    """

    span: BitSpan
    code: str
    k: int
    n: int

    def read(self) -> np.ndarray:
        """Return the positions as a rising (k,) int64 array, from 0 to n − 1.

        Raises
        ------
        FormatError
        """
        self.check()
        if not self.k:
            seek_tables.refuse_table(self.span.seek)
            return np.empty(0, np.int64)
        if self.code == "bitmap":
            return bitmap.read(self.span.data, self.span.first, self.n, self.k)
        if self.code in TABLED:
            return self._read_classes()[0][:]
        if self.span.seek is None:
            return self._read_in_order(self.k)[0]
        return self._read_in_parallel(self.span.seek)

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table with blocks of 2^log2_block positions, found by reading them all.

        Raises
        ------
        FormatError
        ParameterError
            If the code does not allow blocks this small.
        """
        self.check()
        if self.code == "rice" and log2_block < gap_rice.LOG2_GROUP:
            allowed = f"{gap_rice.LOG2_GROUP} or more with index=rice"
            raise ParameterError.of("log2_block", log2_block, allowed)
        if not self.k:
            return no_blocks(log2_block)
        if self.code in TABLED:
            positions, end = self._read_classes()
            table = self._classes(self.span._replace(end=end)).blocks(log2_block)
            if self.code == "rans":
                return table
            return SeekTable.of(log2_block, table.offsets, lasts_of(positions, 1 << log2_block))
        _, offsets, lasts = self._read_in_order(1 << log2_block)
        return SeekTable.of(log2_block, offsets, lasts)

    def check(self) -> None:
        """Raise `FormatError` for sizes that contradict each other."""
        if self.n > MOST:
            raise Unsupported(f"positions among more than {MOST} elements")
        nbits = self.span.nbits
        if self.k > self.n:
            raise Corrupt(f"{self.k} of {self.n} elements cannot have been sent")
        if self.k and nbits < self._least_nbits():
            raise Truncated(f"the payload has {nbits} bits for {self.k} positions")
        exact = (self.n if self.code == "bitmap" else nbits) if self.k else 0
        if nbits > exact:
            raise Corrupt(f"the payload has {nbits - exact} bits after its positions")

    def _least_nbits(self) -> int:
        if self.code == "bitmap":
            return self.n
        if self.code in TABLED:
            return 0  # the coder of classes checks its length
        return self.k * (1 + self._low_width)

    @property
    def _low_width(self) -> int:
        """Number of low bits of each position, which precede the codewords."""
        return elias_fano.low_width(self.n, self.k) if self.code == "eliasfano" and self.k else 0

    @property
    def _words(self) -> BitSpan:
        """The bits after the low bits of all positions."""
        return self.span.after(self.span.first + self.k * self._low_width)

    def _read_in_parallel(self, seek: SeekTable) -> np.ndarray:
        """Read the blocks of a seek table."""
        words, block = self._words, 1 << seek.log2_block
        words.must_cover()
        if self.code == "rice" and seek.log2_block < gap_rice.LOG2_GROUP:
            raise Corrupt(f"the seek table has blocks of 2^{seek.log2_block}")
        starts, lasts = words.first + seek.offsets, self._lasts(seek)
        positions = np.empty(self.k, np.int64)

        def task(start: int, stop: int) -> None:
            rows = slice(start // block, -(-stop // block) + 1)
            ends, expected = starts[rows].copy(), lasts[rows].copy()
            self._read_blocks(start, block, ends, expected, positions[start:stop], known=True)

        pool.run(task, self.k, block)
        return positions

    def _lasts(self, seek: SeekTable) -> np.ndarray:
        """Return the positions of a seek table of values that has a row for each block."""
        if seek.positions is None or seek.count != -(-self.k >> seek.log2_block):
            raise Corrupt(f"the seek table has {seek.count} blocks for {self.k} positions")
        return seek.positions

    def _read_in_order(self, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions, and the offsets and last positions of blocks."""
        words = self._words
        positions = np.empty(self.k, np.int64)
        starts, lasts = np.zeros((2, -(-self.k // block) + 1), np.int64)
        starts[0] = words.first
        self._read_blocks(0, block, starts, lasts, positions, known=False)
        if starts[-1] < words.end:
            raise Corrupt(f"the payload has {words.end - starts[-1]} bits after its positions")
        return positions, starts - words.first, lasts

    def _read_blocks(
        self,
        at: int,
        block: int,
        starts: np.ndarray,
        lasts: np.ndarray,
        out: np.ndarray,
        *,
        known: bool,
    ) -> None:
        """Read blocks from the position of index `at` on; see `gap_rice.read_gap_blocks`."""
        data, first, end, _ = self.span
        if self.code == "rice":
            gap_rice.read_gap_blocks(data, end, self.n, block, known, starts, lasts, out)
        else:
            width = self._low_width
            low = first + at * width
            elias_fano.read_blocks(data, end, self.n, low, width, block, known, starts, lasts, out)
        if starts[-1] < 0:
            if known:
                raise Corrupt("the seek table or the payload is wrong: a block begins elsewhere")
            if starts[-1] == TRUNCATED:
                raise Truncated("the payload ends within its positions")
            raise Corrupt(f"a position is not one of {self.n} elements, or does not rise")

    def _read_classes(self) -> tuple[Positions, int]:
        """Return positions, and the bit after the string of their classes."""
        span, lasts = self.span, None
        if (seek := span.seek) is not None and self.code == "huffman":
            lasts = self._lasts(seek)
            span = span._replace(seek=SeekTable(seek.log2_block, seek.lengths))
        classes = np.empty(self.k, np.uint8)
        end = self._classes(span).read(into(classes), bits_follow=True)
        positions: Positions = AllPositions(self.n)
        if self.k < self.n or end < span.end or classes.any():
            positions = GAPS.read(span.data, end, span.end, classes, self.n)
        block = 0 if seek is None else 1 << seek.log2_block
        if lasts is not None and not np.array_equal(lasts_of(positions, block), lasts):
            raise Corrupt("the seek table is wrong: a block begins at another position")
        return positions, end

    def check_all(self) -> None:
        """Raise `FormatError` if the positions are not those of all n elements.

        Codes of classes then list none.
        """
        self.check()
        if self.k and self.code in TABLED:
            self._read_classes()
        else:
            self.read()

    def _classes(self, span: BitSpan) -> CodedString:
        """Open the string of classes."""
        assert self.code in TABLED
        return tabled.open(self.code, span, alphabet(self.n), CodedMask.all(self.k))


_ROOM = 8  # bytes of a string beyond its bits, so that it need not grow

Positions = np.ndarray | ComputedPositions
"""Positions as an array, or computed where they are read."""
Front = tuple[np.ndarray | Drainable, int]
"""The bytes that precede the positions in a payload, and the number of valid bits in them."""


class Plan(NamedTuple):
    """A string that an encoder may write, and its price.

    Attributes
    ----------
    code : str
        The index code.
    nbits : int
        Length of the string in bits; an estimate for "rans".
    write : callable
        Gets the front, the positions, and the number of bits that the string may have. Returns
        front and string with a seek table, if it has one; or None, before it releases anything, if
        the string is longer.
    """

    code: str
    nbits: int
    write: Callable[[Front, Positions | Drainable, float], Written | None]


def write(
    positions: Positions | Drainable,
    n: int,
    code: str,
    front: Front,
    plans: list[Plan] | None = None,
) -> tuple[str, Written]:
    """Write positions after the first bits of a payload.

    Parameters
    ----------
    positions : (k,) int64 array, Drainable or ComputedPositions
        Positions from 0 to n − 1, in increasing order; a `Drainable` may be released.
    n : int
        Number of elements of the tensor, up to 2^62.
    code : str
        An index code, or "auto" for the one with the shortest string, the first of equals.
    front : (ceil(nbits / 8),) uint8 array or Drainable, and nbits
        The first bits of the payload; a `Drainable` is released.
    plans : list of Plan, optional
        The result of `plans_of` for these positions, if it is known.

    Returns
    -------
    code : str
        The index code of the string.
    written : Written
        Front and string.
    """
    array = contents(positions)
    if not array.size:
        return CODES[0] if code == "auto" else code, Written(contents(front[0]), front[1])
    plans = plans_of(array, n, code) if plans is None else plans
    # The length of a rANS string is only known after it is written.
    most = plans[1].nbits if plans[0].code == "rans" and len(plans) > 1 else math.inf
    for plan in plans:
        if (written := plan.write(front, positions, most)) is not None:
            break
    assert written is not None
    data, nbits, seek = written
    is_sent = seek is not None and seek_tables.worthwhile(seek, n, nbits)
    return plan.code, Written(data, nbits, seek if is_sent else None)


def _string_after(front: Front, nbits: int) -> BitString:
    """Return a string of the front, with room for `nbits` more bits."""
    string = BitString(0, (front[1] + nbits) // 8 + _ROOM)
    string.extend(*front)
    return string


def _joined(front: Front, data: np.ndarray, nbits: int, seek: SeekTable | None) -> Written:
    """Return the front and a string that follows it."""
    string = _string_after(front, nbits)
    string.extend(data, nbits)
    return Written(string.trimmed(), string.nbits, seek)


def plans_of(positions: Positions, n: int, code: str) -> list[Plan]:
    """Return a plan for each candidate code, the best first, without those that are too long.

    There is no plan if there are no positions. See `write` for the parameters.
    """
    if not positions.size:
        return []
    planners = {"rice": _rice, "eliasfano": _elias_fano, "bitmap": _bitmap}
    plans = [plan(positions, n) for name, plan in planners.items() if code in (name, "auto")]
    if kinds := [kind for kind in TABLED if code in (kind, "auto")]:
        counts = GAPS.counts(positions)
        for kind in reversed(kinds):  # the price of Huffman words may rule out rANS
            if kind != "rans" or not plans or _may_be_shortest(counts, plans):
                plans.append(_classes(positions, n, counts, kind))
    plans.sort(key=lambda plan: (plan.nbits, CODES.index(plan.code)))
    return plans


def _may_be_shortest(counts: np.ndarray, plans: list[Plan]) -> bool:
    """Return whether rANS of classes with these counts may be as short as the best plan."""
    least = least_nbits(counts, rans.log2_table()) + rans.least_overhead(int(counts.sum()))
    return least + GAPS.raw_nbits(counts) <= min(plan.nbits for plan in plans)


def _rice(positions: Positions, n: int) -> Plan:
    parameters, offsets = gap_rice.plan(positions)
    nbits = int(offsets[-1])

    def write(front: Front, positions: Positions | Drainable, most: float) -> Written:
        array, table = contents(positions), None
        words = gap_rice.write(array, parameters, offsets)
        if n >= MIN_ELEMENTS:
            lasts = lasts_of(array, 1 << gap_rice.LOG2_GROUP)
            table = SeekTable.of(gap_rice.LOG2_GROUP, offsets, lasts)
        drop(positions)
        return _joined(front, words, nbits, table)

    return Plan("rice", nbits, write)


def _elias_fano(positions: Positions, n: int) -> Plan:
    nbits = elias_fano.nbits(positions, n)

    def write(front: Front, positions: Positions | Drainable, most: float) -> Written:
        array, block, table = contents(positions), 1 << LOG2_BLOCK, None
        words = BitString(0, nbits // 8 + _ROOM)
        elias_fano.write(array, n, words)
        if n >= MIN_ELEMENTS:
            lasts = lasts_of(array, block)
            offsets = elias_fano.offsets(lasts, n, array.size, block)
            table = SeekTable.of(LOG2_BLOCK, offsets, lasts)
        drop(positions)
        return _joined(front, words.trimmed(), nbits, table)

    return Plan("eliasfano", nbits, write)


def _bitmap(positions: Positions, n: int) -> Plan:
    def write(front: Front, positions: Positions | Drainable, most: float) -> Written:
        bits = bitmap.write(contents(positions), n)
        drop(positions)
        return _joined(front, bits, n, None)

    return Plan("bitmap", n, write)


def _classes(positions: Positions, n: int, counts: np.ndarray, kind: tabled.Kind) -> Plan:
    table = Table.own(kind, counts, alphabet(n))
    raw = GAPS.raw_nbits(counts)

    def write(front: Front, positions: Positions | Drainable, most: float) -> Written | None:
        array, first = contents(positions), front[1]
        # The string of classes begins with the last bits of the front, which place its bytes.
        shared, classes = BitString(), partial(GAPS.classify, array)
        shared.extend(contents(front[0])[first // 8 :], first % 8)
        before, coded = first - first % 8, CodedMask.all(array.size)
        data, nbits, seek = tabled.write(table, classes, coded, shared, n, before=before)
        if before + nbits + raw - first > most:
            return None
        within = BitString(0, raw // 8 + 1)
        GAPS.write_raw(array, raw, within)
        if seek is not None and kind == "huffman":
            lasts = lasts_of(array, 1 << seek.log2_block)
            seek = SeekTable.of(seek.log2_block, seek.offsets, lasts)
        drop(positions)
        string = _string_after(front, nbits + raw)
        string.replace_end(data, nbits)
        string.extend(within.trimmed(), raw)
        return Written(string.trimmed(), string.nbits, seek)

    return Plan(kind, table.nbits(counts) + raw, write)
