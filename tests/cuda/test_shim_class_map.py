"""Test classes of elements, escapes and parts of codes on a device against the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from samples import LARGE, gradient, same

from gcodec.entropy.context.scale_model import RowLayout
from gcodec.entropy.context.table_choice import best_layout
from gcodec.kernels.bits import code_parts
from gcodec.kernels.context import class_map, escapes
from gcodec.kernels.numeric import scatter
from gcodec.kernels.quantize import ternary
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.runtime.device import Device

# Number of elements and width of a row: one row, complete and incomplete rows, narrow and wide.
MATRICES = ((1, 1), (33, 33), (513, 8), (9001, 9001), (9000, 300), (9001, 97), (9001, 256))


def symbols(n: int) -> np.ndarray:
    """Return symbols, mostly small, with a few escapes."""
    random = np.random.default_rng(n)
    actual = np.minimum(np.abs(random.standard_cauchy(n)) * 2, 254).astype(np.uint8)
    actual[actual == 1] = 0
    return actual


def scales(n: int, width: int, *, columns: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return scales of rows, and scales of columns or None."""
    random = np.random.default_rng([n, width])
    rows = random.integers(0, 128, -(-n // width)).astype(np.uint8)
    return rows, random.integers(0, 128, width if columns else 0).astype(np.uint8)


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize(("n", "width"), MATRICES)
def test_classes(gpu: Device, n: int, width: int, columns: bool) -> None:
    of, sample = (*scales(n, width, columns=columns), width), symbols(n)
    on_device = gpu.to_device(sample)
    for start in (0, n // 3, n - 1):
        wanted, out = np.empty(n - start, np.uint8), gpu.empty(n - start, np.uint8)
        class_map.map_classes(*of, start, wanted)
        class_map.map_classes(*of, start, out)
        assert same(gpu.to_host(out), wanted)
        unknown = np.arange(0, n - start, 7)
        numbers, joined = np.empty(n - start, np.uint16), gpu.empty(n - start, np.uint16)
        class_map.join_symbols(sample[start:], *of, start, unknown, numbers)
        class_map.join_symbols(on_device[start:], *of, start, unknown, joined)
        assert same(gpu.to_host(joined), numbers)
    for step in (1, 2, 5):
        all_values = [of, (*scales(n, n, columns=False), n)]
        counts = class_map.class_counts(sample, all_values, step)
        assert same(class_map.class_counts(on_device, all_values, step), counts)
        reported = [(width, 0, 1), (width, 1, 2), (n, 0, 1), (width, min(3, width), 4)]
        matrices = [RowLayout(*numbers) for numbers in reported[step % 2 :]]
        wanted_best = best_layout(sample, matrices, step)
        assert best_layout(on_device, matrices, step) == wanted_best
    assert sums_agree(gpu, sample, [(width, columns), (n, False), (n, columns)])
    for most in (1, 20, 126):  # many, some and few symbols exceed the bound
        tops = np.random.default_rng(n).integers(0, most + 1, 64).astype(np.uint8)
        wanted = class_map.escaped_symbols(sample, *of, tops)
        out = class_map.escaped_symbols(on_device, *of, tops)
        assert all(same(*both) for both in zip(out, wanted, strict=True))


def sums_agree(gpu: Device, values: np.ndarray, matrices: list[tuple[int, bool]]) -> bool:
    """Check that the sums equal those of the CPU."""
    wanted = class_map.magnitude_sums(values, matrices)
    actual = class_map.magnitude_sums(gpu.to_device(values), matrices)
    both = zip(actual, wanted, strict=True)
    return all(same(a, b) for one, two in both for a, b in zip(one, two, strict=True))


def test_sums_of_large_rows(gpu: Device) -> None:
    assert sums_agree(gpu, symbols(LARGE), [(LARGE, False), (1 << 14, True), (12, True)])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_escapes(gpu: Device, dtype: type) -> None:
    for n in (1, 33, 9001):
        sample = symbols(n).astype(dtype) * dtype(1 if dtype == np.uint8 else 200)
        on_device = gpu.to_device(sample)
        for least in (0, 2, 254, 20000):
            if least <= np.iinfo(dtype).max:
                wanted = escapes.symbols_from(sample, least)
                actual = escapes.symbols_from(on_device, least)
                assert all(same(*both) for both in zip(actual, wanted, strict=True))
        wanted, actual = np.empty(n, np.uint8), gpu.empty(n, np.uint8)
        escapes.cut_off(sample, wanted)
        escapes.cut_off(on_device, actual)
        assert same(gpu.to_host(actual), wanted)


def test_symbols_of_codes(gpu: Device) -> None:
    for n in (1, 33, 9001):
        sample = symbols(n)
        on_device, places = gpu.to_device(sample), np.flatnonzero(sample >= 20)
        values, largest = sample[places], sample.max()
        for inputs in (sample, on_device):
            assert escapes.largest(inputs) == int(largest)
            below = sample[sample < 20].max(initial=0)
            for most in {19, int(below), max(int(below) - 1, 0)}:
                reported = escapes.check_escapes(inputs, places, values, 20, most)
                assert reported == (True, below <= most)
            if places.size:
                assert not escapes.check_escapes(inputs, places[1:], values[1:], 20, 30)[0]
                assert not escapes.check_escapes(inputs, places, values ^ 1, 20, 30)[0]
            scatter.replace(inputs, places, values.astype(np.int64) // 2)
        assert same(gpu.to_host(on_device), sample)
        x = gradient(n)
        kept = gpu.to_device(x)
        wanted = escapes.elements_from(x, sample, 9)
        actual = escapes.elements_from(kept, on_device, 9)
        assert all(same(*both) for both in zip(actual, wanted, strict=True))
        for inputs in (x, kept):
            scatter.replace(inputs, places, gradient(places.size, 1))
        assert same(gpu.to_host(kept), x)


@pytest.mark.parametrize("name", ["e2m1", "e1m1", "e3m2", "e4m3", "e5m2"])
def test_parts_of_codes(gpu: Device, name: str) -> None:
    fmt = MiniFloat(name)
    for n in (1, 32, 999):
        each = np.random.default_rng(n).integers(0, 1 << fmt.width, n).astype(np.uint8)
        codes = each
        if fmt.width <= 4:
            padded = np.append(each, np.zeros(n % 2, np.uint8))
            codes = padded[::2] << np.uint8(4) | padded[1::2]
        for change in ("signs last", "exponents", "planes"):
            wanted = code_parts.parts_of(codes, n, fmt, change)
            actual = code_parts.parts_of(gpu.to_device(codes), n, fmt, change)
            assert same(gpu.to_host(actual), wanted)
        last = code_parts.parts_of(codes, n, fmt, "signs last")
        first = code_parts.changed(gpu.to_device(last), fmt, "signs first")
        assert same(gpu.to_host(first), each)
        assert same(code_parts.changed(last, fmt, "signs first"), each)


def test_ternary_symbols(gpu: Device) -> None:
    for n in (0, 1, 4, 5, 999, LARGE // 64):
        trits = np.random.default_rng(n).integers(0, 3, n).astype(np.uint8)
        wanted = trits + (trits > 0).astype(np.uint8)
        codes = ternary.codes_of(wanted)
        actual = ternary.codes_of(gpu.to_device(wanted))
        assert same(gpu.to_host(actual), codes)
        assert same(gpu.to_host(ternary.symbols_of(actual, n)), wanted)
        assert same(ternary.symbols_of(codes, n), wanted)
