"""Strings of bits whose length need not be whole bytes."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

from gcodec.arrays.protocols import BytesLike
from gcodec.errors import Corrupt, ParameterError, Truncated, brief
from gcodec.kernels.bits.pack import check_padding
from gcodec.wire.kinds import check_integer

_MAX_NBITS = 2**63 - 1
_REPR_NBITS = 64  # longest string that a repr shows as a whole


class Bits:
    """An immutable string of bits; its first bit is the most significant bit of the first byte.

    Parameters
    ----------
    data : bytes-like or uint8 array
        ceil(nbits / 8) bytes. The bits of the last byte after the string must be 0.
    nbits : int, optional
        Length of the string in bits. Default: all bits of `data`.

    Raises
    ------
    Truncated
        If `data` is too short.
    Corrupt
        If `data` is too long, or has a one after the string.
    ParameterError
        If `nbits` is negative.
    TypeError
        If `data` is not bytes-like.

    Examples
    --------
    >>> from gcodec.entropy import Bits
    >>> Bits(bytes.fromhex("a580"), 9)
    Bits.from01('101001011')
    """

    __slots__ = ("_data", "_nbits")

    def __init__(self, data: BytesLike, nbits: int | None = None) -> None:
        array = _bytes_of(data)
        if nbits is None:
            nbits = 8 * array.size
        nbits = check_integer("nbits", nbits, 0, _MAX_NBITS, "a non-negative integer")
        if array.size != -(-nbits // 8):
            kind = Truncated if 8 * array.size < nbits else Corrupt
            raise kind(f"there are {array.size} bytes for {nbits} bits")
        check_padding(array, nbits)
        if not isinstance(data, bytes):  # also a read-only view may be one of memory that changes
            array = array.copy()
            array.flags.writeable = False
        self._data = array
        self._nbits = nbits

    @classmethod
    def from01(cls, text: str) -> Bits:
        """Return the bits of a text of 0 and 1, which may contain white space."""
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}: must be a str of 0 and 1")
        digits = "".join(text.split())
        if digits.strip("01"):
            raise ParameterError.of("text", text, "of 0 and 1")
        array = np.frombuffer(digits.encode(), np.uint8) - np.uint8(ord("0"))
        return owned(np.packbits(array), array.size)

    @classmethod
    def from_bitarray(cls, bits: object) -> Bits:
        """Return the items of a ``bitarray.bitarray`` of either bit order."""
        bitarray = _bitarray()
        if not isinstance(bits, bitarray):
            raise TypeError(f"bits is of type {type(bits).__name__}: must be a bitarray")
        return Bits(bitarray(bits, endian="big").tobytes(), len(bits))

    @property
    def data(self) -> np.ndarray:
        """The bytes, as a read-only (ceil(nbits / 8),) uint8 array."""
        return self._data

    @property
    def nbits(self) -> int:
        """The length of the string in bits."""
        return self._nbits

    def tobytes(self) -> bytes:
        """Return the bytes; the last one is padded with zeros."""
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
        """Return the hash of length and bits."""
        return hash((self._nbits, self.tobytes()))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the bytes and the length."""
        return Bits, (self.tobytes(), self._nbits)

    def __repr__(self) -> str:
        """Return the Python expression that makes these bits, or the start of a long string."""
        if self._nbits <= _REPR_NBITS:
            return f"Bits.from01({self.to01()!r})"
        start = "".join(f"{byte:08b}" for byte in self._data[: _REPR_NBITS // 8])
        return f"<Bits {start}… of {self._nbits} bits>"


BitsLike: TypeAlias = "Bits | str | BytesLike"
"""Bits: `Bits`, a bitarray, a text such as "0110", or bytes with all their bits."""


def as_bits(bits: BitsLike) -> tuple[np.ndarray, int]:
    """Return the bytes and the length of a string of bits of any type that `Code.decode` takes."""
    if isinstance(bits, str):
        bits = Bits.from01(bits)
    elif isinstance(bits, getattr(sys.modules.get("bitarray"), "bitarray", ())):
        bits = Bits.from_bitarray(bits)
    if isinstance(bits, Bits):
        return bits.data, bits.nbits
    array = _bytes_of(bits)
    return array, 8 * array.size


def owned(data: np.ndarray, nbits: int) -> Bits:
    """Return `Bits` of a valid (ceil(nbits / 8),) uint8 array that nothing else writes to."""
    bits = object.__new__(Bits)
    data.flags.writeable = False
    bits._data, bits._nbits = data, nbits
    return bits


def _bytes_of(data: Any) -> np.ndarray:
    """Return a view of bytes as a flat uint8 array."""
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
