"""Adapter for numcodecs and Zarr 2: every codec under the id ``gcodec``.

This module needs the extra ``numcodecs``.
"""

from __future__ import annotations

from typing import Any

try:
    from numcodecs.abc import Codec as NumcodecsCodec
    from numcodecs.compat import ensure_bytes, ensure_ndarray, ndarray_copy
except ImportError as error:
    raise ImportError(
        "gcodec.numcodecs needs numcodecs: pip install 'gcodec[numcodecs]'"
    ) from error

import numpy as np

from gcodec import api
from gcodec.arrays.nonfinite import NonFinite, check_nonfinite
from gcodec.arrays.protocols import check_unmasked
from gcodec.arrays.source import NUMPY_DTYPES, inspect
from gcodec.codec import CodecLike
from gcodec.codecs import parse_encoder
from gcodec.errors import LimitExceeded, ParameterError
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import Limits
from gcodec.wire.kinds import check_choice
from gcodec.wire.primitives import DTYPE_CODES, FLOATS, UNCONVERTED

_LIMITS = Limits(max_elements=2**31, max_bytes=2**31)  # of chunks, which Zarr reads without `out`


class GradientCodec(NumcodecsCodec):
    """Numcodecs codec that stores each chunk as a frame.

    Parameters
    ----------
    spec : str, mapping or Codec
        Codec of the frames; see `gcodec.parse`.
    seed : int
        Seed for stochastic rounding, from 0 to 2**64 - 1. All chunks use the same seed, so their
        rounding errors are correlated.
    nonfinite : {"raise", "zero", "propagate"}
        Policy for NaN and Inf; see `gcodec.encode`.
    dtype : str, optional
        Dtype of the values in buffers without a dtype, such as bytes: float32, float16, bfloat16
        or float64.

    Raises
    ------
    ParameterError
        If an argument is invalid.

    Examples
    --------
    >>> import numcodecs, numpy as np
    >>> from gcodec.numcodecs import GradientCodec
    >>> numcodecs.register_codec(GradientCodec)  # installing gcodec does this, too
    >>> codec = numcodecs.get_codec({"id": "gcodec", "spec": "mxnet-2bit"})
    >>> codec.decode(codec.encode(np.array([[0.7, -0.2, -0.9]], np.float32)))
    array([[ 0.5,  0. , -0.5]], dtype=float32)
    """

    codec_id = "gcodec"

    def __init__(
        self,
        spec: CodecLike,
        seed: int = 0,
        nonfinite: NonFinite = "raise",
        dtype: str | None = None,
    ) -> None:
        codec = parse_encoder(spec)
        self.spec, self._keeps_every_bit = str(codec), codec.keeps_every_bit
        self.seed = check_seed(seed)
        check_nonfinite(nonfinite)
        self.nonfinite = nonfinite
        if dtype is not None:
            check_choice("dtype", dtype, FLOATS)
        self.dtype = dtype

    def encode(self, buf: object) -> bytes:
        """Compress an array or another buffer to a frame.

        An array in Fortran order is encoded as its transpose, which has the same memory. With
        ``lossless``, chunks of all dtypes of frames are allowed, and every chunk decodes to the
        same bytes.

        Raises
        ------
        TypeError
            If the codec does not support the dtype or its byte order, or the buffer has no dtype
            and `dtype` is None; or if the array is masked.
        ValueError
            If the memory is not contiguous; or a `ParameterError`, for more than 2 GiB or as for
            `gcodec.encode`.
        """
        check_unmasked(buf, "buf")
        array = ensure_ndarray(buf)
        if array.nbytes > _LIMITS.max_bytes:
            allowed = f"at most {_LIMITS.max_bytes}, which `decode` accepts"
            raise ParameterError.of("buf.nbytes", array.nbytes, allowed)
        _check_byte_order(array, "buf")  # a frame does not store it, and Zarr 2 relies on it
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError("buf is not contiguous: must be one block of memory")
        if not array.flags.c_contiguous:
            array = array.T
        if self.dtype is not None and array.dtype.kind in "ui":
            array = _reinterpreted(array.reshape(-1), self.dtype)
        dtypes = DTYPE_CODES if self._keeps_every_bit else FLOATS
        if array.dtype.name not in dtypes:
            raise _dtype_error(array)
        return api.encode(array, self.spec, seed=self.seed, nonfinite=self.nonfinite)

    def decode(self, buf: object, out: object = None) -> Any:
        """Decode a frame.

        Parameters
        ----------
        buf : bytes-like
            The frame.
        out : writable buffer, optional
            Buffer of the size of the result, which receives the result.

        Returns
        -------
        ndarray or `out`

        Raises
        ------
        FormatError
            If the frame is damaged or is no frame.
        ParameterError
            If `out` has another size, or is read-only.
        TypeError
            If `out` has another byte order than this machine, or is masked.
        """
        data = ensure_bytes(buf)
        if out is None:
            return api.decode(data, limits=_LIMITS)
        check_unmasked(out, "out")
        target = ensure_ndarray(out)
        _check_byte_order(target, "out")
        if not target.flags.writeable:
            raise ParameterError("out is read-only: must be writable")
        most = max(target.nbytes, 1)
        try:
            values = api.decode(data, limits=Limits(most, most))
        except LimitExceeded:
            raise ParameterError.of("out.nbytes", target.nbytes, "the size of the frame") from None
        if target.nbytes != values.nbytes:
            raise ParameterError.of("out.nbytes", target.nbytes, f"{values.nbytes}")
        ndarray_copy(values, out)
        return out


def _dtype_error(array: np.ndarray) -> TypeError:
    """Return the error for a dtype that the codec does not support."""
    name = array.dtype.name
    if name not in UNCONVERTED:
        return inspect(array, "buf").dtype_error(name)
    return TypeError(
        f"buf has dtype {name}: must be {', '.join(FLOATS)}; the spec lossless keeps all other "
        "dtypes of frames, and dtype='float32' states the dtype of buffers that have none"
    )


def _check_byte_order(array: np.ndarray, name: str) -> None:
    if not array.dtype.isnative:
        native = array.dtype.newbyteorder("=").str
        raise TypeError(
            f"{name} has dtype {array.dtype.str}: must have the byte order of this machine, as "
            f"{native}"
        )


def _reinterpreted(array: np.ndarray, dtype: str) -> np.ndarray:
    """View (n,) bytes, or integers that are bit patterns, as values of `dtype`."""
    value_dtype = NUMPY_DTYPES[dtype]
    itemsize = value_dtype.itemsize
    if array.itemsize not in (1, itemsize):
        raise TypeError(f"buf has dtype {array.dtype}: must be bytes, or the bits of {dtype}")
    if array.nbytes % itemsize:
        raise ParameterError.of("buf.nbytes", array.nbytes, f"a multiple of {itemsize}")
    return array.view(np.uint8).view(value_dtype)
