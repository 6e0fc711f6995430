"""Templar's messages: recorded ones, the rules of SparseLoCo, and damaged messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcodec import Corrupt, FormatError, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.interop import templar

PATH = Path(__file__).parents[1] / "golden" / "upstream" / "templar-2.1.28.txt"
F = np.float32


class Recorded(NamedTuple):
    """What Templar makes of a tensor."""

    chunk: int
    k: int
    bins: int
    arrays: dict[str, np.ndarray]

    @property
    def message(self) -> dict[str, Any]:
        """The message, with positions as Templar orders them."""
        arrays, offset = self.arrays, self.bins // 2
        parameters = arrays["shift"], float(arrays["scale"]), offset, arrays["lookup"], "float32"
        return {"idxs": arrays["idxs"], "vals": arrays["vals"], "quant_params": parameters}


def recorded() -> Iterator[Recorded]:
    """Read the vectors."""
    text = PATH.read_text("ascii").replace("\n  ", "")
    for case in text.split("case ")[1:]:
        first, *lines = case.splitlines()
        chunk, k, bins, offset = map(int, first.split())
        assert offset == bins // 2
        arrays = {}
        for line in lines:
            name, shape, digits = line.split()
            kind = np.dtype(np.uint8 if name in ("idxs", "vals") else ">f4")
            values = np.frombuffer(bytes.fromhex(digits), kind).astype(kind.newbyteorder("="))
            sizes = () if name in ("shift", "scale") else tuple(map(int, shape.split("x")))
            arrays[name] = values.reshape(sizes)
        yield Recorded(chunk, k, bins, arrays)


RECORDED = list(recorded())
each = pytest.mark.parametrize("one", RECORDED, ids=lambda one: f"{one.arrays['x'].shape}")


def by_position(message: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in each tile, ascending, and the bins in the same order."""
    low, middle, high = message["idxs"].reshape(-1, 3).T.astype(int)
    pairs = np.stack((low + (middle % 16) * 256, middle // 16 + high * 16), axis=1)
    positions = pairs.reshape(message["vals"].shape)
    order = np.argsort(positions, axis=-1)
    return (
        np.take_along_axis(positions, order, axis=-1),
        np.take_along_axis(message["vals"], order, axis=-1),
    )


@each
def test_recorded_messages_decode_to_the_recorded_values(one: Recorded) -> None:
    decoded = templar.decode(one.message, one.arrays["x"].shape, chunk=one.chunk)
    np.testing.assert_array_equal(decoded, one.arrays["decoded"])


@each
def test_messages_equal_the_recorded_ones(one: Recorded) -> None:
    message = templar.encode(one.arrays["x"], one.k, one.chunk, bins=one.bins)
    for own, theirs in zip(by_position(message), by_position(one.message), strict=True):
        np.testing.assert_array_equal(own, theirs)
    shift, scale, offset, lookup, dtype = message["quant_params"]
    assert (offset, dtype) == (one.bins // 2, "float32")
    np.testing.assert_allclose(shift, one.arrays["shift"], rtol=2e-6)
    np.testing.assert_allclose(scale, one.arrays["scale"], rtol=2e-6)
    np.testing.assert_allclose(lookup, one.arrays["lookup"], rtol=2e-5, atol=2e-6 * scale)
    decoded = templar.decode(message, one.arrays["x"].shape, chunk=one.chunk)
    np.testing.assert_allclose(
        decoded, one.arrays["decoded"], rtol=2e-5, atol=4e-6 * np.abs(decoded).max()
    )


@given(st.data())
def test_values_without_bins_come_back(data: st.DataObject) -> None:
    shape = data.draw(
        st.sampled_from([(6,), (128,), (130,), (4, 6), (64, 130), (96, 3), (1, 70), (3, 7)])
    )
    x = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape).astype(F)
    if data.draw(st.booleans()):
        x = np.rint(x).astype(F)  # many ties
    k = data.draw(st.integers(2, 70))
    message = templar.encode(x, k, bins=None)
    decoded = templar.decode(message, shape)
    tiles = message["vals"].size // message["vals"].shape[-1]
    sent = min(k, x.size // tiles) // 2 * 2
    assert message["vals"].shape[-1] == sent
    assert np.array_equal(decoded[decoded != 0], x[decoded != 0])
    # No element that was left out is larger than one of its tile that was sent.
    height, width = (1, *(divisor(size) for size in shape))[-2:]
    for own, source in zip(
        tiles_of(decoded, height, width), tiles_of(x, height, width), strict=True
    ):
        order = np.argsort(-np.abs(source), kind="stable")
        expected = np.zeros_like(source)
        expected[order[:sent]] = source[order[:sent]]
        np.testing.assert_array_equal(own, expected)


def divisor(size: int) -> int:
    return max(d for d in range(1, 65) if size % d == 0)


def tiles_of(x: np.ndarray, height: int, width: int) -> list[np.ndarray]:
    matrix = x.reshape((1, *x.shape)[-2:])
    return [
        matrix[i : i + height, j : j + width].reshape(-1)
        for i in range(0, matrix.shape[0], height)
        for j in range(0, matrix.shape[1], width)
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", np.dtype(ml_dtypes.bfloat16)])
def test_values_of_bins_are_rounded_to_the_dtype_of_the_tensor(dtype: object) -> None:
    message = templar.encode(X, 6, 8)
    exact = templar.decode(message, X.shape, chunk=8)
    message["quant_params"] = (*message["quant_params"][:4], dtype)
    decoded = templar.decode(message, X.shape, chunk=8)
    rounded = exact.astype(ml_dtypes.bfloat16).astype(F)
    assert (rounded != exact).any() and np.array_equal(decoded, rounded)
    with pytest.raises(ParameterError, match="dtype='bfloat16': must be float32"):
        templar.to_frame(message, X.shape, chunk=8)


def test_values_without_bins_may_be_bfloat16() -> None:
    message = templar.encode(X.astype(ml_dtypes.bfloat16), 6, 8, bins=None)
    decoded = templar.decode(message, X.shape, chunk=8)
    message["vals"] = message["vals"].astype(ml_dtypes.bfloat16)
    assert np.array_equal(templar.decode(message, X.shape, chunk=8), decoded)


def test_constant_tensors_have_the_scale_one() -> None:
    message = templar.encode(np.full((8, 8), 3, F), 4)
    shift, scale, _, _, _ = message["quant_params"]
    assert (shift, scale) == (3, 1)
    assert (message["vals"] == 2).all()
    decoded = templar.decode(message, (8, 8))
    assert sorted(set(decoded.reshape(-1).tolist())) == [0, 3]


@pytest.mark.parametrize(
    ("x", "arguments", "match"),
    [
        (np.ones((2, 2, 2), F), {}, "shape"),
        (np.ones((), F), {}, "shape"),
        (np.ones((0, 4), F), {}, "shape"),
        (np.ones(67, F), {}, "shape.*1 x 1"),
        (np.ones((128, 128), F), {"chunk": 128}, "shape.*128 x 128"),
        (np.array([1, np.nan], F), {}, "NaN"),
        (np.ones(4, F), {"k": 1}, "k=1"),
        (np.ones(4, F), {"bins": 1}, "bins=1"),
        (np.ones(4, F), {"bins": 257}, "bins=257"),
        (np.ones(4, F), {"sigmas": 0}, "sigmas=0"),
        (np.ones(4, F), {"sigmas": np.inf}, "sigmas=inf"),
        (np.ones(4, F), {"chunk": 1}, "chunk=1"),
        (np.array([3e38, 3e38, -3e38, 1], F), {"sigmas": 1e-3}, "x"),
    ],
)
def test_wrong_arguments_are_refused(x: np.ndarray, arguments: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        templar.encode(x, **arguments)


X = np.random.default_rng(1).normal(size=(16, 8)).astype(F)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    def change(message: dict[str, Any]) -> None:
        del message[name]

    return change


def with_parts(**parts: Any) -> Callable[[dict[str, Any]], None]:
    def change(message: dict[str, Any]) -> None:
        for name, part in parts.items():
            message[name] = part(message[name]) if callable(part) else part

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (without("idxs"), Truncated),
        (without("vals"), Truncated),
        (without("quant_params"), Corrupt),
        (with_parts(idxs=lambda a: a[:-1]), Truncated),
        (with_parts(idxs=lambda a: np.append(a, 0).astype(np.uint8)), Corrupt),
        (with_parts(idxs=lambda a: a.astype(np.int64)), Corrupt),
        (with_parts(idxs=lambda a: np.full_like(a, 255)), Corrupt),
        (with_parts(idxs=lambda a: np.zeros_like(a)), Corrupt),
        (with_parts(vals=lambda a: a.reshape(-1)[:-1]), Corrupt),
        (with_parts(vals=lambda a: a.reshape(-1)[:-4]), Corrupt),
        (with_parts(vals=lambda a: np.full_like(a, 4)), Corrupt),
        (with_parts(vals=lambda a: a.astype(F)), Corrupt),
        (with_parts(vals=lambda a: a.astype(F) * np.inf, quant_params=None), Corrupt),
        (with_parts(quant_params=(1, 2)), Corrupt),
        (with_parts(quant_params=lambda q: (F(np.nan), *q[1:])), Corrupt),
        (with_parts(quant_params=lambda q: (*q[:3], q[3].astype(float), q[4])), Corrupt),
        (with_parts(quant_params=lambda q: (*q[:3], np.full(4, np.inf, F), q[4])), Corrupt),
        (with_parts(quant_params="text!"), Corrupt),
        (with_parts(quant_params=lambda q: (np.zeros(4, F), *q[1:])), Corrupt),
        (with_parts(quant_params=lambda q: (q[0], "scale", *q[2:])), Corrupt),
        (with_parts(quant_params=lambda q: (q[0], np.inf, *q[2:])), Corrupt),
        (with_parts(quant_params=lambda q: (np.ma.masked, *q[1:])), Corrupt),
        (with_parts(quant_params=lambda q: (q[0] + 1j, *q[1:])), Corrupt),
        (with_parts(quant_params=lambda q: (q[0], 10**400, *q[2:])), Corrupt),
        (with_parts(quant_params=lambda q: (*q[:4], "int8")), Corrupt),
        (with_parts(quant_params=lambda q: (*q[:4], 10**5000)), Corrupt),
        (with_parts(quant_params=lambda q: (*q[:4], None)), Corrupt),
        (with_parts(idxs=[[1], [2, 3]]), Corrupt),
        (with_parts(idxs=np.zeros(0, np.uint8), vals=np.zeros((2, 1, 0), np.uint8)), Corrupt),
    ],
)
def test_damaged_messages_are_refused(
    change: Callable[[dict[str, Any]], None], error: type[FormatError]
) -> None:
    message = templar.encode(X, 6, 8)
    assert templar.decode(message, X.shape, chunk=8).shape == X.shape
    change(message)
    with np.errstate(invalid="ignore"), pytest.raises(error):
        templar.decode(message, X.shape, chunk=8)


@pytest.mark.parametrize(
    "offset", [3, 10**5000, "2", [2]], ids=["3", "many digits", "text", "list"]
)
def test_offset_is_half_of_the_bins(offset: Any) -> None:
    message = templar.encode(X, 6, 8)
    with_parts(quant_params=lambda q: (*q[:2], offset, *q[3:]))(message)
    for read in (templar.to_frame, templar.decode):
        with pytest.raises(Corrupt, match="offset"):
            read(message, X.shape, chunk=8)


def test_limits_bound_the_tensor() -> None:
    message = templar.encode(X, 6)
    with pytest.raises(LimitExceeded):
        templar.decode(message, X.shape, limits=Limits(max_elements=100))
    with pytest.raises(ParameterError, match="shape"):
        templar.decode(message, (2, 2, 2))
