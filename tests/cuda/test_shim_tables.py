"""Test tables that a device makes from counts: those of the host, and strings that use them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from checks import feedback_agrees, frames_agree
from samples import same

from gcodec.codecs.minifloat import codebooks
from gcodec.codecs.minifloat.coding_choice import KINDS, alphabet, static, static_tables
from gcodec.entropy import rans
from gcodec.entropy.huffman import code_lengths
from gcodec.entropy.tabled import Table, best_table, front
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask, gathered, subtract_uncoded, zero_norm_buckets
from gcodec.kernels.prefix.table_code import SYMBOLS, TableCode, code_of
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.rans.rans_table import write_tables
from gcodec.runtime.deferred import LeadingBytes
from gcodec.runtime.device import Device
from gcodec.runtime.memory import contents

EVERY = np.arange(SYMBOLS, dtype=np.uint8)


def many_counts() -> Iterator[np.ndarray]:
    """Return counts of 256 symbols: one, few or all occur, equally often or not."""
    random = np.random.default_rng(0)
    for used in (1, 2, 3, 31, 200, SYMBOLS):
        for skew in (0.0, 0.5, 3.0, 12.0, 28.0):
            counts = np.zeros(SYMBOLS, np.int64)
            sample = random.permutation(SYMBOLS)[:used]
            counts[sample] = np.exp(skew * random.random(used)).astype(np.int64)
            yield counts
        yield np.where(np.arange(SYMBOLS) < used, 1 << 34, 0)
    yield np.where(np.arange(SYMBOLS) % 7, 1, 1 << 42)
    yield np.array([1 << 42, 1, *[0] * 254])
    yield np.array([1 << 26, *[1] * 8, *[0] * 247])  # 32760 slots seem too few and too many
    fibonacci = [1, 1]
    while len(fibonacci) < 50:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    yield np.array([*fibonacci, *[0] * (SYMBOLS - 50)])


def test_frequencies(gpu: Device) -> None:
    for counts in many_counts():
        frequencies, log2_total = rans.best_frequencies(gpu.to_device(counts))
        wanted, log2 = rans.best_frequencies(counts)
        assert int(log2_total) == log2
        assert same(gpu.to_host(frequencies), wanted)
        tables, here = write_tables(frequencies, log2_total), write_tables(wanted, log2)
        assert same(gpu.to_host(tables.reciprocals), here.reciprocals)
        assert same(gpu.to_host(tables.pairs), here.pairs)


def test_lengths(gpu: Device) -> None:
    for counts in many_counts():
        lengths, wanted = code_lengths(gpu.to_device(counts)), code_lengths(counts)
        assert same(gpu.to_host(lengths), wanted)
        words, nbits = TableCode.of(wanted).words(SYMBOLS)
        singles = gpu.to_host(code_of(lengths).table)[:SYMBOLS]
        assert np.array_equal(singles, words << np.uint64(6) | nbits.astype(np.uint64))


@pytest.mark.parametrize("kind", ["huffman", "rans"])
def test_front(gpu: Device, kind: str) -> None:
    random = np.random.default_rng(1)
    for counts in many_counts():
        before = int(random.integers(0, 40)) * (8 if kind == "rans" else 1)
        bits = random.integers(0, 256, -(-before // 8), dtype=np.uint8)
        if before % 8:
            bits[-1] &= 0xFF << 8 - before % 8 & 0xFF
        alphabet = EVERY if counts[64:].any() else EVERY[:64]

        def outcome(counts: np.ndarray, bits=bits, before=before, alphabet=alphabet):
            head = BitString()
            head.extend(bits, before)
            model = (
                (code_lengths(counts), 0) if kind == "huffman" else rans.best_frequencies(counts)
            )
            return front(head, kind, *model, alphabet)

        data, nbits = outcome(counts)
        on_device, length = outcome(gpu.to_device(counts))
        assert isinstance(on_device, LeadingBytes)
        assert int(length) == nbits
        assert same(gpu.to_host(on_device.array)[: data.size], data)


@pytest.mark.parametrize("code", ["huffman", "rans", "pair"])
def test_chosen(gpu: Device, code: str) -> None:
    """Counts of codebooks and other counts, with and without an own table to select."""
    fmt, kind = MiniFloat("e4m3", "full"), KINDS[code]
    if code != "huffman":
        fmt = MiniFloat("e2m1", "full")
    own, known = alphabet(fmt, code), static_tables(fmt, code, "auto")
    random = np.random.default_rng(4)
    for number in range(0, codebooks.number_of(fmt), 2):
        counts = static(fmt, code, number).numbers.astype(np.int64)
        if kind == "huffman":
            counts = np.where(counts, 1 << 12 - counts, 0)
        for inputs in (counts, counts // 8, counts * 1000, random.permuted(counts)):
            sample = np.zeros(SYMBOLS, np.int64)
            sample[own] = inputs[own] + (inputs[own].sum() == 0)
            on_device = gpu.to_device(sample)
            for tables in (None, Table.own(kind, sample, own)):
                wanted, nbits = best_table(sample, tables, kind, own, known)
                mine = tables and Table.own(kind, on_device, own)
                actual, actual_nbits = best_table(on_device, mine, kind, own, known)
                assert int(actual_nbits) == nbits
                assert int(actual.which) == wanted.which
                assert kind == "huffman" or int(actual.log2_total) == wanted.log2_total
                assert same(gpu.to_host(actual.numbers), wanted.numbers)


def test_nothing_to_code(gpu: Device) -> None:
    none = gpu.to_device(np.zeros(SYMBOLS, np.int64))
    assert not gpu.to_host(code_lengths(none)).any()
    frequencies, log2_total = rans.best_frequencies(none)
    assert not gpu.to_host(frequencies).any()
    for kind, model in (("huffman", (code_lengths(none), 0)), ("rans", (frequencies, log2_total))):
        head = BitString(3)
        assert int(front(head, kind, *model, EVERY)[1]) == 24


@pytest.mark.parametrize("bucket", [1, 7, 100, 301, 1000])
@pytest.mark.parametrize("silent", ["none", "some", "all"])
def test_elements_without_words(gpu: Device, bucket: int, silent: str) -> None:
    n = 301
    random = np.random.default_rng(bucket)
    buckets = -(-n // bucket)
    norms = np.ones(buckets, np.float32)
    if silent != "none":
        norms[:: 1 if silent == "all" else 2] = 0
    coded = CodedMask.of(n, bucket, norms == 0)
    on_device = CodedMask.of(n, bucket, zero_norm_buckets(gpu.to_device(norms)))
    symbols = random.integers(0, 256, n, dtype=np.uint8)
    wanted, known = gathered(symbols, coded)
    actual, words = gathered(gpu.to_device(symbols), on_device)
    assert int(words.n) == known.words
    assert same(gpu.to_host(actual)[: known.words], contents(wanted))
    counts = np.full(SYMBOLS, n)
    held = gpu.to_device(counts)
    subtract_uncoded(held, on_device)
    subtract_uncoded(counts, coded)
    assert same(gpu.to_host(held), counts)


CODED = ("qsgd:code=rans", "qsgd:code=huffman", "terngrad:pack=rans")
CODED += ("qsgd:code=rans,bucket=64,s=127", "qsgd:code=huffman,bucket=64,norm=max,s=3")


@pytest.mark.parametrize("spec", CODED)
@pytest.mark.parametrize("kind", ["some", "zeros", "many"])
def test_frames(gpu: Device, spec: str, kind: str) -> None:
    x = np.random.default_rng(2).standard_normal(70_000 if kind == "many" else 5000)
    x = (x * (np.arange(x.size) // 640 % 3 > 0)).astype(np.float32)
    if kind != "many":
        for own, n in itertools.product(CODED, (x.size, 300, 1, 0)):
            if own == spec:
                frames_agree(gpu, spec, x[:n] * np.float32(kind == "some"))
    else:  # with a table of blocks
        frames_agree(gpu, spec, x)


@pytest.mark.parametrize("spec", CODED)
def test_feedback(gpu: Device, spec: str) -> None:
    random = np.random.default_rng(3)
    steps = [random.standard_normal(1000).astype(np.float32) for _ in range(2)]
    steps.insert(1, np.zeros(1000, np.float32))
    feedback_agrees(gpu, spec, steps, decay=0.0)
