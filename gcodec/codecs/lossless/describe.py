"""Descriptions of payloads of exact tensors: the head, and the planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gcodec.codecs.lossless import message
from gcodec.codecs.lossless.message import (
    CLASSES,
    CONSTANT,
    DIFFERENCES,
    KINDS,
    LOWERED,
    PACKED,
    STORED,
    Head,
)
from gcodec.codecs.lossless.planes import PlaneLayout, Zeros
from gcodec.fields import byte_contexts, ranged
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.byte_planes import GROUP

Values = Callable[[int, int], list[float]]
"""Returns the decoded values of a range of elements, or an empty list if they are unknown."""


def fields(
    walk: FieldWalker, layout: PlaneLayout, n: int, mode: str, values: Values
) -> Iterator[FieldSpan]:
    """Describe the message of n > 0 elements."""
    reader, spans = walk.reader(), list[FieldSpan]()

    def note(name: str, plane: int | None, value: int, meaning: str) -> None:
        if plane is not None:
            name = f"{name} of plane {plane}"
        spans.append(walk.span_to(reader, "header", name, value, meaning))

    try:
        methods = message.read_methods(reader, n, layout, mode, note)
    finally:
        yield from spans
    layout, has_zeros, escape, planes = methods
    zeros = None
    if has_zeros:

        def describe(at: int, counts: np.ndarray) -> Iterator[FieldValue]:
            for group, count in enumerate(counts.tolist(), at):
                yield FieldValue(count, f"elements of group {group} that are not zeros")

        groups = -(-n // GROUP)
        counts = yield from walk.checked(
            *("table", "elements", 16, groups, describe),
            lambda: message.read_counts(reader, n),
            little=True,
        )
        zeros = Zeros(escape, counts)
    head = Head(layout, zeros, planes)
    for k in range(1, layout.itemsize):
        yield from _other_plane(walk, head, k, n)
    yield from _first_plane(walk, head.planes[0].method, layout, n, values)
    walk.finish()


def _other_plane(walk: FieldWalker, head: Head, k: int, n: int) -> Iterator[FieldSpan]:
    plane, count, name = head.planes[k], head.coded(n), f"byte {k}"

    def describe(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        for element, symbol in enumerate(symbols.tolist(), at):
            yield FieldValue(symbol, element=element if head.zeros is None else None)

    if plane.method in (STORED, PACKED):
        yield from walk.fields("value", name, plane.width or 8, count, describe)
        yield from walk.pad(-walk.at % 8)
    elif plane.method != CONSTANT:
        walk.require(8 * plane.nbytes)
        end = walk.at + 8 * plane.nbytes
        with walk.within(end):
            if count:
                coder = KINDS[plane.method]
                name = f"difference of {name}" if plane.method == DIFFERENCES else name
                yield from ranged.string(
                    walk, coder, "level", name, count, describe, bits_follow=True
                )
            yield from walk.pad(-walk.at % 8)
            walk.finish()


def _first_plane(
    walk: FieldWalker, method: int, layout: PlaneLayout, n: int, values: Values
) -> Iterator[FieldSpan]:
    def describe(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        decoded = values(at, at + symbols.size)
        for k, symbol in enumerate(symbols.tolist()):
            yield FieldValue(symbol, element=at + k, decoded=tuple(decoded[k : k + 1]))

    if method == STORED:
        yield from walk.fields("level", "byte 0", 8, n, describe)
    elif method == CLASSES:
        yield from byte_contexts.context_string(walk, "byte 0", n, describe)
    elif method == CONSTANT:  # elements have no bits of their own
        count = min(n, walk.window().left)
        constant = np.zeros(count, np.uint8)
        for k, value in enumerate(describe(0, constant)):
            yield walk.span("level", "byte 0", 0, value._replace(value=None), k)
        yield from walk.summary("byte 0", n - count, {"level": 0}, checked=True)
    else:
        if method in LOWERED:
            yield from byte_contexts.scales(walk, n)
            yield from walk.pad(-walk.at % 8)
        yield from ranged.string(walk, KINDS[method], "level", "byte 0", n, describe)
