"""The seek table: the offsets of blocks in a variable-length bit string.

The frame's header contains the table. It adds no information, because decoding from bit 0 yields
the same offsets, but it lets several threads decode one payload. A block consists of 2^log2_block
elements, transmitted values of a sparse tensor, or symbols of a rANS string; the codec determines
which of these. The last block may be shorter.

    log2 of the block u8 · width u8 · count LEB128 · entries · states

An entry contains the block's number of bits. If blocks count transmitted values, the entry also
contains the block's advance: the number of elements from the last value preceding the block, or
from the start of the tensor, to the block's last value. Both numbers take `width` bytes, the
smallest of 1, 2, 4 and 8 that fits all entries. The sums of all preceding entries, 8 bytes each,
precede entries 4096, 8192, … Only rANS has states: the states of the coder's lanes at each block
that starts within a block of rANS. Specification: docs/wire-format.md, part A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric.scan import differences_of, sums_of
from gcodec.kernels.rans import rans_runs
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.wire.kinds import check_integer
from gcodec.wire.primitives import Reader, leb128

LOG2_RANS = rans_runs.LOG2_BLOCK  # log2 of the symbols in a block of rANS
WIDTHS = (1, 2, 4, 8)
STRIDE = 4096  # entries from one pair of sums to the next
SUM_NBYTES = 8


class Part(NamedTuple):
    """A number of a `Section`, for its description.

    Attributes
    ----------
    name : str
    block : int
    at, nbytes : int
        Byte offset from the start of the section, and number of bytes.
    value : int
    """

    name: str
    block: int
    at: int
    nbytes: int
    value: int


def entries_nbytes(count: int, width: int, columns: int) -> int:
    """Return the number of bytes of entries, including sums."""
    return columns * (width * count + SUM_NBYTES * (max(count - 1, 0) // STRIDE))


def has_states(count: int, log2_block: int) -> np.ndarray:
    """Return a mask of the blocks whose states a table stores: those within a block of rANS."""
    mask = np.ones(count, np.bool_)
    mask[:: 1 << LOG2_RANS - log2_block] = False
    return mask


def states_nbytes(count: int, log2_block: int) -> int:
    """Return the number of bytes of the states of `count` blocks."""
    heads = -(-count >> LOG2_RANS - log2_block)
    return 4 * LANES * (count - heads)


# By default, encoders add a table to tensors of at least MIN_ELEMENTS elements, if the table takes
# at most a hundredth of the payload's bytes.
MIN_ELEMENTS = 1 << 16
LOG2_BLOCK = 12
LOG2_STATES = 16  # log2 of blocks with states; LOG2_RANS if the table is then too large
_SHARE = 100

Blocks = Literal["elements", "values", "states"]

_LOG2 = {"elements": (0, 62), "values": (0, 62), "states": (rans_runs.LEAST_LOG2_RUN, LOG2_RANS)}


@dataclass(frozen=True, eq=False)
class SeekTable:
    """The offsets of the blocks of a bit string.

    Parameters
    ----------
    log2_block : int
        Base-2 logarithm of the number of elements, values or symbols in a block, from 0 to 62.
    lengths : (count,) uint64 array
        Number of bits of each block.
    advances : (count,) uint64 array, optional
        If blocks count transmitted values: number of elements from the last value preceding a
        block, or from the start of the tensor, to the block's last value.
    states : (count, 32) uint32 array, optional
        For a rANS string: states of the lanes at the start of each block. Undefined for the blocks
        that start together with a block of rANS.

    Attributes
    ----------
    offsets : (count + 1,) int64 array
        Bit offsets of the blocks from the first coded bit, and of the end of the string.
    positions : (count + 1,) int64 array or None
        If blocks count transmitted values: number of elements up to and including the last value
        preceding each block, and preceding the end.
    width : int
        Smallest width in bytes that fits all lengths and advances.

    Raises
    ------
    ParameterError
        The numbers do not form a valid table.
    """

    log2_block: int
    lengths: np.ndarray
    advances: np.ndarray | None = None
    states: np.ndarray | None = None
    offsets: np.ndarray = field(init=False, repr=False)
    positions: np.ndarray | None = field(init=False, repr=False)
    width: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Validate the numbers, and compute the sums."""
        check_log2(self.log2_block, self.blocks)
        columns = {"lengths": self.lengths}
        if self.advances is not None:
            columns["advances"] = self.advances
        for name, values in columns.items():
            is_flat = isinstance(values, np.ndarray) and values.ndim == 1
            if not is_flat or values.dtype != np.uint64 or values.size != self.lengths.size:
                allowed = "a flat uint64 array, one number for each block"
                raise ParameterError(f"{name}: must be {allowed}")
        if self.states is not None:
            if not (isinstance(self.states, np.ndarray) and self.states.dtype == np.uint32):
                raise ParameterError("states: must be a uint32 array")
            if self.states.shape != (self.count, LANES):
                allowed = f"{(self.count, LANES)}"
                raise ParameterError.of("states.shape", self.states.shape, allowed)
        self._add_up()

    @classmethod
    def of(
        cls,
        log2_block: int,
        offsets: np.ndarray,
        positions: np.ndarray | None = None,
        states: np.ndarray | None = None,
    ) -> SeekTable:
        """Build a valid table from its bit offsets and positions; see the attributes."""
        lengths, bits = differences_of(offsets)
        advances, more = (None, 0) if positions is None else differences_of(positions)
        table = cls._unchecked(log2_block, lengths, advances, states)
        vars(table).update(offsets=offsets, positions=positions, width=_width(bits | more))
        return table

    @classmethod
    def _unchecked(
        cls,
        log2_block: int,
        lengths: np.ndarray,
        advances: np.ndarray | None,
        states: np.ndarray | None,
    ) -> SeekTable:
        """Return a table of valid numbers, without its sums."""
        table = object.__new__(cls)
        columns = {"lengths": lengths, "advances": advances}
        vars(table).update(columns, log2_block=log2_block, states=states)
        return table

    def _add_up(self) -> None:
        """Compute the sums and the width; raise `ParameterError` if a sum is too large."""
        offsets, bits = _sums("lengths", self.lengths)
        positions, more = None, 0
        if self.advances is not None:
            positions, more = _sums("advances", self.advances)
        vars(self).update(offsets=offsets, positions=positions, width=_width(bits | more))

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.lengths.size

    @property
    def nbytes(self) -> int:
        """Number of bytes of the table in a header."""
        count, columns = self.count, 1 if self.advances is None else 2
        states = 0 if self.states is None else states_nbytes(count, self.log2_block)
        return 2 + len(leb128(count)) + entries_nbytes(count, self.width, columns) + states

    @property
    def blocks(self) -> Blocks:
        """Unit of the blocks; "states" means symbols of a rANS string."""
        if self.states is not None:
            return "states"
        return "elements" if self.advances is None else "values"

    def to_bytes(self) -> bytes:
        """Return the section of a header."""
        entries, sums, count = self.lengths, [self.offsets], self.count
        if self.advances is not None and self.positions is not None:
            entries = np.stack([entries, self.advances], axis=1)
            sums.append(self.positions)
        entries = entries.astype(f"<u{self.width}")
        parts = [bytes((self.log2_block, self.width)), leb128(count)]
        for first in range(0, count, STRIDE):
            if first:
                parts += [int(s[first]).to_bytes(SUM_NBYTES, "little") for s in sums]
            parts.append(entries[first : first + STRIDE].tobytes())
        if self.states is not None:
            sent = self.states[has_states(count, self.log2_block)]
            parts.append(sent.astype("<u4").tobytes())
        return b"".join(parts)

    def check(self, blocks: Blocks | None, n: int, nbits: int) -> None:
        """Raise `Corrupt` if the table does not fit a payload; the payload itself is not read.

        Parameters
        ----------
        blocks : str or None
            `seek_blocks` of the codec.
        n : int
            `seek_count` of the codec.
        nbits : int
            Number of bits of the payload.
        """
        if blocks is None:
            raise Corrupt("a seek table, but the payload has no blocks")
        if blocks != self.blocks:
            raise Corrupt("the seek table is one of other blocks")
        _check_count(self.count, self.log2_block, blocks, n)
        if self.offsets[-1] > nbits:
            raise Corrupt(f"the seek table has {self.offsets[-1]} bits, the payload {nbits}")
        if self.advances is None or self.positions is None:
            return
        # Every value belongs to a different element.
        full = self.advances[:-1] >= np.uint64(1 << self.log2_block)
        if not full.all() or not self.advances[-1]:
            raise Corrupt("the seek table has a block of fewer elements than values")
        if self.positions[-1] > n:
            raise Corrupt(f"the seek table passes the {n} elements")

    def must_cover(self, nbits: int) -> None:
        """Raise `Corrupt` unless the lengths of the blocks add up to `nbits` bits."""
        if self.offsets[-1] != nbits:
            raise Corrupt(f"the seek table has {self.offsets[-1]} bits, the string {nbits}")


def refuse_table(seek: SeekTable | None) -> None:
    """Raise `Corrupt` for a table of a payload without blocks."""
    if seek is not None:
        raise Corrupt(f"the seek table has {seek.count} blocks, the payload none")


class Section(NamedTuple):
    """The section of a header that contains a seek table, with unparsed entries.

    Attributes
    ----------
    log2_block, width, number : int
    entries, states : memoryview
    blocks : {"elements", "values", "states"}
        Unit of the blocks.
    """

    log2_block: int
    width: int
    number: int
    entries: memoryview
    states: memoryview
    blocks: Blocks

    @classmethod
    def take(cls, reader: Reader, blocks: Blocks) -> Section:
        """Read the next section, for a codec whose `seek_blocks` is `blocks`."""
        start = reader.at
        log2_block, width = reader.byte(), reader.byte()
        low, high = _LOG2[blocks]
        if not low <= log2_block <= high:
            raise Corrupt(f"the seek table has blocks of 2^{log2_block}", offset=start)
        if width not in WIDTHS:
            raise Corrupt(f"the seek table has entries of {width} bytes", offset=start + 1)
        number = reader.leb128()
        columns = 2 if blocks == "values" else 1
        entries = reader.take(entries_nbytes(number, width, columns))
        states = reader.take(states_nbytes(number, log2_block) if blocks == "states" else 0)
        return cls(log2_block, width, number, entries, states, blocks)

    @property
    def _head_nbytes(self) -> int:
        return 2 + len(leb128(self.number))

    @property
    def nbytes(self) -> int:
        """Size of the section."""
        return self._head_nbytes + len(self.entries) + len(self.states)

    def table(self, n: int) -> SeekTable:
        """Parse the table, in memory bounded by n.

        Parameters
        ----------
        n : int
            `seek_count` of the codec.

        Raises
        ------
        Corrupt
            The table contradicts itself or n.
        """
        _check_count(self.number, self.log2_block, self.blocks, n)
        columns = 2 if self.blocks == "values" else 1
        numbers, at = np.empty(columns * self.number, np.uint64), 0
        marks: list[np.ndarray] = []
        for first in range(0, columns * self.number, columns * STRIDE):
            if first:
                marks.append(np.frombuffer(self.entries, "<i8", columns, at))
                at += SUM_NBYTES * columns
            part = numbers[first : first + columns * STRIDE]
            part[:] = np.frombuffer(self.entries, f"<u{self.width}", part.size, at)
            at += self.width * part.size
        lengths, advances = numbers, None
        if columns == 2:
            lengths, advances = numbers[::2].copy(), numbers[1::2].copy()
        try:
            table = SeekTable._unchecked(self.log2_block, lengths, advances, self._states())
            table._add_up()
        except ParameterError as error:
            raise Corrupt(f"the seek table adds up to too much: {error}") from None
        if self.width != table.width:
            raise Corrupt("the seek table has wider entries than it needs")
        if marks:
            sums_of = [sums for sums in (table.offsets, table.positions) if sums is not None]
            if not np.array_equal(np.stack(sums_of)[:, STRIDE:-1:STRIDE], np.stack(marks, axis=1)):
                raise Corrupt("the seek table contradicts its own sums")
        return table

    def parts(self) -> Iterator[Part]:
        """Return the sums, entries and states one by one, in their order."""
        columns = ("length", "advance") if self.blocks == "values" else ("length",)
        head, at, data = self._head_nbytes, 0, self.entries

        def part(name: str, block: int, nbytes: int) -> Part:
            nonlocal at
            at += nbytes
            value = int.from_bytes(data[at - nbytes : at], "little")
            return Part(name, block, head + at - nbytes, nbytes, value)

        for block in range(self.number):
            if block and block % STRIDE == 0:
                for column in columns:
                    yield part(f"sum of {column}s", block, SUM_NBYTES)
            for column in columns:
                yield part(column, block, self.width)
        if not self.states:
            return
        head, at, data = head + len(data), 0, self.states
        for block in np.flatnonzero(has_states(self.number, self.log2_block)).tolist():
            for lane in range(LANES):
                yield part(f"state of lane {lane}", block, 4)

    def _states(self) -> np.ndarray | None:
        if self.blocks != "states":
            return None
        states = np.zeros((self.number, LANES), np.uint32)
        sent = np.frombuffer(self.states, "<u4").reshape(-1, LANES)
        states[has_states(self.number, self.log2_block)] = sent
        return states


def worthwhile(table: SeekTable, n: int, nbits: int) -> bool:
    """Return whether an encoder adds a table by default, for n elements in `nbits` bits."""
    return table.count >= 2 and table.nbytes <= most_nbytes(n, -(-nbits // 8))


def usual_log2s(blocks: Blocks) -> tuple[int, ...]:
    """Return the base-2 logarithms of the block sizes that an encoder tries, in order."""
    return (LOG2_STATES, LOG2_RANS) if blocks == "states" else (LOG2_BLOCK,)


def most_nbytes(n: int, payload_nbytes: int) -> int:
    """Return the maximum number of bytes of a table that an encoder adds by default."""
    return payload_nbytes // _SHARE if n >= MIN_ELEMENTS else 0


def check_log2(log2_block: object, blocks: Blocks) -> int:
    """Return the base-2 logarithm of a block size, or raise `ParameterError`."""
    low, high = _LOG2[blocks]
    return check_integer("log2_block", log2_block, low, high, f"an integer from {low} to {high}")


def _check_count(count: int, log2_block: int, blocks: Blocks, n: int) -> None:
    if blocks == "elements":
        fits = count == -(-n >> log2_block)
    else:  # all blocks but the last are full, and each value belongs to a different element
        fits = ((count - 1) << log2_block) < n
    if count < 1 or not fits:
        raise Corrupt(f"the seek table has {count} blocks of 2^{log2_block} for {n} elements")


def _width(bits: int) -> int:
    """Return the least of `WIDTHS` for numbers that have no other bits than these."""
    return 1 << max(-(-bits.bit_length() // 8) - 1, 0).bit_length()


def _sums(name: str, values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the sums preceding each value, and of all, as int64; and all bits of the values."""
    sums, bits = sums_of(np.ascontiguousarray(values))
    if bits < 0:
        raise ParameterError(f"{name}: must add up to less than 2**63")
    return sums, bits
