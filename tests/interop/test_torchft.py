"""torchft's rows: recorded ones, frames, and damaged messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gcodec
from gcodec import Corrupt, FormatError, LimitExceeded, Limits, ParameterError, Truncated
from gcodec.interop import torchft

PATH = Path(__file__).parents[1] / "golden" / "upstream" / "torchft-0.2.0.txt"
F = np.float32


class Recorded(NamedTuple):
    """What torchft makes of a tensor."""

    ranks: int
    x: np.ndarray
    message: np.ndarray
    decoded: np.ndarray


def recorded() -> Iterator[Recorded]:
    """Read the vectors."""
    for case in PATH.read_text("ascii").replace("\n  ", "").split("case ")[1:]:
        head, *lines = case.splitlines()
        ranks, sizes = head.split()
        shape = tuple(map(int, sizes.split("x")))
        x, message, decoded = (bytes.fromhex(line.split()[1]) for line in lines)
        values = [np.frombuffer(part, ">f4").astype(F).reshape(shape) for part in (x, decoded)]
        yield Recorded(int(ranks), values[0], np.frombuffer(message, np.uint8), values[1])


each = pytest.mark.parametrize("one", list(recorded()), ids=lambda one: f"{one.x.shape}")


@each
def test_messages_equal_the_recorded_ones(one: Recorded) -> None:
    assert torchft.encode(one.x, ranks=one.ranks).tobytes() == one.message.tobytes()
    decoded = torchft.decode(one.message, one.x.shape, ranks=one.ranks)
    assert decoded.tobytes() == one.decoded.tobytes()


@each
def test_frames_hold_the_recorded_messages(one: Recorded) -> None:
    frame = torchft.to_frame(one.message, one.x.shape, ranks=one.ranks, name="w")
    assert str(frame.codec) == "blockwise:kind=fp8,block=0"
    assert frame.decode().reshape(-1).tobytes() == one.decoded.reshape(-1).tobytes()
    assert torchft.from_frame(frame, ranks=one.ranks).tobytes() == one.message.tobytes()


def test_coded_frames_and_dtypes() -> None:
    x = np.random.default_rng(0).normal(size=(40, 50)).astype(F)
    frame = gcodec.encode(x, "blockwise:kind=fp8,block=0,code=rans")
    message = torchft.from_frame(frame)
    assert message.tobytes() == torchft.encode(x).tobytes()
    for dtype in ("float16", "bfloat16", "float64"):
        decoded = torchft.decode(message, x.shape, dtype=dtype)
        assert decoded.tobytes() == gcodec.decode(frame).astype(decoded.dtype).tobytes()
    half = x.astype(ml_dtypes.bfloat16)
    assert torchft.encode(half).tobytes() == torchft.encode(half.astype(F)).tobytes()
    for spec in ("blockwise:kind=fp8", "blockwise", "minmax"):
        with pytest.raises(ParameterError):
            torchft.from_frame(gcodec.encode(x, spec))
    with pytest.raises(ParameterError):
        torchft.from_frame(gcodec.encode(x[0], "blockwise:kind=fp8,block=0"))


@pytest.mark.parametrize(
    ("x", "ranks", "match"),
    [
        (np.ones((2, 2, 2), F), 1, "shape"),
        (np.ones((0, 2), F), 1, "shape"),
        (np.ones((2, 2), F), 0, "ranks"),
        (np.full((2, 2), np.inf, F), 1, "NaN or Inf"),
    ],
)
def test_wrong_arguments_are_refused(x: Any, ranks: int, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        torchft.encode(x, ranks=ranks)


def test_damaged_messages_are_refused() -> None:
    x = np.ones((3, 5), F)
    message = torchft.encode(x, ranks=2)
    for size in range(message.size):
        with pytest.raises(Truncated):
            torchft.decode(message[:size], x.shape, ranks=2)
    for at, byte, error in (
        (3, 255, Corrupt),  # a negative multiplier
        (10, 1, Corrupt),  # after the row
        (40, 1, Corrupt),  # a row of no rank's slice
    ):
        damaged = message.copy()
        damaged[at] = byte
        for function in (torchft.decode, torchft.to_frame):
            with pytest.raises(error):
                function(damaged, x.shape, ranks=2)
    with pytest.raises(FormatError):
        torchft.decode(np.append(message, 0), x.shape, ranks=2)
    with pytest.raises(LimitExceeded):
        torchft.decode(message, x.shape, ranks=2, limits=Limits(max_elements=3))
    with pytest.raises(ParameterError, match="dtype"):
        torchft.decode(message, x.shape, ranks=2, dtype="int8")
    nan = message.copy()
    nan[4] = 0x7F
    assert np.isnan(torchft.decode(nan, x.shape, ranks=2)[0, 0])
