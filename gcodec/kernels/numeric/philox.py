"""Philox4x32-10: random 32-bit words from a key and a counter, the same on every device.

The key is the seed. The word of element i is word ``i & 3`` of the block with the counter ``(i >>
2, stream)``, 64 bits each. The word of an element does not depend on other words, so cutting an
array into segments does not change it. Source: Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import ParameterError
from gcodec.runtime import pool
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK, Builder, Emitter, Value, ValueType, block, lanes
from gcodec.runtime.memory import aligned_empty

ROUNDING = 0  # stream of stochastic rounding
SELECTION = 1  # stream of the random selection of elements
COUNTER_SPAN = np.uint64(34)  # log2 of the elements that share the upper half of the counter
_MASK = 0xFFFFFFFF
_MULTIPLY = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85


def check_seed(seed: int, name: str = "seed") -> int:
    """Return `seed` if it is an unsigned integer of 64 bits, or raise `ParameterError`."""
    integer = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not integer or not 0 <= seed < 1 << 64:
        raise ParameterError.of(name, seed, "an integer from 0 to 2**64 - 1")
    return int(seed)


def words(seed: int, start: int, count: int, stream: int = ROUNDING) -> np.ndarray:
    """Return the random words of the elements from `start` on.

    Parameters
    ----------
    seed, start, stream : int
        Integers from 0 to 2**64 - 1; ``start + count`` must not exceed 2**64.
    count : int
        Number of elements.

    Returns
    -------
    (count,) uint32 array
    """
    lead = start % BLOCK
    out = aligned_empty(-(-(lead + count) // BLOCK) * BLOCK, np.uint32)

    def task(begin: int, end: int) -> None:
        first = np.uint64(start - lead + begin)
        _words(np.uint64(check_seed(seed)), first, np.uint64(stream), out[begin:end])

    pool.run(task, out.size, BLOCK)
    return out[lead : lead + count]


def emit_words(e: Emitter, *, blocks: int = 1, stream: Value = None) -> list[Value]:
    """Emit the words of `blocks` blocks of 32 elements, each as 32-bit lanes.

    Parameters
    ----------
    e : Emitter
        Its uint64 arguments are `seed`, `start`, the first element, which is a multiple of
        32·blocks, and perhaps `span`, which is ``start >> COUNTER_SPAN``. A loop with a constant
        `span` saves instructions.
    blocks : int
        The rounds of a block depend on each other, so interleaving two blocks saves time.
    stream : uint64 value, optional
        Stream of the words. By default the words round: they are those of stream `ROUNDING`,
        divided by 2, so that none is negative as a signed number.
    """
    builder, seed, start = e.builder, e.args["seed"], e.args["start"]
    span = e.args.get("span")
    if span is None:
        span = builder.lshr(start, start.type(int(COUNTER_SPAN)))
    rounds = stream is None
    stream = seed.type(ROUNDING) if rounds else stream
    counter = builder.lshr(start, start.type(2))
    # A vector contains eight counters, each word in the lower half of 64 bits. The multiplication
    # ignores the upper half. This order of the counters lets `_in_order` sort the words without a
    # shuffle across 128 bits.
    order = lanes(64, 8)([0, 2, 1, 3, 4, 6, 5, 7])
    # All eight counters have the same upper half, because the first is a multiple of 8. Therefore
    # the first two rounds are partly scalar.
    c2, c3 = builder.and_(stream, stream.type(_MASK)), builder.lshr(stream, stream.type(32))
    k0, k1 = builder.and_(seed, seed.type(_MASK)), builder.lshr(seed, seed.type(32))
    firsts = (builder.add(counter, counter.type(8 * k)) for k in range(blocks))
    states = [(builder.add(e.splat(first, 8), order), span, c2, c3) for first in firsts]
    for _ in range(10):
        states = [_round(e, state, k0, k1) for state in states]
        k0 = builder.and_(builder.add(k0, k0.type(_WEYL[0])), k0.type(_MASK))
        k1 = builder.and_(builder.add(k1, k1.type(_WEYL[1])), k1.type(_MASK))
    return [_in_order(builder, state, halved=rounds) for state in states]


def _round(e: Emitter, state: tuple[Value, ...], k0: Value, k1: Value) -> tuple[Value, ...]:
    """Emit one round of Philox."""
    c0, c1, c2, c3 = state
    p0, p1 = _product(e, c0, _MULTIPLY[0]), _product(e, c2, _MULTIPLY[1])
    c0 = _xor(e, _upper(e, p1), _xor(e, c1, k0))
    c2 = _xor(e, _upper(e, p0), _xor(e, c3, k1))
    return c0, p1, c2, p0


def _in_order(builder: Builder, state: tuple[Value, ...], *, halved: bool) -> Value:
    """Emit the words of eight counters in the order of elements."""
    c0, c1, c2, c3 = (builder.bitcast(c, lanes(32, 16)) for c in state)
    upper, lower = _interleaved(builder, c0, c1, 0), _interleaved(builder, c2, c3, 0)
    if halved:  # at this place it also keeps LLVM from merging the shuffles into more shuffles
        one = lanes(32, 16)([1] * 16)
        upper, lower = builder.lshr(upper, one), builder.lshr(lower, one)
    even, odd = _interleaved(builder, upper, lower, 0), _interleaved(builder, upper, lower, 1)
    order = [at + k for half in (0, 8) for at in (half, 16 + half) for k in range(8)]
    return builder.shuffle_vector(even, odd, lanes(32)(order))


def _product(e: Emitter, word: Value, factor: int) -> Value:
    """Emit the 64 bits of the lower half of `word` times a constant."""
    low, constant = (_constant(word.type, value) for value in (_MASK, factor))
    return e.builder.mul(e.builder.and_(word, low), constant)


def _upper(e: Emitter, product: Value) -> Value:
    return e.builder.lshr(product, _constant(product.type, 32))


def _xor(e: Emitter, a: Value, b: Value) -> Value:
    """Emit a xor b; a scalar is broadcast to the lanes of a vector."""
    if a.type != b.type:
        scalar, vector = (a, b) if hasattr(b.type, "count") else (b, a)
        a, b = e.splat(scalar, 8), vector
    return e.builder.xor(a, b)


def _constant(kind: ValueType, value: int) -> Value:
    return kind([value] * kind.count) if hasattr(kind, "count") else kind(value)


def _interleaved(builder: Builder, a: Value, b: Value, first: int) -> Value:
    """Emit, for each 128 bits, words `first` and `first` + 2 of a, then of b."""
    order = [at + 4 * q + k for q in range(4) for at in (0, 16) for k in (first, first + 2)]
    return builder.shuffle_vector(a, b, lanes(32, 16)(order))


@block("seed", "start", "span", "stream", "out", "at")
def _words_block(e: Emitter) -> None:
    (vector,) = emit_words(e, stream=e.args["stream"])
    e.store(vector, e.address("out", "at"))


@kernel("uint64, uint64, uint64, out uint32[]")
def _words(seed, start, stream, out):
    for i in range(0, out.size, BLOCK):  # out.size and start are multiples of BLOCK
        first = start + np.uint64(i)
        _words_block(seed, first, first >> COUNTER_SPAN, stream, out, i)
