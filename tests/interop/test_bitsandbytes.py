"""bitsandbytes' blocks: recorded ones, their laws, and damaged messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import Corrupt, FormatError, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.interop import bitsandbytes

PATH = Path(__file__).parents[1] / "golden" / "upstream" / "bitsandbytes-0.50.2.txt"
F = np.float32
KINDS = ("nf4", "fp4", "dynamic8")


class Recorded(NamedTuple):
    """What bitsandbytes makes of a vector."""

    vector: str
    kind: Any
    blocksize: int
    nested: bool
    x: np.ndarray
    arrays: dict[str, np.ndarray]

    @property
    def message(self) -> dict[str, np.ndarray]:
        """The message under the names of this module."""
        parts = {k: v for k, v in self.arrays.items() if k not in ("data", "decoded")}
        return parts | {"codes" if self.kind == "dynamic8" else "packed": self.arrays["data"]}


def recorded() -> Iterator[Recorded]:
    """Read the vectors."""
    text = PATH.read_text("ascii").replace("\n  ", "")
    for part in text.split("vector ")[1:]:
        head, *cases = part.split("case ")
        name, line = head.split("\n")[:2]
        x = numbers(line.split()[1], ">f4")
        for case in cases:
            first, *lines = case.splitlines()
            kind, blocksize, nested = first.split()
            arrays = {}
            for key, digits in map(str.split, lines):
                is_byte = key == "data" or (key == "absmax" and nested == "1")
                arrays[key] = numbers(digits, "u1" if is_byte else ">f4")
            yield Recorded(name, kind, int(blocksize), nested == "1", x, arrays)


def numbers(digits: str, dtype: str) -> np.ndarray:
    kind = np.dtype(dtype)
    return np.frombuffer(bytes.fromhex(digits), kind).astype(kind.newbyteorder("="))


RECORDED = list(recorded())
each = pytest.mark.parametrize(
    "one", RECORDED, ids=lambda one: f"{one.vector}-{one.kind}-{one.blocksize}-{one.nested}"
)


@each
def test_messages_equal_the_recorded_ones(one: Recorded) -> None:
    message = bitsandbytes.encode(one.x, one.kind, blocksize=one.blocksize, nested=one.nested)
    assert message.keys() == one.message.keys()
    for name, expected in one.message.items():
        if name == "nested_offset":  # a mean, which the original sums in float32
            np.testing.assert_allclose(message[name], expected[0], rtol=2e-7)
        else:
            assert message[name].tobytes() == expected.tobytes(), name


@each
def test_recorded_messages_decode_to_the_recorded_values(one: Recorded) -> None:
    decoded = bitsandbytes.decode(one.message, one.kind, shape=one.x.size, blocksize=one.blocksize)
    assert decoded.tobytes() == one.arrays["decoded"].tobytes()


@each
def test_frames_hold_the_recorded_messages(one: Recorded) -> None:
    shape, blocksize = one.x.shape, one.blocksize
    frame = bitsandbytes.to_frame(
        one.message, one.kind, shape=shape, blocksize=blocksize, name="w"
    )
    assert frame.decode().tobytes() == one.arrays["decoded"].tobytes()
    for given_frame in (frame, frame.to_bytes()):
        message = bitsandbytes.from_frame(given_frame)
        assert message.keys() == one.message.keys()
        for name, expected in one.message.items():
            assert message[name].tobytes() == expected.tobytes(), name


def test_coded_frames_become_messages() -> None:
    x = np.random.default_rng(0).normal(size=(33, 77)).astype(F)
    for kind in KINDS:
        spec = f"blockwise:kind={kind},nested=yes,code=rans"
        own = bitsandbytes.encode(x, kind, blocksize=64, nested=True)  # type: ignore[arg-type]
        other = bitsandbytes.from_frame(gcodec.encode(x, spec))
        assert all(own[name].tobytes() == other[name].tobytes() for name in own)
    for spec in ("blockwise:kind=int8", "blockwise:block=48", "minmax"):
        with pytest.raises(ParameterError):
            bitsandbytes.from_frame(gcodec.encode(x, spec))
    with pytest.raises(ParameterError, match="not empty"):
        bitsandbytes.from_frame(gcodec.encode(x[:0], "blockwise"))


@given(st.data())
def test_each_value_becomes_the_nearest_of_its_table(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    shape = data.draw(st.sampled_from([(1,), (2, 3), (64,), (65,), (3, 50), (4097,), ()]))
    x = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape).astype(F)
    blocksize = data.draw(st.sampled_from([32, 64, 4096]))
    message = bitsandbytes.encode(x, kind, blocksize=blocksize)
    decoded = bitsandbytes.decode(message, kind, shape=shape, blocksize=blocksize)
    assert decoded.shape == x.shape
    table = np.unique(values_of(kind))
    flat, own = x.reshape(-1), decoded.reshape(-1)
    for start in range(0, flat.size, blocksize):
        part = flat[start : start + blocksize].astype(float)
        top = np.abs(part).max()
        distances = np.abs(part[:, None] - table * top)
        error = np.abs(own[start : start + blocksize] - part)
        assert (error <= distances.min(axis=1) + 1e-6 * top).all()


def values_of(kind: str) -> np.ndarray:
    """Decode each code with the scale 1."""
    if kind == "dynamic8":
        message = {"codes": np.arange(256, dtype=np.uint8), "absmax": np.ones(1, F)}
        return bitsandbytes.decode(message, "dynamic8", shape=256)
    packed = np.array([0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF], np.uint8)
    message = {"packed": packed, "absmax": np.ones(1, F)}
    return bitsandbytes.decode(message, "nf4" if kind == "nf4" else "fp4", shape=16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_products_are_rounded_to_other_dtypes(dtype: str) -> None:
    x = np.random.default_rng(1).normal(size=100).astype(F)
    message = bitsandbytes.encode(x)
    decoded = bitsandbytes.decode(message, shape=100, dtype=dtype)
    assert decoded.dtype == dtype
    expected = bitsandbytes.decode(message, shape=100).astype(decoded.dtype)
    assert decoded.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("x", "arguments", "match"),
    [
        (np.ones(4, F), {"kind": "int8"}, "kind='int8'"),
        (np.ones(4, F), {"blocksize": 48}, "blocksize=48"),
        (np.ones(4, F), {"blocksize": 8192}, "blocksize=8192"),
        (np.array([1, np.nan], F), {}, "NaN"),
        (np.ones((0, 3), F), {}, "shape"),
    ],
)
def test_wrong_arguments_are_refused(x: np.ndarray, arguments: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        bitsandbytes.encode(x, **arguments)


def changed(name: str, part: Any) -> Callable[[dict[str, Any]], None]:
    def change(message: dict[str, Any]) -> None:
        if part is None:
            del message[name]
        else:
            message[name] = part(message[name])

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (changed("packed", None), Truncated),
        (changed("absmax", None), Truncated),
        (changed("nested_offset", None), Truncated),
        (changed("packed", lambda a: a[:-1]), Truncated),
        (changed("packed", lambda a: np.append(a, a[:1])), Corrupt),
        (changed("packed", lambda a: a.astype(np.int16)), Corrupt),
        (changed("packed", lambda a: a.astype(np.complex64)), Corrupt),
        (changed("absmax", lambda a: a.astype(F)), Corrupt),
        (changed("absmax", lambda a: a[:-1]), Truncated),
        (changed("nested_absmax", lambda a: a * F(np.inf)), Corrupt),
        (changed("nested_absmax", lambda a: np.append(a, a)), Corrupt),
        (changed("nested_offset", lambda a: F(np.nan)), Corrupt),
        (changed("nested_offset", lambda a: 1e300), Corrupt),
        (changed("nested_offset", lambda a: [0.5, 0.5]), Corrupt),
    ],
)
def test_damaged_messages_are_refused(
    change: Callable[[dict[str, Any]], None], error: type[FormatError]
) -> None:
    x = np.random.default_rng(1).normal(size=(30, 9)).astype(F)
    message: dict[str, Any] = dict(bitsandbytes.encode(x, "nf4", nested=True))
    assert bitsandbytes.decode(message, shape=x.shape).shape == x.shape
    change(message)
    with pytest.raises(error):
        bitsandbytes.decode(message, shape=x.shape)


def test_codes_that_cuda_kernels_have_for_zeros_decode_to_zeros() -> None:
    x = np.array([1, -1e-4, 1e-4, 0], F)
    message = bitsandbytes.encode(x, "fp4")
    assert message["packed"].tolist() == [0x30, 0x80]  # neutral kernels
    other = message | {"packed": np.array([0x38, 0x00], np.uint8)}
    assert (bitsandbytes.decode(other, "fp4", shape=4) == [1, 0, 0, 0]).all()
    for kind in KINDS:
        message = bitsandbytes.encode(np.zeros(4096, F), kind)
        codes = {name: 0 * message[name] for name in ("packed", "codes") if name in message}
        assert not bitsandbytes.decode(message | codes, kind, shape=4096).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_packed_elements_may_be_stored_as_another_dtype(dtype: str) -> None:
    message = bitsandbytes.encode(np.random.default_rng(7).normal(size=(4, 64)).astype(F), "fp4")
    stored = message["packed"].view(dtype).reshape(-1, 1)
    decoded = bitsandbytes.decode(message | {"packed": stored}, "fp4", shape=(4, 64))
    assert (decoded == bitsandbytes.decode(message, "fp4", shape=(4, 64))).all()
    with pytest.raises(Truncated, match="packed has 12"):
        bitsandbytes.decode(message | {"packed": stored[:-1]}, "fp4", shape=(4, 64))


def test_nested_offset_may_be_the_number_of_a_file() -> None:
    x = np.random.default_rng(6).normal(size=300).astype(F)
    message = bitsandbytes.encode(x, "nf4", nested=True)
    read = message | {"nested_offset": json.loads(json.dumps(message["nested_offset"].item()))}
    frames = [bitsandbytes.to_frame(parts, shape=300).to_bytes() for parts in (message, read)]
    assert frames[0] == frames[1]
    assert (bitsandbytes.decode(read, shape=300) == bitsandbytes.decode(message, shape=300)).all()


def test_limits_and_dtypes_are_checked() -> None:
    message = bitsandbytes.encode(np.full(100, 1e30, F))
    with pytest.raises(LimitExceeded):
        bitsandbytes.decode(message, shape=100, limits=Limits(max_elements=10))
    with pytest.raises(ParameterError, match="dtype='int8'"):
        bitsandbytes.decode(message, shape=100, dtype="int8")
    with pytest.raises(Corrupt, match="float16"):
        bitsandbytes.decode(message, shape=100, dtype="float16")
