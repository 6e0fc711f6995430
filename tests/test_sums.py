"""`gcodec.decode_sum` has the same bits as `gcodec.decode_add` in a loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from sweeps import examples, thinned

import gcodec
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codec import Codec
from gcodec.feedback import Transaction
from gcodec.frame import FrameSum, summation
from gcodec.kernels.bits import dequantize
from gcodec.runtime import cover

N = 1 << 20
SLICED = (
    *("sign", "sign:scale=none", "mxnet-1bit", "mxnet-2bit", "terngrad", "terngrad:pack=base3"),
    *("minmax", "minmax:bits=3,rounding=stochastic", "minmax:bits=5,bucket=100", "raw"),
    *("raw:dtype=bfloat16", "minmax:bits=1,bucket=300001"),
)
SPARSE = (
    *("topk", "randomk", "sparseloco:k=2,chunk=32", "qsgd:s=1,form=sparse"),
    *("qsgd:s=1,form=sparse,code=rice", "mxnet-2bit:threshold=3,form=sparse"),
)
WHOLE = ("topk:k=100", "terngrad:pack=terngrad", "qsgd:bucket=512", "randomk:ratio=0.1")


def looped(frames: Sequence[bytes], scales: Sequence[float]) -> np.ndarray:
    total = np.zeros(gcodec.Frame.from_bytes(frames[0]).shape, np.float32)
    for frame, scale in zip(frames, scales, strict=True):
        gcodec.decode_add(frame, total, scale)
    return total


def encoded(specs: Sequence[str], n: int, dtype: Any = np.float32) -> list[bytes]:
    rng = np.random.default_rng(n)
    return [
        gcodec.encode(rng.standard_normal(n, np.float32).astype(dtype), spec, seed=seed)
        for seed, spec in enumerate(specs)
    ]


@given(st.data())
@examples(80)
def test_law_of_sums(data: st.DataObject) -> None:
    """Codecs, dtypes, scales, the length of the parts and the alignment of `out` are arbitrary."""
    n = data.draw(gs.sizes())
    shape = data.draw(gs.shapes(n))
    frames, scales = [], []
    for _ in range(data.draw(st.integers(1, 5))):
        codec = data.draw(gs.codecs())
        values = gs.as_dtype(data.draw(gs.gradients(codec, size=n)), data.draw(gs.dtypes()))
        frames.append(gcodec.encode(values.reshape(shape), codec, seed=data.draw(gs.seeds())))
        scales.append(data.draw(st.sampled_from((1, -0.5, 0, 1e30, float("inf"), 1 / 3))))
    expected = looped(frames, scales)
    out = gs.placed(np.full(n, np.nan, np.float32), data.draw(st.integers(0, 15))).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PART", "_LONG_PART"):
            patch.setattr(summation, name, data.draw(st.sampled_from((32, 96, 1 << 18))))
        patch.setattr(cover, "_STREAMING", data.draw(st.sampled_from((1, 1 << 22))))
        assert gcodec.decode_sum(frames, out=out, scale=scales) is out
        assert gs.same_bits(out, expected)
        assert gs.same_bits(gcodec.decode_sum(frames, scale=scales), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_large_tensors(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that are added in parts and frames that are added whole keep their order."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", str(threads))
    specs = [*SLICED[:7], WHOLE[0], *SLICED[7:], *WHOLE[1:], "sign"]
    frames = encoded(specs, N + 77)
    scales = [(-1) ** k / (k + 1) for k in range(len(specs))]
    assert gs.same_bits(gcodec.decode_sum(frames, scale=scales), looped(frames, scales))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", SPARSE)
def test_sparse_frames_change_only_the_sent_elements(
    spec: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of zeros has no −0, so no zeros need to be added to it, except if 0·scale is NaN."""
    n, kind = 40_000, np.dtype(NUMPY_DTYPES[dtype])
    frames = encoded([spec] * 3, n, kind)
    for scales in ((1, -0.5, 3), (-1, -1, 0), (-0.0, 1e38, 7), (2, math.inf, 1), (1, math.nan, 1)):
        expected = looped(frames, scales)
        monkeypatch.setattr(Codec, "_dequantize_add", None)
        assert gs.same_bits(gcodec.decode_sum(frames, scale=scales), expected)
        monkeypatch.undo()
    assert 0 < np.count_nonzero(gcodec.decode(frames[0])) < n // 8


@pytest.mark.parametrize("spec", SPARSE)
def test_sparse_frames_add_zeros_to_arrays(spec: str) -> None:
    """−0 + 0 is 0, and an element plus NaN is NaN."""
    (frame,) = encoded([spec], 40_000)
    decoded = gcodec.decode(frame)
    for before, scale in itertools.product((-0.0, 1.0), (1.0, -1.0, 0.0, math.inf)):
        sums = np.full(40_000, before, np.float32)
        with np.errstate(all="ignore"):
            expected = sums + np.float32(scale) * decoded
        gcodec.decode_add(frame, sums, scale)
        assert gs.same_bits(sums, expected)


@pytest.mark.parametrize("spec", SPARSE)
def test_damage_of_sparse_frames_leaves_arrays_alone(spec: str) -> None:
    (frame,) = encoded([spec], 40_000)
    read, sums = gcodec.Frame.from_bytes(frame), np.full(40_000, -0.0, np.float32)
    short = read.payload.data[: read.payload.data.size // 2]
    damaged = replace(read, payload=read.payload._replace(data=short, nbits=8 * short.size))
    with pytest.raises(gcodec.FormatError):
        damaged.decode_add(sums)
    assert np.signbit(sums).all()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("spec", ["sign", "mxnet-1bit", "mxnet-2bit", "terngrad"])
def test_strings_of_levels_take_one_kernel(
    spec: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = encoded([spec] * count, 3 * dequantize._TILE + 45)
    calls = []
    adder = summation.adder

    def counted(*arguments: Any) -> Any:
        calls.append(len(arguments[0]))
        return adder(*arguments)

    monkeypatch.setattr(summation, "adder", counted)
    for stream, scale in itertools.product((1, 1 << 40), (1.0, -0.3, float("inf"))):
        monkeypatch.setattr(cover, "_STREAMING", stream)
        scales = [scale] * count
        assert gs.same_bits(gcodec.decode_sum(frames, scale=scale), looped(frames, scales))
    assert set(calls) == {count}


def test_symbols_with_memory_of_their_own_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that was decoded to an array of codes is added before the next one is decoded."""
    frames = encoded(["sign", "terngrad:pack=rans", "sign", "terngrad:pack=rans"], 70_000)
    added = FrameSum(np.empty(70_000, np.float32), (70_000,))
    pending = []
    for frame in frames:
        added.add(gcodec.Frame.from_bytes(frame))
        pending.append(len(added._pending))
    assert pending == [1, 0, 1, 0]


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_known_symbols_are_not_unpacked(
    codec: gcodec.Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(5).standard_normal((20, 60)).astype(np.float32)
    steps = Transaction(gcodec.Feedback(codec))
    frame, symbols = steps.compress_known("w", x)
    expected = looped([frame, frame], (0.5, -2))
    out, read = np.empty_like(x), gcodec.Frame.from_bytes(frame)
    total = FrameSum(out, x.shape)
    total.add(read, 0.5)
    monkeypatch.setattr(type(codec), "_unpack", None)
    total.add(read, -2, symbols)
    total.finish()
    assert gs.same_bits(out, expected)


def test_values_between_frames() -> None:
    frames = [gcodec.Frame.from_bytes(frame) for frame in encoded(["sign", "minmax"], 500)]
    values = np.full((20, 25), 1e-3, np.float32)
    expected = frames[0].decode()
    expected += values.reshape(-1)
    expected += frames[1].decode()
    total = np.full(500, np.nan, np.float32)
    added = FrameSum(total, (500,))
    added.add(frames[0])
    added.add_values(values)
    added.add(frames[1])
    added.finish()
    assert gs.same_bits(total, expected)
    alone = FrameSum(total, (500,))
    alone.add_values(-values)
    alone.finish()
    assert gs.same_bits(total, -values.reshape(-1))


def test_frames_and_generators() -> None:
    frames = encoded(["sign", "minmax", "topk"], 500)
    expected = looped(frames, [1, 1, 1])
    read = [gcodec.Frame.from_bytes(frame) for frame in frames]
    assert gs.same_bits(gcodec.decode_sum(read), expected)
    assert gs.same_bits(gcodec.decode_sum(iter([frames[0], *read[1:]])), expected)
    assert gs.same_bits(gcodec.decode_sum(gcodec.iter_frames(b"".join(frames))), expected)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("spec", thinned(SLICED, 3))
def test_other_dtypes(spec: str, dtype: str) -> None:
    frames = encoded([spec, "sign"], 70_000, dtype)
    frames += encoded([spec], 70_000)
    assert gs.same_bits(gcodec.decode_sum(frames), looped(frames, [1, 1, 1]))


def test_strided_result() -> None:
    frames = encoded(["sign", "topk", "mxnet-2bit"], 500)
    strided = np.full(1000, np.nan, np.float32)[::2]
    assert gcodec.decode_sum(frames, out=strided) is strided
    assert gs.same_bits(strided, looped(frames, [1, 1, 1]))


def test_scale_beyond_float32_is_infinite() -> None:
    """As in `decode_add`, without a warning of NumPy."""
    frames = [gcodec.encode(np.array([1, -1, 0], np.float32), "raw")]
    total = gcodec.decode_sum(frames, scale=1e300)
    assert total.tolist()[:2] == [math.inf, -math.inf] and math.isnan(total[2])


def test_errors_have_the_offset_in_their_frame() -> None:
    frame = gcodec.encode(np.ones(9, np.float32), "sign")
    with pytest.raises(gcodec.Truncated) as caught:
        gcodec.decode_sum([frame, frame[:-1]])
    assert str(caught.value) == "frame 1: the bytes end too early: 4 wanted, 3 left (at byte 22)"
    assert caught.value.offset == 22


def test_refusals() -> None:
    frames = encoded(["sign", "minmax"], 100)
    for wrong in (frames[0], None):
        with pytest.raises(
            TypeError, match=r"^frames is of type .*: must be an iterable of frames$"
        ):
            gcodec.decode_sum(wrong)
    with pytest.raises(gcodec.ParameterError, match="at least one frame"):
        gcodec.decode_sum([])
    with pytest.raises(gcodec.ParameterError, match=r"scale=\[1\]"):
        gcodec.decode_sum(frames, scale=[1])
    with pytest.raises(gcodec.ParameterError, match=r"scale=\[\[1\], \[1, 2\]\]: must be a num"):
        gcodec.decode_sum(frames, scale=[[1], [1, 2]])  # type: ignore[list-item]
    with pytest.raises(gcodec.ParameterError, match="scale"):
        gcodec.decode_sum(frames, scale="1")  # type: ignore[arg-type]
    with pytest.raises(gcodec.ParameterError, match=r"^frame 2: frame.shape=\(7,\): must be"):
        gcodec.decode_sum([*frames, *encoded(["sign"], 7)])
    with pytest.raises(gcodec.ParameterError, match=r"^frame 1: frame.dtype='int32'"):
        gcodec.decode_sum([frames[0], gcodec.encode(np.zeros(100, np.int32), "raw")])
    with pytest.raises(gcodec.ParameterError, match="out"):
        gcodec.decode_sum(frames, out=np.zeros(99, np.float32))
    with pytest.raises(gcodec.LimitExceeded, match="frame 0"):
        gcodec.decode_sum(frames, limits=gcodec.Limits(max_elements=99))


def test_invalid_arguments_leave_the_result_alone() -> None:
    frames, out = encoded(["topk", "qsgd"], 100), np.full(100, 3, np.float32)
    for others in (encoded(["sign"], 7), [gcodec.encode(np.zeros(100, np.int32), "raw")]):
        with pytest.raises(gcodec.ParameterError, match=r"^frame 2: frame\."):
            gcodec.decode_sum([*frames, *others], out=out)
    with pytest.raises(gcodec.ParameterError, match=r"^frame 1: scale='x': must be a number"):
        gcodec.decode_sum(frames, out=out, scale=[1, "x"])  # type: ignore[list-item]
    assert out.tolist() == [3] * 100


def test_damage_is_found_before_the_result_changes() -> None:
    frames = encoded(["sign", "minmax"], 100)
    out = np.ones(100, np.float32)
    damaged = bytearray(frames[1])
    damaged[-7] ^= 1
    with pytest.raises(gcodec.Corrupt, match="frame 1: the payload's checksum"):
        gcodec.decode_sum([*frames[:1], bytes(damaged)], out=out)
    assert (out == 1).all()


def test_keys() -> None:
    x = np.ones(9, np.float32)
    frames = [gcodec.encode(x, "sign", key=b"k") for _ in range(2)]
    assert gcodec.decode_sum(frames, key=b"k").tolist() == [2.0] * 9
    with pytest.raises(gcodec.Unsupported, match="frame 0"):
        gcodec.decode_sum(frames)
