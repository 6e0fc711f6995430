"""dct8 against an oracle written from the specification: bytes, values, errors."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import strategies as gs
from bit_texts import text_of
from outcomes import agree, bits, outcome
from reference import cosines, universal
from reference import dct8 as reference
from reference import frame as reference_frame
from reference.dct8 import Chunk, Setting

import gcodec

DCT8 = 11
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
ONE_BITS = 0x3F800000

Shape = tuple[int, ...]


@functools.cache
def codec_of(setting: Setting) -> gcodec.Codec:
    return gcodec.codecs()["dct8"](**setting._asdict())


@outcome
def gcodec_outcome(setting: Setting, text: str, shape: Shape) -> Any:
    """Return the bits of gcodec's decoded values, or the type of its error."""
    x = codec_of(setting).decode(universal.to_bytes(text), shape, nbits=len(text))
    assert x.shape == shape
    return bits(x)


@outcome
def oracle_outcome(setting: Setting, text: str, shape: Shape) -> Any:
    """Return the bits of the oracle's decoded values, or the matching type of error."""
    return bits(reference.decode(text, setting, shape))


SETTINGS = [  # Shapes whose chunks are whole, padded, or smaller than the setting asks for.
    (Setting((2,), 1), (5,)),
    (Setting((1,), 3), (2, 3)),
    (Setting((16,), 7), (3, 11)),
    (Setting((5, 7), 8), (80,)),
    (Setting((8, 8), 64), (2, 9, 8)),
    (Setting((3, 4, 5), 9), (7, 10)),
    (Setting((4, 1, 9), 3), (100,)),
    (Setting((6,), 5, "tiles"), (4, 5)),
    (Setting((300,), 12, "tiles"), (70,)),
    (Setting((3, 5), 40, "tiles"), (31,)),
    (Setting((80, 90), 4, "tiles"), (4099,)),
    (Setting((3, 5), 2, "tiles"), (7, 2, 6)),
    (Setting((9, 2), 20, "tiles"), (4, 9)),
    (Setting((4, 4), 1, "tiles"), ()),
    (Setting((270, 2), 10), (1000,)),
    (Setting((64, 64), 32), (3, 0)),
]


def scales_of(rng: random.Random, setting: Setting, exponents: tuple[int, int]) -> tuple[int, ...]:
    """Return scales of a chunk; one chunk of five is zero."""
    if setting.values == "float32":
        return ()
    if rng.random() < 0.2:
        return (0,) if setting.values == "sign7" else (0, 0)
    sample = [rng.randrange(*exponents) << 23 | rng.randrange(1 << 23) for _ in range(2)]
    if setting.values == "sign7":
        return (max(sample[0] >> 15, 1) << 15,)
    return sample[0] * rng.choice([0, 1, 1]), sample[1] | rng.randrange(2) << 31


def levels_of(
    rng: random.Random, setting: Setting, count: int, exponents: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return levels of a chunk: near each other, far apart, or all equal."""
    if not count:
        return []
    if setting.values == "float32":
        signs = [rng.randrange(2) << 31 for _ in range(count)]
        sizes = [rng.randrange(*exponents) << 23 | rng.randrange(1 << 23) for _ in signs]
        return [
            (0, sign | rng.choice((size, size, 0)))
            for sign, size in zip(signs, sizes, strict=True)
        ]
    if setting.values == "affine8":
        if count <= 2:
            return [(0, 255 * rng.randrange(count)) for _ in range(count)]
        return [(0, rng.randrange(256)) for _ in range(count)]
    if count == 1:
        return [(rng.randrange(2), 127)]
    low, high = rng.choice([(0, 127), (0, 3), (50, 70), (127, 127), (0, 0), (90, 127)])
    sample = [rng.randint(low, high) for _ in range(count)]
    if rng.random() < 0.5:
        sample[rng.randrange(count)] = 127
    return [(rng.randrange(2) if m else 0, m) for m in sample]


def random_payload(
    rng: random.Random, setting: Setting, shape: Shape, exponents: tuple[int, int] = (100, 140)
) -> str:
    """Return a payload of the oracle with random scales, positions and levels."""
    grid = reference.grid_of(setting, shape)
    chunks = []
    for _ in range(grid.count):
        scales = scales_of(rng, setting, exponents)
        count = min(setting.k, grid.size) if reference.is_coded(setting, scales) else 0
        places = sorted(rng.sample(range(grid.size), count))
        levels = levels_of(rng, setting, count, exponents)
        chunks.append(Chunk(scales, places, levels))
    return reference.text_of(setting, chunks, grid.size)


def variants() -> Iterator[tuple[Setting, Shape]]:
    """Yield each setting and shape with all kinds of values and of index."""
    for (setting, shape), values, index in itertools.product(
        SETTINGS, reference.VALUES, reference.INDEXES
    ):
        yield setting._replace(values=values, index=index), shape


@pytest.mark.parametrize("exponents", [(100, 140), (0, 20), (252, 255)], ids=str)
def test_messages_of_the_oracle(exponents: tuple[int, int]) -> None:
    """Values agree bit for bit, also where sums of large scales overflow binary32."""
    rng = random.Random(exponents[0])
    outcomes = set()
    for setting, shape in variants():
        text = random_payload(rng, setting, shape, exponents)
        wanted = oracle_outcome(setting, text, shape)
        assert gcodec_outcome(setting, text, shape) == wanted, (setting, shape)
        outcomes.add(isinstance(wanted, list))
    assert outcomes == ({True} if exponents[1] < 200 else {True, False})


def check_levels(setting: Setting, chunk: Chunk, y: Sequence[float]) -> None:
    """Check that the largest coefficients were selected, each rounded to half a step."""
    top = max(map(abs, y))
    if not chunk.places:
        assert top == 0
        return
    least = min(abs(y[p]) for p in chunk.places)
    assert all(abs(y[p]) <= least + 1e-5 * top for p in {*range(len(y))} - {*chunk.places})
    scale = float(reference.float_of(chunk.scales[0])) if chunk.scales else 0
    if setting.values == "float32":
        step = 0
    elif setting.values == "sign7":
        assert abs(scale - top) <= (2**-9 + 1e-5) * top
        step = scale / 127
    else:
        step = 0 if len(chunk.places) <= 2 else scale
    for p, level in zip(chunk.places, chunk.levels, strict=True):
        value = float(reference.coefficient(setting, chunk.scales, level))
        assert abs(value - y[p]) <= (2**-8 * top if len(y) == 1 else step / 2) + 1e-5 * top


def test_messages_of_gcodec() -> None:
    """The oracle reads gcodec's payloads, writes the same bytes, and has the same coefficients."""
    rng = np.random.default_rng(3)
    for setting, shape in variants():
        x = (rng.standard_normal(shape) * 3).astype(np.float32)
        flat = x.reshape(-1)
        flat[: x.size // 3] = 0
        payload = codec_of(setting).encode(x)
        assert payload.codec == codec_of(setting)
        text = text_of(payload.tobytes(), payload.nbits)
        grid = reference.grid_of(setting, shape)
        chunks = reference.read(text, setting, grid)
        values = reference.decoded(setting, grid, chunks)
        assert bits(payload.codec.decode(payload, shape)) == bits(values)
        oracle_text = reference.text_of(setting, chunks, grid.size)
        if setting.index == "fixed":
            assert oracle_text == text
        else:  # The parameters of Rice codes are the encoder's choice.
            assert len(text) <= len(oracle_text)
        for j, chunk in enumerate(chunks[:4] if grid.size <= 64 else ()):
            actual = reference.elements(grid, setting.layout, j)
            part = [0.0 if i is None else float(flat[i]) for i in actual]
            y = reference.transform([Fraction(v) for v in part], grid.chunk)
            check_levels(setting, chunk, [float(v) for v in y])


@pytest.mark.parametrize("values", reference.VALUES)
def test_auto_takes_the_shorter(values: str) -> None:
    chosen = set()
    rng = np.random.default_rng(5)
    for n, k, size in itertools.product((3, 33, 200), (1, 3, 8), (8, 16, 33)):
        x = rng.standard_normal(n).astype(np.float32) * np.exp(-np.arange(n, dtype=np.float32) / 9)
        setting = Setting((size,), k, values=values)
        auto = gcodec.parse(f"dct8:chunk={size},k={k},values={values},index=auto").encode(x)
        candidates = [
            codec_of(setting._replace(index=index)).encode(x) for index in reference.INDEXES
        ]
        shorter = min(candidates, key=lambda payload: payload.nbits)
        assert auto.codec == shorter.codec and auto.tobytes() == shorter.tobytes()
        chosen.add(shorter.codec.index)  # type: ignore[attr-defined]
    assert chosen == {*reference.INDEXES}


# --- the basis -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "rows"),
    [
        *((n, range(n)) for n in (1, 2, 3, 4, 5, 7, 8, 12, 31, 32, 48, 64)),
        *((n, (0, 1, 2, 3, n // 3, n // 2, n - 2, n - 1)) for n in (100, 255, 256, 257, 320)),
        (1000, (0, 1, 500, 777)),
        (4096, (0, 1, 2048, 3333)),
    ],
    ids=str,
)
def test_basis(n: int, rows: Sequence[int]) -> None:
    """A single coefficient of 1 decodes to a row of the basis, along each of three axes."""
    chunks = [Chunk((ONE_BITS,), [u], [(0, 127)]) for u in rows]
    for chunk in ((n,), (n, 1), (n, 1, 1)) if n < 300 else ((n,),):
        setting = Setting(chunk, 1)
        text = reference.text_of(setting, chunks, n)
        expected = np.concatenate([cosines.row(u, n) for u in rows])
        assert gcodec_outcome(setting, text, (n * len(rows),)) == bits(expected)


def test_basis_is_orthonormal() -> None:
    """The rows of the oracle's basis are orthonormal up to rounding."""
    for n in (1, 2, 3, 16, 61, 300):
        rows = [*range(min(n, 16))]
        basis = np.array([cosines.row(u, n) for u in rows], np.float64)
        assert np.abs(basis @ basis.T - np.eye(len(rows))).max() < 1e-6


# --- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_frames(dtype: str) -> None:
    """Whole frames agree: parameters, shapes, conversions between dtypes."""
    rng = random.Random(6)
    for setting, shape in variants():
        text = random_payload(rng, setting, shape, (120, 132))
        frame = reference_frame.build(
            DCT8,
            DTYPES[dtype],
            shape,
            reference.parameters(setting),
            b"",
            universal.to_bytes(text),
            len(text),
        )
        values = reference.decode(text, setting, shape)
        x = gcodec.decode(frame)
        assert x.shape == shape and x.dtype == gs.as_dtype(np.zeros(1, np.float32), dtype).dtype
        assert gs.same_bits(x.reshape(-1), gs.narrowed(values, dtype))
        assert gcodec.Frame.from_bytes(frame).to_bytes() == frame


def framed(params: str, text: str) -> bytes:
    """Return a frame of 16 elements with these parameters, in hex, and this payload."""
    data = universal.to_bytes(text)
    return reference_frame.build(DCT8, 1, (16,), bytes.fromhex(params), b"", data, len(text))


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ("", gcodec.Corrupt),  # The parameter index has no default.
        ("0204040100", gcodec.Corrupt),
        ("020404010000", gcodec.Corrupt),
        ("02040401000002", gcodec.Unsupported),
        ("02040401000300", gcodec.Unsupported),
        ("02040401020000", gcodec.Unsupported),
        ("0204040100000000", gcodec.Unsupported),
        ("02040400000000", gcodec.Corrupt),  # k = 0
        ("020404818004000000", gcodec.Corrupt),  # k = 65537
        ("00" + "01000000", gcodec.Corrupt),  # A chunk without sizes.
        ("040202020201000000", gcodec.Corrupt),
        ("02100001000000", gcodec.Corrupt),
        ("01812001000000", gcodec.Corrupt),  # 4097
        ("0280028102" + "01000000", gcodec.Corrupt),  # 256 x 257
        ("0302020401010000", gcodec.Corrupt),  # Tiles have at most two sizes.
        ("02840004" + "01000000", gcodec.Corrupt),  # Not the shortest LEB128 code.
        ("0204", gcodec.Corrupt),
    ],
)
def test_wrong_parameters(params: str, error: type[gcodec.FormatError]) -> None:
    text = universal.fixed(ONE_BITS >> 15, 16) + "0" + "0000"
    for valid_parameters in ("02040401000000", "011001000000", "030402020100" + "0000"):
        decoded = gcodec.decode(framed(valid_parameters, text))
        assert decoded.tolist() == pytest.approx([0.25] * 16)
    with pytest.raises(error):
        gcodec.decode(framed(params, text))


# --- hostile bytes -------------------------------------------------------------------------------


def damaged(rng: random.Random, text: str) -> str:
    """Return the text with a few bits flipped, cut off, or appended."""
    for _ in range(rng.randrange(4) if text else 0):
        at = rng.randrange(len(text))
        text = text[:at] + str(1 - int(text[at])) + text[at + 1 :]
    text = text[: max(0, len(text) - rng.choice([0, 0, 0, 1, 9, 40]))]
    return text + rng.choice(["", "", "", "0", "1", "0" * 70])


def test_damage() -> None:
    rng = random.Random(12)
    outcomes: dict[Any, int] = {}
    for setting, shape in variants():
        rounds = 12 if math.prod(shape) <= 100 else 3
        for _ in range(rounds):
            text = damaged(rng, random_payload(rng, setting, shape))
            wanted = oracle_outcome(setting, text, shape)
            assert agree(gcodec_outcome(setting, text, shape), wanted), (setting, shape, text)
            kind = wanted if isinstance(wanted, type) else list
            outcomes[kind] = outcomes.get(kind, 0) + 1
    assert min(outcomes.values()) > 50 and len(outcomes) == 3


@pytest.mark.parametrize("index", reference.INDEXES)
@pytest.mark.parametrize(
    ("values", "k"),
    [("sign7", 3), ("sign7", 9), ("affine8", 2), ("affine8", 5), ("float32", 1), ("float32", 5)],
)
def test_every_flipped_bit_and_every_length(values: str, k: int, index: str) -> None:
    rng = random.Random(k)
    setting, shape = Setting((3, 4), k, values=values, index=index), (20,)
    text = random_payload(rng, setting, shape)
    for at in range(len(text)):
        wrong = text[:at] + str(1 - int(text[at])) + text[at + 1 :]
        assert agree(
            gcodec_outcome(setting, wrong, shape), oracle_outcome(setting, wrong, shape)
        ), at
        assert gcodec_outcome(setting, text[:at], shape) is gcodec.Truncated
        assert oracle_outcome(setting, text[:at], shape) is gcodec.Truncated
    for more in ("0", "1", "0" * 16):
        assert gcodec_outcome(setting, text + more, shape) is oracle_outcome(
            setting, text + more, shape
        )
        assert gcodec_outcome(setting, text + more, shape) is gcodec.Corrupt


SIGN7_SCALE = universal.fixed(ONE_BITS >> 15, 16)
AFFINE8_SCALES = universal.fixed(0x3B800000, 32) + universal.fixed(0xBF000000, 32)
SHORT_PREFIXES = [  # The setting of each short payload, and the bits that precede the tested ones.
    *(
        (Setting((size,), k, index=index), SIGN7_SCALE)
        for size, k, index in (
            (2, 1, "fixed"),
            (2, 1, "rice"),
            (4, 1, "fixed"),
            (4, 1, "rice"),
            (1, 1, "fixed"),
        )
    ),
    (Setting((2,), 1), SIGN7_SCALE * 2),
    (Setting((2,), 1, index="rice"), SIGN7_SCALE * 2 + "01000"),
    (Setting((2,), 1), SIGN7_SCALE + "0" * 16),
    (Setting((2,), 2), SIGN7_SCALE + "01" + "111111"),
    (Setting((2,), 2), SIGN7_SCALE + "11" + "000000"),
    (Setting((4,), 2), SIGN7_SCALE + "00" + "1" * 14),
    (Setting((4,), 3, index="rice"), SIGN7_SCALE + "010" + "1" * 21 + "0" * 5),
    (Setting((8,), 8), SIGN7_SCALE + "0" * 8 + "1111111"),
    (Setting((8,), 8), SIGN7_SCALE + "0" * 8 + "1111110" + "111"),
    (Setting((8,), 8), SIGN7_SCALE + "0" * 8 + "1111010" + "001" + "010011010011"),
    (Setting((8,), 8), SIGN7_SCALE + "0" * 8 + "1111010" + "111" + "101101101100100" + "0"),
    (Setting((8,), 8), SIGN7_SCALE + "0" * 7 + "1" + "0000000" + "000" + "1"),
    (Setting((2,), 1, values="affine8"), AFFINE8_SCALES),
    (Setting((2,), 2, values="affine8"), AFFINE8_SCALES),
    (Setting((4,), 2, values="affine8"), AFFINE8_SCALES),
    (Setting((4,), 1, values="affine8", index="rice"), AFFINE8_SCALES),
    (Setting((4,), 3, values="affine8"), AFFINE8_SCALES + "01" * 11),
    (Setting((4,), 4, values="affine8"), AFFINE8_SCALES + "01" * 12),
    (Setting((1,), 1, values="float32"), universal.fixed(0x7F7FFF, 24)),
    (Setting((4,), 1, values="float32"), universal.fixed(ONE_BITS, 32)),
    (Setting((4,), 2, values="float32", index="rice"), universal.fixed(ONE_BITS, 32) * 2),
]


@pytest.mark.parametrize(("setting", "prefix"), SHORT_PREFIXES, ids=str)
def test_every_short_payload(setting: Setting, prefix: str) -> None:
    """Both agree on all strings of up to 8 bits, after scales and perhaps levels."""
    chunks = 2 if prefix.startswith((SIGN7_SCALE * 2, SIGN7_SCALE + "0" * 16)) else 1
    shape, valid_count = (chunks * setting.chunk[0],), 0
    for length in range(9):
        for number in range(1 << length):
            text = prefix + universal.fixed(number, length)
            wanted = oracle_outcome(setting, text, shape)
            assert agree(gcodec_outcome(setting, text, shape), wanted), text[len(prefix) :]
            valid_count += isinstance(wanted, list)
    assert valid_count


def test_every_scale() -> None:
    """All 2^16 scales of sign7: the finite ones in one payload, each other one alone."""
    setting = Setting((1,), 1)
    finite, nonfinite = [*range(0xFF00)], [*range(0xFF00, 0x10000)]
    finite = [m for m in finite if m >> 8 != 0xFF]
    text = "".join(universal.fixed(m, 16) for m in finite) + "0" * (len(finite) - 1)
    assert gcodec_outcome(setting, text, (len(finite),)) == [m << 15 for m in finite]
    for m in nonfinite:
        text = universal.fixed(m, 16)
        for tail in ("", "0"):
            assert gcodec_outcome(setting, text + tail, (1,)) is gcodec.Corrupt


LARGEST_BITS = 0x7F7FFFFF


@pytest.mark.parametrize(
    ("s", "o", "valid"),
    [
        (0, ONE_BITS, True),
        (1, 0, True),
        (0, LARGEST_BITS, True),
        (0, 0xFF7FFFFF, True),
        (0x7B808080, 0, True),  # 255 times this step is the largest binary32.
        (0x7B808081, 0, False),
        (0x7B808081, 0xFF7FFFFF, False),  # 255 times this step overflows binary32.
        (0x7B800000, 0x7B800000, False),
        (0x7B808080, 0xFF7FFFFF, True),
        (0x80000000, ONE_BITS, False),
        (0x80000000, 0, False),
        (0x80000001, ONE_BITS, False),
        (0xBF800000, ONE_BITS, False),
        (ONE_BITS, 0x80000000, False),
        (0, 0x80000000, False),
        (0x7F800000, 0, False),
        (0xFF800000, 0, False),
        (0x7FC00000, 0, False),
        (0x7F800001, 0, False),
        (0xFFC00000, 0, False),
        (0, 0x7F800000, False),
        (0, 0xFF800000, False),
        (0, 0x7FC00001, False),
        (LARGEST_BITS, 0, False),
    ],
)
def test_scales_of_affine8(s: int, o: int, valid: bool) -> None:
    head = universal.fixed(s, 32) + universal.fixed(o, 32)
    for setting, tail in (
        (Setting((1,), 1, values="affine8"), ""),
        (Setting((4,), 1, values="affine8"), "01"),
        (Setting((4,), 3, values="affine8"), "0" * 23 + "1" + "000110"),
    ):
        wanted = oracle_outcome(setting, head + tail, setting.chunk)
        assert gcodec_outcome(setting, head + tail, setting.chunk) == wanted
        if setting.k == 1:  # Three coefficients of the largest scale add up to an overflow.
            assert valid == (wanted is not gcodec.Corrupt)


def test_every_magnitude() -> None:
    """A magnitude m decodes to m·M / 127, rounded to binary64 and then to binary32."""
    rng = random.Random(2)
    for m in range(128):
        scale = rng.randrange(1, 0xFF00) << 15
        levels = [(int(m > 0 and rng.random() < 0.5), m), (0, 0)]
        setting = Setting((1, 2), 2)
        text = reference.text_of(setting, [Chunk((scale,), [0, 1], levels)], 2)
        wanted = oracle_outcome(setting, text, (1,))
        assert gcodec_outcome(setting, text, (1,)) == wanted
        y = reference.coefficient(setting, (scale,), levels[0])
        exact = Fraction(float(reference.float_of(scale))) * m / 127
        assert abs(y) == cosines.nearest(exact)  # Rounding twice never differs from rounding once.
        assert isinstance(wanted, list)


@pytest.mark.parametrize("index", reference.INDEXES)
def test_invalid_positions_are_refused(index: str) -> None:
    """Both refuse positions that fall, repeat, or lie beyond the chunk, in either chunk."""
    setting = Setting((5,), 2, index=index)
    level = [(0, 1), (1, 2)]
    tried = set()
    for places in itertools.product(range(7), repeat=4):
        if index == "rice":
            chunks = [p + 5 * (i > 1) for i, p in enumerate(places)]
            if sorted(set(chunks)) != chunks:
                continue
        if sum(places) % 3 == 0:  # A third of the cases is enough; skip the others.
            continue
        parts = [
            Chunk((ONE_BITS,), [*places[:2]], level),
            Chunk((ONE_BITS,), [*places[2:]], level),
        ]
        text = reference.text_of(setting, parts, 5)
        wanted = oracle_outcome(setting, text, (10,))
        assert gcodec_outcome(setting, text, (10,)) == wanted, places
        valid = places[0] < places[1] < 5 and places[2] < places[3] < 5
        assert isinstance(wanted, list) == valid
        tried.add(valid)
    assert tried == {True, False}


def test_other_codewords_are_refused() -> None:
    """Codewords with any other least magnitude or any other code are corrupt."""
    rng = random.Random(9)
    setting = Setting((3, 3), 8)
    for low, high in ((127, 127), (120, 127), (0, 127), (30, 40), (0, 0), (60, 90)):
        magnitudes = [rng.randint(low, high) for _ in range(8)]
        chunk = Chunk((ONE_BITS,), [*range(8)], [(0, m) for m in magnitudes])
        text = reference.text_of(setting, [chunk], 9)
        written = reference.words(magnitudes)
        assert isinstance(gcodec_outcome(setting, text, (9,)), list)
        assert text.count(written, 24) and text[24:].startswith(written)
        for least, e in itertools.product(range(max(0, min(magnitudes) - 3), 128), range(8)):
            if least > min(magnitudes):
                break
            wrong = reference.words(magnitudes, (least, e))
            if wrong != written:
                wrong = text[:24] + wrong + text[24 + len(written) :]
                assert gcodec_outcome(setting, wrong, (9,)) is gcodec.Corrupt
                assert oracle_outcome(setting, wrong, (9,)) is gcodec.Corrupt


def test_magnitudes_above_the_top() -> None:
    setting = Setting((8,), 8)
    for least, e, d in ((1, 0, 127), (127, 0, 1), (127, 6, 1), (64, 7, 64), (100, 3, 10**5)):
        width = (127 - least).bit_length()
        if e == 7 and d >= 1 << width:
            d = (1 << width) - 1
        words = [
            universal.rice(m, e) if e < 7 else universal.fixed(m, width) for m in [0] * 7 + [d]
        ]
        text = (
            SIGN7_SCALE
            + "0" * 8
            + universal.fixed(least, 7)
            + universal.fixed(e, 3)
            + "".join(words)
        )
        assert gcodec_outcome(setting, text, (8,)) is gcodec.Corrupt
        assert oracle_outcome(setting, text, (8,)) is gcodec.Corrupt


def test_sums_beyond_binary32() -> None:
    """Both refuse overflow in an element of the tensor, and accept overflow in the padding."""
    outcomes = set()
    for setting in (Setting((2, 2), 4), Setting((2, 2), 4, "tiles")):
        for signs, n in itertools.product(itertools.product((0, 1), repeat=4), (1, 2, 3, 4)):
            shape = (n,) if setting.layout == "flat" else (2, n)
            grid = reference.grid_of(setting, shape)
            count = min(4, grid.size)
            levels = [(sign, 127) for sign in signs[:count]]
            chunk = Chunk((0x7F7F8000,), [*range(count)], levels)
            text = reference.text_of(setting, [chunk] * grid.count, grid.size)
            wanted = oracle_outcome(setting, text, shape)
            assert gcodec_outcome(setting, text, shape) == wanted
            outcomes.add(isinstance(wanted, list))
    assert outcomes == {True, False}


def test_many_elements_in_few_bytes() -> None:
    """2^40 elements need their scales at least: both refuse before memory is allocated."""
    for setting in (Setting(), Setting((16, 16, 16), 1), Setting((1,), 1), Setting((4096,), 4096)):
        for fill in (0, 1):
            text = str(fill) * 800
            for shape in ((1 << 40,), (1 << 20, 1 << 20)):
                assert gcodec_outcome(setting, text, shape) in (gcodec.Truncated, gcodec.Corrupt)
