"""Symbols that stand for others, which are told beside: found, made, and looked at.

There are few of them. Their places, and what they stand for, are on the host, wherever the symbols
are.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import bytes_at_least, trailing_zeros
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

_FEW = 1 << 10  # of them, for which there is room at first


@dispatched("gcodec.kernels.context.escapes_cuda")
def symbols_from(symbols: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols of (n,) unsigned ones that are `least` or more.

    Returns
    -------
    places : (k,) int64 array
        Rising.
    values : (k,) int64 array
    """
    places = _places_from(symbols, least)
    return places, symbols[places].astype(np.int64)


@dispatched("gcodec.kernels.context.escapes_cuda")
def elements_from(x: np.ndarray, symbols: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the (n,) float32 elements whose uint8 symbols are `least` or more.

    Returns
    -------
    places : (k,) int64 array
        Rising.
    elements : (k,) float32 array
    """
    places = _places_from(symbols, least)
    return places, x[places]


@dispatched("gcodec.kernels.context.escapes_cuda")
def are_right(
    symbols: np.ndarray, places: np.ndarray, values: np.ndarray, least: int, most: int
) -> tuple[bool, bool]:
    """Look at (n,) uint8 symbols.

    Parameters
    ----------
    symbols : (n,) uint8 array
    places : (k,) int64 array
        Rising, and below n.
    values : (k,) uint8 array
        What symbols must be there.
    least : int
        Of escapes.
    most : int
        The largest that others may be.

    Returns
    -------
    bool
        Whether symbols at places, and no others, are escapes, and those that they must be.
    bool
        Whether there is no other above `most`.
    """
    count = np.count_nonzero(symbols >= least)
    alike = count == places.size and (not count or bool((symbols[places] == values).all()))
    return alike, most >= least - 1 or np.count_nonzero(symbols > most) == count


@dispatched("gcodec.kernels.context.escapes_cuda")
def largest(symbols: np.ndarray) -> int:
    """Return the largest of (n,) uint8 symbols, n > 0."""
    return int(symbols.max())


@dispatched("gcodec.kernels.context.escapes_cuda")
def cut_off(symbols: np.ndarray, out: np.ndarray) -> None:
    """Write (n,) unsigned symbols as uint8, those above `ESCAPE` as that."""
    np.minimum(symbols, ESCAPE, out=out, casting="unsafe")


def _places_from(symbols: np.ndarray, least: int) -> np.ndarray:
    """Return where (n,) unsigned symbols are `least` or more, as int64."""
    if symbols.dtype != np.uint8:
        return np.flatnonzero(symbols >= least)
    places = np.empty(_FEW, np.int64)
    found = _find_from(symbols, np.uint8(least), places)
    if found > places.size:
        places = np.empty(found, np.int64)
        _find_from(symbols, np.uint8(least), places)
    return places[:found]


@kernel("in uint8[], uint8, out int64[]")
def _find_from(symbols, least, places):
    # Returned is how many there are; those that fit are told.
    found = 0
    for first in range(0, symbols.size, 64):
        mask = np.uint64(0)
        if first + 64 <= symbols.size:
            mask = bytes_at_least(symbols, first, least)
        else:
            for i in range(first, symbols.size):
                mask |= np.uint64(symbols[i] >= least) << np.uint64(i - first)
        while mask:  # seldom
            if found < places.size:
                places[found] = first + np.int64(trailing_zeros(mask))
            found += 1
            mask &= mask - np.uint64(1)
    return found
