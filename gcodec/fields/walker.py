"""The walker that describes the fields of a payload, in the order of their bits.

A walker describes the symbols of a string one by one as far as the caller asks, and summarizes all
others in one span. At an invalid field it raises `FormatError`, and stays where the field begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from gcodec.errors import Corrupt, FormatError, Truncated
from gcodec.kernels.bits.fields import MOST_NBITS, read_fields
from gcodec.wire.primitives import Reader

Kind = Literal[
    "header", "norm", "scale", "table", "index", "sign", "level", "value", "pad", "undecoded"
]
KINDS: tuple[str, ...] = get_args(Kind)

CHUNK = 1 << 12
"""Number of symbols that a describer reads at a time."""

_T = TypeVar("_T")


class FieldValue(NamedTuple):
    """A describer's statements about a field whose bits a `FieldWalker` knows.

    Attributes
    ----------
    value, meaning, element, decoded, groups
        See `FieldSpan`.
    name, kind : str or None
        Name and kind of this field, if they differ from those of its string.
    number : int or None
        Index of this field, if it differs from the index in its string.
    """

    value: object
    meaning: str = ""
    element: int | None = None
    decoded: tuple[float, ...] = ()
    name: str | None = None
    kind: Kind | None = None
    number: int | None = None
    groups: tuple[int, ...] = ()


class FieldSpan(NamedTuple):
    """The bits of one field, or of several fields in a row, and their description.

    Attributes
    ----------
    kind : str
        One of `KINDS`, or "several".
    name : str
        Name of the field.
    first, nbits : int
        First bit, and number of bits; 0 bits for a symbol that has no bits of its own.
    split : dict of str to int
        Number of bits of each kind.
    value : int, float, str or None
        The stored value; None for a summary of several fields.
    meaning : str
        Explanation for the reader.
    number : int or None
        Index of the field among those of its name, from 0 on.
    element : int or None
        First element of the tensor that the field encodes.
    decoded : tuple of float
        Decoded float32 values of that element and of those after it, if the field determines them.
    groups : tuple of int
        Widths in bits of the parts of the codeword.
    symbols : int
        Number of fields; more than 1 in a summary.
    part : {"payload", "header", "behind"}
        Part of the frame that contains the field.
    """

    kind: str
    name: str
    first: int
    nbits: int
    split: Mapping[str, int]
    value: Any = None
    meaning: str = ""
    number: int | None = None
    element: int | None = None
    decoded: tuple[float, ...] = ()
    groups: tuple[int, ...] = ()
    symbols: int = 1
    part: str = "payload"


DescribeSymbols = Callable[[int, np.ndarray], Iterable[FieldValue]]
"""Describes consecutive symbols, given the index of the first one and their values."""

DescribeSymbol = Callable[[Any, int], FieldValue]
"""Describes a symbol, given its value and its index; raises `Corrupt` for an invalid symbol."""

DescribeElements = Callable[[np.ndarray, np.ndarray], Iterable[FieldValue]]
"""Describes symbols, given their elements and their values."""


class FieldWalker:
    """Describes a payload, span by span.

    Parameters
    ----------
    data : uint8 array
        Bytes of the payload.
    end : int
        Number of bits of the payload.
    most : int, optional
        Number of symbols of a string that are described one by one. Default: all.
    start : int
        First bit after which symbols are described one by one.

    Attributes
    ----------
    at : int
        The bit after the last described span.
    skipped : bool
        Whether the walker has summarized symbols that nobody has read.
    """

    def __init__(self, data: np.ndarray, end: int, most: int | None = None, start: int = 0):
        self.data, self.end, self.most, self.start = data, end, most, start
        self.at = 0
        self.skipped = False

    def span(
        self, kind: Kind, name: str, nbits: int, value: FieldValue, number: int | None = None
    ) -> FieldSpan:
        """Return the span of the next field, whose value the caller has read."""
        kind, name = value.kind or kind, value.name or name
        number = number if value.number is None else value.number
        described = value.value, value.meaning, number, value.element, value.decoded, value.groups
        first = self.at
        self.at += nbits
        return FieldSpan(kind, name, first, nbits, {kind: nbits}, *described)

    def reader(self) -> Reader:
        """Return a reader of bytes, from the next bit on."""
        return Reader(self.data[: self.end // 8].data, self.at // 8)

    def span_to(
        self, reader: Reader, kind: Kind, name: str, value: object, meaning: str
    ) -> FieldSpan:
        """Return the span of the next field, which a reader has read as its last one."""
        return self.span(kind, name, 8 * reader.at - self.at, FieldValue(value, meaning))

    def summary(
        self, name: str, count: int, split: Mapping[str, int], checked: bool = False
    ) -> Iterator[FieldSpan]:
        """Summarize the next `count` symbols in one span, given their bits of each kind.

        Yield nothing if there is no symbol. `checked` states that the caller has read the symbols,
        and that they are valid.
        """
        if not count:
            return
        self.skipped |= not checked
        nbits = sum(split.values())
        kinds = [kind for kind, part in split.items() if part] or [*split][:1]
        kind = kinds[0] if len(kinds) == 1 else "several"
        yield FieldSpan(kind, name, self.at, nbits, dict(split), symbols=count)
        self.at += nbits

    def field(
        self,
        kind: Kind,
        name: str,
        nbits: int,
        groups: tuple[int, ...] = (),
        *,
        meaning: str = "",
    ) -> FieldSpan:
        """Read an unsigned integer, most significant bit first, and return its span."""
        self.require(nbits)
        value = int(read_fields(self.data, self.at, nbits, 1)[0])
        return self.span(kind, name, nbits, FieldValue(value, meaning, groups=groups))

    def fields(
        self,
        kind: Kind,
        name: str,
        width: int,
        count: int,
        describe: DescribeSymbols,
        *,
        little: bool = False,
        split: Callable[[int, int], Mapping[str, int]] | None = None,
    ) -> Iterator[FieldSpan]:
        """Describe fields of equal width.

        Parameters
        ----------
        kind, name : str
            Kind and name of each field.
        width : int
            Width of a field in bits: up to 62, or up to 64 if `little`.
        count : int
            Number of fields.
        describe : callable
            Describes fields; see `DescribeSymbols`. It receives an int64 array, with the bit
            patterns of 64-bit fields.
        little : bool
            Whether the fields are little-endian integers of whole bytes.
        split : callable, optional
            Returns the bits of each kind of a range of fields. Default: all bits are of `kind`.

        Raises
        ------
        Truncated
            If the payload ends within the fields.
        """
        assert width <= (64 if little else MOST_NBITS)
        first = self.at
        fit = min(count, (self.end - first) // width if width else 0)
        low, high = self.window().cut_even(first, width, fit)
        part = split or (lambda i, j: {kind: (j - i) * width})
        yield from self.summary(name, low, part(0, low))
        for at in range(low, high, CHUNK):
            size, bit = min(CHUNK, high - at), first + at * width
            if little:
                dtype = np.dtype(f"<u{width // 8}")
                values = np.frombuffer(self.data, dtype, size, bit // 8).astype(np.int64)
            else:
                values = read_fields(self.data, bit, width, size)
            for number, value in enumerate(describe(at, values), at):
                yield self.span(kind, name, width, value, number)
        yield from self.summary(name, fit - high, part(high, fit))
        if width:
            self.require((count - fit) * width)

    def checked(
        self,
        kind: Kind,
        name: str,
        width: int,
        count: int,
        describe: DescribeSymbols,
        check: Callable[[], _T],
        *,
        little: bool = False,
    ) -> Generator[FieldSpan, None, _T]:
        """Describe fields that a reader checks all at once, up to the first invalid one.

        Parameters
        ----------
        kind, name, width, count, describe, little
            See `fields`.
        check : callable
            Reads all fields. The offset of its `FormatError` is a byte of the payload.

        Returns
        -------
        object
            The result of `check`.

        Raises
        ------
        FormatError
            The error of `check`, after the valid fields.
        """
        valid, wrong = count, None
        if count * width <= self.end - self.at:  # otherwise `fields` raises `Truncated`
            try:
                checked = check()
            except FormatError as error:
                wrong = error
                valid = 0 if error.offset is None else (8 * error.offset - self.at) // width
        yield from self.fields(kind, name, width, valid, describe, little=little)
        if wrong is not None:
            raise wrong
        return checked

    def pad(self, nbits: int) -> Iterator[FieldSpan]:
        """Describe padding bits; raise `Corrupt` unless they are 0."""
        self.require(nbits)
        while nbits:
            part = min(nbits, 32)
            if read_fields(self.data, self.at, part, 1)[0]:
                raise Corrupt("a padding bit is not zero")
            yield self.span("pad", "padding", part, FieldValue(0, "zero padding to the byte"))
            nbits -= part

    def remainder(self, kind: Kind, name: str, count: int, signs: int = 0) -> Iterator[FieldSpan]:
        """Summarize all remaining bits: `count` symbols of a kind, and their sign bits."""
        left = self.end - self.at
        split = {"sign": min(signs, left)} if signs else {}
        yield from self.summary(name, count, {**split, kind: max(left - signs, 0)})

    def window(self) -> Window:
        """Return the range of the symbols of a string, from here on, to describe one by one."""
        return Window(self)

    @contextlib.contextmanager
    def within(self, end: int) -> Iterator[None]:
        """Treat bit `end` as the end of the payload, for a part that has an end of its own."""
        whole, self.end = self.end, end
        try:
            yield
        finally:
            self.end = whole

    def require(self, nbits: int) -> None:
        """Raise `Truncated` unless the payload has `nbits` more bits."""
        if nbits > self.end - self.at:
            raise Truncated(f"{nbits} bits wanted, {self.end - self.at} left of the payload")

    def finish(self) -> None:
        """Raise `Corrupt` if the payload has more bits."""
        if self.at < self.end:
            raise Corrupt(f"the payload has {self.end - self.at} bits after its last field")


class Window:
    """The range of symbols of a string that the walker describes one by one.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit of the string.
    """

    def __init__(self, walk: FieldWalker) -> None:
        self._walk = walk
        self._left = walk.most

    @property
    def closed(self) -> bool:
        """Whether no further symbol is described."""
        return self._left == 0

    @property
    def left(self) -> int:
        """Largest number of further symbols that are described."""
        return 1 << 62 if self._left is None else self._left

    def cut(self, nbits: np.ndarray) -> tuple[int, int]:
        """Return the range of the next symbols to describe, given the length of each in bits."""
        ends = self._walk.at + np.cumsum(nbits)
        return self._cut(int(np.searchsorted(ends, self._walk.start, "right")), ends.size)

    def cut_even(self, first: int, width: int, count: int) -> tuple[int, int]:
        """Return the range to describe of `count` symbols of equal width from bit `first` on."""
        before = max(self._walk.start - first, 0) // width if width else 0
        return self._cut(min(before, count), count)

    def _cut(self, low: int, count: int) -> tuple[int, int]:
        high = min(count, low + self.left)
        if self._left is not None:
            self._left -= high - low
        return low, high


def describe_each(describe: DescribeSymbol, floats: str | None = None) -> DescribeSymbols:
    """Turn a describer of one symbol into a describer of a run of symbols.

    Parameters
    ----------
    describe : callable
        Describes a symbol; see `DescribeSymbol`.
    floats : str, optional
        Dtype of the numbers to describe, if the symbols are their bit patterns.
    """

    def describe_run(at: int, symbols: np.ndarray) -> Iterator[FieldValue]:
        if floats is not None:
            kind = np.dtype(floats)
            symbols = symbols.astype(f"u{kind.itemsize}").view(kind)
        for index, symbol in enumerate(symbols.tolist(), at):
            yield describe(symbol, index)

    return describe_run
