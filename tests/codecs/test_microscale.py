"""The codec microscale: bytes, special values, entropy codes, residuals and damaged bytes."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import microscale as reference
from sweeps import examples, thinned

import gcodec
from gcodec import Corrupt, FormatError, ParameterError, Truncated
from gcodec.codecs.microscale.payload import plain_nbits, write
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.quantize import microscale
from gcodec.kernels.quantize.block_format import FORMATS, RULES, BlockFormat

MX = [name for name in FORMATS if name != "nvfp4"]
CODES = ("none", "huffman", "rans", "context")
SPECS = [f"microscale:format={name},scale={rule}" for name in MX for rule in RULES]
SPECS += ["microscale:format=nvfp4"]

# Of each setting, of which there are many.
few_examples = examples(10, 200)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check_oracle(spec: str, x: np.ndarray, seed: int = 0) -> None:
    """Compare payload and values with those of the oracle."""
    codec = gcodec.parse(spec)
    payload = codec.encode(x, seed=seed)
    scale = payload.scalars["tensor_scale"]
    words = seed if codec.rounding == "stochastic" else None
    scales, codes = reference.quantize(codec.format, codec.scale, x, scale, words)
    message = reference.message(codec.format, "none", scales, codes)
    assert payload.tobytes() == reference.write(message)[0]
    values = reference.values(codec.format, scales, codes, scale)
    decoded = codec.decode(payload, x.shape)
    assert np.array_equal(decoded, values, equal_nan=True)
    assert (np.isnan(values) | (np.signbit(decoded) == np.signbit(values))).all()


@st.composite
def tensors(draw: st.DrawFn, *, finite: bool = True) -> np.ndarray:
    """Draw values of all magnitudes, ties, subnormal numbers and zeros of both signs."""
    n = draw(st.sampled_from([1, 15, 16, 17, 31, 32, 33, 64, 100]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["normal", "wide", "bits", "ties", "subnormal", "near"]))
    x = rng.standard_normal(n)
    if kind == "wide":
        x *= np.exp2(rng.integers(-145, 127, n))
    if kind == "ties":
        x = rng.integers(-64, 65, n) / 16
    if kind == "near":  # a little above powers of two, where a logarithm may round down
        tops = [448, 57344, 7.5, 28, 6, 1]
        x = np.resize(rng.choice(tops) * 2.0 ** rng.integers(-120, 110), n)
        x = x * (1 + rng.integers(0, 40, n) * 2.0**-23)
    with np.errstate(over="ignore", invalid="ignore"):
        values = x.astype(np.float32)
        if kind == "bits":
            values = rng.integers(0, 1 << 32, n, np.uint32).view(np.float32)
        if kind == "subnormal":
            values = rng.integers(0, 1 << 24, n).astype(np.uint32).view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(1))
    values[rng.random(n) < 0.1] = -0.0
    if not finite:
        for at in draw(st.lists(st.integers(0, n - 1), max_size=5)):
            values[at] = draw(st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))
    return values


@pytest.mark.parametrize("spec", SPECS)
@given(st.data())
@few_examples
def test_oracle(spec: str, data: st.DataObject) -> None:
    rounding = data.draw(st.sampled_from(["nearest", "stochastic"]))
    seed = data.draw(st.sampled_from([0, 7, 2**64 - 1]))
    check_oracle(f"{spec},rounding={rounding}", data.draw(tensors()), seed)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", [None, 7])
@given(x=tensors(), exponent=st.integers(-120, 116))
@few_examples
def test_quantization_without_kernels(
    spec: str, seed: int | None, x: np.ndarray, exponent: int
) -> None:
    """NumPy computes the bytes and values of the kernels."""
    codec: Any = gcodec.parse(spec)
    fmt = BlockFormat.of(codec.format)
    tensor_scale = np.float32(2.0**exponent if fmt.is_two_level else 1)
    quantization = microscale.Quantization(fmt, codec.scale, tensor_scale)
    scales = np.empty(fmt.blocks(x.size), np.uint8)
    elements, values = np.empty(fmt.data_nbytes(x.size), np.uint8), np.empty_like(x)
    microscale.quantize(x, quantization, seed, scales, elements)
    microscale.dequantize(scales, elements, fmt, float(tensor_scale), values)
    data, own = microscale.rounded(x, quantization, seed)
    assert data.tobytes() == scales.tobytes() + elements.tobytes()
    assert own.tobytes() == values.tobytes()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["mxfp8e4m3", "mxfp4", "nvfp4"])
def test_trials_have_the_symbols_of_messages(name: str, rounding: str) -> None:
    codec: Any = gcodec.parse(f"microscale:format={name},rounding={rounding}")
    x = normal(1000)
    for seed in (0, 5):
        decoded, symbols = codec._try(x, seed)
        payload = codec.encode(x, seed=seed)
        assert codec.pack(symbols).tobytes() == payload.tobytes()
        assert decoded.tobytes() == codec.decode(payload, x.size).tobytes()


@pytest.mark.parametrize("spec", [*SPECS[:-1], "microscale:format=nvfp4,tensor_scale=0.01"])
@given(st.data())
@few_examples
def test_nan_and_infinity(spec: str, data: st.DataObject) -> None:
    rounding = data.draw(st.sampled_from(["nearest", "stochastic"]))
    check_oracle(f"{spec},rounding={rounding}", data.draw(tensors(finite=False)), 3)


@pytest.mark.parametrize("name", FORMATS)
def test_all_elements_are_kept(name: str) -> None:
    """A block of the format's own numbers decodes to itself, whatever its scale."""
    fmt = BlockFormat.of(name)
    numbers = np.unique(fmt.values()[np.isfinite(fmt.values())])
    numbers = np.append(numbers[np.abs(numbers) <= fmt.largest], 0 if fmt.is_integer else -0.0)
    rows = -(-numbers.size // (fmt.block - 1))
    filled = np.resize(numbers, rows * (fmt.block - 1)).reshape(rows, -1)
    blocks = np.insert(filled, 0, fmt.largest, axis=1).astype(np.float32)
    spec = f"microscale:format={name}" + (",tensor_scale=1" if name == "nvfp4" else "")
    for power in (1.0,) if name == "nvfp4" else (1.0, 2.0**-40, 2.0**60):
        x = (blocks * np.float32(power)).reshape(-1)
        assert gcodec.decode(gcodec.encode(x, spec)).tobytes() == x.tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_layout(name: str) -> None:
    fmt = BlockFormat.of(name)
    for n in (0, 1, fmt.block - 1, fmt.block, fmt.block + 1, 1000):
        payload = gcodec.parse(f"microscale:format={name}").encode(normal(n))
        per_byte = 2 if fmt.width == 4 else 1
        assert payload.data.size == -(-n // fmt.block) + -(-n // per_byte)
        assert payload.nbits == 8 * payload.data.size == payload.codec.max_payload_nbits(n)


def test_rows_that_are_no_multiples_of_a_block() -> None:
    x = normal(5, 33)
    for name in FORMATS:
        spec = f"microscale:format={name}"
        flat = gcodec.parse(spec).encode(x.reshape(-1))
        assert gcodec.parse(spec).encode(x).tobytes() == flat.tobytes()


@pytest.mark.parametrize("code", CODES[1:])
@pytest.mark.parametrize("name", FORMATS)
def test_codes(name: str, code: str) -> None:
    for n in (1, 2, 33, 1000):
        x = normal(n, seed=n) * np.exp2(np.arange(n) % 7).astype(np.float32)
        plain = gcodec.parse(f"microscale:format={name}").encode(x)
        coded = gcodec.parse(f"microscale:format={name},code={code}").encode(x)
        assert coded.codec.code == code
        assert coded.codec.unpack(coded, n).data.tobytes() == plain.tobytes()
        data = coded.tobytes(), coded.nbits, n
        assert reference.read(name, code, *data) == reference.read(
            name, "none", plain.tobytes(), plain.nbits, n
        )
        if code == "huffman":
            message = reference.message(name, code, *reference.read(name, code, *data))
            assert reference.write(message) == (coded.tobytes(), coded.nbits)


def test_auto_is_the_shortest() -> None:
    rng = np.random.default_rng(1)
    scales = np.exp2(rng.integers(-5, 5, (256, 1)) + rng.integers(-5, 5, 512))
    cases = [normal(10), normal(30_000), (normal(256, 512) * scales).astype(np.float32)]
    selected = set()
    for x, name in itertools.product(cases, FORMATS):
        spec = f"microscale:format={name},code="
        sizes = {code: gcodec.parse(spec + code).encode(x).nbits for code in CODES}
        best = gcodec.parse(spec + "auto").encode(x)
        assert best.nbits <= min(sizes.values()) + 64  # rANS is selected by an estimate
        assert best.nbits == sizes[best.codec.code]
        selected.add(best.codec.code)
    assert selected >= {"none", "context"}


@pytest.mark.parametrize("code", [*CODES, "auto"])
@pytest.mark.parametrize("name", ["mxfp8e4m3", "mxfp4", "nvfp4"])
def test_range_of_elements(name: str, code: str) -> None:
    x = normal(70_001, seed=2)
    frame = gcodec.encode(x, f"microscale:format={name},code={code}")
    whole = gcodec.decode(frame)
    for start, stop in ((0, 0), (0, 1), (31, 33), (32, 64), (15, 70_001), (70_000, 70_001)):
        part = gcodec.decode_range(frame, start, stop)
        assert part.tobytes() == whole[start:stop].tobytes()


def test_nonfinite_values_are_refused_unless_they_may_pass() -> None:
    x = normal(100)
    x[[3, 70]] = np.nan, np.inf
    for code in CODES:
        spec = f"microscale:code={code}"
        with pytest.raises(ParameterError, match="NaN or Inf"):
            gcodec.encode(x, spec)
        decoded = gcodec.decode(gcodec.encode(x, spec, nonfinite="propagate"))
        assert np.isnan(decoded[:32]).all() and np.isfinite(decoded[32:64]).all()
        assert decoded[70] == np.inf  # the largest element times its scale
        zeros = gcodec.decode(gcodec.encode(x, spec, nonfinite="zero"))
        assert zeros[3] == zeros[70] == 0
    with pytest.raises(ParameterError, match="NaN or Inf"):
        gcodec.encode(x, "microscale:format=nvfp4", nonfinite="propagate")


def test_scale_of_the_tensor() -> None:
    x = normal(1000)
    payload = gcodec.parse("microscale:format=nvfp4").encode(x)
    expected = np.abs(x).max() / np.float32(2688)
    assert np.float32(payload.scalars["tensor_scale"]) == expected
    zeros = gcodec.parse("microscale:format=nvfp4").encode(np.zeros(20, np.float32))
    assert np.float32(zeros.scalars["tensor_scale"]) == np.float32(2.0**-120)
    assert not zeros.codec.decode(zeros, 20).any()
    tiny = np.full(20, 2.0**-140, np.float32)
    assert np.isfinite(gcodec.decode(gcodec.encode(tiny, "microscale:format=nvfp4"))).all()
    symbols = zeros.codec.replaced(tensor_scale="auto").quantize(tiny)
    unpacked = zeros.codec.unpack(zeros.codec.pack(symbols), 20)
    assert unpacked.tensor_scale == symbols.tensor_scale  # also where it is limited
    largest = np.array([np.finfo(np.float32).max, -1e35, 0.0], np.float32)
    payload = gcodec.parse("microscale:format=nvfp4").encode(largest)
    assert payload.scalars["tensor_scale"] == 1e35
    assert payload.codec.decode(payload, 3)[0] == pytest.approx(2.688e38)
    small = x * np.float32(2.0**-30)
    for name in FORMATS:
        spec = f"microscale:format={name}"
        errors = [
            np.sum((gcodec.decode(gcodec.encode(v, spec)) - v) ** 2, dtype=np.float64)
            / np.sum(v.astype(np.float64) ** 2)
            for v in (x, small)
        ]
        assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_parameters() -> None:
    assert str(gcodec.parse("microscale")) == "microscale"
    assert gcodec.parse("microscale:tensor_scale=1") == gcodec.parse("microscale")
    assert str(gcodec.parse("microscale:format=nvfp4")) == "microscale:format=nvfp4"
    for spec in (
        "microscale:tensor_scale=0.5",
        "microscale:format=nvfp4,scale=even",
        "microscale:format=nvfp4,tensor_scale=0",
        "microscale:format=nvfp4,tensor_scale=1e36",
        "microscale:format=fp4",
        "microscale:scale=round",
    ):
        with pytest.raises(ParameterError):
            gcodec.parse(spec)


def test_bare_bytes() -> None:
    x = normal(40)
    for spec in ("microscale:format=mxfp4", "microscale:code=rans"):
        payload = gcodec.parse(spec).encode(x)
        decoded = gcodec.parse(spec).decode(payload.tobytes(), 40, nbits=payload.nbits)
        assert decoded.tobytes() == payload.codec.decode(payload, 40).tobytes()
    for name in MX:  # words may end within a byte
        payload = gcodec.parse(f"microscale:format={name},code=huffman").encode(x)
        decoded = payload.codec.decode(payload.tobytes(), 40)
        assert decoded.tobytes() == payload.codec.decode(payload, 40).tobytes()
    payload = gcodec.parse("microscale:format=nvfp4").encode(x)
    scale = payload.scalars["tensor_scale"]
    decoded = gcodec.parse("microscale:format=nvfp4").decode(
        payload.tobytes(), 40, tensor_scale=scale
    )
    assert decoded.tobytes() == payload.codec.decode(payload, 40).tobytes()
    with pytest.raises(ParameterError, match="tensor_scale"):
        gcodec.parse("microscale:format=nvfp4").decode(payload.tobytes(), 40)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", FORMATS)
def test_residual(name: str, rounding: str) -> None:
    """The residual is what decoding leaves, and training on many steps forgets nothing."""
    spec = f"microscale:format={name},rounding={rounding}"
    feedback, total, sent = gcodec.Feedback(spec), np.zeros(333), np.zeros(333)
    for step in range(12):
        grad = normal(333, seed=step) * np.float32(0.01)
        frame = feedback.compress("w", grad)
        total += grad
        sent += gcodec.decode(frame)
    assert np.allclose(total, sent + feedback.residual("w"), atol=1e-5)


def test_residual_of_nonfinite_values() -> None:
    x = normal(96)
    x[40] = np.inf
    residual = np.zeros(96, np.float32)
    codec = gcodec.parse("microscale:format=mxint8")
    symbols = codec.quantize_residual(x, residual)
    decoded = codec.dequantize(symbols, 96)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(residual, x - decoded, equal_nan=True)
    assert residual[40] == np.inf and np.isfinite(residual[:32]).all()


def test_stochastic_rounding_is_unbiased() -> None:
    x = normal(64) * np.float32(0.05)
    for name in MX:
        codec = gcodec.parse(f"microscale:format={name},scale=ceil,rounding=stochastic")
        assert codec.unbiased
        many = np.tile(x, 100)  # each element has a random word of its own
        draws = np.array([codec.decode(codec.encode(many, seed=s), 6400) for s in range(60)])
        draws = draws.reshape(6000, 64)
        deviation = np.abs(draws.mean(axis=0, dtype=np.float64) - x)
        noise = draws.std(axis=0, dtype=np.float64) / np.sqrt(6000)
        assert (deviation <= 5 * noise + 1e-6).all()
    assert not gcodec.parse("microscale:rounding=stochastic").unbiased
    assert not gcodec.parse("microscale:format=nvfp4,rounding=stochastic").unbiased


def test_other_dtypes() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
        x = normal(7, 40).astype(dtype)
        decoded = gcodec.decode(gcodec.encode(x, "microscale:format=mxfp6e2m3"))
        plain = gcodec.decode(gcodec.encode(x.astype(np.float32), "microscale:format=mxfp6e2m3"))
        assert decoded.dtype == x.dtype and (decoded == plain.astype(dtype)).all()


@pytest.mark.parametrize("spec", [f"microscale:code={code}" for code in CODES])
@pytest.mark.parametrize("name", ["mxfp6e3m2", "mxfp4", "nvfp4"])
def test_damaged_bytes(spec: str, name: str) -> None:
    """Any damage raises a FormatError or decodes to an array of the same shape."""
    payload = gcodec.parse(f"{spec},format={name}").encode(normal(77))
    data, rng = payload.data, np.random.default_rng(3)
    for _ in thinned(range(120), 2):
        damaged = data.copy()
        damaged[rng.integers(0, data.size)] = rng.integers(0, 256)
        check_damaged(payload._replace(data=damaged))
    for size in range(data.size):
        with pytest.raises(FormatError):
            short = payload._replace(data=data[:size], nbits=8 * size)
            payload.codec.decode(short, 77)


def check_damaged(payload: Any) -> None:
    codec = payload.codec
    try:
        decoded = codec.decode(payload, 77)
    except FormatError:
        return
    data = payload.tobytes(), payload.nbits, 77
    expected = reference.decode(codec.format, codec.code, *data, payload.scalars["tensor_scale"])
    assert np.array_equal(decoded, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("spec", "n", "data", "error"),
    [
        ("microscale:format=nvfp4", 2, "80 21", Corrupt),
        ("microscale:format=mxfp6e2m3", 2, "7f 40 00", Corrupt),
        ("microscale:format=mxfp4", 3, "7f 21 13", Corrupt),
        ("microscale:format=mxfp4", 3, "7f 21", Truncated),
        ("microscale", 3, "7f 01 02 03 04", Corrupt),
        ("microscale:code=huffman", 2, "02 7f 01 01 10", Corrupt),
        ("microscale:code=huffman", 2, "", Truncated),
        ("microscale:code=huffman", 2, "00", Truncated),
        ("microscale:code=huffman", 2, "00 7f 00 01 10", Corrupt),
        ("microscale:code=huffman", 0, "00", Corrupt),
    ],
)
def test_refused(spec: str, n: int, data: str, error: type[Exception]) -> None:
    message = bytes.fromhex(data)
    scalars = {"tensor_scale": 1.0} if "nvfp4" in spec else {}
    with pytest.raises(error):
        gcodec.parse(spec).decode(message, n, nbits=8 * len(message), **scalars)


@pytest.mark.parametrize(
    ("spec", "n", "data", "offset"),
    [
        ("microscale:format=nvfp4", 18, "01 80" + 9 * "21", 1),
        ("microscale:format=mxfp6e2m3", 2, "7f 00 40", 2),
        ("microscale:format=mxfp4", 5, "7f 21 43 15", 3),
        ("microscale:format=nvfp4,code=huffman", 18, "00 01 80" + 9 * "21", 2),
    ],
)
def test_errors_state_the_wrong_byte(spec: str, n: int, data: str, offset: int) -> None:
    message = bytes.fromhex(data)
    scalars = {"tensor_scale": 1.0} if "nvfp4" in spec else {}
    with pytest.raises(Corrupt) as caught:
        gcodec.parse(spec).decode(message, n, nbits=8 * len(message), **scalars)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("name", "n", "at", "byte", "message"),
    [
        ("mxfp6e2m3", 64, 12, 0x40, "element 10 has the code 0x40"),
        ("mxfp4", 63, 33, 0x13, "the half of a byte"),
        ("nvfp4", 640, 2, 0x80, "the scale of block 2 is negative"),
    ],
)
def test_errors_of_coded_bytes_state_no_offset(
    name: str, n: int, at: int, byte: int, message: str
) -> None:
    """The place among the decoded bytes is no place in the payload, and may lie beyond its end."""
    fmt = BlockFormat.of(name)
    data = np.zeros(plain_nbits(n, fmt) // 8, np.uint8)
    data[at] = byte
    _, written = write(data, n, fmt, "huffman", (n,)).candidates[0]
    scalars = {"tensor_scale": 1.0} if name == "nvfp4" else {}
    codec = gcodec.parse(f"microscale:format={name},code=huffman")
    with pytest.raises(Corrupt, match=f"^{message}") as caught:
        codec.decode(written.data.tobytes(), n, nbits=written.nbits, **scalars)
    assert caught.value.offset is None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", FORMATS)
def test_middles_and_their_neighbors(name: str, rule: str) -> None:
    """Kernel and NumPy agree next to each number of a format and each middle of two."""
    fmt = BlockFormat.of(name)
    if fmt.is_two_level and rule != "floor":
        return
    finite = fmt.values()[np.isfinite(fmt.values())].astype(np.float64)
    numbers = np.unique(finite[np.abs(finite) <= fmt.largest])
    exact = np.concatenate([numbers, (numbers[:-1] + numbers[1:]) / 2, [-0.0]])
    bits = exact.astype(np.float32).view(np.int32)[:, np.newaxis]
    near = (bits + np.arange(-2, 3, dtype=np.int32)).reshape(-1).view(np.float32)
    near = near[np.abs(near) <= fmt.largest]
    tiny = np.array([1, 2, 0x7FFFFF, 0x800000], np.int32).view(np.float32)
    near = np.concatenate([near, tiny, -tiny])
    rows = -(-near.size // (fmt.block - 1))
    blocks = np.resize(near, rows * (fmt.block - 1)).reshape(rows, -1)
    x = np.insert(blocks, 0, fmt.largest, axis=1).astype(np.float32).reshape(-1)
    for n in (x.size, x.size - 5):
        for power in (1.0, 2.0**-100, 2.0**90):
            check_kernel(name, rule, x[:n] * np.float32(power), np.float32(power))


def test_scales_of_two_levels_for_many_mantissas() -> None:
    """The kernel divides by 6, by the scale of the tensor, and by the scale of a block exactly."""
    rng = np.random.default_rng(0)
    for exponent, tensor_scale in (
        (-126, 2.0**-120),
        (-3, 0.77),
        (1, 1.0),
        (3, 0.003),
        (126, 1e35),
    ):
        tops = np.ldexp(
            np.float32(1) + rng.integers(0, 1 << 23, 4096) / np.float32(1 << 23), exponent
        )
        shares = rng.random((tops.size, 16)).astype(np.float32)
        shares[:, 3] = 1
        x = (tops.astype(np.float32)[:, np.newaxis] * shares).reshape(-1)
        check_kernel("nvfp4", "floor", x, np.float32(tensor_scale))


def test_a_sixth_is_rounded_once() -> None:
    """A product with 1/6, corrected by its remainder, is the quotient, whatever the mantissa."""
    sixth = np.float64(np.float32(1 / 6))
    parts = range(0, 1 << 23, 1 << 16)  # which fit the processor's cache
    for exponent, first in itertools.product((-126, -125, -124, -123, 0, 127), parts):
        x = np.arange(first, first + (1 << 16), dtype=np.uint32) + np.uint32(exponent + 127 << 23)
        x = x.view(np.float32)
        near = x * np.float32(sixth)
        wide = near.astype(np.float64)
        rest = x - 6 * wide  # exact
        assert (rest == rest.astype(np.float32)).all()
        corrected = (wide + rest * sixth).astype(np.float32)
        quotients = x / np.float32(6)
        is_normal = quotients >= 2.0**-126
        assert (corrected == quotients)[is_normal].all()
        assert (corrected <= 2.0**-126)[~is_normal].all()


def test_values_far_above_the_scale_of_the_tensor() -> None:
    x = np.array([3e38, -3e38, 1e30, 5.0, -0.0, 1e-40, 6.0, -7.0] * 6, np.float32)
    for tensor_scale in (1.0, 2.0**-120, 1e35):
        check_kernel("nvfp4", "floor", x, np.float32(tensor_scale))


def check_kernel(name: str, rule: str, x: np.ndarray, tensor_scale: np.float32) -> None:
    """Compare the bytes and the residual of the kernels with those of NumPy."""
    fmt = BlockFormat.of(name)
    own = np.float32(tensor_scale if fmt.is_two_level else 1)
    quantization = microscale.Quantization(fmt, rule, own)
    scales = np.empty(fmt.blocks(x.size), np.uint8)
    elements, rest = np.empty(fmt.data_nbytes(x.size), np.uint8), x.copy()
    update = ResidualUpdate(np.full_like(x, -0.0), np.float32(1), np.empty_like(x))
    for values, leave in ((x, False), (rest, True), (x, None)):
        terms = (None, leave) if leave is not None else (update, False)
        microscale.quantize(values, quantization, None, scales, elements, *terms)
        data, decoded = microscale.rounded(x, quantization, None)
        assert scales.tobytes() + elements.tobytes() == data.tobytes()
    with np.errstate(all="ignore"):
        assert np.array_equal(rest, x - decoded)
        assert np.array_equal(update.new_residual, x - decoded)


@pytest.mark.parametrize("name", ["mxfp8e4m3", "mxfp8e5m2"])
def test_every_nan_decodes_to_the_same_bits(name: str) -> None:
    """The last block has a scale of NaN; codes of NaN have both signs."""
    codes = np.tile(np.array([0x7F, 0xFF, 0x38, 0xB8], np.uint8), 24)
    data = np.concatenate([np.array([127, 1, 255], np.uint8), codes])
    codec = gcodec.parse(f"microscale:format={name}")
    payload = gcodec.Payload(codec, {"tensor_scale": 1.0}, data, 8 * data.size)
    decoded = codec.decode(payload, codes.size)
    is_nan = np.isnan(decoded)
    assert is_nan.tolist() == [i >= 64 or i % 4 < 2 for i in range(96)]
    assert set(decoded[is_nan].view(np.uint32).tolist()) == {0x7FC00000}
