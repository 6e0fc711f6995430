"""The codec sparseloco: tiles, selection, bins, bytes, conversion to Templar, damaged bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import sparseloco as reference
from sweeps import examples

import gcodec
from gcodec import Corrupt, FormatError, ParameterError, Truncated
from gcodec.codecs import sparseloco
from gcodec.codecs.sparseloco import SparseLoCo, Tiles
from gcodec.interop import templar

SHAPES = ((1,), (2,), (7,), (64,), (500,), (1, 9), (6, 12), (17, 31), (12, 130), (4, 3, 2, 5), ())


def codec_of(setting: reference.Setting, **values: Any) -> Any:
    return SparseLoCo.from_mapping({**setting._asdict(), **values})


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    """Draw values of all magnitudes with many equal ones, in shapes with small and prime sides."""
    shape = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["laplace", "ties", "constant", "wide", "tiny", "large"]))
    x = rng.laplace(size=shape)
    if kind == "ties":
        x = np.rint(x)
    if kind == "constant":
        x = np.full(shape, -0.3)
    if kind == "wide":
        x = x * np.exp2(rng.integers(-140, 100, shape))
    if kind == "tiny":
        x = x * 2.0**-146
    if kind == "large":
        x = np.sign(x) * 2.0**126
    return np.asarray(x, np.float32)


@st.composite
def parameters(draw: st.DrawFn) -> reference.Setting:
    index = draw(st.sampled_from(["eliasfano", "bitmap", "huffman"]))
    sizes = draw(st.sampled_from([(2, 4), (1, 8), (5, 3), (64, 64), (65536, 256), (8, 2)]))
    bins = draw(st.sampled_from([2, 3, 4, 5, 16, 17, 200, 256]))
    return reference.Setting(*sizes, bins, index, draw(st.sampled_from(["none", "huffman"])))


@given(tensors(), parameters(), st.sampled_from([6.0, 1.0, 0.01, 1e30]))
@examples(80)
def test_oracle(x: np.ndarray, setting: reference.Setting, sigmas: float) -> None:
    codec = codec_of(setting, sigmas=sigmas)
    payload = codec.encode(x)
    message = reference.encode(x.reshape(-1), x.shape, setting, sigmas)
    assert (payload.tobytes(), payload.nbits) == reference.write(message, x.size)
    decoded = codec.decode(payload, x.shape)
    assert np.array_equal(decoded.reshape(-1), reference.values(message, x.shape))
    error = float(np.square(decoded.astype(float) - x).sum())
    assert error <= float(np.square(x.astype(float)).sum()) * (1 + 1e-6)


@given(tensors(), parameters(), st.sampled_from(["rice", "rans"]))
@examples(40)
def test_free_codes(x: np.ndarray, setting: reference.Setting, index: str) -> None:
    """Parameters and frequencies are up to an encoder, so the oracle only reads these codes."""
    setting = setting._replace(index=index)
    payload = codec_of(setting).encode(x)
    message = reference.read(payload.tobytes(), payload.nbits, x.shape, setting)
    assert message == reference.encode(x.reshape(-1), x.shape, setting)


@given(tensors(), parameters())
@examples(30)
def test_automatic_codes_are_the_shortest(x: np.ndarray, setting: reference.Setting) -> None:
    """Equally frequent bins need no codewords, and a table costs bits."""
    shortest, *others = (
        codec_of(setting, code=code, index=setting.index).encode(x).nbits
        for code in ("auto", "none", "huffman")
    )
    assert shortest == min(others)


def test_symbols_of_another_tensor_are_refused() -> None:
    codec: Any = gcodec.parse("sparseloco:k=2,chunk=4")
    symbols = codec.quantize(np.arange(1, 17, dtype=np.float32))
    last = symbols.positions.copy()
    last[-1] = 16
    for n, changes in (
        (15, {}),
        (16, {"n": 15}),
        (16, {"positions": symbols.positions[:-1]}),
        (16, {"bins": symbols.bins[:-1]}),
        (16, {"positions": last}),
        (16, {"positions": np.roll(symbols.positions, 1)}),
        (16, {"positions": symbols.positions // 4 * 4}),
    ):
        with pytest.raises(ParameterError, match=r"^symbols"):
            codec.dequantize(symbols._replace(**changes), n)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [2, 3, 64, 256])
def test_tiles(shape: tuple[int, ...], chunk: int) -> None:
    tiles, expected = Tiles.of(shape, chunk), reference.tiles(shape, chunk)
    assert (tiles.total, tiles.size) == (len(expected), len(expected[0]))
    n = math.prod(shape)
    assert tiles.cut(np.arange(n, dtype=np.float32)).astype(int).tolist() == expected
    flat = [element for tile in expected for element in tile]
    assert tiles.elements(np.arange(n)).tolist() == flat


def test_bits_of_a_sent_value() -> None:
    """The information for which Templar sends 20 bits takes fewer than 9."""
    x = np.random.default_rng(1).laplace(size=(512, 768)).astype(np.float32)
    payload = gcodec.parse("sparseloco").encode(x)
    sent = 64 * 96
    assert 8.4 < payload.nbits / sent < 8.9
    message = templar.encode(x)
    assert 8 * (message["idxs"].nbytes + message["vals"].nbytes) == 20 * sent


@pytest.mark.parametrize("bins", [2, 3, 4, 16, 255, 256])
@pytest.mark.parametrize("unit", [1.0, 1e-40, 1e-30, 1e37])
def test_bins_and_their_means_equal_those_of_whole_arrays(bins: int, unit: float) -> None:
    """Of more values than are binned at a time."""
    x = np.random.default_rng(bins).laplace(size=600_000)
    with np.errstate(under="ignore"):
        x = (x * unit).astype(np.float32)
    codes, (shift, scale, *means) = sparseloco.binned(x, bins, 6.0)
    with np.errstate(under="ignore", over="ignore"):
        centered = x - shift
        numbers = np.rint(centered / scale + np.float32(bins // 2))
    expected = np.clip(numbers, 0, bins - 1).astype(np.uint8)
    np.testing.assert_array_equal(codes, expected)
    assert set(codes) >= {0, bins // 2, bins - 1}
    sums = np.bincount(expected, centered.astype(np.float64), bins)  # in order
    in_order = sums / np.maximum(np.bincount(expected, minlength=bins), 1)
    np.testing.assert_array_equal(np.float32(means), in_order.astype(np.float32))


@pytest.mark.parametrize("shape", [(96,), (24, 16), (128, 192)])
@pytest.mark.parametrize("bins", [2, 4, 64])
def test_frames_contain_the_messages_of_templar(shape: tuple[int, ...], bins: int) -> None:
    x = np.random.default_rng(2).laplace(size=shape).astype(np.float32)
    message = templar.encode(x, k=8, chunk=16, bins=bins)
    frame = templar.to_frame(message, shape, chunk=16, name="w")
    assert np.array_equal(
        gcodec.decode(frame.to_bytes()), templar.decode(message, shape, chunk=16)
    )
    again = templar.from_frame(frame)
    assert np.array_equal(again["idxs"], message["idxs"])
    assert np.array_equal(again["vals"], message["vals"])
    for one, other in zip(again["quant_params"], message["quant_params"], strict=True):
        assert np.array_equal(one, other)
    encoded = gcodec.encode(x, f"sparseloco:k=8,chunk=16,bins={bins}", name="w")
    assert encoded == frame.to_bytes()


def test_conversions_that_are_refused() -> None:
    x = np.random.default_rng(2).laplace(size=(8, 16)).astype(np.float32)
    plain = templar.encode(x, k=2, chunk=4, bins=None)
    with pytest.raises(ParameterError, match="must have bins"):
        templar.to_frame(plain, x.shape, chunk=4)
    message = templar.encode(x, k=2, chunk=4)
    shift, scale, offset, lookup, dtype = message["quant_params"]
    for wrong in (
        (shift, scale, offset + 1, lookup, dtype),
        (shift, math.nan, offset, lookup, dtype),
        (shift, scale, 0, lookup[:1], dtype),
    ):
        with pytest.raises(FormatError):
            templar.to_frame({**message, "quant_params": wrong}, x.shape, chunk=4)
    for spec, tensor in (
        ("sparseloco:k=1,chunk=4", x),
        ("sparseloco:chunk=256", np.ones((128, 128), np.float32)),
        ("sparseloco:chunk=4", np.ones((2, 2, 2), np.float32)),
        ("topk", x),
    ):
        with pytest.raises(ParameterError):
            templar.from_frame(gcodec.encode(tensor, spec))


def test_damaged_payloads() -> None:
    x = np.random.default_rng(3).laplace(size=(12, 16)).astype(np.float32)
    for spec in ("sparseloco:k=6,chunk=4,bins=3", "sparseloco:k=6,chunk=4,code=huffman,bins=5"):
        codec = gcodec.parse(spec + ",index=rice")
        payload = codec.encode(x)
        size = len(payload.tobytes())
        for at in range(8 * size):
            data = bytearray(payload.tobytes())
            data[at // 8] ^= 0x80 >> at % 8
            damaged = payload._replace(data=np.frombuffer(bytes(data), np.uint8))
            try:
                decoded = codec.decode(damaged, x.shape)
            except FormatError:
                continue
            assert np.isfinite(decoded).all()
            assert np.count_nonzero(decoded.reshape(3, 4, 4, 4).swapaxes(1, 2).any((2, 3))) == 12
        for nbits in range(payload.nbits):
            cut = payload._replace(data=payload.data[: -(-nbits // 8)], nbits=nbits)
            with pytest.raises(FormatError):
                codec.decode(cut, x.shape)


def test_positions_of_another_tile_are_refused() -> None:
    setting = reference.Setting(2, 4, 2)
    x = np.arange(1, 17, dtype=np.float32)
    message = reference.encode(x, (16,), setting)
    for places in ([0, 1, 2, 6, 8, 9, 12, 13], [0, 1, 4, 5, 8, 9, 10, 13]):
        data, nbits = reference.write(message._replace(places=places), 16)
        with pytest.raises(Corrupt, match="tile"):
            codec_of(setting).decode(data, 16, nbits=nbits)
    for numbers in ([math.inf, 1, 0, 0], [0, math.inf, 0, 0], [0, 1, 0, -math.inf]):
        data, nbits = reference.write(message._replace(numbers=numbers), 16)
        with pytest.raises(Corrupt, match="not finite"):
            codec_of(setting).decode(data, 16, nbits=nbits)
    with pytest.raises(Truncated):
        codec_of(setting).decode(data[:10], 16, nbits=80)


def test_bits_after_the_last_bin_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = sparseloco.pack_fields

    def pack_with_a_one(bins: np.ndarray, layout: Any) -> np.ndarray:
        data = pack(bins, layout)
        data[-1] |= 1
        return data

    codec = gcodec.parse("sparseloco:k=1,chunk=4,code=huffman,bins=4")
    x = np.random.default_rng(0).standard_normal(20).astype(np.float32)  # five tiles and bins
    with monkeypatch.context() as patched:
        patched.setattr(sparseloco, "pack_fields", pack_with_a_one)
        payload = codec.encode(x)
    with pytest.raises(Corrupt, match="bits of a byte after the last bin are not zero"):
        codec.decode(payload, 20)


def test_memory_is_bounded_by_the_payload() -> None:
    """A frame of few bytes that claims many sent elements is refused before they are read."""
    codec = gcodec.parse("sparseloco:k=2,chunk=2,code=huffman,index=rice")
    with pytest.raises(FormatError):
        codec.decode(bytes(100), 1 << 40, nbits=800)


def test_arguments() -> None:
    for spec in ("k=0", "chunk=1", "chunk=257", "bins=1", "bins=257", "sigmas=0", "code=rans"):
        with pytest.raises(ParameterError, match=spec.partition("=")[0]):
            gcodec.parse(f"sparseloco:{spec}")
    for value in (math.nan, math.inf):
        x = np.ones(100, np.float32)
        x[7] = value
        with pytest.raises(ParameterError, match=r"^x"):
            gcodec.encode(x, "sparseloco")
    largest = np.array([3.4e38, -3.4e38, 3e38, 1], np.float32)
    with pytest.raises(ParameterError, match="mean of a bin"):
        gcodec.encode(largest, "sparseloco:bins=256,chunk=4")


@pytest.mark.parametrize(("shape", "chunk"), [((20, 33), 3), ((15, 49), 7), ((9, 3, 35), 5)])
def test_residuals_of_tiles_at_any_element(
    shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bands of tiles begin at elements where no store can bypass the cache."""
    monkeypatch.setattr(sparseloco, "_PART", 1)
    codec = gcodec.parse(f"sparseloco:k=2,chunk={chunk}")
    x, residual = np.random.default_rng(8).laplace(size=(2, *shape)).astype(np.float32)
    total = x + residual
    codec.quantize_residual(x, residual)
    assert np.array_equal(residual, total - codec.decode(codec.encode(total), shape))


def test_sparse_decoding_and_addition() -> None:
    x = np.random.default_rng(4).laplace(size=(24, 36)).astype(np.float32)
    frame = gcodec.encode(x, "sparseloco:k=8,chunk=6")
    decoded = gcodec.decode(frame)
    positions, values = gcodec.decode_sparse(frame)[:2]
    assert (np.diff(positions) > 0).all()
    assert np.array_equal(decoded.reshape(-1)[positions], values)
    assert np.count_nonzero(decoded) == positions.size == 24 * 8
    total = np.ones_like(x)
    gcodec.decode_add(frame, total, scale=0.5)
    assert np.array_equal(total, 1 + np.float32(0.5) * decoded)
