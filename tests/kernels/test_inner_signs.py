"""Bit patterns of floats whose sign lies below the first bit of the mantissa."""

from __future__ import annotations

import numpy as np
import pytest
from reference import lossless as reference

from gcodec.kernels.bits.inner_signs import move_signs_in, move_signs_out


@pytest.mark.parametrize("base", [0, 1, 130, 255])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_patterns_are_those_of_the_reference(dtype: type[np.unsignedinteger], base: int) -> None:
    mantissa = 7 if dtype is np.uint16 else 23
    bits = np.arange(1 << 16).astype(dtype)
    if dtype is np.uint32:
        bits = bits << 16 | np.random.default_rng(1).integers(0, 1 << 16, bits.size, dtype)
        bits[:3] = 0, 1, 1 << 31
    moved = bits.copy()
    move_signs_in(moved, base)
    assert moved.tolist() == [
        reference.with_inner_sign(pattern, mantissa, base) for pattern in bits.tolist()
    ]
    outer = bits.copy()
    move_signs_out(outer, base)
    assert outer.tolist() == [
        reference.with_outer_sign(pattern, mantissa, base) for pattern in bits.tolist()
    ]


@pytest.mark.parametrize("base", [0, 1, 130])
def test_all_patterns_above_the_base_come_back(base: int) -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    magnitudes = bits & 0x7FFF
    bits = bits[(magnitudes == 0) | (magnitudes > base << 7)]
    moved = bits.copy()
    move_signs_in(moved, base)
    assert np.unique(moved).size == bits.size
    assert ((moved >> 15) == (((bits >> 7 & 255) - (bits & 0x7FFF > 0) * base) >> 7)).all()
    move_signs_out(moved, base)
    assert np.array_equal(moved, bits)
