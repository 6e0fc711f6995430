"""Block scales of minifloats: bytes, the choice of factors, refused payloads."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
from reference import frame as reference_frame
from reference import minifloat as reference
from reference.minifloat import Setting
from reference.universal import Corrupt, Truncated

import gcodec
from gcodec.codecs.minifloat import codebooks
from gcodec.codecs.minifloat.scale_search import scaled_exactly
from gcodec.kernels.quantize import block_scales
from gcodec.kernels.quantize.float_format import FORMATS, MiniFloat

CODES = ("none", "huffman", "pair", "planes", "rans")
RNG = np.random.default_rng(5)
BLOCKY = (RNG.laplace(size=203) * np.repeat(np.exp(2 * RNG.normal(size=21)), 10)[:203]).astype(
    np.float32
)
BLOCKY[64:96] = 0


def codec_of(spec: str) -> Any:
    return gcodec.parse(f"minifloat:{spec}")


def bits(x: np.ndarray) -> list[int]:
    actual: list[int] = x.view(np.uint32).tolist()
    return actual


@pytest.mark.parametrize("scale", [1.0, 0.3, 3e-38, 1e-45, 1e30, 0.0])
def test_scales_of_all_bytes(scale: float) -> None:
    factors = np.arange(256, dtype=np.uint8)
    actual = block_scales.scales_of(np.float32(scale), factors)
    setting = Setting(block=1)
    expected = reference.scales_of(setting, float(np.float32(scale)), 256, list(range(256)))
    assert bits(actual) == bits(np.array(expected))
    if scale == 1:
        assert actual[0] == 2.0**-28 and actual[224] == 1 and actual[225] == 1.125
        assert actual[255] == 15


@pytest.mark.parametrize("name", FORMATS)
def test_messages(name: str) -> None:
    """All codes agree with the oracle, for blocks of 1, of several, and longer than the tensor."""
    wide = MiniFloat(name).width > 4
    for code in CODES:
        if code == "pair" and wide:
            continue
        for block, n in ((1, 7), (7, 61), (32, 99), (999, 31), (16, 0)):
            number = None if code == "none" else block % 3
            table = "empirical" if number is None else number
            spec = f"format={name},style=fn,code={code},table={table},block={block}"
            codec, x = codec_of(spec), BLOCKY[:n]
            payload = codec.encode(x)
            scale = float(np.float32(payload.scalars["scale"]))
            factors = payload.data[: -(-n // block)].tolist()
            setting = Setting(name, "fn", code, block)
            book = (
                None
                if number is None
                else codebooks.counts(MiniFloat(name, "fn"), number).tolist()
            )
            header = scale, 0 if number is None or not n else number + 1, book if n else None
            expected = reference.encode(x, setting, *header, factors)
            assert (payload.nbits, payload.tobytes()) == (expected.nbits, expected.data), spec
            frame = gcodec.encode(x, codec)
            parsed = reference_frame.parse(frame)
            assert parsed["params"] == reference.parameters(setting)
            wanted = reference.decode(setting, expected.data, expected.nbits, n, *header)
            assert bits(gcodec.decode(frame)) == bits(wanted)
            assert bits(codec.dequantize(codec.quantize(x), n)) == bits(wanted)
            assert bits(payload.codec.decode(payload.data, n, **payload.scalars)) == bits(wanted)
            acc = np.ones(n, np.float32)
            gcodec.decode_add(frame, acc, scale=0.7)
            assert bits(acc) == bits(np.float32(1) + np.float32(0.7) * wanted)


@pytest.mark.parametrize("name", ["e1m1", "e2m1", "e3m0", "e4m3"])
@pytest.mark.parametrize("block", [16, 10, 1])
def test_factors_have_the_least_error_of_six(name: str, block: int) -> None:
    fmt = MiniFloat(name)
    top = fmt.magnitudes()[-1]
    scale = np.float32(np.abs(BLOCKY).max() / top)
    actual = block_scales.choose_factors(BLOCKY, block, scale, top, fmt.mantissa)
    setting = Setting(name, block=block)
    assert actual.tolist() == reference.factors_for(BLOCKY, setting, float(scale))
    assert actual[64 // block + 1] == 0  # A block of zeros.


def test_block_scales_reduce_the_error() -> None:
    x = np.tile(BLOCKY, 50)
    error = {}
    for block in (0, 16, 64):
        codec = codec_of(f"block={block}")
        error[block] = float(((codec.dequantize(codec.quantize(x), x.size) - x) ** 2).sum())
    assert error[16] < error[64] < 0.7 * error[0]


@pytest.mark.parametrize("spec", ["block=32", "block=5,format=e4m3,scale=0.5", "block=16"])
def test_feedback(spec: str) -> None:
    codec, residual = codec_of(spec), np.zeros(BLOCKY.size, np.float32)
    for decay in (1.0, 0.9):
        u = BLOCKY + np.float32(decay) * residual
        symbols = codec.quantize_residual(BLOCKY, residual, decay=decay)
        assert bits(residual) == bits(u - codec.dequantize(symbols, u.size))


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.tile(BLOCKY, 6_000)
    results = set()
    for threads in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        for block in (48, 10_000):
            frame = gcodec.encode(x, f"minifloat:block={block}")
            results.add((block, frame, gcodec.decode(frame).tobytes()))
    assert len(results) == 2


@pytest.mark.parametrize("block", [1, 3])
def test_magnitudes_at_the_ends(block: int) -> None:
    largest = np.finfo(np.float32).max
    x = np.array([largest, -largest / 3, 1, 0, -0.0, 1e-44, largest], np.float32)
    for name in FORMATS:
        back = gcodec.decode(gcodec.encode(x, f"minifloat:format={name},block={block}"))
        assert (np.abs(back - x) <= np.abs(x)).all()
        assert back[0] > 0.8 * largest
        tiny = gcodec.decode(gcodec.encode(x[5:6], f"minifloat:format={name},block={block}"))
        assert abs(tiny[0] - x[5]) <= x[5]
    x[2] = np.inf
    for value in (np.inf, np.nan):
        x[2] = value
        with pytest.raises(gcodec.ParameterError, match="finite"):
            gcodec.encode(x, f"minifloat:block={block}")


def test_scales_by_rule() -> None:
    codec_of("scale=0,block=4")
    for rule in ("gennorm", "co3"):
        with pytest.raises(gcodec.ParameterError, match="scale="):
            codec_of(f"style=ieee,scale={rule},block=4")
    zeros = gcodec.Frame.from_bytes(gcodec.encode(np.zeros(9, np.float32), "minifloat:block=4"))
    assert zeros.payload.data.tolist()[:3] == [0, 0, 0] and not zeros.decode().any()
    frame = gcodec.encode(BLOCKY, "minifloat:scale=1000,block=4")
    assert gcodec.Frame.from_bytes(frame).codec.scale == 1000  # type: ignore[attr-defined]
    assert ((gcodec.decode(frame) - BLOCKY) ** 2).sum() < 0.01 * (BLOCKY**2).sum()


@pytest.mark.parametrize(
    ("scale", "data", "nbits", "n", "error"),
    [
        (1.0, "e0 e0 77 77", 32, 4, None),
        (1.0, "e0", 8, 4, Truncated),
        (1.0, "", 0, 4, Truncated),
        (1.0, "e0 e0 77", 24, 4, Truncated),
        (1.0, "e0 e0 77 77 00", 40, 4, Corrupt),
        # The scale 3e38 is finite, but its product with 12 is not.
        (2e37, "e0 ff 77 77", 32, 4, Corrupt),
        # Decoding refuses an infinite magnitude even if no element has its code.
        (2e37, "e0 f0 10 00", 32, 4, Corrupt),
        (2e37, "e0 e0 77 77", 32, 4, None),
        (3e-38, "00 00 77 77", 32, 4, None),
    ],
)
def test_hostile_bytes(scale: float, data: str, nbits: int, n: int, error: Any) -> None:
    payload, setting = bytes.fromhex(data), Setting("e2m1", "full", "none", 2)
    params, scalars = reference.parameters(setting), struct.pack("<f", scale) + b"\0"
    frame = reference_frame.build(8, 1, (n,), params, scalars, payload, nbits)
    value = float(np.float32(scale))
    if error is None:
        expected = reference.decode(setting, payload, nbits, n, value)
        assert bits(gcodec.decode(frame)) == bits(expected)
        return
    with pytest.raises(getattr(gcodec, error.__name__)):
        gcodec.decode(frame)
    with pytest.raises(error):
        reference.decode(setting, payload, nbits, n, value)


def test_seek_tables() -> None:
    x = np.tile(BLOCKY, 40)
    for code in ("huffman", "pair", "planes", "rans"):
        frame = gcodec.encode(x, f"minifloat:code={code},block=100")
        for log2 in (5, 12):
            with_seek = gcodec.Frame.from_bytes(frame).with_seek(log2).to_bytes()
            reference_frame.parse(with_seek)
            assert bits(gcodec.decode(with_seek)) == bits(gcodec.decode(frame))


@pytest.mark.parametrize("fmt", [MiniFloat("e2m1", "full"), MiniFloat("e5m2", "ieee")], ids=str)
def test_scales_take_over_factors_only_without_rounding(fmt: MiniFloat) -> None:
    """Codes times the product of scale and factor are the values times the factor."""
    magnitudes, taken = fmt.magnitudes().astype(np.float32), set()
    octaves = [*range(-149, -100, 4), *range(-20, 20, 7), *range(90, 110, 3)]
    factors = np.float32([0.5, 1, 2, 0.75, -2, 0, 2.0**-60, 2.0**60, np.inf])
    for octave, more, factor in itertools.product(octaves, (1, 1.3), factors):
        one = np.float32(2.0**octave * more)
        with np.errstate(all="ignore"):
            values = one * magnitudes
            products = factor * values
            ends = np.concatenate([values[1:], products[1:]])
            is_normal = np.isfinite(ends).all() and (ends >= 2.0**-126).all()
        scale = scaled_exactly(float(one), factor, fmt)
        is_octave = np.isfinite(factor) and math.frexp(factor)[0] == 0.5
        assert (scale is not None) == bool(is_octave and is_normal)
        taken.add(scale is not None)
        if scale is not None:
            assert (scale * magnitudes == products).all()
    assert taken == {True, False}
