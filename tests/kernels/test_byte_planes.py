"""Byte planes of floats against NumPy: whole arrays, runs, lowered planes, and escapes."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec import ParameterError
from gcodec.entropy.context import scale_lists
from gcodec.entropy.huffman import code_lengths
from gcodec.entropy.rans import entropy_nbits, log2_table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.byte_planes import (
    SHIFTS,
    count_others,
    gather_coded,
    spread_coded,
    take_first,
    take_others,
)
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import plane_words
from gcodec.kernels.context.byte_scales import (
    count_runs,
    fitted_scales,
    join_planes,
    plane_sums,
    raise_again,
    rounded_scales,
    take_runs,
)
from gcodec.kernels.context.class_map import CENTER, CLASSES, ScaleArrays
from gcodec.kernels.numeric.byte_counts import estimated_counts
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.table_code import TableCode
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


def lowered(plane: np.ndarray, scales: ScaleArrays, unit: int) -> np.ndarray:
    """Return a plane that is lowered by the octaves of its classes."""
    rows, columns, width = scales
    row, column = np.divmod(np.arange(plane.size), width)
    own = columns[column].astype(int) if columns.size else CENTER
    classes = np.clip(rows[row].astype(int) + own - CENTER, 0, CLASSES - 1)
    moved = 1 + (plane.astype(int) - 1 - (classes * unit + 2 >> 2)) % 255
    return np.where(plane > 0, moved, 0).astype(np.uint8)


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
            whole = lowered(whole, scales, unit)
            again = whole.copy()
            raise_again(again, scales, unit, 0)
            assert np.array_equal(again, first_of(bits, escape))
        for start, size in ((0, n), (0, 1), (RUN, 5000), (12345, 300), (n - 1, 1)):
            out = np.empty(size, np.uint8)
            take_runs(bits, escape, scales, unit, start, 1 << 40, 0, out)
            assert np.array_equal(out, whole[start : start + size])
            counts = count_runs(bits, escape, scales, unit, start, size, 1 << 40, 0)
            assert np.array_equal(counts, np.bincount(out, minlength=256))
            if not escape:
                others = others_of(bits)[start:]
                for at, streaming in ((0, False), (0, True), (1, True)):
                    joined = aligned_empty(size + at, bits.dtype)[at:]
                    planes = out, others, n, joined
                    join_planes(*planes, scales, unit, start, streaming=streaming)
                    assert np.array_equal(joined, bits[start : start + size])
        for run, period in ((RUN, 3 * RUN), (2 * RUN, 4 * RUN + 5)):
            size = 3 * RUN + 50
            places = np.arange(size) // run * period + np.arange(size) % run
            out = np.empty(size, np.uint8)
            take_runs(bits, escape, scales, unit, 0, run, period, out)
            assert np.array_equal(out, whole[places])
            counts = count_runs(bits, escape, scales, unit, 0, size, run, period)
            assert np.array_equal(counts, np.bincount(out, minlength=256))


@pytest.mark.parametrize("itemsize", SHIFTS)
@pytest.mark.parametrize("n", (1, 31, 4096, 5000, 3 * 4096 + 5))
def test_other_planes_are_counted(itemsize: int, n: int) -> None:
    bits = random_bits(itemsize, n)
    for period in (4096, 4096 * 2):
        runs = [bits[at : at + 4096] for at in range(0, n, period)]
        planes = others_of(np.concatenate(runs)).reshape(itemsize - 1, -1)
        expected = [np.bincount(plane, minlength=256) for plane in planes]
        assert np.array_equal(count_others(bits, period), expected)


@pytest.mark.parametrize("itemsize", SHIFTS)
@pytest.mark.parametrize("width", (1, 7, 64, 300, 4096, 9000))
def test_sums_of_planes(itemsize: int, width: int) -> None:
    bits = random_bits(itemsize, 20000)
    bits[::3] = 0
    plane = first_of(bits, 5).astype(int)
    row, column = np.divmod(np.arange(bits.size), width)
    for has_columns in (False, True):
        rows, columns = plane_sums(bits, 5, width, has_columns)
        for sums, own in ((rows, row), (columns, column)):
            if sums is rows or has_columns:
                assert np.array_equal(sums[0], np.bincount(own, plane, sums[0].size))
                assert np.array_equal(sums[1], np.bincount(own, plane > 0, sums[1].size))
            else:
                assert sums[0].size == sums[1].size == 0


@pytest.mark.parametrize("n", (1, 300, 10000))
@pytest.mark.parametrize("group", (0, 1, 3))
@pytest.mark.parametrize("quantum", (1, 4))
def test_scales_are_those_of_sums_and_lower_the_bytes(n: int, group: int, quantum: int) -> None:
    rng = np.random.default_rng(4)
    width = min(n, 70)
    row, column = np.divmod(np.arange(n), width)
    means = 100 + 8 * rng.standard_normal(-(-n // width))[row]
    means += 8 * rng.standard_normal(width)[column]
    symbols = (means + rng.standard_normal(n)).astype(np.uint8) * (rng.random(n) < 0.9)
    result = fitted_scales(symbols, width, group, quantum, 40, 1, log2_table())
    sums, counts = np.bincount(row, symbols), np.bincount(row, symbols > 0)
    lines = sums.astype(np.int64), counts.astype(np.int64)
    assert np.array_equal(result.rows, rounded_scales(lines, quantum, 40, 1))
    assert all(map(np.array_equal, result.sums, lines))
    by_group = np.empty(0, np.uint8)
    if group:
        groups = column // group
        sums, counts = np.bincount(groups, symbols), np.bincount(groups, symbols > 0)
        by_group = rounded_scales((sums.astype(int), counts.astype(int)), quantum, CENTER, 1)
    columns = np.repeat(by_group, group)[:width] if group else by_group
    assert np.array_equal(result.columns, columns)
    moved = lowered(symbols, (result.rows, columns, width), 1)
    assert np.array_equal(result.counts, np.bincount(moved, minlength=256))
    assert result.nbits == entropy_nbits(result.counts)
    of_rows = scale_lists.nbits(result.rows)
    assert result.lists_nbits == (of_rows, scale_lists.nbits(by_group) if group else 0)


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


@pytest.mark.parametrize("itemsize", SHIFTS)
@pytest.mark.parametrize("n", (1, 4096, 3 * 4096 + 5))
def test_words_of_the_first_plane_follow_the_other_planes(itemsize: int, n: int) -> None:
    rng = np.random.default_rng(5)
    bits = random_bits(itemsize, n)
    width = max(n // 8, 1)
    rows = rng.integers(30, 60, -(-n // width)).astype(np.uint8)
    for scales in (None, (rows, rows[:0], width)):
        plane = first_of(bits, 7)
        plane = plane if scales is None else lowered(plane, scales, 1)
        counts = np.bincount(plane, minlength=256)
        code = TableCode.of(code_lengths(counts))
        string = BitString()  # without room, so that it must grow
        string.skip(2 + (itemsize - 1) * n)
        string.data[:2] = 1, 2
        string.extend(np.array([0xA0], np.uint8), 3)
        others = slice(2, 2 + (itemsize - 1) * n)
        offsets = plane_words.append(code, bits, 7, scales, 1, others, string)
        nbits = string.nbits
        data = string.trimmed()
        assert data[:2].tolist() == [1, 2]
        assert np.array_equal(data[others], others_of(bits))
        mask, head = CodedMask.all(n), (np.array([0xA0], np.uint8), 3)
        expected = dense_string.write(code, plane, plane.dtype, mask, RUN, 0, head)
        assert data[others.stop :].tobytes() == expected[0].tobytes()
        assert nbits == expected[1] + 8 * others.stop
        assert np.array_equal(offsets, expected[2])
        lengths = code.lengths.copy()
        lengths[plane[-1]] = 0
        with pytest.raises(ParameterError):
            string = BitString()
            string.skip(others.stop)
            plane_words.append(TableCode.of(lengths), bits, 7, scales, 1, others, string)


def test_counts_are_estimated_by_those_of_a_sample() -> None:
    counts = np.zeros(256, np.int64)
    counts[[0, 100, 120]] = 0, 3, 5
    expected = np.zeros(256, np.int64)
    expected[[0, *range(96, 123)]] = 1
    expected[[100, 120]] = 7, 12
    assert np.array_equal(estimated_counts(counts, 20, 8, 4, 2), expected)
    alone = np.zeros(256, np.int64)
    alone[255] = 8
    assert np.array_equal(estimated_counts(alone, 16, 8, 4, 2), 2 * alone)
    ends = np.zeros(256, np.int64)
    ends[[2, 254]] = 4
    assert np.array_equal(estimated_counts(ends, 8, 8, 9, 9), np.maximum(ends, 1))
