"""rANS: frequencies, their tables, estimated sizes, and the code "rans"."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from outcomes import outcome
from reference import ans, universal

from gcodec import Corrupt, FormatError, Limits, ParameterError, Truncated, entropy
from gcodec.entropy import Bits, rans
from gcodec.entropy.frequency_table import fields_of
from gcodec.kernels.rans import rans_runs, rans_string
from gcodec.kernels.rans.rans_table import write_tables

LOG2_TOTALS = range(12, 16)
COUNTS = {
    "two": [3, 1],
    "skew": [10**9, 1],
    "three": [8000, 1000, 1000],
    "gaps": [0, 5, 0, 0, 7, 0],
    "even": [100] * 256,
    "bell": [int(1e6 * math.exp(-(((s - 128) / 20) ** 2))) for s in range(256)],
    "laplace": [int(1e9 * math.exp(-abs(s - 128) / 6)) for s in range(256)],
    "rare": [10**6, *[1] * 255],
    "rarest": [2**45, *[1] * 255],
    "large": [2**44, 2**43, 2**40, 1, 2**44],
}
each_counts = pytest.mark.parametrize("name", COUNTS)


def counts_of(name: str) -> np.ndarray:
    return np.array(COUNTS[name], np.int64)


def cost(counts: np.ndarray, actual: np.ndarray) -> float:
    """Return the ideal bits of symbols with these counts under the actual frequencies."""
    used = counts > 0
    return float(counts[used] @ np.log2(actual.sum() / actual[used]))


# --- frequencies --------------------------------------------------------------------------------


@pytest.mark.parametrize("log2_total", LOG2_TOTALS)
@each_counts
def test_frequencies(name: str, log2_total: int) -> None:
    counts = counts_of(name)
    frequencies = rans.frequencies(counts, log2_total)
    assert frequencies.sum() == 2**log2_total
    np.testing.assert_array_equal(frequencies > 0, counts > 0)
    assert frequencies.max() < 2**15
    # The cost is a sum of convex functions: if no step between two symbols lowers it, none does.
    used = np.flatnonzero(counts)
    c, f = counts[used].astype(float), frequencies[used].astype(float)
    gain = c * np.log2((f + 1) / f)
    loss = np.where(f > 1, c * np.log2(f / np.maximum(f - 1, 1)), np.inf)
    slack = c.sum() * 2**-26  # The logarithms are rounded, and large counts too.
    assert gain.max() <= loss.min() + slack


def test_frequencies_of_exact_shares() -> None:
    for log2_total in LOG2_TOTALS:
        share = 2 ** (log2_total - 4)
        frequencies = rans.frequencies(np.array([7, 0, 5, 4]), log2_total)
        assert frequencies.tolist() == [7 * share, 0, 5 * share, 4 * share]
    assert rans.frequencies(np.array([0, 9]), 14).tolist() == [0, 2**14]


@pytest.mark.parametrize("log2_total", LOG2_TOTALS)
def test_search_for_frequencies_ends_where_logarithms_are_rounded(log2_total: int) -> None:
    for rare in range(1, 256):  # the first frequency seems to gain both above and below 32760
        counts = np.array([2**26, *[1] * rare])
        frequencies = rans.frequencies(counts, log2_total)
        assert frequencies.tolist() == [2**log2_total - rare, *[1] * rare]


def test_impossible_frequencies_are_refused() -> None:
    for counts, log2_total in (([0, 0], 12), ([], 12), ([0, 9], 15)):
        with pytest.raises(ParameterError, match="too few symbols"):
            rans.frequencies(np.array(counts, np.int64), log2_total)
    with pytest.raises(ParameterError, match="too few symbols"):
        rans.best_frequencies(np.zeros(256, np.int64))


@each_counts
def test_best_frequencies(name: str) -> None:
    counts = counts_of(name)
    frequencies, log2_total = rans.best_frequencies(counts)
    np.testing.assert_array_equal(frequencies, rans.frequencies(counts, log2_total))
    sizes = {
        p: rans.estimated_nbits(counts, other, p) + rans.table_nbits(other)
        for p in LOG2_TOTALS
        for other in [rans.frequencies(counts, p)]
    }
    tolerated = min(sizes.values()) * (1 + 1 / 1024)
    assert log2_total == min(p for p in LOG2_TOTALS if sizes[p] <= tolerated)


def test_best_frequencies_of_one_symbol() -> None:
    frequencies, log2_total = rans.best_frequencies(np.array([0, 10**6]))
    assert (frequencies.tolist(), log2_total) == ([0, 2**12], 12)


@pytest.mark.parametrize("log2_total", LOG2_TOTALS)
@pytest.mark.parametrize("n", [1 << 16, 600_000])
@pytest.mark.parametrize("name", ["two", "three", "even", "bell", "laplace"])
def test_estimated_sizes(name: str, n: int, log2_total: int) -> None:
    shares = counts_of(name) / sum(COUNTS[name])
    rng = np.random.default_rng(n)
    symbols = rng.choice(shares.size, n, p=shares).astype(np.uint8)
    counts = np.bincount(symbols, minlength=256)
    frequencies = rans.frequencies(counts, log2_total)
    _, nbits, _ = rans_string.write(
        write_tables(frequencies, log2_total),
        lambda at, end, _: symbols[at:end],
        n,
        np.empty(0, np.uint8),
    )
    estimated = rans.estimated_nbits(counts, frequencies, log2_total)
    # The last states of each block vary with the symbols.
    assert abs(estimated - nbits) <= 0.0005 * nbits + 100
    blocks = -(-n // rans_runs.BLOCK)
    assert estimated == pytest.approx(cost(counts, frequencies) + 768 * blocks, rel=0.002)


def test_estimated_size_of_few_symbols() -> None:
    actual = np.array([2048, 2048])
    assert rans.estimated_nbits(np.array([0, 0]), actual, 12) == 0
    assert rans.estimated_nbits(np.array([5, 5]), actual, 12) == 1024


def test_logarithms() -> None:
    logs = rans.log2_table()
    assert logs.size == 2**15 + 1
    exact = np.log2(np.arange(1, 2**15 + 1)) * 2**28
    assert np.abs(logs[1:] - exact).max() < 4
    assert [int(logs[1 << k]) for k in range(16)] == [k << 28 for k in range(16)]


# --- tables -------------------------------------------------------------------------------------

ALPHABETS: dict[str, Any] = {
    "all": range(256),
    "some": [0, 1, 2, 7, 9, 200, 255],
    "lone": [3],
    "even": range(0, 256, 2),
}


def table_of(alphabet: Any, log2_total: int, seed: int) -> tuple[np.ndarray, str]:
    rng = np.random.default_rng(seed)
    counts = np.zeros(256, np.int64)
    places = np.array(alphabet)
    counts[places] = rng.integers(0, 10 ** rng.integers(1, 7, places.size))
    counts[places[0]] += 1
    frequencies = rans.frequencies(counts, log2_total)
    return frequencies, ans.table(frequencies[places].tolist())


@pytest.mark.parametrize("log2_total", [12, 13, 14])
@pytest.mark.parametrize("name", ALPHABETS)
def test_tables(name: str, log2_total: int) -> None:
    alphabet = np.array(ALPHABETS[name])
    for seed in range(10):
        actual, expected = table_of(alphabet, log2_total, seed)
        data, nbits = rans.write_frequencies(actual, log2_total, alphabet)
        assert Bits(data, nbits).to01() == expected
        assert rans.table_nbits(actual[alphabet]) == nbits
        before, after = "1" * (seed + 1), "0" * seed
        bits = Bits.from01(before + expected + after)
        bit_range = len(before), bits.nbits, alphabet
        again, total, at = rans.read_frequencies(bits.data, *bit_range)
        np.testing.assert_array_equal(again, actual)
        assert (total, at) == (log2_total, len(before) + nbits)
        ends = {*range(len(before), len(before) + nbits, 1 if nbits < 300 else 37), at - 1}
        for end in ends:
            with pytest.raises(Truncated):
                rans.read_frequencies(bits.data, len(before), end, alphabet)


def test_fields_of_a_cut_table_precede_its_error() -> None:
    alphabet = np.array([1, 2, 4])
    data, nbits = rans.write_frequencies(np.array([0, 8192, 4096, 0, 4096]), 14, alphabet)
    whole = list(fields_of(data, 0, nbits, alphabet))
    assert [field[:2] for field in whole] == [(None, 14), (1, 8192), (2, 4096), (4, 4096)]
    assert whole[-1].end == nbits
    for end in range(nbits):
        read = []
        with pytest.raises(Truncated):
            read.extend(fields_of(data, 0, end, alphabet))
        assert read == [field for field in whole if field.end <= end]


def test_impossible_tables_are_refused() -> None:
    alphabet = np.array([1, 2, 4])
    whole = ans.table([2**14, 2**13, 2**13])
    assert whole[:4] == "1111"

    def read(text: str) -> tuple[np.ndarray, int, int]:
        bits = Bits.from01(text)
        return rans.read_frequencies(bits.data, 0, bits.nbits, alphabet)

    assert read(whole)[0][[1, 2, 4]].tolist() == [2**14, 2**13, 2**13]
    for first in range(15):  # A wrong sum, or an invalid total.
        with pytest.raises(Corrupt):
            read(f"{first:04b}" + whole[4:])
    for at in range(4, len(whole)):
        text = flipped(whole, at)
        expected = oracle_outcome(text)
        if isinstance(expected, list):
            assert read(text)[0][alphabet].tolist() == expected
        else:
            with pytest.raises(expected):
                read(text)
    with pytest.raises(Corrupt):  # No symbol has a frequency.
        read("1100" + "0000" * 3)


@outcome
def oracle_outcome(text: str) -> list[int]:
    """Return the oracle's frequencies of a table of three, or the type of error."""
    return ans.read_table(universal.Bits(text), 3)


def flipped(text: str, at: int) -> str:
    return text[:at] + "10"[int(text[at])] + text[at + 1 :]


# --- the code -----------------------------------------------------------------------------------


def expected_bits(values: list[int]) -> str:
    """Return the expected bits of values, with gcodec's choice of frequencies."""
    counts = np.bincount(values, minlength=max(values) + 1)
    frequencies = rans.best_frequencies(counts)[0].tolist()
    head = universal.fixed(max(values), 8) + ans.table(frequencies)
    head += "0" * (-len(head) % 8)
    return head + universal.to_text(ans.encode(values, frequencies))


@pytest.mark.parametrize("n", [1, 2, 32, 33, 3000])
@pytest.mark.parametrize("largest", [0, 1, 15, 255])
def test_values(largest: int, n: int) -> None:
    code, rng = entropy.parse("rans"), np.random.default_rng(n)
    values = np.minimum(rng.geometric(0.3, n) - 1, largest)
    values[-1] = largest
    bits = code.encode(values)
    assert bits.to01() == expected_bits(values.tolist())
    for start in (0, 1, 7, 8, 13):
        longer = Bits.from01("1" * start + bits.to01() + "10" * start)
        again, end = code.decode(longer, n, start=start)
        assert again.tolist() == values.tolist()
        assert again.dtype == np.uint64
        assert end == start + bits.nbits


def test_allowed_values() -> None:
    code = entropy.parse("rans")
    assert (repr(code), str(code)) == ("RANS()", "rans")
    assert code.encode([]).nbits == 0
    assert code.decode("0110", 0, start=3)[1] == 3
    for wrong in ([256], [-1], [3, 2**64]):
        with pytest.raises(ParameterError, match="from 0 to 255"):
            code.encode(wrong)
    with pytest.raises(ParameterError, match="no word of its own"):
        code.lengths([1, 2, 3])


def test_sizes_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rans, "Limits", lambda: Limits(max_bytes=100))
    with pytest.raises(ParameterError, match="max_bytes"):
        entropy.parse("rans").encode([1, 2, 3])


def test_wrong_bits_are_refused() -> None:
    code, values = entropy.parse("rans"), [0, 3, 0, 1, 0, 0, 2] * 40
    text = code.encode(values).to01()
    for end in (0, 7, 8, 11, 12, 30, 100, 1000, len(text) - 16, len(text) - 8, len(text) - 1):
        with pytest.raises(Truncated):
            code.decode(text[:end], len(values))
    for count in (2**64 - 1, 2**40):
        with pytest.raises(Truncated):
            code.decode(text, count)
    with pytest.raises(Corrupt):
        code.decode(text, len(values) - 1)
    table = ans.table([2048, 2048])
    string = universal.to_text(ans.encode([0, 1], [2048, 2048]))
    gap = "0" * (-len(table) % 8)
    assert gap
    assert code.decode("00000001" + table + gap + string, 2)[0].tolist() == [0, 1]
    with pytest.raises(Corrupt, match="between table and string"):
        code.decode("00000001" + table + gap[1:] + "1" + string, 2)
    table = ans.table([2048, 2048, 0])
    gap = "0" * (-len(table) % 8)
    with pytest.raises(Corrupt, match="largest"):
        code.decode("00000010" + table + gap + string, 2)


def test_random_bits() -> None:
    """Changed bits decode to values or raise a FormatError."""
    code, rng = entropy.parse("rans"), np.random.default_rng(3)
    valid = [code.encode(rng.integers(0, bound, 200)).tobytes() for bound in (1, 2, 9, 256)]
    outcomes = set()
    for i in range(3000):
        data = np.frombuffer(valid[i % 4], np.uint8).copy()
        if i % 7 == 0:
            data = rng.integers(0, 256, int(rng.integers(0, 400))).astype(np.uint8)
        elif i % 3:
            at = rng.integers(0, data.size if i % 5 else 10, int(rng.integers(1, 4)))
            data[at] ^= rng.integers(0, 256, at.size).astype(np.uint8)
        start, count = (int(rng.integers(0, 9)), 200) if i % 2 else (0, int(rng.integers(1, 300)))
        try:
            values, end = code.decode(data, count, start=min(start, 8 * data.size))
            assert values.size == count
            assert end <= 8 * data.size
            outcomes.add("values")
        except FormatError as error:
            outcomes.add(type(error))
    assert outcomes == {"values", Truncated, Corrupt}


def test_rounded_logarithms_terminate() -> None:
    """For a symbol of nearly all probability, one more and one less may both seem to gain."""
    counts = np.array([999_796, 55, 27, 7, 72, 30, 13])
    for log2_total in range(12, 16):
        frequencies = rans.frequencies(counts, log2_total)
        assert frequencies.sum() == 1 << log2_total and frequencies.min() >= 1
