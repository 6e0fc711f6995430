"""Descriptions of messages of factors, field by field."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

import numpy as np

from gcodec.codecs.lowrank import message
from gcodec.codecs.lowrank.message import GAMMA, MOST_EXPONENT, Parts
from gcodec.errors import Corrupt
from gcodec.fields import words
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.payload import Payload
from gcodec.wire.targets import CENTROIDS

_FLAGS = {1: "no residual", 2: "a residual follows the factors"}


def fields(payload: Payload, shape: tuple[int, ...], walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the payload of a tensor of `shape` with factors; raise `FormatError` at damage."""
    if walk.end % 8:
        raise Corrupt("the payload is not whole bytes")
    rank = payload.codec.rank
    split = int(words.read(walk, GAMMA, 1)[0][0])
    message.factor_sizes(split, rank, shape)
    value = FieldValue(split, "number of leading dimensions that form the rows")
    yield from words.word(walk, "header", "dimensions of the rows", GAMMA, split, value, 0)
    flag = int(words.read(walk, GAMMA, 1)[0][0])
    if flag not in _FLAGS:
        raise Corrupt(f"the residual is {flag}, neither 1 nor 2")
    value = FieldValue(flag, _FLAGS[flag])
    yield from words.word(walk, "header", "residual", GAMMA, flag, value, 0)
    yield from _components(rank, walk)
    yield from walk.pad(-walk.at % 8)
    for name in ("right", "left"):
        yield from _centroids(name, walk)
    yield from _length("bytes of the right factor", walk)
    if flag == 2:
        yield from _length("bytes of the left factor", walk)
        count = yield from _length("bytes of the scalars", walk)
        yield from _scalars(count, walk)
    yield from _strings(Parts.read(payload, shape), shape, walk)
    walk.finish()


def _components(rank: int, walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the words of the exponents."""
    symbols, error = words.readable(walk, GAMMA, rank)
    falls = np.minimum(symbols, MOST_EXPONENT + 2).astype(np.int64) - 1
    exponents = np.cumsum(np.concatenate([falls[:1], -falls[1:]]))
    invalid = np.flatnonzero((falls > MOST_EXPONENT) | (exponents < 0))
    if invalid.size:
        symbols = symbols[: invalid[0]]
        error = Corrupt("an exponent is below 0, or too large")

    describe = describe_each(
        lambda symbol, index: FieldValue(symbol, f"exponent {exponents[index]}")
    )
    with walk.within(walk.at + int(words.lengths(GAMMA, symbols).sum())):
        yield from words.words(walk, "scale", "component", GAMMA, symbols.size, describe)
    if error is not None:
        raise error


def _centroids(name: str, walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the centroids of a factor."""
    describe = describe_each(lambda value, index: FieldValue(value, CENTROIDS[index].doc))
    count = len(CENTROIDS)
    yield from walk.fields("table", f"centroid of the {name} factor", 8, count, describe)


def _length(name: str, walk: FieldWalker) -> Generator[FieldSpan, None, int]:
    """Describe a LEB128 number of bytes, and return it."""
    reader = walk.reader()
    value = reader.leb128()
    yield walk.span_to(reader, "header", name, value, "bytes")
    return value


def _scalars(count: int, walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the scalars of a residual, which have `count` bytes."""
    fields = walk.reader().take(count)
    for item in message.ecsq().scalars_in(fields):
        nbits, name = 8 * (item.end - item.start), f"{item.field.name} of the residual"
        yield walk.span("scale", name, nbits, FieldValue(item.value, item.field.meaning))


def _strings(parts: Parts, shape: tuple[int, ...], walk: FieldWalker) -> Iterator[FieldSpan]:
    """Describe the strings of the factors and of the residual."""
    names, counts = ("right factor", "left factor", "residual"), parts.counts(math.prod(shape))
    for name, part, n in zip(names, parts.messages, counts, strict=True):
        if part is not None:
            with walk.within(walk.at + part.nbits):
                for span in part.codec._describe(part, n, walk):
                    yield _renamed(span, name)


def _renamed(span: FieldSpan, name: str) -> FieldSpan:
    """Return the span of a part of the message: no field of a part determines an element alone."""
    element = span.element if name == "residual" else None
    return span._replace(name=f"{span.name} of the {name}", decoded=(), element=element)
