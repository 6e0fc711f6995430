"""Range decoding: the same bits as a full decode, the bytes that are read, and refusals."""

from __future__ import annotations

import functools
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from sweeps import examples

import gcodec
from gcodec import Corrupt, Frame, LimitExceeded, Limits, ParameterError
from gcodec.kernels.rans.rans_runs import BLOCK
from gcodec.wire.seek import SeekTable

RUN = 1 << 16
SHAPE = (1100, 1264)
N = SHAPE[0] * SHAPE[1]  # five whole blocks and a few runs of a sixth
assert 5 * BLOCK + RUN < N < 5 * BLOCK + 2 * RUN - 1000

TABLES = [None, 5, 11, 16, 17, 18]
each_table = pytest.mark.parametrize("log2_block", TABLES)


@functools.cache
def frame_of(log2_block: int | None) -> Frame:
    """Return a frame of `ecsq` with about 2 bits per value and a table of such blocks."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(SHAPE, np.float32) * np.exp2(rng.normal(0, 1, (SHAPE[0], 1)))
    x = (x * np.exp2(rng.normal(0, 1, SHAPE[1]))).astype(np.float32)
    x.reshape(-1)[::9973] *= 10_000
    x.reshape(-1)[[RUN - 1, RUN, 3 * RUN, BLOCK - 1, BLOCK, N - 1]] = 5000
    frame = Frame.from_bytes(gcodec.encode(x, "ecsq:step=1"))
    assert frame.seek is not None
    assert frame.seek.log2_block == 16
    return frame.without_seek() if log2_block is None else frame.with_seek(log2_block)


@functools.cache
def flat() -> np.ndarray:
    """Return all values, decoded."""
    values: np.ndarray = frame_of(None).decode().reshape(-1)
    assert np.count_nonzero(values >= 4999) >= 6
    return values


def with_table(frame: Frame, table: SeekTable) -> Frame:
    """Return the frame with another table and correct checksums, read from its bytes."""
    return Frame.from_bytes(replace(frame, payload=frame.payload._replace(seek=table)).to_bytes())


def with_damage(frame: Frame, at: int) -> Frame:
    """Return the frame with one changed byte in its payload."""
    data = frame.payload.data.copy()
    data[at] ^= 0x5A
    return replace(frame, payload=frame.payload._replace(data=data))


# --- all codecs ---------------------------------------------------------------------------------


@given(st.data())
@examples(80)
def test_bits_equal_the_slice_of_decode(data: st.DataObject) -> None:
    codec, dtype = data.draw(gs.codecs()), data.draw(gs.dtypes())
    x = gs.as_dtype(data.draw(gs.gradients(codec)), dtype)
    x, key = x.reshape(data.draw(gs.shapes(x.size))), data.draw(gs.keys())
    frame = gcodec.encode(x, codec, key=key)
    stop = data.draw(st.integers(0, x.size))
    start = data.draw(st.integers(0, stop))
    actual = gcodec.decode_range(frame, start, stop, key=key)
    expected = gcodec.decode(frame, key=key).reshape(-1)[start:stop]
    assert actual.dtype == x.dtype
    assert actual.flags.writeable
    assert gs.same_bits(actual, expected)


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_range_of_every_codec(codec: Any) -> None:
    x = np.random.default_rng(1).standard_normal((30, 41), np.float32)
    frame = Frame.from_bytes(gcodec.encode(x, codec, seed=2))
    whole = frame.decode().reshape(-1)
    for start, stop in ((0, 0), (0, 1230), (41, 82), (1229, 1230), (1230, 1230)):
        assert gs.same_bits(frame.decode_range(start, stop), whole[start:stop])


@pytest.mark.parametrize("spec", ["ecsq:step=1", "raw"])
def test_invalid_ranges(spec: str) -> None:
    frame = gcodec.encode(np.ones((3, 4), np.float32), spec)
    for start in (-1, 13, 1.0, None, True, "0"):
        with pytest.raises(ParameterError, match=r"^start=.*from 0 to 12"):
            gcodec.decode_range(frame, start, 12)  # type: ignore[arg-type]
    for stop in (-1, 4, 13, 6.0, None, 2**70):
        with pytest.raises(ParameterError, match=r"^stop=.*from start=5 to 12"):
            gcodec.decode_range(frame, 5, stop)  # type: ignore[arg-type]
    assert gcodec.decode_range(frame, np.int64(5), np.uint8(7)).tolist() == [1, 1]
    with pytest.raises(LimitExceeded, match="12 elements"):
        gcodec.decode_range(frame, 5, 6, limits=Limits(max_elements=11))
    with pytest.raises(Corrupt, match="tag"):
        gcodec.decode_range(frame, 5, 6, key=b"k" * 16)
    for shape in ((0,), (4, 0)):
        nothing = gcodec.encode(np.empty(shape, np.float16), spec)
        actual = gcodec.decode_range(nothing, 0, 0)
        assert (actual.shape, actual.dtype) == ((0,), np.float16)


def test_checksums_cover_all_bytes() -> None:
    data = bytearray(frame_of(16).to_bytes())
    data[-100] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        gcodec.decode_range(data, 0, 1)


# --- ecsq ---------------------------------------------------------------------------------------


@each_table
@pytest.mark.parametrize("threads", ["1", "4"])
def test_ranges(log2_block: int | None, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    frame = frame_of(log2_block)
    borders = (0, RUN, 3 * RUN, BLOCK, 2 * BLOCK + RUN, 5 * BLOCK, 5 * BLOCK + RUN, N)
    edges = {at + k for at in borders for k in (-1, 0, 1) if 0 <= at + k <= N}
    ranges = [(at, at) for at in borders] + [(0, N), (1, N - 1), (RUN + 5, N)]
    sizes = (1, 2, 1264) if threads == "1" else (2,)  # threads share long ranges only
    ranges += [(at, min(at + size, N)) for at in edges for size in sizes]
    if log2_block is not None:
        ranges += [(at, at + size) for at in (1, BLOCK - 1) for size in (RUN, BLOCK + RUN)]
    for start, stop in ranges:
        assert gs.same_bits(frame.decode_range(start, stop), flat()[start:stop]), (start, stop)


@pytest.mark.parametrize("n", [1, 500, 70_000, BLOCK + 3 * RUN + 7])
@pytest.mark.parametrize("scale", [0, 0.05, 3])
def test_strings_with_few_rans_states(n: int, scale: float) -> None:
    x = np.random.default_rng(n).standard_normal(n, np.float32) * np.float32(scale)
    frame = Frame.from_bytes(gcodec.encode(x, "ecsq:step=1"))
    whole = frame.decode()
    for start, stop in ((0, n), (n // 2, n), (n - 1, n), (n // 3, n // 2), (n, n)):
        assert gs.same_bits(frame.decode_range(start, stop), whole[start:stop])


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    x = gs.as_dtype(np.linspace(-40, 40, 3 * BLOCK, dtype=np.float32), dtype)
    frame = gcodec.encode(x.reshape(3, -1), "ecsq:step=1")
    actual = gcodec.decode_range(frame, BLOCK, BLOCK + 300)
    assert gs.same_bits(actual, gcodec.decode(frame)[1, :300])


def test_reads_only_the_runs_of_the_range() -> None:
    """Other runs may be damaged, except the preceding run, which determines the first states."""
    frame = frame_of(16)
    assert frame.seek is not None
    first = frame.payload.data.size - int(frame.seek.offsets[-1]) // 8
    at = first + frame.seek.offsets // 8
    for run in (1, 4, 6, 7, 8, 20):
        start, stop = run * RUN, (run + 1) * RUN
        for other in range(22):
            damaged = with_damage(frame, int(at[other] + at[min(other + 1, 21)]) // 2)
            with pytest.raises(Corrupt):
                damaged.decode()
            if other == run or (other == run - 1 and run % 4):
                with pytest.raises(Corrupt):
                    damaged.decode_range(start, stop - RUN // 2)
                continue
            actual = damaged.decode_range(start + 1, stop)
            assert gs.same_bits(actual, flat()[start + 1 : stop])
    damaged = with_damage(frame, -3).without_seek()  # in the last block
    assert gs.same_bits(damaged.decode_range(RUN, 5 * BLOCK), flat()[RUN : 5 * BLOCK])
    with pytest.raises(Corrupt):
        damaged.decode_range(RUN, 5 * BLOCK + 1)


@each_table
def test_memory_is_proportional_to_the_range(
    log2_block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    frame = frame_of(log2_block)
    frame.decode_range(3 * RUN + 7, 3 * RUN + 9)  # compile the kernels
    tracemalloc.start()
    try:
        frame.decode_range(3 * RUN + 7, 3 * RUN + 9)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tables = 64 * 4096 * 6 + 64 * 256 * 16  # tables of the classes
    assert used < tables + 8 * BLOCK < 4 * N


# --- wrong tables -------------------------------------------------------------------------------


def test_wrong_states_in_the_seek_table() -> None:
    frame, rng = frame_of(16), np.random.default_rng(0)
    assert frame.seek is not None
    assert frame.seek.states is not None
    for run in (1, 2, 6, 7, 19):
        start, stop = run * RUN, (run + 1) * RUN
        ends = [run + 1] if (run + 1) % 4 else []
        for row in (run, *ends):
            for lane in rng.integers(0, 32, 8):
                states = frame.seek.states.copy()
                states[row, lane] ^= np.uint32(1) << np.uint32(rng.integers(0, 32))
                wrong = with_table(frame, replace(frame.seek, states=states))
                with pytest.raises(Corrupt):
                    wrong.decode_range(stop - 1, stop)
                with pytest.raises(Corrupt):
                    wrong.decode_range(start, start + 1)
    with pytest.raises(Corrupt, match="below"):
        states = np.zeros_like(frame.seek.states)
        with_table(frame, replace(frame.seek, states=states)).decode_range(2 * RUN, N)


def test_wrong_lengths_in_the_seek_table() -> None:
    frame = frame_of(16)
    assert frame.seek is not None
    for run, far in ((1, 2), (1, 4), (4, 5), (5, 4), (8, 12), (19, 20)):
        for moved in (8, 16, 64, 8000):
            lengths = frame.seek.lengths.copy()
            lengths[run] -= np.uint64(moved)
            lengths[far] += np.uint64(moved)
            wrong = with_table(frame, replace(frame.seek, lengths=lengths))
            with pytest.raises(Corrupt):
                wrong.decode_range(run * RUN + 3, run * RUN + 9)
            with pytest.raises(Corrupt):
                wrong.decode_range(far * RUN, N)
    lengths = frame.seek.lengths.copy()
    lengths[-1] -= np.uint64(16)
    with pytest.raises(Corrupt, match="bits"):
        with_table(frame, replace(frame.seek, lengths=lengths)).decode_range(0, 1)


@given(st.data())
@examples(60)
def test_damaged_tables_give_correct_values_or_an_error(data: st.DataObject) -> None:
    log2_block = data.draw(st.sampled_from([5, 11, 16, 17, 18]))
    frame = frame_of(log2_block)
    assert frame.seek is not None
    assert frame.seek.states is not None
    lengths, states = frame.seek.lengths.copy(), frame.seek.states.copy()
    rows = st.integers(0, lengths.size - 1)
    row = data.draw(rows)
    if data.draw(st.booleans()):
        other, bits = data.draw(rows), min(data.draw(st.integers(1, 3000)), int(lengths[row]))
        lengths[row] -= np.uint64(bits)
        lengths[other] += np.uint64(bits)
    if data.draw(st.booleans()):
        lengths[[row, -row]] = lengths[[-row, row]]
        states[[row, -row]] = states[[-row, row]]
    for _ in range(data.draw(st.integers(0, 3))):
        states[data.draw(rows), data.draw(st.integers(0, 31))] ^= np.uint32(
            1 << data.draw(st.integers(0, 31))
        )
    wrong = replace(
        frame, payload=frame.payload._replace(seek=SeekTable(log2_block, lengths, None, states))
    )
    start = min(max(0, (row << log2_block) + data.draw(st.integers(-RUN, RUN))), N)
    stop = min(start + data.draw(st.integers(1, 2 * RUN)), N)
    try:
        actual = wrong.decode_range(start, stop)
    except Corrupt:
        return
    assert gs.same_bits(actual, flat()[start:stop])
