"""powersgd: against an oracle, the quality of its approximation, and refused inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import powersgd as reference

import gcodec
from gcodec.kernels.numeric import low_rank, philox


def matrix(m: int, k: int, rank: int, noise: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.standard_normal((m, rank)) @ random.standard_normal((rank, k))
    return (x + noise * random.standard_normal((m, k))).astype(np.float32)


def nmse_of(x: np.ndarray, y: np.ndarray) -> float:
    """Return the error relative to the norm of x."""
    wide = x.astype(np.float64)
    return float(np.linalg.norm(wide - y) / np.linalg.norm(wide))


shapes = st.sampled_from([(3, 5), (8, 8), (7, 2, 3), (2, 9), (20, 3), (5, 1, 4), (12, 11), (4, 0)])


@given(shapes, st.integers(1, 3), st.integers(0, 2**64 - 1), st.integers(-40, 30))
@settings(max_examples=60)
def test_bytes_agree_with_the_oracle(
    shape: tuple[int, ...], rank: int, seed: int, exponent: int
) -> None:
    random = np.random.default_rng(seed % 1000)
    x = (random.standard_t(2, shape) * 10.0**exponent).astype(np.float32)
    x[random.random(shape) < 0.2] = 0
    codec = gcodec.parse(f"powersgd:rank={rank}")
    payload = codec.encode(x, seed=seed)
    assert payload.tobytes() == reference.encode(x, rank, seed)
    y = codec.decode(payload, shape)
    assert np.array_equal(y, reference.decode(payload.tobytes(), shape, rank))


def test_warm_started_steps_agree_with_the_oracle() -> None:
    x = matrix(9, 12, 3, 0.3)
    x[:, 5] = 0
    codec = gcodec.parse("powersgd:rank=2")
    prior, before = None, None
    for step in range(4):
        symbols = codec.quantize(x, seed=step, prior=prior)
        p, q = reference.factors(x, 2, step, before)
        expected = np.concatenate(p + q).astype(np.float32)
        assert np.array_equal(symbols.bits.view(np.float32), expected)
        prior, before = symbols, q


@pytest.mark.parametrize(("m", "k"), [(3, 20_000), (20_000, 3), (600, 700)])
def test_blocks_do_not_change_sums(m: int, k: int) -> None:
    """Sums in blocks equal exact integers, beyond the number of products float64 adds exactly."""
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    q = low_rank.fixed(low_rank.start(5, 1, k))
    actual = low_rank.times_transposed(x, q)
    unit = math.ldexp(1, math.frexp(float(np.abs(x).max()))[1] - 24)
    whole = np.rint(x.astype(np.float64) / unit).astype(np.int64)
    exact = whole @ q.integers[0].astype(np.int64)
    assert np.array_equal(actual[0], exact * (q.units[0, 0] * unit))
    p = low_rank.fixed(actual)
    other = low_rank.times(x, p)
    exact = p.integers[0].astype(np.int64) @ whole
    assert np.array_equal(other[0], exact * (p.units[0, 0] * unit))
    top = int(np.abs(x).max().view(np.uint32))
    prepared = low_rank.prepared(x, top)
    assert (prepared.dtype == np.float64) == (x.size < 1 << 20 and max(m, k) <= 1 << 13)
    assert np.array_equal(low_rank.times_transposed(prepared, q, top), actual)
    assert np.array_equal(low_rank.times(prepared, p, top), other)


def test_random_rows_do_not_depend_on_their_number() -> None:
    rows = low_rank.start(5, 7, 13)
    assert np.array_equal(low_rank.start(5, 3, 13, first=4), rows[4:])
    sums = rows.reshape(-1) + 510
    words = philox.words(5, 0, 7 * 13, low_rank.STREAM)
    assert np.array_equal(sums, words.view(np.uint8).reshape(-1, 4).sum(axis=1))


@given(st.integers(1, 6), st.integers(0, 100))
@settings(max_examples=20)
def test_rows_become_orthonormal(rank: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((rank, 50)) * 10.0 ** random.integers(-30, 30, (rank, 1))
    result = low_rank.orthonormal(rows)
    assert np.abs(result @ result.T - np.eye(rank)).max() < 1e-9
    dependent = low_rank.orthonormal(np.vstack([rows, rows[:1] * 3, np.zeros((1, 50))]))
    assert np.array_equal(dependent[:rank], result) and not dependent[rank:].any()


def test_matrices_of_the_rank_are_reconstructed() -> None:
    x = matrix(40, 60, 3)
    for rank, limit in ((3, 1e-4), (4, 1e-4), (8, 1e-4), (2, 1)):
        frame = gcodec.encode(x, f"powersgd:rank={rank}")
        assert len(frame) < 4 * 100 * rank + 40
        assert nmse_of(x, gcodec.decode(frame)) < limit
    assert not gcodec.decode(gcodec.encode(np.zeros((9, 9), np.float32), "powersgd")).any()


def test_steps_approach_the_best_approximation() -> None:
    x = matrix(60, 80, 10, 0.5)
    singular = np.linalg.svd(x, compute_uv=False)
    best = math.sqrt(float((singular[4:] ** 2).sum() / (singular**2).sum()))
    codec = gcodec.parse("powersgd")
    prior, errors = None, []
    for _ in range(12):
        prior = codec.quantize(x, prior=prior)
        errors.append(nmse_of(x, codec.dequantize(prior, x.shape)))
    assert best <= errors[-1] < 1.01 * best
    assert errors[0] > 1.05 * best and errors == sorted(errors, reverse=True)
    fresh = nmse_of(x, gcodec.decode(gcodec.encode(x, codec)))
    assert fresh == errors[0]


def test_error_never_grows() -> None:
    """Encoding is a projection up to rounding: the error never exceeds the tensor."""
    random = np.random.default_rng(2)
    for rank in (1, 3):
        for shape in ((9, 30), (30, 9), (16, 4, 4)):
            x = random.standard_t(1.5, shape).astype(np.float32)
            y = gcodec.decode(gcodec.encode(x, f"powersgd:rank={rank}"))
            error = np.linalg.norm((x - y).astype(np.float64)) ** 2
            wide = x.astype(np.float64)
            energy_lost = np.linalg.norm(wide) ** 2 - np.linalg.norm(y.astype(np.float64)) ** 2
            assert error == pytest.approx(energy_lost, rel=1e-3)
            assert error < np.linalg.norm(wide) ** 2


def test_feedback_warm_starts_from_the_prior() -> None:
    x = matrix(50, 70, 8, 0.1)
    warm, cold = gcodec.Feedback("powersgd"), gcodec.Feedback("powersgd")
    residual_norms = []
    for _ in range(15):
        frame = warm.compress("w", x)
        residual_norms.append(np.linalg.norm(warm.residual("w")))
        cold.restore("w", cold.memory("w")._replace(prior=None))
        cold.compress("w", x)
    total = np.linalg.norm(x)
    assert residual_norms[-1] < np.linalg.norm(cold.residual("w"))
    assert residual_norms[-1] < 3 * total
    assert gcodec.Frame.from_bytes(frame).codec.rank == 4


def test_lost_directions_are_recovered() -> None:
    codec = gcodec.parse("powersgd:rank=2")
    nothing = codec.quantize(np.zeros((9, 9), np.float32))
    assert not nothing.bits.any()
    x = matrix(9, 9, 2)
    again = codec.quantize(x, seed=3, prior=nothing)
    assert nmse_of(x, codec.dequantize(again, x.shape)) < 1e-4
    # The encoder ignores symbols of another tensor or of another rank.
    for prior in (codec.quantize(matrix(5, 5, 1)), gcodec.parse("powersgd:rank=3").quantize(x)):
        assert np.array_equal(codec.quantize(x, seed=3, prior=prior).bits, again.bits)


@pytest.mark.parametrize(
    ("shape", "rank", "count"),
    [
        ((), 1, 1),
        ((7,), 1, 7),
        ((1, 9), 1, 9),
        ((9, 1), 1, 9),
        ((4, 4), 2, 16),  # The factors would take as many numbers as the matrix.
        ((4, 5), 2, 18),
        ((64, 3, 7, 7), 4, 4 * (64 + 147)),
        ((64, 64, 3, 3), 4, 4 * (64 + 576)),
        ((0, 5), 1, 0),
        ((5, 0), 1, 0),
        ((10, 10), 100, 100),
    ],
)
def test_payload_contains_the_factors(shape: tuple[int, ...], rank: int, count: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    payload = gcodec.parse(f"powersgd:rank={rank}").encode(x)
    assert payload.nbits == 32 * count
    if count == x.size:
        assert payload.tobytes() == x.tobytes()


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1e20, 1e36])
def test_any_magnitude_works(scale: float) -> None:
    x = (matrix(20, 20, 2, 0.01) * scale).astype(np.float32)
    y = gcodec.decode(gcodec.encode(x, "powersgd"))
    assert nmse_of(x / np.float32(scale), y / np.float32(scale)) < (1 if scale < 1e-40 else 0.1)


def test_products_beyond_float32_are_refused() -> None:
    x = np.full((100, 100), 3e38, np.float32)
    with pytest.raises(gcodec.ParameterError, match="must not exceed float32"):
        gcodec.encode(x, "powersgd")
    for wrong in (math.nan, math.inf):
        x[3, 4] = wrong
        with pytest.raises(gcodec.ParameterError, match="NaN or Inf, the first at flat index 304"):
            gcodec.encode(x, "powersgd")


def test_frames_beyond_the_limit_of_products_are_refused() -> None:
    x, products = matrix(40, 50, 3), 3 * 40 * 50
    limits = gcodec.Limits(max_products=products - 1)
    frame = gcodec.encode(x, "powersgd:rank=3")
    assert gcodec.decode(frame, limits=gcodec.Limits(max_products=products)).shape == x.shape
    with pytest.raises(gcodec.LimitExceeded, match=f"needs {products} products"):
        gcodec.decode(frame, limits=limits)
    values = gcodec.encode(x, "powersgd:rank=50")  # factors would have more values than x
    assert np.array_equal(gcodec.decode(values, limits=limits), x)


@pytest.mark.parametrize("shape", [(7,), (2, 3), (12, 11)])
def test_nonfinite_input_is_refused(shape: tuple[int, ...]) -> None:
    """Tensors whose values are sent, and one with factors."""
    codec = gcodec.parse("powersgd")
    for wrong in (np.nan, np.inf, -np.inf):
        x = np.ones(shape, np.float32)
        x.reshape(-1)[5] = wrong
        for call in (codec.quantize, codec.encode, lambda x: gcodec.encode(x, codec)):
            with pytest.raises(gcodec.ParameterError, match="the first at flat index 5"):
                call(x)


@pytest.mark.parametrize(("shape", "count"), [((7,), 7), ((2, 3), 6), ((12, 11), 4 * 23)])
def test_payloads_of_another_length_are_refused(shape: tuple[int, ...], count: int) -> None:
    codec = gcodec.parse("powersgd")
    data = np.ones(count + 1, np.float32).view(np.uint8).tobytes()
    assert codec.decode(data[: 4 * count], shape).shape == shape
    for end, error in ((4 * count - 4, gcodec.Truncated), (4 * count + 4, gcodec.Corrupt)):
        with pytest.raises(error):
            codec.decode(data[:end], shape)


def test_nonfinite_values_are_refused() -> None:
    codec = gcodec.parse("powersgd:rank=1")
    payload = codec.encode(matrix(4, 4, 1))
    for at in (0, 7):
        for wrong in (0x7F800000, 0x7FC00000, 0xFF800001):
            data = payload.data.copy()
            data.view(np.uint32)[at] = wrong
            with pytest.raises(gcodec.Corrupt, match=rf"not finite \(at byte {4 * at}\)"):
                codec.unpack(payload._replace(data=data), (4, 4))
    large = np.full(8, 3e38, np.float32).view(np.uint8)
    with pytest.raises(gcodec.Corrupt, match="a value passes float32"):
        codec.decode(payload._replace(data=large), (4, 4))
    # Partial sums may exceed float32 if the total does not.
    two = gcodec.parse("powersgd:rank=2")
    numbers = np.zeros((18), np.float32)
    numbers[[0, 4, 8, 13]] = [1.5e19, 1.5e19, 1.5e19, -1.5e19]
    encoded = two.encode(matrix(4, 5, 2))._replace(data=numbers.view(np.uint8))
    assert not two.decode(encoded, (4, 5)).any()
    numbers[[0, 4, 8, 13]] = [2e19, 2e19, 2e19, -2e19]
    with pytest.raises(gcodec.Corrupt, match="a value passes float32"):
        two.decode(encoded, (4, 5))


@pytest.mark.parametrize("shape", [(30, 40), (40,), (13, 3, 5), (2, 40_000)])
def test_ranges(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    frame = gcodec.encode(x, "powersgd:rank=1")
    whole = gcodec.decode(frame).reshape(-1)
    random = np.random.default_rng(4)
    for _ in range(20):
        start, stop = sorted(random.integers(0, x.size + 1, 2))
        part = gcodec.decode_range(frame, int(start), int(stop))
        assert np.array_equal(part, whole[start:stop])


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(5).standard_normal((1100, 1000)).astype(np.float32)
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        frame = gcodec.encode(x, "powersgd")
        results.append((frame, gcodec.decode(frame).tobytes()))
    assert results[0] == results[1]


@pytest.mark.parametrize("rank", [0, 65537, -1, 1.5, "auto"])
def test_rank_is_checked(rank: Any) -> None:
    with pytest.raises(gcodec.ParameterError, match="rank"):
        gcodec.parse({"name": "powersgd", "rank": rank})
