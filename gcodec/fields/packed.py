"""Descriptions of fields of equal width, in the order that a `FieldLayout` defines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gcodec.errors import Corrupt
from gcodec.fields import walker
from gcodec.fields.walker import DescribeSymbol, FieldSpan, FieldValue, FieldWalker, Kind
from gcodec.kernels.bits.pack import FieldLayout


def lookup(texts: str, size: float) -> DescribeSymbol:
    """Return a describer of codes for −size, 0 and size.

    Parameters
    ----------
    texts : str
        A character for each code: "+", "-" or "0"; a blank for an invalid code.
    size : float
        Magnitude of the decoded values.
    """
    values = {"+": size, "-": -size, "0": 0.0}
    width = (len(texts) - 1).bit_length()

    def describe(code: int, element: int) -> FieldValue:
        text = texts[code : code + 1]  # empty for an outlier that is too large
        if text not in values:
            raise Corrupt(f"the code {code:0{width}b} stands for nothing")
        return FieldValue(text, element=element, decoded=(values[text],))

    return describe


def signs(
    walk: FieldWalker, count: int, size: float, *, of_all: bool = False
) -> Iterator[FieldSpan]:
    """Describe sign bits of values of equal magnitude.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first sign.
    count : int
        Number of signs.
    size : float
        Magnitude of the decoded values.
    of_all : bool
        Whether all elements have a sign, so that the index of a sign is its element.

    Raises
    ------
    Truncated
    """

    def describe(bit: int, number: int) -> FieldValue:
        element = number if of_all else None
        return FieldValue("-" if bit else "+", "", element, (-size if bit else size,))

    yield from walk.fields("sign", "sign", 1, count, walker.describe_each(describe))


def packed(
    walk: FieldWalker, layout: FieldLayout, n: int, kind: Kind, name: str, describe: DescribeSymbol
) -> Iterator[FieldSpan]:
    """Describe n codes and their padding, up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first code.
    layout : FieldLayout
        Width and order of the codes.
    n : int
        Number of codes.
    kind, name : str
        Kind and name of a code.
    describe : callable
        Describes a code; see `DescribeSymbol`.

    Raises
    ------
    FormatError
    """
    places = _Places(layout, n)

    def describe_codes(at: int, codes: np.ndarray) -> Iterator[FieldValue]:
        elements = places.elements(np.arange(at, at + codes.size)).tolist()
        for code, element in zip(codes.tolist(), elements, strict=True):
            if element < n:
                yield describe(code, element)._replace(number=element)
                continue
            if code != (element - n if layout.strided else 0):
                raise Corrupt("a pad code differs from what the format fills in")
            note = "padding to the byte"
            yield FieldValue(code, note, kind="pad", name="pad code", number=element)

    def split(low: int, high: int) -> Mapping[str, int]:
        pads = sum(low <= place < high for place in places.pads())
        return {kind: layout.width * (high - low - pads), "pad": layout.width * pads}

    yield from walk.fields(kind, name, layout.width, places.count, describe_codes, split=split)
    yield from walk.pad(8 * layout.nbytes(n) - layout.width * places.count)
    walk.finish()


class _Places:
    """The elements of codes, which are indexed from the highest bits of the first byte on."""

    def __init__(self, layout: FieldLayout, n: int) -> None:
        self._layout, self._n = layout, n
        self._per_byte = 8 // layout.width
        self.count = n if layout.order == "msb" else self._per_byte * layout.nbytes(n)

    def elements(self, places: np.ndarray) -> np.ndarray:
        """Return the elements of code indices; n and above for padding."""
        if self._layout.order == "msb":
            return places
        byte, field = np.divmod(places, self._per_byte)
        field = self._per_byte - 1 - field
        if self._layout.strided:
            return np.asarray(field * self._layout.nbytes(self._n) + byte)
        return np.asarray(byte * self._per_byte + field)

    def pads(self) -> list[int]:
        """Return the indices of the codes that are padding."""
        last = np.arange(max(self.count - self._per_byte**2, 0), self.count)
        return [int(place) for place in last[self.elements(last) >= self._n]]
