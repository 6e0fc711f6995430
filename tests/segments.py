"""Inputs that are short, but that the thread pool splits as it splits long ones."""

from __future__ import annotations

import pytest

from gcodec.runtime import pool


def split_inputs(patch: pytest.MonkeyPatch, segment: int, threads: str | None = None) -> None:
    """Split inputs of any length to segments, among a number of threads if one is given."""
    patch.setattr(pool, "SEGMENT", segment)
    patch.setattr(pool, "_THRESHOLD", 1)
    if threads is not None:
        patch.setenv("GCODEC_NUM_THREADS", threads)
