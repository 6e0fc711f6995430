"""Error feedback: conservation, restarts, refused and undone steps, threads and forks."""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from sweeps import thinned

import gcodec
from fuzz.fork import fork
from gcodec import Feedback, ParameterError
from gcodec.arrays.source import Tensor
from gcodec.codec import residuals
from gcodec.codec.residuals import quantize_in_place
from gcodec.feedback import Transaction, derive_seed
from gcodec.frame import Frame
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, ValueStatistics
from gcodec.runtime import cover

G = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 20)


def state_of(feedback: Feedback) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in feedback.state_dict().items()}


# --- fused kernels -------------------------------------------------------------------------------

FUSED = [
    "minmax:bits=3",
    "minmax:bits=8,rounding=stochastic",
    "minmax:bits=4,bucket=50",
    "minmax:bits=5,bucket=64",
    "minmax:bits=2,bucket=4096,rounding=stochastic",
    "terngrad",
    "terngrad:clip=0,pack=base3",
    "terngrad:pack=terngrad",
    *(f"qsgd:s={s},bucket={bucket}" for s in (3, 300, 70000) for bucket in (0, 64, 100)),
    "microscale",
    "microscale:format=mxint8",
    "microscale:format=nvfp4",
    "microscale:format=nvfp4,tensor_scale=0.5,rounding=stochastic",
    *(f"blockwise:kind={kind},block=64" for kind in ("nf4", "fp4", "dynamic8", "fp8", "int8")),
    "blockwise:kind=int4,block=100",
    "blockwise:kind=uniform8",
    "dct8:chunk=8x8,k=5",
    "dct8:chunk=16x16,k=9,layout=tiles",
    "ecsq:step=0.3",
    "ecsq:step=0.004",
    "ecsq:trellis=yes",
    "ecsq:transform=dct,step=0.1",
]


@pytest.mark.parametrize("spec", FUSED)
@pytest.mark.parametrize("scale", [1.0, 1e-33, 0.0])
def test_fused_residual_equals_that_of_separate_passes(spec: str, scale: float) -> None:
    shape = (70, 11, 3, 3)
    x = np.random.default_rng(1).standard_normal(shape, np.float32).reshape(-1) ** 3
    x[::7] = -0.0
    x[3000:4000] *= np.float32(1e-34)
    x *= np.float32(scale)
    codec = gcodec.parse(spec)._with_shape(shape)
    top_bits = int(np.abs(x).max().view(np.uint32))
    fused, separate = x.copy(), x.copy()
    symbols = quantize_in_place(codec, fused, ValueStatistics(top_bits), "float32", 5, None)
    expected = codec._quantize(x, 5, None)
    decoded = np.empty_like(x)
    codec._dequantize(expected, decoded)
    separate += np.float32(-1) * decoded
    assert np.array_equal(fused.view(np.uint32), separate.view(np.uint32))
    packed = codec._pack(expected).resolved().data.tobytes()
    assert codec._pack(symbols).resolved().data.tobytes() == packed
    terms = x - np.float32(0.25), np.full(x.size, 0.5, np.float32), np.float32(0.5)
    values = terms[0] + terms[2] * terms[1]
    for left in (np.empty_like(x), terms[1]):
        update = ResidualUpdate(terms[1], terms[2], left)
        sums = codec._quantize_residual(Tensor(terms[0], "float32", shape), update, 5, None)
        expected = codec._quantize(values, 5, None)
        codec._dequantize(expected, decoded)
        assert np.array_equal(left.view(np.uint32), (values - decoded).view(np.uint32))
        assert codec._pack(sums).resolved().data.tobytes() == (
            codec._pack(expected).resolved().data.tobytes()
        )


@pytest.mark.parametrize("n", [30_011, 40_960])
def test_strides_of_several_tiles_have_the_errors_of_separate_passes(n: int) -> None:
    """A tile of one stride may read elements whose errors another one has written."""
    x = np.random.default_rng(2).standard_normal(n, np.float32)
    codec, errors = gcodec.parse("terngrad:pack=terngrad"), x.copy()
    statistics = ValueStatistics(int(np.abs(x).max().view(np.uint32)))
    symbols = quantize_in_place(codec, errors, statistics, "float32", 5, None)
    expected, decoded = codec._quantize(x, 5, None), np.empty_like(x)
    codec._dequantize(expected, decoded)
    assert np.array_equal(symbols.codes, expected.codes)
    assert np.array_equal(errors, x - decoded)


@pytest.mark.parametrize(
    "spec",
    [
        "minmax",
        "minmax:bits=4,bucket=64",
        "minmax:bits=4,bucket=50",
        "blockwise",
        "blockwise:kind=int8,block=96",
        "blockwise:kind=dynamic8,block=4096",
        "blockwise:nested=yes",
        "microscale:format=nvfp4",
        "minifloat:code=none",
    ],
)
def test_large_tensors_have_the_residuals_of_small_ones(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that are written past the cache, and fused passes, change no bit."""
    rng = np.random.default_rng(3)
    steps = rng.standard_normal((3, 70_001), np.float32)
    codec, residual = gcodec.parse(spec), np.zeros(70_001, np.float32)
    frames = [codec.pack(codec.quantize_residual(x, residual, decay=0.9)).data for x in steps]
    monkeypatch.setattr(cover, "_STREAMING", 1)
    feedback = Feedback(spec, decay=0.9)
    for x, data in zip(steps, frames, strict=True):
        payload = gcodec.Frame.from_bytes(feedback.compress("w", x)).payload
        assert payload.data.tobytes() == data.tobytes()
    assert feedback.residual("w").tobytes() == residual.tobytes()
    steps[0][69_999] = np.inf
    with pytest.raises(gcodec.ParameterError, match="1 NaN or Inf, the first at flat index 69999"):
        feedback.compress("w", steps[0])
    assert feedback.residual("w").tobytes() == residual.tobytes()


# --- conservation -------------------------------------------------------------------------------

EXACT = ["raw", "mxnet-2bit:threshold=0.25", "mxnet-2bit", "mxnet-2bit:threshold=4", "mxnet-1bit"]


# Codecs whose quantizers leave the errors of float32 and bfloat16 gradients.
LEFT = (
    *("minmax", "minmax:bits=4,bucket=64", "minmax:bits=5,bucket=4096,rounding=stochastic"),
    *("qsgd:form=dense", "qsgd:bucket=64", "qsgd:s=300,form=dense,bucket=100"),
    *("microscale", "microscale:format=mxfp4", "microscale:format=nvfp4", "blockwise"),
    *("microscale:format=mxint8,rounding=stochastic", "blockwise:kind=fp8,block=32"),
    *("blockwise:kind=dynamic8,block=4096", "blockwise:kind=int4,block=48"),
    *("minifloat", "minifloat:format=e4m3,code=huffman", "minifloat:style=ieee,scale=co3"),
    *("blockwise:kind=int8,block=0", "blockwise:kind=uniform8", "blockwise:nested=yes"),
)


@pytest.mark.parametrize("spec", EXACT)
@given(data=st.data())
def test_decoded_sum_plus_residual_equals_gradient_sum_exactly(
    spec: str, data: st.DataObject
) -> None:
    """Small multiples of 1/16 need no rounding, so the sums are exactly equal."""
    n = data.draw(st.sampled_from([1, 17, 129, 300]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    feedback = Feedback(spec)
    total, sent = np.zeros(n), np.zeros(n)
    for _ in range(8):
        grad = (rng.integers(-40, 41, n) / 16).astype(np.float32)
        total += grad
        sent += gcodec.decode(feedback.compress("w", grad))
        assert np.array_equal(sent + feedback.residual("w"), total)


@given(gs.codecs(), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 0.9, 0.5]))
def test_decoded_sum_plus_residual_equals_gradient_sum(
    codec: gcodec.Codec, seed: int, decay: float
) -> None:
    rng = np.random.default_rng(seed)
    feedback = Feedback(codec, decay=decay)
    kept = np.zeros(130, np.float32)
    for _ in range(5):
        grad = rng.standard_normal(130, np.float32)
        grad[::9] = 0
        decoded = gcodec.decode(feedback.compress("w", grad)).astype(np.float64)
        corrected = (grad + np.float32(decay) * kept).astype(np.float64)
        residual = feedback.residual("w")
        # The subtraction rounds once.
        assert np.all(np.abs(corrected - decoded - residual) <= np.spacing(np.abs(residual)))
        kept = residual.copy()


@pytest.mark.parametrize("dtype", gs.DTYPES)
@pytest.mark.parametrize(
    "spec",
    [
        *("raw", "raw:dtype=bfloat16", "mxnet-2bit:threshold=0.3"),
        *("terngrad", "terngrad:clip=0,pack=terngrad", "terngrad:clip=0.5,pack=base3"),
        *("minmax", "minmax:bits=3,bucket=7", "minmax:bits=2,bucket=100,rounding=stochastic"),
        *("sign", "sign:scale=l2", "sign:scale=none"),
        *LEFT,
    ],
)
def test_residual_is_the_error_of_the_decoded_frame(dtype: str, spec: str) -> None:
    """This also holds if the frame's dtype rounds the decoded values."""
    feedback = Feedback(spec, decay=0.9)
    kept = np.zeros(G.shape, np.float32)
    for step in range(5):
        grad = (G * (step + 1)).astype(gs.DTYPES[dtype])
        decoded = gcodec.decode(feedback.compress("w", grad))
        assert decoded.dtype == grad.dtype
        corrected = grad.astype(np.float32) + np.float32(0.9) * kept
        kept = corrected - decoded.astype(np.float32)
        assert gs.same_bits(feedback.residual("w"), kept)


@pytest.mark.parametrize("dtype", (np.float16, ml_dtypes.bfloat16))
@pytest.mark.parametrize("spec", LEFT)
def test_errors_of_16_bit_gradients_in_several_segments(spec: str, dtype: Any) -> None:
    """Kernels round decoded values before they subtract them, also in the last block."""
    rng = np.random.default_rng(7)
    for n, scale in ((4133, 1e-2), ((1 << 17) + 77, 1e-30), (700, 3e35)):
        values = np.clip(rng.standard_normal(n) * np.exp(rng.standard_normal(n)), -9, 9) * scale
        if dtype is np.float16:
            values *= 1e-4 / scale if scale < 1e-9 else 3e2 / scale
        grad, feedback = values.astype(dtype), Feedback(spec)
        in_place, kept = np.zeros(n, np.float32), np.zeros(n, np.float32)
        for _ in range(2):
            decoded = gcodec.decode(feedback.compress("w", grad)).astype(np.float32)
            kept = grad.astype(np.float32) + kept - decoded
            assert gs.same_bits(feedback.residual("w"), kept)
        for seed in (3, 4):
            codec, former = gcodec.parse(spec), in_place.copy()
            symbols = codec.quantize_residual(grad, in_place, seed=seed)
            decoded = codec.dequantize(symbols, n).astype(dtype).astype(np.float32)
            assert gs.same_bits(in_place, grad.astype(np.float32) + former - decoded)


@pytest.mark.parametrize("dtype", (np.float16, ml_dtypes.bfloat16))
@pytest.mark.parametrize("spec", LEFT)
def test_processors_that_cannot_round_lanes_leave_the_same_errors(
    spec: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(9)
    grad = rng.standard_normal(4133).astype(dtype)
    results = []
    for can_round in (residuals.can_round, lambda dtype: False):
        monkeypatch.setattr(residuals, "can_round", can_round)
        feedback = Feedback(spec)
        frames = [feedback.compress("w", grad) for _ in range(2)]
        results.append((frames, feedback.residual("w").tobytes()))
    assert results[0] == results[1]


@pytest.mark.parametrize("spec", LEFT)
def test_sums_beyond_the_range_of_float16_are_refused(spec: str) -> None:
    """A value that decodes to more than 65504 has no float16; the residual then stays as it is."""
    rng = np.random.default_rng(8)
    for n in (33, 5000):
        grad = (rng.choice((-1, 1), n) * 65000).astype(np.float16)
        residual = (rng.choice((-1, 1), n) * 30000).astype(np.float32)
        kept = residual.copy()
        try:
            gcodec.parse(spec).quantize_residual(grad, residual)
        except ParameterError as error:
            assert "must not exceed the range" in str(error)
            assert gs.same_bits(residual, kept)
        else:
            assert np.isfinite(residual).all()


def test_zero_decay_keeps_no_memory() -> None:
    feedback = Feedback("mxnet-2bit:threshold=4", decay=0)
    for _ in range(20):
        assert not gcodec.decode(feedback.compress("w", G)).any()
        assert np.array_equal(feedback.residual("w"), G)


def test_small_gradients_accumulate_until_sent() -> None:
    feedback = Feedback("mxnet-2bit:threshold=1")
    grad = np.full(100, 0.125, np.float32)
    sent = sum(gcodec.decode(feedback.compress("w", grad)) for _ in range(80))
    assert np.all(sent == 10)


# --- frames -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_first_frame_equals_encode(codec: gcodec.Codec) -> None:
    for options in ({}, {"seed": 5, "rank": 2}):
        seed = derive_seed(**{"seed": 0} | options, name="layer/w")
        expected = gcodec.encode(G, codec, seed=seed, name="layer/w")
        assert Feedback(codec, **options).compress("layer/w", G) == expected
    frame = gcodec.Frame.from_bytes(expected)
    assert (frame.name, frame.shape, frame.dtype) == ("layer/w", G.shape, "float32")


def test_swapped_arguments_show_no_values() -> None:
    message = "^name=<ndarray>: must be a string that UTF-8 can write$"
    with pytest.raises(gcodec.ParameterError, match=message):
        gcodec.Feedback("sign").compress(np.ones(4, np.float32), "a")  # type: ignore[arg-type]


def test_names_are_independent() -> None:
    both, one = Feedback("mxnet-2bit"), Feedback("mxnet-2bit")
    for step in range(4):
        grad = G * (step + 1)
        frame = one.compress("a", grad)
        both.compress("b", grad * 3)
        assert both.compress("a", grad) == frame
    assert both.residual("b").shape == G.shape
    assert not np.array_equal(both.residual("a"), both.residual("b"))


def test_seeds_differ_by_rank_step_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sign = gcodec.codecs()["sign"]
    original = sign._quantize_residual

    def spy(self: Any, tensor: Any, update: Any, seed: int, prior: Any) -> Any:
        seen.append(seed)
        return original(self, tensor, update, seed, prior)

    monkeypatch.setattr(sign, "_quantize_residual", spy)
    for seed in (0, 1):
        for rank in (0, 1):
            feedback = Feedback("sign", seed=seed, rank=rank)
            for name in ("a", "b", ""):
                for _ in range(3):
                    feedback.compress(name, G)
    assert len(set(seen)) == len(seen) == 36
    assert seen[0] == derive_seed(0, name="a", step=0, rank=0)
    assert seen[1] == derive_seed(0, name="a", step=1, rank=0)
    assert all(0 <= seed < 2**64 for seed in seen)


def test_prior_is_the_previous_steps_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    sign = gcodec.codecs()["sign"]
    original = sign._quantize_residual

    def spy(self: Any, tensor: Any, update: Any, seed: int, prior: Any) -> Any:
        symbols = original(self, tensor, update, seed, prior)
        seen.append((prior, symbols))
        return symbols

    monkeypatch.setattr(sign, "_quantize_residual", spy)
    feedback = Feedback("sign")
    feedback.compress("b", G)
    feedback.compress("b", G)
    assert seen.pop()[0] is None is seen.pop()[0]  # symbols that nothing reads are not kept
    monkeypatch.setattr(sign, "uses_prior", True)
    for _ in range(3):
        feedback.compress("a", G)
    assert seen[0][0] is None
    assert seen[1][0] is seen[0][1]
    assert seen[2][0] is seen[1][1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("spec", ["raw", "lossless", "lossless:mode=fast", "topk:ratio=1"])
def test_codecs_without_error_get_the_gradient_itself(spec: str, dtype: str) -> None:
    values = np.array([0.0, -0.0, 0.1, -7.0]), np.zeros(4), np.array([-0.0, 1e-3, 3.0, 2**-133])
    gradients = [x.reshape(2, 2).astype(gs.DTYPES[dtype]) for x in values]
    feedback = Feedback(spec, track=True)
    for x in gradients:
        decoded = gcodec.decode(feedback.compress("w", x))
        assert gs.same_bits(decoded, gcodec.decode(gcodec.encode(x, spec)))
        assert feedback.l1_norms("w").residual == 0
        left = feedback.residual("w")
        assert left.shape == (2, 2) and not left.any() and not left.flags.writeable
    assert "0 bytes" in repr(feedback)
    for other in (pickle.loads(pickle.dumps(feedback)), Feedback(spec)):
        other.load_state_dict(feedback.state_dict())  # now the zeros are an array
        for x in gradients:
            assert other.compress("w", x) == feedback.compress("w", x)
            assert "0 bytes" in repr(other)


@pytest.mark.parametrize("spec", ["raw", "lossless"])
@pytest.mark.parametrize("grouped", [False, True])
def test_codecs_without_error_send_what_others_left(spec: str, grouped: bool) -> None:
    feedback, plain = Feedback("sign"), Feedback("sign")
    grads = {name: np.linspace(-1, 1, 5, dtype=np.float32) * len(name) for name in ("a", "bb")}

    def step(one: Feedback, codec: str) -> dict[str, np.ndarray]:
        one.codec = gcodec.parse(codec)
        return gcodec.decode_many(one.compress_many(grads, group_below=grouped * 4096))

    for one in (feedback, plain):
        step(one, "sign")
    left = {name: feedback.residual(name).copy() for name in grads}
    assert all(residual.any() for residual in left.values())
    sent = step(feedback, spec)
    assert all(gs.same_bits(sent[name], grads[name] + left[name]) for name in grads)
    for _ in range(2):
        sent = step(feedback, spec)
        assert all(gs.same_bits(sent[name], grads[name]) for name in grads)
        assert "0 bytes" in repr(feedback)
    # A codec with an error begins again with zeros.
    fresh = Feedback("sign")
    sent, expected = step(feedback, "sign"), step(fresh, "sign")
    assert all(gs.same_bits(sent[name], expected[name]) for name in grads)
    for name in grads:
        assert gs.same_bits(feedback.residual(name), fresh.residual(name))


@pytest.mark.parametrize("grouped", [False, True])
def test_codecs_without_error_apply_the_policy_for_nonfinite_values(grouped: bool) -> None:
    fine = np.array([1.0, -0.0, 2.0], np.float32)
    wrong = np.array([np.nan, -0.0, np.inf], np.float32)

    def step(one: Feedback, x: np.ndarray) -> np.ndarray:
        if not grouped:
            return gcodec.decode(one.compress("w", x))
        return gcodec.decode_many(one.compress_many({"v": fine, "w": x}))["w"]

    refusing, rest = Feedback("topk:ratio=1"), Feedback("sign")
    for one, before in ((refusing, fine), (rest, np.array([3.0, 1.0, -1.0], np.float32))):
        step(one, before)
    rest.codec = gcodec.parse("lossless")  # which sends the residual of `sign` first
    for one in (refusing, rest):
        before = state_of(one)
        with pytest.raises(ParameterError, match="grad of 'w' holds 2 NaN or Inf"):
            step(one, wrong)
        assert state_of(one) == before
    for policy in ("zero", "propagate", "raise"):  # as `gcodec.encode` does
        one = Feedback("lossless", nonfinite=policy)  # type: ignore[arg-type]
        expected = np.array([0, -0.0, 0], np.float32) if policy == "zero" else wrong
        assert gs.same_bits(step(one, wrong), expected)
        assert gs.same_bits(step(one, fine), fine)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_lossless_keeps_the_bits_of_nan(dtype: str) -> None:
    kind = gs.DTYPES[dtype]
    bits = np.arange(1 << 10).astype(f"u{np.dtype(kind).itemsize}")
    bits |= np.array(np.inf, kind).view(bits.dtype)  # signaling NaN among them
    feedback = Feedback("lossless")
    for _ in range(2):
        decoded = gcodec.decode(feedback.compress("w", bits.view(kind)))
        assert np.array_equal(decoded.view(bits.dtype), bits)
    assert not feedback.residual("w").any()


def test_transaction_quantizes_no_tensor_of_a_codec_without_error(monkeypatch: Any) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(gcodec.codecs()["lossless"], "_quantize", lambda *call: calls.append(call))
    steps = Transaction(Feedback("lossless"))
    frame = steps.compress("w", G)
    assert gs.same_bits(gcodec.decode(frame), G) and not calls
    assert steps.compress_known("w", G)[0] == frame and len(calls) == 1


@pytest.mark.parametrize(
    "compress",
    [
        lambda steps: steps.compress("w", G),
        lambda steps: steps.compress_known("w", G)[0],
        lambda steps: steps.compress_many({"w": G}, group_below=0),
        lambda steps: steps.compress_shared({"w": G, "v": G[0]}, G.size + 1, None)[0].frames,
        lambda steps: steps.take_residual("w", G.shape).tolist(),
    ],
)
def test_transaction_rolls_all_of_its_steps_back(compress: Any) -> None:
    feedback = Feedback("sign", decay=0.5)
    feedback.compress("w", G)
    before = feedback.state_dict()
    for _ in range(2):
        steps = Transaction(feedback)
        result = compress(steps)
        steps.compress("w", 3 * G)
        steps.rollback()
        after = feedback.state_dict()
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[key], after[key]) for key in before)
        assert compress(Transaction(feedback)) == result
        feedback.load_state_dict(before)


def test_transaction_takes_what_is_left_over_times_the_decay() -> None:
    feedback = Feedback("sign", decay=0.5)
    feedback.compress("w", G)
    steps, owed = Transaction(feedback), feedback.residual("w") * np.float32(0.5)
    with pytest.raises(ParameterError, match=r"grad\.shape"):
        steps.take_residual("w", G.shape[1:])
    taken = steps.take_residual("w", G.shape)
    assert taken is not None and np.array_equal(taken, owed)
    assert steps.take_residual("w", G.shape) is None and not steps.knows("w")


def test_derived_seeds_are_pinned() -> None:
    import hashlib

    numbers = (3).to_bytes(8, "little") + (2**40).to_bytes(8, "little") + (1).to_bytes(8, "little")
    digest = hashlib.blake2b(numbers + "größe".encode(), digest_size=8).digest()
    assert derive_seed(3, name="größe", step=2**40, rank=1) == int.from_bytes(digest, "little")
    for wrong in (-1, 2**64, 0.5):
        with pytest.raises(ParameterError, match="seed"):
            derive_seed(wrong, name="w")  # type: ignore[arg-type]
    # Headers in JSON may contain names that UTF-8 cannot encode.
    assert derive_seed(0, name="\ud800") != derive_seed(0, name="\ud801")


# --- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_frame_after_restart_is_unchanged(codec: gcodec.Codec) -> None:
    feedback = Feedback(codec, seed=9, rank=1)
    scalar = np.float32(0.3)
    for step in range(3):
        feedback.compress("w", G * (step + 1))
    feedback.compress("b", scalar)
    feedback.compress("e", np.empty((0, 3), np.float32))
    state = feedback.state_dict()
    assert all(type(value) is np.ndarray for value in state.values())
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    restored = Feedback(codec, seed=9, rank=1)
    with np.load(file, allow_pickle=False) as saved:
        restored.load_state_dict(dict(saved))
    assert state_of(restored) == state_of(feedback)
    for name, grad in (("w", G * 7), ("b", scalar), ("e", np.empty((0, 3), np.float32))):
        assert restored.compress(name, grad) == feedback.compress(name, grad)
        assert restored.compress(name, grad) == feedback.compress(name, grad)
    assert state_of(restored) == state_of(feedback)


def test_state_dict_is_a_copy() -> None:
    feedback = Feedback("mxnet-2bit")
    feedback.compress("w", G)
    before = state_of(feedback)
    state = feedback.state_dict()
    assert set(state) == {"residual:w", "step:w"}
    assert state["residual:w"].dtype == np.float32
    assert state["residual:w"].shape == G.shape
    assert state["step:w"].shape == ()
    assert int(state["step:w"]) == 1
    state["residual:w"][...] = 5
    assert state_of(feedback) == before
    other = Feedback("mxnet-2bit")
    other.load_state_dict(state)
    state["residual:w"][...] = 6
    assert np.all(other.residual("w") == 5)
    view = feedback.residual("w")
    with pytest.raises(ValueError, match="read-only"):
        view[...] = 0
    assert Feedback("raw").state_dict() == {}


STATE = {"residual:w": np.zeros(3, np.float32), "step:w": np.array(1)}
PRIOR = gcodec.encode(np.ones(3, np.float32), "raw", name="w")


def test_state_dict_contains_the_prior() -> None:
    feedback = Feedback("powersgd:rank=1")
    feedback.compress("w", G)
    prior = feedback.state_dict()["prior:w"]
    assert prior.dtype == np.uint8
    assert prior.flags.writeable  # PyTorch warns of arrays that are not
    # The prior is the last frame except for the dtype: the next step starts from its Q.
    sent = gcodec.Frame.from_bytes(gcodec.Feedback("powersgd:rank=1").compress("w", G))
    assert gcodec.Frame.from_bytes(prior.tobytes()).payload.tobytes() == sent.payload.tobytes()
    cold = Feedback("powersgd:rank=1")
    cold.load_state_dict({k: v for k, v in feedback.state_dict().items() if k != "prior:w"})
    assert cold.compress("w", G) != feedback.compress("w", G)


def test_names_with_colons_in_state_dict() -> None:
    feedback, other = Feedback("mxnet-2bit"), Feedback("mxnet-2bit")
    for name in ("a:b", "residual:x", "step:", ""):
        feedback.compress(name, G)
    other.load_state_dict(feedback.state_dict())
    assert state_of(other) == state_of(feedback)
    assert np.array_equal(other.residual("residual:x"), feedback.residual("residual:x"))


@pytest.mark.parametrize(
    "state",
    [
        {"residual:w": np.zeros(3, np.float32)},
        {"step:w": np.array(1)},
        {"residual:w": np.zeros(3, np.float32), "step:v": np.array(1)},
        {"residual:w": np.zeros(3), "step:w": np.array(1)},
        {"residual:w": np.zeros(3, np.float32), "step:w": np.array(-1)},
        {"residual:w": np.zeros(3, np.float32), "step:w": np.array(1.0)},
        {"residual:w": np.zeros(3, np.float32), "step:w": np.array([1])},
        {"residual:w": "text", "step:w": np.array(1)},
        {"residual:w": [[1.0], [2.0, 3.0]], "step:w": np.array(1)},  # no array has this shape
        {"residual:w": np.zeros(3, np.float32), "step:w": np.array(2**64 - 1)},
        {"residual:w": np.zeros(3, np.float32), "step:w": np.array(2**62)},
        *(None, 5, [], {1: np.array(1)}),
        {"other:w": np.array(1)},
        {"w": np.zeros(3, np.float32)},
        {**STATE, "w": np.zeros(3, np.float32)},
        {**STATE, "w": np.array(1)},
        {**STATE, "w": np.frombuffer(PRIOR, np.uint8)},
        {**STATE, "prior:w": np.zeros(3, np.uint8)},
        {**STATE, "prior:w": np.zeros((1, 3), np.uint8)},
        {**STATE, "prior:w": np.frombuffer(gcodec.encode(G, "raw"), np.uint8)},
        {**STATE, "prior:v": np.frombuffer(gcodec.encode(np.ones(3), "raw"), np.uint8)},
        {**STATE, "prior:w": np.frombuffer(PRIOR, np.uint8)[None]},
        {**STATE, "prior:w": np.frombuffer(PRIOR, np.int8)},
    ],
)
def test_invalid_state_dict_changes_nothing(state: dict[str, Any]) -> None:
    feedback = Feedback("mxnet-2bit")
    feedback.compress("w", G)
    before = state_of(feedback)
    with pytest.raises(ParameterError, match="state"):
        feedback.load_state_dict(state)
    assert state_of(feedback) == before


@pytest.mark.parametrize("step", [0, 2**62 - 1])
def test_least_and_largest_step_counts_are_loaded(step: int) -> None:
    feedback = Feedback("sign")
    feedback.load_state_dict({**STATE, "step:w": np.array(step)})
    assert feedback.state_dict()["step:w"] == step


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_step_counts_of_any_integer_and_priors_are_loaded(dtype: type[np.generic]) -> None:
    feedback = Feedback("sign")
    prior = np.frombuffer(PRIOR, np.uint8)
    feedback.load_state_dict({**STATE, "step:w": np.array(200).astype(dtype), "prior:w": prior})
    state = feedback.state_dict()
    assert state["step:w"] == 200 and state["prior:w"].tobytes() == PRIOR


def test_shape_of_a_prior_is_checked_before_its_symbols_take_memory() -> None:
    frame = Frame.from_bytes(gcodec.encode(np.zeros(8, np.float32), "qsgd:form=dense,code=omega"))
    large = Frame(frame.codec, "float32", (1 << 40,), frame.payload, "w").to_bytes()
    state = {**STATE, "prior:w": np.frombuffer(large, np.uint8)}
    with pytest.raises(ParameterError, match="'prior:w': must be of a residual of its shape"):
        Feedback("ecsq").load_state_dict(state)


def test_dtype_of_residuals_is_named() -> None:
    state = {"residual:w": np.zeros(3), "step:w": np.array(1)}
    with pytest.raises(ParameterError, match="state='residual:w': must be residual:NAME of float"):
        Feedback("sign").load_state_dict(state)


def test_step_count_out_of_range_is_named() -> None:
    state = {"residual:w": np.zeros(3, np.float32), "step:w": np.array(-1)}
    with pytest.raises(ParameterError, match=re.escape("state['step:w']=-1: must be an integer")):
        Feedback("sign").load_state_dict(state)


# --- refusals -----------------------------------------------------------------------------------


def refused_step(feedback: Feedback, name: str, grad: Any, kind: Any, match: str) -> None:
    before = state_of(feedback)
    with pytest.raises(kind, match=match):
        feedback.compress(name, grad)
    assert state_of(feedback) == before


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_refused_step_changes_nothing(codec: gcodec.Codec) -> None:
    feedback, twin = Feedback(codec), Feedback(codec)
    for one in (feedback, twin):
        one.compress("w", G)
    bad = G.copy()
    bad[1, 3] = np.nan
    if not codec.keeps_every_bit:
        refused_step(feedback, "w", bad, ParameterError, "NaN or Inf")
        refused_step(feedback, "new", bad, ParameterError, "NaN or Inf")
    refused_step(feedback, "w", G.reshape(-1), ParameterError, "shape")
    refused_step(feedback, "w", G[:2], ParameterError, "shape")
    refused_step(feedback, "w", G.astype(np.int32), TypeError, "grad has dtype")
    refused_step(feedback, "w", None, TypeError, "grad is of type NoneType")
    refused_step(feedback, 3, G, ParameterError, "name")  # type: ignore[arg-type]
    assert feedback.compress("w", G * 2) == twin.compress("w", G * 2)
    with pytest.raises(ParameterError, match="name"):
        feedback.residual("new")


@pytest.mark.parametrize("spec", ["qsgd:bucket=512", "qsgd:bucket=64,form=dense"])
def test_buckets_without_a_norm_are_refused_before_the_residual_changes(spec: str) -> None:
    """Kernels add, quantize and find the norms in one pass; only then can norms be checked."""
    feedback, grad = Feedback(spec), np.random.default_rng(0).standard_normal(4096, np.float32)
    feedback.compress("w", grad)
    bad = grad.copy()
    for value in (np.nan, np.inf, -np.inf):
        bad[1000] = value
        refused_step(feedback, "w", bad, ParameterError, "1 NaN or Inf, the first at flat .* 1000")
    refused_step(feedback, "w", np.full_like(grad, 3e38), ParameterError, "norm must not exceed")


@pytest.mark.parametrize(
    ("codec", "dtype"),
    thinned(itertools.product([c for c in gs.FEW if c.refuses_nonfinite], gs.DTYPES), 3),
    ids=str,
)
def test_codecs_that_refuse_nonfinite_ignore_propagate(codec: gcodec.Codec, dtype: str) -> None:
    free, twin = Feedback(codec, nonfinite="propagate"), Feedback(codec)
    grad = G.astype(gs.DTYPES[dtype])
    for value in (np.nan, np.inf, -np.inf):
        assert free.compress("w", grad) == twin.compress("w", grad)
        bad = grad.copy()
        bad[2, -1] = value
        refused_step(free, "w", bad, ParameterError, "NaN or Inf")
        refused_step(free, "new", bad, ParameterError, "NaN or Inf")
        residual = np.full(G.shape, 0.25, np.float32)
        with pytest.raises(ParameterError, match="NaN or Inf"):
            codec.quantize_residual(bad, residual)
        assert np.all(residual == 0.25)
    assert free.compress("w", grad) == twin.compress("w", grad)


@pytest.mark.parametrize(
    ("codec", "dtype"), thinned(itertools.product(gs.FEW, gs.DTYPES), 3), ids=str
)
def test_large_residual_is_refused_or_encoded(codec: gcodec.Codec, dtype: str) -> None:
    """Values beyond the frame's dtype or float32 are refused before the residual changes."""
    grad = np.full(40, 6e4).astype(gs.DTYPES[dtype])
    for size in (1e5, 3e38):
        residual = np.resize(np.float32([size, -size, 1]), 40)
        before = residual.copy()
        try:
            codec.quantize_residual(grad, residual, decay=1.0)
        except ParameterError:
            assert gs.same_bits(residual, before)
        assert np.isfinite(residual).all()
    infinite = np.resize(np.float32([3e38, 1]), 40)
    if codec.refuses_nonfinite and dtype in ("float32", "float64"):
        before = infinite.copy()
        with pytest.raises(ParameterError, match="x"):
            codec.quantize_residual(infinite.astype(dtype), infinite)
        assert gs.same_bits(infinite, before)


@pytest.mark.parametrize("nonfinite", ["raise", "propagate"])
@pytest.mark.parametrize("group_below", [0, 4096])
def test_errors_name_the_gradient(group_below: int, nonfinite: Any) -> None:
    feedback, bad = Feedback("sign", nonfinite=nonfinite), G.copy()
    bad[1, 3] = np.nan
    place = f"the first at flat index {G.shape[1] + 3}: must be finite as float32; with nonfinite="
    with pytest.raises(ParameterError, match=rf"^grad of 'w' holds 1 NaN or Inf, {place}"):
        feedback.compress("w", bad)
    many = {"v": G, "w": bad, "u": G}
    with pytest.raises(ParameterError, match=rf"^grad of 'w' holds 1 NaN or Inf, {place}"):
        feedback.compress_many(many, group_below=group_below)
    with pytest.raises(TypeError, match=r"^grads\['u'\] has dtype int32"):
        feedback.compress_many({"v": G, "u": G.astype(np.int32)}, group_below=group_below)
    large = np.full(10, 3e38, np.float32)
    summed = Feedback("mxnet-2bit:threshold=1")
    summed.compress_many({"v": large / 10, "w": large}, group_below=group_below)
    with pytest.raises(ParameterError, match=r"^grad of 'w': must not exceed float32"):
        summed.compress_many({"v": large / 10, "w": large}, group_below=group_below)
    zeroed = Feedback("mxnet-2bit:threshold=1", nonfinite="zero")
    grads = {"v": np.append(large / 10, np.float32(np.nan)), "w": large}
    zeroed.compress_many(grads, group_below=group_below)
    with pytest.raises(ParameterError, match=r"^grad of 'w': must not exceed float32"):
        zeroed.compress_many(grads, group_below=group_below)


def test_name_without_utf8_changes_nothing() -> None:
    refused_step(Feedback("mxnet-2bit"), "\ud800", G, ParameterError, "name")


def test_residual_beyond_float32() -> None:
    feedback = Feedback("mxnet-2bit:threshold=1")
    grad = np.full(10, 3e38, np.float32)
    feedback.compress("w", grad)
    refused_step(feedback, "w", grad, ParameterError, "float32")
    feedback.compress("w", -grad)
    zero = Feedback("mxnet-2bit:threshold=1", nonfinite="zero")
    zero.compress("w", grad)
    refused_step(zero, "w", grad, ParameterError, "float32")
    free = Feedback("mxnet-2bit:threshold=1", nonfinite="propagate")
    free.compress("w", grad)
    free.compress("w", grad)
    assert np.isinf(free.residual("w")).all()


@pytest.mark.parametrize("nonfinite", ["raise", "zero"])
@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_sums_beyond_float32_are_refused(codec: gcodec.Codec, nonfinite: Any) -> None:
    feedback, large = Feedback(codec, nonfinite=nonfinite), np.full(G.shape, 3e38, np.float32)
    feedback.load_state_dict({"residual:w": large, "step:w": np.array(1)})
    refused_step(feedback, "w", large, ParameterError, "^grad of 'w': must not exceed float32")


@pytest.mark.parametrize(
    ("spec", "dtype", "value"),
    [
        ("raw:dtype=float16", np.float32, 1e5),
        ("mxnet-2bit:threshold=70000", np.float16, 6e4),
    ],
)
def test_finite_gradients_keep_the_residual_finite(spec: str, dtype: Any, value: float) -> None:
    """Decoded values may overflow the payload's or the frame's dtype."""
    feedback = Feedback(spec)
    grad = np.full(4, value, dtype)
    for _ in range(3):
        try:
            feedback.compress("w", grad)
        except ParameterError:
            continue
        assert np.isfinite(feedback.residual("w")).all()


def test_nonfinite_policies() -> None:
    bad = G.copy()
    bad[0, :3] = [np.nan, np.inf, -np.inf]
    zeroed = np.where(np.isfinite(bad), bad, np.float32(0))
    zero, clean = Feedback("mxnet-2bit", nonfinite="zero"), Feedback("mxnet-2bit")
    assert zero.compress("w", bad) == clean.compress("w", zeroed)
    assert state_of(zero) == state_of(clean)
    free = Feedback("mxnet-2bit", nonfinite="propagate")
    decoded = gcodec.decode(free.compress("w", bad))
    assert decoded[0, :3].tolist() == [0, 0.5, -0.5]
    kept = free.residual("w")[0, :3]
    assert np.isnan(kept[0])
    assert kept[1:].tolist() == [np.inf, -np.inf]
    decoded = gcodec.decode(free.compress("w", np.zeros_like(G)))
    assert decoded[0, :3].tolist() == [0, 0.5, -0.5]


@pytest.mark.parametrize("spec", ["raw", "mxnet-1bit", "microscale"])
def test_propagated_values_are_sent_as_encode_sends_them(spec: str) -> None:
    bad = G.copy()
    bad[0, :3] = [np.nan, np.inf, -np.inf]
    frame = Feedback(spec, nonfinite="propagate").compress("w", bad)
    assert frame == gcodec.encode(bad, spec, name="w", nonfinite="propagate")


@pytest.mark.parametrize(
    "arguments",
    [
        {"decay": -0.1},
        {"decay": 1.1},
        {"decay": float("nan")},
        {"decay": "1"},
        {"decay": True},
        {"decay": None},
        {"rank": -1},
        {"rank": 1.0},
        {"rank": True},
        {"rank": 2**64},
        {"seed": -1},
        {"seed": 2**64},
        {"nonfinite": "skip"},
        {"nonfinite": np.zeros(2)},
    ],
    ids=str,
)
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(arguments))):
        Feedback("raw", **arguments)


def test_gradient_is_not_retained() -> None:
    feedback = Feedback("mxnet-2bit:threshold=8", decay=1)
    grad = G.copy()
    feedback.compress("w", grad)
    grad[...] = 99
    assert np.array_equal(feedback.residual("w"), G)


def test_l1_norms() -> None:
    feedback = Feedback("sign", decay=0.5, track=True)
    rng = np.random.default_rng(3)
    for name, n in (("w", 3000), ("b", 5), ("none", 0)):
        for _ in range(3):
            grad = rng.standard_normal((n, 1), np.float32)
            feedback.compress(name, grad)
            norms = feedback.l1_norms(name)
            assert norms.gradient == pytest.approx(np.abs(grad, dtype=np.float64).sum(), rel=1e-14)
            kept = np.abs(feedback.residual(name), dtype=np.float64)
            assert norms.residual == pytest.approx(kept.sum(), rel=1e-14)
    memory, residual = feedback.memory("w"), feedback.residual("w")
    feedback.compress("w", np.ones((3000, 1), np.float32))
    feedback.restore("w", memory)  # the last gradient stays the one of the undone step
    kept = np.abs(residual, dtype=np.float64).sum()
    assert feedback.l1_norms("w") == (3000, pytest.approx(kept, rel=1e-14))
    feedback.load_state_dict(feedback.state_dict())
    with pytest.raises(ParameterError, match="track"):
        feedback.l1_norms("w")  # the gradient is not part of the state
    silent = Feedback("sign")
    silent.compress("w", grad)
    with pytest.raises(ParameterError, match="track"):
        silent.l1_norms("w")
    with pytest.raises(ParameterError, match="name='other'"):
        feedback.l1_norms("other")


@pytest.mark.parametrize("spec", ["mxnet-2bit", "qsgd:s=3", "dct8:chunk=4"])
def test_restored_step_changes_nothing(spec: str) -> None:
    random = np.random.default_rng(5)
    undone, plain = (gcodec.Feedback(spec, seed=3) for _ in range(2))
    for step in range(6):
        memory = undone.memory("w")
        kept = None if memory.residual is None else memory.residual.copy()
        for _ in range(step % 3):
            undone.compress("w", random.standard_normal((6, 4)).astype(np.float32))
        undone.restore("w", memory)
        if kept is not None:
            assert np.shares_memory(undone.residual("w"), memory.residual)  # nothing was copied
            assert gs.same_bits(memory.residual, kept)
        if step % 2:
            undone.forget("w", memory)
        gradient = random.standard_normal((6, 4)).astype(np.float32)
        assert undone.compress("w", gradient) == plain.compress("w", gradient)
        if step % 2 == 0:
            assert kept is None or gs.same_bits(memory.residual, kept)
            undone.forget("w", memory)
    for key, value in plain.state_dict().items():
        assert np.array_equal(undone.state_dict()[key], value)
    memory = gcodec.Feedback(spec).memory("w")
    undone.restore("w", memory)
    assert undone.state_dict() == {}


# --- reuse of arrays ----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["mxnet-2bit", "sign", "minifloat:code=none", "randomk", "dct8"])
def test_steps_alternate_between_two_arrays(spec: str) -> None:
    """The next step of any tensor of the same size writes to the array that a step has read."""
    feedback = gcodec.Feedback(spec)
    names = ("a", "b", "c")
    for name in names:
        feedback.compress(name, G)
    states, spares = feedback._tensors.states, feedback._tensors.spares
    arrays = [states[name].array for name in names]
    room = spares._arrays[None, G.size]
    assert len(room) == 1
    for _ in range(3):
        spare = room[0]
        for k, name in enumerate(names):
            feedback.compress(name, G)
            assert np.shares_memory(states[name].array, spare)
            arrays[k], spare = states[name].array, arrays[k]
        assert len(room) == 1
        assert np.shares_memory(room[0], spare)


@pytest.mark.parametrize("spec", ["mxnet-2bit", "sign", "qsgd"])
def test_returned_residual_never_changes(spec: str) -> None:
    feedback, plain = gcodec.Feedback(spec), gcodec.Feedback(spec)
    shown = []
    for step in range(4):
        for name in ("w", "v"):
            assert feedback.compress(name, G * step) == plain.compress(name, G * step)
        shown.append((feedback.residual("w"), plain._tensors.states["w"].array.copy()))
    for residual, expected in shown:
        assert gs.same_bits(residual, expected)


class Broken(BaseException):
    """An exception such as an interrupt."""


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
def test_interrupted_step_changes_nothing(
    codec: gcodec.Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    feedback, twin = Feedback(codec), Feedback(codec)
    for one in (feedback, twin):
        one.compress("w", G)
    before = state_of(feedback)
    is_exact = codec.contraction(G.size) == 1
    methods = ("_encode",) if is_exact else ("_quantize_residual", "_pack")
    for method, kind in itertools.product(methods, (MemoryError, Broken)):
        with monkeypatch.context() as patch:
            patch.setattr(type(codec), method, breaking(getattr(type(codec), method), kind))
            for name in ("w", "new"):
                with pytest.raises(kind):
                    feedback.compress(name, G * 3)
        assert state_of(feedback) == before
    assert feedback.compress("w", G * 2) == twin.compress("w", G * 2)


@pytest.mark.parametrize(
    "codec", [c for c in gs.FEW if "_quantize_residual" not in vars(type(c))], ids=str
)
def test_interrupted_update_in_place_changes_nothing(
    codec: gcodec.Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    residual = np.linspace(-1, 1, G.size).astype(np.float32)
    before = residual.copy()
    for kind in (MemoryError, Broken):
        with monkeypatch.context() as patch:
            method = breaking(type(codec)._replace_residual, kind)
            patch.setattr(type(codec), "_replace_residual", method)
            with pytest.raises(kind):
                codec.quantize_residual(G, residual)
        assert gs.same_bits(residual, before)


def breaking(method: Callable[..., Any], kind: type[BaseException]) -> Callable[..., Any]:
    """Return a method that raises an exception after the original has done its work."""

    def wrapped(*args: Any) -> Any:
        method(*args)
        raise kind

    return wrapped


# --- threads, copies and forks ------------------------------------------------------------------


@pytest.fixture
def hasty() -> Iterator[None]:
    """Make threads switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def in_threads(*works: Callable[[], Any]) -> None:
    """Run functions in parallel; raise the exception of one of them."""
    barrier, errors = threading.Barrier(len(works)), []

    def run(work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def sixteenths(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return values whose sums are exact."""
    return (rng.integers(-40, 41, n) / 16).astype(np.float32)


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "mxnet-2bit:threshold=0.25", "powersgd"])
@pytest.mark.parametrize("names", [1, 3])
def test_threads_that_share_names_lose_no_step(spec: str, names: int, hasty: None) -> None:
    """Each call is one step of its name, and no spare array serves two names."""
    n, feedback = 4000, Feedback(spec, seed=1)
    frames: list[bytes] = []
    total = {f"w{k}": np.zeros((n // 20, 20)) for k in range(names)}

    def work(thread: int) -> None:
        rng = np.random.default_rng(thread)
        own = {name: np.zeros_like(array) for name, array in total.items()}
        for call in range(25):
            name, grad = f"w{(thread + call) % names}", sixteenths(rng, n).reshape(-1, 20)
            frames.append(feedback.compress(name, grad))
            own[name] += grad
        for name, array in own.items():
            with lock:
                total[name] += array

    lock = threading.Lock()
    in_threads(*(lambda k=k: work(k) for k in range(8)))
    sent = {name: np.zeros_like(array) for name, array in total.items()}
    for data in frames:
        frame = gcodec.Frame.from_bytes(data)
        assert frame.name is not None
        sent[frame.name] += frame.decode()
    state = feedback.state_dict()
    assert sum(int(state[f"step:{name}"]) for name in total) == len(frames) == 200
    for name, array in total.items():
        error = np.abs(sent[name] + feedback.residual(name) - array).max()
        assert error <= (0 if spec != "powersgd" else 0.01)


def test_queries_while_threads_compress(hasty: None) -> None:
    n, feedback = 900, Feedback("mxnet-2bit:threshold=4", track=True)
    feedback.compress("w", np.ones(n, np.float32))
    done = threading.Event()

    def compress() -> None:
        for _ in range(200):
            feedback.compress("w", np.ones(n, np.float32))

    def once_done() -> None:
        try:
            in_threads(*[compress] * 3)
        finally:
            done.set()

    def ask() -> None:
        """Each residual belongs to one step: all elements equal the step count modulo 4."""
        while not done.is_set():
            shown = feedback.residual("w")
            value = shown[0]
            state = feedback.state_dict()
            assert state["step:w"] % 4 == state["residual:w"][0] % 4
            assert np.all(state["residual:w"] == state["residual:w"][0])
            norms = feedback.l1_norms("w")
            assert norms.gradient == n
            assert norms.residual in (0, n, 2 * n, 3 * n)
            for other in (copy.copy(feedback), pickle.loads(pickle.dumps(feedback))):
                kept = other.state_dict()
                assert kept["step:w"] % 4 == kept["residual:w"][0] % 4
                other.compress("w", np.ones(n, np.float32))
            assert np.all(shown == value)

    in_threads(once_done, ask, ask)
    assert feedback.state_dict()["step:w"] == 601


def test_restore_and_load_while_threads_compress(hasty: None) -> None:
    """In any order of the calls, the final state is one of complete steps."""
    n, feedback = 900, Feedback("mxnet-2bit:threshold=4")
    feedback.compress("w", np.ones(n, np.float32))
    first = feedback.state_dict()

    def compress() -> None:
        for _ in range(100):
            feedback.compress("w", np.ones(n, np.float32))

    def undo() -> None:
        for _ in range(100):
            memory = feedback.memory("w")
            feedback.restore("w", memory)
            feedback.forget("w", memory)

    def load() -> None:
        for _ in range(100):
            feedback.load_state_dict(first)

    in_threads(compress, compress, undo)
    in_threads(compress, compress, load, load)
    feedback.compress("w", np.ones(n, np.float32))
    state = feedback.state_dict()
    assert np.all(state["residual:w"] == state["residual:w"][0])
    assert state["step:w"] % 4 == state["residual:w"][0] % 4


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("spec", ["mxnet-2bit", "sign", "qsgd", "powersgd"])
def test_copies_are_independent(spec: str, duplicate: Any) -> None:
    feedback, plain = Feedback(spec, seed=2), Feedback(spec, seed=2)
    for step in range(3):
        assert feedback.compress("w", G * step) == plain.compress("w", G * step)
    memory = feedback.memory("w")
    other = duplicate(feedback)
    feedback.forget("w", memory)
    for step in range(4):  # other gradients for one of them, and another tensor of the same size
        feedback.compress("w", -G)
        feedback.compress("v", G)
        assert other.compress("w", G * step) == plain.compress("w", G * step)


def test_residual_returned_while_its_memory_is_lent() -> None:
    for order in ("shown first", "memory first"):
        feedback = Feedback("mxnet-2bit:threshold=4")
        feedback.compress("w", G)
        if order == "shown first":
            shown, memory = feedback.residual("w"), feedback.memory("w")
        else:
            memory, shown = feedback.memory("w"), feedback.residual("w")
        feedback.compress("w", G)
        feedback.forget("w", memory)
        for _ in range(3):
            feedback.compress("w", G)
        assert np.array_equal(shown, G)


@pytest.mark.parametrize("steps", [0, 1])
def test_residual_returned_before_its_memory_is_restored_never_changes(steps: int) -> None:
    feedback = Feedback("mxnet-2bit:threshold=4")
    feedback.compress("w", G)
    memory, shown = feedback.memory("w"), feedback.residual("w")
    for _ in range(steps):
        feedback.compress("w", G)
    feedback.restore("w", memory)
    feedback.forget("w", memory)
    for _ in range(3):
        feedback.compress("w", G)
    assert np.array_equal(shown, G)


def test_steps_reuse_the_array_of_an_undone_step() -> None:
    feedback = Feedback("mxnet-2bit")
    feedback.compress("w", G)
    memory = feedback.memory("w")
    feedback.compress("w", G)
    undone = feedback._tensors.states["w"].array
    feedback.restore("w", memory)
    feedback.compress("w", G)
    assert np.shares_memory(feedback._tensors.states["w"].array, undone)


@pytest.mark.parametrize("names", [["b", "a", "c"], {"c": 1, "a": 2, "b": 3}])
def test_locks_of_several_names_are_taken_in_one_order(
    names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of the same names would otherwise wait for each other forever."""
    tensors, taken = Feedback("sign")._tensors, list[str]()
    own = tensors.lock
    monkeypatch.setattr(tensors, "lock", lambda name: taken.append(name) or own(name))
    tensors.while_locked(names, lambda: taken.append("work"))
    assert taken == ["a", "b", "c", "work"]


def is_taken(lock: threading.RLock) -> bool:
    """Return whether any thread holds a lock, by trying to take it in a new one."""
    taken: list[bool] = []

    def attempt() -> None:
        taken.append(not lock.acquire(blocking=False))
        if not taken[0]:
            lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return taken[0]


@pytest.mark.parametrize("group_below", [0, 4096])
def test_message_that_finds_no_memory_changes_no_residual(
    group_below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joined(parts: object) -> bytes:
        raise MemoryError

    feedback = Feedback("sign")
    feedback.compress_many({"a": G, "b": G})
    before = feedback.state_dict()
    monkeypatch.setattr("gcodec.feedback.feedback.joined", joined)
    with pytest.raises(MemoryError):
        feedback.compress_many({"a": G, "b": G, "c": G}, group_below=group_below)
    after = feedback.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_interrupts_leave_no_lock_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises them where a function begins, and after calls of functions written in C."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")  # signals interrupt the main thread only
    feedback, grads = Feedback("sign"), {"a": G, "b": G, "c": G}
    feedback.compress_many(grads, group_below=0)
    places = ("contextlib.py", "feedback.py", "states.py")
    count, stop = 0, -1

    def interrupt(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(places):
            count += 1
            if count == stop:
                raise KeyboardInterrupt

    def compress() -> None:
        nonlocal count
        count = 0
        sys.setprofile(interrupt)
        try:
            feedback.compress_many(grads, group_below=0)
        finally:
            sys.setprofile(None)

    compress()
    last = count
    for stop in range(1, last):
        before = feedback.state_dict()
        with pytest.raises(KeyboardInterrupt):
            compress()
        assert not any(is_taken(lock) for lock in feedback._tensors._locks.values()), stop
        after = feedback.state_dict()
        assert len({after[f"step:{name}"] - before[f"step:{name}"] for name in grads}) == 1
    assert last > 50


@pytest.mark.parametrize("call", ["compress", "compress_many"])
def test_signal_handlers_read_the_state_before_the_step(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may write a checkpoint; the thread that it interrupts holds the locks."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")  # so that the handler's thread runs the steps
    feedback = Feedback("sign")
    grads = {"w": G, "v": G}
    feedback.compress_many(grads, group_below=0)
    before, memory = feedback.state_dict(), feedback.memory("w")
    sign, seen = gcodec.codecs()["sign"], list[Any]()
    original = sign._pack

    def handle(self: Any, symbols: Any) -> Any:
        monkeypatch.setattr(sign, "_pack", original)
        seen.extend([feedback.state_dict(), copy.deepcopy(feedback).state_dict()])
        seen.append({"residual:w": feedback.residual("w")})
        for change in (
            lambda: feedback.compress("w", G),
            lambda: feedback.compress_many(grads),
            lambda: feedback.memory("w"),
            lambda: feedback.restore("w", memory),
            lambda: feedback.forget("w", memory),
        ):
            with pytest.raises(
                ParameterError, match=r"^name='[vw]': must be a tensor that no step"
            ):
                change()
        return original(self, symbols)

    monkeypatch.setattr(sign, "_pack", handle)
    if call == "compress":
        feedback.compress("w", G)
    else:
        feedback.compress_many(grads, group_below=0)
    feedback.forget("w", memory)
    for _ in range(3):
        feedback.compress("w", G)
    for state in seen:
        assert all(np.array_equal(state[key], before[key]) for key in state)
    assert feedback.state_dict()["step:w"] == 5


@pytest.mark.parametrize("loans", [1, 2])
def test_steps_reuse_the_array_of_a_released_memory(loans: int) -> None:
    feedback = Feedback("mxnet-2bit")
    feedback.compress("w", G)
    memories = [feedback.memory("w") for _ in range(loans)]
    feedback.compress("w", G)
    for memory in memories:
        feedback.forget("w", memory)
    feedback.compress("w", G)
    assert np.shares_memory(feedback._tensors.states["w"].array, memories[0].residual)


def test_steps_after_a_transaction_reuse_the_arrays_from_before_it() -> None:
    feedback = Feedback("mxnet-2bit")
    feedback.compress("w", G)
    before, steps = feedback._tensors.states["w"].array, Transaction(feedback)
    steps.compress("w", G)
    steps.commit()
    feedback.compress("w", G)
    assert np.shares_memory(feedback._tensors.states["w"].array, before)


def test_residuals_of_earlier_steps_live_as_long_as_their_readers() -> None:
    feedback = Feedback("mxnet-2bit")
    feedback.compress("w", G)
    shown = feedback.residual("w")
    array = weakref.ref(shown.base)
    feedback.compress("w", G)
    assert array() is not None
    del shown
    assert array() is None


class Guarded(dict[str, Any]):
    """States of tensors that only the holder of a name's lock may read or replace."""

    tensors: Any

    def check(self, name: str) -> None:
        assert is_taken(self.tensors.lock(name))  # on behalf of a thread of the pool, perhaps

    def get(self, name: str, default: Any = None) -> Any:
        self.check(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.check(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, state: Any) -> None:
        self.check(name)
        super().__setitem__(name, state)

    def pop(self, name: str, default: Any = None) -> Any:  # type: ignore[override]
        self.check(name)
        return super().pop(name, default)

    def update(self, states: Any) -> None:  # type: ignore[override]
        for name in states:
            self.check(name)
        super().update(states)


def test_states_are_read_and_replaced_under_the_locks_of_their_names() -> None:
    feedback = Feedback("mxnet-2bit", track=True)
    feedback.compress("w", G)
    tensors = feedback._tensors
    tensors.states = states = Guarded(tensors.states)
    states.tensors = tensors
    first, memory = Feedback("mxnet-2bit").memory("w"), feedback.memory("w")
    feedback.compress("w", G)
    feedback.compress_many({"w": G, "v": G})
    feedback.l1_norms("w")
    feedback.residual("w")
    assert feedback.state_dict().keys() == copy.copy(feedback).state_dict().keys()
    feedback.restore("w", memory)
    feedback.forget("w", memory)
    feedback.restore("w", first)
    assert feedback.memory("w").residual is None


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("forgets_first", [False, True])
def test_memory_is_not_restored_after_its_array_was_released(
    is_grouped: bool, forgets_first: bool
) -> None:
    """Another tensor's step may have written to that array."""
    feedback = Feedback("mxnet-2bit:threshold=4")

    def step() -> None:
        if is_grouped:
            feedback.compress_many({"w": G, "v": 2 * G, "u": 3 * G})
        else:
            feedback.compress("w", G)

    step()
    memory = feedback.memory("w")
    if forgets_first:
        feedback.forget("w", memory)
        feedback.restore("w", memory)  # no step has followed
        assert np.array_equal(feedback.residual("w"), G)
        memory = feedback.memory("w")
        feedback.forget("w", memory)
        step()
    else:
        step()
        feedback.forget("w", memory)
    before = state_of(feedback)
    with pytest.raises(ParameterError, match=r"^memory: must be restored before it is released"):
        feedback.restore("w", memory)
    assert state_of(feedback) == before
    for name in "abc":
        feedback.compress(name, 5 * G)
    assert np.array_equal(feedback.residual("w"), 2 * G)


def test_restored_memory_of_another_object_is_independent() -> None:
    feedback, other = Feedback("mxnet-2bit:threshold=4"), Feedback("mxnet-2bit:threshold=4")
    feedback.compress("w", G)
    memory = feedback.memory("w")
    other.restore("w", memory)
    feedback.compress("w", G)
    feedback.forget("w", memory)
    for name in "abc":
        feedback.compress(name, 5 * G)
    assert np.array_equal(other.residual("w"), G)


def test_memory_that_is_lent_twice_is_kept_until_both_are_returned() -> None:
    feedback = Feedback("mxnet-2bit:threshold=4")
    feedback.compress("w", G)
    first, second = feedback.memory("w"), feedback.memory("w")
    feedback.compress("w", G)
    feedback.forget("w", first)
    names = ["w", *"abc"]
    for name in names:
        feedback.compress(name, G)
    assert np.array_equal(second.residual, G)
    for _ in range(2):  # once too often
        feedback.forget("w", second)
    for name in names:
        feedback.compress(name, G)
    arrays = [feedback._tensors.states[name].array for name in names]
    for one, other in itertools.combinations(arrays, 2):
        assert not np.shares_memory(one, other)


def test_memory_that_is_restored_after_its_release_stays_that_of_its_tensor() -> None:
    """It is still the current one, so no other tensor may write to its array."""
    feedback = Feedback("mxnet-2bit:threshold=4")
    feedback.compress("w", G)
    memory = feedback.memory("w")
    feedback.forget("w", memory)
    feedback.restore("w", memory)
    for name in "abc":
        feedback.compress(name, 3 * G)
    assert np.array_equal(feedback.state_dict()["residual:w"], G)


def test_memory_may_be_released_after_its_first_step_was_undone() -> None:
    feedback = Feedback("mxnet-2bit:threshold=4")
    before = feedback.memory("w")
    feedback.compress("w", G)
    memory = feedback.memory("w")
    feedback.restore("w", before)
    feedback.forget("w", memory)
    feedback.forget("w", memory)  # once too often
    for scale, name in enumerate("abc", 1):
        feedback.compress(name, scale * G)
    for scale, name in enumerate("abc", 1):
        assert np.array_equal(feedback.residual(name), scale * G)
    with pytest.raises(ParameterError, match="compressed before"):
        feedback.residual("w")


def test_zeros_that_all_exact_tensors_share_are_not_writable() -> None:
    feedback = Feedback("lossless")
    for name in "ab":
        feedback.compress(name, G)
    residual = feedback.memory("a").residual
    assert residual is not None
    with pytest.raises(ValueError, match="read-only"):
        residual[0] = 1
    assert not feedback.residual("b").any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_does_not_wait_for_parent_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child forked during another thread's step has the state before that step."""
    feedback = Feedback("raw")
    feedback.compress("w", G)
    raw = gcodec.codecs()["raw"]
    original = raw._pack
    begun, go_on = threading.Event(), threading.Event()

    def wait(self: Any, symbols: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return original(self, symbols)

    monkeypatch.setattr(raw, "_pack", wait)
    thread = threading.Thread(target=feedback.compress, args=("w", G))
    thread.start()
    assert begun.wait(60)
    child = fork()
    if not child:
        status = 1
        try:
            signal.alarm(60)
            go_on.set()
            feedback.compress("w", G)
            status = int(feedback.state_dict()["step:w"] != 2)
        finally:
            os._exit(status)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert feedback.state_dict()["step:w"] == 2


# --- keys ---------------------------------------------------------------------------------------


def test_key_authenticates_the_frame_and_is_not_retained() -> None:
    key = b"not to be found again"
    feedback, plain = Feedback("topk:ratio=0.1"), Feedback("topk:ratio=0.1")
    for _ in range(2):
        frame, bare = feedback.compress("w", G, key=key), plain.compress("w", G)
        assert np.array_equal(gcodec.decode(frame, key=key), gcodec.decode(bare))
        assert len(frame) == len(bare) + 16
        with pytest.raises(gcodec.Corrupt, match="tag"):
            gcodec.decode(frame, key=b"another")
        with pytest.raises(gcodec.Unsupported, match="authenticated"):
            gcodec.decode(frame)
    assert key not in pickle.dumps(feedback)
    assert key.decode() not in repr(vars(feedback)) + repr(feedback)
    before = state_of(feedback)
    for wrong in (b"", b"x" * 65, "text", 5):
        with pytest.raises(ParameterError, match="key"):
            feedback.compress("w", G, key=wrong)  # type: ignore[arg-type]
    assert state_of(feedback) == before == state_of(plain)


def test_repr_tells_the_size_of_the_state() -> None:
    feedback = gcodec.Feedback("mxnet-2bit:threshold=0.25", track=True)
    assert repr(feedback) == (
        "<Feedback: mxnet-2bit:threshold=0.25, 0 tensors, 0 bytes of residuals>"
    )
    for name in ("a", "b"):
        feedback.compress(name, np.full(300, -2, np.float32))
    assert repr(feedback) == (
        "<Feedback: mxnet-2bit:threshold=0.25, 2 tensors, 2,400 bytes of residuals, "
        "L1 norm 1.2e+03 of the last gradients>"
    )
    policy = gcodec.Policy({"*.bias": "raw", "*": "sign"})
    assert repr(gcodec.Feedback(policy)).startswith("<Feedback: a policy of 2 rules, 0 tensors")
