"""Descriptions of messages of factors, field by field."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gcodec.codecs.lowrank.message import CENTROIDS, GAMMA, Head, Parts
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.prefix import prefix
from gcodec.payload import Payload


def message(payload: Payload, shape: tuple[int, ...], walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the payload of a tensor of `shape` with factors; raise `FormatError` at damage."""
    head = Head.read(payload)
    yield from _words(head, walk)
    yield from walk.pad(-walk.at % 8)
    for name, centroids in zip(("right", "left"), head.centroids, strict=True):
        for number, centroid in enumerate(centroids):
            meaning = f"{CENTROIDS[number]} of the {name} factor"
            yield walk.span("table", "centroid", 8, FieldValue(centroid, meaning), number)
    for name, nbytes, value in head.lengths:
        yield walk.span("header", name, 8 * nbytes, FieldValue(value))
    parts = Parts.read(payload, shape)
    if head.fields is not None and parts.residual is not None:
        for item in parts.residual.codec.scalars_in(memoryview(head.fields)):
            nbits, name = 8 * (item.end - item.start), f"{item.field.name} of the residual"
            yield walk.span("scale", name, nbits, FieldValue(item.value))
    names, counts = ("right factor", "left factor", "residual"), parts.counts(math.prod(shape))
    for name, part, n, (_, stop) in zip(names, parts.messages, counts, head.strings, strict=False):
        if part is not None:
            with walk.within(8 * stop):
                for span in part.codec._describe(part, n, walk):
                    yield _renamed(span, name)
    walk.finish()


def _words(head: Head, walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the words of the head."""
    falls = head.exponents[:-1] - head.exponents[1:]
    has_residual = head.fields is not None
    values = [head.split, 1 + has_residual, int(head.exponents[0]) + 1, *(falls + 1).tolist()]
    lengths = prefix.lengths(GAMMA, np.array(values, np.uint64)).tolist()
    yield walk.span("header", "dimensions of the rows", lengths[0], FieldValue(values[0]))
    note = "a residual follows the factors" if has_residual else "no residual"
    yield walk.span("header", "residual", lengths[1], FieldValue(values[1], note))
    for number, exponent in enumerate(head.exponents.tolist()):
        value = FieldValue(values[number + 2], f"exponent {exponent}")
        yield walk.span("scale", "component", lengths[number + 2], value, number)


def _renamed(span: FieldSpan, name: str) -> FieldSpan:
    """Return the span of a part of the message: no field of a part determines an element alone."""
    element = span.field_value.element if name == "residual" else None
    value = span.field_value._replace(decoded=(), element=element)
    return span._replace(name=f"{span.name} of the {name}", field_value=value)
