"""minifloat: every code against exact arithmetic and ml_dtypes; scales, residuals, bytes."""

from __future__ import annotations

import bisect
import functools
import math
import struct
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import frame as reference_frame
from strategies import f32
from sweeps import LONG

import gcodec
from gcodec import Corrupt, ParameterError, Truncated
from gcodec.arrays.sampling import MANY
from gcodec.arrays.source import inspect
from gcodec.codec import Codec
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from gcodec.kernels.quantize.minifloat import MOST_STEPS

ALL_FORMATS = [MiniFloat(name, style) for name in FORMATS for style in STYLES]
NARROW = [fmt for fmt in ALL_FORMATS if fmt.top <= MOST_STEPS]
TINIEST, LARGEST = np.float32(2.0**-149), np.finfo(np.float32).max

each_format = pytest.mark.parametrize("fmt", ALL_FORMATS, ids="-".join)


def codec_of(fmt: MiniFloat, **values: Any) -> Any:
    name = {"name": "minifloat", "format": fmt.format, "style": fmt.style}
    return gcodec.parse({**name, "code": "none", **values})


def top_scale(fmt: MiniFloat) -> np.float32:
    """Return the largest scale whose product with the last magnitude is finite in float32."""
    c = fmt.magnitudes()[-1]
    scale = np.float32(LARGEST / c)
    with np.errstate(over="ignore"):
        return scale if np.isfinite(scale * c) else np.nextafter(scale, np.float32(0))


# --- models for comparison -----------------------------------------------------------------------


@functools.cache
def exact_magnitudes(fmt: MiniFloat) -> list[Fraction]:
    """Return the magnitude of each code without a sign, as a fraction."""
    results = []
    for j in range(fmt.top + 1):
        e, m = divmod(j, 1 << fmt.mantissa)
        part = Fraction(m, 1 << fmt.mantissa)
        results.append((1 + part) * 2**e if e else 2 * part)
    return results


def exact_code(x: np.float32, scale: np.float32, fmt: MiniFloat) -> int:
    """Return the code of one element in rational arithmetic; only the division is in float32."""
    with np.errstate(over="ignore", under="ignore"):
        r = float(abs(x) / scale) if scale > 0 else 0.0
    magnitudes = exact_magnitudes(fmt)
    if r >= magnitudes[-1]:
        nearest = fmt.top
    else:
        above = bisect.bisect_right(magnitudes, Fraction(r))
        distances = [(abs(Fraction(r) - magnitudes[j]), j % 2, j) for j in (above - 1, above)]
        nearest = min(distances)[2]
    sign = 1 << fmt.width - 1 if x < 0 and nearest else 0
    return sign | nearest


def expected_codes(x: np.ndarray, scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return the code of each element in a byte; float64 holds ratios and ties exactly."""
    magnitudes = fmt.magnitudes().astype(np.float64)
    ties = (magnitudes[1:] + magnitudes[:-1]) / 2
    with np.errstate(over="ignore", under="ignore"):
        r = (np.abs(x) / scale if scale > 0 else np.zeros_like(x)).astype(np.float64)
    below = np.searchsorted(ties, r, side="left")
    code = below + (np.isin(r, ties) & (below % 2 == 1))
    negative = (x < 0) & (code > 0)
    return (code + (negative << fmt.width - 1)).astype(np.uint8)


def expected_values(codes: np.ndarray, scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return the value of each code."""
    sign = 1 << fmt.width - 1
    with np.errstate(under="ignore"):
        magnitudes = scale * fmt.magnitudes()[codes & (sign - 1)]
    return np.where(codes & sign, -magnitudes, magnitudes).astype(np.float32)


def packed_codes(codes: np.ndarray, fmt: MiniFloat) -> np.ndarray:
    """Return codes of one byte each in the layout of symbols."""
    if fmt.width > 4:
        return codes
    padded = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    return padded[::2] << 4 | padded[1::2]


def unpacked_codes(data: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Unpack the codes of symbols into a byte each."""
    if fmt.width > 4:
        return data
    return np.stack([data >> 4, data & 15], axis=1).reshape(-1)[:n]


def around_ties(scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return ties and magnitudes, their neighbors, and the ends of float32, with both signs."""
    c = fmt.magnitudes().astype(np.float64)
    points = np.concatenate([c, (c[1:] + c[:-1]) / 2]) * float(scale)
    with np.errstate(over="ignore", under="ignore"):
        bits = points.astype(np.float32).view(np.uint32).astype(np.int64)
    near = (bits[:, None] + np.arange(-3, 4)).clip(0, LARGEST.view(np.uint32)).reshape(-1)
    x = near.astype(np.uint32).view(np.float32)
    ends = f32(0, TINIEST, 2.0**-126, LARGEST)
    return np.concatenate([x, -x, ends, -ends])


def scales_for(fmt: MiniFloat, rng: np.random.Generator) -> np.ndarray:
    """Return random normal and subnormal scales, powers of two, and the largest scale."""
    top = top_scale(fmt)
    bits = np.concatenate(
        [rng.integers(1, 1 << 23, 6), rng.integers(1 << 23, top.view(np.uint32), 8)]
    )
    random_scales = bits.astype(np.uint32).view(np.float32)
    return np.concatenate(
        [random_scales, f32(0, TINIEST, 3 * TINIEST, 2.0**-126, 2.0**-7, 1, 0.1), [top]]
    )


def clipped(x: np.ndarray) -> np.ndarray:
    """Round to float32, clipped to its range."""
    with np.errstate(under="ignore"):
        return np.clip(x, -LARGEST, LARGEST).astype(np.float32)


def quantized(x: np.ndarray, scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return the codes of a tensor, as `quantize` packs them, and `rounded` without a kernel."""
    out = np.full(minifloat.codes_nbytes(x.size, fmt), 0xA5, np.uint8)
    assert minifloat.quantize(x, scale, fmt, out)
    codes, values = minifloat.rounded(x, scale, fmt)
    assert np.array_equal(codes, out)
    own = unpacked_codes(codes, x.size, fmt)
    assert values.tobytes() == expected_values(own, scale, fmt).tobytes()
    return out


# --- quantization --------------------------------------------------------------------------------


@each_format
def test_codes_are_the_nearest_in_exact_arithmetic(fmt: MiniFloat) -> None:
    rng = np.random.default_rng(1)
    for scale in scales_for(fmt, rng)[::3]:
        x = rng.choice(around_ties(scale, fmt), 60)
        x = np.append(x, clipped(rng.standard_normal(20) * 4 * float(scale)))
        result = unpacked_codes(quantized(x, scale, fmt), x.size, fmt)
        assert result.tolist() == [exact_code(value, scale, fmt) for value in x]


@each_format
def test_codes_at_and_around_all_ties(fmt: MiniFloat) -> None:
    rng = np.random.default_rng(2)
    for scale in scales_for(fmt, rng):
        x = around_ties(scale, fmt)
        assert np.array_equal(
            quantized(x, scale, fmt), packed_codes(expected_codes(x, scale, fmt), fmt)
        )


@each_format
def test_codes_of_any_float32(fmt: MiniFloat) -> None:
    rng = np.random.default_rng(3)
    for scale in scales_for(fmt, rng):
        near = rng.standard_normal(600) * 2.0 ** rng.integers(-8, 18, 600) * float(scale)
        bits = rng.integers(0, 0x7F800000, 401, np.uint32)
        x = np.concatenate([clipped(near), bits.view(np.float32)])
        x[::3] *= -1
        assert np.array_equal(
            quantized(x, scale, fmt), packed_codes(expected_codes(x, scale, fmt), fmt)
        )


@pytest.mark.parametrize("fmt", NARROW, ids="-".join)
def test_least_magnitudes_of_codes(fmt: MiniFloat) -> None:
    """The least bits of each code are exactly where the float32 quotient changes its code."""
    rng = np.random.default_rng(4)
    top = int(top_scale(fmt).view(np.uint32))
    bits = np.concatenate([rng.integers(1, top, 300), rng.integers(1, 1 << 20, 100), [1, 2, top]])
    for scale in bits.astype(np.uint32).view(np.float32):
        least = minifloat.least_bits(scale, fmt).astype(np.int64)
        assert least.shape == (fmt.top,)
        near = (least[:, None] + np.arange(-2, 3)).clip(0, 0x7F7FFFFF)
        x = near.astype(np.uint32).view(np.float32)
        codes = expected_codes(x.reshape(-1), scale, fmt)
        reported = (near.reshape(-1)[:, None] >= least).sum(axis=1)
        assert np.array_equal(reported, codes)


@each_format
def test_zeros_and_values_beyond_the_range(fmt: MiniFloat) -> None:
    sign = 1 << fmt.width - 1
    for scale in (TINIEST, np.float32(1), top_scale(fmt)):
        result = unpacked_codes(
            quantized(f32(-0.0, 0, -TINIEST / 4, LARGEST, -LARGEST), scale, fmt), 5, fmt
        )
        assert result[:3].tolist() == [0, 0, 0]
        if scale < 1e30:
            assert result[3:].tolist() == [fmt.top, fmt.top | sign]
    assert not quantized(f32(1, -1, LARGEST), np.float32(0), fmt).any()


@each_format
def test_nonfinite_values_are_reported(fmt: MiniFloat) -> None:
    for n in (1, 31, 32, 33, 95, 96, 128, 200):
        out = np.empty(minifloat.codes_nbytes(n, fmt), np.uint8)
        for value in (np.nan, -np.nan, np.inf, -np.inf):
            for scale in f32(0, 1):
                x = np.ones(n, np.float32)
                assert minifloat.quantize(x, scale, fmt, out)
                x[n // 2] = value
                assert not minifloat.quantize(x, scale, fmt, out)
                x[n // 2], x[-1] = 1, value
                assert not minifloat.quantize(x, scale, fmt, out)


# --- dequantization ------------------------------------------------------------------------------


def valid_codes(fmt: MiniFloat) -> np.ndarray:
    """Return all codes that are not reserved."""
    sign = 1 << fmt.width - 1
    return np.append(np.arange(fmt.top + 1), np.arange(1, fmt.top + 1) | sign).astype(np.uint8)


@each_format
def test_values_of_all_codes(fmt: MiniFloat) -> None:
    rng = np.random.default_rng(5)
    codes = rng.choice(valid_codes(fmt), 2001)
    codes[: 2 * fmt.top + 1] = valid_codes(fmt)
    for scale in scales_for(fmt, rng):
        expected = expected_values(codes, scale, fmt)
        assert np.isfinite(expected).all()
        assert not np.signbit(expected[codes == 0]).any()
        before = rng.standard_normal(codes.size, np.float32)
        for offset in (0, 1, 2, 6):
            for stream in (False, True):
                out = gs.placed(before, offset)
                minifloat.dequantize(packed_codes(codes, fmt), scale, fmt, out, stream=stream)
                assert gs.same_bits(out, expected)
            for times in f32(-1, 0.3, 0, -0.0):
                out = gs.placed(before, offset)
                minifloat.dequantize(packed_codes(codes, fmt), scale, fmt, out, times)
                with np.errstate(under="ignore"):
                    assert gs.same_bits(out, before + times * expected)


def test_streaming_where_the_result_is_large() -> None:
    fmt, n = MiniFloat("e2m1"), (1 << 22) + 45
    codes = np.resize(valid_codes(fmt), n)
    expected = expected_values(codes, np.float32(0.1), fmt)
    for offset in (0, 3, 4):
        out = gs.placed(np.zeros(n, np.float32), offset)
        assert minifloat.can_stream(out, fmt) == (offset != 3)
        symbols = (packed_codes(codes, fmt), 0.1, n)
        codec = codec_of(fmt)
        codec._dequantize(type(codec.quantize(f32(1)))(*symbols), out)
        assert gs.same_bits(out, expected)


# --- quantization with a residual ----------------------------------------------------------------


@each_format
def test_residual_bit_for_bit(fmt: MiniFloat) -> None:
    rng = np.random.default_rng(6)
    for scale in scales_for(fmt, rng)[::2]:
        # The sum u lies on ties, cancels to −0, or lies far from all magnitudes.
        x = np.concatenate([around_ties(scale, fmt), rng.standard_normal(301, np.float32)])
        x = x[np.abs(x) < 1e38]
        residual = np.where(rng.random(x.size) < 0.5, x, rng.standard_normal(x.size))
        residual = residual.astype(np.float32)
        residual[::5] = -0.0
        for decay in f32(1, -1, 0.9, 0):
            with np.errstate(under="ignore"):
                u = x + decay * residual
                codes = expected_codes(u, scale, fmt)
                residual_after = u - expected_values(codes, scale, fmt)
            same = residual.copy()
            for before, after in ((residual, np.empty_like(residual)), (same, same)):
                out = np.full_like(packed_codes(codes, fmt), 0xA5)
                update = ResidualUpdate(before, decay, after)
                minifloat.quantize(x, scale, fmt, out, update)
                assert np.array_equal(out, packed_codes(codes, fmt))
                assert gs.same_bits(after, residual_after)
        # The output for the residual may be the array that holds x.
        in_place, out = x.copy(), np.empty_like(out)
        update = ResidualUpdate(in_place, np.float32(0), in_place)
        minifloat.quantize(in_place, scale, fmt, out, update)
        codes = expected_codes(x, scale, fmt)
        assert np.array_equal(out, packed_codes(codes, fmt))
        assert gs.same_bits(in_place, x - expected_values(codes, scale, fmt))


@pytest.mark.parametrize("spec", ["", "scale=0.25", "scale=0.0", "scale=gennorm,format=e4m3"])
@pytest.mark.parametrize("dtype", list(gs.DTYPES))
def test_residual_is_the_composition(spec: str, dtype: str) -> None:
    codec = gcodec.parse(f"minifloat:{spec}" if spec else "minifloat")
    rng = np.random.default_rng(7)
    for n in (1, 33, 1000):
        x = gs.as_dtype(rng.standard_normal(n, np.float32), dtype)
        before = rng.standard_normal(n, np.float32)
        fused, composed = before.copy(), before.copy()
        symbols = codec.quantize_residual(x, fused, decay=0.9)
        update = ResidualUpdate(composed, np.float32(0.9), composed)
        tensor = inspect(x, "x").read()
        reference_symbols = Codec._quantize_residual(codec, tensor, update, 0, None)
        assert symbols.codes.tobytes() == reference_symbols.codes.tobytes()
        assert (symbols.scale, symbols.n) == (reference_symbols.scale, reference_symbols.n)
        assert gs.same_bits(fused, composed)


@pytest.mark.parametrize("scale", ["histogram", "gennorm", 0.5, 0.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_leave_the_residual_unchanged(scale: Any, value: float) -> None:
    codec = codec_of(MiniFloat("e2m1"), scale=scale)
    x, residual = np.ones(2, np.float32), f32(0.5, -3)
    x[1] = value
    for call in (
        codec.quantize,
        codec.encode,
        lambda x: codec.quantize_residual(x, residual),
        lambda x: codec._try(x, 0),
    ):
        with pytest.raises(ParameterError, match="1 NaN or Inf, the first at flat index 1"):
            call(x)
    x = f32(1, LARGEST)
    with pytest.raises(ParameterError, match="float32"):
        codec.quantize_residual(x, f32(0, LARGEST))
    assert residual.tolist() == [0.5, -3]


# --- sizes and alignments ------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("offset", [0, 1, 3, 8])
def test_all_sizes_and_alignments(fmt: MiniFloat, offset: int) -> None:
    rng = np.random.default_rng(8)
    values, before = rng.standard_normal((2, 131), np.float32)
    scale = np.float32(0.4)
    codes = expected_codes(values, scale, fmt)
    u = values + before
    codes_u = expected_codes(u, scale, fmt)
    sizes = (*range(35), 63, 64, 65, 96, 97, 128, 131)  # they take turns
    for n in sizes if LONG else sizes[(fmt.top + offset) % 3 :: 3]:
        x, residual = gs.placed(values[:n], offset), gs.placed(before[:n], 2 * offset % 16)
        data = quantized(x, scale, fmt)
        assert np.array_equal(data, packed_codes(codes[:n], fmt))
        out = np.empty_like(data)
        update = ResidualUpdate(residual, np.float32(1), residual).saving()
        minifloat.quantize(x, scale, fmt, out, update)
        assert np.array_equal(out, packed_codes(codes_u[:n], fmt))
        assert not n or gs.same_bits(update.former, before[:n])
        assert gs.same_bits(residual, u[:n] - expected_values(codes_u[:n], scale, fmt))
        memory = gs.placed(np.full(n + 64, 7, np.float32), offset)
        minifloat.dequantize(data, scale, fmt, memory[32 : 32 + n])
        assert gs.same_bits(memory[32 : 32 + n].copy(), expected_values(codes[:n], scale, fmt))
        assert np.all(memory[:32] == 7)
        assert np.all(memory[32 + n :] == 7)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    n = (1 << 20) + 1077
    rng = np.random.default_rng(9)
    x, before = rng.standard_normal((2, n), np.float32)
    codec = codec_of(MiniFloat("e2m1"), scale=0.3)
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        residual, acc = before.copy(), before.copy()
        symbols = codec.quantize_residual(x, residual)
        payload = codec.encode(x)
        codec._dequantize_add(symbols, "float32", np.float32(0.5), acc)
        parts = symbols.codes, residual, payload.data, codec.decode(payload, n), acc
        results.append([part.tobytes() for part in parts])
    assert results[0] == results[1]
    with pytest.raises(ParameterError, match=f"flat index {n - 1}"):
        x[-1] = np.nan
        codec.encode(x)


# --- other implementations of the same formats ---------------------------------------------------

ML_DTYPES = [
    ("e4m3", "fn", 2.0**-7, ml_dtypes.float8_e4m3fn),
    ("e4m3", "ieee", 2.0**-7, ml_dtypes.float8_e4m3),
    ("e5m2", "ieee", 2.0**-15, ml_dtypes.float8_e5m2),
    ("e3m2", "full", 2.0**-3, ml_dtypes.float6_e3m2fn),
    ("e2m1", "full", 2.0**-1, ml_dtypes.float4_e2m1fn),
]


@pytest.mark.parametrize(("name", "style", "scale", "dtype"), ML_DTYPES, ids=lambda p: str(p))
def test_codes_are_those_of_ml_dtypes(name: str, style: str, scale: float, dtype: Any) -> None:
    fmt = MiniFloat(name, style)
    limits = ml_dtypes.finfo(dtype)
    assert fmt.magnitudes()[-1] * np.float32(scale) == np.float32(limits.max)
    assert fmt.magnitudes()[1] * np.float32(scale) == np.float32(limits.smallest_subnormal)
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16  # all of bfloat16
    x = np.concatenate([patterns.view(np.float32), around_ties(np.float32(scale), fmt)])
    # gcodec clips larger values, unlike ml_dtypes, and refuses NaN.
    x = x[np.abs(x) <= np.float32(limits.max)]
    expected = x.astype(dtype).view(np.uint8)
    expected[expected == 1 << fmt.width - 1] = 0  # −0
    codec = codec_of(fmt, scale=scale)
    payload = codec.encode(x)
    assert np.array_equal(codec.quantize(x).codes, packed_codes(expected, fmt))
    decoded = codec.decode(payload, x.size)
    assert gs.same_bits(decoded, expected.view(dtype).astype(np.float32))
    if fmt.width == 8:
        assert payload.tobytes() == expected.tobytes()
        assert gs.same_bits(codec.decode(expected.tobytes(), x.size), decoded)
    # Every code of ml_dtypes that is a number is a code of gcodec.
    all_codes = valid_codes(fmt)
    values = all_codes.view(dtype).astype(np.float32)
    assert gs.same_bits(expected_values(all_codes, np.float32(scale), fmt), values)


# --- payloads ------------------------------------------------------------------------------------


def concatenated(codes: np.ndarray, width: int) -> bytes:
    """Write codes one after the other, the highest bit first."""
    text = "".join(f"{code:0{width}b}" for code in codes)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))


@each_format
def test_payload_contains_the_codes(fmt: MiniFloat) -> None:
    rng = np.random.default_rng(10)
    codec = codec_of(fmt, scale=0.5)
    for n in (0, 1, 2, 3, 7, 8, 33, 101):
        x = (rng.standard_normal(n) * 2).astype(np.float32)
        codes = expected_codes(x, np.float32(0.5), fmt)
        payload = codec.encode(x)
        assert payload.tobytes() == concatenated(codes, fmt.width)
        assert payload.nbits == n * fmt.width == codec.max_payload_nbits(n)
        assert payload.scalars == {"scale": 0.5, "table": "empirical"}
        symbols = codec.unpack(payload, n)
        assert np.array_equal(symbols.codes, packed_codes(codes, fmt))
        decoded = codec.decode(concatenated(codes, fmt.width), n)
        assert gs.same_bits(decoded, expected_values(codes, np.float32(0.5), fmt))


@each_format
def test_reserved_codes_are_refused(fmt: MiniFloat) -> None:
    codec = codec_of(fmt, scale=0.5)
    sign, n = 1 << fmt.width - 1, 75
    valid = valid_codes(fmt)
    wrong = sorted(set(range(1 << fmt.width)) - set(valid.tolist()))
    assert sign in wrong
    codes = np.resize(valid, n)
    minifloat.check(packed_codes(codes, fmt), n, fmt)
    for code in wrong:
        for at in (0, 1, 40, 74):
            damaged = codes.copy()
            damaged[at::9] = code  # Further reserved codes follow.
            with pytest.raises(Corrupt, match=f"element {at} has the code {code:#x},"):
                minifloat.check(packed_codes(damaged, fmt), n, fmt)
            payload = concatenated(damaged, fmt.width)
            with pytest.raises(Corrupt, match=f"element {at} "):
                codec.decode(payload, n, nbits=n * fmt.width)
    spare = 4 if fmt.width <= 4 else 8
    # These bits exist in symbols but not in payloads.
    for code in range(1 << fmt.width, 1 << spare):
        damaged = codes.copy()
        damaged[33] = code
        with pytest.raises(Corrupt, match="element 33 "):
            minifloat.check(packed_codes(damaged, fmt), n, fmt)
    if fmt.width <= 4:
        nonzero_padding = packed_codes(codes, fmt)
        nonzero_padding[-1] |= 1
        with pytest.raises(Corrupt, match="half of a byte"):
            minifloat.check(nonzero_padding, n, fmt)


def test_the_first_wrong_code_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    n = (1 << 21) + 5
    for fmt in (MiniFloat("e2m1", "ieee"), MiniFloat("e4m3", "fn")):
        codes = np.zeros(minifloat.codes_nbytes(n, fmt), np.uint8)
        minifloat.check(codes, n, fmt)
        for threads in ("1", "3"):
            monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
            first = codes.copy()
            first[600_000:] = fmt.top + 1
            at = 600_000 * (2 if fmt.width <= 4 else 1) + (fmt.width <= 4)
            with pytest.raises(Corrupt, match=f"element {at} "):
                minifloat.check(first, n, fmt)


@pytest.mark.parametrize("table", ["empirical", 0])
@pytest.mark.parametrize(
    ("format", "code"),
    [
        *(("e2m1", code) for code in ("huffman", "pair", "planes", "rans", "context")),
        *(("e4m3", code) for code in ("huffman", "planes", "rans", "context")),
    ],
)
def test_codes_of_long_tensors_have_the_same_values(
    format: str, code: str, table: int | str
) -> None:
    """Coders process a long tensor in parts; its last byte may contain one code."""
    x = np.random.default_rng(0).standard_normal((1 << 20) + 5).astype(np.float32)
    codec = codec_of(MiniFloat(format), code=code, table=table, scale=0.25)
    symbols = codec.quantize(x)
    payload, expected = codec.pack(symbols), codec.dequantize(symbols, x.size)
    assert gs.same_bits(codec.decode(payload, x.size), expected)
    assert codec.unpack(payload, x.size).codes.tobytes() == symbols.codes.tobytes()


@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("fmt", [MiniFloat("e2m1"), MiniFloat("e4m3")], ids="-".join)
def test_symbols_of_another_tensor_are_refused(fmt: MiniFloat, block: int) -> None:
    """A decoder would read beyond the codes or the factors."""
    codec = codec_of(fmt, block=block, scale=0.25)
    symbols = codec.quantize(np.arange(20, dtype=np.float32))
    wrong = [{"codes": symbols.codes[:-1]}, {"codes": np.append(symbols.codes, np.uint8(0))}]
    wrong += [{"factors": symbols.factors[1:]}] if block else [{"factors": symbols.codes[:1]}]
    for changes in (*wrong, {"n": 21}, {"n": 18}):
        for call in (codec.pack, lambda symbols: codec.dequantize(symbols, 20)):
            with pytest.raises(ParameterError, match=r"^symbols"):
                call(symbols._replace(**changes))


def test_omitted_codes_of_contexts_are_refused() -> None:
    payload = codec_of(MiniFloat("e2m1"), code="context", scale=1.0).encode(f32(*range(13)))
    assert payload.codec.decode(payload, 13).max() == 12
    for style in ("fn", "ieee"):
        narrow = codec_of(MiniFloat("e2m1", style), code="context", scale=1.0)
        with pytest.raises(gcodec.FormatError):
            narrow.decode(payload._replace(codec=narrow), 13)


def test_planes_end_within_the_payload() -> None:
    codec = codec_of(MiniFloat("e4m3"), code="planes", scale=1.0, table="empirical")
    with pytest.raises(Truncated, match="has 72 bits, its signs and mantissas 80"):
        codec.decode(bytes(9), 20, nbits=72)


def test_values_beyond_float16_leave_the_residual_unchanged() -> None:
    """The sum 80000 has the code of 90000, which float16 rounds to infinity."""
    codec = codec_of(MiniFloat("e2m1"), scale=30000.0)
    x, residual = np.float16([60000]), f32(20000)
    with pytest.raises(ParameterError, match="float16"):
        codec.quantize_residual(x, residual)
    assert residual.tolist() == [20000]
    codec.quantize_residual(x, residual, decay=0.5)
    assert residual.tolist() == [10000]


@each_format
def test_payloads_of_another_length(fmt: MiniFloat) -> None:
    codec = codec_of(fmt, scale=1.0)
    payload = codec.encode(np.ones(9, np.float32))
    for n, kind in ((8, Corrupt), (25, Truncated)):
        with pytest.raises(kind):
            codec.unpack(payload, n)
    spare = -payload.nbits % 8
    if spare:
        data = payload.data.copy()
        data[-1] |= 1
        with pytest.raises(Corrupt, match="padding"):
            codec.unpack(payload._replace(data=data), 9)


def test_example() -> None:
    codec = gcodec.parse("minifloat:scale=0.5,code=none")
    payload = codec.encode(f32(1, -0.6, 0.1, 6))
    assert payload.tobytes().hex(" ") == "29 07"
    assert codec.decode(payload, 4).tolist() == [1, -0.5, 0, 6]


# --- parameters ----------------------------------------------------------------------------------


def test_frames_contain_the_scale() -> None:
    x = np.random.default_rng(11).standard_normal(500, np.float32)
    for spec in ("minifloat:code=none", "minifloat:scale=gennorm,format=e3m2,code=none"):
        frame = gcodec.encode(x, spec)
        read = gcodec.Frame.from_bytes(frame)
        assert not read.codec.unresolved()
        scale = read.codec.scale
        assert scale == read.payload.scalars["scale"] > 0
        codes = expected_codes(x, np.float32(scale), read.codec._format)
        expected = expected_values(codes, np.float32(scale), read.codec._format)
        assert gs.same_bits(gcodec.decode(frame), expected)
    concatenated = reference_frame.parse(gcodec.encode(x, "minifloat:scale=0.5,code=none"))
    assert (concatenated["codec_id"], concatenated["params"]) == (8, bytes(3))
    assert concatenated["scalars"] == struct.pack("<f", 0.5) + b"\0"


@pytest.mark.parametrize("rule", ["histogram", "gennorm"])
@each_format
def test_automatic_scales(fmt: MiniFloat, rule: str) -> None:
    rng = np.random.default_rng(12)
    codec = codec_of(fmt, scale=rule)
    error_share = 1.0 if fmt.top == 1 else 0.5
    for magnitude in (1e-44, 1e-30, 1.0, 1e37):
        x = (rng.laplace(size=300).clip(-9, 9) * magnitude).astype(np.float32)
        decoded = codec.decode(codec.encode(x), x.size)
        assert np.isfinite(decoded).all()
        wide = x.astype(np.float64) / magnitude
        error = ((decoded.astype(np.float64) / magnitude - wide) ** 2).sum()
        assert error <= error_share * (wide**2).sum()
    zeros = codec.encode(np.zeros(9, np.float32))
    assert zeros.scalars["scale"] == 0
    assert not codec.decode(zeros, 9).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scale_of_a_sparse_tensor_is_that_of_all_values(dtype: type) -> None:
    """A sample of a large tensor may lack the few values that are not 0, in feedback too."""
    rng, n = np.random.default_rng(0), 3 * MANY
    x, at = np.zeros(n, dtype), rng.permutation(n)[:1000]
    x[at] = rng.laplace(size=1000)
    x[at[:3]] *= 40
    codec: Any = gcodec.parse("minifloat:code=none")
    nonzero = codec.quantize(x[at].astype(np.float32)).scale
    assert codec.quantize(x.astype(np.float32)).scale == pytest.approx(nonzero, rel=0.02)
    feedback = gcodec.Feedback(codec)
    feedback.compress("w", x)
    residual = feedback.residual("w")
    assert residual is not None
    total = np.roll(x, 5).astype(np.float32) + residual
    frame = gcodec.Frame.from_bytes(feedback.compress("w", np.roll(x, 5)))
    expected = codec.quantize(total[total != 0]).scale
    assert frame.payload.scalars["scale"] == pytest.approx(expected, rel=0.02)


def test_conflicting_parameters_are_refused() -> None:
    for fmt in ALL_FORMATS:
        if fmt.width > 4:
            with pytest.raises(ParameterError, match=r"code='pair': .*four bits"):
                codec_of(fmt, code="pair")
        else:
            assert codec_of(fmt, code="pair").code == "pair"
        if fmt != MiniFloat("e2m1", "ieee"):
            with pytest.raises(ParameterError, match="scale='co3'"):
                codec_of(fmt, scale="co3")
        top = float(top_scale(fmt))
        assert codec_of(fmt, scale=top).scale == pytest.approx(top)
        if top < LARGEST:
            with pytest.raises(ParameterError, match=r"scale=.* float32 holds"):
                codec_of(fmt, scale=np.nextafter(np.float32(top), np.float32(np.inf)))
    assert codec_of(MiniFloat("e2m1", "ieee"), scale="co3").scale == "co3"
    for scale in (-1.0, math.nan, math.inf, "auto"):
        with pytest.raises(ParameterError, match="scale="):
            codec_of(MiniFloat("e2m1"), scale=scale)
    with pytest.raises(ParameterError, match="block=-1"):
        codec_of(MiniFloat("e2m1"), block=-1)


def test_tables() -> None:
    kind = {d.name: d.kind for d in gcodec.parse("minifloat").declared()}["table"]
    for value, data in (("empirical", b"\0"), (0, b"\1"), (126, b"\x7f"), (127, b"\x80\1")):
        assert kind.write(value) == data
    for value in ("empirical", 0, 11):
        assert gcodec.parse(f"minifloat:table={value}").table == value
    with pytest.raises(ParameterError, match="table=12: must be a codebook from 0 to 11"):
        gcodec.parse("minifloat:table=12")
    assert kind.nbytes == len(kind.write(2**32)) == 5
    for value in (-1, 2**32 + 1, "none", 1.0, True, None):
        with pytest.raises(ParameterError, match="auto or gennorm or empirical or an integer"):
            codec_of(MiniFloat("e2m1"), code="auto", table=value)
    with pytest.raises(ParameterError, match="table="):
        gcodec.parse("minifloat:table=x")
    # Codes without an entropy code need no table.
    for table in ("gennorm", "3"):
        plain = gcodec.parse(f"minifloat:code=none,table={table}")
        assert plain == gcodec.parse("minifloat:code=none")


@pytest.mark.parametrize("format", ["e1m1", "e2m1", "e3m0"])
@pytest.mark.parametrize("share", [1e-3, 1e-2, 1])
def test_near_the_entropy(format: str, share: float) -> None:
    """The payload exceeds the entropy by at most 1 % and 2500 bits, however sparse the codes."""
    rng = np.random.default_rng(3)
    x = np.where(rng.random(1_000_000) < share, rng.laplace(size=1_000_000), 0).astype(np.float32)
    codec = gcodec.parse(f"minifloat:format={format}")
    symbols = codec.quantize(x)
    codes = np.stack([symbols.codes >> 4, symbols.codes & 15])
    counts = np.unique(codes, return_counts=True)[1]
    entropy = float(counts @ np.log2(x.size / counts))
    assert codec.pack(symbols).nbits < 1.01 * entropy + 2500


@pytest.mark.parametrize(
    ("params", "scalars"),
    [
        (b"\0\0\0", struct.pack("<f", -1) + b"\0"),
        (b"\0\0\0", struct.pack("<f", math.nan) + b"\0"),
        (b"\0\0\0", struct.pack("<f", 3e38) + b"\0"),  # The product with 12 is infinite.
        # The payload has a table although its codes have no entropy code.
        (b"\0\0\0", struct.pack("<f", 1) + b"\1"),
        (b"\0\0\0", struct.pack("<f", 1) + b"\x82\x80\x80\x80\x10"),
        (b"\6\0\2", struct.pack("<f", 1) + b"\0"),  # Pairs of codes of eight bits.
        (b"\0\0", struct.pack("<f", 1) + b"\0"),  # The code is missing.
    ],
)
def test_hostile_headers(params: bytes, scalars: bytes) -> None:
    frame = reference_frame.build(8, 1, (2,), params, scalars, b"\x12", 8)
    with pytest.raises(Corrupt):
        gcodec.decode(frame)
    good = reference_frame.build(8, 1, (2,), b"\0\0\0", struct.pack("<f", 1) + b"\0", b"\x12", 8)
    assert gcodec.decode(good).tolist() == [1, 2]


def test_a_scale_of_minus_zero() -> None:
    codec = gcodec.parse("minifloat:scale=-0.0,code=none")
    residual = f32(-0.0, 2)
    assert not codec.quantize_residual(f32(-0.0, 1), residual).codes.any()
    assert gs.same_bits(residual, f32(-0.0, 3))
    assert gs.same_bits(codec.decode(b"\x0f", 2), f32(0, -0.0))


# --- laws ----------------------------------------------------------------------------------------


@given(
    gs.gradients(),
    st.sampled_from(ALL_FORMATS),
    st.sampled_from([1e-45, 1e-38, 1e-3, 0.3, 1e4, 1e28]),
)
def test_error_is_at_most_that_of_zeros(x: np.ndarray, fmt: MiniFloat, scale: float) -> None:
    codec = codec_of(fmt, scale=scale)
    assert codec.variance(x.size) == 1
    decoded = codec.decode(codec.encode(x), x.size).astype(np.float64)
    error = np.abs(decoded - x.astype(np.float64))
    assert np.all(error <= np.abs(x.astype(np.float64)) * (1 + 2.0**-22))


@given(st.sampled_from(ALL_FORMATS), st.sampled_from([2.0**-126, 1e-30, 0.1, 1.0, 1e3]))
def test_magnitudes_round_trip(fmt: MiniFloat, scale: float) -> None:
    if fmt.magnitudes()[1] * np.float32(scale) < 2.0**-126:
        return  # The magnitudes are too small to differ.
    codec = codec_of(fmt, scale=scale)
    values = expected_values(valid_codes(fmt), np.float32(scale), fmt)
    assert gs.same_bits(codec.decode(codec.encode(values), values.size), values)
