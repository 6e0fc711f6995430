"""Test exact floats on a device: the frames and bits of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checks import frames_agree, same_verdict
from samples import gradient, same
from shim import ShimDevice

import gcodec
from gcodec.kernels.bits import byte_planes, row_differences
from gcodec.kernels.bits.byte_planes import FLOAT_FORMS, FLOAT_SHIFTS, GROUP, MANTISSA_SHIFTS
from gcodec.kernels.context import byte_scales, byte_sums
from gcodec.kernels.context.byte_scales import PlaneForm
from gcodec.runtime import device as devices
from gcodec.runtime.device import Device, host

MODES = ("fast", "small", "stored")


def patterns(itemsize: int, n: int, zeros: float = 0.2) -> np.ndarray:
    """Return random bit patterns, some of which are 0, and some 0 in the first plane only."""
    random = np.random.default_rng(n)
    bits = random.integers(0, 256, n * itemsize, np.uint8).view(f"<u{itemsize}")
    bits[random.random(n) < 0.1] &= bits.dtype.type((1 << FLOAT_SHIFTS[itemsize]) - 1)
    bits[random.random(n) < zeros] = 0
    return bits


def fitting(bits: np.ndarray, shift: int) -> np.ndarray:
    """Return bit patterns without the bit that no plane contains, if there is one."""
    if (bits.itemsize, shift) in MANTISSA_SHIFTS.items():
        bits &= bits.dtype.type(~(1 << shift + 8) % 256**bits.itemsize)
    return bits


def matrix(rows: int, width: int, dtype: object = np.float32) -> np.ndarray:
    """Return values whose rows and columns have scales of their own."""
    random = np.random.default_rng(rows)
    octaves = random.integers(-6, 6, (rows, 1)) + random.integers(-3, 3, width)
    return (random.standard_normal((rows, width)) * np.exp2(octaves)).astype(dtype)


def similar_rows(rows: int, width: int) -> np.ndarray:
    """Return rows that are nearly multiples of one row."""
    random = np.random.default_rng(width)
    factors = random.uniform(1, 1.05, (rows, 1)) * random.choice((-1, 1), (rows, 1))
    return factors * random.standard_normal(width) * random.uniform(1, 1.01, (rows, width))


def scales_of(n: int, width: int, *, has_columns: bool) -> tuple[np.ndarray, np.ndarray, int]:
    random = np.random.default_rng(width)
    rows = random.integers(0, 128, -(-n // width)).astype(np.uint8)
    return rows, random.integers(0, 128, width * has_columns).astype(np.uint8), width


def forms(shift: int, n: int) -> Iterator[PlaneForm]:
    yield PlaneForm(shift)
    yield PlaneForm(shift, 1, 77)
    yield PlaneForm(shift, 1, 77, scales_of(n, 300, has_columns=True))
    yield PlaneForm(shift, 8, 0, scales_of(n, 41, has_columns=False))


@pytest.mark.parametrize(("itemsize", "shift"), FLOAT_FORMS)
def test_planes(gpu: Device, itemsize: int, shift: int) -> None:
    for n in (1, 255, GROUP, 2 * GROUP + 77):
        bits = fitting(patterns(itemsize, n), shift)
        bits[bits >> bits.dtype.type(shift) & bits.dtype.type(255) == 77] = 0
        on_device = gpu.to_device(bits)
        counts, hidden = byte_planes.coded_counts(bits, shift)
        own_counts, own_hidden = byte_planes.coded_counts(on_device, shift)
        assert np.array_equal(own_counts, counts)
        assert own_hidden == hidden
        for coded in (None, counts):
            size = n if coded is None else int(counts.sum(dtype=np.int64))
            stride = size + 3
            others = np.full((itemsize - 1) * stride, 7, np.uint8)
            own_others = gpu.to_device(others)
            byte_planes.take_others(bits, shift, others, stride, coded)
            byte_planes.take_others(on_device, shift, own_others, stride, coded)
            assert np.array_equal(gpu.to_host(own_others), others)
            for form in forms(shift, n):
                if coded is not None and not form.escape:
                    continue
                first, own_first = np.empty(n, np.uint8), gpu.empty(n, np.uint8)
                byte_scales.take_runs(bits, form, 0, 1 << 40, 0, first)
                byte_scales.take_runs(on_device, form, 0, 1 << 40, 0, own_first)
                assert np.array_equal(gpu.to_host(own_first), first)
                if coded is None and form.escape:
                    continue
                joined = gpu.empty(n, bits.dtype)
                planes = own_first, own_others, stride, joined, form
                byte_scales.join_planes(*planes, coded=coded)
                assert np.array_equal(gpu.to_host(joined), bits)


@pytest.mark.parametrize(("itemsize", "shift"), FLOAT_FORMS)
def test_runs(gpu: Device, itemsize: int, shift: int) -> None:
    n = 9 * GROUP
    bits = patterns(itemsize, n)
    on_device = gpu.to_device(bits)
    for form in forms(shift, n):
        for count, run, period in ((n, 1 << 40, 0), (2 * GROUP + 5, GROUP, 3 * GROUP + 9)):
            counts = byte_scales.count_runs(bits, form, count, run, period)
            own = byte_scales.count_runs(on_device, form, count, run, period)
            assert np.array_equal(own, counts)


@pytest.mark.parametrize(("itemsize", "shift"), FLOAT_FORMS)
def test_sums(gpu: Device, itemsize: int, shift: int) -> None:
    cases = ((1000, 64, None), (10000, 9000, None), (680, 64, 200), (300, 300, None))
    for n, width, period in cases:
        bits = patterns(itemsize, n, 0.7)
        bits[:width] = 0
        for has_columns in (False, True):
            for first in (bits, bits[3:] if period is None else bits):
                wanted = byte_sums.plane_sums(first, shift, width, period, has_columns=has_columns)
                on_device = gpu.to_device(first)
                own = byte_sums.plane_sums(
                    on_device, shift, width, period, has_columns=has_columns
                )
                for part, own_part in zip(wanted, own, strict=True):
                    assert np.array_equal(np.array(own_part), np.array(part))


def test_row_differences(gpu: Device) -> None:
    random = np.random.default_rng(4)
    cases = [(1, 1), (9000, 8), (9000, 70), (70 * 64, 70), (100, 99), (99, 99)]
    for n, row in cases:
        symbols = random.integers(0, 256, n, np.uint8)
        on_device = gpu.to_device(symbols)
        differences = row_differences.subtract_above(on_device, row)
        wanted = row_differences.subtract_above(symbols, row)
        assert np.array_equal(gpu.to_host(differences), wanted)
        row_differences.add_above(differences, row)
        assert np.array_equal(gpu.to_host(differences), symbols)


def test_first_plane_with_a_bit_of_the_mantissa(gpu: Device) -> None:
    random = np.random.default_rng(31)
    normal = 0.1 * random.standard_normal((125, 160))
    for x in (normal, np.where(normal > 0.1, 0, normal), np.abs(normal)):
        for dtype in (np.float32, ml_dtypes.bfloat16):
            values = x.astype(dtype)
            frames_agree(gpu, "lossless", values)
            payload = gcodec.Frame.from_bytes(gcodec.encode(values, "lossless")).payload
            assert payload.data[0] & 2


def test_wrong_numbers_of_zeros_are_refused(gpu: Device) -> None:
    first = np.ones(3 * GROUP, np.uint8)
    coded = np.full(3, GROUP, np.uint16)
    coded[1] -= 1
    others, out = gpu.zeros(first.size, np.uint8), gpu.empty(first.size, np.uint16)
    planes = gpu.to_device(first), others, first.size, out, PlaneForm(7)
    with pytest.raises(gcodec.Corrupt, match="group 1 "):
        byte_scales.join_planes(*planes, coded=coded)


@pytest.mark.parametrize("mode", (*MODES, "auto"))
def test_sizes(gpu: Device, mode: str) -> None:
    for n in (0, 5000, 63, 1, 1000):
        frames_agree(gpu, f"lossless:mode={mode}", gradient(n), nonfinite="propagate")
        half = gradient(n).clip(-9, 9).astype(np.float16)
        frames_agree(gpu, f"lossless:mode={mode}", half)


SAMPLES = {
    "matrix": lambda: matrix(96, 128),
    "long rows": lambda: matrix(10, 1300),
    "short rows": lambda: matrix(600, 9),
    "zeros": lambda: np.where(
        np.random.default_rng(1).random((50, 200)) < 0.7, 0, matrix(50, 200)
    ),
    "minus zero": lambda: np.where(np.arange(9000) % 3, matrix(90, 100).reshape(-1), -0.0),
    "both zeros": lambda: np.where(np.arange(9000) % 3, -0.0, 0.0) * (np.arange(9000) % 2),
    "constant": lambda: np.full(5000, 1.5),
    "all zero": lambda: np.zeros(5000),
    "positive": lambda: np.abs(matrix(60, 100)),
    "positive and zeros": lambda: np.maximum(matrix(60, 100), 0),
    "many": lambda: matrix(100, 200).clip(-9, 9),
    "few mantissas": lambda: np.exp2(np.round(matrix(60, 100)).clip(-9, 9)),
    "similar rows": lambda: similar_rows(130, 70),
    "packed": lambda: np.arange(9000).astype(np.uint32) * 3 % 97 + 128.0,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(gpu: Device, name: str) -> None:
    x = SAMPLES[name]().astype(np.float32)
    cases = [(mode, x) for mode in ("auto", "fast", "small")]
    cases += [("fast", x.astype(np.float16)), ("auto", x.astype(np.float64) * (1 + 2.0**-40))]
    for mode, values in cases:
        frames_agree(gpu, f"lossless:mode={mode}", values)


def test_patterns_of_16_bits(gpu: Device) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        frames_agree(gpu, "lossless:mode=fast", bits.view(dtype), nonfinite="propagate")


def test_large(gpu: Device) -> None:
    """Counts of many bytes are estimated, and strings have seek tables."""
    for x in (matrix(400, 350), matrix(1, 140000), matrix(3000, 48)):
        frames_agree(gpu, "lossless:mode=fast", x)
        frames_agree(gpu, "lossless:mode=small", x)


def test_bytes_that_no_sample_contains(gpu: Device) -> None:
    x = np.random.default_rng(2).standard_normal(1 << 18).astype(np.float32)
    x[4097], x[150001] = 1e38, 1e-38
    frames_agree(gpu, "lossless:mode=fast", x)


def test_feedback(gpu: Device) -> None:
    steps = [matrix(20, 30) for _ in range(2)]
    for mode in MODES:
        spec = f"lossless:mode={mode}"
        on_device, here = gcodec.Feedback(spec), gcodec.Feedback(spec)
        for x in steps:
            assert on_device.compress("w", gpu.to_device(x)) == here.compress("w", x)
        residual = on_device.residual("w")
        assert isinstance(residual, np.ndarray) and residual.shape == (20, 30)
        assert not residual.any()


def test_feedback_after_a_codec_with_an_error(gpu: Device) -> None:
    on_device, here = gcodec.Feedback("sign"), gcodec.Feedback("sign")
    for step, spec in enumerate(("sign", "lossless", "lossless", "sign", "raw", "topk:ratio=1")):
        x = matrix(20, 30, (np.float32, np.float16, ml_dtypes.bfloat16)[step // 2])
        on_device.codec = here.codec = gcodec.parse(spec)
        assert on_device.compress("w", gpu.to_device(x)) == here.compress("w", x)
        assert same(host(on_device.residual("w")), here.residual("w"))


@pytest.mark.parametrize("nonfinite", ["zero", "propagate"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_feedback_sends_every_bit(gpu: Device, nonfinite: Any, dtype: type[np.generic]) -> None:
    x = np.frombuffer(np.random.default_rng(4).bytes(4096), dtype)
    on_device, here = (gcodec.Feedback("lossless", nonfinite=nonfinite) for _ in range(2))
    for _ in range(2):
        frame = on_device.compress("w", gpu.to_device(x))
        assert frame == here.compress("w", x)
        assert nonfinite == "zero" or gcodec.decode(frame).tobytes() == x.tobytes()
        many = on_device.compress_many({"w": gpu.to_device(x), "v": gpu.to_device(x[:9])})
        assert many == here.compress_many({"w": x, "v": x[:9]}, group_below=0)


def test_damage(gpu: Device) -> None:
    rows = np.where(np.arange(9600).reshape(96, 100) % 5, matrix(96, 100), 0)
    for mode in ("fast", "small"):
        for x in (rows.astype(np.float32), np.exp2(np.round(rows).clip(-9, 9)).astype(np.float32)):
            frame = gcodec.encode(x, f"lossless:mode={mode}")
            same_verdict(gpu, frame, [*range(0, 200, 7), *range(-90, 0, 13)])


def test_float64_is_not_rounded(gpu: Device) -> None:
    x = np.nextafter(matrix(40, 50, np.float64), 9)
    x[0, :3] = np.nan, np.inf, -0.0
    frame = gcodec.encode(gpu.to_device(x), "lossless")
    assert frame == gcodec.encode(x, "lossless")
    on_device = gcodec.decode(frame, like=gpu.to_device(x))
    assert gpu.to_host(on_device).tobytes() == x.tobytes()
    rounded = gcodec.decode(frame, like=gpu.zeros(x.size, np.float32).reshape(x.shape))
    assert gpu.to_host(rounded).tobytes() == x.astype(np.float32).tobytes()
    zeroed = gcodec.encode(gpu.to_device(x), "lossless", nonfinite="zero")
    assert zeroed == gcodec.encode(x, "lossless", nonfinite="zero")


@pytest.mark.parametrize("dtype", ("int8", "uint16", "int32", "int64", "bool"))
def test_integers(gpu: Device, dtype: str) -> None:
    for n in (0, 3000, 9001, 1):
        x = (np.arange(n) ** 2 % 91 < (2 if dtype == "bool" else 90)) * np.arange(n) % 91
        frames_agree(gpu, "lossless", x.astype(dtype))
    wide = np.random.default_rng(3).integers(0, 256, 8000, np.uint8).view(np.int64)
    frames_agree(gpu, "lossless", wide.astype(dtype))
    out = gpu.to_device(np.zeros(1000, dtype))
    gcodec.decode(gcodec.encode(wide.astype(dtype), "lossless"), out=out)
    assert gpu.to_host(out).tobytes() == wide.astype(dtype).tobytes()


@pytest.mark.parametrize("name", ("float8_e4m3fn", "float8_e5m2"))
def test_floats_of_8_bits(gpu: Device, name: str) -> None:
    if not isinstance(gpu, ShimDevice):
        pytest.skip("CuPy has no floats of 8 bits")
    dtype = np.dtype(getattr(ml_dtypes, name))
    all_patterns = np.tile(np.arange(256).astype(np.uint8), 40).view(dtype)
    for x in (
        matrix(300, 400, dtype),
        np.abs(all_patterns),
        np.empty((0, 3), dtype),
        all_patterns[:1],
    ):
        finite = np.where(np.isfinite(x), x, dtype.type(0))
        for spec in ("lossless", "lossless:mode=fast", "lossless:mode=small", "raw"):
            frames_agree(gpu, spec, finite)
    with pytest.raises(gcodec.ParameterError, match=r"^x holds \d+ NaN or Inf"):
        gcodec.encode(gpu.to_device(all_patterns), "raw")
    zeroed = gcodec.encode(gpu.to_device(all_patterns), "lossless", nonfinite="zero")
    assert zeroed == gcodec.encode(all_patterns, "lossless", nonfinite="zero")
    out = gpu.to_device(np.zeros(all_patterns.size, dtype))
    gcodec.decode(gcodec.encode(all_patterns, "lossless"), out=out)
    assert gpu.to_host(out).tobytes() == all_patterns.tobytes()


def test_bytes_that_are_no_booleans_are_refused(gpu: Device) -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(np.ones(100, bool), "lossless:mode=stored"))
    data = frame.payload.data.copy()
    data[70] = 2
    payload = frame.payload._replace(data=gpu.to_device(data))
    with pytest.raises(gcodec.Corrupt, match="element 70 is neither true nor false"):
        frame.codec.decode(payload, 100)


def test_payloads_are_copies(gpu: Device) -> None:
    x = gpu.to_device(gradient(100))
    codec = gcodec.parse("lossless:mode=stored")
    payload, symbols = codec.encode(x), codec.quantize(x)
    data = gpu.to_host(payload.data).copy()
    x[:] = gpu.zeros(100, np.float32)
    assert np.array_equal(gpu.to_host(payload.data), data)
    assert np.array_equal(gpu.to_host(symbols.bits).view(np.uint8), data)


@pytest.mark.parametrize("mode", ["fast", "small"])
def test_planes_are_split_once(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Selecting the codes of planes and writing the planes share the split elements."""
    random, launched = np.random.default_rng(0), list[str]()
    x = (random.integers(0, 1 << 10, 5000) << 8).astype(np.int32)  # coded, packed, and constant
    device, run = ShimDevice(), ShimDevice.run

    def noted(self: ShimDevice, source: str, name: str, *arguments: Any) -> None:
        launched.append(name)
        run(self, source, name, *arguments)

    monkeypatch.setattr(ShimDevice, "run", noted)
    with devices.use(device):
        frame = gcodec.encode(device.to_device(x), f"lossless:mode={mode}")
    assert frame == gcodec.encode(x, f"lossless:mode={mode}")
    assert launched.count("take_others") == 1
