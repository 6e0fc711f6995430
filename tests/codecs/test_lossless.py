"""The codec lossless: every bit pattern of every dtype, sizes, ranges and damaged bytes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from reference import lossless as reference

import gcodec
from gcodec.codecs.lossless import encoder, message
from gcodec.codecs.lossless.message import Message, read_head
from gcodec.codecs.lossless.planes import PlaneLayout
from gcodec.entropy.coder import WordString
from gcodec.kernels.context import plane_words
from gcodec.runtime import pool
from gcodec.wire.seek import SeekTable

FLOATS = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
MODES = ("auto", "fast", "small", "stored")


def tensors() -> Iterator[tuple[str, np.ndarray]]:
    """Yield tensors of different statistics, as float64."""
    rng = np.random.default_rng(3)
    normal = rng.standard_normal((80, 130))
    scaled = normal * np.exp2(rng.integers(-6, 6, (80, 1)) + rng.integers(-3, 3, 130))
    yield "normal", normal
    yield "scaled", scaled
    yield "vector", rng.standard_normal(5000)
    yield "zeros", np.where(rng.random((80, 130)) < 0.4, 0, normal)
    yield "rows of zeros", scaled * (np.arange(80) % 3 > 0)[:, None]
    yield "negative zeros", np.where(rng.random((80, 130)) < 0.4, -0.0, normal)
    yield "subnormal", np.where(rng.random((80, 130)) < 0.4, 1e-45, 0.0)
    yield "all zero", np.zeros(9000)
    yield "constant", np.full((3, 3000), -1.5)
    yield "special", np.resize([np.nan, np.inf, -np.inf, -0.0, 0, 1], 700)
    yield "empty", np.empty((0, 7))
    yield "one", np.array([2.5])
    yield "scalar", np.array(-0.0)


def bits(x: np.ndarray) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def random_patterns(dtype: np.dtype[np.generic], n: int = 6000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_all_floats_keep_their_bits(dtype: np.dtype[np.generic], mode: str) -> None:
    for name, values in tensors():
        with np.errstate(all="ignore"):
            x = values.astype(dtype)
        frame = gcodec.encode(x, f"lossless:mode={mode}")
        decoded = gcodec.decode(frame)
        assert decoded.dtype == x.dtype and decoded.shape == x.shape, name
        assert bits(decoded) == bits(x), name
        out = np.empty_like(x)
        gcodec.decode(frame, out=out)
        assert bits(out) == bits(x), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_every_pattern_of_16_bits_comes_back(dtype: str, mode: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(FLOATS[dtype])
    for tensor in (x, np.concatenate([x, np.zeros(1 << 16, x.dtype)])):
        assert bits(gcodec.decode(gcodec.encode(tensor, f"lossless:mode={mode}"))) == bits(tensor)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_random_patterns_are_stored_without_loss_and_growth(dtype: np.dtype[np.generic]) -> None:
    x = random_patterns(dtype)
    for mode in MODES:
        frame = gcodec.encode(x, f"lossless:mode={mode}")
        assert str(gcodec.Frame.from_bytes(frame).codec) == "lossless:mode=stored"
        assert bits(gcodec.decode(frame)) == bits(x)
        assert gcodec.Frame.from_bytes(frame).payload.data.nbytes == x.nbytes


@pytest.mark.parametrize("mode", ("fast", "small"))
@pytest.mark.parametrize("dtype", (np.float32, np.int32))
def test_planes_of_all_methods_follow_each_other(dtype: type, mode: str) -> None:
    """Each byte of the elements is random, skewed, less than 8 or constant."""
    rng, n = np.random.default_rng(24), 3000
    skewed = np.minimum(rng.geometric(0.1, n), 255)
    kinds = [rng.integers(0, 256, n), skewed, rng.integers(0, 8, n), np.full(n, 9)]
    methods = set()
    for planes in itertools.product(kinds, repeat=4):
        words = sum(plane.astype(np.uint32) << 8 * k for k, plane in enumerate(planes))
        if dtype == np.float32:  # the first plane is the exponent, and the sign follows it
            words = words & 0x7FFFFF | words >> 24 << 23 | words >> 23 << 31
        x = words.view(dtype)
        frame = gcodec.encode(x, f"lossless:mode={mode}")
        assert bits(gcodec.decode(frame)) == bits(x)
        if len(frame) < x.nbytes:
            first, *others = opened(frame).head.planes
            methods |= {(False, first.method), *((True, plane.method) for plane in others)}
    both = itertools.product((False, True), (message.STORED, message.CONSTANT))
    assert {*both, (True, message.PACKED), (True, message.HUFFMAN)} <= methods


def random_sums(*shape: int) -> np.ndarray:
    """Return sums of four random integers, which no release of NumPy changes."""
    n = math.prod(shape)
    words = np.random.PCG64(n).random_raw(n).view(np.uint16).reshape(n, 4)
    return (words.sum(1, dtype=np.int64) - 2 * 65535).reshape(shape)


def lasting_tensors() -> Iterator[tuple[str, np.ndarray]]:
    """Yield tensors of different statistics that are the same in every release of NumPy."""
    octaves = np.arange(40_000) * 7 % 13 - 6
    vector, matrix, narrow = random_sums(300_000), random_sums(1000, 300), random_sums(5000, 40)
    yield "vector", vector
    yield "rows", np.ldexp(matrix, octaves[:1000, None])
    yield "columns", np.ldexp(matrix, octaves[:300])
    yield "narrow", np.ldexp(narrow, octaves[:5000, None])
    yield "broad", np.ldexp(random_sums(300, 700), octaves[:300, None])
    yield "wide", np.ldexp(narrow.reshape(10, -1), octaves[:20_000])
    yield "zeros", np.where(matrix % 5 < 2, 0, matrix)
    yield "sparse", np.where(matrix % 99, 0, np.ldexp(matrix, 2 * octaves[:300]))
    yield "subnormal", np.where(vector % 5 < 2, 0, np.ldexp(vector, -160 * (vector % 7 == 0)))
    yield "few bits", vector >> 10
    yield "slow", np.cumsum(narrow >> 14, axis=0)
    yield "slow and small", np.cumsum(narrow >> 16, axis=0) & 15
    octave = np.where(vector % 97 == 0, -131, vector % 229 - 100)
    yield "all octaves", np.where(vector % 5 < 2, 0, np.ldexp(1 + vector % 7, octave))
    yield "below 2", np.ldexp(matrix, octaves[:1000, None] - 26)
    for rows in (1, 2, 3, 31, 32, 33, 75):
        yield f"{rows} of 64", np.ldexp(random_sums(rows, 64), 2 * octaves[:rows, None])


LASTING = {
    "fast": {
        "vector": (4194176, 0x883BF7E3),
        "rows": (4198008, 0xAE66C6BC),
        "columns": (4199236, 0x40610C94),
        "narrow": (2805701, 0x461561D4),
        "broad": (2939044, 0xE30AAA3E),
        "wide": (2825929, 0x7F649EAA),
        "zeros": (2966114, 0x8EA91832),
        "sparse": (684866, 0x4C5891FB),
        "subnormal": (2810062, 0xE60CF96D),
        "few bits": (2478742, 0xD3495D2A),
        "slow": (2000089, 0xD651DC20),
        "slow and small": (751710, 0xEE00987A),
        "all octaves": (1396671, 0x18548ECA),
        "below 2": (2309376, 0x00C8205F),
        "1 of 64": (1622, 0x1D78855E),
        "2 of 64": (2520, 0x50D67EE0),
        "3 of 64": (3640, 0x6BB460A0),
        "31 of 64": (30761, 0xC51A9D24),
        "32 of 64": (30841, 0xADDC46B9),
        "33 of 64": (31661, 0x2848A7E0),
        "75 of 64": (69731, 0xF3B37D0C),
    },
    "auto": {
        "vector": (4149921, 0x541FB31B),
        "rows": (4105749, 0x00134B1F),
        "columns": (4105442, 0x8025300D),
        "narrow": (2746454, 0xEAB6955B),
        "broad": (2874530, 0xC30BE281),
        "wide": (2774410, 0x1E6A7689),
        "zeros": (2926659, 0x8DB8BC16),
        "sparse": (441415, 0x3198028A),
        "subnormal": (2774683, 0xEB11B398),
        "few bits": (2432450, 0xA3271F71),
        "slow": (1364062, 0x915D5418),
        "slow and small": (638890, 0x80CC2442),
        "all octaves": (1326581, 0x5850D86E),
        "below 2": (2274369, 0xAC4B920D),
        "1 of 64": (1622, 0xBE3117BF),
        "2 of 64": (2520, 0x4DA361FE),
        "3 of 64": (3640, 0x3E9F85BD),
        "31 of 64": (30761, 0xC51A9D24),
        "32 of 64": (30841, 0xADDC46B9),
        "33 of 64": (31661, 0x2848A7E0),
        "75 of 64": (69730, 0x8EB2AD6F),
    },
}


@pytest.mark.parametrize("mode", ("fast", "auto"))
def test_choices_of_the_encoder_last(mode: str) -> None:
    """Every release writes the bytes of the preceding one."""
    seen = {}
    for name, values in lasting_tensors():
        with np.errstate(over="ignore"):
            tensors = [values.astype(dtype) for dtype in FLOATS.values()]
        integers = np.clip(values, -(2**50), 2**50).astype(np.int64)
        tensors += [integers.astype(dtype) for dtype in ("int8", "int32", "int64")]
        data = b"".join(gcodec.encode(x, f"lossless:mode={mode}") for x in tensors)
        seen[name] = len(data), zlib.crc32(data)
    assert seen == LASTING[mode]


@pytest.mark.parametrize("name", gcodec.wire.primitives.INTEGERS)
def test_integers_and_booleans_keep_their_bits(name: str) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((50, 60)) * 40).astype(name)
    for tensor in (x, np.zeros_like(x), x[:0], x[0, 0]):
        for mode in MODES:
            decoded = gcodec.decode(gcodec.encode(tensor, f"lossless:mode={mode}"))
            assert decoded.dtype == x.dtype and bits(decoded) == bits(np.asarray(tensor))


@pytest.mark.parametrize("mode", ["fast", "small"])
@pytest.mark.parametrize("n", [2, 100, 5000])
def test_bare_bytes(mode: str, n: int) -> None:
    """The string of the first plane ends within the last byte of a message."""
    rng = np.random.default_rng(n)
    normal = rng.standard_normal(n, np.float32)
    integers = rng.integers(-9, 9, n, np.int32)
    for x in (normal, normal * (rng.random(n) < 0.3), np.ones(n, np.float32), integers):
        payload = gcodec.parse(f"lossless:mode={mode}").encode(x)
        assert np.array_equal(payload.codec.decode(payload.tobytes(), n), x)


def test_nan_needs_no_policy_but_may_be_replaced() -> None:
    x = np.array([1, np.nan, np.inf, -2] * 20, np.float32).astype(ml_dtypes.bfloat16)
    assert bits(gcodec.decode(gcodec.encode(x, "lossless"))) == bits(x)
    zeros = gcodec.decode(gcodec.encode(x, "lossless", nonfinite="zero"))
    assert zeros.astype(np.float32).tolist() == [1, 0, 0, -2] * 20


def test_payloads_are_never_longer_than_the_elements() -> None:
    for name, values in tensors():
        for dtype in FLOATS.values():
            with np.errstate(all="ignore"):
                x = values.astype(dtype)
            for mode in MODES:
                payload = gcodec.parse(f"lossless:mode={mode}").encode(x)
                assert payload.nbits <= 8 * x.nbytes, name


def test_auto_is_the_shortest_mode() -> None:
    for _, values in tensors():
        x = values.astype(np.float32)
        sizes = {mode: len(gcodec.encode(x, f"lossless:mode={mode}")) for mode in MODES}
        assert sizes["auto"] == min(sizes.values())


def test_scales_of_rows_and_columns_save_bits() -> None:
    rng = np.random.default_rng(4)
    octaves = rng.integers(-8, 8, (256, 1)) + rng.integers(-8, 8, 256)
    x = (rng.standard_normal((256, 256)) * np.exp2(octaves)).astype(ml_dtypes.bfloat16)
    flat = {mode: len(gcodec.encode(x.reshape(-1), f"lossless:mode={mode}")) for mode in MODES}
    shaped = {mode: len(gcodec.encode(x, f"lossless:mode={mode}")) for mode in MODES}
    assert shaped["fast"] < 0.93 * flat["fast"]
    assert shaped["small"] < shaped["fast"]
    methods = {}
    for mode in ("fast", "small"):
        payload = gcodec.parse(f"lossless:mode={mode}").encode(x)
        codec = payload.codec
        methods[mode] = Message.open(payload, codec._layout, x.size, codec.mode).head.planes[0]
    assert methods["fast"].method == message.LOWERED_HUFFMAN
    assert methods["small"].method == message.CLASSES


def test_zeros_cost_neither_signs_nor_mantissas() -> None:
    x = np.random.default_rng(5).standard_normal(1 << 16).astype(np.float32)
    x[: x.size * 3 // 4] = 0
    for mode, most in (("fast", 8.6), ("small", 8.1)):
        assert 8 * len(gcodec.encode(x, f"lossless:mode={mode}")) / x.size < most


def test_floats_of_fewer_bits_are_not_longer_in_float32() -> None:
    x = np.random.default_rng(6).standard_normal(1 << 15).astype(ml_dtypes.bfloat16)
    narrow, wide = (len(gcodec.encode(each, "lossless")) for each in (x, x.astype(np.float32)))
    assert wide < narrow + 10


@pytest.mark.parametrize("shape", ((3 << 20,), (1 << 17,), (1023, 129), (700, 300), (256, 1024)))
def test_estimated_counts_allow_any_byte(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    octaves = rng.integers(-8, 8, (shape[0], 1)) if len(shape) > 1 else 0
    narrow, wide = FLOATS["bfloat16"], FLOATS["float32"]
    for rounded_to, dtype in ((narrow, narrow), (wide, wide), (narrow, wide)):
        x = (rng.standard_normal(shape) * np.exp2(octaves)).astype(rounded_to).astype(dtype)
        assert bits(gcodec.decode(gcodec.encode(x, "lossless:mode=fast"))) == bits(x)
        for value in (0, 1e-30, 1e30, np.nan):  # in an element that no estimate reads
            x.reshape(-1)[-1] = value
            assert bits(gcodec.decode(gcodec.encode(x, "lossless:mode=fast"))) == bits(x)


@pytest.mark.parametrize("shape", ((1 << 17,), (512, 256), (1024, 256)))
def test_estimated_counts_cost_few_bits(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(16)
    octaves = rng.integers(-8, 8, (shape[0], 1)) if len(shape) > 1 else 0
    x = (rng.standard_normal(shape) * np.exp2(octaves)).astype(ml_dtypes.bfloat16)
    writer = encoder._Writer(
        x.view(np.uint16).reshape(-1), PlaneLayout.of("bfloat16"), shape, True
    )
    exact = writer.write("fast", 16 * x.size)
    assert exact is not None
    estimated = gcodec.parse("lossless:mode=fast").encode(x)
    assert estimated.data.size < 1.0015 * exact.data.size


@pytest.mark.parametrize("share", (0, 0.4))
@pytest.mark.parametrize("sampled_share", (0, 1e-3, 0.9))
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_zeros_are_counted_where_other_counts_are_estimated(
    dtype: str, sampled_share: float, share: float
) -> None:
    """The rows that an estimate reads may have another share of zeros."""
    rng = np.random.default_rng(23)
    x = rng.standard_normal(1 << 20).astype(FLOATS[dtype]).reshape(-1, 128)
    x[rng.random(x.shape) >= share] = 0
    x[::16] = rng.standard_normal(x[::16].shape)
    x[::16][rng.random(x[::16].shape) >= sampled_share] = 0
    x = x.reshape(-1)
    frame = gcodec.encode(x, "lossless:mode=fast")
    assert bits(gcodec.decode(frame)) == bits(x)
    patterns = x.view(f"u{x.itemsize}")
    exact = encoder._Writer(patterns, PlaneLayout.of(dtype), x.shape, True).write(
        "fast", 8 * x.nbytes
    )
    assert exact is not None
    assert len(frame) <= 1.01 * exact.data.size + 200


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "int8", "int64"))
@pytest.mark.parametrize("value", (0, 7))
def test_large_constant_tensors_take_few_bytes(dtype: str, value: int) -> None:
    x = np.full(1 << 18, value, FLOATS.get(dtype, dtype))
    for mode in ("fast", "auto"):
        frame = gcodec.encode(x, f"lossless:mode={mode}")
        assert len(frame) < 100
        assert bits(gcodec.decode(frame)) == bits(x)


@pytest.mark.parametrize("shape", ((1_500_032,), (5000, 200)))
def test_bytes_that_no_sample_contains_are_written_in_one_pass(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least and the greatest bytes of rows are known, unless columns have scales."""
    monkeypatch.setattr(encoder._Writer, "_exact", lambda *_: pytest.fail("encoded again"))
    rng = np.random.default_rng(20)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-3, 3, shape[-1] if shape[1:] else 1))
    if not shape[1:]:
        rows = x.reshape(-1, 128)
        rows *= np.exp2(rng.integers(-9, 9, (rows.shape[0], 1)))
        x[rng.random(x.size) < 2e-5] *= 1e-9
    x[rng.random(shape) < 0.1] = 0
    for dtype in (FLOATS["bfloat16"], FLOATS["float32"]):
        tensor = x.astype(dtype)
        assert bits(gcodec.decode(gcodec.encode(tensor, "lossless:mode=fast"))) == bits(tensor)


def test_strings_may_exceed_their_estimated_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(14)
    exponents = np.where(rng.random(3 << 20) < 0.01, rng.integers(-40, 1, 3 << 20), 0)
    counted = np.arange(exponents.size) // 128 % 48 == 0  # the rows that an estimate reads
    wide = np.where(counted, exponents, rng.integers(-40, 1, exponents.size))
    magnitudes, signs = rng.uniform(1, 2, wide.size), rng.choice((-1, 1), wide.size)
    for dtype, sign in itertools.product((FLOATS["bfloat16"], FLOATS["float32"]), (signs, 1)):
        x = np.ldexp(sign * magnitudes, wide).astype(dtype)
        frames = []
        for threads in ("1", "3"):
            monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
            frames.append(gcodec.encode(x, "lossless:mode=fast"))
        assert frames[0] == frames[1]
        assert bits(gcodec.decode(frames[0])) == bits(x)


def test_payloads_of_reused_memory_stay_apart() -> None:
    rng = np.random.default_rng(15)
    codec = gcodec.parse("lossless:mode=fast")
    tensors = [rng.standard_normal(1500000).astype(np.float32) for _ in range(3)]
    payloads = [codec.encode(x) for x in tensors]
    frames = [gcodec.encode(x, codec) for x in tensors]
    for x, payload, frame in zip(tensors, payloads, frames, strict=True):
        assert bits(payload.codec.decode(payload, x.shape)) == bits(x)
        assert bits(gcodec.decode(frame)) == bits(x)


@pytest.mark.parametrize("mode", ("fast", "small"))
@pytest.mark.parametrize("log2_block", (None, 5, 9, 14))
def test_ranges_equal_parts_of_the_tensor(mode: str, log2_block: int | None) -> None:
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((90, 1000)) * np.exp2(rng.integers(-9, 9, (90, 1)))).astype("f4")
    x[rng.random(x.shape) < 0.3] = 0
    for tensor in (x, x.astype(np.float16), x.astype(np.float64), np.zeros_like(x)):
        frame = gcodec.Frame.from_bytes(gcodec.encode(tensor, f"lossless:mode={mode}"))
        frame = frame.without_seek() if log2_block is None else frame.with_seek(log2_block)
        data, n = frame.to_bytes(), x.size
        for start, stop in ((0, n), (0, 1), (n - 1, n), (4095, 4097), (70000, 81919), (5, 5)):
            part = gcodec.decode_range(data, start, stop)
            assert part.dtype == tensor.dtype
            assert bits(part) == bits(tensor.reshape(-1)[start:stop])


def test_ranges_read_only_their_blocks() -> None:
    """Other blocks may be damaged, since the seek table states where each block begins."""
    x = np.random.default_rng(21).standard_normal(40_000, np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "lossless:mode=fast")).with_seek(12)
    string = opened(frame.to_bytes()).first
    assert string is not None and frame.seek is not None and frame.seek.count == 10
    at = (string.span.first + frame.seek.offsets) // 8
    for block in (0, 4, 9):
        data = frame.payload.data.copy()
        data[at[block] + 1 : at[block + 1]] ^= 0xFF
        damaged = dataclasses.replace(frame, payload=frame.payload._replace(data=data))
        with pytest.raises(gcodec.Corrupt):
            damaged.decode()
        for other in range(10):
            start, stop = other << 12, min(other + 1 << 12, x.size)
            if other == block:
                with pytest.raises(gcodec.Corrupt):
                    damaged.decode_range(start, stop)
            else:
                assert bits(damaged.decode_range(start, stop)) == bits(x[start:stop])


@pytest.mark.parametrize("mode", ("fast", "small"))
def test_threads_write_and_read_the_same_bytes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    x = (rng.standard_normal((1500, 1000)) * np.exp2(rng.integers(-9, 9, (1500, 1)))).astype("f4")
    sparse = x.copy()
    sparse[::3] *= rng.random((500, 1000)) < 0.5
    for tensor in (x, sparse):
        frames = []
        for threads in ("1", "3"):
            monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
            frames.append(gcodec.encode(tensor, f"lossless:mode={mode}"))
            assert bits(gcodec.decode(frames[-1])) == bits(tensor)
        assert frames[0] == frames[1]


def test_symbols_are_bit_patterns() -> None:
    codec, x = gcodec.parse("lossless"), np.array([[1, -2.5], [0, 3]], ml_dtypes.bfloat16)
    symbols = codec.quantize(x)
    assert symbols.dtype == "bfloat16" and symbols.bits.tolist() == [0x3F80, 0xC020, 0, 0x4040]
    assert codec.dequantize(symbols, x.shape).tolist() == x.astype(np.float32).tolist()
    payload = codec.pack(symbols)
    assert codec.unpack(payload, x.shape).bits.tolist() == symbols.bits.tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64, np.bool_])
def test_symbols_of_integers_are_not_read_as_floats(dtype: type) -> None:
    codec, x = gcodec.parse("lossless"), np.ones(5, dtype)
    symbols = codec.quantize(x)
    with pytest.raises(gcodec.ParameterError, match=r"^symbols: they do not match 5 elements$"):
        codec.dequantize(symbols, 5)
    payload = codec.pack(symbols)
    decoded = payload.codec.dequantize(symbols, 5)
    assert decoded.dtype == dtype and decoded.all()


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("float64", "symbols: they do not match 6 elements$"),
        ("float16", "symbols: they do not match 6 elements$"),
        ("int7", r"symbols\.dtype='int7': must be one of float32, "),
    ],
)
def test_symbols_with_another_dtype_are_refused(dtype: str, message: str) -> None:
    codec = gcodec.parse("lossless")
    symbols = codec.quantize(np.ones(6, np.float32))._replace(dtype=dtype)  # type: ignore[attr-defined]
    for call in (codec.pack, lambda changed: codec.dequantize(changed, 6)):
        with pytest.raises(gcodec.ParameterError, match=f"^{message}"):
            call(symbols)


def test_symbols_of_float64_are_rounded_to_float32() -> None:
    x = np.array([1 / 3, -1e300, 1e-60, np.nan, -0.0])
    codec = gcodec.parse("lossless")
    decoded = codec.dequantize(codec.quantize(x), x.shape)
    expected = np.float32([1 / 3, -np.inf, 0, np.nan, -0.0])
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("mode", ["stored", "fast", "small"])
def test_bytes_that_are_no_booleans_are_refused(mode: str) -> None:
    x = np.zeros(5000, np.uint8)
    x[::3], x[4000] = 1, 2
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, f"lossless:mode={mode}"))
    assert frame.codec.mode == mode  # type: ignore[attr-defined]
    payload = frame.payload._replace(codec=frame.codec._with_dtype("bool"))
    broken = dataclasses.replace(frame, dtype="bool", codec=payload.codec, payload=payload)
    data = broken.to_bytes()
    calls = [
        lambda: gcodec.decode(data),
        lambda: payload.codec.unpack(payload, x.shape),
        lambda: gcodec.decode_range(data, 3996, 4004),
    ]
    for call in calls:
        with pytest.raises(gcodec.Corrupt, match="neither true nor false"):
            call()


def test_feedback_leaves_no_residual() -> None:
    x = np.random.default_rng(10).standard_normal((40, 50)).astype(np.float32)
    feedback = gcodec.Feedback("lossless")
    frame = feedback.compress("w", x)
    assert bits(gcodec.decode(frame)) == bits(x)
    total = np.zeros_like(x)
    gcodec.decode_add(frame, total)
    assert bits(total) == bits(x)


@pytest.mark.parametrize("mode", ("fast", "small"))
def test_oracle_reads_what_the_encoder_writes(mode: str) -> None:
    rng = np.random.default_rng(11)
    octaves = rng.integers(-5, 5, (64, 1))
    x = rng.standard_normal((64, 40)) * np.exp2(octaves) * (rng.random((64, 40)) > 0.2)
    for dtype in FLOATS:
        tensor = x.astype(FLOATS[dtype])
        payload = gcodec.parse(f"lossless:mode={mode}").encode(tensor)
        patterns = reference.read(
            payload.tobytes(), payload.nbits, x.size, dtype, tensor.itemsize, payload.codec.mode
        )
        assert patterns == tensor.reshape(-1).view(f"u{tensor.itemsize}").tolist()


@pytest.mark.parametrize("dtype", ("uint8", "int32"))
@pytest.mark.parametrize("has_zeros", (False, True))
def test_integers_may_be_lowered_and_leave_out_zeros(dtype: str, has_zeros: bool) -> None:
    """Other encoders may write what gcodec's own writes for floats alone."""
    rng = np.random.default_rng(14)
    x = rng.integers(0, 100, 5000).astype(dtype) << np.dtype(dtype).type(8 * (dtype == "int32"))
    x[rng.random(x.size) < 0.3] = 0
    patterns = x.view(f"u{x.itemsize}")
    first, *others = patterns.astype(f">u{x.itemsize}").view(np.uint8).reshape(x.size, -1).T
    first = np.where((first == 0) & (x != 0), 200, first) if has_zeros else first
    scales = reference.Scales(1000, 0, rng.integers(1, 127, 5).tolist(), [])
    planes = [reference.tabled_plane(message.LOWERED_HUFFMAN, first.tolist(), 1, scales)]
    for plane in others:
        values = plane[x != 0] if has_zeros else plane
        planes.append(reference.Plane(message.STORED, values.tolist()))
    data, nbits = reference.write(reference.Message(planes, 200 if has_zeros else None))
    expected = reference.read(data, nbits, x.size, dtype, x.itemsize, "fast")
    assert expected == patterns.tolist()
    codec = gcodec.parse("lossless:mode=fast")._with_dtype(dtype)
    payload = gcodec.Payload(codec, {}, np.frombuffer(data, np.uint8), nbits, None)
    frame = gcodec.Frame(codec, dtype, x.shape, payload, None)
    assert bits(frame.decode()) == bits(x)


@pytest.mark.parametrize("mode", ("fast", "small"))
def test_damaged_bytes_are_refused_or_decode(mode: str) -> None:
    rng = np.random.default_rng(12)
    octaves = rng.integers(-5, 5, (64, 1))
    x = (rng.standard_normal((64, 40)) * np.exp2(octaves)).astype(ml_dtypes.bfloat16)
    x[rng.random(x.shape) < 0.2] = 0
    payload = gcodec.parse(f"lossless:mode={mode}").encode(x)
    accepted = 0
    for _ in range(300):
        data = payload.data.copy()
        at = int(rng.integers(0, 60 if rng.random() < 0.5 else data.size))
        data[at] ^= 1 << int(rng.integers(0, 8))
        end = int(rng.integers(0, data.size + 1)) if rng.random() < 0.2 else data.size
        nbits = payload.nbits if end == data.size else 8 * end
        damaged = payload._replace(data=data[:end], nbits=nbits)
        try:
            decoded = payload.codec.decode(damaged, x.shape)
        except gcodec.FormatError:
            continue
        accepted += 1
        assert decoded.shape == x.shape
    assert accepted  # such as changed mantissas


def opened(frame: bytes) -> Message:
    """Return the message of a frame."""
    read = gcodec.Frame.from_bytes(frame)
    layout, payload = PlaneLayout.of(read.dtype), read.payload
    return Message.open(payload, layout, read.size, payload.codec.mode)  # type: ignore[attr-defined]


def packed_widths(frame: bytes) -> list[int]:
    """Return the bits of the fields of each plane but the first one; 0 unless it is packed."""
    return [plane.width for plane in opened(frame).head.planes[1:]]


@pytest.mark.parametrize("threads", ("1", "3"))
@pytest.mark.parametrize("has_zeros", (False, True))
@pytest.mark.parametrize("dtype", [*FLOATS.values()][:3], ids=[*FLOATS][:3])
def test_floats_without_signs_take_seven_bits_of_the_plane_that_contains_the_sign(
    dtype: np.dtype[np.generic], has_zeros: bool, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    monkeypatch.setattr(pool, "SEGMENT", 1 << 14)
    rng = np.random.default_rng(17)
    x = np.abs(rng.standard_normal(300_007) / 4).astype(dtype)  # below 2
    if has_zeros:
        x[rng.random(x.size) < 0.3] = 0
    for mode in ("fast", "small"):
        frame = gcodec.encode(x, f"lossless:mode={mode}")
        # In mode=small, the first plane of bfloat16 and float32 contains a bit of the mantissa.
        has_bit = mode == "small" and dtype.name != "float16"
        assert packed_widths(frame) == [6 if has_bit else 7] + [0] * (x.itemsize - 2)
        assert bits(gcodec.decode(frame)) == bits(x)
        for start, stop in ((0, 1), (4095, 4099), (100_003, 250_001), (x.size - 1, x.size)):
            assert bits(gcodec.decode_range(frame, start, stop)) == bits(x[start:stop])
    x[-1] = -1  # in an element that no sample contains
    frame = gcodec.encode(x, "lossless:mode=fast")
    assert packed_widths(frame) == [0] * (x.itemsize - 1)
    assert bits(gcodec.decode(frame)) == bits(x)


@pytest.mark.parametrize("width", range(1, 8))
def test_small_integers_take_few_bits(width: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.integers(0, 1 << width, 20_000).astype(np.int32)
    frame = gcodec.encode(x, "lossless:mode=fast")
    assert packed_widths(frame) == [0, 0, width]
    assert bits(gcodec.decode(frame)) == bits(x)
    rare = np.where(rng.random(x.size) < 0.01, x, 0)  # Huffman words are shorter
    frame = gcodec.encode(rare, "lossless:mode=fast")
    assert packed_widths(frame) == ([0, 0, 1] if width == 1 else [0, 0, 0])
    assert bits(gcodec.decode(frame)) == bits(rare)


def test_the_oracle_reads_packed_planes() -> None:
    rng = np.random.default_rng(18)
    for has_zeros in (False, True):
        x = np.abs(rng.standard_normal(5001)).astype(np.float32)
        x[rng.random(x.size) < 0.3 * has_zeros] = 0
        payload = gcodec.parse("lossless:mode=fast").encode(x)
        assert message.PACKED in payload.data[:6]
        patterns = reference.read(payload.tobytes(), payload.nbits, x.size, "float32", 4, "fast")
        assert patterns == x.view(np.uint32).tolist()


@pytest.mark.parametrize("threads", ("1", "3"))
@pytest.mark.parametrize("has_zeros", (False, True))
@pytest.mark.parametrize("dtype", [*FLOATS.values()][:3], ids=[*FLOATS][:3])
@pytest.mark.parametrize(
    "shape",
    [(2 * plane_words._TOGETHER + beyond,) for beyond in (-1, 0, 1, 12_345)] + [(1500, 512)],
    ids=str,
)
def test_words_and_planes_are_read_in_one_pass(
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    has_zeros: bool,
    threads: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    monkeypatch.setattr(pool, "SEGMENT", 1 << 14)
    monkeypatch.setattr(WordString, "read", lambda *_: pytest.fail("read in two passes"))
    rng = np.random.default_rng(23)
    normal = rng.standard_normal(shape)
    if has_zeros:
        normal[rng.random(shape) < 0.3] = 0
        normal.reshape(-1)[400_000:420_000] = 0
    scaled = normal.copy()
    rows = scaled.reshape(-1)[: scaled.size // 128 * 128].reshape(-1, 128)
    rows *= np.exp2(rng.integers(-5, 5, (rows.shape[0], 1)))
    scaled *= np.exp2(rng.integers(-3, 3, shape[-1])) if shape[1:] else 1
    for x in (normal.astype(dtype), scaled.astype(dtype)):
        frame = gcodec.encode(x, "lossless:mode=fast")
        unaligned = np.empty(x.size + 1, dtype)[1:].reshape(shape)
        gcodec.decode(frame, out=unaligned)
        assert bits(gcodec.decode(frame)) == bits(unaligned) == bits(x)


@pytest.mark.parametrize("has_zeros", (False, True))
def test_one_pass_refuses_the_damage_that_two_passes_refuse(
    has_zeros: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(24)
    x = rng.standard_normal((547, 128)) * np.exp2(rng.integers(-5, 5, (547, 1)))
    x[rng.random(x.shape) < 0.3 * has_zeros] = 0
    payload = gcodec.parse("lossless:mode=fast").encode(x.astype(np.float32).reshape(-1))
    table, damaged = payload.seek, []
    assert table is not None
    for at in (*range(60), *rng.integers(0, payload.data.size, 200).tolist()):
        data, lengths = payload.data.copy(), table.lengths.copy()
        if at % 3:
            data[at] ^= 1 << at % 8
        else:
            lengths[at % lengths.size] += 1
            lengths[(at + 1) % lengths.size] -= 1
        damaged.append(payload._replace(data=data, seek=SeekTable(table.log2_block, lengths)))

    def outcome(payload: gcodec.Payload) -> object:
        try:
            return zlib.crc32(bits(payload.codec.decode(payload, x.size)))
        except gcodec.FormatError as error:
            return type(error)

    in_one_pass = [outcome(each) for each in damaged]
    monkeypatch.setattr(plane_words, "is_readable", lambda *_: False)
    assert in_one_pass == [outcome(each) for each in damaged]
    assert 50 < in_one_pass.count(gcodec.Corrupt) < len(damaged)


@pytest.mark.parametrize("threads", ("1", "3"))
def test_groups_with_a_wrong_number_of_zeros_are_named(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    monkeypatch.setattr(pool, "SEGMENT", 1 << 14)
    x = np.random.default_rng(25).standard_normal(1 << 19).astype(np.float32)
    x[::3] = 0
    payload = gcodec.parse("lossless:mode=fast").encode(x)
    head, _ = read_head(payload.data, payload.nbits, x.size, PlaneLayout.of("float32"), "fast")
    assert head.zeros is not None
    at = payload.data.tobytes().index(head.zeros.counts.astype("<u2").tobytes())
    data = payload.data.copy()
    counts = data[at : at + 2 * head.zeros.counts.size].view("<u2")
    counts[100] += 1
    counts[120] -= 1
    with pytest.raises(gcodec.Corrupt, match="group 100 does not have as many zeros"):
        payload.codec.decode(payload._replace(data=data), x.shape)


def test_damaged_packed_planes_are_refused() -> None:
    x = np.abs(np.random.default_rng(19).standard_normal(403)).astype(ml_dtypes.bfloat16)
    payload = gcodec.parse("lossless:mode=fast").encode(x)
    head = [0, message.HUFFMAN, message.PACKED, 7]
    assert payload.data[:4].tolist() == head
    last = len(head) + -(-7 * x.size // 8) - 1  # its last three bits are padding
    for at, byte, error in (
        (3, 0, "plane 1 has fields of 0 bits"),
        (3, 8, "plane 1 has fields of 8 bits"),
        (1, message.PACKED, "plane 0 is coded by method 7"),
        (last, int(payload.data[last]) | 1, "a padding bit is not zero"),
    ):
        data = payload.data.copy()
        data[at] = byte
        with pytest.raises(gcodec.Corrupt, match=error):
            payload.codec.decode(payload._replace(data=data), x.shape)
    short = payload._replace(data=payload.data[:last], nbits=8 * last)
    with pytest.raises(gcodec.Truncated, match="plane 1 ends"):
        payload.codec.decode(short, x.shape)


def similar_rows(shape: tuple[int, ...], seed: int = 21) -> np.ndarray:
    """Return float64 rows that are nearly multiples of one row, some of them negative."""
    rng = np.random.default_rng(seed)
    factors = rng.uniform(1, 1.01, shape[:1]) * rng.choice((-1, 1), shape[:1])
    noise = rng.uniform(1, 1.002, shape)
    return noise * factors.reshape(-1, *[1] * (len(shape) - 1)) * rng.standard_normal(shape[1:])


@pytest.mark.parametrize("threads", ("1", "3"))
@pytest.mark.parametrize("mode", ("auto", "small"))
@pytest.mark.parametrize("shape", ((300, 200), (70, 1000), (130, 5, 3, 3), (1000, 8)))
def test_rows_that_resemble_those_above_take_fewer_bits(
    shape: tuple[int, ...], mode: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    monkeypatch.setattr(pool, "SEGMENT", 1 << 10)
    monkeypatch.setattr(pool, "_CONVERTED", 1 << 10)
    for dtype in FLOATS.values():
        x = similar_rows(shape).astype(dtype)
        frame = gcodec.encode(x, f"lossless:mode={mode}")
        plane = opened(frame).head.planes[1]
        assert (plane.method, plane.row) == (message.DIFFERENCES, x.size // shape[0])
        assert len(frame) < 0.98 * len(gcodec.encode(x.reshape(-1), f"lossless:mode={mode}"))
        assert bits(gcodec.decode(frame)) == bits(x)
        for start, stop in ((0, 1), (4095, 4099), (5001, x.size - 7), (x.size - 1, x.size)):
            part = gcodec.decode_range(frame, start, stop)
            assert bits(part) == bits(x.reshape(-1)[start:stop])


def test_differences_need_rows_and_similar_ones() -> None:
    rng = np.random.default_rng(22)
    x = similar_rows((1200, 200)).astype(ml_dtypes.bfloat16)
    zeros = np.where(rng.random(x.shape) < 0.3, 0, x).astype(x.dtype)
    # Only the first rows resemble each other, which are a quarter of the sample.
    partly = np.concatenate([np.tile(x[:1], (21, 1)), rng.permuted(x[21:], axis=1)])
    sparse_rows = np.where(np.arange(1200)[:, None] % 3 > 0, x, 0).astype(x.dtype)
    for tensor in (x.reshape(-1), rng.permuted(x, axis=1), zeros, sparse_rows, partly):
        frame = gcodec.encode(tensor, "lossless:mode=small")
        assert opened(frame).head.planes[1].method != message.DIFFERENCES
        assert bits(gcodec.decode(frame)) == bits(tensor)
    fast = gcodec.encode(x, "lossless:mode=fast")
    assert opened(fast).head.planes[1].method == message.STORED


def test_the_oracle_reads_differences() -> None:
    for dtype in FLOATS:
        x = similar_rows((140, 60)).astype(FLOATS[dtype])
        payload = gcodec.parse("lossless:mode=small").encode(x)
        assert payload.data[2] == message.DIFFERENCES
        patterns = reference.read(
            payload.tobytes(), payload.nbits, x.size, dtype, x.itemsize, "small"
        )
        assert patterns == x.reshape(-1).view(f"u{x.itemsize}").tolist()


@pytest.mark.parametrize("mode", ("fast", "small"))
@pytest.mark.parametrize("row", (8, 9, 40, 4999, 5000))
def test_rows_of_any_length_may_have_differences(mode: str, row: int) -> None:
    """Other encoders may write what gcodec's own writes for rows of a matrix alone."""
    x = np.random.default_rng(row).integers(0, 1 << 16, 5000).astype(np.uint16)
    first, *others = x.astype(">u2").view(np.uint8).reshape(x.size, -1).T
    planes = [reference.Plane(message.STORED, first.tolist())]
    planes += [reference.differing_plane(plane.tolist(), row) for plane in others]
    data, nbits = reference.write(reference.Message(planes))
    assert reference.read(data, nbits, x.size, "uint16", 2, mode) == x.tolist()
    codec = gcodec.parse(f"lossless:mode={mode}")._with_dtype("uint16")
    payload = gcodec.Payload(codec, {}, np.frombuffer(data, np.uint8), nbits, None)
    frame = gcodec.Frame(codec, "uint16", x.shape, payload, None)
    assert bits(frame.decode()) == bits(x)
    assert bits(gcodec.decode_range(frame.to_bytes(), 4090, 4999)) == bits(x[4090:4999])


def test_damaged_rows_of_differences_are_refused() -> None:
    rng = np.random.default_rng(23)
    x = 1 + (rng.integers(0, 120, 8) + rng.integers(0, 2, (32, 8))) / 128
    payload = gcodec.parse("lossless:mode=small").encode(x.astype(ml_dtypes.bfloat16))
    head = [0, message.CONSTANT, 127, message.DIFFERENCES, 8]
    data = payload.data.tobytes()
    assert data[:5] == bytes(head)
    for damaged, error in (
        (data[:1] + b"\x08" + data[2:], "plane 0 is coded by method 8"),
        (data[:4] + b"\x00" + data[5:], "differences in rows of 0 of 256 elements"),
        (data[:4] + b"\x07" + data[5:], "differences in rows of 7 of 256 elements"),
        (data[:4] + b"\x81\x02" + data[5:], "differences in rows of 257 of 256 elements"),
        (data[:4] + b"\xff" * 9 + b"\x01" + data[5:], "in rows of 18446744073709551615 of"),
        (b"\x01\x09" + data[1:], "differences of a plane that leaves out zeros"),
    ):
        array = np.frombuffer(damaged, np.uint8)
        with pytest.raises(gcodec.Corrupt, match=error):
            payload.codec.decode(payload._replace(data=array, nbits=8 * array.size), x.shape)


def has_mantissa_bit(frame: bytes) -> bool:
    """Return whether the first plane contains a bit of the mantissa."""
    result: bool = opened(frame).head.layout.has_mantissa_bit
    return result


def numbers(name: str) -> np.ndarray:
    """Return 20,000 numbers, for whose mantissas a table may pay."""
    normal = np.random.default_rng(31).standard_normal((125, 160)) * 0.1
    octaves = np.arange(125) % 5 - 4
    cases = {
        "normal": normal,
        "rows": np.ldexp(normal, octaves[:, None]),
        "positive": np.abs(normal),
        "zeros": np.where(normal > 0.1, 0, normal),
        "both zeros": np.where(normal > 0.15, 0, np.where(normal < -0.25, -0.0, normal)),
        "subnormal": np.where(normal > 0.2, 1e-40, normal),
        "below 2": np.where(normal > 0.35, 1.99, normal),
        "one is 2": np.where(normal == normal.max(), -2, normal),
        "special": np.where(normal > 0.15, np.resize([np.nan, np.inf, 0, -0.0], 160), normal),
    }
    return cases[name]


@pytest.mark.parametrize("threads", ("1", "3"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize(
    ("name", "is_coded"),
    [
        *(("normal", True), ("rows", True), ("positive", True), ("zeros", True)),
        *(("both zeros", True), ("subnormal", True), ("below 2", True)),
        *(("one is 2", False), ("special", False)),
    ],
)
def test_first_plane_with_a_bit_of_the_mantissa(
    name: str, is_coded: bool, dtype: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    monkeypatch.setattr(pool, "_THRESHOLD", 1)
    monkeypatch.setattr(pool, "SEGMENT", 1 << 12)
    x = numbers(name).astype(FLOATS[dtype])
    frame = gcodec.encode(x, "lossless:mode=small")
    assert has_mantissa_bit(frame) == is_coded
    assert gcodec.encode(x, "lossless") == frame
    assert bits(gcodec.decode(frame)) == bits(x)
    flat = x.reshape(-1)
    for start, stop in ((0, 1), (4095, 4099), (9_003, 17_001), (x.size - 1, x.size)):
        assert bits(gcodec.decode_range(frame, start, stop)) == bits(flat[start:stop])
    out = np.ones(x.shape, x.dtype)
    gcodec.decode(frame, out=out)
    assert bits(out) == bits(x)
    assert not has_mantissa_bit(gcodec.encode(x, "lossless:mode=fast"))
    monkeypatch.setattr(encoder, "_LEAST_WITH_MANTISSAS", x.size + 1)
    without = gcodec.encode(x, "lossless:mode=small")
    assert not has_mantissa_bit(without)
    assert len(frame) < len(without) or not is_coded
    if threads == "1":
        read = gcodec.Frame.from_bytes(frame).payload
        arguments = read.nbits, x.size, dtype, x.itemsize, "small"
        assert reference.read(read.tobytes(), *arguments) == flat.view(f"u{x.itemsize}").tolist()


def test_mantissas_stay_where_coding_them_does_not_pay() -> None:
    x = numbers("normal")
    for others in (x.astype(np.float16), x.astype(np.float64), x[:90].astype(np.float32)):
        assert not has_mantissa_bit(gcodec.encode(others, "lossless:mode=small"))
    similar = (similar_rows((150, 120)) * 0.01).astype(np.float32)
    frame = gcodec.encode(similar, "lossless:mode=small")
    assert opened(frame).head.planes[1].method == message.DIFFERENCES
    assert not has_mantissa_bit(frame)


@pytest.mark.parametrize("mode", ("small", "auto"))
@pytest.mark.parametrize("rows", (700, 4100))
def test_large_matrices_with_coded_mantissas(rows: int, mode: str) -> None:
    """Scales of large matrices are those of samples."""
    rng = np.random.default_rng(rows)
    x = 0.01 * rng.standard_normal((rows, 300)) * np.exp2(rng.integers(-5, 0, (rows, 1)))
    for dtype in ("bfloat16", "float32"):
        frame = gcodec.encode(x.astype(FLOATS[dtype]), f"lossless:mode={mode}")
        assert has_mantissa_bit(frame)
        assert bits(gcodec.decode(frame)) == bits(x.astype(FLOATS[dtype]))


@pytest.mark.parametrize("has_zeros", (False, True))
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_mantissas_of_other_encoders(dtype: str, has_zeros: bool) -> None:
    """A reader accepts any bytes, and ignores the highest bit of the second plane."""
    kind = FLOATS[dtype]
    shift = reference.FLOATS[dtype][1] - 1
    patterns = random_patterns(np.dtype(f"u{kind.itemsize}"), 5000)
    patterns &= patterns.dtype.type(~(1 << shift + 8) % 256**kind.itemsize)
    patterns[::3] &= patterns.dtype.type(~(255 << shift) % 256**kind.itemsize)
    patterns[::5] = 0
    split = [reference.split(int(p), kind.itemsize, shift, 1) for p in patterns]
    first, second, *others = ([*plane] for plane in zip(*split, strict=True))
    others = [[byte ^ 128 * (k % 7 < 2) for k, byte in enumerate(second)], *others]
    escape = 200 if has_zeros else None
    if has_zeros:
        patterns[np.array(first) == 200] = 0
        coded = [k for k, pattern in enumerate(patterns) if pattern]
        first = [value or 200 if p else 0 for p, value in zip(patterns, first, strict=True)]
        others = [[plane[k] for k in coded] for plane in others]
    scales = reference.Scales(1000, 0, [41, 37, 45, 40, 70], [])
    planes = [reference.tabled_plane(message.LOWERED_RANS, first, 2, scales)]
    planes += [reference.Plane(message.STORED, plane) for plane in others]
    data, nbits = reference.write(reference.Message(planes, escape, True))
    assert reference.read(data, nbits, 5000, dtype, kind.itemsize, "small") == patterns.tolist()
    codec = gcodec.parse("lossless:mode=small")._with_dtype(dtype)
    payload = gcodec.Payload(codec, {}, np.frombuffer(data, np.uint8), nbits, None)
    decoded = gcodec.Frame(codec, dtype, (5000,), payload, None).decode()
    assert decoded.view(patterns.dtype).tolist() == patterns.tolist()


def test_flags_that_a_message_may_not_have_are_refused() -> None:
    x = numbers("normal")
    for dtype, mode, allowed in (
        *(("float32", "small", 3), ("bfloat16", "small", 3), ("float32", "fast", 1)),
        *(("float16", "small", 1), ("float64", "small", 1), ("int32", "small", 1)),
    ):
        codec = gcodec.parse(f"lossless:mode={mode}")._with_dtype(dtype)
        payload = codec.encode((100 * x).astype(dtype))._replace(codec=codec)
        for flags in range(256):
            data = payload.data.copy()
            data[0] = flags
            if flags & ~allowed:
                error = f"the flags {flags} of the planes are above {allowed}"
                with pytest.raises(gcodec.Corrupt, match=error):
                    codec.decode(payload._replace(data=data), x.shape)


def test_heads_that_contradict_the_payload_are_refused() -> None:
    x = np.random.default_rng(13).standard_normal(400).astype(ml_dtypes.bfloat16)
    x[::4] = 0
    payload = gcodec.parse("lossless:mode=fast").encode(x)
    assert payload.data[0] == 1
    cases = {
        0: (2, "the flags 2 of the planes are above 1"),
        2: (3, "plane 0 is coded by method 3"),
        3: (6, "plane 1 is coded by method 6"),
        5: (2, "512 of 400 elements"),
    }
    for at, (byte, error) in cases.items():
        data = payload.data.copy()
        data[at] = byte
        if at == 5:
            data[4] = 0
        with pytest.raises(gcodec.FormatError, match=error):
            payload.codec.decode(payload._replace(data=data), x.shape)
    data = payload.data.copy()
    data[4] -= 1  # one element fewer: another length of the plane, so another string
    with pytest.raises(gcodec.FormatError):
        payload.codec.decode(payload._replace(data=data), x.shape)
