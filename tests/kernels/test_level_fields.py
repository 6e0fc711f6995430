"""Test fields of levels: bits of the definition, any number of elements, and levels above s."""

from __future__ import annotations

import numpy as np
import pytest
from reference import universal
from segments import split_inputs

import gcodec
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import level_fields
from gcodec.kernels.quantize.levels import symbol_dtype

LEVELS = (1, 2, 3, 15, 63, 64, 127, 128, 4095, 4096, 32767, 32768, 2**20, 2**24)
LEAD = 3


def symbols_of(n: int, s: int) -> np.ndarray:
    rng = np.random.default_rng([n, s])
    levels = rng.integers(0, s, n, endpoint=True)
    levels[: n // 4] = rng.choice([0, 1, s], n // 4)
    return (2 * levels + ((levels > 0) & (rng.random(n) < 0.5))).astype(symbol_dtype(s))


def bits_of(symbols: np.ndarray, s: int) -> str:
    width = (2 * s).bit_length()
    return "".join(universal.fixed(k - 2 * (k & 1), width) for k in symbols.tolist())


def read(data: np.ndarray, s: int, coded: CodedMask) -> np.ndarray:
    out = np.full(coded.n, 77, symbol_dtype(s))

    def take(at: int, symbols: np.ndarray) -> None:
        assert symbols.dtype == out.dtype
        out[at : at + symbols.size] = symbols

    level_fields.read(data, 8 * LEAD, s, coded, take)
    return out


@pytest.mark.parametrize("s", LEVELS)
def test_any_number_of_fields(s: int) -> None:
    for n in (*range(20), 1000, 4097):
        symbols, coded = symbols_of(n, s), CodedMask.all(n)
        data, nbits = level_fields.write(symbols, s, coded, 1 << 17, LEAD)
        bits = bits_of(symbols, s)
        assert nbits == 8 * LEAD + len(bits)
        assert data[LEAD:].tobytes() == universal.to_bytes(bits)
        assert np.array_equal(read(data, s, coded), symbols)


@pytest.mark.parametrize("s", [15, 300, 2**16])
def test_zero_norm_buckets(s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields of a segment begin at any bit of a byte."""
    split_inputs(monkeypatch, 64, "2")
    for bucket, share in ((3, 0.5), (7, 0.1), (100, 0.5), (64, 1.0), (5000, 0.0)):
        n = 5000
        silent = np.random.default_rng(bucket).random(-(-n // bucket)) < share
        symbols, coded = symbols_of(n, s), CodedMask.of(n, bucket, silent)
        is_coded = ~np.repeat(silent, bucket)[:n]
        symbols[~is_coded] = 0
        assert [coded.before(at) for at in (0, 1, 99, n)] == [
            int(is_coded[:at].sum()) for at in (0, 1, 99, n)
        ]
        data, nbits = level_fields.write(symbols, s, coded, 64, LEAD)
        bits = bits_of(symbols[is_coded], s)
        assert nbits == 8 * LEAD + len(bits)
        assert data[LEAD:].tobytes() == universal.to_bytes(bits)
        assert np.array_equal(read(data, s, coded), symbols)


@pytest.mark.parametrize("s", [s for s in LEVELS if 2 * s + 1 < 1 << (2 * s).bit_length()])
def test_levels_above_s(s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    split_inputs(monkeypatch, 64, "2")
    n, width = 1000, (2 * s).bit_length()
    bits = bits_of(symbols_of(n, s), s)
    for field in (2 * s + 1, (1 << width) - 1):
        for at in (0, 1, 63, 64, 500, n - 1):
            wrong = (
                bits[: at * width] + universal.fixed(field, width) * 2 + bits[(at + 2) * width :]
            )
            data = np.frombuffer(bytes(LEAD) + universal.to_bytes(wrong[: n * width]), np.uint8)
            with pytest.raises(gcodec.Corrupt, match=f"at its bit {8 * LEAD + at * width}$"):
                read(data, s, CodedMask.all(n))
