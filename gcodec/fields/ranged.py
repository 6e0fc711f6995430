"""Descriptions of strings of bytes after their range: range, table, and words or states."""

from __future__ import annotations

from collections.abc import Iterator

from gcodec.entropy import ranged
from gcodec.entropy.coder import BitSpan, ignore
from gcodec.entropy.tabled import Kind as Coder
from gcodec.errors import FormatError
from gcodec.fields import tabled
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldWalker, Kind
from gcodec.kernels.bits.coded_mask import CodedMask


def string(
    walk: FieldWalker,
    coder: Coder,
    kind: Kind,
    name: str,
    count: int,
    describe: DescribeSymbols,
) -> Iterator[FieldSpan]:
    """Describe a string of `count` > 0 bytes up to the end of the payload, with range and table.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the range, a whole byte.
    coder : {"huffman", "rans"}
    kind, name : str
        Kind of the bits, and name of a symbol.
    count : int
    describe : callable
        Describes symbols; see `DescribeSymbols`.

    Raises
    ------
    FormatError
    """
    ranged.open_range(BitSpan(walk.data, walk.at, walk.end))
    low = walk.field("table", "least byte", 8)
    yield low
    high = walk.field("table", "largest byte", 8)
    yield high
    numbers = ranged.alphabet(low.value, high.value)
    coded = CodedMask.all(count)
    table = yield from tabled.table(walk, coder, numbers, coded, lambda symbol: "")
    yield from tabled.string(walk, table, kind, name, count, describe)


def inner_string(
    walk: FieldWalker,
    coder: Coder,
    kind: Kind,
    name: str,
    count: int,
    describe: DescribeSymbols,
) -> Iterator[FieldSpan]:
    """Describe a string that other bits follow, up to its end; see `string`."""
    span = BitSpan(walk.data, walk.at, walk.end)
    try:
        end = ranged.open_string(coder, span, count).read(ignore, bits_follow=True)
    except FormatError:
        end = span.end  # `string` raises the error at its place
    with walk.within(end):
        yield from string(walk, coder, kind, name, count, describe)
