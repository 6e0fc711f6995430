"""What is fuzzed: functions that take any bytes and return, or raise what is a bug.

A `FormatError` (the bytes are wrong) is caught where bytes are read, a `ParameterError` (the
caller is wrong) where they stand for arguments. Anything else that is raised is a bug, and so is a
broken promise.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np

import gcodec
from gcodec import entropy
from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.gradients.dumps import open_dump
from gcodec.params import Param
from gcodec.seek import Section
from gcodec.wire import Reader

LIMITS = gcodec.Limits(max_elements=1 << 16, max_bytes=1 << 19)
DTYPES = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
NUMBERS = (0.5, 1e-3, 7.25, 0, 1, 2, 3, 5, 32)
CODES = tuple(
    entropy.parse(spec)
    for spec in (
        *("omega", "gamma", "delta", "unary", "rice:k=1", "rice:k=7", "rice:k=61"),
        *("expgolomb", "expgolomb:k=3", "expgolomb:k=61", "golomb:b=3", "golomb:b=10"),
        *(f"golomb:b={3 * 2**61}", f"golomb:b={2**64 - 1}"),
    )
)
MOST_SETTINGS = 200  # combinations of parameters, of a codec
MOST_BITS = 1 << 16  # of the words that a target writes


class BrokenPromiseError(AssertionError):
    """Something that holds for all inputs did not hold for these bytes."""


def _promise(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


@functools.cache
def settings(cls: type[Codec]) -> tuple[Codec, ...]:
    """Codecs of a class with each word, and a few numbers, in each parameter, and combinations."""
    values = [(d, (d.default, *_allowed(d))) for d in cls.declared()]
    rows = [{d.name: value} for d, found in values for value in found]
    rng = random.Random(cls.name)
    rows += [{d.name: rng.choice(found) for d, found in values} for _ in range(MOST_SETTINGS)]
    made: dict[str, Codec] = {}
    for row in rows:
        with contextlib.suppress(gcodec.ParameterError):
            codec = cls.from_mapping(row)
            made.setdefault(str(codec), codec)
    return tuple(made.values())


def _allowed(declared: Param) -> list[Any]:
    """Return the words of a parameter, and those numbers that it takes."""
    found = []
    for value in (*getattr(declared.kind, "words", ()), *NUMBERS):
        with contextlib.suppress(gcodec.ParameterError):
            declared.kind.check(declared.name, value)
            found.append(value)
    return found


def _codec(number: int, setting: int) -> Codec:
    """Choose a codec by two bytes: its id, or any other number, and a setting."""
    classes = list(gcodec.codecs().values())
    own = [cls for cls in classes if cls.id == number]
    found = settings(own[0] if own else classes[number % len(classes)])
    return found[setting % len(found)]


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        nan = np.isnan(a) & np.isnan(b)
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.all((a == b) | nan))


def frame(data: bytes) -> None:
    """Decode a frame; what decodes also adds and can be written again."""
    try:
        decoded = gcodec.decode(data, limits=LIMITS)
        read = gcodec.Frame.from_bytes(data, limits=LIMITS)
    except gcodec.FormatError:
        return
    again = gcodec.Frame.from_bytes(read.to_bytes(), limits=LIMITS)
    _promise(_same_bits(again.decode(), decoded), "a frame that is written again decodes alike")
    packed = read.codec.pack(read.codec.unpack(read.payload, read.shape))
    _promise(
        _same_bits(
            packed.codec.decode(packed, read.shape), read.codec.decode(read.payload, read.shape)
        ),
        "symbols are all that a message says",
    )
    free = read.codec.seek_blocks is not None  # words, whose code a writer may choose
    if repr(packed.scalars) == repr(read.payload.scalars) and not free:
        same = packed.nbits == read.payload.nbits and packed.tobytes() == read.payload.tobytes()
        _promise(same, "one message has one payload")
    acc = np.zeros(decoded.shape, np.float32)
    gcodec.decode_add(data, acc)
    with np.errstate(all="ignore"):
        _promise(_same_bits(acc, np.float32(0) + decoded.astype(np.float32)), "decode_add adds")
    out = np.empty_like(decoded)
    gcodec.decode(data, out=out)
    _promise(_same_bits(out, decoded), "decode writes to out what it returns")


def repaired(data: bytes) -> None:
    """Decode a frame whose checksums were made right, so that what is behind them is reached."""
    frame(repair(data))


def stream(data: bytes) -> None:
    """Read frames end to end."""
    end = 0
    try:
        for one in gcodec.iter_frames(data, limits=LIMITS):
            end += one.nbytes
            one.decode()
            _promise(end <= len(data), "frames lie within the bytes")
    except gcodec.FormatError:
        return


def _fits(codec: Codec, scalars: dict[str, Any]) -> bool:
    """Tell whether there are such messages, as far as their scalars tell."""
    try:
        return bool(codec.of_message(scalars))
    except gcodec.ParameterError:
        return False


def payload(data: bytes) -> None:
    """Decode a bare payload.

    Two bytes choose the codec, one the size; one is the number in scalars, one cuts the bits.
    """
    if len(data) < 5:
        return
    codec, n, raw = _codec(data[0], data[1]), data[2], data[5:]
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
        told = not unsent and len(scalars) == len(codec.message_fields())
        _promise(not told or not _fits(codec, scalars), "all was told")
        return
    _promise(decoded.shape == (n,) and decoded.dtype == np.float32, "decode returns the shape")


def roundtrip(data: bytes) -> None:
    """Encode and decode: four bytes choose codec, dtype and shape, the others are the values."""
    if len(data) < 4:
        return
    codec, dtype = _codec(data[0], data[1]), DTYPES[data[2] % len(DTYPES)]
    seed, rows, raw = data[3], data[3] % 5 + 1, np.frombuffer(data, np.uint8)[4:]
    n = raw.size // (rows * dtype.itemsize)
    x = raw[: n * rows * dtype.itemsize].view(dtype).reshape(rows, n)
    try:
        encoded = gcodec.encode(x, codec, seed=seed, nonfinite="propagate")
    except gcodec.ParameterError:
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(x.astype(np.float32)).all())
        sure = "auto" not in str(codec) and codec.takes_all_finite
        _promise(not finite or not sure, "finite values can be encoded")
        return
    _promise(len(encoded) <= codec.max_encoded_nbytes(x.size), "max_encoded_nbytes bounds")
    read = gcodec.Frame.from_bytes(encoded)
    _promise(read.to_bytes() == encoded, "a frame that is read is written alike")
    decoded = gcodec.decode(encoded)
    _promise(decoded.shape == x.shape and decoded.dtype == x.dtype, "shape and dtype come back")
    symbols = read.codec.unpack(read.payload, x.shape)
    packed = read.codec.pack(symbols)
    _promise(packed.tobytes() == read.payload.tobytes(), "pack inverts unpack")
    residual = np.zeros(x.shape, np.float32)
    try:
        codec.quantize_residual(x, residual, seed=seed)
    except gcodec.ParameterError:
        _promise(not residual.any(), "a refused step leaves the residual alone")
        return
    with np.errstate(all="ignore"):
        lacking = x.astype(np.float32) - decoded.astype(np.float32)
    _promise(_same_bits(residual, lacking), "the residual is what the receiver lacks")


def words(data: bytes) -> None:
    """Decode words, which encode to the same bits, and encode integers, which come back.

    A byte chooses the code, one the number of words and the size of the integers, one where the
    bits start and end. The others are the bits, or the integers.
    """
    if len(data) < 3:
        return
    code, count, raw = CODES[data[0] % len(CODES)], data[1], data[3:]
    text = entropy.Bits(raw).to01()
    text = text[: max(len(text) - data[2] % 8, 0)]
    start = min(data[2] // 8, len(text))
    with contextlib.suppress(gcodec.FormatError):
        values, end = code.decode(text, count, start=start)
        _promise(values.size == count and start <= end <= len(text), "words lie within the bits")
        _promise(code.encode(values).to01() == text[start:end], "values have one word each")
    values = np.frombuffer(raw, np.uint64, len(raw) // 8) >> np.uint64(data[1] % 64)
    try:
        lengths = code.lengths(values)
    except gcodec.ParameterError:
        _promise(bool((values < code.first).any()), "values from the first one on have words")
        return
    values = values[np.cumsum(np.minimum(lengths, MOST_BITS)) < MOST_BITS]
    bits = code.encode(values)
    _promise(bits.nbits == lengths[: values.size].sum(), "lengths are those of the words")
    found, end = code.decode(bits, values.size)
    _promise(end == bits.nbits and bool((found == values).all()), "values come back")


@functools.cache
def _with_blocks() -> tuple[Codec, ...]:
    """Codecs whose frames can have seek tables."""
    found = (codec for cls in gcodec.codecs().values() for codec in settings(cls))
    return tuple(codec for codec in found if codec.seek_blocks is not None and _suits_all(codec))


def _suits_all(codec: Codec) -> bool:
    """Whether it takes all finite gradients, whatever it is to meet."""
    declared: Any = codec
    if codec.name != "ecsq":
        return True
    return declared.step == "auto" and not declared.bits and bool(declared.nmse > 1e-6)


@functools.lru_cache(64)
def _indexed(setting: int, n: int, log2_block: int, seed: int) -> gcodec.Frame:
    codecs = _with_blocks()
    x = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    x[: n // 3] *= seed % 3  # silence in front, for some
    frame = gcodec.Frame.from_bytes(
        gcodec.encode(x, codecs[37 * setting % len(codecs)], seed=seed)
    )
    if frame.codec.seek_blocks == "states":
        return frame.with_seek(5 + log2_block % 14)
    groups = getattr(frame.codec, "index", "") == "rice"  # the least block of these is 2^12
    return frame.with_seek(12 if groups else log2_block)


def seek(data: bytes) -> None:
    """Decode a frame whose seek table was changed: it gives what it gives without, or nothing.

    Four bytes choose codec, elements, block and seed, one what is done with the others: they are
    the table, they come into it, or they change its bytes.
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
    changed = bytes(header + _crc(header)) + body
    try:
        decoded = gcodec.decode(changed, limits=LIMITS)
        read = gcodec.Frame.from_bytes(changed, limits=LIMITS)
    except gcodec.FormatError:
        return
    _promise(_same_bits(decoded, honest.without_seek().decode()), "a table changes nothing")
    _promise(read.to_bytes() == changed, "a frame that is read is written alike")
    if read.seek is not None and read.seek.offsets[-1]:
        again = read.without_seek().with_seek(read.seek.log2_block)
        _promise(again.to_bytes() == changed, "one payload has one table of a block")


def spec(data: bytes) -> None:
    """Parse a spec; what parses prints and parses to the same."""
    try:
        codec = gcodec.parse(data.decode("latin-1"))
    except gcodec.ParameterError:
        return
    _promise(gcodec.parse(str(codec)) == codec, "specs round-trip")
    if not codec.unresolved():
        codec.write_parameters()


def _dump(suffix: str, data: bytes) -> None:
    path = _scratch() / f"fuzzed{suffix}"
    path.write_bytes(data)
    try:
        with open_dump(path, limits=LIMITS) as dump:
            for entry in dump.entries:
                with contextlib.suppress(gcodec.FormatError):
                    dump.load(entry)
    except gcodec.FormatError:
        return


@functools.cache
def _scratch() -> Path:
    path = tempfile.mkdtemp(prefix="gcodec-fuzz-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def npy(data: bytes) -> None:
    """Read a .npy file."""
    _dump(".npy", data)


def npz(data: bytes) -> None:
    """Read a .npz file."""
    _dump(".npz", data)


def safetensors(data: bytes) -> None:
    """Read a .safetensors file."""
    _dump(".safetensors", data)


def pt(data: bytes) -> None:
    """Read a .pt file."""
    _dump(".pt", data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        *(frame, repaired, stream, payload, roundtrip, words, seek, spec),
        *(npy, npz, safetensors, pt),
    )
}


def repair(data: bytes) -> bytes:
    """Return a frame with its magic, and its checksums where its fields say that they are."""
    out = bytearray(b"GCF\x01" + data[4:])
    if len(out) < 8:
        return bytes(out)
    at = 8

    def number() -> int:
        nonlocal at
        value = shift = 0
        while at < len(out) and shift < 70:
            byte = out[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return value

    for _ in range(out[7]):
        number()
    if out[4] & 1:
        name_nbytes = number()  # which moves `at`
        at += name_nbytes
    parameters = at
    for _ in range(2):
        at += 1 + (out[at] if at < len(out) else 0)
    nbits = number()
    if out[4] & 2 and at < len(out):
        at += _table_nbytes(bytes(out), parameters, at)
    body = at + 4
    end = body + -(-nbits // 8)
    if end + 4 > len(out):
        # Too short for its payload: let it end where the bytes do.
        end = len(out) - 4
    if body > end:
        return bytes(out)
    out[at:body] = _crc(out[:at])
    out[end : end + 4] = _crc(out[body:end])
    return bytes(out[: end + 4]) if not out[4] & 4 else bytes(out)


def _table_nbytes(data: bytes, parameters: int, at: int) -> int:
    """Bytes of a frame's seek table, which depend on its parameters."""
    blocks = "elements"
    with contextlib.suppress(gcodec.GcodecError):
        cls = by_id(data[5])
        fields = data[parameters + 1 : parameters + 1 + data[parameters]]
        codec = cls.from_mapping(cls.read_parameters(memoryview(fields)))
        blocks = codec.seek_blocks or blocks
    reader = Reader(data, at)
    with contextlib.suppress(gcodec.FormatError):
        Section.take(reader, blocks)
    return reader.at - at


def _crc(data: bytearray) -> bytes:
    return int(google_crc32c.value(bytes(data))).to_bytes(4, "little")


def run(name: str, data: bytes) -> None:
    """Run one target on some bytes, with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TARGETS[name](data)
