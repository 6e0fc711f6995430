"""Norms of buckets, as what levels are counted in: found, and read. They are kept on the host."""

from __future__ import annotations

import numpy as np

from gcodec.arrays import nonfinite_error
from gcodec.errors import ParameterError, Truncated
from gcodec.kernels.device import host
from gcodec.kernels.levels import Scale
from gcodec.kernels.norms import Norm, norms, read_norms
from gcodec.kernels.pack import check_padding
from gcodec.kernels.reduce import all_finite

NORM_NBITS = 32


def scale_of(values: np.ndarray, bucket: int, norm: Norm, s: int) -> Scale:
    """Find the norms of all buckets of (n,) float32 values; refuse what is not finite.

    Raises
    ------
    ParameterError
    """
    found = host(norms(values, bucket, norm))
    largest = found.max(initial=0)  # NaN, if there is one
    with np.errstate(over="ignore"):
        decoded = np.float32(s) * np.float32(float(largest) / s)
    if np.isfinite(decoded):
        return Scale(found, bucket, s)
    if all_finite(values):
        raise ParameterError("x: its norm must not pass float32")
    raise nonfinite_error(values)


def read_scale(data: np.ndarray, nbits: int, count: int, bucket: int, s: int) -> Scale:
    """Read the norms of so many buckets, with which a payload of `nbits` bits begins.

    Raises
    ------
    FormatError
    """
    taken = NORM_NBITS * count
    if nbits < taken:
        raise Truncated(f"the payload has {nbits} bits, the norms {taken}")
    check_padding(data, nbits)
    return Scale(read_norms(host(data[: taken // 8])), bucket, s)
