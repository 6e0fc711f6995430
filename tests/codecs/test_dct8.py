"""dct8: its basis, selection, transforms, levels and bytes, and refused payloads."""

from __future__ import annotations

import math
import tracemalloc
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import fft
from sweeps import thinned

import gcodec
from gcodec import Corrupt, FormatError, Limits, ParameterError, Truncated
from gcodec.codecs.dct8 import chunks, levels, transform
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.prefix import dct_words
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_select import largest
from gcodec.wire.primitives import Reader

F = np.float32


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def error(x: np.ndarray, spec: str) -> float:
    """Return the relative squared error of a round trip."""
    y = gcodec.decode(gcodec.encode(x, spec))
    return float(((x.astype(np.float64) - y) ** 2).sum() / (x.astype(np.float64) ** 2).sum())


# --- the basis -----------------------------------------------------------------------------------


def nearest(value: Decimal) -> float:
    """Return the binary32 number nearest to a decimal, by rational arithmetic."""
    near = F(float(value))
    around = [np.nextafter(near, F(-9)), near, np.nextafter(near, F(9))]
    return float(min(around, key=lambda one: abs(Fraction(float(one)) - Fraction(value))))


def pi() -> Decimal:
    """Return π by Machin's formula, to the precision of the decimal context."""

    def arctan(inverse: int) -> Decimal:
        term, total, k = Decimal(1) / inverse, Decimal(0), 0
        while total + term / (2 * k + 1) != total:
            total += term / (2 * k + 1)
            term, k = -term / inverse**2, k + 1
        return total

    return 4 * (4 * arctan(5) - arctan(239))


def cosine(angle: Decimal) -> Decimal:
    """Return the cosine of an angle by its Taylor series."""
    term, total, k = Decimal(1), Decimal(0), 0
    while total + term != total:
        total, k = total + term, k + 2
        term *= -angle * angle / (k * (k - 1))
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 61, 64, 255, 256, 257, 1000, 4096])
def test_basis_is_rounded_from_exact_numbers(n: int) -> None:
    scaled, plain = basis.waves(n)
    with localcontext() as context:
        context.prec = 60
        assert basis.basis(n)[0, 0] == basis.basis(n)[0, -1] == nearest((1 / Decimal(n)).sqrt())
        for index in range(0, n, max(n // 61, 1)):
            exact = cosine(pi() * index / (2 * n))
            for wave, factor in ((plain, Decimal(1)), (scaled, (2 / Decimal(n)).sqrt())):
                assert wave[index] == nearest(exact * factor)
                assert wave[2 * n - index] == -wave[index] == -wave[(4 * n - index) % (4 * n)]
        assert scaled[n] == scaled[3 * n] == plain[n] == 0


@pytest.mark.parametrize("n", [1, 2, 5, 64, 100, 300, 1025])
def test_basis_agrees_with_scipy(n: int) -> None:
    rows = basis.basis(n)
    np.testing.assert_allclose(rows, fft.dct(np.eye(n), norm="ortho", axis=0), atol=1e-7)
    np.testing.assert_allclose(rows.astype(float) @ rows.T, np.eye(n), atol=1e-6)


# --- selection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 31, 33, 64, 100, 1000, 4096])
def test_selection_agrees_with_a_stable_sort(size: int) -> None:
    rng = np.random.default_rng(size)
    plain = rng.standard_normal((6, size)).astype(F)
    with_ties = rng.integers(-2, 3, (6, size)).astype(F)
    for y in (plain, with_ties, np.zeros_like(plain), plain * F(1e-42), -np.ones_like(plain)):
        for k in {1, min(2, size), min(32, size), size // 2 or 1, size}:
            places, values = np.empty((6, k), np.int32), np.empty((6, k), F)
            assert largest(y, k, places, values)
            order = np.sort(np.argsort(-np.abs(y), axis=1, kind="stable")[:, :k], axis=1)
            np.testing.assert_array_equal(places, order)
            np.testing.assert_array_equal(values, np.take_along_axis(y, order, axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 31, 32, 99])
def test_selection_refuses_nonfinite_coefficients(bad: float, at: int) -> None:
    y = noise(3, 100)
    y[2, at] = bad
    for k in (1, 20, 100):
        assert not largest(y, k, np.empty((3, k), np.int32), np.empty((3, k), F))


# --- transforms ----------------------------------------------------------------------------------

CHUNKS = ["7", "64", "300", "4096", "8x8", "64x64", "3x5", "100x3", "3x300", "4x4x4", "2x3x5"]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_all_coefficients_reconstruct_the_tensor(chunk: str) -> None:
    sizes = tuple(map(int, chunk.split("x")))
    x = noise(2 * math.prod(sizes) + 3)
    cut = chunks.flat(x.size, sizes)
    actual = transform.select(x, cut, cut.size)
    assert actual is not None
    padded = np.append(x, np.zeros(cut.count * cut.size - x.size)).reshape(-1, *sizes)
    expected = fft.dctn(padded, axes=range(1, 1 + len(sizes)), norm="ortho")
    np.testing.assert_allclose(actual[1].reshape(padded.shape), expected, atol=1e-4)
    back = np.empty_like(x)
    starts = np.arange(cut.count + 1) * cut.size
    transform.restore(starts, actual[0].reshape(-1), actual[1].reshape(-1), cut, back)
    np.testing.assert_allclose(back, x, atol=1e-4)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a·b + c of float32 arrays, rounded once."""
    product, c = a.astype(np.float64) * b, c.astype(np.float64)  # exact: 48 bits
    total = product + c
    rest = total - product
    lost = (product - (total - rest)) + (c - rest)
    # A sum that was rounded becomes odd, so that it is no tie when it is rounded again.
    is_even = total.view(np.uint64) % 2 == 0
    odd = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where((lost != 0) & is_even, odd, total).astype(F)


def forward_by_definition(x: np.ndarray, sizes: tuple[int, int, int]) -> np.ndarray:
    """Transform chunks as defined: sums and differences, and products added one by one."""
    for axis in (3, 2, 1):
        n = sizes[axis - 1]
        sums, y = np.moveaxis(x, axis, 0), np.empty_like(np.moveaxis(x, axis, 0))
        columns = basis.basis(n).T.reshape(n, n, 1, 1, 1)
        step = 1
        while len(sums) % 2 == 0:
            half = len(sums) // 2
            differences, sums = (
                sums[:half] - sums[: -half - 1 : -1],
                sums[:half] + sums[: -half - 1 : -1],
            )
            own = slice(step, n, 2 * step)  # these coefficients are independent of each other
            y[own] = F(0)
            for j in reversed(range(half)):
                y[own] = fused(columns[j][own], differences[j], y[own])
            step *= 2
        own = slice(0, n, step)
        y[own] = F(0)
        for j in range(len(sums)):
            y[own] = fused(columns[j][own], sums[j], y[own])
        x = np.moveaxis(y, 0, axis)
    return x


@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 50), (1, 64, 64), (1, 40, 33), (5, 6, 7), (3, 130, 32), (1, 12, 1), (2, 1, 256)],
)
@pytest.mark.parametrize("count", [1, 9])
def test_forward_sums_in_the_specified_order(sizes: tuple[int, int, int], count: int) -> None:
    x = noise(min(count, 2) if max(sizes) > 100 else count, *sizes)
    actual = transform.Forward(sizes)(x)
    np.testing.assert_array_equal(actual.reshape(x.shape), forward_by_definition(x, sizes))


def test_transform_is_accurate() -> None:
    x = noise(40, 1, 64, 64)
    exact = fft.dctn(x.astype(np.float64), axes=(2, 3), norm="ortho").reshape(40, -1)
    assert np.abs(transform.Forward((1, 64, 64))(x) - exact).max() < 2.0**-18


def test_large_values_whose_sums_exceed_float32() -> None:
    x = np.zeros((2, 64), F)
    x[0, [0, 63]] = 3e38
    x[1] = noise(64)
    assert not np.isfinite(transform.Forward((1, 1, 64))(x[:1].reshape(1, 1, 1, 64))).all()
    selected = transform.select(x.reshape(-1), chunks.flat(128, (64,)), 64)
    assert selected is not None
    expected, scale = fft.dct(x.astype(np.float64), norm="ortho"), [[3e38], [1]]
    np.testing.assert_allclose(selected[1] / scale, expected / scale, atol=1e-5)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("sizes", "n"),
    [((8, 8), 64), ((8, 8), 70), ((64, 64), 1 << 22), ((200,), 1999), ((3, 5, 7), 1000)]
    + [((256, 256), 200_000)],
)
def test_selection_of_sums(sizes: tuple[int, ...], n: int, in_place: bool) -> None:
    """It adds the residual and selects, as separate passes do; the last chunk may be padded."""
    x, residual, decay = noise(n), noise(n, seed=1), F(0.9)
    sums, k, cut = x + decay * residual, 5, chunks.flat(n, sizes)
    update = ResidualUpdate(residual, decay, residual if in_place else np.empty(n, F))
    update = update.saving() if in_place else update
    actual = transform.select_of_sums(x, cut, k, update)
    expected = transform.select(sums, cut, k)
    assert actual is not None and expected is not None
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(update.new_residual, sums)
    update.restore()
    np.testing.assert_array_equal(residual, noise(n, seed=1))


@pytest.mark.parametrize("at", [0, 63, 64, 69])
def test_sums_that_are_not_finite_are_not_selected_from(at: int) -> None:
    x, cut = noise(70), chunks.flat(70, (8, 8))
    x[at] = np.inf
    update = ResidualUpdate(noise(70), F(1), np.empty(70, F))
    assert transform.select_of_sums(x, cut, 5, update) is None


@pytest.mark.parametrize("cut", [chunks.flat(600, (300,)), chunks.tiles(600, 30, (4, 4), 9)])
def test_sums_are_not_selected_from_other_chunks(cut: chunks.Chunks) -> None:
    """SciPy's transform, and tiles, need the sums of whole parts."""
    update = ResidualUpdate(noise(600), F(1), np.full(600, 7, F))
    assert transform.select_of_sums(noise(600), cut, 5, update) is None
    assert (update.new_residual == 7).all()


def inverse_by_definition(y: np.ndarray, sizes: tuple[int, int, int]) -> np.ndarray:
    """Invert the transform of one chunk as defined: float32 products and sums, one by one."""
    for axis in (2, 1, 0):
        y = np.moveaxis(y, axis, 0)
        total = np.zeros_like(y)
        for row, sample in zip(basis.basis(sizes[axis]), y, strict=True):
            total += np.multiply.outer(row, sample)
        y = np.moveaxis(total, 0, axis)
    return y


SIZES = [(1, 1, 50), (1, 64, 64), (1, 40, 33), (5, 6, 7), (1, 300, 4), (1, 63, 65), (3, 130, 32)]
SIZES += [(1, 1, n) for n in (257, 320, 384, 1000, 4096)]
SIZES += [(1, 300, 1), (40, 7, 1), (9, 1, 1), (130, 3, 2), (1, 90, 31)]  # narrow chunks
SIZES += [(1, 3, 320), (2, 2, 384), (2, 1, 257)]  # several long rows


@pytest.mark.parametrize("omitted", [0, 1])
@pytest.mark.parametrize("sizes", SIZES)
def test_inverse_sums_in_the_specified_order(sizes: tuple[int, int, int], omitted: int) -> None:
    size = math.prod(sizes)
    rng = np.random.default_rng(size)
    places = rng.choice(size, min(40, size), replace=False)
    places = np.union1d(places, size // 128 * np.arange(128)).astype(np.int32)[omitted:]
    values = rng.standard_normal(places.size).astype(F)
    values[::5] *= F(0)  # ±0
    y = np.zeros(size, F)
    y[places] = values
    out = np.empty(size, F)
    cut = chunks.Chunks.runs(size, sizes, edge=False)
    transform.restore(np.array([0, places.size]), places, values, cut, out)
    expected = inverse_by_definition(y.reshape(sizes), sizes).reshape(-1)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("spec", ["dct8", "dct8:layout=tiles", "dct8:chunk=1000,k=9"])
def test_threads_do_not_change_bytes(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(1100, 1000)
    frames, decoded = set(), set()
    for threads in ("1", "3"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        frames.add(gcodec.encode(x, spec))
        decoded.add(gcodec.decode(min(frames)).tobytes())
    assert len(frames) == len(decoded) == 1


# --- layouts -------------------------------------------------------------------------------------


def test_parts_of_chunks() -> None:
    """A part from the middle has as many chunks as it states; kernels write a result for each."""
    x = noise(10 * 13).reshape(-1)
    tiles = chunks.tiles(x.size, 13, (4, 5), 9)
    for cut in (chunks.flat(x.size, (8,)), chunks.flat(x.size, (3, 7)), tiles):
        whole = chunks.take(cut, x, 0, cut.count)
        assert whole.shape == (cut.count, *cut.sizes)
        for first in range(cut.count):
            for stop in range(first + 1, cut.count + 1):
                part = chunks.take(cut, x, first, stop)
                assert part.shape == (stop - first, *cut.sizes)
                assert part.tobytes() == whole[first:stop].tobytes()


def test_parts_are_whole_rows_of_tiles_or_pieces_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PART", 60)  # five tiles of 3 x 4 elements
    for rows, columns in ((1, 1), (3, 20), (7, 8), (31, 12), (4, 21), (9, 100), (2, 37)):
        cut = chunks.tiles(rows * columns, columns, (3, 4), 9)
        across, parts = -(-columns // min(4, columns)), cut.parts()
        assert [at for first, stop in parts for at in range(first, stop)] == [*range(cut.count)]
        for first, stop in parts:
            assert stop - first <= max(60 // cut.size, 1)
            in_one_row = first // across == (stop - 1) // across
            assert in_one_row or first % across == stop % across == 0


def test_wide_matrices_are_transformed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, spec = noise(9, 100), "dct8:chunk=3x4,k=5,layout=tiles"
    frame = gcodec.encode(x, spec)
    monkeypatch.setattr(chunks, "PART", 60)
    monkeypatch.setattr(transform, "PART", 60)
    assert gcodec.encode(x, spec) == frame


@pytest.mark.parametrize("chunk", ["8x8", "64x64", "3x20", "5"])
def test_bound_without_a_shape_holds_for_every_matrix(chunk: str) -> None:
    codec = gcodec.parse(f"dct8:chunk={chunk},k=9,layout=tiles,index=fixed")
    for n in (1, 2, 7, 12, 64, 97, 210, 4096):
        shapes = [(rows, n // rows) for rows in range(1, n + 1) if n % rows == 0]
        bounds = [codec._with_shape(shape).max_payload_nbits(n) for shape in (*shapes, (n,))]
        assert max(bounds) <= codec.max_payload_nbits(n)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (70,), (13, 21), (65, 1), (5, 7, 3)])
@pytest.mark.parametrize("layout", ["flat", "tiles"])
def test_layouts_keep_the_shape(shape: tuple[int, ...], layout: str) -> None:
    x = noise(*shape)
    frame = gcodec.encode(x, f"dct8:chunk=8x8,k=64,layout={layout}")
    y = gcodec.decode(frame)
    assert y.shape == shape
    np.testing.assert_allclose(y, x, atol=0.1)
    acc = np.zeros_like(x)
    gcodec.decode_add(frame, acc)
    np.testing.assert_array_equal(acc, y)


def test_tiles_cover_the_matrix() -> None:
    x = np.zeros((20, 13), F)
    x[8:16, 8:] = 1  # The only tile with values; the encoder pads it with ones.
    y = gcodec.decode(gcodec.encode(x, "dct8:chunk=8x8,k=1,layout=tiles"))
    np.testing.assert_allclose(y, x, rtol=1e-6, atol=0)


def test_tiles_split_dimension_0_from_the_others() -> None:
    x = noise(6, 4, 5)
    spec = "dct8:chunk=4x4,k=3,layout=tiles"
    decoded = gcodec.decode(gcodec.encode(x, spec))
    np.testing.assert_array_equal(
        decoded.reshape(6, 20), gcodec.decode(gcodec.encode(x.reshape(6, 20), spec))
    )
    codec = gcodec.parse(spec)
    assert codec.encode(x).tobytes() != codec.encode(x.reshape(4, 30)).tobytes()
    np.testing.assert_array_equal(codec.decode(codec.encode(x), x.shape), decoded)
    symbols = codec.quantize(x)
    assert codec.pack(symbols).tobytes() == codec.encode(x).tobytes()
    np.testing.assert_array_equal(codec.dequantize(symbols, x.shape), decoded)


def test_vectors_are_padded_with_their_last_element() -> None:
    x = np.full(10, 3, F)
    y = gcodec.decode(gcodec.encode(x, "dct8:chunk=2x2,k=1,layout=tiles"))
    np.testing.assert_allclose(y, x, rtol=1e-6)
    # With layout=flat the padding is zeros.
    y = gcodec.decode(gcodec.encode(x, "dct8:chunk=4,k=1"))
    assert abs(y[-1] - 3) > 1


def test_feedback_keeps_the_shape() -> None:
    feedback = gcodec.Feedback("dct8:chunk=8x8,k=4,layout=tiles")
    x, total = noise(20, 13), np.zeros((20, 13), F)
    for _ in range(30):
        total += gcodec.decode(feedback.compress("w", x))
    np.testing.assert_allclose(total + feedback.residual("w"), 30 * x, atol=1e-3)
    assert error(x, "dct8:chunk=8x8,k=4,layout=tiles") > 0.5
    assert ((total / 30 - x) ** 2).sum() < 0.2 * (x**2).sum()


# --- levels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["sign7", "affine8"])
def test_levels_are_nearest(values: str) -> None:
    v = noise(9, 32)
    quantized = levels.quantize(v, values)
    decoded = levels.dequantize(quantized, values)
    step = np.ptp(v, axis=1) / 255 if values == "affine8" else np.abs(v).max(axis=1) / 127 * 1.004
    assert np.all(np.abs(decoded - v) <= step[:, None] * 0.501 + np.abs(v) * 2.0**-9)


def exact_sign7(v: np.ndarray) -> tuple[Fraction, list[int]]:
    """Return M and the levels of a chunk, by rational arithmetic."""
    magnitudes = [abs(Fraction(float(one))) for one in v]
    largest = max(magnitudes)
    is_small = largest < Fraction(2) ** -126
    unit = Fraction(2) ** (max(math.frexp(largest)[1] - 1, -126) - 8)
    scale = unit * (math.ceil if is_small and v.size > 1 else round)(largest / unit)
    if not scale:
        return scale, []
    if v.size == 1:
        return scale, [127 + 128 * int(v[0] < 0)]
    sizes = [min(round(one * 127 / scale), 127) for one in magnitudes]
    codes = [size + 128 * int(one < 0 < size) for size, one in zip(sizes, v, strict=True)]
    return (scale, codes) if any(sizes) else (Fraction(0), [])


def exact_affine8(v: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return both scales and the levels of a chunk, with each operation rounded to binary32."""
    least, most = min(v), max(v)
    spread = F(most - least)
    step = F(spread / F(255))
    if v.size > 2 and 0 <= step < F(2.0**-126) and F(255) * step < spread:
        step += F(2.0**-149)
    codes = [min(round(float(F(F(one - least) / step))), 255) if step else 0 for one in v]
    if v.size <= 2:
        codes = [255 * (code > 0) for code in codes]
    return np.array([step, least]) + F(0), codes if step or least else []


def hard_coefficients(k: int) -> np.ndarray:
    """Return chunks with scales and levels between two, small and subnormal numbers, and zeros."""
    rng = np.random.default_rng(k)
    low = [0, 1, 0x3FFF, 0x4000, 0x4001, 0x7FFF]
    highs = [0, 1, 2, 0x80, 0xFF, 0x100, 0x101, 0x3F80, 0x3F81, 0x5000, 0xFDFF]
    largest = np.array([high << 15 | half for high in highs for half in low], np.uint32)
    chunks = largest.view(F)[:, None] * rng.choice(F([-1, -0.7, -0.01, 0, 0.3, 1]), (66, k))
    chunks[:, k // 2] = largest.view(F) * rng.choice(F([-1, 1]), 66)
    ties = np.full((8, k), 254, F)  # with M = 254, odd numbers lie between two levels
    ties[:, 1:] = rng.integers(-253, 254, (8, k - 1))
    tiny = rng.integers(-3000, 3000, (40, k)) * 2.0**-149
    both = [ties, ties * 2.0**-149, tiny, tiny + 2.0**-137, np.zeros((1, k)), -np.zeros((1, k))]
    return np.concatenate([chunks, *both]).astype(F)


@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("values", ["sign7", "affine8"])
def test_levels_equal_those_of_exact_arithmetic(values: str, k: int) -> None:
    coefficients = hard_coefficients(k)
    scales, codes = levels.quantize(coefficients, values)
    coded = iter(codes.tolist())
    for chunk, own in zip(coefficients, scales, strict=True):
        if values == "sign7":
            scale, expected = exact_sign7(chunk)
            assert Fraction(float(own[0])) == scale
        else:
            ends, expected = exact_affine8(chunk)
            assert own.tobytes() == ends.tobytes()
        assert (next(coded) if own.any() else []) == expected
    assert not [*coded]


@pytest.mark.parametrize("values", levels.VALUES)
@pytest.mark.parametrize("k", [1, 2, 32])
@pytest.mark.parametrize("power", [-110, -37, 60])
def test_levels_do_not_depend_on_magnitude(values: str, k: int, power: int) -> None:
    """A chunk scaled by a power of two decodes to values scaled by the same power."""
    x, spec = noise(2, 4096), f"dct8:values={values},k={k}"
    one, other = (gcodec.decode(gcodec.encode(y, spec)) for y in (x, np.ldexp(x, power)))
    np.testing.assert_array_equal(np.ldexp(one, power), other)


@pytest.mark.parametrize("values", levels.VALUES)
def test_subnormal_chunks(values: str) -> None:
    x = (np.random.default_rng(0).integers(-4000, 4000, 64) * 2.0**-140).astype(F)
    assert error(x, f"dct8:chunk=8x8,k=64,values={values}") < 1e-3
    tiny = np.full(64, 2.0**-149, F)
    assert np.isfinite(gcodec.decode(gcodec.encode(tiny, f"dct8:chunk=8x8,values={values}"))).all()


def test_exact_levels_of_subnormal_coefficients() -> None:
    """A subnormal step grows only if 255 steps do not reach the largest coefficient."""
    for most, step in ((765, 3), (764, 3), (766, 4)):
        coefficients = (np.array([[0, most, 300]]) * 2.0**-149).astype(F)
        quantized = levels.quantize(coefficients, "affine8")
        assert quantized.scales.tolist() == [[step * 2.0**-149, 0]]
        assert quantized.codes.tolist() == [[0, round(most / step), 300 // step]]


@pytest.mark.parametrize(
    ("unit", "sign7", "affine8"), [(1e-40, 1e-4, 1e-4), (1e-41, 2e-4, 1e-4), (1e-42, 0.02, 2e-4)]
)
def test_subnormal_tensors_are_sent(unit: float, sign7: float, affine8: float) -> None:
    x = (np.random.default_rng(0).standard_normal(4096) * unit).astype(F)
    for chunk, k in (("8x8", 64), ("64x64", 4096)):
        assert error(x, f"dct8:chunk={chunk},k={k}") < sign7
        assert error(x, f"dct8:chunk={chunk},k={k},values=affine8") < affine8
    # With few coefficients, the error comes from the unsent ones, not from the levels.
    ordinary = error((x / F(unit)).astype(F), "dct8:chunk=8x8,k=8")
    assert error(x, "dct8:chunk=8x8,k=8") == pytest.approx(ordinary, rel=0.02)


def test_values_below_all_levels_are_not_sent() -> None:
    """Of 64 equal elements v the only coefficient is about 8·v; the least level is 2^-142."""
    for units, is_zero in ((1, True), (8, True), (24, False)):
        x = np.full((8, 8), units * 2.0**-149, F)
        payload = gcodec.parse("dct8:chunk=8x8,k=2").encode(x)
        assert (payload.tobytes() == bytes(2)) == is_zero, units
    feedback = gcodec.Feedback("dct8:chunk=8x8,k=2")
    feedback.compress("w", np.full((8, 8), 2.0**-149, F))
    assert (feedback.residual("w") == F(2.0**-149)).all()


@pytest.mark.parametrize(
    "spec", ["dct8:chunk=8x8", "dct8:chunk=5x6,layout=tiles", "dct8:chunk=99"]
)
def test_float32_sends_the_coefficients_themselves(spec: str) -> None:
    x = noise(40, 33)
    x[:16] = 0
    symbols = gcodec.parse(f"{spec},k=9,values=float32").quantize(x)
    codec = gcodec.parse(f"{spec},k=9,values=float32,index=rice")
    again = codec.unpack(codec.pack(symbols), x.shape)
    assert (symbols.codes == again.codes).all() and symbols.codes.dtype == np.uint32
    rounded = gcodec.parse(f"{spec},k=9").quantize(x)
    coded = levels.coded_chunks(rounded.scales)
    assert (symbols.positions[coded] == rounded.positions).all()
    coefficients = symbols.codes.view(F)
    assert not coefficients[~coded].any() and coded.sum() < len(coded)
    most = np.abs(coefficients[coded]).max(axis=1, keepdims=True)
    sent = levels.dequantize(levels.Levels(rounded.scales, rounded.codes), "sign7")
    assert (np.abs(coefficients[coded] - sent) <= most / 127 * 0.502 + most * 2.0**-9).all()


def test_float32_keeps_every_coefficient() -> None:
    """Every finite bit pattern returns, −0 and subnormal numbers too; all others are refused."""
    patterns = np.array([0, 1 << 31, 1, 0x807FFFFF, 0x7F7FFFFF, 0x3F800001], np.uint32)
    codec = gcodec.parse("dct8:chunk=1,k=1,values=float32,index=fixed")
    payload = gcodec.Payload(codec, {}, patterns.astype(">u4").view(np.uint8), 32 * patterns.size)
    assert (codec.unpack(payload, patterns.size).codes.reshape(-1) == patterns).all()
    assert codec.decode(payload, patterns.size)[2:].tobytes() == patterns[2:].tobytes()
    assert codec.pack(codec.unpack(payload, patterns.size)).tobytes() == payload.tobytes()
    for pattern in (0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF):
        patterns[3] = pattern
        data = patterns.astype(">u4").view(np.uint8)
        with pytest.raises(Corrupt, match="finite") as caught:
            codec.decode(payload._replace(data=data), patterns.size)
        assert caught.value.offset == 12


def test_float32_needs_its_bits_before_memory() -> None:
    """All chunks of a float32 message are coded, so their number is checked first."""
    codec = gcodec.parse("dct8:chunk=1,k=1,values=float32,index=fixed")
    payload = gcodec.Payload(codec, {}, np.zeros(4, np.uint8), 32)
    tracemalloc.start()
    with pytest.raises(Truncated):
        codec.decode(payload, 1 << 27)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("spec", "most"), [("dct8:k=512", 1.75), ("dct8:k=1024,values=float32", 5.0)]
)
def test_encoding_lists_no_positions_in_8_bytes(
    spec: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_NUM_THREADS", "1")
    x = noise(1 << 22)
    gcodec.encode(x, spec)  # compiles the kernels
    tracemalloc.start()
    gcodec.encode(x, spec)
    assert tracemalloc.get_traced_memory()[1] <= most * x.size
    tracemalloc.stop()


def test_short_payloads_waste_no_bits() -> None:
    x = noise(4096)
    one, two = (gcodec.parse(f"dct8:k={k}").encode(x).nbits for k in (1, 2))
    assert one == 16 + 1 + 12  # Panthalia: 136
    assert two == 16 + 2 * (1 + 7 + 12)  # Panthalia: 208
    codec = gcodec.parse("dct8:values=affine8,k=1")
    assert codec.encode(x).nbits == 64 + 12
    assert codec.replaced(k=2).encode(x).nbits == 64 + 2 * (1 + 12)
    assert codec.replaced(k=2, values="float32").encode(x).nbits == 2 * (32 + 12)


def test_chunks_of_zeros_take_their_scale_alone() -> None:
    x = np.zeros(10 * 4096, F)
    assert gcodec.parse("dct8").encode(x).nbits == 10 * 16
    x[5000] = 1
    payload = gcodec.parse("dct8").encode(x)
    assert payload.nbits < 10 * 16 + 64 * 8
    assert not gcodec.parse("dct8").decode(payload, x.size)[8192:].any()


@pytest.mark.parametrize("kind", ["normal", "laplace", "cauchy", "smooth"])
def test_a_chunk_of_4096_takes_64_bytes(kind: str) -> None:
    rng = np.random.default_rng(5)
    make = {"normal": rng.standard_normal, "laplace": rng.laplace, "cauchy": rng.standard_cauchy}
    sizes = []
    for _ in range(20):
        x = make[kind](size=4096) if kind in make else np.cumsum(rng.standard_normal(4096))
        sizes.append(gcodec.parse("dct8").encode(x.astype(F)).data.size)
    assert np.mean(sizes) <= 64


def test_magnitudes_round_trip() -> None:
    rng = np.random.default_rng(1)
    rows = [rng.integers(low, 128, (3, 40)) for low in (0, 60, 120, 127)]
    rows += [np.zeros((1, 40)), np.full((1, 40), 127), np.where(np.arange(40) == 7, 127, 0)[None]]
    magnitudes = np.concatenate(rows).astype(np.uint8)
    string = BitString()
    string.extend(np.array([0xE0], np.uint8), 3)
    dct_words.write(magnitudes, string)
    data, end = string.trimmed(), string.nbits
    decoded, end_read = dct_words.read(data, 3, end, *magnitudes.shape)
    np.testing.assert_array_equal(decoded, magnitudes)
    assert end_read == end
    with pytest.raises(Truncated):
        dct_words.read(data[: end // 16], 3, end // 16 * 8, *magnitudes.shape)


# --- refused inputs ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("nonfinite", ["raise", "propagate"])
def test_nan_leaves_the_residual_unchanged(bad: float, nonfinite: Any) -> None:
    feedback = gcodec.Feedback("dct8:chunk=8x8,k=4", nonfinite=nonfinite)
    x = noise(100)
    feedback.compress("w", x)
    before = feedback.residual("w").copy()
    invalid = x.copy()
    invalid[70] = bad
    with pytest.raises(ParameterError, match="NaN or Inf"):
        feedback.compress("w", invalid)
    np.testing.assert_array_equal(feedback.residual("w"), before)
    residual = before.copy()
    with pytest.raises(ParameterError):
        gcodec.parse("dct8").quantize_residual(invalid, residual)
    np.testing.assert_array_equal(residual, before)


@pytest.mark.parametrize("values", levels.VALUES)
def test_transforms_beyond_float32_are_refused(values: str) -> None:
    x = np.full(64, 3e38, F)
    spec = f"dct8:chunk=8x8,values={values}"
    with pytest.raises(ParameterError, match="x: must not exceed float32 when it is transformed"):
        gcodec.encode(x, spec)
    x[7] = np.nan
    with pytest.raises(ParameterError, match="1 NaN or Inf, the first at flat index 7"):
        gcodec.encode(x, spec)
    x[7] = 3e38
    residual = np.zeros_like(x)
    with pytest.raises(ParameterError):
        gcodec.parse(spec).quantize_residual(x, residual)
    assert not residual.any()


@pytest.mark.parametrize(
    "spec",
    ["dct8:chunk=0", "dct8:chunk=4097", "dct8:chunk=512x256", "dct8:chunk=2x2x2x2"]
    + [
        "dct8:chunk=",
        "dct8:chunk=8x",
        "dct8:chunk=-8",
        "dct8:k=0",
        "dct8:chunk=2x2x2,layout=tiles",
    ],
)
def test_invalid_chunks_are_refused(spec: str) -> None:
    with pytest.raises(ParameterError):
        gcodec.parse(spec)


@pytest.mark.parametrize("sizes", [(0,), (4097,), (512, 256), (2, 2, 2, 2), ()])
def test_invalid_chunks_in_frames_are_refused(sizes: tuple[int, ...]) -> None:
    chunk = next(each for each in gcodec.codecs()["dct8"].declared() if each.name == "chunk")
    reader = Reader(memoryview(chunk.kind.write(sizes)))
    with pytest.raises(gcodec.Corrupt, match="must be "):
        chunk.kind.read(reader)


@pytest.mark.parametrize("value", [64, "64", (64,), [64]])
def test_spellings_of_a_chunk(value: Any) -> None:
    codec = gcodec.parse({"name": "dct8", "chunk": value})
    assert codec == gcodec.parse("dct8:chunk=64")
    assert gcodec.parse({"name": "dct8", "chunk": [8, 8]}) == gcodec.parse("dct8:chunk=8x8")


def payload_of(spec: str, n: int) -> gcodec.Payload:
    return gcodec.parse(spec).encode(noise(n))


SPECS = [
    f"dct8:chunk=8x8,k={k},values={v},index={i}"
    for k in (1, 5, 20)
    for v in ("sign7", "affine8", "float32")
    for i in ("fixed", "rice")
]


@pytest.mark.parametrize("spec", SPECS)
def test_readable_payloads_are_canonical(spec: str) -> None:
    payload, rng = payload_of(spec, 200), np.random.default_rng(0)
    readable = 0
    for _ in thinned(range(120), 2):
        data = payload.data.copy()
        for _ in range(rng.integers(1, 3)):
            data[rng.integers(data.size)] ^= 1 << rng.integers(8)
        damaged = payload._replace(data=data)
        try:
            symbols = payload.codec.unpack(damaged, 200)
        except (Truncated, Corrupt):
            continue
        readable += 1
        assert np.isfinite(payload.codec.dequantize(symbols, 200)).all()
        again = payload.codec.pack(symbols)
        if payload.codec.index == "fixed":
            assert again.tobytes() == data.tobytes()
        for one, other in zip(payload.codec.unpack(again, 200), symbols, strict=True):
            np.testing.assert_array_equal(one, other)
    assert readable > 10  # Flips of sign bits, at least, remain readable.


@pytest.mark.parametrize("spec", SPECS)
def test_short_and_long_payloads(spec: str) -> None:
    payload = payload_of(spec, 200)
    for nbits in range(0, payload.nbits, 7):
        data = payload.data[: -(-nbits // 8)].copy()
        if nbits % 8:
            data[-1] &= 0xFF << 8 - nbits % 8 & 0xFF
        with pytest.raises(FormatError):
            payload.codec.decode(payload._replace(data=data, nbits=nbits), 200)
    more = np.append(payload.data, np.zeros(2, np.uint8))
    with pytest.raises(FormatError):
        payload.codec.decode(payload._replace(data=more, nbits=8 * more.size), 200)
    with pytest.raises(FormatError):
        payload.codec.decode(payload, 1000)  # This shape has a different number of chunks.


@pytest.mark.parametrize("bits", [0x7F800000, 0x7FC00000, 0xBF800000, 0xFF800000, 0x80000000])
@pytest.mark.parametrize("field", [0, 1])
def test_invalid_scales_are_refused(bits: int, field: int) -> None:
    payload = payload_of("dct8:chunk=8x8,k=5,values=affine8", 64)
    data = payload.data.copy()
    data[4 * field : 4 * field + 4] = list(bits.to_bytes(4, "big"))
    # The second field is the least value, which may be negative.
    if field == 1 and bits == 0xBF800000:
        payload.codec.decode(payload._replace(data=data), 64)
        return
    with pytest.raises(Corrupt, match="scale"):
        payload.codec.decode(payload._replace(data=data), 64)
    payload = payload_of("dct8:chunk=8x8,k=5", 64)
    data = payload.data.copy()
    for high, low in ((0xFF, 0xFF), (0xFF, 0x00)):  # NaN, and infinity
        data[:2] = high, low
        with pytest.raises(Corrupt, match="scale"):
            payload.codec.decode(payload._replace(data=data), 64)


def test_decoded_values_beyond_float32_are_refused() -> None:
    x = np.zeros(64, F)
    x[0] = 1  # All coefficients have the same sign, so they add up in one element.
    payload = gcodec.parse("dct8:chunk=8x8,k=64").encode(x)
    data = payload.data.copy()
    data[:2] = 0xFE, 0xFF  # The largest scale.
    with pytest.raises(Corrupt, match="float32"):
        payload.codec.decode(payload._replace(data=data), 64)


def test_positions_beyond_a_chunk() -> None:
    payload = payload_of("dct8:chunk=7x9,k=1,index=fixed", 63)
    assert payload.nbits == 16 + 1 + 6
    data = payload.data.copy()
    data[2] |= 0x7E  # position 63 of 63
    with pytest.raises(Corrupt, match="position"):
        payload.codec.decode(payload._replace(data=data), 63)


def test_frames_respect_limits() -> None:
    frame = gcodec.encode(np.zeros(2**20, F), "dct8:chunk=4096")
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode(frame, limits=Limits(max_elements=2**19))


def test_a_frame_of_another_shape_is_refused() -> None:
    x = noise(16, 16)
    frame = gcodec.Frame.from_bytes(gcodec.encode(x, "dct8:chunk=8x8,k=4,layout=tiles"))
    for shape in ((256, 1), (4, 64), (17, 16)):
        other = gcodec.Frame(frame.codec, frame.dtype, shape, frame.payload).to_bytes()
        if shape == (4, 64):  # The same number of tiles, but each has fewer elements.
            with pytest.raises(FormatError):
                gcodec.decode(other)
            continue
        with pytest.raises(FormatError):
            gcodec.decode(other)


@pytest.mark.parametrize("spec", ["dct8:chunk=1,k=1,values=affine8", "dct8:chunk=1,k=1"])
def test_minus_zero_alone_is_not_sent(spec: str) -> None:
    """The range of a coefficient of −0 must not become a scale of −0, which decoders refuse."""
    x = np.array([-0.0, 1, -0.0], np.float32)
    assert gcodec.decode(gcodec.encode(x, spec)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("values", ["sign7", "affine8", "float32"])
def test_tensors_whose_largest_coefficients_exceed_float32_are_refused(values: str) -> None:
    """The coefficients that are left out would cancel those that are sent."""
    steps = np.arange(64)
    basis = np.cos(np.pi / 64 * np.outer(steps, steps + 0.5)) * 32**-0.5
    basis[0] /= 2**0.5
    sent = np.random.default_rng(0).permutation(64) < 32
    x = (np.where(sent, 1.25e38, -1.2e38) @ basis).astype(np.float32)
    assert np.isfinite(x).all()
    with pytest.raises(ParameterError, match="must not exceed float32 when it is decoded"):
        gcodec.encode(x, f"dct8:chunk=64,k=32,values={values}")
    gcodec.encode(x / 2, f"dct8:chunk=64,k=32,values={values}")


def test_scales_of_other_chunks_are_refused() -> None:
    codec = gcodec.parse("dct8:chunk=8,k=2")
    symbols: Any = codec.quantize(np.linspace(-1, 2, 40, dtype=np.float32))
    zero = np.zeros((1, 1), np.float32)
    longer = symbols._replace(scales=np.concatenate([symbols.scales, zero]))
    with pytest.raises(ParameterError, match=r"^symbols"):
        codec.dequantize(longer, 40)


@pytest.mark.parametrize(
    "positions", [(-1, 1, 2), (0, 1, 8), (0, 9, 2), (1, 1, 2), (0, 2, 2), (2, 1, 3), (-9, -8, -7)]
)
@pytest.mark.parametrize("row", [0, 4])
def test_positions_outside_of_a_chunk_are_refused(
    positions: tuple[int, int, int], row: int
) -> None:
    """A decoder would write to other memory."""
    codec = gcodec.parse("dct8:chunk=8,k=3")
    symbols: Any = codec.quantize(np.linspace(-1, 2, 40, dtype=np.float32))
    wrong = symbols._replace(positions=symbols.positions.copy())
    wrong.positions[row] = positions
    for call in (codec.pack, lambda symbols: codec.dequantize(symbols, 40)):
        with pytest.raises(ParameterError, match=r"^symbols"):
            call(wrong)
    wrong.positions[row] = 5, 6, 7
    codec.dequantize(wrong, 40)


def test_contraction_depends_on_layout_and_levels() -> None:
    """Levels take a part of it, and with tiles, repeated elements leave no bound."""
    exact, rounded, tiles = (
        gcodec.parse(f"dct8:chunk=8,k=4,{end}").contraction(1000)
        for end in ("values=float32", "values=sign7", "values=sign7,layout=tiles")
    )
    assert exact == pytest.approx(0.5, abs=1e-3) and tiles is None
    assert rounded == pytest.approx(exact - 0.5 * 4 / 250**2, abs=1e-7)
