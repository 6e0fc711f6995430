"""randomk against an oracle written from the specification: draws, bytes, values, errors."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
import strategies as gs
from outcomes import bits, outcome
from reference import frame as reference_frame
from reference import leb128
from reference import randomk as reference
from reference.randomk import Setting
from reference.sparse_values import VALUES

import gcodec
from gcodec.payload import Payload

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
RANDOMK = 10
SEEDS = (0, 1, 7, 2**32 - 1, 2**32, 2**64 - 1)


def codec_of(setting: Setting) -> gcodec.Codec:
    word = "yes" if setting.unbiased else "no"
    chosen: dict[str, Any] = {"value": setting.value, "unbiased_": word}
    chosen |= {"ratio": setting.ratio} if setting.k is None else {"k": setting.k}
    return gcodec.codecs()["randomk"](**chosen)


@outcome
def oracle_outcome(setting: Setting, data: bytes, nbits: int, n: int, seed: int) -> Any:
    """Return the oracle's positions and the bits of its values, or the matching type of error."""
    places, values = reference.read(data, nbits, n, setting, seed)
    return places, bits(values)


def gcodec_outcome(setting: Setting, data: bytes, nbits: int, n: int, seed: int) -> Any:
    """Return gcodec's positions and the bits of its values, or the type of its error.

    Dense and sparse decoding must agree.
    """
    codec = codec_of(setting)
    payload = Payload(codec, {"seed": seed}, np.frombuffer(data, np.uint8), nbits)
    try:
        whole = codec.decode(payload, n)
    except gcodec.FormatError as error:
        with pytest.raises(type(error)):
            codec._decode_sparse(payload, n)
        return type(error)
    places, values = codec._decode_sparse(payload, n)
    expected = np.zeros(n, np.float32)
    expected[places] = values
    assert bits(whole) == bits(expected)
    return places.tolist(), bits(values)


def positions(n: int, k: int, seed: int) -> list[int]:
    """Return the positions that gcodec draws, without an array of all elements."""
    setting = Setting("bfloat16", k=k)
    payload = Payload(codec_of(setting), {"seed": seed}, np.zeros(2 * k, np.uint8), 16 * k)
    places, _ = payload.codec._decode_sparse(payload, n)
    return list(places.tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_draws(seed: int) -> None:
    """Draws of few, of half, of most, and of all but one; from few elements and from very many."""
    for n in (1, 2, 3, 5, 64, 100, 1023):
        for k in {0, 1, 2, n // 3, n // 2, n // 2 + 1, n - 1, n} - {n + 1}:
            if k <= n:
                assert positions(n, k, seed) == reference.drawn(n, k, seed), (n, k)
    for n, k in ((2**31 + 1, 40), (2**40, 50), (2**58, 3), (2**62, 20), (30_000, 55), (600, 1)):
        assert positions(n, k, seed) == reference.drawn(n, k, seed), (n, k)


def test_more_draws() -> None:
    for n, k in ((9000, 3000), (9001, 6500), (2**45, 1500)):
        assert positions(n, k, 11) == reference.drawn(n, k, 11), (n, k)


def tensors() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    ordinary = rng.standard_normal(300).astype(np.float32)
    odd = np.array([0, -0.0, 1e-45, -1e-40, 6e4, -1e-7, 0.25, -3], np.float32)
    return [ordinary, ordinary[:57] * np.float32(1e-39), odd, ordinary[:1], ordinary[:0]]


@pytest.mark.parametrize("value", VALUES)
def test_messages(value: str) -> None:
    for at, (x, ratio, unbiased) in enumerate(
        itertools.product(tensors(), (0.03, 0.4, 0.9, 1.0), (False, True))
    ):
        setting, n, seed = Setting(value, unbiased, None, ratio), len(x), SEEDS[at % len(SEEDS)]
        data, nbits = reference.encode(x, setting, seed)
        payload = codec_of(setting).encode(x, seed=seed)
        assert payload.scalars == {"seed": seed}
        assert (payload.nbits, payload.tobytes()) == (nbits, data)
        assert gcodec_outcome(setting, data, nbits, n, seed) == oracle_outcome(
            setting, data, nbits, n, seed
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_frames(dtype: str) -> None:
    rng = np.random.default_rng(4)
    x = gs.as_dtype((rng.standard_normal(60) * 3).astype(np.float32), dtype).reshape(3, 4, 5)
    wide = gs.widened(x).reshape(-1)
    settings = [Setting(), Setting("int8"), Setting(unbiased=True), Setting("sign", k=0)]
    settings += [Setting(value, True, ratio=0.3) for value in VALUES] + [Setting("int8", k=2**62)]
    for setting, seed in zip(settings, itertools.cycle(SEEDS), strict=False):
        data, nbits = reference.encode(wide, setting, seed)
        params, scalars = reference.parameters(setting), reference.scalars(seed)
        wanted = reference_frame.build(
            RANDOMK, DTYPES[dtype], x.shape, params, scalars, data, nbits
        )
        assert gcodec.encode(x, codec_of(setting), seed=seed) == wanted
        values = reference.decode(data, nbits, 60, setting, seed)
        decoded = gcodec.decode(wanted)
        places, sent = gcodec.decode_sparse(wanted)
        assert decoded.shape == x.shape and decoded.dtype == sent.dtype == x.dtype
        assert decoded.reshape(-1)[places].tolist() == sent.tolist()
        assert gs.same_bits(decoded.reshape(-1), gs.narrowed(values, dtype))


def test_refusals_of_the_encoder() -> None:
    """The encoder refuses drawn values that would decode to infinity."""
    for value, unbiased in itertools.product(VALUES, (False, True)):
        setting = Setting(value, unbiased, k=3)
        for large in (np.float32(3.4e38), np.float32(7e4), np.float32(1.1e38)):
            x = np.full(10, large)
            try:
                data, _ = reference.encode(x, setting, 1)
            except ValueError:
                with pytest.raises(gcodec.ParameterError):
                    codec_of(setting).encode(x, seed=1)
            else:
                assert codec_of(setting).encode(x, seed=1).tobytes() == data
    with pytest.raises(gcodec.ParameterError):
        codec_of(Setting("int8", k=1)).encode(np.array([1, 2, np.nan], np.float32))


# --- hostile bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", VALUES)
def test_damaged_payloads(value: str) -> None:
    """Both agree on flipped bits, other lengths and nonzero padding."""
    rng = random.Random(value)
    refused = 0
    for _ in range(120):
        n, seed = rng.choice([1, 4, 30, 280]), rng.choice(SEEDS)
        setting = Setting(value, rng.random() < 0.5, rng.choice([1, 3, 20, 270]))
        x = np.array([rng.choice([-1.5, 0.25, 3, 1e30]) for _ in range(n)], np.float32)
        if value == "float16":
            x = np.minimum(x, np.float32(6e4))
        data, nbits = reference.encode(x, setting, seed)
        changed = bytearray(data)
        for _ in range(rng.randrange(5)):
            at = rng.choice([rng.randrange(9), rng.randrange(len(changed) * 8)])
            if at < 8 * len(changed):
                changed[at // 8] ^= 0x80 >> at % 8
        count = nbits + rng.choice([0, 0, 0, -1, 1, 8, -8, 300])
        count = max(count, 0)
        whole = bytes(changed[: (count + 7) // 8]).ljust((count + 7) // 8, b"\0")
        wanted = oracle_outcome(setting, whole, count, n, seed)
        actual = gcodec_outcome(setting, whole, count, n, seed)
        both_refuse = isinstance(actual, type) and isinstance(wanted, type)
        assert actual == wanted or both_refuse, (setting, n, seed, whole.hex(), count)
        refused += isinstance(wanted, type)
    assert 10 < refused < 110


@pytest.mark.parametrize("value", VALUES)
def test_other_lengths(value: str) -> None:
    """A payload that is too short in bytes is `Truncated`, any other wrong length `Corrupt`."""
    x = np.arange(1, 30, dtype=np.float32)
    for k in (0, 1, 5, 20):
        setting = Setting(value, k=k)
        data, nbits = reference.encode(x, setting, 3)
        for count in range(nbits):
            whole = bytearray(data[: (count + 7) // 8])
            if count % 8:
                whole[-1] &= 0xFF << 8 - count % 8 & 0xFF
            error = gcodec.Truncated if len(whole) < len(data) else gcodec.Corrupt
            assert oracle_outcome(setting, bytes(whole), count, 29, 3) is error
            assert gcodec_outcome(setting, bytes(whole), count, 29, 3) is error, (k, count)
        for more in (1, 8, 1000):
            count = nbits + more
            whole = bytearray(data.ljust((count + 7) // 8, b"\0"))
            assert gcodec_outcome(setting, bytes(whole), count, 29, 3) is gcodec.Corrupt


def test_values_beyond_the_largest() -> None:
    """Of one of two sent elements, the decoder returns twice the value, within binary32."""
    setting = Setting(unbiased=True, k=1)
    for pattern, valid in (
        (0x7EFFFFFF, True),
        (0x7F000000, False),
        (0xFF7FFFFF, False),
        (1, True),
    ):
        data = pattern.to_bytes(4, "big")
        wanted = oracle_outcome(setting, data, 32, 2, 5)
        assert gcodec_outcome(setting, data, 32, 2, 5) == wanted
        assert (wanted is not gcodec.Corrupt) == valid


def framed(params: bytes, scalars: bytes, data: bytes, nbits: int, n: int) -> bytes:
    return reference_frame.build(RANDOMK, 1, (n,), params, scalars, data, nbits)


@pytest.mark.parametrize(
    ("params", "scalars", "error"),
    [
        ("05", "00", gcodec.Unsupported),
        ("0002", "00", gcodec.Unsupported),
        ("0000828080808080808040", "00", gcodec.Corrupt),  # k = 2^62 + 1
        ("00000200000000000000e03f", "00", gcodec.Corrupt),  # k = 1 and ratio = 0.5
        ("00000000000000000000", "00", gcodec.Corrupt),
        ("0000000000000000000000", "00", gcodec.Corrupt),
        ("0000000000000000000080", "00", gcodec.Corrupt),
        ("000000010000000000f03f", "00", gcodec.Corrupt),
        ("000000000000000000f87f", "00", gcodec.Corrupt),
        ("000000000000000000f03f00", "00", gcodec.Unsupported),
        ("", "", gcodec.Corrupt),
        ("", "0000", gcodec.Unsupported),
        ("", "8000", gcodec.Corrupt),
        ("", "ffffffffffffffffff02", gcodec.Corrupt),
    ],
)
def test_wrong_headers(params: str, scalars: str, error: type[gcodec.FormatError]) -> None:
    data = bytes.fromhex("3f800000")
    for seed in (0, 2**64 - 1):
        assert gcodec.decode(framed(b"", leb128.encode(seed), data, 32, 1)).tolist() == [1]
    wrong = framed(bytes.fromhex(params), bytes.fromhex(scalars), data, 32, 1)
    with pytest.raises(error):
        gcodec.decode(wrong)
    with pytest.raises(error):
        gcodec.decode_sparse(wrong)


def test_seek_tables_are_refused() -> None:
    for table in ("000120", "00012001", "000000", "050120"):
        frame = reference_frame.build(
            RANDOMK, 1, (1,), b"", b"\0", bytes(4), 32, seek=bytes.fromhex(table)
        )
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode(frame)


def test_absurd_numbers_cost_nothing() -> None:
    """Absurd numbers of sent elements allocate nothing; a few of 2^58 elements decode."""
    frames = [
        framed(reference.parameters(Setting(value, False, k)), b"\7", bytes(100), 800, 2**40)
        for value, k in itertools.product(VALUES, (2**62, 2**39 + 1, 2**39, 2**20))
    ]
    data, nbits = bytes(4 * 20), 640
    few = framed(reference.parameters(Setting(k=20)), b"\7", data, nbits, 2**58)
    assert gcodec.decode_sparse(few)[0].tolist() == reference.drawn(2**58, 20, 7)
    tracemalloc.start()
    try:
        for frame in frames:
            with pytest.raises(gcodec.Truncated):
                gcodec.decode_sparse(frame)
        gcodec.decode_sparse(few)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
