"""The largest DCT coefficients of tiles whose sides divide those of a tensor.

DeMo and Psyche send them. Their messages and Templar's have tiles with the same sides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codecs.dct8 import DCT8, Chunks, DCT8Symbols, Levels, levels, transform
from gcodec.codecs.sparseloco import largest_divisor
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    ascending_order,
    check_dtype,
    host_tensor,
    opened_frame,
    result_of,
)
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.kernels.transform.basis import MOST_POINTS
from gcodec.limits import Limits
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import check_integer
from gcodec.wire.primitives import FLOATS, MAX_NDIM

MOST_DIMENSIONS = MAX_NDIM + 2  # of a transformed tensor


class Coefficients(NamedTuple):
    """The sent coefficients of each tile.

    Attributes
    ----------
    positions : (tiles, k) integer array
        Positions in the flattened tile.
    values : (tiles, k) array
        The coefficients at these positions.
    shape : tuple of int
        Shape of the transformed tensor: (tiles, width) for a vector; for others the leading
        dimensions, then the rows and columns of tiles, then height and width of a tile.
    """

    positions: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]


def leading_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of tiles in the shape of a transformed tensor.

    In messages, they precede the k sent coefficients of a tile.
    """
    return shape[:-1] if len(shape) == 2 else shape[:-2]


def size_of_tile(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a tile, from the shape of a transformed tensor."""
    return math.prod(shape[len(leading_of(shape)) :])


def largest(x: TensorLike, peer: str, k: int, chunk: int) -> Coefficients:
    """Return the k coefficients of largest magnitude in each tile of a tensor.

    Parameters
    ----------
    x : array
        Tensor of at least one dimension on the host.
    peer : str
        Name of the peer, for error messages.
    k : int
        Number of coefficients; all if a tile has fewer.
    chunk : int
        Largest side of a tile, up to 4096.

    Returns
    -------
    Coefficients
        Ascending positions, and values in the dtype of the tensor.

    Raises
    ------
    ParameterError
        If an argument is out of range, or the tensor is a scalar, is empty, contains NaN or Inf,
        or has a coefficient that exceeds its dtype.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    tensor = host_tensor(x, peer)
    k = check_integer("k", k, 1, 1 << 31, "a positive integer")
    chunk = check_integer("chunk", chunk, 1, MOST_POINTS, f"an integer from 1 to {MOST_POINTS}")
    if not tensor.shape or 0 in tensor.shape:
        raise ParameterError.of("x.shape", tensor.shape, "not empty, of at least one dimension")
    cut = tensor.shape[-2:]
    sides = [largest_divisor(size, chunk) for size in cut]
    tiles = [size // side for size, side in zip(cut, sides, strict=True)]
    shape = (*tensor.shape[:-2], *tiles, *sides)
    layout = _layout(shape)
    selected = transform.select(tensor.values, layout, min(k, layout.size))
    if selected is not None:
        positions, values = selected
        with np.errstate(over="ignore", under="ignore"):
            rounded = values.astype(NUMPY_DTYPES[tensor.dtype])
        if np.isfinite(rounded).all():
            return Coefficients(positions, rounded, shape)
    check_finite(tensor.values)
    raise ParameterError(f"x: its transform must not exceed {tensor.dtype}")


def checked_leading(
    shape: tuple[int, ...], size: int | np.ndarray, limits: Limits | None
) -> tuple[int, ...]:
    """Check the shape of a transformed tensor and the size of its tiles; return `leading_of` it.

    Raises
    ------
    Corrupt
        If no tensor has this transform, or its tiles have another size.
    Unsupported
        If a tile has a side above 4096.
    LimitExceeded
        If the tensor exceeds the limits.
    """
    if (len(shape) != 2 and not 4 <= len(shape) <= MOST_DIMENSIONS) or min(shape) < 1:
        raise Corrupt(f"xshape={shape} is not the shape of tiles of a tensor")
    n = math.prod(shape)
    Limits.or_default(limits).check("the message", n, 4 * n)
    if max(shape[len(leading_of(shape)) :]) > MOST_POINTS:
        raise Unsupported(f"xshape={shape} has a side of a tile above {MOST_POINTS}")
    if size != size_of_tile(shape):
        raise Corrupt(f"totalk={size} contradicts xshape={shape}")
    return leading_of(shape)


def restored(coefficients: Coefficients, dtype: str, limits: Limits | None) -> np.ndarray:
    """Return the tensor of coefficients, whose shape has been checked.

    Parameters
    ----------
    coefficients : Coefficients
        Positions in any order, and values of any dtype.
    dtype : str
        Dtype of the result, to which each float32 value is rounded.
    limits : Limits or None
        Bounds on the result.

    Raises
    ------
    Corrupt
        If a position is outside its tile or comes twice, or a value is not finite.
    LimitExceeded
        If the result exceeds the limits.
    ParameterError
        If the dtype is not one of the floats.
    """
    check_dtype(dtype)
    positions, values, shape = ascending(coefficients)
    layout = _layout(shape)
    out = result_beside(math.prod(shape), np.float32, None)
    starts = np.arange(layout.count + 1, dtype=np.int64) * positions.shape[1]
    transform.restore(starts, positions.reshape(-1), values.reshape(-1), layout, out)
    if not all_finite(out):
        raise Corrupt("a value exceeds float32")
    return result_of(out, dtype, tensor_shape(shape), limits)


def ascending(coefficients: Coefficients) -> Coefficients:
    """Return coefficients as float32 by ascending int32 positions; see `restored` for errors."""
    positions, values, shape = coefficients
    order = ascending_order(positions, size_of_tile(shape), "tile")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        values = np.take_along_axis(values, order, axis=1).astype(np.float32)
    if not all_finite(values.reshape(-1)):
        raise Corrupt("a coefficient is not finite")
    positions = np.take_along_axis(positions, order, axis=1).astype(np.int32)
    return Coefficients(positions, values, shape)


def to_frame(sent: Coefficients, name: str | None) -> Frame:
    """Put coefficients into a frame of ``dct8:layout=tiles`` that decodes to the same values.

    The frame has the dtype of the coefficients. They are sent with ``values=sign7`` if they are
    such levels, like signs, and else with ``values=float32``.

    Raises
    ------
    ParameterError
        If the tensor is neither a vector nor a matrix, a tile has more than 65536 elements, or a
        float64 is no float32.
    Corrupt
        As for `ascending`.
    """
    positions, values, shape = ascending(sent)
    if (sent.values.astype(np.float32) != sent.values).any():
        raise ParameterError("the values: a float64 must be a float32, too, for a frame")
    sizes = tensor_shape(shape)
    if len(sizes) > 2:
        raise ParameterError.of("shape", sizes, "that of a vector or a matrix for a frame")
    sides = shape[len(leading_of(shape)) :]
    parameters = {"chunk": sides, "k": values.shape[1], "layout": "tiles"}
    codec = DCT8.from_mapping(parameters)
    quantized = _exact_levels(values, codec.values)
    if quantized is None:
        codec = codec.replaced(values="float32")
        quantized = levels.quantize(values, codec.values)
    coded = levels.coded_chunks(quantized.scales)
    n, size = math.prod(sizes), size_of_tile(shape)
    payload = codec.pack(DCT8Symbols(n, size, *quantized, positions[coded]))
    return Frame(payload.codec, sent.values.dtype.name, sizes, payload, name)


def from_frame(frame: FrameLike, limits: Limits | None) -> Coefficients:
    """Return the coefficients of a frame of ``dct8:layout=tiles``, in the dtype of the frame.

    Raises
    ------
    ParameterError
        If the frame has another codec or layout, tiles that do not divide a vector or a matrix, or
        a dtype that does not have the coefficients.
    FormatError
        If the frame is damaged.
    """
    frame, codec = opened_frame(frame, limits, DCT8, dtypes=tuple(FLOATS))
    sizes = frame.shape
    symbols = codec.unpack(frame.payload, sizes)
    sides = codec.chunk
    if len(sizes) == 1:
        sides = (min(math.prod(sides), MOST_POINTS, frame.size),)
    sides = tuple(min(side, size) for side, size in zip(sides, sizes, strict=False))
    divides = 0 not in sizes and not any(n % side for n, side in zip(sizes, sides, strict=False))
    if codec.layout != "tiles" or not 1 <= len(sizes) == len(sides) or not divides:
        allowed = "one of dct8:layout=tiles with tiles that divide a vector or a matrix"
        raise ParameterError.of("frame", f"{codec} of {sizes}", allowed)
    coded = levels.coded_chunks(symbols.scales)
    k = symbols.codes.shape[1]
    positions = np.tile(np.arange(k, dtype=np.int32), (coded.size, 1))
    positions[coded] = symbols.positions
    values = _dequantized(symbols.levels, codec.values)
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(NUMPY_DTYPES[frame.dtype])
    if not np.array_equal(rounded.astype(np.float32), values):
        raise ParameterError.of("frame.dtype", frame.dtype, "one that has the coefficients")
    tiles = [size // side for size, side in zip(sizes, sides, strict=True)]
    return Coefficients(positions, rounded, (*tiles, *sides))


def _exact_levels(coefficients: np.ndarray, values: str) -> Levels | None:
    """Return the levels that decode to (tiles, k) coefficients; None if there are none."""
    try:
        quantized = levels.quantize(coefficients, values)
    except ParameterError:  # a scale exceeds float32
        return None
    is_exact = _dequantized(quantized, values).tobytes() == coefficients.tobytes()
    return quantized if is_exact else None


def _dequantized(quantized: Levels, values: str) -> np.ndarray:
    """Return the (tiles, k) float32 coefficients of levels, with zeros for tiles without them."""
    coded = levels.coded_chunks(quantized.scales)
    coefficients = np.zeros((coded.size, quantized.codes.shape[1]), np.float32)
    coefficients[coded] = levels.dequantize(quantized, values)
    return coefficients


def tensor_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor, from that of its transform."""
    if len(shape) == 2:
        return (math.prod(shape),)
    *outer, rows, columns, height, width = shape
    return (*outer, rows * height, columns * width)


def _layout(shape: tuple[int, ...]) -> Chunks:
    """Return the tiles of a transformed tensor, whose outer dimensions are rows of a matrix."""
    if len(shape) == 2:
        return Chunks.runs(math.prod(shape), (1, 1, shape[1]), edge=False)
    *outer, columns = tensor_shape(shape)
    return Chunks.tiles(math.prod(outer), columns, shape[-2], shape[-1])
