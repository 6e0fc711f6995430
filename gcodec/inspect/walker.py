"""A walk through a payload, which tells piece by piece what lies there.

Strings of many like symbols are told one by one as far as that is asked for, and the others as one
piece. A walk that meets what is wrong raises `FormatError` and stands where that begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from gcodec.errors import Corrupt, FormatError, Truncated
from gcodec.kernels.bits.fields import MOST_NBITS, read_fields

Kind = Literal[
    "header", "norm", "scale", "table", "index", "sign", "level", "value", "pad", "undecoded"
]
KINDS: tuple[str, ...] = get_args(Kind)

CHUNK = 1 << 12  # symbols that are read at a time

_T = TypeVar("_T")


class FieldValue(NamedTuple):
    """What a symbol is.

    Attributes
    ----------
    value : int, float, str or None
    meaning : str
    element : int or None
        The first element of the tensor that it is of.
    decoded : tuple of float
        The float32 numbers of that element and those behind it, where this tells them.
    name, kind : str or None
        Where they are not those of its fellows.
    number : int or None
        Likewise.
    groups : tuple of int
        Bits of the parts of the word.
    """

    value: Any
    meaning: str = ""
    element: int | None = None
    decoded: tuple[float, ...] = ()
    name: str | None = None
    kind: Kind | None = None
    number: int | None = None
    groups: tuple[int, ...] = ()


class FieldSpan(NamedTuple):
    """Bits that lie one behind the other, and what they are.

    Attributes
    ----------
    kind : str
        One of `KINDS`, or "several".
    name : str
    first, nbits : int
        The bit where they begin, and how many they are; none for a symbol that has no bits of its
        own.
    told : FieldValue
    number : int or None
        Of the symbol, from 0 on, among those of its name.
    symbols : int
        More than one, if there are several that are not told one by one.
    split : dict of str to int
        The bits by kind.
    """

    kind: str
    name: str
    first: int
    nbits: int
    told: FieldValue
    number: int | None
    symbols: int
    split: Mapping[str, int]


Tell = Callable[[int, np.ndarray], Iterable[FieldValue]]
"""Tells what symbols are, given the number of the first of them, and their values."""

TellAt = Callable[[np.ndarray, np.ndarray], Iterable[FieldValue]]
"""Does so for symbols of these elements."""


class FieldWalker:
    """A walk through a payload.

    Parameters
    ----------
    data : uint8 array
    end : int
        Bits of the payload.
    most : int, optional
        Symbols of a string that are told one by one; default: all.
    start : int
        The bit from which on they are.

    Attributes
    ----------
    at : int
        The bit behind the last piece.
    skipped : bool
        Whether there were symbols that were not told one by one.
    """

    def __init__(self, data: np.ndarray, end: int, most: int | None = None, start: int = 0):
        self.data, self.end, self.most, self.start = data, end, most, start
        self.at = 0
        self.skipped = False

    def piece(
        self, kind: Kind, name: str, nbits: int, told: FieldValue, number: int | None = None
    ) -> FieldSpan:
        """Tell the next bits, which are there."""
        kind = told.kind or kind
        number = number if told.number is None else told.number
        made = FieldSpan(kind, told.name or name, self.at, nbits, told, number, 1, {kind: nbits})
        self.at += nbits
        return made

    def several(self, name: str, count: int, split: Mapping[str, int]) -> Iterator[FieldSpan]:
        """Tell the next bits, by kind, as one piece of so many symbols; nothing if of none."""
        if not count:
            return
        self.skipped = True
        nbits = sum(split.values())
        kinds = [kind for kind, part in split.items() if part] or [*split][:1]
        kind = kinds[0] if len(kinds) == 1 else "several"
        yield FieldSpan(kind, name, self.at, nbits, FieldValue(None), None, count, dict(split))
        self.at += nbits

    def field(self, kind: Kind, name: str, nbits: int, groups: tuple[int, ...] = ()) -> FieldSpan:
        """Read and tell a number, the most significant bit first."""
        self.need(nbits)
        value = int(read_fields(self.data, self.at, nbits, 1)[0])
        return self.piece(kind, name, nbits, FieldValue(value, groups=groups))

    def fields(
        self,
        kind: Kind,
        name: str,
        width: int,
        count: int,
        tell: Tell,
        *,
        little: bool = False,
        split: Callable[[int, int], Mapping[str, int]] | None = None,
    ) -> Iterator[FieldSpan]:
        """Tell fields of equal width.

        Parameters
        ----------
        kind, name : str
        width : int
            Bits of each, up to 62; of numbers of whole bytes up to 64.
        count : int
        tell : callable
            Gets their values as an int64 array, which holds the bits of those of 64.
        little : bool
            Whether these are numbers of whole bytes, the lowest first.
        split : callable, optional
            Bits by kind of the fields of a range; default: all of `kind`.
        """
        assert width <= (64 if little else MOST_NBITS)
        first = self.at
        fit = min(count, (self.end - first) // width if width else 0)
        low, high = Window(self).cut_even(first, width, fit)
        part = split or (lambda i, j: {kind: (j - i) * width})
        yield from self.several(name, low, part(0, low))
        for at in range(low, high, CHUNK):
            size = min(CHUNK, high - at)
            values = self._values(first + at * width, width, size, little)
            for number, told in enumerate(tell(at, values), at):
                yield self.piece(kind, name, width, told, number)
        yield from self.several(name, fit - high, part(high, fit))
        if width:
            self.need((count - fit) * width)

    def checked(
        self,
        kind: Kind,
        name: str,
        width: int,
        count: int,
        tell: Tell,
        check: Callable[[], _T],
        *,
        little: bool = False,
    ) -> Generator[FieldSpan, None, _T]:
        """Tell fields that are read all at once, up to the first that is wrong; return them.

        Parameters
        ----------
        kind, name, width, count, tell, little
            See `fields`.
        check : callable
            Returns them; what it raises has an offset in the payload.
        """
        valid, wrong = count, None
        if count * width <= self.end - self.at:  # else `fields` raises
            try:
                checked = check()
            except FormatError as error:
                wrong = error
                valid = 0 if error.offset is None else (8 * error.offset - self.at) // width
        yield from self.fields(kind, name, width, valid, tell, little=little)
        if wrong is not None:
            raise wrong
        return checked

    def _values(self, first: int, width: int, count: int, little: bool) -> np.ndarray:
        if not little:
            return read_fields(self.data, first, width, count)
        kind = np.dtype(f"<u{width // 8}")
        return np.frombuffer(self.data, kind, count, first // 8).astype(np.int64)

    def pad(self, nbits: int, name: str = "padding") -> Iterator[FieldSpan]:
        """Tell bits that only fill up, and are 0."""
        self.need(nbits)
        while nbits:
            part = min(nbits, 32)
            if read_fields(self.data, self.at, part, 1)[0]:
                raise Corrupt("a padding bit is not zero")
            yield self.piece("pad", name, part, FieldValue(0, "fills up"))
            nbits -= part

    @contextlib.contextmanager
    def until(self, end: int) -> Iterator[None]:
        """Take bit `end` for the end of the payload."""
        kept, self.end = self.end, end
        yield
        self.end = kept

    def rest(
        self, name: str, count: int, split: Mapping[str, int], kind: Kind
    ) -> Iterator[FieldSpan]:
        """Tell all that is left, `count` symbols: bits by kind, and the others of `kind`."""
        left = self.end - self.at
        known = {key: min(part, left) for key, part in split.items() if part}
        yield from self.several(name, count, {**known, kind: max(left - sum(known.values()), 0)})

    def need(self, nbits: int) -> None:
        """Raise `Truncated` unless so many bits are left."""
        if nbits > self.end - self.at:
            raise Truncated(f"{nbits} bits wanted, {self.end - self.at} left of the payload")

    def finish(self) -> None:
        """Raise `Corrupt` if bits are left."""
        if self.at < self.end:
            raise Corrupt(f"the payload has {self.end - self.at} bits behind its last field")


class Window:
    """The symbols of a string that are described one by one."""

    def __init__(self, walk: FieldWalker) -> None:
        self._walk = walk
        self._left = walk.most

    @property
    def closed(self) -> bool:
        """Whether there will be no more."""
        return self._left == 0

    @property
    def left(self) -> int:
        """How many there will be at most."""
        return 1 << 62 if self._left is None else self._left

    def cut(self, nbits: np.ndarray) -> tuple[int, int]:
        """Return the range of the next symbols that is described, given the bits of each."""
        ends = self._walk.at + np.cumsum(nbits)
        return self._cut(int(np.searchsorted(ends, self._walk.start, "right")), ends.size)

    def cut_even(self, first: int, width: int, count: int) -> tuple[int, int]:
        """Do so for `count` symbols of equal width, from bit `first` on."""
        before = max(self._walk.start - first, 0) // width if width else 0
        return self._cut(min(before, count), count)

    def _cut(self, low: int, count: int) -> tuple[int, int]:
        high = min(count, low + self.left)
        if self._left is not None:
            self._left -= high - low
        return low, high


def numbers(values: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Return the float32 or float64 numbers that bit patterns stand for."""
    kind = np.dtype(dtype)
    return values.astype(f"u{kind.itemsize}").view(kind)
