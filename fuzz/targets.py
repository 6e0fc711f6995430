"""Fuzz targets: functions that accept any bytes, and return or raise an exception.

A target catches `FormatError` (invalid bytes) where it reads bytes, and `ParameterError` (invalid
arguments) where the bytes stand for arguments. Any other exception, and a broken promise, is a
bug.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from reference import patch as reference_patch

import gcodec
from fuzz import files, objects, oracle
from fuzz.decoders import agree, mutant
from fuzz.promises import LIMITS, promise, same_bits
from fuzz.repair import crc, repair
from fuzz.settings import codec_of, settings
from gcodec import entropy
from gcodec.codec import Codec

DTYPES = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
CODES = tuple(
    entropy.parse(spec)
    for spec in (
        *("omega", "gamma", "delta", "unary", "rice:k=1", "rice:k=7", "rice:k=61"),
        *("expgolomb", "expgolomb:k=3", "expgolomb:k=61", "golomb:b=3", "golomb:b=10"),
        *(f"golomb:b={3 * 2**61}", f"golomb:b={2**64 - 1}"),
    )
)
PATCHED = (
    *(np.float32, np.float16, ml_dtypes.bfloat16, np.float64),
    *(np.int8, np.uint16, np.int32, np.uint64, np.bool_),
)
MOST_BITS = 1 << 16  # most bits of the words that a target writes
MOST_COMPARED = 3000  # most elements for a slow oracle


def frame(data: bytes) -> None:
    """Decode a frame in all ways, compare them, and encode the decoded frame again."""
    agree(data, limits=LIMITS)
    try:
        decoded = gcodec.decode(data, limits=LIMITS)
        read = gcodec.Frame.from_bytes(data, limits=LIMITS)
    except gcodec.FormatError:
        return
    again = gcodec.Frame.from_bytes(read.to_bytes(), limits=LIMITS)
    promise(same_bits(again.decode(), decoded), "a re-encoded frame decodes to the same values")
    packed = read.codec.pack(read.codec.unpack(read.payload, read.shape))
    promise(
        same_bits(
            packed.codec.decode(packed, read.shape), read.codec.decode(read.payload, read.shape)
        ),
        "symbols determine the message",
    )
    # The writer may choose the code of codewords, such as the parameters of Rice codewords.
    free = read.codec.seek_blocks is not None or getattr(read.codec, "index", "") == "rice"
    if repr(packed.scalars) == repr(read.payload.scalars) and not free:
        same = packed.nbits == read.payload.nbits and packed.tobytes() == read.payload.tobytes()
        promise(same, "a message has a single payload")


def repaired(data: bytes) -> None:
    """Decode a frame with corrected checksums, so that decoders reach the fields after them."""
    frame(repair(data))


def stream(data: bytes) -> None:
    """Read concatenated frames."""
    end = 0
    try:
        for one in gcodec.iter_frames(data, limits=LIMITS):
            end += one.nbytes
            one.decode()
            promise(end <= len(data), "frames lie within the bytes")
    except gcodec.FormatError:
        return


def _fits(codec: Codec, scalars: dict[str, Any]) -> bool:
    """Return whether a codec has messages with these scalars, as far as the scalars show."""
    try:
        return bool(codec.of_message(scalars))
    except gcodec.ParameterError:
        return False


def payload(data: bytes) -> None:
    """Decode a bare payload.

    Two bytes select the codec, one the size, one the number in scalars, one the number of cut
    bits.
    """
    if len(data) < 5:
        return
    codec, n, raw = codec_of(data[0], data[1]), data[2], data[5:]
    scalars = {}
    for field in codec.message_fields():
        for value in (data[3] / 16, data[3]):
            with contextlib.suppress(gcodec.ParameterError):
                scalars[field.name] = field.kind.check(field.name, value)
    try:
        decoded = codec.decode(raw, n, nbits=max(8 * len(raw) - data[4] % 8, 0), **scalars)
    except gcodec.FormatError:
        return
    except gcodec.ParameterError:
        unsent = set(codec.unresolved()) - {field.name for field in codec.message_fields()}
        is_complete = not unsent and len(scalars) == len(codec.message_fields())
        promise(not is_complete or not _fits(codec, scalars), "all was told")
        return
    promise(decoded.shape == (n,) and decoded.dtype == np.float32, "decode returns the shape")


def roundtrip(data: bytes) -> None:
    """Encode and decode; four bytes select codec, dtype and shape, the others are the values."""
    if len(data) < 4:
        return
    codec, dtype = codec_of(data[0], data[1]), DTYPES[data[2] % len(DTYPES)]
    seed, rows, raw = data[3], data[3] % 5 + 1, np.frombuffer(data, np.uint8)[4:]
    n = raw.size // (rows * dtype.itemsize)
    x = raw[: n * rows * dtype.itemsize].view(dtype).reshape(rows, n)
    try:
        encoded = gcodec.encode(x, codec, seed=seed, nonfinite="propagate")
    except gcodec.ParameterError:
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(x.astype(np.float32)).all())
        sure = "auto" not in str(codec) and codec.takes_up_to == math.inf
        promise(not finite or not sure, "the codec encodes finite values")
        return
    most = codec.max_encoded_nbytes(x.size, dtype=x.dtype.name)
    promise(len(encoded) <= most, "max_encoded_nbytes bounds")
    read = gcodec.Frame.from_bytes(encoded)
    promise(read.to_bytes() == encoded, "a parsed frame serializes to the same bytes")
    decoded = gcodec.decode(encoded)
    promise(
        decoded.shape == x.shape and decoded.dtype == x.dtype, "decode restores shape and dtype"
    )
    symbols = read.codec.unpack(read.payload, x.shape)
    packed = read.codec.pack(symbols)
    promise(packed.tobytes() == read.payload.tobytes(), "pack inverts unpack")
    residual = np.zeros(x.shape, np.float32)
    try:
        codec.quantize_residual(x, residual, seed=seed)
    except gcodec.ParameterError:
        promise(not residual.any(), "a rejected step does not change the residual")
        return
    with np.errstate(all="ignore"):
        lacking = x.astype(np.float32) - decoded.astype(np.float32)
    promise(same_bits(residual, lacking), "the residual is the error of the decoded values")


def words(data: bytes) -> None:
    """Decode codewords, which must encode to the same bits, and encode and decode integers.

    One byte selects the code, one the number of words and the magnitude of the integers, one where
    the bits start and end. The others are the bits, or the integers.
    """
    if len(data) < 3:
        return
    code, count, raw = CODES[data[0] % len(CODES)], data[1], data[3:]
    text = entropy.Bits(raw).to01()
    text = text[: max(len(text) - data[2] % 8, 0)]
    start = min(data[2] // 8, len(text))
    with contextlib.suppress(gcodec.FormatError):
        values, end = code.decode(text, count, start=start)
        promise(values.size == count and start <= end <= len(text), "words lie within the bits")
        promise(code.encode(values).to01() == text[start:end], "each value has a single word")
    values = np.frombuffer(raw, np.uint64, len(raw) // 8) >> np.uint64(data[1] % 64)
    try:
        lengths = code.lengths(values)
    except gcodec.ParameterError:
        promise(bool((values < code.first).any()), "values from the smallest one on have words")
        return
    values = values[np.cumsum(np.minimum(lengths, MOST_BITS)) < MOST_BITS]
    bits = code.encode(values)
    promise(bits.nbits == lengths[: values.size].sum(), "lengths equals the lengths of the words")
    decoded, end = code.decode(bits, values.size)
    promise(end == bits.nbits and bool((decoded == values).all()), "decode restores the values")


@functools.cache
def _with_blocks() -> tuple[Codec, ...]:
    """Return the codecs whose frames can have seek tables."""
    codecs = (codec for cls in gcodec.codecs().values() for codec in settings(cls))
    return tuple(codec for codec in codecs if codec.seek_blocks is not None and _suits_all(codec))


def _suits_all(codec: Codec) -> bool:
    """Return whether the codec accepts all finite gradients, whatever its target."""
    declared: Any = codec
    if codec.name not in ("ecsq", "lowrank"):
        return True
    if codec.name == "lowrank" and declared.rank != "auto":  # for which a step is given
        return False
    aims = declared.step == "auto" and not declared.bits and bool(declared.nmse > 1e-6)
    return aims and declared.transform != "dct"  # which does not accept vectors


@functools.lru_cache(64)
def _indexed(setting: int, n: int, log2_block: int, seed: int) -> gcodec.Frame:
    codecs = _with_blocks()
    x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    x[: n // 3] *= seed % 3  # some gradients begin with near-zero or zero values
    frame = gcodec.Frame.from_bytes(
        gcodec.encode(x, codecs[37 * setting % len(codecs)], seed=seed)
    )
    if frame.codec.seek_blocks == "states":
        return frame.with_seek(5 + log2_block % 14)
    groups = getattr(frame.codec, "index", "") == "rice"  # whose smallest block is 2^12
    return frame.with_seek(12 if groups else log2_block)


def seek(data: bytes) -> None:
    """Decode a frame with a changed seek table: the values must stay, or decoding must fail.

    Four bytes select codec, elements, block and seed, one the use of the others: they replace the
    table, are inserted into it, or change its bytes.
    """
    if len(data) < 6:
        return
    honest = _indexed(data[0], 2 * data[1], data[2] % 16, data[3])
    section = bytearray() if honest.seek is None else bytearray(honest.seek.to_bytes())
    place, more = data[4] % (len(section) + 1), data[5:]
    match data[4] % 4:
        case 0:
            section = bytearray(more)
        case 1:
            section[place:place] = more
        case 2:
            section[place : place + len(more)] = more
        case _:
            for i, byte in enumerate(more[: len(section) - place]):
                section[place + i] ^= byte
    header = bytearray(honest.without_seek().header()[:-4])
    header[4] |= 2
    header += section
    body = honest.without_seek().to_bytes()[len(honest.without_seek().header()) :]
    changed = bytes(header + crc(header)) + body
    try:
        decoded = gcodec.decode(changed, limits=LIMITS)
        read = gcodec.Frame.from_bytes(changed, limits=LIMITS)
    except gcodec.FormatError:
        return
    promise(
        same_bits(decoded, honest.without_seek().decode()),
        "a seek table does not change the values",
    )
    promise(read.to_bytes() == changed, "a parsed frame serializes to the same bytes")
    if read.seek is not None and read.seek.offsets[-1]:
        again = read.without_seek().with_seek(read.seek.log2_block)
        promise(again.to_bytes() == changed, "a payload has one seek table for a block size")


def patch(data: bytes) -> None:
    """Apply a patch, in place too, as the oracle does; all or nothing is written.

    One byte selects the dtype, one the number of elements of the base, whose seed is the sum of
    both. The others are the message after the digest.
    """
    if len(data) < 2:
        return
    kind, n = PATCHED[data[0] % len(PATCHED)], data[1]
    dtype = np.dtype(kind)
    base = np.random.default_rng(data[0] + n).standard_normal(n)
    base = base > 0 if dtype.kind == "b" else (8 * base).astype(dtype)
    patterns = base.view(f"u{dtype.itemsize}").tolist()
    message = reference_patch.digest(base.tobytes()) + data[2:]
    body = gcodec.Payload(
        gcodec.parse("patch"), {}, np.frombuffer(message, np.uint8), 8 * len(message)
    )
    frame = gcodec.Frame(body.codec, dtype.name, (n,), body)
    frame = gcodec.Frame.from_bytes(frame.to_bytes(), limits=LIMITS)
    try:
        expected = reference_patch.read(message, body.nbits, patterns, dtype.itemsize, dtype.name)
    except ValueError:
        expected = None
    out = base.copy()
    try:
        new = gcodec.apply_patch(frame, base)
    except gcodec.FormatError:
        with contextlib.suppress(gcodec.FormatError):
            gcodec.apply_patch(frame, out, out=out)
            promise(False, "a patch that is refused is refused in place, too")
        promise(expected is None, "the oracle refuses what gcodec refuses")
        promise(same_bits(out, base), "a refused patch writes nothing")
        return
    gcodec.apply_patch(frame, out, out=out)
    promise(same_bits(out, new), "a patch in place gives the same tensor")
    decoded = new.view(f"u{dtype.itemsize}").tolist()
    promise(decoded == expected, "the oracle reads the same tensor")
    again = gcodec.encode_patch(new, base=base)
    promise(same_bits(gcodec.apply_patch(again, base), new), "its own patch gives it as well")


def decoders(data: bytes) -> None:
    """Run a program that changes the structure of a frame; all ways to decode it must agree."""
    if (changed := mutant(data)) is not None:
        agree(changed)


def spec(data: bytes) -> None:
    """Parse a spec; the text of a parsed codec must parse to an equal codec."""
    try:
        codec = gcodec.parse(data.decode("latin-1"))
    except gcodec.ParameterError:
        return
    promise(gcodec.parse(str(codec)) == codec, "specs round-trip")
    if not codec.unresolved():
        codec.write_parameters()


def differential(data: bytes) -> None:
    """Read a frame with corrected checksums like the oracles: the same values, or an error."""
    whole = repair(data)
    try:
        outline: Any = oracle.frames.parse(whole)
        outline = outline if outline["end"] == len(whole) else None
    except oracle.ERRORS:
        outline = None
    try:
        read = gcodec.Frame.from_bytes(whole, limits=LIMITS)
    except gcodec.FormatError:
        return
    if outline is None:  # decoders check the fill while decoding a payload
        with contextlib.suppress(gcodec.FormatError):
            read.decode()
            promise(False, "gcodec rejects frames that the specification rejects")
        return
    parts = (outline["shape"], outline["payload"], outline["nbits"], outline["name"])
    promise(
        parts == (read.shape, read.payload.tobytes(), read.payload.nbits, read.name),
        "fields equal those of the specification",
    )
    if math.prod(read.shape) > MOST_COMPARED:
        return
    compare(read)


def compare(frame: gcodec.Frame) -> bool:
    """Compare the values of a frame with the oracle's; return whether the oracle has values.

    The comparison omits the seek table, which an oracle does not read.
    """
    payload = frame.without_seek().payload
    encoded = payload.scalars, payload.tobytes(), payload.nbits
    message = oracle.Message(frame.codec, *encoded, frame.shape, frame.dtype)
    try:
        decoded = frame.codec.decode(payload, frame.shape).reshape(-1)
    except gcodec.FormatError:
        decoded = None
    try:
        with np.errstate(all="ignore"):
            expected = oracle.decode(message)
    except oracle.ERRORS:
        expected = None
    if (decoded is None) != (expected is None):
        promise(False, f"the oracle disagrees: {expected}")
    if decoded is not None and expected is not None:
        unsigned = np.dtype(f"u{expected.dtype.itemsize}")
        promise(decoded.dtype == expected.dtype, "the dtype equals that of the frame")
        bits = decoded.view(unsigned) == expected.view(unsigned)
        nan = np.isnan(decoded) & np.isnan(expected)
        promise(bool(np.all(bits | nan)), "values equal those of the oracle")
    return decoded is not None


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        *(frame, repaired, stream, payload, roundtrip, words, seek, patch, decoders, spec),
        *(differential, files.gcf, files.message, files.command, objects.interop),
        *(files.npy, files.npz, files.safetensors, files.pt, files.distcp, files.tree),
    )
}


def run(name: str, data: bytes) -> None:
    """Run one target on some bytes, with warnings turned into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TARGETS[name](data)
