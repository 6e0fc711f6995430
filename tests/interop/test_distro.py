"""DeMo's and Psyche's messages: written by hand, those of a simple model, and damaged ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft

import gcodec
from gcodec import (
    Corrupt,
    FormatError,
    LimitExceeded,
    Limits,
    ParameterError,
    Truncated,
    Unsupported,
)
from gcodec.interop import demo, psyche

F = np.float32
BF16 = ml_dtypes.bfloat16
KINDS = {"float16": 5, "float32": 6, "float64": 7, "bfloat16": 15}
SHAPES = [(8,), (130,), (67,), (1,), (6, 10), (128, 96), (1, 70), (3, 4, 6), (2, 1, 3, 8, 130)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


# --- a simple model of the messages, with a writer of postcard's types -------------------------


def side(size: int, most: int) -> int:
    return max(d for d in range(1, min(size, most) + 1) if size % d == 0)


def transformed(x: np.ndarray, chunk: int) -> np.ndarray:
    """Return the coefficients of tiles in float64, in the shape that messages state."""
    x = x.astype(np.float64)
    if x.ndim == 1:
        return fft.dct(x.reshape(-1, side(x.size, chunk)), norm="ortho")
    *outer, m, n = x.shape
    h, w = side(m, chunk), side(n, chunk)
    tiles = np.empty((*outer, m // h, n // w, h, w))
    for y in range(m // h):
        for z in range(n // w):
            tile = x[..., y * h : (y + 1) * h, z * w : (z + 1) * w]
            tiles[..., y, z, :, :] = fft.dctn(tile, axes=(-2, -1), norm="ortho")
    return tiles


def inverse(tiles: np.ndarray) -> np.ndarray:
    if tiles.ndim == 2:
        return fft.idct(tiles, norm="ortho").reshape(-1)
    blocks = fft.idctn(tiles, axes=(-2, -1), norm="ortho")
    return np.block(
        [
            [blocks[..., y, z, :, :] for z in range(blocks.shape[-3])]
            for y in range(blocks.shape[-4])
        ]
    )


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number // 128)


def tensor(dims: Any, kind: int, form: int, data: bytes, *, requires_grad: int = 0) -> bytes:
    written = varint(len(dims)) + b"".join(varint(2 * d if d >= 0 else -2 * d - 1) for d in dims)
    return written + bytes([kind, requires_grad, form]) + varint(len(data)) + data


def message_of(positions: np.ndarray, values: np.ndarray, shape: Any, *, sign: bool) -> bytes:
    """Return a message, from positions and values whose last dimension is k."""
    totalk = math.prod(shape[-1:] if len(shape) == 2 else shape[-2:])
    width = 1 if totalk <= 256 else 2 if totalk <= 65536 else 4
    *outer, k = positions.shape
    data = b"".join(int(p).to_bytes(width, "little") for p in positions.reshape(-1))
    parts = tensor((*outer, k * width), 0, 0, data)
    if sign:
        bits = [int(math.copysign(1, v) < 0) for v in values.reshape(-1).tolist()]
        packed = [
            sum(b << i for i, b in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)
        ]
        parts += tensor((*outer, k), 11, 1, bytes(packed))
    else:
        parts += tensor((*outer, k), KINDS[values.dtype.name], 0, values.tobytes())
    return parts + varint(len(shape)) + b"".join(map(varint, shape)) + varint(totalk)


def rebuilt(positions: np.ndarray, values: np.ndarray, shape: Any) -> np.ndarray:
    """Return the tensor of positions and values whose last dimension is k."""
    *outer, _ = positions.shape
    tiles = np.zeros((*outer, math.prod(shape[len(outer) :])))
    np.put_along_axis(tiles, positions.astype(np.int64), values.astype(np.float64), axis=-1)
    return inverse(tiles.reshape(shape))


# --- Psyche --------------------------------------------------------------------------------------


def test_bytes_written_by_hand() -> None:
    """A vector of 300 elements in tiles of 60, and a matrix of one tile of 300 elements."""
    x = np.zeros(300, F)
    x[::60] = 1
    message = psyche.encode(x, 1, value="sign")
    # dims [5, 1] in zigzag order; uint8, no gradient, whole elements; 5 bytes
    index = "02 0a 02 00 00 00 05 01 01 01 01 01"
    # dims [5, 1]; bool, no gradient, bits; a byte
    value = "02 0a 02 0b 00 01 01 00"
    # xshape [5, 60], totalk 60
    assert message.hex(" ") == f"{index} {value} 02 05 3c 3c"
    y = np.zeros((15, 20), F)
    y[:] = -2
    message = psyche.encode(y.astype(ml_dtypes.bfloat16), 1)
    index = "03 02 02 04 00 00 00 02 00 00"  # dims [1, 1, 2], two bytes
    value = "03 02 02 02 0f 00 00 02 0b c2"  # dims [1, 1, 1], bfloat16, -34.75 = 0xc20b
    assert message.hex(" ") == f"{index} {value} 04 01 01 0f 14 ac 02"


def test_coefficients_of_the_originals_tests() -> None:
    """Psyche's own tests state these coefficients of a ramp, and these sides of tiles."""
    expected = [9.8995, -6.4423, 0, -0.67345, 0, -0.20090, 0, -0.050702]
    sent = demo.encode(np.arange(8, dtype=F), 8)
    np.testing.assert_allclose(sent["sparse_val"][0], expected, rtol=1e-4, atol=1e-4)
    for size, chunk, width in [
        (12, 3, 3),
        (12, 5, 4),
        (100, 7, 5),
        (100, 26, 25),
        (100, 101, 100),
    ]:
        assert demo.encode(np.ones(size, F), 1, chunk)["xshape"] == (size // width, width)


@pytest.mark.parametrize("dtype", [F, np.float16, np.float64, BF16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_messages_have_the_largest_coefficients(shape: tuple[int, ...], dtype: Any) -> None:
    x = normal(*shape).astype(dtype)
    tiles = transformed(x, 64)
    sent = demo.encode(x, 5)
    assert sent["xshape"] == tiles.shape and sent["sparse_val"].dtype == dtype
    positions, values = sent["sparse_idx"], sent["sparse_val"]
    flat = tiles.reshape(*positions.shape[:-1], -1)
    assert flat.shape[-1] == sent["totalk"]
    k = min(5, flat.shape[-1])
    assert positions.shape[-1] == k and (np.diff(positions) > 0).all()
    expected = np.sort(np.argsort(-np.abs(flat), axis=-1, kind="stable")[..., :k], axis=-1)
    np.testing.assert_array_equal(positions, expected)
    chosen = np.take_along_axis(flat, expected, axis=-1)
    tolerance = max(float(ml_dtypes.finfo(dtype).eps), 2e-6) * np.abs(flat).max()
    np.testing.assert_allclose(values.astype(float), chosen, rtol=0, atol=tolerance)
    # The same coefficients, in Psyche's bytes.
    assert psyche.encode(x, 5) == message_of(positions, values, tiles.shape, sign=False)
    signs = message_of(positions, values, tiles.shape, sign=True)
    assert psyche.encode(x, 5, value="sign") == signs
    full = rebuilt(positions, values, tiles.shape)
    for decoded in (demo.decode(sent), psyche.decode(psyche.encode(x, 5))):
        assert decoded.shape == shape and decoded.dtype == F
        np.testing.assert_allclose(decoded, full, rtol=0, atol=2e-6 * np.abs(flat).max())
    ones = rebuilt(positions, np.copysign(1, values.astype(float)), tiles.shape)
    np.testing.assert_allclose(psyche.decode(signs), ones, rtol=0, atol=1e-5)


@given(st.data())
def test_all_coefficients_restore_the_tensor(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    chunk = data.draw(st.integers(1, 14))
    x = normal(*shape, seed=data.draw(st.integers(0, 99)))
    sent = demo.encode(x, 144, chunk)
    tiles = transformed(x, chunk)
    assert sent["xshape"] == tiles.shape
    np.testing.assert_allclose(sent["sparse_val"].reshape(tiles.shape), tiles, atol=1e-5)
    for decoded in (demo.decode(sent), psyche.decode(psyche.encode(x, 144, chunk))):
        np.testing.assert_allclose(decoded, x, atol=1e-5)


@pytest.mark.parametrize("sides", [(16, 16), (1, 257), (256, 256), (256, 257)])
def test_width_of_positions(sides: tuple[int, int]) -> None:
    x = normal(2 * sides[0], sides[1])
    message = psyche.encode(x, 3, 300)
    *_, height, width = shape = transformed(x, 300).shape
    sent = demo.encode(x, 3, 300)
    assert message == message_of(sent["sparse_idx"], sent["sparse_val"], shape, sign=False)
    np.testing.assert_array_equal(psyche.decode(message), demo.decode(sent))
    assert height * width == sent["totalk"]


def test_positions_may_have_any_order() -> None:
    sent = demo.encode(normal(12, 18), 7, 6)
    positions, values = sent["sparse_idx"][..., ::-1], sent["sparse_val"][..., ::-1]
    reversed_order = {**sent, "sparse_idx": positions, "sparse_val": values}
    expected = demo.decode(sent)
    np.testing.assert_array_equal(demo.decode(reversed_order), expected)
    message = message_of(positions, values, sent["xshape"], sign=False)
    np.testing.assert_array_equal(psyche.decode(message), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtype_of_the_result(dtype: str) -> None:
    sent, message = demo.encode(normal(8, 8), 9), psyche.encode(normal(8, 8), 9)
    for peer, data in ((demo, sent), (psyche, message)):
        decoded = peer.decode(data, dtype=dtype)
        assert decoded.dtype.name == dtype
        np.testing.assert_array_equal(decoded, peer.decode(data).astype(decoded.dtype))
        with pytest.raises(ParameterError, match="dtype"):
            peer.decode(data, dtype="int8")


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(8, 12)).to(torch.bfloat16)
    sent = demo.encode(x, 9)
    parts = {
        "sparse_idx": torch.from_numpy(sent["sparse_idx"]),
        "sparse_val": torch.from_numpy(sent["sparse_val"].view(np.int16)).view(torch.bfloat16),
        "xshape": x.reshape(1, 1, 8, 12).shape,
        "totalk": 96,
    }
    np.testing.assert_array_equal(demo.decode(parts), demo.decode(sent))


def test_split_returns_the_message_of_each_parameter() -> None:
    messages = [psyche.encode(normal(*shape), 3, value="sign") for shape in SHAPES]
    assert psyche.split(b"".join(messages)) == messages
    assert psyche.split(b"") == []
    with pytest.raises(Truncated):
        psyche.split(b"".join(messages)[:-1])


# --- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 9, 4096])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) < 3], ids=str)
def test_signs_and_frames_convert_to_each_other(shape: tuple[int, ...], k: int) -> None:
    message = psyche.encode(normal(*shape), k, value="sign")
    frame = psyche.to_frame(message, name="w")
    data = frame.to_bytes()
    assert frame.name == "w" and frame.codec.layout == "tiles"
    np.testing.assert_array_equal(gcodec.decode(data), psyche.decode(message))
    assert psyche.from_frame(frame) == psyche.from_frame(data) == message


@pytest.mark.parametrize("values", ["sign7", "affine8"])
@pytest.mark.parametrize(
    ("shape", "chunk"), [((96,), "8x4"), ((96,), "96"), ((64, 96), "16x32"), ((5, 7), "64x64")]
)
def test_levels_of_frames_are_values_of_messages(
    shape: tuple[int, ...], chunk: str, values: str
) -> None:
    x = normal(*shape)
    x.reshape(-1)[: x.size // 2] = 0  # chunks without coefficients
    spec = f"dct8:chunk={chunk},k=7,layout=tiles,values={values}"
    data = gcodec.encode(x, spec)
    message = psyche.from_frame(data, value="full")
    np.testing.assert_array_equal(psyche.decode(message), gcodec.decode(data))
    if values == "sign7":
        again = psyche.to_frame(message).to_bytes()
        np.testing.assert_array_equal(gcodec.decode(again), gcodec.decode(data))
        assert psyche.from_frame(again, value="full") == message
    with pytest.raises(ParameterError, match="full"):
        psyche.from_frame(data)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("k", [1, 2, 9, 4096])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) < 3], ids=str)
def test_values_and_frames_convert_to_each_other(
    shape: tuple[int, ...], k: int, dtype: str
) -> None:
    """Positions and coefficients return bit for bit, zeros of both signs among them."""
    sent = demo.encode(normal(*shape).astype(dtype), k)
    values = sent["sparse_val"].astype(F)
    values.reshape(-1)[::3] = 0
    values.reshape(-1)[::5] = -0.0
    sent["sparse_val"] = values.astype(dtype)
    order = np.random.default_rng(k).permutation(values.shape[-1])
    shuffled = {name: sent[name][..., order] for name in ("sparse_idx", "sparse_val")}
    frame = demo.to_frame({**sent, **shuffled}, name="w")
    data = frame.to_bytes()
    assert frame.name == "w" and frame.codec.layout == "tiles"
    assert gcodec.decode(data).tobytes() == demo.decode(sent, dtype=dtype).tobytes()
    for again in (demo.from_frame(frame), demo.from_frame(data)):
        assert again.keys() == sent.keys()
        for name, part in sent.items():
            assert np.asarray(again[name]).tobytes() == np.asarray(part).tobytes()
            assert np.asarray(again[name]).dtype == np.asarray(part).dtype
            assert np.shape(again[name]) == np.shape(part)
    message = message_of(sent["sparse_idx"], sent["sparse_val"], sent["xshape"], sign=False)
    assert psyche.to_frame(message).to_bytes() == demo.to_frame(sent).to_bytes()
    assert psyche.from_frame(data, value="full") == message


def test_frames_are_shorter_than_messages_of_demo() -> None:
    x = normal(256, 192).cumsum(axis=1)
    sent = demo.encode(x)
    frame = demo.to_frame(sent)
    assert frame.codec.values == "float32"  # type: ignore[attr-defined]
    assert 8 * len(frame.to_bytes()) < (32 + 12) * sent["sparse_val"].size
    # The codec itself sends the same, where its tiles are those of the message.
    assert gcodec.encode(x, "dct8:layout=tiles,values=float32") == frame.to_bytes()


def test_levels_keep_the_dtype_of_a_message() -> None:
    """A single bfloat16 for a tile is a level of 8 bits, too."""
    sent = demo.encode(normal(128, 96).astype(BF16), 1)
    frame = demo.to_frame(sent)
    assert (frame.dtype, frame.codec.values) == ("bfloat16", "sign7")  # type: ignore[attr-defined]
    assert demo.from_frame(frame)["sparse_val"].tobytes() == sent["sparse_val"].tobytes()


def test_coefficients_near_the_largest_float32_have_frames() -> None:
    """Their scale as 16 bits would exceed float32; float32 values have none."""
    part = {"sparse_idx": np.zeros((1, 1), np.int64), "xshape": (1, 4), "totalk": 4}
    message = {**part, "sparse_val": np.full((1, 1), np.finfo(F).max)}
    frame = demo.to_frame(message)
    assert (gcodec.decode(frame.to_bytes()) == demo.decode(message)).all()
    assert demo.from_frame(frame)["sparse_val"] == message["sparse_val"]


def test_what_no_frame_stores_is_refused() -> None:
    sent = demo.encode(normal(8, 8), 5)
    sent["sparse_val"] = sent["sparse_val"].astype(float) / 3
    with pytest.raises(ParameterError, match="float64"):
        demo.to_frame(sent)
    message = message_of(sent["sparse_idx"], sent["sparse_val"], sent["xshape"], sign=False)
    with pytest.raises(ParameterError, match="float64"):
        psyche.to_frame(message)
    for peer in (demo, psyche):
        with pytest.raises(ParameterError, match=r"^shape=.*a vector or a matrix"):
            peer.to_frame(peer.encode(normal(2, 8, 8), 5))
        with pytest.raises(ParameterError, match="chunk"):
            peer.to_frame(peer.encode(normal(512, 512), 5, 512))
    with pytest.raises(ParameterError, match=r"frame\.dtype"):
        demo.from_frame(gcodec.encode(normal(8, 8).astype(BF16), "dct8:layout=tiles,k=5"))
    with pytest.raises(ParameterError, match=r"frame\.codec"):
        demo.from_frame(gcodec.encode(normal(8, 8), "topk"))
    damaged = bytearray(gcodec.encode(normal(8, 8), "dct8:layout=tiles"))
    damaged[-7] ^= 1
    with pytest.raises(FormatError):
        demo.from_frame(damaged)
    with pytest.raises(ParameterError, match="a vector or a matrix"):
        psyche.to_frame(psyche.encode(normal(2, 8, 8), 5, value="sign"))
    with pytest.raises(ParameterError, match="chunk"):
        psyche.to_frame(psyche.encode(normal(512, 512), 5, 512, value="sign"))


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 8), "dct8"),
        ((8, 8), "topk"),
        ((8, 8), "dct8:chunk=16,layout=tiles"),
        ((8, 8), "dct8:chunk=3x4,layout=tiles"),
        ((100,), "dct8:chunk=64,layout=tiles"),
        ((2, 8, 8), "dct8:chunk=4x4,layout=tiles"),
        ((), "dct8:chunk=4x4,layout=tiles"),
        ((0,), "dct8:chunk=4x4,layout=tiles"),
    ],
)
def test_frames_with_other_tiles_are_refused(shape: tuple[int, ...], spec: str) -> None:
    with pytest.raises(ParameterError, match=r"frame"):
        psyche.from_frame(gcodec.encode(normal(*shape), spec), value="full")


# --- wrong arguments and damage ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "arguments", "match"),
    [
        (np.ones((), F), {}, "x.shape"),
        (np.ones((0, 4), F), {}, "x.shape"),
        (np.array([1, np.nan], F), {}, "NaN"),
        (np.full(64, 3e38, F), {}, "exceed float32"),
        (np.full(64, 6e4, np.float16), {}, "exceed float16"),
        (np.ones(4, F), {"k": 0}, "k=0"),
        (np.ones(4, F), {"k": True}, "k=True"),
        (np.ones(4, F), {"chunk": 0}, "chunk=0"),
        (np.ones(4, F), {"chunk": 4097}, "chunk=4097"),
    ],
)
def test_wrong_arguments_are_refused(x: np.ndarray, arguments: Any, match: str) -> None:
    for peer in (demo, psyche):
        with pytest.raises(ParameterError, match=match):
            peer.encode(x, **arguments)


def test_arguments_of_psyche_alone() -> None:
    with pytest.raises(ParameterError, match="value="):
        psyche.encode(np.ones(4, F), value="half")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="value="):
        psyche.from_frame(b"", value="half")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="xshape"):
        psyche.encode(np.ones(65537, F), 1)  # a prime number of tiles of one element
    with pytest.raises(TypeError, match="bytes-like"):
        psyche.decode("text")  # type: ignore[arg-type]


INDEX = tensor((1, 1, 2), 0, 0, b"\x00\x03")
VALUE = tensor((1, 1, 2), 6, 0, np.array([1, 2], "<f4").tobytes())
ALL = tensor((1, 1, 4), 0, 0, bytes(range(4)))
SIGNS = tensor((1, 1, 2), 11, 1, b"\x01")
SHAPE = b"\x04\x01\x01\x02\x02"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", Truncated),
        (INDEX + VALUE + SHAPE, Truncated),
        (INDEX + VALUE + SHAPE + b"\x05", Corrupt),
        (INDEX + VALUE + SHAPE + b"\x04\x00", Corrupt),
        (INDEX + VALUE + b"\x02\x02\x02\x02", Corrupt),
        (INDEX + VALUE + b"\x03\x01\x02\x02\x04", Corrupt),
        (INDEX + VALUE + b"\x00\x01", Corrupt),
        (INDEX + VALUE + b"\x04\x00\x01\x02\x02\x04", Corrupt),
        (INDEX + VALUE + b"\x04\x01\x01\x01" + varint(4097) + varint(4097), Unsupported),
        (INDEX + VALUE + b"\x04" + 4 * varint(65535) + b"\x04", LimitExceeded),
        (INDEX + VALUE + b"\x04" + varint(65536) + b"\x01\x02\x02\x04", Corrupt),
        (INDEX + VALUE + SHAPE + b"\x84\x80\x80\x80\x10", Corrupt),
        (INDEX + VALUE + SHAPE + b"\x84\x80\x80\x80\x80\x00", Corrupt),
        (tensor((1, 1, 2), 0, 0, b"\x03\x03") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 1, 2), 0, 0, b"\x00\x04") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 1, 2), 0, 0, b"\x00") + VALUE + SHAPE + b"\x04", Truncated),
        (tensor((1, 1, 2), 0, 0, b"\x00\x01\x02") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 2), 0, 0, b"\x00\x03") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 1, 2), 1, 0, b"\x00\x03") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 1, 2), 0, 1, b"\x00\x03") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 1, 2), 0, 2, b"\x00\x03") + VALUE + SHAPE + b"\x04", Corrupt),
        (tensor((1, 1, 2), 0, 0, b"\x00\x03", requires_grad=2) + VALUE + SHAPE, Corrupt),
        (tensor((1, 1, 0), 0, 0, b"") + tensor((1, 1, 0), 6, 0, b"") + SHAPE + b"\x04", Corrupt),
        (INDEX + tensor((), 6, 0, b"") + SHAPE + b"\x04", Corrupt),
        (INDEX + tensor((1, 1, -2), 6, 0, bytes(8)) + SHAPE + b"\x04", Corrupt),
        (INDEX + tensor((1, 1, 2), 6, 0, bytes(7)) + SHAPE + b"\x04", Truncated),
        (INDEX + tensor((1, 1, 2), 6, 0, 8 * b"\xff") + SHAPE + b"\x04", Corrupt),
        (INDEX + tensor((1, 1, 2), 7, 0, 16 * b"\x7f") + SHAPE + b"\x04", Corrupt),
        (ALL + tensor((1, 1, 4), 6, 0, 16 * b"\x7f") + SHAPE + b"\x04", Corrupt),
        (INDEX + tensor((1, 1, 2), 1, 0, bytes(2)) + SHAPE + b"\x04", Unsupported),
        (INDEX + tensor((1, 1, 2), 11, 0, bytes(2)) + SHAPE + b"\x04", Unsupported),
        (INDEX + tensor((1, 1, 2), 11, 1, b"\x05") + SHAPE + b"\x04", Corrupt),
        (INDEX + tensor((1, 1, 2), 11, 1, b"") + SHAPE + b"\x04", Truncated),
        (b"\xff\xff\xff\xff\x0f", Corrupt),
        (b"\x22" + 30 * b"\x02", Truncated),
        (b"\x23" + 50 * b"\x02", Corrupt),
        (INDEX[:7] + b"\xff\xff\xff\xff\x0f", Truncated),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", Corrupt),
    ],
)
def test_damaged_messages_are_refused(message: bytes, error: type[FormatError]) -> None:
    assert psyche.decode(INDEX + VALUE + SHAPE + b"\x04").shape == (2, 2)
    np.testing.assert_allclose(
        psyche.decode(INDEX + SIGNS + SHAPE + b"\x04"), [[0, -1], [-1, 0]], atol=1e-6
    )
    with pytest.raises(error):
        psyche.decode(message)


def test_numbers_may_have_leading_zeros() -> None:
    """postcard accepts them, but never writes them."""
    longer = b"\x84\x00\x81\x80\x00\x01\x02\x02\x84\x80\x80\x80\x00"
    message = INDEX + VALUE + SHAPE + b"\x04"
    np.testing.assert_array_equal(psyche.decode(INDEX + VALUE + longer), psyche.decode(message))


@given(st.data())
def test_changed_bytes_are_an_error_or_a_tensor(data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(["full", "sign"]))
    message = bytearray(psyche.encode(normal(4, 6), 3, value=value))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(len(message) - 2, len(message))) :]
    try:
        decoded = psyche.decode(message, limits=Limits(max_elements=1000))
    except FormatError:
        return
    assert decoded.size <= 1000 and np.isfinite(decoded).all()


def changed(**parts: Any) -> Callable[[dict[str, Any]], None]:
    def change(message: dict[str, Any]) -> None:
        for name, part in parts.items():
            if part is None:
                del message[name]
            else:
                message[name] = part(message[name]) if callable(part) else part

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (changed(sparse_idx=None), Truncated),
        (changed(sparse_val=None), Truncated),
        (changed(xshape=None), Truncated),
        (changed(totalk=None), Truncated),
        (changed(sparse_idx=lambda a: a.astype(np.int32)), Corrupt),
        (changed(sparse_idx=lambda a: a + 30), Corrupt),
        (changed(sparse_idx=lambda a: a - 30), Corrupt),
        (changed(sparse_idx=lambda a: a + 2**32), Corrupt),
        (changed(sparse_idx=lambda a: np.zeros_like(a)), Corrupt),
        (changed(sparse_idx=lambda a: a[..., 1:]), Corrupt),
        (changed(sparse_idx=np.int64(3)), Corrupt),
        (changed(sparse_idx=lambda a: a[..., :0], sparse_val=lambda a: a[..., :0]), Corrupt),
        (changed(sparse_val=lambda a: a * F(np.nan)), Corrupt),
        (changed(sparse_val=lambda a: a.astype(float) * 1e300), Corrupt),
        (changed(sparse_val=lambda a: a[0]), Corrupt),
        (changed(sparse_val=lambda a: a.astype(int)), Corrupt),
        (changed(xshape=(1, 1, 6, 4)), None),
        (changed(xshape=(1, 1, 4, 5)), Corrupt),
        (changed(xshape=(1, 4, 6)), Corrupt),
        (changed(xshape=()), Corrupt),
        (changed(xshape=(1, 1, -4, -6)), Corrupt),
        (changed(xshape=24), Corrupt),
        (changed(xshape=(1.0, 24.0)), Corrupt),
        (changed(xshape=(1, 1, 1, 5000)), Unsupported),
        (changed(xshape=(2**31, 2**31)), LimitExceeded),
        (changed(totalk=23), Corrupt),
        (changed(totalk=[24]), Corrupt),
        (changed(totalk=24.0), Corrupt),
        (changed(totalk=10**5000), Corrupt),
    ],
)
def test_damaged_parts_are_refused(
    change: Callable[[dict[str, Any]], None], error: type[Exception] | None
) -> None:
    message = demo.encode(normal(4, 6), 3)
    assert demo.decode(message).shape == (4, 6)
    change(message)
    if error is None:
        assert demo.decode(message).shape == (6, 4)
        return
    with np.errstate(invalid="ignore"), pytest.raises(error):
        demo.decode(message)


@pytest.mark.parametrize(
    ("name", "part", "allowed"),
    [
        ("sparse_val", np.zeros((1, 1, 3), int), "takes float32, float16, bfloat16, float64"),
        ("sparse_idx", np.zeros((1, 1, 3), np.int32), "must have 1 to 24, as int64"),
    ],
)
def test_errors_about_parts_say_what_is_allowed(name: str, part: Any, allowed: str) -> None:
    message = demo.encode(normal(4, 6), 3)
    message[name] = np.asarray(part).reshape(message[name].shape)
    with pytest.raises(Corrupt, match=allowed):
        demo.decode(message)


def test_limits_bound_the_tensor() -> None:
    for peer, message in (
        (demo, demo.encode(normal(4, 6), 3)),
        (psyche, psyche.encode(normal(4, 6), 3)),
    ):
        with pytest.raises(LimitExceeded):
            peer.decode(message, limits=Limits(max_elements=23))
