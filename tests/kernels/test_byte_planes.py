"""Byte planes of floats against NumPy: whole arrays, runs, lowered planes, and escapes."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.bits.byte_planes import (
    SHIFTS,
    gather_coded,
    spread_coded,
    take_first,
    take_others,
)
from gcodec.kernels.context.byte_scales import join_planes, lower, take_runs
from gcodec.runtime.memory import aligned_empty

SIZES = [*range(0, 70), 255, 4095, 4096, 4097, 9000]
RUN = 1 << 12


def random_bits(itemsize: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    bits = rng.integers(0, 256, n * itemsize, np.uint8).view(f"u{itemsize}")
    bits[rng.random(n) < 0.2] = 0
    small = rng.random(n) < 0.2
    bits[small] &= bits.dtype.type((1 << SHIFTS[itemsize]) - 1)
    return bits


def first_of(bits: np.ndarray, escape: int = 0) -> np.ndarray:
    first = (bits >> bits.dtype.type(SHIFTS[bits.itemsize]) & bits.dtype.type(255)).astype(
        np.uint8
    )
    first[(first == 0) & (bits != 0)] = escape
    return first


def others_of(bits: np.ndarray) -> np.ndarray:
    """Return the other planes, one after the other, by integers of Python."""
    shift, planes = SHIFTS[bits.itemsize], bits.itemsize - 1
    rests = [(b >> shift + 8 << shift) | (b & (1 << shift) - 1) for b in bits.tolist()]
    data = [b >> 8 * k & 255 for k in range(planes - 1, -1, -1) for b in rests]
    return np.array(data, np.uint8)


@pytest.mark.parametrize("itemsize", SHIFTS)
def test_planes_equal_the_oracle_and_are_joined(itemsize: int) -> None:
    for n in SIZES:
        bits = random_bits(itemsize, n)
        stride = n + 5
        others = np.full((itemsize - 1) * stride, 0xA5, np.uint8)
        take_others(bits, others, stride)
        planes = others.reshape(itemsize - 1, stride)
        assert np.array_equal(planes[:, :n].reshape(-1), others_of(bits))
        assert (planes[:, n:] == 0xA5).all()
        for escape in (0, 7, 255):
            first = np.empty(n, np.uint8)
            take_first(bits, escape, first)
            assert np.array_equal(first, first_of(bits, escape))
        out = np.empty_like(bits)
        join_planes(first_of(bits), others, stride, out)
        assert np.array_equal(out, bits)


@pytest.mark.parametrize("itemsize", SHIFTS)
@pytest.mark.parametrize("escape", (0, 9))
def test_runs_are_parts_of_the_plane(itemsize: int, escape: int) -> None:
    rng = np.random.default_rng(3)
    n, width = 11 * RUN + 77, 300
    bits = random_bits(itemsize, n)
    rows = rng.integers(0, 128, -(-n // width)).astype(np.uint8)
    columns = rng.integers(0, 128, width).astype(np.uint8)
    both, alone = (rows, columns, width), (rows, columns[:0], width)
    for scales, unit in ((None, 1), (both, 1), (alone, 1), (alone, 8)):
        whole = first_of(bits, escape)
        if scales is not None:
            lower(whole, scales, unit, 0)
        for start, size in ((0, n), (0, 1), (RUN, 5000), (12345, 300), (n - 1, 1)):
            out = np.empty(size, np.uint8)
            others = np.full((itemsize - 1) * n, 0xA5, np.uint8)
            take_runs(bits, escape, scales, unit, start, 1 << 40, 0, out, others)
            assert np.array_equal(out, whole[start : start + size])
            taken = others.reshape(itemsize - 1, n)[:, start : start + size]
            assert np.array_equal(taken.reshape(-1), others_of(bits[start : start + size]))
            if not escape:
                for at, streaming in ((0, False), (0, True), (1, True)):
                    joined = aligned_empty(size + at, bits.dtype)[at:]
                    planes = out, others[start:], n, joined
                    join_planes(*planes, scales, unit, start, streaming=streaming)
                    assert np.array_equal(joined, bits[start : start + size])
            assert np.count_nonzero(others != 0xA5) <= taken.size
        for run, period in ((RUN, 3 * RUN), (2 * RUN, 4 * RUN + 5)):
            size = 3 * RUN + 50
            places = np.arange(size) // run * period + np.arange(size) % run
            out = np.empty(size, np.uint8)
            take_runs(bits, escape, scales, unit, 0, run, period, out)
            assert np.array_equal(out, whole[places])


@pytest.mark.parametrize("share", (0, 0.01, 0.5, 0.99, 1))
def test_coded_bytes_are_gathered_and_spread(share: float) -> None:
    rng = np.random.default_rng(4)
    for n in SIZES:
        plane, after = rng.integers(0, 256, n).astype(np.uint8), np.full(9, 0xA5, np.uint8)
        mask = rng.random(n) < share
        coded = np.append(np.zeros(np.count_nonzero(mask), np.uint8), after)
        gather_coded(plane, mask.view(np.uint8), coded[:-9])
        assert np.array_equal(coded, np.append(plane[mask], after))
        first = np.where(mask, rng.integers(1, 256, n), 0).astype(np.uint8)
        spread = np.append(np.zeros(n, np.uint8), after)
        spread_coded(coded[:-9], first, spread[:n])
        assert np.array_equal(spread, np.append(np.where(mask, plane, 0), after))
