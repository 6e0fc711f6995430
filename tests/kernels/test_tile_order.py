"""Sent elements of tiles in the order of the tensor, by NumPy's sort."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.codecs.sparseloco import Tiles
from gcodec.kernels.transform import tile_order


@pytest.mark.parametrize(
    ("shape", "chunk"), [((6, 10), 3), ((64, 96), 16), ((7, 35), 7), ((512, 768), 64), ((8, 8), 8)]
)
def test_elements_ascend(shape: tuple[int, int], chunk: int) -> None:
    rng, tiles = np.random.default_rng(1), Tiles.of(shape, chunk)
    for each in {1, 2, tiles.size // 2 + 1, tiles.size}:
        places = rng.permuted(np.tile(np.arange(tiles.size), (tiles.total, 1)), axis=1)
        inside = np.sort(places[:, :each], axis=1)
        positions = (inside + tiles.size * np.arange(tiles.total)[:, None]).reshape(-1)
        values = rng.standard_normal(positions.size, np.float32)
        assert tile_order.sends(positions, tiles.size, each)
        expected = tiles.elements(positions)
        order = np.argsort(expected)
        actual = tile_order.in_tensor(positions, values, tiles[1:], each)
        assert np.array_equal(actual[0], expected[order])
        assert np.array_equal(actual[1], values[order])


@pytest.mark.parametrize("wrong", [-1, 0, 40, 79, 81, 120, 2**62, -(2**62)])
def test_positions_of_other_tiles(wrong: int) -> None:
    """Each of three tiles of 40 elements has two positions."""
    positions = np.array([3, 39, 40, 79, 80, 119])
    assert tile_order.sends(positions, 40, 2)
    for at in range(positions.size):
        changed = positions.copy()
        changed[at] = wrong
        is_own = wrong // 40 == at // 2
        assert tile_order.sends(changed, 40, 2) == is_own
