"""Concatenation with and without huge pages gives the same bytes as ``b"".join``."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.arrays import large_bytes
from gcodec.arrays.large_bytes import LEAST_NBYTES, Observed, joined
from gcodec.runtime.memory import Drainable

FRONT, END = b"front", memoryview(b"end")


@pytest.mark.parametrize(
    "nbytes", [0, LEAST_NBYTES - 9, LEAST_NBYTES - 8, LEAST_NBYTES, 9_999_999]
)
def test_joined_equals_bytes_join(nbytes: int) -> None:
    piece = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    result = joined([FRONT, piece.data, b"", END])
    assert type(result) is bytes
    assert result == b"".join([FRONT, piece.tobytes(), END])
    assert hash(result) == hash(bytes(bytearray(result)))
    assert joined([]) == b""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("nbytes", [0, 5, LEAST_NBYTES + 12_345, 3 * LEAST_NBYTES + 12_345])
def test_observed_parts(
    nbytes: int, drained: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer sees all bytes in order, and may write to a part that follows."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", str(threads))
    # Memory that is used again contains other bytes.
    piece = np.random.default_rng([nbytes, drained, threads]).integers(0, 256, nbytes, np.uint8)
    expected, chunks, last = piece.tobytes(), list[bytes](), bytearray(1)

    def observe(chunk: np.ndarray) -> None:
        chunks.append(chunk.tobytes())
        last[0] = len(chunks)

    part = Drainable(piece) if drained else piece
    result = joined([FRONT, Observed(part, observe), last])
    assert b"".join(chunks) == expected
    assert result == FRONT + expected + bytes([len(chunks)])


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("n", [9, LEAST_NBYTES // 4 + 77, (1 << 21) + 5])
def test_raw_values_are_checked_while_they_are_copied(n: int, key: bytes | None) -> None:
    x = np.random.default_rng(n).standard_normal(n, np.float32)
    frame = gcodec.encode(x, "raw", key=key)
    out = bytearray(len(frame))
    assert gcodec.encode(x, "raw", key=key, out=out) == len(frame)
    assert out == frame == gcodec.Frame.from_bytes(frame, key=key).to_bytes()
    assert gcodec.encode(x[::-1], "raw", key=key) == gcodec.encode(x[::-1].copy(), "raw", key=key)
    x[[3, -1]] = np.inf, np.nan
    for options in ({}, {"out": out}):
        with pytest.raises(gcodec.ParameterError, match="2 NaN or Inf, the first at flat index 3"):
            gcodec.encode(x, "raw", key=key, **options)
    gcodec.encode(x, "raw", key=key, nonfinite="propagate")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_advised_pages_lie_within_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int]] = []

    def adviser() -> Callable[..., Any]:
        return lambda first, nbytes, advice: advised.append((first, nbytes))

    monkeypatch.setattr(large_bytes, "_adviser", adviser)
    piece = bytes(LEAST_NBYTES + 12_345)
    result = joined([FRONT, piece])
    ((first, nbytes),) = advised
    begin = large_bytes._address_of(result)
    assert begin <= first < first + nbytes <= begin + len(result)
    assert first % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
    assert nbytes > len(result) - 2 * mmap.PAGESIZE


def test_systems_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    large_bytes._adviser.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    try:
        assert large_bytes._adviser() is None
        assert joined([FRONT, bytes(LEAST_NBYTES)]) == FRONT + bytes(LEAST_NBYTES)
    finally:
        large_bytes._adviser.cache_clear()
