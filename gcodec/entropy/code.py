"""What a code is: a prefix-free word for each integer from 0 or 1 to 2^64 − 1.

A code's file declares its parameters and names its rule (`gcodec.kernels.codewords`). Everything
that users call is given here once: intake, checks of ranges and sizes, calls of the kernels.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from gcodec.entropy.bits import Bits, as_bits
from gcodec.errors import ParameterError, Truncated
from gcodec.frameworks import check_no_device, library_of
from gcodec.kernels import prefix
from gcodec.kernels.prefix_table import PrefixCode
from gcodec.kinds import check_integer
from gcodec.limits import Limits
from gcodec.params import Parameters

_LARGEST = 2**64 - 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Code(Parameters):
    """Base of all codes; see `gcodec.entropy.parse`."""

    name: ClassVar[str]
    first: ClassVar[int] = 0  # the least value, which has the shortest word

    def _prefix(self) -> PrefixCode:
        """Return what kernels know this code by."""
        raise NotImplementedError

    def encode(self, values: Any) -> Bits:
        """Write the words of values, one behind the other.

        Parameters
        ----------
        values : array of integers
            From 0 or 1, as the code's page says, to 2**64 - 1: an array of any shape, which is
            read in C order, or a list of integers.

        Returns
        -------
        Bits

        Raises
        ------
        ParameterError
            If a value is out of range, or the words together pass ``gcodec.Limits().max_bytes``.
        TypeError
            If these are no integers.
        """
        numbers = self._numbers(values)
        self._check_size(numbers)
        data, nbits = prefix.write(self._prefix(), numbers)
        data.flags.writeable = False
        return Bits(data, nbits)

    def decode(self, bits: Any, count: int, *, start: int = 0) -> tuple[np.ndarray, int]:
        """Read words, one behind the other.

        Parameters
        ----------
        bits : Bits, bitarray, bytes-like or str
            A bitarray may have any bit order. All bits of bytes count, and those of a text of 0
            and 1.
        count : int
            Words to read.
        start : int
            The bit where the first word begins.

        Returns
        -------
        values : (count,) uint64 array
        end : int
            The bit behind the last word.

        Raises
        ------
        Truncated
            If the bits end too early.
        Corrupt
            If some are no word of a value below 2**64.
        ParameterError, TypeError
        """
        data, nbits = as_bits(bits)
        count = check_integer("count", count, 0, _LARGEST, "a non-negative integer")
        start = check_integer("start", start, 0, nbits, f"from 0 to the {nbits} bits")
        if count > (nbits - start) // self._shortest():
            raise Truncated(f"{nbits - start} bits cannot hold {count} words of {self}")
        return prefix.read(self._prefix(), data, nbits, count, start)

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
        return prefix.lengths(self._prefix(), self._numbers(values))

    def _shortest(self) -> int:
        return int(prefix.lengths(self._prefix(), np.array([self.first], np.uint64))[0])

    def _check_size(self, numbers: np.ndarray) -> None:
        lengths = prefix.lengths(self._prefix(), numbers)
        most = 8 * Limits().max_bytes
        # In float64: exact as far as `most` and beyond, and it does not wrap around.
        if lengths.sum(dtype=np.float64) > most:
            longest = int(lengths.argmax())
            raise ParameterError(
                f"values: their words of {self} must take at most {most} bits "
                f"(gcodec.Limits().max_bytes); that of {numbers[longest]} takes {lengths[longest]}"
            )

    def _numbers(self, values: Any) -> np.ndarray:
        """Return values of any kind as a flat uint64 array, or refuse them."""
        array = _array_of(values)
        if array.dtype == object:
            return self._objects(array)
        if array.dtype.kind not in "iu":
            raise TypeError(f"values have dtype {array.dtype}: must be integers")
        if array.size and int(array.min()) < self.first:
            raise self._range_error(array.reshape(-1), int(array.argmin()))
        return np.require(array, np.uint64, ["C", "A"]).reshape(-1)

    def _objects(self, array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1)
        for at, value in enumerate(flat):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"values[{at}] is a {type(value).__name__}: must be an integer")
            if not self.first <= value <= _LARGEST:
                raise self._range_error(flat, at)
        return flat.astype(np.uint64)

    def _range_error(self, flat: np.ndarray, at: int) -> ParameterError:
        allowed = f"an integer from {self.first} to 2**64 - 1"
        return ParameterError.of(f"values[{at}]", int(flat[at]), allowed)


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
