"""BytePS: messages of its CPU compressors onebit, topk, randomk and dithering, of float32 tensors.

The object is what a compressor hands to ps-lite, as bytes: the packed data first, scale and length
last, and nothing else. Number of elements, kind of compressor and its parameters are known to both
ends, so the caller gives them. Words are 32 bits, little-endian; the first element or bit is the
most significant bit of a word.

- **onebit**: ceil(n/32) words of bits, 1 where x < 0 (so 0 for both zeros); scale, float32: the
  sum of |x| from the first element to the last in float64, over n, or 1 without scaling.
- **topk**, **randomk**: k pairs of a position, uint32, and a value, float32. topk has the order of
  the binary heap of libstdc++ (``push_heap``, ``pop_heap``); randomk draws positions with
  replacement, as the draws of xorshift128+ modulo n.
- **dithering**: for each level that is not 0 the Elias-delta word of the distance to the preceding
  one (the first counts from −1), a sign bit (1 is minus), the Elias-delta word of the level; zero
  bits to the end of the word; the number of bits, uint32; scale, float32. Each element takes one
  draw u of xorshift128+. With norm max|x|, or √Σx² of squares rounded to float32:
  linear, z = fl((|x|/norm)·k), level = floor(z) + [u < (z − floor z)·2^64]; natural, with
  z = (|x|/norm)·2^(k−1) in float64 and p the largest power of two below ceil(z), or 0, level =
  p + max(p, 1)·[u < ((z − p)/max(p, 1))·2^64]. A value is fl(fl(level·scale)/top), top the level
  of the norm, k or 2^(k−1).

The arithmetic is that of the source with IEEE rules. BytePS is built with ``-Ofast``, which may
reorder the sums of onebit and of the l2 norm, flushes subnormal numbers to zero, and makes levels
of an all-zero tensor: there its own bytes depend on compiler and processor. Float16 and float64
messages are not supported; float16 ones of topk and dithering are defective in the original.

`to_frame` and `from_frame` exist for onebit (``sign``) and topk (``topk``). A frame keeps the
pairs of topk by rising position: their order is not restored. randomk has no frame, since its
positions may repeat, and dithering has none: ``qsgd`` has other words and rounds values otherwise.

Source: bytedance/byteps f5df52f, folder ``byteps/common/compressor``: ``impl/onebit.cc``,
``topk.cc``, ``randomk.cc``, ``dithering.cc`` and ``utils.h``. Arrays are those of the host: the
kernels have no CUDA twin.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from gcodec.arrays.intake import check_finite, empty_like_shape
from gcodec.codecs.sign import Sign, SignSymbols
from gcodec.codecs.topk import TopK, TopKSymbols
from gcodec.entropy import values as value_coding
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.frame import Frame
from gcodec.interop.objects import checked_shape, host_tensor, object_bytes, opened_frame
from gcodec.kernels.bits import signs
from gcodec.kernels.numeric.reduce import all_finite, max_abs_bits
from gcodec.kernels.quantize import byteps as kernels
from gcodec.limits import Limits
from gcodec.wire.kinds import check_integer, check_number

Compressor = Literal["onebit", "topk", "randomk", "dithering"]
Partition = Literal["linear", "natural"]
Normalize = Literal["max", "l2"]

_COMPRESSORS = ("onebit", "topk", "randomk", "dithering")
_WORD = 32  # bits
_WORD_NBYTES, _PAIR_NBYTES = 4, 8
_MOST = 2**32 - 1  # elements, whose positions are words
_MOST_LINEAR, _MOST_NATURAL = 2**24, 31


class XorShift128Plus:
    """Generator of a compressor, which moves on from message to message.

    Parameters
    ----------
    seed : int
        From 1 to 2**32 - 1; both words of the state begin with it.

    Attributes
    ----------
    state : (2,) uint64 array

    Examples
    --------
    >>> generator = XorShift128Plus(7)
    >>> generator.state.tolist()
    [7, 7]
    """

    def __init__(self, seed: int) -> None:
        allowed = "an integer from 1 to 2**32 - 1"
        self.state = np.full(2, check_integer("seed", seed, 1, 2**32 - 1, allowed), np.uint64)


def encode(
    x: Any,
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
        On the host, with 1 to 2**32 - 1 elements, all finite.
    compressor : {"onebit", "topk", "randomk", "dithering"}
    k : int or float
        ``compressor_k``. topk, randomk: number of pairs, at most half of the elements, or below 1
        their share of the elements, whose number BytePS first rounds up to a multiple of 32.
        dithering: levels, 1 to 2**24 (linear), or their logarithm plus 1, 1 to 31 (natural).
    seed : int or XorShift128Plus
        For randomk and dithering: of the first message, or the generator, which moves on.
    scaling : bool
        ``compressor_onebit_scaling``: whether onebit sends the mean magnitude, or 1.
    partition : {"linear", "natural"}
        ``dithering_partition`` 0 or 1: whether levels are all integers, or powers of two.
    normalize : {"max", "l2"}
        ``dithering_normalize`` 0 or 1: norm that magnitudes are divided by.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        If an argument is missing or out of range; if `x` holds NaN or Inf; if dithering would send
        a value, a norm or a count that BytePS cannot write.
    TypeError
        For an array of another dtype or on a device.

    Examples
    --------
    >>> import numpy as np
    >>> encode(np.array([1, -2, 3, -4], np.float32), "onebit", scaling=True).hex()
    '0000005000002040'
    """
    _check_compressor(compressor)
    values = host_tensor(x, "BytePS", ("float32",)).values
    if not 1 <= values.size <= _MOST:
        raise ParameterError.of("x.size", values.size, f"from 1 to {_MOST}")
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
    return _pairs(positions, values[positions])


def decode(
    data: Any,
    compressor: Compressor,
    shape: Any,
    *,
    k: float | None = None,
    partition: Partition = "linear",
    limits: Limits | None = None,
) -> np.ndarray:
    """Decompress a message of one of BytePS's compressors.

    Parameters
    ----------
    data : bytes-like
    compressor : {"onebit", "topk", "randomk", "dithering"}
    shape : tuple of int or int
        Of the tensor, which has an element or more.
    k, partition
        See `encode`. dithering needs both; topk and randomk check the number of pairs, if `k` is
        given.
    limits : Limits, optional
        Bounds on what is allocated; default ``Limits()``.

    Returns
    -------
    float32 array of `shape`

    Raises
    ------
    FormatError
        If the length is not what the rest says; if a scale is negative, NaN or infinite; if a
        position is beyond the tensor, comes twice (topk), or twice with different values
        (randomk); if a value is NaN or infinite; if there are more pairs than half of the
        elements; if a word of dithering is cut off, too long or leads beyond the tensor, or its
        padding is not zero. Bits after the last one of onebit are ignored: BytePS fills them from
        whatever follows the tensor in memory.
    ParameterError
        If an argument is missing or out of range.
    """
    _check_compressor(compressor)
    sides, n = _checked(shape, limits)
    packed = object_bytes(data)
    if compressor == "onebit":
        bits, scale = _onebit(packed, n)
        out = Sign().dequantize(SignSymbols(bits, n, scale), n)
    elif compressor == "dithering":
        out = empty_like_shape(n)
        _decode_dithering(packed, _levels(k, partition), partition == "natural", out)
    else:
        positions, values = _read_pairs(packed, n, compressor, k)
        out = np.zeros(n, np.float32)
        out[positions] = values
        if not np.array_equal(out.view(np.uint32)[positions], values.view(np.uint32)):
            raise Corrupt("a position comes twice, with different values")
    return out.reshape(sides)


def to_frame(
    data: Any,
    compressor: Literal["onebit", "topk"],
    shape: Any,
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
    name : str, optional
        Name of the tensor, stored in the frame.

    Returns
    -------
    Frame
        Decodes to the same values. Pairs of topk are sorted by position.

    Raises
    ------
    FormatError, ParameterError
        As for `decode`.
    """
    if compressor not in ("onebit", "topk"):
        raise ParameterError.of("compressor", compressor, "onebit or topk, which have frames")
    sides, n = _checked(shape, limits)
    packed = object_bytes(data)
    if compressor == "onebit":
        bits, scale = _onebit(packed, n)
        payload = Sign().pack(SignSymbols(bits, n, scale))
    else:
        positions, values = _read_pairs(packed, n, compressor, None)
        order = np.argsort(positions)
        sent = value_coding.quantize(values[order], "float32")
        codec = TopK().replaced(k=positions.size)
        payload = codec.pack(TopKSymbols(n, positions[order].astype(np.int64), sent))
    return Frame(payload.codec, "float32", sides, payload, name)


def from_frame(frame: Any, *, limits: Limits | None = None) -> bytes:
    """Return a message of onebit or topk with the content of a frame of ``sign`` or ``topk``.

    Parameters
    ----------
    frame : Frame or bytes-like
        Of float32 values. Any scale of ``sign`` and any kind of value of ``topk``: what is sent
        is what the frame decodes to, pairs by rising position.
    limits : Limits, optional
        Bounds on what is allocated; default ``Limits()``.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        For a frame of another codec or dtype, or that sends nothing or more than half of the
        elements, as no message of topk does.
    FormatError
        If the frame is damaged.
    """
    frame = opened_frame(frame, limits, Sign.name, TopK.name)
    n = frame.size
    Limits.given(limits).check("the frame", n, 4 * n)
    if not 1 <= n <= _MOST:
        raise ParameterError.of("frame.size", n, f"from 1 to {_MOST}")
    if frame.codec.name == Sign.name:
        symbols = frame.codec.unpack(frame.payload, frame.shape)
        return _words(symbols.bits, n) + np.float32(symbols.scale).tobytes()
    positions, values = frame.decode_sparse()
    if not 1 <= positions.size <= n // 2:
        raise ParameterError.of("frame", f"{positions.size} values of {n}", "at most half of them")
    return _pairs(positions.astype(np.uint32), values)


# --- arguments -----------------------------------------------------------------------------------


def _check_compressor(compressor: object) -> None:
    if compressor not in _COMPRESSORS:
        raise ParameterError.of("compressor", compressor, f"one of {', '.join(_COMPRESSORS)}")


def _checked(shape: Any, limits: Limits | None) -> tuple[tuple[int, ...], int]:
    sides, n = checked_shape(shape, limits)
    if not 1 <= n <= _MOST:
        raise ParameterError.of("shape", shape, f"of 1 to {_MOST} elements")
    return sides, n


def _generator(seed: Any) -> XorShift128Plus:
    if seed is None:
        raise ParameterError("seed: randomk and dithering need one; BytePS draws it from the host")
    return seed if isinstance(seed, XorShift128Plus) else XorShift128Plus(seed)


def _pair_count(k: Any, n: int) -> int:
    """Return the number of pairs, by the float32 arithmetic of BytePS's registry."""
    allowed = f"a number of pairs up to {n // 2}, half of the elements, or a share above 0"
    if k is None:
        raise ParameterError("k: topk and randomk need it")
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


def _levels(k: Any, partition: object) -> int:
    """Return the level of the norm."""
    if partition not in ("linear", "natural"):
        raise ParameterError.of("partition", partition, "one of linear, natural")
    most = _MOST_NATURAL if partition == "natural" else _MOST_LINEAR
    allowed = f"an integer from 1 to {most} with partition={partition}"
    levels = check_integer("k", k, 1, most, allowed)
    return 1 << (levels - 1) if partition == "natural" else levels


# --- onebit --------------------------------------------------------------------------------------


def _words(bits: np.ndarray, n: int) -> bytes:
    """Return bits, the first one the most significant of its byte, as words."""
    padded = np.zeros(_WORD_NBYTES * -(-n // _WORD), np.uint8)
    padded[: bits.size] = bits
    return padded.view(np.uint32).byteswap().tobytes()


def _encode_onebit(values: np.ndarray, scaling: bool) -> bytes:
    bits, total = signs.quantize(values, squares=False)
    if not math.isfinite(total):
        check_finite(values)
    scale = np.float32(kernels.sum_magnitudes(values) / values.size if scaling else 1)
    return _words(bits, values.size) + scale.tobytes()


def _onebit(packed: np.ndarray, n: int) -> tuple[np.ndarray, float]:
    """Return the (ceil(n / 8),) bytes of the bits, as `_words` got them, and the scale."""
    words = -(-n // _WORD)
    _check_nbytes(packed.size, _WORD_NBYTES * (words + 1), n)
    scale = _scale(packed)
    bits = packed[: _WORD_NBYTES * words].view("<u4").byteswap().view(np.uint8)
    bits = bits[: -(-n // 8)].copy()
    if n % 8:
        bits[-1] &= 0xFF << 8 - n % 8 & 0xFF
    return bits, scale


def _check_nbytes(nbytes: int, expected: int, n: int) -> None:
    if nbytes != expected:
        kind = Truncated if nbytes < expected else Corrupt
        raise kind(f"the message has {nbytes} bytes: {n} elements take {expected}")


def _scale(packed: np.ndarray) -> float:
    """Return the scale at the end of a message."""
    (scale,) = packed[-_WORD_NBYTES:].copy().view("<f4").tolist()
    if not math.isfinite(scale) or math.copysign(1, scale) < 0:
        raise Corrupt(f"the scale {scale} is negative or not finite", packed.size - _WORD_NBYTES)
    return float(scale)


# --- topk and randomk ----------------------------------------------------------------------------


def _pairs(positions: np.ndarray, values: np.ndarray) -> bytes:
    out = np.empty((positions.size, 2), np.uint32)
    out[:, 0], out[:, 1] = positions, values.view(np.uint32)
    return out.tobytes()


def _read_pairs(
    packed: np.ndarray, n: int, compressor: str, k: Any
) -> tuple[np.ndarray, np.ndarray]:
    count, rest = divmod(packed.size, _PAIR_NBYTES)
    if rest or not count:
        raise Truncated(f"{packed.size} bytes are no pairs of {_PAIR_NBYTES}")
    if k is not None and count != (expected := _pair_count(k, n)):
        kind = Truncated if count < expected else Corrupt
        raise kind(f"the message has {count} pairs: must be {expected}")
    if count > n // 2:
        raise Corrupt(f"the message has {count} pairs, more than half of {n} elements")
    words = packed.copy().view("<u4").reshape(-1, 2)
    positions, values = words[:, 0].copy(), words[:, 1].copy().view(np.float32)
    beyond = positions >= n
    if beyond.any():
        at = int(np.argmax(beyond))
        raise Corrupt(f"position {positions[at]} is beyond {n} elements", _PAIR_NBYTES * at)
    if not all_finite(values):
        at = int(np.argmin(np.isfinite(values)))
        raise Corrupt(f"the value {values[at]} is not finite", _PAIR_NBYTES * at + _WORD_NBYTES)
    if compressor == "topk":
        taken = np.zeros(n, np.bool_)
        taken[positions] = True
        if np.count_nonzero(taken) != count:
            raise Corrupt("a position comes twice")
    return positions, values


# --- dithering -----------------------------------------------------------------------------------


def _encode_dithering(
    values: np.ndarray, top: int, natural: bool, normalize: object, generator: XorShift128Plus
) -> bytes:
    if normalize not in ("max", "l2"):
        raise ParameterError.of("normalize", normalize, "one of max, l2")
    check_finite(values)
    if normalize == "max":
        largest = np.array(int(max_abs_bits(values)), np.uint32).view(np.float32)
        norm = float(largest)
    else:
        norm = math.sqrt(kernels.sum_rounded_squares(values))
        if not math.isfinite(norm):
            raise ParameterError("x: the squares of its values must not pass float32 for the norm")
    state = generator.state.copy()
    string = kernels.dither(values, norm, top, natural, state)
    with np.errstate(over="ignore"):
        scale = np.float32(norm)
        if not np.isfinite(np.float32(string.largest) * scale):
            raise ParameterError("x: its norm times the largest level must not pass float32")
    words = string.data.size // _WORD_NBYTES
    if string.nbits > _MOST or math.ceil(np.float32(string.nbits) / np.float32(_WORD)) != words:
        raise ParameterError(
            f"x: {string.nbits} bits are more than BytePS counts exactly; split the tensor"
        )
    generator.state[:] = state
    return string.data.tobytes() + np.uint32(string.nbits).tobytes() + scale.tobytes()


def _decode_dithering(packed: np.ndarray, top: int, natural: bool, out: np.ndarray) -> None:
    end = packed.size - 2 * _WORD_NBYTES
    if end < 0 or end % _WORD_NBYTES:
        raise Truncated(f"{packed.size} bytes are no words with a count and a scale")
    scale = _scale(packed)
    nbits = int(packed[end : end + _WORD_NBYTES].copy().view("<u4")[0])
    _check_string(end, nbits)
    kernels.undither(packed[:end], nbits, np.float32(scale), top, natural, out)


def _check_string(nbytes: int, nbits: int) -> None:
    expected = _WORD_NBYTES * -(-nbits // _WORD)
    if nbytes != expected:
        kind = Truncated if nbytes < expected else Corrupt
        raise kind(
            f"the message has {nbytes} bytes of words: {nbits} bits take {expected}", nbytes
        )
