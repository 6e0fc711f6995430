"""Strings of bits whose length need not be whole bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gcodec.errors import Corrupt, ParameterError, Truncated, brief
from gcodec.kernels.bits.pack import check_padding
from gcodec.wire.kinds import check_integer

_MOST = 2**63 - 1
_SHOWN = 64  # bits in a repr


class Bits:
    """A string of bits, the first one the most significant of the first byte. Immutable.

    Parameters
    ----------
    data : bytes-like or uint8 array
        ceil(nbits / 8) bytes; what the last one has behind the string is zero.
    nbits : int, optional
        All bits of `data` if not given.

    Raises
    ------
    Truncated
        If `data` is too short.
    Corrupt
        If it is too long, or has a one behind the string.
    ParameterError, TypeError

    Examples
    --------
    >>> from gcodec.entropy import Bits
    >>> Bits(bytes.fromhex("a580"), 9)
    Bits.from01('101001011')
    """

    __slots__ = ("_data", "_nbits")

    def __init__(self, data: Any, nbits: int | None = None) -> None:
        array = _bytes_of(data)
        if nbits is None:
            nbits = 8 * array.size
        nbits = check_integer("nbits", nbits, 0, _MOST, "a non-negative integer")
        if array.size != -(-nbits // 8):
            kind = Truncated if 8 * array.size < nbits else Corrupt
            raise kind(f"there are {array.size} bytes for {nbits} bits")
        check_padding(array, nbits)
        if array.flags.writeable:
            array = array.copy()
            array.flags.writeable = False
        self._data = array
        self._nbits = nbits

    @classmethod
    def from01(cls, text: str) -> Bits:
        """Make bits from a text of 0 and 1; white space in it is ignored."""
        if not isinstance(text, str):
            raise TypeError(f"text is a {type(text).__name__}: must be a str of 0 and 1")
        digits = "".join(text.split())
        if digits.strip("01"):
            raise ParameterError.of("text", text, "of 0 and 1")
        array = np.frombuffer(digits.encode(), np.uint8) - np.uint8(ord("0"))
        return _whole(np.packbits(array), array.size)

    @classmethod
    def from_bitarray(cls, bits: Any) -> Bits:
        """Make bits from a ``bitarray.bitarray`` of either bit order, item by item."""
        bitarray = _bitarray()
        if not isinstance(bits, bitarray):
            raise TypeError(f"bits is a {type(bits).__name__}: must be a bitarray")
        return _whole(bitarray(bits, endian="big").tobytes(), len(bits))

    @property
    def data(self) -> np.ndarray:
        """The bytes, as a read-only (ceil(nbits / 8),) uint8 array."""
        return self._data

    @property
    def nbits(self) -> int:
        """The length of the string."""
        return self._nbits

    def tobytes(self) -> bytes:
        """Return the bytes; zeros fill the last one."""
        return self._data.tobytes()

    def to01(self) -> str:
        """Return the string as a text of 0 and 1."""
        digits = np.unpackbits(self._data, count=self._nbits) + np.uint8(ord("0"))
        return digits.tobytes().decode()

    def to_bitarray(self) -> Any:
        """Return the string as a ``bitarray.bitarray``, whose bit order is "big"."""
        bits = _bitarray()(endian="big")
        bits.frombytes(self.tobytes())
        del bits[self._nbits :]
        return bits

    def __len__(self) -> int:
        """Return the number of bits."""
        return self._nbits

    def __eq__(self, other: object) -> bool:
        """Compare length and bits with other `Bits`."""
        if not isinstance(other, Bits):
            return NotImplemented
        return self._nbits == other._nbits and np.array_equal(self._data, other._data)

    def __hash__(self) -> int:
        """Hash what `__eq__` compares."""
        return hash((self._nbits, self.tobytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes."""
        return Bits, (self.tobytes(), self._nbits)

    def __repr__(self) -> str:
        """Return the Python expression that makes these bits, or the start of a long string."""
        if self._nbits <= _SHOWN:
            return f"Bits.from01({self.to01()!r})"
        start = "".join(f"{byte:08b}" for byte in self._data[: _SHOWN // 8])
        return f"<Bits {start}… of {self._nbits} bits>"


def as_bits(bits: Any) -> tuple[np.ndarray, int]:
    """Return the bytes and the length of a string of bits of any kind; see `Code.decode`."""
    if isinstance(bits, str):
        bits = Bits.from01(bits)
    elif isinstance(bits, getattr(sys.modules.get("bitarray"), "bitarray", ())):
        bits = Bits.from_bitarray(bits)
    if isinstance(bits, Bits):
        return bits.data, bits.nbits
    array = _bytes_of(bits)
    return array, 8 * array.size


def _whole(data: Any, nbits: int) -> Bits:
    """Make `Bits` of memory that no one else will write to."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return Bits(array, nbits)


def _bytes_of(data: Any) -> np.ndarray:
    """View bytes as a flat uint8 array."""
    try:
        view = memoryview(data)
        if view.format not in ("B", "b", "c"):
            raise TypeError(f"its items are of format {brief(repr(view.format))}, not bytes")
        return np.frombuffer(view, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(f"bits are a {type(data).__name__}: must be bytes-like: {error}") from None


def _bitarray() -> Any:
    try:
        from bitarray import bitarray
    except ImportError as error:
        raise ImportError("this needs the package bitarray: pip install bitarray") from error
    return bitarray
