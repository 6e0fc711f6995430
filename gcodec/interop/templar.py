"""Templar: SparseLoCo's messages, with the largest values of each tile in four bins.

A message is a dict under the keys that Templar adds to a parameter's name. A vector is cut into
runs, a matrix into tiles, whose sides are the largest divisors of its own up to `chunk`. A worker
sends the k elements of largest magnitude of each tile; k is even.

- ``idxs``: (3·N/2,) uint8, for the N sent elements in the order of the tiles: the position of each
  in its tile in 12 bits, the low ones first. Three bytes have the positions i and j: ``i & 255``,
  ``i >> 8 | (j & 15) << 4``, ``j >> 4``.
- ``vals``: uint8, (tiles, k) for a vector and (rows of tiles, columns of tiles, k) for a matrix:
  the bin of each element; or the values, if they are not quantized.
- ``quant_params``: (shift, scale, offset, lookup, dtype), or None without bins. With B bins, the
  bin of a value x is (x − shift)/scale + B/2, rounded to an integer from 0 to B − 1. It decodes to
  lookup[bin] + shift, rounded to the dtype, which is that of the original's tensor.

The shift is the mean of the sent values, the scale is `sigmas`/B times their standard deviation
with N − 1, and the lookup has the mean of x − shift in each bin. The original sums float32 numbers
in an order that depends on the device, and sends the positions of a tile in no defined order. This
module sums in float64, and its positions ascend, so all numbers agree up to the last bits.
Decoding is exact. A message with a position that occurs twice, which Templar averages, is refused.

``gcodec.Feedback(…, decay=0.95)`` is the error feedback of SparseLoCo, e ← 0.95·e + Δ. Frames of
`sparseloco` contain the same numbers in less than half of the bits; the positions of a message
that is made from a frame ascend.

Source: one-covenant/templar 2.1.28, ``src/tplr/compress.py`` (MIT); Sarfi et al., "Communication
efficient LLM pre-training with SparseLoCo", arXiv 2508.15706. Arrays must be on the host. This
module imports neither Templar nor torch.

Examples
--------
>>> import gcodec, numpy as np
>>> from gcodec.interop import templar
>>> x = np.array([1, -8, 0.5, 7.5, 0, 9, 0.25, -7.5], np.float32)
>>> message = templar.encode(x, k=2, chunk=4)
>>> message["idxs"].tolist(), message["vals"].tolist()
([1, 48, 0, 1, 48, 0], [[1, 3], [3, 1]])
>>> templar.decode(message, 8, chunk=4)
array([ 0.  , -7.75,  0.  ,  8.25,  0.  ,  8.25,  0.  , -7.75],
      dtype=float32)
>>> frame = templar.to_frame(message, 8, chunk=4)
>>> bool((gcodec.decode(frame.to_bytes()) == templar.decode(message, 8, chunk=4)).all())
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.frameworks import FAILURES, first_line
from gcodec.arrays.nonfinite import check_finite
from gcodec.arrays.protocols import ShapeLike, TensorLike
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codecs.sparseloco import SparseLoCo, SparseLoCoSymbols, Tiles, binned, select
from gcodec.errors import Corrupt, ParameterError, brief
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    array_of,
    ascending_order,
    check_size,
    checked_shape,
    host_tensor,
    opened_frame,
    part_of,
)
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_integer, check_positive
from gcodec.wire.primitives import FLOATS

_MOST = 1 << 12  # elements of a tile, whose positions have 12 bits
_MOST_BINS = 256
_DTYPE = "float32"


@exact
def encode(
    x: TensorLike, k: int = 64, chunk: int = 64, *, bins: int | None = 4, sigmas: float = 6.0
) -> dict[str, Any]:
    """Compress a tensor to a message of Templar.

    Parameters
    ----------
    x : array
        Vector or matrix on the host, with a dtype that `gcodec.encode` accepts. The caller keeps
        the residual, as for ``gcodec.interop.panthalia``.
    k : int
        Elements that a tile sends, at least 2. An odd number is lowered by 1, and so is the size
        of a tile that has no more elements.
    chunk : int
        Largest side of a tile, from 2 on.
    bins : int or None
        Number of bins, from 2 to 256; None sends float32 values. Templar's settings are 4 bins
        and 6 standard deviations.
    sigmas : float
        Standard deviations that the bins span.

    Returns
    -------
    dict
        ``idxs`` and ``vals`` are arrays. ``quant_params`` is a tuple of a () float32 array, a
        float, an int, a (bins,) float32 array and ``"float32"``; or None.

    Raises
    ------
    ParameterError
        If an argument is out of range, `x` contains NaN or Inf, or has tiles of one element.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    tensor = host_tensor(x, "Templar")
    _check_chunk(chunk)
    k = check_integer("k", k, 2, 1 << 31, "an integer from 2 on")
    if bins is not None:
        bins = check_integer("bins", bins, 2, _MOST_BINS, f"an integer from 2 to {_MOST_BINS}")
    sigmas = check_positive("sigmas", sigmas, "a finite number above 0", finite=True)
    tiles = _tiles(tensor.shape, chunk)
    check_finite(tensor.values)
    positions, sent = select(tensor.values, tiles, tiles.sent(k))
    parameters: tuple[object, ...] | None = None
    if bins is not None:
        sent, numbers = binned(sent, bins, sigmas)
        parameters = _parameters(numbers)
    return _message(positions, sent.reshape(*_leading(tensor.shape, tiles), -1), parameters)


@exact
def decode(
    message: Mapping[str, object],
    shape: ShapeLike,
    *,
    chunk: int = 64,
    limits: Limits | None = None,
) -> np.ndarray:
    """Decode a message of Templar.

    Parameters
    ----------
    message : mapping
        ``idxs``, ``vals`` and ``quant_params``; see `encode`. Positions may have any order. Arrays
        and numbers may be tensors on the host.
    shape : int or tuple of int
        Shape of the tensor.
    chunk : int
        Largest side of a tile, which the message does not contain.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    float32 array
        Decoded tensor in its shape.

    Raises
    ------
    FormatError
        If a part is missing, has another dtype or size, a position is outside its tile or comes
        twice, a bin is not in the lookup, the offset is not half of the bins, or a number is not
        finite.
    ParameterError
        If no tensor of this shape has such tiles.
    """
    sizes, n = checked_shape(shape, limits)
    tiles, positions, values, parameters = _opened(message, sizes, chunk)
    out = np.zeros(n, np.float32)
    out[tiles.elements(positions)] = _values(values, parameters).reshape(-1)
    return out.reshape(sizes)


@exact
def to_frame(
    message: Mapping[str, object],
    shape: ShapeLike,
    *,
    chunk: int = 64,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Convert a message with bins to a frame of `sparseloco`.

    See `decode` for the parameters and errors. A message without bins or of another dtype than
    float32 is a `ParameterError`, and so is a `chunk` above 256, which no frame stores.
    """
    sizes, n = checked_shape(shape, limits)
    tiles, positions, bins, parameters = _opened(message, sizes, chunk)
    if parameters is None:
        raise ParameterError("message: has no quant_params: must have bins")
    numbers, dtype = parameters
    if dtype != _DTYPE:
        raise ParameterError.of("message: the dtype", dtype, f"{_DTYPE} for a frame")
    _values(bins, parameters)
    order = np.argsort(positions, kind="stable")
    k = positions.size // tiles.total
    codec = SparseLoCo.from_mapping({"k": k, "chunk": chunk, "bins": numbers.size - 2})
    symbols = SparseLoCoSymbols(n, positions[order], bins.reshape(-1)[order], numbers, sizes)
    payload = codec.pack(symbols)
    return Frame(payload.codec, _DTYPE, sizes, payload, name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> dict[str, Any]:
    """Convert a frame of `sparseloco` to a message.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec or dtype, or tiles that Templar does not send.
    FormatError
        If the bytes are damaged.
    """
    opened, codec = opened_frame(frame, limits, SparseLoCo)
    tiles = _tiles(opened.shape, codec.chunk)
    if tiles.sent(codec.k) % 2:
        raise ParameterError.of("frame.codec", str(codec), "one with k from 2 on")
    symbols = codec.unpack(opened.payload, opened.shape)
    positions = (symbols.positions % tiles.size).reshape(tiles.total, -1)
    bins = symbols.bins.reshape(*_leading(opened.shape, tiles), -1)
    return _message(positions, bins, _parameters(symbols.parameters))


def _tiles(shape: tuple[int, ...], chunk: int) -> Tiles:
    """Return the tiles of a shape; raise `ParameterError` for one that Templar does not cut."""
    if len(shape) not in (1, 2) or 0 in shape:
        raise ParameterError.of("shape", shape, "that of a vector or a matrix, not empty")
    tiles = Tiles.of(shape, chunk)
    if not 1 < tiles.size <= _MOST:
        allowed = (
            f"one that has tiles of 2 to {_MOST} elements, not {tiles.height} x {tiles.width}"
        )
        raise ParameterError.of("shape", shape, allowed)
    return tiles


def _leading(shape: tuple[int, ...], tiles: Tiles) -> tuple[int, ...]:
    """Return the dimensions of the values before the one of a tile."""
    return (tiles.total,) if len(shape) == 1 else (tiles.rows, tiles.columns)


def _message(
    positions: np.ndarray, values: np.ndarray, parameters: tuple[object, ...] | None
) -> dict[str, object]:
    return {"idxs": _packed(positions), "vals": values, "quant_params": parameters}


def _parameters(numbers: np.ndarray) -> tuple[object, ...]:
    """Return Templar's parameters of bins; see `binned`."""
    shift, scale, lookup = numbers[0], float(numbers[1]), numbers[2:]
    return np.array(shift), scale, lookup.size // 2, lookup, _DTYPE


class _Numbers(NamedTuple):
    """Templar's parameters of bins, except for the offset; see `_parameters`."""

    numbers: np.ndarray
    dtype: str


def _numbers(parameters: Any) -> _Numbers:
    """Read Templar's parameters of bins."""
    try:
        shift, scale, offset, lookup, dtype = parameters
        pair = [array_of(shift, "shift"), array_of(scale, "scale")]
        if any(part.dtype.kind == "c" for part in pair):  # NumPy would drop the imaginary parts
            raise TypeError("a number is complex")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            numbers = np.array(pair, np.float32)
        name = getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    except (*FAILURES, OverflowError) as error:
        raise Corrupt(f"quant_params cannot be read: {first_line(error)}") from None
    lookup, offset = array_of(lookup, "lookup"), array_of(offset, "offset")
    if numbers.ndim != 1 or lookup.ndim != 1 or lookup.dtype != np.float32:
        raise Corrupt("quant_params must have two numbers and a lookup of float32")
    if offset.ndim or offset.dtype.kind not in "iuf":
        raise Corrupt("the offset of quant_params is not a number")
    if not 2 <= lookup.size <= _MOST_BINS or offset != lookup.size // 2:
        raise Corrupt(f"quant_params has {lookup.size} bins and the offset {offset}")
    numbers = np.concatenate((numbers, lookup))
    if not all_finite(numbers):
        raise Corrupt("a number of quant_params is not finite")
    if name not in FLOATS:
        raise Corrupt(brief(f"the dtype of quant_params is {name!r}: must be a float"))
    return _Numbers(numbers, name)


def _opened(
    message: Mapping[str, object], shape: tuple[int, ...], chunk: int
) -> tuple[Tiles, np.ndarray, np.ndarray, _Numbers | None]:
    """Return the tiles of a message, the positions in their order, the values, and `_numbers`."""
    _check_chunk(chunk)
    tiles = _tiles(shape, chunk)
    values = part_of(message, "vals")
    if values.size % tiles.total:
        raise Corrupt(f"{values.size} values do not belong to {tiles.total} tiles")
    k = values.size // tiles.total
    if not 2 <= k <= tiles.size or k % 2:
        raise Corrupt(f"{k} values in each tile of {tiles.size} elements")
    positions = _unpacked(part_of(message, "idxs"), values.size).reshape(tiles.total, k)
    ascending_order(positions, tiles.size, "tile")
    firsts = tiles.size * np.arange(tiles.total)
    parameters = message.get("quant_params")
    numbers = None if parameters is None else _numbers(parameters)
    return tiles, (positions + firsts[:, None]).reshape(-1), values, numbers


def _check_chunk(chunk: int) -> None:
    check_integer("chunk", chunk, 2, 1 << 31, "an integer from 2 on")


def _packed(positions: np.ndarray) -> np.ndarray:
    """Return positions as 12 bits each, the low ones first."""
    first, second = positions.astype(np.int64).reshape(-1, 2).T
    parts = first & 255, first >> 8 | (second & 15) << 4, second >> 4
    return np.stack(parts, axis=1).astype(np.uint8).reshape(-1)


def _unpacked(data: np.ndarray, count: int) -> np.ndarray:
    """Return the positions that bytes contain."""
    if data.dtype != np.uint8 or data.ndim != 1:
        raise Corrupt(f"idxs has dtype {data.dtype} and {data.ndim} dimensions")
    check_size("idxs", data.size, count // 2 * 3)
    low, middle, high = data.reshape(-1, 3).T.astype(np.int64)
    pairs = np.stack((low | (middle & 15) << 8, middle >> 4 | high << 4), axis=1)
    return pairs.reshape(-1)


def _values(values: np.ndarray, parameters: _Numbers | None) -> np.ndarray:
    """Return the float32 values of bins, or of values that are not quantized."""
    if parameters is None:
        if values.dtype.name not in FLOATS:
            raise Corrupt(f"vals has dtype {values.dtype}, and quant_params is missing")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            decoded = values.astype(np.float32)
    else:
        shift, lookup = parameters.numbers[0], parameters.numbers[2:]
        if values.dtype != np.uint8:
            raise Corrupt(f"vals has dtype {values.dtype}: bins are uint8")
        if int(values.max()) >= lookup.size:
            raise Corrupt(f"a bin is above the {lookup.size} of the lookup")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            means = (lookup + shift).astype(NUMPY_DTYPES[parameters.dtype]).astype(np.float32)
        decoded = means[values]
    if not all_finite(decoded.reshape(-1)):
        raise Corrupt("a value is not finite")
    return decoded
