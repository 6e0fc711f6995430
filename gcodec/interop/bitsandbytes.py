"""bitsandbytes: blocks of 4 or 8 bits, whose numbers come from a table.

A message is a dict of NumPy arrays. Each block has the largest magnitude of its elements, and each
element the number of the entry next to x/absmax in a table of 16 or 256 values from −1 to 1.

- ``packed`` (``nf4``, ``fp4``): (ceil(n/2),) uint8, two elements in a byte, the first in the high
  half. An odd tensor ends with an element 0.
- ``codes`` (``dynamic8``): uint8, in the shape of the tensor.
- ``absmax``: (blocks,) float32; or uint8 codes of ``dynamic8`` if it is nested.
- ``nested_absmax``: float32, for the blocks of the nested ``absmax``, and ``nested_offset``: ()
  float32, the mean that was subtracted from it. In the original they are ``state2.absmax`` and
  ``offset``; files of quantized models have the names used here.

The table of ``nf4`` is that of QLoRA, which has the quantiles of a normal distribution. ``fp4``
has ±{0, 1/16, 2, 3, 4, 6, 8, 12}/12, in an order of its own. ``dynamic8`` has 0, 1 and, for each
power of ten from 10^-6 to 1, twice as many values as for the preceding one.

The bytes are those of the package's neutral kernels, which follow the CUDA kernels. (Its kernel
for CPUs finds codes of 8 bits by a coarse table: there, 0 becomes the code 131, not 127.) Full
blocks are multiplied by the reciprocal of absmax, a partial one is divided by it; a value in the
middle of two entries gets the lower one. The mean of a nested absmax is a float64 sum here, so
that its last bit may differ. No codec of gcodec has these tables, so this module has
no ``to_frame``.

Source: bitsandbytes 0.50.2, ``functional.py`` and ``backends/default/ops.py`` (MIT); Dettmers et
al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022, and "QLoRA", NeurIPS 2023. Arrays
must be on the host. This module imports neither bitsandbytes nor torch.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import bitsandbytes
>>> x = np.array([0.5, -2, 0, 1], np.float32)
>>> message = bitsandbytes.encode(x, "nf4")
>>> message["packed"].tolist(), message["absmax"].tolist()
([160, 124], [2.0])
>>> bitsandbytes.decode(message, "nf4", shape=4).round(3)
array([ 0.492, -2.   ,  0.   ,  0.881], dtype=float32)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.errors import Corrupt, ParameterError
from gcodec.interop.objects import checked_shape, host_tensor, part_of, size_error
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import Limits
from gcodec.wire.primitives import FLOATS

Kind = Literal["dynamic8", "nf4", "fp4"]

_BLOCK_SIZES = tuple(1 << k for k in range(5, 13))
_DEFAULTS = {"dynamic8": 4096, "nf4": 64, "fp4": 64}
_NESTED_BLOCK = 256  # of the absmax of 4-bit blocks; that of dynamic8 has its own block size
_LEAST = np.float32(1e-38)  # what blocks are divided by, at least
_NF4 = (
    *("-0x1p+0", "-0x1.647362p-1", "-0x1.0cd66p-1", "-0x1.94654p-2", "-0x1.23449ap-2"),
    *("-0x1.7a6a7ep-3", "-0x1.74f0e2p-4", "0x0p+0", "0x1.45f5fep-4", "0x1.4995c6p-3"),
    *("0x1.f809bap-3", "0x1.5a0674p-2", "0x1.c3497p-2", "0x1.200f56p-1", "0x1.722766p-1"),
    "0x1p+0",
)
_FP4 = (0, 1 / 16, 8, 12, 4, 6, 2, 3)  # times 1/12


class _Table(NamedTuple):
    """The numbers of a kind.

    Attributes
    ----------
    values : (2^b,) float32 array
        The number of each code.
    order : (2^b,) uint8 array
        The codes by their numbers, in ascending order.
    middles : (2^b - 1,) float32 array
        The largest number that each of the ordered codes but the last stands for.
    """

    values: np.ndarray
    order: np.ndarray
    middles: np.ndarray

    @classmethod
    @functools.cache
    def of(cls, kind: str) -> _Table:
        values = {"nf4": _nf4, "fp4": _fp4, "dynamic8": _dynamic8}[kind]()
        order = np.argsort(values, kind="stable").astype(np.uint8)
        ordered = values[order]
        return cls(values, order, (ordered[:-1] + ordered[1:]) / np.float32(2))

    def nearest(self, scaled: np.ndarray) -> np.ndarray:
        """Return the codes of (n,) float32 numbers from −1 to 1."""
        return self.order[np.searchsorted(self.middles, scaled)]


def _nf4() -> np.ndarray:
    return np.array([float.fromhex(text) for text in _NF4], np.float32)


def _fp4() -> np.ndarray:
    positive = np.array(_FP4, np.float32) / np.float32(12)
    return np.concatenate((positive, 0 - positive))  # both zeros are +0


def _dynamic8() -> np.ndarray:
    """Return the middles of 1, 2, … 64 equal parts of 0.1 to 1, times 10^-6, 10^-5, … 1."""
    values: list[np.ndarray] = [np.array([0, 1], np.float32)]
    first = np.float32(0.1)
    for k in range(7):
        n = 1 << k
        step = np.float64((np.float32(1) - first) / np.float32(n))
        place = np.arange(n + 1)
        # From both ends, as the original computes them: rounded once.
        bounds = np.where(place < (n + 1) // 2, first + step * place, 1 - step * (n - place))
        bounds = bounds.astype(np.float32)
        middles = (bounds[:-1] + bounds[1:]) / np.float32(2) * np.float32(10.0 ** (k - 6))
        values += [middles, -middles]
    return np.sort(np.concatenate(values))


def encode(
    x: Any, kind: Kind = "nf4", *, blocksize: int | None = None, nested: bool = False
) -> dict[str, np.ndarray]:
    """Quantize a tensor as ``quantize_4bit`` or ``quantize_blockwise`` does.

    Parameters
    ----------
    x : array
        Tensor on the host, with a dtype that `gcodec.encode` accepts.
    kind : {"nf4", "fp4", "dynamic8"}
        Table of numbers.
    blocksize : int, optional
        Elements of a block: a power of two from 32 to 4096. Default: 64, and 4096 for
        ``"dynamic8"``.
    nested : bool
        Whether the absmax of the blocks are quantized, too (``compress_statistics``).

    Returns
    -------
    dict of str to array
        ``packed`` or ``codes``, ``absmax``, and ``nested_absmax`` and ``nested_offset`` if nested.

    Raises
    ------
    ParameterError
        If an argument is out of range, or `x` contains NaN or Inf, or is empty.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    blocksize = _checked(kind, blocksize)
    tensor = host_tensor(x, "bitsandbytes")
    values = np.asarray(tensor.values[:], np.float32)
    if not values.size:
        raise ParameterError.of("x.shape", tensor.shape, "that of a tensor that is not empty")
    check_finite(values)
    codes, absmax = _quantized(values, _Table.of(kind), blocksize)
    parts: dict[str, np.ndarray] = {}
    if kind == "dynamic8":
        parts["codes"] = codes.reshape(tensor.shape)
    else:
        if codes.size % 2:
            codes = np.append(codes, _Table.of(kind).nearest(np.zeros(1, np.float32)))
        parts["packed"] = codes[::2] << np.uint8(4) | codes[1::2]
    if nested:
        offset = np.float32(absmax.astype(np.float64).mean())
        own = blocksize if kind == "dynamic8" else _NESTED_BLOCK
        absmax, outer = _quantized(absmax - offset, _Table.of("dynamic8"), own)
        parts |= {"nested_absmax": outer, "nested_offset": np.array(offset)}
    return parts | {"absmax": absmax}


def decode(
    message: Mapping[str, Any],
    kind: Kind = "nf4",
    *,
    shape: Any,
    blocksize: int | None = None,
    dtype: str = "float32",
    limits: Limits | None = None,
) -> np.ndarray:
    """Return the tensor of a message, as ``dequantize_4bit`` or ``dequantize_blockwise`` does.

    Parameters
    ----------
    message : mapping of str to array
        See `encode`. It is nested if it has a ``nested_absmax``. Arrays may have further
        dimensions of size 1, as the original's ``packed`` has.
    kind, blocksize
        As in `encode`.
    shape : int or tuple of int
        Shape of the tensor.
    dtype : {"float32", "float16", "bfloat16", "float64"}
        Dtype of the result, to which float32 products are rounded.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Raises
    ------
    FormatError
        If an array is missing, has another dtype or size, or a value is not finite.
    ParameterError
        If an argument is out of range.
    """
    blocksize = _checked(kind, blocksize)
    if dtype not in FLOATS:
        raise ParameterError.of("dtype", dtype, f"one of {', '.join(FLOATS)}")
    sizes, n = checked_shape(shape, limits)
    blocks = -(-n // blocksize)
    if kind == "dynamic8":
        codes = _array(message, "codes", np.uint8, n)
    else:
        packed = _array(message, "packed", np.uint8, -(-n // 2))
        codes = np.stack((packed >> 4, packed & 15), axis=1).reshape(-1)[:n]
    if "nested_absmax" in message:
        own = blocksize if kind == "dynamic8" else _NESTED_BLOCK
        inner = _array(message, "absmax", np.uint8, blocks)
        outer = _array(message, "nested_absmax", np.float32, -(-blocks // own))
        (offset,) = _array(message, "nested_offset", np.float32, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            absmax = _values(inner, outer, _Table.of("dynamic8"), own) + offset
    else:
        absmax = _array(message, "absmax", np.float32, blocks)
    with np.errstate(over="ignore", invalid="ignore"):
        values = _values(codes, absmax, _Table.of(kind), blocksize)
        converted = values.astype(NUMPY_DTYPES[dtype])
    if not all_finite(values) or not np.isfinite(converted).all():
        raise Corrupt(f"a value is not finite in {dtype}")
    return converted.reshape(sizes)


def _checked(kind: str, blocksize: int | None) -> int:
    """Return the block size; raise `ParameterError` for wrong arguments."""
    if kind not in get_args(Kind):
        raise ParameterError.of("kind", kind, f"one of {', '.join(get_args(Kind))}")
    if blocksize is None:
        return _DEFAULTS[kind]
    if blocksize not in _BLOCK_SIZES:
        raise ParameterError.of("blocksize", blocksize, "a power of two from 32 to 4096")
    return int(blocksize)


def _quantized(values: np.ndarray, table: _Table, blocksize: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and the largest magnitudes of the blocks of (n,) float32 values."""
    full = values.size - values.size % blocksize
    rows, rest = values[:full].reshape(-1, blocksize), values[full:]
    absmax = np.abs(rows).max(axis=1)
    with np.errstate(under="ignore"):
        factors = np.float32(1) / np.maximum(absmax, _LEAST)
        scaled = (rows * factors[:, np.newaxis]).reshape(-1)
        if rest.size:
            largest = np.maximum(np.abs(rest).max(), _LEAST)
            absmax = np.append(absmax, largest)
            scaled = np.append(scaled, rest / largest)
    return table.nearest(np.clip(scaled, -1, 1)), absmax


def _values(codes: np.ndarray, absmax: np.ndarray, table: _Table, blocksize: int) -> np.ndarray:
    values: np.ndarray = table.values[codes]
    full = codes.size - codes.size % blocksize
    values[:full].reshape(-1, blocksize)[:] *= absmax[: full // blocksize, np.newaxis]
    values[full:] *= absmax[full // blocksize :]
    return values


def _array(
    message: Mapping[str, Any], name: str, dtype: type[np.generic], size: int
) -> np.ndarray:
    """Return the (size,) array of a message."""
    array = part_of(message, name)
    if array.dtype != dtype:
        raise Corrupt(f"{name} has dtype {array.dtype}, not {np.dtype(dtype)}")
    if array.size != size:
        raise size_error(f"{name} has {array.size} elements, not {size}", array.size, size)
    return array.reshape(-1)
