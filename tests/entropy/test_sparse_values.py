"""Values of sparse payloads: their bits, the decoded values, and refused bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import halves
from strategies import f32

import gcodec
from gcodec.entropy import values as value_coding
from gcodec.entropy.values import SparseValues
from gcodec.kernels.bits.bit_string import BitString

LARGEST = float(np.finfo(np.float32).max)
value_types = st.sampled_from(value_coding.VALUES)
each_value = pytest.mark.parametrize("value", value_coding.VALUES)


def binary(number: int, width: int) -> str:
    return format(number, f"0{width}b")


def float_bits(number: np.float32) -> str:
    return binary(int(np.float32(number).view(np.uint32)), 32)


def bits_and_values(x: np.ndarray, value: str) -> tuple[str, list[float]]:
    """Return the bits of values, written one by one, and the decoded values."""
    if value == "float32":
        return "".join(map(float_bits, x)), x.tolist()
    if value in ("float16", "bfloat16"):
        codes = halves.narrow(x, value)
        return "".join(binary(int(c), 16) for c in codes), halves.widen(codes, value).tolist()
    if value == "sign":
        if not x.size:
            return "", []
        mean = np.float32(math.fsum(map(abs, x.tolist())) / x.size)
        signs = [v < 0 for v in x.tolist()]
        return float_bits(mean) + "".join(str(int(s)) for s in signs), [
            float(-mean if s else mean) for s in signs
        ]
    scales, codes, decoded = "", "", []
    for start in range(0, x.size, 256):
        block = x[start : start + 256]
        step = np.abs(block).max() / np.float32(127)
        with np.errstate(over="ignore"):
            if np.isinf(step * np.float32(127)):
                step = np.nextafter(step, np.float32(0))
        scales += float_bits(step)
        for v in block:
            q = max(-127, min(127, round(float(v / step)))) if step else 0  # Halves round to even.
            codes += binary(q & 255, 8)
            decoded.append(float(np.float32(q) * step))
    return scales + codes, decoded


def bits_of(data: np.ndarray, nbits: int) -> str:
    return "".join(binary(int(byte), 8) for byte in data)[:nbits]


def limited(x: np.ndarray, value: str) -> np.ndarray:
    """Replace values beyond float16, and values whose sums would be rounded twice, by 1."""
    limit = 65503 if value == "float16" else 1e30
    return np.where(np.abs(x) <= limit, x, np.float32(1)).astype(np.float32)


@given(gs.gradients(), value_types, st.integers(0, 8))
def test_round_trip(x: np.ndarray, value: str, following_nbits: int) -> None:
    x = np.concatenate([x, x[::-1], x])[:600]
    x, k = limited(x, value), x.size
    quantized = value_coding.quantize(x, value)
    decoded = value_coding.dequantize(quantized, value, k)
    bits, expected = bits_and_values(x, value)
    if value == "sign" and k:  # The kernel adds in another order.
        assert abs(float(decoded[0])) == pytest.approx(abs(expected[0]), rel=1e-6, abs=1e-44)
        bits = float_bits(quantized.scales[0]) + bits[32:]
        expected = [math.copysign(float(quantized.scales[0]), v) for v in expected]
    assert decoded.dtype == np.float32 and gs.same_bits(decoded, f32(*expected))
    assert value_coding.nbits(k, value) == len(bits)

    string = BitString()
    string.extend(*value_coding.packed(quantized, value, k))
    assert string.nbits == len(bits)
    string.extend(np.full(1, 0xFF << 8 - following_nbits & 0xFF, np.uint8), following_nbits)
    data = string.trimmed()
    assert bits_of(data, len(bits)) == bits
    assert bits_of(data, string.nbits)[len(bits) :] == "1" * following_nbits
    again = value_coding.read(data, k, value)
    for one, other in zip(again, quantized, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


@each_value
def test_no_values(value: str) -> None:
    quantized = value_coding.quantize(f32(), value)
    assert value_coding.packed(quantized, value, 0)[1] == value_coding.nbits(0, value) == 0
    assert value_coding.dequantize(quantized, value, 0).size == 0
    assert value_coding.read(np.zeros(0, np.uint8), 0, value).codes.size == 0


@each_value
def test_symbols_of_other_sizes_are_refused(value: str) -> None:
    quantized = value_coding.quantize(np.ones(256, np.float32), value)
    for k in (0, 1, 255 if value != "sign" else 248, 257, 1000):
        with pytest.raises(gcodec.ParameterError, match="symbols"):
            value_coding.dequantize(quantized, value, k)
    bare = SparseValues(np.zeros(3, np.float32), quantized.codes)
    with pytest.raises(gcodec.ParameterError, match="symbols"):
        value_coding.dequantize(bare, value, 256)


def test_bytes_by_hand_computation() -> None:
    quantized = value_coding.quantize(f32(127, -127, 0.5, 1.5, 2.5, -3.5, -0.0), "int8")
    assert quantized.scales.tolist() == [1]
    assert quantized.codes.view(np.int8).tolist() == [127, -127, 0, 2, 2, -4, 0]
    blocks = value_coding.quantize(np.repeat(f32(1, 127), (256, 44)), "int8")
    assert blocks.scales.tolist() == [float(np.float32(1) / np.float32(127)), 1]
    assert set(blocks.codes.tolist()) == {127}


@pytest.mark.parametrize(
    "magnitude", [2.0**-149, 1e-44, 2.0**-140, 2.0**-126, 1e-30, 1, 1e30, LARGEST]
)
def test_steps_of_all_sizes(magnitude: float) -> None:
    """Each value is within half a step, or within a step if the step is subnormal."""
    x = (np.linspace(-1, 1, 300) * magnitude).astype(np.float32)
    quantized = value_coding.quantize(x, "int8")
    decoded = value_coding.dequantize(quantized, "int8", 300)
    step = magnitude / 127
    bound = 0.5001 * step if step > 2.0**-126 else max(64 * 2.0**-149, step)
    assert np.isfinite(decoded).all()
    assert np.abs(x.astype(np.float64) - decoded).max() <= bound


def test_largest_step_is_finite() -> None:
    """A step rounded up would make 127 steps infinite."""
    with np.errstate(over="ignore"):
        assert np.isinf(f32(LARGEST) / np.float32(127) * np.float32(127))
    quantized = value_coding.quantize(f32(LARGEST, -LARGEST), "int8")
    assert value_coding.dequantize(quantized, "int8", 2).tolist() == [
        pytest.approx(sign * LARGEST, rel=1e-7) for sign in (1, -1)
    ]
    data = value_coding.packed(quantized, "int8", 2)[0]
    value_coding.read(data, 2, "int8")
    data[3] += 1  # The next float32.
    with pytest.raises(gcodec.Corrupt, match="infinite"):
        value_coding.read(data, 2, "int8")


def test_sign_of_any_size() -> None:
    for magnitude in (2.0**-149, 1e-40, 1.0, LARGEST):
        x = f32(magnitude, -magnitude, magnitude)
        assert gs.same_bits(
            value_coding.dequantize(value_coding.quantize(x, "sign"), "sign", 3), x
        )


def test_floats_keep_signed_zeros_and_subnormals() -> None:
    x = f32(-0.0, 0.0, 2.0**-149, -(2.0**-126))
    quantized = value_coding.quantize(x, "float32")
    assert gs.same_bits(value_coding.dequantize(quantized, "float32", 4), x)


@pytest.mark.parametrize(
    ("value", "limit", "largest"),
    [
        ("float16", 65519.99, 65504.0),
        ("bfloat16", float.fromhex("0x1.feffp+127"), float.fromhex("0x1.fep+127")),
    ],
)
def test_overflow_becomes_the_largest_float(value: str, limit: float, largest: float) -> None:
    """Values beyond `limit` would round to infinity."""
    x = f32(1, limit, -limit, LARGEST, -LARGEST, 65520)
    decoded = value_coding.dequantize(value_coding.quantize(x, value), value, x.size)
    assert decoded[:5].tolist() == [1, largest, -largest, largest, -largest]
    assert decoded[5] == (largest if value == "float16" else 65536)


@pytest.mark.parametrize(
    ("value", "k", "data"),
    [
        ("float32", 2, "3f800000 7f800000"),
        ("float32", 2, "3f800000 ffc00000"),
        ("float32", 1, "7f800001"),
        ("float16", 2, "3c00 7c00"),
        ("float16", 2, "fe01 3c00"),
        ("bfloat16", 2, "3f80 ff80"),
        ("bfloat16", 2, "7fc0 3f80"),
        ("int8", 2, "3f800000 01 80"),
        ("int8", 1, "bf800000 01"),
        ("int8", 1, "80000000 00"),
        ("int8", 1, "7f800000 00"),
        ("int8", 1, "7fc00000 00"),
        ("int8", 1, "7f000000 00"),
        ("sign", 1, "7f800000 00"),
        ("sign", 1, "7fc00000 80"),
        ("sign", 1, "bf800000 80"),
        ("sign", 1, "80000000 80"),
    ],
)
def test_refusals(value: str, k: int, data: str) -> None:
    with pytest.raises(gcodec.Corrupt):
        value_coding.read(np.frombuffer(bytes.fromhex(data), np.uint8), k, value)
