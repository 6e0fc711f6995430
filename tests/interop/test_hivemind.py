"""hivemind's messages: recorded ones, frames, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import Corrupt, FormatError, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.errors import Unsupported
from gcodec.interop import hivemind

PATH = Path(__file__).parents[1] / "golden" / "upstream" / "hivemind-1.1.12.txt"
F = np.float32
TABLES = ("UNIFORM_8BIT", "QUANTILE_8BIT")


class Recorded(NamedTuple):
    """What hivemind makes of a vector."""

    vector: str
    compression: Any
    x: np.ndarray
    message: bytes
    decoded: np.ndarray


def recorded() -> Iterator[Recorded]:
    """Read the vectors."""
    text = PATH.read_text("ascii").replace("\n  ", "")
    for part in text.split("vector ")[1:]:
        head, *cases = part.split("case ")
        first, line = head.splitlines()[:2]
        name, dtype, sizes = first.split()
        shape = tuple(map(int, sizes.split("x")))
        x = numbers(line.split()[1], dtype).reshape(shape)
        for case in cases:
            compression, message, decoded = case.splitlines()
            values = numbers(decoded.split()[1], dtype).reshape(shape)
            yield Recorded(name, compression, x, bytes.fromhex(message.split()[1]), values)


def numbers(digits: str, dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    return np.frombuffer(bytes.fromhex(digits), kind.newbyteorder(">")).astype(kind)


RECORDED = list(recorded())
each = pytest.mark.parametrize("one", RECORDED, ids=lambda one: f"{one.vector}-{one.compression}")


@each
def test_messages_equal_the_recorded_ones(one: Recorded) -> None:
    message = hivemind.encode(one.x, one.compression)
    if one.compression in ("NONE", "FLOAT16", "BLOCKWISE_8BIT"):
        assert message == one.message
        return
    # The original sums in float32: means, deviations and tables differ in the last bits.
    assert len(message) == len(one.message)
    n, end = one.x.size, len(message)
    own, other = (np.frombuffer(m, np.uint8) for m in (message, one.message))
    start = next(k for k in range(4) if message[k] < 128 and k) + 1  # after tag and length
    assert (own[:start] == other[:start]).all()
    if one.compression in TABLES:
        start += 8
        tables = [m[start : start + 1024].copy().view("<f4") for m in (own, other)]
        np.testing.assert_allclose(*tables, rtol=2e-6, atol=1e-9)
        assert (own[start + 1024 : end] == other[start + 1024 : end]).all()
        return
    halves = [m[start : start + 2 * n].copy().view("<f2").astype(F) for m in (own, other)]
    np.testing.assert_allclose(*halves, rtol=2e-3, atol=1e-4)
    rows = n // one.x.shape[-1]
    last = start + 2 * n + 8 * rows
    scales = [m[start + 2 * n : last].copy().view("<f4") for m in (own, other)]
    np.testing.assert_allclose(*scales, rtol=1e-6, atol=1e-8)
    assert (own[last:] == other[last:]).all()


@each
def test_recorded_messages_decode_to_the_recorded_values(one: Recorded) -> None:
    decoded = hivemind.decode(one.message)
    assert decoded.dtype == one.decoded.dtype and decoded.shape == one.decoded.shape
    assert decoded.tobytes() == one.decoded.tobytes()


@each
def test_frames_hold_the_recorded_messages(one: Recorded) -> None:
    if one.x.dtype != F:
        with pytest.raises(ParameterError, match="float32"):
            hivemind.to_frame(one.message)
        return
    frame = hivemind.to_frame(one.message, name="w")
    assert frame.name == "w" and frame.shape == one.x.shape
    assert frame.decode().tobytes() == one.decoded.tobytes()
    assert hivemind.from_frame(frame) == one.message
    assert hivemind.from_frame(frame.to_bytes()) == one.message


def test_coded_frames_become_messages() -> None:
    x = np.random.default_rng(1).normal(size=(9, 1000)).astype(F)
    for spec, compression in (
        ("blockwise:kind=uniform8,code=rans", "UNIFORM_8BIT"),
        ("blockwise:kind=quantile8,code=huffman", "QUANTILE_8BIT"),
        ("blockwise:kind=dynamic8,block=4096,code=rans", "BLOCKWISE_8BIT"),
        ("blockwise:kind=meanstd16,block=0", "MEANSTD_16BIT"),
    ):
        frame = gcodec.encode(x, spec)
        message = hivemind.from_frame(frame)
        assert message == hivemind.encode(x, compression)  # type: ignore[arg-type]
        assert (hivemind.decode(message) == gcodec.decode(frame)).all()
    for spec in (
        *("minmax", "blockwise", "raw:dtype=bfloat16", "blockwise:kind=dynamic8"),
        "blockwise:kind=meanstd16,block=1000",
    ):
        with pytest.raises(ParameterError):
            hivemind.from_frame(gcodec.encode(x, spec))


@given(st.data())
def test_round_trips(data: st.DataObject) -> None:
    compression = data.draw(st.sampled_from(hivemind.COMPRESSIONS))
    shape = data.draw(st.sampled_from([(1,), (2, 3), (64,), (3, 5, 7), (4097,), ()]))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.float64, ml_dtypes.bfloat16]))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape).astype(dtype)
    halves = compression in ("FLOAT16", "MEANSTD_16BIT")
    if halves and dtype == ml_dtypes.bfloat16:
        with pytest.raises(TypeError):
            hivemind.encode(x, compression)
        return
    if compression == "MEANSTD_16BIT" and not shape:
        with pytest.raises(ParameterError):
            hivemind.encode(x, compression)
        return
    decoded = hivemind.decode(hivemind.encode(x, compression))
    assert decoded.shape == x.shape and decoded.dtype == x.dtype
    tolerance = {"NONE": 0, "FLOAT16": 2e-3, "MEANSTD_16BIT": 1e-2}.get(compression, 1.5)
    exact = x.astype(float)
    assert (np.abs(decoded.astype(float) - exact) <= tolerance * (np.abs(exact) + 0.1)).all()


def test_special_values_and_flags() -> None:
    x = np.array([np.inf, -1e9, np.nan, -0.0], F)
    none = hivemind.decode(hivemind.encode(x))
    assert none.tobytes() == x.tobytes()
    half = hivemind.decode(hivemind.encode(x, "FLOAT16"))
    assert half[:2].tolist() == [65504, -65504] and np.isnan(half[2]) and np.signbit(half[3])
    for compression in hivemind.COMPRESSIONS[1:]:
        if compression != "FLOAT16":
            with pytest.raises(ParameterError, match="NaN or Inf"):
                hivemind.encode(x, compression)  # type: ignore[arg-type]
            with pytest.raises(ParameterError, match="shape"):
                hivemind.encode(x[:0], compression)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="compression"):
        hivemind.encode(x, "GZIP")  # type: ignore[arg-type]
    flagged = hivemind.encode(x, requires_grad=True)
    assert b"\x18\x01\x22" in flagged and hivemind.decode(flagged).tobytes() == x.tobytes()
    assert hivemind.decode(hivemind.encode(np.zeros((0, 3), F))).shape == (0, 3)


@pytest.mark.parametrize(
    ("digits", "error"),
    [
        ("0a04000000001201012207666c6f61743332", None),
        ("0a04000000001201012207666c6f6174333228", Truncated),
        ("0a04000000001201012207666c6f61743332 2806", Unsupported),
        ("0a04000000001201022207666c6f61743332 3002", Unsupported),
        ("0a0500000000001201012207666c6f61743332 3002", Corrupt),
        ("0a04000000001201012207666c6f61743332 1802", Corrupt),
        ("0a04000000001201012207666c6f61743332 3801", Corrupt),
        ("0a04000000001201012207666c6f61743332 120101", Corrupt),
        ("0a04000000001201022207666c6f61743332", Truncated),
        ("0a0500000000001201012207666c6f61743332", Corrupt),
        ("0a040000000012010122 05696e743332", Unsupported),
        ("0a0400000000120101", Unsupported),
        ("0a04000000001205ffffffff7f2207666c6f61743332", Corrupt),
        ("0a04000000001202ffff2207666c6f61743332", Truncated),
        ("0a0400000000120f" + "ffffffff0f" * 3 + "2207666c6f61743332", FormatError),
        ("0a84808080", Truncated),
        ("0aff01", Truncated),
        ("ff", Truncated),
        ("", Unsupported),
    ],
)
def test_hostile_messages_are_refused(digits: str, error: type[FormatError] | None) -> None:
    message = bytes.fromhex(digits)
    if error is None:
        assert hivemind.decode(message).tolist() == [0]
        return
    for function in (hivemind.decode, hivemind.to_frame):
        with pytest.raises(error):
            function(message)


@pytest.mark.parametrize("compression", hivemind.COMPRESSIONS)
def test_joined_messages_keep_the_number_of_their_parts(compression: Any) -> None:
    x = np.random.default_rng(4).normal(size=(3, 5000)).astype(F)
    message = hivemind.encode(x, compression)
    joined = message + b"\x30\x02"
    assert hivemind.decode(joined).tobytes() == hivemind.decode(message).tobytes()
    assert hivemind.to_frame(joined).to_bytes() == hivemind.to_frame(message).to_bytes()


def test_half_of_a_float32_buffer_is_no_bfloat16_buffer() -> None:
    x = np.ones(1 << 15, ml_dtypes.bfloat16)
    whole = hivemind.encode(x)
    front = whole.index(b"\x12\x03\x80\x80\x02")
    first = b"\x0a\x80\x80\x04" + whole[4 : 4 + (1 << 16)]
    with pytest.raises(Unsupported, match="one of 2 parts"):
        hivemind.decode(first + whole[front:] + b"\x30\x02")
    assert hivemind.decode(whole + b"\x30\x02").tobytes() == x.tobytes()


@pytest.mark.parametrize("compression", hivemind.COMPRESSIONS)
def test_damaged_messages_are_refused_or_keep_their_shape(compression: Any) -> None:
    x = np.random.default_rng(2).normal(size=(3, 5)).astype(F)
    message, rng = hivemind.encode(x, compression), np.random.default_rng(3)
    for size in range(len(message)):
        with pytest.raises(FormatError):
            hivemind.decode(message[:size])
    for at in [*range(40), *rng.integers(0, len(message), 200).tolist()]:
        damaged = bytearray(message)
        damaged[min(at, len(message) - 1)] = int(rng.integers(256))
        try:
            decoded = hivemind.decode(damaged)
        except FormatError:
            continue
        assert decoded.size == 15


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    ("at", "number"),
    [(10, np.nan), (10, np.inf), (14, -np.inf), (18, np.nan), (18, np.inf), (18, -1), (22, 0)],
)
def test_invalid_means_and_deviations(dtype: str, at: int, number: float) -> None:
    """The buffer has four float16 from byte 2 on, two means and two deviations."""
    message = bytearray(hivemind.encode(np.eye(2, dtype=dtype), "MEANSTD_16BIT"))
    message[at : at + 4] = np.array(number, "<f4").tobytes()
    with pytest.raises(Corrupt):
        hivemind.decode(message)
    with pytest.raises(Corrupt if dtype == "float32" else ParameterError):
        hivemind.to_frame(message)


def test_invalid_numbers_of_rows() -> None:
    message = bytearray(hivemind.encode(np.ones((1, 1), F), "MEANSTD_16BIT"))
    message[2:4] = bytes.fromhex("007c")
    for function in (hivemind.decode, hivemind.to_frame):
        with pytest.raises(Corrupt, match="finite"):
            function(message)


def test_rows_whose_length_exceeds_float32() -> None:
    x = np.full((2, 9), 2.0**126, F)
    x[:, ::2] *= -1
    message = hivemind.encode(x, "MEANSTD_16BIT")
    assert np.allclose(hivemind.decode(message), x, rtol=1e-3)


def test_scalars_have_no_rows() -> None:
    frame = gcodec.encode(F(3), "blockwise:kind=meanstd16,block=0")
    assert gcodec.decode(frame) == 3
    with pytest.raises(ParameterError, match="dimensions"):
        hivemind.from_frame(frame)


@pytest.mark.parametrize("n", [3, 4096, 10_000])
def test_blocks_have_the_table_of_their_message(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n).astype(F)
    message = bytearray(hivemind.encode(x, "BLOCKWISE_8BIT"))
    blocks = -(-n // 4096)
    start = message.index(b"\x00\x01" + bytes(6)) + 8  # after the counts
    assert message[start - 16] == blocks
    table = np.frombuffer(message, "<f4", 256, start + 4 * blocks)
    largest = np.frombuffer(message, "<f4", blocks, start)
    codes = np.frombuffer(message, np.uint8, n, start + 4 * blocks + 1024).copy()
    expected = hivemind.decode(message)
    assert np.array_equal(expected, table[codes] * np.repeat(largest, 4096)[:n])
    other = np.nextafter(table, F(2))
    message[start + 4 * blocks : start + 4 * blocks + 1024] = other.tobytes()
    decoded = hivemind.decode(message)
    assert np.array_equal(decoded, other[codes] * np.repeat(largest, 4096)[:n])
    with pytest.raises(Unsupported, match="table"):
        hivemind.to_frame(message)
    message[start + 4 * blocks + 2 : start + 4 * blocks + 4] = b"\xc0\x7f"  # NaN
    with pytest.raises(Corrupt, match="not finite"):
        hivemind.decode(message)


def test_another_number_of_entries_is_refused() -> None:
    uniform = bytearray(hivemind.encode(np.ones(3, F), "UNIFORM_8BIT"))
    uniform[3] = 255
    with pytest.raises(Corrupt, match="numbers"):
        hivemind.decode(uniform)


def test_limits() -> None:
    message = hivemind.encode(np.ones(100, F))
    with pytest.raises(LimitExceeded):
        hivemind.decode(message, limits=Limits(max_elements=10))
