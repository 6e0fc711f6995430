"""ecsq of convolutions: the filter transform, its selection, and the decoders."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import contexts, ecsq, universal
from reference import frame as reference_frame
from test_ecsq_reference import MIDPOINTS, bits, check

import gcodec
from gcodec import Corrupt, FormatError, ParameterError
from gcodec.codecs.ecsq.deadzone import DeadZoneQuantizer
from gcodec.codecs.ecsq.filter_transform import FilterTransform
from gcodec.entropy.context.scale_model import sampled_matrix
from gcodec.kernels.transform import small_transform
from gcodec.kernels.transform.basis import basis
from gcodec.payload import Payload
from gcodec.runtime import pool
from gcodec.tensorfiles.dumps import open_dump

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"
DCT = "ecsq:transform=dct,"
SHAPES = (
    *((7, 3, 3, 3), (2, 40, 5, 5), (3, 2, 7, 7), (1, 1, 2, 2), (1, 1, 16, 16), (9, 5, 1, 3)),
    *((30, 8, 3), (5, 4, 16), (4, 4, 3, 1), (2, 3, 3, 3, 3), (6, 1, 2, 1, 4), (1, 2, 8, 8, 16)),
)
NO_FILTERS = (
    (),
    (9,),
    (4, 5),
    (3, 3, 1),
    (3, 3, 17),
    (3, 3, 1, 1),
    (2, 3, 4, 18),
    (2, 2, 11, 11, 11),
)
NO_FILTERS += ((3, 2, 0), (2, 2, 2, 2, 2, 2))


def filters(shape: tuple[int, ...], seed: int = 0, correlation: float = 1.0) -> np.ndarray:
    """Return filters with correlated taps, whose scales differ by output and input."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.laplace(0, 1e-3, shape) + correlation * rng.laplace(
        0, 1e-3, (*shape[:2], *[1] * len(shape[2:]))
    )
    x *= np.exp2(rng.normal(0, 1, (shape[0], *[1] * (len(shape) - 1))))
    return (x * np.exp2(rng.normal(0, 1, shape[1:2] + (1,) * len(shape[2:])))).astype(np.float32)


def transform_of(frame: bytes) -> str:
    """Return the transform in the header of a frame."""
    codec: Any = gcodec.Frame.from_bytes(frame).codec
    return str(codec.transform)


def error_of(x: np.ndarray, frame: bytes) -> float:
    """Return the relative squared error of a decoded frame."""
    difference = gcodec.decode(frame).astype(np.float64) - x
    return float((difference**2).sum() / (x.astype(np.float64) ** 2).sum())


# --- the arithmetic of the transform -------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transform_follows_the_specification(shape: tuple[int, ...]) -> None:
    x = filters(shape).reshape(-1)
    taps = FilterTransform.of(shape)
    assert taps is not None and taps.size == math.prod(shape[2:])
    coefficients = taps.forward(x)
    assert bits(coefficients) == bits(ecsq.transformed(x, shape[2:], forward=True))
    back = coefficients.copy()
    taps.inverse(back)
    assert bits(back) == bits(ecsq.transformed(coefficients, shape[2:], forward=False))
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-6 * np.abs(x).max())
    np.testing.assert_allclose(np.linalg.norm(coefficients), np.linalg.norm(x), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 3, 3), (1, 1, 2), (16, 8, 8), (1, 5, 7)])
def test_filters_are_transformed_independently(sizes: tuple[int, int, int]) -> None:
    """Each filter has the same coefficients alone and among any number of others."""
    matrices = tuple(basis(n).tobytes() for n in sizes)
    size = math.prod(sizes)
    for count in (1, 2, (1 << 11) // size + 1, 3 * (1 << 11) // size + 2):
        x = np.random.default_rng(count).standard_normal(count * size).astype(np.float32)
        x[:size] *= np.float32(1e36)  # Sums that mix neighboring filters would overflow float32.
        together, alone = np.empty_like(x), np.empty_like(x)
        small_transform.transform(x, sizes, matrices, together)
        for at in range(0, x.size, size):
            part = slice(at, at + size)
            small_transform.transform(x[part], sizes, matrices, alone[part])
        assert bits(together) == bits(alone)
        small_transform.transform(x, sizes, matrices, x)
        assert bits(x) == bits(together)


def test_the_end_of_a_tensor_is_independent_of_large_filters() -> None:
    """Sums of large filters stay in a buffer; they are not added up again, which may overflow."""
    a, b, c = sizes = (2, 15, 2)
    matrices = tuple(basis(n).tobytes() for n in sizes)
    # After two axes these filters are as large as after one, with the signs of a row of the basis.
    # If the latter axis is transformed again, rows from 2 on add up to more than float32 holds.
    y = np.sign(basis(b)[:, 1]) * (np.arange(b) > 1)
    x = np.zeros((1 + (1 << 11) // (a * b * c), a, b, c), np.float32)
    x[:-1, 0] = 3.3e38 * np.outer(basis(b) @ y / np.abs(basis(b) @ y).max(), basis(c)[:, 0])
    x[-1] = np.random.default_rng(0).standard_normal((a, b, c))
    alone = np.empty_like(x)
    for filter_, out in zip(x, alone, strict=True):
        small_transform.transform(filter_.reshape(-1), sizes, matrices, out.reshape(-1))
    assert np.isfinite(alone).all()
    small_transform.transform(x.reshape(-1), sizes, matrices, x.reshape(-1))
    assert bits(x) == bits(alone)


@pytest.mark.parametrize("shape", NO_FILTERS, ids=str)
def test_tensors_without_filters_are_not_transformed(shape: tuple[int, ...]) -> None:
    assert FilterTransform.of(shape) is None and ecsq.taps(shape) is None
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for values in (x, np.zeros_like(x)):
        assert transform_of(gcodec.encode(values, "ecsq")) == "none"
        if x.size:
            with pytest.raises(ParameterError, match="transform"):
                gcodec.encode(values, DCT + "nmse=0.1")


# --- payloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ecsq.ROUNDINGS)
def test_messages(rounding: str) -> None:
    for at, shape in enumerate(SHAPES):
        x = filters(shape, at)
        step = float(np.float32(np.abs(x).mean() * (0.3 + at % 3)))
        check(x, f"{DCT}step={step},rounding={rounding}", rounding, at)
    for target in ("nmse=0.05", "bits=2"):
        check(
            filters((9, 8, 3, 3)),
            f"{DCT}{target},rounding={rounding}",
            rounding,
            reuse_scales=True,
        )


@pytest.mark.parametrize("rounding", ecsq.ROUNDINGS)
@pytest.mark.parametrize("scale", [2.0**-62, 2.0**-58, 2.0**-120, 2.0**-140, 2.0**100])
def test_magnitudes(scale: float, rounding: str) -> None:
    """Subnormal values, and values on both sides of the bound below which all are scaled."""
    x = (filters((8, 3, 3, 3)) / np.float32(1e-3) * np.float32(scale)).astype(np.float32)
    step = max(float(np.float32(scale)) / 2, 2.0**-149)
    check(x, f"{DCT}step={step!r},rounding={rounding}", rounding, 3)


def test_transform_is_stored_only_when_used() -> None:
    x = filters((16, 16, 3, 3))
    plain, transformed = (
        gcodec.encode(x, f"ecsq:step=0.001,transform={t}") for t in ("none", "dct")
    )
    assert (transform_of(plain), transform_of(transformed)) == ("none", "dct")
    scalars = [reference_frame.parse(frame)["scalars"] for frame in (plain, transformed)]
    assert len(scalars[1]) - len(scalars[0]) <= 4  # The centroids may be longer too.
    assert scalars[1][-1] == 1
    payload = gcodec.Frame.from_bytes(transformed).payload
    assert payload.codec == gcodec.parse("ecsq:step=0.001,transform=dct")
    bare = {k: v for k, v in payload.scalars.items() if k != "transform"}
    with pytest.raises(ParameterError, match="transform"):
        gcodec.parse("ecsq").decode(payload.data, x.shape, **bare)
    decoded = gcodec.parse("ecsq").decode(payload.data, x.shape, **payload.scalars)
    np.testing.assert_array_equal(decoded, gcodec.decode(transformed))


@pytest.mark.parametrize("trellis", ["no", "yes"])
def test_zeros_are_exact(trellis: str) -> None:
    x = np.zeros((16, 8, 3, 3), np.float32)
    frame = gcodec.encode(x, f"{DCT}trellis={trellis}")
    assert transform_of(frame) == "dct" and transform_of(gcodec.encode(x, "ecsq")) == "none"
    assert not gcodec.decode(frame).view(np.uint32).any()
    x[1::2] = filters((8, 8, 3, 3))
    encoded = gcodec.decode(gcodec.encode(x, f"{DCT}trellis={trellis}"))
    assert not encoded[::2].view(np.uint32).any() and encoded[1::2].any()


# --- rate control --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.5, 0.1, 0.02, 1e-3, 1e-7])
@pytest.mark.parametrize("trellis", ["no", "yes"])
def test_meets_target_error(target: float, trellis: str) -> None:
    for shape in ((64, 32, 3, 3), (100, 3, 7, 7), (300, 30, 3)):
        x = filters(shape)
        frame = gcodec.encode(x, f"ecsq:nmse={target},trellis={trellis}")
        assert transform_of(frame) == "dct"
        assert 0.98 * target <= error_of(x, frame) <= target


def test_meets_target_bits() -> None:
    x = filters((64, 32, 3, 3))
    for target in (0.5, 2.0, 5.0):
        payload = gcodec.parse(f"ecsq:bits={target}").encode(x)
        assert payload.scalars["transform"] == "dct"
        assert 0.98 * target <= payload.nbits / x.size <= 1.01 * target


@pytest.mark.parametrize("period", [4, 9, 25, 49])
def test_sample_covers_all_coefficients(period: int) -> None:
    """Elements at equal distances might all belong to one tap."""
    width = 64 * period
    places = np.tile(np.arange(period, dtype=np.float32), 512 * 64)
    for sample in (1 << 12, 1 << 14, 1 << 16):
        actual, columns = sampled_matrix(places, width, sample, period)
        assert actual.size % columns == 0
        counts = np.bincount(actual.astype(np.int64), minlength=period)
        assert counts.min() > 0.7 * counts.mean()


def test_transform_does_not_lengthen_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    x, passes = filters((256, 256, 2, 2)), []

    def counted(method: Any) -> Any:
        def counting(self: DeadZoneQuantizer, values: np.ndarray, *arguments: Any) -> Any:
            passes.append(values.size == x.size)
            return method(self, values, *arguments)

        return counting

    for name in ("quantize_with", "prepare_and_quantize"):
        monkeypatch.setattr(DeadZoneQuantizer, name, counted(getattr(DeadZoneQuantizer, name)))
    for target in ("bits=0.5", "bits=3", "nmse=0.1"):
        results = []
        for transform in ("none", "dct"):
            passes.clear()
            gcodec.encode(x, f"ecsq:{target},transform={transform}")
            results.append(sum(passes))
        assert results[1] <= results[0]


def test_stochastic_levels_are_unbiased() -> None:
    x = filters((8, 4, 3, 3))
    step = float(np.abs(x).max())
    frames = [
        gcodec.encode(x, f"{DCT}step={step},rounding=stochastic", seed=seed) for seed in range(400)
    ]
    mean = np.mean([gcodec.decode(frame).astype(np.float64) for frame in frames], axis=0)
    assert np.abs(mean - x).max() < 5 * step / 2 / math.sqrt(400)


# --- selection of the transform ------------------------------------------------------------------


def test_real_convolutions_take_fewer_bits() -> None:
    with open_dump(EXAMPLE) as dump:
        tensors = [np.asarray(dump.load(entry)) for entry in dump.entries]
    for x in tensors:
        if x.ndim < 3 or x.size < 1000 or FilterTransform.of(x.shape) is None:
            continue
        for spec in ("ecsq:nmse=0.02", "ecsq:nmse=0.1", "ecsq:bits=1.5,trellis=yes"):
            plain = gcodec.encode(x, spec + ",transform=none")
            transformed = gcodec.encode(x, spec)
            assert transform_of(transformed) == "dct"
            if "nmse" in spec:
                assert len(transformed) < 0.99 * len(plain)
            else:
                assert error_of(x, transformed) < 0.97 * error_of(x, plain)


def test_uncorrelated_taps_are_not_transformed() -> None:
    for shape in ((64, 32, 3, 3), (40, 40, 5), (500, 1, 3, 3)):
        x = filters(shape, correlation=0.0)
        assert transform_of(gcodec.encode(x, "ecsq")) == "none"
        sparse = x * (np.random.default_rng(1).random(shape) < 0.05)
        assert transform_of(gcodec.encode(sparse.astype(np.float32), "ecsq")) == "none"


def test_choice_agrees_with_exact_sizes() -> None:
    x = filters((64, 32, 3, 3))
    for scale in (1.0, 1e-9, 1e-25, 1e20):
        assert transform_of(gcodec.encode(x * np.float32(scale), "ecsq:nmse=0.05")) == "dct"
    # The encoder skips the transform where float32 has no room for it, and still meets its
    # targets.
    for scale, spec in ((1e-36, "ecsq:nmse=0.05"), (1.0, "ecsq:nmse=1e-11"), (1e37, "ecsq")):
        y = (x / np.abs(x).max() * np.float32(3 * scale)).astype(np.float32)
        assert transform_of(gcodec.encode(y, spec)) == "none"
    least = float(np.abs(x).max()) * 2.0**-21.9
    assert transform_of(gcodec.encode(x, f"ecsq:step={least}")) == "none"


def test_values_beyond_float32_are_refused() -> None:
    x = np.full((8, 8, 3, 3), 3e38, np.float32)
    assert transform_of(gcodec.encode(x, "ecsq")) == "none"
    with pytest.raises(ParameterError, match="float32 when it is transformed"):
        gcodec.encode(x, DCT + "nmse=0.1")
    x, refused = np.zeros((1, 1, 3, 3), np.float32), 0
    x[0, 0, 1, 1] = 3.39e38  # Rounded coefficients may add up to more than float32.
    for seed in range(40):
        frame = None
        with contextlib.suppress(ParameterError):
            frame = gcodec.encode(x, f"{DCT}step=2e37,rounding=stochastic", seed=seed)
        refused += frame is None
        assert frame is None or np.isfinite(gcodec.decode(frame)).all()
    assert 0 < refused < 40


def test_prior_of_other_transform_is_ignored() -> None:
    x, codec = filters((64, 8, 3, 3)), gcodec.parse("ecsq:nmse=0.05")
    prior = gcodec.parse("ecsq:nmse=0.05,transform=none").quantize(x)
    for symbols in (codec.quantize(x, prior=prior), codec.quantize(x, prior=codec.quantize(x))):
        assert symbols.transform == "dct"
        decoded = codec.dequantize(symbols, x.shape).astype(np.float64)
        assert ((decoded - x) ** 2).sum() <= 0.05 * (x.astype(np.float64) ** 2).sum()
    with pytest.raises(ParameterError, match="symbols"):
        codec.dequantize(codec.quantize(x), (x.size,))


# --- all decoders --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [DCT + "step=0.002", DCT + "step=0.002,trellis=yes"])
@pytest.mark.parametrize(
    "shape", [(5, 7, 3, 3), (1, 2000, 7, 7), (150, 800, 3), (2, 300, 16, 8, 4)]
)
def test_all_decoders_agree(spec: str, shape: tuple[int, ...]) -> None:
    x = filters(shape)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec))
    payload = frame.payload
    whole = gcodec.decode(frame.to_bytes()).reshape(-1)
    scalars = dict(payload.scalars)
    step = np.float32(scalars.pop("step"))
    if x.size < 5000:
        centroids = [v for k, v in scalars.items() if k != "transform"]
        arguments = payload.tobytes(), payload.nbits, x.size, step, centroids, "trellis" in spec
        assert bits(whole) == bits(ecsq.read(*arguments, sizes=shape[2:])[1])
    assert bits(frame.codec.dequantize(frame.codec.unpack(payload, shape), shape)) == bits(whole)
    out = np.empty(shape, np.float32)
    gcodec.decode(frame.to_bytes(), out=out)
    assert bits(out) == bits(whole)
    total = np.ones(shape, np.float32)
    gcodec.decode_add(frame.to_bytes(), total, 0.5)
    assert bits(total) == bits(np.float32(0.5) * whole + np.float32(1))
    rng = np.random.default_rng(len(shape))
    for version in (frame, frame.with_seek(5), frame.with_seek(9), frame.without_seek()):
        data = version.to_bytes()
        assert bits(gcodec.decode(data)) == bits(whole)
        for _ in range(5):
            start, stop = np.sort(rng.integers(0, x.size + 1, 2)).tolist()
            stop = min(stop, start + int(rng.integers(1, 40_000)))
            assert bits(gcodec.decode_range(data, start, stop)) == bits(whole[start:stop])
    assert gcodec.decode_range(frame.to_bytes(), x.size, x.size).size == 0


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = filters((300, 400, 3, 3))  # More than a segment, cut within filters.
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        monkeypatch.setattr(pool, "SEGMENT", 1 << 18)
        frame = gcodec.encode(x, "ecsq:step=0.001")
        assert transform_of(frame) == "dct"
        results.append((frame, gcodec.decode(frame).tobytes()))
        assert (
            gcodec.parse(DCT + "step=0.001")
            .dequantize(gcodec.parse(DCT + "step=0.001").quantize(x), x.shape)
            .tobytes()
            == results[-1][1]
        )
    assert results[0] == results[1]


def test_feedback_keeps_the_residual_of_values() -> None:
    feedback, total = gcodec.Feedback("ecsq:nmse=0.1"), np.zeros((16, 8, 3, 3))
    sent = np.zeros_like(total)
    for seed in range(4):
        x = filters((16, 8, 3, 3), seed)
        frame = feedback.compress("w", x)
        assert transform_of(frame) == "dct"
        total, sent = total + x, sent + gcodec.decode(frame)
    residual = feedback.residual("w")
    np.testing.assert_allclose(sent + residual, total, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes(dtype: Any) -> None:
    x = (filters((32, 8, 3, 3)) * 1000).astype(dtype)
    frame = gcodec.encode(x, "ecsq:nmse=0.05")
    assert transform_of(frame) == "dct"
    assert gcodec.decode(frame).dtype == dtype
    assert error_of(x, frame) <= 0.0505


# --- hostile frames ------------------------------------------------------------------------------


def transformed_frame(shape: tuple[int, ...], n: int, step: float, symbols: list[int]) -> bytes:
    """Return a frame whose header announces a transform."""
    string = contexts.write_string(symbols, n, 0, ([44], []), 5, 2)
    message = ecsq.Message("nearest", np.float32(step), MIDPOINTS, string, "dct")
    fields = ecsq.parameters("nearest"), ecsq.scalars(message), message.data
    return reference_frame.build(13, 1, shape, *fields, 8 * len(message.data))


def test_wrong_headers_are_refused() -> None:
    symbols = [2, 0, 3, 0, 0, 2, 0, 0, 0, 0, 0, 4]
    for shape in ((2, 2, 3), (1, 1, 3, 4), (12, 1, 1, 1), (12,), (3, 4), (1, 12, 1), ()):
        n = math.prod(shape)
        frame = transformed_frame(shape, n, 1.0, symbols[:n])
        if FilterTransform.of(shape) is None:
            for action in (gcodec.decode, lambda f: gcodec.decode_range(f, 0, 1)):
                with pytest.raises(Corrupt, match="transform"):
                    action(frame)
            with pytest.raises(Corrupt):
                gcodec.Frame.from_bytes(frame).with_seek(5)
            continue
        sizes = ecsq.taps(shape)
        assert sizes is not None
        values = ecsq.decode_symbols(symbols, np.float32(1), MIDPOINTS)
        wanted = ecsq.transformed(values, sizes, forward=False)
        assert bits(gcodec.decode(frame)) == bits(wanted)
    shape, n = (1 << 30, 1 << 8, 3, 3), 9 << 38
    data = universal.to_bytes(universal.to_text(bytes(40)))
    scalars = np.float32(1).tobytes() + b"\x80\1" * 3 + b"\1"
    frame = reference_frame.build(13, 1, shape, b"", scalars, data, 320)
    with pytest.raises(FormatError):
        gcodec.decode(frame)


@pytest.mark.parametrize("symbols", [[2, 2, 2] * 4, [9_999_999, *[0] * 11], [200] * 12])
def test_frames_with_values_beyond_float32_are_refused(symbols: list[int]) -> None:
    """Both refuse only where a value overflows, whatever its coefficients are."""
    refused = []
    for step in (1e20, 1e30, 3e31, 1e35, 3e36, 1e38, 3.4e38):
        frame = transformed_frame((2, 2, 3), 12, step, symbols)
        string = contexts.write_string(symbols, 12, 0, ([44], []), 5, 2)
        text = contexts.write(string)
        try:
            arguments = universal.to_bytes(text), len(text), 12, np.float32(step), MIDPOINTS
            wanted = bits(ecsq.read(*arguments, sizes=(3,))[1])
        except universal.Corrupt:
            refused.append(step)
            for action in (gcodec.decode, lambda f: gcodec.decode_range(f, 0, 12)):
                with pytest.raises(Corrupt, match="float32"):
                    action(frame)
            parsed = gcodec.Frame.from_bytes(frame)
            with pytest.raises(Corrupt, match="float32"):
                parsed.codec.unpack(parsed.payload, parsed.shape)
        else:
            assert bits(gcodec.decode(frame)) == wanted
            parsed = gcodec.Frame.from_bytes(frame)
            decoded = parsed.codec.dequantize(
                parsed.codec.unpack(parsed.payload, parsed.shape), parsed.shape
            )
            assert bits(decoded) == wanted
    assert 0 < len(refused) < 7


def test_damaged_payloads_are_refused_or_decoded() -> None:
    x = filters((6, 4, 3, 3))
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, DCT + "step=0.002"))
    data = frame.payload.tobytes()
    scalars = dict(frame.payload.scalars)
    step = np.float32(scalars.pop("step"))
    centroids = [v for k, v in scalars.items() if k != "transform"]
    for at in range(0, 8 * len(data), 5):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        payload: Payload = frame.payload._replace(data=np.frombuffer(bytes(changed), np.uint8))
        arguments = bytes(changed), frame.payload.nbits, x.size, step, centroids
        try:
            wanted = bits(ecsq.read(*arguments, sizes=(3, 3))[1])
        except ValueError:
            with pytest.raises(FormatError):
                frame.codec.decode(payload, x.shape)
        else:
            assert bits(frame.codec.decode(payload, x.shape)) == wanted
