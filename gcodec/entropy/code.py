"""What a code is: a reversible map between integers and bits.

Everything that users call is given here once: intake and checks of ranges. A code's file declares
its parameters and how values are written and read; or, for a code that has a word for each integer
from 0 or 1 to 2^64 − 1, its rule (`gcodec.kernels.prefix.codewords`).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from gcodec.arrays.frameworks import library_of
from gcodec.arrays.protocols import check_no_device
from gcodec.entropy.bits import Bits, as_bits
from gcodec.errors import ParameterError, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.prefix import prefix
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.limits import Limits
from gcodec.wire.kinds import check_integer
from gcodec.wire.params import Parameters

_LARGEST = 2**64 - 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Code(Parameters):
    """Base of all codes; see `gcodec.entropy.parse`."""

    name: ClassVar[str]
    first: ClassVar[int] = 0  # the least value
    last: ClassVar[int] = _LARGEST

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the bits of (n,) uint64 values: (ceil(nbits / 8),) uint8 array, nbits."""
        raise NotImplementedError

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        """Read values from bit `start` on, of bytes that end at bit `nbits`.

        `count` may be any number: it must be refused before room is made for what the bits cannot
        hold. Returned are a (count,) uint64 array and the bit behind the last value.
        """
        raise NotImplementedError

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Return the (n,) uint64 bits of the words of (n,) uint64 values."""
        raise NotImplementedError

    def encode(self, values: Any) -> Bits:
        """Write values, one behind the other.

        Parameters
        ----------
        values : array of integers
            In the range that the code's page says: an array of any shape, which is read in C
            order, or a list of integers.

        Returns
        -------
        Bits

        Raises
        ------
        ParameterError
            If a value is out of range, or the bits together pass ``gcodec.Limits().max_bytes``.
        TypeError
            If these are no integers.
        """
        data, nbits = self._write(self._numbers(values))
        data.flags.writeable = False
        return Bits(data, nbits)

    def decode(self, bits: Any, count: int, *, start: int = 0) -> tuple[np.ndarray, int]:
        """Read values, one behind the other.

        Parameters
        ----------
        bits : Bits, bitarray, bytes-like or str
            A bitarray may have any bit order. All bits of bytes count, and those of a text of 0
            and 1.
        count : int
            Values to read.
        start : int
            The bit where they begin.

        Returns
        -------
        values : (count,) uint64 array
        end : int
            The bit behind the last value.

        Raises
        ------
        Truncated
            If the bits end too early.
        Corrupt
            If some are no word of a value.
        ParameterError, TypeError
        """
        data, nbits = as_bits(bits)
        count = check_integer("count", count, 0, _LARGEST, "a non-negative integer")
        start = check_integer("start", start, 0, nbits, f"from 0 to the {nbits} bits")
        return self._read(data, nbits, count, start)

    def lengths(self, values: Any) -> np.ndarray:
        """Return how many bits the word of each value has.

        Parameters
        ----------
        values : array of integers
            See `encode`.

        Returns
        -------
        uint64 array, flat
            2**64 - 1 stands for 2**64 too, which unary words reach.

        Raises
        ------
        ParameterError, TypeError
        """
        return self._lengths(self._numbers(values))

    def _numbers(self, values: Any) -> np.ndarray:
        """Return values of any kind as a flat uint64 array, or refuse them."""
        array = _array_of(values)
        if array.dtype == object:
            return self._objects(array)
        if array.dtype.kind not in "iu":
            raise TypeError(f"values have dtype {array.dtype}: must be integers")
        for least in (True, False) if array.size else ():
            at = int(array.argmin() if least else array.argmax())
            if not self.first <= int(array.flat[at]) <= self.last:
                raise self._range_error(array.reshape(-1), at)
        return np.require(array, np.uint64, ["C", "A"]).reshape(-1)

    def _objects(self, array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1)
        for at, value in enumerate(flat):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"values[{at}] is a {type(value).__name__}: must be an integer")
            if not self.first <= value <= self.last:
                raise self._range_error(flat, at)
        return flat.astype(np.uint64)

    def _range_error(self, flat: np.ndarray, at: int) -> ParameterError:
        last = "2**64 - 1" if self.last == _LARGEST else self.last
        allowed = f"an integer from {self.first} to {last}"
        return ParameterError.of(f"values[{at}]", int(flat[at]), allowed)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Universal(Code):
    """Base of the codes that have a word for each integer; that of the least is shortest."""

    def _prefix(self) -> PrefixCode:
        """Return what kernels know this code by."""
        raise NotImplementedError

    def _write(self, numbers: np.ndarray) -> tuple[np.ndarray, int]:
        lengths = self._lengths(numbers)
        most = 8 * Limits().max_bytes
        # In float64: exact as far as `most` and beyond, and it does not wrap around.
        if lengths.sum(dtype=np.float64) > most:
            longest = int(lengths.argmax())
            raise ParameterError(
                f"values: their words of {self} must take at most {most} bits "
                f"(gcodec.Limits().max_bytes); that of {numbers[longest]} takes {lengths[longest]}"
            )
        return prefix.write(self._prefix(), numbers)

    def _read(
        self, data: np.ndarray, nbits: int, count: int, start: int
    ) -> tuple[np.ndarray, int]:
        if count > (nbits - start) // int(self._lengths(np.array([self.first], np.uint64))[0]):
            raise Truncated(f"{nbits - start} bits cannot hold {count} words of {self}")
        return prefix.read(self._prefix(), data, nbits, count, start)

    def _lengths(self, numbers: np.ndarray) -> np.ndarray:
        return prefix.lengths(self._prefix(), numbers)

    def put(self, numbers: np.ndarray, string: BitString) -> None:
        """Put the words of (n,) uint64 values, in range, at the end of a string."""
        write_symbols(self._prefix(), numbers, np.array([numbers.size]), string)


def _array_of(values: Any) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("values are a masked array: fill it first, as in values.filled(0)")
    if isinstance(values, (str, bytes, bytearray)):
        raise TypeError(f"values are a {type(values).__name__}: must be integers")
    if isinstance(values, (int, list, tuple, range)):
        try:
            return np.array(values, object)  # else NumPy makes floats of what fits no dtype
        except ValueError as error:  # parts of many shapes
            raise TypeError(f"values: {error}") from None
    library = library_of(values)
    if library is not None:
        return library.memory(values, "values")
    check_no_device(values, "values")
    return np.asarray(values)
