"""gcodec for numcodecs, and so for Zarr 2: any codec under the id ``gcodec``.

Needs the extra ``numcodecs``.
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
from gcodec.arrays.source import NUMPY_DTYPES, inspect
from gcodec.codecs import parse
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import Limits
from gcodec.wire.primitives import FLOATS, INTEGERS


class GradientCodec(NumcodecsCodec):
    """Frames of one codec.

    Parameters
    ----------
    spec : str, mapping or Codec
        See `gcodec.parse`.
    seed : int
        From 0 to 2**64 - 1; of every chunk, so their rounding errors are alike.
    nonfinite : {"raise", "zero", "propagate"}
    dtype : str, optional
        Of the values in a buffer that says none, such as bytes: float32, float16, bfloat16 or
        float64.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> import numcodecs, numpy as np
    >>> from gcodec.numcodecs import GradientCodec
    >>> numcodecs.register_codec(GradientCodec)  # what the installed package does by itself
    >>> codec = numcodecs.get_codec({"id": "gcodec", "spec": "mxnet-2bit"})
    >>> codec.decode(codec.encode(np.array([[0.7, -0.2, -0.9]], np.float32)))
    array([[ 0.5,  0. , -0.5]], dtype=float32)
    """

    codec_id = "gcodec"

    def __init__(
        self,
        spec: Any,
        seed: int = 0,
        nonfinite: NonFinite = "raise",
        dtype: str | None = None,
    ) -> None:
        self.spec = str(parse(spec))
        self.seed = check_seed(seed)
        check_nonfinite(nonfinite)
        self.nonfinite = nonfinite
        if dtype is not None and dtype not in FLOATS:
            raise ParameterError.of("dtype", dtype, f"one of {', '.join(FLOATS)}, or None")
        self.dtype = dtype

    def encode(self, buf: Any) -> bytes:
        """Compress an array, or another buffer, to a frame.

        An array in Fortran order is encoded as its transpose, which has the same memory.

        Raises
        ------
        TypeError
            For values that are not floating-point, and bytes where there is no `dtype`.
        ValueError
            For memory that is not contiguous; `ParameterError` is one as well.
        """
        array = ensure_ndarray(buf)
        if array.dtype.kind in "OMm":
            raise TypeError(f"buf has dtype {array.dtype}: must hold floating-point values")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise ValueError("buf is not contiguous: must be one block of memory")
        if not array.flags.c_contiguous:
            array = array.T
        if self.dtype is not None and array.dtype.kind in "ui":
            array = _values(array.reshape(-1), self.dtype)
        if array.dtype.name in INTEGERS:
            raise inspect(array, "buf").dtype_error(array.dtype.name)
        frame: bytes = api.encode(array, self.spec, seed=self.seed, nonfinite=self.nonfinite)
        return frame

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a frame.

        Parameters
        ----------
        buf : bytes-like
        out : writable buffer, optional
            Of the size of the result.

        Returns
        -------
        ndarray or `out`

        Raises
        ------
        FormatError
        """
        data = ensure_bytes(buf)
        if out is None:
            return api.decode(data)
        target = ensure_ndarray(out)
        values = api.decode(data, limits=Limits(max(target.nbytes, 1), max(target.nbytes, 1)))
        if target.nbytes != values.nbytes:
            raise ParameterError.of("out.nbytes", target.nbytes, f"{values.nbytes}")
        ndarray_copy(values, out)
        return out


def _values(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return what (n,) bytes, or integers that are the bits of values, stand for."""
    wanted = np.dtype(NUMPY_DTYPES[dtype])
    if array.itemsize not in (1, wanted.itemsize):
        raise TypeError(f"buf has dtype {array.dtype}: must be bytes, or the bits of {dtype}")
    if array.nbytes % wanted.itemsize:
        raise ParameterError.of("buf.nbytes", array.nbytes, f"a multiple of {wanted.itemsize}")
    return array.view(np.uint8).view(wanted)
