"""Descriptions of strings of bytes after their range: range, table, and words or states."""

from __future__ import annotations

import contextlib
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
    *,
    bits_follow: bool = False,
) -> Iterator[FieldSpan]:
    """Describe a string of `count` > 0 bytes, with range and table.

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
    bits_follow : bool
        Whether other bits follow the string. Otherwise it extends to the end of the payload.

    Raises
    ------
    FormatError
    """
    span = BitSpan(walk.data, walk.at, walk.end)
    end = span.end
    if bits_follow:
        with contextlib.suppress(FormatError):  # the fields raise the error at its place
            end = ranged.open_string(coder, span, count).read(ignore, bits_follow=True)
    with walk.within(end):
        ranged.open_range(span)
        low = walk.field("table", "least byte", 8, meaning="smallest byte in the table")
        yield low
        high = walk.field("table", "largest byte", 8, meaning="largest byte in the table")
        yield high
        numbers = ranged.alphabet(low.value, high.value)
        coded = CodedMask.all(count)
        table = yield from tabled.table(walk, coder, numbers, coded, "byte {}".format)
        yield from tabled.string(walk, table, kind, name, count, describe)
