"""rANS strings: against the oracle, by vectors, with runs, on threads, and with damage."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest
from reference import ans, universal
from sweeps import thinned

from gcodec import Corrupt, FormatError, ParameterError, Truncated
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_read import Reader
from gcodec.kernels.rans.rans_runs import BLOCK, LOG2_BLOCK, Runs
from gcodec.kernels.rans.rans_table import (
    LEAST_STATE,
    check_frequencies,
    read_tables,
    write_tables,
)
from gcodec.kernels.rans.rans_vector import LANES, widths

HEAD = 4 * LANES  # bytes of the states of a block

WIDTHS = widths()
PLANES = thinned(range(12, 16), 3)
SIZES = [0, 1, 31, 32, 33, 1000]
each_path = pytest.mark.parametrize("width", WIDTHS)


def model(shares: dict[int, float], log2_total: int) -> np.ndarray:
    """Return frequencies of about these shares; the likeliest symbol gets the remainder."""
    frequencies = np.zeros(256, np.int64)
    total = sum(shares.values())
    for symbol, share in shares.items():
        frequencies[symbol] = max(1, int(share / total * 2**log2_total))
    frequencies[frequencies.argmax()] += 2**log2_total - frequencies.sum()
    check_frequencies(frequencies, log2_total)
    return frequencies


SHARES = {
    "two": {0: 9, 200: 1},
    "rare": {3: 1e-9, 4: 1e-9, 255: 1},
    "three": {0: 1, 1: 8, 2: 1},
    "even": dict.fromkeys(range(256), 1.0),
    "bell": {s: 2.0 ** -(abs(s - 128) / 9) for s in range(256)},
    "one": {77: 1},
}


def cases() -> Iterator[tuple[str, int]]:
    for name in SHARES:
        for log2_total in PLANES:
            if name != "one" or log2_total < 15:  # no frequency is 2^15
                yield name, log2_total


each_case = pytest.mark.parametrize(("name", "log2_total"), list(cases()))


def symbols_of(frequencies: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """Return symbols distributed by their frequencies, each at least once."""
    rng = np.random.default_rng(seed)
    symbols = rng.choice(256, n, p=frequencies / frequencies.sum()).astype(np.uint8)
    used = np.flatnonzero(frequencies)[:n]
    symbols[rng.permutation(n)[: used.size]] = used
    return symbols


def write(
    symbols: np.ndarray, frequencies: np.ndarray, log2_total: int, log2_run: int = LOG2_BLOCK
) -> tuple[np.ndarray, Runs]:
    """Write a string after a lead of three bytes; return it without the lead."""
    lead = np.array([1, 2, 3], np.uint8)
    data, nbits, runs = rans_string.write(
        write_tables(frequencies, log2_total),
        lambda at, end, _: symbols[at:end],
        symbols.size,
        lead,
        log2_run,
    )
    assert nbits == 8 * data.size
    assert data[:3].tolist() == [1, 2, 3]
    assert nbits - 24 <= rans_string.most_nbits(symbols.size)
    return data[3:], runs


def read(
    data: np.ndarray,
    n: int,
    frequencies: np.ndarray,
    log2_total: int,
    runs: Runs | None = None,
    **options: bool,
) -> np.ndarray:
    """Read a string that begins at byte 5 of the data and is followed by other bytes."""
    out, seen = np.empty(n, np.uint8), []

    def take(at: int, symbols: np.ndarray) -> None:
        out[at : at + symbols.size] = symbols
        seen.append((at, symbols.size))

    padded = np.concatenate([np.zeros(5, np.uint8), data, np.full(99, 255, np.uint8)])
    stop = 40 + 8 * data.size
    layout = rans_string.Layout(read_tables(frequencies, log2_total), 40, stop, n)
    end = rans_string.read(padded, layout, take, runs, **options)
    assert end == stop or (end < stop and options["bits_follow"])
    ends = [0, *np.cumsum([size for _, size in sorted(seen)]).tolist()]
    assert [at for at, _ in sorted(seen)] == ends[:-1]
    assert ends[-1] == n
    return out


@pytest.fixture
def path(width: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(rans_string, "vector_width", lambda: width)
    return width


# --- against the oracle -------------------------------------------------------------------------


@functools.cache
def oracle(name: str, log2_total: int, n: int) -> tuple[np.ndarray, np.ndarray, bytes]:
    frequencies = model(SHARES[name], log2_total)
    symbols = symbols_of(frequencies, n)
    return frequencies, symbols, ans.encode(symbols.tolist(), frequencies.tolist())


@each_path
@each_case
def test_strings_match_the_oracle(name: str, log2_total: int, path: bool) -> None:
    for n in thinned(SIZES, 2):
        frequencies, symbols, expected = oracle(name, log2_total, n)
        data, runs = write(symbols, frequencies, log2_total)
        assert data.tobytes() == expected
        for index in (None, runs):
            np.testing.assert_array_equal(read(data, n, frequencies, log2_total, index), symbols)


@each_path
@pytest.mark.parametrize(
    ("name", "log2_total", "n"), [("bell", 12, BLOCK + 5), ("three", 15, BLOCK - 1)]
)
def test_long_strings_match_the_oracle(name: str, log2_total: int, n: int, path: bool) -> None:
    frequencies, symbols, expected = oracle(name, log2_total, n)
    data, runs = write(symbols, frequencies, log2_total)
    assert data.tobytes() == expected
    np.testing.assert_array_equal(read(data, n, frequencies, log2_total, runs), symbols)


@each_path
def test_strings_cut_within_the_states_of_a_block(path: bool) -> None:
    frequencies, n = model(SHARES["three"], 12), BLOCK + 40
    symbols = np.resize(symbols_of(frequencies, 999), n)
    data, runs = write(symbols, frequencies, 12)
    second = int(runs.offsets[1]) // 8
    for size in (second - 1, second, second + 1, second + HEAD - 1):
        assert verdict(data[:size].tobytes(), n, frequencies, 12) is Truncated


@each_path
def test_strings_with_a_word_for_each_symbol(path: bool) -> None:
    """Groups consume as many words as possible, at each distance from the end."""
    frequencies, n = model(SHARES["rare"], 15), 200
    symbols = np.random.default_rng(0).integers(3, 5, n).astype(np.uint8)  # 15 bits each
    whole = ans.encode(symbols.tolist(), frequencies.tolist())
    assert len(whole) == HEAD + 2 * (n - LANES)
    data, runs = write(symbols, frequencies, 15, 5)
    assert data.tobytes() == whole
    np.testing.assert_array_equal(read(data, n, frequencies, 15, runs), symbols)
    for size in range(HEAD, len(whole)):
        assert verdict(whole[:size], n, frequencies, 15) is Truncated


@each_path
@pytest.mark.parametrize(("log2_run", "n"), [(5, 31), (5, 64), (5, 333), (6, 333), (9, 333)])
def test_indexed_runs_match_the_oracle(log2_run: int, n: int, path: bool) -> None:
    frequencies = model(SHARES["two"], 13)
    symbols = symbols_of(frequencies, n)
    _, runs = write(symbols, frequencies, 13, log2_run)
    lengths, states = ans.blocks(symbols.tolist(), frequencies.tolist(), log2_run)
    assert np.diff(runs.offsets).tolist() == lengths
    assert runs.states[1:].tolist() == states


# --- vectors against single symbols -------------------------------------------------------------


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize(
    ("name", "log2_total", "log2_run"),
    thinned(
        [("three", 12, 18), ("one", 12, 7), ("bell", 13, 17), ("two", 14, 5), ("even", 15, 12)], 2
    ),
)
def test_vectors_and_threads_write_the_same_strings(
    name: str, log2_total: int, log2_run: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The string has two pairs of blocks, a single block, and an incomplete one."""
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    frequencies, n = model(SHARES[name], log2_total), 5 * BLOCK + 1234
    symbols = np.resize(symbols_of(frequencies, 100_003), n)
    strings = []
    for width in WIDTHS:
        monkeypatch.setattr(rans_string, "vector_width", lambda width=width: width)
        data, runs = write(symbols, frequencies, log2_total, log2_run)
        for index in (None, runs):
            np.testing.assert_array_equal(read(data, n, frequencies, log2_total, index), symbols)
        layout = rans_string.Layout(read_tables(frequencies, log2_total), 0, 8 * data.size, n)
        strings += [(data, runs), (data, rans_string.index(data, layout, log2_run))]
    for data, runs in strings[1:]:
        assert data.tobytes() == strings[0][0].tobytes()
        for one, other in zip(runs, strings[0][1], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("log2_total", PLANES)
def test_reciprocals_yield_quotients(log2_total: int) -> None:
    """For all states that are divided, quotients are exact or, by float32, at most one less."""
    rng = np.random.default_rng(log2_total)
    f = np.arange(1, min(2**log2_total, 2**15 - 1) + 1)
    most = (f << 32 - log2_total) - 1
    q = rng.integers(0, 2 ** (32 - log2_total), (50, f.size))
    q[:3] = [[2 ** (32 - log2_total) - 1], [1], [0]]
    models = np.zeros((f.size, 256), np.int64)
    models[:, 0], models[:, 1] = f, 2**log2_total - f
    factors = write_tables(models, log2_total).entries[::256].astype(np.uint32).view(np.float32)
    for remainder in (0 * f, f // 2, f - 1):
        x = np.minimum(q * f + remainder, most)
        half = (x >> 1).astype(np.int32).astype(np.float32)
        product = half * factors
        assert product.dtype == np.float32
        missing = x // f - product.astype(np.int32)
        assert missing.min() >= 0
        assert missing.max() <= 1
    if log2_total < 15:
        for value in (1, 2, 3, 1000, 2**log2_total - 1):
            frequencies = model({0: value, 1: 2**log2_total - value}, log2_total)
            tables = write_tables(frequencies, log2_total)
            for x in (0, 1, value - 1, value, 99 * value - 1, (value << 32 - log2_total) - 1):
                exact = int(x) * int(tables.reciprocals[0])
                assert exact < 2**64
                assert exact >> 32 + log2_total == x // int(frequencies[0])


# --- damaged strings ----------------------------------------------------------------------------


def kind_of(data: bytes, n: int, frequencies: np.ndarray) -> type[Exception] | list[int]:
    """Return the oracle's symbols or error for a whole string."""
    bits = universal.Bits(universal.to_text(data))
    try:
        symbols = ans.read(bits, n, frequencies.tolist())
        return symbols if bits.at == len(bits.text) else Corrupt
    except universal.Truncated:
        return Truncated
    except universal.Corrupt:
        return Corrupt


def verdict(
    data: bytes, n: int, frequencies: np.ndarray, log2_total: int, runs: Runs | None = None
) -> type[Exception] | list[int]:
    try:
        return read(np.frombuffer(data, np.uint8), n, frequencies, log2_total, runs).tolist()
    except FormatError as error:
        return type(error)


@each_path
@pytest.mark.parametrize(("name", "log2_total"), [("three", 12), ("bell", 15)])
def test_truncated_and_extended_strings(name: str, log2_total: int, path: bool) -> None:
    n = 150
    frequencies, symbols, whole = oracle(name, log2_total, n)
    runs = write(symbols, frequencies, log2_total, 5)[1]
    for size in range(len(whole)):
        assert verdict(whole[:size], n, frequencies, log2_total) is Truncated
        assert verdict(whole[:size], n, frequencies, log2_total, runs) in (Truncated, Corrupt)
    for tail in (b"\0", b"\0\0", bytes(200)):
        assert verdict(whole + tail, n, frequencies, log2_total) is Corrupt
        data = np.frombuffer(whole + tail, np.uint8)
        ignored = read(data, n, frequencies, log2_total, bits_follow=True)
        np.testing.assert_array_equal(ignored, symbols)
    for count in (n - 1, n + 1, n + 32):
        assert verdict(whole, count, frequencies, log2_total) == kind_of(whole, count, frequencies)


@each_path
def test_changed_bytes_match_the_oracle(path: bool) -> None:
    """Each byte of states and words takes several values."""
    n, rng = 70, np.random.default_rng(0)
    frequencies, _, whole = oracle("three", 12, n)
    seen = set()
    for at in range(len(whole)):
        for value in {0, 255, *rng.integers(0, 256, 3).tolist()} - {whole[at]}:
            data = whole[:at] + bytes([value]) + whole[at + 1 :]
            expected = kind_of(data, n, frequencies)
            assert verdict(data, n, frequencies, 12) == expected
            seen.add(expected if isinstance(expected, type) else list)
    assert seen >= {Corrupt}


def several(words: np.ndarray, n: int, frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decode many strings of k words at once, by the definition.

    Return, for each row of the (count, k) words, the byte where the string ends, or -1 for
    Truncated, or -2 for Corrupt; and the symbols.
    """
    count, end = words.shape
    words = words.astype(np.int64)
    total, starts = int(frequencies.sum()), np.cumsum(frequencies) - frequencies
    slots = np.repeat(np.arange(256), frequencies)
    states = words[:, :64:2] | words[:, 1:64:2] << 16
    kind = np.where((states < LEAST_STATE).any(axis=1), -2, 0)
    at, symbols = np.full(count, 64), np.empty((count, n), np.uint8)
    for i in range(n):
        x = states[:, i % LANES]
        symbols[:, i] = slots[x % total]
        s = symbols[:, i].astype(np.int64)
        x = frequencies[s] * (x // total) + x % total - starts[s]
        need = x < LEAST_STATE
        kind[(kind == 0) & need & (at == end)] = -1
        word = words[np.arange(count), np.minimum(at, end - 1)]
        states[:, i % LANES] = np.where(need, x << 16 | word, x)
        at = np.minimum(at + need, end)
    kind[(kind == 0) & (states != LEAST_STATE).any(axis=1)] = -2
    return np.where(kind, kind, 2 * at), symbols


@each_path
@pytest.mark.parametrize("tail", [0, 50])
def test_words_of_all_values(tail: int, width: int) -> None:
    """A word, and half of the first state, take all values; then random pairs of bits change.

    Vectors are used only if enough words follow, so that a tail of other words is needed.
    """
    frequencies, n = model({1: 1, 2: 5, 3: 4090}, 12), 100
    symbols = np.full(n, 3, np.uint8)
    symbols[[0, 4, 32, 64]] = 1  # 12 bits each
    rng = np.random.default_rng(tail)
    whole = np.frombuffer(ans.encode(symbols.tolist(), frequencies.tolist()), "<u2")
    assert whole.size == 66
    whole = np.append(whole, rng.integers(0, 1 << 16, tail).astype("<u2"))
    tables, out, count = read_tables(frequencies, 12), np.empty(n, np.uint8), -(-n // LANES)
    ends, states = np.empty(count, np.int64), np.empty((count, LANES), np.uint32)
    start = np.zeros(1, np.int64)

    def kind_of_block(data: np.ndarray) -> int:
        try:
            reader = Reader(tables, data, data.size, 1, LANES, False, width)
            reader(start, out[:0], out, LANES, 0, ends, states)
        except FormatError as error:
            return {Truncated: -1, Corrupt: -2}[type(error)]
        return int(ends[-1])

    altered = np.tile(whole, (len(thinned(range(10_000), 5)), 1))
    for row, places in zip(altered, rng.integers(0, 66, (len(altered), 2)), strict=True):
        row[places] ^= np.uint16(1) << rng.integers(0, 16, 2).astype(np.uint16)
    for at in (1, 64, None) if tail else (64, 65, None):
        words = altered
        if at is not None:
            values = np.array([whole[at], *thinned(range(1 << 16), 11)], np.uint16)
            words = np.tile(whole, (values.size, 1))
            words[:, at] = values
        kinds, expected = several(words, n, frequencies)
        assert (kinds == 132).any() or at is None
        rows = zip(kinds.tolist(), expected, words.view(np.uint8), strict=True)
        for kind, symbols, data in rows:
            assert kind_of_block(data) == kind
            assert kind < 0 or out.tobytes() == symbols.tobytes()


@each_path
def test_random_bytes(path: bool) -> None:
    """Random bytes and runs yield symbols or a FormatError with any model."""
    rng = np.random.default_rng(7)
    models = [(model(SHARES[name], log2_total), log2_total) for name, log2_total in cases()]
    for i in range(1500):
        frequencies, log2_total = models[i % len(models)]
        data = rng.integers(0, 256, int(rng.integers(0, 600)), np.uint8).astype(np.uint8)
        n = int(rng.integers(1, 2000))
        if i % 3:
            n = min(n, 400)
            data[3:HEAD:4] |= 1  # valid states
        log2_run = int(rng.integers(5, 10))
        runs = Runs.empty(log2_run, n)
        if i % 2:
            runs.offsets[1:] = 8 * np.sort(rng.integers(0, data.size + 1, runs.offsets.size - 1))
            runs.states[:] = rng.integers(LEAST_STATE, 2**32, runs.states.shape)
        for index in (None, runs):
            result = verdict(data.tobytes(), n, frequencies, log2_total, index)
            assert result in (Truncated, Corrupt) or isinstance(result, list)


@each_path
def test_wrong_runs_are_refused(path: bool) -> None:
    frequencies, log2_total, n = model(SHARES["bell"], 14), 14, 2 * BLOCK + 200
    symbols = np.resize(symbols_of(frequencies, 9999), n)
    data, runs = write(symbols, frequencies, log2_total, 16)
    good = runs.offsets, runs.states

    def refused(log2_run: int, offsets: np.ndarray, states: np.ndarray) -> None:
        with pytest.raises(Corrupt):
            read(data, n, frequencies, log2_total, Runs(log2_run, offsets, states))

    np.testing.assert_array_equal(read(data, n, frequencies, log2_total, runs), symbols)
    for row in range(runs.offsets.size):
        for step in (16, -16, 8, 1, 2**40, -(2**40), -(2**63)):
            offsets = good[0].copy()
            offsets[row] = step if step < -(2**62) else offsets[row] + step
            refused(16, offsets, good[1])
    per_block = 1 << LOG2_BLOCK - 16
    for row in range(runs.states.shape[0]):
        states = good[1].copy()
        states[row, 5] ^= 1 << 20
        if row % per_block:
            refused(16, good[0], states)
        else:  # the block begins with its own states
            wrong = Runs(16, good[0], states)
            np.testing.assert_array_equal(read(data, n, frequencies, log2_total, wrong), symbols)
    refused(15, *good)
    refused(19, good[0][[0, -1]], good[1][:1])
    refused(4, *good)
    refused(16, good[0][:-1], good[1][:-1])


def test_ranges_after_forged_states_are_refused() -> None:
    """States that change one symbol, and no later state, differ from those after earlier runs."""
    frequencies, log2_total, n, start = model(SHARES["bell"], 14), 14, 3 << 16, 2 << 16
    data, runs = write(symbols_of(frequencies, n), frequencies, log2_total, 16)
    symbols = read(data, n, frequencies, log2_total, runs)
    before = np.cumsum(frequencies) - frequencies
    for lane, state in enumerate(runs.states[2].tolist()):
        high, slot = divmod(state, 1 << log2_total)
        symbol = symbols[start + lane]
        after = int(frequencies[symbol]) * high + slot - int(before[symbol])
        other = int(np.argmax(np.where(np.arange(frequencies.size) == symbol, 0, frequencies)))
        high, slot = divmod(after, int(frequencies[other]))
        forged = (high << log2_total) + slot + int(before[other])
        if after >= LEAST_STATE and forged < 2**32:  # no lane reads a word
            break
    runs.states[2, lane] = forged
    layout = rans_string.Layout(read_tables(frequencies, log2_total), 0, 8 * data.size, n)
    with pytest.raises(Corrupt, match="seek table"):
        rans_string.read_range(data, layout, start, start + 9, lambda *_: None, runs)


def test_invalid_arguments_are_refused() -> None:
    frequencies = model(SHARES["three"], 12)
    for change in (-1, 1):
        wrong = frequencies.copy()
        wrong[0] += change
        with pytest.raises(ParameterError, match="add up"):
            read_tables(wrong, 12)
    for log2_total in (11, 16):
        with pytest.raises(ParameterError, match="log2_total"):
            write_tables(frequencies, log2_total)
    lone = np.zeros(256, np.int64)
    lone[0] = 2**15
    for wrong in (lone, -frequencies, frequencies[:255], frequencies.astype(np.int32)):
        with pytest.raises(ParameterError, match="frequencies"):
            write_tables(wrong, 15)
    for log2_run in (4, 19):
        with pytest.raises(ParameterError, match="log2_run"):
            Runs.empty(log2_run, 100)


def test_short_data_is_refused_before_allocation() -> None:
    tables, data = read_tables(model(SHARES["three"], 12), 12), np.zeros(1000, np.uint8)
    for n in (8 * BLOCK, 2**60):
        with pytest.raises(Truncated):
            rans_string.refuse_short(n, 8 * data.size)
        layout = rans_string.Layout(tables, 0, 8 * data.size, n)
        with pytest.raises(Truncated):
            rans_string.read(data, layout, lambda at, symbols: None)
        with pytest.raises(Truncated):
            rans_string.index(data, layout, 5)
    rans_string.refuse_short(7 * BLOCK, 8 * data.size)
