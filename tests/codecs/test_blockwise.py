"""The codec blockwise: bytes, entropy codes, and damaged bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import blockwise as reference
from sweeps import examples, thinned

import gcodec
from gcodec import Corrupt, FormatError, ParameterError, Truncated
from gcodec.codecs.blockwise.layout import Layout
from gcodec.codecs.blockwise.payload import write
from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.quantize import blockwise, quantiles
from gcodec.kernels.quantize.value_table import ValueTable

F = np.float32
CODES = ("none", "huffman", "rans")
SETTINGS = [
    *((kind, 64, False) for kind in reference.KINDS),
    *((kind, 32, True) for kind in reference.ABSMAX),
    *(("meanstd16", 1, False), ("meanstd16", 30, False)),
    *(("dynamic8", 3, True), ("int8", 7, False), ("int4", 2, False), ("fp8", 1, False)),
]
SPECS = [
    f"blockwise:kind={kind}"
    + (f",block={block}" if kind not in reference.TABLES else "")
    + (",nested=yes" if nested else "")
    for kind, block, nested in SETTINGS
]
CODED = [spec for spec in SPECS if reference.WIDE not in spec]
"""The specs that take any code."""
ROWS = ("blockwise:kind=fp8,block=0", "blockwise:kind=meanstd16,block=0")

# Of each setting, of which there are many.
few_examples = examples(10, 200)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    """Draw values of all magnitudes, ties, subnormal numbers and zeros of both signs."""
    n = draw(st.sampled_from([1, 2, 31, 32, 33, 64, 100, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["normal", "wide", "ties", "subnormal", "constant"]))
    x = rng.standard_normal(n)
    if kind == "wide":
        x *= np.exp2(rng.integers(-145, 120, n))
    if kind == "ties":
        x = rng.integers(-256, 257, n) / 256
        x[0] = rng.choice([1, -1, 0.5])
    values = x.astype(F)
    if kind == "subnormal":
        values = rng.integers(0, 1 << 24, n).astype(np.uint32).view(F)
    if kind == "constant":
        values[:] = values[0]
    values[rng.random(n) < 0.1] = -0.0
    return values


@pytest.mark.parametrize(("setting", "spec"), [*zip(SETTINGS, SPECS, strict=True)], ids=SPECS)
@given(st.data())
@few_examples
def test_oracle(setting: tuple[str, int, bool], spec: str, data: st.DataObject) -> None:
    x = data.draw(tensors())
    kind, block, nested = setting
    codec = gcodec.parse(spec)
    payload = codec.encode(x)
    front, codes = reference.quantize(kind, x, block, nested)
    expected = reference.write(reference.message(kind, "none", front, codes))
    assert (payload.tobytes(), payload.nbits) == expected
    values = reference.decode(kind, "none", *expected, x.size, block, nested)
    assert codec.decode(payload, x.size).tobytes() == values.tobytes()


@pytest.mark.parametrize("spec", SPECS)
@given(x=tensors())
@few_examples
def test_quantization_without_kernels(spec: str, x: np.ndarray) -> None:
    """NumPy computes the bytes and values of the kernels."""
    codec: Any = gcodec.parse(spec)
    payload = codec.encode(x)
    decoded, symbols = codec._try(x, 0)
    assert codec._sized(symbols).resolved().tobytes() == payload.tobytes()
    assert decoded.tobytes() == codec.decode(payload, x.size).tobytes()


@pytest.mark.parametrize("kind", reference.TABLES)
def test_tables_without_kernels(kind: str) -> None:
    """NumPy finds the quantiles of chunks, and sums the elements of parts, as the kernels do."""
    x = normal(150_001, seed=4)
    codec: Any = gcodec.parse(f"blockwise:kind={kind}")
    decoded, symbols = codec._try(x, 0)
    payload = codec.encode(x)
    assert codec._sized(symbols).resolved().tobytes() == payload.tobytes()
    assert decoded.tobytes() == codec.decode(payload, x.size).tobytes()


def test_chunks_of_quantiles_and_parts_of_means() -> None:
    x = normal(150_001, seed=4)
    for kind in reference.TABLES:
        front, codes = reference.quantize(kind, x[:100_500])
        payload = gcodec.parse(f"blockwise:kind={kind}").encode(x[:100_500])
        assert payload.data[:1024].tobytes() == front
        assert payload.data[1024:].tolist() == codes


@pytest.mark.parametrize("name", ["nf4", "fp4", "dynamic8", "int4", "int8", "fp8", "offset8"])
def test_every_bound_of_a_table_has_one_side(name: str) -> None:
    """Kernel and NumPy agree at all numbers next to the middles of a table."""
    table = ValueTable.of(name)
    ordered = np.unique(table.values[np.isfinite(table.values)])
    middles = ((ordered[:-1].astype(float) + ordered[1:]) / 2).astype(F)
    bits = np.concatenate([middles, -middles, ordered, [0, -0.0, 1e30, -1e30]]).astype(F)
    near = (bits.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)).reshape(-1)
    numbers = near.view(F)
    numbers = numbers[np.isfinite(numbers)]
    out = np.empty(-(-numbers.size // table.per_byte), np.uint8)
    blockwise.quantize(numbers, numbers.size, np.ones(1, F), F(0), table, out)
    codes = out
    if table.per_byte == 2:
        codes = np.stack((out >> 4, out & 15), axis=1).reshape(-1)[: numbers.size]
    assert (codes == blockwise.nearest(numbers, table.cells)).all()
    errors = np.abs(table.values[codes].astype(float) - numbers)
    best = np.abs(ordered.astype(float) - numbers[:, None]).min(axis=1)
    assert (errors <= best * (1 + 1e-6) + 1e-6 * np.abs(numbers)).all()


@pytest.mark.parametrize("name", ["nf4", "fp4", "dynamic8", "int4", "int8", "fp8", "offset8"])
def test_numbers_far_from_a_table(name: str) -> None:
    """Subnormal, huge and infinite numbers, whose magnitudes are beyond all cells."""
    table = ValueTable.of(name)
    bits = np.array([0, 1, 2, 0x7FFFFF, 0x800000, 0x33800000, 0x7F7FFFFF, 0x7F800000], np.uint32)
    rng = np.random.default_rng(1)
    bits = np.concatenate([bits, rng.integers(0, 0x7F800000, 5000, np.uint32)])
    numbers = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(F)
    out = np.empty(-(-numbers.size // table.per_byte), np.uint8)
    blockwise.quantize(numbers, numbers.size, np.ones(1, F), F(0), table, out)
    expected = blockwise.nearest(numbers, table.cells)
    if table.per_byte == 2:
        expected = expected[::2] << 4 | expected[1::2]
    assert (out == expected).all()


@pytest.mark.parametrize("block", [2, 30, 32, 34, 64, 96, 250, 5000])
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("nf4", (1, 1e-38, False)),
        ("dynamic8", (1, 1e-38, False)),
        ("int4", (8, 0, False)),
        ("int8", (128, 0, False)),
        ("fp8", (448, 0, True)),
    ],
)
def test_magnitudes_and_codes_in_one_pass(name: str, rule: Any, block: int) -> None:
    """One pass finds the magnitudes, factors and codes of separate steps."""
    rng = np.random.default_rng(block)
    x = (rng.standard_normal(3001) * np.exp2(rng.integers(-140, 120, 3001))).astype(F)
    x[: 2 * block] = 0
    x[5] = -0.0
    x[2 * block : 4 * block] = rng.integers(0, 9, x[2 * block : 4 * block].size).astype(F) * F(
        1e-45
    )
    table = ValueTable.of(name)
    factor_rule = blockwise.FactorRule(F(rule[0]), F(rule[1]), rule[2])
    out, expected = (np.empty(-(-x.size // table.per_byte), np.uint8) for _ in range(2))
    tops, factors = blockwise.quantize_relative(x, block, factor_rule, table, out)
    magnitudes = [np.abs(x[at : at + block]).max() for at in range(0, x.size, block)]
    assert tops.tolist() == magnitudes
    assert factors.tobytes() == factor_rule.factors(tops).tobytes()
    assert np.isfinite(factors).all()
    blockwise.quantize(x, block, factors, F(0), table, expected)
    assert (out == expected).all()


def test_ranks_and_ranges_as_sorting_finds_them() -> None:
    rng = np.random.default_rng(5)
    n = 40_001
    wide = rng.standard_normal(n) * np.exp2(rng.integers(-149, 127, n))
    sparse = np.where(rng.random(n) < 0.9, 0, rng.standard_normal(n))
    with np.errstate(under="ignore"):
        tensors = [
            rng.standard_normal(n),
            wide,
            sparse,
            np.where(rng.random(n) < 0.5, -0.0, 0.0),
            rng.integers(-3, 4, n),
            np.linspace(1, 1.0001, n),
            rng.integers(0, 1 << 24, n).astype(np.uint32).view(F),
            -np.abs(wide),
        ]
    for tensor in tensors:
        x = tensor.astype(F)
        ordered = np.sort(x)
        ranks = np.unique(np.append(rng.integers(0, n, 300), [0, 1, n - 1]))
        assert (quantiles.of_ranks(x, ranks) == ordered[ranks]).all()
        assert (quantiles.of_ranks(x[:99], ranks[:2]) == np.sort(x[:99])[ranks[:2]]).all()
        for borders in (ordered[rng.choice(n, 255, replace=False)], ordered[:255], ordered[-255:]):
            borders = np.sort(borders)
            near = borders.view(np.int32)[:, np.newaxis] + np.arange(-2, 3, dtype=np.int32)
            near = near.reshape(-1).view(F)
            values = np.concatenate([x, near[np.isfinite(near)], np.array([0, -0.0], F)])
            codes = np.empty(values.size, np.uint8)
            quantiles.find_ranges(values, *quantiles.range_table(borders), codes)
            assert (codes == np.searchsorted(borders, values)).all()


@pytest.mark.parametrize("kind", ["sparse", "ties", "heavy", "float64"])
def test_quantiles_of_sorted_chunks(kind: str) -> None:
    """The payload is that of sorted chunks and a search of sorted borders."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal(250_003)
    if kind == "sparse":
        x[rng.random(x.size) < 0.95] = 0
    if kind == "ties":
        x = np.round(4 * x)
    if kind == "heavy":
        x *= np.exp(5 * rng.standard_normal(x.size))
    values = x.astype(F)
    payload = gcodec.parse("blockwise:kind=quantile8").encode(x if kind == "float64" else values)
    rows = [reference_quantiles(values[at : at + 125_002]) for at in range(0, x.size, 125_002)]
    borders = reference_quantiles(np.concatenate(rows))
    codes = np.searchsorted(borders[1:-1], values)
    assert (payload.data[1024:] == codes).all()
    sums, counts = np.zeros(256), np.bincount(codes, minlength=256)
    for at in range(0, x.size, 1 << 16):
        part = slice(at, at + (1 << 16))
        sums += np.bincount(codes[part], values[part], 256)
    means = (sums / np.maximum(counts, 1)).astype("<f4")
    assert payload.data[:1024].tobytes() == means.tobytes()


def reference_quantiles(x: np.ndarray) -> np.ndarray:
    ordered = np.sort(x)
    places = F(x.size - 1) * (np.arange(257, dtype=F) / F(256))
    below = np.floor(places).astype(np.int64)
    weights = places - np.floor(places)
    low, high = ordered[below], ordered[np.minimum(below + 1, x.size - 1)]
    width = high - low
    return np.where(weights < 0.5, low + width * weights, high - width * (F(1) - weights))


def test_rows() -> None:
    x = normal(5, 33)
    for kind in ("fp8", "int8", "dynamic8", "meanstd16"):
        rows = gcodec.parse(f"blockwise:kind={kind},block=0").encode(x)
        blocks = gcodec.parse(f"blockwise:kind={kind},block=33").encode(x)
        assert rows.tobytes() == blocks.tobytes()
        assert (rows.codec.decode(rows, x.shape) == blocks.codec.decode(blocks, x.shape)).all()
    assert gcodec.decode(gcodec.encode(np.float32(3), "blockwise:kind=fp8,block=0")) == 3


@pytest.mark.parametrize("code", CODES[1:])
@pytest.mark.parametrize("spec", CODED)
def test_codes(spec: str, code: str) -> None:
    kind, block, nested = SETTINGS[SPECS.index(spec)]
    for n in (1, 2, 33, 700):
        x = normal(n, seed=n)
        plain = gcodec.parse(spec).encode(x)
        coded = gcodec.parse(f"{spec},code={code}").encode(x)
        assert coded.codec.unpack(coded, n).data.tobytes() == plain.tobytes()
        setting = kind, block, nested
        data = coded.tobytes(), coded.nbits, n, *setting[1:]
        expected = reference.decode(kind, code, *data)
        assert expected.tobytes() == coded.codec.decode(coded, n).tobytes()
        if code == "huffman":
            front, codes = reference.quantize(kind, x, block, nested)
            message = reference.message(kind, code, front, codes)
            assert reference.write(message) == (coded.tobytes(), coded.nbits)


def test_auto_is_the_shortest() -> None:
    for spec in SPECS:
        x = normal(30_000)
        codes = CODES if spec in CODED else CODES[:1]
        sizes = {code: gcodec.parse(f"{spec},code={code}").encode(x).nbits for code in codes}
        best = gcodec.parse(f"{spec},code=auto").encode(x)
        assert best.nbits <= min(sizes.values()) + 64  # rANS is selected by an estimate
        assert best.nbits == sizes[best.codec.code]


@pytest.mark.parametrize("spec", [*SPECS, "blockwise:code=rans", *ROWS])
def test_range_of_elements(spec: str) -> None:
    x = normal(70_001, seed=2)
    frame = gcodec.encode(x, spec)
    whole = gcodec.decode(frame)
    for start, stop in ((0, 0), (0, 1), (31, 33), (32, 64), (15, 70_001), (70_000, 70_001)):
        part = gcodec.decode_range(frame, start, stop)
        assert part.tobytes() == whole[start:stop].tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_values_that_are_refused(spec: str) -> None:
    x = normal(100)
    for value, match in ((np.nan, "NaN or Inf"), (np.inf, "NaN or Inf"), (2e38, "2\\^126")):
        x[70] = value
        residual = np.ones(100, F)
        with pytest.raises(ParameterError, match=match):
            gcodec.parse(spec).quantize(x)
        with pytest.raises(ParameterError):
            gcodec.parse(spec).quantize_residual(x, residual)
        assert (residual == 1).all()
    x[70] = 2.0**126
    assert np.isfinite(gcodec.decode(gcodec.encode(x, spec))).all()


@pytest.mark.parametrize("spec", CODED)
def test_small_values_keep_their_relative_error(spec: str) -> None:
    x = normal(1000)
    errors = []
    for size in (1.0, 2.0**-60):
        v = x * F(size)
        decoded = gcodec.decode(gcodec.encode(v, spec)).astype(np.float64)
        errors.append(np.sum((decoded - v) ** 2) / np.sum(v.astype(np.float64) ** 2))
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_deviations_have_a_least_value() -> None:
    """Elements far below 2^-23 decode to multiples of 2^-47 from the mean, as in hivemind."""
    x = normal(64) * F(2.0**-60)
    codec = gcodec.parse("blockwise:kind=meanstd16")
    payload = codec.encode(x)
    assert payload.data[4:8].view("<f4") == F(2.0**-23)
    assert (codec.decode(payload, 64) == payload.data[:4].view("<f4")).all()


@pytest.mark.parametrize("n", [4097, 70_000, 300_001])
@pytest.mark.parametrize("block", [0, 4096, 5000, 65_537])
def test_sums_of_long_blocks(n: int, block: int) -> None:
    """Means and deviations are those of the reductions of gcodec's other codecs."""
    x = normal(n, seed=n) * F(0.01) + F(0.002)
    payload = gcodec.parse(f"blockwise:kind=meanstd16,block={block}").encode(x)
    size = block or n
    means, deviations = payload.data[: -2 * n].view("<f4").reshape(2, -1)
    for at, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
        part = x[at * size : (at + 1) * size]
        assert mean == F(np.cumsum(part, dtype=np.float64)[-1] / part.size)
        length = norms(part - mean, part.size, "l2")[0]
        assert deviation == max(length / F(np.sqrt(part.size)), F(2.0**-23))
        scores = ((part - mean) / deviation).astype(np.float16)
        start = payload.data.size - 2 * n + 2 * at * size
        assert payload.data[start : start + 2 * part.size].tobytes() == scores.tobytes()


def test_extreme_scores() -> None:
    """A length above float32, and one element far from all others, do not break a block."""
    x = np.zeros((1 << 17) + 10, F)
    x[7] = -1
    x[8:12] = 2.0**126
    x[-10:] = 2.0**126
    codec = gcodec.parse("blockwise:kind=meanstd16,block=131072")
    decoded = codec.decode(codec.encode(x), x.size)
    assert np.allclose(decoded, x, rtol=1e-3, atol=2.0**115)


def test_parameters() -> None:
    assert str(gcodec.parse("blockwise:kind=nf4,block=64")) == "blockwise"
    for spec in (
        "blockwise:kind=int8,nested=yes",
        "blockwise:kind=uniform8,block=32",
        "blockwise:block=0",
        "blockwise:kind=int4,block=33",
        "blockwise:kind=int2",
        "blockwise:code=context",
        "blockwise:kind=meanstd16,nested=yes",
        "blockwise:kind=meanstd16,code=huffman",
        "blockwise:kind=meanstd16,code=rans",
    ):
        with pytest.raises(ParameterError):
            gcodec.parse(spec)


def test_bare_bytes() -> None:
    x = normal(4, 10)
    words = [f"{spec},code=huffman" for spec in (*CODED, "blockwise:kind=int8,block=0")]
    for spec in (*SPECS, *ROWS, *words):
        payload = gcodec.parse(spec).encode(x)
        decoded = gcodec.parse(spec).decode(payload.tobytes(), x.shape)
        assert decoded.tobytes() == payload.codec.decode(payload, x.shape).tobytes()


@pytest.mark.parametrize(
    ("spec", "code"),
    [(spec, code) for spec in SPECS[:-4] for code in (CODES if spec in CODED else CODES[:1])],
)
def test_damaged_bytes(spec: str, code: str) -> None:
    """Any damage raises a FormatError or decodes to an array of the same shape."""
    payload = gcodec.parse(f"{spec},code={code}").encode(normal(77))
    data, rng = payload.data, np.random.default_rng(3)
    places = rng.integers(0, min(data.size, 90), 60).tolist()
    places += rng.integers(0, data.size, 40).tolist()
    for at in thinned(places, 2):
        damaged = data.copy()
        damaged[at] = rng.integers(0, 256)
        check_damaged(payload._replace(data=damaged))
    for size in range(0, data.size, 7):
        with pytest.raises(FormatError):
            short = payload._replace(data=data[:size], nbits=8 * size)
            payload.codec.decode(short, 77)


def check_damaged(payload: Any) -> None:
    codec = payload.codec
    arguments = payload.tobytes(), payload.nbits, 77, codec.block, codec.nested == "yes"
    try:
        decoded = codec.decode(payload, 77)
    except FormatError:
        with pytest.raises(ValueError):
            reference.decode(codec.kind, codec.code, *arguments)
        return
    expected = reference.decode(codec.kind, codec.code, *arguments)
    assert np.array_equal(decoded, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("spec", "n", "data", "error"),
    [
        ("blockwise", 3, "0000803f 12 30", Corrupt),
        ("blockwise", 3, "0000803f 12", Truncated),
        ("blockwise", 3, "0000803f 12 37 00", Corrupt),
        ("blockwise", 2, "0000c07f 12", Corrupt),
        ("blockwise:kind=fp8", 1, "00000000 12", Corrupt),
        ("blockwise:kind=fp8", 1, "000080bf 12", Corrupt),
        ("blockwise:kind=dynamic8,nested=yes", 1, "0000807f 00000000 12 12", Corrupt),
        ("blockwise:kind=dynamic8,nested=yes", 1, "ffff7f7f ffff7f7f ff 12", Corrupt),
        ("blockwise:kind=meanstd16", 1, "0000803f 00000000 0000", Corrupt),
        ("blockwise:kind=meanstd16", 1, "0000803f 00000080 0000", Corrupt),
        ("blockwise:kind=meanstd16", 1, "0000803f 000080bf 0000", Corrupt),
        ("blockwise:kind=meanstd16", 1, "0000803f 0000807f 0000", Corrupt),
        ("blockwise:kind=meanstd16", 1, "0000807f 0000803f 0000", Corrupt),
        ("blockwise:kind=meanstd16", 1, "0000c0ff 0000803f 0000", Corrupt),
        ("blockwise:kind=meanstd16", 2, "0000803f 0000803f 0000 007c", Corrupt),
        ("blockwise:kind=meanstd16", 2, "0000803f 0000803f 01fe 0000", Corrupt),
        ("blockwise:kind=meanstd16", 2, "0000803f 0000803f 0000 00", Truncated),
        ("blockwise:kind=meanstd16", 2, "0000803f 0000803f 00000000 00", Corrupt),
        ("blockwise:code=huffman", 2, "0000803f", Truncated),
        ("blockwise:code=huffman", 2, "0000", Truncated),
        ("blockwise:code=huffman", 2, "0000803f 00 01 10", Corrupt),
        ("blockwise:code=huffman", 0, "00", Corrupt),
    ],
)
def test_refused(spec: str, n: int, data: str, error: type[Exception]) -> None:
    message = bytes.fromhex(data)
    with pytest.raises(error):
        gcodec.parse(spec).decode(message, n, nbits=8 * len(message))


@pytest.mark.parametrize(
    ("spec", "n", "data", "offset"),
    [
        ("blockwise", 5, "0000803f 12 34 56", 6),
        ("blockwise:kind=meanstd16", 2, "0000803f 0000803f 0000 007c", 10),
    ],
)
def test_errors_state_the_wrong_byte(spec: str, n: int, data: str, offset: int) -> None:
    message = bytes.fromhex(data)
    with pytest.raises(Corrupt) as caught:
        gcodec.parse(spec).decode(message, n, nbits=8 * len(message))
    assert caught.value.offset == offset


def test_errors_of_coded_bytes_state_no_offset() -> None:
    """The place among the decoded bytes is no place in the payload, and may lie beyond its end."""
    layout = Layout("nf4", False, 99, 64)
    data = np.zeros(layout.nbytes, np.uint8)
    data[: layout.front_nbytes] = np.ones(2, "<f4").view(np.uint8)
    data[-1] = 0x12
    _, written = write(data, layout, "huffman").candidates[0]
    codec = gcodec.parse("blockwise:code=huffman")
    with pytest.raises(Corrupt, match=r"^the half of a byte") as caught:
        codec.decode(written.data.tobytes(), 99, nbits=written.nbits)
    assert caught.value.offset is None


def test_every_nan_decodes_to_the_same_bits() -> None:
    codes = np.tile(np.array([0x7F, 0xFF, 0x38, 0xB8], np.uint8), 25)
    data = np.concatenate([np.full(2, 0.5, np.float32).view(np.uint8), codes])
    codec = gcodec.parse("blockwise:kind=fp8")
    decoded = codec.decode(gcodec.Payload(codec, {}, data, 8 * data.size), codes.size)
    expected = np.tile(np.array([0x7FC00000, 0x7FC00000, 0x40000000, 0xC0000000], np.uint32), 25)
    assert decoded.view(np.uint32).tolist() == expected.tolist()
