"""Tensors of integers, booleans and floats of 8 bits in `raw` frames (``docs/wire-format.md``).

Elements are in order, in whole bytes with the lowest byte first; negative numbers are in two's
complement, and booleans are bytes of 0 or 1. Values of floats of 8 bits are bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence

CODES = {"int8": 5, "uint8": 6, "int16": 7, "uint16": 8, "int32": 9, "uint32": 10}
CODES |= {"int64": 11, "uint64": 12, "bool": 13}
FLOATS8 = {"float8_e4m3fn": 14, "float8_e5m2": 15}


def nbytes(dtype: str) -> int:
    """Return the size of an element in bytes."""
    return 1 if dtype in ("bool", *FLOATS8) else int(dtype.lstrip("uint")) // 8


def bounds(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest value of a dtype, or bit pattern of a float."""
    if dtype == "bool":
        return 0, 1
    if dtype in FLOATS8:
        return 0, 255
    bits = 8 * nbytes(dtype)
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def write(values: Sequence[int], dtype: str) -> bytes:
    """Return the payload of a tensor."""
    signed = bounds(dtype)[0] < 0
    return b"".join(
        int(value).to_bytes(nbytes(dtype), "little", signed=signed) for value in values
    )


def read(data: bytes, nbits: int, n: int, dtype: str) -> list[int]:
    """Return the n values of a payload; raise ValueError for an invalid payload."""
    size = nbytes(dtype)
    if nbits != 8 * size * n or len(data) != size * n:
        raise ValueError(f"{nbits} bits are not those of {n} elements of {dtype}")
    low, high = bounds(dtype)
    values = [
        int.from_bytes(data[at : at + size], "little", signed=low < 0)
        for at in range(0, size * n, size)
    ]
    if not all(low <= value <= high for value in values):
        raise ValueError("a byte that is neither true nor false")
    return values
