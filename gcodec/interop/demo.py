"""DeMo: the largest DCT coefficients of each tile of a parameter, with positions of 64 bits.

A message is a dict of what a worker of DeMo's reference compresses a parameter to. It sends two of
the four parts, since all workers have the shapes:

- ``sparse_idx``: (…, k) int64, the positions of the sent coefficients in the flattened tile.
- ``sparse_val``: (…, k), the coefficients in the dtype of the parameter.
- ``xshape``: the shape of the transformed parameter: tiles and width of a vector; else leading
  dimensions, rows and columns of tiles, height and width.
- ``totalk``: the number of elements of a tile.

Tiles and transform are those of ``gcodec.interop.psyche``, which also states how values can differ
from the original's. Values in full precision do not fit into the levels of dct8, so this module
has no ``to_frame``.

Source: Peng et al., "DeMo: Decoupled momentum optimization", arXiv 2411.19870. This module was
written from descriptions of the reference, whose code has no licence. Arrays must be on the host.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import demo
>>> message = demo.encode(np.array([[4, 4], [-2, -2]], np.float32), k=1)
>>> message["sparse_idx"].tolist(), message["sparse_val"].round(3).tolist(), message["xshape"]
([[[2]]], [[[6.0]]], (1, 1, 2, 2))
>>> demo.decode(message).round(3)
array([[ 3.,  3.],
       [-3., -3.]], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.interop.objects import host_tensor, part_of
from gcodec.interop.tiles import (
    Coefficients,
    check_shape,
    largest,
    leading_of,
    restored,
    size_of_tile,
)
from gcodec.limits import Limits


def encode(x: Any, k: int = 32, chunk: int = 64) -> dict[str, Any]:
    """Compress a parameter to a message of DeMo.

    Parameters
    ----------
    x : array
        Tensor of at least one dimension on the host, with a dtype that `gcodec.encode` accepts.
        The caller keeps the residual, as for ``gcodec.interop.panthalia``.
    k : int
        Coefficients that a tile sends; all if a tile has fewer.
    chunk : int
        Largest side of a tile, up to 4096.

    Returns
    -------
    dict
        Two arrays, a tuple of int, and an int.

    Raises
    ------
    ParameterError
        If an argument is out of range, or `x` is a scalar, is empty, contains NaN or Inf, or has a
        coefficient that exceeds its dtype.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    sent = largest(x, "DeMo", k, chunk)
    return {
        "sparse_idx": sent.positions.astype(np.int64).reshape(*sent.leading, -1),
        "sparse_val": sent.values.reshape(*sent.leading, -1),
        "xshape": sent.shape,
        "totalk": size_of_tile(sent.shape),
    }


def decode(
    message: Mapping[str, Any], *, dtype: str = "float32", limits: Limits | None = None
) -> np.ndarray:
    """Decode a message of DeMo.

    Parameters
    ----------
    message : mapping
        The four parts; see `encode`. Positions may have any order. Arrays may be tensors on the
        host.
    dtype : {"float32", "bfloat16", "float16", "float64"}
        Dtype of the result, to which each float32 value is rounded.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    array
        Decoded tensor in its shape.

    Raises
    ------
    FormatError
        If a part is missing or contradicts another one, a position is outside its tile or comes
        twice, or a value is not finite.
    ParameterError
        If the dtype is not one of the floats.
    TypeError
        If ``sparse_val`` is not an array of floats on the host.
    """
    positions = part_of(message, "sparse_idx")
    sizes, size = part_of(message, "xshape"), part_of(message, "totalk")
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise Corrupt("xshape is not a sequence of integers")
    shape = tuple(sizes.tolist())
    check_shape(shape, limits)
    if "sparse_val" not in message:
        raise Truncated("the array sparse_val is missing")
    values = host_tensor(message["sparse_val"], "DeMo")
    leading = leading_of(shape)
    k = positions.shape[-1] if positions.ndim else 0
    if size.ndim or size.dtype.kind not in "iu" or size != size_of_tile(shape):
        raise Corrupt(f"totalk={size} contradicts xshape={shape}")
    if positions.dtype != np.int64 or not 1 <= k <= size:
        raise Corrupt(f"sparse_idx has the dtype {positions.dtype} and {k} positions for a tile")
    if not positions.shape == values.shape == (*leading, k):
        raise Corrupt(f"{positions.shape} positions and {values.shape} values: xshape is {shape}")
    count = math.prod(leading)
    sent = Coefficients(positions.reshape(count, k), values.values.reshape(count, k), shape)
    return restored(sent, dtype)
