"""GRACE's compressors and PyTorch's hooks against the specs that docs/grace.md names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gcodec

F = np.float32
PAGE = (Path(__file__).parents[1] / "docs" / "grace.md").read_text("utf-8")


def gradient(n: int = 3001) -> np.ndarray:
    """Return values with both zeros and without ties of other magnitudes."""
    x = np.random.default_rng(8).laplace(size=n).astype(F)
    x[5], x[6] = 0.0, -0.0
    return x


def coded(x: np.ndarray, spec: str, seed: int = 0) -> np.ndarray:
    return gcodec.decode(gcodec.encode(x, spec, seed=seed))


# --- what GRACE computes ------------------------------------------------------------------------


def signs(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, F(1), F(-1))


def largest(x: np.ndarray, k: int) -> np.ndarray:
    out = np.zeros_like(x)
    places = np.argsort(-np.abs(x))[:k]
    out[places] = x[places]
    return out


def above(x: np.ndarray, threshold: float) -> np.ndarray:
    return np.where(np.abs(x) > F(threshold), x, F(0))


@pytest.mark.parametrize("ratio", [0.0001, 0.01, 0.3, 1.0])
def test_topk(ratio: float) -> None:
    x = gradient()
    k = max(1, int(ratio * x.size))
    np.testing.assert_array_equal(coded(x, f"topk:k={k}"), largest(x, k))


def test_threshold() -> None:
    x = gradient()
    threshold = float(np.abs(x[17]))  # an element that is equal is not sent
    following = float(np.nextafter(F(threshold), F(np.inf)))
    decoded = coded(x, f"topk:threshold={following!r}")
    assert decoded[17] == 0
    np.testing.assert_array_equal(decoded, above(x, threshold))


def test_signsgd_and_signum() -> None:
    x, momentum = gradient(), np.zeros(3001, F)
    for step in range(3):
        momentum = F(0.1) * (x + F(step)) + F(0.9) * momentum
        np.testing.assert_array_equal(coded(momentum, "sign:scale=none"), signs(momentum))


@pytest.mark.parametrize("lr", [1, 0.3])
def test_efsignsgd(lr: float) -> None:
    feedback, error = gcodec.Feedback("sign"), np.zeros(3001, F)
    for step in range(4):
        x = gradient() * F(1 + step)
        if step:  # GRACE's memory scales a gradient only where it has a residual to add
            x = F(lr) * x
        u = error + x
        expected = np.abs(u).mean(dtype=np.float64).astype(F) * signs(u)
        decoded = gcodec.decode(feedback.compress("w", x))
        np.testing.assert_allclose(decoded, expected, rtol=2e-7)
        error = u - decoded


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_none_and_fp16(dtype: type[np.floating]) -> None:
    x = gradient().astype(dtype)
    decoded = coded(x, "raw")
    assert decoded.dtype == dtype
    assert decoded.tobytes() == x.tobytes()


def levels_of_qsgd(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the lower level of each element, the probability of the next, and the step."""
    norm = float(np.sqrt(np.square(x.astype(float)).sum()))
    ratio = 16 / norm * np.abs(x.astype(float))
    return np.floor(ratio), ratio - np.floor(ratio), norm / 16


def levels_of_terngrad(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    deviation = float(np.sqrt(np.square(x - x.mean(dtype=float)).mean()))
    clipped = np.minimum(np.abs(x.astype(float)), 2.5 * deviation)
    return np.zeros(x.size), clipped / clipped.max(), float(clipped.max())


@pytest.mark.parametrize(
    ("spec", "law"), [("qsgd:s=16", levels_of_qsgd), ("terngrad", levels_of_terngrad)]
)
def test_random_levels(
    spec: str, law: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, float]]
) -> None:
    x = gradient(60)
    lower, probability, step = law(x)
    draws = 600
    counts = np.zeros(x.size)
    for seed in range(draws):
        levels = np.abs(coded(x, spec, seed)) / step
        taken = np.rint(levels) - lower
        np.testing.assert_allclose(levels, np.rint(levels), atol=1e-5)
        # A probability of 1 is a level that is reached exactly.
        assert (((taken == 0) | (taken == 1)) | (probability < 1e-6)).all()
        counts += taken
    deviation = np.sqrt(np.maximum(probability * (1 - probability), 1e-6) / draws)
    assert (np.abs(counts / draws - probability) < 5 * deviation + 1e-5).all()


def test_randomk() -> None:
    x = gradient(40) + F(10)
    k = max(1, int(0.2 * x.size))
    counts = np.zeros(x.size)
    draws = 900
    for seed in range(draws):
        decoded = coded(x, f"randomk:k={k}", seed)
        sent = decoded != 0
        assert sent.sum() == k
        assert np.array_equal(decoded[sent], x[sent])
        counts += sent
    assert np.abs(counts / draws - k / x.size).max() < 0.05


def test_sketch() -> None:
    x = gradient(3000)  # of which no quantile is a value, but the first and the last
    borders = np.quantile(x.astype(float), np.arange(257) / 256)
    bins = np.minimum(np.searchsorted(borders, x, "right") - 1, 255)
    means = np.bincount(bins, x.astype(float), 256) / np.bincount(bins, minlength=256)
    decoded = coded(x, "blockwise:kind=quantile8")
    np.testing.assert_allclose(decoded, means[bins], rtol=1e-6, atol=1e-9)


# In grace_dl/*/compressor of fd3a7f4.
COMPRESSORS = (
    "adaq dgc efsignsgd fp16 inceptionn natural none onebit powersgd qsgd randomk signsgd signum "
    "sketch terngrad threshold topk u8bit"
)


def test_each_compressor_has_a_row() -> None:
    table = PAGE[PAGE.index("| GRACE |") : PAGE.index("| PyTorch's hook |")]
    names = re.findall(r"^\| `(\w+)", table, re.MULTILINE)
    assert sorted(names) == sorted(COMPRESSORS.split())


def test_specs_of_the_page() -> None:
    names = set()
    for spec in re.findall(r"`((?:[a-z0-9-]+)(?::[a-z]+=\w*)?)`", PAGE):
        name = spec.partition(":")[0]
        if name in gcodec.codecs():
            names.add(name)
            gcodec.parse(spec if not spec.endswith("=") else f"{spec}2")
    assert names >= {"raw", "sign", "topk", "randomk", "qsgd", "terngrad", "minmax"}
