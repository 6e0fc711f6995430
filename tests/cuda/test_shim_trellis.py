"""Test the trellis on a device: paths, models, strings, and frames with the bytes of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree, same_verdict
from samples import LARGE, same

import gcodec
from gcodec.entropy.context import trellis_tables
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.kernels.context import lane_order, scale_fit
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize import scalar_quantize, trellis, trellis_search
from gcodec.runtime.device import Device

SIZES = (1, 7, 31, 4097, 65_536, 65_537)
LANES = (2, 8, 32)


def random_symbols(n: int) -> np.ndarray:
    random = np.random.default_rng(n)
    h = np.minimum(np.abs(random.standard_cauchy(n)) * 2, 127).astype(np.int64)
    sign = (random.random(n) < 0.5) & (h > 0) & (h < 126)
    return (2 * h + sign).astype(np.uint8)


def values(n: int) -> np.ndarray:
    """Return values of many scales, with subnormals and zeros, and values within a few steps."""
    random = np.random.default_rng([n, 1])
    x = random.standard_normal(n) * np.exp(2 * random.standard_normal(n))
    x[random.random(n) < 0.1] = 0
    x[random.random(n) < 0.1] *= 1e-42
    x[random.random(n) < 0.01] = -1e4
    return x.astype(np.float32)


@pytest.mark.parametrize("lanes", LANES)
def test_order_and_models(gpu: Device, lanes: int) -> None:
    for n in (*SIZES, 150_001):
        flat = random_symbols(n)
        turns, back = np.empty(n, np.uint8), np.empty(n, np.uint8)
        lane_order.to_turns(flat, lanes, turns)
        inputs, on_device, again = (
            gpu.to_device(flat),
            gpu.empty(n, np.uint8),
            gpu.empty(n, np.uint8),
        )
        lane_order.to_turns(inputs, lanes, on_device)
        lane_order.from_turns(on_device, lanes, again)
        lane_order.from_turns(turns, lanes, back)
        assert same(gpu.to_host(on_device), turns)
        assert same(gpu.to_host(again), back)
        models = np.random.default_rng(n).integers(0, CLASSES, n).astype(np.uint8)
        models_there = gpu.to_device(models)
        trellis.add_quantizers(turns, lanes, models)
        trellis.add_quantizers(on_device, lanes, models_there)
        assert same(gpu.to_host(models_there), models)
        for sample in (0, 1, n // 2):
            wanted = trellis.model_counts(turns, models, sample)
            assert np.array_equal(trellis.model_counts(on_device, models_there, sample), wanted)
        known = np.random.default_rng(0).integers(0, 2, trellis.MODELS * 256).astype(np.uint8)
        actual = trellis.escaped_symbols(on_device, models_there, known)
        wanted_places = trellis.escaped_symbols(turns, models, known)
        for one, two in zip(actual, wanted_places, strict=True):
            assert np.array_equal(one, two)
        joined, joined_there = np.empty(n, np.uint16), gpu.empty(n, np.uint16)
        trellis.join_models(turns, models, actual[0], joined)
        trellis.join_models(on_device, models_there, actual[0], joined_there)
        assert same(gpu.to_host(joined_there), joined)


@pytest.mark.parametrize("lanes", LANES)
def test_paths(gpu: Device, lanes: int) -> None:
    table = trellis_tables.statics()[lanes % 3]
    costs = (table.costs * 0.24 / 2.0**28).astype(np.float32).reshape(-1)
    for n, all_values in ((1, 1), (33, 1), (65_536 + 77, 1), (150_001, 2)):
        x, factor = values(n), np.float32(1.7)
        classes = np.random.default_rng(n).integers(0, CLASSES, n).astype(np.uint8)
        on_device, classes_there = gpu.to_device(x), gpu.to_device(classes)
        out = np.full(n, 8, np.uint8)
        out_there = gpu.to_device(out)
        for moved in (np.zeros(3, np.float32), np.array([0.1, -0.2, 0.05], np.float32)):
            options = costs, moved, lanes, all_values
            trellis_search.best_levels(x, factor, lambda i, j, _, c=classes: c[i:j], *options, out)
            trellis_search.best_levels(
                on_device, factor, lambda i, j, _, c=classes_there: c[i:j], *options, out_there
            )
            assert same(gpu.to_host(out_there), out)
            wanted = trellis_search.errors_of(x, factor, all_values, out)
            actual = trellis_search.errors_of(on_device, factor, all_values, out_there)
            for one, two in zip(actual, wanted, strict=True):
                assert np.array_equal(one, two)


@pytest.mark.parametrize("width", [7, 300, 5000])
def test_costs_of_scales(gpu: Device, width: int) -> None:
    n = 9001
    symbols = random_symbols(n)
    scales = Scales.of(symbols, RowLayout(width, 1))
    costs = np.random.default_rng(0).integers(0, 1 << 19, (CLASSES, 128)).astype(np.int32)
    for quantum in (1, 8):
        arguments = scales.rows, np.full(width, 60, np.uint8), costs, quantum
        for add_up in (scale_fit.row_costs, scale_fit.column_costs):
            assert np.array_equal(
                add_up(gpu.to_device(symbols), *arguments), add_up(symbols, *arguments)
            )


def test_expected_squares(gpu: Device) -> None:
    for n in (1, 4097, LARGE):
        x = values(n)
        actual = scalar_quantize.exact_random_squares(gpu.to_device(x), 0.37)
        assert actual == scalar_quantize.exact_random_squares(x, 0.37)


def matrix(rows: int, width: int) -> np.ndarray:
    random = np.random.default_rng([rows, width])
    scales = np.exp(random.standard_normal((rows, 1)))
    return (scales * random.standard_normal((rows, width))).astype(np.float32)


SPECS = (
    "ecsq:trellis=yes,step=0.3",
    "ecsq:trellis=yes",
    "ecsq:rounding=stochastic",
    "ecsq:rounding=stochastic,nmse=0.0001",
)


@pytest.mark.parametrize("spec", SPECS)
def test_frames(gpu: Device, spec: str) -> None:
    frames_agree(gpu, spec, np.zeros(5, np.float32))
    for rows, width in ((1, 1), (1, 37), (30, 50), (66, 1000)):
        frames_agree(gpu, spec, matrix(rows, width), seed=3)
    frames_agree(gpu, spec, matrix(9, 90).astype(np.float16), seed=3)
    feedback_agrees(gpu, spec, [matrix(30, 50), matrix(30, 50)[::-1].copy()])


@pytest.mark.parametrize("spec", ["ecsq:trellis=yes", "ecsq:rounding=stochastic"])
def test_convolutions(gpu: Device, spec: str) -> None:
    """Filters with correlated taps, which the encoder transforms."""
    random = np.random.default_rng(4)
    x = random.standard_normal((40, 30, 1, 1)) + 0.3 * random.standard_normal((40, 30, 3, 3))
    frames_agree(gpu, spec, x.astype(np.float32), seed=3)


def test_values_without_symbol(gpu: Device) -> None:
    """Values that escape, and values that no model can code."""
    x = matrix(40, 300)
    x[::7, ::31] = 1e3
    frames_agree(gpu, "ecsq:trellis=yes,step=0.25", x)


def test_damage(gpu: Device) -> None:
    frame = gcodec.encode(matrix(40, 300), "ecsq:trellis=yes,step=0.3")
    same_verdict(gpu, frame, [3, 500, 9000, 20_000, 30_001, 40_007])


def test_seek_tables(gpu: Device) -> None:
    """Runs shorter and longer than those of the trellis."""
    x = matrix(200, 1100)
    known = gcodec.Frame.from_bytes(gcodec.encode(x, "ecsq:trellis=yes,step=0.1")).without_seek()
    wanted, device_result = known.decode(), gpu.to_device(x)
    for log2 in (12, 16, 18):
        indexed = known.with_seek(log2)
        assert same(gpu.to_host(indexed.decode(like=device_result)), wanted)
        on_device = known.payload._replace(data=gpu.to_device(known.payload.data))
        actual = known.codec._with_shape(x.shape)._index(on_device, x.size, log2)
        assert indexed.seek is not None
        assert np.array_equal(actual.offsets, indexed.seek.offsets)
