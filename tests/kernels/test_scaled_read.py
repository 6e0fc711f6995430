"""Levels read and scaled in one loop: the same values and errors as in two consecutive loops."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

import gcodec
from gcodec.kernels.prefix import scaled_read
from gcodec.payload import Payload
from gcodec.runtime import cover
from gcodec.wire.seek import SeekTable

SPECS = (
    "qsgd:s=15",
    "qsgd:s=15,bucket=512",
    "qsgd:s=4,bucket=100",
    "qsgd:s=127,bucket=16,norm=max",
    "qsgd:s=3,bucket=33,norm=max",
    "qsgd:s=15,bucket=1000,code=rice",
    "qsgd:s=127,bucket=64,code=rice,norm=max",
    "qsgd:s=1,bucket=30000",
)
N = (32768, 40001, 3 * 20480 + 15, 204800)


def values(n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    return (rng.standard_normal(n) * np.exp(rng.standard_normal(n) / 3)).astype(np.float32)


def frame_of(x: np.ndarray, spec: str, log2_block: int = 12) -> bytes:
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, f"{spec},form=dense", seed=5))
    return frame.with_seek(log2_block).to_bytes()


@functools.cache
def frame_of_values(n: int, spec: str, log2_block: int) -> bytes:
    return frame_of(values(n), spec, log2_block)


@pytest.fixture(params=["write", "stream"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force a store instruction, which otherwise depends on the size of the tensor."""
    if request.param == "stream":
        monkeypatch.setattr(cover, "_STREAMING", 1)


@pytest.fixture
def two_loops(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a decoder that uses two loops; `done` lists the decodes that used one."""
    done = []
    real = scaled_read.read
    monkeypatch.setattr(scaled_read, "read", lambda *args: done.append(real(*args)))

    def decode(data: bytes) -> np.ndarray:
        with monkeypatch.context() as patch:
            patch.setattr(scaled_read, "is_readable", lambda *_: False)
            return gcodec.decode(data)

    decode.done = done
    return decode


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", N)
def test_one_loop_decodes_the_values_of_two_loops(n: int, spec: str, two_loops: object) -> None:
    for log2_block, offset in ((12, 0), (12, 12), (9, 5), (14, 1), (62, 3)):
        data = frame_of_values(n, spec, log2_block)
        out = np.full(n + 16, np.nan, np.float32)
        gcodec.decode(data, out=out[offset : offset + n])
        assert out[offset : offset + n].tobytes() == two_loops(data).tobytes()
        assert np.isnan(out[:offset]).all() and np.isnan(out[offset + n :]).all()
    assert len(two_loops.done) == 5


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("log2_block", [0, 1, 2, 3])
def test_short_blocks_write_nothing_outside_of_the_tensor(log2_block: int) -> None:
    """The elements before the first cache line must lie in the first group of blocks."""
    x = values(32768)
    data = frame_of(x, "qsgd:s=15", log2_block)
    expected = gcodec.decode(frame_of(x, "qsgd:s=15"))
    for offset in range(64, 64 + scaled_read.LINE):
        out = np.full(offset + x.size + 64, np.nan, np.float32)
        gcodec.decode(data, out=out[offset : offset + x.size])
        assert out[offset : offset + x.size].tobytes() == expected.tobytes()
        assert np.isnan(out[:offset]).all() and np.isnan(out[offset + x.size :]).all()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("threads", [2, 3])
def test_one_loop_on_several_threads(
    threads: int, two_loops: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frame_of(values(1_300_001), "qsgd:s=15,bucket=512")
    monkeypatch.setenv("GCODEC_NUM_THREADS", str(threads))
    assert gcodec.decode(data).tobytes() == two_loops(data).tobytes()
    assert len(two_loops.done) == 1


@pytest.mark.usefixtures("store")
def test_two_loops_decode_silent_tiny_and_narrow_buckets(two_loops: object) -> None:
    x = values(40_000)
    silent, tiny = x.copy(), x.copy()
    silent[512:1024] = 0
    tiny[512:1024] *= np.float32(1e-35)
    for y, spec in (
        (silent, "qsgd:s=15,bucket=512"),
        (tiny, "qsgd:s=15,bucket=512"),
        (x, "qsgd:s=128,bucket=512"),
        (x, "qsgd:s=15,bucket=15"),
        (x[:32767], "qsgd:s=15"),
    ):
        data = frame_of(y, spec)
        assert gcodec.decode(data).tobytes() == two_loops(data).tobytes()
    plain = gcodec.Frame.from_bytes(frame_of(x, "qsgd:s=15")).without_seek().to_bytes()
    assert gcodec.decode(plain).tobytes() == two_loops(plain).tobytes()
    assert not two_loops.done


def outcome(codec: gcodec.Codec, payload: Payload, shape: tuple[int, ...]) -> object:
    try:
        return codec.decode(payload, shape).tobytes()
    except gcodec.FormatError as error:
        return type(error)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("spec", SPECS[1:6:2])
def test_damage_raises_the_errors_of_two_loops(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    frame = gcodec.Frame.from_bytes(frame_of(values(70_000), spec))
    codec, payload, shape = frame.codec, frame.payload, frame.shape
    outcomes, is_readable = [], scaled_read.is_readable
    for kind in ("payload", "seek") * 30:
        data, seek = payload.data.copy(), payload.seek
        if kind == "payload":
            at = rng.randrange(4 * 70_000 // 30, data.size)
            data[at] ^= 1 << rng.randrange(8)
        else:
            lengths = seek.lengths.copy()
            block = rng.randrange(lengths.size - 1)
            lengths[block] += np.uint64(1)
            lengths[block + 1] -= np.uint64(1)
            seek = SeekTable(seek.log2_block, lengths)
        damaged = payload._replace(data=data, seek=seek)
        results = [outcome(codec, damaged, shape)]
        monkeypatch.setattr(scaled_read, "is_readable", lambda *_: False)
        results.append(outcome(codec, damaged, shape))
        monkeypatch.setattr(scaled_read, "is_readable", is_readable)
        assert results[0] == results[1]
        outcomes.append((results[0], kind))
    assert (gcodec.Corrupt, "seek") in outcomes and (gcodec.Corrupt, "payload") in outcomes
