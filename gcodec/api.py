"""The calls on whole frames: `encode`, `decode` and its kin, and `iter_frames`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gcodec.arrays.intake import (
    NonFinite,
    byte_buffer,
    check_nonfinite,
    intake,
    shares_memory,
    with_policy,
    writable_bytes,
)
from gcodec.arrays.protocols import working_on
from gcodec.codecs import parse
from gcodec.errors import ParameterError
from gcodec.frame import Frame, check_key
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import Limits
from gcodec.payload import MissedTarget
from gcodec.runtime.deferred import once
from gcodec.runtime.device import device_of
from gcodec.wire.primitives import encode_name


def encode(
    x: Any,
    codec: Any,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    out: Any = None,
    key: bytes | None = None,
    report: Callable[[MissedTarget], object] | None = None,
) -> Any:
    """Compress one tensor to a frame.

    Parameters
    ----------
    x : array
        On the host, of NumPy, torch, JAX, TensorFlow or MLX, or with DLPack, the buffer protocol
        or ``__array__``; on a CUDA device, of CuPy or torch, or with ``__cuda_array_interface__``:
        it is then coded there, if the codec works there. float32, float16, bfloat16 or float64;
        with the codec ``raw`` also integers of 8 to 64 bits and booleans, which come back
        unchanged.
    codec : str, mapping or Codec
        See `gcodec.parse`.
    seed : int
        From 0 to 2**64 - 1; codecs that round at random take their bits from it.
    name : str, optional
        Of the tensor, kept in the frame.
    nonfinite : {"raise", "zero", "propagate"}
        NaN and Inf are refused, replaced by 0, or left to the codec.
    out : writable buffer, optional
        Of at least ``codec.max_encoded_nbytes(n, name)`` bytes; the frame is written to its start.
        For integers pass their ``dtype=`` to that method, too.
    key : bytes, optional
        1 to 64 bytes; the frame then bears a BLAKE2b tag that only this key can make.
    report : callable, optional
        Called with a `gcodec.payload.MissedTarget` if the tensor cannot meet a target of the
        codec, such as the bits of ``ecsq:bits=1``, and gets the nearest one.

    Returns
    -------
    bytes, or int
        The frame; the number of bytes used where `out` is given.

    Raises
    ------
    ParameterError
        A bad argument, or NaN or Inf under ``"raise"``.
    TypeError
        No array, a dtype that is not taken, or a device on which the codec does not work.
    ImportError, RuntimeError, MemoryError
        CuPy, the driver or the memory is missing that an array on a CUDA device needs.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([0.5, -0.5, 0.49, -0.7, 1.2], np.float32), "mxnet-2bit")
    >>> gcodec.decode(frame)
    array([ 0.5, -0.5,  0. , -0.5,  0.5], dtype=float32)
    """
    codec = parse(codec)
    if name is not None:
        encode_name(name)  # refuses what a frame cannot bear before any work is done
    check_nonfinite(nonfinite)
    seed = check_seed(seed)
    with working_on(x), once():
        tensor = intake(x, integers=codec.takes_integers, segments=codec.reads_segments)
        codec._check_device(tensor.values)
        if nonfinite != "raise" or not codec.refuses_nonfinite:
            tensor = with_policy(tensor, nonfinite, segments=codec.reads_segments)
        bound = codec._of_dtype(tensor.dtype)._of_shape(tensor.shape)
        made = bound._encode(tensor.values, seed, None)
        payload = made.settled(data_too=True)
        frame = Frame(payload.codec, tensor.dtype, tensor.shape, payload, name, check_key(key))
        if report is not None and payload.missed is not None:
            report(payload.missed)
        if out is None:
            values = tensor.values
            own = device_of(values) is None and not shares_memory(payload.data, values)
            return frame.drained() if own else frame.to_bytes()
        return _write(frame, out)


def decode(
    frame: bytes | bytearray | memoryview,
    *,
    like: Any = None,
    out: Any = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> Any:
    """Decode a frame.

    Parameters
    ----------
    frame : bytes-like
    like : array, optional
        The result takes its library, device and dtype; it is NumPy's where the library is none of
        those of `encode`. Its shape must be the frame's, and for integers and booleans its dtype,
        too.
    out : array, optional
        Where to write the result: of the frame's shape and dtype. Arrays of JAX, TensorFlow and
        MLX cannot be written to. What it holds after a `FormatError` is not defined.
    limits : Limits, optional
        What the frame may make this call allocate. Default ``Limits()``, but where `like` or `out`
        fixes the shape.
    key : bytes, optional
        The frame must then bear the tag of this key.

    Returns
    -------
    array
        Of the frame's shape and dtype, or `out`.

    Raises
    ------
    FormatError
        The bytes are wrong.
    ParameterError
        An argument is wrong, or its shape or dtype differs from the frame's.
    """
    received = _receive(frame, limits, key, like is not None or out is not None)
    with working_on(out if like is None else like):
        return received.decode(like=like, out=out)


def decode_range(
    frame: bytes | bytearray | memoryview,
    start: int,
    stop: int,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> np.ndarray:
    """Decode some elements of a frame, such as some of its rows.

    ``ecsq`` reads no others but some before and behind: through the frame's seek table, in units
    of its blocks, which take at most 2^18 elements; without one it reads all before. Other codecs
    decode all, and keep these. The checksums, and the tag, are those of all bytes, and are checked
    whatever the range.

    Parameters
    ----------
    frame : bytes-like
    start, stop : int
        Of the flattened tensor, in C order, 0 <= start <= stop <= its size: elements start to
        stop - 1. Rows i to j - 1 are ``i * width`` to ``j * width``, with `width` the product of
        all dimensions but the first.
    limits, key
        As for `decode`; limits are for the tensor of which these are elements.

    Returns
    -------
    (stop - start,) array
        The bits of ``decode(frame).reshape(-1)[start:stop]``.

    Raises
    ------
    FormatError
        The bytes are wrong. Damage outside of what is read may stay unseen; docs/exactness.md
        lists what a part checks.
    ParameterError
        An argument is wrong.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([[0.1, -3, 0], [2, -1, 5]], np.float32), "ecsq:step=1")
    >>> gcodec.decode_range(frame, 3, 6)  # the second row
    array([ 2., -1.,  5.], dtype=float32)
    """
    return _receive(frame, limits, key, False).decode_range(start, stop)


def decode_sparse(
    frame: bytes | bytearray | memoryview,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Decode a frame of which few elements are sent, without an array of all.

    Memory is proportional to the frame and what is returned, whatever the shape says; so the
    default limits bound the elements that are sent by the frame's own bytes alone.

    Parameters
    ----------
    frame : bytes-like
        Of ``topk``, ``randomk``, or ``qsgd`` and ``mxnet-2bit`` with ``form=sparse``.
    limits, key
        As for `decode`; default limits: none.

    Returns
    -------
    indices : (k,) int64 array
        Into the flattened tensor, rising.
    values : (k,) array
        Of the frame's dtype; all other elements are 0.

    Raises
    ------
    FormatError
        The bytes are wrong.
    ParameterError
        An argument is wrong, or the frame sends all elements.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([0.1, -3, 0, 2], np.float32), "topk:k=2")
    >>> gcodec.decode_sparse(frame)
    (array([1, 3]), array([-3.,  2.], dtype=float32))
    """
    return _receive(frame, limits, key, True).decode_sparse()


def decode_add(
    frame: bytes | bytearray | memoryview,
    acc: Any,
    scale: float = 1.0,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> None:
    """Add ``scale`` times the decoded frame to `acc`, without an array in between where possible.

    Parameters
    ----------
    frame : bytes-like
    acc : float32 array
        Of the frame's shape.
    scale : float
        Rounded to float32, as is its product with a decoded value.
    limits, key
        As for `decode`.

    Raises
    ------
    FormatError
        The bytes are wrong.
    ParameterError
        An argument is wrong, or the frame holds integers or booleans, which are not added up.
    """
    received = _receive(frame, limits, key, True)
    with working_on(acc):
        received.decode_add(acc, scale)


def iter_frames(
    data: bytes | bytearray | memoryview,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> Iterator[Frame]:
    """Read frames that lie end to end, as in a ``.gcf`` file.

    Parameters
    ----------
    data : bytes-like
    limits, key
        As for `decode`.

    Yields
    ------
    Frame

    Raises
    ------
    FormatError
        At the first frame that is wrong.
    """
    bounds = Limits.given(limits)
    at, end = 0, len(memoryview(data).cast("B"))
    while at < end:
        frame, at = Frame.read(data, at, bounds, key)
        yield frame


def _receive(data: Any, limits: Limits | None, key: bytes | None, shape_is_known: bool) -> Frame:
    if limits is None:
        # The caller's own array bounds what can be asked for.
        limits = Limits(1 << 62, 1 << 62) if shape_is_known else Limits()
    return Frame.from_bytes(byte_buffer(data, "frame"), limits=limits, key=key)


def _write(frame: Frame, out: Any) -> int:
    target = writable_bytes(out, "out")
    if len(target) < frame.nbytes:
        raise ParameterError.of("out", f"{len(target)} bytes", f"at least {frame.nbytes} bytes")
    at = 0
    for part in frame.parts():
        target[at : at + len(part)] = part
        at += len(part)
    return at
