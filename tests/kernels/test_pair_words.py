"""The writer of table codes that joins the words of pairs of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from bit_texts import text_of
from reference import canonical, universal

from gcodec import ParameterError
from gcodec.kernels.bits import bit_string
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.kernels.prefix.table_code import TableCode, pair_table

SKEWED = [*range(1, 13), 12]
LEAST = 1 << 13  # symbols from which pairs are joined
CODES = {
    "one symbol": [0] * 40 + [1],
    "skewed": [0] * 120 + SKEWED,
    "skewed to larger bytes": [0] * 99 + SKEWED[::-1],
    "with 0": [2] + [0] * 90 + [1, *range(3, 13), 12],
    "only 0 and 255": [1] + [0] * 254 + [1],
    "gaps": [0] * 17 + [1, 0, 0, 2, 0, 4, 4, 0, 4, 4],
    "even": [0] * 200 + [4] * 16,
    "from 1": [0] + [2, 2, 2, 3, 4, 5, 6, 7, 7] + [0] * 20,
    "most digits": [0] * 128 + [1, 2, 3] + [0] * 120 + [4, 5, 5],
}


def code_of(lengths: list[int]) -> TableCode:
    return TableCode.of(np.array(lengths, np.uint8))


def mixtures(code: TableCode) -> Iterator[np.ndarray]:
    """Yield symbols whose frequencies match their words, equal frequencies, and long words."""
    rng = np.random.default_rng(int(code.lengths.sum()))
    used = np.flatnonzero(code.lengths).astype(np.uint8)
    shares = 2.0 ** -code.lengths[used].astype(float)
    longest = used[np.argmax(code.lengths[used])]
    least = max(LEAST, 4 * pair_table(code).span ** 2)
    for n in (least, least + 1, least + 31, least + 4097):
        symbols = rng.choice(used, n, p=shares / shares.sum())
        yield symbols
        yield np.where(rng.random(n) < 0.01, longest, symbols)
    yield rng.choice(used, least)
    yield np.full(least, longest)
    yield np.where(np.arange(least) % 8 < 5, longest, used[0])


@pytest.mark.parametrize("lengths", CODES.values(), ids=CODES)
def test_entries_are_the_words_of_pairs(lengths: list[int]) -> None:
    code = code_of(lengths)
    words, (base, span, entries) = canonical.words(code.lengths.tolist()), pair_table(code)
    assert 0 < span <= 128 or lengths == CODES["only 0 and 255"]
    digits = [0, *range(base + 1, base + span)]
    for first, a in enumerate(digits):
        for second, b in enumerate(digits):
            entry = int(entries[first * span + second])
            if words[a] and words[b]:
                text = words[a] + words[b]
                assert f"{entry:064b}"[: len(text)] == text and entry & 0xFF == len(text)
                assert entry << len(text) & 2**64 - 1 == len(text) << len(text)
            else:
                assert entry == 63


def test_tables_are_small_and_words_short() -> None:
    assert pair_table(code_of([0] * 100 + [1] + [0] * 125 + [2, 2])).span == 0
    assert pair_table(code_of([0] * 100 + [6] * 64)).span == 0


@pytest.mark.parametrize("lengths", CODES.values(), ids=CODES)
def test_strings_equal_the_oracle(lengths: list[int]) -> None:
    code, rng = code_of(lengths), np.random.default_rng(2)
    words = canonical.words(code.lengths.tolist())
    for symbols in mixtures(code):
        n = symbols.size
        text = "".join(words[symbol] for symbol in symbols.tolist())
        sizes = code.lengths[symbols].astype(np.int64)
        for bounds in (np.append(np.arange(4096, n, 4096), n), np.sort(rng.integers(0, n, 9))):
            bounds[-1] = n
            string = BitString()
            string.extend(np.array([0xA0], np.uint8), 3)
            ends = write_symbols(code, symbols, bounds, string)
            assert ends.tolist() == (3 + np.append(0, np.cumsum(sizes)))[bounds].tolist()
            written = universal.to_text(string.trimmed().tobytes())
            assert written == ("101" + text).ljust(-(-(len(text) + 3) // 8) * 8, "0")


@pytest.mark.parametrize(
    ("name", "symbols"),
    [
        ("skewed", (0, 1, 120 - 1, 120 + len(SKEWED), 255)),
        ("with 0", (1, 90, 103, 255)),
        ("gaps", (0, 16, 18, 24, 27, 200)),
        ("one symbol", (0, 39, 41)),
    ],
)
def test_symbols_without_a_word_are_refused(name: str, symbols: tuple[int, ...]) -> None:
    code = code_of(CODES[name])
    used = np.flatnonzero(code.lengths).astype(np.uint8)
    for symbol in symbols:
        for n, at in ((LEAST, 0), (LEAST, 5000), (LEAST, LEAST - 1), (9001, 9000), (9001, 8191)):
            others = np.resize(used, n)
            others[at] = symbol
            with pytest.raises(ParameterError, match=f"symbol {symbol} has no word"):
                write_symbols(code, others, np.array([n]), BitString())


@pytest.mark.parametrize("name", ["skewed", "even", "with 0"])
def test_writes_stay_within_the_array(name: str) -> None:
    code, n = code_of(CODES[name]), LEAST + 77
    words = canonical.words(code.lengths.tolist())
    used = np.flatnonzero(code.lengths).astype(np.uint8)
    longest = np.full(n, np.argmax(code.lengths), np.uint8)
    for symbols in (longest, np.resize(used, n), np.resize(used[::-1], n)):
        text = "".join(words[symbol] for symbol in symbols.tolist())
        for nbytes in (0, 1, 7, 40, 1000, len(text) // 8):
            around = np.full(nbytes + bit_string.SLACK + 512, 0xA5, np.uint8)
            string = BitString(memory=around[: nbytes + bit_string.SLACK])
            write_symbols(code, symbols, np.array([n]), string)
            assert (around[nbytes + bit_string.SLACK :] == 0xA5).all()
            assert text_of(string.trimmed(), len(text)) == text
