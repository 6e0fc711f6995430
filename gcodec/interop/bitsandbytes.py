"""bitsandbytes: blocks of 4 or 8 bits, whose numbers come from a table.

A message is a dict of NumPy arrays. Each block has the largest magnitude of its elements, and each
element the number of the entry next to x/absmax in a table of 16 or 256 values from −1 to 1.

- ``packed`` (``nf4``, ``fp4``): (ceil(n/2),) uint8, two elements in a byte, the first in the high
  half. An odd tensor ends with an element 0. `decode` also takes the same bytes as another dtype,
  that of the original's ``quant_storage``.
- ``codes`` (``dynamic8``): uint8, in the shape of the tensor.
- ``absmax``: (blocks,) float32; or uint8 codes of ``dynamic8`` if it is nested.
- ``nested_absmax``: float32, for the blocks of the nested ``absmax``, and ``nested_offset``: ()
  float32, the mean that was subtracted from it. In the original they are ``state2.absmax`` and
  ``offset``; files of quantized models have the names used here, and the offset as a number.

The table of ``nf4`` is that of QLoRA, which has the quantiles of a normal distribution. ``fp4``
has ±{0, 1/16, 2, 3, 4, 6, 8, 12}/12, in an order of its own. ``dynamic8`` has 0, 1 and, for each
power of ten from 10^-6 to 1, twice as many values as for the preceding one. PyTorch computes them:
without AVX2, the last bits of 42 values differ from those here.

The bytes are those of the package's neutral kernels. Full blocks are multiplied by the reciprocal
of absmax, and a partial block is divided by it; a value in the middle of two entries gets the
lower one. The CUDA kernels multiply all blocks, may take the upper one of two entries, and have
other codes for zeros: a block of zeros has the code 0, and of the two zeros of ``fp4``, 8 is the
negative one, while in the neutral kernels it is that of small positive values. (The package's
kernel for CPUs looks codes of 8 bits up in a coarse table: 0 becomes the code 131, not 127.) This
module computes the mean of a nested absmax with a float64 sum, so the last bits may differ. It
refuses magnitudes above 2^126. A frame of ``blockwise`` contains the same numbers, in fewer bits
unless its ``code`` is ``none``.

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

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from gcodec.arrays.protocols import ShapeLike, TensorLike
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codecs.blockwise import Blockwise, Layout
from gcodec.errors import Corrupt, ParameterError
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    check_dtype,
    check_size,
    checked_frame,
    checked_shape,
    host_tensor,
    numbers_of,
    opened_frame,
    part_of,
    require_mapping,
    result_of,
)
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_choice, check_flag, check_integer

Kind = Literal["dynamic8", "nf4", "fp4"]

_LEAST_BLOCK, _MOST_BLOCK = 32, 4096
_DEFAULTS = {"dynamic8": 4096, "nf4": 64, "fp4": 64}


@exact
def encode(
    x: TensorLike, kind: Kind = "nf4", *, blocksize: int | None = None, nested: bool = False
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
        If an argument is out of range, or `x` contains NaN, Inf or a magnitude above 2^126, or
        is empty.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    codec = _codec(kind, blocksize, check_flag("nested", nested))
    tensor = host_tensor(x, "bitsandbytes")
    if not tensor.values.size:
        raise ParameterError.of("x.shape", tensor.shape, "that of a tensor that is not empty")
    return _parts(codec, codec.quantize(tensor.values).data, tensor.shape)


@exact
def decode(
    message: Mapping[str, object],
    kind: Kind = "nf4",
    *,
    shape: ShapeLike,
    blocksize: int | None = None,
    dtype: str = "float32",
    limits: Limits | None = None,
) -> np.ndarray:
    """Return the tensor of a message, as ``dequantize_4bit`` or ``dequantize_blockwise`` does.

    Parameters
    ----------
    message : mapping of str to array
        See `encode`. It is nested if it has a ``nested_absmax``. Arrays may have further
        dimensions of size 1, as the original's ``packed`` has; ``nested_offset`` may be a float.
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
    check_dtype(dtype)
    codec, data, sizes = _read(message, kind, shape, blocksize, limits)
    converted = result_of(codec.decode(data, sizes), dtype, sizes, limits)
    if not np.isfinite(converted).all():
        raise Corrupt(f"a value is not finite in {dtype}")
    return converted


@exact
def to_frame(
    message: Mapping[str, object],
    kind: Kind = "nf4",
    *,
    shape: ShapeLike,
    blocksize: int | None = None,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Convert a message to a frame of `blockwise`, of dtype float32.

    See `decode` for the parameters and errors; `name` is that of the tensor.
    """
    return checked_frame(*_read(message, kind, shape, blocksize, limits), name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> dict[str, np.ndarray]:
    """Convert a frame of `blockwise` to a message.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32, of a kind and a block size that `encode` has, with any code.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec, kind, block size or dtype, or has no elements.
    FormatError
        If the bytes are damaged.
    """
    opened, coded = opened_frame(frame, limits, Blockwise)
    codec = _codec(coded.kind, coded.block, coded.nested == "yes")
    if not opened.size:
        raise ParameterError.of("frame.shape", opened.shape, "that of a tensor that is not empty")
    data = coded.unpack(opened.payload, opened.shape).data
    return _parts(codec, data, opened.shape)


def _codec(kind: str, blocksize: int | None, nested: bool) -> Blockwise:
    """Return the codec of a message; raise `ParameterError` for wrong arguments."""
    check_choice("kind", kind, get_args(Kind))
    if blocksize is None:
        blocksize = _DEFAULTS[kind]
    allowed = "a power of two from 32 to 4096"
    block = check_integer("blocksize", blocksize, _LEAST_BLOCK, _MOST_BLOCK, allowed)
    if block & (block - 1):
        raise ParameterError.of("blocksize", blocksize, allowed)
    values = {"kind": kind, "block": block, "nested": "yes" if nested else "no"}
    return Blockwise.from_mapping(values)


def _layout(codec: Blockwise, n: int) -> Layout:
    return Layout(codec.kind, codec.nested == "yes", n, codec.block)


def _parts(codec: Blockwise, data: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the arrays of a payload with ``code=none``."""
    layout = _layout(codec, int(np.prod(shape, dtype=np.int64)))
    front, codes = data[: layout.front_nbytes], data[layout.front_nbytes :].copy()
    parts = {"packed": codes} if layout.width == 4 else {"codes": codes.reshape(shape)}
    if not layout.nested:
        return parts | {"absmax": numbers_of(front, "<f4")}
    inner = front[4 + 4 * layout.outer_blocks :].copy()
    numbers = numbers_of(front[: front.size - inner.size], "<f4")
    outer, offset = numbers[1:], numbers[0].reshape(())
    return parts | {"nested_absmax": outer, "nested_offset": offset, "absmax": inner}


def _read(
    message: Mapping[str, object],
    kind: str,
    shape: ShapeLike,
    blocksize: int | None,
    limits: Limits | None,
) -> tuple[Blockwise, np.ndarray, tuple[int, ...]]:
    """Return the codec of a message, its payload, and the shape of the tensor."""
    require_mapping("message", message)
    codec = _codec(kind, blocksize, "nested_absmax" in message)
    sizes, n = checked_shape(shape, limits)
    layout = _layout(codec, n)
    name = "packed" if layout.width == 4 else "codes"
    if name == "packed":
        message = {**message, name: _bytes_of(part_of(message, name))}
    codes = _array(message, name, np.uint8, layout.codes_nbytes)
    if layout.width == 4 and n % 2:  # bitsandbytes ignores the last half
        codes = np.append(codes[:-1], codes[-1] & np.uint8(0xF0) | np.uint8(layout.table().zero))
    numbers = []
    if layout.nested:
        offset = part_of(message, "nested_offset")
        if offset.dtype == np.float64:  # a number of Python, as in files of quantized models
            with np.errstate(over="ignore"):
                message = {**message, "nested_offset": offset.astype(np.float32)}
        numbers.append(_array(message, "nested_offset", np.float32, 1))
        numbers.append(_array(message, "nested_absmax", np.float32, layout.outer_blocks))
        inner = _array(message, "absmax", np.uint8, layout.blocks)
    else:
        numbers.append(_array(message, "absmax", np.float32, layout.blocks))
        inner = np.empty(0, np.uint8)
    front = [part.astype("<f4", copy=False).view(np.uint8) for part in numbers]
    data = np.concatenate([*front, inner, codes])
    return codec, data[: layout.nbytes], sizes  # nothing of a tensor without elements


def _bytes_of(packed: np.ndarray) -> np.ndarray:
    """Return packed elements as bytes; they may be stored as numbers of another dtype."""
    if packed.dtype.name not in NUMPY_DTYPES:
        raise Corrupt(f"packed has dtype {packed.dtype}: must be numbers of up to 64 bits")
    return np.ascontiguousarray(packed).reshape(-1).view(np.uint8)


def _array(
    message: Mapping[str, object], name: str, dtype: type[np.generic], size: int
) -> np.ndarray:
    """Return the (size,) array of a message."""
    array = part_of(message, name)
    if array.dtype != dtype:
        raise Corrupt(f"{name} has dtype {array.dtype}, not {np.dtype(dtype)}")
    check_size(name, array.size, size, "elements")
    return np.ascontiguousarray(array).reshape(-1)
