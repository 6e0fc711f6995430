"""Context strings of codecs that offer other codes too, against the oracles of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bit_texts import text_of
from reference import contexts, minifloat, qsgd
from reference.universal import Bits, to_bytes

import gcodec

SHAPES: tuple[tuple[int, ...], ...] = ((1,), (17,), (300,), (7, 9), (20, 50), (16, 3, 3, 3))
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def gradient(shape: tuple[int, ...]) -> np.ndarray:
    """Return values whose rows and columns differ in scale."""
    rng = np.random.default_rng(len(shape))
    x = rng.laplace(size=shape)
    x *= np.exp(rng.standard_normal((shape[0], *[1] * (len(shape) - 1))))
    return (x * np.exp(rng.standard_normal(shape[-1]))).astype(np.float32)


def oracle_symbols(payload: Any, n: int, first: int = 0) -> list[int]:
    """Return the oracle's symbols from byte `first` on, and check that it writes the same."""
    text = text_of(payload.tobytes(), payload.nbits)
    bits = Bits(text[8 * first :])
    string = contexts.read(bits, n)
    assert bits.at == len(bits.text)
    assert to_bytes(contexts.write(string)) == payload.tobytes()[first:]
    return string.symbols


def signed_levels(symbols: list[int]) -> list[int]:
    return [-(y // 2) if y % 2 else y // 2 for y in symbols]


def check(payload: Any, shape: tuple[int, ...], expected: Any) -> None:
    decoded = payload.codec.decode(payload, shape).reshape(-1)
    assert decoded.tolist() == np.asarray(expected, np.float32).tolist()


@each_shape
@pytest.mark.parametrize(("s", "bucket"), [(1, 0), (15, 9), (127, 64)])
def test_qsgd(s: int, bucket: int, shape: tuple[int, ...]) -> None:
    x = gradient(shape)
    payload = gcodec.parse(f"qsgd:s={s},bucket={bucket},norm=max,code=context").encode(x)
    count = -(-x.size // (bucket or x.size))
    norms = [np.float32(v) for v in np.frombuffer(payload.tobytes()[: 4 * count], ">f4")]
    levels = signed_levels(oracle_symbols(payload, x.size, 4 * count))
    check(payload, shape, qsgd.dequantize(levels, norms, s, bucket))


@each_shape
@pytest.mark.parametrize("spec", ["terngrad:pack=context", "mxnet-2bit:form=context"])
def test_ternary(spec: str, shape: tuple[int, ...]) -> None:
    x = gradient(shape)
    payload = gcodec.parse(spec).encode(x)
    scale = np.float32(payload.scalars.get("scale", getattr(payload.codec, "threshold", 0)))
    check(
        payload,
        shape,
        [np.float32(t) * scale for t in signed_levels(oracle_symbols(payload, x.size))],
    )


@each_shape
@pytest.mark.parametrize(("name", "style"), [("e2m1", "ieee"), ("e1m1", "full"), ("e4m3", "fn")])
@pytest.mark.parametrize("block", [0, 5])
def test_minifloat(block: int, name: str, style: str, shape: tuple[int, ...]) -> None:
    x = gradient(shape)
    spec = f"minifloat:format={name},style={style},block={block},code=context"
    payload = gcodec.parse(spec).encode(x)
    setting = minifloat.Setting(name, style, "none", block)
    first = minifloat.blocks_of(setting, x.size)
    factors = list(payload.tobytes()[:first])
    symbols = oracle_symbols(payload, x.size, first)
    codes = [minifloat.code_of(setting, bool(y % 2), y // 2) for y in symbols]
    scale = float(np.float32(payload.scalars["scale"]))
    check(payload, shape, minifloat.dequantize(codes, setting, scale, factors))
