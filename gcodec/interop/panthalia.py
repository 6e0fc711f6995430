"""Panthalia: seven tensors with positions and quantized levels of the DCT coefficients of chunks.

A message is a dict of NumPy arrays under Panthalia's names. `to_safetensors` converts it to the
bytes on the wire, and `decode` reads both. The encoder flattens the tensor and pads it with zeros
to whole chunks. From each chunk it sends the k coefficients of largest magnitude, as 8-bit levels
of their range. As in the original, that range is at least 1e-8, so chunks of about that magnitude
decode to values far from their own. The original sends positions in no defined order; here they
ascend. Up to 256 points, the basis is the original's, whose entries have errors of about 1e-6.
Levels and values agree with the original except for the last bits of sums, which depend on its
BLAS.

No frame of gcodec can store this message losslessly: ``dct8:values=affine8`` has the exact basis,
no minimum range, and ranges instead of scales. This module therefore has no ``to_frame``.

Source: ritser-labs/panthalia-worker 183bb11, ``spl/util/demo.py``. Arrays must be on the host.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import panthalia
>>> message = panthalia.encode(np.ones((4, 4), np.float32), chunk=4, k=1)
>>> sorted(message)[:3]
['chunk_shape', 'freq_idxs', 'freq_scales']
>>> panthalia.decode(message)[0].round(1)
array([1., 1., 1., 1.], dtype=float32)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.protocols import BytesLike, TensorLike
from gcodec.codecs.dct8 import chunks, transform
from gcodec.errors import Corrupt, ParameterError
from gcodec.interop.objects import (
    ascending_order,
    checked_shape,
    host_tensor,
    object_bytes,
    part_of,
)
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.kernels.transform.basis import MOST_POINTS
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import Sizes, check_integer

_MAX_CHUNK = 2**24  # elements
_SMALL_CHUNK = 2**16  # elements that any limits allow
_CHUNK = Sizes(3, MOST_POINTS, _MAX_CHUNK)
_MIN_RANGE = np.float32(1e-8)
# Number of dimensions and dtype of each tensor.
_TENSORS: dict[str, tuple[int, type[np.generic]]] = {
    "freq_idxs": (2, np.int64),
    "freq_vals_int8": (2, np.int8),
    "freq_scales": (1, np.float32),
    "freq_zero_points": (1, np.float32),
    "chunk_shape": (1, np.int64),
    "orig_shape": (1, np.int64),
    "pad_count": (0, np.int64),
}


@exact
def encode(
    x: TensorLike, chunk: int | tuple[int, ...] | str = 64, k: int = 32
) -> dict[str, np.ndarray]:
    """Compress a tensor to a message of Panthalia.

    Parameters
    ----------
    x : array
        Tensor on the host, with a dtype that `gcodec.encode` accepts. The caller keeps the
        residual: pass u = x + residual, and keep u − ``decode(message)`` for the next step.
    chunk : int, tuple of int or str
        Sizes of a chunk in one to three dimensions. One integer means a square, the only form
        that Panthalia itself reads.
    k : int
        Number of coefficients per chunk, at most all of them.

    Returns
    -------
    dict of str to array
        For B chunks: ``freq_idxs`` (B, k) int64, ``freq_vals_int8`` (B, k) int8, ``freq_scales``
        (B,) float32, ``freq_zero_points``, the smallest coefficient, (B,) float32,
        ``chunk_shape`` and ``orig_shape`` int64, ``pad_count`` () int64.

    Raises
    ------
    ParameterError
        If an argument is out of range, `x` contains NaN or Inf, or a coefficient exceeds float32.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    sizes = _CHUNK.check(
        "chunk", (chunk, chunk) if isinstance(chunk, (int, np.integer)) else chunk
    )
    k = min(check_integer("k", k, 1, _MAX_CHUNK, "a positive integer"), math.prod(sizes))
    tensor = host_tensor(x, "Panthalia")
    values = tensor.values
    layout = chunks.flat(values.size, sizes)
    selected = transform.select(values, layout, k, _basis)
    if selected is None and not all_finite(values):
        raise nonfinite_error(values)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        positions, coefficients = selected or (np.empty((1, k)), np.full((1, k), np.inf))
        lowest = coefficients.min(axis=1, keepdims=True)
        ranges = coefficients.max(axis=1, keepdims=True) - lowest
        scales = np.maximum(ranges, _MIN_RANGE) / np.float32(255)
        levels = np.clip(np.rint((coefficients - lowest) / scales) - 128, -128, 127)
    if not np.isfinite(scales).all():
        raise ParameterError("x: its transform must not exceed float32")
    return {
        "freq_idxs": positions.astype(np.int64),
        "freq_vals_int8": levels.astype(np.int8),
        "freq_scales": scales[:, 0],
        "freq_zero_points": lowest[:, 0],
        "chunk_shape": np.array(sizes, np.int64),
        "orig_shape": np.array(tensor.shape, np.int64),
        "pad_count": np.array(layout.count * layout.size - values.size, np.int64),
    }


def to_safetensors(message: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes that Panthalia sends for a message."""
    from safetensors.numpy import save

    tensors = _checked(message).items()
    return bytes(save({name: np.asarray(tensor, order="C") for name, tensor in tensors}))


@exact
def decode(
    message: Mapping[str, object] | BytesLike, *, limits: Limits | None = None
) -> np.ndarray:
    """Decode a message of Panthalia.

    Parameters
    ----------
    message : mapping of str to array, or bytes-like
        The seven tensors, with positions in any order, or a safetensors file that contains them.
        ``pad_count`` may be missing.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``. With chunks of more than 65536 elements,
        they hold for the padded tensor.

    Returns
    -------
    float32 array
        Decoded tensor in its original shape.

    Raises
    ------
    FormatError
        If a tensor is missing, has another dtype, or contradicts another tensor; if a position is
        outside its chunk or repeated; if a scale is negative, NaN or infinite.
    """
    tensors = _checked(message if isinstance(message, Mapping) else _loaded(message))
    positions, levels = tensors["freq_idxs"], tensors["freq_vals_int8"]
    scales, lowest = tensors["freq_scales"], tensors["freq_zero_points"]
    try:
        sizes = _CHUNK.check("chunk_shape", tensors["chunk_shape"].tolist())
    except ParameterError as error:
        raise Corrupt(str(error)) from None
    shape = tensors["orig_shape"].tolist()
    limits = Limits.or_default(limits)
    try:
        _, n = checked_shape(shape, limits)
    except ParameterError:
        raise Corrupt(f"orig_shape={shape} is not the shape of a tensor") from None
    layout = chunks.flat(n, sizes)
    count, k = positions.shape
    padding = layout.count * layout.size - n
    if (
        {len(levels), len(scales), len(lowest), layout.count} != {count}
        or levels.shape[1] != k
        or tensors.get("pad_count", padding) != padding
    ):
        raise Corrupt(f"{count} chunks of {sizes} do not make up a tensor of shape {shape}")
    if layout.size > _SMALL_CHUNK:  # the decoder works on whole chunks
        limits.check("the padded tensor", n + padding, 4 * (n + padding))
    order = ascending_order(positions, layout.size, "chunk")
    positions = np.take_along_axis(positions, order, axis=1)
    if not (np.isfinite(scales) & (scales >= 0) & np.isfinite(lowest)).all():
        raise Corrupt("a scale must be finite and not negative, a zero point finite")
    levels = np.take_along_axis(levels, order, axis=1).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        coefficients = (levels + np.float32(128)) * scales[:, None] + lowest[:, None]
    out = result_beside(n, np.float32, None)
    starts = np.arange(0, positions.size + 1, k) if k else np.zeros(count + 1, np.int64)
    flat = positions.reshape(-1).astype(np.int32)
    transform.restore(starts, flat, coefficients.reshape(-1), layout, out, _basis)
    if not all_finite(out):
        raise Corrupt("a value exceeds float32")
    return out.reshape(shape)


@functools.lru_cache(maxsize=8)
def _basis(n: int) -> np.ndarray:
    """Return the original's basis: the float32 angles of its cosines are rounded three times."""
    index = np.arange(n, dtype=np.float32)
    angles = np.float32(np.pi) * (index + np.float32(0.5)) * index[:, None] / np.float32(n)
    rows = np.cos(angles.astype(np.float64)).astype(np.float32)
    rows[0] *= np.float32(math.sqrt(1 / 2))
    return np.asarray(rows * np.float32(math.sqrt(2 / n)), np.float32)


def _loaded(data: BytesLike) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = object_bytes(data, "message").tobytes()
    try:
        return dict(load(file))
    except SafetensorError as error:
        raise Corrupt(f"not a safetensors file: {error}") from None
    except (KeyError, TypeError, ValueError) as error:  # dtypes that NumPy lacks
        raise Corrupt(f"a tensor cannot be read: {error}") from None


def _checked(message: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the tensors of a message, after a check of dtypes and numbers of dimensions."""
    tensors = {}
    for name, (ndim, dtype) in _TENSORS.items():
        if name == "pad_count" and name not in message:
            continue
        array = part_of(message, name)
        if array.dtype != dtype or array.ndim != ndim:
            raise Corrupt(f"{name} has dtype {array.dtype} and {array.ndim} dimensions")
        tensors[name] = array
    return tensors
