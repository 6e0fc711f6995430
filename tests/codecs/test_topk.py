"""topk: selected elements, their values, the residual, and the memory of sparse decoding."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from strategies import f32
from sweeps import examples

import gcodec
from gcodec.codecs import TopK
from gcodec.payload import Payload
from gcodec.tensorfiles.dumps import open_dump

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"


def largest_positions(x: np.ndarray, k: int) -> list[int]:
    """Return positions of the k largest magnitudes, the first of equal ones, by a stable sort."""
    return sorted(np.argsort(-np.abs(x.astype(np.float64)), kind="stable")[:k].tolist())


@given(st.data())
@examples(60)
def test_largest_elements_are_sent(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([0, 1, 2, 5, 64, 100, 1000]))
    levels = data.draw(st.sampled_from([1, 2, 5, 10**6]))  # few levels, many ties
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.integers(-levels, levels + 1, n) / 7).astype(np.float32)
    k = data.draw(st.integers(1, n + 2))
    indices, values = gcodec.decode_sparse(gcodec.encode(x, f"topk:k={k}"))
    assert indices.tolist() == largest_positions(x, min(k, n))
    assert gs.same_bits(values, x[indices])


@pytest.mark.parametrize(
    ("ratio", "n", "k"),
    [
        *[(0.01, 0, 0), (0.01, 1, 1), (0.01, 149, 1), (0.01, 150, 2), (0.01, 250, 2)],
        *[(0.29, 100, 29), (0.5, 5, 2), (0.5, 7, 4), (1.0, 9, 9), (1e-9, 1000, 1)],
    ],
)
def test_ratio_rounds_half_to_even(ratio: float, n: int, k: int) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    indices, _ = gcodec.decode_sparse(gcodec.encode(x, f"topk:ratio={ratio}"))
    assert indices.tolist() == list(range(n - k, n))


def test_threshold_sends_all_elements_that_reach_it() -> None:
    x = f32(0.5, -0.25, 0, -0.5, 0.4999, 3)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "topk:threshold=0.5"))
    assert frame.decode().tolist() == [0.5, 0, 0, -0.5, 0, 3]
    assert (frame.codec.k, frame.codec.threshold) == (3, 0)
    nothing = gcodec.encode(x, "topk:threshold=4")
    assert not gcodec.decode(nothing).any()
    assert [part.size for part in gcodec.decode_sparse(nothing)] == [0, 0]


@pytest.mark.parametrize("threshold", [-1.0, float("inf"), float("nan")])
def test_threshold_is_a_finite_number_above_zero(threshold: float) -> None:
    with pytest.raises(gcodec.ParameterError, match=r"threshold=.*: must be a number above 0"):
        TopK(threshold=threshold)


@pytest.mark.parametrize(
    "spec", ["topk:k=3,ratio=0.1", "topk:k=3,threshold=1", "topk:ratio=0.1,threshold=1"]
)
def test_k_ratio_and_threshold_exclude_each_other(spec: str) -> None:
    with pytest.raises(gcodec.ParameterError, match="must be left out where"):
        gcodec.parse(spec)


@pytest.mark.parametrize("name", ["topk", "randomk"])
def test_specs_that_send_nothing_are_refused(name: str) -> None:
    for spec in (f"{name}:k=0", f"{name}:value=sign,k=0x0", {"name": name, "k": 0}):
        with pytest.raises(
            gcodec.ParameterError, match=r"^k=0: must be ratio or an integer from 1"
        ):
            gcodec.parse(spec)
        with pytest.raises(gcodec.ParameterError, match=r"k=0"):
            gcodec.Policy({"*": spec})
    for ratio in ("0", "-0.0", "-1", "nan", "-inf"):
        with pytest.raises(gcodec.ParameterError, match=r"^ratio=.*: must be a number above 0"):
            gcodec.parse(f"{name}:ratio={ratio}")
    # However small the ratio is, the encoder sends one element.
    frame = gcodec.encode(f32(1, -2, 3), f"{name}:ratio=5e-324")
    assert np.count_nonzero(gcodec.decode(frame)) == 1
    # A payload may state k = 0, and its codec works like any other.
    codec = gcodec.codecs()[name](k=0)
    frame = gcodec.encode(f32(1, -2, 3), codec)
    read = gcodec.Frame.from_bytes(frame)
    assert read.codec.k == 0 and eval(repr(read.codec), {type(codec).__name__: type(codec)})
    assert gcodec.decode(frame).tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", ["topk", "topk:k=1", "topk:threshold=1", "topk:value=sign"])
def test_nonfinite_values_are_refused(spec: str, bad: float) -> None:
    x = np.ones(300, np.float32)
    x[200] = bad
    residual = np.full(300, 0.5, np.float32)
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.encode(x, spec)
    with pytest.raises(gcodec.ParameterError, match="NaN or Inf"):
        gcodec.parse(spec).quantize_residual(x, residual)
    assert np.all(residual == 0.5)
    assert gcodec.decode(gcodec.encode(x, spec, nonfinite="zero"))[200] == 0


@pytest.mark.parametrize("value", ["float32", "float16", "bfloat16", "int8", "sign"])
def test_unsent_elements_stay_in_the_residual(value: str) -> None:
    """The sum of the sent elements and of the residual equals the sum of the gradients."""
    rng = np.random.default_rng(1)
    feedback = gcodec.Feedback(f"topk:ratio=0.05,value={value}")
    total, sent = np.zeros(2000), np.zeros(2000)
    for _ in range(60):
        x = rng.standard_normal(2000).astype(np.float32)
        total += x
        sent += gcodec.decode(feedback.compress("w", x))
    residual = feedback.residual("w")
    assert np.abs(total - sent - residual).max() < 1e-3
    assert np.linalg.norm(residual) < 20 * np.sqrt(2000)


@given(st.data())
@examples(60)
def test_contraction(data: st.DataObject) -> None:
    codec = gcodec.parse(data.draw(st.sampled_from(["topk:k=5", "topk:ratio=0.3", "topk"])))
    x = data.draw(gs.gradients(codec)).astype(np.float64)
    bound = codec.contraction(x.size)
    assert bound is not None
    unsent = x - gcodec.decode(gcodec.encode(x.astype(np.float32), codec)).reshape(x.shape)
    assert (unsent**2).sum() <= (1 - bound) * (x**2).sum() * (1 + 1e-12)


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        *(("topk:k=5", 0.05), ("topk:ratio=0.3", 0.3), ("topk:k=500", 1.0)),
        *(("topk:threshold=0.5", None), ("topk:threshold=0.5,value=int8", None)),
        *((f"topk:value={value}", None) for value in ("float16", "bfloat16", "int8", "sign")),
    ],
)
def test_contraction_needs_exact_values_and_a_number_of_them(
    spec: str, bound: float | None
) -> None:
    codec = gcodec.parse(spec)
    assert codec.contraction(100) == bound
    assert codec.contraction(0) == (None if bound is None else 1)


def test_symbols_of_another_size_are_refused() -> None:
    codec = gcodec.parse("topk:k=2")
    symbols = codec.quantize(f32(3, -2, *[0] * 8))
    assert codec.dequantize(symbols, 10).tolist() == [3, -2, *[0] * 8]
    for n in (1, 2, 9, 11):
        with pytest.raises(gcodec.ParameterError, match=r"^symbols"):
            codec.dequantize(symbols, n)


def test_real_gradient() -> None:
    with open_dump(EXAMPLE) as dump:
        for entry in dump.entries:
            x = dump.load(entry)
            frame = gcodec.encode(x, "topk:ratio=0.1,value=bfloat16")
            indices, values = gcodec.decode_sparse(frame)
            flat = x.astype(np.float32).ravel()
            assert indices.tolist() == largest_positions(
                flat, min(flat.size, max(1, round(0.1 * x.size)))
            )
            assert np.abs(values - flat[indices]).max() <= 2**-8 * np.abs(values).max()


@pytest.mark.parametrize(
    "spec", ["topk:k=3,index=rice", "topk:k=3,index=eliasfano", "topk:k=3,index=huffman"]
)
def test_sparse_decoding_needs_little_memory(spec: str) -> None:
    """The same bytes are decoded as those of 2^60 elements."""
    n = 2**60
    codec = gcodec.parse(spec)
    payload = codec.encode(np.resize(f32(1, 0, -2, 0, 0, 3), 6))
    tracemalloc.start()
    try:
        try:
            positions, values = codec._decode_sparse(payload, n)
            assert positions.size == values.size == 3
        except gcodec.FormatError:
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_dense_codecs_refuse_sparse_decoding() -> None:
    for spec in ("raw", "qsgd:form=dense", "mxnet-2bit", "sign"):
        with pytest.raises(gcodec.ParameterError, match="all elements"):
            gcodec.decode_sparse(gcodec.encode(f32(1, 2), spec))


def test_sparse_decoding_of_mxnet() -> None:
    x = np.zeros((30, 40), np.float32)
    x[3, 5], x[29, 39] = 1, -2
    for index in ("rice", "bitmap", "auto"):
        frame = gcodec.encode(x, f"mxnet-2bit:threshold=0.25,form=sparse,index={index}")
        indices, values = gcodec.decode_sparse(frame)
        assert (indices.tolist(), values.tolist()) == ([125, 1199], [0.25, -0.25])


def test_a_message_with_a_threshold_is_corrupt() -> None:
    codec = gcodec.parse("topk:threshold=0.5,index=rice")
    payload = codec.encode(f32(1, 2))
    with pytest.raises(gcodec.Corrupt, match="threshold"):
        codec.decode(Payload(codec, {}, payload.data, payload.nbits), 2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_sparse_values_have_the_dtype_of_the_frame(dtype: str) -> None:
    x = f32(1.001, -3, 0.5).astype(gs.DTYPES[dtype])
    indices, values = gcodec.decode_sparse(gcodec.encode(x, "topk:k=2"))
    assert values.dtype == x.dtype and indices.tolist() == [0, 1]
    assert values.tolist() == x[:2].tolist()
