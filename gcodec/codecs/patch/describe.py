"""Descriptions of patches: the digest, the head, and the positions and values of each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gcodec.codecs.patch.digest import DIGEST_NBYTES
from gcodec.codecs.patch.message import (
    CHANGES,
    CONSTANT,
    FORMS,
    KINDS,
    METHODS,
    STORED,
    ClassHead,
    read_form,
    read_head,
    read_symbols,
)
from gcodec.entropy.coder import BitSpan
from gcodec.errors import FormatError
from gcodec.fields import tabled
from gcodec.fields.positions import positions
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker, describe_each
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix.value_classes import VALUES
from gcodec.wire.primitives import ITEMSIZE

_RAW_NBITS = np.array([VALUES.raw_nbits(count) for count in np.eye(256, dtype=np.int64)])


def fields(walk: FieldWalker, n: int, dtype: str) -> Iterator[FieldSpan]:
    """Describe the message of n elements of a dtype."""
    reader, spans = walk.reader(), list[FieldSpan]()

    def note(name: str, value: int, meaning: str) -> int:
        spans.append(walk.span_to(reader, "header", name, value, meaning))
        return value

    walk.require(8 * DIGEST_NBYTES)
    digest = FieldValue(bytes(walk.data[:DIGEST_NBYTES]).hex(), "BLAKE2b of the base")
    yield walk.span("header", "digest of the base", 8 * DIGEST_NBYTES, digest)
    _, form = read_form(reader)
    note("form", form, FORMS[form])
    yield spans.pop()
    if form == STORED:
        yield from walk.fields("value", "value", 8 * ITEMSIZE[dtype], n, _patterns, little=True)
    elif form == CHANGES:
        try:
            head = read_head(reader, n, dtype, note)
        finally:
            yield from spans
        for kind, each in enumerate(head.classes):
            yield from _class(walk, kind, each)
    walk.finish()


_patterns = describe_each(
    lambda pattern, element: FieldValue(pattern, "bit pattern", element=element)
)


def _class(walk: FieldWalker, kind: int, head: ClassHead) -> Iterator[FieldSpan]:
    """Describe the positions and values of a class."""
    walk.require(head.index_nbits)
    spans: Iterable[FieldSpan] = ()
    if head.has_index:
        spans = positions(walk, METHODS[head.method], head.changes, head.size)
    with walk.within(walk.at + head.index_nbits):
        for span in spans:
            if span.element is not None:
                # Positions count the elements of a class, which only the base locates.
                meaning = f"element {span.element} of class {kind}"
                span = span._replace(element=None, meaning=meaning)
            yield span
    yield from walk.pad(-walk.at % 8)
    walk.require(head.values_nbits)
    with walk.within(walk.at + head.values_nbits):
        yield from _values(walk, head)
        walk.finish()
    yield from walk.pad(-walk.at % 8)


def _values(walk: FieldWalker, head: ClassHead) -> Iterator[FieldSpan]:
    span = BitSpan(walk.data, walk.at, walk.end)
    try:
        symbols, end = read_symbols(head, span)
    except FormatError:
        symbols, end = np.empty(0, np.uint8), walk.end
    if head.kind != CONSTANT and head.symbols:
        coded = CodedMask.all(head.symbols)
        table = yield from tabled.table(walk, KINDS[head.kind - 1], head.alphabet, coded, _meaning)
        with walk.within(end):
            yield from tabled.string(walk, table, "level", "symbol", head.symbols, _describe)
    symbols = symbols[symbols != 0]
    nbits = _RAW_NBITS[symbols]
    low, high = walk.window().cut(nbits)
    VALUES.read(walk.data, end, walk.end, symbols)
    yield from walk.summary("bits within a class", low, {"level": int(nbits[:low].sum())})
    for k in range(low, high):
        if nbits[k]:
            yield walk.field("level", "bits within the class", int(nbits[k]))._replace(number=k)
    yield from walk.summary(
        "bits within a class", symbols.size - high, {"level": int(nbits[high:].sum())}
    )


def _meaning(symbol: int) -> str:
    """Return the differences of a symbol as text: those above 0, and those below."""
    if symbol == 0:
        return "unchanged"
    raw = int(_RAW_NBITS[symbol])
    first = symbol - 4 * raw << raw
    if not raw:
        return f"{-(first + 1) // 2 if first % 2 else first // 2:+d} units"
    least, most = first // 2, (first + (1 << raw)) // 2 - 1
    above, below = [f"{least:+d}", f"{most:+d}"], [f"{-least - 1:+d}", f"{-most - 1:+d}"]
    count = min(raw, 2)  # with one raw bit there is one difference of each sign
    return f"{' to '.join(above[:count])} or {' to '.join(below[:count])} units"


_describe = describe_each(lambda symbol, index: FieldValue(symbol, _meaning(symbol)))
