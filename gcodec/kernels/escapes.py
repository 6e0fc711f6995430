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
def are_escapes(symbols: np.ndarray, places: np.ndarray, values: np.ndarray, least: int) -> bool:
    """Tell if of (n,) uint8 symbols those at places, and no others, are `least` or more.

    Parameters
    ----------
    symbols : (n,) uint8 array
    places : (k,) int64 array
        Rising, and below n.
    values : (k,) uint8 array
        What symbols must be there.
    least : int
    """
    alike: bool = (symbols[places] == values).all()
    return alike and np.count_nonzero(symbols >= least) == places.size


@twinned("escapes")
def largest(symbols: np.ndarray) -> int:
    """Return the largest of (n,) uint8 symbols, n > 0."""
    return int(symbols.max())


@twinned("escapes")
def cut_off(symbols: np.ndarray, out: np.ndarray) -> None:
    """Write (n,) unsigned symbols as uint8, those above `ESCAPE` as that."""
    np.minimum(symbols, ESCAPE, out=out, casting="unsafe")
