"""Context codes, in every codec that offers them besides other codes."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies as gs
from sweeps import thinned

import gcodec
from gcodec import Corrupt, FormatError, ParameterError
from gcodec.codec import Codec
from gcodec.entropy.context import symbol_coder
from gcodec.kernels.bits.bit_string import BitString
from gcodec.payload import Payload
from gcodec.tensorfiles.dumps import open_dump

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"
SPECS = (
    *("qsgd:code=context", "qsgd:s=127,norm=max,code=context", "qsgd:s=1,bucket=9,code=context"),
    *("qsgd:s=7,bucket=512,norm=max,code=context", "terngrad:pack=context"),
    *("minifloat:code=context", "minifloat:format=e1m1,style=ieee,code=context"),
    *("minifloat:format=e2m2,code=context,block=5", "minifloat:format=e4m3,code=context"),
    *("minifloat:format=e5m2,scale=1e-3,code=context", "mxnet-2bit:form=context"),
    "mxnet-2bit:threshold=auto,form=context",
)
AUTO_SPECS = (
    *("qsgd:code=auto", "qsgd:s=127,bucket=512,code=auto"),
    *(
        "qsgd:s=1,norm=max,form=dense,code=auto",
        "minifloat",
        "minifloat:format=e4m3,table=empirical",
        "minifloat:block=32",
    ),
    *("mxnet-2bit:threshold=auto,form=auto,index=auto", "mxnet-2bit:form=auto,index=auto"),
)
SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (0,), (0, 7), (3,), (17,), (300,), (8, 8), (7, 9), (20, 50), (64, 3, 3, 3)),
    *((3, 100, 7), (1, 129), (500, 1), (130, 0, 2)),
)
each_spec = pytest.mark.parametrize("spec", SPECS)


@functools.cache
def gradient(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return values whose rows and columns differ in scale; the first row is zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    for axis in range(len(shape)):
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        x = x * np.exp(0.8 * rng.standard_normal(sizes))
    x = np.asarray(x, np.float32)
    if len(shape) > 1:
        x[:1] = 0
    x.flags.writeable = False
    return x


@functools.cache
def examples() -> list[np.ndarray]:
    with open_dump(EXAMPLE) as dump:
        return [dump.load(entry).astype(np.float32) for entry in dump.entries]


def uses_context(codec: Codec) -> bool:
    """Return whether the codec uses the context code."""
    return "context" in gs.parameters_of(codec).values()


def alternatives_to(codec: Codec) -> list[Codec]:
    """Return codecs that write the same symbols with every other code."""
    if codec.name == "qsgd":
        pairs = [("dense", code) for code in ("omega", "rice", "packed", "huffman", "rans")]
        if codec.form == "auto":
            pairs += [("sparse", "omega"), ("sparse", "rice")]
        return [codec.replaced(form=form, code=code) for form, code in pairs]
    if codec.name == "minifloat":
        narrow = codec.format not in ("e4m3", "e5m2", "e3m2", "e2m2")
        codes = ("none", "huffman", "planes", "rans", *(["pair"] * narrow))
        return [codec.replaced(code=code) for code in codes]
    if codec.name == "terngrad":
        return [codec.replaced(packing=pack) for pack in ("chapter", "terngrad", "base3", "rans")]
    return [codec.replaced(form=form, index="auto") for form in ("dense", "sparse")]


def same_symbols(a: Any, b: Any) -> bool:
    """Return whether two tuples of symbols are the same."""
    pairs = zip(a, b, strict=True)
    return all(np.array_equal(x, y) and type(x) is type(y) for x, y in pairs)


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "shape"), thinned(itertools.product([*SPECS, *AUTO_SPECS], SHAPES), 2), ids=str
)
def test_round_trip(spec: str, shape: tuple[int, ...]) -> None:
    codec, x = gcodec.parse(spec), gradient(shape)
    symbols = codec.quantize(x, seed=3)
    payload = codec.pack(symbols)
    assert payload.tobytes() == codec.encode(x, seed=3).tobytes()
    assert same_symbols(payload.codec.unpack(payload, shape), symbols)
    assert payload.codec.pack(symbols).tobytes() == payload.tobytes()
    assert payload.nbits <= codec.max_payload_nbits(x.size)
    expected = codec.dequantize(symbols, shape)
    assert gs.same_bits(codec.decode(payload, shape), expected)
    # Flat decoding needs no shape: the string stores the row layout.
    assert gs.same_bits(codec.decode(payload, x.size), expected.reshape(-1))
    frame = gcodec.encode(x, codec, seed=3)
    assert gs.same_bits(gcodec.decode(frame), expected)
    acc = np.ones(shape, np.float32)
    gcodec.decode_add(frame, acc, 2.0)
    assert np.array_equal(acc, 1 + 2 * expected)
    if getattr(payload.codec, "form", "dense") != "sparse":
        bare = payload.codec.decode(payload.tobytes(), shape, **payload.scalars)
        assert gs.same_bits(bare, expected)


@each_spec
def test_real_gradients(spec: str) -> None:
    codec = gcodec.parse(spec)
    for x in examples():
        symbols = codec.quantize(x)
        payload = codec.pack(symbols)
        assert same_symbols(codec.unpack(payload, x.shape), symbols)
        assert gs.same_bits(codec.decode(payload, x.shape), codec.dequantize(symbols, x.shape))


@pytest.mark.parametrize("spec", [s for s in SPECS if "qsgd" not in s or "bucket" in s])
def test_seek_tables(spec: str) -> None:
    x = np.resize(gradient((300, 1000)), (700, 1000))
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec))
    expected = frame.without_seek().decode()
    assert frame.codec.seek_blocks == "states"
    assert np.array_equal(frame.decode(), expected)
    for log2_block in (5, 11, 18):
        read = gcodec.Frame.from_bytes(frame.with_seek(log2_block).to_bytes())
        assert read.seek is not None and read.seek.log2_block == log2_block
        assert np.array_equal(read.decode(), expected)
        assert read.without_seek().to_bytes() == frame.without_seek().to_bytes()
    wrong = read.payload.seek.offsets.copy()
    wrong[1] += 8
    table = gcodec.wire.seek.SeekTable.of(18, wrong, None, read.payload.seek.states)
    with pytest.raises(Corrupt):
        frame.codec.decode(frame.payload._replace(seek=table), x.shape)


@each_spec
def test_short_strings_have_no_seek_table(spec: str) -> None:
    frame = gcodec.Frame.from_bytes(gcodec.encode(gradient((20, 50)), spec))
    assert frame.seek is None
    assert frame.with_seek() is frame


# --- lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [s for s in SPECS if s not in (SPECS[2], SPECS[-2])])
def test_scales_of_rows_and_columns_save_bits(spec: str) -> None:
    codec, x = gcodec.parse(spec), gradient((300, 1000))
    symbols = codec.quantize(x)
    shortest = min(one.pack(symbols).nbits for one in alternatives_to(codec))
    assert codec.pack(symbols).nbits < 0.97 * shortest
    # A flat shape lacks the row layout and takes at least as many bits.
    flat = symbols._replace(shape=(x.size,))
    assert codec.pack(flat).nbits >= codec.pack(symbols).nbits


@pytest.mark.parametrize("spec", AUTO_SPECS)
def test_auto_is_never_longer_than_the_others(spec: str) -> None:
    codec = gcodec.parse(spec)
    selected = set()
    shaped = [gradient(shape) for shape in (*SHAPES, (300, 1000), (40, 30))]
    plain = [np.random.default_rng(1).standard_normal(n, np.float32) for n in (50, 5000, 70_000)]
    for x in (*shaped, *plain, *examples(), np.zeros((30, 40), np.float32)):
        symbols = codec.quantize(x)
        payload = codec.pack(symbols)
        selected.add(uses_context(payload.codec))
        for one in alternatives_to(codec):
            other = one.pack(symbols)
            rans = "rans" in gs.parameters_of(payload.codec).values()
            # The encoder estimates the length of rANS strings before it writes one.
            assert payload.nbits <= other.nbits * (1.002 if rans else 1) + 64 * rans
    assert selected == {False, True}


def test_requested_codebooks_are_used() -> None:
    x = gradient((300, 1000))
    assert uses_context(gcodec.parse("minifloat").encode(x).codec)
    for table in ("gennorm", "3"):
        payload = gcodec.parse(f"minifloat:table={table}").encode(x)
        assert isinstance(payload.codec.table, int)


def test_zero_rows_cost_little() -> None:
    x = np.zeros((2000, 300), np.float32)
    x[1000] = gradient((300,))
    for codec in map(gcodec.parse, SPECS):
        if not (getattr(codec, "bucket", 0) or getattr(codec, "block", 0)):
            assert codec.encode(x).nbits < codec.encode(x[1000]).nbits + x.size // 50


def test_zero_tensors_have_no_levels() -> None:
    x = np.zeros((30, 40), np.float32)
    payload = gcodec.parse("qsgd:bucket=100,code=context").encode(x)
    assert payload.nbits == 12 * 32
    with pytest.raises(Corrupt):
        payload.codec.decode(Payload(payload.codec, {}, np.zeros(60, np.uint8), 480), x.shape)


# --- refused inputs ------------------------------------------------------------------------------


def string_of(symbols: np.ndarray) -> tuple[np.ndarray, int]:
    """Return a context string of the symbols, and its number of bits."""
    data, nbits, _ = symbol_coder.write(symbols, symbols.shape, BitString())
    return data, nbits


@pytest.mark.parametrize(
    ("spec", "largest", "scalars"),
    [
        ("terngrad:pack=context", 3, {"scale": 1.0}),
        ("mxnet-2bit:form=context", 3, {"threshold": 0.5}),
        ("minifloat:code=context", 15, {"scale": 1.0, "table": "empirical"}),
        ("minifloat:style=ieee,code=context", 11, {"scale": 1.0, "table": "empirical"}),
        ("minifloat:format=e4m3,style=fn,code=context", 253, {"scale": 1.0, "table": "empirical"}),
    ],
)
def test_reserved_symbols_are_refused(spec: str, largest: int, scalars: dict[str, Any]) -> None:
    codec = gcodec.parse(spec)
    codec = codec.of_message(scalars)
    symbols = np.zeros(1000, np.uint8)
    for count in (1, 400):  # Once as an outlier, once as a symbol of the table.
        symbols[:count] = largest
        payload = Payload(codec, scalars, *string_of(symbols))
        assert np.count_nonzero(codec.decode(payload, 1000)) == count
        symbols[:count] = largest + 1
        payload = Payload(codec, scalars, *string_of(symbols))
        for call in (codec.decode, codec.unpack):
            with pytest.raises(Corrupt):
                call(payload, 1000)


def test_levels_above_s_and_in_zero_norm_buckets() -> None:
    codec = gcodec.parse("qsgd:s=3,form=dense,bucket=100,code=context")
    x = gradient((10, 100), 5) + np.float32(0.001)
    large = codec.replaced(s=15).encode(x)
    with pytest.raises(Corrupt):
        codec.decode(large._replace(codec=codec), x.shape)
    payload = codec.encode(x)
    data = payload.data.copy()
    data[:4] = 0
    for call in (codec.decode, codec.unpack):
        assert call(payload, x.shape) is not None
        with pytest.raises(Corrupt):
            call(payload._replace(data=data), x.shape)


def test_a_codebook_is_refused() -> None:
    payload = gcodec.parse("minifloat:code=context").encode(gradient((20, 50)))
    wrong = payload._replace(scalars={**payload.scalars, "table": 3})
    with pytest.raises(Corrupt, match="table"):
        payload.codec.decode(wrong, (20, 50))
    assert gcodec.parse("minifloat:code=context,table=gennorm").table == "empirical"


@each_spec
def test_damaged_payloads(spec: str) -> None:
    """Flipped bits are refused or decode to other elements; prefixes are always refused."""
    codec, x = gcodec.parse(spec), gradient((9, 12))
    payload = codec.encode(x)
    codec = payload.codec
    # The strings follow the norms, factors and scales, and end in states and words.
    header_nbits = 8 * (payload.data.size - 20)
    for bit in (*range(min(header_nbits, 200)), *range(max(header_nbits, 0), payload.nbits, 5)):
        data = payload.data.copy()
        data[bit // 8] ^= 128 >> bit % 8
        try:
            symbols = codec.unpack(payload._replace(data=data), x.shape)
        except FormatError:
            continue
        decoded = codec.decode(payload._replace(data=data), x.shape)
        assert gs.same_bits(decoded, codec.dequantize(symbols, x.shape))
    for nbytes in range(payload.data.size):
        short = payload._replace(data=payload.data[:nbytes], nbits=8 * nbytes)
        with pytest.raises(FormatError):
            codec.decode(short, x.shape)
    longer = payload._replace(data=np.append(payload.data, np.uint8(0)), nbits=payload.nbits + 8)
    for call in (codec.decode, codec.unpack):
        with pytest.raises(FormatError):
            call(longer, x.shape)


@each_spec
def test_other_sizes_are_refused(spec: str) -> None:
    codec = gcodec.parse(spec)
    payload = codec.encode(gradient((20, 50)))
    for n in (0, 1, 999, 1001, 2**40):
        with pytest.raises(FormatError):
            payload.codec.unpack(payload, n)


@each_spec
def test_other_shapes_are_refused(spec: str) -> None:
    codec, x = gcodec.parse(spec), gradient((20, 50))
    wrong = codec.quantize(x)._replace(shape=(20, 60))
    with pytest.raises(ParameterError, match="symbols"):
        codec.pack(wrong)
    with pytest.raises(ParameterError, match="symbols"):
        codec.dequantize(wrong, (20, 50))


def test_wide_levels_are_refused() -> None:
    for spec in ("qsgd:s=128,code=context", "qsgd:form=sparse,code=context"):
        with pytest.raises(ParameterError, match="code=context"):
            gcodec.parse(spec)
    assert not uses_context(
        gcodec.parse("qsgd:s=128,code=auto").encode(gradient((300, 1000))).codec
    )


def test_sparse_decoding_is_refused() -> None:
    frame = gcodec.encode(gradient((20, 50)), "mxnet-2bit:form=context")
    with pytest.raises(ParameterError, match="use decode"):
        gcodec.decode_sparse(frame)


def test_feedback_passes_the_shape() -> None:
    x = gradient((300, 1000))
    for spec in SPECS:
        feedback, codec = gcodec.Feedback(spec), gcodec.parse(spec)
        frame = gcodec.Frame.from_bytes(feedback.compress("w", x))
        flat = codec.pack(codec.quantize(x)._replace(shape=(x.size,)))
        assert frame.payload.nbits < flat.nbits
        assert math.isfinite(float(np.abs(feedback.residual("w")).max()))


@pytest.mark.parametrize("limit", [0, -1, -300])
def test_a_string_that_is_not_shorter_states_its_bits(limit: int) -> None:
    """They are exact if the string was written, so the encoder need not write it again."""
    rng = np.random.default_rng(4)
    magnitudes = rng.geometric(0.5, 5000) - 1
    symbols = (2 * magnitudes + (magnitudes > 0) * rng.integers(0, 2, 5000)).astype(np.uint8)
    estimate = symbol_coder.plan(symbols, (5000,)).nbits
    nbits = symbol_coder.write(symbols, (5000,), BitString()).nbits
    known = symbol_coder.write_shorter(symbols, (5000,), BitString(), nbits + limit)
    assert known == (nbits if estimate < nbits + limit else estimate)
    longer = symbol_coder.write_shorter(symbols, (5000,), BitString(), nbits + 1)
    assert not isinstance(longer, int)
    assert longer.nbits == nbits
