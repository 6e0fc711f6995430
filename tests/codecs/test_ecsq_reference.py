"""ecsq and its context strings against oracles written from the specification."""

from __future__ import annotations

import itertools
import math
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies as gs
from bit_texts import bytes_of
from outcomes import agree, bits, outcome
from reference import ans, contexts, crc32c, ecsq, seek, universal
from reference import frame as reference_frame
from reference.contexts import HUFFMAN, RANS, RICE, ScaleList, String, Table
from sweeps import thinned

import gcodec
from gcodec.payload import Payload

ROOT = Path(__file__).parents[2]
ID = 13
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
MIDPOINTS = (128, 128, 128)
each_rounding = pytest.mark.parametrize("rounding", ecsq.ROUNDINGS)


@outcome
def oracle_outcome(
    text: str, n: int, step: float = 1.0, centroids: tuple[int, ...] = MIDPOINTS
) -> list[int] | type[gcodec.FormatError]:
    """Return the bits of the oracle's decoded values, or the matching type of error."""
    data = universal.to_bytes(text)
    return bits(ecsq.read(data, len(text), n, np.float32(step), centroids)[1])


def gcodec_outcome(
    text: str, n: int, step: float = 1.0, centroids: tuple[int, ...] = MIDPOINTS
) -> list[int] | type[gcodec.FormatError]:
    """Return the bits of gcodec's decoded values, or the type of its error; check `unpack` too."""
    codec: Any = gcodec.codecs()["ecsq"](step=float(np.float32(step)), transform="none")
    scalars = {f"centroid{k + 1}": c for k, c in enumerate(centroids)}
    scalars |= {"step": codec.step, "transform": "none"}
    payload = Payload(codec, scalars, bytes_of(text), len(text))
    try:
        values = codec.decode(payload, n)
    except gcodec.FormatError as error:
        with pytest.raises(gcodec.FormatError):
            codec.unpack(payload, n)
        return type(error)
    assert bits(codec.dequantize(codec.unpack(payload, n), n)) == bits(values)
    return bits(values)


def with_lists_of(encoded: String, template: String) -> String:
    """Return the string with its scale lists in the codes and frequencies of another string."""

    def recoded(scales: list[int], setting: ScaleList) -> ScaleList:
        model = setting.model if setting.code == RANS else ()
        return contexts.list_of(scales, setting.code, model)

    columns = (
        None if template.column_list is None else recoded(encoded.columns, template.column_list)
    )
    return encoded._replace(row_list=recoded(encoded.rows, template.row_list), column_list=columns)


def same_choices(
    x: np.ndarray,
    step: np.float32,
    string: String,
    rounding: str,
    seed: int,
    reuse_scales: bool = False,
    sizes: tuple[int, ...] | None = None,
) -> ecsq.Message:
    """Return the oracle's message with the encoder's free choices, as a string shows them."""
    scales = (string.rows, string.columns) if reuse_scales else None
    for coarse_scales in (False, True):
        shape = string.width, string.group, coarse_scales
        choice = ecsq.Choice(*shape, string.table, string.lanes, scales=scales)
        message = ecsq.encode(x, step, choice, rounding, seed, sizes)
        result = message.string
        assert result is not None
        if (result.rows, result.columns) == (string.rows, string.columns):
            break
    return message._replace(string=with_lists_of(result, string))


def check(
    x: np.ndarray, spec: str, rounding: str = "nearest", seed: int = 0, reuse_scales: bool = False
) -> String | None:
    """Compare gcodec's payload with the oracle's for the same free choices."""
    payload = gcodec.parse(spec).encode(x, seed=seed)
    scalars, data = dict(payload.scalars), payload.tobytes()
    step = np.float32(scalars.pop("step"))
    sizes = ecsq.taps(x.shape) if scalars.pop("transform") == "dct" else None
    centroids = tuple(scalars.values()) or MIDPOINTS
    string, values = ecsq.read(data, payload.nbits, x.size, step, centroids, sizes=sizes)
    assert bits(payload.codec.decode(payload, x.shape)) == bits(values)
    if string is None:
        assert not x.any() and step == 0 and centroids == MIDPOINTS
        return None
    message = same_choices(x.reshape(-1), step, string, rounding, seed, reuse_scales, sizes)
    assert message.data == data and message.centroids == centroids
    return string


# --- gcodec's payloads ---------------------------------------------------------------------------


def tensors() -> Iterator[np.ndarray]:
    """Return small tensors of many shapes, with different distributions of scales."""
    rng = np.random.default_rng(8)
    shapes: tuple[tuple[int, ...], ...] = (
        *((), (1,), (7,), (8,), (9,), (129,), (255,), (256,), (300,), (700,)),
        *((8, 8), (64, 8), (9, 80), (100, 10), (16, 3, 3, 3), (2, 4, 8, 9), (40, 17)),
    )
    for at, shape in enumerate(shapes):
        x = rng.standard_normal(shape)
        if at % 3 == 1 and len(shape) > 1:
            x *= np.exp(2 * rng.standard_normal(shape[-1]))
            x *= np.exp(rng.standard_normal((shape[0], *[1] * (len(shape) - 1))))
        elif at % 3 == 2:
            x = x**3
        yield np.asarray(x, np.float32)


@each_rounding
def test_messages(rounding: str) -> None:
    rng = np.random.default_rng(4)
    strings: list[String] = []
    for at, x in enumerate(tensors()):
        for step in (3 * rng.random() + 0.3, 2.0 ** (at % 4 - 3), 0.001):
            string = check(x, f"ecsq:step={np.float32(step)},rounding={rounding}", rounding, at)
            strings += [] if string is None else [string]
    assert {isinstance(string.table, Table) for string in strings} == {False, True}
    assert {string.group > 0 for string in strings} == {False, True}
    assert any(string.symbol_k > 8 for string in strings)


@each_rounding
def test_targets(rounding: str) -> None:
    """The step comes from rate control; the scales may belong to a step close by."""
    x = next(x for x in tensors() if x.shape == (9, 80))
    for target in ("nmse=0.02", "nmse=0.3", "bits=2"):
        assert (
            check(x, f"ecsq:{target},rounding={rounding}", rounding, reuse_scales=True) is not None
        )


@each_rounding
def test_odd_tensors(rounding: str) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((64, 8)).astype(np.float32)
    top = np.finfo(np.float32).max
    odd = [
        (np.zeros(9, np.float32), 1.0),
        (np.array([0.0, -0.0, 3.0], np.float32), 1.0),
        (np.full(300, 0.3, np.float32), 0.1),
        (np.array([0.7], np.float32), 0.1),
        (np.array([0.1, 0.2], np.float32), 100.0),  # All levels are 0.
        # As above, with so many rows that their list is rANS coded.
        (np.full((3000, 8), 0.1, np.float32), 100.0),
        (matrix * (np.arange(64) % 2)[:, None].astype(np.float32), 0.5),  # empty rows
        (matrix * (np.arange(8) % 2).astype(np.float32), 0.5),  # empty columns
        (matrix / 2**20 * np.float32(1e-38), 1e-45),  # Subnormal values and a subnormal step.
        (matrix * np.float32(1e-44), 7e-45),
        (matrix * np.float32(1e-30), 1e-31),
        (matrix * np.float32(2.0**-62), 2.0**-64),
        (np.clip(matrix, -1, 1) * top * np.float32(0.3), 1e37),
        (np.arange(-600, 600, dtype=np.float32) / 8, 1.0),  # Ties, and levels up to 75.
        (np.arange(-600, 600, dtype=np.float32) / 512, 0.25),
    ]
    for x, step in odd:
        check(x, f"ecsq:step={np.float32(step)},rounding={rounding}", rounding)
    assert gcodec.parse("ecsq:step=1").encode(np.zeros(0, np.float32)).nbits == 0


@each_rounding
def test_levels_far_above_their_class(rounding: str) -> None:
    """One large element in each row of zeros: levels of a low class that need escape codes."""
    x = np.zeros(1280, np.float32)
    x[::128] = np.linspace(-126, 140, 10)
    x[1::128] = np.linspace(120, 128.5, 10)
    for step in (1.0, 0.37, 1e-4):
        string = check(x, f"ecsq:step={step},rounding={rounding}", rounding, 3)
        assert string is not None and string.gap_k > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_frames(dtype: str) -> None:
    """Whole frames agree: parameters, scalars, conversions between dtypes."""
    rng = np.random.default_rng(4)
    x = gs.as_dtype((rng.standard_normal(72 * 4) * 3).astype(np.float32), dtype)
    x = x.reshape(8, 4, 3, 3)
    wide = gs.widened(x).reshape(-1)
    for rounding, transform in itertools.product(ecsq.ROUNDINGS, ecsq.TRANSFORMS):
        spec = f"ecsq:step=0.3,rounding={rounding},transform={transform}"
        encoded = gcodec.encode(x, spec, seed=9)
        frame, step = gcodec.Frame.from_bytes(encoded), np.float32(0.3)
        centroids = tuple(v for k, v in frame.payload.scalars.items() if k[:8] == "centroid")
        data, nbits = frame.payload.tobytes(), frame.payload.nbits
        sizes = (3, 3) if transform == "dct" else None
        arguments = data, nbits, x.size, step, centroids or MIDPOINTS
        string, values = ecsq.read(*arguments, sizes=sizes)
        assert string is not None
        message = same_choices(wide, step, string, rounding, 9, sizes=sizes)
        fields = ecsq.parameters(rounding), ecsq.scalars(message), message.data
        nbits = 8 * len(message.data)
        assert encoded == reference_frame.build(ID, DTYPES[dtype], x.shape, *fields, nbits)
        decoded = gcodec.decode(encoded)
        assert decoded.shape == x.shape and decoded.dtype == x.dtype
        assert gs.same_bits(decoded.reshape(-1), gs.narrowed(values, dtype))


# --- payloads of other encoders ------------------------------------------------------------------


def random_frequencies(rng: random.Random) -> list[int]:
    """Return frequencies of a class with any largest magnitude."""
    t = rng.choice([0, 1, 2, 5, 40, 126])
    frequencies = [rng.choice([1, 2, 3, 7, 15]) for _ in range(t)]
    return [rng.randrange(1, 4096 - 2 * sum(frequencies)), *frequencies]


def random_scale_list(rng: random.Random, scales: list[int]) -> ScaleList:
    """Return a random valid coding of a list of scales."""
    setting = contexts.list_of(scales, rng.choice([RICE, HUFFMAN, RANS]))
    if setting.code == RICE:
        setting = setting._replace(center=rng.randrange(128), k=rng.randrange(8))
    if rng.random() < 0.5:  # Neither the largest base nor a shift.
        least = max(setting.least - rng.randrange(3), 1)
        setting = setting._replace(shift=0, least=min(least, setting.least))
        numbers = [scale - setting.least + 1 if scale else 0 for scale in scales]
        counts = [numbers.count(u) for u in range(max(numbers) + 1)]
        if setting.code == RANS:
            setting = setting._replace(model=ans.frequencies_of(counts))
        elif setting.code == HUFFMAN:
            setting = setting._replace(model=contexts.canonical.lengths_of(counts))
    return setting


def random_string(rng: random.Random, n: int) -> String:
    """Return a string that gcodec's encoder would not write."""
    width = rng.randint(min(n, 8), n)
    group = rng.randint(1, width) if n >= 8 * width and rng.random() < 0.8 else 0
    stride = rng.choice([1, 1, 2, 4, 8])
    few = [0, *range(1 + rng.randrange(9), 128, stride)]
    rows = [rng.choice(few) for _ in range(-(-n // width))]
    columns = [rng.choice(few) for _ in range(-(-width // group))] if group else []
    symbols = [rng.choice([0, 0, 0, 2, 3, 4, 9, 252, 253, 254, 255, 7654321]) for _ in range(n)]
    table: int | Table = rng.randrange(len(contexts.static_tables()))
    if rng.random() < 0.5:
        first = rng.randrange(64)
        table = Table(
            first, [random_frequencies(rng) for _ in range(rng.randint(1, min(64 - first, 9)))]
        )
    string = String(
        symbols,
        width,
        group,
        rows,
        columns,
        random_scale_list(rng, rows),
        random_scale_list(rng, columns) if group else None,
        table,
        rng.choice(contexts.LANES),
        0,
        rng.randint(18, 31),
    )
    places = [*contexts.outliers_of(symbols, contexts.models_each(string))]
    return string._replace(gap_k=rng.randrange(32)) if places else string._replace(symbol_k=0)


def test_strings_of_other_encoders() -> None:
    rng = random.Random(5)
    for n in (1, 2, 5, 8, 9, 30, 64, 100, 257, 400, 400):
        string = random_string(rng, n)
        text = contexts.write(string)
        assert contexts.read(universal.Bits(text), n) == string
        step, centroids = 0.3, (0, 255, rng.randrange(256))
        wanted = oracle_outcome(text, n, step, centroids)
        assert not isinstance(wanted, type)
        assert gcodec_outcome(text, n, step, centroids) == wanted


def test_seek_tables() -> None:
    """Seek tables must match the string, and exist for 32 lanes and coded elements only."""
    rng = random.Random(2)
    n, step = 200, np.float32(0.5)

    def built(message: ecsq.Message, table: seek.Table | None) -> bytes:
        fields = ecsq.parameters("stochastic"), ecsq.scalars(message), message.data
        section = None if table is None else seek.section(table)
        return reference_frame.build(ID, 1, (n,), *fields, 8 * len(message.data), seek=section)

    for lanes in contexts.LANES:
        string = random_string(rng, n)._replace(lanes=lanes)
        message = ecsq.Message("stochastic", step, MIDPOINTS, string)
        models = contexts.models_each(string)
        lengths, states = ans.blocks_each(contexts.places_each(string), models, 5)
        table = seek.Table(5, lengths, None, states)
        wrong = [table]
        if lanes == ans.LANES:
            plain, whole = built(message, None), built(message, table)
            assert gcodec.Frame.from_bytes(plain).with_seek(5).to_bytes() == whole
            assert gcodec.decode(whole).tolist() == gcodec.decode(plain).tolist()
            moved = [lengths[0] - 16, lengths[1] + 16, *lengths[2:]]
            raised = [[state + 1 for state in states[0]], *states[1:]]
            wrong = [table._replace(lengths=moved), table._replace(states=raised)]
        for other in wrong:
            with pytest.raises(gcodec.Corrupt):
                gcodec.decode(built(message, other))
    nothing = ecsq.Message("stochastic", np.float32(0), MIDPOINTS, None)
    with pytest.raises(gcodec.Corrupt):
        gcodec.decode(built(nothing, seek.Table(5, [], None, [])))


# --- hostile bytes ------------------------------------------------------------------------------


def damaged(rng: random.Random, text: str, length: int) -> str:
    """Both agree on changed bytes of two strings: with scales of columns, with an own table."""
    for _ in range(rng.randrange(1, 3)):
        at = int(length * rng.random() ** 1.5)
        text = text[:at] + str(1 - int(text[at])) + text[at + 1 :]
    text = text[: len(text) - rng.choice([0, 0, 0, 1, 8, 40])]
    return text + rng.choice(["", "", "", "0" * 8, "1" * 16])


def test_damaged_payloads() -> None:
    rng, refused, n = random.Random(7), 0, 70
    strings = [contexts.write(random_string(rng, n)) for _ in range(12)]
    for _ in range(300):
        good = rng.choice(strings)
        text = damaged(rng, good, len(good))
        wanted = oracle_outcome(text, n, 0.25)
        assert agree(gcodec_outcome(text, n, 0.25), wanted), text
        refused += isinstance(wanted, type)
    assert 100 < refused < 300


def test_other_values_of_each_byte() -> None:
    """Both agree on changed bytes of two strings, with column scales and with an own table."""
    rng, valid_count = random.Random(3), 0
    zero = ScaleList(RICE, 0, 20, 1, 0), [20] * 8
    for columns in (zero, (None, [])):
        setting, scales = columns
        table: int | Table = 3 if scales else Table(19, [[9, 2]])
        symbols = [rng.choice([0, 0, 2, 3, 5]) for _ in range(64)]
        string = String(
            symbols, 8, 1 if scales else 0, [40] * 8, scales, zero[0], setting, table, 2, 3, 1
        )
        data = universal.to_bytes(contexts.write(string))
        for at in thinned(range(len(data) - 8), 2):
            for value in {0, 1, 255, data[at] ^ 1, data[at] ^ 128, 37 * at % 256}:
                text = universal.to_text(data[:at] + bytes([value]) + data[at + 1 :])
                wanted = oracle_outcome(text, 64)
                assert agree(gcodec_outcome(text, 64), wanted), (at, value)
                valid_count += not isinstance(wanted, type)
    assert valid_count > 20


def test_truncation_and_extension() -> None:
    """Missing bytes raise `Truncated`, and extra bytes `Corrupt`."""
    rng = random.Random(6)
    for n in (1, 30, 100):
        text = contexts.write(random_string(rng, n))
        for length in {0, 8, *range(24, len(text), 40), len(text) - 8}:
            assert gcodec_outcome(text[:length], n) is gcodec.Truncated, (n, length)
        assert gcodec_outcome(text + "0" * 8, n) is gcodec.Corrupt
        assert gcodec_outcome(text + "0" * 800, n) is gcodec.Corrupt


def test_impossible_strings_are_refused() -> None:
    """Each string has one fault, so that the type of error is certain."""
    symbols = [0, 0, 2, 3, 300, 0, 5, 0] * 8
    lists = ScaleList(RICE, 0, 40, 1, 0), ScaleList(RICE, 0, 64, 1, 0)
    good = String(symbols, 8, 1, [40] * 8, [64] * 8, *lists, 3, 2, 3, 8)
    text = contexts.write(good)
    assert gcodec_outcome(text, 64) == oracle_outcome(text, 64) != gcodec.Corrupt
    head = universal.to_bytes(text)
    changes = [
        head[:0] + b"\x0c" + head[1:],  # An unknown table.
        head[:0] + b"\xfe" + head[1:],
        *(head[:1] + bytes([lanes]) + head[2:] for lanes in (0, 1, 4, 16, 33, 64, 130, 255)),
        *(head[:2] + bytes([width]) + head[3:] for width in (0, 7, 9, 65)),
        head[:2] + b"\x88\x00" + head[3:],  # An overlong LEB128 number.
        head[:3] + b"\x09" + head[4:],  # A group wider than a row.
    ]
    for data in changes:
        assert gcodec_outcome(universal.to_text(data), 64) is gcodec.Corrupt, data.hex()
        assert oracle_outcome(universal.to_text(data), 64) is gcodec.Corrupt, data.hex()
    at = 8 * 5  # The bit where the scale lists begin.
    for code in ("11", "1011"):  # The unknown code 3, and a shift that lifts scales above 127.
        moved = text[:at] + code + text[at + len(code) :]
        assert isinstance(gcodec_outcome(moved, 64), type)
        assert isinstance(oracle_outcome(moved, 64), type)


@pytest.mark.parametrize(
    ("lines", "first", "last"),
    [
        ([[4096]], 5, 5),
        ([[4095]], 5, 5),
        ([[4094, 1]], 5, 5),
        ([[4093, 1]], 5, 5),
        ([[0]], 5, 5),
        ([[1, 0]], 5, 5),
        ([[1] * 127], 63, 63),
        ([[1] * 128], 63, 63),
        ([[1]], 6, 5),
    ],
)
def test_invalid_tables_are_refused(lines: list[list[int]], first: int, last: int) -> None:
    """A hand-written table follows a list of one row, and precedes the states of zero symbols."""
    text = universal.to_text(bytes([255, 2, 2, 0, 0])) + "00" + "00" + universal.fixed(1, 7)
    text += universal.fixed(1, 7) + "000" + "1"
    text += universal.fixed(first, 6) + universal.fixed(last, 6)
    for each in lines:
        text += universal.fixed(len(each) - 1, 7) + "".join(ans.number(f) for f in each)
    text += "0" * (-len(text) % 8)
    wanted: Any = gcodec.Corrupt
    if lines in ([[4095]], [[4093, 1]], [[1] * 127]) and first <= last:
        model = contexts.model_of(lines[0])
        text += universal.to_text(ans.encode_each([0, 0], [model, model], 2))
        wanted = [0, 0]
    else:
        text += universal.to_text(bytes([0, 0, 1, 0] * 2))
    assert oracle_outcome(text, 2) == wanted
    assert gcodec_outcome(text, 2) == wanted


def test_invalid_outliers_are_refused() -> None:
    def text(gaps: list[int], symbols: list[int], coded: list[int], k: int = 0) -> str:
        head = universal.to_text(bytes([255, 2, 4, 0, len(gaps)])) + "00" + "00"
        out = head + universal.fixed(1, 7) + universal.fixed(1, 7) + "000" + "1"
        out += universal.fixed(0, 6) * 2 + universal.fixed(0, 7) + ans.number(1000)
        for numbers in (gaps, symbols):
            out += universal.fixed(k, 5) + "".join(universal.rice(v, k) for v in numbers)
        out += "0" * (-len(out) % 8)
        return out + universal.to_text(ans.encode_each(coded, [[3096, 1000]] * 4, 2))

    valid = {
        text([1], [2], [0, 1, 0, 0]): [0, 1, 0, 0],
        text([0, 2], [3, 0], [1, 0, 0, 1]): [-1, 0, 0, 0],
        text([1, 0], [255, 254], [0, 1, 1, 0]): [0, -127, 127, 0],
        text([3], [2**40 - 1], [0, 0, 0, 1], 31): [0, 0, 0, 1 - 2**39],
    }
    for one, values in valid.items():
        assert gcodec_outcome(one, 4) == oracle_outcome(one, 4) == bits(values)
    for one in (
        text([1], [1], [0, 1, 0, 0]),
        text([1], [2], [0, 0, 1, 0]),
        text([1], [2], [0, 1, 1, 0]),
        text([1], [2], [0, 0, 0, 0]),
        text([0, 0], [2, 2], [1, 0, 0, 0]),
        text([4], [2], [0, 1, 0, 0]),
        text([0, 3], [2, 2], [1, 0, 0, 0]),
        text([3], [2**40], [0, 0, 0, 1], 31),
        text([2**40], [2], [0, 0, 0, 1], 31),
    ):
        assert gcodec_outcome(one, 4) is oracle_outcome(one, 4) is gcodec.Corrupt


def test_values_beyond_float32() -> None:
    string = random_string(random.Random(1), 64)._replace(symbols=[0, 2, 3, 4] * 16)
    string = contexts.write_string(
        string.symbols, 8, 0, ([40] * 8, []), Table(40, [[1, 900, 900]]), 2
    )
    text = contexts.write(string)
    top = float(np.finfo(np.float32).max)
    for step in (top / 2, np.nextafter(np.float32(top / 2), np.float32(top)), top, 1e-45, 1e-40):
        for centroids in ((255, 128, 0), (128, 128, 128), (0, 129, 0)):
            wanted = oracle_outcome(text, 64, float(step), centroids)
            assert gcodec_outcome(text, 64, float(step), centroids) == wanted
    assert oracle_outcome(text, 64, top) is gcodec.Corrupt


def test_zero_tensors_take_no_bits() -> None:
    for n, step in ((0, 1.0), (4, 0.0), (4, -0.0)):
        assert gcodec_outcome("", n, step) == oracle_outcome("", n, step) == [0] * n
        for text in ("0", "1", "0" * 8):
            assert gcodec_outcome(text, n, step) is oracle_outcome(text, n, step) is gcodec.Corrupt
    assert gcodec_outcome("", 4) is oracle_outcome("", 4) is gcodec.Truncated


VALID_TEXT = contexts.write(contexts.write_string([0, 2, 3, 4], 4, 0, ([41], []), 5, 2))
STEP_ONE = bytes.fromhex("0000803f")  # The step 1.0.


@pytest.mark.parametrize(
    ("params", "scalars", "error"),
    [
        (b"\2", STEP_ONE, gcodec.Unsupported),
        (b"", STEP_ONE, gcodec.Corrupt),  # The centroids are missing.
        (b"", STEP_ONE + b"\1\1", gcodec.Corrupt),
        (b"", STEP_ONE + b"\x80\2\1\1", gcodec.Corrupt),  # 256
        (b"", STEP_ONE + b"\1\1\1\1", gcodec.Corrupt),  # A vector has no transform.
        (b"", STEP_ONE + b"\1\1\1\2", gcodec.Unsupported),
        (b"", STEP_ONE + b"\1\1\1\0\0", gcodec.Unsupported),
        (b"\1", STEP_ONE + b"\1", gcodec.Corrupt),
        (b"\1", STEP_ONE + b"\2", gcodec.Unsupported),
        (b"\1", STEP_ONE + b"\0\0", gcodec.Unsupported),
        (b"\1", bytes.fromhex("000080bf"), gcodec.Corrupt),
        (b"\1", bytes.fromhex("0000807f"), gcodec.Corrupt),
        (b"\1", bytes.fromhex("0000c07f"), gcodec.Corrupt),
        (b"\1", STEP_ONE[:3], gcodec.Corrupt),
        (b"\1", bytes(4), gcodec.Corrupt),  # A step of zero allows no bits.
        (b"\1", bytes.fromhex("00000080"), gcodec.Corrupt),
    ],
)
def test_wrong_fields(params: bytes, scalars: bytes, error: type[gcodec.FormatError]) -> None:
    data = universal.to_bytes(VALID_TEXT)
    centroids = b"\x80\1" * 3
    for valid_fields in (
        *((b"\1", STEP_ONE), (b"\0", STEP_ONE + centroids), (b"", STEP_ONE + centroids)),
        *((b"\1", STEP_ONE + b"\0"), (b"", STEP_ONE + centroids + b"\0")),
    ):
        frame = reference_frame.build(ID, 1, (4,), *valid_fields, data, len(VALID_TEXT))
        assert gcodec.decode(frame).tolist() == [0, 1, -1, 2]
    frame = reference_frame.build(ID, 1, (4,), params, scalars, data, len(VALID_TEXT))
    with pytest.raises(error):
        gcodec.decode(frame)


def test_absurd_numbers_cost_nothing() -> None:
    """2^40 announced elements, rows, columns or outliers in two hundred bytes allocate nothing."""
    rng = random.Random(9)
    n = 2**40
    leb = universal.to_text
    frames = []
    for width in (8, 2**20, n // 8, n):
        for group in (0, 1, 8):
            for count in (0, 1, 2**62):
                head = bytes([rng.choice([0, 255]), 32])
                for number in (width, group, count):
                    head += contexts.leb128.encode(number)
                data = universal.to_bytes(leb(head)) + bytes([rng.choice([0, 255, 61])] * 200)
                frames.append(
                    reference_frame.build(ID, 1, (n,), b"\1", STEP_ONE, data, 8 * len(data))
                )
    limits = gcodec.Limits(max_elements=n, max_bytes=8 * n)
    tracemalloc.start()
    for frame in frames:
        with pytest.raises((gcodec.Truncated, gcodec.Corrupt)):
            gcodec.decode(frame, limits=limits)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


# --- the file of static tables -------------------------------------------------------------------


def test_the_specification_names_the_file() -> None:
    page = (ROOT / "docs" / "wire-format.md").read_text("utf-8")
    checksum = crc32c.crc32c(contexts.FILE.read_bytes())
    assert f"with the CRC-32C {checksum:#010x}" in page


def test_static_tables() -> None:
    for table in contexts.static_tables():
        for each in table:
            model = contexts.model_of(each)
            assert sum(model) == 4096 and min(model) >= 1
            assert math.log2(len(model) // 2) <= 7
