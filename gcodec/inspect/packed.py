"""Codes of equal width, in any order of bits that a `FieldLayout` tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gcodec.errors import Corrupt
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker, Kind
from gcodec.kernels.bits.pack import FieldLayout

TellCode = Callable[[int, int], FieldValue]
"""Tells what a code is, given it and its element; raises `Corrupt`."""


def lookup(texts: str, size: float) -> TellCode:
    """Return what tells codes by their texts, of values of one size.

    Parameters
    ----------
    texts : str
        Of each code: "+", "-" or "0"; a blank for one that stands for nothing.
    size : float
    """
    values = {"+": size, "-": -size, "0": 0.0}
    width = (len(texts) - 1).bit_length()

    def tell(code: int, element: int) -> FieldValue:
        text = texts[code : code + 1]  # none, of an exception that is too large
        if text not in values:
            raise Corrupt(f"the code {code:0{width}b} stands for nothing")
        return FieldValue(text, element=element, decoded=(values[text],))

    return tell


def signs(
    walk: FieldWalker, count: int, size: float, *, of_all: bool = False
) -> Iterator[FieldSpan]:
    """Tell signs, a bit each, of values of one size; those of all elements, or of some."""

    def tell(at: int, bits: np.ndarray) -> Iterator[FieldValue]:
        for number, bit in enumerate(bits.tolist(), at):
            element = number if of_all else None
            yield FieldValue("-" if bit else "+", "", element, (-size if bit else size,))

    yield from walk.fields("sign", "sign", 1, count, tell)


def packed(
    walk: FieldWalker, layout: FieldLayout, n: int, kind: Kind, name: str, tell: TellCode
) -> Iterator[FieldSpan]:
    """Tell n codes that go on to the payload's end, and what fills up behind them.

    Parameters
    ----------
    walk : FieldWalker
    layout : FieldLayout
    n : int
    kind, name : str
    tell : callable
    """
    places = _Places(layout, n)

    def told(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        elements = places.elements(np.arange(at, at + codes.size)).tolist()
        for code, element in zip(codes.tolist(), elements, strict=True):
            if element < n:
                yield tell(code, element)._replace(number=element)
                continue
            if code != (element - n if layout.pad == "count" else 0):
                raise Corrupt("a pad code differs from what the format fills in")
            yield FieldValue(code, "fills up", kind="pad", name="pad code", number=element)

    def split(low: int, high: int) -> Mapping[str, int]:
        pads = sum(low <= place < high for place in places.pads())
        return {kind: layout.width * (high - low - pads), "pad": layout.width * pads}

    yield from walk.fields(kind, name, layout.width, places.count, told, split=split)
    yield from walk.pad(8 * layout.nbytes(n) - layout.width * places.count)
    walk.finish()


class _Places:
    """Which codes lie where, counted from the most significant bit of the first byte on."""

    def __init__(self, layout: FieldLayout, n: int) -> None:
        self._layout, self._n = layout, n
        self._per_byte = 8 // layout.width
        self.count = n if layout.order == "msb" else self._per_byte * layout.nbytes(n)

    def elements(self, places: np.ndarray) -> np.ndarray:
        """Return the elements of places; n and above for what is behind all."""
        if self._layout.order == "msb":
            return places
        byte, field = np.divmod(places, self._per_byte)
        field = self._per_byte - 1 - field
        if self._layout.strided:
            return np.asarray(field * self._layout.nbytes(self._n) + byte)
        return np.asarray(byte * self._per_byte + field)

    def pads(self) -> list[int]:
        """Return the places of what is behind all."""
        last = np.arange(max(self.count - self._per_byte**2, 0), self.count)
        return [int(place) for place in last[self.elements(last) >= self._n]]
