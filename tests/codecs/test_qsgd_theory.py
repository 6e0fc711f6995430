"""qsgd: the paper's theorems, from the exact probabilities of the specified arithmetic.

A level is `low` or `high`, and high with probability p = T / 2^31, T = int32(f·2^31). For uniform
random words p is exact, and so are all expectations below up to float64 sums. The remaining tests
measure whether the words are uniform and independent, and whether the codec follows the rule.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sweeps import LONG, thinned

import gcodec
from bench import bits
from gcodec.kernels.numeric.philox import words

PAGE = Path(__file__).parents[2] / "docs" / "qsgd.md"
SHAPES = ("gaussian", "Laplace", "GenNorm(1/2)", "equal", "one-hot", "lognormal")
SIZES = (1, 7, 256, 5000, 1 << 16, 1 << 20)


@functools.cache
def vector(shape: str, n: int) -> np.ndarray:
    """Return a vector of a named distribution, the same at each call."""
    rng = np.random.default_rng([n, SHAPES.index(shape)])
    sign = rng.choice([-1, 1], n)
    if shape == "equal":
        x = 0.7 * sign
    elif shape == "one-hot":
        x = np.zeros(n)
        x[n // 2] = -3.25
    elif shape == "lognormal":
        x = rng.lognormal(0, 2, n) * sign
    elif shape == "GenNorm(1/2)":
        x = rng.standard_gamma(2, n) ** 2 * sign
    else:
        x = rng.standard_normal(n) if shape == "gaussian" else rng.laplace(size=n)
    return x.astype(np.float32)


def qsgd(**values: Any) -> Any:
    return gcodec.parse({"name": "qsgd", **values})


def levels_at(n: int) -> list[int]:
    """Return numbers of levels s to test with n elements, up to √n."""
    return sorted({1, 2, 4, 15, max(1, math.isqrt(n))})


class LevelDistribution(NamedTuple):
    """The two possible levels of each element, and their probabilities."""

    low: np.ndarray  # levels
    high: np.ndarray
    p: np.ndarray  # The probability of the higher level.
    values: tuple[np.ndarray, np.ndarray]  # The decoded values of both levels: signed, float64.
    steps: np.ndarray  # N/s

    @property
    def mean(self) -> np.ndarray:
        """Expected level of each element."""
        return self.low + self.p * (self.high - self.low)

    @property
    def variance(self) -> np.ndarray:
        """Variance of the level of each element."""
        return self.p * (1 - self.p) * (self.high - self.low)

    @property
    def sent(self) -> np.ndarray:
        """Probability that the level is not 0."""
        return np.where(self.low > 0, 1.0, self.p)

    def error(self, x: np.ndarray) -> np.ndarray:
        """Return the mean of (x̂ − x)² of each element."""
        below, above = ((value - x) ** 2 for value in self.values)
        return (1 - self.p) * below + self.p * above


def distribution(
    x: np.ndarray, codec: Any, norms: np.ndarray, factor: float = 1
) -> LevelDistribution:
    """Follow the specification, with r multiplied by a factor, which is 1 in the codec."""
    bucket = min(codec.bucket, x.size) or x.size
    norm = np.repeat(norms.astype(np.float64), bucket)[: x.size]
    assert ((norm == 0) | (norm >= 2.0**-100)).all()
    scale = codec.s / np.where(norm > 0, norm, np.inf)
    r = np.abs(x) * scale.astype(np.float32) * np.float32(factor)
    whole = np.floor(r)
    p = np.floor((r - whole).astype(np.float64) * 2.0**31) / 2.0**31
    levels = [np.minimum(level, codec.s) for level in (whole, whole + 1)]
    unit = (norm / codec.s).astype(np.float32)
    low, high = (np.copysign(level * unit, x).astype(np.float64) for level in levels)
    return LevelDistribution(*(k.astype(np.int64) for k in levels), p, (low, high), norm / codec.s)


def distribution_of(x: np.ndarray, codec: Any) -> LevelDistribution:
    return distribution(x, codec, codec.quantize(x).norms)


def codecs_for(n: int, s: int) -> list[Any]:
    """Return codecs with both norms, with and without buckets."""
    codecs = [qsgd(s=s), qsgd(s=s, norm="max")]
    if n > 512:
        codecs += [qsgd(s=s, bucket=512), qsgd(s=s, bucket=512, norm="max")]
    return codecs if n < 1 << 20 else codecs[::3]


# --- Lemma 3.1 ----------------------------------------------------------------------------------

each_shape = pytest.mark.parametrize("shape", SHAPES)
each_size = pytest.mark.parametrize("n", SIZES if LONG else SIZES[:-1])


@each_shape
def test_norm_is_the_nearest_float32(shape: str) -> None:
    """Only the last bit of the float64 norm, before it is rounded, is uncertain."""
    for n in SIZES[:-1]:
        x = vector(shape, n).astype(np.float64)
        for bucket in (0, 512):
            quantized = qsgd(bucket=bucket).quantize(x.astype(np.float32)).norms
            for k, norm in enumerate(quantized.tolist()):
                part = x[k * 512 : k * 512 + 512] if bucket else x
                exact = math.sqrt(math.fsum(part * part))
                assert abs(norm - exact) <= 2.0**-24 * exact * (1 + 1e-6)


@each_shape
def test_levels_follow_the_rule(shape: str) -> None:
    """The codec takes the higher level with probability p, if words are uniform."""
    n = (1 << 16) + 77
    x = vector(shape, n)
    up = words(11, 0, n) >> 1
    for s in (1, 4, 15, 512):
        for codec in codecs_for(n, s):
            symbols = codec.quantize(x, seed=11)
            model = distribution(x, codec, symbols.norms)
            above = up < (model.p * 2.0**31).astype(np.int64)
            level = np.where(above, model.high, model.low)
            assert np.array_equal(symbols.levels, 2 * level + ((level > 0) & (x < 0)))
            decoded = codec.dequantize(symbols, n)
            assert np.array_equal(decoded, np.where(above, model.values[1], model.values[0]))


@each_size
@each_shape
def test_unbiased_bounded_and_sparse(shape: str, n: int) -> None:
    """All parts of the lemma and the codec's law hold; float32 norms are off by 2^-24."""
    x = vector(shape, n)
    wide = x.astype(np.float64)
    energy = float(wide @ wide)
    for s in levels_at(n):
        for codec in codecs_for(n, s):
            model = distribution_of(x, codec)
            mean = (1 - model.p) * model.values[0] + model.p * model.values[1]
            allowed = 2.0**-22 * np.abs(wide) + 2.0**-31 * model.steps
            assert (np.abs(mean - wide) <= allowed).all(), codec
            d = min(codec.bucket or n, n)
            lemma, law = min(d / s**2, math.sqrt(d) / s), codec.variance(n)
            assert law == min(d / (4 * s**2), math.sqrt(d) / s)
            error = float(model.error(wide).sum()) / energy
            assert error <= min(law, lemma) * (1 + 1e-6), codec
            if codec.norm == "l2":
                sent = float(model.sent.sum())
                assert sent <= -(-n // d) * s * (s + math.sqrt(d)) * (1 + 1e-6), codec


def test_sums_of_float64_are_exact_enough() -> None:
    """Exact fractions give the same expectations."""
    for shape in SHAPES:
        x = vector(shape, 256)
        for codec in codecs_for(256, 2):
            model = distribution_of(x, codec)
            error, size = Fraction(0), Fraction(0)
            for i, value in enumerate(map(Fraction, x.tolist())):
                p = Fraction(int(model.p[i] * 2**31), 2**31)
                low, high = (Fraction(float(values[i])) for values in model.values)
                bias = abs(low + p * (high - low) - value)
                assert bias <= abs(value) / 2**22 + Fraction(float(model.steps[i])) / 2**31
                error += (1 - p) * (low - value) ** 2 + p * (high - value) ** 2
                size += value**2
            actual = float(model.error(x.astype(np.float64)).sum())
            assert actual == pytest.approx(float(error), rel=1e-12)
            assert error <= Fraction(codec.variance(256)) * size * (1 + Fraction(1, 10**6))


def test_both_branches_of_the_variance_are_tight() -> None:
    # Each element lies halfway between two levels.
    for n, s in ((4, 1), (16, 2), (1024, 16), (4, 5), (36, 9)):
        x = np.full(n, 0.5, np.float32)
        error = distribution_of(x, qsgd(s=s)).error(x.astype(np.float64)).sum() / float(x @ x)
        assert qsgd(s=s).variance(n) == n / (4 * s * s) == pytest.approx(error, rel=1e-6)
    n = 1 << 20
    x = np.full(n, 0.5, np.float32)  # With r = 1/1024, nearly all levels are 0.
    error = distribution_of(x, qsgd(s=1)).error(x.astype(np.float64)).sum() / float(x @ x)
    assert 0.999 * qsgd(s=1).variance(n) < error < qsgd(s=1).variance(n) == 1024


# --- the sampler ---------------------------------------------------------------------------------
#
# The codec draws R levels of each of n elements. The sum of an element's levels differs from
# R·mean by sqrt(R·variance), one standard error. Three statistics, each in its own standard
# errors: the sum over all elements, which detects a common bias; the sum of squares, which detects
# biases that differ; and the largest. The tests allow five standard errors, and six for the
# largest. With R·n = 2^24, a bias of half a percent of r is at least 15 standard errors of the
# first statistic, a bias of half a percent of a step is at least 30, and a bias whose sign changes
# is as many of the second.

DRAW_COUNT, ELEMENT_COUNT = 4096, 4096
SAMPLED = [
    ("gaussian", {"s": 64}),
    ("Laplace", {"s": 127}),
    ("GenNorm(1/2)", {"s": 7, "norm": "max"}),
    ("lognormal", {"s": 64}),
]
sampled = pytest.mark.parametrize(("shape", "setting"), SAMPLED, ids=str)


class Deviation(NamedTuple):
    """Three statistics of a sample, in standard errors."""

    total: float
    spread: float
    largest: float


def deviation(sums: np.ndarray, draws: int, model: LevelDistribution) -> Deviation:
    mean, variance = draws * model.mean, draws * model.variance
    keep = (draws * np.minimum(model.p, 1 - model.p) >= 20) & (model.high > model.low)
    assert keep.sum() > 500
    deviations = (sums - mean)[keep]
    z = deviations / np.sqrt(variance[keep])
    spread = (z @ z - z.size) / math.sqrt(2 * z.size)
    return Deviation(deviations.sum() / math.sqrt(variance[keep].sum()), spread, np.abs(z).max())


def is_plausible(actual: Deviation) -> bool:
    return abs(actual.total) < 5 and abs(actual.spread) < 5 and actual.largest < 6


@functools.cache
def sample(shape: str, setting: tuple[tuple[str, Any], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return each element's sum of levels over all draws, of a long tensor and of many seeds."""
    x = vector(shape, ELEMENT_COUNT)
    codec = qsgd(**dict(setting), bucket=ELEMENT_COUNT)
    sums = [np.zeros(ELEMENT_COUNT, np.int64) for _ in range(2)]
    tiled = np.tile(x, DRAW_COUNT // 4)
    for k in range(4):
        levels = codec.quantize(tiled, seed=k).levels.reshape(-1, ELEMENT_COUNT) >> 1
        sums[0] += levels.sum(axis=0, dtype=np.int64)
    for seed in range(DRAW_COUNT // 4):
        sums[1] += codec.quantize(x, seed=2**40 + seed).levels >> 1
    return sums[0], sums[1]


def sums_and_distribution(
    shape: str, setting: dict[str, Any], factor: float = 1
) -> tuple[np.ndarray, np.ndarray, LevelDistribution]:
    x, codec = vector(shape, ELEMENT_COUNT), qsgd(**setting)
    norms = codec.quantize(x).norms
    return *sample(shape, tuple(setting.items())), distribution(x, codec, norms, factor)


@sampled
def test_sampler_follows_the_probabilities(shape: str, setting: dict[str, Any]) -> None:
    one, many, model = sums_and_distribution(shape, setting)
    assert is_plausible(deviation(one, DRAW_COUNT, model))
    assert is_plausible(deviation(many, DRAW_COUNT // 4, model))


@sampled
def test_statistics_detect_half_a_percent_bias(shape: str, setting: dict[str, Any]) -> None:
    """Wrong probabilities against the right sample have the same effect as the reverse."""
    one, _, model = sums_and_distribution(shape, setting)
    for factor in (0.995, 1.005):  # With these factors r is too small or too large.
        _, _, wrong = sums_and_distribution(shape, setting, factor)
        assert abs(deviation(one, DRAW_COUNT, wrong).total) > 15
    inner = np.clip(model.p, 0.006, 0.994)
    few_bits = np.floor(inner * 2**7) / 2**7  # With random words of 7 bits, half of 1/128 is lost.
    for p in (inner + 0.005, inner - 0.005, np.maximum(few_bits, 0.001)):
        assert abs(deviation(one, DRAW_COUNT, model._replace(p=p)).total) > 15
    turns = np.where(np.arange(ELEMENT_COUNT) % 2, 0.005, -0.005)
    assert deviation(one, DRAW_COUNT, model._replace(p=inner + turns)).spread > 15


def standardized(seed: int, draws: int) -> np.ndarray:
    """Return levels of many equal buckets, minus the mean, divided by the standard deviation."""
    x, codec = vector("gaussian", ELEMENT_COUNT), qsgd(s=15, bucket=ELEMENT_COUNT)
    model = distribution_of(x, codec)
    levels = codec.quantize(np.tile(x, draws), seed=seed).levels.reshape(draws, ELEMENT_COUNT) >> 1
    keep = model.variance > 0.02
    deviations = levels[:, keep] - model.mean[keep]
    return deviations / np.sqrt(model.variance[keep])


def test_buckets_and_seeds_are_independent() -> None:
    """Products of independent z have mean 0 and variance 1; five standard errors are allowed."""
    draws = 256
    one, other = standardized(5, draws), standardized(6, draws)
    assert abs((one * other).sum()) < 5 * math.sqrt(one.size)
    for lag in (1, 2, 3, 8, 64, 128):  # Lags of buckets.
        products = one[lag:] * one[:-lag]
        assert abs(products.sum()) < 5 * math.sqrt(products.size), lag
    for lag in (1, 2, 3, 4, 7, 32):  # Lags of elements.
        products = one[:, lag:] * one[:, :-lag]
        assert abs(products.sum()) < 5 * math.sqrt(products.size), lag
    # The sum of each draw would be too large or too small if its elements were correlated.
    together = one.sum(axis=1) / math.sqrt(one.shape[1])
    assert abs(together @ together - draws) < 5 * math.sqrt(2 * draws)
    # If each bucket began with the same random words, the test would detect it.
    assert (one[:1] * one[:1]).sum() > 5 * math.sqrt(one[:1].size)


def test_levels_depend_on_index_norm_and_seed() -> None:
    """The surroundings of an element affect its level only through the norm."""
    x = vector("Laplace", 5000)
    for codec in (qsgd(bucket=512), qsgd(bucket=100, norm="max"), qsgd(norm="max")):
        whole = codec.quantize(x, seed=3).levels
        changed = x.copy()
        if codec.bucket:
            changed[: 4 * codec.bucket] *= -7
            again = codec.quantize(changed, seed=3).levels
            assert np.array_equal(again[4 * codec.bucket :], whole[4 * codec.bucket :])
            part = codec.quantize(x[: 8 * codec.bucket], seed=3).levels
            assert np.array_equal(part, whole[: 8 * codec.bucket])
        else:
            place = int(np.abs(x).argmax())
            changed[:place:2] = 0
            again = codec.quantize(changed, seed=3).levels
            unchanged = changed == x
            assert np.array_equal(again[unchanged], whole[unchanged])
        assert (codec.quantize(x, seed=4).levels != whole).any()
        moved = codec.quantize(np.roll(x, 1), seed=3).levels
        assert (np.roll(moved, -1) != whole).any()


# --- Theorem 3.2 and the number of bits ---------------------------------------------------------

OMEGA = gcodec.entropy.parse("omega")
# The number of bits of a value determines the length of its codeword.
LENGTH_BY_NBITS = OMEGA.lengths([1 << j for j in range(40)]).astype(np.int64)


def omega(values: np.ndarray) -> np.ndarray:
    """Return lengths of omega codewords; 0 has none."""
    values = np.asarray(values)
    return np.where(values > 0, LENGTH_BY_NBITS[np.frexp(np.maximum(values, 1))[1] - 1], 0)


def dense_nbits(model: LevelDistribution, buckets: int = 1) -> float:
    """Return the expected bits of the dense form."""
    low, high = omega(model.low + 1), omega(model.high + 1)
    words = 1 + (1 - model.p) * low + model.p * high
    return 32 * buckets + float(words[model.steps > 0].sum())


def sparse_nbits(model: LevelDistribution, buckets: int = 1) -> float:
    """Return the expected bits of the sparse form.

    The codeword of a gap grows where the gap reaches 2^j, that is, where the 2^j − 1 elements
    preceding element i exist and are zeros.
    """
    sent = model.sent
    levels = (1 - model.p) * omega(model.low) + model.p * omega(model.high)
    sure = np.concatenate([[0], np.cumsum(sent == 1)])
    with np.errstate(divide="ignore"):
        logs = np.where(sent == 1, 0, np.log1p(-sent))
    logs = np.concatenate([[0], np.cumsum(logs)])
    gaps = float(sent.sum())
    for j in range(1, model.p.size.bit_length()):
        before = (1 << j) - 1
        subset = sure[before:-1] == sure[: -1 - before]
        zeros = np.where(subset, np.exp(logs[before:-1] - logs[: -1 - before]), 0)
        gaps += float(sent[before:] @ zeros) * int(LENGTH_BY_NBITS[j] - LENGTH_BY_NBITS[j - 1])
    return 32 * buckets + gaps + float((sent + levels).sum())


def theorem(n: int, s: int) -> float:
    """Return the bound of Theorem 3.2, with o(1) = 0."""
    product = s * (s + math.sqrt(n))
    return (3 + 1.5 * math.log2(2 * (s * s + n) / product)) * product + 32


def test_codeword_lengths_follow_from_bits() -> None:
    values = np.append(np.arange(1, 5000), [2**32 - 1, 2**32])
    assert np.array_equal(OMEGA.lengths(values), omega(values))
    assert omega(np.array([0, 1, 15, 16])).tolist() == [0, 1, 7, 11]


@pytest.mark.parametrize("n", thinned([256, 1 << 16, 5000], 2))
@each_shape
def test_payloads_have_the_expected_bits(shape: str, n: int) -> None:
    """The mean over some seeds lies within six of its standard errors."""
    x, draws = vector(shape, n), 32
    root = math.isqrt(n)
    settings = [{"s": 1}, {"s": 4}, {"s": root}, {"s": 15, "bucket": 100, "norm": "max"}]
    for setting in settings:
        codec = qsgd(**setting)
        norms = codec.quantize(x).norms
        model = distribution(x, codec, norms)
        for form, expected in (("dense", dense_nbits), ("sparse", sparse_nbits)):
            one = codec.replaced(form=form)
            nbits = np.array([one.encode(x, seed=seed).nbits for seed in range(draws)])
            error = nbits.std(ddof=1) / math.sqrt(draws)
            mean = expected(model, norms.size)
            assert abs(nbits.mean() - mean) <= 6 * error + 1e-9 * mean, (codec, form)


@each_shape
def test_sparse_strings_keep_the_bound_of_the_theorem(shape: str) -> None:
    """Theorem 3.2 holds even with o(1) = 0, with at least 4 % to spare."""
    for n in SIZES if shape in ("gaussian", "equal") else SIZES[:-1]:
        x = vector(shape, n)
        for s in levels_at(n)[1:] if n < 1 << 20 else [2]:
            codec = qsgd(s=s, form="sparse")
            assert sparse_nbits(distribution_of(x, codec)) <= 0.96 * theorem(n, s), (n, s)
            assert codec.encode(x, seed=1).nbits <= theorem(n, s), (n, s)


def test_codeword_lengths_have_a_linear_bound() -> None:
    """Sign and omega(k + 1) take at most 2 + 2k bits, and so do their interpolations.

    The sum of r is s·‖x‖₁/‖x‖₂, at most s·√n: 2n + 2s√n + 32 expected bits suffice, which is 4n +
    32 for s = √n.
    """
    assert all(1 + omega(np.array([k + 1]))[0] <= 2 + 2 * k for k in range(300))
    for j in range(8, 40):  # The least value with a codeword of this length.
        assert 1 + LENGTH_BY_NBITS[j] <= 2 + 2 * ((1 << j) - 1)


@each_shape
def test_dense_strings_keep_their_bound(shape: str) -> None:
    for n in SIZES if LONG else SIZES[:-1]:
        x = vector(shape, n)
        for s in levels_at(n):
            codec = qsgd(s=s, form="dense")
            bound = 2 * n + 2 * s * math.sqrt(n) + 32
            assert dense_nbits(distribution_of(x, codec)) <= bound * (1 + 1e-6), (n, s)
            symbols = codec.quantize(x, seed=2)
            limit = 2 * n + 2 * int((symbols.levels >> 1).sum(dtype=np.int64)) + 32
            assert codec.pack(symbols).nbits <= limit
    if shape == "equal":
        for root in (1, 16, 256, 1024):
            x = vector(shape, root * root)
            model = distribution_of(x, qsgd(s=root))
            assert dense_nbits(model) == pytest.approx(4 * root * root + 32, rel=1e-6)


# --- docs/qsgd.md -------------------------------------------------------------------------------


def table() -> dict[tuple[str, str], list[str]]:
    """Return the cells of the table by data and setting."""
    lines = PAGE.read_text("utf-8").splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert tuple(cells[0]) == bits.COLUMNS
    return {(row[0], row[1].strip("`")): row[2:] for row in cells[2:]}


def test_table_is_the_script_output() -> None:
    """The table has all rows; the test recomputes those that take few seconds.

    A new release of NumPy may change the random data, and with it the last printed digit.
    """
    shown = table()
    assert list(shown) == [(data, setting) for data in bits.DATA for setting in bits.SETTINGS]
    for setting in bits.SETTINGS:
        data = bits.tensors("example")
        assert bits.row("example", data, setting)[2:] == shown["example", setting]
    for data, setting in (("gaussian", "s=15,bucket=512"), ("GenNorm(1/2)", "s=√n")):
        result = bits.row(data, bits.tensors(data), setting)[2:]
        for actual, cell in zip(result, shown[data, setting], strict=True):
            assert actual == cell == "–" or abs(float(actual) - float(cell)) <= 0.0101


def test_statements_about_the_table_hold() -> None:
    dense_wins, sparse_rice = set(), {}
    for row, cells in table().items():
        numbers = [float(cell.replace("–", "inf")) for cell in cells[1:]]
        entropy, omega_dense, omega_sparse, dense, sparse, packed, huffman, rans, context, auto = (
            numbers
        )
        assert auto <= entropy + 0.2
        assert entropy <= auto or (row[0] == "example" and auto < rans)
        # The encoder estimates the bits of rANS before it selects it.
        assert auto <= min(omega_dense, omega_sparse, dense, sparse, packed, huffman, rans) + 0.01
        assert auto <= context <= rans + 0.011
        assert 0.1 < 1 - auto / min(omega_dense, omega_sparse) <= 0.5
        assert dense < omega_dense and sparse < omega_sparse and dense < packed
        if omega_dense < omega_sparse:
            dense_wins.add(row)
        if sparse < dense:
            sparse_rice[row] = sparse / dense
        assert (sparse < 1 and sparse < dense) or min(sparse, dense) > 1
    many_levels = "s=127,bucket=512"
    assert dense_wins == {
        ("gaussian", many_levels),
        ("Laplace", many_levels),
        ("example", many_levels),
    }
    near = {row: ratio for row, ratio in sparse_rice.items() if float(table()[row][-1]) > 1}
    assert set(near) == {
        ("Laplace", "s=7,bucket=512,norm=max"),
        ("GenNorm(1/2)", "s=15,bucket=512"),
    }
    assert min(near.values()) > 0.97
    text = PAGE.read_text("utf-8")
    whole, split = (table()["gaussian", f"s=15{end}"][0] for end in ("", ",bucket=512"))
    assert f"the noise is {whole} times" in text and f"and {split} times with" in text
