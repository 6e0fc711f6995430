"""What is fuzzed: functions that take any bytes and return, or raise what is a bug.

A `FormatError` (the bytes are wrong) is caught where bytes are read, a `ParameterError` (the
caller is wrong) where they stand for arguments. Anything else that is raised is a bug, and so is a
broken promise.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import ml_dtypes
import numpy as np

import gcodec
from gcodec.codec import Codec
from gcodec.gradients.dumps import open_dump

LIMITS = gcodec.Limits(max_elements=1 << 16, max_bytes=1 << 19)
DTYPES = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16, np.float64)]
NUMBERS = (0.5, 1e-3, 7.25, 0, 1, 2, 3, 5, 32)


class BrokenPromiseError(AssertionError):
    """Something that holds for all inputs did not hold for these bytes."""


def _promise(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


@functools.cache
def settings(cls: type[Codec]) -> tuple[Codec, ...]:
    """Codecs of a class with each word, and a few numbers, in each parameter."""
    found: dict[str, Codec] = {}
    declared = cls.declared()
    values = [(d.default, *getattr(d.kind, "words", ()), *NUMBERS) for d in declared]
    for row in itertools.product(*values):
        try:
            codec = cls.from_mapping(
                {d.name: value for d, value in zip(declared, row, strict=True)}
            )
        except gcodec.ParameterError:
            continue
        found.setdefault(str(codec), codec)
    return tuple(found.values())


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
    if repr(packed.scalars) == repr(read.payload.scalars):
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
        _promise(bool(unsent) or len(scalars) < len(codec.message_fields()), "all was told")
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
        _promise(not finite or "auto" in str(codec), "finite values can be encoded")
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
        *(frame, repaired, stream, payload, roundtrip, spec),
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
        at += number()
    for _ in range(2):
        at += 1 + (out[at] if at < len(out) else 0)
    nbits = number()
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


def _crc(data: bytearray) -> bytes:
    return int(google_crc32c.value(bytes(data))).to_bytes(4, "little")


def run(name: str, data: bytes) -> None:
    """Run one target on some bytes, with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TARGETS[name](data)
