"""minmax: ranges, tiny and huge ones, buckets, the order of values, refused inputs."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from strategies import f32

import gcodec
from gcodec import Corrupt, ParameterError, Truncated

ALL_BITS = range(1, 9)


def minmax(**values: Any) -> Any:
    return gcodec.parse({"name": "minmax", **values})


def round_trip(codec: Any, x: np.ndarray) -> np.ndarray:
    """Encode and decode a tensor."""
    decoded: np.ndarray = codec.decode(codec.encode(x), x.size)
    return decoded


def ulps(start: float, counts: np.ndarray) -> np.ndarray:
    """Return the float32 numbers `counts` places above `start`."""
    return (np.float32(start).view(np.uint32) + counts.astype(np.uint32)).view(np.float32)


def half_ulp(x: np.ndarray) -> float:
    """Return half a unit in the last place of the largest magnitude, the rounding error of x̂."""
    return float(np.spacing(np.abs(x).max(initial=0))) / 2


# --- ranges -------------------------------------------------------------------------------------

STARTS = [1e-44, 1.1e-38, 1e-30, 0.7, 1.0, 1e4, 3e38, -1.0, -1e-45, -3e38]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("start", STARTS)
def test_constant_and_neighboring_values_are_exact(start: float, rounding: str) -> None:
    for bits in ALL_BITS:
        codec = minmax(bits=bits, rounding=rounding)
        for n in (1, 2, 33, 1000):
            constant = np.full(n, start, np.float32)
            assert gs.same_bits(round_trip(codec, constant), constant)
            neighbors = ulps(start, np.arange(n) % 2)
            assert gs.same_bits(round_trip(codec, neighbors), neighbors)


@pytest.mark.parametrize("start", [1.1e-38, 1e-30, 0.7, 1e4, 3e38, -0.3])
def test_short_ranges_are_exact_with_eight_bits(start: float) -> None:
    """A step is at most one unit in the last place, so each value is the nearest of a level."""
    for k in (2, 3, 7, 100, 254, 255):
        x = ulps(start, np.arange(k + 1))
        decoded = round_trip(minmax(), x)
        # Across a power of two the step exceeds the smaller of the two units.
        if np.spacing(np.abs(x).min()) == np.spacing(np.abs(x).max()):
            assert gs.same_bits(decoded, x)
        assert np.abs(decoded.astype(np.float64) - x).max() <= 2 * half_ulp(x)


def test_offsets_far_above_the_range() -> None:
    rng = np.random.default_rng(2)
    x = (1e4 + rng.standard_normal(1000) * 1e-3).astype(np.float32)
    # Values six units in the last place apart remain exact.
    assert gs.same_bits(round_trip(minmax(), x), x)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_huge_ranges(rounding: str) -> None:
    top = float(np.finfo(np.float32).max)
    for bits in ALL_BITS:
        codec = minmax(bits=bits, rounding=rounding)
        x = f32(top, -top, 0, 1, top / 2, -3e38)
        decoded = round_trip(codec, x)
        assert np.isfinite(decoded).all()
        assert decoded[:2].tolist() == x[:2].tolist()
        assert gs.same_bits(round_trip(codec, x[:2]), x[:2])


@pytest.mark.parametrize("bucket", [0, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_beyond_float32_are_refused(bucket: int, dtype: str) -> None:
    """With one random bit, the error may be the whole range, which exceeds float32."""
    x = np.tile([-3e38, 0, 3e38, 2e38], 16).astype(dtype)
    codec = gcodec.parse(f"minmax:bits=1,bucket={bucket},rounding=stochastic")
    decoded = gcodec.decode(gcodec.encode(x, codec, seed=3))
    assert np.isfinite(decoded).all() and np.abs(decoded - x.astype(np.float64)).max() > 3.5e38
    residual = np.zeros(64, np.float32)
    with pytest.raises(ParameterError, match=f"must not exceed the range of .* or {dtype}"):
        codec.quantize_residual(x, residual, seed=3)
    assert not residual.any()
    for spec in ("minmax:bits=1", "minmax:bits=2,rounding=stochastic"):
        gcodec.parse(spec).quantize_residual(x, residual, seed=3)
        assert np.isfinite(residual).all() and residual.any()
        residual[:] = 0


@given(gs.gradients(large=True), st.sampled_from(ALL_BITS))
def test_nearest_is_within_half_a_step(x: np.ndarray, bits: int) -> None:
    decoded = round_trip(minmax(bits=bits), x)
    if not x.size:
        return
    wide = x.astype(np.float64)
    step = np.ptp(wide) / (2**bits - 1)
    slack = half_ulp(x) + step * 2.0**-40
    assert np.all(np.abs(decoded - wide) <= step / 2 + slack)
    assert np.all(
        np.abs(round_trip(minmax(bits=bits, rounding="stochastic"), x) - wide) <= step + slack
    )
    assert decoded[wide.argmin()] == x.min()
    assert decoded[wide.argmax()] == x.max()


@given(gs.gradients(large=True), st.sampled_from(ALL_BITS))
def test_order_is_kept(x: np.ndarray, bits: int) -> None:
    decoded = round_trip(minmax(bits=bits), x)[np.argsort(x, kind="stable")]
    assert np.all(decoded[1:] >= decoded[:-1])


@given(gs.gradients(large=True), st.sampled_from(ALL_BITS), st.sampled_from([0, 3, 32, 100]))
def test_decoding_is_idempotent(x: np.ndarray, bits: int, bucket: int) -> None:
    codec = minmax(bits=bits, bucket=bucket)
    once = round_trip(codec, x)
    wide = x.astype(np.float64)
    for start in range(0, x.size, bucket or max(x.size, 1)):
        part = slice(start, start + (bucket or x.size))
        if once[part].min() == x[part].min() and once[part].max() == x[part].max():
            again = round_trip(codec, once)[part]
            step = np.ptp(wide[part]) / (2**bits - 1)
            assert np.all(np.abs(again.astype(np.float64) - once[part]) <= step * 2.0**-30)


def test_negative_zero_becomes_zero() -> None:
    for bits in ALL_BITS:
        for x in (f32(-0.0), f32(-0.0, 0.0, -0.0), f32(-0.0, 1), f32(-1, -0.0)):
            payload = minmax(bits=bits).encode(x)
            decoded = minmax(bits=bits).decode(payload, x.size)
            assert not np.signbit(decoded[decoded == 0]).any()
            assert b"\x80\0\0\0" not in (payload.tobytes()[:4], payload.tobytes()[4:8])


# --- buckets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("bucket", [1, 2, 3, 31, 32, 33, 100, 4096, 5000])
def test_buckets_are_independent(bits: int, bucket: int) -> None:
    rng = np.random.default_rng(bucket)
    codec, alone = minmax(bits=bits, bucket=bucket), minmax(bits=bits)
    for n in (1, bucket, bucket + 1, 3 * bucket + 7, 10_001):
        n = min(n, 400 * bucket)
        x = (rng.standard_normal(n) * 10.0 ** rng.integers(-30, 30, n)).astype(np.float32)
        decoded = round_trip(codec, x)
        payload = codec.encode(x)
        count = -(-n // bucket)
        assert payload.nbits == 64 * count + n * bits
        ranges = payload.data[: 8 * count].view(">f4").reshape(-1, 2)
        for b in {0, count // 2, count - 1}:
            part = x[b * bucket : (b + 1) * bucket]
            assert gs.same_bits(decoded[b * bucket : (b + 1) * bucket], round_trip(alone, part))
            assert ranges[b].tolist() == [part.min(), part.max()]
        accumulator = np.ones(n, np.float32)
        gcodec.decode_add(gcodec.encode(x, codec), accumulator, 0.5)
        assert gs.same_bits(accumulator, np.float32(1) + np.float32(0.5) * decoded)


@pytest.mark.parametrize("bits", [3, 8])
@pytest.mark.parametrize("bucket", [100, (1 << 19) + 5, (1 << 20) + 33, 2**32 - 1, 0])
def test_large_buckets(bucket: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of more than one segment do not depend on the number of threads."""
    n = (1 << 20) + 12_345
    x = np.random.default_rng(1).standard_normal(n, np.float32)
    x[n // 3], x[-1] = -9, 9
    actual = set()
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        actual.add(minmax(bits=bits, bucket=bucket).encode(x).tobytes())
    assert len(actual) == 1
    if not bucket or bucket > n:
        assert minmax(bits=bits).encode(x).tobytes() in actual


@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("bits", [3, 8])
def test_large_results_have_the_same_bits(
    bits: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding streams past the cache if the result is too large for it."""
    from gcodec.runtime import cover

    for n in (1, 31, 64, 5003):
        x = np.random.default_rng(n).standard_normal(n, np.float32)
        frame = gcodec.encode(x, minmax(bits=bits, bucket=50))
        expected = gcodec.decode(frame)
        with monkeypatch.context() as patch:
            patch.setattr(cover, "_STREAMING", 1)
            out = gs.placed(np.full(n, 9, np.float32), offset)
            gcodec.decode(frame, out=out)
        assert gs.same_bits(out, expected)


# --- refused inputs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"bits": 0}, "bits=0: must be an integer from 1 to 8"),
        ({"bits": 9}, "bits=9: must be an integer from 1 to 8"),
        ({"bits": -1}, "bits=-1: must be an integer from 1 to 8"),
        ({"bits": 2.5}, "bits=2.5: must be an integer"),
        ({"bits": 2.0}, "bits=2.0: must be an integer"),
        ({"bits": "x"}, "bits='x': must be an integer"),
        ({"bits": True}, "bits=True: must be an integer"),
        ({"bits": None}, "bits=None"),
        ({"bits": math.nan}, "bits=nan"),
        ({"bits": 10**4000}, r"bits=10.*: must be an integer"),
        ({"bucket": -1}, f"bucket=-1: must be an integer from 0 to {2**32 - 1}"),
        ({"bucket": 2**32}, f"bucket={2**32}: must be an integer from 0 to {2**32 - 1}"),
        ({"bucket": False}, "bucket=False"),
        ({"rounding": "up"}, "rounding='up': must be one of nearest, stochastic"),
        ({"rounding": 1}, "rounding=1"),
        ({"width": 3}, "width=3: minmax has the parameters bits, bucket, rounding"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_parameters_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        minmax(**values)


@pytest.mark.parametrize("text", ["0", "9", "-1", "2.5", "x", "", "True", "8.0", "1e0"])
def test_hostile_bits_parameter(text: str) -> None:
    with pytest.raises(ParameterError, match=r"bits=.*an integer from 1 to 8"):
        gcodec.parse(f"minmax:bits={text}")


def test_integers_of_any_kind() -> None:
    assert gcodec.parse("minmax:bits=0x4,bucket=0b11") == minmax(bits=np.int8(4), bucket=3)
    assert type(minmax(bits=np.uint64(4)).bits) is int
    assert repr(minmax(bits=4)) == "MinMax(bits=4)"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", ["minmax", "minmax:bucket=7", "minmax:rounding=stochastic"])
def test_nonfinite_values_are_refused(spec: str, value: float) -> None:
    x, residual, codec = np.arange(100, dtype=np.float32), f32(*[1] * 100), gcodec.parse(spec)
    x[41] = value
    for call in (
        lambda: gcodec.encode(x, codec),
        lambda: codec.quantize(x),
        lambda: codec.quantize_residual(x, residual),
        lambda: codec._try(x, 0),
    ):
        with pytest.raises(ParameterError, match="1 NaN or Inf, the first at flat index 41"):
            call()
    assert (residual == 1).all()


RANGES = [
    *((math.nan, 1), (0, math.nan), (-math.inf, 1), (0, math.inf), (1, 0), (1e-45, 0)),
    *((-0.0, 1), (-1, -0.0), (-0.0, 0.0), (0.0, -0.0), (-0.0, -0.0), (math.inf, math.inf)),
]


@pytest.mark.parametrize(("low", "high"), RANGES, ids=str)
def test_wrong_ranges_are_refused(low: float, high: float) -> None:
    good, bad = struct.pack(">ff", -1, 2), struct.pack(">ff", low, high)
    assert minmax(bits=2).decode(good + b"\x1b", 4).tolist() == [-1, 0, 1, 2]
    with pytest.raises(Corrupt, match="not a valid range") as caught:
        minmax(bits=2).decode(bad + b"\x1b", 4)
    assert caught.value.offset == 0
    with pytest.raises(Corrupt, match="not a valid range") as caught:
        minmax(bits=2, bucket=2).decode(good + bad + b"\x1b", 4)
    assert caught.value.offset == 8


def test_signalling_nan_is_refused_quietly() -> None:
    raw = bytes.fromhex("7f8000013f8000001b")
    with pytest.raises(Corrupt, match="not a valid range"):
        minmax(bits=2).decode(raw, 4)


def test_constant_buckets_accept_any_codes() -> None:
    raw = struct.pack(">ff", 3, 3) + b"\xff"
    assert minmax(bits=2).decode(raw, 4).tolist() == [3.0] * 4


@pytest.mark.parametrize("bits", ALL_BITS)
def test_lengths_and_padding(bits: int) -> None:
    codec = minmax(bits=bits, bucket=5)
    payload = codec.encode(np.arange(13, dtype=np.float32))
    raw, nbits = payload.tobytes(), payload.nbits
    for k in range(len(raw)):
        with pytest.raises(Truncated):
            codec.decode(raw[:k], 13)
    with pytest.raises(Corrupt):
        codec.decode(raw + b"\0", 13)
    for other in range(8 * len(raw) - 7, 8 * len(raw) + 1):
        if other != nbits:
            with pytest.raises(Corrupt):
                codec.decode(raw, 13, nbits=other)
    for spare in range(8 * len(raw) - nbits):
        with pytest.raises(Corrupt, match="padding"):
            codec.decode(raw[:-1] + bytes([raw[-1] | 1 << spare]), 13)
    for n in (0, 1, 12, 14):
        with pytest.raises(gcodec.FormatError):
            codec.unpack(payload, n)


def test_laws() -> None:
    """Two elements of each bucket are exact; the other errors are at most half a step."""
    assert minmax(bits=2).variance(1000) == 998 / 18
    assert minmax(bits=2, bucket=20).variance(1000) == 1
    assert minmax(bits=2, bucket=11).contraction(1000) == 0.5
    assert minmax(bits=2, bucket=20).contraction(1000) is None
    assert minmax(bits=2, bucket=11, rounding="stochastic").contraction(1000) is None
    assert minmax(rounding="stochastic").unbiased and not minmax().unbiased
    for n in (0, 1, 2):
        assert minmax(bits=1).variance(n) == 0 and minmax(bits=1).contraction(n) == 1


def test_symbols_of_another_width_are_refused() -> None:
    """Symbols of fewer bits would let a decoder read beyond their codes."""
    one_bit = minmax(bits=1).quantize(np.ones(5000, np.float32))
    for codec in (minmax(), minmax(bits=2), minmax(bits=1, bucket=7)):
        with pytest.raises(ParameterError, match="symbols"):
            codec.dequantize(one_bit, 5000)
    with pytest.raises(ParameterError, match="symbols"):
        minmax(bits=1).dequantize(one_bit._replace(data=one_bit.data[:-1]), 5000)
