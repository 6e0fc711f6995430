"""Huffman codes: lengths, tables, the reader and writer of table codes, and refused strings."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from bit_texts import bytes_of, text_of
from outcomes import outcome
from reference import canonical, huffman, universal
from segments import split_inputs
from sweeps import thinned

from gcodec import Corrupt, FormatError, ParameterError, Truncated, entropy
from gcodec.entropy.huffman import check_lengths, code_lengths, read_lengths
from gcodec.kernels.bits import bit_string, coded_mask
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import (
    codewords,
    dense_string,
    look_ahead,
    prefix,
    prefix_read,
    prefix_table,
)
from gcodec.kernels.prefix.prefix_table import WIDE, least_nbits, read_runs, read_singles
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.kernels.prefix.table_code import IN_TABLES, Look, TableCode, put_lengths
from gcodec.runtime.jit import Kernel, kernel

LONGEST = 12
FIBONACCI = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181]
CODE = entropy.parse("huffman")


def code_of(lengths: list[int]) -> TableCode:
    return TableCode.of(np.array(lengths, np.uint8))


def words_of(code: TableCode) -> list[str]:
    return canonical.words(code.lengths.tolist())


def table_of(lengths: np.ndarray, alphabet: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the bytes and the bits of a table of lengths."""
    string = BitString()
    put_lengths(lengths, alphabet.astype(np.uint8), string)
    nbits = string.nbits
    return string.trimmed(), nbits


def total_nbits(counts: list[int], lengths: list[int]) -> int:
    return sum(count * length for count, length in zip(counts, lengths, strict=True))


# --- lengths ------------------------------------------------------------------------------------


def sample_counts() -> Iterator[list[int]]:
    """Yield counts of many kinds: random, with ties, with few symbols, and with long codewords."""
    rng = np.random.default_rng(1)
    yield from ([], [0], [7], [0, 0, 3], [1, 1], [0, 5, 0, 9], [2**62], [2**62, 2**62, 1])
    yield from ([1] * n for n in (2, 3, 5, 64, 255, 256))
    yield from ([2**62] * n for n in (3, 256))
    for counts in (FIBONACCI, [2**k for k in range(62)], [4**k for k in range(31)]):
        yield from (counts, counts[::-1], [*counts, *counts], [*counts, 0, *[1] * 100])
    for n in range(1, 40):  # Packages with many copies of the last count exceed 2^64.
        yield [*rng.integers(1, 5, n).tolist(), 2**62]
        yield [*rng.integers(1, 2**60, n).tolist(), 2**62]
    for n in (2, 3, 10, 16, 100, 256):
        for largest in (1, 2, 5, 1000, 2**62):
            for _ in range(3):
                yield rng.integers(0, largest, n, endpoint=True).tolist()
        yield (rng.pareto(0.3, n).clip(0, 1e15).astype(np.int64) + 1).tolist()


COUNTS = list(sample_counts())


def test_lengths_follow_the_rule() -> None:
    for counts in COUNTS:
        lengths = code_lengths(np.array(counts, np.int64))
        assert lengths.dtype == np.uint8
        assert lengths.tolist() == canonical.lengths_of(counts)


def test_lengths_satisfy_kraft_with_equality() -> None:
    for counts in COUNTS:
        lengths = code_lengths(np.array(counts, np.int64))
        assert ((lengths > 0) == (np.array(counts, np.int64) > 0)).all()
        if not any(counts):
            continue
        check_lengths(lengths)
        used = [length for length in lengths.tolist() if length]
        assert sum(2.0**-length for length in used) == (0.5 if len(used) == 1 else 1.0)


def unlimited_nbits(counts: list[int]) -> int:
    """Return the bits of an unlimited Huffman code: the sum of the counts of all inner nodes."""
    heap = [count for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        total += (node := heapq.heappop(heap) + heapq.heappop(heap))
        heapq.heappush(heap, node)
    return total


def test_lengths_are_optimal_without_a_limit() -> None:
    rng = np.random.default_rng(2)
    for n in range(2, 257):
        counts = rng.integers(1, 12, n).tolist()
        lengths = code_lengths(np.array(counts)).tolist()
        assert max(lengths) < LONGEST
        assert total_nbits(counts, lengths) == unlimited_nbits(counts)


@functools.cache
def complete_codes(n: int, limit: int) -> list[tuple[int, ...]]:
    """Return all complete codes of n codewords up to a limit, as nondecreasing lengths."""
    all_values = itertools.combinations_with_replacement(range(1, limit + 1), n)
    return [
        sample for sample in all_values if sum(2**limit >> length for length in sample) == 2**limit
    ]


@pytest.mark.parametrize("limit", [2, 3, 4, 5])
def test_lengths_are_optimal_below_any_limit(limit: int) -> None:
    rng = np.random.default_rng(limit)
    for n in range(2, min(2**limit, 9) + 1):
        for counts in (FIBONACCI[:n], *rng.integers(1, 50, (20, n)).tolist()):
            lengths = code_lengths(np.array(counts), limit).tolist()
            assert max(lengths) <= limit
            falling = sorted(counts, reverse=True)
            best = min(total_nbits(falling, list(sample)) for sample in complete_codes(n, limit))
            assert total_nbits(counts, lengths) == best


def test_invalid_counts_are_refused() -> None:
    for counts in (np.array([3, -1]), np.array([2**62 + 1]), np.array([1, 2**64 - 1], np.uint64)):
        with pytest.raises(ParameterError, match="2\\*\\*62"):
            code_lengths(counts)
    with pytest.raises(ParameterError, match="5 symbols have no words of up to 2 bits"):
        code_lengths(np.ones(5, np.int64), 2)
    for dtype in (np.uint8, np.int16, np.uint64):
        assert code_lengths(np.array([1, 2, 1], dtype)).tolist() == [2, 1, 2]


def test_counts_of_bytes() -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 7, 8, 9, 1000, 2**20 + 13):
        codes = rng.integers(0, 256, n, np.uint8)
        codes[: n // 2] = 7
        counts = byte_counts(codes[n // 3 :])
        assert counts.dtype == np.int64
        assert np.array_equal(counts, np.bincount(codes[n // 3 :], minlength=256))


# --- tables -------------------------------------------------------------------------------------

TABLES = [
    [1],
    [0, 0, 1],
    [*[0] * 255, 1],
    [1, 1],
    [1, 2, 2],
    [2, 1, 0, 2],
    [0, 2, 2, 2, 2],
    [3, 3, 1, 3, 3],
    [*range(1, 12), 12, 12],
    [12, *range(1, 13)],
    [4] * 16,
    [8] * 256,
    [*[0] * 200, 1, *[0] * 54, 1],
    [1, *[9] * 254, 8],
    [*[12] * 8, *[0] * 239, 9, 8, 7, 6, 5, 4, 3, 2, 1],
]


@pytest.mark.parametrize("lengths", TABLES, ids=lambda lengths: str(lengths[:5]))
def test_codewords_are_canonical(lengths: list[int]) -> None:
    bits, nbits = code_of(lengths).words(256)
    result = [
        f"{word:0{length}b}" if length else "" for word, length in zip(bits, nbits, strict=True)
    ]
    assert result == words_of(code_of(lengths))
    assert least_nbits(code_of(lengths)) == min(length for length in lengths if length)


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [0],
        [0] * 256,
        [2],
        [0, 12],
        [1, 2],
        [2, 2, 2],
        [1, 1, 1],
        [1, 1, 12],
        [2] * 5,
        [1] * 256,
        [12] * 256,
        [13],
        [1, 13],
        [1, 2, 15, 15],
        [1, *range(2, 13), 13, 13],
        [1, 1, 13],  # a complete code, and a word that is too long to take any of its room
        [2, 15, 2, 2, 2],
    ],
)
def test_invalid_lengths_are_refused(lengths: list[int]) -> None:
    table = np.array(lengths, np.uint8)
    with pytest.raises(Corrupt):
        check_lengths(table)
    data, nbits = table_of(table, np.arange(len(lengths)))
    with pytest.raises(Corrupt):
        read_lengths(data, 0, nbits, np.arange(len(lengths)))
    # The kernels must still handle such lengths safely.
    if max(lengths, default=0) <= LONGEST:
        code = code_of(lengths)
        for fill, starts_known in itertools.product((0, 255), (False, True)):
            source = np.full(40, fill, np.uint8)
            with contextlib.suppress(FormatError):
                read_blocks(code, source, np.array([0, 0]), np.array([99]), 320, starts_known)


def test_tables_are_read_at_any_bit() -> None:
    rng = np.random.default_rng(4)
    for lengths in TABLES:
        full = np.zeros(256, np.uint8)
        full[: len(lengths)] = lengths
        unused = np.flatnonzero(full == 0)
        sample = rng.choice(unused, min(3, unused.size), replace=False)
        alphabet = np.union1d(np.flatnonzero(full), sample)
        data, nbits = table_of(full, alphabet)
        text = text_of(data, nbits)
        assert text == canonical.table(full[alphabet].tolist())
        for before in (0, 1, 4, 7, 8, 13):
            source = bytes_of("1" * before + text + "1" * 9)
            decoded, after = read_lengths(source, before, before + nbits, alphabet)
            assert (decoded.dtype, decoded.shape, after) == (np.uint8, (256,), before + nbits)
            assert np.array_equal(decoded, full)
            for end in (before, before + nbits - 1):
                with pytest.raises(Truncated):
                    read_lengths(source, before, end, alphabet)


# --- reading and writing codewords ---------------------------------------------------------------


def sample_symbols(code: TableCode, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield symbols as frequent as their codewords are short, equally frequent, and all alike."""
    used = np.flatnonzero(code.lengths).astype(np.uint8)
    shares = 2.0 ** -code.lengths[used].astype(float)
    for n in (0, 1, 2, 15, 16, 17, 33, 1000):
        yield rng.choice(used, n, p=shares / shares.sum())
        yield rng.choice(used, n)
    yield np.full(300, used[-1])
    yield np.full(5000, used[np.argmax(code.lengths[used])])


def read_blocks(
    code: TableCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    end: int,
    starts_known: bool,
) -> np.ndarray:
    symbols, wide = np.empty(int(bounds[-1]), np.uint8), np.empty(0, np.uint64)
    prefix_read.read_blocks(code, data, starts, bounds, symbols, wide, end, starts_known)
    return symbols


@pytest.mark.parametrize("lengths", TABLES, ids=lambda lengths: str(lengths[:5]))
def test_codewords_in_blocks(lengths: list[int]) -> None:
    code, rng = code_of(lengths), np.random.default_rng(5)
    words = words_of(code)
    for symbols in sample_symbols(code, rng):
        text = "".join(words[symbol] for symbol in symbols.tolist())
        places = np.cumsum([0, *(len(words[symbol]) for symbol in symbols.tolist())])
        bounds = np.sort(rng.integers(0, symbols.size, 9, endpoint=True))
        bounds[-1] = symbols.size
        for dtype in (np.uint8, np.uint16, np.uint64):
            string = BitString()
            ends = write_symbols(code, symbols.astype(dtype), bounds, string)
            assert ends.tolist() == places[bounds].tolist()
            assert text_of(string.trimmed(), len(text)) == text
        starts = places[np.concatenate([[0], bounds])]
        for following in (b"", b"\xff" * 40, bytes(40)):
            source = bytes_of(text, following)
            out = np.zeros(bounds.size + 1, np.int64)
            assert np.array_equal(
                read_blocks(code, source, out, bounds, len(text), False), symbols
            )
            assert out.tolist() == starts.tolist()
            assert np.array_equal(
                read_blocks(code, source, starts, bounds, len(text), True), symbols
            )
        for end in {0, len(text) // 2, len(text) - 1} & set(range(len(text))):
            with pytest.raises(Truncated):
                read_blocks(code, bytes_of(text), np.array([0, 0]), bounds[-1:], end, False)


def test_wrong_block_starts_are_refused() -> None:
    code, rng = code_of([1, *[9] * 254, 8]), np.random.default_rng(6)
    symbols = np.where(rng.random(4000) < 0.9, 0, rng.integers(0, 256, 4000)).astype(np.uint8)
    bounds = np.arange(100, 4001, 100)
    string = BitString()
    ends = write_symbols(code, symbols, bounds, string)
    nbits, data, starts = string.nbits, string.trimmed(), np.concatenate([[0], ends])
    assert np.array_equal(read_blocks(code, data, starts.copy(), bounds, nbits, True), symbols)
    for at, step in itertools.product(range(starts.size), (-1, 1, 64, -nbits)):
        starts[at] += step
        with pytest.raises(Corrupt):
            read_blocks(code, data, starts.copy(), bounds, nbits, True)
        starts[at] -= step


def test_symbols_without_codeword_are_refused() -> None:
    for lengths, symbol in (
        ([1, 2, 2], 3),
        ([1, 2, 2], 4),
        ([1, 2, 2], 255),
        ([1, 0, 1], 1),
        ([4] * 16, 16),
        ([4] * 16, 240),
        ([0, *[4] * 14, 3], 0),
        ([1, *[9] * 254, 0, 8][:255], 255),
    ):
        code = code_of(lengths)
        used = np.flatnonzero(code.lengths).astype(np.uint8)
        for n, at in ((1, 0), (64, 0), (64, 63), (9000, 8191), (9000, 5000)):
            symbols = np.resize(used, n)
            symbols[at] = symbol
            with pytest.raises(ParameterError, match=f"symbol {symbol} has no word"):
                write_symbols(code, symbols, np.array([n]), BitString())
    with pytest.raises(ParameterError, match="symbol 256 is no byte"):
        write_symbols(code_of([1, 1]), np.array([1, 256]), np.array([2]), BitString())


@pytest.mark.parametrize(
    "lengths", [[1, 2, 2], [12, *range(1, 13)], [*range(12, 0, -1), *[0] * 8, 12]]
)
def test_writes_stay_within_the_array(lengths: list[int]) -> None:
    code = code_of(lengths)
    longest = np.full(3000, np.argmax(code.lengths), np.uint8)
    for nbytes in (0, 1, 7, 40, 1000):
        around = np.full(nbytes + bit_string.SLACK + 512, 0xA5, np.uint8)
        string = BitString()
        string.data = around[: nbytes + bit_string.SLACK]
        write_symbols(code, longest, np.array([3000]), string)
        assert (around[nbytes + bit_string.SLACK :] == 0xA5).all()


def test_bits_append() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        parts = rng.choice([0, 1, 3, 7, 8, 9, 16, 100], int(rng.integers(1, 6))).tolist()
        string, text = BitString(2), ""
        for count in parts:
            bits = "".join(map(str, rng.integers(0, 2, count)))
            string.extend(bytes_of(bits), count)
            symbols = rng.integers(0, 2, int(rng.integers(0, 20)), np.uint8)
            write_symbols(code_of([1, 1]), symbols, np.array([symbols.size]), string)
            text += bits + "".join(map(str, symbols))
        nbits = string.nbits - 16
        assert nbits == len(text)
        assert text_of(string.trimmed()[2:], nbits) == text


# --- strings of tensors -------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the pool split short inputs among a number of threads."""
    split_inputs(monkeypatch, 512)
    for module in (coded_mask, prefix):
        monkeypatch.setattr(module, "_CHUNK", 256)
    return lambda count: monkeypatch.setenv("GCODEC_NUM_THREADS", str(count))


@pytest.mark.parametrize("bucket", [0, 100])
def test_strings_after_a_header(bucket: int, small_parts: Callable[[int], None]) -> None:
    """A string follows lead and header bits with any number of threads, and blocks are located."""
    rng = np.random.default_rng(8)
    counts = np.array([2000, 500, 300, *[1] * 60, *[0] * 190, 90, 90, 60])
    code = TableCode.of(code_lengths(counts))
    words = words_of(code)
    used = np.flatnonzero(code.lengths)
    for n, head_nbits in itertools.product((0, 1, 511, 512, 513, 3000), (0, 3, 8, 29)):
        symbols = np.where(rng.random(n) < 0.7, 0, rng.choice(used, n)).astype(np.uint8)
        size = bucket or max(n, 1)
        zero_norm = rng.random(-(-n // size)) < (0.3 if bucket else 0)
        coded = CodedMask.of(n, size, zero_norm)
        mask = np.repeat(~zero_norm, size)[:n]
        symbols[~mask] = 0
        each = [
            words[s] if is_coded else ""
            for s, is_coded in zip(symbols.tolist(), mask, strict=True)
        ]
        places = np.cumsum([0, *map(len, each)])
        head = "".join(map(str, rng.integers(0, 2, head_nbits)))
        for threads, all_values, lead in ((1, 128, 0), (2, 16, 3), (7, 128, 2)):
            small_parts(threads)

            def part(start: int, stop: int, _: np.ndarray, all: Any = symbols) -> np.ndarray:
                actual: np.ndarray = all[start:stop]
                return actual

            header = (bytes_of(head), head_nbits)
            data, nbits, offsets = dense_string.write(
                code, part, symbols.dtype, coded, all_values, lead, header
            )
            text = head + "".join(each)
            assert nbits == 8 * lead + len(text)
            assert text_of(data[lead:], len(text)) == text
            assert offsets.tolist() == places[[*range(0, n, all_values), n]].tolist()
            for known_offsets in (None, offsets):
                out = np.full(n, 9, np.uint8)

                def take(at: int, small: np.ndarray, wide: np.ndarray, out: Any = out) -> None:
                    assert wide.size == 0
                    out[at : at + small.size] = small

                first = 8 * lead + head_nbits
                decoded = dense_string.read(
                    code, data, first, nbits, coded, all_values, known_offsets, take
                )
                assert np.array_equal(decoded, offsets)
                assert np.array_equal(out, symbols)


# --- the code -----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_alphabets_of_all_sizes(threads: int, small_parts: Callable[[int], None]) -> None:
    small_parts(threads)
    rng = np.random.default_rng(threads)
    for size in range(1, 257):
        alphabet = np.sort(rng.choice(256, size, replace=False))
        shares = rng.random(size) ** 3 + 1e-3
        n = int(rng.integers(1, 1500))
        values = rng.choice(alphabet, n, p=shares / shares.sum())
        bits = CODE.encode(values)
        assert bits.to01() == huffman.encode(values.tolist())
        decoded, end = CODE.decode(bits, n)
        assert (decoded.dtype, end) == (np.uint64, bits.nbits)
        assert np.array_equal(decoded, values)
        head = 8 + 4 * (int(values.max()) + 1)
        assert head + int(CODE.lengths(values).sum()) == bits.nbits


def test_values_after_other_bits() -> None:
    parts = [[3, 1, 3, 3], [255, 0, 255], [7], [], [0, 0]]
    text = "".join("1" + CODE.encode(values).to01() for values in parts)
    at = 0
    for values in parts:
        decoded, at = CODE.decode(entropy.Bits.from01(text), len(values), start=at + 1)
        assert decoded.tolist() == values
    assert at == len(text)


def test_wide_values_are_refused() -> None:
    for values in ([256], [0, 2**63], np.array([-1, 3]), np.array([5, 256, 1], np.uint16)):
        with pytest.raises(ParameterError, match="from 0 to 255"):
            CODE.encode(values)
        with pytest.raises(ParameterError, match="from 0 to 255"):
            CODE.lengths(values)


@outcome
def gcodec_outcome(text: str, count: int) -> list[int]:
    return CODE.decode(text, count)[0].tolist()


def test_wrong_headers_are_refused() -> None:
    rng = np.random.default_rng(9)
    good = [CODE.encode(values).to01() for values in ([1, 0, 2, 0], [4, 4, 4], [9, 3, 1, 3])]
    texts = [text[:end] for text in good for end in range(len(text) + 1)]
    for text in good * 60:
        at = int(rng.integers(0, len(text)))
        texts.append(text[:at] + "10"[int(text[at])] + text[at + 1 :])
    texts.append("00000001" + "0001" + "0000" + "0" * 9)  # The largest value has no codeword.
    kinds = set()
    for text, count in itertools.product(texts, (0, 1, 3, 4, 9)):
        bits = universal.Bits(text)
        expected = outcome(huffman.decode)(bits, count)
        decoded = gcodec_outcome(text, count)
        if expected is Corrupt and decoded is Truncated:
            # There are too few bits for this number of codewords of any length.
            assert len(text) < 8 + 4 * (int(text[:8], 2) + 1) + count
            continue
        assert decoded == expected
        kinds.add(decoded if isinstance(decoded, type) else list)
    assert kinds == {Truncated, Corrupt, list}


def test_counts_beyond_the_bits_are_refused_early() -> None:
    bits = CODE.encode([1, 0, 0, 2])
    for count in (7, 2**40, 2**64 - 1):
        with pytest.raises(Truncated, match="cannot hold"):
            CODE.decode(bits, count)


def test_invalid_lengths_build_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a table is filled")

    monkeypatch.setattr(prefix_table, "_fill_singles", refuse)
    monkeypatch.setattr(prefix_table, "_filling", refuse)
    for lengths in ([2], [1, 1, 1], [1, 2], [13], [15, 15]):
        head = f"{len(lengths) - 1:08b}" + "".join(f"{length:04b}" for length in lengths)
        with pytest.raises(Corrupt):
            CODE.decode(head + "0" * 50, 3)
        with pytest.raises(Truncated):
            CODE.decode(head[:-1], 3)


# --- all short strings ---------------------------------------------------------------------------

# A string is a number: a one bit, followed by the bits of the string. Shorter strings come first.
MAX_NBITS = 16
SIZE = 2 << MAX_NBITS
EMPTY = 1
COUNTS_READ = (1, 2, 3, 4)
OK = 0
EXHAUSTED = [[0, 0, 1], [1, 1], [2, 1, 0, 2], [3, 3, 1, 3, 3], TABLES[8], TABLES[-1]]


def first_words(code: TableCode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return status and symbol of each string's first codeword, and the remaining string."""
    words = words_of(code)
    status = np.full(SIZE, codewords.TRUNCATED)
    symbol, rest = np.zeros(SIZE, np.int64), np.arange(SIZE)
    for nbits in range(1, MAX_NBITS + 1):
        for string in range(1 << nbits, 2 << nbits):
            # The shorter string decides.
            if nbits > 1 and status[string >> 1] != codewords.TRUNCATED:
                status[string], symbol[string] = status[string >> 1], symbol[string >> 1]
                rest[string] = rest[string >> 1] << 1 | string & 1
                continue
            bits = universal.Bits(f"{string:b}"[1:])
            decoded = outcome(canonical.read_word)(bits, words)
            if decoded is Corrupt:
                status[string] = codewords.CORRUPT
            elif decoded is not Truncated:
                status[string], symbol[string], rest[string] = OK, decoded, EMPTY
    return status, symbol, rest


@functools.cache
def read_all(look: Look) -> Kernel:
    """Return a kernel that reads all strings with the reader of table codes."""
    read_blocks = prefix_read.reader(IN_TABLES, look)

    @kernel(
        f"in uint64[], in uint{8 * look.nbytes}[], in uint32[], out int64[], "
        "out uint8[], out int64[], in int64[], out uint8[], out uint64[], out int64[], "
        "out int64[], out int64[], out uint8[]",
        variant=read_blocks.variant,
    )
    def loop(
        code,
        runs,
        singles,
        state,
        data,
        starts,
        bounds,
        out,
        wide,
        status,
        statuses,
        ends,
        symbols,
    ):
        for nbits in range(MAX_NBITS + 1):
            for value in range(1 << nbits):
                data[:] = 255
                for i in range((nbits + 7) >> 3):
                    data[i] = (value << (MAX_NBITS - nbits)) >> (8 - 8 * i) & 255
                starts[0], starts[1], status[:], out[:] = 0, -1, 0, 77
                payload = data[: (nbits + 7) >> 3]
                read_blocks(
                    payload,
                    starts,
                    bounds,
                    False,
                    nbits,
                    0.0,  # blocks are read from their begin
                    code,
                    runs,
                    singles,
                    state,
                    (out, wide, out),
                    status,
                )
                string = (1 << nbits) + value
                statuses[string], ends[string] = status[0], starts[1]
                for i in range(out.size):
                    symbols[string * out.size + i] = out[i]

    return loop


@pytest.mark.parametrize("lengths", thinned(EXHAUSTED, 4), ids=str)
def test_all_short_strings(lengths: list[int]) -> None:
    code = code_of(lengths)
    status, symbol, rest = first_words(code)
    loop = read_all(code.look)
    tables = code.numbers, read_runs(code, code.look), read_singles(code), look_ahead.state()
    nbits_of = np.frexp(np.arange(SIZE).astype(float))[1] - 1
    expected, remaining = np.zeros(SIZE, np.int64), np.arange(SIZE)
    values = np.zeros((SIZE, 0), np.int64)
    for n in COUNTS_READ:
        expected = np.where(expected == OK, status[remaining], expected)
        values = np.column_stack([values, symbol[remaining]])
        remaining = rest[remaining]
        out, ends = np.full(SIZE, 9), np.full(SIZE, -9)
        symbols = np.zeros((SIZE, n), np.uint8)
        string = np.empty(2, np.uint8), np.empty(2, np.int64), np.full(1, n)
        room = np.empty(n, np.uint8), np.empty(0, np.uint64), np.empty(2, np.int64)
        loop(*tables, *string, *room, out, ends, symbols.reshape(-1))
        assert np.array_equal(out[EMPTY:], expected[EMPTY:])
        valid = np.flatnonzero(expected == OK)[1:]
        assert np.array_equal(symbols[valid], values[valid])
        assert np.array_equal(ends[valid], nbits_of[valid] - nbits_of[remaining[valid]])
    assert {OK, codewords.TRUNCATED} <= set(expected[EMPTY:])
    assert (codewords.CORRUPT in expected) == (sum(map(bool, lengths)) == 1)


def test_largest_byte_is_not_special() -> None:
    """The byte that marks wide symbols in other codes is an ordinary symbol here."""
    assert WIDE == 255
    code = code_of([*[0] * 254, 1, 1])
    values = np.random.default_rng(10).integers(254, 256, 3000)
    data, nbits = prefix.write(code, values)
    assert np.array_equal(np.unpackbits(data)[:nbits], values - 254)
    decoded, end = prefix.read(code, data, nbits, 3000)
    assert end == nbits
    assert np.array_equal(decoded, values)
