"""Dissected frames: each bit is described once, values equal the decoder's, errors are placed."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import strategies as gs
from golden import vector
from sweeps import LONG, thinned
from tensor_pairs import repaired

import gcodec
from gcodec import Codec, Payload, register
from gcodec.analysis.dissect import UNDECODED, Dissection
from gcodec.arrays.source import as_dtype
from gcodec.codec import registry
from gcodec.codecs import sparseloco
from gcodec.codecs.dct8 import levels
from gcodec.codecs.lowrank.message import MOST_EXPONENT
from gcodec.fields.walker import CHUNK, KINDS, FieldSpan, FieldWalker
from gcodec.frame import crc32c
from gcodec.wire import primitives

VECTORS = Path(__file__).parents[1] / "golden" / "v1"
PATHS = sorted(VECTORS.glob("*.txt")) + sorted((VECTORS / "patch").glob("*.txt"))
LIMITS = gcodec.Limits(1 << 20, 1 << 23)
ALL_KINDS = frozenset(KINDS)
EXPLAINED = {"header", "norm", "scale", "table", "pad"}  # kinds of fields of few values
TRANSFORM_CODECS = {"dct8", "powersgd"}  # Codecs whose elements have no value of their own.


def read_vector(path: Path) -> tuple[bytes, bytes | None]:
    fields = vector.read(path)
    return vector.data(fields["frame"]), fields["key"].encode() if "key" in fields else None


def dissected(frame: bytes, **options: Any) -> tuple[Dissection, list[FieldSpan]]:
    """Dissect a frame, and check that its fields cover each bit once, from the first bit on."""
    actual = Dissection(frame, limits=LIMITS, **options)
    at, fields = 0, []
    for field in actual:
        assert field.first == at, f"{field} does not begin at bit {at}"
        assert sum(field.split.values()) == field.nbits
        assert field.split.keys() <= ALL_KINDS
        assert len(field.split) > 1 or field.kind in field.split
        at += field.nbits
        fields.append(field)
    assert sum(actual.totals.values()) == at
    assert actual.error is not None or at == 8 * len(frame)
    return actual, fields


def decoded(fields: list[FieldSpan], n: int, dtype: str) -> np.ndarray:
    """Return the tensor that the fields describe, by elements or by numbered positions."""
    places = {f.number: f.element for f in fields if f.kind == "index" and f.element is not None}
    kind = vector.DTYPES[dtype] if dtype in primitives.UNCONVERTED else np.dtype(np.float32)
    values, described = np.zeros(n, kind), np.zeros(n, np.bool_)
    for field in fields:
        for i, value in enumerate(field.decoded):
            at = places[field.number + i] if field.element is None else field.element + i
            assert not described[at]
            values[at], described[at] = value, True
    return values if dtype in primitives.UNCONVERTED else as_dtype(values, dtype)


def same_except_nan(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays have the same bits, except in NaN, whose bits the raw codec keeps."""
    with np.errstate(invalid="ignore"):
        numbers = ~(np.isnan(a) & np.isnan(b))
    return a.dtype == b.dtype and a[numbers].tobytes() == b[numbers].tobytes()


def check_dissection(frame: bytes, key: bytes | None = None) -> Dissection:
    """Dissect a valid frame in full, and compare it with the decoded frame."""
    actual, fields = dissected(frame, key=key)
    read = gcodec.Frame.from_bytes(frame, key=key)
    assert actual.error is None and actual.end == len(frame)
    assert (actual.name, actual.dtype, actual.shape) == (read.name, read.dtype, read.shape)
    assert str(actual.codec) == str(read.codec)
    assert "undecoded" not in actual.totals, f"{read.codec} does not describe all of its payload"
    for field in fields:
        if field.value in ("+", "-"):
            sign = 1 if field.value == "+" else -1
            assert all(math.copysign(1, value) == sign for value in field.decoded)
    payload = [f for f in fields if f.part == "payload" and f.name != "fill"]
    assert sum(f.nbits for f in payload) == read.payload.nbits
    if describes_elements(read.codec):
        assert same_except_nan(decoded(fields, read.size, read.dtype), read.decode().reshape(-1))
    return actual


def check_meanings(frame: bytes, key: bytes | None) -> None:
    """Check that fields of parameters, scales and tables explain themselves to a stranger."""
    for field in dissected(frame, key=key)[1]:
        text = field.meaning
        assert not text.startswith("of ") and "auto" not in text, f"{field.name}: {text}"
        if field.kind in EXPLAINED and field.value is not None:
            assert text or field.decoded, f"{field.name} has no meaning"


def describes_elements(codec: Codec) -> bool:
    """Return whether the fields of a payload determine elements, not coefficients or changes."""
    if codec.needs_base:
        return False
    is_transformed = codec.name in TRANSFORM_CODECS or "transform=dct" in str(codec)
    return not is_transformed and not (codec.name == "lowrank" and "rank=0" not in str(codec))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden_vectors(path: Path) -> None:
    frame, key = read_vector(path)
    actual = check_dissection(frame, key)
    check_meanings(frame, key)
    rng = random.Random(path.stem)
    # A dissection that omits fields counts the same bits.
    first = rng.randrange(8 * len(frame))
    sample, fields = dissected(frame, key=key, most=rng.randrange(3), first=first)
    assert sample.error is None and len(fields) < 120
    assert {k: v for k, v in sample.totals.items() if v} == {
        k: v for k, v in actual.totals.items() if v
    }


@pytest.mark.parametrize(
    "number", [pytest.param(number, id=path.stem) for number, path in enumerate(PATHS)]
)
def test_damaged_vectors(number: int) -> None:
    """Of the kinds of damage, the vectors take turns, unless the run is long."""
    path = PATHS[number]
    frame, key = read_vector(path)
    read = gcodec.Frame.from_bytes(frame, key=key)
    rng = random.Random(path.stem)
    cut = rng.randrange(len(frame))
    if LONG or number % 2:
        actual, _ = dissected(frame[:cut], key=key)
        assert isinstance(actual.error, gcodec.FormatError) and actual.bad <= 8 * cut
    damages = [*resealed(frame, read, rng), flipped(frame, rng, 0, len(frame))]
    for broken in damages if LONG else damages[number % 2 :: 2]:
        actual, _ = dissected(broken, key=key)
        decode_error = decoding_error(broken, key)
        assert (actual.error is None) == (decode_error is None), (actual.error, decode_error)
        if actual.error is not None:
            assert 0 <= actual.bad <= 8 * len(frame)
            assert dissected(broken, key=key, most=1)[0].bad >= 0


def flipped(frame: bytes, rng: random.Random, start: int, size: int) -> bytes:
    """Return a frame with one bit flipped among `size` bytes from `start` on."""
    broken = bytearray(frame)
    bit = 8 * start + rng.randrange(8 * size)
    broken[bit // 8] ^= 0x80 >> bit % 8
    return bytes(broken)


def resealed(frame: bytes, read: gcodec.Frame, rng: random.Random) -> Iterator[bytes]:
    """Yield frames with one flipped bit in payload or header, and right checksums."""
    if read.key is not None:
        return
    head, size = len(read.header()), read.payload.data.size
    if size:
        broken = bytearray(flipped(frame, rng, head, size))
        broken[head + size :] = crc32c(bytes(broken[head : head + size]))
        yield bytes(broken)
    broken = bytearray(flipped(frame, rng, 8, head - 12))
    broken[head - 4 : head] = crc32c(bytes(broken[: head - 4]))
    yield bytes(broken)


def decoding_error(frame: bytes, key: bytes | None) -> gcodec.FormatError | None:
    try:
        read = gcodec.Frame.from_bytes(frame, key=key, limits=LIMITS)
        if read.codec.needs_base:
            read.codec.unpack(read.payload, read.shape)
        else:
            read.decode()
    except gcodec.FormatError as error:
        return error
    return None


@pytest.mark.parametrize("codec", thinned(gs.FEW, 2), ids=str)
def test_every_codec_is_fully_described(codec: Codec) -> None:
    rng = np.random.default_rng(zlib.crc32(str(codec).encode()))
    for n in (0, 1, 200):
        x = rng.normal(size=n).astype(np.float32)
        frame = gcodec.encode(x, codec, seed=3, name="w", key=b"k")
        check_dissection(frame, b"k")
        with_table = gcodec.Frame.from_bytes(frame, key=b"k").with_seek().to_bytes()
        if with_table != frame:
            check_dissection(with_table, b"k")
    actual, fields = dissected(frame, key=b"k")
    assert not any(UNDECODED in field.meaning for field in fields)
    kinds = {"header", "norm", "scale", "table", "index", "sign", "level", "value", "pad"}
    assert set(actual.totals) <= kinds


@pytest.mark.parametrize(
    "spec",
    [
        *("minmax:bits=3,bucket=7", "terngrad:pack=base3", "qsgd:code=packed,form=dense,bucket=7"),
        *("minifloat:code=none,block=9", "minifloat:code=planes,format=e4m3,block=9"),
        *("minifloat:code=pair,block=9", "blockwise:block=32", "microscale:format=nvfp4"),
    ],
)
def test_long_payloads_are_described_in_parts(spec: str) -> None:
    """The last part begins within a bucket or a block."""
    x = np.random.default_rng(0).standard_normal(2 * CHUNK + 101).astype(np.float32)
    check_dissection(gcodec.encode(x * 2.0 ** (np.arange(x.size) % 29), spec))


def test_ends_of_ranges_are_named() -> None:
    x = np.float32([3, -1, 2, 7, 5])
    fields = dissected(gcodec.encode(x, "minmax:bucket=2"))[1]
    ends = [(f.name, f.number, f.value) for f in fields if f.kind == "scale"]
    assert ends == [
        *(("low", 0, -1.0), ("high", 0, 3.0), ("low", 1, 2.0), ("high", 1, 7.0)),
        *(("low", 2, 5.0), ("high", 2, 5.0)),
    ]


@pytest.mark.parametrize("shape", [(200,), (12, 11)])
def test_numbers_of_powersgd_are_those_of_the_payload(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    frame = gcodec.encode(x, "powersgd:rank=2")
    numbers = [field for field in dissected(frame)[1] if field.kind == "value"]
    payload = gcodec.Frame.from_bytes(frame).payload.tobytes()
    assert [field.value for field in numbers] == np.frombuffer(payload, "<f4").tolist()
    if len(shape) == 1:
        assert same_except_nan(decoded(numbers, 200, "float32"), x)
    else:  # a number of a factor affects many elements
        assert not any(field.decoded or field.element for field in numbers)


def test_fields_without_a_level_are_errors() -> None:
    """With s = 5, fields of 4 bits are levels up to 10."""
    x = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    frame = gcodec.encode(x, "qsgd:s=5,code=packed,form=dense")
    data = bytearray(gcodec.Frame.from_bytes(frame).payload.tobytes())
    data[10] = 0x0B  # the 14th of the fields, which follow a norm of 4 bytes
    broken = repaired(frame, bytes(data)).to_bytes()
    actual, fields = dissected(broken)
    described = sum(len(field.decoded) for field in fields if field.kind == "level")
    assert described == 13 and isinstance(actual.error, gcodec.Corrupt)
    assert actual.bad == 8 * (len(gcodec.Frame.from_bytes(frame).header()) + 10) + 4
    assert str(actual.error) == str(decoding_error(broken, None))
    shorter = repaired(frame, bytes(data[:10])).to_bytes()
    actual, fields = dissected(shorter)
    described = sum(len(field.decoded) for field in fields if field.kind == "level")
    assert described == 12 and isinstance(actual.error, gcodec.Truncated)


@pytest.mark.parametrize("bins", [2, 3, 5])
def test_several_bins_in_a_byte_are_described(bins: int) -> None:
    x = np.random.default_rng(bins).standard_normal(300).astype(np.float32)
    check_dissection(gcodec.encode(x, f"sparseloco:k=8,chunk=4,code=huffman,bins={bins}"))


@pytest.mark.parametrize(
    "spec",
    [
        *("sign", "mxnet-2bit:threshold=1", "qsgd:code=rans,s=7"),
        *("minifloat:code=rans,table=empirical", "lossless:mode=fast"),
    ],
)
def test_padding_that_is_not_zero_is_refused_where_it_begins(spec: str) -> None:
    x = np.random.default_rng(0).standard_normal(1001, np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec))
    pads = [field for field in dissected(frame.to_bytes())[1] if field.kind == "pad"]
    assert pads
    for pad in pads:
        data, bit = frame.payload.data.copy(), pad.first + pad.nbits - 1
        data[bit // 8 - len(frame.header())] |= 0x80 >> bit % 8
        broken = replace(frame, payload=frame.payload._replace(data=data)).to_bytes()
        actual, _ = dissected(broken)
        assert isinstance(actual.error, gcodec.Corrupt) and actual.bad == pad.first
        assert isinstance(decoding_error(broken, None), gcodec.Corrupt)


@pytest.mark.parametrize("spec", ["qsgd:s=7,code=rans,form=dense", "ecsq:step=0.5"])
def test_blocks_of_rans_that_end_in_other_states_are_refused(spec: str) -> None:
    x = np.random.default_rng(0).standard_normal(5000, np.float32)
    frame = gcodec.encode(x, spec)
    data = bytearray(gcodec.Frame.from_bytes(frame).payload.tobytes())
    data[-1] ^= 1  # in the last word, after which only few symbols follow
    broken = repaired(frame, bytes(data)).to_bytes()
    for first in (0, 8 * len(broken) - 64):  # all symbols, and the last ones
        actual, _ = dissected(broken, first=first)
        assert isinstance(actual.error, gcodec.Corrupt) and "states" in str(actual.error)
        assert str(actual.error) == str(decoding_error(broken, None))


@pytest.mark.parametrize(
    ("spec", "name", "bits"),
    [
        ("lossless:mode=small", "states", "00000101"),
        ("qsgd:s=7,code=rans,form=dense", "state", "0" * 32),
        ("mxnet-2bit:threshold=1", "code", "01"),
        ("topk:k=300,index=rice", "Rice parameter", "111111"),
    ],
)
def test_wrong_fields_are_refused_where_they_begin(spec: str, name: str, bits: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 256)) * np.exp2(rng.integers(-8, 8, (64, 1)))
    frame = gcodec.Frame.from_bytes(gcodec.encode(x.astype(np.float32), spec))
    first = next(f.first for f in dissected(frame.to_bytes())[1] if f.name == name)
    payload = np.unpackbits(frame.payload.data)
    at = first - 8 * len(frame.header())
    payload[at : at + len(bits)] = [int(bit) for bit in bits]
    changed = frame.payload._replace(data=np.packbits(payload))
    broken = replace(frame, payload=changed).to_bytes()
    actual, _ = dissected(broken)
    assert isinstance(actual.error, gcodec.Corrupt) and actual.bad == first
    assert isinstance(decoding_error(broken, None), gcodec.Corrupt)


def test_symbols_above_the_largest_level_are_refused_at_their_place() -> None:
    x = np.random.default_rng(0).standard_normal(5000, np.float32)
    payload = gcodec.parse("qsgd:s=7,norm=max,code=context,form=dense").encode(x)
    codec: Any = payload.codec.replaced(s=5)
    symbols: Any = payload.codec.unpack(payload, x.shape)
    frame = gcodec.Frame(codec, "float32", x.shape, payload._replace(codec=codec)).to_bytes()
    actual, fields = dissected(frame)
    assert isinstance(actual.error, gcodec.Corrupt)
    assert str(actual.error) == str(decoding_error(frame, None))
    described = sum(field.name == "level" for field in fields)
    assert described == np.argmax(symbols.levels > 2 * codec.s + 1)


def test_positions_within_a_string_are_those_of_the_whole() -> None:
    """A dissection that begins within the upper bits of Elias-Fano finds their low bits."""
    x = np.random.default_rng(0).standard_normal(5000, np.float32)
    frame = gcodec.encode(x, "topk:k=300,index=eliasfano")
    positions = gcodec.decode_sparse(frame)[0].tolist()
    upper = [field for field in dissected(frame)[1] if field.name == "upper bits"]
    assert [field.element for field in upper] == positions
    for number in (1, 150, 290):
        part = dissected(frame, most=3, first=upper[number].first)[1]
        assert upper[number] in part
        assert all(f in upper for f in part if f.name == "upper bits" and f.value is not None)


@pytest.mark.parametrize("index", ["huffman", "rans"])
def test_classes_of_positions_state_their_distances(index: str) -> None:
    x = np.random.default_rng(0).standard_normal(5000, np.float32)
    frame = gcodec.encode(x, f"topk:k=300,index={index}")
    distances = np.diff(gcodec.decode_sparse(frame)[0], prepend=-1).tolist()
    fields = dissected(frame)[1]
    texts = [field.meaning.partition(",")[0] for field in fields if field.name == "class"]
    assert any(" to " in text for text in texts) and "distance 1" in texts
    for text, distance in zip(texts, distances, strict=True):
        numbers = [int(word) for word in text.split() if word.isdigit()]
        assert numbers[0] <= distance <= numbers[-1]
        assert (len(numbers) == 1) == (distance < 8)


@pytest.mark.parametrize(
    ("spec", "widths"),
    [
        ("qsgd:s=100,norm=max,code=omega", {5: (2, 3, 1), 26: (2, 3, 5, 1), 100: (2, 3, 7, 1)}),
        ("qsgd:s=100,norm=max,code=rice", {5: (1, 6), 26: (1, 6), 100: (4, 6)}),
        ("qsgd:s=1,norm=max,code=rice", {0: (), 1: ()}),
    ],
)
def test_parts_of_codewords(spec: str, widths: dict[int, tuple[int, ...]]) -> None:
    """The lengths and the value of an omega code, and quotient and remainder of a Rice code."""
    frame = gcodec.encode(np.array([*widths], np.float32), f"{spec},form=dense")
    groups = {f.value: f.groups for f in dissected(frame)[1] if f.kind == "level"}
    assert groups == widths


@pytest.mark.parametrize("codec", gs.FEW, ids=str)
@pytest.mark.parametrize("n", [0, 40])
def test_bits_after_the_last_field_are_refused(codec: Codec, n: int) -> None:
    payload = codec.encode(np.linspace(-1, 1, n, dtype=np.float32))
    data = np.append(payload.data, np.uint8([0, 0]))
    longer = payload._replace(data=data, nbits=8 * data.size, seek=None)
    with pytest.raises(gcodec.FormatError):
        payload.codec.unpack(longer, n)
    with pytest.raises(gcodec.FormatError):
        list(payload.codec._with_shape(n)._describe(longer, n, FieldWalker(data, longer.nbits)))


@pytest.mark.parametrize("values", levels.VALUES)
@pytest.mark.parametrize("k", [1, 2, 5, 9, 16])
@pytest.mark.parametrize("index", ["fixed", "rice"])
def test_coefficients(values: str, k: int, index: str) -> None:
    x = np.random.default_rng(k).normal(size=100).astype(np.float32)
    x[16:32] = 0
    frame = gcodec.encode(x, f"dct8:chunk=4x4,k={k},values={values},index={index}")
    read = gcodec.Frame.from_bytes(frame)
    symbols = read.codec.unpack(read.payload, read.shape)
    _, fields = dissected(frame)
    scales = [f.value for f in fields if f.kind == "scale"]
    assert scales == ([] if values == "float32" else symbols.scales.reshape(-1).tolist())
    owners = [int(f.meaning.split()[-1]) for f in fields if f.kind == "scale"]
    times = {"float32": 0, "sign7": 1, "affine8": 2}[values]
    assert owners == [chunk for chunk in range(7) for _ in range(times)]
    names = [f.name for f in fields if f.kind == "scale"]
    assert names == [["scale"], ["step", "least"]][times - 1] * 7 if times else not names
    reported = [f.meaning for f in fields if f.part == "payload" and "coefficient" in f.meaning]
    actual = levels.dequantize(levels.Levels(symbols.scales, symbols.codes), values)
    if values == "float32":
        sent = [f.value for f in fields if f.name == "coefficient"]
        assert sent == actual.reshape(-1).tolist()
    elif k > 1 or values == "sign7":
        assert reported == [f"coefficient {v!r}" for v in actual.reshape(-1).tolist()]
    positions = [f for f in fields if f.name in ("position", "gap")]
    if k < 16:
        text = [str(f.value) if f.name == "position" else f.meaning.split()[1] for f in positions]
        assert text == [str(position) for position in symbols.positions.reshape(-1).tolist()]


@pytest.mark.parametrize(
    ("spec", "block"),
    [
        *[(f"blockwise:kind={kind},block=32", 32) for kind in ("int8", "int4", "nf4", "fp8")],
        *[("blockwise:kind=fp4,code=huffman,block=32", 32), ("microscale:format=mxfp4", 32)],
        *[("microscale:format=mxfp8e4m3,code=context", 32), ("microscale:format=nvfp4", 16)],
        *[(f"minifloat:format=e4m3,block=32,code={code}", 32) for code in ("none", "context")],
    ],
)
def test_stated_numbers_times_scales_are_the_values(spec: str, block: int) -> None:
    """The field of a scale names its block; that of an element states its number in the format."""
    x = np.random.default_rng(0).standard_normal(211).astype(np.float32)
    fields = dissected(gcodec.encode(x, spec))[1]
    scales: dict[int, float] = {}
    for field in fields:
        if field.meaning.startswith("block "):
            name, _, number = field.meaning.removeprefix("block ").partition(":")
            scale = float(number.split()[-1] if number else field.value)
            scales[int(name)] = 1 / scale if "kind=fp8" in spec else scale
    assert [*scales] == list(range(-(-x.size // block)))
    for field in fields:
        texts = field.meaning.split(", ")[spec.startswith("minifloat") :]
        for element, value in enumerate(field.decoded, field.element or 0):
            number = float(texts[element - (field.element or 0)])
            assert value == pytest.approx(number * scales[element // block], rel=2e-5)


def test_parts_of_scales_are_named() -> None:
    x = np.random.default_rng(0).standard_normal(32 * 300).astype(np.float32)
    fields = dissected(gcodec.encode(x, "blockwise:kind=meanstd16,block=32"))[1]
    named = {
        name: {int(f.meaning.split()[1]): f.value for f in fields if f.name == name}
        for name in ("mean", "deviation")
    }
    for name, values in (
        ("mean", x.reshape(300, 32).mean(1)),
        ("deviation", x.reshape(300, 32).std(1)),
    ):
        actual = [named[name][block] for block in range(300)]
        np.testing.assert_allclose(actual, values, rtol=1e-2, atol=1e-2)
    fields = dissected(gcodec.encode(x, "blockwise:nested=yes,block=32"))[1]
    texts = [f.meaning for f in fields if f.name == "scale of scales"]
    assert texts == ["scales from 0 on", "scales from 256 on"]


@pytest.mark.parametrize(
    "spec",
    [
        *(f"blockwise:kind={kind},code=huffman" for kind in ("nf4", "int4")),
        *(f"microscale:format=mxfp4,code={code}" for code in ("none", "huffman")),
        *(f"minifloat:code={code},table=empirical" for code in ("pair", "rans")),
    ],
)
def test_a_second_code_in_the_last_byte_is_refused(spec: str) -> None:
    """Two codes share a byte, also where the tensor ends after the first."""
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec))
    broken = replace(frame, shape=(199,)).to_bytes()
    actual, _ = dissected(broken)
    last = max(field.first for field in dissected(frame.to_bytes())[1] if field.decoded)
    assert isinstance(actual.error, gcodec.Corrupt) and actual.bad == last
    assert str(actual.error) == str(decoding_error(broken, None))


@pytest.mark.parametrize("code", ["huffman", "rans"])
def test_codes_beyond_the_format_are_refused(code: str) -> None:
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, f"microscale:format=mxfp8e4m3,code={code}"))
    narrow = gcodec.parse(f"microscale:format=mxfp6e2m3,code={code}")
    broken = replace(frame, codec=narrow, payload=frame.payload._replace(codec=narrow)).to_bytes()
    codes = [field for field in dissected(frame.to_bytes())[1] if field.decoded]
    first = next(field for field in codes if field.value >= 64)
    actual, _ = dissected(broken)
    assert isinstance(actual.error, gcodec.Corrupt) and actual.bad == first.first
    assert str(actual.error) == str(decoding_error(broken, None))


NAN, ZERO, LARGE = (bytes(np.float32(number).data) for number in (np.nan, 0, 3e38))


@pytest.mark.parametrize(
    ("spec", "at", "wrong", "bad"),
    [
        ("blockwise:block=32,nested=yes", 8, NAN, 8),  # a scale of scales
        ("blockwise:block=32,nested=yes", 0, 3 * LARGE + b"\x7f\xff", 13),  # 0, and the most
        *[("blockwise:kind=fp8,block=32", 8, ZERO, 8), ("blockwise:block=32", 8, NAN, 8)],
        *[("blockwise:kind=meanstd16,block=32", at, ZERO, at) for at in (4 * 300, 8 * 300 - 4)],
        ("microscale:format=nvfp4", 7, b"\xff", 7),
        # Minus zero, and a code that the style omits; the last one in the low half of a byte.
        *[
            ("minifloat:format=e4m3,code=none", 5, b"\x80", 5),
            ("minifloat:code=none", 5, b"\x80", 5),
        ],
        ("minifloat:format=e4m3,style=fn,code=none", 5, b"\x7f", 5),
        ("minifloat:code=none", 5, b"\x08", 5.5),
        ("minifloat:block=32,scale=2e37", 7, b"\xff", 7),  # a factor beyond float32
        *[("microscale:format=mxfp6e2m3", at, b"\xff", at) for at in (300, 307)],
        *[("microscale:format=mxfp4,code=huffman", 0, wrong, 0) for wrong in (b"\x02", b"\xff")],
        ("microscale:format=mxfp6e2m3,code=huffman", 0, b"\x02", 0),
        *[("minmax:bucket=32", at, b"\x7f\xc0", at) for at in (0, 8 * 299)],  # NaN as low
        *[("terngrad:pack=base3", at, b"\xf3", at) for at in (0, 1919)],  # 243, one too large
    ],
)
def test_errors_are_placed_at_their_bytes(spec: str, at: int, wrong: bytes, bad: float) -> None:
    """Bytes of the payload, `bad` among them, are the first that a decoder refuses."""
    x = np.random.default_rng(0).standard_normal(32 * 300).astype(np.float32)
    frame = gcodec.encode(x, spec)
    data = bytearray(gcodec.Frame.from_bytes(frame).payload.tobytes())
    data[at : at + len(wrong)] = wrong
    broken = repaired(frame, bytes(data))
    actual, fields = dissected(broken.to_bytes())
    assert actual.bad == 8 * (len(broken.header()) + bad)
    assert all(f.first < actual.bad for f in fields if f.value is not None)
    assert str(actual.error) == str(decoding_error(broken.to_bytes(), None))


@pytest.mark.parametrize(("byte", "reason"), [(0xC0, "bin 3 of 3"), (0x01, "bits of a byte")])
def test_bytes_of_bins_are_refused(
    byte: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last byte contains one bin of two bits, below 3, and six zeros."""
    pack = sparseloco.pack_fields

    def changed(bins: np.ndarray, layout: Any) -> np.ndarray:
        data = pack(bins, layout)
        data[-1] |= byte
        return data

    x = np.random.default_rng(0).standard_normal(20).astype(np.float32)
    with monkeypatch.context() as patched:
        patched.setattr(sparseloco, "pack_fields", changed)
        broken = gcodec.encode(x, "sparseloco:k=1,chunk=4,code=huffman,bins=3")
    actual, fields = dissected(broken)
    assert sum(len(field.decoded) for field in fields) == 4
    assert isinstance(actual.error, gcodec.Corrupt) and reason in str(actual.error)
    assert str(actual.error) == str(decoding_error(broken, None))


@pytest.mark.parametrize("pack", ["base3", "rans"])
@pytest.mark.parametrize("number", [3, 9, 81])
def test_pad_codes_that_are_not_zero_are_refused(pack: str, number: int) -> None:
    """The last byte contains one code, and four pad codes."""
    codec = gcodec.parse(f"terngrad:pack={pack},clip=0")
    symbols = codec.quantize(np.ones(201, np.float32), seed=1)
    symbols.codes[-1] = number  # type: ignore[attr-defined]
    payload = codec.pack(symbols)
    broken = gcodec.Frame(payload.codec, "float32", (201,), payload).to_bytes()
    actual, fields = dissected(broken)
    assert sum(len(field.decoded) for field in fields) == 200
    assert isinstance(actual.error, gcodec.Corrupt)
    assert str(actual.error) == str(decoding_error(broken, None))


@pytest.mark.parametrize(("n", "method"), [(64, "as they are"), (9600, "in words")])
def test_methods_of_scales_are_named(n: int, method: str) -> None:
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    frame = gcodec.encode(x, "microscale:format=nvfp4,code=huffman")
    fields = dissected(frame)[1]
    assert [f.meaning for f in fields if f.name == "scales"] == [method]
    widths = {f.nbits for f in fields if f.kind == "scale"}
    assert (widths == {8}) == (method == "as they are")
    if method == "as they are":
        data = bytearray(gcodec.Frame.from_bytes(frame).payload.tobytes())
        data[3] = 0xFF  # the scale of block 2
        broken = repaired(frame, bytes(data))
        actual, _ = dissected(broken.to_bytes())
        assert "block 2 is negative" in str(actual.error)
        assert actual.bad == 8 * (len(broken.header()) + 3)


@pytest.mark.parametrize(
    ("spec", "scale"),
    [
        *(("blockwise:kind=int8,block=32", LARGE), ("blockwise:kind=meanstd16", 2 * LARGE)),
        *(("blockwise:block=32,kind=int4", LARGE), ("microscale:format=mxfp8e5m2", b"\xfe")),
        *(("microscale:format=mxfp4", b"\xfe"), ("microscale:format=mxfp4", b"\xff")),
        ("blockwise:kind=fp8,block=32", b"\1\0\0\0"),
    ],
)
def test_values_beyond_float32_are_described(spec: str, scale: bytes) -> None:
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    frame = gcodec.encode(x, spec)
    data = bytearray(gcodec.Frame.from_bytes(frame).payload.tobytes())
    data[: len(scale)] = scale
    changed = repaired(frame, bytes(data))
    with np.errstate(all="ignore"):
        decoded_values = changed.decode()
    assert not np.isfinite(decoded_values).all()
    check_dissection(changed.to_bytes())


def test_tables_of_levels_name_the_levels() -> None:
    x = np.random.default_rng(0).standard_normal(211).astype(np.float32)
    fields = dissected(gcodec.encode(x, "qsgd:s=9,code=huffman"))[1]
    table = [f.meaning for f in fields if f.name.startswith("length of") and f.value]
    levels = {f.value for f in fields if f.kind == "level"}
    assert sorted(table) == sorted(f"level {level:+d}" for level in levels)
    assert {"level +1", "level -1"} <= set(table)


def test_values_of_buckets_without_a_norm_are_refused() -> None:
    x = np.random.default_rng(0).standard_normal(80).astype(np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "qsgd:s=4,bucket=8,form=sparse,norm=max"))
    data = frame.payload.data.copy()
    data[12:16] = 0  # the norm of bucket 3
    broken = replace(frame, payload=frame.payload._replace(data=data)).to_bytes()
    actual, _ = dissected(broken)
    fields = dissected(frame.to_bytes())[1]
    assert "norm is 0" in str(actual.error)
    assert actual.bad in [f.first for f in fields if f.element and f.element // 8 == 3]
    assert isinstance(decoding_error(broken, None), gcodec.Corrupt)


def test_levels_are_numbered_by_their_elements() -> None:
    """Buckets without a norm have no levels."""
    x = np.random.default_rng(0).standard_normal(80).astype(np.float32)
    x[24:40] = 0
    fields = dissected(gcodec.encode(x, "qsgd:s=4,bucket=8,form=dense"))[1]
    numbers = [f.number for f in fields if f.kind == "level"]
    assert set(numbers) == {*range(24), *range(40, 80)}
    norms = [f.meaning for f in fields if f.kind == "norm"]
    assert norms == [f"bucket {k}" + ", not coded" * (k in (3, 4)) for k in range(10)]


@pytest.mark.parametrize("block", [0, 3])
def test_pairs_name_both_codes(block: int) -> None:
    """Of an odd number of elements too, whose last code belongs to no block."""
    x = np.random.default_rng(0).standard_normal(33).astype(np.float32)
    frame = gcodec.encode(x, f"minifloat:code=pair,table=empirical,block={block}")
    check_dissection(frame)
    fields = dissected(frame)[1]
    pairs = [f for f in fields if f.name == "pair"]
    for pair in pairs:
        codes = [int(code) for code in pair.meaning.removeprefix("codes ").split(", ")]
        signs = [int(np.sign(code)) for code in codes]
        assert signs[: len(pair.decoded)] == np.sign(pair.decoded).tolist()
        if block and len(pair.decoded) > 1 and pair.element % 3 < 2:  # both in one block
            assert np.argsort(np.abs(codes)).tolist() == np.argsort(np.abs(pair.decoded)).tolist()
    table = [f.meaning for f in fields if f.name.startswith("length of") and f.value]
    assert set(table) == {pair.meaning for pair in pairs}


def test_tables_of_exponents_name_the_exponents() -> None:
    x = np.random.default_rng(0).standard_normal(211).astype(np.float32)
    fields = dissected(gcodec.encode(x, "minifloat:code=planes,table=empirical"))[1]
    table = [f.meaning for f in fields if f.name.startswith("length of") and f.value]
    exponents = {f.value for f in fields if f.name == "exponent"}
    assert sorted(table) == sorted(f"exponent {exponent}" for exponent in exponents)


def test_symbols_of_patches_state_their_differences() -> None:
    """A symbol with raw bits stands for a range of differences of either sign."""
    rng = np.random.default_rng(0)
    old = rng.uniform(1, 1.9, 900).astype(np.float16)
    steps = np.where(rng.random(900) < 0.3, rng.integers(-40, 41, 900), 0)
    new = (old.view(np.int16) + steps).astype(np.int16).view(np.float16)
    fields = dissected(gcodec.encode_patch(new, base=old))[1]
    texts = [f.meaning.removesuffix(" units") for f in fields if f.name == "symbol"]
    for text, step in zip(texts, steps[steps != 0].tolist(), strict=True):
        ranges = [[int(end) for end in part.split(" to ")] for part in text.split(" or ")]
        assert any(min(ends) <= step <= max(ends) for ends in ranges), (text, step)
        width = sum(max(ends) - min(ends) + 1 for ends in ranges)
        assert width <= max(1, abs(step) / 2)


def small_patch() -> bytes:
    """Return a patch with several classes, positions, and raw bits of differences."""
    rng = np.random.default_rng(0)
    old = (rng.standard_normal(3000) * np.exp2(rng.integers(-8, 9, 3000))).astype(np.float16)
    share = np.where(np.abs(old) < 0.1, 0.3, 0.02)
    steps = np.where(rng.random(3000) < share, rng.integers(-60, 61, 3000), 0)
    new = (old.view(np.int16) + steps).astype(np.int16).view(np.float16)
    return gcodec.encode_patch(new, base=old)


def test_positions_of_patches_name_their_classes() -> None:
    fields = dissected(small_patch())[1]
    changes = {f.name.split()[-1]: f.value for f in fields if f.name.startswith("changes of")}
    assert len(changes) > 1
    texts = [f.meaning.split(" of class ") for f in fields if " of class " in f.meaning]
    assert {k: sum(text[1] == k for text in texts) for k in changes} == changes


def test_samples_of_patches_count_all_bits() -> None:
    patch = small_patch()
    whole = dissected(patch)[0].totals
    for first in range(300, 8 * len(patch), 8 * len(patch) // 12):
        for most in (0, 3):
            assert dissected(patch, most=most, first=first)[0].totals == whole


def test_cut_patches_are_truncated() -> None:
    patch = small_patch()
    data = gcodec.Frame.from_bytes(patch).payload.tobytes()
    for size in range(0, len(data), 13):
        broken = repaired(patch, data[:size]).to_bytes()
        actual, _ = dissected(broken)
        assert type(actual.error) is type(decoding_error(broken, None))
        assert actual.bad <= 8 * (len(broken) - 4)


def with_bits(frame: bytes, first: int, nbits: int, value: int) -> bytes:
    """Return a frame with other bits in its payload, and right checksums."""
    head = len(gcodec.Frame.from_bytes(frame).header())
    whole, shift = int.from_bytes(frame, "big"), 8 * len(frame) - first - nbits
    whole ^= (whole >> shift & (1 << nbits) - 1 ^ value) << shift
    data = gcodec.Frame.from_bytes(frame).payload.data.size
    return repaired(frame, whole.to_bytes(len(frame), "big")[head : head + data]).to_bytes()


@pytest.mark.parametrize("k", [5, 12])
def test_negative_zeros_of_chunks_are_refused(k: int) -> None:
    x = np.append(np.random.default_rng(0).standard_normal(16), np.ones(16)).astype(np.float32)
    frame = gcodec.encode(x, f"dct8:chunk=16,k={k},values=sign7")
    fields = dissected(frame)[1]
    zero = next(f for f in fields if f.name == "magnitude" and not f.value)
    sign = next(f for f in fields if f.name == "sign" and f.number == zero.number)
    broken = with_bits(frame, sign.first, 1, 1)
    actual, _ = dissected(broken)
    assert isinstance(actual.error, gcodec.Corrupt) and "negative" in str(actual.error)
    assert str(actual.error) == str(decoding_error(broken, None))
    assert actual.bad == zero.first


def test_codewords_of_chunks_are_explained() -> None:
    """Each chunk states its code: fields of equal width, or a quotient and a remainder."""
    rng = np.random.default_rng(0)
    ranges = [(0, 1), (0, 7), (0, 24), (60, 128)]
    sizes = np.stack([rng.integers(*ends, 1024) for ends in ranges])
    sizes[:, 0] = 127
    steps = np.arange(1024)
    basis = np.cos(np.pi / 1024 * np.outer(steps, steps + 0.5))
    basis[0] /= 2**0.5
    frame = gcodec.encode((sizes @ basis).astype(np.float32), "dct8:chunk=1024,k=700,values=sign7")
    fields = dissected(frame)[1]
    heads = [f for f in fields if f.name == "least and code"]
    texts = [f.meaning.partition(":") for f in heads]
    assert [text[0] for text in texts] == [f"chunk {number}" for number in range(4)]
    codes = set()
    for number, (_, _, text) in enumerate(texts):
        own = [f for f in fields if f.name == "magnitude" and f.number // 700 == number]
        assert f"least {min(f.value for f in own)}," in text
        code = int(text.split()[-1]) if "Rice codewords of" in text else 7
        assert heads[number].value & 7 == code
        codes.add(code)
        for field in own:
            assert field.groups == ((field.nbits - code, code) if 0 < code < 7 else ())
    assert {0, 1, 7} < codes


def test_positions_within_chunks_must_rise() -> None:
    """They are refused wherever the description begins."""
    x = np.random.default_rng(0).standard_normal(320).astype(np.float32)
    frame = gcodec.encode(x, "dct8:chunk=32,k=4,index=fixed")
    positions = [f for f in dissected(frame)[1] if f.name == "position"]
    for number in (1, 7, 39):
        wrong, before = positions[number], positions[number - 1]
        broken = with_bits(frame, wrong.first, wrong.nbits, before.value)
        for options in ({}, {"first": wrong.first, "most": 2}):
            actual, _ = dissected(broken, **options)
            assert isinstance(actual.error, gcodec.Corrupt) and actual.bad == wrong.first
            assert str(actual.error) == str(decoding_error(broken, None))


def test_chunks_with_another_number_of_positions_are_refused() -> None:
    """Two positions of a long chunk are one of either half only by chance."""
    x = np.random.default_rng(0).standard_normal(320).astype(np.float32)
    frame = gcodec.Frame.from_bytes(
        gcodec.encode(x, "dct8:chunk=32,k=2,values=float32,index=rice")
    )
    gaps = [f for f in dissected(frame.to_bytes())[1] if f.name == "gap"]
    halves = [int(f.meaning.split()[1]) // 16 for f in gaps]
    wrong = next(f for f, half in zip(gaps, halves, strict=True) if half != f.number % 2)
    codec = gcodec.parse("dct8:chunk=16,k=1,values=float32,index=rice")
    broken = replace(frame, codec=codec, payload=frame.payload._replace(codec=codec)).to_bytes()
    actual, _ = dissected(broken)
    assert isinstance(actual.error, gcodec.Corrupt)
    assert str(actual.error) == str(decoding_error(broken, None))
    # The header is as long, so the fields of both frames have the same places.
    assert actual.bad in (wrong.first, wrong.first + wrong.nbits)


@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_bytes_of_exact_tensors_name_their_elements(zeros: float) -> None:
    """Where zeros are left out, no byte but the first of each element has a known place."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(9000) < zeros, 0, rng.standard_normal(9000)).astype(np.float32)
    fields = dissected(gcodec.encode(x, "lossless"))[1]
    counts = {f.meaning: f.value for f in fields if f.name == "elements"}
    groups = np.add.reduceat(x != 0, range(0, 9000, 4096)).tolist()
    expected = {f"elements of group {k} that are not zeros": c for k, c in enumerate(groups)}
    assert counts == (expected if zeros else {})
    for plane in range(4):
        elements = [f.element for f in fields if f.name == f"byte {plane}"]
        everyone = list(range(9000))
        assert elements == (everyone if not (zeros and plane) else [None] * sum(groups))


def test_differences_of_bytes_are_named() -> None:
    rows = np.random.default_rng(0).integers(0, 1 << 14, 256) + np.arange(64)[:, None]
    fields = dissected(gcodec.encode(rows.astype(np.int32), "lossless"))[1]
    methods = {f.name[-1]: f.meaning for f in fields if f.name.startswith("method of plane")}
    assert "differences" in methods["3"] and "constant" in methods["0"]
    assert {f.name for f in fields if f.name.endswith("byte 3")} == {"difference of byte 3"}
    assert {f.value for f in fields if f.name == "byte 0"} == {None}  # the head has the byte


def test_coefficients_of_filters() -> None:
    x = np.random.default_rng(3).normal(size=(4, 3, 2, 3)).astype(np.float32)
    frame = gcodec.encode(x, "ecsq:step=0.5,transform=dct")
    _, fields = dissected(frame)
    reported = [f for f in fields if "coefficient" in f.meaning]
    assert [f.element for f in reported] == [i // 6 * 6 for i in range(72)]
    assert [f.meaning.split(":")[0] for f in reported] == [
        f"coefficient {i % 6}" for i in range(72)
    ]
    points = np.float32([f.meaning.split(": ")[1].split(",")[0] for f in reported])
    read: Any = gcodec.Frame.from_bytes(frame)
    symbols = read.codec.unpack(read.payload, read.shape)._replace(transform="none")
    wanted = read.codec.dequantize(symbols, read.shape).reshape(-1)
    np.testing.assert_allclose(points, wanted, rtol=1e-5)
    # A tensor without taps has no coefficients, whatever its header states.
    vector = frame[:8] + bytes([2, 36, 1, 1]) + frame[12:]
    head = len(read.header())
    vector = vector[: head - 4] + crc32c(vector[: head - 4]) + vector[head:]
    actual, _ = dissected(vector)
    assert isinstance(actual.error, gcodec.Corrupt) and "transform" in str(actual.error)


@pytest.mark.parametrize(
    ("head", "bad"),
    [
        ([2, 1, 9, 1], 0),  # All dimensions of a matrix form its rows.
        ([1, 3, 9, 1], 1),  # There are residuals 1 and 2.
        *[([1, 1, MOST_EXPONENT + 2, 1], 2), ([1, 1, 9, 10], 3)],  # An exponent below 0.
        ([1, 1, 1 << 40], 2),  # The payload ends within an exponent.
    ],
)
def test_errors_in_heads_of_factors_are_placed(head: list[int], bad: int) -> None:
    x = np.random.default_rng(0).standard_normal((12, 10)).astype(np.float32)
    frame = gcodec.encode(x, "lowrank:rank=2,step=0.3")
    rest = gcodec.Frame.from_bytes(frame).payload.tobytes()[-200:]
    words = [f"{number:b}".rjust(2 * number.bit_length() - 1, "0") for number in head]
    bits = "".join(words).ljust(80, "0")
    data = bytes(int(bits[at : at + 8], 2) for at in range(0, 80, 8)) + rest
    broken = repaired(frame, data[:8] if len(head) < 4 else data)
    actual, _ = dissected(broken.to_bytes())
    assert isinstance(actual.error, gcodec.FormatError)
    assert actual.bad == 8 * len(broken.header()) + sum(map(len, words[:bad]))
    assert type(decoding_error(broken.to_bytes(), None)) is type(actual.error)


def test_payloads_of_factors_are_whole_bytes() -> None:
    x = np.random.default_rng(0).standard_normal((12, 10)).astype(np.float32)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "lowrank:rank=2,step=0.3"))
    data = np.append(frame.payload.data, np.uint8(0))
    payload = frame.payload._replace(data=data, nbits=8 * data.size - 3)
    broken = replace(frame, payload=payload)
    actual, _ = dissected(broken.to_bytes())
    assert "not whole bytes" in str(actual.error)
    assert actual.bad == 8 * len(broken.header())


def test_only_residuals_of_factors_have_elements() -> None:
    rng = np.random.default_rng(0)
    x = 9 * rng.standard_normal((60, 2)) @ rng.standard_normal((2, 70))
    x += rng.standard_normal(x.shape) * np.exp2(rng.normal(0, 2, 70))
    fields = dissected(gcodec.encode(x.astype(np.float32), "lowrank:nmse=0.005"))[1]
    levels_of = {
        name: [f.element for f in fields if f.name == f"level of the {name}"]
        for name in ("right factor", "left factor", "residual")
    }
    assert levels_of["residual"] == list(range(x.size))
    assert {*levels_of["right factor"], *levels_of["left factor"]} == {None}


def test_description_ends_at_the_first_bad_field() -> None:
    # The bits 0 110 · 1 0 contain a level 0 with a minus sign, of four elements with norm 5.
    frame = gcodec.encode(np.float32([3, 0, -4, 0]), "qsgd:s=4,form=dense", seed=1)
    read = gcodec.Frame.from_bytes(frame)
    head = len(read.header())
    broken = bytearray(frame)
    broken[head + 4] = 0b01101000
    broken[head + 6 :] = crc32c(bytes(broken[head : head + 6]))
    actual, fields = dissected(bytes(broken))
    assert actual.bad == 8 * (head + 4) + 4
    assert [f.name for f in fields[-3:]] == ["norm", "sign", "level"]
    assert "no valid word" in str(actual.error)
    # The same holds for the header, here with an unknown dtype.
    actual, fields = dissected(frame[:6] + b"\x09" + frame[7:])
    assert actual.bad == 8 * 6 and fields[-1].name == "codec"
    assert isinstance(actual.error, gcodec.Unsupported)


def test_unknown_codecs_are_undecoded() -> None:
    frame = bytearray(gcodec.encode(np.ones(3, np.float32), "sign"))
    frame[5] = 200
    head = len(frame) - 4 - 1
    frame[head - 4 : head] = crc32c(bytes(frame[: head - 4]))
    actual, fields = dissected(bytes(frame))
    assert isinstance(actual.error, gcodec.Unsupported) and actual.bad == 8 * 5
    gaps = [f for f in fields if f.kind == "undecoded"]
    assert [(f.name, f.nbits) for f in gaps] == [("scalars", 32), ("payload", 3)]
    assert all(f.meaning == UNDECODED for f in gaps)


def test_undescribed_bits_are_undecoded() -> None:
    class Symbols(NamedTuple):
        data: np.ndarray

    @register(id=251, name="half-described")
    class HalfDescribed(Codec):
        """Bytes of which `_describe` covers only the second half of the first."""

        def max_payload_nbits(self, n: int) -> int:
            return 8 * n

        def _quantize(self, values: np.ndarray, seed: int, prior: Any) -> Symbols:
            return Symbols(values.astype(np.uint8))

        def _dequantize(self, symbols: Symbols, out: np.ndarray) -> None:
            out[:] = symbols.data

        def _pack(self, symbols: Symbols) -> Payload:
            return Payload(self, {}, symbols.data, 8 * symbols.data.size)

        def _unpack(self, payload: Payload, n: int) -> Symbols:
            return Symbols(payload.data)

        def _describe(self, payload: Payload, n: int, walk: FieldWalker) -> Iterator[FieldSpan]:
            walk.at = 4
            yield walk.field("level", "half", 4)

    try:
        frame, fields = dissected(gcodec.encode(np.arange(3, dtype=np.float32), "half-described"))
    finally:
        registry._registry.pop("half-described")
    assert frame.error is None
    inside = [(f.kind, f.nbits) for f in fields if f.part == "payload"]
    assert inside == [("undecoded", 4), ("level", 4), ("undecoded", 16)]
    assert frame.totals["undecoded"] == 20


def test_seek_tables_are_described() -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    for spec in ("qsgd:form=dense", "qsgd:s=1,form=sparse", "minifloat:code=rans"):
        frame = gcodec.Frame.from_bytes(gcodec.encode(x, spec)).with_seek(5)
        table = frame.seek
        assert table is not None
        _, fields = dissected(frame.to_bytes())
        lengths = [f.value for f in fields if f.name == "length" and f.part == "header"]
        assert lengths == table.lengths.tolist()
        advances = [f.value for f in fields if f.name == "advance"]
        assert advances == ([] if table.advances is None else table.advances.tolist())
        states = [f.value for f in fields if f.name.startswith("state of lane")]
        if table.states is not None:
            assert states == table.states[1:].reshape(-1).tolist()


def test_huge_shapes_cost_nothing() -> None:
    x = np.zeros(8, np.float32)
    frame = bytearray(gcodec.encode(x, "qsgd:form=dense"))  # A norm of 0, and no codewords.
    huge = bytes(frame[:8]) + b"\x80\x80\x80\x80\x80\x80\x80\x80\x01" + bytes(frame[9:])
    head = len(huge) - 4 - 4
    sealed = huge[: head - 4] + crc32c(huge[: head - 4]) + huge[head:]
    actual, fields = dissected(sealed)
    assert isinstance(actual.error, gcodec.LimitExceeded)
    assert fields[-1].name == "header checksum" and actual.bad == 8 * head


def test_tags_are_checked_with_the_key() -> None:
    frame = gcodec.encode(np.ones(2, np.float32), "raw", name="é[red]", key=b"k")
    _, fields = dissected(frame)
    assert fields[-1].name == "tag" and "not checked" in fields[-1].meaning
    _, fields = dissected(frame, key=b"k")
    assert fields[-1].meaning.endswith(": correct")
    actual, fields = dissected(frame, key=b"other")
    assert actual.error is not None and actual.bad == 8 * (len(frame) - 16)
