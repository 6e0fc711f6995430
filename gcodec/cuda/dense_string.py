"""Strings that have a word for each element on a device; see `gcodec.kernels.dense_string`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.cuda.codewords import (
    NO_ERROR,
    Written,
    has_room,
    most_nbits,
    raise_status,
    read_tables,
    rule_of,
    write_singles,
)
from gcodec.cuda.grid import device_with
from gcodec.cuda.live import silent_of
from gcodec.cuda.scan import sums_before
from gcodec.errors import ParameterError
from gcodec.kernels.device import Device
from gcodec.kernels.live import Live
from gcodec.kernels.prefix_table import PrefixCode
from gcodec.kernels.table_code import TableCode
from gcodec.scalars import Later, Leading, note

_THREADS = 256
TILE = 16 * _THREADS  # symbols that a block of threads writes
_FEW = 1 << 14  # blocks that are read by few threads together, so that all processors have some
_NONE = np.empty(0, np.uint64)


def write(
    code: Written,
    symbols: Any,
    dtype: np.dtype[Any],
    live: Live,
    every: int,
    lead: int,
    head: tuple[Any, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """Write the string of a tensor, given the (n,) symbols of all elements.

    A head that only the device knows is a `Leading`, and its bits are a `Later`. `every` must be a
    multiple of 4096. The bytes stay on the device; so does the rest where there is room for the
    longest string that there may be.

    Raises
    ------
    ParameterError
        If a table has no word for a symbol.
    """
    if every % TILE:
        raise ParameterError.of("every", every, f"a multiple of {TILE}")
    device = device_with(symbols)
    n, tiles = live.n, -(-live.n // TILE)
    coded = (
        *(symbols.view(np.uint8), np.int32(dtype.itemsize), np.int64(n), *silence(device, live)),
        *(write_singles(device, code), *rule_of(code)),
    )
    front, first = head or (_NONE.view(np.uint8), 0)
    front = front.array if isinstance(front, Leading) else device.to_device(front)
    lengths = device.empty(2 + tiles, np.int64)  # of the lead and the head, too
    lengths[:1], lengths[1:2] = 8 * lead, first.words if type(first) is Later else first
    sums = device.empty(2 + tiles + 2, np.int64)
    sums[-1:] = NO_ERROR
    grid = tiles, _THREADS
    device.launch("prefix_write", "measure_words", *grid, *coded, lengths[2:], sums[-1:])
    sums_before(device, lengths, sums[:-1])
    starts = Later(device, sums, lambda found: _starts(found[2:-1], every // TILE))
    longest = most_nbits(code)
    most = None if longest is None else 8 * (lead + front.size) + n * longest
    nbits: Any
    if most is not None and has_room(most, n):
        nbits = Later(device, sums, lambda found: int(found[-2]), (sums[-2:-1], 1, 0))
    else:
        found = device.to_host(sums)
        if found[-1] != NO_ERROR:
            raise ParameterError(f"a symbol has no word: that of element {found[-1]}")
        most = nbits = int(found[-2])
        starts = starts.tell(found)
    out = device.zeros(-(-most // 32), np.uint32)
    if front.size:
        out.view(np.uint8)[lead : lead + front.size] = front
    where = sums[2:-1], out, np.int64(out.size)
    device.launch("prefix_write", "write_words", *grid, *coded, *where)
    data = out.view(np.uint8)
    return data if type(nbits) is Later else data[: -(-most // 8)], nbits, starts


def _starts(sums: np.ndarray, step: int) -> np.ndarray:
    """Return the bits before blocks of so many tiles, and of all, from the first coded one on."""
    offsets: np.ndarray = np.append(sums[:-1:step], sums[-1]) - sums[0]
    return offsets


def read(
    code: PrefixCode | TableCode,
    data: Any,
    first: int,
    end: int,
    live: Live,
    every: int,
    offsets: np.ndarray | None,
    take: Callable[[int, Any, np.ndarray], None],
) -> Any:
    """Read the string of a tensor; see `gcodec.kernels.dense_string.read`.

    `take` gets all symbols at once, of the least type that holds those of the code, and none
    apart. Without offsets, one thread reads all; those that it finds stay on the device.
    """
    device = device_with(data)
    blocks = -(-live.n // every)
    if not blocks:
        return np.zeros(1, np.int64)
    known = np.zeros(blocks + 1, np.int64) if offsets is None else offsets
    starts = device.to_device(np.append(known, NO_ERROR))
    dtype = np.min_scalar_type(code.top)
    symbols = device.empty(live.n, dtype)
    threads, chained = 32 if blocks <= _FEW else 128, offsets is not None
    grid = -(-blocks // threads) if chained else 1
    end = min(end, 8 * data.size)
    device.launch(
        *("prefix_read", "read_words", grid, threads),
        *(data, np.int64(data.size), np.int64(end), starts[:-1], np.int64(first)),
        *(np.int64(live.n), np.int64(every), np.int32(chained), *silence(device, live)),
        *(*read_tables(device, code), *rule_of(code), np.uint64(code.top)),
        *(np.int32(dtype.itemsize), symbols.view(np.uint8), starts[-1:]),
    )
    note(device, starts[-1:], lambda told: raise_status(int(told[0]), chained))
    take(0, symbols, _NONE)
    return known if chained else starts[:-1]


def silence(device: Device, live: Live) -> tuple[Any, np.int64]:
    """Return which buckets are silent, and how large they are; 0 where none is."""
    if live.silent is None:
        return device.empty(0, np.uint8), np.int64(0)
    return silent_of(device, live), np.int64(live.bucket)
