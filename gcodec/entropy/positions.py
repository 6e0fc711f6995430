"""How the positions of sent elements are written: the index codes, and their strings as read.

- ``rice``: gaps in Rice words whose parameter follows them (`kernels.gap_rice`).
- ``eliasfano``: low bits as they are, the others in unary (`kernels.elias_fano`).
- ``bitmap``: a bit for each element (`kernels.bitmap`).
- ``rans``, ``huffman``: classes of gaps (`kernels.gap_classes`) behind a table of their own, and
  then the bits within classes.

A string ends where the payload does. Without positions it has no bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.tabled import String, Table
from gcodec.errors import Corrupt, ParameterError, Truncated, Unsupported
from gcodec.kernels.bits import bitmap
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import elias_fano, gap_classes, gap_rice
from gcodec.kernels.prefix.codewords import TRUNCATED
from gcodec.runtime import pool
from gcodec.wire.kinds import Float64, Integer
from gcodec.wire.seek import LOG2_BLOCK, Blocks, SeekTable, first_worthwhile, refuse_table

MOST = 2**62  # elements among which positions can be told
RATIO = 0.01  # the default

COUNT = Integer(0, MOST, sent=("ratio",), asked=1)  # a message may send nothing
SHARE = Float64("a number above 0, up to 1", lambda ratio: 0 < ratio <= 1)


def sent(n: int, k: int | str, ratio: float) -> int:
    """Return how many of n elements are sent: k of them, or with "ratio" that share, and one."""
    return min(n, k if isinstance(k, int) else max(1, round(ratio * n)))


TABLED: tuple[tabled.Kind, ...] = ("rans", "huffman")
CODES = ("rice", "eliasfano", "bitmap", *TABLED)


def alphabet(n: int) -> np.ndarray:
    """Return all classes of gaps in n elements."""
    return np.arange(gap_classes.class_of(n) + 1, dtype=np.uint8)


def lasts_of(positions: np.ndarray, every: int) -> np.ndarray:
    """Return the position, from 1 on, of the last element before each block, and of all."""
    return np.concatenate([[0], positions[every - 1 : -1 : every] + 1, positions[-1:] + 1])


def seek_blocks(code: str) -> Blocks | None:
    """Return what blocks of a seek table count; None: no table."""
    blocks: dict[str, Blocks | None] = {"bitmap": None, "rans": "states"}
    return blocks.get(code, "values")


def longest_nbits(n: int, k: int, code: str) -> int:
    """Return the most bits of the string of k of n elements."""
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
    """Positions that are read.

    Attributes
    ----------
    code : str
    data : uint8 array
    first, end : int
        Bits where the string begins, and where it and the payload end.
    k : int
        Positions, each of which has a bit or more elsewhere in the payload.
    n : int
        Elements.
    seek : SeekTable or None
        The table of the payload. Blocks are then read side by side, and must be so.
    """

    code: str
    data: np.ndarray
    first: int
    end: int
    k: int
    n: int
    seek: SeekTable | None

    def read(self) -> np.ndarray:
        """Read all: (k,) int64 positions, rising, from 0 to n − 1.

        Raises
        ------
        FormatError
        """
        self.check()
        if not self.k:
            refuse_table(self.seek)
            return np.empty(0, np.int64)
        if self.code == "bitmap":
            return bitmap.read(self.data, self.first, self.n, self.k)
        if self.code in TABLED:
            return self._read_classes()[0]
        if self.seek is None:
            return self._read_on(self.k)[0]
        return self._read_side_by_side(self.seek)

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all.

        Raises
        ------
        FormatError
        ParameterError
            If blocks of this code cannot be so small.
        """
        self.check()
        if self.code == "rice" and log2_block < gap_rice.LOG2_GROUP:
            allowed = f"{gap_rice.LOG2_GROUP} or more with index=rice"
            raise ParameterError.of("log2_block", log2_block, allowed)
        if self.code in TABLED:
            if not self.k:
                return self._classes_of(None).blocks(log2_block)
            positions, string = self._read_classes()
            found = string.blocks(log2_block)
            if self.code == "rans":
                return found
            return SeekTable.of(log2_block, found.offsets, lasts_of(positions, 1 << log2_block))
        every = 1 << log2_block
        _, offsets, lasts = self._read_on(every)
        return SeekTable.of(log2_block, offsets, lasts)

    def check(self) -> None:
        """Refuse what can be told without reading."""
        if self.n > MOST:
            raise Unsupported(f"positions among more than {MOST} elements")
        nbits = self.end - self.first
        if self.k > self.n:
            raise Corrupt(f"{self.k} of {self.n} elements cannot have been sent")
        if self.k and nbits < self._least_nbits():
            raise Truncated(f"the payload has {nbits} bits for {self.k} positions")
        exact = (self.n if self.code == "bitmap" else nbits) if self.k else 0
        if nbits > exact:
            raise Corrupt(f"the payload has {nbits - exact} bits behind its positions")

    def _least_nbits(self) -> int:
        if self.code == "bitmap":
            return self.n
        if self.code in TABLED:
            return 0  # the coder tells
        return self.k * (1 + self._low_width)

    @property
    def _low_width(self) -> int:
        """Bits of each position that come before the words."""
        return elias_fano.low_width(self.n, self.k) if self.code == "eliasfano" and self.k else 0

    def _read_side_by_side(self, seek: SeekTable) -> np.ndarray:
        """Read blocks where a seek table says that they begin."""
        first, every = self.first + self.k * self._low_width, 1 << seek.log2_block
        seek.must_cover(self.end - first)
        if self.code == "rice" and seek.log2_block < gap_rice.LOG2_GROUP:
            raise Corrupt(f"the seek table has blocks of 2^{seek.log2_block}")
        starts, lasts = first + seek.offsets, self._lasts(seek)
        found = np.empty(self.k, np.int64)

        def task(start: int, stop: int) -> None:
            rows = slice(start // every, -(-stop // every) + 1)
            marks = starts[rows].copy(), lasts[rows].copy()
            self._read_blocks(start, every, True, *marks, found[start:stop])

        pool.run(task, self.k, every)
        return found

    def _lasts(self, seek: SeekTable) -> np.ndarray:
        """Return the positions of a seek table of values that has a row for each block."""
        if seek.positions is None or seek.count != -(-self.k >> seek.log2_block):
            raise Corrupt(f"the seek table has {seek.count} blocks for {self.k} positions")
        return seek.positions

    def _read_on(self, every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Read from begin to end; return positions, and offsets and positions of blocks."""
        first = self.first + self.k * self._low_width
        found = np.empty(self.k, np.int64)
        starts, lasts = np.zeros((2, -(-self.k // every) + 1), np.int64)
        starts[0] = first
        if self.k:
            self._read_blocks(0, every, False, starts, lasts, found)
        if starts[-1] < self.end:
            raise Corrupt(f"the payload has {self.end - starts[-1]} bits behind its positions")
        return found, starts - first, lasts

    def _read_blocks(
        self,
        at: int,
        every: int,
        known: bool,
        starts: np.ndarray,
        lasts: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Read blocks from position number `at` on; see the kernels."""
        where = every, known, starts, lasts, out
        if self.code == "rice":
            gap_rice.read_blocks(self.data, self.end, self.n, *where)
        else:
            width = self._low_width
            low = self.first + at * width
            elias_fano.read_blocks(self.data, self.end, self.n, low, width, *where)
        if starts[-1] < 0:
            if known:
                raise Corrupt("the seek table or the payload is wrong: a block begins elsewhere")
            if starts[-1] == TRUNCATED:
                raise Truncated("the payload ends within its positions")
            raise Corrupt(f"a position is not one of {self.n} elements, or not behind the last")

    def _read_classes(self) -> tuple[np.ndarray, String]:
        """Read positions, and the string of their classes up to its end."""
        seek = self.seek
        blocks, lasts = seek, None
        if seek is not None and self.code == "huffman":
            lasts, blocks = self._lasts(seek), SeekTable(seek.log2_block, seek.lengths)
        string = self._classes_of(blocks)
        string.refuse_short()
        classes = np.empty(self.k, np.uint8)

        def take(at: int, part: np.ndarray) -> None:
            classes[at : at + part.size] = part

        end = string.read(take, bits_follow=True)
        positions = gap_classes.read(self.data, end, self.end, self.n, classes)
        every = 0 if seek is None else 1 << seek.log2_block
        if lasts is not None and not np.array_equal(lasts_of(positions, every), lasts):
            raise Corrupt("the seek table is wrong: a block begins behind another position")
        return positions, string._replace(end=end)

    def _classes_of(self, seek: SeekTable | None) -> String:
        kind: Any = self.code
        where = self.data, self.first, self.end
        return String.behind(kind, *where, alphabet(self.n), CodedMask.all(self.k), seek)


Front = tuple[np.ndarray, int]  # bytes and bits of what a payload begins with


class Written(NamedTuple):
    """A payload that ends with positions.

    Attributes
    ----------
    code : str
        The index code that was taken.
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the payload is too short for one, or has no blocks.
    """

    code: str
    data: np.ndarray
    nbits: int
    seek: SeekTable | None


class _Plan(NamedTuple):
    """A string that can be written: its bits, of "rans" as estimated, and what writes it."""

    code: str
    nbits: int
    write: Callable[[BitString], tuple[np.ndarray, int, list[SeekTable]]]


def write(positions: np.ndarray, n: int, code: str, front: Front) -> Written:
    """Write positions behind what a payload begins with.

    Parameters
    ----------
    positions : (k,) int64 array
        Rising, from 0 to n − 1.
    n : int
        Elements, up to 2^62.
    code : str
        "auto" for the shortest, the first of equals.
    front : (ceil(nbits / 8),) uint8 array and nbits
    """
    if not positions.size:
        return Written(CODES[0] if code == "auto" else code, *front, None)
    plans = sorted(_plans(positions, n, code), key=lambda plan: plan.nbits)
    first, *others = plans
    written = _written(first, n, front)
    # Only the length of a string of rANS is not known before it is written.
    if first.code == "rans" and others and others[0].nbits < written.nbits - front[1]:
        return _written(others[0], n, front)
    return written


def _written(plan: _Plan, n: int, front: Front) -> Written:
    string = BitString(0, front[0].size)
    string.extend(*front)
    data, nbits, tables = plan.write(string)
    return Written(plan.code, data, nbits, first_worthwhile(n, nbits, *tables))


def _plans(positions: np.ndarray, n: int, code: str) -> list[_Plan]:
    """Return a plan for each code that may be taken."""
    plans = []
    if code in ("rice", "auto"):
        plans.append(_rice(positions))
    if code in ("eliasfano", "auto"):
        plans.append(_elias_fano(positions, n))
    if code in ("bitmap", "auto"):
        plans.append(_bitmap(positions, n))
    if code in (*TABLED, "auto"):
        classes = gap_classes.classes(positions)
        counts = byte_counts(classes)
        kinds: list[Any] = [code] if code != "auto" else list(TABLED)
        plans += [_classes(positions, n, classes, counts, kind) for kind in kinds]
    return plans


def _rice(positions: np.ndarray) -> _Plan:
    parameters, offsets = gap_rice.plan(positions)

    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        string.extend(gap_rice.write(positions, parameters, offsets), int(offsets[-1]))
        lasts = lasts_of(positions, 1 << gap_rice.LOG2_GROUP)
        table = SeekTable.of(gap_rice.LOG2_GROUP, offsets, lasts)
        return string.trimmed(), string.nbits, [table]

    return _Plan("rice", int(offsets[-1]), write)


def _elias_fano(positions: np.ndarray, n: int) -> _Plan:
    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        elias_fano.write(positions, n, string)
        every = 1 << LOG2_BLOCK
        offsets = elias_fano.offsets(positions, n, every)
        table = SeekTable.of(LOG2_BLOCK, offsets, lasts_of(positions, every))
        return string.trimmed(), string.nbits, [table]

    return _Plan("eliasfano", elias_fano.nbits(positions, n), write)


def _bitmap(positions: np.ndarray, n: int) -> _Plan:
    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        string.extend(bitmap.write(positions, n), n)
        return string.trimmed(), string.nbits, []

    return _Plan("bitmap", n, write)


def _classes(
    positions: np.ndarray, n: int, classes: np.ndarray, counts: np.ndarray, kind: tabled.Kind
) -> _Plan:
    table = Table.own(kind, counts, alphabet(n))
    raw = gap_classes.raw_nbits(counts)

    def symbols_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        return classes[start:stop]

    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        data, nbits, seek = tabled.write(table, symbols_of, CodedMask.all(classes.size), string, n)
        whole = BitString(0, data.size + raw // 8)
        whole.extend(data, nbits)
        gap_classes.write_raw(positions, classes, raw, whole)
        if seek is not None and kind == "huffman":
            lasts = lasts_of(positions, 1 << seek.log2_block)
            seek = SeekTable.of(seek.log2_block, seek.offsets, lasts)
        return whole.trimmed(), whole.nbits, [] if seek is None else [seek]

    return _Plan(kind, table.nbits(counts) + raw, write)
