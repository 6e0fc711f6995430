"""Entropies and scales of bytes against their formulas in NumPy and Python."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.entropy import rans
from gcodec.entropy.context.byte_scales import Sample
from gcodec.entropy.rans import entropy_nbits
from gcodec.kernels.context.byte_sums import rounded_scales


def weighted(numbers: list[int]) -> int:
    """Return the sum of c·log2(c), by integers of Python."""
    total = 0
    for number in numbers:
        shift = max(number.bit_length() - 15, 0)
        total += number * (int(rans.log2_table()[number >> shift]) + (shift << rans.POINT))
    return total >> rans.POINT


def test_entropy_equals_its_formula() -> None:
    rng = np.random.default_rng(1)
    for k in range(300):
        shape = (256,) if k % 2 else (int(rng.integers(1, 5)), 256)
        counts = rng.integers(0, 1 << int(rng.integers(1, 40)), shape)
        counts *= rng.random(shape) < rng.random()
        totals = np.atleast_2d(counts).sum(axis=1)
        expected = weighted(totals[totals > 0].tolist()) - weighted(counts[counts > 0].tolist())
        assert entropy_nbits(counts) == expected
        assert entropy_nbits(np.asfortranarray(counts)) == expected
    assert entropy_nbits(np.zeros(256, np.int64)) == 0


def test_scales_equal_their_formula() -> None:
    rng = np.random.default_rng(2)
    for quantum in (1, 2, 4, 8):
        for one in (40, 64):
            n = int(rng.integers(1, 300))
            counts = rng.integers(0, 1 << int(rng.integers(1, 20)), n) * (rng.random(n) < 0.9)
            sums = (counts * rng.random(n) * 255).astype(np.int64)
            unit = 1 if one == 40 else 8
            mean, factor = int(sums.sum()) / max(int(counts.sum()), 1), 4 / (unit * quantum)
            quanta = (sums / np.maximum(counts, 1) - mean) * factor
            scales = np.clip(one + quantum * np.floor(quanta + 0.5), quantum, 127 & -quantum)
            scales[counts == 0] = 0
            result = rounded_scales((sums, counts), quantum, one, unit)
            assert np.array_equal(result, scales.astype(np.uint8))


@pytest.mark.parametrize(("unit", "quantum"), [(1, 4), (8, 1)])
def test_bytes_of_octaves_are_lowered_by_scales_of_octaves(unit: int, quantum: int) -> None:
    rng = np.random.default_rng(3)
    exponents = 127 / unit + np.repeat(rng.uniform(-4, 4, 512), 128) + rng.normal(0, 1, 512 * 128)
    symbols = np.floor(unit * exponents).astype(np.uint8)
    plain = entropy_nbits(np.bincount(symbols, minlength=256))
    lowering = Sample(symbols, 1.0, unit).lowering(symbols.shape, plain)
    assert lowering is not None
    scales = lowering.scales
    assert scales.layout == (128, 0, quantum)
    assert np.all(scales.rows % quantum == 0)
    assert np.unique(scales.rows).size > 4
    assert entropy_nbits(lowering.counts) + lowering.nbits < 0.9 * plain
