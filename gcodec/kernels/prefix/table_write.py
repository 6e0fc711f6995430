"""The writer of codes that are tables: the words of four bytes are joined and put at once.

Symbols of few bits are digits of a byte, whose words stand together in a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.bit_string import SLACK
from gcodec.kernels.numeric.words import load_word, put_high, store_word
from gcodec.kernels.prefix.table_code import NONE, SYMBOLS, TableCode, places
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.lanes import Emitter, block

_TILE = 4096  # symbols whose digits are joined at a time
_UNIT = 16  # symbols that end on four bytes, whatever their digits
_MOST = 56  # bits that are put at once
_LENGTH = np.uint64(63)
_NONE = np.uint64(NONE)
_LOW = np.uint64(255)  # where the number of bits is
_TWO, _FOUR, _EIGHT, _SIXTEEN, _HALF = (np.uint64(k) for k in (2, 4, 8, 16, 32))
_BYTES, _PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_FOURS = np.uint64(0x00000000FFFFFFFF)


def table_arguments(code: TableCode, symbols: np.ndarray) -> tuple[Any, ...]:
    """Return what `write_table_words` gets of a code and (n,) unsigned symbols.

    Raises
    ------
    ParameterError
        If a symbol is no byte.
    """
    if symbols.dtype != np.uint8:
        if symbols.max(initial=0) >= SYMBOLS:
            raise ParameterError(f"symbol {symbols.max()} is no byte")
        symbols = symbols.astype(np.uint8)
    tables = places(code)
    together = 8 // tables.digit
    kept = np.empty(2, np.int64)
    return symbols, tables.singles, tables.groups, np.empty(_TILE, np.uint8), together, kept


@block("digits", "first", "groups", "out", "state", "kept", "zero", apart=True)
def _join_words(e: Emitter) -> None:
    """Put the words of four places at a time, while these have at most 56 bits together.

    The places are those of `digits` behind number `first`, from kept[0] on, which is moved on, up
    to kept[1].
    """
    from llvmlite import ir

    builder, word = e.builder, ir.IntType(64)
    digits, groups = e.address("digits", "first"), e.address("groups", "zero")
    out, kept, state = (e.address(name, "zero") for name in ("out", "kept", "state"))
    fields = [kept, *(e.element(state, k) for k in range(3))]
    begun, before = builder.block, [builder.load(field) for field in fields]
    last = builder.load(e.element(kept, 1))
    head, body, some, done = (
        builder.append_basic_block(name) for name in ("head", "body", "some", "done")
    )
    builder.branch(head)

    builder.position_at_end(head)
    held = [builder.phi(word) for _ in fields]
    place, at, acc, have = held
    builder.cbranch(builder.icmp_signed("<", place, last), body, done)

    builder.position_at_end(body)
    pointer = builder.gep(digits, [place])
    four = [builder.zext(builder.load(e.element(pointer, k)), word) for k in range(4)]
    found = [builder.load(builder.gep(groups, [digit])) for digit in four]

    def joined(left: Any, right: Any, counts: Any) -> Any:
        return builder.or_(left, builder.lshr(right, builder.and_(counts, word(63))))

    # The lowest byte of sums is how many bits there are: at most 4 * NONE.
    left, right = builder.add(*found[:2]), builder.add(*found[2:])
    nbits = builder.and_(builder.add(left, right), word(255))
    builder.cbranch(builder.icmp_unsigned("<=", nbits, word(_MOST)), some, done)

    builder.position_at_end(some)
    upper, lower = (joined(found[k], found[k + 1], found[k]) for k in (0, 2))
    bits = builder.and_(joined(upper, lower, left), word(2**64 - 256))
    full = builder.or_(acc, builder.lshr(bits, have))
    target = builder.bitcast(builder.gep(out, [at]), word.as_pointer())
    builder.store(builder.bswap(full), target, align=1)
    have = builder.add(have, nbits)
    after = [
        builder.add(place, word(4)),
        builder.add(at, builder.lshr(have, word(3))),
        builder.shl(full, builder.and_(have, word(56))),
        builder.and_(have, word(7)),
    ]
    for phi, first, then in zip(held, before, after, strict=True):
        phi.add_incoming(first, begun)
        phi.add_incoming(then, some)
    builder.branch(head)

    builder.position_at_end(done)
    for value, field in zip(held, fields, strict=True):
        builder.store(value, field)


@inline
def _halved(word, digit):
    """Join each two of the eight bytes of a word, the first as the higher digit, in its half."""
    word = (word << digit | word >> _EIGHT) & _BYTES
    word = (word | word >> _EIGHT) & _PAIRS
    return (word | word >> _SIXTEEN) & _FOURS


@kernel(
    "in uint8[], in uint64[], in uint64[], out uint8[], int64, out int64[], in int64[], "
    "out uint8[], out uint64[], out int64[], out int64[]"
)
def write_table_words(
    small, singles, groups, digits, together, kept, bounds, out, state, ends, progress
):
    """Put the words of symbols at the end of a string; see `prefix_write.write_symbols`."""
    # digits.size == _TILE; ends.size == bounds.size, and no bound passes small.size. `progress`
    # tells the symbols and the blocks that found room, and whether the next symbol has no word.
    limit = out.size - SLACK  # four words of digits take at most 24 bytes
    i, b = progress[0], progress[1]
    unknown = np.uint64(0)
    if together == 2:
        unknown = np.uint64(0xF0F0F0F0F0F0F0F0)
    elif together == 4:
        unknown = np.uint64(0xFCFCFCFCFCFCFCFC)
    fine = True
    while b < bounds.size:
        stop = bounds[b]
        while i < stop and fine and np.int64(state[0]) <= limit:
            whole = min(stop - i, _TILE) // _UNIT * _UNIT
            # Four places take at most 7 bytes, so that the last of them begin up to the limit.
            room = (limit - np.int64(state[0])) // 7 + 1
            kept[0], kept[1] = 0, min(whole // together, 4 * room)
            if together == 1:
                _join_words(small, i, groups, out, state, kept, 0)
            else:
                found = np.uint64(0)
                for k in range(whole // 16):
                    word, behind = load_word(small, i + 16 * k), load_word(small, i + 16 * k + 8)
                    found |= word | behind
                    if together == 2:
                        word = _halved(word, _FOUR) | _halved(behind, _FOUR) << _HALF
                        store_word(digits, 8 * k, word)
                    else:
                        word = _halved(word, _TWO) | _halved(behind, _TWO) << _HALF
                        store_word(digits, 4 * k, _halved(word, _FOUR))
                if found & unknown:
                    kept[1] = 0
                _join_words(digits, 0, groups, out, state, kept, 0)
            i += kept[0] * together
            # By themselves: a few of many bits, the last ones, and what has no word.
            count = np.int64(0)
            if kept[0] * together < whole or stop - i < _UNIT:
                count = min(_UNIT, stop - i)
            at, acc, have = np.int64(state[0]), state[1], state[2]
            while count > 0 and at <= limit:
                entry = singles[small[i]]
                nbits = entry & _LENGTH
                if nbits == _NONE:
                    fine = False
                    break
                acc, have, at = put_high(out, at, acc, have, entry & ~_LOW, nbits)
                count -= 1
                i += 1
            state[0], state[1], state[2] = np.uint64(at), acc, have
        if i < stop:
            break
        ends[b] = 8 * np.int64(state[0]) + np.int64(state[2])
        b += 1
    state[3] = np.uint64(0)
    progress[0], progress[1], progress[2] = i, b, 0 if fine else 1
