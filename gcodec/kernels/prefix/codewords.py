"""Words of universal codes: for each code, one rule that encodes and decodes a single value.

A word is a run of zeros, which may be longer than any integer has bits, followed by at most 128
bits. The first bit of a string is the most significant of the first byte.

    word(value, parameter) -> zeros, high, low, nbits
        The word is `zeros` 0-bits, then the lowest `nbits` (1 to 128) bits of the 128-bit number
        high:low, the most significant first.
    value(data, at, end, parameter) -> value, next
        Decodes the word at bit `at` of a string in `data` that ends at bit `end`; at <= end <=
        8 * data.size. `next` is the bit after the word; or CORRUPT if the bits up to `end` do not
        begin the word of any 64-bit value; or TRUNCATED if they begin a word and end within it.

Bits after `end` count as zeros, which completes a truncated word to the least value with these
bits. If even this value is too large, the word is corrupt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.words import leading_zeros, peek
from gcodec.runtime.jit import inline, subroutine

TRUNCATED = -1
CORRUPT = -2

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_MAX = np.uint64(2**64 - 1)


class Rule(NamedTuple):
    """A universal code without its parameter.

    Attributes
    ----------
    name : str
    word : subroutine
        (value: uint64, parameter: uint64) -> (zeros: uint64, high: uint64, low: uint64,
        nbits: int64)
    value : subroutine
        (data: uint8[], at: int64, end: int64, parameter: uint64) -> (value: uint64, next: int64)
    """

    name: str
    word: Any
    value: Any


@inline
def _bit_length(value):
    return 64 - np.int64(leading_zeros(value))


@inline
def _power(exponent):
    """Return two to the power of an exponent from 0 to 63."""
    return _ONE << np.uint64(exponent)


@subroutine
def _take(data, at, count, end):
    """Return 0 to 64 bits from `at` on; bits from `end` on are 0."""
    have = end - at
    if count <= 0 or have <= 0:
        return _ZERO
    bits = peek(data, at)
    if have < 64:
        bits &= ~(_MAX >> np.uint64(have))
    return bits >> np.uint64(64 - count)


@subroutine
def _run(data, at, end):
    """Count the zeros from `at` on, up to a one or the end."""
    first = at
    while at < end:
        zeros = np.int64(leading_zeros(peek(data, at)))
        at += zeros
        if zeros < 64:
            break
    return min(at, end) - first


@subroutine
def _omega_word(value, parameter):
    """Encode a value >= 1 as groups, each the bit length less 1 of the next, then a zero."""
    high, low, nbits = _ZERO, _ZERO, np.int64(1)
    while value > _ONE:
        length = _bit_length(value)
        # 1 <= nbits <= 65 + 6 + 3
        low |= value << np.uint64(nbits) if nbits < 64 else _ZERO
        high |= value >> np.uint64(64 - nbits) if nbits < 64 else value << np.uint64(nbits - 64)
        nbits += length
        value = np.uint64(length - 1)
    return _ZERO, high, low, nbits


@subroutine
def _omega_value(data, at, end, parameter):
    bits = peek(data, at)  # contains most words whole
    have = min(end - at, 64)
    value, used = _ONE, np.int64(0)
    while used < have:  # so no shift passes 63
        if bits << np.uint64(used) >> np.uint64(63) == 0:
            return value, at + used + 1
        if value > np.uint64(62) or used + np.int64(value) + 1 > have:
            break
        count = np.int64(value) + 1
        value = bits << np.uint64(used) >> np.uint64(64 - count)
        used += count
    value = _ONE
    while at < end:
        if not _take(data, at, 1, end):
            return value, at + 1
        if value > np.uint64(63):  # a group of more than 64 bits
            return _ZERO, np.int64(CORRUPT)
        count = np.int64(value) + 1
        value = _take(data, at, count, end)
        at += count
    # The string ends within the last group, or right after it.
    return _ZERO, np.int64(TRUNCATED)


@subroutine
def _gamma_word(value, parameter):
    """Encode a value >= 1 as its bit length less 1 in zeros, then the value."""
    length = _bit_length(value)
    return np.uint64(length - 1), _ZERO, value, length


@subroutine
def _gamma_value(data, at, end, parameter):
    zeros = _run(data, at, end)
    if zeros > 63:
        return _ZERO, np.int64(CORRUPT)
    after = at + 2 * zeros + 1
    if after > end:
        return _ZERO, np.int64(TRUNCATED)
    return _take(data, at + zeros, zeros + 1, end), after


@subroutine
def _delta_word(value, parameter):
    """Encode a value >= 1 as the gamma word of its bit length, then its bits after the first."""
    length = _bit_length(value)
    prefix = _bit_length(np.uint64(length))
    count = length - 1
    low = value ^ _power(count)
    high = _ZERO
    if count > 0:  # and at most 63
        low |= np.uint64(length) << np.uint64(count)
        high = np.uint64(length) >> np.uint64(64 - count)
    else:
        low = _ONE
    return np.uint64(prefix - 1), high, low, prefix + count


@subroutine
def _delta_value(data, at, end, parameter):
    zeros = _run(data, at, end)
    if zeros > 6:
        return _ZERO, np.int64(CORRUPT)
    length = np.int64(_take(data, at + zeros, zeros + 1, end))
    if length > 64:
        return _ZERO, np.int64(CORRUPT)
    at += 2 * zeros + 1
    if at > end or at + length - 1 > end:  # otherwise length is complete, and at least 1
        return _ZERO, np.int64(TRUNCATED)
    return _power(length - 1) | _take(data, at, length - 1, end), at + length - 1


@subroutine
def _expgolomb_word(value, parameter):
    """Encode value + 2^k, of up to 65 bits, after a zero for each bit beyond k + 1."""
    k = np.int64(parameter)
    low = value + _power(k)
    high = _ONE if low < value else _ZERO
    length = 65 if high else _bit_length(low)
    return np.uint64(length - 1 - k), high, low, np.int64(length)


@subroutine
def _expgolomb_value(data, at, end, parameter):
    k = np.int64(parameter)
    zeros = _run(data, at, end)
    count = zeros + k  # bits after the first one
    if count > 64:
        return _ZERO, np.int64(CORRUPT)
    at += zeros + 1
    low = _take(data, at, count, end)
    if count == 64 and low >= _power(k):
        return _ZERO, np.int64(CORRUPT)
    if at + count > end:
        return _ZERO, np.int64(TRUNCATED)
    first = _power(count) if count < 64 else _ZERO  # 2^64 wraps to 0, and so does the difference
    return first + low - _power(k), at + count


@inline
def _remainders(divisor):
    """Return the bits of the longer words of remainders, and the number of shorter words."""
    bits = _bit_length(divisor - _ONE)
    short = _ZERO
    if bits > 0:
        short = _power(bits - 1) + _power(bits - 1) - divisor  # 2^64 wraps to 0
    return bits, short


@subroutine
def _golomb_word(value, parameter):
    """Encode value div b as zeros, then a one and the truncated binary remainder."""
    bits, short = _remainders(parameter)
    quotient = value // parameter
    remainder = value - quotient * parameter
    if remainder < short:  # so bits >= 1
        return quotient, _ZERO, _power(bits - 1) | remainder, bits
    remainder += short
    if bits == 64:
        return quotient, _ONE, remainder, np.int64(65)
    return quotient, _ZERO, _power(bits) | remainder, bits + 1


@subroutine
def _golomb_value(data, at, end, parameter):
    bits, short = _remainders(parameter)
    zeros = _run(data, at, end)
    quotient = np.uint64(zeros)
    if quotient > _MAX // parameter:
        return _ZERO, np.int64(CORRUPT)
    at += zeros + 1
    after = at + bits
    remainder = _take(data, at, bits - 1, end)
    if remainder < short:  # so bits >= 1
        after -= 1
    else:
        remainder = _take(data, at, bits, end) - short
    value = quotient * parameter
    if remainder > _MAX - value:
        return _ZERO, np.int64(CORRUPT)
    if after > end:
        return _ZERO, np.int64(TRUNCATED)
    return value + remainder, after


@subroutine
def _rice_word(value, parameter):
    """Encode value >> k as zeros, then a one and the k lowest bits."""
    first = _power(parameter)
    return value >> parameter, _ZERO, first | (value & (first - _ONE)), np.int64(parameter) + 1


@subroutine
def _rice_value(data, at, end, parameter):
    bits, k = peek(data, at), np.int64(parameter)  # contains most words whole
    zeros = np.int64(leading_zeros(bits))
    after = at + zeros + 1 + k
    if zeros + k < 64 and after <= end:
        low = bits << np.uint64(zeros) << _ONE >> _ONE >> np.uint64(63 - k)
        return np.uint64(zeros) << parameter | low, after
    zeros = _run(data, at, end)
    if np.uint64(zeros) > _MAX >> parameter:
        return _ZERO, np.int64(CORRUPT)
    at += zeros + 1
    if at + k > end:
        return _ZERO, np.int64(TRUNCATED)
    low = peek(data, at) >> _ONE >> np.uint64(63 - k)
    return np.uint64(zeros) << parameter | low, at + k


OMEGA = Rule("omega", _omega_word, _omega_value)  # values from 1; no parameter
GAMMA = Rule("gamma", _gamma_word, _gamma_value)  # values from 1; no parameter
DELTA = Rule("delta", _delta_word, _delta_value)  # values from 1; no parameter
EXPGOLOMB = Rule("expgolomb", _expgolomb_word, _expgolomb_value)  # parameter k from 0 to 63
GOLOMB = Rule("golomb", _golomb_word, _golomb_value)  # parameter b from 1 to 2^64 - 1
RICE = Rule("rice", _rice_word, _rice_value)  # parameter k from 0 to 63
UNIVERSAL = (OMEGA, GAMMA, DELTA, EXPGOLOMB, GOLOMB, RICE)  # codes with a word for each integer


class Family(NamedTuple):
    """Rules that kernels distinguish at run time, by a number, so that one kernel serves them all.

    Attributes
    ----------
    name : str
    rules : tuple of Rule
        A number is an index of this tuple.
    word, value : inline function
        Those of `Rule`, with the number of the rule as the first argument, a uint64.
    """

    name: str
    rules: tuple[Rule, ...]
    word: Any
    value: Any


@inline
def _level_word(rule, value, parameter):
    if rule == np.uint64(0):
        return _omega_word(value, parameter)
    return _rice_word(value, parameter)


@inline
def _level_value(rule, data, at, end, parameter):
    if rule == np.uint64(0):
        return _omega_value(data, at, end, parameter)
    return _rice_value(data, at, end, parameter)


@inline
def _integer_word(rule, value, parameter):
    if rule == np.uint64(0):
        return _gamma_word(value, parameter)
    if rule == np.uint64(1):
        return _delta_word(value, parameter)
    if rule == np.uint64(2):
        return _expgolomb_word(value, parameter)
    return _golomb_word(value, parameter)


@inline
def _integer_value(rule, data, at, end, parameter):
    if rule == np.uint64(0):
        return _gamma_value(data, at, end, parameter)
    if rule == np.uint64(1):
        return _delta_value(data, at, end, parameter)
    if rule == np.uint64(2):
        return _expgolomb_value(data, at, end, parameter)
    return _golomb_value(data, at, end, parameter)


LEVELS = Family("levels", (OMEGA, RICE), _level_word, _level_value)  # those of codecs
INTEGERS = Family("integers", (GAMMA, DELTA, EXPGOLOMB, GOLOMB), _integer_word, _integer_value)
FAMILIES = (LEVELS, INTEGERS)


def family_of(rule: Rule) -> Family:
    """Return the family that contains a rule."""
    return LEVELS if rule in LEVELS.rules else INTEGERS
