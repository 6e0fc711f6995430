"""gcodec for Zarr 3: any codec as a serializer under the name ``gcodec``.

    zarr.create_array(store, ..., serializer=gcodec.zarr.GradientCodec("qsgd:s=15"))

Needs the extra ``zarr``.
"""

from __future__ import annotations

import asyncio
import math
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
from gcodec.codecs import parse
from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import Limits
from gcodec.wire.primitives import FLOATS


@dataclass(frozen=True)
class GradientCodec(ArrayBytesCodec):
    """Chunks as frames of one codec.

    Parameters
    ----------
    spec : str, mapping or Codec
        See `gcodec.parse`.
    seed : int
        From 0 to 2**64 - 1; of every chunk, so their rounding errors are alike.
    nonfinite : {"raise", "zero", "propagate"}

    Raises
    ------
    ParameterError
    """

    is_fixed_size = False

    spec: str
    seed: int = 0
    nonfinite: NonFinite = "raise"

    def __init__(self, spec: Any, seed: int = 0, nonfinite: NonFinite = "raise") -> None:
        check_nonfinite(nonfinite)
        object.__setattr__(self, "spec", str(parse(spec)))
        object.__setattr__(self, "seed", check_seed(seed))
        object.__setattr__(self, "nonfinite", nonfinite)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GradientCodec:
        """Make the codec of an array's metadata."""
        return cls(**data["configuration"])

    def to_dict(self) -> dict[str, Any]:
        """Return what an array's metadata says of it."""
        configuration = {"spec": self.spec, "seed": self.seed, "nonfinite": self.nonfinite}
        return {"name": "gcodec", "configuration": configuration}

    def validate(self, *, shape: Any, dtype: Any, chunk_grid: Any) -> None:
        """Raise `ParameterError` for an array of a dtype that is not taken."""
        native = np.dtype(dtype.to_native_dtype() if hasattr(dtype, "to_native_dtype") else dtype)
        if native.newbyteorder("=") not in [NUMPY_DTYPES[name] for name in FLOATS]:
            raise ParameterError.of("dtype", native.name, f"one of {', '.join(FLOATS)}")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """Raise NotImplementedError: sizes differ."""
        raise NotImplementedError

    async def _encode_single(self, chunk_array: Any, chunk_spec: Any) -> Any:
        values = chunk_array.as_numpy_array()
        frame = await asyncio.to_thread(
            api.encode, values, self.spec, seed=self.seed, nonfinite=self.nonfinite
        )
        return chunk_spec.prototype.buffer.from_bytes(frame)

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        n = max(math.prod(chunk_spec.shape), 1)
        values = await asyncio.to_thread(
            api.decode, chunk_bytes.to_bytes(), limits=Limits(n, 8 * n)
        )
        if values.shape != tuple(chunk_spec.shape):
            raise Corrupt(f"the frame's shape is {values.shape}, the chunk's {chunk_spec.shape}")
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(values)
