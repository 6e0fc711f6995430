"""Test rANS strings on a device: bytes and runs of the CPU, and its verdicts on damage."""

from __future__ import annotations

import numpy as np
import pytest
from samples import LARGE, gradient, same
from strings import agree, broken, outcome, resolved

import gcodec
from gcodec.entropy.rans import best_frequencies
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_runs import Runs
from gcodec.kernels.rans.rans_string import Layout
from gcodec.kernels.rans.rans_table import ReadTables, read_tables, write_tables
from gcodec.runtime.device import Device


def symbols_and_model(n: int, spread: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Return symbols and a frequency table for them."""
    random = np.random.default_rng([n, int(spread)])
    inputs = np.minimum(np.abs(random.standard_cauchy(n)) * spread, 255).astype(np.uint8)
    counts = np.bincount(inputs, minlength=256)
    return inputs, *best_frequencies(counts if n else np.eye(1, 256, dtype=np.int64)[0])


def written(device, inputs, model, lead, log2_run) -> tuple[np.ndarray, int, Runs]:
    """Write on both sides, compare, and return the string and its runs."""
    tables, front = write_tables(*model), np.arange(lead, dtype=np.uint8)
    data, nbits, runs = rans_string.write(tables, inputs, inputs.size, front, log2_run)
    layout = inputs.size, front, log2_run
    on_device = tuple(map(resolved, rans_string.write(tables, device.to_device(inputs), *layout)))
    assert on_device[1] == nbits
    assert same(device.to_host(on_device[0])[: data.size], data)
    assert np.array_equal(on_device[2].offsets, runs.offsets)
    assert np.array_equal(on_device[2].states, runs.states)
    return data, nbits, runs


def read(device, tables: ReadTables, data, first, nbits, n, runs) -> np.ndarray:
    """Read on the device, or on the host if `device` is None."""
    out = np.zeros(n, np.uint8)

    def take(at, part):
        out[at : at + part.size] = part if device is None else device.to_host(part)

    on_device = data if device is None else device.to_device(data)
    rans_string.read(on_device, Layout(tables, first, nbits, n), take, runs)
    return out


@pytest.mark.parametrize("log2_run", [5, 12, 16])
@pytest.mark.parametrize(("n", "spread"), [(1, 1), (33, 9), (9001, 200)])
def test_strings(gpu: Device, n: int, spread: float, log2_run: int) -> None:
    inputs, *model = symbols_and_model(n, spread)
    for lead in (0, 1, 6) if n < 100 else (3,):
        data, nbits, runs = written(gpu, inputs, model, lead, log2_run)
        tables = read_tables(*model)
        for known in (runs, None):
            assert same(read(gpu, tables, data, 8 * lead, nbits, n, known), inputs)
        layout = Layout(tables, 8 * lead, nbits, n)
        actual = rans_string.index(gpu.to_device(data), layout, log2_run)
        assert np.array_equal(actual.offsets, runs.offsets)
        assert np.array_equal(actual.states, runs.states)


def test_long_strings_without_runs_are_read_by_the_host(gpu: Device) -> None:
    """One warp would take much longer."""
    inputs, *model = symbols_and_model((1 << 14) + 5, 2)
    data, nbits, _ = rans_string.write(write_tables(*model), inputs, inputs.size, inputs[:0])
    before = list(getattr(gpu, "launched", []))
    assert same(read(gpu, read_tables(*model), data, 0, nbits, inputs.size, None), inputs)
    assert list(getattr(gpu, "launched", [])) == before


@pytest.mark.parametrize("spec", ["ecsq:step=0.01", "ecsq:step=0.01,trellis=yes"])
def test_long_classed_strings_without_runs(gpu: Device, spec: str) -> None:
    x = 0.02 * gradient(20_000).clip(-9, 9).reshape(100, 200)
    frame = gcodec.encode(x, spec)
    decoded = gcodec.decode(frame, like=gpu.to_device(x))
    assert same(gpu.to_host(decoded), gcodec.decode(frame))


@pytest.mark.parametrize("log2_total", [12, 15])
def test_totals(gpu: Device, log2_total: int) -> None:
    inputs = symbols_and_model(5000, 3)[0]
    counts = np.bincount(inputs, minlength=256)
    frequencies = np.maximum(counts * ((1 << log2_total) - 256) // 5000, counts > 0)
    frequencies[0] += (1 << log2_total) - frequencies.sum()
    model = frequencies, log2_total
    data, nbits, runs = written(gpu, inputs, model, 0, 9)
    assert same(read(gpu, read_tables(*model), data, 0, nbits, 5000, runs), inputs)


def test_empty_string(gpu: Device) -> None:
    inputs, *model = symbols_and_model(0, 1)
    data, nbits, _ = written(gpu, inputs, model, 5, 18)
    assert read(gpu, read_tables(*model), data, 40, nbits, 0, None).size == 0


def test_large(gpu: Device) -> None:
    """More than one block."""
    n = LARGE + 1000
    inputs, *model = symbols_and_model(n, 4)
    data, nbits, runs = written(gpu, inputs, model, 2, 16)
    assert same(read(gpu, read_tables(*model), data, 16, nbits, n, runs), inputs)


def test_broken(gpu: Device) -> None:
    inputs, *model = symbols_and_model(5000, 9)
    data, nbits, runs = written(gpu, inputs, model, 0, 9)
    tables = read_tables(*model)
    for seed in range(8):
        for wrong, end in ((broken(data, 0, seed), nbits), (data, nbits - 16 * (seed + 1))):
            for known in (None, runs):
                args = tables, wrong, 0, end, 5000, known
                here = outcome(lambda a=args: read(None, *a))
                on_device = outcome(lambda a=args: read(gpu, *a))
                assert agree(here, on_device), (seed, end, known)
    for at in (1, 5, -1):
        for shift in (-16, 16, 3, -(10**9), 10**9):
            moved = runs._replace(offsets=runs.offsets.copy())
            moved.offsets[at] += shift
            with pytest.raises(gcodec.Corrupt):
                read(gpu, tables, data, 0, nbits, 5000, moved)
    other = runs._replace(states=runs.states.copy())
    other.states[3, 17] ^= 1
    with pytest.raises(gcodec.Corrupt):
        read(gpu, tables, data, 0, nbits, 5000, other)


def classed(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return symbols, their classes, and a frequency table for each class."""
    random = np.random.default_rng(n)
    classes = random.integers(0, 64, n).astype(np.uint8)
    inputs = np.minimum(np.abs(random.standard_cauchy(n)) * (classes + 1) / 16, 40).astype(
        np.uint8
    )
    frequencies = np.tile(np.arange(256) < 41, (64, 1)).astype(np.int64) * 20
    frequencies[np.arange(64), np.arange(64) // 8] += 4096 - 41 * 20
    return inputs, classes, frequencies


@pytest.mark.parametrize("lanes", [2, 8, 32])
@pytest.mark.parametrize("n", [1, 2, 33, 4100])
def test_classes(gpu: Device, n: int, lanes: int) -> None:
    inputs, classes, frequencies = classed(n)
    lead, log2_run = np.arange(3, dtype=np.uint8), 9 if lanes == 32 else 18
    tables, joined = write_tables(frequencies, 12), classes.astype(np.uint16) << 8 | inputs
    data, nbits, runs = rans_string.write(tables, joined, n, lead, log2_run, lanes)
    message = rans_string.write(tables, gpu.to_device(joined), n, lead, log2_run, lanes)
    on_device = tuple(map(resolved, message))
    assert on_device[1] == nbits
    assert same(gpu.to_host(on_device[0])[: data.size], data)
    assert np.array_equal(on_device[2].offsets, runs.offsets)
    assert np.array_equal(on_device[2].states, runs.states)

    def classes_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        return gpu.to_device(classes[start:stop])

    model, taken = read_tables(frequencies, 12), []
    for known in (runs, None):
        options = lambda _, part: taken.append(gpu.to_host(part)), known
        layout = Layout(model, 24, nbits, n, classes_of, lanes)
        end = rans_string.read(on_device[0], layout, *options)
        assert end == nbits
        assert same(taken.pop(), inputs)
    actual = rans_string.index(on_device[0], layout, log2_run)
    assert np.array_equal(actual.states, runs.states)
    with pytest.raises(gcodec.Truncated):
        rans_string.read(on_device[0], layout._replace(end=nbits - 16), *options)
