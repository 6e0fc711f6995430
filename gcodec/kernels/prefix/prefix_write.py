"""The writer of prefix codes: the words of two or four symbols by one table lookup.

A writer appends words to one bit string, most significant bit first. Two kernels serve all codes:

- For a `PrefixCode`, tables hold groups of small symbols, and single symbols up to 254. The code's
  rule encodes all other symbols.
- For a `TableCode`, symbols of few bits are digits of a byte, whose words a table holds together.
  The words of four bytes are joined and put at once. Where most words are short, a table holds
  the words of all pairs of bytes instead, and those of four pairs are put at once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.bits.bit_string import SLACK, BitString
from gcodec.kernels.numeric.words import MOST_PUT, load_word, put, put_high, put_zeros, store_word
from gcodec.kernels.prefix.codewords import FAMILIES, Family
from gcodec.kernels.prefix.prefix_table import (
    FOURS,
    PARAMETER,
    RULE,
    TWOS,
    WIDE,
    PrefixCode,
    split,
    write_tables,
)
from gcodec.kernels.prefix.table_code import (
    NONE,
    SYMBOLS,
    PairTable,
    TableCode,
    byte_tables,
    pair_table,
)
from gcodec.runtime.jit import Intrinsic, Kernel, Subroutine, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, integer, lanes
from gcodec.runtime.memory import emit_prefetch

_TWO, _FOUR, _SIX, _EIGHT, _SIXTEEN, _HALF = (np.uint64(k) for k in (2, 4, 6, 8, 16, 32))
_LENGTH = np.uint64(63)  # mask of the number of bits in an entry of a table
_MOST = np.uint64(MOST_PUT)
_TILE = 4096  # symbols whose digits are joined at a time
_AHEAD = 1 << 10  # symbols between a group and the one that is prefetched
_UNIT = 16  # symbols that fill whole groups of four bytes, for any width of their digits
_LOW_BYTE = np.uint64(255)
_BYTES, _PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_QUADS = np.uint64(0x00000000FFFFFFFF)
_EMPTY = np.empty(0, np.uint64)
_NO_PAIRS = PairTable(0, 0, _EMPTY)
_NO_PLACES = np.empty(0, np.uint16)
_PER_ENTRY = 4  # symbols for each entry of a table of pairs, from which the table pays
_LEAST_PAIRED = 1 << 13  # symbols from which a table of pairs may pay


def write_symbols(
    code: PrefixCode | TableCode, symbols: np.ndarray, bounds: np.ndarray, string: BitString
) -> np.ndarray:
    """Append the words of symbols to a string, on the calling thread.

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
        Bits of the string, including its lead, at the end of each block.

    Raises
    ------
    ParameterError
        If a table has no word for a symbol.
    """
    loop: Kernel
    if isinstance(code, TableCode):
        loop = write_table_words
        arguments: tuple[Any, ...] = _bytes_of(symbols), *table_arguments(code, symbols.size)
    else:
        places, words = np.empty(BLOCK, np.uint32), narrowed(symbols, code.top)
        loop, arguments = _writer(code.family), (*words, *write_tables(code), code.numbers, places)
    ends = np.empty(bounds.size, np.int64)
    progress = np.zeros(3, np.int64)
    while True:
        loop(*arguments, bounds, string.data, string.state, ends, progress)
        if progress[1] == bounds.size:
            return ends
        if progress[2]:
            raise ParameterError(f"symbol {symbols[progress[0]]} has no word")
        string.grow()


def narrowed(symbols: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return symbols up to `top` as bytes, WIDE for large ones; and all as uint64, if any is."""
    if symbols.dtype == np.uint8:
        small = symbols
        is_small = top < WIDE or small.max(initial=0) < WIDE
    else:
        small = np.empty(symbols.size, np.uint8)
        is_small = bool(_narrowing(symbols.dtype.name)(symbols, small))
    if is_small:
        return small, _EMPTY
    return small, symbols.astype(np.uint64, copy=False)


@factory(lambda: (("uint16",), ("uint32",), ("uint64",)))
def _narrowing(dtype: str) -> Kernel:
    """Make the kernel that narrows symbols, and returns whether all of them are below WIDE."""
    wide = np.dtype(dtype).type(WIDE)

    @kernel(f"in {dtype}[], out uint8[]", variant=dtype)
    def narrow(symbols, small):
        largest = np.uint8(0)
        for i in range(symbols.size):  # small.size == symbols.size
            small[i] = np.uint8(min(symbols[i], wide))
            largest = max(largest, small[i])
        return largest < WIDE

    return narrow


@functools.cache
def spelling(family: Family) -> Subroutine:
    """Make the subroutine that puts the word of one symbol by its rule.

    (code, symbol, out, acc, have, at) -> (acc, have, at, missing): if `out` lacks room, the
    subroutine puts nothing, and `missing` is the number of bytes to add.
    """
    word_of = family.word

    @subroutine
    def spell(code, symbol, out, acc, have, at):
        before, sign, value = split(code, symbol)
        zeros, high, low, nbits = word_of(code[RULE], value, code[PARAMETER])
        room = out.size - SLACK // 2 - at
        total = np.uint64(before + nbits) + min(zeros, _MOST)
        if total <= _MOST and zeros < _MOST and room >= 24:
            bits = low | sign << (total - np.uint64(1))
            acc, have, at = put(out, at, acc, have, bits, total)
            return acc, have, at, np.uint64(0)
        # `zeros` may be near 2^64, so that sums with it could wrap before this check.
        if room < 24 or zeros // _EIGHT > np.uint64(room - 24):
            return acc, have, at, min(zeros // _EIGHT, np.uint64(1 << 62)) + np.uint64(32)
        if before:
            acc, have, at = put(out, at, acc, have, sign, np.uint64(1))
        acc, have, at = put_zeros(out, at, acc, have, np.int64(zeros))
        while nbits > 0:  # at most the upper 32 of the remaining bits
            start = np.uint64((nbits - 1) // 32 * 32)  # 96, 64, 32 or 0
            count = np.uint64(nbits) - start
            half = high if start >= np.uint64(64) else low
            bits = (half >> (start & np.uint64(63))) & ((np.uint64(1) << count) - np.uint64(1))
            acc, have, at = put(out, at, acc, have, bits, count)
            nbits = np.int64(start)
        return acc, have, at, np.uint64(0)

    return spell


def places_block(digit: int, together: int) -> Intrinsic:
    """Make the block that finds the table places of groups among 32 symbols from i.

    Each place is the number whose digits are the `together` symbols of a group. Two words follow
    the places: bit k of the first is set if symbol k is 2**digit or more, bit k of the second if
    symbol k is not 0.
    """

    @block("small", "i", "places")
    def find_places(e: Emitter) -> None:
        builder = e.builder
        source = e.address("small", "i")
        emit_prefetch(builder, e.element(source, _AHEAD))
        symbols = e.load(source, lanes(8), 1)
        target = e.args["places"]
        width, places = 8, symbols
        while width < 8 * together:  # the first symbol is in the lowest bits
            width *= 2
            kind = lanes(width, BLOCK * 8 // width)
            places = builder.bitcast(places, kind)
            half = kind([2 ** (width // 2) - 1] * kind.count)
            upper = builder.shl(
                builder.and_(places, half), kind([digit * width // 16] * kind.count)
            )
            places = builder.or_(upper, builder.lshr(places, kind([width // 2] * kind.count)))
        groups = BLOCK // together
        e.store(builder.zext(places, lanes(32, groups)) if width < 32 else places, target)
        large = builder.icmp_unsigned(">", symbols, symbols.type([2**digit - 1] * BLOCK))
        nonzero = builder.icmp_unsigned("!=", symbols, symbols.type([0] * BLOCK))
        for k, mask in enumerate((large, nonzero)):
            e.store(builder.bitcast(mask, lanes(32, 1)), e.element(target, groups + k))

    return find_places


@inline
def joined(first, second):
    """Concatenate the words of two entries of a table; return (bits, nbits)."""
    second_nbits = np.uint64(second) & _LENGTH
    nbits = (np.uint64(first) & _LENGTH) + second_nbits
    return (np.uint64(first) >> _SIX) << second_nbits | np.uint64(second) >> _SIX, nbits


fours_of = places_block(FOURS, 4)
_twos_of = places_block(TWOS, 2)


@factory(lambda: ((family,) for family in FAMILIES))
def _writer(family: Family) -> Kernel:
    spell = spelling(family)

    @kernel(
        "in uint8[], in uint64[], in uint32[], in uint64[], in uint64[], out uint32[], "
        "in int64[], out uint8[], out uint64[], out int64[], out int64[]",
        variant=family.name,
        vectorized=False,
    )
    def write_words(
        small, wide, groups, singles, code, places, bounds, out, state, ends, progress
    ):
        # small.size == wide.size, unless no symbol is WIDE; places.size == BLOCK; ends.size ==
        # bounds.size. `progress` counts the symbols and the blocks that are written.
        at, acc, have = np.int64(state[0]), state[1], state[2]
        limit = out.size - SLACK  # BLOCK symbols by two or four take at most 56 bytes
        i, b = progress[0], progress[1]
        twos = np.uint32(1 << 4 * FOURS)
        zeros, n_zeros = joined(groups[0], groups[0])  # eight zeros
        missing = np.uint64(0)
        while b < bounds.size:
            stop = bounds[b]  # at most small.size
            while i < stop and at <= limit:
                if i + BLOCK <= stop:
                    # A loop for each size of groups: a shared loop takes 1.5 times as long.
                    begun = i
                    fours_of(small, i, places)
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
                        _twos_of(small, i, places)
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
                    entry = singles[symbol]
                    if entry:
                        nbits = entry & _LENGTH
                        acc, have, at = put(out, at, acc, have, entry >> _SIX, nbits)
                    else:
                        full = wide[i] if symbol == WIDE else np.uint64(symbol)
                        acc, have, at, missing = spell(code, full, out, acc, have, at)
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


TABLES = (
    "(in uint64[], in uint64[], out uint8[], int64, int64, int64, in uint64[], out uint16[], "
    "out int64[])"
)
"""Types of what `table_arguments` returns, one parameter of kernels."""


def table_arguments(code: TableCode, n: int) -> tuple[Any, ...]:
    """Return the tables of `write_table_words` for a code and n symbols."""
    tables, pairs, kept = byte_tables(code), _NO_PAIRS, np.empty(3, np.int64)
    if tables.digit == 8 and n >= _LEAST_PAIRED:
        pairs = pair_table(code)
        if n < _PER_ENTRY * pairs.entries.size:
            pairs = _NO_PAIRS
    digits, together = np.empty(_TILE, np.uint8), 8 // tables.digit
    places = np.empty(_TILE // 2, np.uint16) if pairs.span else _NO_PLACES
    return tables.singles, tables.groups, digits, together, *pairs, places, kept


def _bytes_of(symbols: np.ndarray) -> np.ndarray:
    """Return (n,) unsigned symbols as bytes; raise `ParameterError` if one exceeds a byte."""
    if symbols.dtype == np.uint8:
        return symbols
    if symbols.max(initial=0) >= SYMBOLS:
        raise ParameterError(f"symbol {symbols.max()} is no byte")
    return symbols.astype(np.uint8)


@block("digits", "first", "groups", "out", "state", "kept", apart=True)
def _join_words(e: Emitter) -> None:
    """Put the words of four places at a time, while they have at most 56 bits together.

    A place is an integer of `digits` and the index of its words in `groups`. The places are those
    from element `first` + kept[0] up to `first` + kept[1]; kept[0] advances.
    """
    builder, word = e.builder, integer(64)
    digits, groups = e.address("digits", "first"), e.args["groups"]
    out, kept, state = (e.args[name] for name in ("out", "kept", "state"))
    fields = [kept, *(e.element(state, k) for k in range(3))]
    begun, before = builder.block, [builder.load(field) for field in fields]
    last = builder.load(e.element(kept, 1))
    head, body, store, done = (
        builder.append_basic_block(name) for name in ("head", "body", "store", "done")
    )
    builder.branch(head)

    builder.position_at_end(head)
    held = [builder.phi(word) for _ in fields]
    place, at, acc, have = held
    builder.cbranch(builder.icmp_signed("<", place, last), body, done)

    builder.position_at_end(body)
    pointer = builder.gep(digits, [place])
    four = [builder.zext(builder.load(e.element(pointer, k)), word) for k in range(4)]
    entries = [builder.load(builder.gep(groups, [digit])) for digit in four]

    def concatenated(left: Value, right: Value, counts: Value) -> Value:
        return builder.or_(left, builder.lshr(right, builder.and_(counts, word(63))))

    # The lowest byte of the sums is the number of bits: at most 4 * NONE.
    left, right = builder.add(*entries[:2]), builder.add(*entries[2:])
    nbits = builder.and_(builder.add(left, right), word(255))
    builder.cbranch(builder.icmp_unsigned("<=", nbits, word(int(_MOST))), store, done)

    builder.position_at_end(store)
    upper, lower = (concatenated(entries[k], entries[k + 1], entries[k]) for k in (0, 2))
    bits = builder.and_(concatenated(upper, lower, left), word(2**64 - 256))
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
        phi.add_incoming(then, store)
    builder.branch(head)

    builder.position_at_end(done)
    for value, field in zip(held, fields, strict=True):
        builder.store(value, field)


@inline
def _halved(word, digit):
    """Join each pair of the eight bytes of a word, the first as the higher digit, in 32 bits."""
    word = (word << digit | word >> _EIGHT) & _BYTES
    word = (word | word >> _EIGHT) & _PAIRS
    return (word | word >> _SIXTEEN) & _QUADS


@block("small", "i", "base", "span", "places", "first", "kept")
def _find_pairs(e: Emitter) -> None:
    """Write the places of 16 pairs among 32 bytes from i on; see `PairTable`.

    A bit of kept[2] is set if a byte has no digit.
    """
    builder = e.builder
    symbols = e.load(e.address("small", "i"), lanes(8), 1)
    base, span = (e.splat(builder.trunc(e.args[name], integer(8))) for name in ("base", "span"))
    above = builder.icmp_unsigned(">", symbols, base)
    digits = builder.select(above, builder.sub(symbols, base), symbols.type([0] * BLOCK))
    below = builder.icmp_unsigned("<", digits, span)
    is_zero = builder.icmp_unsigned("==", symbols, symbols.type([0] * BLOCK))
    fits = builder.and_(below, builder.or_(above, is_zero))
    flags = e.element(e.args["kept"], 2)
    wrong = builder.bitcast(builder.not_(fits), integer(32))
    wrong = builder.zext(wrong, integer(64))
    builder.store(builder.or_(builder.load(flags), wrong), flags)
    kind = lanes(16, BLOCK // 2)
    pairs = builder.bitcast(digits, kind)  # the first byte is the lower one
    times = e.splat(builder.trunc(e.args["span"], kind.element), kind.count)
    first = builder.and_(pairs, kind([255] * kind.count))
    second = builder.lshr(pairs, kind([8] * kind.count))
    places = builder.add(builder.mul(first, times), second)
    e.store(places, e.address("places", "first"), 2)


@subroutine
def _join_pairs(small, i, whole, base, span, pairs, places, out, state, kept):
    """Put the words of `whole` symbols from i on, by their pairs; return how many are put.

    `whole` is a multiple of BLOCK, and places.size at least its half. Fewer symbols are put if one
    has no word, or if `out` lacks room.
    """
    kept[2] = 0
    for k in range(0, whole, BLOCK):
        _find_pairs(small, i + k, base, span, places, k // 2, kept)
    if kept[2]:
        return np.int64(0)
    limit, end = out.size - SLACK, whole // 2
    kept[0] = 0
    while kept[0] < end and np.int64(state[0]) <= limit:
        # Four pairs put at most 7 bytes, so the last of them begin up to the limit.
        kept[1] = min(end, kept[0] + 4 * ((limit - np.int64(state[0])) // 7 + 1))
        _join_words(places, 0, pairs, out, state, kept)
        if kept[0] == kept[1]:
            continue
        # Four pairs with long words: two of them put at most 6 bytes.
        at, acc, have, k = np.int64(state[0]), state[1], state[2], kept[0]
        for _ in range(2):
            first, second = pairs[places[k]], pairs[places[k + 1]]
            count = (first & _LOW_BYTE) + (second & _LOW_BYTE)
            if count > _MOST:  # a symbol has no word
                end = k
                break
            bits = first & ~_LOW_BYTE | second >> (first & _LENGTH)
            acc, have, at = put_high(out, at, acc, have, bits & ~_LOW_BYTE, count)
            k += 2
        state[0], state[1], state[2] = np.uint64(at), acc, have
        kept[0] = k
    return 2 * kept[0]


@kernel(f"in uint8[], {TABLES}, in int64[], out uint8[], out uint64[], out int64[], out int64[]")
def write_table_words(small, tables, bounds, out, state, ends, progress):
    """Append the words of symbols of a `TableCode` to a string; see `write_symbols`."""
    # digits.size == _TILE; ends.size == bounds.size, and no bound passes small.size. If `span` is
    # above 0, so is places.size: _TILE / 2. `progress` counts the symbols and the blocks that are
    # written, then whether the next symbol has no word.
    singles, groups, digits, together, base, span, pairs, places, kept = tables
    limit = out.size - SLACK  # four words of digits take at most 24 bytes
    i, b = progress[0], progress[1]
    too_large = np.uint64(0)
    if together == 2:
        too_large = np.uint64(0xF0F0F0F0F0F0F0F0)
    elif together == 4:
        too_large = np.uint64(0xFCFCFCFCFCFCFCFC)
    fine = True
    while b < bounds.size:
        stop = bounds[b]
        while i < stop and fine and np.int64(state[0]) <= limit:
            if span > 0 and stop - i >= BLOCK:
                paired = min(stop - i, _TILE) // BLOCK * BLOCK
                joined_count = _join_pairs(
                    small, i, paired, base, span, pairs, places, out, state, kept
                )
                i += joined_count
                if joined_count == paired or np.int64(state[0]) > limit:
                    continue
            whole = min(stop - i, _TILE) // _UNIT * _UNIT
            # Four bytes of digits put at most 7 bytes, so the last of them begin up to the limit.
            room = (limit - np.int64(state[0])) // 7 + 1
            kept[0], kept[1] = 0, min(whole // together, 4 * room)
            if together == 1:
                _join_words(small, i, groups, out, state, kept)
            else:
                seen = np.uint64(0)
                for k in range(whole // 16):
                    word, second = load_word(small, i + 16 * k), load_word(small, i + 16 * k + 8)
                    seen |= word | second
                    if together == 2:
                        word = _halved(word, _FOUR) | _halved(second, _FOUR) << _HALF
                        store_word(digits, 8 * k, word)
                    else:
                        word = _halved(word, _TWO) | _halved(second, _TWO) << _HALF
                        store_word(digits, 4 * k, _halved(word, _FOUR))
                if seen & too_large:
                    kept[1] = 0
                _join_words(digits, 0, groups, out, state, kept)
            i += kept[0] * together
            # Single symbols: some with long words, the last ones, and any without a word.
            count = np.int64(0)
            if kept[0] * together < whole or stop - i < _UNIT:
                count = min(_UNIT, stop - i)
            at, acc, have = np.int64(state[0]), state[1], state[2]
            while count > 0 and at <= limit:
                entry = singles[small[i]]
                nbits = entry & _LENGTH
                if nbits == np.uint64(NONE):
                    fine = False
                    break
                acc, have, at = put_high(out, at, acc, have, entry & ~_LOW_BYTE, nbits)
                count -= 1
                i += 1
            state[0], state[1], state[2] = np.uint64(at), acc, have
        if i < stop:
            break
        ends[b] = 8 * np.int64(state[0]) + np.int64(state[2])
        b += 1
    state[3] = np.uint64(0)
    progress[0], progress[1], progress[2] = i, b, 0 if fine else 1
