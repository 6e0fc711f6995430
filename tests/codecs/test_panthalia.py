"""Panthalia's message: against the published algorithm, and on hostile messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import panthalia
from safetensors.numpy import load, save

from gcodec import FormatError, LimitExceeded, Limits, ParameterError
from gcodec.codecs.dct8 import from_panthalia, to_panthalia, to_safetensors

F = np.float32
Message = dict[str, np.ndarray]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def sorted_by_position(message: Message) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and levels, sorted by position within each chunk."""
    order = np.argsort(message["freq_idxs"], axis=1)
    arrays = message["freq_idxs"], message["freq_vals_int8"]
    places, levels = (np.take_along_axis(sample, order, axis=1) for sample in arrays)
    return places, levels


def relative_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest expected magnitude."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("magnitude", [1.0, 1e-3, 1e20])
@pytest.mark.parametrize(
    ("chunk", "k", "shape"),
    [(64, 32, (100, 130)), (64, 1, (5000,)), (16, 2, (37,)), (128, 50, (2600,)), (4, 16, (3, 5))],
)
def test_chained_steps(chunk: int, k: int, shape: tuple[int, ...], magnitude: float) -> None:
    their_residual = our_residual = None
    for step in range(8):
        x = noise(*shape, seed=step) * F(magnitude)
        expected, their_residual = panthalia.encode(x, their_residual, chunk, k)
        u = x if our_residual is None else x + our_residual
        message = to_panthalia(u, chunk, k)
        decoded = from_panthalia(message)
        our_residual = u - decoded
        for replace_first, other in zip(
            sorted_by_position(message), sorted_by_position(expected), strict=True
        ):
            np.testing.assert_array_equal(replace_first, other)
        for name in ("chunk_shape", "orig_shape", "pad_count"):
            np.testing.assert_array_equal(message[name], expected[name])
        assert relative_difference(decoded, panthalia.decode(expected)) < 3e-5
        assert relative_difference(from_panthalia(expected), panthalia.decode(expected)) < 3e-5
        assert relative_difference(decoded, panthalia.decode(message)) < 3e-5


def test_message() -> None:
    x = noise(3, 50)
    message = to_panthalia(x, 8, 5)
    kinds = {name: (array.dtype.name, array.shape) for name, array in message.items()}
    assert kinds == {
        "freq_idxs": ("int64", (3, 5)),
        "freq_vals_int8": ("int8", (3, 5)),
        "freq_scales": ("float32", (3,)),
        "freq_zero_points": ("float32", (3,)),
        "chunk_shape": ("int64", (2,)),
        "orig_shape": ("int64", (2,)),
        "pad_count": ("int64", ()),
    }
    assert message["chunk_shape"].tolist() == [8, 8]
    assert (message["orig_shape"].tolist(), int(message["pad_count"])) == ([3, 50], 42)


def test_safetensors() -> None:
    message = to_panthalia(noise(3, 50), 8, 5)
    data = to_safetensors(message)
    read = load(data)
    assert read.keys() == message.keys()
    for name, array in message.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    np.testing.assert_array_equal(from_panthalia(data), from_panthalia(message))


@pytest.mark.parametrize("chunk", [64, "64", (7,), (3, 5), [2, 3, 4]])
def test_chunks_of_any_dimensions(chunk: Any) -> None:
    x = noise(100)
    message = to_panthalia(x, chunk, 10**6)
    assert len(message["chunk_shape"]) == (2 if chunk == 64 else np.size(message["chunk_shape"]))
    np.testing.assert_allclose(from_panthalia(message), x, atol=0.1)


@pytest.mark.parametrize("shape", [(), (0,), (1,)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    assert from_panthalia(to_panthalia(x, 4)).shape == shape


def test_pad_count_may_be_missing() -> None:
    message = to_panthalia(noise(9), 2, 4)
    expected = from_panthalia(message)
    del message["pad_count"]
    np.testing.assert_array_equal(from_panthalia(message), expected)


def test_impossible_messages_are_refused() -> None:
    for bad in (np.nan, np.inf, 3e38):
        with pytest.raises(ParameterError):
            to_panthalia(np.full(64, bad, F), 8, 4)
    for chunk, k in ((0, 1), (5000, 1), ((2, 2, 2, 2), 1), (8, 0), ("a", 1)):
        with pytest.raises(ParameterError):
            to_panthalia(noise(64), chunk, k)


def replace_field(name: str, value: Any) -> Callable[[Message], None]:
    """Return a change that replaces a field."""

    def change(message: Message) -> None:
        message[name] = np.asarray(value, message[name].dtype)

    return change


def replace_first(name: str, value: Any) -> Callable[[Message], None]:
    """Return a change that replaces the first element of a field."""

    def change(message: Message) -> None:
        message[name].reshape(-1)[0] = value

    return change


def delete_field(name: str) -> Callable[[Message], None]:
    """Return a change that deletes a field."""
    return lambda message: message.__delitem__(name)


HOSTILE = {
    "no values": delete_field("freq_vals_int8"),
    "index beyond": replace_first("freq_idxs", 64),
    "index below": replace_first("freq_idxs", -1),
    "index huge": replace_first("freq_idxs", 2**40),
    "index twice": lambda m: m["freq_idxs"].__setitem__((0, 0), m["freq_idxs"][0, 1]),
    "scale nan": replace_first("freq_scales", np.nan),
    "scale negative": replace_first("freq_scales", -1),
    "scale infinite": replace_first("freq_scales", np.inf),
    "scale too large": replace_first("freq_scales", 3e38),
    "least nan": replace_first("freq_zero_points", np.nan),
    "least infinite": replace_first("freq_zero_points", -np.inf),
    "too few scales": replace_field("freq_scales", [1.0]),
    "other chunk": replace_field("chunk_shape", [4, 4]),
    "chunk of nothing": replace_field("chunk_shape", [0, 8]),
    "chunk below": replace_field("chunk_shape", [-8, -8]),
    "chunk of none": replace_field("chunk_shape", []),
    "chunk huge": replace_field("chunk_shape", [2**62, 2**62]),
    "other shape": replace_field("orig_shape", [300]),
    "shape below": replace_field("orig_shape", [-2, -50]),
    "shape of 40": replace_field("orig_shape", [1] * 40),
    "pads": replace_field("pad_count", 3),
    "pads of one dimension": replace_field("pad_count", [42]),
    "indices of one dimension": lambda m: m.update(freq_idxs=m["freq_idxs"][0]),
    "indices as floats": lambda m: m.update(freq_idxs=m["freq_idxs"].astype(np.float64)),
    "other k": lambda m: m.update(freq_idxs=m["freq_idxs"][:, 1:]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_messages(kind: str) -> None:
    message = {name: array.copy() for name, array in to_panthalia(noise(3, 50), 8, 5).items()}
    from_panthalia(message)
    HOSTILE[kind](message)
    with pytest.raises(FormatError):
        from_panthalia(message)
    with pytest.raises(FormatError):
        from_panthalia(save({k: np.asarray(v, order="C") for k, v in message.items()}))


def test_hostile_bytes() -> None:
    data = to_safetensors(to_panthalia(noise(3, 50), 8, 5))
    for size in range(0, len(data), 13):
        with pytest.raises(FormatError):
            from_panthalia(data[:size])
    wrong = bytes(data).replace(b"BF16", b"").replace(b'"I8"', b'"F9"')
    with pytest.raises(FormatError):
        from_panthalia(wrong)


def test_limits() -> None:
    message = to_panthalia(noise(3, 50), 8, 5)
    with pytest.raises(LimitExceeded):
        from_panthalia(message, limits=Limits(max_elements=100))
    message["orig_shape"] = np.array([2**30, 2**20])
    with pytest.raises(LimitExceeded):
        from_panthalia(message)


def test_limits_hold_for_large_chunks() -> None:
    """A decoder works on whole chunks, of up to 2^24 elements, for a tensor of one element."""
    x, limits = np.ones(1, np.float32), Limits(max_elements=1)
    for side in (64, 256):
        decoded = from_panthalia(to_panthalia(x, side, 4), limits=limits)
        assert decoded.shape == (1,)
    with pytest.raises(LimitExceeded, match="the padded tensor has 66049 elements"):
        from_panthalia(to_panthalia(x, 257, 4), limits=limits)
    assert from_panthalia(to_panthalia(x, 257, 4)).shape == (1,)
