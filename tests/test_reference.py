"""Test the slow oracles against worked examples of the specification and the original systems."""

from __future__ import annotations

import hashlib
import itertools
import struct

import ml_dtypes
import numpy as np
import pytest
from reference import (
    crc32c,
    fields,
    frame,
    halves,
    leb128,
    minmax,
    mxnet,
    philox,
    qsgd,
    sign,
    sums,
    ternary,
    universal,
)
from strategies import f32


def bits_of(x: np.ndarray) -> list[int]:
    """Return the bit patterns of a float32 array, so that NaN and -0 compare."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32).tolist()


# --- CRC-32C ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and the next two: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c(data: bytes, expected: int) -> None:
    assert crc32c.crc32c(data) == expected


# --- LEB128 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "hexadecimal"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (255, "ff01"),
        (16383, "ff7f"),
        (16384, "808001"),
        (624485, "e58e26"),
        (2**32 - 1, "ffffffff0f"),
        (2**63, "80808080808080808001"),
        (2**64 - 1, "ffffffffffffffffff01"),
    ],
)
def test_leb128_forms(n: int, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert leb128.encode(n) == data
    assert leb128.decode(data, 0) == (n, len(data))
    assert leb128.decode(b"\xff" + data + b"\x55", 1) == (n, len(data) + 1)


@pytest.mark.parametrize(
    "hexadecimal",
    ["", "80", "ff", "8000", "ff00", "808000", "8080808080808080808001", "ff" * 10, "ff" * 11],
)
def test_leb128_refuses(hexadecimal: str) -> None:
    with pytest.raises(ValueError, match="LEB128"):
        leb128.decode(bytes.fromhex(hexadecimal), 0)


@pytest.mark.parametrize("n", [-1, 2**70])
def test_leb128_encode_refuses(n: int) -> None:
    with pytest.raises(ValueError, match="LEB128"):
        leb128.encode(n)


# --- frames -------------------------------------------------------------------------------------


QSGD_DENSE = bytes.fromhex("40a000006340")  # levels 2, 0, -3, 0 of s = 4: 32 + 15 bits


def test_frame_bytes() -> None:
    data = frame.build(2, 1, (4,), b"\x04", b"", QSGD_DENSE, 47)
    header = bytes.fromhex("47434601 00 02 01 01 04 01 04 00 2f")
    expected = header + struct.pack("<I", crc32c.crc32c(header))
    expected += QSGD_DENSE + struct.pack("<I", crc32c.crc32c(QSGD_DENSE))
    assert data == expected
    assert frame.parse(data) == {
        "flags": 0,
        "codec_id": 2,
        "dtype": 1,
        "shape": (4,),
        "name": None,
        "params": b"\x04",
        "scalars": b"",
        "nbits": 47,
        "seek": None,
        "payload": QSGD_DENSE,
        "tag": None,
        "end": len(data),
    }


def test_frame_of_everything() -> None:
    key, name = b"secret", "layer.0/größe"
    data = frame.build(
        255, 3, (2, 300, 0), bytes(255), b"\1\2\3\4", b"\xab\xc0", 10, name=name, key=key
    )
    text = name.encode()
    start = bytes.fromhex("47434601 05 ff 03 03 02 ac02 00") + bytes([len(text)]) + text
    assert data.startswith(start + b"\xff" + bytes(255) + b"\4\1\2\3\4" + b"\x0a")
    assert data[-16:] == hashlib.blake2b(data[:-16], digest_size=16, key=key).digest()
    for parsed in (frame.parse(data), frame.parse(data, key)):
        assert parsed["name"] == name
        assert parsed["shape"] == (2, 300, 0)
        assert parsed["tag"] == data[-16:]
        assert parsed["end"] == len(data)
    with pytest.raises(ValueError, match="wrong tag"):
        frame.parse(data, b"other")


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("count", [1, 4096, 4097, 8193])
def test_frame_with_a_seek_table(form: int, count: int) -> None:
    lengths = [47] + [0] * (count - 1)
    section = qsgd.section(qsgd.Table(0, lengths, [1] * count if form else None))
    params = bytes([4, form])
    data = frame.build(2, 1, (count,), params, b"", QSGD_DENSE, 47, "w", seek=section)
    assert data[4] == 3
    parsed = frame.parse(data)
    assert parsed["seek"] == section and parsed["nbits"] == 47 and parsed["end"] == len(data)
    header = data[: -len(QSGD_DENSE) - 8]
    assert header.endswith(section)
    assert data == header + struct.pack("<I", crc32c.crc32c(header)) + data[len(header) + 4 :]


def test_frames_concatenate() -> None:
    first = frame.build(1, 1, (), b"", b"", bytes(4), 32)
    second = frame.build(7, 2, (0,), b"", b"", b"", 0, name="")
    data = first + second
    end = frame.parse(data)["end"]
    assert end == len(first)
    assert frame.parse(data[end:])["name"] == ""
    assert frame.parse(data[end:])["end"] == len(second)


def test_frame_overhead() -> None:
    data = frame.build(1, 1, (2**28,), bytes(4), bytes(4), b"", 0)
    assert len(data) <= 40


def test_frame_refuses_every_truncation_and_every_flipped_bit() -> None:
    key = b"k"
    data = frame.build(2, 1, (4,), b"\x04", b"", QSGD_DENSE, 47, name="w", key=key)
    for length in range(len(data)):
        with pytest.raises(ValueError):
            frame.parse(data[:length], key)
    for i in range(8 * len(data)):
        bad = bytearray(data)
        bad[i // 8] ^= 1 << i % 8
        with pytest.raises(ValueError):
            frame.parse(bytes(bad), key)


def _resealed(header: bytes) -> bytes:
    """Return an empty-payload frame with this header and correct CRCs."""
    return header + struct.pack("<I", crc32c.crc32c(header)) + bytes(4)


@pytest.mark.parametrize(
    ("hexadecimal", "message"),
    [
        ("47434602 00 01 01 00 00 00 00", "version"),
        ("47434601 08 01 01 00 00 00 00", "flags"),
        ("47434601 02 01 01 00 00 00 00", "blocks"),
        ("47434601 02 02 01 00 02 0400 00 00 0003 00", "3 bytes"),
        ("47434601 00 00 01 00 00 00 00", "codec"),
        ("47434601 00 14 01 00 00 00 00", "codec"),
        ("47434601 00 bf 01 00 00 00 00", "codec"),
        ("47434601 00 01 00 00 00 00 00", "dtype"),
        ("47434601 00 01 10 00 00 00 00", "dtype"),
        ("47434601 00 07 0e 00 00 00 00", "dtype"),
        ("47434601 00 01 01 21" + "01" * 33 + "00 00 00", "dimensions"),
        ("47434601 00 01 01 01 8000 00 00 00", "shortest"),
        ("47434601 01 01 01 00 01ff 00 00 00", "utf-8"),
    ],
)
def test_frame_refuses_with_correct_checksums(hexadecimal: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frame.parse(_resealed(bytes.fromhex(hexadecimal)))


def test_frame_without_payload() -> None:
    data = _resealed(bytes.fromhex("47434601 00 01 01 00 00 00 00"))
    assert frame.parse(data)["end"] == len(data) == 19
    with pytest.raises(ValueError, match="no tag"):
        frame.parse(data, b"key")


def test_frame_refuses_padding_that_is_not_zero() -> None:
    with pytest.raises(ValueError, match="padding"):
        frame.build(7, 1, (1,), b"", b"", b"\x40", 1)
    header = bytes.fromhex("47434601 00 07 01 01 01 00 00 01")
    data = header + struct.pack("<I", crc32c.crc32c(header))
    data += b"\x40" + struct.pack("<I", crc32c.crc32c(b"\x40"))
    with pytest.raises(ValueError, match="padding"):
        frame.parse(data)


# --- fields -------------------------------------------------------------------------------------


def test_fields_contiguous() -> None:
    assert fields.pack([1, 2, 3], 3) == bytes([0b00101001, 0b10000000])
    assert fields.pack([1, 2, 3], 3, "lsb") == (1 + (2 << 3) + (3 << 6)).to_bytes(2, "little")
    assert fields.pack([0xAB, 0xCD], 8, "msb", word=4) == bytes.fromhex("0000cdab")
    assert fields.pack([0xAB, 0xCD], 8, "lsb", word=4) == bytes.fromhex("abcd0000")


def test_fields_byteps_onebit() -> None:
    x = f32(1, -2, 3, -4, 0, -0.0, 5, -6, 0.5, *[-1] * 24)
    signs = [int(v < 0) for v in x]
    expected = bytes.fromhex("FFFF7F51 00000080")
    assert fields.pack(signs, 1, "msb", word=4) == expected
    assert fields.unpack(expected, 33, 1, "msb", word=4) == signs
    scale = np.float32(sums.sum_abs(x) / 33)
    assert struct.pack("<f", scale) == bytes.fromhex("1F7CB03F")


def test_fields_byteps_dithering_words() -> None:
    # x = (0, 0, .5, 0, -1, 0, 0, 0, .25), s = 4: gap, sign and level of three elements
    stream = "0101 0 0100  0100 1 01100  01100 0 1".replace(" ", "")
    assert len(stream) == 26
    assert fields.pack([int(b) for b in stream], 1, word=4) == bytes.fromhex("408C2552")


def test_fields_cgx() -> None:
    data = fields.pack(list(range(1, 11)), 4, "lsb", align=8)
    assert data == bytes.fromhex("21436587a9000000")


def test_fields_deepspeed() -> None:
    assert fields.pack([1, 2, 3], 4) == bytes.fromhex("1230")
    signs = np.array([1, 0, 0, 1, 1, 1, 0, 1, 1, 0], np.uint8)
    assert fields.pack(signs.tolist(), 1) == np.packbits(signs).tobytes()


@pytest.mark.parametrize(
    ("codes", "hexadecimal"),
    [
        ([], "e4"),  # the four pads 0, 1, 2, 3
        ([2], "92"),  # 2, then 0, 1, 2
        ([2, 1, 0], "06"),  # 2, 1, 0, then 0
        ([2, 1, 0, 1], "82d5"),
        ([0, 1, 2, 0, 1, 2, 0, 1], "4095ca"),
    ],
)
def test_fields_terngrad(codes: list[int], hexadecimal: str) -> None:
    data = fields.pack(codes, 2, "lsb", strided=True, pad="count")
    assert data == bytes.fromhex(hexadecimal)
    assert len(data) == len(codes) // 4 + 1
    assert fields.unpack(data, len(codes), 2, "lsb", strided=True, pad="count") == codes


def test_fields_caffe2_row() -> None:
    x = f32(0.3, -1.4, -0.6, 0.9, 1)
    low, high = x.min(), x.max()
    inverse = 1 / (float(high - low) / 3 + 1e-8)
    codes = [min(3, int(float(v - low) * inverse + 0.5)) for v in x]
    data = fields.pack(codes, 2, "lsb", strided=True)
    tail = 4 * len(data) - len(x)
    row = struct.pack("<BBff", 2, tail, low, high) + data
    assert row == bytes.fromhex("0203 3333B3BF 0000803F 360C")


def test_fields_strided_msb() -> None:
    # Q = 2: byte 0 holds fields 0, 2, 4, byte 1 fields 1, 3
    assert fields.pack([1, 2, 3, 1, 2], 2, "msb", strided=True) == bytes([0b01111000, 0b10010000])


@pytest.mark.parametrize("n", [*range(20), 31, 32, 33, 64, 65])
@pytest.mark.parametrize("width", range(1, 9))
def test_fields_round_trip(n: int, width: int) -> None:
    rng = np.random.default_rng(1000 * n + width)
    codes = rng.integers(0, 1 << width, n).tolist()
    for order in ("msb", "lsb"):
        for align in (1, 4, 8):
            for word in (1, 4):
                data = fields.pack(codes, width, order, word, align=align)
                unit = max(word, align)
                assert len(data) == -(-n * width // (8 * unit)) * unit
                assert fields.unpack(data, n, width, order, word, align=align) == codes
            if 8 % width == 0:
                data = fields.pack(codes, width, order, strided=True, align=align)
                assert fields.unpack(data, n, width, order, strided=True, align=align) == codes
        if width == 2:
            for strided in (False, True):
                data = fields.pack(codes, 2, order, strided=strided, pad="count")
                assert fields.unpack(data, n, 2, order, strided=strided, pad="count") == codes
    # the relations between the forms
    msb = fields.pack(codes, width, "msb", align=4)
    words = fields.pack(codes, width, "msb", word=4)
    assert words == b"".join(msb[i : i + 4][::-1] for i in range(0, len(msb), 4))
    assert fields.pack(codes, width, "lsb", word=4) == fields.pack(codes, width, "lsb", align=4)


def test_fields_refuse() -> None:
    for arguments in (
        ([4], 2),
        ([-1], 2),
        ([0], 0),
        ([0], 9),
        ([0], 2, "big"),
        ([0], 2, "msb", 2),
        ([0], 3, "msb", 1, True),
        ([0], 2, "msb", 4, True),
        ([0], 3, "msb", 1, False, "count"),
        ([0], 2, "msb", 1, False, "one"),
        ([0], 2, "msb", 1, False, "zero", 2),
    ):
        with pytest.raises(ValueError):
            fields.pack(*arguments)
    with pytest.raises(ValueError, match="padding"):
        fields.unpack(b"\x01", 1, 2)
    with pytest.raises(ValueError, match="padding"):
        fields.unpack(b"\x00", 0, 2, "lsb", strided=True, pad="count")
    with pytest.raises(ValueError, match="bytes where"):
        fields.unpack(b"\x00\x00", 1, 2)


# --- MXNet --------------------------------------------------------------------------------------


def test_mxnet_two_bit_example() -> None:
    state = mxnet.TwoBit(0.5, 5)
    data = state.step(f32(0.5, -0.5, 0.49, -0.7, 1.2))
    assert data == bytes.fromhex("E2C00000")
    assert bits_of(state.residual) == bits_of(f32(0, 0, 0.49, -0.19999999, 0.70000005))
    decoded = mxnet.decode_two_bit(data, 5, 0.5)
    assert bits_of(decoded) == bits_of(f32(0.5, -0.5, 0, -0.5, 0.5))


def test_mxnet_two_bit_captured_message() -> None:
    grad = f32(0.5, -0.5, 0.49, -0.7, 1.2, *[0] * 8, *[-1] * 8)
    data = mxnet.TwoBit(0.5, 21).step(grad)
    assert data == bytes.fromhex("E2C0002A AA800000")


def test_mxnet_two_bit_residual_carries_over() -> None:
    state = mxnet.TwoBit(0.5, 1)
    assert [state.step(f32(0.3)).hex() for _ in range(3)] == ["00000000", "c0000000", "00000000"]
    r = np.float32(0)
    for sent in (0.0, 0.5, 0.0):  # two roundings in each step: the sum, then the difference
        r = np.float32(np.float32(r + np.float32(0.3)) - np.float32(sent))
    assert bits_of(state.residual) == bits_of(f32(r))


def test_mxnet_two_bit_special_values() -> None:
    nan, inf, tiny = float("nan"), float("inf"), 2.0**-149
    grad = f32(nan, inf, -inf, -0.0, tiny, -tiny, 0.0)
    state = mxnet.TwoBit(0.5, 7)
    state.residual[3] = -0.0
    assert state.codes(grad) == [0, 3, 2, 0, 0, 0, 0]
    assert bits_of(state.residual)[1:] == bits_of(f32(inf, -inf, -0.0, tiny, -tiny, 0))
    assert np.isnan(state.residual[0])
    assert state.codes(np.zeros(7, np.float32)) == [0, 3, 2, 0, 0, 0, 0]  # the Inf stays

    fresh = mxnet.TwoBit(0.5, 1)
    fresh.step(f32(-0.0))
    assert bits_of(fresh.residual) == [0]  # 0 + -0 is +0

    infinite = mxnet.TwoBit(inf, 3)
    assert infinite.codes(f32(inf, -inf, 3e38)) == [3, 2, 0]
    assert np.isnan(infinite.residual[:2]).all()

    subnormal = mxnet.TwoBit(tiny, 3)
    assert subnormal.codes(f32(tiny, -2 * tiny, 0)) == [3, 2, 0]
    assert bits_of(subnormal.residual) == bits_of(f32(0, -tiny, 0))


def test_mxnet_two_bit_level() -> None:
    state = mxnet.TwoBit(0.5, 3, level=0.25)
    assert state.codes(f32(0.75, -0.75, 0.25)) == [3, 2, 0]
    assert state.residual.tolist() == [0.5, -0.5, 0.25]


def test_mxnet_two_bit_decoder_is_lenient() -> None:
    assert bits_of(mxnet.decode_two_bit(b"\x4b\xff\xff\xff", 4, 2)) == bits_of(f32(0, 0, -2, 2))
    assert bits_of(mxnet.decode_two_bit(b"\xe0\0\0\0", 3, 0)) == bits_of(f32(0, -0.0, 0))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 32, 33, 64, 65])
def test_mxnet_sizes(n: int) -> None:
    ones = np.ones(n, np.float32)
    two = mxnet.TwoBit(0.5, n).step(ones)
    assert len(two) == 4 * -(-n // 16)
    assert bits_of(mxnet.decode_two_bit(two, n, 0.5)) == bits_of(ones / 2)
    one = mxnet.OneBit(0, n).step(ones)
    assert len(one) == 4 * -(-n // 32)
    assert one == np.packbits(np.ones(n, np.uint8)).tobytes().ljust(len(one), b"\0")
    assert bits_of(mxnet.decode_one_bit(one, n)) == bits_of(ones)


def test_mxnet_one_bit_example() -> None:
    state = mxnet.OneBit(0, 5)
    data = state.step(f32(0.5, -0.5, 0, -0.7, 1.2))
    assert data == bytes.fromhex("88000000")
    one = np.float32(1)
    expected = f32(-0.5, 0.5, 1, np.float32(-0.7) + one, np.float32(1.2) - one)
    assert bits_of(state.residual) == bits_of(expected)
    assert np.allclose(state.residual, [-0.5, 0.5, 1, 0.3, 0.2])
    assert mxnet.decode_one_bit(data, 5).tolist() == [1, -1, -1, -1, 1]


def test_mxnet_one_bit_special_values() -> None:
    nan, inf = float("nan"), float("inf")
    state = mxnet.OneBit(0.5, 4)
    assert state.codes(f32(nan, inf, -inf, 0.5)) == [0, 1, 0, 0]
    assert np.isnan(state.residual[0])
    assert state.residual[1:].tolist() == [inf, -inf, 1.5]
    for threshold in (nan, inf):
        assert mxnet.OneBit(threshold, 3).codes(f32(1, inf, -1)) == [0, 0, 0]


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0.5, 0.5),
        (0.0012345678, 0.001235),
        (1 / 3, 0.333333),
        (5e-7, 0.0),  # the float32 is just below
        (np.nextafter(np.float32(5e-7), np.float32(1)), 1e-6),
        (1e-30, 0.0),
        (16777216.0, 16777216.0),
        (float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
        (float("inf"), float("inf")),
    ],
)
def test_mxnet_server_threshold(t: float, expected: float) -> None:
    got = mxnet.server_threshold(t)
    assert isinstance(got, np.float32)
    assert got == np.float32(expected)


# --- TernGrad -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "codes", "hexadecimal"),
    [
        ("terngrad", [], "e4"),  # these five are what the original program writes
        ("terngrad", [1], "92"),
        ("terngrad", [1, 0, -1], "06"),
        ("terngrad", [1, 0, -1, 0], "82d5"),
        ("terngrad", [-1, 0, 1, -1, 0, 1, -1, 0], "4095ca"),
        ("terngrad", [1, 0, -1, 0, 1], "6285"),
        ("chapter", [], ""),
        ("chapter", [1, 0, -1, 0, 1], "2101"),
        ("chapter", [-1] * 4, "aa"),
        ("base3", [], ""),
        ("base3", [1, 0, -1, 0, 1], "64"),  # 1 + 2 * 9 + 81
        ("base3", [-1] * 5, "f2"),
        ("base3", [0, 0, 0, 0, 0, -1, 1], "0005"),
    ],
)
def test_ternary_packs(setting: str, codes: list[int], hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert ternary.pack(codes, setting) == data
    assert ternary.unpack(data, len(codes), setting) == codes


@pytest.mark.parametrize(
    ("setting", "n", "hexadecimal"),
    [
        ("chapter", 1, ""),
        ("chapter", 1, "0000"),
        ("chapter", 1, "03"),
        ("chapter", 1, "05"),  # a pad code
        ("terngrad", 0, "00"),
        ("terngrad", 1, "93"),
        ("terngrad", 1, "52"),  # a pad code
        ("terngrad", 4, "92"),
        ("base3", 5, "f3"),
        ("base3", 4, "51"),  # a pad code
        ("base3", 6, "00"),
    ],
)
def test_ternary_refuses(setting: str, n: int, hexadecimal: str) -> None:
    with pytest.raises(ValueError):
        ternary.unpack(bytes.fromhex(hexadecimal), n, setting)


def test_ternary_scale() -> None:
    assert ternary.scale_of(f32(3, -4), 0) == 4
    assert ternary.scale_of(f32(3, 4), 1) == 0.5  # the standard deviation
    assert ternary.scale_of(f32(3, 4), 2.5) == 1.25
    assert ternary.scale_of(f32(-3, 3), 2.5) == 3
    assert ternary.scale_of(f32(*[0.1] * 7), 2.5) == np.float32(0.1)  # standard deviation of zero
    assert ternary.scale_of(f32(-0.0, 0), 2.5) == ternary.scale_of(f32(), 2.5) == 0
    assert ternary.scale_of(f32(1e-45, 0), 0.1) == np.float32(1e-45)  # the bound underflows
    assert ternary.scale_of(f32(3e38, -3e38), 3e38) == np.float32(3e38)
    with pytest.raises(ValueError, match="NaN"):
        ternary.scale_of(f32(1, float("nan")), 0)


def test_ternary_codes() -> None:
    # The first words of seed 0 over 2^32: 0.399, 0.881, 0.736, 0.606.
    assert ternary.codes(f32(0.3, 0.8, 0.7, 0.6), np.float32(1), 0) == [0, 0, 0, 0]
    assert ternary.codes(f32(0.4, -0.9, -0.75, 0.61), np.float32(1), 0) == [1, -1, -1, 1]
    assert ternary.codes(f32(4, -9, 0, -0.0), np.float32(4), 0) == [1, -1, 0, 0]
    assert ternary.codes(f32(0, -0.0), np.float32(0), 0) == [0, 0]
    data, scale = ternary.encode(f32(1, 0, -1, 0, 1), 0, 0, "chapter")
    assert data == bytes.fromhex("2101") and scale == 1
    assert ternary.decode(data, 5, 0.5, "chapter").tolist() == [0.5, 0, -0.5, 0, 0.5]


# --- min-max ------------------------------------------------------------------------------------


def test_minmax_examples() -> None:
    data, nbits = minmax.encode(f32(-1, 0.2, 1, 0.6), 2)
    assert data == bytes.fromhex("bf800000 3f800000 2e") and nbits == 72
    third = 1 / 3
    assert bits_of(minmax.decode(data, 4, 2)) == bits_of(f32(-1, third, 1, third))
    # The levels of a fused row of Caffe2, to nearest.
    row = f32(0.3, -1.4, -0.6, 0.9, 1)
    assert minmax.codes(row, 2, 0, None) == [2, 0, 1, 3, 3]
    decoded = minmax.decode(minmax.encode(row, 2)[0], 5, 2)
    assert np.allclose(decoded, [0.2, -1.4, -0.6, 1, 1], rtol=1e-6)
    assert minmax.codes(f32(0, 0.5, 1.5, 2.5, 3), 2, 0, None) == [0, 0, 2, 2, 3]  # ties to even


def test_minmax_buckets() -> None:
    x = f32(5, 7, -0.0, 0, 1e-45)
    assert minmax.ranges(x, 2)[:2] == [(5, 7), (0, 0)]
    data, nbits = minmax.encode(x, 1, 2)
    assert nbits == 3 * 64 + 5 and data[-1] == 0b01000000
    assert bits_of(minmax.decode(data, 5, 1, 2)) == bits_of(f32(5, 7, 0, 0, 1e-45))
    assert minmax.encode(x, 8, 5) == minmax.encode(x, 8, 9) == minmax.encode(x, 8)
    assert minmax.encode(f32(), 8) == (b"", 0)
    with pytest.raises(ValueError, match="NaN"):
        minmax.encode(f32(1, float("inf")), 8)


def test_minmax_at_random() -> None:
    # The first words of seed 0 over 2^32: 0.399, 0.881, 0.736, 0.606.
    assert minmax.codes(f32(0.3, 1.8, 2.7, 0.6, 0, 3), 2, 0, 0) == [0, 1, 2, 0, 0, 3]
    assert minmax.codes(f32(0.4, 1.9, 2.75, 0.61, 0, 3), 2, 0, 0) == [1, 2, 3, 1, 0, 3]


@pytest.mark.parametrize(
    "hexadecimal",
    [
        "3f800000 3f000000 00",  # 1 to 0.5
        "7fc00000 3f800000 00",
        "3f800000 7f800000 00",
        "80000000 3f800000 00",  # −0
        "3f800000 3f800000 01",  # padding
        "3f800000 3f800000",
    ],
)
def test_minmax_refuses(hexadecimal: str) -> None:
    with pytest.raises(ValueError):
        minmax.decode(bytes.fromhex(hexadecimal), 1, 2)


# --- universal codes ----------------------------------------------------------------------------

CODES = ["unary", "gamma", "delta", "omega", "rice", "rice:k=3", "golomb", "golomb:b=7"]
CODES += ["golomb:b=8", "golomb:b=10", "expgolomb", "expgolomb:k=2"]


def test_omega_is_the_table_of_the_notes() -> None:
    words = ["0", "10 0", "11 0", "10 100 0", "10 101 0", "10 110 0", "10 111 0", "11 1000 0"]
    words += ["11 1001 0", "11 1010 0", "11 1011 0", "11 1100 0", "11 1101 0", "11 1110 0"]
    words += ["11 1111 0", "10 100 10000 0"]
    assert [universal.omega(n) for n in range(1, 17)] == [w.replace(" ", "") for w in words]


@pytest.mark.parametrize(
    ("n", "omega", "gamma", "delta"),
    [
        *((1, 1, 1, 1), (2, 3, 3, 4), (3, 3, 3, 4), (4, 6, 5, 5), (7, 6, 5, 5), (8, 7, 7, 8)),
        *((15, 7, 7, 8), (16, 11, 9, 9), (31, 11, 9, 9), (32, 12, 11, 10), (64, 13, 13, 11)),
        *((128, 14, 15, 14), (256, 16, 17, 15), (2**15, 23, 31, 24), (2**16, 28, 33, 25)),
        (2**64 - 1, 76, 127, 76),
    ],
)
def test_lengths_of_universal_codes(n: int, omega: int, gamma: int, delta: int) -> None:
    assert len(universal.omega(n)) == omega
    assert len(universal.gamma(n)) == gamma
    assert len(universal.delta(n)) == delta
    assert len(universal.expgolomb(n - 1, 0)) == gamma
    assert universal.golomb(n % 1000, 16) == universal.rice(n % 1000, 4)
    assert universal.golomb(n % 1000, 1) == universal.unary(n % 1000)


@pytest.mark.parametrize("spec", CODES)
def test_universal_codes_are_read_back(spec: str) -> None:
    least = universal.parse(spec)[2]
    values = [*range(least, 200)]
    if spec.partition(":")[0] in ("gamma", "delta", "omega", "expgolomb"):
        values += [2**k + d for k in range(8, 64) for d in (-1, 0, 1)] + [2**64 - 1]
    text = universal.encode(spec, values)
    assert universal.decode(spec, text, len(values)) == (values, len(text))
    words = [universal.encode(spec, [value]) for value in values]
    ordered = sorted(words)  # a prefix of another word would sort directly before it
    assert not any(b.startswith(a) for a, b in itertools.pairwise(ordered))
    for word in words:
        for size in range(0, len(word), 5):
            with pytest.raises(universal.Truncated):
                universal.decode(spec, word[:size], 1)


@pytest.mark.parametrize(
    ("spec", "bits"),
    [
        ("omega", "10 110 1000000 1"),
        ("omega", "10 101 111111" + "1" * 64 + "1"),
        ("gamma", "0" * 64 + "1"),
        ("gamma", "0" * 64),
        ("delta", "0000001 000001"),
        ("delta", "0" * 7),
        ("rice:k=62", "00001"),
        ("rice:k=62", "0000"),
        ("golomb:b=4611686018427387904", "0000"),
        ("expgolomb", "0" * 64 + "1" + "0" * 63 + "1"),
        ("expgolomb:k=2", "0" * 63 + "1"),
    ],
)
def test_universal_codes_refuse(spec: str, bits: str) -> None:
    with pytest.raises(universal.Corrupt):
        universal.decode(spec, bits.replace(" ", ""), 1)


# --- qsgd ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "levels", "s", "dense", "sparse"),
    [
        (5, [2, 0, -3, 0], 4, "6340", "24e0"),
        (2, [1, 1, 1, 1], 2, "4444", "0000"),
        (0, [0, 0, 0, 0], 4, "", ""),
        (1, [0, 0, 0, 0], 4, "00", ""),
        (8, [1, -2, 3, -4, 5], 8, "4e51a960", "0c334150"),
        (2, [0] * 49 + [-127] + [0] * 50, 127, "00" * 12 + "3780" + "00" * 13, "ae4dbf80"),
        (3.5, [-1], 1, "c0", "40"),
    ],
)
def test_qsgd_payloads(norm: float, levels: list[int], s: int, dense: str, sparse: str) -> None:
    norms = [np.float32(norm)]
    head = struct.pack(">f", norm)
    for form, code in (("dense", dense), ("sparse", sparse)):
        message = qsgd.write(qsgd.Setting(s=s, form=form), norms, levels)
        assert message.data == head + bytes.fromhex(code)
        assert qsgd.read(message.setting, message.data, message.nbits, len(levels)) == (
            norms,
            levels,
        )
    assert [universal.unzigzag(universal.zigzag(k)) for k in levels] == levels


def test_qsgd_levels() -> None:
    # The first words of seed 0 over 2^32: 0.399, 0.881, 0.736, 0.606.
    one = [np.float32(1)]
    assert qsgd.levels_of(f32(0.3, -0.8, 0.7, 0.6), one, 1, 0) == [0, 0, 0, 0]
    assert qsgd.levels_of(f32(-0.4, 0.9, 0.75, -0.61), one, 1, 0) == [-1, 1, 1, -1]
    assert qsgd.levels_of(f32(-0.04, 0.29, 0.875, -0.761), one, 10, 0) == [-1, 3, 9, -8]
    assert qsgd.levels_of(f32(2, -3), one, 10, 0) == [10, -10]
    assert qsgd.norms_of(f32(3, 0, -4, 0, -2), 4, "l2") == [5, 2]
    assert qsgd.norms_of(f32(3, 0, -4, 0, -2), 4, "max") == [4, 2]
    assert qsgd.norms_of(f32(), 4, "l2") == []
    for bad in (f32(1, float("nan")), f32(float("-inf")), f32(3e38, 3e38)):
        with pytest.raises(ValueError):
            qsgd.norms_of(bad, 0, "l2")
    tiny = np.float32(2.0**-149)
    assert qsgd.levels_of(f32(tiny, -tiny, 0), [tiny], 2**24, 0) == [2**24, -(2**24), 0]
    assert qsgd.dequantize([2**24, -(2**24), 0], [tiny], 2**24, 0).tolist() == [tiny, -tiny, 0]
    assert qsgd.dequantize([1, -1, 0], one, 3, 0)[1] == -np.float32(1 / 3)


def test_qsgd_chooses() -> None:
    auto = qsgd.Setting(s=4, code="auto")
    zeros = qsgd.pack(auto, [np.float32(0)], [0, 0, 0])
    assert (zeros.setting.code, zeros.setting.form, zeros.nbits) == ("omega", "dense", 32)
    few = qsgd.pack(auto, [np.float32(1)], [0] * 30 + [1])
    assert (few.setting.code, few.setting.form, few.rices) == ("rice", "sparse", (0, 4))
    assert qsgd.best_rice([]) == 0 and qsgd.best_rice([2**20]) == 19
    assert qsgd.best_rice([2, 3]) == 1  # 2 is as good
    assert qsgd.gaps_of([0, 1, -1, 0, 0, 3]) == [2, 1, 3]


@pytest.mark.parametrize(
    ("form", "code", "n", "bits", "error"),
    [
        ("dense", "omega", 1, "10", universal.Corrupt),  # a sign of level 0
        ("dense", "omega", 1, "0101100", universal.Corrupt),  # level 5
        ("dense", "omega", 1, "000", universal.Corrupt),
        ("dense", "omega", 2, "00", universal.Truncated),
        ("dense", "omega", 1, "010", universal.Truncated),
        ("sparse", "omega", 1, "00100" + "000", universal.Corrupt),  # element 2 of 1
        ("sparse", "omega", 3, "00", universal.Truncated),
        ("dense", "rice", 1, "0000000001", universal.Corrupt),  # z = 9
        ("dense", "rice", 2, "1", universal.Truncated),
        ("sparse", "rice", 2, "00101", universal.Corrupt),  # element 3 of 2
        ("sparse", "rice", 2, "01000001", universal.Corrupt),  # level 5
        ("dense", "packed", 1, "1001", universal.Corrupt),
        ("dense", "packed", 2, "1001000", universal.Truncated),
        ("dense", "packed", 1, "00000", universal.Corrupt),
    ],
)
def test_qsgd_refuses(
    form: str, code: str, n: int, bits: str, error: type[universal.Corrupt]
) -> None:
    data = struct.pack(">f", 1) + universal.to_bytes(bits)
    setting = qsgd.Setting(s=4, form=form, code=code)
    rices = {"dense": (0,), "sparse": (0, 0)}[form] if code == "rice" else ()
    with pytest.raises(error):
        qsgd.read(setting, data, 32 + len(bits), n, rices)


def test_qsgd_refuses_norms_and_fill() -> None:
    setting = qsgd.Setting(s=4, form="sparse", bucket=1)
    good = struct.pack(">ff", 1, 0)
    assert qsgd.read(setting, good + b"\0", 67, 2) == ([1, 0], [1, 0])
    for norm in ("80000000", "7f800000", "ffc00000", "bf800000"):
        with pytest.raises(universal.Corrupt):
            qsgd.read(setting, good[:4] + bytes.fromhex(norm), 64, 2)
    for data, nbits, error in (
        (good[:7], 56, universal.Truncated),
        (good + b"\x10", 67, universal.Corrupt),  # fill
        (good + b"\x80", 69, universal.Corrupt),  # element 2 is in a zero-norm bucket
    ):
        with pytest.raises(error):
            qsgd.read(setting, data, nbits, 2)


def test_qsgd_seek_tables() -> None:
    setting = qsgd.Setting(s=3, form="sparse")
    message = qsgd.write(setting, [np.float32(3)], [1, 0, 0, -2, 0, 0, 2, 0, 0])
    table = qsgd.seek_table(message, 1)
    assert table == (1, [10, 7], [4, 3], None)
    assert qsgd.section(table) == bytes.fromhex("0101 02 0a04 0703")
    dense = qsgd.write(setting._replace(form="dense", bucket=3), f32(3, 0, 5), [1, 0, 0] * 3)
    table = qsgd.seek_table(dense, 1)
    assert table == (1, [6, 2, 0, 6, 2], None, None)
    assert qsgd.section(table) == bytes.fromhex("0101 05 06 02 00 06 02")
    assert qsgd.section(qsgd.Table(0, [256], None)) == bytes.fromhex("0002 01 0001")
    many = qsgd.section(qsgd.Table(0, [3] * 4097, [2] * 4097))
    assert (
        many[:2] + many[4:]
        == b"\0\1" + b"\3\2" * 4096 + struct.pack("<QQ", 3 * 4096, 2 * 4096) + b"\3\2"
    )


# --- sign ---------------------------------------------------------------------------------------


def test_sign_examples() -> None:
    x = f32(1, -2, 0, -0.0, 3)
    assert sign.encode(x, "l1") == (b"\x40", np.float32(1.2))
    assert sign.encode(x, "none") == (b"\x40", np.float32(1))
    assert sign.encode(f32(3, -4, 0, 0), "l2") == (b"\x40", np.float32(2.5))
    assert sign.decode(b"\x40", 5, 1.5).tolist() == [1.5, -1.5, 1.5, 1.5, 1.5]
    assert bits_of(sign.decode(b"\x40", 2, 0)) == [0, 1 << 31]
    assert sign.encode(f32(), "l1") == (b"", np.float32(0))
    with pytest.raises(ValueError, match="NaN"):
        sign.encode(f32(float("nan")), "none")
    for data in (b"\x41", b"", b"\x40\0"):
        with pytest.raises(ValueError):
            sign.decode(data, 5, 1)


def test_sign_is_byteps_onebit_with_bytes_in_order() -> None:
    x = f32(1, -2, 3, -4, 0, -0.0, 5, -6, 0.5, *[-1] * 24)
    data, scale = sign.encode(x, "l1")
    theirs = bytes.fromhex("FFFF7F51 00000080")  # words, little-endian
    assert data == theirs[3::-1] + theirs[:3:-1][:1]  # 33 bits: four bytes and one
    assert struct.pack("<f", scale) == bytes.fromhex("1F7CB03F")


# --- Philox -------------------------------------------------------------------------------------


ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        (0, (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, (ONES, ONES, ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(key: int, counter: tuple[int, int, int, int], expected: str) -> None:
    assert " ".join(f"{w:08x}" for w in philox.block(key, counter)) == expected


def test_philox_words() -> None:
    assert [philox.word(0, i) for i in range(4)] == list(philox.block(0, (0, 0, 0, 0)))
    assert philox.word(7, 4 * 5 + 2) == philox.block(7, (5, 0, 0, 0))[2]
    far = (3 << 34) + (9 << 2) + 3
    assert philox.word(7, far, (2 << 32) + 1) == philox.block(7, (9, 3, 1, 2))[3]
    assert philox.word(2**32, 0) != philox.word(0, 0)
    for count in (0, 1, 4, 7):
        assert philox.words(7, count, 1) == [philox.word(7, i, 1) for i in range(count)]


# --- sums ---------------------------------------------------------------------------------------


def test_sums_small() -> None:
    assert sums.tree_sum(np.zeros(0)) == 0.0
    assert bits_of(f32(sums.tree_sum(np.array([-0.0])))) == [0]
    assert np.sqrt(sums.sum_squares(f32(3, 0, -4, 0))) == 5.0  # the norm of the qsgd example
    assert sums.sum_abs(f32(3, 0, -4, 0)) == 7.0
    assert sums.sum_values(f32(3, 0, -4, 0)) == -1.0
    assert np.isnan(sums.sum_squares(f32(1, float("nan"))))
    assert sums.sum_abs(f32(1, float("-inf"))) == np.inf


@pytest.mark.parametrize("n", [1, 255, 256, 257, 4095, 4096, 4097, 8192, 10000])
def test_sums_of_integers_are_exact(n: int) -> None:
    x = np.arange(n, dtype=np.float32) - 5
    assert sums.sum_abs(x) == sum(abs(i - 5) for i in range(n))
    assert sums.sum_squares(x) == sum((i - 5) ** 2 for i in range(n))


def test_sums_order_within_a_tile() -> None:
    big = 2.0**53  # big + 1 == big, (1 + 1) + big == big + 2
    x = np.zeros(4096)
    x[0], x[256], x[512] = big, 1, 1  # one lane, in order: each 1 is lost
    assert sums.tree_sum(x) == big
    x[0], x[256], x[512] = 1, 1, big  # the ones meet first
    assert sums.tree_sum(x) == big + 2
    x[:] = 0
    x[0], x[64], x[192] = big, 1, 1  # lanes 64 and 192 meet before lane 0 comes
    assert sums.tree_sum(x) == big + 2
    x[:] = 0
    x[0], x[128], x[64] = big, 1, 1  # lane 128 joins lane 0, then lane 64 does
    assert sums.tree_sum(x) == big


def test_sums_order_of_tiles() -> None:
    big = 2.0**53
    x = np.zeros(3 * 4096)
    x[0], x[4096], x[8192] = big, 1, 1  # partials are lanes 0, 1, 2: 0 + 2, then + 1
    assert sums.tree_sum(x) == big
    x[0], x[4096], x[8192] = 1, big, 1  # 0 + 2 first
    assert sums.tree_sum(x) == big + 2


def test_sums_of_a_second_tile() -> None:
    x = np.zeros(4097)
    x[0], x[256], x[4096] = 2.0**53, 1, 1  # the 1 is lost in lane 0, the other between the tiles
    assert sums.tree_sum(x) == 2.0**53
    x[0], x[256], x[4096] = 3, 2.0**53 - 1, 1  # 2^53 + 2 in lane 0; + 1 is a tie, to even
    assert sums.tree_sum(x) == 2.0**53 + 4


def test_sums_recurse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three levels, with small tiles."""
    monkeypatch.setattr(sums, "TILE", 256)
    big = 2.0**53
    x = np.zeros(256 * 256 + 257)
    x[0], x[256], x[65536] = big, 1, 1  # one 1 is lost at the second level, one at the third
    assert sums.tree_sum(x) == big
    x[256] = 0
    x[65792] = 1  # the ones meet at the second level
    assert sums.tree_sum(x) == big + 2


# --- halves -------------------------------------------------------------------------------------


NUMPY_TYPE = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ALL = np.arange(2**16, dtype=np.uint32).astype(np.uint16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_every_pattern(dtype: str) -> None:
    wide = halves.widen(ALL, dtype)
    expected = ALL.view(NUMPY_TYPE[dtype]).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(wide), ~number)
    assert np.array_equal(wide[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.array_equal(halves.narrow(wide, dtype), ALL)  # NaN patterns included


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_rounding(dtype: str) -> None:
    """Test every midpoint of two neighbors, the floats next to it, and random patterns."""
    wide = halves.widen(ALL, dtype).view(np.uint32)
    finite = wide[np.isfinite(wide.view(np.float32))].astype(np.int64)
    middle = {"float16": 1 << 12, "bfloat16": 1 << 15}[dtype]
    near = [finite + d for d in (-middle - 1, -middle, -1, 1, middle - 1, middle, middle + 1)]
    random = np.random.default_rng(0).integers(0, 2**32, 50_000)
    small = np.random.default_rng(1).integers(0, 0x3A000000, 50_000)  # float16 subnormals
    patterns = np.concatenate([*near, random, small]) % 2**32
    x = np.unique(patterns.astype(np.uint32)).view(np.float32)
    x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        expected = x.astype(NUMPY_TYPE[dtype]).view(np.uint16)
    assert np.array_equal(halves.narrow(x, dtype), expected)


def test_halves_special_values() -> None:
    for bits, half, brain in (
        (0x80000000, 0x8000, 0x8000),  # -0
        (0x00000001, 0x0000, 0x0000),
        (0x80000001, 0x8000, 0x8000),
        (0x33000000, 0x0000, 0x3300),  # 2^-25, half of the smallest float16: a tie, to 0
        (0x33000001, 0x0001, 0x3300),
        (0x33C00000, 0x0002, 0x33C0),  # 1.5 of the smallest: a tie, to 2
        (0x477FEFFF, 0x7BFF, 0x4780),  # the last below 65520
        (0x477FF000, 0x7C00, 0x4780),  # 65520: a tie, to infinity
        (0x7F7FFFFF, 0x7C00, 0x7F80),
        (0xFF800000, 0xFC00, 0xFF80),
        (0x7F800001, 0x7E00, 0x7FC0),  # a NaN whose top bits are zero gets the quiet bit
        (0xFF800001, 0xFE00, 0xFFC0),
        (0xFF812345, 0xFC09, 0xFF81),  # other NaN keep their top bits and stay signaling
        (0x7FFFFFFF, 0x7FFF, 0x7FFF),
    ):
        assert halves.float32_to_float16(bits) == half
        assert halves.float32_to_bfloat16(bits) == brain
