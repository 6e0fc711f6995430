"""Bytes made of pieces are those that Python joins, with huge pages and without."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gcodec.arrays import large_bytes
from gcodec.arrays.large_bytes import LEAST_NBYTES, joined

FRONT, END = b"front", memoryview(b"end")


@pytest.mark.parametrize(
    "nbytes", [0, LEAST_NBYTES - 9, LEAST_NBYTES - 8, LEAST_NBYTES, 9_999_999]
)
def test_joined(nbytes: int) -> None:
    piece = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    found = joined([FRONT, piece.data, b"", END])
    assert type(found) is bytes
    assert found == b"".join([FRONT, piece.tobytes(), END])
    assert hash(found) == hash(bytes(bytearray(found)))
    assert joined([]) == b""


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_what_is_advised_lies_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int]] = []

    def adviser() -> Callable[..., Any]:
        return lambda first, nbytes, advice: advised.append((first, nbytes))

    monkeypatch.setattr(large_bytes, "_adviser", adviser)
    piece = bytes(LEAST_NBYTES + 12_345)
    found = joined([FRONT, piece])
    ((first, nbytes),) = advised
    begin = large_bytes._address_of(found)
    assert begin <= first < first + nbytes <= begin + len(found)
    assert first % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
    assert nbytes > len(found) - 2 * mmap.PAGESIZE


def test_systems_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    large_bytes._adviser.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    try:
        assert large_bytes._adviser() is None
        assert joined([FRONT, bytes(LEAST_NBYTES)]) == FRONT + bytes(LEAST_NBYTES)
    finally:
        large_bytes._adviser.cache_clear()
