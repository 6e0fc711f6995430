"""DeMo: the largest DCT coefficients of each tile of a parameter, with positions of 64 bits.

A message is a dict of what a worker of DeMo's reference compresses a parameter to. It sends two of
the four parts, since all workers have the shapes:

- ``sparse_idx``: (…, k) int64, the positions of the sent coefficients in the flattened tile.
- ``sparse_val``: (…, k), the coefficients in the dtype of the parameter.
- ``xshape``: the shape of the transformed parameter: tiles and width of a vector; else leading
  dimensions, rows and columns of tiles, height and width.
- ``totalk``: the number of elements of a tile.

Tiles and transform are those of ``gcodec.interop.psyche``, which also states how values can differ
from the original's. A frame of ``dct8:layout=tiles,values=float32`` has the same positions and
coefficients as a message, in fewer bits; see `to_frame`.

Source: Peng et al., "DeMo: Decoupled momentum optimization", arXiv 2411.19870. This module was
written from descriptions of the reference, whose code has no license. Arrays must be on the host.

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
>>> frame = demo.to_frame(message)
>>> print(frame.codec, demo.from_frame(frame)["sparse_val"] == message["sparse_val"])
dct8:chunk=2x2,k=1,layout=tiles,values=float32,index=fixed [[[ True]]]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.errors import Corrupt
from gcodec.frame import Frame, FrameLike
from gcodec.interop import tiles
from gcodec.interop.objects import part_of
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.wire.primitives import FLOATS


@exact
def encode(x: TensorLike, k: int = 32, chunk: int = 64) -> dict[str, Any]:
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
    return _message(tiles.largest(x, "DeMo", k, chunk))


@exact
def decode(
    message: Mapping[str, object], *, dtype: str = "float32", limits: Limits | None = None
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
        If a part is missing or contradicts another one, ``sparse_val`` is not an array of floats,
        a position is outside its tile or comes twice, or a value is not finite.
    ParameterError
        If the dtype is not one of the floats.
    TypeError
        If the message is no mapping, or a part is on a device.
    """
    return tiles.restored(_read(message, limits), dtype, limits)


@exact
def to_frame(
    message: Mapping[str, object], *, name: str | None = None, limits: Limits | None = None
) -> Frame:
    """Put a message into a frame of ``dct8:layout=tiles`` that decodes to the same values.

    The frame has the dtype of the coefficients. Those that are levels of 8 bits are sent as these,
    and others with ``values=float32``.

    Parameters
    ----------
    message, limits
        See `decode`.
    name : str, optional
        Name of the tensor, stored in the frame.

    Returns
    -------
    Frame
        Frame with positions in ascending order.

    Raises
    ------
    ParameterError
        If the tensor is neither a vector nor a matrix, a tile has more than 65536 elements, or a
        float64 is no float32.
    FormatError, TypeError
        As for `decode`.
    """
    return tiles.to_frame(_read(message, limits), name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> dict[str, Any]:
    """Return the message with the coefficients of a frame of ``dct8:layout=tiles``.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of a vector or a matrix, whose tiles divide it.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Returns
    -------
    dict
        As from `encode`, with coefficients in the dtype of the frame.

    Raises
    ------
    ParameterError
        If the frame has another codec or layout, tiles that do not divide the tensor, or a dtype
        that does not have the coefficients.
    FormatError
        If the frame is damaged.
    """
    return _message(tiles.from_frame(frame, limits))


def _message(sent: tiles.Coefficients) -> dict[str, object]:
    leading = tiles.leading_of(sent.shape)
    return {
        "sparse_idx": sent.positions.astype(np.int64).reshape(*leading, -1),
        "sparse_val": sent.values.reshape(*leading, -1),
        "xshape": sent.shape,
        "totalk": tiles.size_of_tile(sent.shape),
    }


def _read(message: Mapping[str, object], limits: Limits | None) -> tiles.Coefficients:
    """Return the coefficients of a message, with positions in its order."""
    positions = part_of(message, "sparse_idx")
    sizes, size = part_of(message, "xshape"), part_of(message, "totalk")
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise Corrupt("xshape is not a sequence of integers")
    if size.ndim or size.dtype.kind not in "iu":
        raise Corrupt("totalk is not an integer of 64 bits")
    shape = tuple(sizes.tolist())
    leading = tiles.checked_leading(shape, size, limits)
    values = part_of(message, "sparse_val")
    k = positions.shape[-1] if positions.ndim else 0
    if positions.dtype != np.int64 or not 1 <= k <= size:
        allowed = f"must have 1 to {size}, as int64"
        raise Corrupt(f"sparse_idx has {k} positions for a tile, as {positions.dtype}: {allowed}")
    if not positions.shape == values.shape == (*leading, k):
        raise Corrupt(f"{positions.shape} positions and {values.shape} values: xshape is {shape}")
    if values.dtype.name not in FLOATS:
        raise Corrupt(f"sparse_val has the dtype {values.dtype}: takes {', '.join(FLOATS)}")
    count = math.prod(leading)
    return tiles.Coefficients(positions.reshape(count, k), values.reshape(count, k), shape)
