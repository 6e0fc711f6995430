"""Test strings of run–level pairs on a device, and the counts that select the shortest code."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from samples import LARGE, same
from strings import agree, broken, outcome, resolved, symbols

import gcodec
from gcodec.kernels.prefix import run_level_place, sparse_string, tally
from gcodec.kernels.prefix.level_codes import run_level_code, word_code
from gcodec.kernels.prefix.level_forms_cuda import rice_words
from gcodec.kernels.prefix.prefix_table import ready
from gcodec.kernels.prefix.tally_cuda import rice_parameter
from gcodec.kernels.quantize.levels import Scale
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device

FIRST = 8 * 4  # after four bytes


def written(device, code, inputs, all_values=4096):
    """Write on both sides, compare, and return the string and its block starts."""
    data, nbits, *table = sparse_string.write(code, inputs, all_values, 4)
    on_device = sparse_string.write(code, device.to_device(inputs), all_values, 4)
    data[:4] = 0  # the caller clears these bytes
    actual = device.to_host(on_device[0])[: data.size]  # the device may reserve more
    actual[:4] = 0
    assert resolved(on_device[1]) == nbits
    assert np.array_equal(actual, data)
    assert all(map(np.array_equal, map(resolved, on_device[2:]), table))
    return data, nbits, tuple(table)


def read(device, code, data, nbits, table, n, dtype, all_values=4096):
    """Read on the device, or on the host if `device` is None."""
    on_device = data if device is None else device.to_device(data)
    out = np.zeros(n, dtype) if device is None else device.zeros(n, dtype)
    layout = FIRST, nbits, all_values, table
    decoded = sparse_string.read(code, on_device, *layout, partial(run_level_place.place, out=out))
    return decoded, out if device is None else device.to_host(out)


@pytest.mark.parametrize("code", ["omega", "rice"])
@pytest.mark.parametrize(("s", "share"), [(15, 0.1), (127, 1.0), (1000, 0.5), (100_000, 0.01)])
def test_levels(gpu: Device, code: str, s: int, share: float) -> None:
    words = run_level_code(code, s, {"rice": 2, "rice_gap": 3})
    for n, all_values in ((0, 4096), (1, 64), (4095, 64), (4097, 4096), (5001, 512)):
        inputs = symbols(n, s, share, 6.0)
        data, nbits, table = written(gpu, words, inputs, all_values)
        for known in (table, None) if nbits > FIRST else (None,):
            decoded, got = read(gpu, words, data, nbits, known, n, inputs.dtype, all_values)
            assert same(got, inputs)
            assert all(map(np.array_equal, decoded, table))


def test_large(gpu: Device) -> None:
    words, inputs = run_level_code("omega", 15, {}), symbols(LARGE, 15, 0.05, 4.0)
    data, nbits, table = written(gpu, words, inputs)
    assert same(read(gpu, words, data, nbits, table, LARGE, np.uint8)[1], inputs)


@pytest.mark.parametrize("norm", [3.0, 2.0**-100, 2.0**-101, 2.0**-149])
def test_values(gpu: Device, norm: float) -> None:
    words, inputs = run_level_code("omega", 1000, {}), symbols(9001, 1000, 0.2, 9.0)
    data, nbits, *table = sparse_string.write(words, inputs, 4096, 4)
    norms = np.full(-(-9001 // 512), norm, np.float32)
    norms[::3] *= 2
    scale, out = Scale(norms, 512, 1000), gpu.zeros(9001, np.float32)
    layout = FIRST, nbits, 4096, tuple(table)
    place = partial(run_level_place.place_values, scale=scale, out=out)
    sparse_string.read(words, gpu.to_device(data), *layout, place)
    wanted = np.zeros(9001, np.float32)
    place = partial(run_level_place.place_values, scale=scale, out=wanted)
    sparse_string.read(words, data, *layout, place)
    assert same(gpu.to_host(out), wanted)
    norms[5] = 0
    place = partial(run_level_place.place_values, scale=Scale(norms, 512, 1000), out=out)
    with pytest.raises(gcodec.Corrupt, match="norm is 0"):
        sparse_string.read(words, gpu.to_device(data), *layout, place)


@pytest.mark.parametrize("code", ["omega", "rice"])
def test_broken(gpu: Device, code: str) -> None:
    words, inputs = run_level_code(code, 15, {"rice": 1, "rice_gap": 2}), symbols(600, 15, 0.3)
    data, nbits, table = written(gpu, words, inputs, 64)
    for seed in range(20):
        wrong = broken(data, FIRST, seed)
        for end in (nbits, nbits - seed):
            for known in (None, table):
                args = words, wrong, end, known, 600, inputs.dtype, 64
                here = outcome(lambda a=args: read(None, *a)[1])
                on_device = outcome(lambda a=args: read(gpu, *a)[1])
                assert agree(here, on_device), (seed, end, known)
    for which in (0, 1):
        for shift in (-1, 1, 10**9, -(10**9), 2**62):
            moved = [part.copy() for part in table]
            moved[which][2] += shift
            with pytest.raises(gcodec.Corrupt):
                read(gpu, words, data, nbits, tuple(moved), 600, inputs.dtype, 64)


@pytest.mark.parametrize("s", [15, 100_000])
def test_rice_parameters(gpu: Device, s: int) -> None:
    for n, share in ((1, 1.0), (4096, 0.0), (4097, 0.01), (9001, 0.5)):
        inputs = symbols(n, s, share, 5.0)
        on_device = gpu.to_device(inputs)
        all_values: tuple[tally.Numbers, ...] = ("zigzag", "levels", "gaps")
        counted = tally.tally(inputs)
        for numbers in all_values:
            for silent in (0, n // 3 if numbers == "zigzag" else 0):
                wanted, _ = tally.best_rice(inputs, numbers, counted, silent)
                words = gpu.to_device(np.array([n - silent])) if silent else None
                assert int(rice_parameter(on_device, numbers, words)) == wanted, (n, numbers)


@pytest.mark.parametrize("k", [0, 2, 11, 26, 47])
def test_rice_words(gpu: Device, k: int) -> None:
    parameter = Deferred(gpu, gpu.to_device(np.array([k])))
    units = run_level_code("rice", 2**20, {"rice": k, "rice_gap": k})
    dense = word_code("rice", 2**20, {"rice": k})
    for code, size, first in ((units.gap, 1024, 1), (units.symbol, 255, 2), (dense, 255, 2)):
        actual = gpu.to_host(rice_words(parameter, code, size).table)
        wanted = ready(*code.words(size))
        assert same(actual[first:], np.append(wanted, np.uint64(k))[first:])
