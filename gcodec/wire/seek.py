"""The seek table: where the blocks of a variable-length bit string begin.

It lies in the frame's header and says nothing that decoding from bit 0 would not find; with it, a
decoder can begin at many places at once. A block is 2^log2_block elements, or as many sent values
for codecs that send only some, or as many symbols of a rANS string; the last may have fewer. Which
of these it is, the codec says.

    log2 of the block u8 · width u8 · count LEB128 · entries · states

An entry is the block's number of bits and, where blocks count sent values, its advance: how many
elements from the last value before the block, or from before the tensor, to its last value. Both
take `width` bytes, the least of 1, 2, 4 and 8 that hold them all. Before entries 4096, 8192, …
lie the sums so far, 8 bytes each. Only rANS has states: those of the coder's lanes at each block
that begins within one of rANS. Source: docs/wire-format.md, part A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.rans import rans_runs
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.wire.kinds import check_integer
from gcodec.wire.primitives import Reader, leb128

LOG2_RANS = rans_runs.LOG2_BLOCK  # that of the symbols of a block of rANS
WIDTHS = (1, 2, 4, 8)
STRIDE = 4096  # entries from one pair of sums to the next
SUM_NBYTES = 8


class Stride(NamedTuple):
    """Entries that follow one another.

    Attributes
    ----------
    first, size : int
        Blocks.
    sums, at : int
        Bytes where the sums before them begin, if there are any, and where they do.
    """

    first: int
    size: int
    sums: int
    at: int


class Part(NamedTuple):
    """A number of a section.

    Attributes
    ----------
    name : str
    block : int
    at, nbytes : int
        Where it begins, in bytes from the section's first, and how many it has.
    value : int
    """

    name: str
    block: int
    at: int
    nbytes: int
    value: int


def strides(count: int, width: int, columns: int) -> Iterator[Stride]:
    """Cut the entries of so many blocks, `columns` numbers of `width` bytes each."""
    at = 0
    for first in range(0, count, STRIDE):
        sums, size = at, min(STRIDE, count - first)
        at += SUM_NBYTES * columns if first else 0
        yield Stride(first, size, sums, at)
        at += size * columns * width


def width_of(columns: list[np.ndarray]) -> int:
    """Return the least width that holds all numbers."""
    most = max(int(column.max(initial=0)) for column in columns)
    return next(width for width in WIDTHS if most < 1 << 8 * width)


def entries_nbytes(count: int, width: int, columns: int) -> int:
    """Return the bytes of entries, sums included."""
    return columns * (width * count + SUM_NBYTES * (max(count - 1, 0) // STRIDE))


def within(count: int, log2_block: int) -> np.ndarray:
    """Tell which blocks begin within one of rANS."""
    found = np.ones(count, np.bool_)
    found[:: 1 << LOG2_RANS - log2_block] = False
    return found


def states_nbytes(count: int, log2_block: int) -> int:
    """Return the bytes of the states of these blocks."""
    heads = -(-count >> LOG2_RANS - log2_block)
    return 4 * LANES * (count - heads)


# Encoders add a table unasked for as many elements or more, with these blocks, where it takes at
# most one byte for so many of the payload.
MIN_ELEMENTS = 1 << 16
LOG2_BLOCK = 12
LOG2_STATES = 16  # where blocks have states, if that is not too much; else
_SHARE = 100

Blocks = Literal["elements", "values", "states"]

_LOG2 = {"elements": (0, 62), "values": (0, 62), "states": (rans_runs.LEAST_LOG2_RUN, LOG2_RANS)}


@dataclass(frozen=True, eq=False)
class SeekTable:
    """Where the blocks of a bit string begin.

    Parameters
    ----------
    log2_block : int
        Of the elements, or sent values, of a block; from 0 to 62.
    lengths : (count,) uint64 array
        Bits of each block.
    advances : (count,) uint64 array, optional
        Where blocks count sent values: elements from the last value before a block, or from
        before the tensor, to its last value.
    states : (count, 32) uint32 array, optional
        Of a rANS string: states of the lanes where blocks begin; of no meaning where a block of
        rANS does.

    Attributes
    ----------
    offsets : (count + 1,) int64 array
        Bits from the first coded one to the first of each block, and to the end of the string.
    positions : (count + 1,) int64 array or None
        Where blocks count sent values: the elements up to and with the last value before each
        block, and before the end.

    Raises
    ------
    ParameterError
        If the numbers cannot be those of a table.
    """

    log2_block: int
    lengths: np.ndarray
    advances: np.ndarray | None = None
    states: np.ndarray | None = None
    offsets: np.ndarray = field(init=False, repr=False)
    positions: np.ndarray | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Reject what no table can hold, and add up."""
        check_log2(self.log2_block, self.blocks)
        object.__setattr__(self, "offsets", _sums("lengths", self.lengths, self.lengths))
        positions = None
        if self.advances is not None:
            positions = _sums("advances", self.advances, self.lengths)
        object.__setattr__(self, "positions", positions)
        if self.states is not None:
            shape, given = (self.count, LANES), self.states
            if not (isinstance(given, np.ndarray) and given.dtype == np.uint32):
                raise ParameterError("states: must be a uint32 array")
            if given.shape != shape:
                raise ParameterError.of("states.shape", given.shape, f"{shape}")

    @classmethod
    def of(
        cls,
        log2_block: int,
        offsets: np.ndarray,
        positions: np.ndarray | None = None,
        states: np.ndarray | None = None,
    ) -> SeekTable:
        """Make the table whose attributes these are."""
        advances = None if positions is None else np.diff(positions).astype(np.uint64)
        return cls(log2_block, np.diff(offsets).astype(np.uint64), advances, states)

    @property
    def count(self) -> int:
        """Blocks."""
        return self.lengths.size

    @property
    def nbytes(self) -> int:
        """Bytes of the table in a header."""
        columns = self._columns()
        entries = entries_nbytes(self.count, width_of(columns), len(columns))
        states = 0 if self.states is None else states_nbytes(self.count, self.log2_block)
        return 2 + len(leb128(self.count)) + entries + states

    @property
    def blocks(self) -> Blocks:
        """What the blocks count; of "states", symbols of a rANS string."""
        if self.states is not None:
            return "states"
        return "elements" if self.advances is None else "values"

    def _columns(self) -> list[np.ndarray]:
        return [self.lengths] if self.advances is None else [self.lengths, self.advances]

    def to_bytes(self) -> bytes:
        """Return the section of a header."""
        columns = self._columns()
        width = width_of(columns)
        entries = np.stack(columns, axis=1).astype(f"<u{width}")
        sums = [s for s in (self.offsets, self.positions) if s is not None]
        parts = [bytes([self.log2_block, width]), leb128(self.count)]
        for first, size, *_ in strides(self.count, width, len(columns)):
            if first:
                parts += [int(s[first]).to_bytes(SUM_NBYTES, "little") for s in sums]
            parts.append(entries[first : first + size].tobytes())
        if self.states is not None:
            sent = self.states[within(self.count, self.log2_block)]
            parts.append(sent.astype("<u4").tobytes())
        return b"".join(parts)

    def check(self, blocks: Blocks | None, n: int, nbits: int) -> None:
        """Raise `Corrupt` if this can be no table of a payload, as far as that can be told unread.

        Parameters
        ----------
        blocks : str or None
            The codec's `seek_blocks`.
        n : int
            The codec's `seek_count`.
        nbits : int
            Bits of the payload.
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
        # Each value is an element of its own.
        full = self.advances[:-1] >= np.uint64(1 << self.log2_block)
        if not full.all() or not self.advances[-1]:
            raise Corrupt("the seek table has a block of fewer elements than values")
        if self.positions[-1] > n:
            raise Corrupt(f"the seek table passes the {n} elements")

    def must_cover(self, nbits: int) -> None:
        """Raise `Corrupt` unless the blocks add up to the `nbits` bits of the string."""
        if self.offsets[-1] != nbits:
            raise Corrupt(f"the seek table has {self.offsets[-1]} bits, the string {nbits}")


def refuse_table(seek: SeekTable | None) -> None:
    """Raise `Corrupt` if there is a table, though the payload codes nothing that has blocks."""
    if seek is not None:
        raise Corrupt(f"the seek table has {seek.count} blocks, the payload none")


class Section(NamedTuple):
    """A table as it lies in a header, its entries not looked at.

    Attributes
    ----------
    log2_block, width, number : int
    entries, states : memoryview
    blocks : {"elements", "values", "states"}
        What its blocks count.
    """

    log2_block: int
    width: int
    number: int
    entries: memoryview
    states: memoryview
    blocks: Blocks

    @classmethod
    def take(cls, reader: Reader, blocks: Blocks) -> Section:
        """Take the section that comes next, for a codec whose `seek_blocks` is `blocks`."""
        start = reader.at
        log2_block, width = reader.uint(1), reader.uint(1)
        if not _is_log2(log2_block, blocks):
            raise Corrupt(f"the seek table has blocks of 2^{log2_block}", offset=start)
        if width not in WIDTHS:
            raise Corrupt(f"the seek table has entries of {width} bytes", offset=start + 1)
        number = reader.leb128()
        columns = 2 if blocks == "values" else 1
        entries = reader.take(entries_nbytes(number, width, columns))
        states = reader.take(states_nbytes(number, log2_block) if blocks == "states" else 0)
        return cls(log2_block, width, number, entries, states, blocks)

    def table(self, n: int) -> SeekTable:
        """Return the table, which must not contradict itself; memory is bounded by n.

        `n` is the codec's `seek_count`.

        Raises
        ------
        Corrupt
        """
        _check_count(self.number, self.log2_block, self.blocks, n)
        columns = 2 if self.blocks == "values" else 1
        numbers = np.empty((columns, self.number), np.uint64)
        marks = np.empty((columns, (self.number - 1) // STRIDE), np.uint64)
        for first, size, sums, at in strides(self.number, self.width, columns):
            if first:
                marks[:, first // STRIDE - 1] = np.frombuffer(self.entries, "<u8", columns, sums)
            part = np.frombuffer(self.entries, f"<u{self.width}", size * columns, at)
            numbers[:, first : first + size] = part.reshape(size, columns).T
        if self.width != width_of(list(numbers)):
            raise Corrupt("the seek table has wider entries than it needs")
        try:
            advances = numbers[1] if columns == 2 else None
            table = SeekTable(self.log2_block, numbers[0], advances, self._states())
        except ParameterError as error:
            raise Corrupt(f"the seek table adds up to too much: {error}") from None
        for own, found in zip((table.offsets, table.positions), marks, strict=False):
            if own is not None and not np.array_equal(
                own[STRIDE:-1:STRIDE].view(np.uint64), found
            ):
                raise Corrupt("the seek table contradicts its own sums")
        return table

    def parts(self) -> Iterator[Part]:
        """Return the numbers behind those of the table itself, one by one, as they lie."""
        columns = ("length", "advance") if self.blocks == "values" else ("length",)
        head = 2 + len(leb128(self.number))
        for first, size, sums, at in strides(self.number, self.width, len(columns)):
            for k in range(first > 0 and len(columns)):
                here = sums + SUM_NBYTES * k
                value = int.from_bytes(self.entries[here : here + SUM_NBYTES], "little")
                yield Part(f"sum of {columns[k]}s", first, head + here, SUM_NBYTES, value)
            for k in range(size * len(columns)):
                here = at + self.width * k
                value = int.from_bytes(self.entries[here : here + self.width], "little")
                block, column = divmod(k, len(columns))
                yield Part(columns[column], first + block, head + here, self.width, value)
        head += len(self.entries)
        told = within(self.number, self.log2_block) if self.states else np.empty(0, np.bool_)
        for k, block in enumerate(np.flatnonzero(told).tolist()):
            for lane in range(LANES):
                here = 4 * (LANES * k + lane)
                value = int.from_bytes(self.states[here : here + 4], "little")
                yield Part(f"state of lane {lane}", block, head + here, 4, value)

    def _states(self) -> np.ndarray | None:
        if self.blocks != "states":
            return None
        states = np.zeros((self.number, LANES), np.uint32)
        sent = np.frombuffer(self.states, "<u4").reshape(-1, LANES)
        states[within(self.number, self.log2_block)] = sent
        return states


def worthwhile(table: SeekTable, n: int, nbits: int) -> bool:
    """Tell whether an encoder adds a table unasked to n elements in a payload of `nbits` bits."""
    return table.count >= 2 and table.nbytes <= most_nbytes(n, -(-nbits // 8))


def first_worthwhile(n: int, nbits: int, *tables: SeekTable) -> SeekTable | None:
    """Return the first table that is; see `worthwhile`."""
    return next((table for table in tables if worthwhile(table, n, nbits)), None)


def usual_log2s(blocks: Blocks) -> tuple[int, ...]:
    """Return the sizes of blocks that an encoder tries, in order, as powers of 2."""
    return (LOG2_STATES, LOG2_RANS) if blocks == "states" else (LOG2_BLOCK,)


def most_nbytes(n: int, payload_nbytes: int) -> int:
    """Return the most bytes of a table that an encoder adds unasked."""
    return payload_nbytes // _SHARE if n >= MIN_ELEMENTS else 0


def check_log2(log2_block: object, blocks: Blocks) -> int:
    """Return the log2 of a block's size, or raise `ParameterError`."""
    least, most = _LOG2[blocks]
    allowed = f"an integer from {least} to {most}"
    return check_integer("log2_block", log2_block, least, most, allowed)


def _is_log2(log2_block: int, blocks: Blocks) -> bool:
    least, most = _LOG2[blocks]
    return least <= log2_block <= most


def _check_count(count: int, log2_block: int, blocks: Blocks, n: int) -> None:
    if blocks != "elements":
        # All blocks but the last are full, and no element is sent twice.
        fits = count >= 1 and ((count - 1) << log2_block) < n
    else:
        fits = count == -(-n >> log2_block) and count >= 1
    if not fits:
        raise Corrupt(f"the seek table has {count} blocks of 2^{log2_block} for {n} elements")


def _sums(name: str, values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return the sums before each value and behind the last, as int64."""
    array = isinstance(values, np.ndarray) and values.dtype == np.uint64 and values.ndim == 1
    if not array or values.size != like.size:
        raise ParameterError(f"{name}: must be a flat uint64 array, one number for each block")
    sums = np.zeros(values.size + 1, np.uint64)
    np.cumsum(values, out=sums[1:])
    # A sum that wraps is below the one before it.
    if sums[-1] >> np.uint64(63) or (sums[1:] < sums[:-1]).any():
        raise ParameterError(f"{name}: must add up to less than 2**63")
    sums.flags.writeable = False
    return sums.view(np.int64)
