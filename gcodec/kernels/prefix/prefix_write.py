"""The writer of prefix codes: four symbols at a time by a table, or two where they are larger.

Words go one behind the other into one bit string, most significant bit first. What a table does
not hold goes by the code's rule.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.bit_string import SLACK, BitString
from gcodec.kernels.numeric.words import put
from gcodec.kernels.prefix.prefix_table import (
    DENSE_KINDS,
    FOURS,
    TWOS,
    WIDE,
    Kind,
    PrefixCode,
    splitting,
    write_tables,
)
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.kernels.prefix.table_write import table_arguments, write_table_words
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, lanes

_SIX, _EIGHT = np.uint64(6), np.uint64(8)
_LENGTH = np.uint64(63)
_MOST = np.uint64(56)  # bits that are put at once


def write_symbols(
    code: PrefixCode | TableCode, symbols: np.ndarray, bounds: np.ndarray, string: BitString
) -> np.ndarray:
    """Put the words of symbols at the end of a string, on the calling thread.

    Parameters
    ----------
    code : PrefixCode or TableCode
    symbols : (n,) unsigned array
    bounds : (count,) int64 array
        Ends of blocks of symbols, not falling; the last is n.
    string : BitString

    Returns
    -------
    (count,) int64 array
        Bits of the string, its lead too, at the end of each block.

    Raises
    ------
    ParameterError
        If a table has no word for a symbol.
    """
    loop: Kernel
    if isinstance(code, TableCode):
        loop, arguments = write_table_words, table_arguments(code, symbols)
    else:
        places, number = np.empty(BLOCK, np.uint32), np.uint64(code.parameter)
        words = narrowed(symbols, code.top)
        loop, arguments = _writer(code.kind), (*words, *write_tables(code), number, places)
    ends = np.empty(bounds.size, np.int64)
    progress = np.zeros(3, np.int64)
    while True:
        loop(*arguments, bounds, string.data, string.state, ends, progress)
        if progress[1] == bounds.size:
            return ends
        if progress[2]:
            raise ParameterError(f"symbol {symbols[progress[0]]} has no word")
        string.grow()


_NONE = np.empty(0, np.uint64)


def narrowed(symbols: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Symbols up to `top` as bytes, those from WIDE on as WIDE; and all, if there are such."""
    if symbols.dtype == np.uint8:
        small = symbols
    else:
        small = np.minimum(symbols, symbols.dtype.type(WIDE)).astype(np.uint8)
    if top < WIDE or small.max(initial=0) < WIDE:
        return small, _NONE
    return small, symbols.astype(np.uint64, copy=False)


@functools.cache
def spelling(kind: Kind) -> Any:
    """Make the subroutine that puts the word of one symbol by its rule.

    (symbol, parameter, out, acc, have, at) -> (acc, have, at, bytes that are missing): where bytes
    are missing, nothing is put.
    """
    rule, mapping, shift = kind
    word_of, split = rule.word, splitting(mapping, shift)

    @subroutine(variant=f"{rule.name} {mapping} {shift}")
    def spell(symbol, parameter, out, acc, have, at):
        before, sign, value = split(symbol)
        zeros, high, low, nbits = word_of(value, parameter)
        # `zeros` may be near 2^64: no sum with it is bounded before this.
        room = out.size - SLACK // 2 - at
        if room < 24 or zeros // _EIGHT > np.uint64(room - 24):
            return acc, have, at, min(zeros // _EIGHT, np.uint64(1 << 62)) + np.uint64(32)
        if before:
            acc, have, at = put(out, at, acc, have, sign, np.uint64(1))
        while zeros:
            some = min(zeros, np.uint64(56))
            acc, have, at = put(out, at, acc, have, np.uint64(0), some)
            zeros -= some
        while nbits > 0:  # the upper 32 bits of what is left, or fewer
            start = np.uint64((nbits - 1) // 32 * 32)  # 96, 64, 32 or 0
            some = np.uint64(nbits) - start
            half = high if start >= np.uint64(64) else low
            bits = (half >> (start & np.uint64(63))) & ((np.uint64(1) << some) - np.uint64(1))
            acc, have, at = put(out, at, acc, have, bits, some)
            nbits = np.int64(start)
        return acc, have, at, np.uint64(0)

    return spell


def places_block(digit: int, together: int) -> Any:
    """Make the block: places of groups of so many of the 32 symbols from i, and what they hold.

    Each place is the number whose digits are the symbols of the group. Behind the places come two
    words: bit k of the first says whether symbol k is 2**digit or more, of the second whether it
    is not 0.
    """

    @block("small", "i", "places", "zero")
    def find_places(e: Emitter) -> None:
        builder = e.builder
        symbols = e.load(e.address("small", "i"), lanes(8), 1)
        target = e.address("places", "zero")
        width, found = 8, symbols
        while BLOCK // (width // 8) > BLOCK // together:  # the first symbol is in the lowest bits
            width *= 2
            kind = lanes(width, BLOCK * 8 // width)
            found = builder.bitcast(found, kind)
            half = kind([2 ** (width // 2) - 1] * kind.count)
            upper = builder.shl(
                builder.and_(found, half), kind([digit * width // 16] * kind.count)
            )
            found = builder.or_(upper, builder.lshr(found, kind([width // 2] * kind.count)))
        groups = BLOCK // together
        e.store(builder.zext(found, lanes(32, groups)) if width < 32 else found, target)
        large = builder.icmp_unsigned(">", symbols, symbols.type([2**digit - 1] * BLOCK))
        sent = builder.icmp_unsigned("!=", symbols, symbols.type([0] * BLOCK))
        for k, mask in enumerate((large, sent)):
            e.store(builder.bitcast(mask, lanes(32, 1)), e.element(target, groups + k))

    return find_places


@inline
def joined(first, second):
    """Return two words of a table one behind the other, and their bits: (bits, nbits)."""
    behind = np.uint64(second) & _LENGTH
    nbits = (np.uint64(first) & _LENGTH) + behind
    return (np.uint64(first) >> _SIX) << behind | np.uint64(second) >> _SIX, nbits


fours_of = places_block(FOURS, 4)
_twos_of = places_block(TWOS, 2)


@factory(lambda: ((kind,) for kind in DENSE_KINDS))
def _writer(kind: Kind) -> Kernel:
    rule, mapping, shift = kind
    spell = spelling(kind)

    @kernel(
        "in uint8[], in uint64[], in uint32[], in uint64[], uint64, out uint32[], in int64[], "
        "out uint8[], out uint64[], out int64[], out int64[]",
        variant=f"{rule.name} {mapping} {shift}",
    )
    def write_words(
        small, wide, groups, singles, parameter, places, bounds, out, state, ends, progress
    ):
        # small.size == wide.size, unless no symbol is WIDE; places.size == BLOCK; ends.size ==
        # bounds.size. `progress` tells the symbols and the blocks that found room.
        at, acc, have = np.int64(state[0]), state[1], state[2]
        limit = out.size - SLACK  # BLOCK symbols by two or four take at most 56 bytes
        i, b = progress[0], progress[1]
        twos = np.uint32(1 << 4 * FOURS)
        none = np.uint64(groups[0])  # four zeros
        n_zeros = (none & _LENGTH) * np.uint64(2)
        zeros = (none >> _SIX) << (none & _LENGTH) | none >> _SIX
        missing = np.uint64(0)
        while b < bounds.size:
            stop = bounds[b]  # at most small.size
            while i < stop and at <= limit:
                if i + BLOCK <= stop:
                    # A loop for each number of groups: one for both takes half as long again.
                    begun = i
                    fours_of(small, i, places, 0)
                    if places[BLOCK // 4] == 0:
                        if places[BLOCK // 4 + 1] == 0 and n_zeros <= _MOST:
                            for _ in range(BLOCK // 8):
                                acc, have, at = put(out, at, acc, have, zeros, n_zeros)
                            i += BLOCK
                            continue
                        for k in range(0, BLOCK // 4, 2):  # places are below the first of twos
                            bits, nbits = joined(groups[places[k]], groups[places[k + 1]])
                            if nbits > _MOST:
                                break
                            acc, have, at = put(out, at, acc, have, bits, nbits)
                            i += 8
                    else:
                        _twos_of(small, i, places, 0)
                        if places[BLOCK // 2] == 0:
                            for k in range(0, BLOCK // 2, 2):
                                first = groups[twos + places[k]]
                                bits, nbits = joined(first, groups[twos + places[k + 1]])
                                if nbits > _MOST:
                                    break
                                acc, have, at = put(out, at, acc, have, bits, nbits)
                                i += 4
                    if i == begun + BLOCK:
                        continue
                for _ in range(min(8, stop - i)):
                    if at > limit:
                        break
                    symbol = small[i]
                    found = singles[symbol]
                    if found:
                        nbits = found & _LENGTH
                        acc, have, at = put(out, at, acc, have, found >> _SIX, nbits)
                    else:
                        full = wide[i] if symbol == WIDE else np.uint64(symbol)
                        acc, have, at, missing = spell(full, parameter, out, acc, have, at)
                        if missing:
                            break
                    i += 1
                if missing:
                    break
            if i < stop:
                break
            ends[b] = 8 * at + np.int64(have)
            b += 1
        state[0], state[1], state[2], state[3] = np.uint64(at), acc, have, missing
        progress[0], progress[1] = i, b

    return write_words
