"""Dense values are placed as symbols and then dequantized: the same tensors and errors."""

from __future__ import annotations

import random

import numpy as np
import pytest

import gcodec
from gcodec.kernels.prefix import run_level_place
from gcodec.runtime import cover
from gcodec.wire.seek import SeekTable

SPECS = (
    "qsgd:bucket=512",
    "qsgd:s=300,bucket=999",
    "qsgd:s=4,bucket=4096,code=rice",
    "qsgd:s=255",
)


def values(n: int) -> np.ndarray:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[5000:7000] *= np.float32(1e-35)  # norms whose factors are no normal float32
    return x


def frame_of(x: np.ndarray, spec: str, log2_block: int) -> gcodec.Frame:
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, f"{spec},form=sparse", seed=5))
    return frame.with_seek(log2_block)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Results of placing symbols first: 0 where that was not possible."""
    results: list[int] = []
    real = run_level_place._placed_closely

    def spy(*args: object) -> int:
        results.append(real(*args))
        return results[-1]

    monkeypatch.setattr(run_level_place, "_placed_closely", spy)
    return results


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_dense_values_match_values_placed_one_by_one(
    spec: str, streaming: bool, done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if streaming:
        monkeypatch.setattr(cover, "_STREAMING", 1)
    for n, log2_block in ((40_000, 5), (250_001, 12)):
        frame = frame_of(values(n), spec, log2_block)
        out = np.full(n + 5, np.nan, np.float32)
        gcodec.decode(frame.to_bytes(), out=out[5:])
        assert out[5:].tobytes() == frame.without_seek().decode().tobytes()
    assert any(done)


def test_sparse_values_and_silent_buckets_are_placed_one_by_one(done: list[int]) -> None:
    far = np.zeros(300_000, np.float32)
    far[::1000] = 1
    silent = values(40_000)
    silent[512:1024] = 0
    for x, spec in ((far, "qsgd:s=1000"), (silent, "qsgd:bucket=512")):
        frame = frame_of(x, spec, 8 if x is far else 15)
        assert frame.decode().tobytes() == frame.without_seek().decode().tobytes()
    assert not any(done)


def outcome(frame: gcodec.Frame, payload: gcodec.Payload) -> object:
    try:
        return frame.codec.decode(payload, frame.shape).tobytes()
    except gcodec.FormatError as error:
        return type(error), str(error)


@pytest.mark.parametrize("spec", SPECS[:2])
def test_damage_raises_the_same_errors(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    frame = frame_of(values(40_000), spec, 8)
    payload, outcomes, real = frame.payload, [], run_level_place._placed_closely
    for kind in ("payload", "lengths", "advances") * 30:
        data, seek = payload.data.copy(), payload.seek
        lengths, advances = seek.lengths.copy(), seek.advances.copy()
        if kind == "payload":
            data[rng.randrange(data.size // 4, data.size)] ^= 1 << rng.randrange(8)
        else:
            numbers = lengths if kind == "lengths" else advances
            block = rng.randrange(lengths.size - 1)
            numbers[block] += np.uint64(1)
            numbers[block + 1] -= np.uint64(1)
        damaged = payload._replace(data=data, seek=SeekTable(seek.log2_block, lengths, advances))
        closely = outcome(frame, damaged)
        monkeypatch.setattr(run_level_place, "_placed_closely", lambda *_: 0)
        assert outcome(frame, damaged) == closely
        monkeypatch.setattr(run_level_place, "_placed_closely", real)
        outcomes.append(closely)
    refused = [one for one in outcomes if isinstance(one, tuple)]
    assert len(refused) >= 60 and any("no block holds" in text for _, text in refused)
