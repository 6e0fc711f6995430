"""Escapes in symbols, compared with their outliers."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.context.escapes import check_escapes


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_escapes_are_those_of_the_list(n: int, share: float) -> None:
    rng = np.random.default_rng(n)
    symbols = rng.integers(0, 253, n).astype(np.uint8)
    places = np.flatnonzero(rng.random(n) < share)
    values = rng.choice([253, 254], places.size).astype(np.uint8)
    symbols[places] = values
    top = symbols[symbols < 253].max(initial=0)
    assert check_escapes(symbols, places, values, 253, 254) == (True, True)
    assert check_escapes(symbols, places, values, 253, int(top)) == (True, True)
    if top:
        assert check_escapes(symbols, places, values, 253, int(top) - 1) == (True, False)
    for k in range(places.size):
        shorter = np.delete(places, k), np.delete(values, k)
        assert not check_escapes(symbols, *shorter, 253, 254)[0]
        other = values.copy()
        other[k] ^= 253 ^ 254
        assert not check_escapes(symbols, places, other, 253, 254)[0]
    for place in np.setdiff1d(np.arange(n), places):
        at = np.searchsorted(places, place)
        longer = np.insert(places, at, place), np.insert(values, at, symbols[place])
        assert not check_escapes(symbols, *longer, 253, 254)[0]
