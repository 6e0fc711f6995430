"""What the vector IR of rANS readers and writers shares, for hosts with AVX2 or AVX-512.

16 lanes are one vector where AVX-512 has VBMI2, which moves words to and from the lanes of a mask.
Else they are two: the first holds lanes 0 to 3 and 8 to 11, the second the others. Packing both to
16 bits then puts all in order, and widening undoes it, neither with a shuffle across 128 bits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.jit import checked
from gcodec.runtime.lanes import Emitter, compiles_for, lanes
from gcodec.runtime.memory import aligned_empty

LANES = 32
CLASSED_LANES = (2, 8, LANES)  # where there is a model for each class, and 2^12 slots
HALF = 16  # lanes of one vector or two
# By the lanes of a vector, those that each of them holds.
ORDERS = {
    16: (list(range(16)),),
    8: ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
}
AT, PLACE, LAST_AT, LAST_PLACE = range(4)  # what is kept of a block
KEPT = 4

_NONE = 0x80  # a shuffle writes 0 for it


@functools.cache
def widths() -> tuple[int, ...]:
    """Lanes of the vectors that the processor has, the widest first; 0 for single symbols."""
    known = ((16, ("avx512bw", "avx512vl", "avx512vbmi2")), (8, ("avx2",)), (0, ()))
    return tuple(width for width, needs in known if all(map(compiles_for, needs)))


@functools.cache
def vector_width() -> int:
    """Lanes of the vectors that loops go by; 0 where there are none, or bounds are checked."""
    return 0 if checked() else widths()[0]


def no_groups(*_: Any) -> None:
    """Stand in for a block of vector code, which is not called."""


def orders(lanes_of: Callable[[int], list[int]]) -> np.ndarray:
    """Make the table of how 8 words are put in order, for each set of 8 lanes.

    Returns
    -------
    (256 * 16,) uint8 array
        For each byte of what is made the byte that it comes from, or _NONE. Places are given by
        `lanes_of` as the words that they get, -1 for none.
    """
    table = aligned_empty(256 * 16, np.uint8)
    for members in range(256):
        for place, word in enumerate(lanes_of(members)):
            both = (_NONE, _NONE) if word < 0 else (2 * word, 2 * word + 1)
            table[16 * members + 2 * place : 16 * members + 2 * place + 2] = both
    return table


def spread(like: Any, value: int) -> Any:
    """Return a number in each lane of a vector like another."""
    return like.type([value] * like.type.count)


def load_states(e: Emitter, pointer: Any, width: int) -> list[Any]:
    """Emit the vectors of 32 states, those of a half behind those of the other."""
    found = []
    for half in range(0, LANES, HALF):
        both = e.load(e.element(pointer, half), lanes(32, HALF))
        kinds = (lanes(32, width)(order) for order in ORDERS[width])
        found += [e.builder.shuffle_vector(both, both, order) for order in kinds]
    return found


def store_states(e: Emitter, vectors: list[Any], pointer: Any, width: int) -> None:
    """Emit that they are stored in order."""
    count = HALF // width
    order = sorted(range(HALF), key=list(itertools.chain(*ORDERS[width])).__getitem__)
    for half in range(2):
        some = vectors[count * half : count * half + count]
        both = e.builder.shuffle_vector(some[0], some[-1], lanes(32, HALF)(order))
        e.store(both, e.element(pointer, HALF * half))


def packed(e: Emitter, some: list[Any]) -> Any:
    """Emit the lower halves of 16 lanes of numbers below 2^16, in order."""
    if len(some) == 1:
        return e.builder.trunc(some[0], lanes(16, HALF))
    return instruction(e, "avx2.packusdw", lanes(16, HALF), *some)


def instruction(e: Emitter, name: str, kind: Any, *values: Any) -> Any:
    """Emit an instruction of AVX2 or AVX-512 that results in vectors or numbers of a kind."""
    from llvmlite import ir

    module, full = e.builder.module, f"llvm.x86.{name}"
    function = module.globals.get(full)
    if function is None:
        function = ir.Function(module, ir.FunctionType(kind, [v.type for v in values]), full)
    return e.builder.call(function, values)


def members_of(e: Emitter, masks: list[Any]) -> tuple[Any, Any, Any]:
    """Emit which lanes two masks have: bits of lanes 0 to 7, of 8 to 15, and all bits twice."""
    from llvmlite import ir

    builder, word = e.builder, ir.IntType(64)
    wide = [builder.sext(mask, lanes(32, 8)) for mask in masks]
    both = instruction(e, "avx2.packssdw", lanes(16, HALF), *wide)
    twice = instruction(e, "avx2.packsswb", lanes(8, 2 * HALF), both, both)
    bits = builder.zext(instruction(e, "avx2.pmovmskb", ir.IntType(32), twice), word)
    return builder.and_(bits, word(0xFF)), builder.lshr(bits, word(24)), bits


def shuffled(e: Emitter, words: Any, table: Any, members: list[Any]) -> Any:
    """Emit 32 bytes of words, each half in the order that a table has for a set of lanes."""
    builder = e.builder
    rows = (builder.gep(table, [builder.shl(some, some.type(4))]) for some in members)
    order = joined(e, *(e.load(row, lanes(8, HALF), 16) for row in rows))
    return instruction(e, "avx2.pshuf.b", lanes(8, 2 * HALF), words, order)


def joined(e: Emitter, low: Any, high: Any) -> Any:
    """Emit 32 bytes of which these are the halves."""
    return e.builder.shuffle_vector(low, high, lanes(32, 2 * HALF)(list(range(2 * HALF))))
