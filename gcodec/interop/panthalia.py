"""Panthalia: the message of seven tensors, positions and levels of DCT coefficients of chunks.

The object is a dict of NumPy arrays by Panthalia's names; `to_safetensors` turns it into the bytes
that are sent, and `decode` reads both. The tensor is flattened, filled with zeros to whole chunks,
and of each chunk the k coefficients of largest magnitude are sent as levels of 8 bits of their
range. That range is 1e-8 at least, as in the original: chunks of about that size decode to values
far from theirs. The original sends positions in no defined order; here they rise. The basis is
the original's up to 256 points, whose entries are off by some 1e-6; levels and values agree with
it but for the last bits of sums, which depend on its BLAS.

No frame of gcodec holds this message without loss: ``dct8:values=affine8`` has the exact basis, no
least range and ranges in place of scales. So this module has no ``to_frame``.

Source: ritser-labs/panthalia-worker 183bb11, ``demo.py``. Arrays are those of the host.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gcodec.arrays.intake import empty_like_shape, nonfinite_error
from gcodec.codecs.dct8 import chunks, transform
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.interop.objects import host_tensor
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.kernels.transform.basis import MOST_POINTS
from gcodec.limits import Limits
from gcodec.wire.kinds import Sizes, check_integer
from gcodec.wire.primitives import MAX_NDIM

_MOST = 2**24  # elements of a chunk
_CHUNK = Sizes(3, MOST_POINTS, _MOST)
_LEAST_RANGE = np.float32(1e-8)
# The number of dimensions of each tensor, and its dtype.
_TENSORS: dict[str, tuple[int, type[np.generic]]] = {
    "freq_idxs": (2, np.int64),
    "freq_vals_int8": (2, np.int8),
    "freq_scales": (1, np.float32),
    "freq_zero_points": (1, np.float32),
    "chunk_shape": (1, np.int64),
    "orig_shape": (1, np.int64),
    "pad_count": (0, np.int64),
}


def encode(x: Any, chunk: Any = 64, k: int = 32) -> dict[str, np.ndarray]:
    """Compress a tensor to Panthalia's message.

    Parameters
    ----------
    x : array
        On the host; otherwise as for `gcodec.encode`. The residual is the caller's: pass u = x +
        residual, and keep u − ``decode(message)`` as the next one.
    chunk : int, tuple of int or str
        Sizes of a chunk, of one to three dimensions; one integer means a square, which is all
        that Panthalia itself reads.
    k : int
        Coefficients of each chunk; all, where it has fewer.

    Returns
    -------
    dict of str to array
        For B chunks: ``freq_idxs`` (B, k) int64, ``freq_vals_int8`` (B, k) int8, ``freq_scales``
        and ``freq_zero_points``, the least value, (B,) float32, ``chunk_shape`` and
        ``orig_shape`` int64, ``pad_count`` () int64.

    Raises
    ------
    ParameterError
        If an argument is out of range, `x` holds NaN or Inf, or a coefficient passes float32.
    TypeError
        For what is no array of floats, or lies on a device.
    """
    sides = _CHUNK.check(
        "chunk", (chunk, chunk) if isinstance(chunk, (int, np.integer)) else chunk
    )
    k = min(check_integer("k", k, 1, _MOST, "a positive integer"), math.prod(sides))
    tensor = host_tensor(x, "Panthalia")
    values = tensor.values
    cut = chunks.flat(values.size, sides)
    found = transform.select(values, cut, k, _basis)
    if found is None and not all_finite(values):
        raise nonfinite_error(values)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        places, coefficients = found or (np.empty((1, k)), np.full((1, k), np.inf))
        least = coefficients.min(axis=1, keepdims=True)
        spread = coefficients.max(axis=1, keepdims=True) - least
        scales = np.maximum(spread, _LEAST_RANGE) / np.float32(255)
        levels = np.clip(np.rint((coefficients - least) / scales) - 128, -128, 127)
    if not np.isfinite(scales).all():
        raise ParameterError("x: must not pass float32 when it is transformed")
    return {
        "freq_idxs": places.astype(np.int64),
        "freq_vals_int8": levels.astype(np.int8),
        "freq_scales": scales[:, 0],
        "freq_zero_points": least[:, 0],
        "chunk_shape": np.array(sides, np.int64),
        "orig_shape": np.array(tensor.shape, np.int64),
        "pad_count": np.array(cut.count * cut.size - values.size, np.int64),
    }


def to_safetensors(message: Mapping[str, np.ndarray]) -> bytes:
    """Return a message as the bytes that Panthalia sends."""
    from safetensors.numpy import save

    return bytes(save({name: np.asarray(message[name], order="C") for name in _TENSORS}))


def decode(message: Any, *, limits: Limits | None = None) -> np.ndarray:
    """Decode Panthalia's message.

    Parameters
    ----------
    message : mapping of str to array, or bytes-like
        The seven tensors, positions in any order; or a safetensors file of them. A missing
        ``pad_count`` is not looked at.
    limits : Limits, optional
        What decoding may allocate; default ``Limits()``.

    Returns
    -------
    float32 array
        Of the shape that the message tells.

    Raises
    ------
    FormatError
        If tensors are missing, of other dtypes, or do not fit together; if a position is beyond
        its chunk or comes twice; if a scale is negative, NaN or infinite.
    """
    tensors = _checked(message if isinstance(message, Mapping) else _loaded(message))
    places, levels = tensors["freq_idxs"], tensors["freq_vals_int8"]
    scales, least = tensors["freq_scales"], tensors["freq_zero_points"]
    try:
        sides = _CHUNK.check("chunk_shape", tensors["chunk_shape"].tolist())
    except ParameterError as error:
        raise Corrupt(str(error)) from None
    shape = tensors["orig_shape"].tolist()
    if len(shape) > MAX_NDIM or any(side < 0 for side in shape):
        raise Corrupt(f"orig_shape={shape} is none")
    n = math.prod(shape)
    Limits.given(limits).check("the message", n, 4 * n)
    cut = chunks.flat(n, sides)
    count, k = places.shape
    rows = {len(levels), len(scales), len(least), cut.count}
    pads = tensors.get("pad_count", cut.count * cut.size - n)
    if rows != {count} or levels.shape[1] != k or pads != cut.count * cut.size - n:
        raise Corrupt(f"{count} chunks of {sides} are not those of {shape}")
    order = np.argsort(places, axis=1)
    places = np.take_along_axis(places, order, axis=1)
    if ((places < 0) | (places >= cut.size)).any() or (np.diff(places, axis=1) == 0).any():
        raise Corrupt("a position is beyond its chunk, or comes twice")
    if not (np.isfinite(scales) & (scales >= 0) & np.isfinite(least)).all():
        raise Corrupt("a scale must be finite and not negative, a least value finite")
    levels = np.take_along_axis(levels, order, axis=1).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        coefficients = (levels + np.float32(128)) * scales[:, None] + least[:, None]
    out = empty_like_shape(n)
    starts = np.arange(0, places.size + 1, k) if k else np.zeros(count + 1, np.int64)
    flat = places.reshape(-1).astype(np.int32), coefficients.reshape(-1)
    transform.restore(starts, *flat, cut, out, _basis)
    if not all_finite(out):
        raise Corrupt("a value passes float32")
    return out.reshape(shape)


@functools.lru_cache(maxsize=8)
def _basis(n: int) -> np.ndarray:
    """Return the basis as the original makes it: cosines of angles rounded to float32 thrice."""
    at = np.arange(n, dtype=np.float32)
    angles = np.float32(np.pi) * (at + np.float32(0.5)) * at[:, None] / np.float32(n)
    rows = np.cos(angles.astype(np.float64)).astype(np.float32)
    rows[0] *= np.float32(math.sqrt(1 / 2))
    return np.asarray(rows * np.float32(math.sqrt(2 / n)), np.float32)


def _loaded(data: Any) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(bytes(memoryview(data))))
    except SafetensorError as error:
        raise Corrupt(f"no safetensors file: {error}") from None
    except (KeyError, TypeError, ValueError) as error:  # dtypes that NumPy does not know
        raise Corrupt(f"a tensor cannot be read: {error}") from None


def _checked(message: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a message, each of its dtype and number of dimensions."""
    found = {}
    for name, (ndim, dtype) in _TENSORS.items():
        if name not in message:
            if name == "pad_count":
                continue
            raise Truncated(f"the tensor {name} is missing")
        array = np.asarray(message[name])
        if array.dtype != dtype or array.ndim != ndim:
            raise Corrupt(f"{name} is of {array.dtype} and {array.ndim} dimensions")
        found[name] = array
    return found
