"""Strings that have a word for each element on a device.

See `gcodec.kernels.prefix.dense_string`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import silent_of
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix.codewords_cuda import (
    NO_ERROR,
    Words,
    has_room,
    raise_status,
    read_tables,
    rule_of,
)
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, Leading, note
from gcodec.runtime.device import Device

_THREADS = 256
TILE = 16 * _THREADS  # symbols that a block of threads writes
_FEW = 1 << 14  # blocks that are read by few threads together, so that all processors have some
_NONE = np.empty(0, np.uint64)

Written = PrefixCode | TableCode | Words


class Measured(NamedTuple):
    """A string whose length a device knows, and which is to be written.

    Attributes
    ----------
    coded : tuple
        What kernels are told of symbols and words.
    sums : (tiles + 4,) int64 array on the device
        Bits of nothing, of the lead, with the head, and with each tile; the first symbol that has
        no word. Nothing is written where there are no bits in all.
    every : int
    most : int or None
        Bits that there may be; None where that is not known.
    """

    arguments: tuple[Any, ...]
    sums: Any
    every: int
    most: int | None

    @classmethod
    def of(
        cls,
        code: Written,
        symbols: Any,
        dtype: np.dtype[Any],
        coded: CodedMask,
        every: int,
        lead: int,
        head: Any,
    ) -> Measured:
        """Measure a string behind a lead of bytes and the bits of a head."""
        if every % TILE:
            raise ParameterError.of("every", every, f"a multiple of {TILE}")
        device, n, tiles = device_with(symbols), coded.n, -(-coded.n // TILE)
        words = Words.of(device, code)
        part = symbols.view(np.uint8), np.int32(dtype.itemsize), np.int64(n)
        arguments = *part, *silence(device, coded), *words[:-1]
        lengths = device.empty(2 + tiles, np.int64)
        lengths[:1], lengths[1:2] = 8 * lead, head.words if type(head) is Deferred else head
        sums = device.empty(2 + tiles + 2, np.int64)
        sums[-1:] = NO_ERROR
        told = lengths[2:], sums[-1:]
        device.launch("prefix_write", "measure_words", tiles, _THREADS, *arguments, *told)
        sums_before(device, lengths, sums[:-1])
        return cls(arguments, sums, every, None if words.longest is None else n * words.longest)

    @property
    def end(self) -> Any:
        """The word of all bits."""
        return self.sums[-2:-1]

    def told(self) -> tuple[Deferred, Deferred]:
        """Return the bits of all, and those before blocks and behind the last."""
        device, step = device_with(self.sums), self.every // TILE
        nbits = Deferred(device, self.sums, lambda found: int(found[-2]), (self.end, 1, 0))
        return nbits, Deferred(device, self.sums, lambda found: _starts(found[2:-1], step))

    def put(self, out: Any) -> None:
        """Write the string to words that are zero but for lead and head."""
        where = self.sums[2:-1], out, np.int64(out.size)
        tiles = self.sums.size - 4
        device = device_with(out)
        device.launch("prefix_write", "write_words", tiles, _THREADS, *self.arguments, *where)


def write(
    code: Written,
    symbols: Any,
    dtype: np.dtype[Any],
    coded: CodedMask,
    every: int,
    lead: int,
    head: tuple[Any, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """Write the string of a tensor, given the (n,) symbols of all elements.

    A head that only the device knows is a `Leading`, and its bits are a `Deferred`. `every` must
    be a multiple of 4096. The bytes stay on the device; so does the rest where there is room for
    the longest string that there may be.

    Raises
    ------
    ParameterError
        If a table has no word for a symbol.
    """
    device = device_with(symbols)
    front, first = head or (_NONE.view(np.uint8), 0)
    front = front.array if isinstance(front, Leading) else device.to_device(front)
    string = Measured.of(code, symbols, dtype, coded, every, lead, first)
    nbits: Any
    starts: Any
    nbits, starts = string.told()
    most = None if string.most is None else string.most + 8 * (lead + front.size)
    if most is None or not has_room(most, coded.n):
        found = device.to_host(string.sums)
        starts, most = starts.tell(found), nbits.tell(found)
        nbits = most
    if isinstance(code, TableCode):
        note(device, string.sums[-1:], _refuse_missing)
    out = device.zeros(-(-most // 32), np.uint32)
    if front.size:
        out.view(np.uint8)[lead : lead + front.size] = front
    string.put(out)
    data = out.view(np.uint8)
    return data if type(nbits) is Deferred else data[: -(-most // 8)], nbits, starts


def _refuse_missing(status: np.ndarray) -> None:
    if status[0] != NO_ERROR:
        raise ParameterError(f"a symbol has no word: that of element {status[0]}")


def _starts(sums: np.ndarray, step: int) -> np.ndarray:
    """Return the bits before blocks of so many tiles, and of all, from the first coded one on."""
    offsets: np.ndarray = np.append(sums[:-1:step], sums[-1]) - sums[0]
    return offsets


def read(
    code: PrefixCode | TableCode,
    data: Any,
    first: int,
    end: int,
    coded: CodedMask,
    every: int,
    offsets: np.ndarray | None,
    take: Callable[[int, Any, np.ndarray], None],
) -> Any:
    """Read the string of a tensor; see `gcodec.kernels.prefix.dense_string.read`.

    `take` gets all symbols at once, of the least type that holds those of the code, and none
    apart. Without offsets, one thread reads all; those that it finds stay on the device.
    """
    device = device_with(data)
    blocks = -(-coded.n // every)
    if not blocks:
        return np.zeros(1, np.int64)
    known = np.zeros(blocks + 1, np.int64) if offsets is None else offsets
    starts = device.to_device(np.append(known, NO_ERROR))
    dtype = np.min_scalar_type(code.top)
    symbols = device.empty(coded.n, dtype)
    threads, chained = 32 if blocks <= _FEW else 128, offsets is not None
    grid = -(-blocks // threads) if chained else 1
    end = min(end, 8 * data.size)
    device.launch(
        *("prefix_read", "read_words", grid, threads),
        *(data, np.int64(data.size), np.int64(end), starts[:-1], np.int64(first)),
        *(np.int64(coded.n), np.int64(every), np.int32(chained), *silence(device, coded)),
        *(*read_tables(device, code), *rule_of(code), np.uint64(code.top)),
        *(np.int32(dtype.itemsize), symbols.view(np.uint8), starts[-1:]),
    )
    note(device, starts[-1:], lambda told: raise_status(int(told[0]), chained))
    take(0, symbols, _NONE)
    return known if chained else starts[:-1]


def silence(device: Device, coded: CodedMask) -> tuple[Any, np.int64]:
    """Return which buckets are silent, and how large they are; 0 where none is."""
    if coded.silent is None:
        return device.empty(0, np.uint8), np.int64(0)
    return silent_of(device, coded), np.int64(coded.bucket)
