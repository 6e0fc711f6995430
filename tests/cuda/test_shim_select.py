"""Test selection, scattering, histograms and bytes with steps on a device against the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from samples import LARGE, SIZES, arbitrary_floats, gradient, same

from gcodec.errors import ParameterError
from gcodec.kernels.bits import byte_blocks
from gcodec.kernels.numeric import scatter, select
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.log_histogram import log_histogram
from gcodec.runtime import cuda_grid
from gcodec.runtime.device import Device

FEW = (0, 1, 31, 33, 4097)  # sizes


def equal_ones(n: int) -> np.ndarray:
    """Return values most of which have equal magnitudes."""
    random = np.random.default_rng(n)
    return random.choice(
        np.array([1, -1, 0.5, -0.0, 2], np.float32), n, p=[0.45, 0.4, 0.05, 0.05, 0.05]
    )


def test_log_histogram(gpu: Device) -> None:
    for n in (*FEW, 40_000):
        for x in (arbitrary_floats(n), np.zeros(n, np.float32)):
            assert same(log_histogram(gpu.to_device(x)), log_histogram(x))


def test_byte_counts(gpu: Device) -> None:
    random = np.random.default_rng(0)
    for n in (*SIZES, LARGE):
        codes = np.minimum(random.geometric(0.2, n), 255).astype(np.uint8)
        on_device = gpu.to_device(codes)
        assert same(gpu.to_host(byte_counts(on_device)), byte_counts(codes))
        for at in range(1, min(n, 4)):  # with each alignment of the bytes
            assert same(gpu.to_host(byte_counts(on_device[at:])), byte_counts(codes[at:]))


@pytest.mark.parametrize("values", [gradient, equal_ones])
def test_largest(gpu: Device, values) -> None:
    for n in (0, 33, 4097):
        x = values(n)
        on_device = gpu.to_device(x)
        for k in {0, n // 100, n // 3, n}:
            assert same(select.take_largest(on_device, k)[0], select.take_largest(x, k)[0]), (n, k)


def test_few_blocks(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # With so few blocks, each thread handles several elements.
    monkeypatch.setattr(cuda_grid, "_MAX_STRIDING_BLOCKS", 2)
    x = equal_ones(40_000)
    on_device, positions = gpu.to_device(x), random_positions(x.size)
    assert same(log_histogram(on_device), log_histogram(x))
    assert same(gpu.to_host(byte_counts(on_device.view(np.uint8))), byte_counts(x.view(np.uint8)))
    assert same(select.take_largest(on_device, 4000)[0], select.take_largest(x, 4000)[0])
    assert same(gpu.to_host(scatter.take(on_device, positions)), x[positions])
    out, wanted = gpu.to_device(x[::-1].copy()), x[::-1].copy()
    scatter.add(out, positions, x[positions], np.float32(2))
    scatter.add(wanted, positions, x[positions], np.float32(2))
    assert same(gpu.to_host(out), wanted)
    steps, codes = byte_blocks.quantize(on_device[:3000])
    assert same(gpu.to_host(steps), byte_blocks.quantize(x[:3000])[0])
    assert same(gpu.to_host(codes), byte_blocks.quantize(x[:3000])[1])


def test_largest_of_many(gpu: Device) -> None:
    for n in (9001, LARGE):
        x = gradient(n)
        actual = select.take_largest(gpu.to_device(x), n // 99)[0]
        assert same(actual, select.take_largest(x, n // 99)[0])


def test_at_least(gpu: Device) -> None:
    for n in FEW:
        x = gradient(n)
        on_device = gpu.to_device(x)
        for threshold in map(np.float32, (0.0, -1.0, 1e-42, 1.0, 1e30)):
            actual = select.take_at_least(on_device, threshold)[0]
            assert same(actual, select.take_at_least(x, threshold)[0])


def test_take_to_host(gpu: Device) -> None:
    for n in (0, 1, 33, 4097):
        x, k = gradient(n), (n + 9) // 10
        on_device = gpu.to_device(x)
        for take, setting in ((select.take_largest, k), (select.take_at_least, np.float32(1))):
            positions, elements = take(on_device, setting)
            assert same(positions, take(x, setting)[0])
            assert same(elements, take(x, setting)[1])
        positions = random_positions(n)
        assert same(gpu.to_host(scatter.take(on_device, positions)), x[positions])


def test_nonfinite_values(gpu: Device) -> None:
    x = arbitrary_floats(5000)
    for k in (0, 50, 5000):
        assert select.take_largest(gpu.to_device(x), k) is None
    assert select.take_at_least(gpu.to_device(x), np.float32(1)) is None
    x = np.abs(np.where(np.isfinite(x), x, np.float32(0)))
    x[4321] = np.inf
    assert select.take_largest(gpu.to_device(x), 0) is None
    assert select.take_at_least(gpu.to_device(x), np.float32(1)) is None


def random_positions(n: int) -> np.ndarray:
    """Return increasing positions."""
    random = np.random.default_rng(n)
    return np.flatnonzero(random.random(n) < 0.1).astype(np.int64)


def test_take(gpu: Device) -> None:
    for n in SIZES:
        x, positions = arbitrary_floats(n), random_positions(n)
        for places in (positions, gpu.to_device(positions)):
            actual = scatter.take(gpu.to_device(x), places)
            assert same(gpu.to_host(actual).view(np.uint32), x[positions].view(np.uint32))


def test_put(gpu: Device) -> None:
    for n in SIZES:
        x, positions = arbitrary_floats(n), random_positions(n)
        wanted, out = arbitrary_floats(n, 1), gpu.to_device(arbitrary_floats(n, 1))
        scatter.put(wanted, positions, x[positions])
        scatter.put(out, gpu.to_device(positions), gpu.to_device(x[positions]))
        assert same(gpu.to_host(out), wanted)


@pytest.mark.parametrize("scale", [-1.0, 1.0, 2.0**-80, 0.0, -0.0, np.inf, np.nan])
def test_add(gpu: Device, scale: float) -> None:
    for n in FEW:
        x, positions, times = gradient(n), random_positions(n), np.float32(scale)
        for has_minus_zero in (True, False):
            wanted = gradient(n, 1) + (0 if has_minus_zero else np.float32(0))
            out = gpu.to_device(wanted.copy())
            with np.errstate(all="ignore"):
                scatter.add(wanted, positions, x[positions], times, has_minus_zero)
            scatter.add(out, positions, x[positions], times, has_minus_zero)
            assert same(gpu.to_host(out), wanted), n


@pytest.mark.parametrize("positions", [[-1], [5], [1, 1], [2, 1], [1 << 62]])
def test_wrong_positions(gpu: Device, positions: list[int]) -> None:
    places, values = np.array(positions), np.ones(len(positions), np.float32)
    out = gpu.to_device(np.zeros(5, np.float32))
    for work in (scatter.put, lambda *arrays: scatter.add(*arrays, np.float32(1))):
        with pytest.raises(ParameterError, match="must rise"):
            work(out, places, values)
    if positions[0] not in (1, 2):
        with pytest.raises(ParameterError, match="must rise"):
            scatter.take(out, places)


def test_bytes_with_steps(gpu: Device) -> None:
    tiny = np.arange(700, dtype=np.uint32).view(np.float32)
    huge = np.linspace(-3.4e38, 3.4e38, 300, dtype=np.float32)
    for x in (*map(gradient, SIZES), tiny, tiny[:300], -tiny, huge):
        steps, codes = byte_blocks.quantize(gpu.to_device(x))
        wanted = byte_blocks.quantize(x)
        assert same(gpu.to_host(steps), wanted[0])
        assert same(gpu.to_host(codes), wanted[1])
        assert same(
            gpu.to_host(byte_blocks.dequantize(steps, codes)), byte_blocks.dequantize(*wanted)
        )
