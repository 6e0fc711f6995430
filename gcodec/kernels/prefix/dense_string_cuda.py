"""Strings with a word for each element, on a device; see `gcodec.kernels.prefix.dense_string`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import buckets_of
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.codewords_cuda import (
    NO_ERROR,
    TILE,
    Words,
    note_status,
    read_tables,
    reader_grid,
    rule_of,
    written,
)
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with
from gcodec.runtime.deferred import Deferred, LeadingBytes, fetch_later

_NONE = np.empty(0, np.uint64)
_SERIAL = 1 << 17  # words that one thread of a device reads

Written = PrefixCode | TableCode | Words


class Measured(NamedTuple):
    """A string that is measured on a device, but not written yet.

    Attributes
    ----------
    arguments : tuple
        Kernel arguments for symbols and words.
    sums : (tiles + 4,) int64 array on the device
        Sums of bits: 0, with the lead, with the head, and with each tile; then the first symbol
        that has no word. Setting the last sum to 0 prevents the string from being written.
    block_size : int
        Elements of a block.
    most : int or None
        Upper bound for the bits of the words; None if there is none.
    """

    arguments: tuple[object, ...]
    sums: Array
    block_size: int
    most: int | None

    @classmethod
    def of(
        cls,
        code: Written,
        symbols: Array,
        dtype: np.dtype[np.generic],
        coded: CodedMask,
        block_size: int,
        lead: int,
        head: int | Deferred,
    ) -> Measured:
        """Measure a string that follows a lead of bytes and the bits of a head."""
        if block_size % TILE:
            raise ParameterError.of("block_size", block_size, f"a multiple of {TILE}")
        device, n, tiles = device_with(symbols), coded.n, -(-coded.n // TILE)
        words = Words.of(device, code)
        part = symbols.view(np.uint8), dtype.itemsize, n
        arguments = *part, *buckets_of(device, coded), *words[:-1]
        lengths = device.empty(2 + tiles, np.int64)
        lengths[:1], lengths[1:2] = 8 * lead, head.words if isinstance(head, Deferred) else head
        sums = device.empty(2 + tiles + 2, np.int64)
        sums[-1:] = NO_ERROR
        results = lengths[2:], sums[-1:]
        device.launch("prefix_write", "measure_words", tiles, THREADS, *arguments, *results)
        sums_before(device, lengths, sums[:-1])
        most = None if words.longest is None else n * words.longest
        return cls(arguments, sums, block_size, most)

    @property
    def end(self) -> Array:
        """The total number of bits, as a (1,) array on the device."""
        return self.sums[-2:-1]

    def deferred_marks(self) -> tuple[Deferred, Deferred]:
        """Return the total number of bits, and the offsets of blocks."""
        device, step = device_with(self.sums), self.block_size // TILE

        def offsets(sums: np.ndarray) -> np.ndarray:
            bits = sums[2:-1]
            return np.append(bits[:-1:step], bits[-1]) - bits[0]

        nbits = Deferred(device, self.sums, lambda sums: int(sums[-2]), (self.end, 1, 0))
        return nbits, Deferred(device, self.sums, offsets)

    def put(self, out: Array) -> None:
        """Write the string to (words,) uint32 that are zero except for lead and head."""
        tiles, arguments = self.sums.size - 4, (*self.arguments, self.sums[2:-1], out, out.size)
        device_with(out).launch("prefix_write", "write_words", tiles, THREADS, *arguments)


def write(
    code: Written,
    symbols: Array,
    dtype: np.dtype[np.generic],
    coded: CodedMask,
    block_size: int,
    lead: int,
    head: tuple[np.ndarray | LeadingBytes, int | Deferred] | None = None,
) -> tuple[Array, int | Deferred, np.ndarray | Deferred]:
    """Write the string of a tensor; see `gcodec.kernels.prefix.dense_string.write`.

    `symbols` is the (n,) array of all symbols, and `block_size` a multiple of 4096. A head on the
    device is a `LeadingBytes`, and its number of bits a `Deferred`. The bytes stay on the device.
    Bits and offsets are `Deferred` if the device has room for the longest string.

    Raises
    ------
    ParameterError
        If a table has no word for a symbol.
    """
    device = device_with(symbols)
    front, front_nbits = head or (_NONE.view(np.uint8), 0)
    front = front.array if isinstance(front, LeadingBytes) else device.to_device(front)
    string = Measured.of(code, symbols, dtype, coded, block_size, lead, front_nbits)
    data, nbits, starts = written(string, coded.n, lead, front)
    if isinstance(code, TableCode):
        fetch_later(device, string.sums[-1:], _refuse_missing)
    return data, nbits, starts


def _refuse_missing(status: np.ndarray) -> None:
    if status[0] != NO_ERROR:
        raise ParameterError(f"a symbol has no word: that of element {status[0]}")


def read(
    code: PrefixCode | TableCode,
    data: Array,
    first: int,
    end: int,
    coded: CodedMask,
    block_size: int,
    offsets: np.ndarray | None,
    take: Callable[[int, Array, np.ndarray], None],
    out: Array | None = None,
) -> Array:
    """Read the string of a tensor; see `gcodec.kernels.prefix.dense_string.read`.

    `take` receives all symbols at once, in the least type that holds those of the code, and no
    large symbols apart. Without offsets, one thread reads the string, and the offsets that it
    writes stay on the device. For a long string, the host finds the offsets in much less time.
    """
    device = device_with(data)
    if offsets is None and coded.n > _SERIAL:
        place = device.to_host(data), first, end, coded.on_host()
        offsets = dense_string.read(code, *place, block_size, None, lambda *_: None)
    blocks = -(-coded.n // block_size)
    if not blocks:
        return np.zeros(1, np.int64)
    chained = offsets is not None
    offsets = np.zeros(blocks + 1, np.int64) if offsets is None else offsets
    starts = device.to_device(np.append(offsets, NO_ERROR))
    dtype = np.min_scalar_type(code.top)
    symbols = device.empty(coded.n, dtype) if out is None else out
    end = min(end, 8 * data.size)
    string = data, data.size, end, starts[:-1], first, coded.n, block_size, chained
    words = *buckets_of(device, coded), *read_tables(device, code), *rule_of(code), code.top
    results = dtype.itemsize, symbols.view(np.uint8), starts[-1:]
    grid = reader_grid(blocks, chained)
    device.launch("prefix_read", "read_words", *grid, *string, *words, *results)
    note_status(device, starts[-1:], chained)
    if out is None:
        take(0, symbols, _NONE)
    return offsets if chained else starts[:-1]
