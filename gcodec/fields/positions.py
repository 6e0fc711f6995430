"""Descriptions of the positions of sparse messages, for each index code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcodec.entropy.coder import BitSpan, into
from gcodec.entropy.positions import TABLED, IndexString, alphabet
from gcodec.errors import Corrupt, FormatError
from gcodec.fields import tabled, words
from gcodec.fields.walker import CHUNK, FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.fields import read_fields
from gcodec.kernels.prefix import elias_fano, gap_rice
from gcodec.kernels.prefix.codewords import RICE
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.value_classes import GAPS

_MAX_PARAMETER = gap_rice.MOST_HEADER_NBITS // 2
_PARAMETER_NBITS = _MAX_PARAMETER.bit_length()  # at the start of a group
_RAW_NBITS = np.array([GAPS.raw_nbits(count) for count in np.eye(256, dtype=np.int64)])


def positions(walk: FieldWalker, code: str, k: int, n: int) -> Iterator[FieldSpan]:
    """Describe positions up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit of the positions.
    code, k, n
        See `IndexString`.

    Raises
    ------
    FormatError
    """
    string = IndexString(BitSpan(walk.data, walk.at, walk.end), code, k, n)
    string.check()
    if k:
        if code in TABLED:
            yield from _classes(walk, string)
        else:
            describers = {"rice": _rice, "eliasfano": _elias_fano, "bitmap": _bitmap}
            yield from describers[code](walk, string)
    walk.finish()


def _rice(walk: FieldWalker, string: IndexString) -> Iterator[FieldSpan]:
    window, number, last, rice = walk.window(), 0, 0, 0
    while number < string.k and not window.closed:
        size = min(gap_rice.BLOCK, string.k - number)
        first = walk.at
        head = _parameter(walk, number, rice)
        rice = head.value
        code = PrefixCode(RICE, rice, 0)
        gaps, error = words.readable(walk, code, size)
        ends, error = words.positions_of(gaps + np.uint64(1), last, string.n, error)
        gaps = gaps[: ends.size]
        nbits = words.lengths(code, gaps)
        low, high = window.cut(nbits)
        if low == size:
            walk.at = first
            yield from walk.summary("gap", size, {"index": head.nbits + int(nbits.sum())})
        else:
            yield head
            yield from walk.summary("gap", low, {"index": int(nbits[:low].sum())})
            for k in range(low, high):
                gap = FieldValue(int(gaps[k]), element=int(ends[k]) - 1)
                yield from words.word(walk, "index", "gap", code, int(gaps[k]), gap, number + k)
        if error is not None and high == gaps.size:
            raise error
        number, last = number + high, int(ends[high - 1]) if high else last
    yield from walk.remainder("index", "gap", string.k - number)


def _parameter(walk: FieldWalker, number: int, preceding: int) -> FieldSpan:
    """Describe the Rice parameter before gap `number`, given the preceding parameter."""
    if number % (1 << gap_rice.LOG2_GROUP) == 0:
        note = "parameter of the next codewords"
        head = walk.field("index", "Rice parameter", _PARAMETER_NBITS, meaning=note)
        rice = head.value
    else:
        (zeros,), end = words.read(walk, words.UNARY, 1)
        change = (int(zeros) + 1) // 2 if zeros % 2 else -(int(zeros) // 2)
        rice, nbits = preceding + change, end - walk.at
        parameter = FieldValue(rice, f"{change:+d} from the preceding parameter", groups=(nbits,))
        head = walk.span("index", "Rice parameter", nbits, parameter)
    if not 0 <= rice <= _MAX_PARAMETER:
        walk.at = head.first
        raise Corrupt(f"a Rice parameter of {rice}")
    return head


def _elias_fano(walk: FieldWalker, string: IndexString) -> Iterator[FieldSpan]:
    width, first = elias_fano.low_width(string.n, string.k), walk.at
    high, last = 0, -1

    def skip(steps: np.ndarray) -> None:
        nonlocal high
        high += int(steps.sum())

    def describe(at: int, steps: np.ndarray) -> Iterator[FieldValue]:
        nonlocal high, last
        lows = read_fields(walk.data, first + at * width, width, steps.size)
        for step, low in zip(steps.tolist(), lows.tolist(), strict=True):
            high += step
            position = high << width | low
            if not last < position < string.n:
                raise Corrupt(f"a position is not one of {string.n} elements, or does not rise")
            last = position
            yield FieldValue(step, element=position)

    low_bits = describe_each(lambda value, index: FieldValue(value))
    yield from walk.fields("index", "low bits", width, string.k, low_bits)
    yield from words.words(walk, "index", "upper bits", words.UNARY, string.k, describe, skip)


def _bitmap(walk: FieldWalker, string: IndexString) -> Iterator[FieldSpan]:
    first, counted, ones = walk.at, 0, 0  # `ones` is the number of ones in `counted` bits

    def describe(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
        nonlocal counted, ones
        for begin in range(counted, at, 8 * CHUNK):
            stop = min(begin + 8 * CHUNK, at)
            ones += int(read_fields(walk.data, first + begin, 1, stop - begin).sum())
        counted = at + bits.size
        for element, bit in enumerate(bits.tolist(), at):
            yield FieldValue(1, element=element, number=ones) if bit else FieldValue(0)
            ones += bit

    yield from walk.fields("index", "map", 1, string.n, describe)


def _classes(walk: FieldWalker, string: IndexString) -> Iterator[FieldSpan]:
    coded = CodedMask.all(string.k)
    kind = string.code
    assert kind in TABLED
    table = yield from tabled.table(walk, kind, alphabet(string.n), coded, _meaning)
    assert table is not None
    classes = np.empty(string.k, np.uint8)
    try:
        class_string = table.open(BitSpan(walk.data, walk.at, walk.end), coded)
        end = class_string.read(into(classes), bits_follow=True)
    except FormatError:
        yield from tabled.string(walk, table, "index", "class", string.k, _describe_classes)
        raise
    nbits = _RAW_NBITS[classes]
    ends = end + np.cumsum(nbits)
    whole = int(np.searchsorted(ends, walk.end, "right"))

    def read_raw(k: int) -> np.ndarray:
        last = int(ends[k - 1]) if k else end
        return GAPS.read(walk.data, end, last, classes[:k], string.n)

    places, error = words.most_that_read(read_raw, whole)

    def describe(at: int, part: np.ndarray) -> Iterator[FieldValue]:
        for number, value in enumerate(_describe_classes(at, part), at):
            yield value._replace(element=int(places[number])) if number < places.size else value

    with walk.within(end):
        yield from tabled.string(walk, table, "index", "class", string.k, describe)
    window = walk.window()
    low, high = window.cut(nbits[: places.size])
    yield from walk.summary("bits within a class", low, {"index": int(nbits[:low].sum())})
    for k in range(low, high):
        if nbits[k]:
            yield walk.field("index", "bits within the class", int(nbits[k]))._replace(number=k)
    if error is not None and high == places.size:
        raise error
    if high == places.size < string.k:
        walk.require(int(nbits[high]))
    yield from walk.remainder("index", "bits within a class", string.k - high)


def _meaning(symbol: int) -> str:
    """Return the smallest and the largest distance of a class as text."""
    raw = int(_RAW_NBITS[symbol])
    smallest = symbol + 1 - 4 * raw << raw
    largest = smallest + (1 << raw) - 1
    return f"distance {smallest}" if raw == 0 else f"distance {smallest} to {largest}"


_describe_classes = describe_each(lambda symbol, index: FieldValue(symbol, _meaning(symbol)))
