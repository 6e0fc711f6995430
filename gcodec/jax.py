"""Adapter for JAX: arrays of any device, also inside `jax.jit`.

Under `jit` shapes are static, so `encode_padded` returns the frame at the start of a buffer of the
largest size. `roundtrip` encodes and decodes in one callback. Codecs run on the host. This module
needs the extra ``jax``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

try:
    import jax
except ImportError as error:
    raise ImportError("gcodec.jax needs JAX: pip install 'gcodec[jax]'") from error

import numpy as np

from gcodec import api
from gcodec.arrays.frameworks import JAX
from gcodec.arrays.nonfinite import NonFinite
from gcodec.arrays.source import Source
from gcodec.codec import Codec, CodecLike
from gcodec.codecs import parse_encoder
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import WORK_LIMITS, Limits
from gcodec.wire.primitives import FLOATS, INTEGERS, UNCONVERTED

# Outside of `jit`, JAX compiles and keeps each callback, so equal calls pass the same function.
_KEPT = 1024


def encode(
    x: jax.Array,
    codec: CodecLike,
    *,
    seed: int | jax.Array = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    key: bytes | None = None,
) -> bytes:
    """Compress one array to a frame, outside of `jit`.

    The function copies an array on another device to the host and calls `gcodec.encode`.

    Parameters
    ----------
    x : jax.Array
        Array of float32, float16, bfloat16 or float64.
    codec : str, mapping or Codec
        Codec and its parameters; see `gcodec.parse`.
    seed : int or integer array
        Seed for stochastic rounding; see `roundtrip`. Its value must be known.
    name, nonfinite, key
        See `gcodec.encode`.

    Returns
    -------
    bytes
        The frame.

    Raises
    ------
    ParameterError, TypeError
        See `gcodec.encode`.

    Examples
    --------
    >>> import gcodec.jax, jax.numpy as jnp
    >>> frame = gcodec.jax.encode(jnp.ones((2, 3)), "sign")
    >>> gcodec.jax.decode(frame).shape
    (2, 3)
    """
    host: Any = x
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not x.is_deleted():
        host = jax.device_get(x)
    if isinstance(seed, jax.core.Tracer):
        allowed = "known; inside of jit, call roundtrip or encode_padded"
        raise ParameterError.of("seed", seed, allowed)
    number = _number_of(_checked_seed(seed))
    return api.encode(host, codec, seed=number, name=name, nonfinite=nonfinite, key=key)


def decode(
    frame: bytes | bytearray | memoryview,
    *,
    like: jax.Array | None = None,
    device: Any = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> jax.Array:
    """Decode a frame to an array, outside of `jit`.

    Parameters
    ----------
    frame : bytes-like
        One frame.
    like : jax.Array, optional
        Array of the frame's shape, whose dtype, device and sharding the result takes.
    device : jax.Device or Sharding, optional
        Device of the result if `like` is not given. Default: JAX's default device.
    limits, key
        See `gcodec.decode`.

    Returns
    -------
    jax.Array
        Array of the frame's shape, in the dtype of `like` or of the frame. Without `like`,
        float64 becomes float32 unless JAX has x64 enabled.

    Raises
    ------
    FormatError, ParameterError
        See `gcodec.decode`. Without x64, also a `ParameterError` for integers beyond 32 bits.

    Examples
    --------
    >>> import gcodec.jax, jax.numpy as jnp
    >>> frame = gcodec.jax.encode(jnp.ones(3, jnp.bfloat16), "sign")
    >>> str(gcodec.jax.decode(frame).dtype)
    'bfloat16'
    """
    array = api.decode(frame, like=like, limits=limits, key=key)
    if like is not None:
        return array
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    _check_held("frame", array, held)
    with np.errstate(over="ignore"):  # beyond float32 is Inf, as with `like`
        array = array.astype(held, copy=False)
    return jax.device_put(array, device)


def roundtrip(x: jax.Array, codec: CodecLike, *, seed: int | jax.Array = 0) -> jax.Array:
    """Encode and decode an array; also under `jit`, `vmap` and `grad`.

    The computation fails if the array contains NaN or Inf and the codec does not accept them. The
    derivative is straight-through: `grad` passes gradients through as if the result were `x`.
    Forward-mode derivatives, such as those of `jvp`, are not available.

    Parameters
    ----------
    x : array
        Array of float32, float16, bfloat16 or float64; it may be traced.
    codec : str, mapping or Codec
        Codec and its parameters; see `gcodec.parse`.
    seed : int or integer array
        Seed for stochastic rounding; see `gcodec.encode`. An array, such as the step count, may
        be traced. Without x64, an array of JAX has at most 32 bits.

    Returns
    -------
    jax.Array
        Decoded array, of the shape and dtype of `x`.

    Raises
    ------
    ParameterError, TypeError
        If an argument is invalid. Without x64, also for integers of NumPy beyond 32 bits.

    Examples
    --------
    >>> import gcodec.jax, jax
    >>> step = jax.jit(lambda gradient: gcodec.jax.roundtrip(gradient, "mxnet-2bit"))
    >>> step(jax.numpy.array([0.7, -0.2, -0.9])).tolist()
    [0.5, 0.0, -0.5]
    >>> jax.grad(lambda x: (gcodec.jax.roundtrip(x, "sign:scale=none") * x).sum())(
    ...     jax.numpy.array([0.75, -0.25])
    ... ).tolist()
    [1.75, -1.25]
    """
    codec = parse_encoder(codec)
    seed = _checked_seed(seed)
    through = _straight_through(codec, np.shape(x), _encodable_dtype(x, codec))
    if isinstance(seed, jax.core.Tracer):  # over whose axes of `shard_map` the gradient varies
        x = jax.numpy.where(_true(seed), x, x)
    return through(x, seed)


@functools.lru_cache(_KEPT)
def _straight_through(codec: Codec, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return the function (values, seed) of `roundtrip`."""
    result_type = jax.ShapeDtypeStruct(shape, dtype)

    def on_host(values: Any, seed: Any) -> np.ndarray:
        frame = _encode(values, codec, seed)
        return api.decode(frame, limits=_limits(np.size(values)))

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def through(values: object, seed: object) -> Any:
        return _call(on_host, result_type, values, seed)

    def forward(values: object, seed: object) -> tuple[Any, Any]:
        return through(values, seed), jax.numpy.zeros_like(values)

    def backward(zeros: Any, gradient: Any) -> tuple[Any, None]:
        # The difference is exact, also for -0, and has the sharding of the values.
        is_float = jax.numpy.issubdtype(zeros.dtype, np.floating)
        return (gradient - zeros if is_float else gradient), None

    through.defvjp(forward, backward)
    return through


def encode_padded(
    x: jax.Array, codec: CodecLike, *, seed: int | jax.Array = 0
) -> tuple[jax.Array, jax.Array]:
    """Compress one array to a frame, padded with zeros; also under `jit` and `vmap`.

    Parameters
    ----------
    x, codec, seed
        See `roundtrip`.

    Returns
    -------
    buffer : (m,) uint8 array
        The frame followed by zeros; m is the most bytes of a frame for this shape and dtype, at
        most ``codec.max_encoded_nbytes(x.size, dtype=x.dtype.name)``.
    length : () int32 array
        Number of bytes of the frame.

    Raises
    ------
    ParameterError
        If the frame may take 2 GiB or more; see also `roundtrip`.

    Examples
    --------
    >>> import gcodec.jax, jax, jax.numpy as jnp
    >>> buffer, length = jax.jit(lambda x: gcodec.jax.encode_padded(x, "sign"))(jnp.ones(9))
    >>> buffer.dtype, buffer.size >= int(length)
    (dtype('uint8'), True)
    """
    codec = parse_encoder(codec)
    seed = _checked_seed(seed)
    dtype, shape = _encodable_dtype(x, codec).name, np.shape(x)
    max_nbytes = codec._with_shape(shape)._most_encoded_nbytes(math.prod(shape), None, dtype)
    if max_nbytes > np.iinfo(np.int32).max:
        raise ParameterError.of("x.shape", shape, "small enough for a frame below 2 GiB")

    results = (jax.ShapeDtypeStruct((max_nbytes,), np.uint8), jax.ShapeDtypeStruct((), np.int32))
    buffer, length = _call(_padded_encoder(codec, max_nbytes), results, x, seed)
    return buffer, length


@functools.lru_cache(_KEPT)
def _padded_encoder(codec: Codec, max_nbytes: int) -> Callable[..., object]:
    """Return the callback of `encode_padded`."""

    def on_host(values: object, seed: object) -> tuple[np.ndarray, np.ndarray]:
        frame = _encode(values, codec, seed)
        buffer = np.zeros(max_nbytes, np.uint8)
        buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
        return buffer, np.array(len(frame), np.int32)

    return on_host


def decode_padded(buffer: Any, length: Any, like: Any) -> jax.Array:
    """Decode a frame of `encode_padded`; also under `jit` and `vmap`.

    The computation fails, with an error of JAX, if the frame is damaged or has another shape or
    dtype than `like`.

    Parameters
    ----------
    buffer : (m,) uint8 array
        Buffer that begins with the frame.
    length : () integer array
        Number of bytes of the frame.
    like : array or ShapeDtypeStruct
        Object with the shape and dtype that the frame must have.

    Returns
    -------
    jax.Array
        Decoded array, of the shape and dtype of `like`.

    Raises
    ------
    ParameterError
        If `buffer` or `length` has another shape or dtype, or `like` is no array.

    Examples
    --------
    >>> import gcodec.jax, jax, jax.numpy as jnp
    >>> x = jnp.array([1.0, -1.0])
    >>> buffer, length = gcodec.jax.encode_padded(x, "sign")
    >>> jax.jit(lambda b, n: gcodec.jax.decode_padded(b, n, like=x))(buffer, length).tolist()
    [1.0, -1.0]
    """
    dtype, ndim = _dtype("buffer", buffer), np.ndim(buffer)
    if dtype != np.uint8 or ndim != 1:
        kind = f"{dtype} of {ndim} dimensions"
        raise ParameterError.of("buffer", kind, "a vector of uint8, as encode_padded returns it")
    is_integer = type(length) is int or _dtype("length", length).kind in "iu"
    if not is_integer or np.shape(length):
        raise ParameterError.of("length", length, "an integer, as encode_padded returns it")
    result_type = jax.ShapeDtypeStruct(np.shape(like), _dtype("like", like))
    result: jax.Array = _call(_padded_decoder(result_type), result_type, buffer, length)
    return result


@functools.lru_cache(_KEPT)
def _padded_decoder(result_type: jax.ShapeDtypeStruct) -> Callable[..., object]:
    """Return the callback of `decode_padded`."""

    def on_host(buffer: object, length: Any) -> np.ndarray:
        data = np.asarray(buffer)[: int(length)].tobytes()
        frame = Frame.from_bytes(data, limits=WORK_LIMITS)  # `like` bounds the memory
        if (frame.shape, frame.dtype) != (result_type.shape, result_type.dtype.name):
            allowed = f"{(result_type.shape, result_type.dtype.name)}, the shape and dtype of like"
            raise ParameterError.of("frame", (frame.shape, frame.dtype), allowed)
        array: np.ndarray = frame.decode()
        return array

    return on_host


def _encodable_dtype(x: object, codec: Codec) -> np.dtype:
    """Return the dtype of an array, whose values may not be known yet.

    Raises
    ------
    TypeError
        If the codec does not encode arrays of this dtype.
    ParameterError
        If it is an array of NumPy whose integers JAX would cut to 32 bits.
    """
    dtype = _dtype("x", x)
    if dtype.name not in FLOATS and not (codec.accepts_all_dtypes and dtype.name in UNCONVERTED):
        raise Source(x, "x", JAX).dtype_error(dtype.name)
    if isinstance(x, (np.ndarray, np.generic)):
        _check_held("x", np.asarray(x), dtype)
    return dtype


def _check_held(name: str, array: np.ndarray, held: np.dtype) -> None:
    """Raise `ParameterError` for integers that the dtype which JAX holds them in cannot have."""
    if array.dtype.name in INTEGERS and (array != array.astype(held)).any():
        allowed = f"integers of {held.name}, since JAX has x64 disabled"
        raise ParameterError.of(f"{name}.dtype", array.dtype.name, allowed)


def _call(on_host: Callable[..., object], result_types: object, *arguments: object) -> Any:
    """Call a function on the host, also under `jit`, `vmap` and `shard_map`.

    If the arguments of `jit` lie on several devices, a result that nothing else computes with
    would have the sharding of a single device, which no later operation of JAX accepts. And
    `shard_map` takes the result of a callback for equal on all devices, which it is not. Outside
    of `jit`, JAX compiles each operation by itself, so `jit` joins callback and selection.
    """
    if any(_lies_on_several_devices(argument) for argument in arguments):
        return jax.jit(_call, static_argnums=(0, 1))(on_host, result_types, *arguments)
    results = jax.pure_callback(on_host, result_types, *arguments, vmap_method="sequential")
    true = _true(*arguments)
    # A selection is exact for every dtype, and known to `vmap` in every release of JAX.
    return jax.tree.map(lambda x: jax.numpy.where(true, x, jax.numpy.zeros_like(x)), results)


def _lies_on_several_devices(argument: Any) -> bool:
    is_known = isinstance(argument, jax.Array) and not isinstance(argument, jax.core.Tracer)
    return is_known and len(argument.devices()) > 1


def _true(*arguments: object) -> Any:
    """Return True, which varies over the axes of `shard_map` over which the arguments vary."""
    true: Any = True
    for argument in arguments:
        if isinstance(argument, jax.core.Tracer):
            true |= (argument != argument).any()
    return true


def _encode(values: object, codec: Codec, seed: object) -> bytes:
    values, number = np.asarray(values), _number_of(seed)
    return api.encode(values, codec, seed=number, nonfinite="propagate")


def _number_of(seed: object) -> int:
    """Return the seed that `_checked_seed` returned as an integer."""
    words = np.asarray(seed)
    return int(words[0]) << 32 | int(words[1]) if words.ndim else int(words)


def _checked_seed(seed: Any) -> object:
    """Return a seed for a callback: an array of JAX as it is, others as two words of 32 bits.

    JAX passes an integer of Python to a callback as int32. The value of an array may not be known
    yet.

    Raises
    ------
    ParameterError
        If the seed is no integer, or is out of range.
    """
    dtype = getattr(seed, "dtype", None)
    if dtype is not None:
        if not jax.dtypes.issubdtype(dtype, np.integer):
            raise ParameterError.of("seed.dtype", str(dtype), "that of an integer")
        if np.shape(seed):
            raise ParameterError.of("seed.shape", np.shape(seed), "(), that of one integer")
    if isinstance(seed, jax.Array):
        return seed
    number = check_seed(seed if dtype is None else int(seed))
    return np.array(divmod(number, 1 << 32), np.uint32)


def _dtype(name: str, x: object) -> np.dtype[Any]:
    """Return the dtype that JAX can return for an array: float32 for float64 without x64."""
    if not hasattr(x, "dtype"):
        raise ParameterError.of(name, type(x).__name__, "an array")
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise ParameterError.of(f"{name}.dtype", str(x.dtype), "a dtype of NumPy")
    return jax.dtypes.canonicalize_dtype(x.dtype)


def _limits(n: int) -> Limits:
    """Return limits for a tensor of n elements."""
    return Limits(max(n, 1), max(8 * n, 1))
