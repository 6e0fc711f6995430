"""Vector IR that the rANS readers and writers share, for hosts with AVX2 or AVX-512.

A half group is 16 lanes. They are one vector where AVX-512 has VBMI2, whose instructions move
words to and from the lanes of a mask. Otherwise they are two vectors: the first holds lanes 0 to 3
and 8 to 11, the second the other eight. Packing both to 16 bits then restores the order, and
widening undoes it, neither with a shuffle across 128 bits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.jit import checked
from gcodec.runtime.lanes import Emitter, Value, compiles_for, integer, lanes
from gcodec.runtime.memory import aligned_empty

LANES = 32
CLASSED_LANES = (2, 8, LANES)  # with a model for each class; these models have 2^12 slots
HALF = 16  # lanes of one vector or two
# By the lanes of a vector, the lanes of a half group that each vector holds.
ORDERS = {16: (list(range(16)),), 8: ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])}
AT, PLACE, LAST_AT, LAST_PLACE = range(4)  # fields of the cursor of a block
CURSOR = 4

_ZERO_BYTE = 0x80  # index for which a shuffle writes 0


@functools.cache
def widths() -> tuple[int, ...]:
    """Lanes of the vectors that the processor has, the widest first; 0 for single symbols."""
    features = ((16, ("avx512bw", "avx512vl", "avx512vbmi2")), (8, ("avx2",)), (0, ()))
    return tuple(width for width, needs in features if all(map(compiles_for, needs)))


@functools.cache
def vector_width() -> int:
    """Lanes of the vectors that the loops use; 0 without vectors, or if bounds are checked."""
    return 0 if checked() else widths()[0]


def no_groups(*_: Any) -> None:
    """Stand in for a block of vector code that is never called."""


def word_orders(lanes_of: Callable[[int], list[int]]) -> np.ndarray:
    """Tabulate the byte shuffles that reorder 8 words, for each set of 8 lanes.

    Parameters
    ----------
    lanes_of : callable
        Returns, for a set as 8 bits, the source word of each target word; -1 for a zero.

    Returns
    -------
    (256 * 16,) uint8 array
        Source byte of each target byte, or _ZERO_BYTE.
    """
    table = aligned_empty(256 * 16, np.uint8)
    for members in range(256):
        for place, word in enumerate(lanes_of(members)):
            both = (_ZERO_BYTE, _ZERO_BYTE) if word < 0 else (2 * word, 2 * word + 1)
            table[16 * members + 2 * place : 16 * members + 2 * place + 2] = both
    return table


def spread(like: Value, value: int) -> Value:
    """Return a vector of the type of `like` with a number in each lane."""
    return like.type([value] * like.type.count)


def load_states(e: Emitter, pointer: Value, width: int) -> list[Value]:
    """Emit loads of 32 states as vectors, those of the first half group first."""
    vectors = []
    for half in range(0, LANES, HALF):
        both = e.load(e.element(pointer, half), lanes(32, HALF))
        kinds = (lanes(32, width)(order) for order in ORDERS[width])
        vectors += [e.builder.shuffle_vector(both, both, order) for order in kinds]
    return vectors


def store_states(e: Emitter, vectors: list[Value], pointer: Value, width: int) -> None:
    """Emit stores of the vectors of `load_states`, in the order of lanes."""
    count = HALF // width
    order = sorted(range(HALF), key=list(itertools.chain(*ORDERS[width])).__getitem__)
    for half in range(2):
        parts = vectors[count * half : count * half + count]
        both = e.builder.shuffle_vector(parts[0], parts[-1], lanes(32, HALF)(order))
        e.store(both, e.element(pointer, HALF * half))


def packed(e: Emitter, vectors: list[Value]) -> Value:
    """Emit the lower halves of 16 lanes of numbers below 2^16, in order."""
    if len(vectors) == 1:
        return e.builder.trunc(vectors[0], lanes(16, HALF))
    return e.x86("avx2.packusdw", lanes(16, HALF), vectors)


def members_of(e: Emitter, masks: list[Value]) -> tuple[Value, Value, Value]:
    """Emit the lanes of two masks: bits of lanes 0 to 7, of 8 to 15, and all bits twice."""
    builder, word = e.builder, integer(64)
    wide = [builder.sext(mask, lanes(32, 8)) for mask in masks]
    both = e.x86("avx2.packssdw", lanes(16, HALF), wide)
    twice = e.x86("avx2.packsswb", lanes(8, 2 * HALF), [both, both])
    bits = builder.zext(e.x86("avx2.pmovmskb", integer(32), [twice]), word)
    return builder.and_(bits, word(0xFF)), builder.lshr(bits, word(24)), bits


def shuffled(e: Emitter, words: Value, table: Value, members: list[Value]) -> Value:
    """Emit 32 bytes of words, each half reordered by the row of `table` for its set of lanes."""
    builder = e.builder
    rows = (builder.gep(table, [builder.shl(lane_set, lane_set.type(4))]) for lane_set in members)
    order = e.joined([e.load(row, lanes(8, HALF), 16) for row in rows])
    return e.x86("avx2.pshuf.b", lanes(8, 2 * HALF), [words, order])
