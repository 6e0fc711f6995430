"""Fused rows of Caffe2 and FBGEMM, one element at a time.

Written from ``docs/interop.md``. Arithmetic is float32, each operation rounded once. The decoder
computes scale·code + bias exactly and rounds once.
"""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
F = np.float32


def least(row: Floats) -> np.float32:
    """Return the minimum, including its sign if it is zero.

    Eight lanes take turns over the columns, and each keeps the last of its minima; the first
    minimum of the lanes counts, then the columns of the incomplete group.
    """
    whole = len(row) // 8 * 8
    ends = []
    for lane in range(8 if whole else 0):
        end = row[lane]
        for value in row[lane:whole:8]:
            end = end if end < value else value
        ends.append(end)
    actual = F(np.finfo(F).max)
    for value in (*ends, *row[whole:]):
        actual = value if value < actual else actual
    return actual


def quantized(value: np.float32, low: np.float32, inverse: np.float32, top: int) -> int:
    return min(max(int(np.rint((value - low) * inverse)), 0), top)


def encode_row(row: Floats, bits: int, half: bool) -> bytes:
    top = 2**bits - 1
    low, high = least(row), -least(-row)
    if half:
        bias = np.float16(low)
        low = F(bias)
        span = high - low
        scale = np.float16(F(1) if span == 0 else span / F(top))
        if scale == 0:
            scale = np.float16(1)
        inverse = F(1) / F(scale)
        numbers = scale.tobytes() + bias.tobytes()
    else:
        span = high - low
        inverse = F(255) / (span + F(1e-8))
        numbers = (span / F(255)).tobytes() + low.tobytes()
    per_byte = 8 // bits
    codes = [quantized(value, low, inverse, top) for value in row]
    codes += [0] * (-len(codes) % per_byte)
    packed = (
        sum(code << bits * k for k, code in enumerate(codes[at : at + per_byte]))
        for at in range(0, len(codes), per_byte)
    )
    return bytes(packed) + numbers


def encode(x: Floats, bits: int, half: bool) -> bytes:
    with np.errstate(all="ignore"):
        return b"".join(encode_row(row, bits, half) for row in x)


def rounded_once(code: int, scale: float, bias: float) -> np.float32:
    """Round an exact sum to float32, ties to even, by trying the neighbors of an estimate."""
    exact = Fraction(scale) * code + Fraction(bias)
    near = F(float(exact))
    if exact == 0:
        return F(F(scale) * F(code) + F(bias))  # for the sign
    around = [np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf))]
    return min(
        (value for value in around if np.isfinite(value)),
        key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1),
    )


def decode(data: bytes, columns: int, bits: int, half: bool) -> Floats:
    per_byte, size = 8 // bits, 2 if half else 4
    packed = -(-columns // per_byte)
    width = packed + 2 * size
    out = np.empty((len(data) // width, columns), F)
    for number, row in enumerate(out):
        raw = data[number * width : (number + 1) * width]
        scale, bias = struct.unpack("<ee" if half else "<ff", raw[packed:])
        places = range(columns)
        codes = [raw[i // per_byte] >> bits * (i % per_byte) & (2**bits - 1) for i in places]
        values = {code: rounded_once(code, scale, bias) for code in set(codes)}
        row[:] = [values[code] for code in codes]
    return out
