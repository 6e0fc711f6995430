"""Zarr and numcodecs with lossless: all dtypes of frames, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

ARRAYS = (
    np.array([[1.5, -0.0, np.nan], [np.inf, 0, 3e-40]], np.float32),
    np.arange(12, dtype=np.int64).reshape(3, 4),
    np.array([True, False, True]),
)


@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: str(x.dtype))
def test_numcodecs_keeps_every_bit(x: np.ndarray) -> None:
    pytest.importorskip("numcodecs")
    from gcodec.numcodecs import GradientCodec

    codec = GradientCodec("lossless")
    assert codec.decode(codec.encode(x)).tobytes() == x.tobytes()
    if x.dtype.kind != "f":
        with pytest.raises(TypeError, match="has dtype"):
            GradientCodec("raw").encode(x)


@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: str(x.dtype))
def test_zarr_keeps_every_bit(x: np.ndarray) -> None:
    zarr = pytest.importorskip("zarr")
    from gcodec.zarr import GradientCodec

    store = zarr.storage.MemoryStore()
    kind = {"shape": x.shape, "dtype": x.dtype, "compressors": None}
    array = zarr.create_array(store, serializer=GradientCodec("lossless"), **kind)
    array[:] = x
    assert array[:].tobytes() == x.tobytes()
