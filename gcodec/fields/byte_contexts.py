"""Descriptions of context strings of bytes: the scales, the models and the rANS states."""

from __future__ import annotations

from collections.abc import Iterator

from gcodec.entropy.coder import BitSpan
from gcodec.entropy.context import byte_coder
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.errors import Corrupt
from gcodec.fields import contexts
from gcodec.fields.rans import rans_string
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldWalker
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES


def context_string(
    walk: FieldWalker, name: str, n: int, describe: DescribeSymbols
) -> Iterator[FieldSpan]:
    """Describe the string of n > 0 bytes up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit of the string, a whole byte.
    name : str
        Name of a byte.
    n : int
    describe : callable
        Describes symbols; see `DescribeSymbols`.

    Raises
    ------
    FormatError
    """
    first = walk.at
    lanes = walk.field("table", "states", 8, meaning=contexts.meaning_of("states", 0))
    if lanes.value not in STATES:
        walk.at = first
        raise Corrupt(f"a string has {lanes.value} states, not 2, 8 or 32")
    yield lanes
    yield from scales(walk, n)
    _, end = byte_coder.read_models(walk.data, walk.at, walk.end)
    yield from walk.summary("model", 1, {"table": end - walk.at}, checked=True)
    string = byte_coder.open(BitSpan(walk.data, first, walk.end), n)
    yield from walk.pad(-walk.at % 8)
    yield from rans_string(walk, "level", name, string, describe)


def scales(walk: FieldWalker, n: int) -> Iterator[FieldSpan]:
    """Describe the layout and the lists of scales."""
    reader = walk.reader()
    numbers = []
    for name in ("width", "columns of a scale"):
        numbers.append(reader.leb128())
        meaning = contexts.meaning_of(name, numbers[-1])
        yield walk.span_to(reader, "scale", name, numbers[-1], meaning)
    yield from contexts.scales(walk, RowLayout(*numbers), n)
