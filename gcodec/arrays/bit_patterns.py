"""Bit patterns of the elements of a tensor, as unsigned integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.convert import is_converted, whole
from gcodec.runtime.device import device_of
from gcodec.wire.primitives import INTEGERS, ITEMSIZE


def bits_of(values: Any, dtype: str) -> np.ndarray:
    """Return the bit patterns of the values of a `Tensor`; a view of their memory where possible.

    Parameters
    ----------
    values : (n,) array or ConvertedArray
        Values as `Source.read` returns them; of a device, the patterns.
    dtype : str
        Dtype of the tensor.

    Returns
    -------
    (n,) unsigned array
        As many bits as the dtype has.
    """
    unsigned = np.dtype(f"<u{ITEMSIZE[dtype]}")
    bits: np.ndarray
    if dtype == "bool":
        # The memory of a boolean may contain bytes above 1; they all mean True.
        bits = convert.as_booleans(values.view(np.uint8))
    elif device_of(values) is not None:
        bits = values
    elif dtype in INTEGERS:
        bits = values.view(unsigned)
    elif is_converted(values) and values.dtype == dtype:
        source = values.source
        if values.finite:
            source = source.view(NUMPY_DTYPES[dtype]).copy()
            source[~np.isfinite(source)] = 0
        bits = source.view(unsigned)
    elif dtype == "float64":
        bits = convert.to_float64(whole(values)).view(unsigned)
    elif dtype == "float32":
        bits = whole(values).view(unsigned)
    else:
        bits = convert.to_16_bits(whole(values), dtype)
    return bits
