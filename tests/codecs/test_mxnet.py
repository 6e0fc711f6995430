"""mxnet-2bit and mxnet-1bit against the oracle, step by step, with special values."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import halves, mxnet, sums
from sweeps import thinned

import gcodec
from gcodec.kernels.bits import dequantize
from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize import threshold
from gcodec.runtime import cover

N = 167
SPECIALS = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.1e-38, -1.1e-38, 3e38, -3e38),
        *(0.5, -0.5, 0.25, -0.25, 1.0, -1.0, 2.0, -2.0),
        *np.nextafter(np.float32([0.5, -0.5, 1, -1]), np.float32(0)),
        *np.nextafter(np.float32([0.5, -0.5, 1, -1]), np.float32([9, -9, 9, -9])),
    ],
    np.float32,
)


def steps(count: int, seed: int = 0) -> list[np.ndarray]:
    """Return gradients of successive steps in which every element meets special values."""
    rng = np.random.default_rng(seed)
    results = []
    for step in range(count):
        x = (rng.standard_normal(N) * 0.4).astype(np.float32)
        # NaN and infinities spread slowly, so most elements stay ordinary for many steps.
        at = rng.choice(N, 6, replace=False)
        x[at] = rng.choice(SPECIALS[3:], 6)
        x[step % N] = SPECIALS[step % len(SPECIALS)]
        results.append(x)
    return results


THRESHOLDS = [0.5, 0.25, 0.1, 1.0, 1 / 3, 3e-3, 2.0**-126, 3e38, np.inf]


@pytest.mark.parametrize("threshold", THRESHOLDS, ids=str)
def test_two_bit_steps(threshold: float) -> None:
    codec = gcodec.parse({"name": "mxnet-2bit", "threshold": threshold})
    oracle = mxnet.TwoBit(threshold, N)
    residual = np.zeros(N, np.float32)
    for x in steps(35):
        payload = codec.pack(codec.quantize_residual(x, residual))
        assert payload.tobytes() == oracle.step(x)
        assert gs.same_bits(residual, oracle.residual)
        decoded = codec.decode(payload, N)
        expected = mxnet.decode_two_bit(payload.tobytes(), N, threshold)
        assert decoded.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "threshold", [0.0, 0.5, -0.5, 1.0, 1e-45, np.inf, -np.inf, np.nan, 3e38], ids=str
)
def test_one_bit_steps(threshold: float) -> None:
    codec = gcodec.parse({"name": "mxnet-1bit", "threshold": threshold})
    oracle = mxnet.OneBit(threshold, N)
    residual = np.zeros(N, np.float32)
    for x in steps(35, seed=1):
        payload = codec.pack(codec.quantize_residual(x, residual))
        assert payload.tobytes() == oracle.step(x)
        assert gs.same_bits(residual, oracle.residual)
        decoded = codec.decode(payload, N)
        assert decoded.tobytes() == mxnet.decode_one_bit(payload.tobytes(), N).tobytes()


@pytest.mark.parametrize("value", [1e-45, 5e-42, 1.1e-38, 0.0, -0.25, np.nan, -np.inf], ids=str)
def test_kernels_take_any_threshold(value: float) -> None:
    """The CUDA source of MXNet allows thresholds that its interface refuses."""
    t = np.float32(value)
    oracle = mxnet.TwoBit(value, N)
    residual = np.zeros(N, np.float32)
    rng = np.random.default_rng(5)
    for x in steps(30, seed=2):
        tiny = np.where(rng.random(N) < 0.5, x * np.float32(1e-40), x).astype(np.float32)
        update = ResidualUpdate(residual, np.float32(1), residual)
        codes = threshold.quantize(tiny, threshold.TWO_BIT, t, t, update)
        assert codes.tobytes() == oracle.step(tiny)
        assert gs.same_bits(residual, oracle.residual)
        out = np.empty(N, np.float32)
        dequantize.dequantize(codes, dequantize.LevelCode(2), t, out)
        assert gs.same_bits(out, mxnet.decode_two_bit(codes.tobytes(), N, value))


@pytest.mark.parametrize("n", [1, 31, 33, 1 << 16, (1 << 16) + 77])
@pytest.mark.parametrize("layout", [threshold.ONE_BIT, threshold.TWO_BIT], ids=["1bit", "2bit"])
def test_check_sees_each_value_that_is_not_finite(layout: FieldLayout, n: int) -> None:
    values, left, new = (np.zeros(n + 3, np.float32)[3:] for _ in range(3))
    update = ResidualUpdate(left, np.float32(1), new)
    seen: list[int] = []
    for own in (None, update):
        for at in {0, n // 2, n - 1}:
            for wrong in (np.float32(np.nan), np.float32(-np.inf), np.float32(3e38)):
                values[at] = left[at] = wrong
                threshold.quantize(values, layout, np.float32(1), update=own, check=seen.append)
                values[at] = left[at] = 0
                is_finite = wrong == np.float32(3e38) and own is None  # the sum exceeds float32
                assert (seen.pop() < INFINITY_BITS) == is_finite


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("layout", [threshold.ONE_BIT, threshold.TWO_BIT], ids=["1bit", "2bit"])
def test_residual_may_be_written_elsewhere(
    layout: FieldLayout, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both paths give the same bits: through the cache, and past it in whole cache lines."""
    monkeypatch.setattr(cover, "_STREAMING", 1 if stream else 1 << 40)
    cut, level = np.float32(0.5), np.float32(1 if layout == threshold.ONE_BIT else 0.5)

    def quantize(x: np.ndarray, residual: np.ndarray, left: np.ndarray) -> np.ndarray:
        update = ResidualUpdate(residual, np.float32(0.9), left)
        return threshold.quantize(x, layout, cut, level, update)

    rng = np.random.default_rng(6)
    for n, offset in itertools.product((0, 1, 31, 32, 63, 64, 333, 5000), (0, 3, 4, 8, 12)):
        x, before = rng.standard_normal((2, n), np.float32)
        in_place = before.copy()
        codes = quantize(x, in_place, in_place)
        before.flags.writeable = False
        memory = gs.placed(np.full(n + 64, 7, np.float32), offset)
        residual = memory[32 : 32 + n]
        assert np.array_equal(quantize(x, before, residual), codes)
        assert gs.same_bits(residual.copy(), in_place)
        assert np.all(memory[:32] == 7)
        assert np.all(memory[32 + n :] == 7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("threshold", [0.1, 1 / 3, 0.5, 1e-3, 7.03])
def test_level_is_rounded_to_the_dtype_of_the_frame(dtype: str, threshold: float) -> None:
    """The encoder subtracts what the receiver adds: the threshold in the frame's dtype."""
    t = np.float32(threshold)
    level = halves.widen(halves.narrow(np.array([t]), dtype), dtype)[0]
    oracle = mxnet.TwoBit(threshold, N, level=float(level))
    codec = gcodec.parse({"name": "mxnet-2bit", "threshold": threshold})
    feedback = gcodec.Feedback(codec)
    residual = np.zeros(N, np.float32)
    rng = np.random.default_rng(4)
    for _ in range(30):
        x = gs.as_dtype((rng.standard_normal(N) * threshold).astype(np.float32), dtype)
        wide = halves.widen(x.view(np.uint16), dtype)
        expected = oracle.step(wide)
        assert codec.pack(codec.quantize_residual(x, residual)).tobytes() == expected
        assert gs.same_bits(residual, oracle.residual)
        frame = feedback.compress("w", x)
        assert gcodec.Frame.from_bytes(frame).payload.tobytes() == expected
        assert gs.same_bits(feedback.residual("w"), oracle.residual)
        decoded = gcodec.decode(frame)
        assert decoded.dtype == gs.DTYPES[dtype]
        assert set(np.abs(decoded.astype(np.float32)).tolist()) <= {0.0, float(level)}


@pytest.mark.parametrize("threshold", [0.1, 1 / 3, 0.0012345678, 1e-6, 123456.789, 3e38, np.inf])
def test_server_threshold(threshold: float) -> None:
    codec = gcodec.parse({"name": "mxnet-2bit", "threshold": threshold, "server": "yes"})
    level = mxnet.server_threshold(threshold)
    oracle = mxnet.TwoBit(threshold, N, level=float(level))
    residual = np.zeros(N, np.float32)
    for x in steps(30, seed=3):
        symbols = codec.quantize_residual(x, residual)
        payload = codec.pack(symbols)
        assert payload.tobytes() == oracle.step(x)
        assert gs.same_bits(residual, oracle.residual)
        expected = mxnet.decode_two_bit(payload.tobytes(), N, float(level))
        assert gs.same_bits(codec.decode(payload, N), expected)
        assert payload.scalars == {"threshold": codec.threshold}


@given(st.integers(0x35063FFF, 0x7F7FFFFF))
def test_server_reads_six_decimals(bits: int) -> None:
    threshold = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
    expected = mxnet.server_threshold(threshold)
    spec = {"name": "mxnet-2bit", "threshold": threshold, "server": "yes"}
    if expected == 0:
        with pytest.raises(gcodec.ParameterError, match="server"):
            gcodec.parse(spec)
        return
    codec = gcodec.parse(spec)
    payload = codec.encode(np.array([np.inf], np.float32))
    assert codec.decode(payload, 1).tobytes() == expected.tobytes()


@given(gs.gradients(large=True), st.sampled_from(["no", "yes"]))
def test_automatic_threshold(x: np.ndarray, server: str) -> None:
    """The threshold is 1.25 times the root mean square, with sums in the fixed order."""
    rms = math.sqrt(float(sums.sum_squares(x)) / max(len(x), 1))
    wanted = min(max(1.25 * rms, 2.0**-126), float(np.finfo(np.float32).max))
    if server == "yes" and mxnet.server_threshold(wanted) == 0:
        return
    payload = gcodec.parse(f"mxnet-2bit:threshold=auto,server={server}").encode(x)
    t = np.float32(wanted)
    assert np.float32(payload.scalars["threshold"]) == t
    assert payload.codec.threshold == payload.scalars["threshold"]
    assert payload.tobytes() == mxnet.TwoBit(float(t), len(x)).step(x)


def test_automatic_threshold_includes_the_residual() -> None:
    codec = gcodec.parse("mxnet-2bit:threshold=auto")
    rng = np.random.default_rng(8)
    residual = np.zeros(N, np.float32)
    for _ in range(5):
        x = rng.standard_normal(N, np.float32)
        u = x + np.float32(0.9) * residual
        wanted = np.float32(1.25 * math.sqrt(float(sums.sum_squares(u)) / N))
        payload = codec.pack(codec.quantize_residual(x, residual, decay=0.9))
        assert np.float32(payload.scalars["threshold"]) == wanted
        sent = np.where(u >= wanted, wanted, np.where(u <= -wanted, -wanted, np.float32(0)))
        assert gs.same_bits(residual, u - sent.astype(np.float32))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 4097])
def test_sizes(n: int) -> None:
    x = np.full(n, -9, np.float32)
    two, one = gcodec.parse("mxnet-2bit").encode(x), gcodec.parse("mxnet-1bit").encode(-x)
    assert (len(two.tobytes()), two.nbits) == (4 * -(-n // 16), 32 * -(-n // 16))
    assert (len(one.tobytes()), one.nbits) == (4 * -(-n // 32), 32 * -(-n // 32))
    assert two.tobytes() == mxnet.TwoBit(0.5, n).step(x)
    assert one.tobytes() == mxnet.OneBit(0, n).step(-x)


ENDS = [1, 7, 8, 16, 100, 128, 129, 136, 143, 144, 145, 250, 255]


@pytest.mark.parametrize(("n", "offset"), thinned(itertools.product(ENDS, range(16)), 3))
def test_any_alignment(n: int, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels handle the ends of an array apart from its whole cache lines."""
    monkeypatch.setattr(cover, "_ALIGNED", 0)
    rng = np.random.default_rng(n)
    x = gs.placed(rng.standard_normal(n, np.float32), offset)
    for name, oracle in (("mxnet-2bit", mxnet.TwoBit(0.5, n)), ("mxnet-1bit", mxnet.OneBit(0, n))):
        codec = gcodec.parse(name)
        expected = oracle.step(x)
        assert codec.encode(x).tobytes() == expected
        residual = gs.placed(np.zeros(n, np.float32), (3 * offset) % 16)
        assert codec.pack(codec.quantize_residual(x, residual)).tobytes() == expected
        assert gs.same_bits(residual, oracle.residual)
        out = gs.placed(np.full(n, 9, np.float32), offset)
        frame = gcodec.encode(x, codec)
        gcodec.decode(frame, out=out)
        assert gs.same_bits(out, codec.decode(expected, n))
        gcodec.decode_add(frame, out)
        assert gs.same_bits(out, 2 * codec.decode(expected, n))


@pytest.mark.parametrize("offset", [0, 1, 8, 12])
@pytest.mark.parametrize("n", [1, 31, 64, 129, 1000, 5003])
@pytest.mark.parametrize("spec", ["mxnet-2bit", "mxnet-1bit"])
def test_large_results_have_the_same_bits(
    spec: str, n: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding streams past the cache if the result is too large for it."""
    x = np.random.default_rng(n).standard_normal(n, np.float32)
    frame = gcodec.encode(x, spec)
    expected = gcodec.decode(frame)
    monkeypatch.setattr(cover, "_STREAMING", 1)
    out = gs.placed(np.full(n, 9, np.float32), offset)
    gcodec.decode(frame, out=out)
    assert gs.same_bits(out, expected)
    assert gs.same_bits(gcodec.decode(frame), expected)


def test_captured_message() -> None:
    """Decode 21 elements as an MXNet worker sent them to its parameter server."""
    raw = bytes.fromhex("e2c0002aaa800000")
    decoded = gcodec.parse("mxnet-2bit").decode(raw, 21)
    codes = [3, 2, 0, 2, 3] + [0] * 6 + [0, 0, 2, 2, 2, 2, 2, 2, 2, 2]
    assert decoded.tolist() == [{3: 0.5, 2: -0.5, 0: 0.0}[code] for code in codes]


def test_examples() -> None:
    x = np.array([0.5, -0.5, 0.49, -0.7, 1.2], np.float32)
    residual = np.zeros(5, np.float32)
    two = gcodec.parse("mxnet-2bit")
    assert two.pack(two.quantize_residual(x, residual)).tobytes().hex() == "e2c00000"
    assert residual.tolist() == np.float32([0, 0, 0.49, -0.19999999, 0.70000005]).tolist()
    x = np.array([0.5, -0.5, 0, -0.7, 1.2], np.float32)
    residual = np.zeros(5, np.float32)
    one = gcodec.parse("mxnet-1bit")
    assert one.pack(one.quantize_residual(x, residual)).tobytes().hex() == "88000000"
    assert residual.tolist() == np.float32([-0.5, 0.5, 1, 0.3, 0.20000005]).tolist()
