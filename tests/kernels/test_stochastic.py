"""Stochastic rounding: equal bits in plain NumPy, no bias, independence, and error bounds."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import philox
from sweeps import LONG

import gcodec

MASK = np.uint64(0xFFFFFFFF)
N = 1 << 22
LOG_DRAWS = 26 if LONG else 23  # of fractions that are neither small nor large


def words(seed: int, n: int) -> np.ndarray:
    """Return the random words of stream 0: Philox4x32-10 on arrays."""
    counter = np.arange(-(-n // 4), dtype=np.uint64)
    c = [counter & MASK, counter >> np.uint64(32), np.zeros_like(counter), np.zeros_like(counter)]
    key = [seed & philox.MASK, seed >> 32]
    for _ in range(philox.ROUNDS):
        first = c[0] * np.uint64(philox.MULTIPLIERS[0])
        second = c[2] * np.uint64(philox.MULTIPLIERS[1])
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]),
            second & MASK,
            (first >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]),
            first & MASK,
        ]
        key = [(k + w) & philox.MASK for k, w in zip(key, philox.WEYL, strict=True)]
    return np.stack(c, axis=1).reshape(-1)[:n].astype(np.uint32)


def ternary_values(x: np.ndarray, scale: np.float32, seed: int) -> np.ndarray:
    """Return the values that terngrad decodes."""
    with np.errstate(all="ignore"):
        r = np.abs(x) / scale
    below = np.where(np.abs(x) < scale, r, 0).astype(np.float64)
    sent = (words(seed, x.size) >> 1) < (below * 2.0**31).astype(np.int64)
    sent |= np.abs(x) >= scale
    return np.where(sent & (x != 0), np.copysign(scale, x), np.float32(0)).astype(np.float32)


def level_codes(x: np.ndarray, bits: int, bucket: int, seed: int) -> np.ndarray:
    """Return the codes of minmax with stochastic rounding."""
    u, codes = words(seed, x.size) >> 1, np.empty(x.size, np.uint8)
    for start in range(0, x.size, bucket or max(x.size, 1)):
        part = slice(start, start + (bucket or x.size))
        wide = x[part].astype(np.float64)
        low, span = wide.min(), wide.max() - wide.min()
        r = (wide - low) * ((2**bits - 1) / span if span else 0.0)
        whole = np.floor(r)
        up = u[part] < ((r - whole) * 2.0**31).astype(np.int64)
        codes[part] = np.minimum(whole + up, 2**bits - 1)
    return codes


def test_words_equal_the_reference() -> None:
    for seed in (0, 7, 2**32, 2**64 - 1):
        assert words(seed, 1001).tolist() == philox.words(seed, 1001)


# --- the same bits as plain NumPy, for any number of threads and any place in memory -----------


def inputs(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n, np.float32)
    x[::7] *= np.float32(1e-6)
    x[::11] = 0
    return gs.placed(x, 1 + seed % 15)


LARGE = (1 << 20) + 4099


@pytest.mark.parametrize("clip", ["0", "2.5"])
@pytest.mark.parametrize("pack", ["chapter", "terngrad", "base3"])
def test_ternary_bits(clip: str, pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = gcodec.parse(f"terngrad:clip={clip},pack={pack}")
    for k, n in enumerate((0, 1, 2, 5, 31, 33, 63, 257, 2563, 5125, 20_481, LARGE)):
        x, seed = inputs(n, k), (2**64 - 1) // (k + 1)
        results = set()
        for threads in ("1", "2", "7") if n == LARGE else ("2",):
            monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
            payload = codec.encode(x, seed=seed)
            decoded = codec.decode(payload, n)
            results.add((payload.tobytes(), decoded.tobytes()))
        assert len(results) == 1
        scale = np.float32(payload.scalars["scale"])
        assert gs.same_bits(decoded, ternary_values(x, scale, seed))


@pytest.mark.parametrize(
    ("bits", "bucket"),
    [(1, 0), (2, 31), (3, 100), (4, 1), (5, 4097), (6, 0), (7, 600_001), (8, 33)],
)
def test_level_bits(bits: int, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = gcodec.parse(f"minmax:bits={bits},bucket={bucket},rounding=stochastic")
    large = LARGE if bucket in (0, 4097, 600_001) else 50_001  # NumPy takes a bucket at a time
    for k, n in enumerate((1, 2, 5, 31, 33, 63, 257, 4095, 8195, large)):
        x, seed = inputs(n, k), (2**64 - 1) // (k + 1)
        results = set()
        for threads in ("1", "2", "7") if n == LARGE else ("2",):
            monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
            payload = codec.encode(x, seed=seed)
            results.add((payload.tobytes(), codec.decode(payload, n).tobytes()))
        assert len(results) == 1
        codes = level_codes(x, bits, bucket, seed)
        expected = np.packbits(np.unpackbits(codes[:, None], axis=1)[:, 8 - bits :].reshape(-1))
        assert payload.tobytes()[-expected.size :] == expected.tobytes()


# --- bias ---------------------------------------------------------------------------------------
#
# K draws of an event of probability p differ from K·p by sqrt(K·p·(1 − p)), one standard error.
# Five of them are allowed. An excess of 0.1 % of a step is sqrt(K)/1000 standard errors or more:
# 8 for K = 2^26, so it passes with a chance of one in a thousand, and 4·sqrt(K)/1000 = 16 or more
# where p is below 1/16 or above 15/16. A probability that is too large by a factor of 1.001 is 8
# standard errors at p = 1/2, 11 at 2/3 and more above. Fractions as small as 2^-20 reveal words
# with fewer than 31 bits, which would round such fractions to 0 or 2^-16.

FRACTIONS = [
    *((2.0**-20, 24), (2.0**-12, 24), (0.01, 24), (1 / 3, LOG_DRAWS), (0.5, LOG_DRAWS)),
    *((2 / 3, LOG_DRAWS), (0.9, LOG_DRAWS), (1 - 2.0**-10, 24), (1 - 2.0**-20, 24)),
]


def excess(count: int, draws: int, p: float) -> float:
    """Return the distance of a count from its expectation, in standard errors."""
    return (count - draws * p) / math.sqrt(draws * p * (1 - p))


@pytest.mark.parametrize(("p", "log_draws"), FRACTIONS, ids=str)
def test_ternary_rounding_has_no_bias(p: float, log_draws: int) -> None:
    codec = gcodec.parse("terngrad:clip=0")
    fraction = np.float32(p)
    x = np.full(N, -fraction)
    x[0] = 1  # the scale
    ones = np.array([int(byte).bit_count() for byte in range(256)])
    calls = (1 << log_draws) // N
    count = sum(int(ones[codec.encode(x, seed=1000 + k).data].sum()) - 1 for k in range(calls))
    assert abs(excess(count, calls * (N - 1), float(fraction))) < 5


@pytest.mark.parametrize(("p", "log_draws"), FRACTIONS, ids=str)
@pytest.mark.parametrize("level", [0, 254])
def test_level_rounding_has_no_bias(p: float, log_draws: int, level: int) -> None:
    if level and not 2.0**-12 < p < 1 - 2.0**-12:
        p = 0.5 + p / 4  # float32 has no such fraction at 254
    codec = gcodec.parse("minmax:rounding=stochastic")
    value = np.float32(level + p)
    x = np.full(N, value)
    x[0], x[1] = 0, 255  # so a step is 1
    fraction = float(value) - level
    calls = (1 << log_draws) // N
    count = 0
    for k in range(calls):
        codes = codec.encode(x, seed=2000 + k).data[10:]
        counts = np.bincount(codes, minlength=256)
        assert counts[level] + counts[level + 1] == N - 2
        count += int(counts[level + 1])
    assert abs(excess(count, calls * (N - 2), fraction)) < 5


# --- independence -------------------------------------------------------------------------------


@functools.cache
def rounded_up(seed: int, spec: str = "terngrad:clip=0") -> np.ndarray:
    """Round N - 64 halves; return 1 for those rounded up, −1 for the others."""
    codec = gcodec.parse(spec)
    x = np.full(N, 0.5, np.float32)
    x[0], x[1] = 0, 1
    decoded = codec.decode(codec.encode(x, seed=seed), N)[64:]
    assert set(np.unique(decoded).tolist()) == {0.0, 1.0}
    return (2 * decoded - 1).astype(np.float32)


SPECS = ["terngrad:clip=0", "minmax:bits=1,rounding=stochastic"]


@pytest.mark.parametrize("spec", SPECS)
def test_neighbors_are_independent(spec: str) -> None:
    """Check five standard errors: products of independent signs have mean 0 and deviation 1."""
    up = rounded_up(3, spec)
    for lag in (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 128, 4096, 1 << 19):
        products = up[lag:] * up[:-lag]
        assert abs(products.sum(dtype=np.float64)) < 5 * math.sqrt(products.size), lag
    for k in range(32):  # each place in a block by itself
        assert abs(up[k::32].sum(dtype=np.float64)) < 5 * math.sqrt(up.size / 32), k


def test_number_of_runs() -> None:
    """Count runs: one ends with probability 1/2 at each of the m places between two elements."""
    up = rounded_up(3)
    m = up.size - 1
    ends = int(np.count_nonzero(up[1:] != up[:-1]))
    assert abs(ends - m / 2) < 5 * math.sqrt(m) / 2
    for length in range(1, 12):  # windows of equal signs: m / 2^(length - 1), dependent in part
        windows = np.lib.stride_tricks.sliding_window_view(up, length + 1)[:: length + 1]
        whole = int((np.abs(windows.sum(axis=1)) == length + 1).sum())
        p = 2.0**-length
        assert abs(excess(whole, len(windows), p)) < 5, length


def test_seeds_are_independent() -> None:
    seeds = (3, 4, 2, 3 + 2**32, 3 ^ 2**63, 2**64 - 4)
    for k, one in enumerate(seeds):
        for other in seeds[:k]:
            together = float((rounded_up(one) * rounded_up(other)).sum(dtype=np.float64))
            assert abs(together) < 5 * math.sqrt(N), (one, other)


@pytest.mark.parametrize("spec", ["terngrad", "terngrad:pack=base3", *SPECS])
def test_seeds_change_the_payload(spec: str) -> None:
    x = np.random.default_rng(1).standard_normal(3000, np.float32)
    codec = gcodec.parse(spec)
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    payloads = [codec.encode(x, seed=seed).tobytes() for seed in seeds]
    assert len(set(payloads)) == len(seeds)
    assert payloads == [codec.encode(x, seed=np.uint64(seed)).tobytes() for seed in seeds]
    if codec.name == "terngrad":
        symbols = codec.quantize(x, seed=5)
        again = codec.quantize(x, seed=5, scale=symbols.scale)  # type: ignore[call-arg]
        assert again.codes.tobytes() == symbols.codes.tobytes()


def test_codes_do_not_depend_on_later_elements() -> None:
    x = np.random.default_rng(2).standard_normal(5000, np.float32)
    codec = gcodec.parse("terngrad")
    whole = codec.decode(codec.encode(x, seed=9, scale=2.0), 5000)  # type: ignore[call-arg]
    for n in (1, 30, 33, 2561, 4999):
        part = codec.encode(x[:n], seed=9, scale=2.0)  # type: ignore[call-arg]
        assert gs.same_bits(codec.decode(part, n), whole[:n])


# --- error bounds, by exact probabilities -------------------------------------------------------


def moments_of(codec: gcodec.Codec, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of each x̂ and of (x̂ − x)² over all random words."""
    wide = x.astype(np.float64)
    if codec.name == "terngrad":
        s = np.float32(codec.scale_of(x))  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            r = np.minimum(np.abs(x) / s, 1) if s else np.abs(x)
        p = np.floor(r.astype(np.float64) * 2.0**31) / 2.0**31
        level = np.copysign(np.float64(s), wide)
        return p * level, p * (level - wide) ** 2 + (1 - p) * wide**2
    size = codec.bucket or max(x.size, 1)  # type: ignore[attr-defined]
    top = 2**codec.bits - 1  # type: ignore[attr-defined]
    means, squares = np.empty(x.size), np.empty(x.size)
    for start in range(0, x.size, size):
        part = wide[start : start + size]
        low, high = part.min(), part.max()
        r = (part - low) * (top / (high - low) if high > low else 0.0)
        q = np.floor(r)
        p = np.floor((r - q) * 2.0**31) / 2.0**31
        if codec.rounding == "nearest":  # type: ignore[attr-defined]
            q, p = np.rint(r), np.zeros_like(p)
        end, code = (low, 0) if abs(low) <= abs(high) else (high, top)
        levels = [
            (end + (np.minimum(k, top) - code) * ((high - low) / top)).astype(np.float32)
            for k in (q, q + 1)
        ]
        means[start : start + size] = (1 - p) * levels[0] + p * levels[1]
        errors = [(one.astype(np.float64) - part) ** 2 for one in levels]
        squares[start : start + size] = (1 - p) * errors[0] + p * errors[1]
    return means, squares


def adversaries(n: int) -> list[np.ndarray]:
    """Return tensors that reach a bound, or are extreme in another way."""
    rng = np.random.default_rng(n)
    one_large = np.full(n, 1 / (1 + math.sqrt(n)))
    one_large[0] = 1
    ends = np.zeros(n)
    ends[0], ends[-1] = -1, 1
    halfway = (np.arange(n) % 255 + 0.5) / 255 * 2 - 1
    halfway[0], halfway[-1] = -1, 1
    wide = 10.0 ** rng.uniform(-30, 30, n) * rng.choice([-1, 1], n)
    return [
        x.astype(np.float32)
        for x in (
            *(one_large, ends, halfway, wide, -one_large * 1e-30, ends * 1e30, ends + 1e-3),
            *(rng.standard_normal(n), 1e4 + rng.standard_normal(n) * 1e-3, np.ones(n) / 3),
            *(rng.choice([-1, 0, 1], n), np.r_[1, np.zeros(n - 1)], halfway * 3e38),
        )
    ]


LAWFUL = [gcodec.parse("terngrad:clip=0"), *(c for c in gs.FEW if c.name == "minmax")]


@pytest.mark.parametrize("codec", LAWFUL, ids=str)
def test_laws_at_adversaries(codec: gcodec.Codec) -> None:
    """Allow for rounding x̂ to float32: a millionth of ‖x‖² if (m − 2)/(2·L²) is large."""
    for n in (1, 2, 3, 33, 400):
        variance, contraction = codec.variance(n), codec.contraction(n)
        for x in adversaries(n):
            wide = x.astype(np.float64)
            energy = float(wide @ wide)
            means, squares = moments_of(codec, x)
            if variance is not None:
                assert squares.sum() <= variance * energy * (1 + 1e-6) + 1e-9 * energy
            if contraction is not None:
                decoded = codec.decode(codec.encode(x), n).astype(np.float64)
                error = float(((decoded - wide) ** 2).sum())
                assert error <= (1 - contraction) * energy * (1 + 1e-6) + 1e-9 * energy
            if codec.name == "terngrad" and codec.unbiased:
                step = np.abs(wide).max()
                allowed = 2.0**-22 * np.abs(wide) + 2.0**-31 * step
                assert np.all(np.abs(means - wide) <= allowed)


def test_the_variance_of_terngrad_is_tight() -> None:
    """Reach the bound with one element that is √n times as large."""
    codec = gcodec.parse("terngrad:clip=0")
    for n in (4, 100, 10_000):
        x = adversaries(n)[0]
        wide = x.astype(np.float64)
        bound = codec.variance(n)
        assert bound is not None
        ratio = moments_of(codec, x)[1].sum() / float(wide @ wide)
        assert bound * 0.9999 < ratio <= bound * 1.000001


def test_the_error_of_minmax_is_tight() -> None:
    """Reach the bound with zeros, half a step from the two nearest levels."""
    for spec in ("minmax:bits=1", "minmax:bits=3,rounding=stochastic"):
        codec = gcodec.parse(spec)
        x = adversaries(1000)[1]
        bound = codec.variance(1000)
        assert bound is not None
        assert moments_of(codec, x)[1].sum() / 2 == pytest.approx(bound, rel=1e-5)


@given(st.data())
def test_decoded_values_are_within_a_step(data: st.DataObject) -> None:
    """The error is below a step, and no value lies beyond the ends of the bucket."""
    bits, seed = data.draw(st.integers(1, 8)), data.draw(gs.seeds())
    codec = gcodec.parse(f"minmax:bits={bits},rounding=stochastic")
    x = data.draw(gs.gradients(large=True))
    decoded = codec.decode(codec.encode(x, seed=seed), x.size).astype(np.float64)
    wide = x.astype(np.float64)
    if x.size:
        step = np.ptp(wide) / (2**bits - 1)
        rounding = np.spacing(np.abs(x).max()).astype(np.float64) / 2
        assert np.all(np.abs(decoded - wide) <= step + rounding)
        assert decoded.min() >= wide.min() - rounding
        assert decoded.max() <= wide.max() + rounding
