"""Integers and booleans: `raw` stores them unchanged; all other codecs refuse them."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import frame as reference_frame
from reference import integers

import gcodec
from gcodec import Corrupt, ParameterError, Unsupported
from gcodec.analysis.dissect import Dissection
from gcodec.wire import primitives

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (2, 0, 3), (1,), (7,), (3, 5))


def sample(dtype: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    n = int(np.prod(shape))
    if dtype == "bool":
        return (np.arange(n) % 3 == 0).reshape(shape)
    low, high = integers.bounds(dtype)
    return np.array([(low, high, 0, 1, high - 1)[i % 5] for i in range(n)], dtype).reshape(shape)


def build(dtype: str, payload: bytes, codec: int = 1, params: bytes = b"") -> bytes:
    parts = params, b"", payload, 8 * len(payload)
    return reference_frame.build(codec, integers.CODES[dtype], (3,), *parts)


def test_dtype_codes_equal_the_reference() -> None:
    assert {name: primitives.DTYPE_CODES[name] for name in primitives.INTEGERS} == integers.CODES
    assert {name: primitives.ITEMSIZE[name] for name in primitives.INTEGERS} == {
        name: np.dtype(name).itemsize for name in primitives.INTEGERS
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", primitives.INTEGERS)
def test_frames_equal_the_reference(dtype: str, shape: tuple[int, ...]) -> None:
    x = sample(dtype, shape)
    frame = gcodec.encode(x, "raw", name="steps", key=b"k")
    payload = integers.write(x.reshape(-1).tolist(), dtype)
    code = integers.CODES[dtype]
    assert frame == reference_frame.build(
        1, code, shape, b"", b"", payload, 8 * len(payload), "steps", b"k"
    )
    assert len(frame) <= gcodec.parse("raw").max_encoded_nbytes(x.size, "steps", dtype=dtype)
    read = gcodec.Frame.from_bytes(frame, key=b"k")
    assert (read.dtype, read.shape, str(read.codec)) == (dtype, shape, "raw")
    assert read.to_bytes() == frame and read.with_seek() is read
    back = gcodec.decode(frame, key=b"k")
    assert back.dtype == x.dtype and back.shape == x.shape and np.array_equal(back, x)
    assert back.flags.writeable and type(back) is np.ndarray


@given(st.data())
def test_integers_round_trip(data: st.DataObject) -> None:
    flat = data.draw(gs.integers())
    x = flat.reshape(data.draw(gs.shapes(flat.size)))
    before = x.copy()
    policy = data.draw(st.sampled_from(["raise", "zero", "propagate"]))
    frame = gcodec.encode(x, "raw", name=data.draw(gs.names()), nonfinite=policy)
    assert np.array_equal(x, before)
    parsed = reference_frame.parse(frame)
    assert integers.read(parsed["payload"], parsed["nbits"], x.size, str(x.dtype)) == flat.tolist()
    out, like = np.empty_like(x), np.zeros_like(x)
    assert gcodec.decode(frame, out=out) is out
    for back in (gcodec.decode(frame), out, gcodec.decode(frame, like=like)):
        assert back.dtype == x.dtype and back.shape == x.shape and np.array_equal(back, x)
    start = data.draw(st.integers(0, x.size))
    stop = data.draw(st.integers(start, x.size))
    part = gcodec.decode_range(frame, start, stop)
    assert part.dtype == x.dtype and np.array_equal(part, flat[start:stop])


@pytest.mark.parametrize("dtype", primitives.INTEGERS)
def test_memory_of_any_layout(dtype: str) -> None:
    x = sample(dtype)
    frame = gcodec.encode(x, "raw")
    assert gcodec.encode(np.asfortranarray(x), "raw") == frame
    assert gcodec.encode(np.repeat(x, 2, 1)[:, ::2], "raw") == frame
    assert gcodec.encode(x.astype(x.dtype.newbyteorder(">")), "raw") == frame
    assert gcodec.encode(memoryview(x), "raw") == frame
    wide = np.zeros((3, 10), dtype)
    gcodec.decode(frame, out=wide[:, ::2])
    assert np.array_equal(wide[:, ::2], x) and not wide[:, 1::2].any()
    swapped = gcodec.decode(frame, like=x.astype(x.dtype.newbyteorder(">")))
    assert np.array_equal(swapped, x)
    scalar = gcodec.decode(gcodec.encode(x[0, 0], "raw"), like=x[0, 0])
    assert scalar == x[0, 0] and type(scalar) is type(x[0, 0])


def test_payload_without_a_frame() -> None:
    x = sample("int64")
    raw = gcodec.parse("raw")
    payload = raw.encode(x)
    assert payload.tobytes() == x.tobytes() and payload.codec == raw
    assert np.array_equal(raw.decode(payload, x.shape), x)
    assert raw.decode(payload, x.shape).dtype == np.int64
    assert np.array_equal(payload.codec.dequantize(raw.quantize(x), x.shape), x)
    assert np.array_equal(pickle.loads(pickle.dumps(payload.codec)).decode(payload, x.shape), x)
    # The codec of an integer payload encodes floats like any other codec.
    y = np.ones(3, np.float32)
    assert gcodec.encode(y, payload.codec) == gcodec.encode(y, "raw")
    with pytest.raises(ParameterError, match="they do not match 15 elements"):
        raw.dequantize(raw.quantize(x), x.shape)
    with pytest.raises(TypeError, match=r"^x has dtype int64"):
        raw.quantize_residual(x, np.zeros(x.shape, np.float32))


def test_booleans_of_any_nonzero_byte() -> None:
    x = np.resize([0, 1, 2, 255], 3000).astype(np.uint8).view(np.bool_)
    plain = x.view(np.uint8) > 0
    for spec in ("raw", "lossless:mode=stored", "lossless:mode=fast", "lossless:mode=small"):
        assert gcodec.encode(x, spec) == gcodec.encode(plain, spec)
    patch = gcodec.encode_patch(x, base=~plain)
    assert patch == gcodec.encode_patch(plain, base=~plain)
    assert np.array_equal(gcodec.apply_patch(patch, ~plain), plain)
    assert gcodec.encode_patch(~plain, base=x) == gcodec.encode_patch(~plain, base=plain)


def test_encode_to_a_buffer() -> None:
    x = sample("uint64")
    room = bytearray(gcodec.parse("raw").max_encoded_nbytes(x.size, dtype="uint64"))
    used = gcodec.encode(x, "raw", out=room)
    assert bytes(room[:used]) == gcodec.encode(x, "raw")
    assert np.array_equal(gcodec.decode(room[:used]), x)
    with pytest.raises(ParameterError, match=r"^dtype='int8': must be one of float32"):
        gcodec.parse("topk").max_encoded_nbytes(4, dtype="int8")


@pytest.mark.parametrize("spec", ["raw", "lossless", "patch"])
@pytest.mark.parametrize("dtype", ["double", "", None, 1])
def test_names_of_other_dtypes_are_refused_with_those_that_are_allowed(
    spec: str, dtype: Any
) -> None:
    with pytest.raises(
        ParameterError, match=r"^dtype=.*: must be one of float32, .*, int8, .* fo"
    ):
        gcodec.parse(spec).max_encoded_nbytes(4, dtype=dtype)


@pytest.mark.parametrize("spec", ["sign", "qsgd", "mxnet-2bit", "ecsq", "topk", "minmax"])
def test_other_codecs_refuse_integers_and_suggest_raw(spec: str) -> None:
    x = sample("int32")
    with pytest.raises(TypeError, match=r"^x has dtype int32: .*'raw'.*astype"):
        gcodec.encode(x, spec)
    with pytest.raises(TypeError, match=r"^grad has dtype int32"):
        gcodec.Feedback(spec).compress("w", x)
    with pytest.raises(ParameterError, match=f"^dtype='int8': must be .* for {spec}"):
        gcodec.Frame(gcodec.parse(spec), "int8", (2,), gcodec.parse("raw").encode(x[0, :2]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_float_payload_of_integers_is_refused(dtype: str) -> None:
    with pytest.raises(ParameterError, match=f"^dtype='{dtype}': must be left out .* of int16"):
        gcodec.encode(sample("int16"), f"raw:dtype={dtype}")


def test_integers_are_neither_added_nor_converted() -> None:
    frame = gcodec.encode(sample("int64"), "raw")
    acc = np.zeros((3, 5), np.float32)
    with pytest.raises(ParameterError, match=r"^frame\.dtype='int64': must be one of float32"):
        gcodec.decode_add(frame, acc)
    assert not acc.any()
    for other in ("float32", "float64", "int32", "uint64", "bool"):
        with pytest.raises(ParameterError, match=r"^like\.dtype=.*: must be int64"):
            gcodec.decode(frame, like=np.zeros((3, 5), other))
        with pytest.raises(ParameterError, match=r"^out\.dtype=.*: must be int64"):
            gcodec.decode(frame, out=np.zeros((3, 5), other))
    floats = gcodec.encode(acc, "raw")
    with pytest.raises(ParameterError, match=r"^like\.dtype='int64': must be one of float32"):
        gcodec.decode(floats, like=np.zeros((3, 5), np.int64))
    with pytest.raises(ParameterError, match="sends all elements"):
        gcodec.decode_sparse(frame)


@pytest.mark.parametrize("dtype", primitives.INTEGERS)
def test_damaged_integer_frames(dtype: str) -> None:
    good = integers.write([0, 1, 1], dtype)
    assert gcodec.decode(build(dtype, good)).tolist() == [0, 1, 1]
    assert gcodec.decode(build(dtype, good, params=b"\0")).tolist() == [0, 1, 1]
    with pytest.raises(gcodec.Truncated):
        gcodec.decode(build(dtype, good[:-1]))
    with pytest.raises(Corrupt):
        gcodec.decode(build(dtype, good + b"\0"))
    for params in (b"\1", b"\2"):  # float16, bfloat16
        with pytest.raises(Corrupt, match="do not fit together"):
            gcodec.decode(build(dtype, good, params=params))
    for codec in gcodec.codecs().values():
        if not codec.accepts_all_dtypes and codec.id < 192:
            with pytest.raises(Unsupported, match=f"dtype {integers.CODES[dtype]}, {dtype}"):
                gcodec.decode(build(dtype, good, codec=codec.id))
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode(build(dtype, good), limits=gcodec.Limits(max_elements=2))
    with pytest.raises(gcodec.LimitExceeded):
        most = gcodec.Limits(max_bytes=3 * np.dtype(dtype).itemsize - 1)
        gcodec.decode(build(dtype, good), limits=most)


def test_boolean_bytes_must_be_0_or_1() -> None:
    for byte in range(2, 256):
        data = build("bool", bytes([1, 0, byte]))
        for read in (gcodec.decode, lambda data: gcodec.decode(data, out=np.empty(3, np.bool_))):
            with pytest.raises(Corrupt, match=f"byte {byte} is neither true nor false"):
                read(data)
    dissection = Dissection(data)
    assert [f.value for f in dissection if f.part == "payload"] == [True, False]
    assert isinstance(dissection.error, Corrupt) and dissection.bad == 8 * (len(data) - 5)


def test_dissection_shows_all_digits() -> None:
    x = np.array([2**64 - 1, 2**63, 0], np.uint64)
    dissection = Dissection(gcodec.encode(x, "raw"))
    values = [f.value for f in dissection if f.part == "payload"]
    assert values == x.tolist() and dissection.error is None


# --- other libraries


@pytest.mark.parametrize("dtype", primitives.INTEGERS)
def test_torch_integers(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = sample(dtype)
    tensor = torch.from_numpy(x.copy())
    frame = gcodec.encode(tensor, "raw")
    assert frame == gcodec.encode(x, "raw")
    back = gcodec.decode(frame, like=tensor)
    assert back.dtype is tensor.dtype and torch.equal(back, tensor)
    out = torch.zeros_like(tensor)
    assert gcodec.decode(frame, out=out) is out and torch.equal(out, tensor)
    with pytest.raises(TypeError, match=r"^x has dtype .*'raw'.* as in x\.float\(\)$"):
        gcodec.encode(tensor, "sign")
    assert str(gcodec.Policy({"*": "topk"}).codec("w", x.shape, tensor.dtype)) == "raw"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"])
def test_jax_integers(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(sample(dtype))
    frame = gcodec.encode(x, "raw")
    assert frame == gcodec.encode(sample(dtype), "raw")
    back = gcodec.decode(frame, like=x)
    assert isinstance(back, jax.Array) and back.dtype == x.dtype and (back == x).all()


def test_advice_of_the_message_works() -> None:
    with pytest.raises(TypeError) as raised:
        gcodec.encode(sample("int8"), "sign")
    advice = re.findall(r"as in (.*)$", str(raised.value))
    assert advice == ["x.astype(numpy.float32)"]


def test_jax_under_jit() -> None:
    jax = pytest.importorskip("jax")
    gjax = pytest.importorskip("gcodec.jax")
    x = jax.numpy.asarray(sample("int16"))
    buffer, length = jax.jit(lambda x: gjax.encode_padded(x, "raw"))(x)
    assert np.asarray(buffer)[: int(length)].tobytes() == gcodec.encode(x, "raw")
    assert (jax.jit(lambda x: gjax.roundtrip(x, "raw"))(x) == x).all()
