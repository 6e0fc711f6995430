"""Symbols at or above a threshold, such as escapes: lists of them, and checks.

Escapes are rare. Their positions and values are on the host, wherever the symbols are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels.bits.computed_symbols import NarrowSymbols
from gcodec.kernels.numeric.words import at_least, trailing_zeros
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

_FEW = 1 << 10  # positions that the first attempt has room for


def listed_positions(find: Callable[[np.ndarray], int], capacity: int) -> np.ndarray:
    """Return the positions that a kernel lists.

    Parameters
    ----------
    find : callable
        Writes as many positions as an int64 array has room for, and returns how many there are.
        It runs again if there are more.
    capacity : int
        Size of the first array.
    """
    places = np.empty(capacity, np.int64)
    count = find(places)
    if count > capacity:
        places = np.empty(count, np.int64)
        find(places)
    return places[:count]


@dispatched("gcodec.kernels.context.escapes_cuda")
def symbols_from(symbols: Any, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols of (n,) unsigned integers that are `least` or more.

    Returns
    -------
    places : (k,) int64 array
        Positions in increasing order.
    values : (k,) int64 array
    """
    if isinstance(symbols, NarrowSymbols):
        places, values = symbols.listed(least)
        return places, values.astype(np.int64)
    places = _places_from(symbols, least)
    return places, symbols[places].astype(np.int64)


@dispatched("gcodec.kernels.context.escapes_cuda")
def elements_from(x: np.ndarray, symbols: Any, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the (n,) float32 elements whose uint8 symbols are `least` or more.

    Returns
    -------
    places : (k,) int64 array
        Positions in increasing order.
    elements : (k,) float32 array
    """
    narrow = isinstance(symbols, NarrowSymbols)
    places = symbols.listed(least)[0] if narrow else _places_from(symbols, least)
    return places, x[places]


@dispatched("gcodec.kernels.context.escapes_cuda")
def check_escapes(
    symbols: np.ndarray, places: np.ndarray, values: np.ndarray, least: int, most: int
) -> tuple[bool, bool]:
    """Check the escapes and the largest of the other symbols.

    Parameters
    ----------
    symbols : (n,) uint8 array
    places : (k,) int64 array
        Positions of the escapes, increasing and below n.
    values : (k,) uint8 array
        Expected symbols at these positions, all of them escapes.
    least : int
        Smallest symbol that is an escape.
    most : int
        Largest symbol allowed elsewhere.

    Returns
    -------
    bool
        Whether exactly the symbols at `places` are escapes, and equal `values`.
    bool
        Whether no other symbol exceeds `most`.
    """
    count = _find_from(symbols, np.uint8(least), np.empty(0, np.int64))
    equal = count == places.size and symbols[places].tobytes() == values.tobytes()
    return equal, most >= least - 1 or np.count_nonzero(symbols > most) == places.size


@dispatched("gcodec.kernels.context.escapes_cuda")
def largest(symbols: np.ndarray) -> int:
    """Return the largest of (n,) uint8 symbols, n > 0."""
    return int(symbols.max())


@dispatched("gcodec.kernels.context.escapes_cuda")
def cut_off(symbols: np.ndarray, out: np.ndarray) -> None:
    """Write (n,) unsigned symbols as uint8, replacing those above `ESCAPE` by `ESCAPE`."""
    np.minimum(symbols, ESCAPE, out=out, casting="unsafe")


def _places_from(symbols: np.ndarray, least: int) -> np.ndarray:
    """Return the int64 positions of (n,) unsigned symbols that are `least` or more."""
    if symbols.dtype != np.uint8:
        return np.flatnonzero(symbols >= least)
    return listed_positions(lambda places: _find_from(symbols, np.uint8(least), places), _FEW)


@kernel("in uint8[], uint8, out int64[]")
def _find_from(symbols, least, places):
    # See `listed_positions`.
    count = 0
    for first in range(0, symbols.size, 64):
        mask = np.uint64(0)
        if first + 64 <= symbols.size:
            mask = at_least(symbols, first, least)
        else:
            for i in range(first, symbols.size):
                mask |= np.uint64(symbols[i] >= least) << np.uint64(i - first)
        while mask:  # seldom
            if count < places.size:
                places[count] = first + np.int64(trailing_zeros(mask))
            count += 1
            mask &= mask - np.uint64(1)
    return count
