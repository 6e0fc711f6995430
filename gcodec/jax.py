"""gcodec for JAX: arrays of any device in and out, and inside `jax.jit` through a callback.

Under `jit` shapes are static, so a frame lies at the start of a buffer as long as the longest one,
`encode_padded`; and `roundtrip` gives what the far end would decode, in one callback. Codecs run
on the host. Needs the extra ``jax``.
"""

from __future__ import annotations

import math
from typing import Any

try:
    import jax
except ImportError as error:
    raise ImportError("gcodec.jax needs JAX: pip install 'gcodec[jax]'") from error

import numpy as np

from gcodec import api
from gcodec.arrays.nonfinite import NonFinite
from gcodec.codecs import parse
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import Limits
from gcodec.wire.primitives import INTEGERS


def encode(
    x: jax.Array,
    codec: Any,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    key: bytes | None = None,
) -> bytes:
    """Compress one array, of any device, to a frame; outside of `jit`.

    As `gcodec.encode`, but an array that is not on the host is copied there.

    Parameters
    ----------
    x : jax.Array
        float32, float16, bfloat16 or float64.
    codec : str, mapping or Codec
    seed, name, nonfinite, key
        See `gcodec.encode`.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError, TypeError
        See `gcodec.encode`.
    """
    host = x if isinstance(x, jax.core.Tracer) else jax.device_get(x)
    frame: bytes = api.encode(host, codec, seed=seed, name=name, nonfinite=nonfinite, key=key)
    return frame


def decode(
    frame: bytes | bytearray | memoryview,
    *,
    like: jax.Array | None = None,
    device: Any = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> jax.Array:
    """Decode a frame to an array; outside of `jit`.

    Parameters
    ----------
    frame : bytes-like
    like : jax.Array, optional
        The result takes its dtype, device and sharding; its shape must be the frame's.
    device : jax.Device or Sharding, optional
        Where there is no `like`: of the result. Default: JAX's own.
    limits, key
        See `gcodec.decode`.

    Returns
    -------
    jax.Array
        Of the frame's shape; of its dtype where `like` asks for no other, but that of float64 is
        float32 unless JAX has it enabled.

    Raises
    ------
    FormatError, ParameterError
        See `gcodec.decode`.
    """
    array = api.decode(frame, like=like, limits=limits, key=key)
    return array if like is not None else jax.device_put(array, device)


def roundtrip(x: Any, codec: Any, *, seed: Any = 0) -> jax.Array:
    """Return what the far end of a wire would decode; also under `jit` and `vmap`.

    NaN and Inf are left to the codec where it takes them, and refused, which fails the
    computation, where it does not. It has no derivative: apply it to gradients, not to what they
    are taken of.

    Parameters
    ----------
    x : array
        float32, float16, bfloat16 or float64; it may be traced.
    codec : str, mapping or Codec
    seed : int or integer array
        See `gcodec.encode`; an array may be traced, such as the count of steps.

    Returns
    -------
    jax.Array
        Of the shape and dtype of `x`.

    Examples
    --------
    >>> import gcodec.jax, jax
    >>> step = jax.jit(lambda gradient: gcodec.jax.roundtrip(gradient, "mxnet-2bit"))
    >>> step(jax.numpy.array([0.7, -0.2, -0.9])).tolist()
    [0.5, 0.0, -0.5]
    """
    codec = parse(codec)
    _check_seed(seed)

    def on_host(values: Any, seed: Any) -> np.ndarray:
        frame = _encode(values, codec, seed)
        array: np.ndarray = api.decode(frame, limits=_of_elements(np.size(values)))
        return array

    shape = jax.ShapeDtypeStruct(np.shape(x), _dtype(x))
    result: jax.Array = jax.pure_callback(on_host, shape, x, seed, vmap_method="sequential")
    return result


def encode_padded(x: Any, codec: Any, *, seed: Any = 0) -> tuple[jax.Array, jax.Array]:
    """Compress one array to a frame and zeros behind it; also under `jit` and `vmap`.

    Parameters
    ----------
    x, codec, seed
        As for `roundtrip`.

    Returns
    -------
    buffer : (m,) uint8 array
        The frame, then zeros; m is ``codec.max_encoded_nbytes(x.size)``.
    length : int32 array of no dimension
        Bytes of the frame.

    Raises
    ------
    ParameterError
        If such a frame may be of 2 GiB or more.
    """
    codec = parse(codec)
    _check_seed(seed)
    dtype = _dtype(x).name
    kept = dtype if codec.takes_integers and dtype in INTEGERS else "float32"
    room = codec._of_shape(np.shape(x)).max_encoded_nbytes(math.prod(np.shape(x)), dtype=kept)
    if room > np.iinfo(np.int32).max:
        raise ParameterError.of("x.shape", np.shape(x), "of which a frame is below 2 GiB")

    def on_host(values: Any, seed: Any) -> tuple[np.ndarray, np.ndarray]:
        frame = _encode(values, codec, seed)
        buffer = np.zeros(room, np.uint8)
        buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
        return buffer, np.array(len(frame), np.int32)

    shapes = (jax.ShapeDtypeStruct((room,), np.uint8), jax.ShapeDtypeStruct((), np.int32))
    buffer, length = jax.pure_callback(on_host, shapes, x, seed, vmap_method="sequential")
    return buffer, length


def decode_padded(buffer: Any, length: Any, like: Any) -> jax.Array:
    """Decode a frame of `encode_padded`; also under `jit` and `vmap`.

    Parameters
    ----------
    buffer : (m,) uint8 array
    length : integer array of no dimension
    like : array or ShapeDtypeStruct
        Of the shape and dtype of the tensor, which the frame must have; only these are looked at.

    Returns
    -------
    jax.Array
        Of the shape and dtype of `like`.
    """
    shape = jax.ShapeDtypeStruct(np.shape(like), _dtype(like))

    def on_host(buffer: Any, length: Any) -> np.ndarray:
        frame = np.asarray(buffer)[: int(length)].tobytes()
        array: np.ndarray = api.decode(frame, limits=_of_elements(shape.size))
        if (array.shape, array.dtype) != (shape.shape, shape.dtype):
            found = (array.shape, array.dtype.name)
            allowed = f"{(shape.shape, shape.dtype.name)}, the shape and dtype of like"
            raise ParameterError.of("frame", found, allowed)
        return array

    result: jax.Array = jax.pure_callback(on_host, shape, buffer, length, vmap_method="sequential")
    return result


def _encode(values: Any, codec: Any, seed: Any) -> bytes:
    frame: bytes = api.encode(np.asarray(values), codec, seed=int(seed), nonfinite="propagate")
    return frame


def _check_seed(seed: Any) -> None:
    """Raise `ParameterError` for what is no integer, as its value may be known later."""
    dtype = getattr(seed, "dtype", None)
    if dtype is None:
        check_seed(seed)
    elif not jax.dtypes.issubdtype(dtype, np.integer) or np.shape(seed):
        raise ParameterError.of("seed.dtype", str(dtype), "that of an integer of no dimension")


def _dtype(x: Any) -> np.dtype[Any]:
    """Return the dtype of an array, which has one that JAX can return."""
    found: np.dtype[Any] = jax.dtypes.canonicalize_dtype(x.dtype)
    return found


def _of_elements(n: int) -> Limits:
    return Limits(max(n, 1), max(8 * n, 1))
