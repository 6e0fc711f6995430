"""Test strings of prefix codewords on a device: bytes of the CPU, and its verdicts on damage."""

from __future__ import annotations

import numpy as np
import pytest
from samples import LARGE
from strings import agree, broken, outcome, resolved, symbols

import gcodec
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.scan_cuda import maxima_before, sums_before
from gcodec.kernels.prefix import dense_string, dense_string_cuda
from gcodec.kernels.prefix.codewords import DELTA, EXPGOLOMB, GAMMA, GOLOMB, OMEGA, RICE
from gcodec.kernels.prefix.level_codes import word_code
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime.device import Device, host

EVERY = 4096
HEAD = np.array([0xA0], np.uint8), 3
FIRST = 8 * 4 + 3  # after four bytes and three bits


def written(device, code, inputs, coded):
    """Write a string on both sides, compare, and return the string and its block starts."""
    options = inputs.dtype, coded, EVERY, 4, HEAD
    data, nbits, offsets = dense_string.write(code, inputs, *options)
    on_device = dense_string.write(code, device.to_device(inputs), *options)
    data[:4] = 0  # the caller clears these bytes
    actual = device.to_host(on_device[0])[: data.size]  # the device may reserve more
    actual[:4] = 0
    assert resolved(on_device[1]) == nbits
    assert np.array_equal(actual, data)
    assert np.array_equal(resolved(on_device[2]), offsets)
    return data, nbits, offsets


def read(device, code, data, nbits, coded, offsets, all_values=EVERY):
    """Read on the device, or on the host if `device` is None."""
    parts = []
    on_device = data if device is None else device.to_device(data)

    def take(at, small, wide):
        small = small if device is None else device.to_host(small)
        part = dense_string.widened(small.copy(), wide, np.min_scalar_type(code.top))
        parts.append((at, part))

    layout = FIRST, nbits, coded, all_values, offsets
    decoded = host(dense_string.read(code, on_device, *layout, take))
    parts.sort(key=lambda pair: pair[0])
    got = np.concatenate([part for _, part in parts]) if parts else np.empty(0, np.uint8)
    return decoded, got


def test_the_host_finds_the_blocks_of_long_strings(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread of a device would take minutes for the longest strings without a seek table."""
    monkeypatch.setattr(dense_string_cuda, "_SERIAL", EVERY)
    words, coded = word_code("omega", 15, {}), CodedMask.of(2 * EVERY, 1000, np.arange(9) == 3)
    inputs = symbols(2 * EVERY, 15)
    inputs[3000:4000] = 0
    data, nbits, offsets = written(gpu, words, inputs, coded)
    ends, decoded = read(gpu, words, data, nbits, coded, None)
    assert np.array_equal(ends, offsets)
    assert np.array_equal(decoded, inputs)
    for seed in range(8):
        damaged = broken(data, FIRST, seed), nbits, coded, None
        here = outcome(lambda a=damaged: read(None, words, *a)[1])
        assert agree(here, outcome(lambda a=damaged: read(gpu, words, *a)[1])), seed


@pytest.mark.parametrize("code", ["omega", "rice"])
@pytest.mark.parametrize("s", [15, 127, 1000, 100_000])
def test_levels(gpu: Device, code: str, s: int) -> None:
    words = word_code(code, s, {"rice": 2})
    for n in (0, 1, 15, 4096, 9001):
        inputs, coded = symbols(n, s), CodedMask.all(n)
        data, nbits, offsets = written(gpu, words, inputs, coded)
        for known in (offsets, None) if n else (None,):
            decoded, got = read(gpu, words, data, nbits, coded, known)
            assert np.array_equal(got, inputs)
            assert np.array_equal(decoded, offsets)


def test_large(gpu: Device) -> None:
    words, inputs, coded = word_code("omega", 15, {}), symbols(LARGE, 15), CodedMask.all(LARGE)
    data, nbits, offsets = written(gpu, words, inputs, coded)
    assert np.array_equal(read(gpu, words, data, nbits, coded, offsets)[1], inputs)


@pytest.mark.parametrize("bucket", [7, 512, 5000])
@pytest.mark.parametrize("code", ["omega", "table"])
def test_zero_norm_buckets(gpu: Device, bucket: int, code: str) -> None:
    inputs = symbols(9001, 15)
    silent = np.random.default_rng(bucket).random(-(-9001 // bucket)) < 0.4
    silent[-1] = True
    inputs[np.repeat(silent, bucket)[:9001]] = 0
    words = table_of(inputs) if code == "table" else word_code("omega", 15, {})
    coded = CodedMask.of(9001, bucket, silent)
    data, nbits, offsets = written(gpu, words, inputs, coded)
    for known in (offsets, None):
        assert np.array_equal(read(gpu, words, data, nbits, coded, known)[1], inputs)


def table_of(inputs: np.ndarray) -> TableCode:
    counts = np.bincount(inputs, minlength=256)
    return TableCode.of(gcodec.entropy.huffman.code_lengths(counts))


@pytest.mark.parametrize("alphabet", [1, 2, 9, 256])
def test_tables(gpu: Device, alphabet: int) -> None:
    random = np.random.default_rng(alphabet)
    inputs = np.minimum(random.geometric(0.1 if alphabet > 9 else 0.6, 9001) - 1, alphabet - 1)
    inputs = inputs.astype(np.uint8)
    words, coded = table_of(inputs), CodedMask.all(inputs.size)
    data, nbits, offsets = written(gpu, words, inputs, coded)
    for known in (offsets, None):
        assert np.array_equal(read(gpu, words, data, nbits, coded, known)[1], inputs)


RULES = [
    PrefixCode(OMEGA, 0, 1, top=2**32 - 1),
    PrefixCode(GAMMA, 0, 1, top=2**32 - 1),
    PrefixCode(DELTA, 0, 1, top=2**32 - 1),
    PrefixCode(EXPGOLOMB, 0, 0, top=2**32 - 1),
    PrefixCode(EXPGOLOMB, 17, 0, top=2**32 - 1),
    PrefixCode(GOLOMB, 1000, 0, top=2**32 - 1),
    PrefixCode(GOLOMB, 2**33 + 1, 0, top=2**32 - 1),
    PrefixCode(RICE, 12, 0, top=2**32 - 1),
]


@pytest.mark.parametrize("code", RULES, ids=lambda code: f"{code.rule.name}-{code.parameter}")
def test_rules(gpu: Device, code: PrefixCode) -> None:
    """Codewords without a table entry, some of them too long for staging in shared memory."""
    random = np.random.default_rng(code.parameter)
    powers = (1 << random.integers(0, 24, 5000)) - random.integers(0, 2, 5000)
    inputs = np.where(random.random(5000) < 0.5, random.integers(0, 300, 5000), powers)
    inputs, coded = (inputs + code.first).astype(np.uint32), CodedMask.all(5000)
    data, nbits, offsets = written(gpu, code, inputs, coded)
    assert np.array_equal(read(gpu, code, data, nbits, coded, offsets)[1], inputs)
    for seed in range(10):
        args = code, broken(data, FIRST, seed), nbits, coded, None
        here = outcome(lambda a=args: read(None, *a)[1])
        assert agree(here, outcome(lambda a=args: read(gpu, *a)[1])), seed


def test_symbols_without_codeword(gpu: Device) -> None:
    code = TableCode.of(np.array([1, 1], np.uint8))
    inputs = np.zeros(5000, np.uint8)
    inputs[4099] = 2
    with pytest.raises(gcodec.ParameterError, match="4099"):
        dense_string.write(
            code, gpu.to_device(inputs), inputs.dtype, CodedMask.all(5000), EVERY, 0
        )


@pytest.mark.parametrize("code", ["omega", "rice", "table"])
@pytest.mark.parametrize("s", [15, 1000])
def test_broken(gpu: Device, code: str, s: int) -> None:
    if code == "table" and s > 127:
        pytest.skip("symbols of tables are bytes")
    inputs, coded = symbols(300, s), CodedMask.all(300)
    words = table_of(inputs) if code == "table" else word_code(code, s, {"rice": 3})
    data, nbits, _ = written(gpu, words, inputs, coded)
    for seed in range(12):
        wrong = broken(data, FIRST, seed)
        for end in (nbits, nbits - seed):
            for known in (None, np.array([0, end - FIRST])):
                args = words, wrong, end, coded, known
                here = outcome(lambda a=args: read(None, *a)[1])
                on_device = outcome(lambda a=args: read(gpu, *a)[1])
                assert agree(here, on_device), (seed, end, known)


@pytest.mark.parametrize("log2_block", [0, 3, 5, 62])
def test_other_blocks(gpu: Device, log2_block: int) -> None:
    words, inputs, coded = word_code("omega", 15, {}), symbols(300, 15), CodedMask.all(300)
    data, nbits, _ = written(gpu, words, inputs, coded)
    all_values = 1 << log2_block
    offsets, _ = read(None, words, data, nbits, coded, None, all_values)
    for known in (offsets, None):
        decoded, got = read(gpu, words, data, nbits, coded, known, all_values)
        assert np.array_equal(got, inputs)
        assert np.array_equal(decoded, offsets)
    if log2_block == 5:
        for shift in (-1, 1, 10**9, -(10**9), 2**62):
            wrong = offsets.copy()
            wrong[3] += shift
            with pytest.raises(gcodec.Corrupt):
                read(gpu, words, data, nbits, coded, wrong, all_values)


@pytest.mark.parametrize("n", [0, 1, 2047, 2048, 2049, 70_000])
def test_scans(gpu: Device, n: int) -> None:
    numbers = np.random.default_rng(n).integers(-(2**40), 2**40, n)
    for scan, accumulate, none in (
        (sums_before, np.cumsum, 0),
        (maxima_before, np.maximum.accumulate, -(2**63)),
    ):
        out = gpu.empty(n + 1, np.int64)
        scan(gpu, gpu.to_device(numbers), out)
        assert np.array_equal(gpu.to_host(out), np.append([none], accumulate(numbers)))


def test_dtypes_of_levels() -> None:
    """A reader takes the dtype of symbols from the largest symbol, like that of levels."""
    for s in (1, 127, 128, 32767, 32768, 2**24):
        assert np.min_scalar_type(word_code("omega", s, {}).top) == symbol_dtype(s)
