"""terngrad: its scale, the three packs, and refused inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import f32
from sweeps import thinned

import gcodec
from gcodec import Corrupt, FormatError, ParameterError, Truncated
from gcodec.kernels.bits.pack import pack_fields
from gcodec.kernels.numeric.philox import words
from gcodec.kernels.quantize import ternary

PACKS = ("chapter", "terngrad", "base3")


def terngrad(**values: Any) -> Any:
    return gcodec.parse({"name": "terngrad", **values})


# --- the scale ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.5, 1.0, 2.5, 1e30])
@pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 1e-30, 1.0, 1e30, 1e38])
def test_constant_tensors_and_single_elements_are_sent(clip: float, magnitude: float) -> None:
    codec = terngrad(clip=clip)
    for n in (1, 2, 31, 1000, 4097):
        x = np.full(n, -magnitude, np.float32)
        assert np.float32(codec.scale_of(x)) == np.float32(magnitude)
        assert gs.same_bits(codec.decode(codec.encode(x, seed=n), n), x)
    if magnitude < 1e-40:
        return  # Neighboring subnormals differ by a tenth.
    almost = np.full(999, magnitude, np.float32)
    almost[::2] = np.nextafter(almost[0], np.float32(0))
    assert np.float32(codec.scale_of(almost)) == np.float32(magnitude)


@given(gs.gradients(large=True, modest=True), st.sampled_from([0.5, 1.0, 2.5, 100.0]))
def test_scale_is_a_multiple_of_the_deviation(x: np.ndarray, clip: float) -> None:
    codec = terngrad(clip=clip)
    actual, largest = codec.scale_of(x), float(np.abs(x).max(initial=0))
    assert actual == codec.quantize(x).scale == codec.encode(x).scalars["scale"]
    assert type(actual) is float
    assert 0 <= actual <= largest or np.float32(actual) == np.float32(largest)
    deviation = float(x.astype(np.float64).std()) if x.size else 0.0
    if deviation > 1e-4 * largest:
        assert actual == pytest.approx(min(largest, clip * deviation), rel=1e-6)
    assert np.float32(terngrad(clip=0).scale_of(x)) == np.float32(largest)


def test_scale_of_empty_and_zero_tensors() -> None:
    for clip in (0, 2.5):
        for x in (np.zeros(0, np.float32), np.zeros(40, np.float32), f32(-0.0)):
            payload = terngrad(clip=clip).encode(x)
            assert payload.scalars == {"scale": 0.0}
            decoded = terngrad().decode(payload, x.size)
            assert gs.same_bits(decoded, np.zeros(x.size, np.float32))


def test_scale_is_equivariant() -> None:
    """A power of two rounds nothing, so the scale follows it and the codes stay the same."""
    x = np.random.default_rng(5).standard_normal(1000, np.float32)
    for spec in ("terngrad", "terngrad:clip=0.5", "terngrad:clip=0"):
        codec: Any = gcodec.parse(spec)
        one = codec.encode(x, seed=4)
        for power in (-100, -20, 20, 100):
            other = codec.encode(x * np.float32(2.0**power), seed=4)
            factor = np.float32(2.0**power)
            assert np.float32(other.scalars["scale"]) == factor * np.float32(one.scalars["scale"])
            assert other.tobytes() == one.tobytes()


def test_clips_beyond_float32() -> None:
    x = np.random.default_rng(5).standard_normal(100, np.float32)
    for clip, size in ((3e38, 10), (3e38, 1e30), (1.0, 1e38), (1e-45, 1e-30)):
        y = np.clip(x, -3, 3) * np.float32(size)
        scale = terngrad(clip=clip).scale_of(y)
        assert 0 < np.float32(scale) <= np.abs(y).max()


def test_explicit_scale_is_stored_and_clips() -> None:
    codec, x = terngrad(), f32(1, -2, 0.5, 0, 3, -0.25)
    for scale in (1.0, 0.75, 8, np.float32(0.1), 0.1, 1e30, 1e-45, 3.4028235e38):
        symbols = codec.quantize(x, seed=3, scale=scale)
        assert np.float32(symbols.scale) == np.float32(scale)
        payload = codec.encode(x, seed=3, scale=scale)
        assert payload.scalars == {"scale": symbols.scale}
        decoded = codec.decode(payload, 6)
        assert set(np.abs(decoded).tolist()) <= {0.0, float(np.float32(scale))}
        reached = np.abs(x) >= np.float32(scale)
        assert gs.same_bits(decoded[reached], np.copysign(np.float32(scale), x[reached]))
    zeros = np.zeros(7, np.float32)
    assert codec.encode(zeros, scale=0).scalars == {"scale": 0.0}
    assert codec.encode(zeros[:0], scale=3).scalars == {"scale": 3.0}
    own = codec.scale_of(x)
    assert codec.encode(x, seed=9, scale=own).tobytes() == codec.encode(x, seed=9).tobytes()


@pytest.mark.parametrize(
    "scale",
    [-1, -1e-45, math.nan, math.inf, -math.inf, 0, -0.0, 1e39, 1e-60, True, "1", 1j, [1.0], b"1"],
    ids=repr,
)
def test_wrong_scales_are_refused(scale: Any) -> None:
    codec = terngrad()
    for call in (codec.quantize, codec.encode):
        with pytest.raises(ParameterError, match="scale"):
            call(f32(1, 2), scale=scale)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 40, 5000])
def test_nan_and_inf_are_refused_with_explicit_scale(value: float, n: int) -> None:
    x = np.ones(n, np.float32)
    x[n // 2] = value
    for codec in (terngrad(), terngrad(clip=0)):
        for call in (
            lambda codec=codec: codec.scale_of(x),
            lambda codec=codec: codec.encode(x, scale=1.0),
            lambda codec=codec: gcodec.encode(x, codec, nonfinite="propagate"),
        ):
            with pytest.raises(ParameterError, match="NaN or Inf"):
                call()
        zeroed = gcodec.decode(gcodec.encode(x, codec, nonfinite="zero"))
        assert not zeroed[n // 2] and np.isfinite(zeroed).all()


# --- the packs ----------------------------------------------------------------------------------


@given(gs.gradients(large=True), gs.seeds(), st.sampled_from([0, 0.5, 2.5]))
def test_packings_decode_alike(x: np.ndarray, seed: int, clip: float) -> None:
    results = []
    for pack in PACKS:
        codec = terngrad(clip=clip, pack=pack)
        payload = codec.encode(x, seed=seed)
        n = x.size
        nbytes = {"chapter": -(-n // 4), "terngrad": n // 4 + 1, "base3": -(-n // 5)}[pack]
        assert len(payload.tobytes()) == nbytes
        assert payload.nbits == 8 * nbytes == codec.max_payload_nbits(n)
        results.append((payload.scalars["scale"], codec.decode(payload, n).tobytes()))
    assert len(set(results)) == 1


def test_examples() -> None:
    x = f32(1, 0, -1, 0, 1)
    for pack, expected in (("chapter", "2101"), ("terngrad", "6285"), ("base3", "64")):
        codec = terngrad(clip=0, pack=pack)
        assert codec.encode(x).tobytes().hex() == expected
        bare = codec.decode(bytes.fromhex(expected), 5, scale=0.25)
        assert gs.same_bits(bare, x * np.float32(0.25))


def test_symbols_of_another_packing_are_refused() -> None:
    symbols = {pack: terngrad(pack=pack).quantize(np.ones(64, np.float32)) for pack in PACKS}
    for pack in PACKS:
        for other in PACKS:
            if pack != other:
                with pytest.raises(ParameterError, match="symbols"):
                    terngrad(pack=pack).dequantize(symbols[other], 64)


# --- refused inputs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"clip": -1}, r"clip=-1: must be a finite number from 0"),
        ({"clip": math.nan}, r"clip=nan: must be a finite number from 0"),
        ({"clip": math.inf}, r"clip=inf: must be a finite number from 0"),
        ({"clip": 1e39}, "clip=1e[+]39"),
        ({"clip": True}, "clip=True"),
        ({"clip": "2.5"}, "clip='2.5'"),
        ({"clip": 1j}, "clip=1j"),
        ({"pack": "base4"}, "pack='base4': must be one of chapter, terngrad, base3"),
        ({"pack": 3}, "pack=3: must be one of chapter"),
        ({"packing": "base3"}, "packing='base3'"),
        ({"scale": 1.0}, "scale=1.0: terngrad has the parameters clip, pack"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        terngrad(**values)


CODE_11 = [
    *(("chapter", "03", 1), ("chapter", "c0", 4), ("chapter", "00000030", 15)),
    *(("terngrad", "13", 1), ("terngrad", "000000ff", 12), ("terngrad", "c0", 3)),
]


@pytest.mark.parametrize(("pack", "raw", "n"), CODE_11, ids=str)
def test_the_code_11_is_refused(pack: str, raw: str, n: int) -> None:
    with pytest.raises(Corrupt):
        terngrad(pack=pack).decode(bytes.fromhex(raw), n, scale=1.0)


@pytest.mark.parametrize("byte", range(243, 256))
def test_bytes_above_242_are_refused(byte: int) -> None:
    codec = terngrad(pack="base3")
    assert codec.decode(bytes([242, 242]), 10, scale=1.0).tolist() == [-1.0] * 10
    for raw in (bytes([byte, 0]), bytes([0, byte])):
        with pytest.raises(Corrupt, match="242"):
            codec.decode(raw, 10, scale=1.0)


@pytest.mark.parametrize("pack", ["base3", "rans", "context"])
@pytest.mark.parametrize("at", [0, 7])
def test_bytes_of_symbols_above_242_are_refused(pack: str, at: int) -> None:
    """The table of five codes has 243 entries."""
    codec: Any = gcodec.parse(f"terngrad:pack={pack}")
    symbols = codec.quantize(np.ones(40, np.float32))
    for byte in (243, 255):
        symbols.codes[at] = byte
        for call in (codec.pack, lambda symbols: codec.dequantize(symbols, 40)):
            with pytest.raises(ParameterError, match="symbols: bytes of five codes must be below"):
                call(symbols)
    symbols.codes[at] = 242
    assert (codec.dequantize(symbols, 40)[5 * at : 5 * at + 5] == -symbols.scale).all()


def test_only_unclipped_values_are_unbiased() -> None:
    assert gcodec.parse("terngrad:clip=0").unbiased
    assert not any(gcodec.parse(f"terngrad:clip={clip}").unbiased for clip in (0.5, 2.5, 100.0))


def test_symbols_of_another_shape_are_refused() -> None:
    """The contexts of a code are its neighbors in the tensor, so each code needs its place."""
    codec = terngrad(pack="context")
    symbols = codec.quantize(np.ones((4, 25), np.float32))
    for shape in (None, (95,), (4, 26)):
        with pytest.raises(ParameterError, match=r"^symbols\.shape=.*: must be the shape of the"):
            codec.pack(symbols._replace(shape=shape))


def test_variance_of_unclipped_values() -> None:
    """The bound (√n − 1)/2 is reached, by one value s and others of 1/(1 + √n) of it each."""
    codec = terngrad(clip=0)
    assert codec.variance(0) == codec.variance(1) == 0
    x = np.full(10**4, 1 / 101)
    x[0] = 1
    expected = (np.abs(x) * (1 - np.abs(x))).sum() / (x @ x)
    assert codec.variance(x.size) == 49.5 == pytest.approx(expected, rel=0.01)
    assert terngrad(clip=2.5).variance(x.size) is None


@pytest.mark.parametrize("pack", PACKS)
def test_pad_codes(pack: str) -> None:
    """In the padding of the last byte, the decoder accepts one value only."""
    codec = terngrad(clip=0, pack=pack)
    for n in (1, 2, 3, 4, 5, 8, 9, 23):
        raw = codec.encode(np.resize(f32(1, -1, 0), n), seed=1).tobytes()
        accepted = 0
        for at in range(max(len(raw) - 4, 0), len(raw)):
            for value in range(256) if at == len(raw) - 1 else thinned(range(256), 7):
                other = bytearray(raw)
                other[at] = value
                try:
                    decoded = codec.decode(other, n, scale=1.0)
                except FormatError:
                    continue
                accepted += 1
                assert codec.encode(decoded, scale=1.0).tobytes() == bytes(other)
        assert accepted


@pytest.mark.parametrize("pack", PACKS)
def test_wrong_lengths_are_refused(pack: str) -> None:
    codec = terngrad(pack=pack)
    payload = codec.encode(np.ones(23, np.float32))
    raw = payload.tobytes()
    for k in range(len(raw)):
        with pytest.raises(Truncated):
            codec.decode(raw[:k], 23, scale=1.0)
    with pytest.raises(Corrupt):
        codec.decode(raw + b"\0", 23, scale=1.0)
    for nbits in range(8 * len(raw) - 7, 8 * len(raw)):
        with pytest.raises(Corrupt):
            codec.decode(raw, 23, nbits=nbits, scale=1.0)
        with pytest.raises(Corrupt):
            codec.decode(payload._replace(nbits=nbits), 23)
    for scale in (-1.0, math.nan, math.inf, "1", True):
        with pytest.raises(ParameterError, match="scale"):
            codec.decode(raw, 23, scale=scale)
    with pytest.raises(ParameterError, match="scale"):
        codec.decode(raw, 23)


@given(st.binary(min_size=4, max_size=4))
def test_hostile_scales(raw: bytes) -> None:
    codec = terngrad()
    value = np.frombuffer(raw, "<f4")[0]
    if np.isfinite(value) and value >= 0:
        assert np.float32(codec.read_scalars(memoryview(raw))["scale"]) == value
        return
    with pytest.raises(Corrupt, match=r"scale: .*a finite number from 0 on"):
        codec.read_scalars(memoryview(raw))


def test_codes_with_scale_zero_are_accepted() -> None:
    assert terngrad().decode(b"\x09", 3, scale=0).tolist() == [0.0, -0.0, 0.0]


@given(gs.gradients(large=True, modest=True), gs.seeds())
def test_elements_keep_sign_and_stay_within_scale(x: np.ndarray, seed: int) -> None:
    assume(x.size)
    payload = terngrad().encode(x, seed=seed)
    decoded = terngrad().decode(payload, x.size)
    assert set(np.abs(decoded).tolist()) <= {0.0, float(np.float32(payload.scalars["scale"]))}
    assert np.all(decoded * x >= 0)
    assert not np.signbit(decoded[decoded == 0]).any()


def test_elements_beyond_the_lower_half_of_the_counter() -> None:
    """The upper half of the counter changes within one call."""
    n, start = 256, 2**34 - 96
    x = np.random.default_rng(5).standard_normal(n).astype(np.float32)
    packed, left = np.empty(n // 4, np.uint8), x.copy()
    numbers = np.float32(2), np.float32(2), np.uint64(9), np.uint64(start)
    ternary._chapter_blocks(False)(x, *numbers, packed)
    of_left = packed.copy()
    ternary._chapter_blocks(True)(left, *numbers, of_left)
    assert np.array_equal(packed, of_left)
    r = np.minimum(np.abs(x) / np.float32(2), np.float32(1))
    bound = np.floor(r.astype(np.float64) * 2**31)
    sent = (words(9, start, n) >> np.uint32(1)) < bound
    codes = np.where(sent, np.where(x < 0, 2, 1), 0).astype(np.uint8)
    assert np.array_equal(packed, pack_fields(codes, ternary.CHAPTER))
    assert np.array_equal(left, x - np.where(sent, np.copysign(np.float32(2), x), 0))
