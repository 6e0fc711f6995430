"""Symbols that stand for others, which are told beside: found, made, and looked at.

There are few of them. Their places, and what they stand for, are on the host, wherever the symbols
are.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.device import twinned
from gcodec.kernels.scalar_quantize import ESCAPE


@twinned("escapes")
def symbols_from(symbols: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols of (n,) unsigned ones that are `least` or more.

    Returns
    -------
    places : (k,) int64 array
        Rising.
    values : (k,) int64 array
    """
    places = np.flatnonzero(symbols >= least)
    return places, symbols[places].astype(np.int64)


@twinned("escapes")
def elements_from(x: np.ndarray, symbols: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the (n,) float32 elements whose uint8 symbols are `least` or more.

    Returns
    -------
    places : (k,) int64 array
        Rising.
    elements : (k,) float32 array
    """
    places = np.flatnonzero(symbols >= least)
    return places, x[places]


@twinned("escapes")
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
    alike = count == places.size and bool((symbols[places] == values).all())
    return alike, most >= least - 1 or np.count_nonzero(symbols > most) == count


@twinned("escapes")
def largest(symbols: np.ndarray) -> int:
    """Return the largest of (n,) uint8 symbols, n > 0."""
    return int(symbols.max())


@twinned("escapes")
def cut_off(symbols: np.ndarray, out: np.ndarray) -> None:
    """Write (n,) unsigned symbols as uint8, those above `ESCAPE` as that."""
    np.minimum(symbols, ESCAPE, out=out, casting="unsafe")
