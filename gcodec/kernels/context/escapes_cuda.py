"""Launchers of escapes.cu; see `gcodec.kernels.context.escapes`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed, listed_later
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred

_EVERY, _LEAST = 1 << 4, 1 << 14  # elements to one of them, for which there is room; and of few


def symbols_from(symbols: Any, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that are `least` or more."""
    return listed(device_with(symbols), partial(_list_from, symbols, least))


def symbols_beyond(symbols: Any, least: int) -> Deferred:
    """Find them, to be told with other things."""
    room = min(symbols.size, _LEAST + symbols.size // _EVERY)
    return listed_later(device_with(symbols), partial(_list_from, symbols, least), room)


def _list_from(symbols: Any, least: int, out: Any, room: np.int64) -> None:
    device, n = device_with(symbols), symbols.size
    what = *_any_width(symbols), np.int64(n), np.uint32(least)
    device.launch("escapes", "list_from", striding_blocks(n), THREADS, *what, out, room)


def elements_from(x: Any, symbols: Any, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the elements whose symbols are `least` or more."""
    device, n = device_with(symbols), symbols.size
    what = x.view(np.uint32), symbols, np.int64(n), np.uint32(least)

    def launch(out: Any, room: np.int64) -> None:
        device.launch("escapes", "list_elements", striding_blocks(n), THREADS, *what, out, room)

    places, bits = listed(device, launch)
    return places, bits.astype(np.uint32).view(np.float32)


def are_right(
    symbols: Any, places: np.ndarray, values: np.ndarray, least: int, most: int
) -> tuple[Deferred, Deferred]:
    """Tell if escapes are those at places, and if others are at most so large."""
    device, n, some = device_with(symbols), symbols.size, places.size
    counts, known = device.zeros(3, np.uint64), (symbols, np.int64(n))
    bounds, grid = (np.uint32(least), np.uint32(most)), striding_blocks(n, per_thread=16)
    device.launch("escapes", "count_escapes", grid, THREADS, *known, *bounds, counts[:2])
    told = device.to_device(places), device.to_device(values), np.int64(some)
    grid = striding_blocks(some)
    device.launch("escapes", "count_alike", grid, THREADS, *known, *told, counts[2:])
    alike = Deferred(device, counts, lambda told: bool(told[0] == told[2] == some))
    return alike, Deferred(device, counts[1:2], lambda told: not told[0])


def largest(symbols: Any) -> int:
    """Return the largest symbol."""
    device, n = device_with(symbols), symbols.size
    found, grid = device.zeros(1, np.uint32), striding_blocks(n, per_thread=16)
    device.launch("escapes", "largest_symbol", grid, THREADS, symbols, np.int64(n), found)
    return int(device.to_host(found)[0])


def cut_off(symbols: Any, out: Any) -> None:
    """Write symbols as uint8."""
    n = symbols.size
    arguments = *_any_width(symbols), np.int64(n), out
    device_with(symbols).launch("escapes", "cut_off", striding_blocks(n), THREADS, *arguments)


def _any_width(symbols: Any) -> tuple[Any, np.int32]:
    return symbols.view(np.uint8), np.int32(symbols.itemsize)
