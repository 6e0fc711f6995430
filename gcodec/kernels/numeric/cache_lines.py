"""Prefetches of cache lines, before kernels or the code of other libraries read them."""

from __future__ import annotations

from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import Emitter, block
from gcodec.runtime.memory import LINE, emit_prefetch


@block("array", "i")
def prefetch(e: Emitter) -> None:
    """Prefetch the cache line of an element, which need not lie inside the array."""
    emit_prefetch(e.builder, e.address("array", "i"))


@kernel("in uint8[]", vectorized=False)
def prefetch_lines(data):
    """Bring (n,) bytes to the cache; this takes about as long as reading them once."""
    for start in range(0, data.size, LINE):
        prefetch(data, start)
