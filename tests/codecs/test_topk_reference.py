"""topk and its positions against oracles written from the specification: bytes, values, errors."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import strategies as gs
from bit_texts import bytes_of, text_of
from outcomes import agree, bits, outcome
from reference import frame as reference_frame
from reference import halves, leb128, positions, seek, sparse_values, universal
from reference import topk as reference
from reference.positions import CODES
from reference.sparse_values import VALUES
from reference.topk import Setting
from sweeps import LONG

import gcodec
from gcodec.payload import Payload

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
TOPK = 9
WITH_SEEK = [code for code in CODES if code != "bitmap"]


def codec_of(setting: Setting) -> gcodec.Codec:
    chosen: dict[str, Any] = {"value": setting.value, "index": setting.index}
    chosen |= {"ratio": setting.ratio} if setting.k is None else {"k": setting.k}
    return gcodec.codecs()["topk"](**chosen)


@outcome
def oracle_outcome(setting: Setting, text: str, n: int) -> Any:
    """Return the oracle's positions and the bits of its values, or the matching type of error."""
    places, values = reference.read(universal.to_bytes(text), len(text), n, setting)
    return places, bits(values)


def gcodec_outcome(codec: gcodec.Codec, text: str, n: int) -> Any:
    """Return gcodec's positions and the bits of its values, or the type of its error.

    Dense and sparse decoding must agree.
    """
    payload = Payload(codec, {}, bytes_of(text), len(text))
    try:
        places, values = codec._decode_sparse(payload, n)
    except gcodec.FormatError as error:
        with pytest.raises(type(error)):
            codec.decode(payload, n)
        return type(error)
    whole = reference.scattered(places.tolist(), values, n)
    assert bits(codec.decode(payload, n)) == bits(whole)
    return places.tolist(), bits(values)


def clustered(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return a gradient whose large values are clustered."""
    x = rng.standard_normal(n) * 0.01
    for start in rng.integers(0, max(n, 1), 4):
        x[start : start + n // 20 + 1] *= 1000
    return x.astype(np.float32)


def gradients() -> Iterator[tuple[np.ndarray, int]]:
    """Yield gradients, and the number of their sent elements."""
    rng = np.random.default_rng(8)
    for n, k in ((0, 0), (1, 1), (2, 1), (40, 3), (200, 32), (257, 257), (900, 65), (9000, 40)):
        yield rng.standard_normal(n).astype(np.float32), k
    yield clustered(rng, 700), 120
    yield clustered(rng, 5000), 300
    yield np.round(rng.standard_normal(300) * 2).astype(np.float32), 77  # ties, and both zeros
    yield np.zeros(50, np.float32), 5
    yield (rng.standard_normal(90) * 1e-40).astype(np.float32), 33


@pytest.mark.parametrize("index", CODES)
def test_messages(index: str) -> None:
    """Bytes agree where the encoder has no choice, and both decode the other's payloads."""
    for at, (x, k) in enumerate([*gradients()] * 2):
        setting, n = Setting(VALUES[at % len(VALUES)], index, k), len(x)
        codec = codec_of(setting)
        expected = reference.encode(x, setting)
        payload = codec.encode(x)
        assert payload.codec == codec and payload.scalars == {}
        if index == "rans":  # The encoder chooses its frequencies, which should be good.
            assert payload.nbits <= expected.nbits + 64
        elif index == "rice" and k > positions.RICE_BLOCK:
            assert payload.nbits <= expected.nbits
        else:
            assert (payload.nbits, payload.tobytes()) == (expected.nbits, expected.data)
        text = text_of(expected.data, expected.nbits)
        wanted = oracle_outcome(setting, text, n)
        assert wanted[0] == reference.largest(x, k)
        assert gcodec_outcome(codec, text, n) == wanted
        assert oracle_outcome(setting, text_of(payload.tobytes(), payload.nbits), n) == wanted


@pytest.mark.parametrize("n", [40, 300])
def test_one_block_of_rice(n: int) -> None:
    """gcodec's Rice parameter is one with the shortest codewords, for any gaps."""
    rng = random.Random(n)
    for k in range(1, positions.RICE_BLOCK + 1):
        places = sorted(rng.sample(range(n), k))
        x = np.zeros(n, np.float32)
        x[places] = 1
        payload = codec_of(Setting("sign", "rice", k)).encode(x)
        expected = [
            reference.write(x, places, Setting("sign", "rice", k), [r])
            for r in positions.shortest_rice(positions.gaps(places))
        ]
        assert payload.tobytes() in [random_payload.data for random_payload in expected]


def test_any_rice_parameters() -> None:
    """The decoder accepts any parameters from 0 to 61, whatever the preceding parameter was."""
    rng = random.Random(1)
    n = 2**40
    for _ in range(20):
        places = sorted(rng.sample(range(n), 200))
        # Smaller parameters would make the codewords of gaps of 2^32 long.
        chosen = [rng.choice([28, 30, 33, 40, 60, 61]) for _ in range(7)]
        text = positions.write("rice", places, n, chosen)
        setting = Setting("float32", "rice", 200)
        actual = positions_read(setting, "0" * 32 * 200 + text, n)
        assert actual == places
    for chosen in ([0, 61, 0], [61, 0, 61], [3, 0, 1]):
        places = [*range(40), *range(50, 100)]
        text = "0" * 16 * 90 + positions.write("rice", places, 100, chosen)
        setting = Setting("float16", "rice", 90)
        assert gcodec_outcome(codec_of(setting), text, 100) == oracle_outcome(setting, text, 100)
    for first, step in ((62, ""), (63, ""), (0, "001"), (61, "01")):
        first_parameters = universal.fixed(first, 6) + "1" * 32 + step
        text = "0" * 16 * 33 + first_parameters + "0" * 300 + "1" + "0" * 70
        assert (
            gcodec_outcome(codec_of(Setting("float16", "rice", 33)), text, 100) is gcodec.Corrupt
        )


def positions_read(setting: Setting, text: str, n: int) -> list[int]:
    """Return the positions that gcodec reads, without an array of all elements."""
    payload = Payload(codec_of(setting), {}, bytes_of(text), len(text))
    places, _ = payload.codec._decode_sparse(payload, n)
    return list(places.tolist())


@pytest.mark.parametrize("index", [code for code in CODES if code != "bitmap"])
def test_far_positions(index: str) -> None:
    """Up to n = 2^62, with all widths of gaps, low bits and classes."""
    rng = random.Random(5)
    for log2_n, k in itertools.product((20, 33, 47, 61, 62), (1, 2, 31, 100)):
        n = 2**log2_n - rng.choice([0, 1, 12345])
        places = {n - 1, 0} if k > 1 else {n - 1}
        while len(places) < k:
            places.add(rng.randrange(2 ** rng.randrange(1, log2_n)))
        ordered = sorted(places)
        chosen = [57] * 4 if index == "rice" else None
        head = "0" * 32 * k
        text = head + positions.write(index, ordered, n, chosen, len(head))
        assert positions_read(Setting("float32", index, k), text, n) == ordered


def test_every_distance_has_its_class() -> None:
    for v in [*range(1, 300), *(2**e + d for e in range(9, 62) for d in (-1, 0, 1))]:
        c, b = positions.class_of(v)
        assert b == positions.nbits_of(c)
        assert positions.distance_of(c, universal.fixed(v % 2**b, b)) == v


@pytest.mark.parametrize("dtype", DTYPES)
def test_frames(dtype: str) -> None:
    """Whole frames agree: parameters, thresholds, conversions between dtypes."""
    rng = np.random.default_rng(4)
    x = gs.as_dtype((rng.standard_normal(60) * 3).astype(np.float32), dtype).reshape(3, 4, 5)
    wide = gs.widened(x).reshape(-1)
    settings: list[tuple[Setting, float]] = []
    thirds = itertools.cycle(("rice", "eliasfano", "bitmap"))
    for value, index, k in zip(VALUES * 2, thirds, itertools.cycle((0, 4, 22, 99)), strict=False):
        settings.append((Setting(value, "bitmap" if k == 99 else index, k), 0.0))
    settings += [(Setting("float32", "huffman", None, ratio), 0.0) for ratio in (0.01, 0.375, 1.0)]
    settings += [(Setting("sign", "eliasfano"), 0.5), (Setting("float32", "bitmap"), 100.0)]
    for setting, threshold in settings:
        expected = reference.encode(wide, setting, threshold)
        wanted = reference_frame.build(
            TOPK,
            DTYPES[dtype],
            x.shape,
            reference.parameters(expected.setting),
            b"",
            expected.data,
            expected.nbits,
        )
        codec = codec_of(setting)
        if threshold:
            spec = f"topk:threshold={threshold},value={setting.value},index={setting.index}"
            codec = gcodec.parse(spec)
        assert gcodec.encode(x, codec) == wanted
        values = reference.decode(expected.data, expected.nbits, 60, expected.setting)
        decoded = gcodec.decode(wanted)
        places, sent = gcodec.decode_sparse(wanted)
        assert decoded.shape == x.shape and decoded.dtype == sent.dtype == x.dtype
        assert places.tolist() == expected.places
        assert decoded.reshape(-1)[places].tolist() == sent.tolist()
        assert gs.same_bits(decoded.reshape(-1), gs.narrowed(values, dtype))


@pytest.mark.parametrize(
    ("n", "ratio"), [(250, 0.01), (350, 0.01), (50, 0.01), (5, 0.5), (7, 0.5)]
)
def test_half_counts_round_to_even(n: int, ratio: float) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    payload = codec_of(Setting(ratio=ratio)).encode(x)
    k = reference.count(n, None, ratio)
    assert k in (1, 2, 3, 4)
    assert np.flatnonzero(payload.codec.decode(payload, n)).tolist() == list(range(n - k, n))


def test_auto_takes_the_shortest() -> None:
    """The encoder compares the exact sizes of its own strings."""
    chosen = set()
    for x, k in gradients():
        auto = codec_of(Setting("sign", "auto", k)).encode(x)
        candidates = [codec_of(Setting("sign", index, k)).encode(x) for index in CODES]
        shortest = min(candidates, key=lambda payload: payload.nbits)
        assert auto.codec == shortest.codec and auto.tobytes() == shortest.tobytes()
        chosen.add(shortest.codec.index)  # type: ignore[attr-defined]
    assert len(chosen) > 2


@pytest.mark.parametrize("value", ["float16", "bfloat16"])
def test_values_beyond_the_range(value: str) -> None:
    """Values beyond the range become the largest finite number."""
    pattern = 0x7BFF if value == "float16" else 0x7F7F
    largest = halves.widen(np.array([pattern], np.uint16), value)[0]
    top = np.finfo(np.float32).max
    too_large = [np.float32(65519), np.float32(65520), np.float32(1e6)]
    x = np.array([0, largest, 1, -top, np.nextafter(top, np.float32(0)), *too_large], np.float32)
    setting = Setting(value, "bitmap", len(x))
    expected = reference.encode(x, setting)
    assert codec_of(setting).encode(x).tobytes() == expected.data
    values = reference.decode(expected.data, expected.nbits, len(x), setting)
    assert np.isfinite(values).all() and values[3] == -largest


def test_largest_values() -> None:
    """Infinite steps of int8, infinite means, and the smallest values."""
    for top in (np.finfo(np.float32).max, np.float32(1.4e-45), np.float32(1e-38)):
        for x in (np.full(300, top), np.array([0, -top, top / 2, 0])):
            x = x.astype(np.float32)
            for value in ("int8", "sign", "float32"):
                setting = Setting(value, "bitmap", len(x))
                expected = reference.encode(x, setting)
                assert codec_of(setting).encode(x).tobytes() == expected.data
                text = text_of(expected.data, expected.nbits)
                assert gcodec_outcome(codec_of(setting), text, len(x)) == oracle_outcome(
                    setting, text, len(x)
                )


# --- hostile bytes ------------------------------------------------------------------------------


SHORT_SIZES = {  # Pairs of n and k.
    "rice": ((9, 3), (40, 2)),
    "eliasfano": ((9, 2), (5, 4)),
    "bitmap": ((9, 2), (10, 3)),
    "rans": ((2, 1),),  # No rANS string is so short.
    "huffman": ((2, 1), (2, 2)),
}


@pytest.mark.parametrize("index", CODES)
def test_every_short_payload(index: str) -> None:
    """Both agree on all strings of up to 9 bits as positions, after a scale of 1 and k signs."""
    valid_count = 0
    for n, k in SHORT_SIZES[index]:
        setting = Setting("sign", index, k)
        codec = codec_of(setting)
        values_text = universal.fixed(0x3F800000, 32) + "0" * k
        for length in range(6 if index == "rans" else 11 if LONG else 10):
            for number in range(1 << length):
                text = values_text + universal.fixed(number, length)
                data, nbits = universal.to_bytes(text), len(text)
                try:
                    wanted = bits(reference.decode(data, nbits, n, setting))
                except (universal.Truncated, universal.Corrupt):
                    wanted = []
                try:
                    actual = bits(codec.decode(data, n, nbits=nbits))
                except gcodec.FormatError:
                    actual = []
                assert actual == wanted, (n, k, text[len(values_text) :])
                valid_count += bool(wanted)
    assert valid_count or index == "rans"


@pytest.mark.parametrize("index", CODES)
def test_messages_without_positions_take_no_bits(index: str) -> None:
    for n, k in ((0, 3), (4, 0)):
        codec = codec_of(Setting("sign", index, k))
        assert gcodec_outcome(codec, "", n) == ([], [])
        assert gcodec_outcome(codec, "0", n) is gcodec_outcome(codec, "1", n) is gcodec.Corrupt


def test_every_table_of_three_classes() -> None:
    """Both agree on all lengths of codewords for distances of 1 to 3, with a few codewords."""
    setting = Setting("sign", "huffman", 2)
    codec, valid_count = codec_of(setting), 0
    sample = (0, 1, 2, 3, 12, 13)
    for lengths in itertools.product(sample, repeat=3):
        table = "".join(universal.fixed(length, 4) for length in lengths)
        for tail in ("00", "010", "1011"):
            text = universal.fixed(0x3F800000, 32) + "01" + table + tail
            wanted = oracle_outcome(setting, text, 3)
            assert agree(gcodec_outcome(codec, text, 3), wanted), text[34:]
            valid_count += not isinstance(wanted, type)
    assert valid_count > 2


def random_payload(rng: random.Random, value: str, index: str) -> tuple[Setting, str, int]:
    """Return a payload of the oracle as text."""
    n = rng.choice([1, 7, 40, 300, 1000])
    k = min(n, rng.choice([1, 2, 10, 33, 70]))
    places = sorted(rng.sample(range(n), k))
    x = np.zeros(n, np.float32)
    x[places] = [rng.choice([-1.5, 0.25, 3, -0.001]) for _ in places]
    setting = Setting(value, index, k)
    written = reference.write(x, places, setting)
    return setting, text_of(written.data, written.nbits), n


def damaged(rng: random.Random, text: str) -> str:
    """Return the text with a few bits flipped, mostly after the values, cut off, or appended."""
    for _ in range(rng.randrange(4)):
        at = len(text) - 1 - int(len(text) * rng.random() ** 2)
        text = text[:at] + str(1 - int(text[at])) + text[at + 1 :]
    text = text[: len(text) - rng.choice([0, 0, 0, 1, 9, 40])]
    return text + rng.choice(["", "", "", "0", "1", "0" * 70])


@pytest.mark.parametrize("index", CODES)
@pytest.mark.parametrize("value", VALUES)
def test_damaged_payloads(value: str, index: str) -> None:
    rng = random.Random(f"{value} {index}")
    refused = 0
    for _ in range(20 if index == "rans" else 70):
        setting, text, n = random_payload(rng, value, index)
        text = damaged(rng, text)
        wanted = oracle_outcome(setting, text, n)
        assert agree(gcodec_outcome(codec_of(setting), text, n), wanted), (setting, n, text)
        refused += isinstance(wanted, type)
    assert refused


@pytest.mark.parametrize("index", CODES)
def test_truncation_and_extension(index: str) -> None:
    """Missing bits raise `Truncated`, and extra bits `Corrupt`."""
    rng = random.Random(index)
    for _ in range(10):
        setting, text, n = random_payload(rng, "float16", index)
        codec = codec_of(setting)
        for length in {0, 1, len(text) - 1, *(rng.randrange(len(text)) for _ in range(9))}:
            assert gcodec_outcome(codec, text[:length], n) is gcodec.Truncated, (
                setting,
                n,
                length,
            )
        for more in ("0", "1", "0" * 8, "1" * 100):
            assert gcodec_outcome(codec, text + more, n) is gcodec.Corrupt, (setting, n, more)
        if len(text) % 8:
            data = bytearray(universal.to_bytes(text))
            data[-1] |= 1
            with pytest.raises(gcodec.Corrupt):
                codec.decode(bytes(data), n, nbits=len(text))


@pytest.mark.parametrize(
    ("value", "head"),
    [
        ("float32", "7fc00000"),
        ("float32", "ff800000"),
        ("float16", "7c00"),
        ("float16", "fe01"),
        ("bfloat16", "ff80"),
        ("bfloat16", "7fff"),
        ("int8", "3f80000080"),
        ("int8", "7fc0000001"),
        ("int8", "7f80000000"),
        ("int8", "8000000000"),
        ("int8", "bf80000001"),
        ("int8", "7c01020401"),
        ("sign", "7f80000000"),
        ("sign", "ffc0000000"),
        ("sign", "8000000000"),
        ("sign", "bf80000080"),
    ],
)
def test_invalid_values_are_refused(value: str, head: str) -> None:
    setting, codec = Setting(value, "bitmap", 1), codec_of(Setting(value, "bitmap", 1))
    text = universal.to_text(bytes.fromhex(head))[: sparse_values.nbits(1, value)] + "010"
    assert oracle_outcome(setting, text, 3) is gcodec.Corrupt
    assert gcodec_outcome(codec, text, 3) is gcodec.Corrupt


@pytest.mark.parametrize(
    ("scale", "valid"), [(0x7C010203, True), (0x7C010204, False), (0x7F7FFFFF, False), (1, True)]
)
def test_largest_step(scale: int, valid: bool) -> None:
    text = universal.fixed(scale, 32) + "01111111" + "10"
    setting = Setting("int8", "bitmap", 1)
    wanted = oracle_outcome(setting, text, 2)
    assert gcodec_outcome(codec_of(setting), text, 2) == wanted
    assert (wanted is not gcodec.Corrupt) == valid


def frame_of(params: bytes, data: bytes, nbits: int, n: int, seek: bytes | None = None) -> bytes:
    return reference_frame.build(TOPK, 1, (n,), params, b"", data, nbits, seek=seek)


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ("", gcodec.Corrupt),  # The parameter index has no default.
        ("00", gcodec.Corrupt),
        ("0005", gcodec.Unsupported),
        ("0500", gcodec.Unsupported),
        ("0002828080808080808040", gcodec.Corrupt),  # k = 2^62 + 1
        ("0002ffffffffffffffffff01", gcodec.Corrupt),
        ("00020200000000000000e03f", gcodec.Corrupt),  # k = 1 and ratio = 0.5
        ("0002000000000000000000", gcodec.Corrupt),
        ("0002000000000000000080", gcodec.Corrupt),
        ("000200000000000000f8bf", gcodec.Corrupt),
        ("000200000000000000f83f", gcodec.Corrupt),
        ("000200000000000000f87f", gcodec.Corrupt),
        ("000200010000000000f03f", gcodec.Corrupt),
        ("000200000000000000", gcodec.Corrupt),
        ("000200000000000000f03f0000803f", gcodec.Corrupt),  # The header has a threshold.
        ("000200000000000000f03f01000000", gcodec.Corrupt),
        ("000200000000000000f03f0000000000", gcodec.Unsupported),
    ],
)
def test_wrong_parameters(params: str, error: type[gcodec.FormatError]) -> None:
    values = universal.to_bytes(universal.fixed(0x3F800000, 32) * 2 + "11")
    valid_parameters = (
        b"\0\2\3",
        b"\0\2\0\0\0\0\0\0\0\xf0\x3f",
        b"\0\2\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0",
    )
    for parameters in (*valid_parameters, b"\0\2" + leb128.encode(2**62 + 1)):
        assert gcodec.decode(frame_of(parameters, values, 66, 2)).tolist() == [1, 1]
    wrong = frame_of(bytes.fromhex(params), values, 66, 2)
    with pytest.raises(error):
        gcodec.decode(wrong)
    with pytest.raises(error):
        gcodec.decode_sparse(wrong)


@pytest.mark.parametrize("k", ["00", "02"])
def test_thresholds_in_messages_are_refused(k: str) -> None:
    data = universal.to_bytes(universal.fixed(0x3F800000, 32) + "10")
    head = f"0002{k}7b14ae47e17a843f"  # One element, by the default ratio or by k.
    for threshold in ("", "00000000", "00000080"):
        frame = frame_of(bytes.fromhex(head + threshold), data, 34, 2)
        assert gcodec.decode(frame).tolist() == [1, 0]
    for threshold in ("0000803f", "01000000", "000080bf", "0000807f", "0000c07f"):
        frame = frame_of(bytes.fromhex(head + threshold), data, 34, 2)
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode(frame)
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode_sparse(frame)


ABSURD = [
    *((value, index, 2**62) for value in VALUES for index in CODES),
    *(("sign", index, k) for index in CODES for k in (1, 30, 2**20, 2**39)),
]


@pytest.mark.parametrize("fill", [0, 255, 0x3D])
def test_absurd_numbers_cost_nothing(fill: int) -> None:
    """2^62 sent elements of 2^40, or one of 2^40, in a hundred bytes allocate nothing."""
    n = 2**40
    frames = [
        frame_of(
            reference.parameters(Setting(value, index, k)), bytes([0x3D] * 5 + [fill] * 95), 800, n
        )
        for value, index, k in ABSURD
    ]
    for frame in frames:
        with pytest.raises(gcodec.LimitExceeded):
            gcodec.decode(frame)
    tracemalloc.start()
    try:
        for frame in frames:
            with pytest.raises(gcodec.FormatError):
                gcodec.decode_sparse(frame)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# --- seek tables --------------------------------------------------------------------------------


def with_table(encoded: reference.Message, n: int, table: seek.Table) -> bytes:
    """Return a frame of the payload with a seek table."""
    params = reference.parameters(encoded.setting)
    return frame_of(params, encoded.data, encoded.nbits, n, seek.section(table))


def seekable(index: str, n: int, k: int, seed: int) -> reference.Message:
    """Return the oracle's payload of k random elements of n."""
    rng = random.Random(seed)
    places = sorted(rng.sample(range(n), k))
    x = np.zeros(n, np.float32)
    x[places] = [rng.choice([-1, 2]) for _ in places]
    return reference.write(x, places, Setting("sign", index, k))


def sizes_of(index: str) -> tuple[int, int, tuple[int, ...]]:
    """Return n, k, and log2 of blocks; Rice has no blocks of fewer than 2^12 values."""
    if index == "rice":
        return 30_000, 12_500, (12, 13, 40)
    return 1500, 170, (5, 6, 18) if index == "rans" else (0, 1, 3, 6, 62)


@pytest.mark.parametrize("index", WITH_SEEK)
def test_seek_tables(index: str) -> None:
    n, k, blocks = sizes_of(index)
    result = seekable(index, n, k, 3)
    plain = frame_of(reference.parameters(result.setting), result.data, result.nbits, n)
    values = bits(gcodec.decode(plain))
    assert values == bits(reference.decode(result.data, result.nbits, n, result.setting))
    frame = gcodec.Frame.from_bytes(plain)
    for log2_block in blocks:
        wanted = with_table(result, n, reference.seek_table(result, n, log2_block))
        assert frame.with_seek(log2_block).to_bytes() == wanted
        assert reference_frame.parse(wanted)["seek"] is not None
        assert bits(gcodec.decode(wanted)) == values
        places, sent = gcodec.decode_sparse(wanted)
        assert places.tolist() == result.places
        assert bits(sent) == [values[i] for i in result.places]


def test_short_blocks_of_rice_are_refused() -> None:
    """The decoder refuses even one short block that holds all positions."""
    result = seekable("rice", 900, 100, 3)
    table = reference.seek_table(result, 900, 12)
    for log2_block in (7, 11, 12, 13, 62, 63):
        frame = with_table(result, 900, table._replace(log2_block=log2_block))
        if 12 <= log2_block <= 62:
            assert gcodec.decode_sparse(frame)[0].tolist() == result.places
        else:
            with pytest.raises(gcodec.Corrupt):
                gcodec.decode(frame)


@pytest.mark.parametrize("index", WITH_SEEK)
def test_bits_after_the_last_block(index: str) -> None:
    n, k, blocks = sizes_of(index)
    result = seekable(index, n, k, 9)
    text = text_of(result.data, result.nbits)
    for more in ("0", "1", "1" * 40):
        extended = result._replace(
            data=universal.to_bytes(text + more), nbits=result.nbits + len(more)
        )
        table = reference.seek_table(result, n, blocks[0])
        last = [*table.lengths[:-1], table.lengths[-1] + len(more)]
        for wrong in (table, table._replace(lengths=last)):
            with pytest.raises(gcodec.Corrupt):
                gcodec.decode(with_table(extended, n, wrong))


def wrong_tables(table: seek.Table, rng: random.Random) -> Iterator[seek.Table]:
    """Yield tables with one number off by one, alone or at the cost of another number."""
    count = len(table.lengths)
    columns = [table.lengths] if table.advances is None else [table.lengths, table.advances]
    for column, i in itertools.product(range(len(columns)), range(count)):
        for by, j in itertools.product((1, -1), (None, rng.randrange(count))):
            changed = [list(numbers) for numbers in columns]
            changed[column][i] += by
            if j is not None:
                changed[column][j] -= by
            if changed != columns and min(changed[column]) >= 0:
                advances = None if table.advances is None else changed[1]
                yield table._replace(lengths=changed[0], advances=advances)
    yield table._replace(log2_block=table.log2_block + 1)
    last = None if table.advances is None else [*table.advances, 0]
    yield table._replace(lengths=[*table.lengths, 0], advances=last)
    fewer_advances = None if table.advances is None else table.advances[:-1]
    yield table._replace(lengths=table.lengths[:-1], advances=fewer_advances)
    for i in range(len(table.states or [])):
        for lane, mask in itertools.product((0, rng.randrange(32), 31), (1, 1 << 16, 1 << 31)):
            states = [list(lanes) for lanes in table.states or []]
            states[i][lane] ^= mask
            yield table._replace(states=states)


@pytest.mark.parametrize("index", WITH_SEEK)
def test_wrong_seek_tables(index: str) -> None:
    n, k, blocks = sizes_of(index)
    log2_block = 3 if 3 in blocks else blocks[0]
    result = seekable(index, n, k, 4)
    table = reference.seek_table(result, n, log2_block)
    gcodec.decode(with_table(result, n, table))
    tried = 0
    for wrong in wrong_tables(table, random.Random(2)):
        frame = with_table(result, n, wrong)
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode(frame)
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode_sparse(frame)
        tried += 1
    assert tried > 10


def test_tables_without_blocks_are_refused() -> None:
    result = seekable("bitmap", 50, 7, 5)
    for table in (seek.Table(12, [50], None), seek.Table(12, [50], [50]), seek.Table(0, [], None)):
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode(with_table(result, 50, table))
    for index in WITH_SEEK:  # No element is sent.
        empty = reference.write(np.zeros(9, np.float32), [], Setting("sign", index, 0))
        advances = None if index == "rans" else [0]
        for numbers in ([0], []):
            table = seek.Table(12, numbers, advances and advances[: len(numbers)])
            with pytest.raises(gcodec.Corrupt):
                gcodec.decode(with_table(empty, 9, table))


@pytest.mark.parametrize("index", WITH_SEEK)
def test_damage_with_a_seek_table(index: str) -> None:
    """A seek table accepts no payload that would be refused without it."""
    n, k, blocks = sizes_of(index)
    log2_block = 3 if 3 in blocks else blocks[0]
    result = seekable(index, n, k, 6)
    section = seek.section(reference.seek_table(result, n, log2_block))
    params = reference.parameters(result.setting)
    rng = random.Random(7)
    outcomes = set()
    for _ in range({"rice": 30, "rans": 40}.get(index, 150)):
        data = bytearray(result.data)
        at = rng.randrange(32 + k, result.nbits)
        data[at // 8] ^= 0x80 >> at % 8
        plain = frame_of(params, bytes(data), result.nbits, n)
        try:
            wanted = bits(gcodec.decode(plain))
        except gcodec.FormatError:
            wanted = []
        try:
            actual = bits(gcodec.decode(frame_of(params, bytes(data), result.nbits, n, section)))
        except gcodec.FormatError:
            actual = []
        # Other positions contradict the advances, unless they stay within their block.
        assert actual in (wanted, []), at
        outcomes.add(bool(actual))
    assert False in outcomes
