"""qsgd: zeros and extremes, code selection, bounds, refused inputs, and allocations."""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import strategies as gs
from reference import universal
from segments import split_inputs
from strategies import f32
from sweeps import LONG, thinned

import gcodec
from gcodec import Corrupt, FormatError, LimitExceeded, ParameterError, Truncated
from gcodec.kernels.prefix import sparse_string
from gcodec.payload import Payload
from gcodec.runtime import pool
from gcodec.wire.seek import SeekTable

LARGEST = float(np.finfo(np.float32).max)
CODES_AND_FORMS = [
    *(("omega", "dense"), ("omega", "sparse"), ("rice", "dense"), ("rice", "sparse")),
    ("packed", "dense"),
]
each_code_and_form = pytest.mark.parametrize(("code", "form"), CODES_AND_FORMS)


def qsgd(**values: Any) -> Any:
    return gcodec.parse({"name": "qsgd", **values})


def round_trip(codec: Any, x: np.ndarray) -> np.ndarray:
    """Encode and decode a tensor."""
    decoded: np.ndarray = codec.decode(codec.encode(x), x.size)
    return decoded


def all_codecs(n: int) -> list[Any]:
    """Return codecs of all codes and forms, with one norm and with several."""
    return [
        qsgd(s=s, form=form, code=code, bucket=bucket, norm=norm)
        for (code, form), (s, norm) in itertools.product(
            [*CODES_AND_FORMS, ("auto", "auto")], [(15, "l2"), (1, "max"), (1000, "max")]
        )
        for bucket in (0, max(n // 3, 1))
    ]


# --- zeros and few elements ----------------------------------------------------------------------


@each_code_and_form
def test_worked_example(code: str, form: str) -> None:
    """Levels 2, 0, −3, 0 of norm 5: r is 2.4 and 3.2, each rounded at random."""
    x = f32(3, 0, -4, 0)
    codec = qsgd(s=4, form=form, code=code)
    for seed in range(200):
        symbols = codec.quantize(x, seed=seed)
        if symbols.levels.tolist() == [4, 0, 7, 0]:
            break
    assert symbols.norms.tolist() == [5.0]
    payload = codec.pack(symbols)
    expected = {
        "omega dense": ("40a000006340", 47),
        "omega sparse": ("40a0000024e0", 44),
        "packed dense": ("40a000004050", 48),
    }
    if wanted := expected.get(f"{code} {form}"):
        assert (payload.tobytes().hex(), payload.nbits) == wanted
    assert codec.decode(payload, 4).tolist() == [2.5, 0, -3.75, 0]


def test_empty_tensor() -> None:
    for codec in all_codecs(0):
        payload = codec.encode(f32())
        assert (payload.nbits, payload.data.size, payload.seek) == (0, 0, None)
        assert not payload.codec.unresolved()
        assert codec.decode(payload, 0).shape == (0,)
        assert codec.decode(payload, (3, 0, 2)).shape == (3, 0, 2)
        symbols = codec.quantize(f32())
        assert symbols.norms.shape == symbols.levels.shape == (0,)
        with pytest.raises(Truncated):
            codec.decode(payload, 1)


def test_single_element_is_exact() -> None:
    """The level is s, up to a downward rounding of r."""
    for value in (1.0, -1.0, 3.5, 1e-3, -7e20, 2.0**-90, 2.0**-110, -1e-38):
        for s in (1, 2, 15, 128, 2**24):
            codec = qsgd(s=s)
            decoded = round_trip(codec, f32(value))
            # Rounding may lower r by one level only if s has about as many bits as float32.
            error = abs(float(decoded[0]) / float(np.float32(value)) - 1)
            assert error <= (1 / s if s > 2**20 else 0) + 2.0**-22
            assert np.signbit(decoded[0]) == np.signbit(np.float32(value))


@each_code_and_form
@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 4097])
def test_zeros_take_only_norms(code: str, form: str, n: int) -> None:
    for bucket in (0, 1, 5, 64, 2**62):
        codec = qsgd(form=form, code=code, bucket=bucket)
        for zero in (0.0, -0.0):
            payload = codec.encode(np.full(n, zero, np.float32))
            buckets = -(-n // min(bucket or n, n))
            assert payload.nbits == 32 * buckets
            assert payload.tobytes() == bytes(4 * buckets)
            assert all(value == 0 for value in payload.scalars.values())
            decoded = codec.decode(payload, n)
            assert gs.same_bits(decoded, np.zeros(n, np.float32))


@each_code_and_form
def test_zero_norm_buckets_have_no_codewords(code: str, form: str) -> None:
    rng = np.random.default_rng(0)
    for bucket, n in ((3, 100), (64, 1000), (100, 4097), (1000, 10_001)):
        x = rng.standard_normal(n).astype(np.float32)
        buckets = -(-n // bucket)
        for zero_buckets in ([0], [buckets - 1], [1, 2], range(0, buckets, 2), range(1, buckets)):
            y = x.copy()
            for b in zero_buckets:
                y[b * bucket : (b + 1) * bucket] = [0.0, -0.0][b % 2]
            codec = qsgd(s=300, form=form, code=code, bucket=bucket)
            payload = codec.encode(y)
            decoded = codec.decode(payload, n)
            norms = payload.data[: 4 * buckets].view(">f4")
            assert [b for b in range(buckets) if norms[b] == 0] == list(zero_buckets)
            for b in zero_buckets:
                part = decoded[b * bucket : (b + 1) * bucket]
                assert not part.any() and not np.signbit(part).any()
            sent = np.repeat(norms, bucket)[:n] != 0
            assert (np.abs(decoded[sent] - y[sent]) <= np.repeat(norms, bucket)[:n][sent]).all()
            if code == "packed":
                assert payload.nbits == 32 * buckets + 10 * int(sent.sum())
            symbols = codec.unpack(payload, n)
            again = codec.pack(symbols)
            assert again.tobytes() == payload.tobytes()


def test_negative_zeros_and_levels_of_zero_have_no_sign() -> None:
    x = np.full(5000, -1e-6, np.float32)
    x[::50] = 1
    x[1::50] = -0.0
    for s in (1, 3, 200):
        for code, form in CODES_AND_FORMS:
            codec = qsgd(s=s, norm="max", code=code, form=form)
            symbols = codec.quantize(x)
            assert 1 not in symbols.levels
            decoded = round_trip(codec, x)
            assert not np.signbit(decoded[decoded == 0]).any()
            assert not decoded[1::50].any()
            assert (decoded[::50] == 1).all()


def test_symbols_in_the_memory_of_the_result_are_not_overwritten() -> None:
    """The values of the first chunk, without silent buckets, take the place of its symbols."""
    codec = qsgd(bucket=512, form="dense", code="rans")
    x = np.random.default_rng(0).standard_normal(3 << 17, np.float32)
    x[-(1 << 16) :] = 0
    symbols = codec.quantize(x, seed=0)
    decoded = codec.decode(codec.encode(x, seed=0), x.size)
    assert gs.same_bits(decoded, codec.dequantize(symbols, x.size))


# --- magnitudes of values ------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-149, -140, -126, -125, -110, -101, -100, -99, -40, 0, 90])
def test_any_size_round_trips(exponent: int) -> None:
    """Errors are in proportion for all magnitudes, also subnormal ones and norms around 2^-100."""
    rng = np.random.default_rng(1)
    for bucket, s, norm in ((0, 15, "l2"), (50, 127, "max"), (7, 40_000, "l2")):
        values = np.ldexp(rng.standard_normal(400), max(exponent, -140))
        x = values.astype(np.float32)
        if exponent == -149:
            x = rng.integers(-2, 3, 400).astype(np.float32) * np.float32(1e-45)
        codec = qsgd(s=s, bucket=bucket, norm=norm)
        symbols = codec.quantize(x)
        norms = np.repeat(symbols.norms, bucket or 400)[:400].astype(np.float64)
        decoded = codec.dequantize(symbols, 400)
        assert gs.same_bits(decoded, round_trip(codec, x))
        step = norms / s
        error = np.abs(decoded.astype(np.float64) - x)
        assert (error <= step * (1 + 2.0**-20) + norms * 2.0**-21 + 2.0**-149).all()
        acc = np.ones(400, np.float32)
        gcodec.decode_add(gcodec.encode(x, codec), acc, 3.0)
        assert gs.same_bits(acc, np.float32(1) + np.float32(3) * decoded)


@pytest.mark.parametrize("norm", [2.0**-101, 2.0**-100 - 2.0**-125, 2.0**-100, 2.0**-99])
def test_both_ways_to_multiply_by_the_norm_meet(norm: float) -> None:
    """Below 2^-100, products are taken in float64 and rounded once."""
    x = f32(norm, -norm / 2, 0, norm / 4)
    assert gs.same_bits(round_trip(qsgd(s=4, norm="max"), np.tile(x, 20)), np.tile(x, 20))


def test_neighboring_buckets_of_all_magnitudes() -> None:
    rng = np.random.default_rng(2)
    sizes = 2.0 ** rng.integers(-149, 120, 300).repeat(8)
    with np.errstate(under="ignore"):
        x = (rng.standard_normal(2400) * sizes).astype(np.float32)
    x[rng.integers(0, 300, 40) * 8 + 3] = 0
    x[80:96] = 0
    for (code, form), s, norm in itertools.product(CODES_AND_FORMS, (3, 1000), ("l2", "max")):
        codec = qsgd(s=s, form=form, code=code, bucket=8, norm=norm)
        alone = qsgd(s=s, form="dense", bucket=0, norm=norm)
        decoded = round_trip(codec, x)
        symbols = codec.quantize(x)
        for b in range(0, 300, 17):
            part = x[8 * b : 8 * b + 8]
            assert gs.same_bits(symbols.norms[b : b + 1], alone.quantize(part).norms)
            wide = part.astype(np.float64)
            step = float(symbols.norms[b]) / s
            error = np.abs(decoded[8 * b : 8 * b + 8] - wide)
            rounding = float(symbols.norms[b]) * 2.0**-21 + 2.0**-149
            assert (error <= step * (1 + 2.0**-20) + rounding).all()


@pytest.mark.parametrize("norm", ["l2", "max"])
def test_norms_near_the_largest_float(norm: str) -> None:
    for s in range(1, 70):
        codec = qsgd(s=s, norm=norm)
        for value in (1e38, 3e38, LARGEST, -LARGEST):
            x = f32(value, 0, 0)
            try:
                decoded = round_trip(codec, x)
            except ParameterError:
                # The encoder refuses only where the level s would decode to infinity.
                with np.errstate(over="ignore"):
                    top = np.float32(s) * np.float32(abs(value) / s)
                assert np.isinf(top)
                continue
            assert np.isfinite(decoded).all()
            assert abs(decoded[0] / np.float32(value) - 1) < 1e-6


NORMS_BEYOND_FLOAT32 = [
    ("qsgd", f32(3e38, 3e38)),
    ("qsgd:form=sparse,code=rice", f32(*[1e38] * 30)),
    ("qsgd:bucket=2", f32(1, 1, 3e38, -3e38, 1)),
    ("qsgd:s=31,norm=max", f32(1, LARGEST)),
    ("qsgd:s=4096,code=auto", f32(*[-1e38] * 5000)),
]


@pytest.mark.parametrize(
    ("spec", "x"), NORMS_BEYOND_FLOAT32, ids=[spec for spec, _ in NORMS_BEYOND_FLOAT32]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_norms_beyond_float32_are_refused(spec: str, x: np.ndarray, dtype: str) -> None:
    codec = gcodec.parse(spec)
    assert codec.takes_up_to < np.abs(x).max()
    inputs = x.astype(gs.DTYPES[dtype])
    if not np.isfinite(inputs.astype(np.float32)).all():
        return  # The nearest value of this dtype is infinite.
    for call in (codec.encode, codec.quantize, lambda one: gcodec.encode(one, codec)):
        with pytest.raises(ParameterError, match="norm must not exceed float32"):
            call(inputs)
    residual = np.full(x.size, 0.25, np.float32)
    with pytest.raises(ParameterError, match="norm must not exceed float32"):
        codec.quantize_residual(inputs, residual)
    assert (residual == 0.25).all()
    # Here the sum of the gradient and the residual is too large.
    large = x.astype(np.float32)
    before = large.copy()
    with pytest.raises(ParameterError, match="float32"):
        codec.quantize_residual(np.zeros_like(inputs), large)
    assert gs.same_bits(large, before)
    feedback, twin = gcodec.Feedback(codec), gcodec.Feedback(codec)
    valid = np.linspace(-1, 1, x.size).astype(gs.DTYPES[dtype])
    assert feedback.compress("w", valid) == twin.compress("w", valid)
    residual_before = feedback.residual("w").copy()
    with pytest.raises(ParameterError, match="norm must not exceed float32"):
        feedback.compress("w", inputs)
    with pytest.raises(ParameterError, match="norm must not exceed float32"):
        feedback.compress("new", inputs)
    assert gs.same_bits(feedback.residual("w"), residual_before)
    assert feedback.compress("w", valid) == twin.compress("w", valid)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused(bad: float) -> None:
    for codec in all_codecs(900):
        for n, at in ((1, 0), (33, 32), (900, 450), (5000, 4999)):
            x = np.ones(n, np.float32)
            x[at] = bad
            for call in (codec.encode, codec.quantize):
                with pytest.raises(ParameterError, match="NaN or Inf"):
                    call(x)
        with pytest.raises(ParameterError, match="NaN or Inf"):
            gcodec.encode(x, codec, nonfinite="propagate")
        assert np.isfinite(gcodec.decode(gcodec.encode(x, codec, nonfinite="zero"))).all()


# --- levels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [1, 2, 15, 127, 128, 255, 256, 32767, 32768, 2**24 - 1, 2**24])
def test_no_level_exceeds_s(s: int) -> None:
    """No level exceeds s even if the norm is rounded down or s/N is rounded up."""
    rng = np.random.default_rng(s)
    wide = np.dtype(np.uint8 if s < 128 else np.uint16 if s < 32768 else np.uint32)
    for bucket in (1, 0):
        x = (rng.standard_normal(500) * 10.0 ** rng.integers(-20, 20, 500)).astype(np.float32)
        if not bucket:
            x[1:] = 0
        codec = qsgd(s=s, bucket=bucket)
        symbols = codec.quantize(x)
        assert symbols.levels.dtype == wide
        levels = symbols.levels >> 1
        assert s - (s > 2**20) <= levels.max() <= s
        assert (levels[x != 0] >= s - 1).all()
        for code, form in CODES_AND_FORMS:
            one = qsgd(s=s, bucket=bucket, code=code, form=form)
            payload = one.pack(symbols)
            actual = payload.codec.unpack(payload, 500)
            assert np.array_equal(actual.levels, symbols.levels)
            assert gs.same_bits(one.decode(payload, 500), codec.dequantize(symbols, 500))


@each_code_and_form
def test_neighboring_levels_of_all_sizes(code: str, form: str) -> None:
    """Levels lie around the ends of tables, and where a symbol no longer fits a byte."""
    edges = [*range(9), 30, 31, 32, 33, *range(125, 131), 254, 255, 256, 511, 512, 32767]
    rng = np.random.default_rng(3)
    for s in (127, 128, 300, 32767, 32768, 2**24):
        codec = qsgd(s=s, code=code, form=form, norm="max")
        allowed = [edge for edge in edges if edge <= s] + [s]
        for n in (1, 40, 3000):
            levels = 2 * rng.choice(allowed, n).astype(np.uint32)
            levels += (levels > 0) & (rng.random(n) < 0.5)
            symbols = codec.quantize(np.ones(n, np.float32))
            symbols = symbols._replace(levels=levels.astype(symbols.levels.dtype))
            payload = codec.pack(symbols)
            assert payload.nbits <= codec.max_payload_nbits(n)
            actual = payload.codec.unpack(payload, n)
            assert actual.levels.dtype == symbols.levels.dtype
            assert np.array_equal(actual.levels, symbols.levels)


def test_invalid_symbols_are_refused() -> None:
    """The codewords of invalid symbols would be those of other symbols."""
    for code, form in CODES_AND_FORMS:
        codec = qsgd(s=15, code=code, form=form)
        good = codec.quantize(np.ones(100, np.float32))
        for wrong in (1, 32, 33, 255):
            levels = good.levels.copy()
            levels[50] = wrong
            with pytest.raises(ParameterError, match="symbols"):
                codec.pack(good._replace(levels=levels))
        for levels in (good.levels.astype(np.uint16), good.levels.astype(np.int8)):
            with pytest.raises(ParameterError, match="symbols"):
                codec.pack(good._replace(levels=levels))
            with pytest.raises(ParameterError, match="symbols"):
                codec.dequantize(good._replace(levels=levels), 100)
        for norms in (good.norms[:0], np.ones(2, np.float32)):
            with pytest.raises(ParameterError, match="symbols"):
                codec.pack(good._replace(norms=norms))
            with pytest.raises(ParameterError, match="symbols"):
                codec.dequantize(good._replace(norms=norms), 100)


def test_bytes_depend_on_seed_and_not_on_prior() -> None:
    x = np.random.default_rng(4).standard_normal(2000, np.float32)
    for codec in all_codecs(2000):
        payloads = {codec.encode(x, seed=seed).tobytes() for seed in (0, 1, 2**32, 2**64 - 1)}
        assert len(payloads) == 4 or (codec.s == 1 and len(payloads) > 1)
        prior = codec.quantize(-x, seed=3)
        first = codec.encode(x, seed=5)
        assert codec.encode(x, seed=5, prior=prior).tobytes() == first.tobytes()
        assert codec.encode(x, seed=5).tobytes() == first.tobytes()
        symbols = codec.quantize(x, seed=5, prior=prior)
        assert codec.pack(symbols).tobytes() == first.tobytes()


@pytest.mark.parametrize("bucket", [1, 2, 31, 33, 100, 4097, 5000, 2**40, 2**62])
def test_buckets_are_independent(bucket: int) -> None:
    """Buckets are independent, except for the random words of their elements."""
    rng = np.random.default_rng(5)
    n = 5000
    x = rng.standard_normal(n).astype(np.float32)
    for norm in ("l2", "max"):
        codec = qsgd(s=200, bucket=bucket, norm=norm)
        symbols = codec.quantize(x)
        size = min(bucket, n)
        assert symbols.norms.size == -(-n // size)
        for b in {0, symbols.norms.size // 2, symbols.norms.size - 1}:
            part = x[b * size : (b + 1) * size]
            alone = qsgd(s=200, norm=norm).quantize(part)
            assert gs.same_bits(symbols.norms[b : b + 1], alone.norms)
        for code, form in CODES_AND_FORMS:
            one = qsgd(s=200, bucket=bucket, norm=norm, code=code, form=form)
            payload = one.encode(x)
            assert np.array_equal(one.unpack(payload, n).levels, symbols.levels)
        if bucket >= n:
            assert codec.encode(x).tobytes() == qsgd(s=200, norm=norm).encode(x).tobytes()


# --- frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", gs.DTYPES)
def test_frames_of_all_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((30, 41)).astype(gs.DTYPES[dtype])
    for codec in all_codecs(x.size):
        frame = gcodec.encode(x, codec, seed=9)
        decoded = gcodec.decode(frame)
        assert (decoded.shape, decoded.dtype) == (x.shape, x.dtype)
        wide = x.astype(np.float32)
        expected = codec.decode(codec.encode(wide, seed=9), x.shape)
        assert gs.same_bits(decoded, expected.astype(x.dtype))
        out = np.full_like(x, 7)
        assert gcodec.decode(frame, out=out) is out
        assert gs.same_bits(out, decoded)
        like = gcodec.decode(frame, like=np.empty(x.shape, np.float32))
        assert gs.same_bits(like, decoded.astype(np.float32))
        acc = rng.standard_normal(x.shape).astype(np.float32)
        with np.errstate(all="ignore"):
            sums = acc + np.float32(0.3) * decoded.astype(np.float32)
        gcodec.decode_add(frame, acc, 0.3)
        assert gs.same_bits(acc, sums)


def test_float16_rounds_decoded_values() -> None:
    x = np.full(1000, 6e4, np.float16)
    decoded = gcodec.decode(gcodec.encode(x, "qsgd:norm=max"))
    assert (decoded == x).all()
    # The level above 60000 may exceed 65504, the largest float16.
    feedback = gcodec.Feedback("qsgd:s=2")
    grad = np.array([6.5e4, 6.5e4, 6.5e4], np.float16)
    residuals = []
    for _ in range(20):
        try:
            feedback.compress("w", grad)
        except ParameterError:
            continue
        residuals.append(feedback.residual("w").copy())
    assert all(np.isfinite(residual).all() for residual in residuals)


@pytest.mark.parametrize("scale", [1.0, -1.0, -0.5, 0.0, 1e38, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("size", [1.0, 1e-32, 1e-38, 1e-44])
def test_decode_add_is_the_composition(size: float, scale: float) -> None:
    """`decode_add` adds the decoded tensor also where the kernel multiplies in float64."""
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        x = (rng.standard_normal(200) * size).astype(np.float32)
    x[50:100] = 0
    x[150:] *= np.float32(1e30) if size < 1 else 1
    acc = np.resize(f32(-0.0, 0.0, 1.5), 200)
    for s, bucket in itertools.product((3, 500, 2**20), (0, 10, 50)):
        frame = gcodec.encode(x, qsgd(s=s, bucket=bucket))
        with np.errstate(all="ignore"):
            expected = acc + np.float32(scale) * gcodec.decode(frame)
        actual = acc.copy()
        gcodec.decode_add(frame, actual, scale)
        assert gs.same_bits(actual, expected)


@pytest.mark.parametrize("scale", [math.inf, math.nan, 3e38])
def test_infinite_sums_warn_in_no_thread(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms below 2^-100 take another path than the kernel."""
    split_inputs(monkeypatch, 64, "3")
    monkeypatch.setattr(pool, "_CONVERTED", 1)
    x = np.tile(f32(0, 1e-40, -1e-40, 2e-40), 1000)
    frame, total = gcodec.encode(x, "qsgd:bucket=100"), np.full(x.size, LARGEST, np.float32)
    with np.errstate(all="ignore"):
        expected = total + np.float32(scale) * gcodec.decode(frame)
    gcodec.decode_add(frame, total, scale)
    assert gs.same_bits(total, expected)


@pytest.mark.parametrize("spec", ["qsgd", "qsgd:s=5,bucket=64,code=auto", "qsgd:s=500,norm=max"])
def test_feedback(spec: str) -> None:
    """Sent and residual tensors add up to the gradients, so in the end all of it arrives."""
    rng = np.random.default_rng(8)
    grad = (rng.standard_normal(300) * 10.0 ** rng.integers(-3, 1, 300)).astype(np.float32)
    feedback = gcodec.Feedback(spec, seed=1)
    total = np.zeros(300)
    for _ in range(200):
        total += gcodec.decode(feedback.compress("w", grad)).astype(np.float64)
    residual = feedback.residual("w").astype(np.float64)
    assert np.allclose(total + residual, 200.0 * grad, atol=1e-3)


# --- code selection ------------------------------------------------------------------------------


def sample_tensors() -> list[np.ndarray]:
    """Return tensors that favor different codes and forms."""
    rng = np.random.default_rng(9)
    actual = [rng.standard_normal(n).astype(np.float32) for n in (1, 2, 3, 10, 100, 4097)]
    shares = (0.5, 0.1, 0.01, 0.001)
    actual += [np.where(rng.random(5000) < share, 1, 0).astype(np.float32) for share in shares]
    actual.append((rng.standard_t(1.2, 5000)).astype(np.float32))
    blocks = rng.standard_normal(6400).astype(np.float32)
    blocks.reshape(100, 64)[rng.random(100) < 0.7] = 0
    actual += [blocks, np.ones(3000, np.float32), f32(1, *[0] * 999), -np.ones(70, np.float32)]
    return actual


@pytest.mark.parametrize(
    ("s", "bucket"),
    thinned(itertools.product([1, 2, 4, 15, 127, 128, 1000, 40_000, 2**24], [0, 64]), 5),
)
def test_auto_selects_the_shortest(s: int, bucket: int) -> None:
    """`auto` selects the shortest payload, and the first of equally short ones."""
    for x, norm in itertools.product(sample_tensors(), ("l2", "max")):
        results = {}
        tabled = [(code, "dense") for code in ("huffman", "rans", "context") if s <= 127]
        candidates = [*CODES_AND_FORMS, *tabled]
        for code, form in candidates:
            codec = qsgd(s=s, bucket=bucket, norm=norm, code=code, form=form)
            results[code, form] = codec.encode(x)
        for code, form in itertools.product(("omega", "rice", "packed", "auto"), ("auto", "x")):
            if form == "x":
                if code != "auto":
                    continue
                choices = [("auto", "dense"), ("auto", "sparse")]
            else:
                choices = [(code, form)]
            for setting in choices:
                allowed = [
                    one
                    for one in candidates
                    if all(c in (a, "auto") for a, c in zip(one, setting, strict=True))
                ]
                codec = qsgd(s=s, bucket=bucket, norm=norm, code=setting[0], form=setting[1])
                payload = codec.encode(x)
                best = min(allowed, key=lambda one: results[one].nbits)
                best_nbits = results[best].nbits
                selected = payload.codec.code, payload.codec.form
                # The encoder estimates the length of these codes.
                if selected != best and {"rans", "context"} & {selected[0], best[0]}:
                    assert payload.nbits <= 1.001 * best_nbits + 64
                    best = selected
                assert selected == best
                assert payload.tobytes() == results[best].tobytes()
                assert payload.scalars == results[best].scalars
                assert payload.nbits <= codec.max_payload_nbits(x.size)


def test_rice_parameters_are_optimal() -> None:
    """The encoder takes the least parameter with the shortest string, for levels and gaps."""
    for x, (s, bucket) in itertools.product(
        sample_tensors(), ((1, 0), (15, 64), (127, 0), (500, 0), (2**24, 64))
    ):
        if x.size > 2000:
            x = x[:2000]
        symbols = qsgd(s=s, bucket=bucket).quantize(x)
        levels = symbols.levels.astype(np.int64) >> 1
        coded_mask = np.repeat(symbols.norms, min(bucket, x.size) or x.size)[: x.size] != 0
        z = np.where(symbols.levels & 1, 2 * levels - 1, 2 * levels)[coded_mask]
        places = np.flatnonzero(levels)
        numbers = {
            "dense": [z],
            "sparse": [levels[places] - 1, np.diff(places, prepend=-1) - 1],
        }
        for form, columns in numbers.items():
            best = []
            for column in columns:
                lengths = [int((column >> k).sum()) + column.size * (1 + k) for k in range(48)]
                best.append(lengths.index(min(lengths)))
            payload = qsgd(s=s, bucket=bucket, code="rice", form=form).pack(symbols)
            assert list(payload.scalars.values()) == best
            assert list(payload.scalars) == ["rice", "rice_gap"][: len(best)]


ADVERSARIAL: dict[str, Callable[[int], np.ndarray]] = {
    "equal": lambda n: np.ones(n, np.float32),
    "negative": lambda n: np.full(n, -3.0, np.float32),
    "one": lambda n: np.where(np.arange(n) == n // 2, 1, 0).astype(np.float32),
    "last": lambda n: np.where(np.arange(n) == n - 1, -1, 0).astype(np.float32),
    "alternating": lambda n: np.where(np.arange(n) % 2, -1, 0).astype(np.float32),
    "signs": lambda n: np.where(np.arange(n) % 2, -1, 1).astype(np.float32),
    "extremes": lambda n: np.where(np.arange(n) % 2, 1, 1e-7).astype(np.float32),
    "mixed": lambda n: (2.0 ** -(np.arange(n) % 25)).astype(np.float32),
    "every third": lambda n: np.where(np.arange(n) % 3, 0, -1).astype(np.float32),
}


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_payload_bound_holds(kind: str) -> None:
    forms = [
        *CODES_AND_FORMS,
        ("auto", "auto"),
        ("auto", "dense"),
        ("auto", "sparse"),
        ("rice", "auto"),
    ]
    levels = (1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 127, 128, 1000, 65_535, 2**24)
    scales, sizes = ((0, "max"), (1, "l2"), (64, "max"), (0, "l2")), (1, 2, 3, 65, 500)
    for s, (code, form), n, (bucket, norm) in thinned(
        itertools.product(levels, forms, sizes, scales), 29
    ):
        codec = qsgd(s=s, form=form, code=code, bucket=bucket, norm=norm)
        assert codec.encode(ADVERSARIAL[kind](n)).nbits <= codec.max_payload_nbits(n)


def test_frame_bound_holds_with_seek_table() -> None:
    rng = np.random.default_rng(10)
    for n in (1 << 16, (1 << 16) + 1, 200_000):
        for x in (np.ones(n, np.float32), rng.standard_normal(n, np.float32)):
            for code, form in [*CODES_AND_FORMS, ("auto", "auto"), ("auto", "sparse")]:
                codec = qsgd(form=form, code=code, norm="max")
                frame = gcodec.encode(x, codec, name="w" * 100)
                assert len(frame) <= codec.max_encoded_nbytes(n, "w" * 100)


# --- refused inputs ------------------------------------------------------------------------------


def test_wrong_parameters_are_refused() -> None:
    for values, match in (
        ({"s": 0}, "s=0: must be an integer from 1"),
        ({"s": 2**24 + 1}, "s=16777217"),
        ({"s": 1.5}, r"s=1\.5"),
        ({"form": "gaps"}, "form='gaps'"),
        ({"bucket": -1}, "bucket=-1"),
        ({"bucket": 2**62 + 1}, "bucket="),
        ({"norm": "l1"}, "norm='l1'"),
        ({"code": "gamma"}, "code='gamma'"),
        ({"form": "sparse", "code": "packed"}, "form='sparse'"),
        ({"rice": 3}, "rice"),
    ):
        with pytest.raises(ParameterError, match=match):
            qsgd(**values)


NORM = struct.pack(">f", 1.0)


def norm_bytes(*norms: float) -> bytes:
    return struct.pack(f">{len(norms)}f", *norms)


def payload_of(
    codec: Any, norms: bytes, text: str, nbits: int | None = None, **scalars: int
) -> Payload:
    data = np.frombuffer(norms + universal.to_bytes(text), np.uint8)
    nbits = 8 * len(norms) + len(text) if nbits is None else nbits
    return Payload(codec, scalars, data, nbits)


OMEGA_DENSE = qsgd(s=4, form="dense")
OMEGA_SPARSE = qsgd(s=4, form="sparse")
RICE_DENSE = qsgd(s=4, form="dense", code="rice")
RICE_SPARSE = qsgd(s=4, form="sparse", code="rice")
PACKED = qsgd(s=4, code="packed", form="dense")
DENSE_RICE, SPARSE_RICE = {"rice": 1}, {"rice": 1, "rice_gap": 1}
omega, rice = universal.omega, universal.rice

HOSTILE: dict[str, tuple[type[FormatError], Payload, int]] = {
    "norm NaN": (Corrupt, payload_of(OMEGA_DENSE, norm_bytes(math.nan), "0" + omega(1)), 1),
    "norm Inf": (Corrupt, payload_of(OMEGA_DENSE, norm_bytes(math.inf), "0" + omega(1)), 1),
    "norm negative": (Corrupt, payload_of(OMEGA_DENSE, norm_bytes(-1), "0" + omega(1)), 1),
    "norm -0": (Corrupt, payload_of(OMEGA_DENSE, norm_bytes(-0.0), ""), 1),
    "norm cut": (Truncated, payload_of(OMEGA_DENSE, NORM[:3], ""), 1),
    "no norm": (Truncated, payload_of(OMEGA_DENSE, b"", ""), 1),
    "norm for nothing": (Corrupt, payload_of(OMEGA_DENSE, NORM, ""), 0),
    "bits for nothing": (Corrupt, payload_of(OMEGA_SPARSE, b"", omega(1) + "0" + omega(1)), 0),
    "level 5": (Corrupt, payload_of(OMEGA_DENSE, NORM, "0" + omega(6)), 1),
    "level 2^40": (Corrupt, payload_of(OMEGA_DENSE, NORM, "0" + omega(2**40)), 1),
    "sign of 0": (Corrupt, payload_of(OMEGA_DENSE, NORM, "1" + omega(1)), 1),
    "sign of a later 0": (
        Corrupt,
        payload_of(OMEGA_DENSE, NORM, ("0" + omega(1)) * 300 + "1" + omega(1)),
        301,
    ),
    "bits in a zero-norm bucket": (Corrupt, payload_of(OMEGA_DENSE, bytes(4), "0" + omega(1)), 1),
    "too few codewords": (Truncated, payload_of(OMEGA_DENSE, NORM, "0" + omega(1)), 2),
    "half a codeword": (Truncated, payload_of(OMEGA_DENSE, NORM, "0" + omega(5)[:-1]), 1),
    "extra codewords": (Corrupt, payload_of(OMEGA_DENSE, NORM, ("0" + omega(1)) * 3), 2),
    "an extra bit": (Corrupt, payload_of(OMEGA_DENSE, NORM, "0" + omega(1) + "0"), 1),
    "padding": (Corrupt, payload_of(OMEGA_DENSE, NORM, "00" + "000001", 34), 1),
    "65 bits": (Corrupt, payload_of(OMEGA_DENSE, NORM, "010111111" + "1" * 6 + "1" * 70), 1),
    "65 bits of a gap": (
        Corrupt,
        payload_of(OMEGA_SPARSE, NORM, "10" + "110" + "1000000" + "1" * 100),
        9,
    ),
    "gap past n": (Corrupt, payload_of(OMEGA_SPARSE, NORM, omega(10) + "0" + omega(1)), 9),
    "gap of 2^63": (Corrupt, payload_of(OMEGA_SPARSE, NORM, omega(2**63) + "0" + omega(1)), 9),
    "gap of 2^64 - 1": (
        Corrupt,
        payload_of(OMEGA_SPARSE, NORM, omega(2**64 - 1) + "0" + omega(1)),
        9,
    ),
    "gaps that wrap": (
        Corrupt,
        payload_of(OMEGA_SPARSE, NORM, (omega(2**63 - 1) + "0" + omega(1)) * 3),
        9,
    ),
    "sparse level 5": (Corrupt, payload_of(OMEGA_SPARSE, NORM, omega(1) + "0" + omega(5)), 9),
    "sparse half a codeword": (Truncated, payload_of(OMEGA_SPARSE, NORM, omega(4) + "0" + "1"), 9),
    "sparse padding": (
        Corrupt,
        payload_of(OMEGA_SPARSE, NORM, omega(1) + "0" + omega(1) + "10000", 35),
        9,
    ),
    "a value in a zero-norm bucket": (
        Corrupt,
        payload_of(qsgd(s=4, form="sparse", bucket=4), bytes(4) + NORM, omega(2) + "0" + omega(1)),
        8,
    ),
    "rice level 5": (Corrupt, payload_of(RICE_DENSE, NORM, rice(10, 1), **DENSE_RICE), 1),
    "rice z of 2s": (Corrupt, payload_of(RICE_DENSE, NORM, rice(9, 1), **DENSE_RICE), 1),
    "rice half a codeword": (Truncated, payload_of(RICE_DENSE, NORM, "001", **DENSE_RICE), 1),
    "rice sparse level 5": (
        Corrupt,
        payload_of(RICE_SPARSE, NORM, rice(0, 1) + "0" + rice(4, 1), **SPARSE_RICE),
        3,
    ),
    "rice gap past n": (
        Corrupt,
        payload_of(RICE_SPARSE, NORM, rice(3, 1) + "0" + rice(0, 1), **SPARSE_RICE),
        3,
    ),
    "rice gap that wraps": (
        Corrupt,
        payload_of(RICE_SPARSE, NORM, "0" * 65_535 + "1" + "1" * 47, rice=0, rice_gap=47),
        3,
    ),
    "packed level 5": (Corrupt, payload_of(PACKED, NORM, "1010"), 1),
    "packed z of 2s + 1": (Corrupt, payload_of(PACKED, NORM, "1001"), 1),
    "packed cut": (Truncated, payload_of(PACKED, NORM, "0001"), 2),
    "packed extra bits": (Corrupt, payload_of(PACKED, NORM, "00010000"), 1),
}


@pytest.fixture(params=["1", "3"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Split short inputs among one or three threads."""
    split_inputs(monkeypatch, 1 << 12, request.param)
    monkeypatch.setattr(sparse_string, "_READ", 1 << 12)
    return str(request.param)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads(name: str, threads: str) -> None:
    kind, payload, n = HOSTILE[name]
    codec = payload.codec
    for call in (codec.decode, codec.unpack):
        with pytest.raises(FormatError) as caught:
            call(payload, n)
        assert caught.type is kind
    if payload.nbits % 8 == 0 or kind is Truncated:
        with pytest.raises(FormatError):
            codec.decode(payload.tobytes(), n, nbits=payload.nbits, **payload.scalars)
    nbits = payload.nbits - 32
    for lengths, advances in (([max(nbits, 1)], [n]), ([max(nbits, 1)], None)):
        columns = [np.array(one, np.uint64) for one in (lengths, advances) if one is not None]
        table = SeekTable(12, *columns)
        with pytest.raises(FormatError):
            codec.decode(payload._replace(seek=table), n)


@each_code_and_form
def test_flipped_bits_change_values_or_are_refused(code: str, form: str, threads: str) -> None:
    """Decoding with and without a seek table gives the same values, or refuses."""
    rng = np.random.default_rng(11)
    x = np.where(rng.random(150) < 0.5, rng.standard_normal(150), 0).astype(np.float32)
    x[32:64] = 0
    codec = qsgd(s=20, code=code, form=form, bucket=32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec)).with_seek(3)
    payload = frame.payload
    good, symbols = codec.decode(payload, 150), codec.unpack(payload, 150)
    assert gs.same_bits(good, codec.decode(payload._replace(seek=None), 150))
    first = 0 if LONG or threads == "1" else 3  # several threads decode with other bits flipped
    for bit in thinned(range(first, payload.nbits), 5):
        data = payload.data.copy()
        data[bit // 8] ^= 1 << (7 - bit % 8)
        changed = payload._replace(data=data)
        plain: Any = None
        try:
            plain = codec.decode(changed._replace(seek=None), 150)
        except FormatError:
            pass
        else:
            actual = codec.unpack(changed._replace(seek=None), 150)
            pairs = zip(actual, symbols, strict=True)
            assert not all(one.tobytes() == other.tobytes() for one, other in pairs)
        try:
            actual = codec.decode(changed, 150)
        except FormatError:
            continue
        assert plain is not None and gs.same_bits(actual, plain)


@each_code_and_form
@pytest.mark.parametrize("size", [7000, 30_000])
def test_every_truncation_is_refused(code: str, form: str, size: int, threads: str) -> None:
    """Errors may lie far inside a string, in any of the parts that threads read at once."""
    rng = np.random.default_rng(12)
    x = np.where(rng.random(size) < 0.3, rng.standard_normal(size), 0).astype(np.float32)
    codec = qsgd(code=code, form=form, s=200, bucket=size // 3)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec)).with_seek(6)
    payload = frame.payload
    good = gcodec.decode(frame.to_bytes())
    assert gs.same_bits(codec.decode(payload, size), good)
    for nbits in rng.integers(0, payload.nbits, 40).tolist():
        data = payload.data[: -(-nbits // 8)].copy()
        if nbits % 8:
            data[-1] &= 0xFF << (8 - nbits % 8) & 0xFF
        cut = payload._replace(data=data, nbits=nbits)
        if payload.seek is not None:
            with pytest.raises(Corrupt):
                codec.decode(cut, size)
        try:
            decoded = codec.decode(cut._replace(seek=None), size)
        except FormatError as error:
            assert type(error) is Truncated
            continue
        assert form == "sparse"  # A sparse string may end after any run–level pair.
        last = int(np.flatnonzero(decoded)[-1]) if decoded.any() else -1
        assert gs.same_bits(decoded[: last + 1], good[: last + 1])


@each_code_and_form
def test_wrong_seek_tables_are_refused(code: str, form: str, threads: str) -> None:
    rng = np.random.default_rng(13)
    x = np.where(rng.random(6000) < 0.5, rng.standard_normal(6000), 0).astype(np.float32)
    x[1000:1500] = 0
    codec = qsgd(code=code, form=form, s=200, bucket=500)
    for log2_block in (2, 5, 8):
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec)).with_seek(log2_block)
        table = frame.payload.seek
        if table is None:
            assert frame.codec.seek_blocks is None
            continue
        columns = [one for one in (table.lengths, table.advances) if one is not None]
        for column, _ in itertools.product(range(len(columns)), thinned(range(60), 3)):
            changed = [one.copy() for one in columns]
            i, j = rng.choice(table.count, 2, replace=False)
            step = np.uint64(rng.integers(0, changed[column][i], endpoint=True) or 1)
            if step > changed[column][i]:
                continue
            changed[column][i] -= step
            changed[column][j] += step
            if np.array_equal(changed[column], columns[column]):
                continue
            wrong = SeekTable(log2_block, *changed)
            with pytest.raises(Corrupt):
                codec.decode(frame.payload._replace(seek=wrong), 6000)
        for other in (5999, 6001, 12_000):
            with pytest.raises(FormatError):
                codec.decode(frame.payload, other)


@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x55, 0x80])
@each_code_and_form
def test_hostile_megabytes_are_refused_fast(
    code: str, form: str, fill: int, with_table: bool, threads: str
) -> None:
    """A quadratic reader would take hours for unended runs of zeros, or one-bit codewords."""
    if code == "packed" and with_table:
        return
    size = 1 << 20
    data = np.full(4 + size, fill, np.uint8)
    data[:4] = [0x3F, 0x80, 0, 0]
    nbits = 32 + 8 * size
    for s, parameter in ((1, 0), (2**24, 0), (2**24, 47)):
        codec = qsgd(s=s, code=code, form=form)
        scalars = {name.name: parameter for name in codec.scalar_fields()}
        for n in (10, 1 << 18):
            payload = Payload(codec, scalars, data, nbits)
            if with_table:
                count = 1 << 8
                lengths = np.full(count, 8 * size // count, np.uint64)
                advances = np.full(count, n // count, np.uint64)
                columns = [lengths] if form == "dense" else [lengths, advances]
                log2_block = (n // count).bit_length() - 1 if n >= count else 0
                payload = payload._replace(seek=SeekTable(max(log2_block, 0), *columns))
            with contextlib.suppress(FormatError):
                codec.decode(payload, n)


def test_limits_refuse_shapes() -> None:
    """Decoding refuses large shapes before it allocates memory for them."""
    frame = gcodec.encode(f32(*[0] * 1000), "qsgd:form=sparse")
    with pytest.raises(LimitExceeded):
        gcodec.decode(frame, limits=gcodec.Limits(max_elements=999))
    with pytest.raises(LimitExceeded):
        gcodec.decode(frame, limits=gcodec.Limits(max_bytes=3999))
    from reference import frame as reference_frame

    for form in ("dense", "sparse"):
        codec = qsgd(form=form)
        data = reference_frame.build(
            *(2, 1, (2**40,), codec.write_parameters(), b"", NORM + b"\0", 40)
        )
        tracemalloc.start()
        try:
            with pytest.raises(LimitExceeded):
                gcodec.decode(data)
            limits = gcodec.Limits(1 << 62, 1 << 62)
            # Parsing a frame allocates nothing for its elements.
            assert gcodec.Frame.from_bytes(data, limits=limits).size == 2**40
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


def test_too_few_bits_are_refused_before_allocation() -> None:
    """A dense codeword has a least length, and each bucket has a norm."""
    n = 1 << 26
    for codec, scalars in (
        *((OMEGA_DENSE, {}), (PACKED, {}), (RICE_DENSE, {"rice": 5})),
        (qsgd(form="sparse", bucket=2), {}),
    ):
        payload = Payload(codec, scalars, np.frombuffer(NORM + bytes(100), np.uint8), 832)
        tracemalloc.start()
        try:
            with pytest.raises(Truncated):
                codec.decode(payload, n)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


# --- bare bytes ---------------------------------------------------------------------------------


@each_code_and_form
def test_bare_bytes(code: str, form: str) -> None:
    rng = np.random.default_rng(14)
    for n, bucket in ((1, 0), (7, 0), (100, 30), (5000, 64)):
        x = rng.standard_normal(n).astype(np.float32)
        x[: bucket or 0] = 0
        codec = qsgd(code=code, form=form, bucket=bucket)
        payload = codec.encode(x)
        raw = payload.tobytes()
        expected = codec.decode(payload, n)
        if form == "sparse":
            with pytest.raises(ParameterError, match="nbits"):
                codec.decode(raw, n, **payload.scalars)
        else:
            assert gs.same_bits(codec.decode(raw, n, **payload.scalars), expected)
            for extra in (b"\0", b"\0" * 9, b"\x80"):
                with pytest.raises(FormatError):
                    codec.decode(raw + extra, n, **payload.scalars)
            with pytest.raises(Truncated):
                codec.decode(raw[:-1], n, **payload.scalars)
        decoded = codec.decode(raw, n, nbits=payload.nbits, **payload.scalars)
        assert gs.same_bits(decoded, expected)
    with pytest.raises(ParameterError, match="form"):
        qsgd(code=code if code != "packed" else "auto").decode(raw, n, nbits=8 * len(raw))


def test_levels_that_wrap_to_zero_are_refused() -> None:
    """A codeword stands for level − 1, so the number 2^64 − 1 would wrap to level 0."""
    norm = "00111111100000000000000000000000"  # 1.0
    gap, sign = "1", "0"
    level = "0" * (2**17 - 1) + "1" + "1" * 47  # rice:k=47 of 2^64 - 1
    text = norm + gap + sign + level
    codec = qsgd(s=4, form="sparse", code="rice")
    with pytest.raises(Corrupt):
        codec.decode(universal.to_bytes(text), 1, nbits=len(text), rice=47, rice_gap=0)


# --- segments of the thread pool -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("bucket", "s"),
    thinned(itertools.product([0, 1, 100, 4096, 5000, 70_000], [15, 127, 1000]), 5),
)
@each_code_and_form
def test_segments_change_nothing(
    code: str, form: str, bucket: int, s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some segments send nothing, and some buckets cross segments."""
    rng = np.random.default_rng(15)
    n = 40_001
    x = np.where(rng.random(n) < 0.2, rng.standard_normal(n), 0).astype(np.float32)
    x[4096:8192] = 0
    x[12_288:20_480] = 0
    x[20_480:20_500] = 0
    codec = qsgd(s=s, code=code, form=form, bucket=bucket)
    results = []
    for threads in ("1", "2", "7"):
        with monkeypatch.context() as patch:
            split_inputs(patch, 4096, threads)
            patch.setattr(sparse_string, "_CHUNK", 4096)
            payload = codec.encode(x, seed=3)
            residual = np.full(n, 0.01, np.float32)
            symbols = codec.quantize_residual(x, residual, seed=3)
            frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec, seed=3)).with_seek(7)
            acc = np.ones(n, np.float32)
            gcodec.decode_add(frame.to_bytes(), acc, 0.5)
            decoded = [codec.decode(payload, n), codec.decode(frame.payload, n)]
            results.append(
                [
                    *(payload.tobytes(), residual.tobytes(), acc.tobytes()),
                    *(codec.pack(symbols).tobytes(), frame.to_bytes()),
                    *(one.tobytes() for one in decoded),
                ]
            )
    assert results[0] == results[1] == results[2]
    assert results[0][-1] == results[0][-2]


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("code", ["omega", "rice"])
def test_symbols_that_just_fit_a_byte(form: str, code: str) -> None:
    """The symbols 254 and 255 of ±127 need no array of larger symbols."""
    x = np.zeros((1 << 17) + 48, np.float32)
    x[::16] = np.where(np.arange(x.size // 16) % 3, -2, 2)
    codec = gcodec.parse(f"qsgd:s=127,bucket=16,form={form},code={code}")
    symbols, frame = codec.quantize(x), gcodec.encode(x, codec)
    assert set(np.unique(symbols.levels)) == {0, 254, 255}
    for read in (gcodec.Frame.from_bytes(frame), gcodec.Frame.from_bytes(frame).without_seek()):
        assert gs.same_bits(codec.unpack(read.payload, x.size).levels, symbols.levels)
        total = np.zeros(x.size, np.float32)
        read.decode_add(total)
        assert gs.same_bits(total, x)
