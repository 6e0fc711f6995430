"""Test context strings planned by a device: the bytes of the host, and a single wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gcodec.entropy.context import device, symbol_coder, table_choice
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.kernels.bits.bit_string import BitString
from gcodec.payload import Payload
from gcodec.runtime.deferred import one_wait
from gcodec.runtime.device import Device

SHAPES = (
    (1,),
    (7,),
    (300,),
    (40, 57),
    (64, 8),
    (3, 1000),
    (200, 30),
    (9, 12, 3, 3),
    (33, 16, 9),
    (5000,),
)


def levels(shape: tuple[int, ...], size: float, spread: float) -> np.ndarray:
    """Return symbols of Laplace levels with a scale for each row and column."""
    random = np.random.default_rng([*shape, 0])
    rows = np.exp(spread * random.standard_normal((shape[0], *(1,) * (len(shape) - 1))))
    columns = np.exp(spread * random.standard_normal((1, *shape[1:])))
    x = np.rint(size * rows * columns * random.laplace(size=shape)).reshape(-1)
    size_of = np.abs(x).clip(0, 127).astype(np.uint8)
    return 2 * size_of + ((x < 0) & (size_of > 0)).astype(np.uint8)


def agree(gpu: Device, symbols: np.ndarray, shape: tuple[int, ...], lead: bytes = b"") -> bytes:
    """Write a string on the host and on the device, which fetches all results at once."""

    def written(inputs: np.ndarray) -> Payload:
        front = BitString()
        front.extend(np.frombuffer(lead, np.uint8), 8 * len(lead))
        codec: Any = None  # the codec is not used
        with one_wait():
            written: Any = symbol_coder.write(inputs, shape, front)
            return Payload(codec, {}, *written).resolved(with_data=True)

    wanted, actual = written(symbols), written(gpu.to_device(symbols))
    assert actual.nbits == wanted.nbits
    assert actual.tobytes() == wanted.tobytes()
    tables = [None if part.seek is None else part.seek.to_bytes() for part in (actual, wanted)]
    assert tables[0] == tables[1]
    return wanted.tobytes()


@pytest.mark.parametrize("size", [0.02, 0.5, 3.0, 60.0])
def test_shapes(gpu: Device, size: float) -> None:
    for shape in SHAPES:
        for spread in (0.0, 1.0):
            agree(gpu, levels(shape, size, spread), shape, b"lead"[: len(shape)])


def test_zeros(gpu: Device) -> None:
    for shape in SHAPES:
        agree(gpu, np.zeros(int(np.prod(shape)), np.uint8), shape)


def test_own_tables_and_states(gpu: Device) -> None:
    """Levels that suit no static table, and strings with any number of states."""
    random = np.random.default_rng(2)
    lanes, numbers = set(), set()
    for n in (40, 4000, 40_000):
        for symbols in (
            np.where(random.random(n) < 0.5, 0, 40).astype(np.uint8),
            random.integers(2, 250, n).astype(np.uint8),
            levels((n // 40, 40), 8.0, 0.6),
        ):
            data = agree(gpu, symbols, (n // 40, 40))
            numbers.add(data[0])
            lanes.add(data[1])
    assert lanes == {2, 8, 32}
    assert 255 in numbers
    assert len(numbers) > 1


def test_more_outliers_than_room(gpu: Device) -> None:
    symbols = np.zeros(6000, np.uint8)
    symbols[::3] = 254
    agree(gpu, symbols, (60, 100))


def test_samples(gpu: Device) -> None:
    """With many symbols, rows determine the layout, and every few tiles the table."""
    for shape in ((4000, 300), (1100, 40, 5, 3), (600_000,)):
        agree(gpu, levels(shape, 0.7, 0.8), shape)


@pytest.mark.parametrize(
    ("shape", "halves_by"), [((5000, 300), 0.0), ((5000, 32, 16), 0.0), ((250, 4096), 1.0)]
)
def test_samples_that_miss_large_rows(
    gpu: Device, shape: tuple[int, ...], halves_by: float
) -> None:
    """All symbols determine the table if every few tiles lack the classes of most bits."""
    numbers = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    rows = 120 * 2.0 ** (-halves_by * numbers) if halves_by else 300 / (numbers + 1)
    x = np.rint(rows * np.random.default_rng(0).standard_normal(shape)).reshape(-1)
    symbols = np.abs(x).clip(0, 120).astype(np.uint8) * 2
    scales = Scales.of(symbols, RowLayout(x.size // shape[0], 0))
    plan = table_choice.plan(symbols, scales)
    assert plan.statistics is not None
    assert plan.statistics.examined == symbols.size
    agree(gpu, symbols, shape)


@pytest.mark.parametrize("log2_times", [0, 16, 21])
def test_the_bits_of_counts(gpu: Device, log2_times: int) -> None:
    """Bits grow as counts do, also where the bits times n exceed 64 bits."""
    shape, times = (40, 57), 1 << log2_times
    n = 40 * 57
    symbols = gpu.to_device(levels(shape, 60.0, 0.0))
    scales = device.counted(device.best_scales(symbols, symbols, shape), symbols)
    once = int(device.planned(scales, n, ()).nbits)
    counts = gpu.to_device(gpu.to_host(scales.counts) * np.uint64(times))
    many = device.planned(scales._replace(counts=counts), n * times, ())
    assert int(many.nbits) == pytest.approx(once * times, rel=0.1)
