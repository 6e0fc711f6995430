"""BytePS: messages of its CPU compressors onebit, topk, randomk and dithering, of float32 tensors.

A message is the bytes that a compressor hands to ps-lite: first the packed data, then scale and
length. Both ends know the number of elements, the compressor and its parameters, so the caller
passes them. Words have 32 bits and are little-endian. The first element or bit is the most
significant bit of a word.

- **onebit**: ceil(n/32) words of bits, where 1 means x < 0, so both zeros give 0; then the scale,
  float32. With scaling, the scale is the sum of |x| from the first element to the last in float64,
  divided by n; without scaling it is 1.
- **topk**, **randomk**: k pairs of a position, uint32, and a value, float32. topk has the order of
  the binary heap of libstdc++ (``push_heap``, ``pop_heap``). randomk draws positions with
  replacement: draws of xorshift128+ modulo n.
- **dithering**: for each nonzero level, the Elias-delta code of the distance to the preceding one
  (the first distance counts from −1), a sign bit (1 is minus), and the Elias-delta code of the
  level; zero bits up to the end of the word; the number of bits, uint32; the scale, float32. Each
  element takes one draw u of xorshift128+. The norm is max|x|, or √Σx² of squares rounded to
  float32. Linear: z = fl((|x|/norm)·k), level = floor(z) + [u < (z − floor z)·2^64]. Natural, with
  z = (|x|/norm)·2^(k−1) in float64 and p the largest power of two below ceil(z), or 0: level =
  p + max(p, 1)·[u < ((z − p)/max(p, 1))·2^64]. A decoded value is fl(fl(level·scale)/top), where
  top is the level of the norm, k or 2^(k−1).

The arithmetic follows the source under IEEE rules. BytePS is built with ``-Ofast``, which may
reorder the sums of onebit and of the l2 norm, flushes subnormal numbers to zero, and produces
levels for an all-zero tensor. In these cases its own bytes depend on compiler and processor.
Float16 and float64 messages are not supported; the float16 messages of topk and dithering are
defective in the original.

`to_frame` and `from_frame` exist for onebit (``sign``) and topk (``topk``). A frame stores the
pairs of topk by ascending position and does not restore their order. randomk has no frame,
because its positions may repeat. dithering has no frame, because ``qsgd`` has other codes and
rounds values differently.

Source: bytedance/byteps f5df52f, folder ``byteps/common/compressor``: ``impl/onebit.cc``,
``topk.cc``, ``randomk.cc``, ``dithering.cc`` and ``utils.h``. Arrays must be on the host: these
kernels have no CUDA counterpart.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import byteps
>>> message = byteps.encode(np.array([1, -2, 3, -4], np.float32), "topk", k=2)
>>> byteps.decode(message, "topk", 4)
array([ 0.,  0.,  3., -4.], dtype=float32)
>>> byteps.from_frame(byteps.to_frame(message, "topk", 4)) == message
True
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.arrays.protocols import BytesLike, ShapeLike, TensorLike
from gcodec.codecs.sign import Sign, SignSymbols
from gcodec.codecs.topk import TopK, exact_payload
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    checked_shape,
    host_tensor,
    object_bytes,
    opened_frame,
    size_error,
)
from gcodec.kernels.bits import signs
from gcodec.kernels.numeric.reduce import all_finite, float_of_bits, max_abs_bits
from gcodec.kernels.quantize import byteps as kernels
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import check_choice, check_flag, check_integer, check_number

Compressor = Literal["onebit", "topk", "randomk", "dithering"]
Partition = Literal["linear", "natural"]
Normalize = Literal["max", "l2"]

_WORD = 32  # bits
_WORD_NBYTES, _PAIR_NBYTES = 4, 8
_MAX_WORD = 2**32 - 1  # largest position, number of elements, and seed
_MAX_LINEAR, _MAX_NATURAL = 2**24, 31

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "onebit": ("scaling",),
    "topk": ("k",),
    "randomk": ("k", "seed"),
    "dithering": ("k", "seed", "partition", "normalize"),
}
_DEFAULTS = {
    "k": None,
    "seed": None,
    "scaling": False,
    "partition": "linear",
    "normalize": "max",
}


class XorShift128Plus:
    """Random generator of a compressor, whose state advances from message to message.

    Parameters
    ----------
    seed : int
        Initial value of both words of the state, 1 to 2**32 - 1.

    Attributes
    ----------
    state : (2,) uint64 array
        State of the generator.

    Examples
    --------
    >>> generator = XorShift128Plus(7)
    >>> generator.state.tolist()
    [7, 7]
    """

    def __init__(self, seed: int) -> None:
        allowed = "an integer from 1 to 2**32 - 1"
        self.state = np.full(2, check_integer("seed", seed, 1, _MAX_WORD, allowed), np.uint64)


@exact
def encode(
    x: TensorLike,
    compressor: Compressor,
    *,
    k: float | None = None,
    seed: int | XorShift128Plus | None = None,
    scaling: bool = False,
    partition: Partition = "linear",
    normalize: Normalize = "max",
) -> bytes:
    """Compress a tensor as one of BytePS's compressors does.

    Parameters
    ----------
    x : float32 array
        Tensor on the host, with 1 to 2**32 - 1 elements, all finite.
    compressor : {"onebit", "topk", "randomk", "dithering"}
        Name of the compressor.
    k : int or float
        ``compressor_k``. For topk and randomk: number of pairs, at most half of the elements; or,
        below 1, the fraction of the elements, whose number BytePS first rounds up to a multiple
        of 32. For dithering: number of levels, 1 to 2**24 (linear), or its base-2 logarithm
        plus 1, 1 to 31 (natural).
    seed : int or XorShift128Plus
        For randomk and dithering: seed of the first message, or the generator, whose state
        advances.
    scaling : bool
        ``compressor_onebit_scaling``: whether onebit sends the mean magnitude instead of 1.
    partition : {"linear", "natural"}
        ``dithering_partition`` 0 or 1: whether levels are all integers or powers of two.
    normalize : {"max", "l2"}
        ``dithering_normalize`` 0 or 1: norm by which magnitudes are divided.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        If an argument is missing or out of range, or the compressor does not have it; if `x`
        contains NaN or Inf; if dithering would send a value, a norm or a count that BytePS cannot
        write.
    TypeError
        If the array has another dtype or is on a device.

    Examples
    --------
    >>> import numpy as np
    >>> encode(np.array([1, -2, 3, -4], np.float32), "onebit", scaling=True).hex()
    '0000005000002040'
    """
    check_choice("compressor", compressor, get_args(Compressor))
    check_flag("scaling", scaling)
    check_choice("partition", partition, get_args(Partition))
    check_choice("normalize", normalize, get_args(Normalize))
    _check_parameters(
        compressor, k=k, seed=seed, scaling=scaling, partition=partition, normalize=normalize
    )
    values = host_tensor(x, "BytePS", ("float32",)).values
    if not 1 <= values.size <= _MAX_WORD:
        raise ParameterError.of("x.size", values.size, f"from 1 to {_MAX_WORD}")
    if compressor == "onebit":
        return _encode_onebit(values, scaling)
    if compressor == "dithering":
        top, natural = _levels(k, partition), partition == "natural"
        return _encode_dithering(values, top, natural, normalize, _generator(seed))
    count = _pair_count(k, values.size)
    if compressor == "topk":
        check_finite(values)
        positions = kernels.select_by_heap(values, count)
    else:
        generator = _generator(seed)
        check_finite(values)
        positions = kernels.draw_positions(generator.state, values.size, count)
    return _pair_bytes(positions, values[positions])


@exact
def decode(
    data: BytesLike,
    compressor: Compressor,
    shape: ShapeLike,
    *,
    k: float | None = None,
    partition: Partition = "linear",
    limits: Limits | None = None,
) -> np.ndarray:
    """Decompress a message of one of BytePS's compressors.

    Parameters
    ----------
    data : bytes-like
        Message of the compressor.
    compressor : {"onebit", "topk", "randomk", "dithering"}
        Name of the compressor.
    shape : tuple of int or int
        Shape of the tensor, which has at least one element.
    k, partition
        See `encode`. dithering needs both. For topk and randomk, `k` is optional; if it is
        passed, the number of pairs must match.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    float32 array of `shape`

    Raises
    ------
    FormatError
        If the length contradicts the other arguments; if a scale is negative, NaN or infinite; if
        a position is outside the tensor, is repeated (topk), or is repeated with a different
        value (randomk); if a value is NaN or infinite; if there are more pairs than half of the
        elements; if a code of dithering is cut off, too long or leads outside the tensor, or its
        padding is not zero. The decoder ignores the bits of onebit after the last element,
        because BytePS fills them from the memory after the tensor.
    ParameterError
        If an argument is missing or out of range, or the compressor does not have it.
    """
    check_choice("compressor", compressor, get_args(Compressor))
    check_choice("partition", partition, get_args(Partition))
    _check_parameters(compressor, k=k, partition=partition)
    sizes, n = _checked_shape(shape, limits)
    packed = object_bytes(data)
    if compressor == "onebit":
        out = Sign().dequantize(_read_onebit(packed, n), n)
    elif compressor == "dithering":
        out = result_beside(n, np.float32, None)
        _decode_dithering(packed, _levels(k, partition), partition == "natural", out)
    else:
        positions, values = _read_pairs(packed, n, compressor, k)
        out = np.zeros(n, np.float32)
        out[positions] = values
        if not np.array_equal(out.view(np.uint32)[positions], values.view(np.uint32)):
            raise Corrupt("a position comes twice, with different values")
    return out.reshape(sizes)


@exact
def to_frame(
    data: BytesLike,
    compressor: Literal["onebit", "topk"],
    shape: ShapeLike,
    *,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Put a message of onebit or topk into a frame of ``sign`` or ``topk``.

    Parameters
    ----------
    data, shape, limits
        See `decode`.
    compressor : {"onebit", "topk"}
        Name of the compressor.
    name : str, optional
        Name of the tensor, stored in the frame.

    Returns
    -------
    Frame
        Frame that decodes to the same values. It stores the pairs of topk by position.

    Raises
    ------
    FormatError, ParameterError
        As for `decode`.
    """
    check_choice("compressor", compressor, ("onebit", "topk"))
    sizes, n = _checked_shape(shape, limits)
    packed = object_bytes(data)
    if compressor == "onebit":
        payload = Sign().pack(_read_onebit(packed, n))
    else:
        positions, values = _read_pairs(packed, n, compressor, None)
        order = np.argsort(positions)
        payload = exact_payload(n, positions[order].astype(np.int64), values[order])
    return Frame(payload.codec, "float32", sizes, payload, name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> bytes:
    """Return the message of onebit or topk with the content of a frame of ``sign`` or ``topk``.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32 values, with any scale of ``sign`` and any value format of ``topk``. The
        message contains the decoded values of the frame, pairs by ascending position.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        If the frame has another codec or dtype, or contains no elements or more than half of
        them, which a message of topk cannot.
    FormatError
        If the frame is damaged.
    """
    frame, codec = opened_frame(frame, limits, Sign, TopK)
    n = frame.size
    if not 1 <= n <= _MAX_WORD:
        raise ParameterError.of("frame.size", n, f"from 1 to {_MAX_WORD}")
    if isinstance(codec, Sign):
        symbols = codec.unpack(frame.payload, frame.shape)
        return _onebit_bytes(symbols.bits, n, symbols.scale)
    positions, values = frame.decode_sparse()
    if not 1 <= positions.size <= n // 2:
        allowed = f"1 to {n // 2} values, at most half of the elements"
        raise ParameterError.of("frame", f"{positions.size} values of {n}", allowed)
    return _pair_bytes(positions.astype(np.uint32), values)


# --- arguments -----------------------------------------------------------------------------------


def _checked_shape(shape: ShapeLike, limits: Limits | None) -> tuple[tuple[int, ...], int]:
    sizes, n = checked_shape(shape, limits)
    if not 1 <= n <= _MAX_WORD:
        raise ParameterError.of("shape", shape, f"of 1 to {_MAX_WORD} elements")
    return sizes, n


def _check_parameters(compressor: str, **values: object) -> None:
    """Raise ParameterError for a parameter that is passed, but not one of the compressor."""
    for name, value in values.items():
        default = _DEFAULTS[name]
        is_passed = value is not None and (default is None or value != default)
        if is_passed and name not in _PARAMETERS[compressor]:
            raise ParameterError.of(name, value, f"left out, because {compressor} has no {name}")


def _generator(seed: int | XorShift128Plus | None) -> XorShift128Plus:
    if seed is None:
        raise ParameterError("seed: randomk and dithering need a seed or a generator")
    return seed if isinstance(seed, XorShift128Plus) else XorShift128Plus(seed)


def _pair_count(k: float | None, n: int) -> int:
    """Return the number of pairs, in the float32 arithmetic of BytePS's registry."""
    allowed = f"a number of pairs up to {n // 2}, half of the elements, or a share above 0"
    if k is None:
        raise ParameterError("k: topk and randomk need a number of pairs")
    number = check_number("k", k, allowed)
    if not 0 < number <= max(n // 2, 1):  # NaN fails as well
        raise ParameterError.of("k", k, allowed)
    factor = np.float32(number)
    if factor < 1:
        nbytes = np.float32(_WORD_NBYTES * _WORD * -(-n // _WORD))
        count = max(int(np.float32(factor * nbytes) / np.float32(_WORD_NBYTES)), 1)
    else:
        count = int(factor)
    if count > n // 2:
        raise ParameterError.of("k", k, allowed)
    return count


def _levels(k: object, partition: Partition) -> int:
    """Return the level of the norm."""
    largest = _MAX_NATURAL if partition == "natural" else _MAX_LINEAR
    allowed = f"an integer from 1 to {largest} with partition={partition}"
    levels = check_integer("k", k, 1, largest, allowed)
    return 1 << (levels - 1) if partition == "natural" else levels


# --- onebit --------------------------------------------------------------------------------------


def _onebit_bytes(bits: np.ndarray, n: int, scale: float) -> bytes:
    """Return a message of onebit; the first bit of `bits` is the most significant of its byte."""
    padded = np.zeros(_WORD_NBYTES * -(-n // _WORD), np.uint8)
    padded[: bits.size] = bits
    return padded.view(np.uint32).byteswap().tobytes() + np.float32(scale).tobytes()


def _encode_onebit(values: np.ndarray, scaling: bool) -> bytes:
    bits, total = signs.quantize(values, squares=False)
    if not math.isfinite(total):
        check_finite(values)
    scale = kernels.sum_magnitudes(values) / values.size if scaling else 1
    return _onebit_bytes(bits, values.size, scale)


def _read_onebit(packed: np.ndarray, n: int) -> SignSymbols:
    words = -(-n // _WORD)
    expected = _WORD_NBYTES * (words + 1)
    if packed.size != expected:
        message = f"the message has {packed.size} bytes: {n} elements take {expected}"
        raise size_error(message, packed.size, expected)
    scale = _read_scale(packed)
    bits = packed[: _WORD_NBYTES * words].view("<u4").byteswap().view(np.uint8)
    bits = bits[: -(-n // 8)].copy()
    if n % 8:
        bits[-1] &= 0xFF << 8 - n % 8 & 0xFF
    return SignSymbols(bits, n, scale)


def _read_scale(packed: np.ndarray) -> float:
    """Return the scale at the end of a message."""
    (scale,) = packed[-_WORD_NBYTES:].copy().view("<f4").tolist()
    if not math.isfinite(scale) or math.copysign(1, scale) < 0:
        raise Corrupt(f"the scale {scale} is negative or not finite", packed.size - _WORD_NBYTES)
    return float(scale)


# --- topk and randomk ----------------------------------------------------------------------------


def _pair_bytes(positions: np.ndarray, values: np.ndarray) -> bytes:
    return np.stack([positions, values.view(np.uint32)], axis=1).tobytes()


def _read_pairs(
    packed: np.ndarray, n: int, compressor: str, k: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and the values of a message of topk or randomk."""
    count, remainder = divmod(packed.size, _PAIR_NBYTES)
    if remainder or not count:
        raise Truncated(f"{packed.size} bytes are not whole pairs of {_PAIR_NBYTES} bytes")
    if k is not None and count != (expected := _pair_count(k, n)):
        raise size_error(f"the message has {count} pairs: must be {expected}", count, expected)
    if count > n // 2:
        raise Corrupt(f"the message has {count} pairs, more than half of {n} elements")
    words = packed.copy().view("<u4").reshape(-1, 2)
    positions, values = words[:, 0].copy(), words[:, 1].copy().view(np.float32)
    is_outside = positions >= n
    if is_outside.any():
        pair = int(np.argmax(is_outside))
        message = f"position {positions[pair]} is outside {n} elements"
        raise Corrupt(message, _PAIR_NBYTES * pair)
    if not all_finite(values):
        pair = int(np.argmin(np.isfinite(values)))
        message = f"the value {values[pair]} is not finite"
        raise Corrupt(message, _PAIR_NBYTES * pair + _WORD_NBYTES)
    if compressor == "topk":
        is_sent = np.zeros(n, np.bool_)
        is_sent[positions] = True
        if np.count_nonzero(is_sent) != count:
            raise Corrupt("a position comes twice")
    return positions, values


# --- dithering -----------------------------------------------------------------------------------


def _encode_dithering(
    values: np.ndarray, top: int, natural: bool, normalize: Normalize, generator: XorShift128Plus
) -> bytes:
    check_finite(values)
    if normalize == "max":
        norm = float_of_bits(max_abs_bits(values))
    else:
        norm = math.sqrt(kernels.sum_rounded_squares(values))
        if not math.isfinite(norm):
            raise ParameterError("x: the squares of its values must not exceed float32")
    state = generator.state.copy()
    string = kernels.dither(values, norm, top, natural, state)
    with np.errstate(over="ignore"):
        scale = np.float32(norm)
        if not np.isfinite(np.float32(string.largest) * scale):
            raise ParameterError("x: its norm times the largest level must not exceed float32")
    words = math.ceil(np.float32(string.nbits) / np.float32(_WORD))  # as BytePS counts them
    if string.nbits > _MAX_WORD or words != string.data.size // _WORD_NBYTES:
        raise ParameterError(
            f"x: {string.nbits} bits are more than BytePS counts exactly; split the tensor"
        )
    generator.state[:] = state
    return string.data.tobytes() + np.uint32(string.nbits).tobytes() + scale.tobytes()


def _decode_dithering(packed: np.ndarray, top: int, natural: bool, out: np.ndarray) -> None:
    end = packed.size - 2 * _WORD_NBYTES
    if end < 0 or end % _WORD_NBYTES:
        raise Truncated(f"{packed.size} bytes are not whole words, a count and a scale")
    scale = _read_scale(packed)
    nbits = int(packed[end : end + _WORD_NBYTES].copy().view("<u4")[0])
    expected = _WORD_NBYTES * -(-nbits // _WORD)
    if end != expected:
        message = f"the message has {end} bytes of words: {nbits} bits take {expected}"
        raise size_error(message, end, expected, end)
    kernels.undither(packed[:end], nbits, np.float32(scale), top, natural, out)
