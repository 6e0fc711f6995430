"""The log that restores a residual in place returns every bit, whatever the values are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import strategies as gs

from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.undo_log import replace_by_sum
from gcodec.kernels.quantize import threshold
from gcodec.runtime import pool

SIZES = (0, 1, 31, 32, 33, 95, 4096, 70_001)
DECAYS = (1.0, 0.9, -1.0, 0.0, 1e-30, 3e38)


def values(kind: str, n: int, seed: int) -> np.ndarray:
    """Return (n,) float32 values."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        return rng.standard_normal(n, np.float32)
    if kind == "zeros":
        return np.where(rng.integers(0, 2, n), np.float32(0), np.float32(-0.0))
    if kind == "tiny":  # lost in the sum with normal values
        return rng.standard_normal(n, np.float32) * np.float32(1e-12)
    return rng.integers(0, 1 << 32, n, np.uint32).view(np.float32)  # any, NaN and Inf included


KINDS = tuple(itertools.product(("normal", "zeros", "tiny", "any"), repeat=2))


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_sums_are_undone(kinds: tuple[str, str], decay: float) -> None:
    for n in SIZES:
        x, residual = values(kinds[0], n, n), values(kinds[1], n + 3, n + 1)[3:]
        before = residual.copy()
        with np.errstate(all="ignore"):
            total = x + np.float32(decay) * residual
        top_bits, log = replace_by_sum(x, residual, np.float32(decay))
        assert gs.same_bits(residual, total)
        is_finite = bool(np.isfinite(total).all())
        assert (top_bits < 0x7F800000) == is_finite
        if is_finite:
            assert top_bits == np.abs(total).view(np.int32).max(initial=0)
        log.restore(x, residual)
        assert residual.tobytes() == before.tobytes()


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_errors_of_signs_are_undone(kinds: tuple[str, str], decay: float) -> None:
    def refuse(top_bits: int) -> None:
        raise ValueError("refused")

    for n in SIZES:
        x, residual = values(kinds[0], n, n), values(kinds[1], n + 3, n + 1)[3:]
        before = residual.copy()
        update = ResidualUpdate(residual, np.float32(decay), residual)
        numbers = np.float32(0), np.float32(0.75)
        with pytest.raises(ValueError, match="refused"):
            threshold.quantize(x, threshold.ONE_BIT, *numbers, update, refuse, undoes=True)
        assert residual.tobytes() == before.tobytes()


def test_segments_of_threads_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "3")
    monkeypatch.setattr(pool, "_THRESHOLD", 1 << 10)
    monkeypatch.setattr(pool, "SEGMENT", 1 << 12)
    n = 100_003
    x, residual = values("normal", n, 0), values("normal", n + 1, 1)[1:]
    residual[::97] *= np.float32(1e-9)  # blocks that are copied
    before = residual.copy()
    _, log = replace_by_sum(x, residual, np.float32(1))
    assert len(log.segments) > 3
    log.restore(x, residual)
    assert residual.tobytes() == before.tobytes()
