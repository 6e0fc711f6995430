"""The functions that encode a tensor to a frame and decode frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, overload

import numpy as np

from gcodec.arrays.large_bytes import LEAST_NBYTES
from gcodec.arrays.nonfinite import NonFinite, check_nonfinite, check_top, with_policy
from gcodec.arrays.protocols import BytesLike, TensorLike
from gcodec.arrays.source import byte_buffer, inspect, shares_memory, writable_bytes
from gcodec.codec import Codec, CodecLike
from gcodec.codecs import parse_encoder
from gcodec.errors import ParameterError
from gcodec.frame import Frame, FrameLike, FrameSum, check_key
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import max_abs_bits
from gcodec.limits import WORK_LIMITS, Limits
from gcodec.payload import MissedTarget
from gcodec.policy import Policy
from gcodec.runtime import jit, kernel_cache
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.reuse import result_beside
from gcodec.tensorfiles.frame_list import located, mapped, mapped_file
from gcodec.wire.primitives import ITEMSIZE, Reader, encode_name

_Array = TypeVar("_Array", bound=TensorLike)


@overload
def encode(
    x: TensorLike,
    codec: CodecLike | Policy,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    out: None = None,
    key: bytes | None = None,
    report: Callable[[MissedTarget], object] | None = None,
) -> bytes: ...


@overload
def encode(
    x: TensorLike,
    codec: CodecLike | Policy,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    out: BytesLike,
    key: bytes | None = None,
    report: Callable[[MissedTarget], object] | None = None,
) -> int: ...


@exact
def encode(
    x: TensorLike,
    codec: CodecLike | Policy,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    out: BytesLike | None = None,
    key: bytes | None = None,
    report: Callable[[MissedTarget], object] | None = None,
) -> bytes | int:
    """Compress one tensor to a frame.

    A frame stores its codec, the dtype and the shape, so `decode` needs nothing else.

    Parameters
    ----------
    x : array
        Tensor of any shape. On the host: an array of NumPy, torch, JAX, TensorFlow or MLX, or an
        object with DLPack, the buffer protocol or ``__array__``. On a CUDA device: an array of
        CuPy or torch, or an object with ``__cuda_array_interface__``; the codec then runs on that
        device. The dtype is float32, float16, bfloat16 or float64. The codecs ``raw`` and
        ``lossless`` also take integers of 8 to 64 bits, booleans and floats of 8 bits, and keep
        them unchanged.
    codec : str, mapping, Codec or Policy
        Codec and its parameters, such as ``"minmax:bits=4"``; see `gcodec.parse`. A
        `gcodec.Policy` picks a codec by the name, the shape and the dtype.
    seed : int
        Seed for stochastic rounding, from 0 to 2**64 - 1. Other codecs ignore it.
    name : str, optional
        Name of the tensor, stored in the frame.
    nonfinite : {"raise", "zero", "propagate"}
        Policy for NaN and Inf: raise `ParameterError`, replace them by 0, or pass them to the
        codec. Under ``"raise"``, ``lossless`` accepts them too, as it keeps every bit pattern.
    out : writable buffer, optional
        Buffer of at least ``codec.max_encoded_nbytes(n, name)`` bytes for a tensor of n elements
        (for other dtypes than float32, pass ``dtype=`` to that method). The frame is written to
        its start.
    key : bytes, optional
        Secret of 1 to 64 bytes. The frame then ends with a BLAKE2b tag that only this key can
        produce.
    report : callable, optional
        Function that receives a `gcodec.payload.MissedTarget` if the codec has a target, such as
        the bits of ``ecsq:bits=1``, that this tensor cannot meet. The frame then uses the nearest
        value.

    Returns
    -------
    bytes or int
        The frame; if `out` is given, the number of bytes written to it.

    Raises
    ------
    ParameterError
        If an argument is invalid, or if `x` contains NaN or Inf under ``"raise"``.
    TypeError
        If `x` is no array, or has a dtype or lies on a device that the codec does not support.
    ImportError, RuntimeError, MemoryError
        If CuPy, the driver or device memory is missing for an array on a CUDA device.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([0.5, -0.5, 0.49, -0.7, 1.2], np.float32), "mxnet-2bit")
    >>> gcodec.decode(frame)
    array([ 0.5, -0.5,  0. , -0.5,  0.5], dtype=float32)
    """
    parts = frame_parts(x, codec, seed, name, nonfinite, key, report, out)
    return b"".join(parts) if out is None else len(parts[0])


def frame_parts(
    x: TensorLike,
    codec: CodecLike | Policy,
    seed: int,
    name: str | None,
    nonfinite: NonFinite,
    key: bytes | None,
    report: Callable[[MissedTarget], object] | None = None,
    out: BytesLike | None = None,
) -> list[bytes | memoryview]:
    """Encode a tensor as `encode` does; return the parts of its frame, or one part in `out`.

    Some parts may be views of the tensor's memory.
    """
    if not isinstance(codec, Policy):
        codec = parse_encoder(codec)
    if name is not None:
        encode_name(name)  # refuse an invalid name before any work is done
    seed = check_seed(seed)
    check_nonfinite(nonfinite)
    source = inspect(x, "x")
    with source.context():
        if isinstance(codec, Policy):
            dtype, shape = source.description()
            if dtype not in ITEMSIZE:
                raise source.dtype_error(dtype)
            codec = codec.codec(name, shape, dtype)
        if nonfinite == "raise":
            codec = codec._refusing()
        tensor = codec._read_source(source)
        # The payload of ``raw`` is the values, which are checked while the frame is written. The
        # caller's buffer is an exception: nothing is written to it before the check.
        is_checked_later = (
            nonfinite == "raise"
            and out is None
            and source.device is None
            and codec._sends(tensor.values)
        )
        is_checked = codec.refuses_nonfinite or codec.keeps_every_bit or is_checked_later
        if nonfinite != "raise" or not is_checked:
            tensor = with_policy(tensor, nonfinite, segments=codec.reads_segments)
        payload = codec._bound_to(tensor)._encode(tensor.values, seed, None)
        payload = payload.resolved(with_data=True)
        frame = Frame(payload.codec, tensor.dtype, tensor.shape, payload, name, check_key(key))
        if report is not None and payload.missed is not None:
            report(payload.missed)
        if out is not None:
            return [_write(frame, out)]
        if is_checked_later:

            def check(chunk: np.ndarray) -> None:
                check_top(max_abs_bits(chunk.view(np.float32)), tensor.values)

            return frame.large_parts(check)
        is_large = source.device is None and payload.data.nbytes >= LEAST_NBYTES
        is_own = is_large and not shares_memory(payload.data, tensor.values)
        return frame.large_parts(drains=is_own)


@overload
def decode(
    frame: FrameLike,
    *,
    like: None = None,
    out: None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> np.ndarray: ...


@overload
def decode(
    frame: FrameLike,
    *,
    like: _Array,
    out: None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> _Array: ...


@overload
def decode(
    frame: FrameLike,
    *,
    like: None = None,
    out: _Array,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> _Array: ...


def decode(
    frame: FrameLike,
    *,
    like: TensorLike | None = None,
    out: TensorLike | None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> Any:
    """Decode a frame to a tensor.

    Parameters
    ----------
    frame : bytes-like or Frame
        One frame, such as `encode` returns. A `Frame` has already been checked.
    like : array, optional
        Array whose library, device and dtype the result takes. Its shape must equal the frame's;
        for integers, booleans and floats of 8 bits its dtype must, too. The result is a NumPy
        array if `encode` does not know the library.
    out : array, optional
        Array of the frame's shape and dtype that receives the result. Arrays of JAX, TensorFlow
        and MLX cannot be written to. The contents are undefined after a `FormatError`.
    limits : Limits, optional
        Bounds on the memory and the work that the frame may cost this call. Default: ``Limits()``.
        If `like` or `out` fixes the shape, only the default ``max_products`` applies.
    key : bytes, optional
        Key of the frame's tag. A frame without a tag of this key is refused.

    Returns
    -------
    array
        A NumPy array of the frame's shape and dtype, an array like `like`, or `out`.

    Raises
    ------
    FormatError
        If the frame is damaged, is no frame, or exceeds the limits.
    ParameterError
        If an argument is invalid, or its shape or dtype differs from the frame's.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([[0.3, -0.9]], np.float32), "sign:scale=none")
    >>> gcodec.decode(frame)
    array([[ 1., -1.]], dtype=float32)
    """
    received = _receive(frame, limits, key, like is not None or out is not None)
    return received.decode(like=like, out=out)


def decode_range(
    frame: FrameLike,
    start: int,
    stop: int,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> np.ndarray:
    """Decode a range of elements of a frame, such as some rows of a matrix.

    ``ecsq`` and ``lossless`` use the frame's seek table to decode the blocks that contain the
    range, and for some the preceding block, of at most 2^18 elements each; without a table they
    decode everything before the range, too. ``lowrank`` and ``powersgd`` multiply only the rows
    of the range. Other codecs read the whole payload, and return the range. The checksums and the
    tag cover all bytes, and are verified for any range.

    Parameters
    ----------
    frame : bytes-like or Frame
        One frame.
    start, stop : int
        First element, and end of the range (exclusive), in the tensor flattened in C order:
        0 <= start <= stop <= size. Rows i to j - 1 are the elements ``i * width`` to
        ``j * width``, where `width` is the product of all dimensions but the first.
    limits, key
        See `decode`. The limits apply to the whole tensor.

    Returns
    -------
    (stop - start,) array
        The same bits as ``decode(frame).reshape(-1)[start:stop]``.

    Raises
    ------
    FormatError
        If a checksum is wrong, or the bytes that this range needs are invalid. Other invalid bytes
        with correct checksums may remain unnoticed; docs/exactness.md lists the checks.
    ParameterError
        If an argument is invalid.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([[0.1, -3, 0], [2, -1, 5]], np.float32), "ecsq:step=1")
    >>> gcodec.decode_range(frame, 3, 6)  # the second row
    array([ 2., -1.,  5.], dtype=float32)
    """
    return _receive(frame, limits, key, False).decode_range(start, stop)


def decode_sparse(
    frame: FrameLike,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Decode a sparse frame to indices and values, without an array of the tensor's size.

    The memory is proportional to the frame and the result, whatever shape the frame states.

    Parameters
    ----------
    frame : bytes-like or Frame
        Frame of ``topk``, ``randomk`` or ``sparseloco``, or of ``qsgd`` or ``mxnet-2bit`` with
        ``form=sparse``.
    limits, key
        See `decode`. Default limits: none.

    Returns
    -------
    indices : (k,) int64 array
        Indices into the flattened tensor, in ascending order.
    values : (k,) array
        Values at the indices, in the frame's dtype. All other elements are 0.

    Raises
    ------
    FormatError
        If the frame is damaged or is no frame.
    ParameterError
        If an argument is invalid, or if the frame stores all elements.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> frame = gcodec.encode(np.array([0.1, -3, 0, 2], np.float32), "topk:k=2")
    >>> gcodec.decode_sparse(frame)
    (array([1, 3]), array([-3.,  2.], dtype=float32))
    """
    return _receive(frame, limits, key, True).decode_sparse()


def decode_add(
    frame: FrameLike,
    acc: TensorLike,
    scale: float = 1.0,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> None:
    """Add ``scale`` times the decoded tensor to `acc`.

    Most codecs add while they decode and need no intermediate array.

    Parameters
    ----------
    frame : bytes-like or Frame
        One frame of floats.
    acc : float32 array
        Accumulator of the frame's shape, updated in place.
    scale : float
        Factor, rounded to float32. The product with each decoded value is rounded to float32, too.
    limits, key
        See `decode`; `acc` fixes the shape.

    Raises
    ------
    FormatError
        If the frame is damaged or is no frame.
    ParameterError
        If an argument is invalid, or if the frame stores integers, booleans or floats of 8 bits.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> total = np.zeros(2, np.float32)
    >>> frame = gcodec.encode(np.array([0.5, -2], np.float32), "raw")
    >>> gcodec.decode_add(frame, total, 0.5)
    >>> total
    array([ 0.25, -1.  ], dtype=float32)
    """
    _receive(frame, limits, key, True).decode_add(acc, scale)


@overload
def decode_sum(
    frames: Iterable[FrameLike],
    *,
    out: None = None,
    scale: float | Sequence[float] = 1.0,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> np.ndarray: ...


@overload
def decode_sum(
    frames: Iterable[FrameLike],
    *,
    out: _Array,
    scale: float | Sequence[float] = 1.0,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> _Array: ...


@exact
def decode_sum(
    frames: Iterable[FrameLike],
    *,
    out: TensorLike | None = None,
    scale: float | Sequence[float] = 1.0,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> Any:
    """Decode frames of one shape, and return their sum.

    The result has the same bits as calls of `decode_add`, in the order of the frames, on an array
    of zeros. The call takes less time than a loop: it adds all frames to a part of the sum while
    that part is in the cache, and reads and writes only those elements that sparse frames send.
    Frames with an entropy code for all elements are added one after another.

    Parameters
    ----------
    frames : iterable of bytes-like or Frame
        At least one frame of floats. The shapes must be equal; codecs and dtypes may differ.
    out : float32 array, optional
        Array of the frames' shape that receives the sum. The contents are undefined after a
        `FormatError`.
    scale : float or sequence of float
        Factor of all frames, or the factors of the individual frames; see `decode_add`.
    limits, key
        See `decode`. The limits apply to each frame; a `Frame` has already been checked.

    Returns
    -------
    float32 array
        A NumPy array of the frames' shape, or `out`.

    Raises
    ------
    FormatError
        If a frame is damaged or is no frame. The message states the index of the frame.
    ParameterError
        If an argument is invalid, if the shapes differ, or if a frame stores integers, booleans or
        floats of 8 bits.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> gradients = [np.array([0.5, -2, 3], np.float32), np.array([1.5, 1, -1], np.float32)]
    >>> frames = [gcodec.encode(gradient, "raw") for gradient in gradients]
    >>> gcodec.decode_sum(frames, scale=1 / 2)  # the mean
    array([ 1. , -0.5,  1. ], dtype=float32)
    """
    if isinstance(frames, (bytes, bytearray, memoryview)) or not isinstance(frames, Iterable):
        raise TypeError(
            f"frames is of type {type(frames).__name__}: must be an iterable of frames"
        )
    read: list[Frame] = []
    for index, data in enumerate(frames):
        with located(f"frame {index}", default=None):
            read.append(_receive(data, limits, key, out is not None))
    if not read:
        raise ParameterError.of("frames", [], "at least one frame")
    factors: Any = scale
    try:
        scales: list[float] = [factors] * len(read) if np.ndim(scale) == 0 else list(factors)
    except ValueError:  # NumPy refuses sequences of different lengths
        scales = []
    if len(scales) != len(read):
        raise ParameterError.of("scale", scale, f"a number, or one for each of {len(read)} frames")
    size, shape = read[0].size, read[0].shape
    if out is None:
        read[0].check_addressable()
    total = result_beside(size, np.float32, None).reshape(shape) if out is None else out
    added = FrameSum(total, shape)
    addends = list(enumerate(zip(map(added.apart, read), scales, strict=True)))
    for index, (frame, factor) in addends:  # all of them, before `out` changes
        with _numbered(index):
            added.check(frame, factor)
    for index, (frame, factor) in addends:
        with _numbered(index):
            added.add(frame, factor)
    added.finish()
    return total


@contextmanager
def _numbered(index: int) -> Iterator[None]:
    """Make errors state the index of a frame."""
    with located(f"frame {index}", default=None):
        try:
            yield
        except ParameterError as error:
            raise ParameterError(f"frame {index}: {error}") from None


def iter_frames(
    data: bytes | bytearray | memoryview | str | os.PathLike[str] | IO[bytes],
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> Iterator[Frame]:
    """Read consecutive frames, such as the contents of a ``.gcf`` file.

    Parameters
    ----------
    data : bytes-like, str, os.PathLike or binary file
        Frames without gaps; or the path of a file of frames; or an open file, which is read from
        its position to its end. The payloads of the results are views of this memory, or of a
        memory map of the file.
    limits, key
        See `decode`. Default limits: ``Limits()``.

    Yields
    ------
    Frame
        The next frame, verified but not decoded.

    Raises
    ------
    FormatError
        At the first frame that is damaged or exceeds the limits. The message states its number,
        and the path.
    OSError
        If a file cannot be read, such as a non-blocking stream that has no bytes yet.
    TypeError
        If `data` is another object, or a file that is open for text.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> named = {"a": np.ones(2, np.float32), "b": np.zeros((2, 2), np.float32)}
    >>> data = b"".join(gcodec.encode(x, "raw", name=name) for name, x in named.items())
    >>> [(frame.name, frame.shape) for frame in gcodec.iter_frames(data)]
    [('a', (2,)), ('b', (2, 2))]
    """
    limits = Limits.or_default(limits)
    contents, start = _contents(data)
    reader, number = Reader(contents, start), 0
    file = f"{os.fspath(data)}: " if isinstance(data, (str, os.PathLike)) else ""
    while reader.at < len(reader.data):
        with located(f"{file}frame {number}", default=reader.at):
            frame = Frame.read(reader, limits, key)
        yield frame
        number += 1


def _contents(data: Any) -> tuple[Any, int]:
    """Return the bytes of a buffer, path or open file, and the position of the first one."""
    if isinstance(data, (str, os.PathLike)):
        return mapped(Path(data)), 0
    if hasattr(data, "read"):
        return mapped_file(data)
    return byte_buffer(data, "data"), 0


def _receive(data: FrameLike, limits: Limits | None, key: bytes | None, is_bounded: bool) -> Frame:
    """Read a frame; `is_bounded` states that the caller's own array bounds the memory."""
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        kind = type(data).__name__
        raise TypeError(f"frame is of type {kind}: must be bytes; gcodec.load_file reads a file")
    if limits is None and is_bounded:
        limits = WORK_LIMITS
    return Frame.of(data, limits=limits, key=key)


def _write(frame: Frame, out: BytesLike) -> memoryview:
    """Write a frame to the start of a buffer of the caller; return its bytes there."""
    target = writable_bytes(out, "out")
    if len(target) < frame.nbytes:
        raise ParameterError(
            f"out: has {len(target)} bytes, must have at least {frame.nbytes} bytes"
        )
    start = 0
    for part in frame.apart_from(np.asarray(target)).parts():
        target[start : start + len(part)] = part
        start += len(part)
    return target[:start]


def warmup(*codecs: CodecLike) -> int:
    """Compile kernels ahead of their first use, and store them for later processes.

    The first use of a codec compiles its kernels, unless a wheel of gcodec for this platform
    carries them. Compiled kernels are for the exact processor. They are faster than those of a
    wheel, and later processes prefer them. Call this function in a job script or while building a
    container; the command ``gcodec warmup`` does the same in several processes.

    Parameters
    ----------
    *codecs : str, mapping or Codec
        Codecs whose kernels are compiled: those that encode and decode float32 arrays on the host.
        Default: all kernels of all codecs, which takes one to two minutes.

    Returns
    -------
    int
        Number of kernels that this call compiled.

    Raises
    ------
    ParameterError
        If a codec or one of its parameters is invalid.
    CompilerDisabled
        If Numba's compiler is disabled.

    Examples
    --------
    >>> import gcodec
    >>> gcodec.warmup("sign") >= 0
    True
    """
    compiled: list[str] = []
    kernel_cache.entry_code()
    with kernel_cache.watched(compiled.append):
        for codec in list(map(parse_encoder, codecs)):
            _use(codec)
        for kernel in kernel_cache.loaded() if codecs else jit.kernels():
            if kernel.is_shared:  # later processes would not find the others
                kernel_cache.compiled(kernel)
    return len(compiled)


def _use(codec: Codec) -> None:
    """Encode and decode two small tensors, a vector and a matrix with rows of different scale."""
    rng = np.random.default_rng(1)
    vector = rng.laplace(size=4099).astype(np.float32)
    rows = np.exp2(rng.integers(-3, 4, (64, 1))).astype(np.float32)
    for x in (vector, rows * rng.laplace(size=(64, 192)).astype(np.float32)):
        frame = encode(x, codec)
        decode_add(frame, decode(frame))
        decode_sum([frame, frame])
