"""Requests for the cache lines of an array, before code of others reads it."""

from __future__ import annotations

from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import Emitter, block
from gcodec.runtime.memory import LINE, emit_prefetch


@block("data", "i")
def _prefetch(e: Emitter) -> None:
    emit_prefetch(e.builder, e.address("data", "i"))


@kernel("in uint8[]", vectorized=False)
def prefetch_lines(data):
    """Bring (n,) bytes to the cache; this takes about as long as reading them once."""
    for start in range(0, data.size, LINE):
        _prefetch(data, start)
