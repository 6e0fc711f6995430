"""The context coder: scales, a table and outliers, then all symbols by rANS.

The coder codes integers that are mostly small, as symbols: twice the magnitude, plus 1 if the
integer is negative. It works in three steps:

1. The scales of rows and columns give each element a class, which is its expected magnitude; see
   `scale_model`.
2. A table contains the frequencies of the symbols of each class. It is the static table that suits
   the symbols best, or one that is fitted to them and stored; see `class_tables`, `table_choice`.
3. rANS codes each symbol with the model of its class. A symbol that the model does not contain is
   an outlier: rANS codes an escape in its place, and a list contains its position and value; see
   `outliers`.

A string consists of

    table u8 · lanes u8 · width LEB128 · group LEB128 · outliers LEB128          whole bytes
    scales of rows · scales of columns, unless group is 0 · table · outliers · zeros to a byte
    rANS of all symbols

where the first field is the number of the static table, or 255 if the string contains the table,
and the fifth field is the number of outliers. rANS interleaves 2, 8 or 32 states, the lanes.

With a trellis, the model also depends on the quantizer that is next, and the symbols are in the
order of `gcodec.kernels.context.lane_order`. The static tables are then those of
`trellis_tables`, and the escape of an outlier has the same parity as the outlier.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.entropy.coder import BitSpan, RansString, Take, Written, write_classed
from gcodec.entropy.context import models
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.models import ClassSymbols, Table
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.entropy.context.table_choice import Plan, lanes_of
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.errors import Corrupt, FormatError
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf
from gcodec.kernels.bits.computed_symbols import Symbols
from gcodec.kernels.context import lane_order
from gcodec.kernels.context.escapes import check_escapes
from gcodec.kernels.numeric.scatter import replace
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES
from gcodec.runtime.deferred import require
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import Drainable, contents, empty_beside, release
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import SeekTable

_FRONT = 1 << 16  # bytes of a string that are fetched first to parse its head
_LONGER = 16  # factor by which more bytes are fetched if these are too few


def write(
    plan: Plan,
    symbols: Symbols | Drainable,
    escaped_symbols: np.ndarray | None,
    front: BitString,
    before_join: Callable[[int], None] | None = None,
) -> Written:
    """Write the string of a plan.

    Parameters
    ----------
    plan : Plan
    symbols : (n,) uint8 array, Drainable or ComputedSymbols
        n > 0. Released if it is a `Drainable`.
    escaped_symbols : (k,) int64 array or None
        The symbols that escapes among `symbols` stand for, in order; None if escapes stand for
        themselves.
    front : BitString
        Whole bytes that precede the string.
    before_join : callable, optional
        See `rans_string.write`.
    """
    array = contents(symbols)
    scales, n, with_trellis = plan.scales, array.size, plan.trellis_symbols is not None
    coded = plan.trellis_symbols or ClassSymbols(array, scales)
    lanes = coded.lanes or lanes_of(plan.nbits)
    escaped = np.empty(0, np.int64)  # positions in coding order
    outliers = Outliers(escaped, escaped)
    if plan.statistics is None or not coded.contains_all(plan.table, plan.statistics):
        escaped, outliers = coded.escaped(plan.table)
    if escaped_symbols is not None and escaped_symbols.size:
        is_escape = outliers.symbols >= models.least_escape(with_trellis)
        outliers.symbols[is_escape] = escaped_symbols
    put_head(front, plan.table, lanes, scales, outliers)

    def models_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        escapes = escaped
        if escaped.size and stop - start < n:
            first, last = np.searchsorted(escaped, (start, stop))
            escapes = escaped[first:last] - start
        coded.merge_models(start, stop, escapes, room)
        release(symbols, start, stop)
        return room

    merged: SymbolsOf | np.ndarray = models_of
    if device_of(array) is not None:  # a device has room for all words at once
        merged = models_of(0, n, empty_beside(n, np.uint16, array))
    tables, lead = plan.table.write_tables(scales), front.trimmed()
    return write_classed(tables, merged, n, lead, lanes, before_join)


def put_head(
    string: BitString, table: Table, lanes: int, scales: Scales, outliers: Outliers
) -> None:
    """Append everything that precedes the symbols to a string of whole bytes."""
    numbers = scales.layout.width, scales.layout.group, outliers.positions.size
    head = bytes([table.number, lanes]) + b"".join(map(leb128, numbers))
    string.put(head)
    scales.put(string)
    table.put(string)
    outliers.put(string)


def open(
    span: BitSpan, n: int, *, with_trellis: bool = False, largest: int | None = None
) -> ContextString:
    """Open a string: parse scales, table and outliers.

    Parameters
    ----------
    span : BitSpan
        Begins with a whole byte.
    n : int
        Number of symbols, above 0.
    with_trellis : bool
        Whether the next quantizer is a part of each model.
    largest : int or None
        See `ContextString`.

    Raises
    ------
    FormatError
    """
    open_string = _open_on_host if device_of(span.data) is None else _open_on_device
    string = open_string(span, n, with_trellis)
    if largest is None:
        return string
    if string.outliers.largest > largest:
        raise Corrupt(f"an outlier is above {largest}")
    return string._replace(largest=largest)


def _open_on_device(span: BitSpan, n: int, with_trellis: bool) -> ContextString:
    """Open a string on a device, where its symbols can stay."""
    string = _open_front(span, n, with_trellis)
    if string is None:
        string = _open_on_host(span._replace(data=host(span.data)), n, with_trellis)
    return string._replace(symbols=string.symbols._replace(span=span.after(string.span.first)))


def _open_front(span: BitSpan, n: int, with_trellis: bool) -> ContextString | None:
    """Open a string on a device by its first bytes; return None if more must be fetched."""
    nbytes = span.first // 8 + _FRONT
    while nbytes < span.end // 8:
        part = BitSpan(host(span.data[:nbytes]), span.first, 8 * nbytes)
        try:
            string = _open_on_host(part, n, with_trellis)
        except FormatError:
            nbytes *= _LONGER
            continue
        rans_string.refuse_short(n, span.end - string.span.first, string.symbols.lanes)
        return string
    return None


def _open_on_host(span: BitSpan, n: int, with_trellis: bool) -> ContextString:
    data, first, end, seek = span
    reader = Reader(data[: end // 8].data, first // 8)
    number, lanes = reader.byte(), reader.byte()
    layout, count = RowLayout(reader.leb128(), reader.leb128()), reader.leb128()
    if lanes not in STATES:
        raise Corrupt(f"a string has {lanes} states, not 2, 8 or 32")
    scales, at = Scales.read(layout, n, data, 8 * reader.at, end)
    table_type: type[Table] = TrellisTable if with_trellis else ClassTable
    table, at = table_type.read(number, data, at, end)
    outliers, at = Outliers.read(count, n, data, at, end)
    span = BitSpan(data, at, end, seek).aligned("scales and symbols")
    classes_of = scales.classes
    if with_trellis:
        classes_of = partial(models.classes_in_coding_order, scales, lanes)
    tables = table.read_tables(scales)
    symbols = RansString(span, n, tables, classes_of, lanes, with_trellis)
    symbols.refuse_short()
    return ContextString(symbols, scales, table, outliers)


class ContextString(NamedTuple):
    """An opened context string; see `CodedString` for its methods.

    Attributes
    ----------
    symbols : RansString
        The coded symbols, some of which are escapes.
    scales : Scales
    table : ClassTable or TrellisTable
    outliers : Outliers
        The symbols that escapes stand for.
    largest : int or None
        Largest allowed symbol, up to 255. Decoding then replaces escapes by their outliers; if
        None, the caller does so.
    """

    symbols: RansString
    scales: Scales
    table: Table
    outliers: Outliers
    largest: int | None = None

    @property
    def span(self) -> BitSpan:
        """Bits of the symbols."""
        return self.symbols.span

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Decode all symbols; see `CodedString.read`."""
        return self.symbols.read(self._checked(take), bits_follow=bits_follow)

    def read_range(self, start: int, stop: int, take: Take) -> None:
        """Decode symbols start to stop - 1, and neighbors; see `RansString.read_range`."""
        self.symbols.read_range(start, stop, self._checked(take))

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the string."""
        return self.symbols.blocks(log2_block)

    def _checked(self, take: Take) -> Take:
        """Return a `Take` that checks that the escapes are where the outliers are."""
        lanes, with_trellis = self.symbols.lanes, self.symbols.with_trellis
        least = models.least_escape(with_trellis)
        largest = ESCAPE if self.largest is None else self.largest

        def checked(at: int, symbols: np.ndarray) -> None:
            if with_trellis:
                coded, symbols = symbols, empty_beside(symbols.size, np.uint8, symbols)
                lane_order.from_turns(coded, lanes, symbols)
            places, outliers = self.outliers.part(at, at + symbols.size)
            coded_as = models.escapes(outliers, with_trellis)
            alike, small = check_escapes(symbols, places, coded_as, least, largest)
            require(alike, lambda: Corrupt("an escape is no outlier, or an outlier no escape"))
            if self.largest is not None:
                require(small, lambda: Corrupt(f"a symbol is above {largest}"))
                replace(symbols, places, outliers)
            take(at, symbols)

        return checked
