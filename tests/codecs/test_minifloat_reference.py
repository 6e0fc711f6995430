"""minifloat against an oracle written from the specification: bytes, values, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from outcomes import outcome
from reference import minifloat as reference
from reference.minifloat import Setting
from sweeps import LONG, thinned

import gcodec
from gcodec.codecs.minifloat import codebooks
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat

CODES = ("none", "huffman", "pair", "planes", "rans")
FORMATS_AND_STYLES = [(f, s) for f in FORMATS for s in STYLES]


def codes_for(name: str) -> list[str]:
    wide = MiniFloat(name).width > 4
    return [code for code in CODES if code != "pair" or not wide]


def codebook_counts(fmt: MiniFloat, number: int) -> list[int]:
    """Return the counts of a codebook, by code."""
    counts = codebooks.counts(fmt, number)
    return counts.tolist()


def codec_of(setting: Setting, scale: float, number: int | None) -> gcodec.Codec:
    table: Any = "empirical" if number is None else number
    return gcodec.codecs()["minifloat"](
        format=setting.format, style=setting.style, scale=scale, code=setting.code, table=table
    )


def table_arguments(fmt: MiniFloat, number: int | None) -> tuple[int, list[int] | None]:
    """Return the table number and the counts for the oracle."""
    return (0, None) if number is None else (number + 1, codebook_counts(fmt, number))


@outcome
def gcodec_outcome(codec: gcodec.Codec, data: bytes, nbits: int, n: int) -> Any:
    """Return the bits of gcodec's decoded values, or the type of its error."""
    return codec.decode(data, n, nbits=nbits).view(np.uint32).tolist()


@outcome
def oracle_outcome(
    setting: Setting, data: bytes, nbits: int, n: int, fmt: MiniFloat, number: int | None
) -> Any:
    """Return the bits of the oracle's decoded values, or the type of its error."""
    values = reference.decode(setting, data, nbits, n, 0.5, *table_arguments(fmt, number))
    return values.view(np.uint32).tolist()


def tensors(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    laplace = rng.laplace(size=67).astype(np.float32)
    special = np.array([0, -0.0, 1e-45, -1e-40, 3e38, -3e38, 0.25, 0.75, -1.25], np.float32)
    return [laplace, special, np.full(20, 0.5, np.float32), laplace[:1], laplace[:2], special[:0]]


@pytest.mark.parametrize(("name", "style"), FORMATS_AND_STYLES)
def test_messages(name: str, style: str) -> None:
    """Payloads agree with the oracle's, except for frequencies of rANS, which are free."""
    fmt = MiniFloat(name, style)
    for code in codes_for(name):
        setting = Setting(name, style, code)
        numbers = (None,) if code == "none" else (None, 0, codebooks.number_of(fmt) - 1)
        cases = list(itertools.product(enumerate(tensors(FORMATS.index(name))), numbers))
        turn = CODES.index(code) + STYLES.index(style) + FORMATS.index(name)
        for (at, x), number in thinned(cases[turn:] + cases[:turn], 4):
            scale = float(np.float32((0.5, 0.3, 1e-30)[at % 3]))
            expected = reference.encode(x, setting, scale, *table_arguments(fmt, number))
            codec = codec_of(setting, scale, number if x.size else None)
            payload = codec_of(setting, scale, number).encode(x)
            assert payload.codec == codec
            if code != "rans" or number is not None:
                assert payload.nbits == expected.nbits
                assert payload.tobytes() == expected.data
            wanted = reference.dequantize(expected.codes, setting, scale)
            for data, nbits in (
                (expected.data, expected.nbits),
                (payload.tobytes(), payload.nbits),
            ):
                back = codec.decode(data, x.size, nbits=nbits)
                assert back.view(np.uint32).tolist() == wanted.view(np.uint32).tolist()
                assert codec.decode(data, x.size).tolist() == wanted.tolist()
            again = reference.decode(
                setting,
                payload.tobytes(),
                payload.nbits,
                x.size,
                scale,
                *table_arguments(fmt, number),
            )
            assert again.view(np.uint32).tolist() == wanted.view(np.uint32).tolist()


SHORT_PAYLOADS = [
    *((Setting("e1m1", "full", code), 3) for code in CODES[:4]),
    *((Setting("e2m1", "ieee", code), 0) for code in CODES[:4]),
    *((Setting("e3m0", "fn", code), 11) for code in CODES[:4]),
    *((Setting("e4m3", "fn", code), 1) for code in ("none", "huffman", "planes")),
]


@pytest.mark.parametrize(("setting", "number"), SHORT_PAYLOADS, ids=str)
def test_every_short_payload(setting: Setting, number: int) -> None:
    """Both agree on all payloads of up to 6 or 7 bits and three elements, with a codebook."""
    fmt = MiniFloat(setting.format, setting.style)
    book_number = None if setting.code == "none" else number
    codec = codec_of(setting, 0.5, book_number)
    for nbits in range(8 if LONG else 7):
        for value in range(1 << nbits):
            data = (value << -nbits % 8).to_bytes(-(-nbits // 8), "big")
            for n in range(4):
                actual = gcodec_outcome(codec, data, nbits, n)
                expected = oracle_outcome(setting, data, nbits, n, fmt, book_number)
                assert actual == expected, (data.hex(), nbits, n)


def test_every_table_of_three_codes() -> None:
    """Both agree on all 2^12 tables of lengths of three codewords, with a few more bits."""
    setting, fmt = Setting("e1m1", "ieee", "huffman"), MiniFloat("e1m1", "ieee")
    codec = codec_of(setting, 0.5, None)
    valid_count = 0
    for table in range(1 << 12):
        data = (table << 4 | 0b0100).to_bytes(2, "big")
        for n, nbits in ((2, 15), (3, 14)):
            cut = data[:1] + bytes([data[1] & 0xFF << 16 - nbits & 0xFF])
            actual = gcodec_outcome(codec, cut, nbits, n)
            assert actual == oracle_outcome(setting, cut, nbits, n, fmt, None), cut.hex()
            valid_count += isinstance(actual, list)
    assert valid_count == 3


@pytest.mark.parametrize(
    "setting",
    [
        Setting("e1m1", "ieee", "rans"),
        Setting("e2m1", "full", "rans"),
        Setting("e1m1", "fn", "pair"),
    ],
    ids=str,
)
def test_flipped_bits_and_other_lengths(setting: Setting) -> None:
    fmt = MiniFloat(setting.format, setting.style)
    codec = codec_of(setting, 0.5, None)
    x = np.random.default_rng(4).laplace(size=45).astype(np.float32)
    payload = codec.encode(x)
    data, nbits = bytearray(payload.tobytes()), payload.nbits
    for at in thinned(range(nbits), 3):
        data[at // 8] ^= 0x80 >> at % 8
        actual = gcodec_outcome(codec, bytes(data), nbits, x.size)
        assert actual == oracle_outcome(setting, bytes(data), nbits, x.size, fmt, None), at
        data[at // 8] ^= 0x80 >> at % 8
    for length in range(0, nbits, 5):
        cut = bytearray(data[: -(-length // 8)])
        if length % 8:
            cut[-1] &= 0xFF << 8 - length % 8 & 0xFF
        actual = gcodec_outcome(codec, bytes(cut), length, x.size)
        assert actual == oracle_outcome(setting, bytes(cut), length, x.size, fmt, None), length


@pytest.mark.parametrize("decay", [0.9, 0.7, 1.0])
@pytest.mark.parametrize("scale", ["histogram", "co3", 0.5])
def test_algorithm_one(decay: float, scale: float | str) -> None:
    """Feedback follows lines 8 to 10 of CO3 bit for bit: e = g + γm, x̂ = Q(e), m = e − x̂."""
    setting, n = Setting("e2m1", "ieee", "none"), 130
    spec = gcodec.parse("minifloat:style=ieee").replaced(scale=scale)
    feedback = gcodec.Feedback(spec, decay=decay)
    memory, gamma = np.zeros(n, np.float32), np.float32(decay)
    rng = np.random.default_rng(7)
    for step in range(50 if LONG else 15):
        grad = (rng.laplace(size=n) * (1 + step % 3)).astype(np.float32)
        frame = gcodec.Frame.from_bytes(feedback.compress("w", grad))
        error = grad + gamma * memory
        delta = float(frame.codec.scale)  # type: ignore[attr-defined]
        sent = reference.dequantize(reference.quantize(error, setting, delta), setting, delta)
        memory = error - sent
        assert frame.decode().view(np.uint32).tolist() == sent.view(np.uint32).tolist()
        residual = feedback.residual("w")
        assert residual.view(np.uint32).tolist() == memory.view(np.uint32).tolist()
