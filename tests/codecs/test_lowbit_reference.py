"""terngrad, minmax and sign against their oracles, bit for bit, and laws also of qsgd."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from reference import minmax, philox, sign, ternary
from sweeps import thinned

import gcodec

LARGEST = float(np.finfo(np.float32).max)
KINDS = ("normal", "heavy", "patterns", "denormal", "huge", "constant", "zeros", "neighbors")
PACKS = ("chapter", "terngrad", "base3")
SIZES_AROUND_TILES = (159, 160, 161, 2559, 2560, 2561, 4095, 4096, 4097)
LARGE_SIZE = 70_003
SEEDS = (0, 1, 2**32, 2**64 - 1)
BUCKETS = (0, 1, 7, 20, 32, 33, 100)


@functools.cache
def gradient(kind: str, n: int) -> np.ndarray:
    """Return n finite values, which are read only."""
    x = _drawn(kind, n)
    x.setflags(write=False)
    return x


def _drawn(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng([KINDS.index(kind), n])
    sign_bits = rng.integers(0, 2, n, dtype=np.uint32) << 31
    if kind == "normal":
        return rng.normal(0, 1e-3, n).astype(np.float32)
    if kind == "heavy":
        return (rng.standard_t(1.5, n) + 10).astype(np.float32)
    if kind in ("patterns", "denormal"):  # Any finite float32, or any subnormal.
        end = 0x7F800000 if kind == "patterns" else 1 << 23
        return (rng.integers(0, end, n, dtype=np.uint32) | sign_bits).view(np.float32)
    if kind == "huge":
        return (rng.uniform(-1, 1, n) * LARGEST).astype(np.float32)
    if kind == "constant":
        return np.full(n, -0.1, np.float32)
    if kind == "zeros":
        return sign_bits.view(np.float32)
    low = np.float32(0.1).view(np.uint32)
    return (low + rng.integers(0, 2, n, dtype=np.uint32)).astype(np.uint32).view(np.float32)


def bits(x: np.ndarray) -> list[int]:
    return x.reshape(-1).view(np.uint32).tolist()


def small_tensors() -> Iterator[tuple[int, np.ndarray]]:
    """Yield a running count and each kind of tensor, of sizes 0 to 70."""
    count = 0
    for n in range(71):
        for kind in KINDS:
            yield count, gradient(kind, n)
            count += 1


def tensors_around_tiles() -> Iterator[tuple[int, np.ndarray]]:
    """Yield a running count and a tensor for each size around tiles and blocks."""
    for count, n in enumerate(SIZES_AROUND_TILES):
        yield count, gradient(KINDS[count % 4], n)


# --- terngrad -----------------------------------------------------------------------------------


def check_terngrad(x: np.ndarray, clip: float, pack: str, seed: int) -> None:
    codec = gcodec.parse({"name": "terngrad", "clip": clip, "pack": pack})
    data, scale = ternary.encode(x, clip, seed, pack)
    payload = codec.encode(x, seed=seed)
    assert bits(np.float32(payload.scalars["scale"])) == bits(scale)
    assert payload.tobytes() == data and payload.nbits == 8 * len(data)
    assert codec.scale_of(x) == payload.scalars["scale"]
    assert bits(codec.decode(payload, x.size)) == bits(ternary.decode(data, x.size, scale, pack))


@pytest.mark.parametrize("pack", PACKS)
def test_terngrad_of_small_tensors(pack: str) -> None:
    for count, x in thinned(small_tensors(), 3):  # of which each size occurs
        check_terngrad(x, (2.5, 0, 1, 0.01)[count // len(KINDS) % 4], pack, SEEDS[count % 4])


@pytest.mark.parametrize("clip", [2.5, 0])
@pytest.mark.parametrize("pack", PACKS)
def test_terngrad_around_tiles(pack: str, clip: float) -> None:
    for count, x in tensors_around_tiles():
        check_terngrad(x, clip, pack, SEEDS[count % 4])


@pytest.mark.parametrize("pack", PACKS)
def test_terngrad_of_a_large_tensor(pack: str) -> None:
    check_terngrad(gradient("heavy", LARGE_SIZE), 2.5, pack, 7)


@pytest.mark.parametrize("pack", PACKS)
def test_terngrad_with_a_scale_of_several_workers(pack: str) -> None:
    codec = gcodec.parse({"name": "terngrad", "pack": pack})
    workers = [gradient(kind, 161) for kind in ("normal", "heavy")]
    shared = max(codec.scale_of(x) for x in workers)
    for seed, x in enumerate(workers):
        payload = codec.encode(x, seed=seed, scale=shared)
        codes = ternary.codes(x, np.float32(shared), seed)
        assert payload.scalars["scale"] == shared
        assert payload.tobytes() == ternary.pack(codes, pack)
        assert codec.quantize(x, seed=seed, scale=shared).scale == shared
    zeros = np.zeros(5, np.float32)
    assert codec.encode(zeros, scale=0).scalars["scale"] == 0
    assert not codec.decode(codec.encode(zeros, scale=shared), 5).any()
    for scale in (0, -1, math.inf, math.nan):
        with pytest.raises(gcodec.ParameterError, match="scale"):
            codec.quantize(workers[0], scale=scale)
    with pytest.raises(gcodec.ParameterError, match="NaN"):
        codec.quantize(np.array([1, np.nan], np.float32), scale=1)


def exact_at_31_bits(seed: int, n: int) -> np.ndarray:
    """Return the upper 31 bits of each random word as a number in [0, 1), or 0 if inexact."""
    halves = [word >> 1 for word in philox.words(seed, n)]
    fractions = [half / 2**31 if half % 128 == 0 else 0 for half in halves]
    return np.array(fractions, np.float32)


@pytest.mark.parametrize("pack", PACKS)
def test_terngrad_sends_below_the_probability(pack: str) -> None:
    """An element is not sent if its random word equals the probability, only if it is below."""
    x = exact_at_31_bits(5, 2000)
    ties = np.flatnonzero(x)
    assert ties.size > 10
    x[0] = 1  # the scale
    codec = gcodec.parse({"name": "terngrad", "clip": 0, "pack": pack})
    decoded = codec.decode(codec.encode(x, seed=5), x.size)
    assert not decoded[ties[ties > 0]].any()
    x[1:] = np.nextafter(x[1:], np.float32(2))
    decoded = codec.decode(codec.encode(-x, seed=5), x.size)
    assert (decoded[ties] == -1).all()


def test_terngrad_always_sends_values_at_the_scale() -> None:
    scale = np.float32(0.1)
    x = np.resize(np.array([scale, -scale, 0.2, -3e38], np.float32), 333)
    codec = gcodec.parse("terngrad")
    for seed in range(20):
        decoded = codec.decode(codec.encode(x, seed=seed, scale=float(scale)), x.size)
        assert bits(decoded) == bits(np.copysign(scale, x))


@pytest.mark.parametrize("kind", ["normal", "heavy", "patterns", "denormal", "huge"])
def test_terngrad_expectation(kind: str) -> None:
    """Over all words, the mean of x̂ is within 2^-22·|x| + 2^-31·s of x."""
    x = gradient(kind, 300)
    scale = ternary.scale_of(x, 0)
    s = Fraction(float(scale))
    for value in x.tolist():
        magnitude = abs(value)
        with np.errstate(under="ignore"):
            r = np.float32(magnitude) / scale
        sent = 1 if magnitude >= scale else Fraction(int(float(r) * 2**31), 2**31)
        assert abs(sent * s - Fraction(magnitude)) <= Fraction(magnitude) / 2**22 + s / 2**31


# --- minmax -------------------------------------------------------------------------------------


def check_minmax(x: np.ndarray, width: int, bucket: int, rounding: str, seed: int) -> None:
    codec = gcodec.parse({"name": "minmax", "bits": width, "bucket": bucket, "rounding": rounding})
    data, nbits = minmax.encode(x, width, bucket, seed if rounding == "stochastic" else None)
    payload = codec.encode(x, seed=seed)
    assert payload.nbits == nbits == codec.max_payload_nbits(x.size)
    assert payload.tobytes() == data
    assert bits(codec.decode(payload, x.size)) == bits(minmax.decode(data, x.size, width, bucket))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("width", range(1, 9))
def test_minmax_of_small_tensors(width: int, rounding: str) -> None:
    for count, x in thinned(small_tensors(), 5):  # of which each size occurs
        check_minmax(x, width, BUCKETS[count % 7], rounding, SEEDS[count % 4])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("width", range(1, 9))
def test_minmax_around_tiles(width: int, rounding: str) -> None:
    for count, x in tensors_around_tiles():
        bucket = (0, 1, 33, 4095, 4097, 2560, 100, 32, 5000)[(count + width) % 9]
        check_minmax(x, width, bucket, rounding, SEEDS[count % 4])


@pytest.mark.parametrize(
    ("width", "bucket", "rounding"),
    [(3, 0, "nearest"), (8, 1000, "stochastic"), (5, 4099, "nearest")],
)
def test_minmax_of_a_large_tensor(width: int, bucket: int, rounding: str) -> None:
    check_minmax(gradient("heavy", LARGE_SIZE), width, bucket, rounding, 7)


@pytest.mark.parametrize("width", range(1, 9))
def test_minmax_ties_go_to_even(width: int) -> None:
    top = 2**width - 1
    for unit in (2.0, 2.0**-140, 2.0**100):
        halves = np.arange(0, 2 * top + 1) * (unit / 2)  # r = 0, 0.5, 1, ...
        x = np.resize(halves, 3 * halves.size).astype(np.float32)
        codec = gcodec.parse({"name": "minmax", "bits": width})
        decoded = codec.decode(codec.encode(x), x.size)
        assert (decoded == np.rint(x / np.float32(unit)) * np.float32(unit)).all()


def test_minmax_rounds_up_below_the_probability() -> None:
    """A level is not rounded up if its random word equals the probability, only if it is below."""
    x = exact_at_31_bits(5, 2000)
    ties = np.flatnonzero(x)[1:]
    x[0], x[1] = 0, 1
    codec = gcodec.parse("minmax:bits=1,rounding=stochastic")
    assert not codec.decode(codec.encode(x, seed=5), x.size)[ties].any()
    x[ties] = np.nextafter(x[ties], np.float32(2))
    assert (codec.decode(codec.encode(x, seed=5), x.size)[ties] == 1).all()


@pytest.mark.parametrize("kind", ["normal", "heavy", "patterns", "denormal", "huge"])
def test_minmax_expectation(kind: str) -> None:
    """Over all words, the mean is within 2^-31 of a step of x, plus the rounding of its levels."""
    x = gradient(kind, 200)
    low, high = minmax.ranges(x, 0)[0]
    for width in (1, 2, 8):
        top = 2**width - 1
        step = Fraction((high - low) / top)
        levels = [np.float32(low + q * ((high - low) / top)) for q in range(top + 1)]
        for value in x.tolist():
            r = (value - low) * (top / (high - low))
            q = math.floor(r)
            up = Fraction(int((r - q) * 2.0**31), 2**31)
            below, above = (Fraction(float(levels[min(k, top)])) for k in (q, q + 1))
            mean = (1 - up) * below + up * above
            rounding = (max(abs(below), abs(above)) + Fraction(2) ** -126) / 2**24
            allowed = abs(Fraction(value)) / 2**22 + step / 2**31 + rounding
            assert abs(mean - Fraction(value)) <= allowed


def test_minmax_keeps_constant_and_neighboring_values() -> None:
    for kind in KINDS:
        x = gradient(kind, 41)
        for rounding in ("nearest", "stochastic"):
            codec = gcodec.parse({"name": "minmax", "bits": 1, "bucket": 1, "rounding": rounding})
            assert (codec.decode(codec.encode(x), x.size) == x).all()
            assert not codec.encode(x).data[8 * x.size :].any()
    x = gradient("neighbors", 50)
    assert len(set(x.tolist())) == 2
    for width in range(1, 9):
        codec = gcodec.parse({"name": "minmax", "bits": width})
        assert bits(codec.decode(codec.encode(x), x.size)) == bits(x)


# --- sign ---------------------------------------------------------------------------------------


def check_sign(x: np.ndarray, setting: str) -> None:
    codec = gcodec.parse({"name": "sign", "scale": setting})
    data, scale = sign.encode(x, setting)
    payload = codec.encode(x)
    assert payload.tobytes() == data and payload.nbits == x.size
    assert bits(np.float32(payload.scalars.get("scale", 1))) == bits(scale)
    assert (setting == "none") == (payload.scalars == {})
    assert bits(codec.decode(payload, x.size)) == bits(sign.decode(data, x.size, scale))


@pytest.mark.parametrize("setting", ["l1", "l2", "none"])
def test_sign(setting: str) -> None:
    for _, x in thinned(small_tensors(), 3):  # of which each size occurs
        check_sign(x, setting)
    for n in SIZES_AROUND_TILES:
        for kind in ("normal", "patterns"):
            check_sign(gradient(kind, n), setting)
    check_sign(gradient("heavy", LARGE_SIZE), setting)


def test_sign_l1_is_the_nearest_scale() -> None:
    """The mean of |x| is the best scale of sign(x); the root mean square may expand the error."""
    rng = np.random.default_rng(3)
    x = rng.lognormal(0, 2, 10_000).astype(np.float32)
    wide = x.astype(np.float64)

    def error(spec: str) -> float:
        decoded = gcodec.decode(gcodec.encode(x, spec)).astype(np.float64)
        return float(((decoded - wide) ** 2).sum() / (wide**2).sum())

    best = error("sign")
    s = gcodec.parse("sign").encode(x).scalars["scale"]
    for factor in (0.99, 1.01):
        assert float(((factor * s - wide) ** 2).sum() / (wide**2).sum()) > best
    assert best < 1 < error("sign:scale=l2")


# --- laws of all codecs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["terngrad", "terngrad:clip=0", "minmax", "sign", "sign:scale=l2", "qsgd", "qsgd:bucket=3"],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused(spec: str, bad: float) -> None:
    for n in (1, 5, 40, 5000):
        x = np.ones(n, np.float32)
        x[-1] = bad
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
            gcodec.parse(spec).quantize(x)
        residual = np.full(n, 0.25, np.float32)
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
            gcodec.parse(spec).quantize_residual(x, residual)
        assert (residual == 0.25).all()


@pytest.mark.parametrize(
    "spec", ["terngrad", "minmax:bits=4", "sign", "qsgd", "qsgd:form=dense,bucket=100,s=300"]
)
@pytest.mark.parametrize("magnitude", [1e-44, 1e-30, 1e-9, 1.0, 1e30])
def test_tiny_values_are_quantized(spec: str, magnitude: float) -> None:
    """Values scaled by a power of two have the same payload, and proportional errors."""
    base = gradient("heavy", 300)
    factor = np.float32(2.0 ** round(math.log2(magnitude)))
    x = base * factor
    decoded = gcodec.decode(gcodec.encode(x, spec))
    wide = x.astype(np.float64)
    error = ((decoded - wide) ** 2).sum() / (wide**2).sum()
    assert error < 1
    if magnitude > 1e-40:  # Only where no value is rounded to a subnormal.
        codec = gcodec.parse(spec)
        # The bytes after the ranges or the norms.
        header_nbytes = {"minmax": 8, "qsgd": 12 if "bucket" in spec else 4}.get(codec.name, 0)
        assert (
            codec.encode(x).tobytes()[header_nbytes:]
            == codec.encode(base).tobytes()[header_nbytes:]
        )
        assert bits(decoded) == bits(gcodec.decode(gcodec.encode(base, spec)) * factor)
