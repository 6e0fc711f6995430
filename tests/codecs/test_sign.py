"""sign: its bits, its scales, the law of its error, and refused inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from strategies import f32

import gcodec
from gcodec import Corrupt, ParameterError, Truncated

SCALES = ("l1", "l2", "none")


def sign(scale: str = "l1") -> Any:
    return gcodec.parse({"name": "sign", "scale": scale})


@given(gs.gradients(large=True), st.sampled_from(SCALES))
def test_bits_are_those_of_packbits(x: np.ndarray, scale: str) -> None:
    payload = sign(scale).encode(x)
    assert payload.tobytes() == np.packbits(x < 0).tobytes()
    assert payload.nbits == x.size
    decoded = sign(scale).decode(payload, x.size)
    s = np.float32(payload.scalars.get("scale", 1.0))
    assert gs.same_bits(decoded, np.where(x < 0, -s, s))
    bare = sign(scale).decode(payload.tobytes(), x.size, **payload.scalars)
    assert gs.same_bits(bare, decoded)


@given(gs.gradients(large=True, modest=True))
def test_scales(x: np.ndarray) -> None:
    wide = x.astype(np.float64)
    n = max(x.size, 1)
    assert sign("none").encode(x).scalars == {}
    l1, l2 = (sign(scale).encode(x).scalars["scale"] for scale in ("l1", "l2"))
    # Rounding to float32, and to its shortest decimal form, each change half a unit at most.
    ulp = 2.0**-23
    assert l1 == pytest.approx(np.abs(wide).sum() / n, rel=ulp)
    assert l2 == pytest.approx(math.sqrt(wide @ wide / n), rel=ulp)
    assert type(l1) is type(l2) is float


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-9, 1.0, 1e30, 3.4e38])
def test_constant_tensors_are_exact(size: float) -> None:
    for n in (1, 2, 33, 4097):
        x = np.full(n, size, np.float32) * np.where(np.arange(n) % 3, 1, -1).astype(np.float32)
        for scale in ("l1", "l2"):
            assert gs.same_bits(gcodec.decode(gcodec.encode(x, sign(scale))), x)


def test_zeros_are_positive() -> None:
    x = f32(0.0, -0.0, 1e-45, -1e-45, -0.0)
    for scale in SCALES:
        assert sign(scale).encode(x).tobytes() == b"\x10"
    zeros = f32(-0.0, 0.0)
    for scale in ("l1", "l2"):
        assert gs.same_bits(gcodec.decode(gcodec.encode(zeros, sign(scale))), f32(0, 0))
    assert gcodec.decode(gcodec.encode(zeros, sign("none"))).tolist() == [1.0, 1.0]


def test_the_first_element_is_the_highest_bit() -> None:
    for k in range(70):
        x = np.ones(70, np.float32)
        x[k] = -1
        assert int.from_bytes(sign().encode(x).tobytes(), "big") == 1 << (71 - k)


@given(gs.gradients(large=True, modest=True))
def test_contraction(x: np.ndarray) -> None:
    """The error of l1 is ‖x‖² − ‖x‖₁²/n, up to the rounding of the scale."""
    decoded = sign().decode(sign().encode(x), x.size)
    wide = x.astype(np.float64)
    energy, n = float(wide @ wide), max(x.size, 1)
    error = float(((decoded - wide) ** 2).sum())
    assert error == pytest.approx(energy - np.abs(wide).sum() ** 2 / n, abs=1e-6 * energy)
    assert error <= (1 - sign().contraction(x.size)) * energy + 1e-6 * energy


def test_contraction_is_tight() -> None:
    """The bound on the error is reached when one element carries all the energy."""
    for n in (1, 2, 100, 5000):
        x = np.zeros(n, np.float32)
        x[n // 2] = -3
        error = ((gcodec.decode(gcodec.encode(x, "sign")).astype(np.float64) - x) ** 2).sum()
        assert error / 9 == pytest.approx(1 - sign().contraction(n), abs=1e-6)
    for scale in ("l2", "none"):
        assert sign(scale).contraction(5) is None
        assert sign(scale).variance(5) is None
        assert not sign(scale).unbiased


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 8, 33, 5000, (1 << 20) + 1])
def test_nan_and_inf_are_refused(scale: str, value: float, n: int) -> None:
    x = np.ones(n, np.float32)
    x[n - 1] = value
    for call in (
        lambda: sign(scale).encode(x),
        lambda: gcodec.encode(x, sign(scale)),
        lambda: gcodec.encode(x, sign(scale), nonfinite="propagate"),
    ):
        with pytest.raises(ParameterError, match="NaN or Inf"):
            call()
    x[0] = value
    with pytest.raises(ParameterError, match="NaN or Inf"):
        sign(scale).encode(x)


def test_infinities_that_cancel_are_refused() -> None:
    for scale in SCALES:
        with pytest.raises(ParameterError, match="NaN or Inf"):
            sign(scale).encode(f32(np.inf, -np.inf))


@pytest.mark.parametrize("value", ["l3", "", 1, None, True, "L1"], ids=repr)
def test_unknown_scales_are_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"scale=.*: must be one of l1, l2, none"):
        sign(value)


def test_wrong_payloads_are_refused() -> None:
    raw = sign().encode(-np.ones(21, np.float32)).tobytes()
    assert raw == b"\xff\xff\xf8"
    for k in range(3):
        with pytest.raises(Truncated):
            sign().decode(raw[:k], 21, scale=1.0)
    with pytest.raises(Corrupt):
        sign().decode(raw + b"\0", 21, scale=1.0)
    for spare in range(3):
        with pytest.raises(Corrupt, match="padding"):
            sign().decode(b"\xff\xff" + bytes([0xF8 | 1 << spare]), 21, scale=1.0)
    for nbits in (17, 20, 22, 24):
        with pytest.raises(Corrupt):
            sign().decode(raw, 21, nbits=nbits, scale=1.0)
    for scale in (-1.0, -1e-45, math.nan, math.inf, True, "1"):
        with pytest.raises(ParameterError, match="scale"):
            sign().decode(raw, 21, scale=scale)
    with pytest.raises(ParameterError, match="scale"):
        sign().decode(raw, 21)
    with pytest.raises(ParameterError, match="scale"):
        sign("none").decode(raw, 21, scale=1.0)
    assert sign("none").decode(raw, 21).tolist() == [-1.0] * 21
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(Corrupt, match="scale"):
            sign().read_scalars(memoryview(np.float32(bad).tobytes()))


def test_short_symbols_are_refused() -> None:
    symbols = sign().quantize(np.ones(5000, np.float32))
    with pytest.raises(ParameterError, match="symbols"):
        sign().dequantize(symbols._replace(bits=symbols.bits[:-1]), 5000)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [1, 33, 5000, (1 << 22) + 77])
def test_residuals_in_place(scale: str, dtype: str, n: int) -> None:
    """The fused passes leave the bits of the definition, or the residual if they refuse a sum."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n).astype(gs.DTYPES[dtype])
    residual = rng.standard_normal(n + 8, np.float32)[4 : 4 + n]  # not from a cache line on
    total = x.astype(np.float32) + np.float32(0.75) * residual
    before = residual.copy()
    symbols = sign(scale).quantize_residual(x, residual, decay=0.75)
    expected = sign(scale).quantize(total)
    assert symbols.bits.tobytes() == expected.bits.tobytes()
    assert symbols.scale == expected.scale
    level = np.array(symbols.scale).astype(gs.DTYPES[dtype]).astype(np.float32)
    assert gs.same_bits(residual, total - np.where(total < 0, -level, level))
    for place, bad in ((n - 1, np.nan), (n // 2, np.inf)):
        refused, residual[:] = x.copy(), before
        refused[place] = bad
        with pytest.raises(ParameterError, match="NaN or Inf"):
            sign(scale).quantize_residual(refused, residual, decay=0.75)
        assert gs.same_bits(residual, before)


def test_scales_beyond_float16_leave_the_residual_unchanged() -> None:
    x, residual = np.ones(5000, np.float16), np.full(5000, 1e6, np.float32)
    for scale in ("l1", "l2"):
        with pytest.raises(ParameterError, match="range"):
            sign(scale).quantize_residual(x, residual)
        assert np.all(residual == 1e6)
