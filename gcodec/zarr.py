"""Adapter for Zarr 3: every codec as a serializer under the name ``gcodec``.

    zarr.create_array(store, ..., serializer=gcodec.zarr.GradientCodec("qsgd:s=15"))

This module needs the extra ``zarr``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

try:
    from zarr.abc.codec import ArrayBytesCodec
except ImportError as error:
    raise ImportError("gcodec.zarr needs Zarr 3: pip install 'gcodec[zarr]'") from error

import numpy as np

from gcodec import api
from gcodec.arrays.nonfinite import NonFinite, check_nonfinite
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codec import CodecLike
from gcodec.codecs import parse_encoder
from gcodec.errors import Corrupt, ParameterError
from gcodec.frame import Frame
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import WORK_LIMITS
from gcodec.wire.primitives import DTYPE_CODES, FLOATS


@dataclass(frozen=True)
class GradientCodec(ArrayBytesCodec):
    """Zarr serializer that stores each chunk as a frame.

    With ``lossless``, arrays may have all dtypes of frames, and every chunk decodes to the
    same bytes.

    Parameters
    ----------
    spec : str, mapping or Codec
        Codec of the frames; see `gcodec.parse`.
    seed : int
        Seed for stochastic rounding, from 0 to 2**64 - 1. All chunks use the same seed, so their
        rounding errors are correlated.
    nonfinite : {"raise", "zero", "propagate"}
        Policy for NaN and Inf; see `gcodec.encode`.

    Raises
    ------
    ParameterError
        If an argument is invalid.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> from gcodec.zarr import GradientCodec
    >>> array = zarr.create_array(
    ...     zarr.storage.MemoryStore(),
    ...     shape=(4,),
    ...     dtype="float32",
    ...     serializer=GradientCodec("mxnet-2bit"),
    ...     compressors=None,
    ... )
    >>> array[:] = np.array([0.7, -0.2, -0.9, 0.1], np.float32)
    >>> array[:3]
    array([ 0.5,  0. , -0.5], dtype=float32)
    """

    is_fixed_size = False

    spec: str
    seed: int
    nonfinite: NonFinite

    def __init__(self, spec: CodecLike, seed: int = 0, nonfinite: NonFinite = "raise") -> None:
        check_nonfinite(nonfinite)
        object.__setattr__(self, "spec", str(parse_encoder(spec)))
        object.__setattr__(self, "seed", check_seed(seed))
        object.__setattr__(self, "nonfinite", nonfinite)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GradientCodec:
        """Create the serializer from an array's metadata."""
        configuration = data.get("configuration", {})
        keys, allowed = sorted(configuration), "spec, and optionally seed and nonfinite"
        if "spec" not in keys or not {"spec", "seed", "nonfinite"}.issuperset(keys):
            raise ParameterError.of("configuration", keys, allowed)
        return cls(**configuration)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for an array's metadata."""
        configuration = {"spec": self.spec, "seed": self.seed, "nonfinite": self.nonfinite}
        return {"name": "gcodec", "configuration": configuration}

    def validate(self, *, shape: object, dtype: object, chunk_grid: object) -> None:
        """Raise `ParameterError` unless the array has a supported dtype."""
        native = _native(dtype)
        names = [*DTYPE_CODES] if parse_encoder(self.spec).keeps_every_bit else [*FLOATS]
        if native not in [NUMPY_DTYPES[name] for name in names]:
            raise ParameterError.of("dtype", native.name, f"one of {', '.join(names)}")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: object) -> int:
        """Raise NotImplementedError: the size of a frame depends on the values."""
        raise NotImplementedError

    async def _encode_single(self, chunk_array: Any, chunk_spec: Any) -> object:
        values, fill_value = chunk_array.as_numpy_array(), chunk_spec.fill_value
        try:
            frame = await asyncio.to_thread(
                api.encode, values, self.spec, seed=self.seed, nonfinite=self.nonfinite
            )
        except ParameterError as error:
            if np.isfinite(fill_value):
                raise
            filled = f"the rest of a partly written chunk has fill_value={fill_value}"
            raise ParameterError(f"{error}; {filled}") from None
        return chunk_spec.prototype.buffer.from_bytes(frame)

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> object:
        shape, dtype = tuple(chunk_spec.shape), _native(chunk_spec.dtype)
        values = await asyncio.to_thread(_decoded, chunk_bytes.to_bytes(), shape, dtype)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(values)


def _decoded(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Decode the frame of a chunk, which has this shape and dtype and so bounds the memory."""
    frame = Frame.from_bytes(data, limits=WORK_LIMITS)
    if frame.shape != shape:
        raise Corrupt(f"the frame's shape is {frame.shape}, the chunk's {shape}")
    if NUMPY_DTYPES[frame.dtype] != dtype:
        raise Corrupt(f"the frame's dtype is {frame.dtype}, the chunk's {dtype}")
    values: np.ndarray = frame.decode()
    return values


def _native(dtype: Any) -> np.dtype[Any]:
    """Return a dtype of Zarr as one of NumPy, in native byte order."""
    native = np.dtype(dtype.to_native_dtype() if hasattr(dtype, "to_native_dtype") else dtype)
    return native.newbyteorder("=")
