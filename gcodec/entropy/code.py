"""The base class of codes: reversible maps between integers and bits.

`Code` implements the public methods, which read the caller's integers and check their range. A
subclass declares its parameters and implements `_write`, `_read` and `_lengths`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gcodec.arrays.frameworks import library_of
from gcodec.arrays.protocols import check_no_device, is_masked
from gcodec.entropy.bits import Bits, BitsLike, as_bits, owned
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_integer
from gcodec.wire.params import Parameters

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_LARGEST = 2**64 - 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Code(Parameters):
    """Base of all codes; `gcodec.entropy.parse` makes codes from specs.

    Attributes
    ----------
    name : str
        Name of the code in specs.
    first, last : int
        Smallest and largest value that the code can encode.

    Examples
    --------
    >>> from gcodec import entropy
    >>> code = entropy.parse("gamma")
    >>> bits = code.encode([1, 2, 5])
    >>> bits.to01(), code.lengths([1, 2, 5]).tolist()
    ('101000101', [1, 3, 5])
    >>> code.decode(bits, 3)
    (array([1, 2, 5], dtype=uint64), 9)
    """

    name: ClassVar[str]
    first: ClassVar[int] = 0
    last: ClassVar[int] = _LARGEST

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the (ceil(nbits / 8),) uint8 bytes of (n,) uint64 values, and nbits."""
        raise NotImplementedError

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        """Decode values from bit `start` of a string that ends at bit `nbits`.

        Return a (count,) uint64 array, and the bit after the last value. The caller does not check
        `count`: raise `Truncated` before allocating memory for values that the bits cannot hold.
        """
        raise NotImplementedError

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Return the (n,) uint64 lengths in bits of the codewords of (n,) uint64 values."""
        raise NotImplementedError

    def encode(self, values: ArrayLike) -> Bits:
        """Encode values, one after the other.

        Parameters
        ----------
        values : array of integers
            Array of any shape, read in C order, or a list of integers. The class of the code
            states the range.

        Returns
        -------
        Bits

        Raises
        ------
        ParameterError
            If a value is out of range, or the string exceeds ``gcodec.Limits().max_bytes``.
        TypeError
            If the values are not integers.
        """
        return owned(*self._write(self._numbers(values)))

    def decode(self, bits: BitsLike, count: int, *, start: int = 0) -> tuple[np.ndarray, int]:
        """Decode values, one after the other.

        Parameters
        ----------
        bits : Bits, bitarray, bytes-like or str
            A bitarray of either bit order, bytes, all bits of which count, or a text of 0 and 1.
        count : int
            Number of values.
        start : int
            Bit where the first value begins.

        Returns
        -------
        values : (count,) uint64 array
        end : int
            Bit after the last value.

        Raises
        ------
        Truncated
            If the bits end within the values.
        Corrupt
            If the bits contain an invalid codeword.
        ParameterError
            If `count` or `start` is out of range.
        TypeError
            If `bits` has another type.
        """
        data, nbits = as_bits(bits)
        count = check_integer("count", count, 0, _LARGEST, "a non-negative integer")
        start = check_integer("start", start, 0, nbits, f"from 0 to the {nbits} bits")
        return self._read(data, nbits, count, start)

    def lengths(self, values: ArrayLike) -> np.ndarray:
        """Return the length in bits of the codeword of each value.

        Parameters
        ----------
        values : array of integers
            See `encode`.

        Returns
        -------
        uint64 array, flat
            2^64 − 1 also stands for 2^64, which unary codewords reach.

        Raises
        ------
        ParameterError, TypeError
            See `encode`.
        """
        return self._lengths(self._numbers(values))

    def _numbers(self, values: ArrayLike) -> np.ndarray:
        """Return values of any integer type as a flat uint64 array; see `encode` for errors."""
        array = _array_of(values)
        if array.dtype == object:
            return self._objects(array)
        if array.dtype.kind not in "iu":
            raise TypeError(f"values have dtype {array.dtype}: must be integers")
        for at in (int(array.argmin()), int(array.argmax())) if array.size else ():
            if not self.first <= int(array.flat[at]) <= self.last:
                raise self._range_error(array.reshape(-1), at)
        return np.require(array, np.uint64, ["C", "A"]).reshape(-1)

    def _objects(self, array: np.ndarray) -> np.ndarray:
        """Return an array of Python integers as a flat uint64 array; see `encode` for errors."""
        flat = array.reshape(-1)
        for at, value in enumerate(flat):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(
                    f"values[{at}] is of type {type(value).__name__}: must be an integer"
                )
            if not self.first <= value <= self.last:
                raise self._range_error(flat, at)
        return flat.astype(np.uint64)

    def _range_error(self, flat: np.ndarray, at: int) -> ParameterError:
        last = "2**64 - 1" if self.last == _LARGEST else self.last
        allowed = f"an integer from {self.first} to {last}"
        return ParameterError.of(f"values[{at}]", int(flat[at]), allowed)


def _array_of(values: ArrayLike) -> np.ndarray:
    if is_masked(values):
        raise TypeError("values are a masked array: fill it first, as in values.filled(0)")
    if isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"values are a {type(values).__name__}: must be integers")
    if isinstance(values, (int, list, tuple, range)):
        try:
            return np.array(values, object)  # otherwise NumPy converts large integers to floats
        except ValueError as error:  # the nested lists are ragged
            raise TypeError(f"values: {error}") from None
    library = library_of(values)
    if library is not None:
        library.check(values, "values")
        return library.memory(values, "values")
    check_no_device(values, "values")
    return np.asarray(values)
