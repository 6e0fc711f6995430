"""Byte planes of floats against NumPy: whole arrays, runs, lowered planes, and escapes."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec import Corrupt, ParameterError
from gcodec.entropy.context import scale_lists
from gcodec.entropy.huffman import code_lengths
from gcodec.entropy.rans import entropy_nbits, log2_table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.byte_planes import (
    ALL_FORMS,
    FLOAT_FORMS,
    FORMS,
    MANTISSA_SHIFTS,
    coded_counts,
    count_others,
    take_others,
)
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import plane_words
from gcodec.kernels.context.byte_scales import (
    PlaneForm,
    count_runs,
    fitted_scales,
    join_planes,
    lowered_range,
    take_runs,
)
from gcodec.kernels.context.byte_sums import LineSums, plane_sums, rounded_scales
from gcodec.kernels.context.class_map import CENTER, CLASSES, ScaleArrays
from gcodec.kernels.numeric.byte_counts import estimated_counts
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime.memory import aligned_empty

SIZES = [*range(0, 70), 255, 4095, 4096, 4097, 9000]
RUN = 1 << 12
ESCAPE = 64
NONE = np.empty(0, np.uint8)


def skipped(itemsize: int, shift: int) -> int:
    """Return the number of bits above the first plane that no plane contains."""
    return int((itemsize, shift) in MANTISSA_SHIFTS.items())


def random_bits(itemsize: int, shift: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    bits = rng.integers(0, 256, n * itemsize, np.uint8).view(f"u{itemsize}")
    bits[rng.random(n) < 0.2] = 0
    small = rng.random(n) < 0.2
    bits[small] &= bits.dtype.type((1 << shift) - 1)
    if skipped(itemsize, shift):
        bits &= bits.dtype.type(~(1 << shift + 8) % 256**itemsize)
    return bits


def first_of(bits: np.ndarray, shift: int, escape: int = 0) -> np.ndarray:
    first = (bits >> bits.dtype.type(shift)).astype(np.uint8)
    first[(first == 0) & (bits != 0)] = escape
    return first


def others_of(bits: np.ndarray, shift: int) -> np.ndarray:
    """Return the other planes, one after the other, by integers of Python."""
    planes, above = bits.itemsize - 1, shift + 8 + skipped(bits.itemsize, shift)
    rests = [(b >> above << shift) | (b & (1 << shift) - 1) for b in bits.tolist()]
    data = [b >> 8 * k & 255 for k in range(planes - 1, -1, -1) for b in rests]
    return np.array(data, np.uint8)


@pytest.mark.parametrize(("itemsize", "shift"), ALL_FORMS)
def test_planes_equal_the_oracle_and_are_joined(itemsize: int, shift: int) -> None:
    for n in SIZES:
        bits = random_bits(itemsize, shift, n)
        stride = n + 5
        others = np.full((itemsize - 1) * stride, 0xA5, np.uint8)
        take_others(bits, shift, others, stride)
        planes = others.reshape(itemsize - 1, stride)
        assert np.array_equal(planes[:, :n].reshape(-1), others_of(bits, shift))
        assert (planes[:, n:] == 0xA5).all()
        for escape in (0, 7, 255):
            first = np.empty(n, np.uint8)
            take_runs(bits, PlaneForm(shift, escape=escape), 0, 1 << 40, 0, first)
            assert np.array_equal(first, first_of(bits, shift, escape))
        out = np.empty_like(bits)
        join_planes(first_of(bits, shift), others, stride, out, PlaneForm(shift))
        assert np.array_equal(out, bits)


def lowered(plane: np.ndarray, scales: ScaleArrays, unit: int) -> np.ndarray:
    """Return a plane that is lowered by the octaves of its classes."""
    rows, columns, width = scales
    row, column = np.divmod(np.arange(plane.size), width)
    own = columns[column].astype(int) if columns.size else CENTER
    classes = np.clip(rows[row].astype(int) + own - CENTER, 0, CLASSES - 1)
    moved = 1 + (plane.astype(int) - 1 - (classes * unit + 2 >> 2)) % 255
    return np.where(plane > 0, moved, 0).astype(np.uint8)


@pytest.mark.parametrize(("itemsize", "shift"), ALL_FORMS)
@pytest.mark.parametrize("escape", (0, 9))
def test_runs_are_parts_of_the_plane(itemsize: int, shift: int, escape: int) -> None:
    rng = np.random.default_rng(3)
    n, width = 11 * RUN + 77, 300
    bits = random_bits(itemsize, shift, n)
    rows = rng.integers(0, 128, -(-n // width)).astype(np.uint8)
    columns = rng.integers(0, 128, width).astype(np.uint8)
    both, alone = (rows, columns, width), (rows, columns[:0], width)
    others_of_all = others_of(bits, shift)
    for scales, unit in ((None, 1), (both, 1), (alone, 1), (alone, 8)):
        whole = first_of(bits, shift, escape)
        if scales is not None:
            whole = lowered(whole, scales, unit)
        form = PlaneForm(shift, unit, escape, scales)
        for start, size in ((0, n), (0, 1), (RUN, 5000), (12345, 300), (n - 1, 1)):
            out = np.empty(size, np.uint8)
            take_runs(bits, form, start, 1 << 40, 0, out)
            assert np.array_equal(out, whole[start : start + size])
            counts = count_runs(bits, form, size, 1 << 40, 0)
            assert np.array_equal(counts, np.bincount(whole[:size], minlength=256))
            if not escape:
                others = others_of_all[start:]
                for at, streaming in ((0, False), (0, True), (1, True)):
                    joined = aligned_empty(size + at, bits.dtype)[at:]
                    planes = out, others, n, joined
                    join_planes(*planes, form, start, streaming=streaming)
                    assert np.array_equal(joined, bits[start : start + size])
        for run, period in ((RUN, 3 * RUN), (2 * RUN, 4 * RUN + 5)):
            size = 3 * RUN + 50
            places = np.arange(size) // run * period + np.arange(size) % run
            out = np.empty(size, np.uint8)
            take_runs(bits, form, 0, run, period, out)
            assert np.array_equal(out, whole[places])
            counts = count_runs(bits, form, size, run, period)
            assert np.array_equal(counts, np.bincount(out, minlength=256))


@pytest.mark.parametrize(("itemsize", "shift"), ALL_FORMS)
@pytest.mark.parametrize("n", (1, 31, 4096, 5000, 3 * 4096 + 5))
def test_other_planes_are_counted(itemsize: int, shift: int, n: int) -> None:
    bits = random_bits(itemsize, shift, n)
    for period in (4096, 4096 * 2):
        runs = [bits[at : at + 4096] for at in range(0, n, period)]
        joined = np.concatenate(runs)
        planes = others_of(joined, shift).reshape(itemsize - 1, joined.size)
        expected = [np.bincount(plane, minlength=256) for plane in planes]
        counts = count_others(bits, shift, period)
        assert np.array_equal(counts, np.reshape(expected, (itemsize - 1, 256)))


@pytest.mark.parametrize(("itemsize", "shift"), FLOAT_FORMS)
@pytest.mark.parametrize("width", (1, 7, 64, 300, 4096, 9000))
def test_sums_of_planes(itemsize: int, shift: int, width: int) -> None:
    bits = random_bits(itemsize, shift, 20000)
    bits[::3] = 0
    for period in (None, 3 * width, width + 5):
        own = bits
        if period is not None:
            own = bits[: (bits.size - width) // period * period + width]
        row, column = np.divmod(np.arange(own.size), period or width)
        is_summed = column < width
        row, column = row[is_summed], column[is_summed]
        plane = first_of(own, shift, 0)[is_summed].astype(int)
        for has_columns in (False, True):
            rows, columns, *ends = plane_sums(own, shift, width, period, has_columns=has_columns)
            for sums, line in ((rows, row), (columns, column)):
                if sums is rows or has_columns:
                    assert np.array_equal(sums[0], np.bincount(line, plane, sums[0].size))
                    assert np.array_equal(sums[1], np.bincount(line, plane > 0, sums[1].size))
                else:
                    assert sums[0].size == sums[1].size == 0
            least, greatest = np.full((2, 0 if has_columns else rows[0].size), 256)
            if not has_columns:
                np.minimum.at(least, row[plane > 0], plane[plane > 0])
                greatest[:] = 0
                np.maximum.at(greatest, row, plane)
            assert np.array_equal(ends, [least % 256, greatest])


@pytest.mark.parametrize("rows", (1023, 1024, 1025, 2047, 2048, 2049, 5000))
def test_columns_of_many_large_bytes_are_summed(rows: int) -> None:
    width = 3
    symbols = np.full(rows * width, 255, np.uint8)
    symbols[1::width] = 0
    sums = LineSums(symbols.size, width, True).run(lambda a, b: symbols[a:b], symbols.size)
    for line, count in ((sums.columns, rows), (sums.rows, 2)):
        assert np.array_equal(line[0], 255 * line[1])
        assert line[1].max() == count
    assert sums.columns[1].tolist() == [rows, 0, rows]
    scales = fitted_scales(symbols, width, 1, 1, 40, 1, log2_table())
    assert scales.columns.tolist() == [CENTER, 0, CENTER]


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


def coded_numbers(bits: np.ndarray) -> np.ndarray:
    """Return the number of elements that are not 0 of each group."""
    groups = [bits[at : at + RUN] for at in range(0, bits.size, RUN)]
    return np.array([np.count_nonzero(group) for group in groups], np.uint16)


@pytest.mark.parametrize(("itemsize", "shift"), FLOAT_FORMS)
@pytest.mark.parametrize("share", (0, 0.01, 0.5, 0.99, 1))
def test_zeros_are_left_out_of_the_other_planes(itemsize: int, shift: int, share: float) -> None:
    rng = np.random.default_rng(4)
    for n in (*SIZES, 20000):
        bits = random_bits(itemsize, shift, n)
        bits &= ~bits.dtype.type(ESCAPE << shift)  # no byte is the escape
        bits[rng.random(n) >= share] = 0
        if n == 20000:  # groups without zeros, and without other elements
            bits[RUN : 2 * RUN], bits[2 * RUN : 3 * RUN] = bits[RUN : 2 * RUN] | 1, 0
        numbers, hidden = coded_counts(bits, shift)
        assert np.array_equal(numbers, coded_numbers(bits))
        assert hidden == np.count_nonzero((first_of(bits, shift) == 0) & (bits != 0))
        count = np.count_nonzero(bits)
        others = np.full((itemsize - 1) * (count + 5), 0xA5, np.uint8)
        take_others(bits, shift, others, count + 5, numbers)
        planes = others.reshape(itemsize - 1, count + 5)
        assert np.array_equal(planes[:, :count].reshape(-1), others_of(bits[bits != 0], shift))
        assert (planes[:, count:] == 0xA5).all()
        first, width = first_of(bits, shift, ESCAPE), 300
        rows = rng.integers(0, 128, -(-n // width)).astype(np.uint8)
        for scales in (None, (rows, rows[:0], width)):
            coded = first if scales is None else lowered(first, scales, 1)
            for at, streaming in ((0, False), (0, True), (1, True)):
                out = aligned_empty(n + at, bits.dtype)[at:]
                join_planes(
                    *(coded, others, count + 5, out, PlaneForm(shift, 1, ESCAPE, scales)),
                    coded=numbers,
                    streaming=streaming,
                )
                assert np.array_equal(out, bits)


def test_wrong_numbers_of_zeros_are_refused() -> None:
    bits = np.ones(3 * RUN, np.uint16) << 8
    bits[RUN : RUN + 7] = 0
    numbers, others = coded_numbers(bits), np.zeros(bits.size, np.uint8)
    out = np.empty_like(bits)
    for group, error in ((0, -1), (1, 1), (1, -1), (2, -1)):
        wrong = numbers.astype(int)
        wrong[group] += error
        planes = first_of(bits, 7), others, bits.size, out, PlaneForm(7)
        with pytest.raises(Corrupt, match=f"group {group} "):
            join_planes(*planes, coded=wrong.astype(np.uint16))


@pytest.mark.parametrize(("itemsize", "shift"), FORMS)
@pytest.mark.parametrize("n", (1, 4096, 3 * 4096 + 5))
def test_words_of_the_first_plane_follow_the_other_planes(
    itemsize: int, shift: int, n: int
) -> None:
    rng = np.random.default_rng(5)
    bits = random_bits(itemsize, shift, n)
    width = max(n // 8, 1)
    rows = rng.integers(30, 60, -(-n // width)).astype(np.uint8)
    pairs = [(each, coded) for each in (None, (rows, rows[:0], width)) for coded in (False, True)]
    for scales, has_zeros in pairs:
        plane = first_of(bits, shift, 7)
        plane = plane if scales is None else lowered(plane, scales, 1)
        counts = np.bincount(plane, minlength=256)
        code = TableCode.of(code_lengths(counts))
        planes = others_of(bits[bits != 0] if has_zeros else bits, shift)
        numbers = coded_numbers(bits) if has_zeros else None
        mask, head = CodedMask.all(n), (np.array([0xA0], np.uint8), 3)
        expected = dense_string.write(code, plane, plane.dtype, mask, RUN, 2, head)
        form, count = PlaneForm(shift, 1, 7, scales), -(-n // RUN)
        others = np.zeros(planes.size, np.uint8)
        parts = []
        for tiles in (slice(0, 1), slice(1, count)):
            string = BitString(0 if tiles.start else 2)  # without room, so that it must grow
            if not tiles.start:
                string.extend(*head)
            before = string.nbits
            ends = plane_words.append(code, bits, form, others, numbers, tiles, string)
            assert np.array_equal(np.diff(ends, prepend=before), np.diff(expected[2])[tiles])
            parts.append(string)
        assert np.array_equal(others, planes)
        joined = [np.unpackbits(part.data)[: part.nbits] for part in parts]
        bits_of_all = np.unpackbits(expected[0])[: expected[1]]
        assert np.array_equal(np.concatenate(joined)[16:], bits_of_all[16:])
        lengths = code.lengths.copy()
        lengths[plane[-1]] = 0
        with pytest.raises(ParameterError):
            wrong, tiles = TableCode.of(lengths), slice(0, count)
            plane_words.append(wrong, bits, form, others, numbers, tiles, BitString())


def test_counts_are_estimated_by_those_of_a_sample() -> None:
    counts = np.zeros(256, np.int64)
    counts[[0, 100, 120]] = 0, 3, 5
    expected = np.zeros(256, np.int64)
    expected[[0, *range(96, 123)]] = 1
    expected[[100, 120]] = 7, 12
    assert np.array_equal(estimated_counts(counts, 20, 8, (96, 122)), expected)
    alone = np.zeros(256, np.int64)
    alone[255] = 8
    assert np.array_equal(estimated_counts(alone, 16, 8, None), 2 * alone)
    ends = np.zeros(256, np.int64)
    ends[[2, 254]] = 4
    assert np.array_equal(estimated_counts(ends, 8, 8, (1, 255)), np.maximum(ends, 1))


@pytest.mark.parametrize("unit", (1, 8))
def test_the_range_of_lowered_rows_is_known_before_they_are_lowered(unit: int) -> None:
    rng = np.random.default_rng(9)
    width, count = 70, 40
    means = rng.integers(90, 160, count).repeat(width)
    plane = means + rng.integers(0, 30, means.size)
    plane[rng.random(plane.size) < 0.1] = 0
    plane[:width] = 0
    bits = (plane[: 39 * width + 5] << 7).astype(np.uint16)
    scales = rng.integers(0, 120 // unit, count).astype(np.uint8)
    sums = plane_sums(bits, 7, width)
    form, lowered = PlaneForm(7, unit, 0, (scales, NONE, width)), np.empty(bits.size, np.uint8)
    take_runs(bits, form, 0, 1 << 40, 0, lowered)
    expected = int(lowered[lowered > 0].min()), int(lowered.max())
    assert lowered_range(sums, scales, unit) == expected
    assert lowered_range(plane_sums(np.zeros_like(bits), 7, width), scales, unit) is None
    wrapping = plane_sums(np.where(bits > 0, bits.dtype.type(1 << 7), bits), 7, width)
    assert lowered_range(wrapping, np.full(count, 63, np.uint8), unit) is None
