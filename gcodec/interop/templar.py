"""Templar: SparseLoCo's messages, with the largest values of each tile in four bins.

A message is a dict under the keys that Templar adds to a parameter's name. A vector is cut into
runs, a matrix into tiles, whose sides are the largest divisors of its own up to `chunk`. Of each
tile, k elements of largest magnitude are sent; k is even.

- ``idxs``: (3·N/2,) uint8, for the N sent elements in the order of the tiles: the position of each
  in its tile in 12 bits, the low ones first. Three bytes have the positions i and j: ``i & 255``,
  ``i >> 8 | (j & 15) << 4``, ``j >> 4``.
- ``vals``: uint8, (tiles, k) for a vector and (rows of tiles, columns of tiles, k) for a matrix:
  the bin of each element; or float32 values, if they are not quantized.
- ``quant_params``: (shift, scale, offset, lookup, dtype), or None without bins. With B bins, the
  bin of a value x is (x − shift)/scale + B/2, rounded to an integer from 0 to B − 1. It decodes to
  lookup[bin] + shift.

The shift is the mean of the sent values, the scale is `sigmas`/B times their standard deviation
with N − 1, and the lookup has the mean of x − shift in each bin. The original sums float32
numbers in an order that depends on the device, and sends the positions of a tile in no defined
order. Here, sums are float64, and positions ascend. So all numbers agree up to the last bits.
Decoding is exact; of a position that comes twice, which Templar averages, the message is refused.

The error feedback of SparseLoCo, e ← 0.95·e + Δ, is that of ``gcodec.Feedback(…, decay=0.95)``.
No codec of gcodec stores bins, so this module has no ``to_frame``.

Source: one-covenant/templar 2.1.28, ``src/tplr/compress.py`` (MIT); Sarfi et al., "Communication
efficient LLM pre-training with SparseLoCo", arXiv 2508.15706. Arrays must be on the host. This
module imports neither Templar nor torch.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import templar
>>> x = np.array([1, -8, 0.5, 7.5, 0, 9, 0.25, -7.5], np.float32)
>>> message = templar.encode(x, k=2, chunk=4)
>>> message["idxs"].tolist(), message["vals"].tolist()
([1, 48, 0, 1, 48, 0], [[1, 3], [3, 1]])
>>> templar.decode(message, 8, chunk=4)
array([ 0.  , -7.75,  0.  ,  8.25,  0.  ,  8.25,  0.  , -7.75],
      dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.errors import Corrupt, ParameterError
from gcodec.interop.objects import (
    ascending_order,
    checked_shape,
    host_tensor,
    part_of,
    size_error,
)
from gcodec.interop.tiles import largest_divisor
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import Limits
from gcodec.wire.kinds import check_integer, check_number

_MOST = 1 << 12  # elements of a tile, whose positions have 12 bits
_MOST_BINS = 256


class _Tiles(NamedTuple):
    """Tiles of a vector or a matrix, of `height` times `width` elements."""

    rows: int
    columns: int
    height: int
    width: int

    @classmethod
    def of(cls, shape: tuple[int, ...], chunk: int) -> _Tiles:
        if len(shape) not in (1, 2) or 0 in shape:
            raise ParameterError.of("shape", shape, "that of a vector or a matrix, not empty")
        m, n = (1, *shape)[-2:]
        height = 1 if len(shape) == 1 else largest_divisor(m, chunk)
        width = largest_divisor(n, chunk)
        if not 1 < height * width <= _MOST:
            allowed = f"one that has tiles of 2 to {_MOST} elements, not {height} x {width}"
            raise ParameterError.of("shape", shape, allowed)
        return cls(m // height, n // width, height, width)

    @property
    def size(self) -> int:
        return self.height * self.width

    def cut(self, values: np.ndarray) -> np.ndarray:
        """Return (tiles, elements) values."""
        shaped = values.reshape(self.rows, self.height, self.columns, self.width)
        return shaped.transpose(0, 2, 1, 3).reshape(-1, self.size)

    def joined(self, tiles: np.ndarray) -> np.ndarray:
        """Return the (n,) values of (tiles, elements)."""
        shaped = tiles.reshape(self.rows, self.columns, self.height, self.width)
        return shaped.transpose(0, 2, 1, 3).reshape(-1)


def encode(
    x: Any, k: int = 64, chunk: int = 64, *, bins: int | None = 4, sigmas: float = 6.0
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
    sigmas = check_number("sigmas", sigmas, "a number above 0")
    if not 0 < sigmas < math.inf:
        raise ParameterError.of("sigmas", sigmas, "a number above 0")
    tiles = _Tiles.of(tensor.shape, chunk)
    values = np.asarray(tensor.values[:], np.float32)
    check_finite(values)
    cut = tiles.cut(values)
    positions = _largest(cut, min(k, tiles.size) // 2 * 2)
    sent = np.take_along_axis(cut, positions, axis=1)
    parameters: tuple[Any, ...] | None = None
    if bins is not None:
        sent, parameters = _binned(sent, bins, sigmas)
    leading = (tiles.columns,) if len(tensor.shape) == 1 else (tiles.rows, tiles.columns)
    shaped = sent.reshape(*leading, -1)
    return {"idxs": _packed(positions), "vals": shaped, "quant_params": parameters}


def decode(
    message: Mapping[str, Any], shape: Any, *, chunk: int = 64, limits: Limits | None = None
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
        twice, a bin is not in the lookup, or a value is not finite.
    ParameterError
        If no tensor of this shape has such tiles.
    """
    sizes, _ = checked_shape(shape, limits)
    _check_chunk(chunk)
    tiles = _Tiles.of(sizes, chunk)
    count = tiles.rows * tiles.columns
    values = part_of(message, "vals")
    if values.size % count:
        raise Corrupt(f"{values.size} values do not belong to {count} tiles")
    k = values.size // count
    if k > tiles.size or k % 2:
        raise Corrupt(f"{k} values in each tile of {tiles.size} elements")
    positions = _unpacked(part_of(message, "idxs"), values.size).reshape(count, k)
    ascending_order(positions, tiles.size, "tile")
    decoded = _values(values, message.get("quant_params")).reshape(count, k)
    out = np.zeros((count, tiles.size), np.float32)
    np.put_along_axis(out, positions, decoded, axis=1)
    return tiles.joined(out).reshape(sizes)


def _check_chunk(chunk: int) -> None:
    check_integer("chunk", chunk, 2, 1 << 31, "an integer from 2 on")


def _largest(cut: np.ndarray, k: int) -> np.ndarray:
    """Return the ascending positions of the k largest magnitudes of each tile, as (tiles, k).

    Among equal magnitudes, the first are taken.
    """
    last = cut.shape[1] - 1
    keys = np.abs(cut).view(np.uint32).astype(np.uint64) << np.uint64(12)
    keys |= np.arange(last, -1, -1, dtype=np.uint64)
    chosen = np.partition(keys, last + 1 - k, axis=1)[:, last + 1 - k :]
    positions = last - (chosen & np.uint64(_MOST - 1)).astype(np.int64)
    return np.sort(positions, axis=1)


def _binned(sent: np.ndarray, bins: int, sigmas: float) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return the bins of values, and the parameters that decode them."""
    shift, offset = np.float32(sent.astype(np.float64).mean()), bins // 2
    with np.errstate(over="ignore", under="ignore"):
        centered = sent - shift
        squares = float(np.square(centered.astype(np.float64)).sum())
        scale = np.float32(sigmas * math.sqrt(squares / (sent.size - 1)) / bins)
        if not 0 < scale < math.inf:
            scale = np.float32(1)
        rounded = np.rint(centered / scale + np.float32(offset))
    codes = np.clip(rounded, 0, bins - 1).astype(np.uint8)
    flat = codes.reshape(-1)
    sums = np.bincount(flat, centered.reshape(-1).astype(np.float64), bins)
    lookup = (sums / np.maximum(np.bincount(flat, minlength=bins), 1)).astype(np.float32)
    if not all_finite(lookup + shift):
        raise ParameterError("x: the mean of a bin must not exceed float32")
    return codes, (np.array(shift), float(scale), offset, lookup, "float32")


def _packed(positions: np.ndarray) -> np.ndarray:
    """Return positions as 12 bits each, the low ones first."""
    first, second = positions.reshape(-1, 2).T
    parts = first & 255, first >> 8 | (second & 15) << 4, second >> 4
    return np.stack(parts, axis=1).astype(np.uint8).reshape(-1)


def _unpacked(data: np.ndarray, count: int) -> np.ndarray:
    """Return the positions that bytes contain."""
    if data.dtype != np.uint8 or data.ndim != 1:
        raise Corrupt(f"idxs has dtype {data.dtype} and {data.ndim} dimensions")
    expected = count // 2 * 3
    if data.size != expected:
        raise size_error(f"idxs has {data.size} bytes, not {expected}", data.size, expected)
    low, middle, high = data.reshape(-1, 3).T.astype(np.int64)
    pairs = np.stack((low | (middle & 15) << 8, middle >> 4 | high << 4), axis=1)
    return pairs.reshape(-1)


def _values(values: np.ndarray, parameters: Any) -> np.ndarray:
    """Return the float32 values of bins, or of values that are not quantized."""
    if parameters is None:
        if values.dtype.kind != "f":
            raise Corrupt(f"vals has dtype {values.dtype}, and quant_params is missing")
        decoded = values.astype(np.float32)
    else:
        try:
            shift, _, _, lookup, _ = parameters
            shift, lookup = np.float32(np.asarray(shift)), np.asarray(lookup)
        except (TypeError, ValueError) as error:
            raise Corrupt(f"quant_params cannot be read: {error}") from None
        if values.dtype != np.uint8 or lookup.dtype != np.float32 or lookup.ndim != 1:
            raise Corrupt(f"vals has dtype {values.dtype}, the lookup {lookup.dtype}")
        if values.size and int(values.max()) >= lookup.size:
            raise Corrupt(f"a bin is above the {lookup.size} of the lookup")
        with np.errstate(over="ignore", invalid="ignore"):
            decoded = (lookup + shift)[values]
    if not all_finite(decoded.reshape(-1)):
        raise Corrupt("a value is not finite")
    return decoded
