"""Packing of fields against the oracle, for all widths, orders and paddings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from reference import fields
from segments import split_inputs
from sweeps import thinned

from gcodec import Corrupt, FormatError, Truncated
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, pack_to, unpack_fields, unpack_range

SIZES = [*range(20), 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257]


def layouts() -> list[FieldLayout]:
    """Return all layouts that are packed."""
    return [
        FieldLayout(width, order, align=align)  # type: ignore[arg-type]
        for width, order, align in itertools.product(range(1, 9), ("msb", "lsb"), (1, 4))
    ]


@pytest.mark.parametrize("layout", layouts(), ids=lambda one: "-".join(map(str, one)))
def test_packing_equals_the_oracle(layout: FieldLayout) -> None:
    rng = np.random.default_rng(layout.width)
    for n in SIZES if layout.align == 1 else SIZES[::5]:
        codes = rng.integers(0, 1 << layout.width, n, np.uint8)
        packed = pack_fields(codes, layout)
        expected = fields.pack(codes.tolist(), **layout._asdict())
        assert packed.dtype == np.uint8
        assert packed.tobytes() == expected
        assert layout.nbytes(n) == len(expected)
        assert np.array_equal(unpack_fields(packed, n, layout), codes)


@pytest.mark.parametrize("layout", layouts()[::3], ids=lambda one: "-".join(map(str, one)))
def test_wrong_lengths_are_refused(layout: FieldLayout) -> None:
    for n in (0, 1, 7, 16, 33):
        packed = pack_fields(np.zeros(n, np.uint8), layout)
        for size in range(packed.size):
            with pytest.raises(Truncated, match="payload has"):
                unpack_fields(packed[:size].copy(), n, layout)
        longer = np.concatenate([packed, np.zeros(1, np.uint8)])
        with pytest.raises(Corrupt, match="payload has"):
            unpack_fields(longer, n, layout)


@pytest.mark.parametrize("layout", layouts(), ids=lambda one: "-".join(map(str, one)))
def test_flipped_bits_change_a_code_or_are_refused(layout: FieldLayout) -> None:
    """The oracle determines whether a flipped bit changes a code or is refused."""
    rng = np.random.default_rng(layout.width)
    for n in (0, 1, 2, 3, 5, 9, 21):
        codes = rng.integers(0, 1 << layout.width, n, np.uint8)
        packed = pack_fields(codes, layout)
        bits = range(8 * packed.size)
        for bit in bits if n < 5 else thinned(bits, 5):
            damaged = packed.copy()
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                expected = fields.unpack(damaged.tobytes(), n, **layout._asdict())
            except ValueError:
                with pytest.raises(Corrupt):
                    unpack_fields(damaged, n, layout)
                continue
            assert unpack_fields(damaged, n, layout).tolist() == expected != codes.tolist()


def test_valid_random_bytes_round_trip() -> None:
    rng = np.random.default_rng(0)
    for layout in layouts():
        for n in (1, 6, 13):
            for _ in range(4):
                data = rng.integers(0, 256, layout.nbytes(n), np.uint8)
                try:
                    codes = unpack_fields(data, n, layout)
                except FormatError:
                    continue
                assert pack_fields(codes, layout).tobytes() == data.tobytes()


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("order", ["msb", "lsb"])
def test_packing_is_independent_of_segments(
    width: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread pool cuts long inputs, and the bytes do not depend on the cuts."""
    layout = FieldLayout(width, order)  # type: ignore[arg-type]
    codes = np.random.default_rng(1).integers(0, 1 << width, 5003, np.uint8)
    whole = pack_fields(codes, layout)
    split_inputs(monkeypatch, 512, "3")
    assert pack_fields(codes, layout).tobytes() == whole.tobytes()
    assert np.array_equal(unpack_fields(whole, 5003, layout), codes)


@pytest.mark.parametrize("width", range(1, 9))
def test_fields_are_unpacked_from_any_field_on(width: int) -> None:
    codes = np.random.default_rng(width).integers(0, 1 << width, 61, np.uint8)
    layout, data = FieldLayout(width), np.full(80, 0xFF, np.uint8)
    packed = data[5 : 5 + layout.nbytes(codes.size)]
    pack_to(codes, layout, packed)
    assert packed.tobytes() == pack_fields(codes, layout).tobytes()
    assert (data[:5] == 0xFF).all() and (data[5 + packed.size :] == 0xFF).all()
    for start in range(codes.size + 1):
        for stop in range(start, codes.size + 1, 3):
            out = np.empty(stop - start, np.uint8)
            unpack_range(packed, width, start, out)
            assert out.tolist() == codes[start:stop].tolist()


def test_arrays_with_gaps_and_read_only_arrays() -> None:
    layout = FieldLayout(3, "lsb")
    codes = np.arange(40, dtype=np.uint8) % 8
    expected = pack_fields(codes, layout).tobytes()
    spread = np.repeat(codes, 2)[::2]
    assert pack_fields(spread, layout).tobytes() == expected
    frozen = codes.copy()
    frozen.flags.writeable = False
    assert pack_fields(frozen, layout).tobytes() == expected
    data = np.frombuffer(expected, np.uint8)
    assert np.array_equal(unpack_fields(data, 40, layout), codes)
    assert np.array_equal(unpack_fields(np.repeat(data, 2)[::2], 40, layout), codes)


def test_a_strided_layout_has_the_size_of_the_oracle() -> None:
    for n in SIZES:
        expected = fields.pack([0] * n, 2, "lsb", strided=True, pad="count")
        assert FieldLayout(2, "lsb", strided=True).nbytes(n) == len(expected)
