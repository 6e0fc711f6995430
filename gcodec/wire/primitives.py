"""Primitives of the wire format: LEB128 numbers, a reader that tracks its offset, dtype codes.

All numbers are little-endian. Specification: docs/wire-format.md, part A.
"""

from __future__ import annotations

import functools

from gcodec.errors import Corrupt, ParameterError, Truncated

MAGIC = b"GCF"
VERSION = 1
HAS_NAME, HAS_SEEK, HAS_TAG = 1, 2, 4  # bits of the flags byte
MAX_NDIM = 32
LOG2_ADDRESSABLE = 59  # NumPy makes no larger array, even if another size is 0
TAG_NBYTES = 16

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
FLOATS8 = ("float8_e4m3fn", "float8_e5m2")
UNCONVERTED = (*INTEGERS, *FLOATS8)
"""Dtypes that few codecs accept, and that none converts to or from others."""
DTYPE_CODES = {name: code for code, name in enumerate((*FLOATS, *UNCONVERTED), 1)}  # append-only
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # bytes per element
ITEMSIZE |= {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1}
ITEMSIZE |= {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}
ITEMSIZE |= dict.fromkeys(FLOATS8, 1)

_LEB128_NBYTES = 10


@functools.lru_cache(maxsize=1024)  # sizes of tensors recur
def leb128(value: int) -> bytes:
    """Return the shortest unsigned LEB128 form of an integer below 2**64."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value < 1 << 64:
        raise ParameterError.of("value", value, "from 0 to 2**64 - 1")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_name(name: str) -> bytes:
    """Return a tensor's name as UTF-8, or raise `ParameterError`."""
    try:
        return name.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ParameterError.of("name", name, "a string that UTF-8 can write") from None


def max_header_nbytes(n: int, name_nbytes: int, fields_nbytes: int) -> int:
    """Return the maximum size of a frame in bytes, without payload and seek table, for any shape.

    Parameters
    ----------
    n : int
        Number of elements.
    name_nbytes : int
        Number of bytes of the UTF-8 name.
    fields_nbytes : int
        Number of bytes of parameters and scalars.
    """
    fixed = len(MAGIC) + 1 + 4  # version, flags, codec, dtype, ndim
    # A dimension of 1 takes a byte, and the product of the larger dimensions is n. The other
    # dimensions of an empty array may have any size.
    shape = MAX_NDIM + _LEB128_NBYTES if n else MAX_NDIM * _LEB128_NBYTES
    name = _LEB128_NBYTES + name_nbytes if name_nbytes else 1
    checksums = 4 + 4
    return fixed + shape + name + 2 + fields_nbytes + _LEB128_NBYTES + checksums + TAG_NBYTES


class Reader:
    """Reads fields in order, and reports the offset at which bytes are missing.

    Parameters
    ----------
    data : bytes-like
    start : int
        Offset of the first byte to read.

    Raises
    ------
    TypeError
        If `data` is another object, or not contiguous.
    """

    def __init__(self, data: bytes | bytearray | memoryview, start: int = 0) -> None:
        try:
            self.data = memoryview(data).cast("B")
        except (TypeError, ValueError) as error:
            kind = type(data).__name__
            raise TypeError(f"data is of type {kind}: must be bytes-like, in one block") from error
        self.at = start
        self._size = len(self.data)

    def take(self, nbytes: int) -> memoryview:
        """Return the next `nbytes` bytes."""
        start, end = self.at, self.at + nbytes
        if end > self._size:
            raise self._truncated(start, nbytes)
        self.at = end
        return self.data[start:end]

    def byte(self) -> int:
        """Return the next byte."""
        at = self.at
        if at >= self._size:
            raise self._truncated(at, 1)
        self.at = at + 1
        return self.data[at]

    def leb128(self) -> int:
        """Return the next LEB128 number; it must be below 2**64 and in its shortest form."""
        start, value, shift = self.at, 0, 0
        for at in range(start, self._size):
            byte = self.data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if (byte == 0 and shift) or value >= 1 << 64:
                    raise Corrupt("a LEB128 number is not in its shortest form", offset=start)
                self.at = at + 1
                return value
            shift += 7
            if shift == 7 * _LEB128_NBYTES:
                raise Corrupt("a LEB128 number is longer than 10 bytes", offset=start)
        raise self._truncated(self._size, 1)

    def _truncated(self, at: int, nbytes: int) -> Truncated:
        left = self._size - at
        return Truncated(f"the bytes end too early: {nbytes} wanted, {left} left", at)
