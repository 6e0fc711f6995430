"""Launchers of escapes.cu; see `gcodec.kernels.context.escapes`."""

from __future__ import annotations

from functools import partial

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed, listed_later
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import byte_view, device_with, launch_striding
from gcodec.runtime.deferred import Deferred


def symbols_from(symbols: Array, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that are `least` or more."""
    return listed(device_with(symbols), partial(_list_from, symbols, least))


def escaped(symbols: Array) -> Deferred:
    """Find the symbols that are `ESCAPE` or more, without waiting for the device."""
    return listed_later(device_with(symbols), partial(_list_from, symbols, ESCAPE), symbols.size)


def _list_from(symbols: Array, least: int, out: Array, room: int) -> None:
    device, n = device_with(symbols), symbols.size
    launch_striding(device, "escapes", "list_from", n, *byte_view(symbols), n, least, out, room)


def elements_from(x: Array, symbols: Array, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the elements whose symbols are `least` or more."""
    device, n = device_with(symbols), symbols.size
    inputs = x, symbols, n, least
    launch = partial(launch_striding, device, "escapes", "list_elements", n, *inputs)
    places, bits = listed(device, launch)
    return places, bits.astype(np.uint32).view(np.float32)


def check_escapes(
    symbols: Array, places: np.ndarray, values: np.ndarray, least: int, most: int
) -> tuple[Deferred, Deferred]:
    """Check the escapes and the largest of the other symbols."""
    device, n, count = device_with(symbols), symbols.size, places.size
    counts = device.zeros(3, np.uint64)
    arguments = symbols, n, least, most, counts[:2]
    launch_striding(device, "escapes", "count_escapes", n, *arguments, per_thread=16)
    expected = device.to_device(places), device.to_device(values), count
    inputs = symbols, n, *expected
    launch_striding(device, "escapes", "count_equal", count, *inputs, counts[2:])
    equal = Deferred(device, counts, lambda words: bool(words[0] == words[2] == count))
    return equal, Deferred(device, counts[1:2], lambda words: not words[0])


def largest(symbols: Array) -> int:
    """Return the largest symbol."""
    device, n = device_with(symbols), symbols.size
    top = device.zeros(1, np.uint32)
    launch_striding(device, "escapes", "largest_symbol", n, symbols, n, top, per_thread=16)
    return int(device.to_host(top)[0])


def cut_off(symbols: Array, out: Array) -> None:
    """Write symbols as uint8, limited to the escape symbol."""
    device, n = device_with(symbols), symbols.size
    launch_striding(device, "escapes", "cut_off", n, *byte_view(symbols), n, out)
