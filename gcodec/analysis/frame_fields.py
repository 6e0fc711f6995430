"""The fields of a frame that `gcodec.analysis.dissect` reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gcodec.inspect.walker import FieldSpan

UNDECODED = "?? undecoded"


class Field(NamedTuple):
    """The bits of one field of a frame, or of several in a row, and their description.

    Attributes
    ----------
    part : {"header", "payload", "behind"}
        Part of the frame; "behind" is the part after the payload.
    kind : str
        One of `gcodec.inspect.walker.KINDS`, or "several".
    name : str
        Name of the field.
    first, nbits : int
        First bit in the file, and number of bits.
    value : int, float, str or None
        The stored value; None for several fields, or if the field was not decoded.
    meaning : str
        Explanation of the value.
    number : int or None
        Index of the field among those of its name.
    element : int or None
        First element of the tensor that the field encodes.
    decoded : tuple of float
        Decoded float32 values of that element and of those after it.
    symbols : int
        Number of fields; more than 1 in a summary.
    split : dict of str to int
        Number of bits of each kind.
    groups : tuple of int
        Widths in bits of the parts of a codeword.
    """

    part: str
    kind: str
    name: str
    first: int
    nbits: int
    value: Any = None
    meaning: str = ""
    number: int | None = None
    element: int | None = None
    decoded: tuple[float, ...] = ()
    symbols: int = 1
    split: Mapping[str, int] = {}
    groups: tuple[int, ...] = ()


def field_of(
    part: str,
    name: str,
    first: int,
    nbits: int,
    value: Any,
    meaning: str = "",
    number: int | None = None,
    kind: str = "header",
) -> Field:
    """Return a field whose bits are all of one kind."""
    return Field(part, kind, name, first, nbits, value, meaning, number, split={kind: nbits})


def payload_field(span: FieldSpan, start: int) -> Field:
    """Return the field of a span of a payload that begins with bit `start`."""
    described = span.field_value
    return Field(
        part="payload",
        kind=span.kind,
        name=span.name,
        first=start + span.first,
        nbits=span.nbits,
        value=described.value,
        meaning=described.meaning,
        number=span.number,
        element=described.element,
        decoded=described.decoded,
        symbols=span.symbols,
        split=span.split,
        groups=described.groups,
    )


def undecoded(part: str, name: str, first: int, end: int) -> Iterator[Field]:
    """Yield the field of undecoded bits from `first` to `end`, if there are any."""
    if first < end:
        yield field_of(part, name, first, end - first, None, UNDECODED, kind="undecoded")


def skipped(first: int, end: int) -> Iterator[Field]:
    """Yield a summary of the entries of a seek table from `first` to `end`, if there are any."""
    if first < end:
        yield field_of("header", "seek table", first, end - first, None)._replace(symbols=2)


def joined(summary: Field, following: Field) -> Field:
    """Return one summary in place of two consecutive ones."""
    split = Counter(summary.split)
    split.update(following.split)
    return summary._replace(
        nbits=summary.nbits + following.nbits,
        symbols=summary.symbols + following.symbols,
        split=dict(split),
    )
