"""Descriptions of strings of codewords, read and measured by the codes themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from gcodec.errors import Corrupt, FormatError
from gcodec.fields.walker import CHUNK, DescribeSymbols, FieldSpan, FieldValue, FieldWalker, Kind
from gcodec.kernels.prefix import prefix
from gcodec.kernels.prefix.codewords import OMEGA, RICE
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.table_code import TableCode

_T = TypeVar("_T")

UNARY = PrefixCode(RICE, 0, 0)


def words(
    walk: FieldWalker,
    kind: Kind,
    name: str,
    code: PrefixCode | TableCode,
    count: int,
    describe: DescribeSymbols,
    skip: Callable[[np.ndarray], None] | None = None,
) -> Iterator[FieldSpan]:
    """Describe a string of codewords up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first codeword.
    kind, name : str
        Kind and name of a codeword. The sign before a codeword is a field of its own.
    code : PrefixCode or TableCode
        Code of the string.
    count : int
        Number of codewords.
    describe : callable
        Describes symbols; see `DescribeSymbols`.
    skip : callable, optional
        Receives the symbols that are not described, before `describe` receives those that follow.

    Raises
    ------
    FormatError
    """
    window, signed = walk.window(), is_signed(code)
    at = 0
    while at < count and not window.closed:
        size = min(CHUNK, count - at, window.left if walk.start <= walk.at else CHUNK)
        symbols, error = readable(walk, code, size)
        nbits = lengths(code, symbols)
        low, high = window.cut(nbits)
        if skip is not None:
            skip(symbols[:low])
        split = split_of(kind, int(nbits[:low].sum()), low if signed else 0)
        yield from walk.summary(name, low, split)
        for k, value in zip(range(low, high), describe(at + low, symbols[low:high]), strict=True):
            yield from word(walk, kind, name, code, int(symbols[k]), value, at + k)
        if error is not None and high == symbols.size:
            raise error
        at += high
    yield from walk.remainder(kind, name, count - at, signs=count - at if signed else 0)


def word(
    walk: FieldWalker,
    kind: Kind,
    name: str,
    code: PrefixCode | TableCode,
    symbol: int,
    value: FieldValue,
    number: int,
) -> Iterator[FieldSpan]:
    """Describe the codeword of a symbol that the caller has read, and the sign before it."""
    nbits = int(lengths(code, np.array([symbol], np.uint64))[0])
    if is_signed(code):
        sign = FieldValue("-" if symbol & 1 else "+")
        yield walk.span("sign", "sign", 1, sign, number)
        nbits -= 1
    value = value._replace(groups=value.groups or _groups(code, symbol, nbits))
    yield walk.span(kind, name, nbits, value, number)


def read(walk: FieldWalker, code: PrefixCode | TableCode, count: int) -> tuple[np.ndarray, int]:
    """Read the next codewords; return their symbols and the bit after them."""
    return prefix.read(code, walk.data, walk.end, count, walk.at)


def readable(
    walk: FieldWalker, code: PrefixCode | TableCode, count: int
) -> tuple[np.ndarray, FormatError | None]:
    """Return the symbols of the next codewords up to the first invalid one, and its error."""
    return most_that_read(lambda k: read(walk, code, k)[0], count)


def most_that_read(read: Callable[[int], _T], count: int) -> tuple[_T, FormatError | None]:
    """Read `count` symbols, or those before the first invalid one; return them and its error."""
    try:
        return read(count), None
    except FormatError as error:
        first_error = error
    low, high = 0, count  # `low` symbols are valid, `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            read(middle)
            low = middle
        except FormatError as error:
            high, first_error = middle, error
    return read(low), first_error


def lengths(code: PrefixCode | TableCode, symbols: np.ndarray) -> np.ndarray:
    """Return the int64 lengths of the codewords of uint64 symbols, signs included, in bits."""
    if isinstance(code, TableCode):
        return code.lengths[symbols.astype(np.intp)].astype(np.int64)
    return prefix.lengths(code, _values(code, symbols)).astype(np.int64) + is_signed(code)


def is_signed(code: PrefixCode | TableCode) -> bool:
    """Return whether a sign precedes each codeword."""
    return isinstance(code, PrefixCode) and code.mapping == "signed"


def split_of(kind: Kind, nbits: int, signs: int) -> dict[str, int]:
    """Return the bits of each kind among `nbits` bits, `signs` of which are signs."""
    return {"sign": signs, kind: nbits - signs} if signs else {kind: nbits}


def _values(code: PrefixCode, symbols: np.ndarray) -> np.ndarray:
    """Return the values whose codewords encode symbols."""
    if code.mapping == "zigzag":
        odd = symbols & np.uint64(1)
        return np.asarray(symbols - odd - odd)
    values = symbols >> np.uint64(1) if code.mapping == "signed" else symbols
    return np.asarray(values + np.uint64(code.shift % 2**64))


def _groups(code: PrefixCode | TableCode, symbol: int, nbits: int) -> tuple[int, ...]:
    """Return the widths in bits of the parts of a codeword; empty if it has one part."""
    if isinstance(code, TableCode):
        return ()
    value = int(_values(code, np.array([symbol], np.uint64))[0])
    if code.rule is RICE:
        return (nbits - code.parameter, code.parameter) if code.parameter else ()
    parts: list[int] = [1]
    while code.rule is OMEGA and value > 1:
        parts.insert(0, value.bit_length())
        value = value.bit_length() - 1
    return tuple(parts) if sum(parts) == nbits else ()


def positions_of(
    gaps: np.ndarray, last: int, n: int, error: FormatError | None
) -> tuple[np.ndarray, FormatError | None]:
    """Return the valid positions, counted from 1, and the error of the first invalid one.

    Parameters
    ----------
    gaps : (k,) uint64 array
        Distance of each position from the preceding one.
    last : int
        The position that precedes the first one.
    n : int
        Number of elements of the tensor, up to 2^62.
    error : FormatError or None
        The error after all gaps, which the function returns if all positions are valid.
    """
    # No sum wraps around before the first one above n.
    steps = np.concatenate([np.array([last], np.uint64), np.minimum(gaps, np.uint64(n + 1))])
    sums = np.cumsum(steps)
    invalid = np.flatnonzero(sums > np.uint64(n))
    if invalid.size:
        sums = sums[: int(invalid[0])]
        error = Corrupt(f"a gap passes the {n} elements of the tensor")
    return sums[1:].astype(np.int64), error
