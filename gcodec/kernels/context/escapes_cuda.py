"""Launchers of escapes.cu; see `gcodec.kernels.context.escapes`."""

from __future__ import annotations

from functools import partial

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed, listed_later
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred

_SHARE, _LEAST = 1 << 4, 1 << 14  # a list has room for 1/_SHARE of the symbols, and _LEAST more


def symbols_from(symbols: Array, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that are `least` or more."""
    return listed(device_with(symbols), partial(_list_from, symbols, least))


def symbols_beyond(symbols: Array, least: int) -> Deferred:
    """Find the symbols that are `least` or more, without waiting for the device."""
    room = min(symbols.size, _LEAST + symbols.size // _SHARE)
    return listed_later(device_with(symbols), partial(_list_from, symbols, least), room)


def _list_from(symbols: Array, least: int, out: Array, room: np.int64) -> None:
    device, n = device_with(symbols), symbols.size
    arguments = *_any_width(symbols), np.int64(n), np.uint32(least), out, room
    device.launch("escapes", "list_from", striding_blocks(n), THREADS, *arguments)


def elements_from(x: Array, symbols: Array, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the elements whose symbols are `least` or more."""
    device, n = device_with(symbols), symbols.size

    def launch(out: Array, room: np.int64) -> None:
        arguments = x.view(np.uint32), symbols, np.int64(n), np.uint32(least), out, room
        device.launch("escapes", "list_elements", striding_blocks(n), THREADS, *arguments)

    places, bits = listed(device, launch)
    return places, bits.astype(np.uint32).view(np.float32)


def check_escapes(
    symbols: Array, places: np.ndarray, values: np.ndarray, least: int, most: int
) -> tuple[Deferred, Deferred]:
    """Check the escapes and the largest of the other symbols."""
    device, n, count = device_with(symbols), symbols.size, places.size
    counts = device.zeros(3, np.uint64)
    arguments = symbols, np.int64(n), np.uint32(least), np.uint32(most), counts[:2]
    grid = striding_blocks(n, per_thread=16)
    device.launch("escapes", "count_escapes", grid, THREADS, *arguments)
    expected = device.to_device(places), device.to_device(values), np.int64(count)
    grid = striding_blocks(count)
    device.launch(
        "escapes", "count_equal", grid, THREADS, symbols, np.int64(n), *expected, counts[2:]
    )
    equal = Deferred(device, counts, lambda words: bool(words[0] == words[2] == count))
    return equal, Deferred(device, counts[1:2], lambda words: not words[0])


def largest(symbols: Array) -> int:
    """Return the largest symbol."""
    device, n = device_with(symbols), symbols.size
    top, grid = device.zeros(1, np.uint32), striding_blocks(n, per_thread=16)
    device.launch("escapes", "largest_symbol", grid, THREADS, symbols, np.int64(n), top)
    return int(device.to_host(top)[0])


def cut_off(symbols: Array, out: Array) -> None:
    """Write symbols as uint8, limited to the escape symbol."""
    n = symbols.size
    arguments = *_any_width(symbols), np.int64(n), out
    device_with(symbols).launch("escapes", "cut_off", striding_blocks(n), THREADS, *arguments)


def _any_width(symbols: Array) -> tuple[Array, np.int32]:
    """Return the bytes of symbols, and the bytes of one symbol."""
    return symbols.view(np.uint8), np.int32(symbols.itemsize)
