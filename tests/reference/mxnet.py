"""MXNet's 2-bit and 1-bit gradient compression, one float32 operation at a time.

Source: ``docs/wire-format.md``, mxnet-2bit and mxnet-1bit. All arithmetic is float32 and every
operation rounds once: v = r + g, then r = v - t (or another level, below). NaN, infinities, signed
zeros and subnormals take the same comparisons and sums as all other values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import fields

Floats = NDArray[np.float32]


class TwoBit:
    """The 2-bit quantizer of one tensor, with its residual.

    Parameters
    ----------
    threshold
        Values from this threshold on are sent as +t, values down to its negative as -t. It is not
        validated, because the kernels accept any float32.
    n
        Number of elements.
    level
        Amount that a sent value subtracts from the residual; by default the threshold.
    """

    def __init__(self, threshold: float, n: int, level: float | None = None) -> None:
        with np.errstate(all="ignore"):
            self.threshold = np.float32(threshold)
            self.level = self.threshold if level is None else np.float32(level)
        self.residual: Floats = np.zeros(n, np.float32)

    def codes(self, grad: Floats) -> list[int]:
        """Quantize ``grad``, update the residual and return the codes: 3 is +t, 2 is -t."""
        t, level = self.threshold, self.level
        codes = []
        with np.errstate(all="ignore"):
            for i in range(len(self.residual)):
                v = np.float32(self.residual[i] + np.float32(grad[i]))
                if v >= t:
                    codes.append(0b11)
                    self.residual[i] = np.float32(v - level)
                elif v <= -t:
                    codes.append(0b10)
                    self.residual[i] = np.float32(v + level)
                else:
                    codes.append(0b00)
                    self.residual[i] = v
        return codes

    def step(self, grad: Floats) -> bytes:
        """Quantize ``grad``, update the residual and return the payload."""
        return fields.pack(self.codes(grad), 2, align=4)


class OneBit:
    """The 1-bit quantizer of one tensor, with its residual; it sends +1 or -1.

    Parameters
    ----------
    threshold
        Values strictly above it are sent as +1; all other values, including NaN, as -1.
    n
        Number of elements.
    """

    def __init__(self, threshold: float, n: int) -> None:
        with np.errstate(all="ignore"):
            self.threshold = np.float32(threshold)
        self.residual: Floats = np.zeros(n, np.float32)

    def codes(self, grad: Floats) -> list[int]:
        """Quantize ``grad``, update the residual and return the bits."""
        one = np.float32(1)
        codes = []
        with np.errstate(all="ignore"):
            for i in range(len(self.residual)):
                v = np.float32(self.residual[i] + np.float32(grad[i]))
                if v > self.threshold:
                    codes.append(1)
                    self.residual[i] = np.float32(v - one)
                else:
                    codes.append(0)
                    self.residual[i] = np.float32(v + one)
        return codes

    def step(self, grad: Floats) -> bytes:
        """Quantize ``grad``, update the residual and return the payload."""
        return fields.pack(self.codes(grad), 1, align=4)


def decode_two_bit(data: bytes, n: int, threshold: float) -> Floats:
    """Return the ``n`` values of a 2-bit payload: 01 is +0, padding is ignored, as in MXNet."""
    with np.errstate(all="ignore"):
        t = np.float32(threshold)
    values = {0b11: t, 0b10: -t, 0b00: np.float32(0), 0b01: np.float32(0)}
    out = np.empty(n, np.float32)
    for i in range(n):
        out[i] = values[data[i // 4] >> (6 - 2 * (i % 4)) & 3]
    return out


def decode_one_bit(data: bytes, n: int) -> Floats:
    """Return the ``n`` values of a 1-bit payload: +1 for a 1, -1 for a 0; padding is ignored."""
    out = np.empty(n, np.float32)
    for i in range(n):
        out[i] = 1 if data[i // 8] & (0x80 >> (i % 8)) else -1
    return out


def server_threshold(t: float) -> np.float32:
    """Return the threshold of a server, which reads it from a text with six decimals.

    Reading the text as float64 first does not round twice: a number with six decimals that is not
    half-way between two float32 numbers is too far from all half-way points.
    """
    with np.errstate(all="ignore"):
        return np.float32(float("%f" % float(np.float32(t))))  # noqa: UP031
