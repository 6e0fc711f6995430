"""Fields of frames, as `gcodec.analysis.dissect` tells them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gcodec.inspect.walker import FieldSpan

UNDECODED = "?? undecoded"


class Field(NamedTuple):
    """Bits of a frame, and what they are.

    Attributes
    ----------
    part : {"header", "payload", "behind"}
    kind : str
        One of `gcodec.inspect.walker.KINDS`, or "several".
    name : str
    first, nbits : int
        The bit of the file where they begin, and how many they are.
    value : int, float, str or None
    meaning : str
    number : int or None
        Of a symbol among its fellows.
    element : int or None
        The first element that it is of.
    decoded : tuple of float
        The float32 numbers of that element and those behind it.
    symbols : int
        More than one, if these are not told one by one.
    split : dict of str to int
        The bits by kind.
    groups : tuple of int
        Bits of the parts of a word.
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
    """Make a field that is told on its own."""
    return Field(part, kind, name, first, nbits, value, meaning, number, split={kind: nbits})


def told(piece: FieldSpan, start: int) -> Field:
    """Make the field of a piece of a payload that begins with bit `start`."""
    about = piece.told
    own = about.value, about.meaning, piece.number, about.element, about.decoded
    where = "payload", piece.kind, piece.name, start + piece.first, piece.nbits
    return Field(*where, *own, piece.symbols, piece.split, about.groups)


def gap(part: str, name: str, first: int, nbits: int) -> Field:
    """Make the field of bits of which nothing is known."""
    return field_of(part, name, first, nbits, None, UNDECODED, kind="undecoded")


def gaps(start: int, behind: int, first: int) -> Iterator[Field]:
    """Make the field of what lies between pieces of a payload, if anything does."""
    if behind < first:
        yield gap("payload", "payload", start + behind, first - behind)


def skipped(first: int, end: int) -> Iterator[Field]:
    """Make the field of numbers of a seek table that are not told one by one, if any."""
    if first < end:
        made = field_of("header", "seek table", first, end - first, None)
        yield made._replace(symbols=2)


def joined(one: Field, other: Field) -> Field:
    """Make one field of two, of symbols that are not told one by one."""
    kinds = {kind: one.split.get(kind, 0) for kind in (*one.split, *other.split)}
    split = {kind: nbits + other.split.get(kind, 0) for kind, nbits in kinds.items()}
    return one._replace(
        nbits=one.nbits + other.nbits, symbols=one.symbols + other.symbols, split=split
    )
