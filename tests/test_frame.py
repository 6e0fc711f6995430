"""Frames: bytes, refusals by exception class, limits, and consecutive frames."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import math
import pickle
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import strategies as gs
from reference import crc32c, leb128
from reference import frame as reference

import gcodec
from gcodec import Corrupt, FormatError, Frame, LimitExceeded, Limits, Truncated, Unsupported
from gcodec.errors import GcodecError, ParameterError
from gcodec.interop import templar
from gcodec.wire import primitives
from gcodec.wire.primitives import max_header_nbytes

RAW, TWO_BIT, ONE_BIT = 1, 3, 4
X = np.array([0.5, -0.5, 0.49, -0.7, 1.2], np.float32)
HALF = struct.pack("<f", 0.5)


def build(**changes: Any) -> bytes:
    """Build the specification's 2-bit example with the reference, with changes."""
    fields: dict[str, Any] = {
        "codec_id": TWO_BIT,
        "dtype_code": 1,
        "shape": (5,),
        "params": b"",
        "scalars": HALF,
        "payload": bytes.fromhex("e2c00000"),
        "nbits": 32,
    }
    return reference.build(**(fields | changes))


def with_header(header: bytes, payload: bytes = b"") -> bytes:
    """Return a header and a payload with correct checksums."""
    return b"".join(
        (
            header,
            crc32c.crc32c(header).to_bytes(4, "little"),
            payload,
            crc32c.crc32c(payload).to_bytes(4, "little"),
        )
    )


def refused(
    data: bytes, kind: type[FormatError], match: str | None = None, **kwargs: Any
) -> FormatError:
    with pytest.raises(FormatError, match=match) as caught:
        gcodec.decode(data, **kwargs)
    assert caught.type is kind, f"{caught.type.__name__}: {caught.value}"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 3000
    return caught.value


# --- bytes --------------------------------------------------------------------------------------


def test_worked_example() -> None:
    frame = gcodec.encode(X, "mxnet-2bit")
    assert frame == build()
    assert frame.hex() == "47434601000301010500040000003f2043a25aaee2c000008f1d6195"


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize("key", [None, b"k", b"k" * 64], ids=["open", "short-key", "long-key"])
@pytest.mark.parametrize("name", [None, "", "layer.0/weight", "größe 名", "n" * 200])
def test_bytes_equal_the_reference(dtype: str, key: bytes | None, name: str | None) -> None:
    x = np.arange(-6, 6).astype(gs.DTYPES[dtype]).reshape(3, 1, 4)
    code = 1 + list(gs.DTYPES).index(dtype)
    common = {"dtype_code": code, "shape": (3, 1, 4), "name": name, "key": key}
    raw = x.astype("<f4").tobytes()
    assert gcodec.encode(x, "raw", name=name, key=key) == build(
        codec_id=RAW, scalars=b"", payload=raw, nbits=384, **common
    )
    half = x.astype(np.float16).astype("<f2").tobytes()
    assert gcodec.encode(x, "raw:dtype=float16", name=name, key=key) == build(
        codec_id=RAW, params=b"\1", scalars=b"", payload=half, nbits=192, **common
    )
    assert gcodec.encode(x, "mxnet-2bit:threshold=3,server=yes", name=name, key=key) == build(
        params=b"\1",
        scalars=struct.pack("<f", 3),
        payload=bytes.fromhex("aa003f00"),
        nbits=32,
        **common,
    )
    assert gcodec.encode(x, "mxnet-1bit:threshold=-2", name=name, key=key) == build(
        codec_id=ONE_BIT,
        params=struct.pack("<f", -2),
        scalars=b"",
        payload=bytes.fromhex("07f00000"),
        nbits=32,
        **common,
    )


def test_frame_is_an_immutable_record() -> None:
    frame = gcodec.Frame.from_bytes(
        gcodec.encode(X, "mxnet-2bit", name="w", key=b"s3cret"), key=b"s3cret"
    )
    assert (frame.codec, frame.dtype, frame.shape, frame.name, frame.size) == (
        gcodec.parse("mxnet-2bit"),
        "float32",
        (5,),
        "w",
        5,
    )
    assert frame.payload.nbits == 32
    assert frame.payload.scalars == {"threshold": 0.5}
    assert b"s3cret" not in repr(frame).encode()
    assert frame.decode().tolist() == [0.5, -0.5, 0, -0.5, 0.5]
    with pytest.raises(AttributeError):
        frame.shape = (1,)  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [None, "sign", b"", 3])
def test_parts_of_a_frame_are_checked(wrong: Any) -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(X, "sign"))
    with pytest.raises(gcodec.ParameterError, match=r"^codec=.*: must be a Codec$"):
        gcodec.Frame(wrong, frame.dtype, frame.shape, frame.payload)
    with pytest.raises(gcodec.ParameterError, match=r"^payload=.*: must be a Payload$"):
        gcodec.Frame(frame.codec, frame.dtype, frame.shape, wrong)


@pytest.mark.parametrize("key", ["secret", b"", bytes(65), bytearray(b"secret")], ids=repr)
def test_key_of_a_new_frame_is_checked(key: Any) -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(X, "sign"))
    with pytest.raises(gcodec.ParameterError, match=r"^key"):
        gcodec.Frame(frame.codec, frame.dtype, frame.shape, frame.payload, key=key)
    with pytest.raises(gcodec.ParameterError, match=r"^key"):
        dataclasses.replace(frame, key=key)


def test_shape_of_a_new_frame_is_checked() -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(X, "sign"))
    for wrong in ((-5,), (5.0,), (1,) * primitives.MAX_NDIM + (5,), None):
        with pytest.raises(gcodec.ParameterError, match=r"^shape="):
            dataclasses.replace(frame, shape=wrong)
    for same in (5, [5], (np.int64(5),)):
        assert dataclasses.replace(frame, shape=same).shape == (5,)


def test_automatic_threshold_is_resolved_in_the_frame() -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(X, "mxnet-2bit:threshold=auto"))
    assert isinstance(frame.codec.threshold, float)  # type: ignore[attr-defined]
    assert frame.payload.scalars == {"threshold": frame.codec.threshold}  # type: ignore[attr-defined]


def test_payload_is_a_view_of_the_input() -> None:
    data = np.frombuffer(gcodec.encode(np.ones(1000, np.float32), "raw"), np.uint8)
    assert np.shares_memory(gcodec.Frame.from_bytes(data).payload.data, data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "numpy"])
def test_bytes_likes(kind: Any) -> None:
    data = gcodec.encode(X, "mxnet-2bit")
    buffer = np.frombuffer(data, np.uint8) if kind == "numpy" else kind(data)
    assert gcodec.decode(buffer).tolist() == [0.5, -0.5, 0, -0.5, 0.5]
    assert [frame.name for frame in gcodec.iter_frames(buffer)] == [None]


RELEASED = memoryview(b"GCF")
RELEASED.release()


@pytest.mark.parametrize(
    "data",
    [
        *(None, 3, [1, 2], RELEASED, np.zeros((4, 4), np.uint8)[:, ::2]),
        *(np.zeros(4, dtype) for dtype in (ml_dtypes.bfloat16, "M8[s]")),
    ],
)
def test_inputs_that_are_not_bytes(data: Any) -> None:
    readers: list[tuple[Callable[[Any], object], str]] = [
        (gcodec.decode, "frame"),
        (gcodec.decode_sparse, "frame"),
        (templar.from_frame, "frame"),
        (lambda data: gcodec.apply_patch(data, np.zeros(1, np.int32)), "frame"),
        (gcodec.decode_many, "message"),
        (gcodec.Frame.from_bytes, "data"),
    ]
    for read, name in readers:
        message = rf"^{name} is of type .*: must be bytes-like, in one block$"
        with pytest.raises(TypeError, match=message):
            read(data)
    with pytest.raises(TypeError, match=r"in one block; pass frame\.read\(\)$"):
        gcodec.decode(io.BytesIO())  # type: ignore[call-overload]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_empty_arrays_of_bytes_are_truncated_frames(shape: tuple[int, ...]) -> None:
    with pytest.raises(gcodec.Truncated):
        gcodec.decode(np.empty(shape, np.uint8))
    assert gcodec.decode_many(np.empty(shape, np.uint8)) == {}  # type: ignore[call-overload]


@pytest.mark.parametrize("path", ["GCF", "grads.gcf", Path("grads.gcf")])
def test_path_in_place_of_bytes(path: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^frame is of type .*: must be bytes; gcodec.load_file reads"
    ):
        gcodec.decode(path)


# --- refusals: structure ------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"G", b"GC", b"GCF", b"GCF\1", b"GCF\1\0\1\1"])
def test_truncated_frames(data: bytes) -> None:
    refused(data, Truncated)


@pytest.mark.parametrize("data", [b"\0", b"GCG\1", b"gcf\1", b"PK\3\4", b"\x93NUMPY", b"XCF"])
def test_wrong_magic(data: bytes) -> None:
    assert refused(data, Corrupt, "GCF").offset == 0


@pytest.mark.parametrize("version", [0, 2, 255])
def test_unsupported_version(version: int) -> None:
    assert refused(b"GCF" + bytes([version]) + bytes(40), Unsupported, "version").offset == 3


@pytest.mark.parametrize("flag", [8, 16, 32, 64, 128])
def test_unknown_flags(flag: int) -> None:
    header = bytearray(build()[:16])
    header[4] |= flag
    refused(with_header(bytes(header), bytes.fromhex("e2c00000")), Unsupported, "flags")


@pytest.mark.parametrize("codec_id", [0, 20, 100, 191, 254, 255])
def test_unknown_codec_id(codec_id: int) -> None:
    reason = "private: import the module" if codec_id > 191 else "not known to this release"
    refused(build(codec_id=codec_id), Unsupported, f"codec id {codec_id} is {reason}")


@pytest.mark.parametrize("code", [0, 5, 255])
def test_unknown_dtype(code: int) -> None:
    refused(build(dtype_code=code), Unsupported, f"dtype {code}")


@pytest.mark.parametrize("ndim", [33, 64, 255])
def test_ndim_above_32(ndim: int) -> None:
    header = b"GCF\1\0" + bytes([RAW, 1, ndim]) + b"\1" * ndim + b"\0\0\x20"
    refused(with_header(header, bytes(4)), Corrupt, "ndim")


def test_32_dimensions() -> None:
    frame = build(codec_id=RAW, shape=(1,) * 32, scalars=b"", payload=bytes(4))
    assert gcodec.decode(frame).shape == (1,) * 32


@pytest.mark.parametrize("name", [b"", b"weight"])
@pytest.mark.parametrize(
    ("n", "ones", "longest"), [(0, 0, 32), (2**64 - 1, 31, 1)], ids=["empty", "one long side"]
)
def test_bound_of_headers_covers_the_longest_fields(
    n: int, ones: int, longest: int, name: bytes
) -> None:
    """The bound exceeds a tagged frame with the longest numbers by no more than two bytes."""
    number = leb128.encode(2**64 - 1)
    shape = ones * leb128.encode(1) + longest * number
    header = b"GCF\1\5" + bytes([RAW, 1, 32]) + shape + (number + name if name else b"")
    fields = bytes([3]) + b"abc" + bytes([4]) + b"defg"
    nbytes = len(header + fields + number) + 4 + 4 + 16
    assert 0 <= max_header_nbytes(n, len(name), 7) - nbytes <= 2


@pytest.mark.parametrize(
    ("number", "match"),
    [
        ("8500", "shortest"),
        ("8080808000", "shortest"),
        ("8080808080808080808001", "longer than 10"),
        ("80808080808080808002", "shortest"),  # 2^64
        ("ffffffffffffffffff02", "shortest"),
        ("ffffffffffffffffff7f", "shortest"),
        ("ff" * 40, "longer than 10"),
    ],
)
def test_invalid_leb128(number: str, match: str) -> None:
    header = b"GCF\1\0" + bytes([RAW, 1, 1]) + bytes.fromhex(number) + b"\0\0\x20"
    assert refused(with_header(header, bytes(4)), Corrupt, match).offset == 8
    bits = b"GCF\1\0" + bytes([RAW, 1, 0]) + b"\0\0" + bytes.fromhex(number)
    assert refused(with_header(bits, bytes(4)), Corrupt, match).offset == 10


def test_range_of_leb128() -> None:
    for number in (0, 127, 128, 2**64 - 1):
        assert primitives.leb128(number) == leb128.encode(number)
        assert primitives.Reader(leb128.encode(number)).leb128() == number
    for number in (-1, 2**64):
        with pytest.raises(ParameterError, match=r"from 0 to 2\*\*64 - 1"):
            primitives.leb128(number)


@pytest.mark.parametrize("raw", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_name_must_be_utf8(raw: bytes) -> None:
    header = b"GCF\1\1" + bytes([RAW, 1, 0, len(raw)]) + raw + b"\0\0\x20"
    refused(with_header(header, bytes(4)), Corrupt, "UTF-8")


def test_name_longer_than_the_frame() -> None:
    header = b"GCF\1\1" + bytes([RAW, 1, 0]) + leb128.encode(2**63) + b"\0\0\x20"
    refused(with_header(header, bytes(4)), Truncated)


def test_names_keep_control_characters() -> None:
    frame = build(name="\x1b[31m\0\n")
    assert gcodec.Frame.from_bytes(frame).name == "\x1b[31m\0\n"
    assert gcodec.Frame.from_bytes(frame).to_bytes() == frame


# --- refusals: checksums and tags ---------------------------------------------------------------


@pytest.mark.parametrize("at", range(16, 20))
def test_header_checksum(at: int) -> None:
    data = bytearray(build())
    data[at] ^= 1
    refused(bytes(data), Corrupt, "header's checksum")


def test_header_checksum_covers_every_field() -> None:
    for at in range(4, 16):
        data = bytearray(build())
        data[at] ^= 0x10
        refused_kinds = (Corrupt, Unsupported, Truncated)
        with pytest.raises(refused_kinds):
            gcodec.decode(bytes(data))


@pytest.mark.parametrize("at", range(20, 28))
def test_payload_checksum(at: int) -> None:
    data = bytearray(build())
    data[at] ^= 0x80
    refused(bytes(data), Corrupt, "payload's checksum")


@pytest.mark.parametrize("nbytes", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 700_001])
def test_checksum_of_a_large_payload(nbytes: int) -> None:
    """Its parts, which the reader brings to the cache one by one, share one checksum."""
    payload = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    data = bytearray(gcodec.encode(payload, "raw"))
    assert data[-4:] == crc32c.crc32c(payload.tobytes()).to_bytes(4, "little")
    assert np.array_equal(gcodec.decode(data), payload)
    for byte in (0, nbytes // 2, nbytes - 1):
        data[byte - nbytes - 4] ^= 1
        refused(bytes(data), Corrupt, "payload's checksum")
        data[byte - nbytes - 4] ^= 1


def test_checksums_are_verified_before_meaning() -> None:
    data = bytearray(build(codec_id=99))
    data[-1] ^= 1
    refused(bytes(data), Unsupported, "codec id")
    data[5] = 98
    refused(bytes(data), Corrupt, "header's checksum")


def test_tags() -> None:
    tagged, plain = build(key=b"right"), build()
    assert gcodec.decode(tagged, key=b"right").size == 5
    refused(tagged, Corrupt, "tag", key=b"wrong")
    refused(tagged, Unsupported, "key", key=None)
    refused(plain, Corrupt, "tag", key=b"right")
    for bit in range(8 * 16):
        data = bytearray(tagged)
        data[-1 - bit // 8] ^= 1 << bit % 8
        refused(bytes(data), Corrupt, "tag", key=b"right")
    refused(tagged[:-1], Truncated, key=b"right")
    # The tag of another tensor under the same key does not authenticate this frame.
    other = build(key=b"right", name="other")
    refused(tagged[:-16] + other[-16:], Corrupt, "tag", key=b"right")


@pytest.mark.parametrize("key", [b"", b"k" * 65, "text", 3, bytearray(b"k")])
def test_invalid_keys(key: Any) -> None:
    with pytest.raises(ParameterError, match="key"):
        gcodec.encode(X, "raw", key=key)
    with pytest.raises(ParameterError, match="key"):
        gcodec.decode(build(), key=key)
    if key:
        with pytest.raises(ParameterError) as caught:
            gcodec.encode(X, "raw", key=key)
        assert "kkk" not in str(caught.value)
    if not isinstance(key, bytes):
        with pytest.raises(ParameterError, match=rf"key is of type {type(key).__name__}: must be"):
            gcodec.encode(X, "raw", key=key)


def test_changed_scalars_do_not_reach_other_frames() -> None:
    """Frames with the same header bytes share what was parsed."""
    Frame.from_bytes(build()).payload.scalars["threshold"] = 8.0
    assert Frame.from_bytes(build()).payload.scalars == {"threshold": 0.5}


@pytest.mark.parametrize("key", [None, b"secret"])
def test_size_is_that_of_the_bytes(key: bytes | None) -> None:
    frame = Frame.from_bytes(gcodec.encode(X, "raw", name="w", key=key), key=key)
    assert frame.nbytes == len(frame.to_bytes())


def test_seek_table_of_another_tensor_is_refused() -> None:
    frame = Frame.from_bytes(gcodec.encode(np.ones(9000, np.float32), "qsgd")).with_seek(12)
    with pytest.raises(Corrupt, match="seek table"):
        dataclasses.replace(frame, shape=(4000,))


# --- refusals: parameters and scalars -----------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"params": b"\2"}, Unsupported),  # a choice that does not exist
        ({"params": b"\xff"}, Unsupported),
        ({"params": b"\1\0\0\0"}, Unsupported),  # one parameter too many
        ({"params": b"\0" * 255}, Unsupported),
        ({"scalars": HALF + b"\0"}, Unsupported),
        ({"scalars": HALF * 60}, Unsupported),
        ({"codec_id": RAW, "params": b"\3", "scalars": b""}, Unsupported),
        ({"codec_id": RAW, "params": b"\0\0", "scalars": b""}, Unsupported),
        ({"codec_id": RAW, "scalars": b"\0"}, Unsupported),
        ({"codec_id": ONE_BIT, "params": HALF + b"\0", "scalars": b""}, Unsupported),
    ],
)
def test_fields_of_later_releases_are_unsupported(
    changes: dict[str, Any], kind: type[FormatError]
) -> None:
    refused(build(**changes), kind)


@pytest.mark.parametrize("scalars", [b"", HALF[:1], HALF[:3]], ids=bytes.hex)
def test_missing_scalars(scalars: bytes) -> None:
    with pytest.raises((Truncated, Corrupt)):
        gcodec.decode(build(scalars=scalars))


@pytest.mark.parametrize("params", [HALF[:1], HALF[:3]], ids=bytes.hex)
def test_truncated_parameters(params: bytes) -> None:
    with pytest.raises((Truncated, Corrupt)):
        gcodec.decode(build(codec_id=ONE_BIT, params=params, scalars=b""))


@pytest.mark.parametrize(
    "threshold", [0.0, -0.0, -0.5, np.nan, -np.inf, 1e-45, -1e-45, 2.0**-127], ids=str
)
def test_invalid_thresholds(threshold: float) -> None:
    refused(build(scalars=struct.pack("<f", threshold)), Corrupt, "threshold")


def test_inconsistent_parameters() -> None:
    scalars = struct.pack("<f", 1e-7)
    assert gcodec.decode(build(scalars=scalars)).size == 5
    refused(build(params=b"\1", scalars=scalars), Corrupt, "fit together")


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000, 1, 0x7F7FFFFF])
def test_one_bit_threshold_may_have_any_bits(bits: int) -> None:
    frame = build(
        codec_id=ONE_BIT, params=struct.pack("<I", bits), scalars=b"", payload=b"\xa8\0\0\0"
    )
    assert gcodec.decode(frame).tolist() == [1, -1, 1, -1, 1]
    assert gcodec.Frame.from_bytes(frame).to_bytes() == frame


# --- refusals: payloads -------------------------------------------------------------------------


@pytest.mark.parametrize("codec_id", [RAW, TWO_BIT, ONE_BIT])
@pytest.mark.parametrize("size", [0, 1, 3, 5, 8, 16, 24])
def test_payload_of_wrong_length(codec_id: int, size: int) -> None:
    scalars = HALF if codec_id == TWO_BIT else b""
    expected = 20 if codec_id == RAW else 4
    frame = build(codec_id=codec_id, scalars=scalars, payload=bytes(size), nbits=8 * size)
    refused(frame, Truncated if size < expected else Corrupt, "payload has")


@pytest.mark.parametrize(
    ("codec_id", "size", "nbits"),
    [(RAW, 20, 153), (RAW, 20, 159), (TWO_BIT, 4, 25), (TWO_BIT, 4, 31), (ONE_BIT, 4, 25)],
)
def test_payload_bits_must_be_whole_bytes(codec_id: int, size: int, nbits: int) -> None:
    """The bit count of these codecs is fixed, so no other count is valid."""
    scalars = HALF if codec_id == TWO_BIT else b""
    frame = build(codec_id=codec_id, scalars=scalars, payload=bytes(size), nbits=nbits)
    with pytest.raises((Corrupt, Truncated)):
        gcodec.decode(frame)


@pytest.mark.parametrize("element", range(5))
def test_two_bit_code_01_is_invalid(element: int) -> None:
    word = bytearray(4)
    word[element // 4] = 1 << (6 - 2 * (element % 4))
    frame = build(payload=bytes(word))
    refused(frame, Corrupt, "01")
    with pytest.raises(Corrupt, match="01"):
        gcodec.decode_add(frame, np.zeros(5, np.float32))
    with pytest.raises(Corrupt, match="01"):
        gcodec.parse("mxnet-2bit").decode(bytes(word), 5)


@pytest.mark.parametrize(("codec_id", "used"), [(TWO_BIT, 10), (ONE_BIT, 5)])
def test_padding_bits_must_be_zero(codec_id: int, used: int) -> None:
    scalars = HALF if codec_id == TWO_BIT else b""
    for bit in range(used, 32):
        word = (1 << (31 - bit)).to_bytes(4, "big")
        refused(build(codec_id=codec_id, scalars=scalars, payload=word), Corrupt)
    for bit in range(used):
        word = (3 << 30 >> bit // 2 * 2).to_bytes(4, "big") if codec_id == TWO_BIT else bytes(4)
        assert gcodec.decode(build(codec_id=codec_id, scalars=scalars, payload=word)).size == 5


def test_invalid_payloads_leave_out_and_acc_unchanged() -> None:
    frame = build(payload=b"\x40\0\0\0")
    out = np.full(5, 7, np.float32)
    for call in (
        lambda: gcodec.decode(frame, out=out),
        lambda: gcodec.decode_add(frame, out),
    ):
        with pytest.raises(Corrupt):
            call()
    assert np.all(out == 7)


@pytest.mark.parametrize("suffix", [b"\0", b"GCF", bytes(100)], ids=len)
def test_trailing_bytes_are_refused(suffix: bytes) -> None:
    assert refused(build() + suffix, Corrupt, "follow").offset == len(build())


def test_joined_frames_name_their_reader() -> None:
    refused(build() + build(), Corrupt, "the frame; gcodec.iter_frames reads several frames")


# --- limits -------------------------------------------------------------------------------------


BOMBS = [(2**29,), (2**20, 2**20), (2**60,), (2**30, 2**30), (2**64 - 1,) * 32]


@pytest.mark.parametrize("shape", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("codec_id", [RAW, TWO_BIT, ONE_BIT])
def test_decompression_bombs(shape: tuple[int, ...], codec_id: int) -> None:
    scalars = HALF if codec_id == TWO_BIT else b""
    frame = build(codec_id=codec_id, shape=shape, scalars=scalars, payload=b"", nbits=0)
    out = np.zeros(5, np.float32)
    tracemalloc.start()
    start = time.process_time()
    try:
        if math.prod(shape) < 2**60:
            refused(frame, LimitExceeded, "max_elements")
        with pytest.raises(FormatError):
            gcodec.decode(frame)
        with pytest.raises(FormatError):
            gcodec.decode(frame, limits=Limits(1 << 62, 1 << 62))
        for call in (
            lambda: gcodec.decode(frame, out=out),
            lambda: gcodec.decode(frame, like=out),
            lambda: gcodec.decode_add(frame, out),
        ):
            with pytest.raises((ParameterError, FormatError), match=r"shape|max_elements"):
                call()
        error = FormatError if math.prod(shape) < 2**59 else ParameterError
        with pytest.raises(error):
            gcodec.parse(next(n for n, c in gcodec.codecs().items() if c.id == codec_id)).decode(
                b"", shape
            )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert time.process_time() - start < 2


def test_payload_longer_than_the_frame() -> None:
    header = b"GCF\1\0" + bytes([RAW, 1, 1, 1]) + b"\0\0" + leb128.encode(2**63)
    tracemalloc.start()
    try:
        refused(with_header(header, bytes(4)), Truncated)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_each_limit() -> None:
    x = np.ones((10, 10), np.float64)
    frame = gcodec.encode(x, "mxnet-1bit")
    ratio = 800 / len(frame)
    for allowed in (Limits(100), Limits(100, 800), Limits(100, 800, ratio + 0.01)):
        assert gcodec.decode(frame, limits=allowed).shape == (10, 10)
        assert [f.shape for f in gcodec.iter_frames(frame, limits=allowed)] == [(10, 10)]
    for small, match in (
        (Limits(99), r"limits=gcodec\.Limits\(max_elements=100\)"),
        (Limits(100, 799), r"limits=gcodec\.Limits\(max_bytes=800\)"),
        (Limits(max_ratio=ratio - 0.01), r"limits=gcodec\.Limits\(max_ratio="),
    ):
        refused(frame, LimitExceeded, match, limits=small)
        with pytest.raises(LimitExceeded, match=match):
            gcodec.Frame.from_bytes(frame, limits=small)
        with pytest.raises(LimitExceeded, match=match):
            next(gcodec.iter_frames(frame, limits=small))
        # The caller's limits apply everywhere.
        with pytest.raises(LimitExceeded, match=match):
            gcodec.decode(frame, out=np.empty_like(x), limits=small)
        with pytest.raises(LimitExceeded, match=match):
            gcodec.decode_add(frame, np.zeros((10, 10), np.float32), limits=small)


@pytest.mark.parametrize("n", [1000, 200])
def test_limits_advised_by_the_message_work(n: int) -> None:
    """Also if the ratio is a whole number, which the advised limit equals."""
    frame = gcodec.encode(np.ones(n, np.float32), "mxnet-1bit")
    assert (4 * n % len(frame) == 0) == (n == 200)
    text = str(refused(frame, LimitExceeded, limits=Limits(max_ratio=2.5)))
    limits = eval(text[text.index("gcodec.Limits") :], {"gcodec": gcodec})
    assert gcodec.decode(frame, limits=limits).size == n


def test_default_limits_do_not_apply_if_an_array_fixes_the_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.ones(64, np.float32)
    frame = gcodec.encode(x, "raw")
    monkeypatch.setattr("gcodec.limits.DEFAULT_LIMITS", Limits(max_elements=16))
    refused(frame, LimitExceeded)
    assert gcodec.decode(frame, like=x).sum() == 64
    assert gcodec.decode(frame, out=np.empty_like(x)).sum() == 64
    acc = np.zeros(64, np.float32)
    gcodec.decode_add(frame, acc)
    assert acc.sum() == 64


def test_limits_may_be_integers_of_numpy() -> None:
    frame = gcodec.encode(np.ones(9, np.float32), "raw")
    assert gcodec.decode(frame, limits=Limits(np.prod((3, 3)), np.int32(36))).all()
    refused(frame, LimitExceeded, limits=Limits(np.int64(8)))
    for ratio in (np.float32(2.5), np.int64(2)):
        assert type(Limits(max_ratio=ratio).max_ratio) is float


@pytest.mark.parametrize(
    "values",
    [
        {"max_elements": 0},
        {"max_elements": 1.5},
        {"max_elements": True},
        {"max_bytes": -1},
        {"max_ratio": 0},
        {"max_ratio": True},
        {"max_ratio": float("nan")},
        {"max_ratio": 10**400},
        {"max_ratio": float("inf")},
        {"max_ratio": np.float32("nan")},
        {"max_ratio": "1"},
    ],
)
def test_invalid_limits(values: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(values))):
        Limits(**values)


def test_largest_ratio_is_allowed() -> None:
    limits = Limits(max_ratio=sys.float_info.max)
    assert gcodec.decode(gcodec.encode(X, "sign"), limits=limits).size == 5


@pytest.mark.parametrize("shape", [(1 << 60, 5), (1 << 63,), (2**64 - 1,) * 2], ids=range(3))
def test_limits_allow_no_more_than_arrays_can_have(shape: tuple[int, ...]) -> None:
    payload = bytes.fromhex("3f800000c0")  # the norm 1, and the level 1 of element 2
    frame = build(
        codec_id=2, shape=shape, params=b"\x01\x01", scalars=b"", payload=payload, nbits=37
    )
    limits = Limits(1 << 200, 1 << 200)
    for call in (gcodec.decode, gcodec.decode_sparse, gcodec.Frame.from_bytes):
        with pytest.raises(LimitExceeded, match=r"more than 2\^62"):
            call(frame, limits=limits)


@pytest.mark.parametrize("size", [1 << 61, 1 << 62])
def test_sparse_frames_may_have_more_bytes_than_arrays(size: int) -> None:
    payload = bytes.fromhex("3f800000c0")
    frame = build(
        codec_id=2, shape=(size,), params=b"\x01\x01", scalars=b"", payload=payload, nbits=37
    )
    limits = Limits(1 << 200, 1 << 200)
    positions, values = gcodec.decode_sparse(frame, limits=limits)
    assert positions.tolist() == [2] and values.tolist() == [1]
    for call in (
        gcodec.decode,
        lambda frame, limits: gcodec.decode_range(frame, 0, 5, limits=limits),
        lambda frame, limits: gcodec.decode_sum([frame], limits=limits),
    ):
        with pytest.raises(LimitExceeded, match="more than any array can have"):
            call(frame, limits=limits)


@pytest.mark.parametrize("limits", [0, 5, {}, {"max_elements": 5}, Limits])
def test_objects_that_are_not_limits(limits: Any) -> None:
    """Falsy objects must not select the default limits silently."""
    frame = gcodec.encode(np.ones(64, np.float32), "raw")
    calls: list[Callable[..., Any]] = [
        lambda **options: list(gcodec.iter_frames(frame, **options)),
        *(partial(call, frame) for call in (gcodec.decode, gcodec.Frame.from_bytes)),
    ]
    for call in calls:
        with pytest.raises(ParameterError, match="limits"):
            call(limits=limits)


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (0, 2**64 - 1), (2**33, 0, 2**33)])
@pytest.mark.parametrize("codec_id", [RAW, TWO_BIT, ONE_BIT])
def test_empty_shape_that_no_array_can_have(shape: tuple[int, ...], codec_id: int) -> None:
    scalars = HALF if codec_id == TWO_BIT else b""
    frame = build(codec_id=codec_id, shape=shape, scalars=scalars, payload=b"", nbits=0)
    with pytest.raises(FormatError):
        gcodec.decode(frame)


def test_empty_shape_with_one_large_dimension() -> None:
    x = np.empty((0, 2**40), np.float32)
    for codec in gs.FEW:
        assert gcodec.decode(gcodec.encode(x, codec)).shape == (0, 2**40)


# --- consecutive frames -------------------------------------------------------------------------


def test_iteration_stops_at_the_first_damaged_frame() -> None:
    one, two = build(name="one"), build(name="two")
    frames = gcodec.iter_frames(one + two + b"GCF\2")
    assert [next(frames).name, next(frames).name] == ["one", "two"]
    with pytest.raises(Unsupported, match="version") as caught:
        next(frames)
    assert caught.value.offset == len(one) + len(two) + 3
    for cut in range(1, len(two)):
        frames = gcodec.iter_frames(one + two[:-cut])
        assert next(frames).name == "one"
        with pytest.raises(FormatError) as damaged:
            next(frames)
        assert damaged.type is Truncated


def test_errors_of_iteration_name_the_file_and_the_frame(tmp_path: Path) -> None:
    path = tmp_path / "step.gcf"
    path.write_bytes(build() + b"GCF\2")
    with pytest.raises(Unsupported, match=r"step\.gcf: frame 1: frame version 2"):
        list(gcodec.iter_frames(path))
    with pytest.raises(Unsupported, match=r"^frame 1: frame version 2"):
        list(gcodec.iter_frames(path.read_bytes()))


def test_iteration_with_a_key() -> None:
    frames = [build(name=str(k), key=b"k") for k in range(3)]
    assert [f.name for f in gcodec.iter_frames(b"".join(frames), key=b"k")] == ["0", "1", "2"]
    with pytest.raises(Unsupported, match="key"):
        list(gcodec.iter_frames(b"".join(frames)))
    with pytest.raises(Corrupt, match="tag"):
        list(gcodec.iter_frames(frames[0] + build(), key=b"k"))


def test_iteration_checks_limits_for_each_frame() -> None:
    frames = [gcodec.encode(np.ones(n, np.float32), "raw") for n in (4, 400, 4)]
    iterator = gcodec.iter_frames(b"".join(frames), limits=Limits(40))
    assert next(iterator).size == 4
    with pytest.raises(LimitExceeded):
        next(iterator)


# --- arguments ----------------------------------------------------------------------------------


def test_like_and_out_must_fit() -> None:
    frame = build()
    good = np.empty(5, np.float32)
    with pytest.raises(ParameterError, match="one of them"):
        gcodec.decode(frame, like=good, out=good)
    for wrong in (np.empty(4, np.float32), np.empty((5, 1), np.float32)):
        for name in ("like", "out"):
            with pytest.raises(ParameterError, match=rf"{name}\.shape"):
                gcodec.decode(frame, **{name: wrong})
        with pytest.raises(ParameterError, match=r"acc\.shape"):
            gcodec.decode_add(frame, wrong)
    for dtype in ("float64", "float16", ">f4", "int32"):
        with pytest.raises(ParameterError, match=r"out\.dtype"):
            gcodec.decode(frame, out=np.empty(5, dtype))
        with pytest.raises(ParameterError, match=r"acc\.dtype"):
            gcodec.decode_add(frame, np.zeros(5, dtype))
    with pytest.raises(ParameterError, match=r"like\.dtype"):
        gcodec.decode(frame, like=np.empty(5, np.int32))
    frozen = np.empty(5, np.float32)
    frozen.flags.writeable = False
    assert gcodec.decode(frame, like=frozen).flags.writeable
    with pytest.raises(ParameterError, match="read-only"):
        gcodec.decode(frame, out=frozen)
    with pytest.raises(ParameterError, match="read-only"):
        gcodec.decode_add(frame, frozen)
    for wrong in ([0.0] * 5, "text", None, 3):
        with pytest.raises(TypeError):
            gcodec.decode_add(frame, wrong)
    for wrong in ([0.0] * 5, "text", 3):
        with pytest.raises(TypeError):
            gcodec.decode(frame, like=wrong)
        with pytest.raises(TypeError):
            gcodec.decode(frame, out=wrong)


@pytest.mark.parametrize("name", ["like", "out"])
def test_unusual_layouts_of_out(name: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    frame = gcodec.encode(x, "raw")
    misaligned = np.frombuffer(bytearray(97), np.uint8)[1:].view(np.float32).reshape(2, 3, 4)
    backwards = np.empty((2, 3, 8), np.float32)[::-1, ::-1, ::-2]
    empty = gcodec.encode(x[:0], "raw")
    assert gcodec.decode(empty, **{name: np.empty((0, 6, 4), np.float32)[:, ::2]}).size == 0
    column = np.lib.stride_tricks.as_strided(np.empty(6, np.float32), (3, 1), (8, 0))
    first = gcodec.encode(x[0, :, :1], "raw")
    assert gcodec.decode(first, **{name: column}).tolist() == [[0], [4], [8]]
    for target in (np.empty((2, 3, 4), np.float32, order="F"), backwards, misaligned):
        assert np.array_equal(gcodec.decode(frame, **{name: target}), x)
        if name == "out":
            assert np.array_equal(target, x)
            target[...] = 1
            gcodec.decode_add(frame, target)
            assert np.array_equal(target, x + 1)


@pytest.mark.parametrize("spec", gcodec.codecs())
@pytest.mark.parametrize("n", [1, 31, 1000])
def test_misaligned_targets(spec: str, n: int) -> None:
    frame = gcodec.encode(np.linspace(-2, 2, n, dtype=np.float32), spec)
    for shift in (1, 2, 3):
        memory = bytearray(4 * n + shift)
        target = np.frombuffer(memory, np.uint8)[shift:].view(np.float32)
        assert not target.flags.aligned
        gcodec.decode(frame, out=target)
        assert np.array_equal(target, gcodec.decode(frame))
        gcodec.decode_add(frame, target, 1.0)
        assert np.array_equal(target, 2 * gcodec.decode(frame))


def test_scalar_out_is_refused() -> None:
    frame = gcodec.encode(np.float32(3), "raw")
    assert gcodec.decode(frame).shape == ()
    with pytest.raises((ParameterError, TypeError)):
        gcodec.decode(frame, out=np.float32(0))
    with pytest.raises((ParameterError, TypeError)):
        gcodec.decode_add(frame, np.float32(0))


def test_encode_to_out() -> None:
    frame = build()
    for target in (bytearray(40), memoryview(bytearray(40)), np.zeros(10, np.float32)):
        assert gcodec.encode(X, "mxnet-2bit", out=target) == 28
        assert bytes(memoryview(target).cast("B")[:28]) == frame
    with pytest.raises(ParameterError, match="read-only"):
        gcodec.encode(X, "mxnet-2bit", out=bytes(40))
    with pytest.raises(ParameterError, match="at least 28 bytes"):
        gcodec.encode(X, "mxnet-2bit", out=bytearray(27))
    for wrong in ("text", 3, [0], np.zeros(80, np.uint8)[::2]):
        with pytest.raises(TypeError, match="out"):
            gcodec.encode(X, "mxnet-2bit", out=wrong)


@pytest.mark.parametrize("name", [3, b"w", ["w"]])
def test_names_that_are_not_strings(name: Any) -> None:
    with pytest.raises(ParameterError, match="name"):
        gcodec.encode(X, "raw", name=name)


def test_names_without_utf8() -> None:
    with pytest.raises(ParameterError, match="name"):
        gcodec.encode(X, "raw", name="\ud800")
    with pytest.raises(ParameterError, match="name"):
        gcodec.parse("raw").max_encoded_nbytes(1, "\ud800")


def test_exception_hierarchy() -> None:
    kinds = (Truncated, Corrupt, Unsupported, LimitExceeded, gcodec.Unsafe)
    assert all(issubclass(kind, FormatError) for kind in kinds)
    assert issubclass(FormatError, GcodecError) and issubclass(FormatError, ValueError)
    assert issubclass(ParameterError, GcodecError) and issubclass(ParameterError, ValueError)
    assert not issubclass(ParameterError, FormatError)


def test_dtypes_of_results() -> None:
    for dtype, other in itertools.product(gs.DTYPES, repeat=2):
        x = np.arange(-3, 4).astype(gs.DTYPES[dtype])
        frame = gcodec.encode(x, "raw")
        like = np.empty(7, gs.DTYPES[other])
        assert gcodec.decode(frame).dtype == x.dtype
        decoded = gcodec.decode(frame, like=like)
        assert decoded.dtype == like.dtype
        assert decoded.astype(np.float32).tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert gcodec.decode(gcodec.encode(x, "raw")).dtype != ml_dtypes.bfloat16


def test_pickles_do_not_contain_the_key() -> None:
    secret = b"SECRET-of-the-run"
    frame = Frame.from_bytes(build(key=secret), key=secret)
    assert frame.key == secret
    shown = [repr(frame), repr(vars(frame)), repr(dataclasses.asdict(frame))]
    shown += [repr(dataclasses.fields(frame)), repr(dataclasses.astuple(frame))]
    assert not any("SECRET" in text for text in shown)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(frame, protocol)
        assert secret not in data
        back = pickle.loads(data)
        assert back.key is None
        assert (back.codec, back.shape, back.name) == (frame.codec, frame.shape, frame.name)
        assert dataclasses.replace(back, key=secret).to_bytes() == frame.to_bytes()
    # Methods that derive a frame from another keep the key.
    for other in (copy.copy(frame), copy.deepcopy(frame), dataclasses.replace(frame)):
        assert other is not frame and other.key == secret
        assert other.to_bytes() == frame.to_bytes()
    assert copy.deepcopy(frame).payload.data is not frame.payload.data
    assert dataclasses.replace(frame, name="other").key == secret
    assert dataclasses.replace(frame, key=None).to_bytes() == build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        frame.key = None  # type: ignore[misc]
    assert Frame(frame.codec, frame.dtype, frame.shape, frame.payload).key is None


def test_repr_and_table_of_a_notebook() -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    frame = Frame.from_bytes(gcodec.encode(x, "sign", name="<w>"))
    bits = f"{8 * frame.nbytes / 64:.2f}"
    assert repr(frame) == f"<Frame '<w>': sign, float32, (8, 8), {bits} bits per value>"
    text = frame._repr_html_()
    assert f"<tr><th>bits per value</th><td>{bits}</td></tr>" in text
    assert "&lt;w&gt;" in text and "<w>" not in text
    empty = Frame.from_bytes(gcodec.encode(x[:0], "raw"))
    assert repr(empty) == "<Frame: raw, float32, (0, 8)>"
    payload = gcodec.parse("sign").encode(np.ones(2048, np.float32))
    assert repr(payload) == "<Payload: sign, 2,048 bits>"
    assert "bits per value" not in empty._repr_html_()
    tagged = Frame.from_bytes(gcodec.encode(x, "minifloat", key=b"s3cret"), key=b"s3cret")
    text = tagged.with_seek()._repr_html_()
    assert "<th>tag</th>" in text and "s3cret" not in text
    row = "<tr><th>seek table</th><td>for blocks of 2^5 elements</td></tr>"
    dense = Frame.from_bytes(gcodec.encode(x, "qsgd:form=dense"))
    assert row in dense.with_seek(5)._repr_html_() and "seek table" not in dense._repr_html_()


def test_functions_take_frames_as_bytes() -> None:
    data = gcodec.encode(X, "topk:k=2")
    frame = Frame.from_bytes(data)
    np.testing.assert_array_equal(gcodec.decode(frame), gcodec.decode(data))
    np.testing.assert_array_equal(
        gcodec.decode_range(frame, 1, 3), gcodec.decode_range(data, 1, 3)
    )
    for one, other in zip(gcodec.decode_sparse(frame), gcodec.decode_sparse(data), strict=True):
        np.testing.assert_array_equal(one, other)
    sums = [np.zeros_like(X) for _ in range(2)]
    for each, total in zip((frame, data), sums, strict=True):
        gcodec.decode_add(each, total)
    np.testing.assert_array_equal(*sums)


def test_frames_without_the_key_are_refused() -> None:
    """A frame that was read without the key may be anyone's."""
    frames = [Frame.from_bytes(gcodec.encode(X, "sign", key=key), key=key) for key in (None, b"a")]
    np.testing.assert_array_equal(gcodec.decode(frames[1], key=b"a"), gcodec.decode(frames[0]))
    for frame in frames:
        for call in (gcodec.decode, lambda frame, key: gcodec.decode_sum([frame], key=key)):
            with pytest.raises(ParameterError, match="key: the Frame has another key, or none"):
                call(frame, key=b"b")
