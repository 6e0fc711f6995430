"""Descriptions of context strings: the head, the scales, the outliers and the rANS states."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from gcodec.entropy.coder import BitSpan
from gcodec.entropy.context import coder, scale_lists
from gcodec.entropy.context.class_tables import SENT, ClassTable
from gcodec.entropy.context.models import least_escape
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.entropy.universal import Rice
from gcodec.errors import Corrupt
from gcodec.fields.rans import rans_string
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, Kind
from gcodec.kernels.context import lane_order
from gcodec.kernels.context.outlier_lists import RICE_NBITS

_SCALE_CODES = ("Rice codewords", "Huffman codewords", "rANS")  # by the code of a list


def context_string(
    walk: FieldWalker,
    name: str,
    n: int,
    describe: DescribeSymbols,
    with_trellis: bool = False,
    largest: int | None = None,
) -> Iterator[FieldSpan]:
    """Describe a string of n symbols up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit of the string.
    name : str
        Name of a symbol.
    n : int
        Number of symbols; if it is 0, there is no string.
    describe : callable
        Describes symbols; see `DescribeSymbols`. Outliers are restored in its int64 symbols.
    with_trellis : bool
        Whether a trellis quantizer chose the symbols; see `coder.open`.
    largest : int, optional
        The largest symbol that is allowed.

    Raises
    ------
    FormatError
    """
    if not n:
        return
    first = walk.at
    number, lanes, width, group, count = yield from _numbers(walk)
    yield from scales(walk, RowLayout(width, group), n)
    if number == SENT:
        table: type[ClassTable | TrellisTable] = TrellisTable if with_trellis else ClassTable
        _, end = table.read(number, walk.data, walk.at, walk.end)
        yield from walk.summary("frequency", 1, {"table": end - walk.at}, checked=True)
    if count:
        yield from _outliers(walk, count, n)
    string = coder.open(BitSpan(walk.data, first, walk.end), n, with_trellis=with_trellis)
    yield from walk.pad(-walk.at % 8)
    outliers = string.outliers

    def describe_restored(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        coded = np.arange(at, at + symbols.size)
        places = lane_order.positions_of(coded, n, lanes) if with_trellis else coded
        restored, is_outlier = symbols.astype(np.int64), np.isin(places, outliers.positions)
        indices = np.searchsorted(outliers.positions, places[is_outlier])
        restored[is_outlier] = outliers.symbols[indices]
        is_escape = symbols >= least_escape(with_trellis)
        for k, place in enumerate(places.tolist()):
            if largest is not None and restored[k] > largest:
                raise Corrupt(f"a symbol is above {largest}")
            if is_outlier[k] != is_escape[k]:
                raise Corrupt("an escape is no outlier, or an outlier no escape")
            (value,) = describe(place, restored[k : k + 1])
            note = f"{value.meaning}, an outlier" if is_outlier[k] else value.meaning
            yield value._replace(meaning=note)

    yield from rans_string(walk, "level", name, string.symbols, describe_restored)


def _numbers(walk: FieldWalker) -> Generator[FieldSpan, None, list[int]]:
    """Describe the numbers that precede the scales, and return them."""
    reader = walk.reader()
    numbers: list[int] = []
    for name in ("table", "states", "width", "columns of a scale", "outliers"):
        value = reader.byte() if len(numbers) < 2 else reader.leb128()
        numbers.append(value)
        yield walk.span_to(reader, "table", name, value, meaning_of(name, value))
    return numbers


def meaning_of(name: str, number: int) -> str:
    """Return the meaning of a number that precedes the scales."""
    if name == "table":
        return "table in the payload" if number == SENT else "number of a predefined table"
    if name == "columns of a scale":
        return "adjacent columns that share a scale" if number else "no scales of columns"
    return {
        "states": "number of interleaved rANS states",
        "width": "elements of a row",
        "outliers": "number of elements whose symbols are stored apart",
    }[name]


def scales(walk: FieldWalker, layout: RowLayout, n: int) -> Iterator[FieldSpan]:
    """Describe the scales of the rows of n symbols, and of groups of columns if there are any."""
    layout.check(n)
    yield from _list(walk, "row", -(-n // layout.width))
    if layout.group:
        yield from _list(walk, "column", -(-layout.width // layout.group))


def _list(walk: FieldWalker, line: str, count: int) -> Iterator[FieldSpan]:
    """Describe a list of scales: the fields of the head, and a summary."""
    _, end = scale_lists.read(walk.data, walk.at, walk.end, count)
    code = walk.field("scale", f"code of {line}s", 2)
    yield code._replace(meaning=f"scales in {_SCALE_CODES[code.value]}")
    shift = walk.field("scale", "shift", 2)
    yield shift._replace(meaning=f"distance of adjacent scales: {1 << shift.value}")
    yield walk.field("scale", "least", 7, meaning="smallest scale except 0")
    if not code.value:
        yield walk.field("scale", "center", 7, meaning="scale step of the shortest Rice codeword")
        yield walk.field("scale", "k", 3, meaning="parameter of the Rice codewords")
    nbits = end - walk.at
    yield from walk.summary(f"scale of a {line}", count, {"scale": nbits}, checked=True)


def _outliers(walk: FieldWalker, count: int, n: int) -> Iterator[FieldSpan]:
    """Describe the gaps between the outliers, and then their symbols."""
    (places, symbols), _ = Outliers.read(count, n, walk.data, walk.at, walk.end)
    gaps = np.diff(places, prepend=-1) - 1
    lists: list[tuple[Kind, str, np.ndarray]]
    lists = [("index", "gap", gaps), ("level", "outlier", symbols)]
    for kind, name, numbers in lists:
        note = "parameter of the Rice codewords"
        parameter = walk.field("table", f"k of {name}s", RICE_NBITS, meaning=note)
        yield parameter
        for at, nbits in enumerate(Rice(parameter.value).lengths(numbers).tolist()):
            outlier = FieldValue(int(numbers[at]), f"element {places[at]}")
            yield walk.span(kind, name, nbits, outlier, at)
