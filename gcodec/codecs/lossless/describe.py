"""Descriptions of payloads of exact tensors: the head, and the planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gcodec.codecs.lossless import message
from gcodec.codecs.lossless.message import CLASSES, CONSTANT, KINDS, LOWERED, STORED, Head
from gcodec.codecs.lossless.planes import LOG2_GROUP, PlaneLayout, Zeros
from gcodec.entropy.coder import BitSpan, ignore
from gcodec.entropy.context import byte_coder, byte_scales
from gcodec.entropy.context.byte_coder import read_models
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.errors import Corrupt, FormatError
from gcodec.fields import contexts, tabled
from gcodec.fields.rans import states
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, Window
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES
from gcodec.wire.primitives import Reader

Values = Callable[[int, int], list[float]]
"""Returns the decoded values of a range of elements, or an empty list if they are unknown."""


def fields(
    walk: FieldWalker, layout: PlaneLayout, n: int, mode: str, values: Values
) -> Iterator[FieldSpan]:
    """Describe the message of n > 0 elements."""
    reader, spans = Reader(walk.data[: walk.end // 8].data), list[FieldSpan]()

    def note(name: str, value: int, meaning: str) -> None:
        nbits = 8 * reader.at - walk.at
        spans.append(walk.span("header", name, nbits, FieldValue(value, meaning)))

    try:
        has_zeros, escape, planes = message.read_methods(reader, layout.itemsize, mode, note)
    finally:
        yield from spans
    zeros = None
    if has_zeros:

        def describe(at: int, counts: np.ndarray) -> Iterator[FieldValue]:
            for group, count in enumerate(counts.tolist(), at):
                yield FieldValue(count, f"elements of group {group} that are not zeros")

        groups = -(-n >> LOG2_GROUP)
        counts = yield from walk.checked(
            *("table", "elements", 16, groups, describe),
            lambda: message.read_counts(reader, n),
            little=True,
        )
        zeros = Zeros(escape, counts)
    head = Head(zeros, planes)
    for k in range(1, layout.itemsize):
        yield from _other_plane(walk, head, k, n)
    yield from _first_plane(walk, head.planes[0].method, layout, n, values)
    walk.finish()


def _other_plane(walk: FieldWalker, head: Head, k: int, n: int) -> Iterator[FieldSpan]:
    plane, count, name = head.planes[k], head.coded(n), f"byte {k}"

    def describe(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        for element, symbol in enumerate(symbols.tolist(), at):
            yield FieldValue(symbol, element=element if head.zeros is None else None)

    if plane.method == STORED:
        yield from walk.fields("value", name, 8, count, describe)
    elif plane.method != CONSTANT:
        walk.require(8 * plane.nbytes)
        end = walk.at + 8 * plane.nbytes
        if count:
            with walk.within(_end_of_words(BitSpan(walk.data, walk.at, end), plane.method, count)):
                yield from _tabled(walk, plane.method, count, name, describe)
        with walk.within(end):
            yield from walk.pad(-walk.at % 8)
            walk.finish()


def _end_of_words(span: BitSpan, method: int, count: int) -> int:
    """Return the bit after the string of a plane; the end of the plane if it is damaged."""
    try:
        return message.open_string(span, method, count).read(ignore, bits_follow=True)
    except FormatError:
        return span.end


def _first_plane(
    walk: FieldWalker, method: int, layout: PlaneLayout, n: int, values: Values
) -> Iterator[FieldSpan]:
    def describe(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        decoded = values(at, at + symbols.size)
        for k, symbol in enumerate(symbols.tolist()):
            yield FieldValue(symbol, element=at + k, decoded=tuple(decoded[k : k + 1]))

    first = walk.at
    if method == STORED:
        yield from walk.fields("level", "byte 0", 8, n, describe)
    elif method == CLASSES:
        lanes = walk.field("table", "states", 8)
        if lanes.field_value.value not in STATES:
            walk.at = first
            raise Corrupt(f"a string has {lanes.field_value.value} states, not 2, 8 or 32")
        yield lanes
        yield from _scales(walk, n)
        _, end = read_models(walk.data, walk.at, walk.end)
        yield from walk.summary("model", 1, {"table": end - walk.at}, checked=True)
        string = byte_coder.open(BitSpan(walk.data, first, walk.end), n)
        yield from walk.pad(-walk.at % 8)
        yield from states(walk, "level", "byte 0", string, describe)
    elif method == CONSTANT:  # elements have no bits of their own
        count = min(n, Window(walk).left)
        constant = np.zeros(count, np.uint8)
        for k, value in enumerate(describe(0, constant)):
            yield walk.span("level", "byte 0", 0, value._replace(value=None), k)
        yield from walk.summary("byte 0", n - count, {"level": 0}, checked=True)
    else:
        if method in LOWERED:
            yield from _scales(walk, n)
            yield from walk.pad(-walk.at % 8)
        yield from _tabled(walk, method, n, "byte 0", describe)


def _tabled(
    walk: FieldWalker, method: int, count: int, name: str, describe: DescribeSymbols
) -> Iterator[FieldSpan]:
    """Describe a string of bytes after its range and table."""
    message.open_range(BitSpan(walk.data, walk.at, walk.end))
    low = walk.field("table", "least byte", 8)
    yield low
    high = walk.field("table", "largest byte", 8)
    yield high
    numbers = message.alphabet(low.field_value.value, high.field_value.value)
    coded = CodedMask.all(count)
    table = yield from tabled.table(walk, KINDS[method], numbers, coded, lambda symbol: "")
    yield from tabled.string(walk, table, "level", name, count, describe)


def _scales(walk: FieldWalker, n: int) -> Iterator[FieldSpan]:
    """Describe the layout and the lists of scales."""
    first, reader = walk.at, Reader(walk.data[: walk.end // 8].data, walk.at // 8)
    numbers = []
    for name in ("width", "columns of a scale"):
        numbers.append(reader.leb128())
        yield walk.span("scale", name, 8 * reader.at - walk.at, FieldValue(numbers[-1]))
    width, group = numbers
    RowLayout(width, group).check(n)
    yield from contexts.scales(walk, "row", -(-n // width))
    if group:
        yield from contexts.scales(walk, "column", -(-width // group))
    byte_scales.read(walk.data, first, walk.end, n)
