"""Bit patterns of the elements of a tensor, as unsigned integers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.errors import Corrupt
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.convert import is_converted, whole
from gcodec.runtime import Array
from gcodec.runtime.device import device_of, host
from gcodec.wire.primitives import FLOATS8, ITEMSIZE, UNCONVERTED


@functools.cache
def bits_dtype(itemsize: int) -> np.dtype[Any]:
    """Return the dtype of bit patterns of a number of bytes."""
    return np.dtype(f"<u{itemsize}")


def bits_of(values: Any, dtype: str) -> np.ndarray:
    """Return the bit patterns of the values of a `Tensor`; a view of their memory where possible.

    Parameters
    ----------
    values : (n,) array or ConvertedArray
        Values as `Source.read` returns them, also bit patterns of a device.
    dtype : str
        Dtype of the tensor.

    Returns
    -------
    (n,) unsigned array
        As many bits as the dtype has.
    """
    unsigned = bits_dtype(ITEMSIZE[dtype])
    bits: np.ndarray
    if dtype == "bool":
        # The memory of a boolean may contain bytes above 1; they all mean True.
        bits = convert.as_booleans(values.view(np.uint8))
    elif dtype in UNCONVERTED or (not is_converted(values) and values.dtype == unsigned):
        bits = values.view(unsigned)
    elif is_converted(values) and values.dtype == dtype:
        bits = values.source.view(unsigned)
        if values.finite:
            bits = convert.finite_patterns(bits, dtype)
    elif dtype == "float64":
        bits = convert.to_float64(whole(values)).view(unsigned)
    elif dtype == "float32":
        bits = whole(values).view(unsigned)
    else:
        bits = convert.to_16_bits(whole(values), dtype)
    return bits


def dtype_beside(array: Array, dtype: str) -> np.dtype[Any]:
    """Return the dtype of values beside an array; on a device, short floats are bit patterns."""
    is_short = dtype in ("float16", "bfloat16", *FLOATS8) and device_of(array) is not None
    return bits_dtype(ITEMSIZE[dtype]) if is_short else NUMPY_DTYPES[dtype]


def check_booleans(bits: Array) -> None:
    """Raise `Corrupt` unless all of (n,) bytes are 0 or 1."""
    if host(byte_counts(bits))[2:].any():
        position = int(np.argmax(host(bits) > 1))
        raise Corrupt(f"element {position} is neither true nor false")
