"""randomk: the drawn elements, the laws of its error, residuals, and refused inputs."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import philox
from strategies import f32

import gcodec
from gcodec.arrays.source import inspect
from gcodec.codec import Codec
from gcodec.entropy import values as value_coding
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.draw import draw

LARGEST = float(np.finfo(np.float32).max)


def randomk(**parameters: Any) -> Any:
    return gcodec.codecs()["randomk"].from_mapping(parameters)


def drawn_positions(n: int, k: int, seed: int) -> list[int]:
    """Draw positions one by one, as the specification defines."""
    draws_unsent = 2 * k > n
    actual: set[int] = set()
    w = 0
    while len(actual) < (n - k if draws_unsent else k):
        low, high = (philox.word(seed, 2 * w + half, 1) for half in (0, 1))
        actual.add((high << 32 | low) * n >> 64)
        w += 1
    return [i for i in range(n) if i not in actual] if draws_unsent else sorted(actual)


# --- the drawn elements --------------------------------------------------------------------------


@given(st.integers(0, 700), st.data())
def test_draws(n: int, data: st.DataObject) -> None:
    k, seed = data.draw(st.integers(0, n)), data.draw(gs.seeds())
    actual = draw(n, k, seed)
    assert actual.dtype == np.int64
    assert actual.tolist() == drawn_positions(n, k, seed)


@pytest.mark.parametrize("n", [512 * 40, 512 * 40 + 1, 10**6, 2**32 + 1, 2**40, 2**62])
def test_draws_of_few(n: int) -> None:
    """A bitmap and a sort give the same positions."""
    for seed in (0, 2**64 - 1):
        assert draw(n, 40, seed).tolist() == drawn_positions(n, 40, seed)


def test_repeated_draws_count_once() -> None:
    """About three of 3000 draws repeat another one here; the kernel detects them by sorting."""
    n, k = 512 * 3000 + 1, 3000
    words = np.array(philox.words(5, 2 * k + 100, 1), np.uint64)
    draws = [int(u) * n >> 64 for u in words[1::2] << np.uint64(32) | words[0::2]]
    first = list(dict.fromkeys(draws))
    assert len(set(draws[:k])) < k <= len(first)
    assert draw(n, k, 5).tolist() == sorted(first[:k])


def test_all_elements_are_equally_likely() -> None:
    n, rounds = 50, 4000
    for k in (12, 41):
        counts = sum(np.bincount(draw(n, k, seed), minlength=n) for seed in range(rounds))
        expected = rounds * k / n
        # The statistic is that of n cells, drawn without replacement.
        chi2 = float(((counts - expected) ** 2).sum() / (expected * (1 - k / n)) * (n - 1) / n)
        assert abs(chi2 - (n - 1)) < 5 * math.sqrt(2 * (n - 1))


def test_memory_of_drawing_is_proportional_to_k() -> None:
    draw(2**62, 9, 1), draw(2**20, 5000, 1)
    for n, k in ((2**62, 20_000), (512 * 20_000, 20_000), (60_000, 20_000)):
        tracemalloc.start()
        try:
            draw(n, k, 1)
            assert tracemalloc.get_traced_memory()[1] <= 150 * k + 10_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("n", "parameters", "k"),
    [
        (0, {}, 0),
        (0, {"k": 5}, 0),
        (1, {}, 1),
        (99, {}, 1),
        (150, {}, 2),  # 1.5
        (250, {}, 2),  # 2.5
        (350, {}, 4),  # The product for 3.5 is 3.5000000000000004 in float64.
        (100, {"ratio": 0.29}, 29),
        (1000, {"ratio": 0.1}, 100),
        (7, {"ratio": 1.0}, 7),
        (7, {"k": 0}, 0),
        (7, {"k": "ratio"}, 1),
        (7, {"k": 3}, 3),
        (7, {"k": 7}, 7),
        (7, {"k": 2**62}, 7),
        (5, {"ratio": 1e-300}, 1),
    ],
)
def test_number_of_sent_elements(n: int, parameters: dict[str, Any], k: int) -> None:
    codec = randomk(**parameters)
    payload = codec.encode(np.ones(n, np.float32))
    assert payload.nbits == codec.max_payload_nbits(n) == 32 * k
    assert np.count_nonzero(codec.decode(payload, n)) == k


def test_k_and_ratio_exclude_each_other() -> None:
    with pytest.raises(gcodec.ParameterError, match="ratio"):
        randomk(k=3, ratio=0.5)
    for ratio in (0.0, -0.1, 1.0001, math.inf, math.nan, "auto", True):
        with pytest.raises(gcodec.ParameterError, match="ratio"):
            randomk(ratio=ratio)
    ratio = 0.1 + 2.0**-50  # No binary32 equals this ratio.
    frame = gcodec.encode(np.ones(9, np.float32), randomk(ratio=ratio))
    assert gcodec.Frame.from_bytes(frame).codec == randomk(ratio=ratio) != randomk(ratio=0.1)
    assert gcodec.parse(str(randomk(ratio=ratio))).ratio == ratio


# --- payloads ------------------------------------------------------------------------------------


@given(gs.gradients(large=True), gs.seeds(), st.data())
def test_message(x: np.ndarray, seed: int, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(value_coding.VALUES))
    k = data.draw(st.integers(0, x.size + 3))
    x = np.clip(x, np.float32(-65000), np.float32(65000))
    codec = randomk(value=value, k=k)
    payload = codec.encode(x, seed=seed)
    positions = drawn_positions(x.size, min(k, x.size), seed)
    sent = value_coding.quantize(x[positions], value)
    assert payload.scalars == {"seed": seed}
    assert payload.tobytes() == value_coding.packed(sent, value, len(positions))[0].tobytes()
    expected = np.zeros(x.size, np.float32)
    expected[positions] = value_coding.dequantize(sent, value, len(positions))
    assert gs.same_bits(codec.decode(payload, x.size), expected)
    bare = codec.decode(payload.tobytes(), x.size, seed=seed)
    assert gs.same_bits(bare, expected)
    decoded = codec._decode_sparse(payload, x.size)
    assert decoded[0].tolist() == positions
    assert gs.same_bits(decoded[1], expected[positions])


def test_unbiased_affects_decoding_only() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    for value in value_coding.VALUES:
        plain, scaled = (randomk(k=30, unbiased=word, value=value) for word in ("no", "yes"))
        payload = plain.encode(x, seed=3)
        other = scaled.encode(x, seed=3)
        assert payload.tobytes() == other.tobytes()
        factor = np.float32(1000 / 30)
        assert gs.same_bits(scaled.decode(other, 1000), plain.decode(payload, 1000) * factor)
        sparse = plain._decode_sparse(payload, 1000)[1] * factor
        assert gs.same_bits(scaled._decode_sparse(other, 1000)[1], sparse)


def test_sparse_decoding_needs_little_memory() -> None:
    n = 2**45
    codec = randomk(k=100, value="int8")
    payload = codec.encode(np.ones(100, np.float32), seed=3)
    codec._decode_sparse(payload, n)
    tracemalloc.start()
    try:
        positions, values = codec._decode_sparse(payload, n)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert positions.tolist() == drawn_positions(n, 100, 3)
    assert values == pytest.approx(1, abs=1e-6)


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbiased", ["no", "yes"])
def test_error_follows_the_law(unbiased: str) -> None:
    """The mean error over all seeds equals the law, not only its bound."""
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    codec = randomk(k=16, unbiased=unbiased)
    wide = x.astype(np.float64)
    draws = np.array([codec.decode(codec.encode(x, seed=s), 64) for s in range(3000)], np.float64)
    error = ((draws - wide) ** 2).sum(axis=1)
    expected = codec.variance(64) * (wide @ wide)
    assert codec.variance(64) == (3 if unbiased == "yes" else 0.75)
    assert abs(error.mean() - expected) < 5 * error.std() / math.sqrt(3000)
    mean = wide if unbiased == "yes" else wide / 4
    assert np.all(np.abs(draws.mean(axis=0) - mean) <= 5 * draws.std(axis=0) / math.sqrt(3000))


def test_laws() -> None:
    assert randomk(unbiased="yes").unbiased and not randomk().unbiased
    assert randomk(unbiased="yes").variance(1000) == 99
    assert randomk().variance(1000) == 0.99
    assert randomk(k=7).variance(7) == randomk(k=7, unbiased="yes").variance(7) == 0
    assert randomk().variance(1) == randomk(unbiased="yes").variance(1) == 0
    assert randomk(ratio=0.5).contraction(10) is None
    for value in value_coding.VALUES[1:]:
        codec = randomk(unbiased="yes", value=value)
        assert not codec.unbiased and codec.variance(1000) is None
    nothing = randomk(k=0, unbiased="yes")
    assert not nothing.unbiased and nothing.variance(5) == 1
    assert not nothing.decode(nothing.encode(np.ones(5, np.float32)), 5).any()
    for codec in (nothing, randomk(), randomk(unbiased="yes"), randomk(k=3)):
        assert codec.variance(0) == 1  # Of an empty tensor.


# --- residuals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", value_coding.VALUES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_residual_keeps_unsent_elements(value: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(5000).astype(np.float32).astype(gs.DTYPES[dtype])
    residual = rng.standard_normal(5000).astype(np.float32)
    u = x.astype(np.float32) + np.float32(0.5) * residual
    codec = randomk(ratio=0.1, value=value)
    symbols = codec.quantize_residual(x, residual, decay=0.5, seed=9)
    decoded = codec.decode(codec.pack(symbols), 5000).astype(gs.DTYPES[dtype])
    assert gs.same_bits(residual, u - decoded.astype(np.float32))
    assert codec.pack(symbols).tobytes() == codec.encode(u, seed=9).tobytes()
    unsent = np.setdiff1d(np.arange(5000), drawn_positions(5000, 500, 9))
    assert gs.same_bits(residual[unsent], u[unsent])


@pytest.mark.parametrize(
    ("parameters", "dtype", "refused", "match"),
    [
        ({}, "float32", np.nan, "NaN or Inf"),
        ({}, "float32", np.inf, "NaN or Inf"),
        ({"unbiased": "yes"}, "float32", 4e37, "n/k"),
        ({"unbiased": "yes", "value": "int8"}, "float32", 4e37, "n/k"),
        ({"unbiased": "yes"}, "float16", 1e4, "range"),
    ],
)
def test_refused_steps_leave_the_residual_unchanged(
    parameters: dict[str, Any], dtype: str, refused: float, match: str
) -> None:
    codec = randomk(ratio=0.1, **parameters)
    sent, unsent = drawn_positions(100, 10, 4)[3], 0 if drawn_positions(100, 10, 4)[0] else 99
    for at in (sent, unsent):
        x, residual = np.ones(100, gs.DTYPES[dtype]), np.full(100, 0.25, np.float32)
        x[at] = refused
        if at == sent or not math.isfinite(refused):
            for quantize in (codec.quantize_residual, lambda *a, **k: composed(codec, *a, **k)):
                with pytest.raises(gcodec.ParameterError, match=match):
                    quantize(x, residual, seed=4)
                assert np.all(residual == 0.25)
            if dtype == "float32":
                with pytest.raises(gcodec.ParameterError, match=match):
                    codec.encode(x, seed=4)
        else:  # An unsent element may be arbitrarily large.
            codec.quantize_residual(x, residual, seed=4)
            assert residual[at] == np.float32(refused) + np.float32(0.25)


def composed(codec: Any, x: Any, residual: np.ndarray, seed: int) -> Any:
    """Quantize with a residual by the composition of separate steps."""
    tensor = inspect(x, "x").read()
    update = ResidualUpdate(residual, np.float32(1), residual).saving()
    try:
        return Codec._replace_residual(codec, tensor, update, seed, None)
    except gcodec.ParameterError:
        update.restore()
        raise


# --- refused inputs ------------------------------------------------------------------------------


def test_refusals() -> None:
    codec = randomk(k=3, unbiased="yes")
    good = codec.encode(np.ones(9, np.float32), seed=1)
    for n in (2, 0):
        with pytest.raises(gcodec.Corrupt):
            codec.unpack(good, n)
    cut = good._replace(data=good.data[:8], nbits=64)
    with pytest.raises(gcodec.Truncated):
        codec.unpack(cut, 9)
    huge = np.frombuffer(f32(1, 2, LARGEST).astype(">f4").tobytes(), np.uint8)
    with pytest.raises(gcodec.Corrupt, match="n/k"):
        codec.unpack(good._replace(data=huge), 9)
    codec.unpack(good._replace(data=huge), 3)  # Here n/k is 1.
    signs = randomk(k=3, value="sign").encode(np.ones(9, np.float32))
    assert signs.nbits == 35
    for byte in (0x01, 0x10):
        data = signs.data.copy()
        data[4] |= byte
        with pytest.raises(gcodec.Corrupt, match="padding"):
            signs.codec.unpack(signs._replace(data=data), 9)
    with pytest.raises(gcodec.ParameterError, match="seed"):
        codec.decode(good.tobytes(), 9)
    with pytest.raises(gcodec.Unsupported):
        good.codec._unpack(good, 2**62 + 1)  # as `Frame.decode_sparse`, which needs no array
    symbols = codec.quantize(np.ones(9, np.float32))
    for n in (8, 10):
        with pytest.raises(gcodec.ParameterError, match="symbols"):
            codec.dequantize(symbols, n)
