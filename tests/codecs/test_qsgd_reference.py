"""qsgd against the oracle: the same bytes, values and refusals for all settings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies as gs
from bit_texts import text_of
from hypothesis import given
from hypothesis import strategies as st
from outcomes import bits, outcome
from reference import frame as reference_frame
from reference import qsgd as reference
from reference import universal
from reference.qsgd import Setting
from sweeps import LONG, examples, thinned

import gcodec
from gcodec.payload import Payload

DUMP = Path(__file__).parents[1] / "data" / "resnet8_digits_step0300.npz"
CODES_AND_FORMS = [*reference.ALL, *itertools.product(("omega", "rice", "auto"), ("auto",))]
CODES_AND_FORMS += [("auto", "dense"), ("auto", "sparse"), ("packed", "auto")]
LEVELS = (1, 2, 3, 4, 7, 15, 16, 127, 128, 255, 4096, 32767, 32768, 2**24 - 1, 2**24)
BUCKETS = (0, 1, 2, 3, 7, 32, 33, 512, 2**32, 2**62)
# Of the strings of more than 9 bits, every 149th is tested; `test_qsgd_exhaustive` has all.
STRIDE = 149


def codec_of(setting: Setting) -> gcodec.Codec:
    codec: gcodec.Codec = gcodec.parse({"name": "qsgd", **setting._asdict()})
    return codec


def codes_of(levels: list[int]) -> list[int]:
    """Return the symbols of levels: twice the magnitude, plus 1 for negative levels."""
    return [2 * abs(k) + (k < 0) for k in levels]


def symbol_type(s: int) -> type:
    return np.uint8 if s < 128 else np.uint16 if s < 32768 else np.uint32


def payload_of(message: reference.Message) -> Payload:
    names = ("rice", "rice_gap")
    scalars = dict(zip(names, message.rices, strict=False))
    data = np.frombuffer(message.data, np.uint8)
    return Payload(codec_of(message.setting), scalars, data, message.nbits)


def check(x: np.ndarray, setting: Setting, seed: int = 0) -> reference.Message | None:
    """Compare gcodec and the oracle on a float32 tensor; return None if both refuse it."""
    codec = codec_of(setting)
    try:
        expected = reference.encode(x, setting, seed)
    except ValueError:
        with pytest.raises(gcodec.ParameterError):
            codec.encode(x, seed=seed)
        return None
    symbols = codec.quantize(x, seed=seed)
    assert bits(symbols.norms) == bits(expected.norms)
    assert symbols.levels.dtype == symbol_type(setting.s)
    assert symbols.levels.tolist() == codes_of(expected.levels)
    result = codec.pack(symbols)
    wanted = payload_of(expected)
    code = result.codec.code  # type: ignore[attr-defined]
    # Another oracle defines this code; the encoder selects it if it is shorter.
    if code == "context":
        assert result.nbits < wanted.nbits * 1.02 + 64
    # The encoder is free in its choice of frequencies.
    elif "rans" in (code, expected.setting.code):
        assert abs(result.nbits - wanted.nbits) <= 0.02 * wanted.nbits + 64
    else:
        assert result.codec == wanted.codec and result.scalars == wanted.scalars
        assert result.nbits == wanted.nbits
        assert result.tobytes() == wanted.tobytes()
    assert result.nbits <= codec.max_payload_nbits(x.size)
    # gcodec reads the oracle's payload.
    read = codec.unpack(wanted, x.shape)
    assert bits(read.norms) == bits(expected.norms)
    assert read.levels.dtype == symbols.levels.dtype
    assert np.array_equal(read.levels, symbols.levels)
    values = reference.dequantize(expected.levels, expected.norms, setting.s, setting.bucket)
    assert bits(codec.decode(wanted, x.size)) == bits(values)
    sparse = wanted.codec.form == "sparse"  # type: ignore[attr-defined]
    nbits = wanted.nbits if sparse else None
    bare = wanted.codec.decode(wanted.tobytes(), x.size, nbits=nbits, **wanted.scalars)
    assert bits(bare) == bits(values)
    if code == "context":
        reread = codec.unpack(result, x.shape)
        assert bits(reread.norms) == bits(expected.norms)
        assert np.array_equal(reread.levels, symbols.levels)
        return expected
    # The oracle reads gcodec's payload.
    form = result.codec.form  # type: ignore[attr-defined]
    chosen = expected.setting._replace(code=code, form=form)
    norms, levels = reference.read(
        chosen, result.tobytes(), result.nbits, x.size, tuple(result.scalars.values())
    )
    assert bits(norms) == bits(expected.norms) and levels == expected.levels
    return expected


def tensors() -> list[np.ndarray]:
    """Return short gradients, real and odd ones."""
    rng = np.random.default_rng(5)
    with np.load(DUMP) as dump:
        real = [dump[name].reshape(-1) for name in dump.files if dump[name].dtype == np.float32]
    actual = [x[:150] for x in sorted(real, key=lambda x: x.size)[:: max(len(real) // 3, 1)]]
    few = np.zeros(200, np.float32)
    few[[3, 4, 90, 199]] = (1, -0.5, 3, -2)
    runs = np.repeat(np.array([0, 1, 0, -2, 0, 0.25], np.float32), 21)
    tiny = (rng.standard_normal(40) * 2.0**-130).astype(np.float32)
    large = (rng.standard_normal(33) * 1e30).astype(np.float32)
    mixed = np.concatenate([tiny[:33], few[:33], large])
    return [*actual, few, runs, tiny, mixed, few[:1], few[3:4], few[:0]]


TENSORS = tensors()


@pytest.mark.parametrize(("code", "form"), CODES_AND_FORMS)
def test_all_settings(code: str, form: str) -> None:
    """Each s, with one or both norms and a few buckets, encodes one of the tensors."""
    for at, (s, turn) in thinned(enumerate(itertools.product(LEVELS, range(3))), 2):
        bucket, norm = BUCKETS[(at + 3 * turn) % len(BUCKETS)], ("l2", "max")[at // 2 % 2]
        check(TENSORS[at % len(TENSORS)], Setting(s, form, bucket, norm, code), seed=at)


@given(
    st.data(),
    st.sampled_from(CODES_AND_FORMS),
    st.sampled_from(LEVELS),
    st.sampled_from([*BUCKETS, 4096]),
    st.sampled_from(["l2", "max"]),
    gs.seeds(),
)
@examples(60)
def test_any_gradient(
    data: st.DataObject, pair: tuple[str, str], s: int, bucket: int, norm: str, seed: int
) -> None:
    x = data.draw(gs.gradients())
    check(x, Setting(s, pair[1], bucket, norm, pair[0]), seed)


@pytest.mark.parametrize("n", [4095, 4097, 8200])
def test_larger_gradients(n: int) -> None:
    """The sizes lie around the end of a tile of the sums."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    for pair, bucket in zip(CODES_AND_FORMS, itertools.cycle([0, 4096, 100]), strict=False):
        check(x, Setting(31, pair[1], bucket, "l2", pair[0]), seed=n)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_frames(dtype: str) -> None:
    """Whole frames agree, with conversions between dtypes."""
    rng = np.random.default_rng(2)
    x = gs.as_dtype((rng.standard_normal(60) * 3).astype(np.float32), dtype).reshape(3, 4, 5)
    wide = gs.widened(x).reshape(-1)
    for at, (code, form) in enumerate(CODES_AND_FORMS):
        setting = Setting((3, 15, 200)[at % 3], form, (0, 7)[at % 2], "l2", code)
        expected = reference.encode(wide, setting, at)
        values = reference.dequantize(expected.levels, expected.norms, setting.s, setting.bucket)
        code_of = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
        wanted = reference_frame.build(
            2,
            code_of[dtype],
            x.shape,
            reference.parameters(expected.setting),
            reference.scalars(expected),
            expected.data,
            expected.nbits,
        )
        assert gcodec.encode(x, codec_of(setting), seed=at) == wanted
        decoded = gcodec.decode(wanted)
        assert decoded.shape == x.shape and decoded.dtype == x.dtype
        assert gs.same_bits(decoded.reshape(-1), gs.narrowed(values, dtype))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_both_refuse_the_same(bad: float) -> None:
    x = np.ones(50, np.float32)
    x[37] = bad
    for norm in ("l2", "max"):
        assert check(x, Setting(norm=norm, bucket=10)) is None
    large = np.full(3, 3e38, np.float32)
    assert check(large, Setting()) is None
    assert check(large, Setting(norm="max")) is not None
    largest = np.array([1, np.finfo(np.float32).max, 0], np.float32)
    for s, norm in itertools.product((15, 31, 100, 127, 255), ("l2", "max")):
        result = check(largest, Setting(s, norm=norm))
        assert (result is None) == (s in (31, 100, 127))
        result = check(largest, Setting(s, bucket=1, norm=norm))
        assert (result is None) == (s in (31, 100, 127))


# --- hostile bytes ------------------------------------------------------------------------------


@outcome
def oracle_outcome(
    setting: Setting, data: bytes, nbits: int, n: int, rices: tuple[int, ...]
) -> Any:
    """Return the symbols that the oracle reads, or the matching type of error."""
    _, levels = reference.read(setting, data, nbits, n, rices)
    return codes_of(levels)


@outcome
def gcodec_outcome(
    codec: gcodec.Codec, scalars: dict[str, int], data: bytes, nbits: int, n: int
) -> Any:
    """Return the symbols that gcodec reads, or the type of its error."""
    payload = Payload(codec, scalars, np.frombuffer(data, np.uint8), nbits)
    return codec.unpack(payload, n).levels.tolist()


def compare(
    setting: Setting,
    n: int,
    max_nbits: int,
    rices: tuple[int, ...] = (),
    norms: str = "1",
) -> None:
    """Compare all strings of up to 7 bits and some of up to `max_nbits`, after the norms."""
    codec = codec_of(setting)
    scalars = dict(zip(("rice", "rice_gap"), rices, strict=False))
    norm_bytes = np.array([int(digit) for digit in norms], ">f4").tobytes()
    for length in range(max_nbits + 1):
        nbytes, step = (length + 7) // 8, 1 if length <= (9 if LONG else 7) else STRIDE
        for number in range(length % step, 1 << length, step):
            tail = (number << (8 * nbytes - length)).to_bytes(nbytes, "big")
            data, nbits = norm_bytes + tail, 8 * len(norm_bytes) + length
            expected = oracle_outcome(setting, data, nbits, n, rices)
            actual = gcodec_outcome(codec, scalars, data, nbits, n)
            assert actual == expected, (setting, n, rices, norms, tail.hex(), length)


SPARSE_RICE = ((1, 0, 0), (5, 2, 1), (3, 0, 2))  # s, K, G
SMALL_SETTINGS = [
    *((Setting(s, form), ()) for s in (1, 2, 5) for form in reference.FORMS),
    *((Setting(s, "dense", code="rice"), (k,)) for s, k in ((1, 0), (2, 1), (5, 3), (5, 47))),
    *((Setting(s, "sparse", code="rice"), (k, g)) for s, k, g in SPARSE_RICE),
    *((Setting(s, "dense", code="packed"), ()) for s in (1, 2, 3, 5)),
]


@pytest.mark.parametrize(("setting", "rices"), SMALL_SETTINGS)
def test_every_short_string(setting: Setting, rices: tuple[int, ...]) -> None:
    most = 7 if LONG else 6  # bits
    for n in thinned((1, 2, 3, 4), 2):
        compare(setting, n, most, rices)
    compare(setting._replace(bucket=2), 4, most, rices, norms="01")
    compare(setting._replace(bucket=1), 3, most, rices, norms="101")
    compare(setting._replace(bucket=2), 3, 3, rices, norms="00")
    compare(setting, 0, 4, rices, norms="")
    compare(setting, 2, 0, rices, norms="")


@pytest.mark.parametrize(
    ("setting", "rices"),
    [
        (Setting(7, "dense"), ()),
        (Setting(7, "sparse"), ()),
        (Setting(7, "dense", code="rice"), (1,)),
        (Setting(7, "sparse", code="rice"), (1, 0)),
        (Setting(7, "dense", code="packed"), ()),
    ],
)
def test_strings_of_two_bytes(setting: Setting, rices: tuple[int, ...]) -> None:
    for n in thinned((2, 1, 3, 4), 2):
        compare(setting, n, 16, rices)


@pytest.mark.parametrize(
    ("setting", "rices"),
    SMALL_SETTINGS[:1] + SMALL_SETTINGS[1:2] + SMALL_SETTINGS[6:7] + SMALL_SETTINGS[10:11],
)
def test_fill(setting: Setting, rices: tuple[int, ...]) -> None:
    """Only some bits of the last byte belong to the string."""
    codec = codec_of(setting)
    scalars = dict(zip(("rice", "rice_gap"), rices, strict=False))
    norm_bytes = np.array([1], ">f4").tobytes()
    for byte, length, n in itertools.product(range(0, 256, 3), range(1, 9), (1, 4)):
        data, nbits = norm_bytes + bytes([byte]), 32 + length
        expected = oracle_outcome(setting, data, nbits, n, rices)
        assert gcodec_outcome(codec, scalars, data, nbits, n) == expected


@given(st.data(), st.sampled_from(reference.ALL), st.sampled_from(LEVELS), st.integers(0, 99))
@examples(80)
def test_damaged_payloads(data: st.DataObject, pair: tuple[str, str], s: int, number: int) -> None:
    """Both agree on payloads with a few bits flipped, cut off, or appended."""
    n = data.draw(st.sampled_from([1, 5, 40, 130]))
    rng = np.random.default_rng(number)
    x = (rng.standard_t(2, n) * (rng.random(n) < rng.choice([0.05, 0.5, 1]))).astype(np.float32)
    setting = Setting(s, pair[1], data.draw(st.sampled_from([0, 1, 30])), "l2", pair[0])
    message = reference.encode(x, setting, number)
    text = text_of(message.data, message.nbits)
    for _ in range(data.draw(st.integers(0, 3))):
        if text:
            at = data.draw(st.integers(0, len(text) - 1))
            text = text[:at] + str(1 - int(text[at])) + text[at + 1 :]
    text = text[: len(text) - data.draw(st.sampled_from([0, 0, 1, 7, 40]))]
    text += data.draw(st.sampled_from(["", "", "0", "1", "0" * 30]))
    rices = tuple(data.draw(st.sampled_from([k, k, 0, 47])) for k in message.rices)
    scalars = dict(zip(("rice", "rice_gap"), rices, strict=False))
    damaged, nbits = universal.to_bytes(text), len(text)
    expected = oracle_outcome(setting, damaged, nbits, n, rices)
    assert gcodec_outcome(codec_of(setting), scalars, damaged, nbits, n) == expected


# --- seek tables --------------------------------------------------------------------------------


def framed(x: np.ndarray, setting: Setting) -> tuple[gcodec.Frame, reference.Message]:
    """Return a frame without a seek table, and the oracle's message for the same tensor."""
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, codec_of(setting)))
    return frame.without_seek(), reference.encode(x, setting)


@pytest.mark.parametrize(("code", "form"), reference.ALL[:4])
def test_seek_tables(code: str, form: str) -> None:
    for x, bucket in itertools.product(TENSORS, (0, 1, 33)):
        setting = Setting(15, form, bucket, "l2", code)
        frame, message = framed(x, setting)
        values = bits(frame.decode())
        if message.nbits == 32 * len(message.norms):
            assert frame.with_seek(3).seek is None
            continue
        for log2_block in (0, 1, 3, 5, 12, 62):
            table = reference.seek_table(message, log2_block)
            with_table = frame.with_seek(log2_block)
            assert with_table.seek is not None
            assert with_table.seek.lengths.tolist() == table.lengths
            advances = with_table.seek.advances
            assert (None if advances is None else advances.tolist()) == table.advances
            data = with_table.to_bytes()
            assert reference_frame.parse(data)["seek"] == reference.section(table)
            assert bits(gcodec.decode(data)) == values
            assert gcodec.Frame.from_bytes(data).without_seek().to_bytes() == frame.to_bytes()


@pytest.mark.parametrize("form", reference.FORMS)
def test_long_seek_tables(form: str) -> None:
    """The table stores sums at blocks 4096 and 8192."""
    x = np.random.default_rng(1).standard_normal(8500).astype(np.float32)
    x[::50] = 0
    frame, message = framed(x, Setting(2**14, form))
    data = frame.with_seek(0).to_bytes()
    section = reference_frame.parse(data)["seek"]
    table = reference.seek_table(message, 0)
    assert len(table.lengths) > 8192
    assert section == reference.section(table)
    assert bits(gcodec.decode(data)) == bits(frame.decode())


@pytest.mark.parametrize(("code", "form"), reference.ALL[:4])
def test_wrong_seek_tables(code: str, form: str) -> None:
    """Decoding refuses tables that move bits or elements from one block to another."""
    x = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    message = reference.encode(x, Setting(15, form, 16, "l2", code))
    table = reference.seek_table(message, 3)

    def built(wrong: reference.Table) -> bytes:
        return reference_frame.build(
            2,
            1,
            (50,),
            reference.parameters(message.setting),
            reference.scalars(message),
            message.data,
            message.nbits,
            seek=reference.section(wrong),
        )

    gcodec.decode(built(table))
    lists = [table.lengths] if table.advances is None else [table.lengths, table.advances]
    for column, numbers in enumerate(lists):
        count = len(numbers)
        for i, j, by in itertools.product(range(count), range(count), (1, 2, 7)):
            if i == j or numbers[i] < by:
                continue
            changed = [list(one) for one in lists]
            changed[column][i] -= by
            changed[column][j] += by
            wrong = table._replace(
                lengths=changed[0], advances=changed[1] if table.advances is not None else None
            )
            with pytest.raises(gcodec.Corrupt):
                gcodec.decode(built(wrong))


def test_the_encoder_adds_a_seek_table() -> None:
    """Frames of 2^16 elements or more get a table of blocks of 2^12, if it takes at most 1 %."""
    x = np.random.default_rng(4).standard_normal(2**16).astype(np.float32)
    x[: 2**13] = 0
    for setting in (Setting(127, "dense", 2**12), Setting(127, "sparse", 512, code="rice")):
        message = reference.encode(x, setting, 5)
        expected = reference.section(reference.seek_table(message, 12))
        assert 100 * len(expected) <= len(message.data)
        data = gcodec.encode(x, codec_of(setting), seed=5)
        parsed = reference_frame.parse(data)
        assert parsed["payload"] == message.data and parsed["nbits"] == message.nbits
        assert parsed["seek"] == expected
        shorter = gcodec.encode(x[:-1], codec_of(setting), seed=5)
        assert reference_frame.parse(shorter)["seek"] is None
    few = np.zeros(2**16, np.float32)
    few[::100] = 1
    data = gcodec.encode(few, codec_of(Setting(15, "sparse")), seed=5)
    assert reference_frame.parse(data)["seek"] is None  # The string has one block only.
    packed = codec_of(Setting(127, "dense", code="packed"))
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, packed, seed=5))
    assert frame.seek is None and frame.with_seek().seek is None
