"""Strings of prefix words and run–level pairs: against oracles, in blocks, and on threads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from bit_texts import bytes_of, text_of
from reference import universal
from segments import split_inputs
from sweeps import LONG, thinned

from gcodec import Corrupt, FormatError, Truncated
from gcodec.entropy.huffman import code_lengths
from gcodec.kernels.bits import bit_string, coded_mask
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.fields import write_fields
from gcodec.kernels.prefix import dense_string, sparse_string
from gcodec.kernels.prefix.codewords import DELTA, EXPGOLOMB, GAMMA, GOLOMB, OMEGA, RICE
from gcodec.kernels.prefix.prefix_read import read_blocks
from gcodec.kernels.prefix.prefix_table import WIDE, PrefixCode, read_runs
from gcodec.kernels.prefix.prefix_write import write_symbols
from gcodec.kernels.prefix.run_level import FAR, RunLevelCode, RunLevelPairs, count_pairs
from gcodec.kernels.prefix.run_level_place import place
from gcodec.kernels.prefix.run_level_read import read_pair_blocks
from gcodec.kernels.prefix.run_level_write import write_pairs
from gcodec.kernels.prefix.table_code import LOOKS, SYMBOLS, Look, TableCode

FARTHEST = 2**63 - 1
WORDS: dict[str, Callable[[int, int], str]] = {
    "omega": lambda value, _: universal.omega(value),
    "gamma": lambda value, _: universal.gamma(value),
    "delta": lambda value, _: universal.delta(value),
    "rice": universal.rice,
    "golomb": universal.golomb,
    "expgolomb": universal.expgolomb,
}
# Numbers around the limits of tables and of the types that store them.
EDGES = [*range(10), 15, 16, 31, 32, *range(62, 67), *range(126, 131), *range(253, 259)]
EDGES += [near + step for near in (2**10, 2**16, 2**32, 2**63) for step in (-1, 0, 1)]
EDGES += [2**64 - 2, 2**64 - 1]
LONGEST = 3000  # bits of the longest words, except in tests of long words

CODES = [
    *(PrefixCode(rule, 0, 1) for rule in (OMEGA, GAMMA, DELTA)),
    *(PrefixCode(RICE, k, 0) for k in (0, 3, 20, 47, 63)),
    *(PrefixCode(GOLOMB, b, 0) for b in (1, 10, 2**40)),
    *(PrefixCode(EXPGOLOMB, k, 0) for k in (0, 2)),
    *(PrefixCode(OMEGA, 0, 1, "signed", 1, 2 * s + 1) for s in (1, 3, 15, 127, 128, 2**24)),
    *(PrefixCode(RICE, k, 0, "zigzag", 0, 2 * s + 1) for k, s in ((0, 4), (2, 127), (20, 2**24))),
]
# No codec has these in a dense string; their kernels are compiled for long tests only.
UNUSED = [
    *(PrefixCode(OMEGA, 0, 1, "signed", 0, 2 * s + 1) for s in (15, 2**24)),
    *(PrefixCode(RICE, k, 0, "signed", -1, 2 * s + 1) for k, s in ((0, 4), (12, 2**24))),
    *(PrefixCode(RICE, k, 0, "plain", -1, FARTHEST) for k in (0, 9)),
]
CODES += UNUSED if LONG else []


def name_of(code: PrefixCode) -> str:
    top = min(code.top, 2**64 - 1).bit_length()
    return f"{code.rule.name}-{code.parameter}-{code.mapping}{code.shift}-{top}"


each_code = pytest.mark.parametrize("code", CODES, ids=name_of)


@functools.cache
def word(code: PrefixCode, symbol: int) -> str:
    """Return the word of a symbol, by the oracle."""
    spell = WORDS[code.rule.name]
    level, odd = symbol >> 1, symbol & 1
    if code.mapping == "zigzag":
        return spell(2 * level - odd, code.parameter)
    if code.mapping == "signed":
        return str(odd) + spell(level + code.shift, code.parameter)
    return spell(symbol + code.shift, code.parameter)


def nbits_of(code: PrefixCode, symbol: int) -> int:
    """Estimate the bits of a word without writing it."""
    value = (symbol >> 1 if code.mapping == "signed" else symbol) + code.shift
    if code.rule is RICE:
        return (value >> code.parameter) + code.parameter + 2
    return value // code.parameter if code.rule is GOLOMB else 130


def alphabet(code: PrefixCode, below: int = 2**64) -> np.ndarray:
    """Return symbols of a code whose words are not too long."""
    shortest = code.least
    symbols = [e for e in EDGES if shortest <= e <= min(code.top, below - 1)]
    if code.mapping != "plain":
        symbols = [e for e in symbols if e != 1]  # there is no −0
    return np.array([e for e in symbols if nbits_of(code, e) <= LONGEST], np.uint64)


def mixtures(code: PrefixCode) -> Iterator[np.ndarray]:
    """Yield symbols in many orders: small or large ones, large among small ones, runs."""
    rng = np.random.default_rng(len(name_of(code)))
    whole = alphabet(code)
    small = alphabet(code, 8) if alphabet(code, 8).size else whole
    tables = alphabet(code, 255) if alphabet(code, 255).size else whole
    yield whole
    yield whole[:0]
    yield np.repeat(whole, 33)
    for size in (1, 7, 8, 31, 32, 33, 64, 300):
        yield rng.choice(whole, size)
        yield rng.choice(small, size)
        yield rng.choice(tables, size)
    for share in (0.01, 0.1, 0.5):
        yield np.where(rng.random(700) < share, rng.choice(whole, 700), rng.choice(small, 700))
    yield np.where(np.arange(500) % 64 == 40, whole[-1], whole[0])


def narrow(symbols: np.ndarray) -> np.ndarray:
    """Return symbols in the least sufficient type, as codecs store them."""
    return symbols.astype(np.min_scalar_type(int(symbols.max(initial=0))))


def cut(size: int, rng: np.random.Generator) -> np.ndarray:
    """Return ends of blocks, which may be empty."""
    count = int(rng.integers(1, 9))
    ends = np.sort(rng.choice([0, size, *range(size + 1)], count))
    ends[-1] = size
    return ends.astype(np.int64)


def read(
    code: PrefixCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    end: int,
    chained: bool,
    left: int = 0,
) -> np.ndarray:
    count = int(bounds[-1])
    small, wide = np.empty(count, np.uint8), np.empty(count * (code.top >= WIDE), np.uint64)
    read_blocks(code, data, starts, bounds, small, wide, end, chained, left)
    return dense_string.widened(small, wide, np.dtype(np.uint64))


class Guarded(BitString):
    """A bit string that detects writes after its room."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(0, nbytes)
        self._guard()

    def _guard(self) -> None:
        self.guarded = np.full(self.data.size + 512, 0xA5, np.uint8)
        self.guarded[: self.data.size] = self.data
        self.data = self.guarded[: self.data.size]

    def check(self) -> None:
        assert (self.guarded[self.data.size :] == 0xA5).all()

    def grow(self, nbytes: int = 0) -> None:
        self.check()
        super().grow(nbytes)
        self._guard()


# --- words --------------------------------------------------------------------------------------


@each_code
def test_words_round_trip_and_match_the_oracle(code: PrefixCode) -> None:
    rng = np.random.default_rng(1)
    for symbols in thinned(mixtures(code), 3):
        words = [word(code, symbol) for symbol in symbols.tolist()]
        text = "".join(words)
        places = np.cumsum([0, *map(len, words)])
        for lead in (0, 3):
            bounds = cut(symbols.size, rng)
            string = BitString(lead)
            ends = write_symbols(code, narrow(symbols), bounds, string)
            assert (ends - 8 * lead).tolist() == places[bounds].tolist()
            assert string.nbits == 8 * lead + len(text)
            data = string.trimmed()[lead:]
            assert text_of(data, len(text)) == text
        # Bits after the end must not matter.
        starts = places[np.concatenate([[0], bounds])]
        for tail in (b"", b"\xff" * 40, bytes(40)):
            fill = "1" * (-len(text) % 8) if tail else ""
            source = bytes_of(text + fill, tail)
            ends = np.zeros(bounds.size + 1, np.int64)
            assert np.array_equal(read(code, source, ends, bounds, len(text), False), symbols)
            assert ends.tolist() == starts.tolist()
            assert np.array_equal(read(code, source, starts, bounds, len(text), True), symbols)


@each_code
def test_strings_begin_at_any_bit_and_grow_in_parts(code: PrefixCode) -> None:
    rng = np.random.default_rng(2)
    symbols = rng.choice(alphabet(code), 90)
    text = "".join(word(code, symbol) for symbol in symbols.tolist())
    string = BitString()
    for part in np.array_split(symbols, 7):
        write_symbols(code, narrow(part), np.array([part.size]), string)
    assert text_of(string.trimmed(), len(text)) == text
    for before in range(1, 9):
        data = bytes_of("1" * before + text)
        bounds = np.array([90])
        starts = np.array([before, before + len(text)])
        for chained in (False, True):
            end = before + len(text)
            assert np.array_equal(read(code, data, starts, bounds, end, chained), symbols)


@each_code
def test_truncated_strings_are_refused(code: PrefixCode) -> None:
    rng = np.random.default_rng(3)
    for size in (1, 3, 120):
        symbols = rng.choice(alphabet(code), size)
        text = "".join(word(code, symbol) for symbol in symbols.tolist())
        for end in {0, 1, len(text) // 2, len(text) - 9, len(text) - 1}:
            if not 0 <= end < len(text):
                continue
            for data in (bytes_of(text), bytes_of(text[:end])):
                starts = np.array([0, len(text)])
                with pytest.raises(FormatError) as caught:
                    read(code, data, starts, np.array([size]), end, False)
                # The remaining bits may begin no word of an allowed symbol.
                assert caught.type in (Truncated, Corrupt)


@pytest.mark.parametrize("mapping", ["plain", "zigzag", "signed"])
def test_symbols_above_the_top_are_refused(mapping: Any) -> None:
    for top in (1, 3, 8, 9, 254, 255, 256, 257, 1000):
        if (mapping != "plain" and top % 2 == 0) or (mapping, top) == ("signed", 1):
            continue
        shift = {"plain": 0, "zigzag": 0, "signed": -1}[mapping]
        code = PrefixCode(RICE, 2, 0, mapping, shift, top)
        for before in (0, 1, 100):
            for symbol in (top, top + 1, top + 2, 2 * top + 5):
                if mapping != "plain" and symbol < 2:
                    continue
                text = word(code, code.least) * before + word(code, symbol)
                source = bytes_of(text), np.array([0, len(text)]), np.array([before + 1])
                for chained in (False, True):
                    if symbol <= top:
                        assert read(code, *source, len(text), chained)[-1] == symbol
                        continue
                    with pytest.raises(Corrupt):
                        read(code, *source, len(text), chained)


def test_negative_zero_is_refused() -> None:
    dense = PrefixCode(OMEGA, 0, 1, "signed", 1, 31)
    for before in (0, 5, 200):
        text = word(dense, 2) * before + "1" + universal.omega(1) + word(dense, 2) * 40
        source = bytes_of(text), np.array([0, len(text)]), np.array([before + 41])
        for chained in (False, True):
            with pytest.raises(Corrupt):
                read(dense, *source, len(text), chained)


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_long_words_grow_the_string(size: int) -> None:
    code = PrefixCode(RICE, 0, 0)
    for values in ([size], [0, size, 3, size, 0], [*[1] * 100, size, *[1] * 100]):
        symbols = np.array(values, np.uint64)
        string = Guarded(0)
        ends = write_symbols(code, symbols, np.arange(1, symbols.size + 1), string)
        string.check()
        assert ends.tolist() == np.cumsum(symbols + np.uint64(1)).tolist()
        data = np.unpackbits(string.data[: -(-string.nbits // 8)])[: string.nbits]
        assert (np.flatnonzero(data) + 1).tolist() == ends.tolist()
        data = np.packbits(data)
        starts = np.zeros(symbols.size + 1, np.int64)
        bounds = np.arange(1, symbols.size + 1)
        assert np.array_equal(read(code, data, starts, bounds, string.nbits, False), symbols)
        assert np.array_equal(read(code, data, starts, bounds, string.nbits, True), symbols)


@each_code
def test_words_are_never_written_after_the_room(code: PrefixCode) -> None:
    rng = np.random.default_rng(5)
    longest = alphabet(code)[[nbits_of(code, int(e)) < 200 for e in alphabet(code)]]
    for nbytes in range(0, 130, 3):
        for symbols in (rng.choice(alphabet(code), 200), np.full(200, longest[-1])):
            string = Guarded(nbytes)
            write_symbols(code, narrow(symbols), np.array([200]), string)
            string.check()


# --- blocks -------------------------------------------------------------------------------------

BLOCKED = [c for c in CODES if c.mapping != "plain" or c.rule in (GAMMA, RICE)]


@pytest.mark.parametrize("code", BLOCKED, ids=name_of)
def test_blocks_of_uneven_lengths(code: PrefixCode) -> None:
    """Blocks that are read in turn end at different times, and may be fewer than the strings."""
    rng = np.random.default_rng(4)
    whole = alphabet(code)
    five = itertools.product((0, 1, 700), (0, 60), (3, 300), (0, 1), (1, 40))
    others = (rng.choice([0, 9, 100, 900], number).tolist() for number in (1, 2, 3, 4, 6, 8, 13))
    for counts in itertools.chain(five, others):
        size = sum(counts)
        symbols = np.where(rng.random(size) < 0.05, rng.choice(whole, size), whole[0])
        bounds = np.cumsum(counts)
        places = np.cumsum([0, *(len(word(code, symbol)) for symbol in symbols.tolist())])
        string = BitString()
        assert np.array_equal(write_symbols(code, narrow(symbols), bounds, string), places[bounds])
        nbits = string.nbits
        starts = places[np.concatenate([[0], bounds])]
        data = string.trimmed()
        assert np.array_equal(read(code, data, starts, bounds, nbits, True), symbols)


@pytest.mark.parametrize("code", BLOCKED, ids=name_of)
def test_wrong_block_starts_are_refused(code: PrefixCode) -> None:
    rng = np.random.default_rng(6)
    whole = alphabet(code)
    bounds = np.array([0, 40, 110, 110, 300, 301, 420])
    symbols = np.where(rng.random(420) < 0.1, rng.choice(whole, 420), whole[0])
    string = BitString()
    ends = write_symbols(code, narrow(symbols), bounds, string)
    nbits, data = string.nbits, string.trimmed()
    starts = np.concatenate([[0], ends])
    assert np.array_equal(read(code, data, starts.copy(), bounds, nbits, True), symbols)
    for at, step in itertools.product(range(starts.size), (-9, -1, 1, 2, 64, nbits, -nbits)):
        changed = starts.copy()
        changed[at] += step
        with pytest.raises(Corrupt):
            read(code, data, changed, bounds, nbits, True)
    # An empty block has no words: both of its ends move together.
    for step in (-1, 1):
        changed = starts.copy()
        changed[3:5] += step
        with pytest.raises(Corrupt):
            read(code, data, changed, bounds, nbits, True)


# --- parts --------------------------------------------------------------------------------------


def table_of(counts: Any) -> TableCode:
    return TableCode.of(code_lengths(np.asarray(counts, np.int64)))


def even(size: int) -> np.ndarray:
    """Return symbols of words with equal or nearly equal lengths, whose readers hardly meet."""
    return np.random.default_rng(size).integers(0, size, 9000).astype(np.uint8)


def peaked(nbits: float) -> np.ndarray:
    return np.minimum(np.random.default_rng(7).exponential(2**nbits, 9000), 250).astype(np.uint8)


PARTED = {
    "short": peaked(0),
    "long": peaked(6),
    "changing": np.concatenate([peaked(-1), peaked(6), peaked(2)]),
    "equal": even(256),
    "nearly equal": np.where(np.arange(9000) % 300, even(200), even(250)),
    "one": np.zeros(9000, np.uint8),
    "rare": (np.arange(9000) % 100 == 0).astype(np.uint8),
}
PARTED_CODES = {
    "table": None,
    "rice": PrefixCode(RICE, 2, 0, top=254),
    "omega": PrefixCode(OMEGA, 0, 1, top=254),
    "signed": PrefixCode(OMEGA, 0, 1, "signed", 1, 253),  # readers of parts meet -0
}


def outcome(*arguments: Any) -> tuple[bytes, list[int]] | str:
    """Return the symbols and the ends of blocks, or the error."""
    code, data, first, bounds, end, left = arguments
    starts = np.full(bounds.size + 1, first)
    try:
        symbols = read(code, data, starts, bounds, end, False, left)
    except FormatError as error:
        return repr(error)
    return symbols.tobytes(), starts.tolist()


@pytest.mark.parametrize("kind", PARTED_CODES)
@pytest.mark.parametrize("data", PARTED)
def test_blocks_in_parts_have_the_same_words(data: str, kind: str) -> None:
    """Also with bits before and after the string, and where the number of words is misjudged."""
    symbols = np.clip(PARTED[data], 2, 253)
    code = PARTED_CODES[kind] or table_of(np.bincount(symbols, minlength=256))
    n, string = symbols.size, BitString(3)
    write_symbols(code, symbols, np.array([n]), string)
    end, whole = string.nbits, np.array([n])
    for tail in (b"", b"\x5a" * 3000):
        source = np.frombuffer(string.trimmed().tobytes() + tail, np.uint8)
        for left in (n, 2 * n, 50 * n):
            result = outcome(code, source, 24, whole, end, left)
            assert result == (symbols.astype(np.uint64).tobytes(), [24, end])
        loose = 8 * source.size
        assert outcome(code, source, 24, whole, loose, n) == result
        blocks = np.array([0, 5000, 5001, n])
        in_parts = outcome(code, source, 24, blocks, end, n)
        assert in_parts == outcome(code, source, 24, blocks, end, 0)


@pytest.mark.parametrize("kind", PARTED_CODES)
def test_damaged_blocks_in_parts_have_the_same_outcome(kind: str) -> None:
    rng = np.random.default_rng(8)
    symbols = np.maximum(peaked(2)[:5000], 2)
    code = PARTED_CODES[kind] or table_of(np.bincount(symbols, minlength=256))
    string = BitString()
    write_symbols(code, symbols, np.array([symbols.size]), string)
    one = TableCode.of(np.array([1], np.uint8))  # no word begins with the bit 1
    for changes in (1, 3, 100, 10**4):
        for _ in range(5):
            bits = np.unpackbits(string.trimmed())
            bits[rng.integers(0, bits.size, changes)] ^= 1
            damaged = np.packbits(bits)
            for each, end in itertools.product((code, one), (bits.size, bits.size // 2)):
                source = each, damaged, 0, np.array([symbols.size]), end
                assert outcome(*source, symbols.size) == outcome(*source, 0)
            short = code, damaged[:7], 0, np.array([symbols.size]), 56
            assert outcome(*short, symbols.size) == outcome(*short, 0)
    zeros = np.zeros(1000, np.uint8)
    for at in range(0, 5000, 97):  # an error in one of the parts
        wrong = zeros.copy()
        wrong[at >> 3] = 128 >> (at & 7)
        source = one, wrong, 0, np.array([5000]), 8000
        assert outcome(*source, 5000) == outcome(*source, 0)
        assert str(at) in str(outcome(*source, 5000))


# --- run–level pairs ----------------------------------------------------------------------------


def unit_codes() -> list[RunLevelCode]:
    """Return codes of omega words, and Rice codes with good and with bad parameters."""
    codes = []
    for s in (15, 127, 1000):
        gap = PrefixCode(OMEGA, 0, 1, top=FARTHEST)
        codes.append(RunLevelCode(gap, PrefixCode(OMEGA, 0, 1, "signed", 0, 2 * s + 1)))
    for k_gap, k, s in ((0, 0, 4), (5, 1, 15), (9, 3, 127), (20, 20, 2**24), (27, 2, 300)):
        gap = PrefixCode(RICE, k_gap, 0, "plain", -1, FARTHEST)
        codes.append(RunLevelCode(gap, PrefixCode(RICE, k, 0, "signed", -1, 2 * s + 1)))
    return codes


each_unit_code = pytest.mark.parametrize(
    "code", unit_codes(), ids=lambda code: f"{name_of(code.gap)} {name_of(code.symbol)}"
)


def units_text(code: RunLevelCode, symbols: np.ndarray, before: int = 0) -> list[str]:
    """Return the pairs of symbols; the preceding pair lies `before` elements before the first."""
    places = np.flatnonzero(symbols) + 1
    gaps = np.diff(places, prepend=-before)
    return [
        word(code.gap, gap) + word(code.symbol, symbol)
        for gap, symbol in zip(gaps.tolist(), symbols[places - 1].tolist(), strict=True)
    ]


def spaced(code: RunLevelCode, gaps: list[int], rng: np.random.Generator, tail: int) -> np.ndarray:
    """Return symbols with these gaps, and `tail` zeros after them."""
    places = np.cumsum(gaps) - 1
    out = np.zeros(int(places[-1]) + 1 + tail, np.uint64)
    whole = alphabet(code.symbol)
    small = whole[whole < 8]
    out[places] = np.where(
        rng.random(places.size) < 0.2,
        rng.choice(whole, places.size),
        rng.choice(small, places.size),
    )
    return out


def tensors(code: RunLevelCode) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(7)
    whole = alphabet(code.symbol)
    small = whole[whole < 8]
    for n, share in itertools.product((1, 63, 64, 65, 200, 5000), (0.0, 0.02, 0.2, 0.6, 1.0)):
        coded = rng.random(n) < share
        yield np.where(coded, rng.choice(small, n), 0).astype(np.uint64)
        yield np.where(coded, rng.choice(whole, n), 0).astype(np.uint64)
    near = [1, 2, 63, 64, 65, 253, 254, 255, 256, 257, 960, 1022, 1023, 1024, 1025, 70_000]
    for tail in (0, 1, 64, 1000):
        yield spaced(code, near[: -1 if tail else None], rng, tail)
        yield spaced(code, [*near[:-1], *[1] * 70] * 2, rng, tail)


@each_unit_code
def test_pairs_round_trip_and_match_the_oracle(code: RunLevelCode) -> None:
    for number, symbols in enumerate(tensors(code)):
        units = units_text(code, symbols)
        if max(map(len, units), default=0) > LONGEST and number % 3:
            continue
        text = "".join(units)
        places = np.cumsum([0, *map(len, units)])
        last = int(np.flatnonzero(symbols)[-1]) + 1 if units else 0
        assert count_pairs(narrow(symbols)) == (len(units), last)
        coded = np.flatnonzero(symbols) + 1
        layouts = [(1, 0), (64, 5), (4096, 1)]  # they take turns
        for block_size, lead in layouts if LONG else [layouts[number % 3]]:
            data, nbits, offsets, positions = sparse_string.write(
                code, narrow(symbols), block_size, lead
            )
            assert nbits == 8 * lead + len(text)
            assert text_of(data[lead:], len(text)) == text
            edges = [*range(0, len(units), block_size), len(units)]
            assert offsets.tolist() == places[edges].tolist()
            assert positions.tolist() == [0, *coded[np.array(edges[1:], int) - 1].tolist()]
            for table in (None, (offsets, positions)):
                out = np.zeros(symbols.size, narrow(symbols).dtype)
                marks = sparse_string.read(
                    code, data, 8 * lead, nbits, block_size, table, partial(place, out=out)
                )
                assert np.array_equal(out, symbols)
                assert all(map(np.array_equal, marks, (offsets, positions)))


@each_unit_code
def test_groups_of_four_match_single_pairs(code: RunLevelCode) -> None:
    """With blocks of 64 pairs, the writer uses no groups."""
    rng = np.random.default_rng(8)
    whole = alphabet(code.symbol)
    small = whole[whole < 8]
    for share in (0.1, 0.2, 0.4, 0.8, 1.0):
        for choices in (small, whole):
            chosen = rng.choice(choices, 4000)
            symbols = narrow(np.where(rng.random(4000) < share, chosen, 0).astype(np.uint64))
            symbols[1000:1300] = 0
            alone = sparse_string.write(code, symbols, 64, 0)
            groups = sparse_string.write(code, symbols, 1 << 20, 0)
            assert alone[1] == groups[1]
            assert np.array_equal(alone[0], groups[0])


@each_unit_code
def test_pairs_are_never_written_after_the_room(code: RunLevelCode) -> None:
    rng = np.random.default_rng(9)
    whole = alphabet(code.symbol)
    patterns = [np.where(np.arange(700) % step, 0, 3).astype(np.uint64) for step in (1, 2, 4, 8)]
    patterns.append(np.where(rng.random(700) < 0.3, rng.choice(whole, 700), 0).astype(np.uint64))
    for nbytes in range(0, 200, 3):
        for symbols in patterns:
            string = Guarded(nbytes)
            marks = np.zeros(9, np.int64), np.zeros(9, np.int64)
            write_pairs(code, narrow(symbols), 0, 1, 0, 4096, string, *marks)
            string.check()


@each_unit_code
@pytest.mark.parametrize("far", [254, 255, 256, 1023, 1024, 2**20, 2**40, 2**62])
def test_pairs_after_a_long_gap(code: RunLevelCode, far: int) -> None:
    """Gaps up to 2^62, as after a part of a tensor without nonzero elements."""
    if nbits_of(code.gap, far + 70) > LONGEST:
        return
    symbols = np.zeros(70, np.uint64)
    symbols[[3, 40, 69]] = 2, 3, 2
    for before in (0, 5):  # position of the preceding pair
        units = units_text(code, symbols, far)
        text = "".join(units)
        string = BitString()
        marks = np.zeros(3, np.int64), np.zeros(3, np.int64)
        base = far + before
        end = write_pairs(code, narrow(symbols), base, 64, before, 64, string, *marks)
        assert end == (67, base + 70)
        assert [int(mark[1]) for mark in marks] == [0, before]
        assert text_of(string.trimmed(), len(text)) == text
        for chained in (False, True):
            read = RunLevelPairs.empty(code, 3)
            blocks = np.array([0, len(text)]), np.array([3])
            end = read_pair_blocks(code, bytes_of(text), *blocks, read, len(text), chained)
            assert end == (3, len(text))
            gaps = [
                int(wide) if gap == FAR else gap
                for gap, wide in zip(read.gaps.tolist(), read.far, strict=True)
            ]
            assert gaps == [far + 4, 37, 29]
            assert read.symbols.tolist() == [2, 3, 2]


@each_unit_code
def test_wrong_seek_tables_of_pairs_are_refused(code: RunLevelCode) -> None:
    rng = np.random.default_rng(10)
    whole = alphabet(code.symbol)
    small = whole[whole < 8]
    symbols = narrow(np.where(rng.random(900) < 0.4, rng.choice(small, 900), 0).astype(np.uint64))
    for block_size in (8, 64):
        data, nbits, offsets, positions = sparse_string.write(code, symbols, block_size, 0)
        for column, at in itertools.product((0, 1), range(offsets.size)):
            for step in (-7, -1, 1, 5, 100):
                changed = [offsets.copy(), positions.copy()]
                changed[column][at] += step
                if changed[column].min() < 0:
                    continue
                with pytest.raises(Corrupt):
                    out = np.zeros(symbols.size, symbols.dtype)
                    sparse_string.read(
                        code, data, 0, nbits, block_size, tuple(changed), partial(place, out=out)
                    )


def test_gaps_after_the_end_of_the_tensor_are_refused() -> None:
    code = unit_codes()[0]
    for n in (1, 5, 300, 5000):
        for gap in (n + 1, n + 2, 2**32, FARTHEST):
            text = word(code.gap, gap) + word(code.symbol, 2)
            with pytest.raises(Corrupt, match="gap passes"):
                out = np.zeros(n, np.uint8)
                sparse_string.read(
                    code, bytes_of(text), 0, len(text), 64, None, partial(place, out=out)
                )
        out = np.zeros(n, np.uint8)
        text = word(code.gap, n) + word(code.symbol, 3)
        sparse_string.read(code, bytes_of(text), 0, len(text), 64, None, partial(place, out=out))
        assert np.flatnonzero(out).tolist() == [n - 1] and out[-1] == 3


# --- threads ------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a setter of the thread count; the pool splits short inputs too."""
    split_inputs(monkeypatch, 512)
    for module in (coded_mask, sparse_string):
        monkeypatch.setattr(module, "_CHUNK", 256)
    monkeypatch.setattr(sparse_string, "_READ", 128)
    return lambda count: monkeypatch.setenv("GCODEC_NUM_THREADS", str(count))


SIZES = (1, 255, 256, 511, 512, 513, 1023, 1024, 1025, 3000)
THREADS = (2, 3, 7, 1)  # The sizes take turns, unless the run is long.


def holed(n: int, symbols: np.ndarray, holes: tuple[int, ...]) -> np.ndarray:
    """Return symbols with whole segments of zeros."""
    out = np.resize(symbols, n)
    for hole in holes:
        out[512 * hole : 512 * hole + 512] = 0
    return out


@pytest.mark.parametrize("holes", [(), (0,), (1,), (1, 2), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("code", unit_codes()[:4:3], ids=lambda code: code.gap.rule.name)
def test_pairs_of_parallel_parts(
    code: RunLevelCode, holes: tuple[int, ...], small_parts: Callable[[int], None]
) -> None:
    """Parts of any length, empty ones included, are joined to the same string."""
    rng = np.random.default_rng(11)
    for n, share in itertools.product(SIZES, (0.004, 0.1, 0.9)):
        base = np.where(rng.random(n) < share, rng.integers(2, 8, n), 0).astype(np.uint8)
        symbols = holed(n, base, holes)
        text = "".join(units_text(code, symbols))
        for threads in THREADS if LONG else (1, THREADS[n % 3]):
            small_parts(threads)
            data, nbits, offsets, positions = sparse_string.write(code, symbols, 16, 2)
            assert text_of(data[2:], nbits - 16) == text
            for table in (None, (offsets, positions)):
                out = np.zeros(n, np.uint8)
                marks = sparse_string.read(
                    code, data, 16, nbits, 16, table, partial(place, out=out)
                )
                assert np.array_equal(out, symbols)
                assert all(map(np.array_equal, marks, (offsets, positions)))


@pytest.mark.parametrize("holes", [(), (0,), (1,), (1, 2), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("bucket", [0, 64, 100, 512])
def test_words_of_parallel_parts(
    bucket: int, holes: tuple[int, ...], small_parts: Callable[[int], None]
) -> None:
    rng = np.random.default_rng(12)
    code = PrefixCode(OMEGA, 0, 1, "signed", 1, 2001)
    for n in SIZES:
        symbols = holed(n, np.where(rng.random(n) < 0.6, 0, rng.integers(2, 2002, n)), holes)
        symbols = symbols.astype(np.uint16)
        size = bucket or n
        is_zero = np.array([not symbols[at : at + size].any() for at in range(0, n, size)])
        coded = CodedMask.of(n, size, is_zero)
        mask = np.repeat(~is_zero, size)[:n]
        assert coded.words == mask.sum()
        words = [
            word(code, symbol) if lives else ""
            for symbol, lives in zip(symbols.tolist(), mask.tolist(), strict=True)
        ]
        text, places = "".join(words), np.cumsum([0, *map(len, words)])
        ways = list(itertools.product(THREADS, (16, 128)))
        for threads, block_size in ways if LONG else ways[n % 3 :: 3]:
            small_parts(threads)

            def part(start: int, stop: int, _: np.ndarray, whole: Any = symbols) -> Any:
                return whole[start:stop]

            data, nbits, offsets = dense_string.write(
                code, part, symbols.dtype, coded, block_size, 3
            )
            assert text_of(data[3:], nbits - 24) == text
            assert offsets.tolist() == places[[*range(0, n, block_size), n]].tolist()
            for table in (None, offsets):
                out = np.full(n, 9, np.uint16)

                def take(at: int, small: np.ndarray, wide: np.ndarray, out: Any = out) -> None:
                    out[at : at + small.size] = dense_string.widened(small, wide, out.dtype)

                ends = dense_string.read(code, data, 24, nbits, coded, block_size, table, take)
                assert np.array_equal(ends, offsets)
                assert np.array_equal(out, symbols)


def test_parts_of_any_length_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of any length, empty ones included, begin at any bit of a byte."""
    split_inputs(monkeypatch, 1, "2")
    rng = np.random.default_rng(13)
    for _ in range(300):
        counts = rng.choice([0, 0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 100], int(rng.integers(1, 9)))
        parts = [rng.integers(0, 2, count) for count in counts]

        def task(start: int, stop: int, parts: Any = parts) -> BitString:
            string = BitString()
            write_fields(parts[start], 1, string)
            return string

        data, nbits, starts = bit_string.written(task, len(parts), 1)
        whole = np.concatenate(parts)
        assert nbits == whole.size
        assert np.array_equal(data, np.packbits(whole))
        assert list(starts.values()) == (np.cumsum(counts) - counts).tolist()


@pytest.mark.parametrize("look", LOOKS, ids=str)
@pytest.mark.parametrize(
    "lengths",
    [
        (1,),
        (0, 1),  # the other half has no words
        (2, 2, 2, 2),
        (1, *range(2, 13), 12),
        (2, 2, 2, *range(3, 13), 12),
        (8,) * 256,
        (11, 11, 12, 1, 2, 3),
        (3, 0, 5, 12, 2, 0, 1),
    ],
    ids=str,
)
def test_windows_hold_the_longest_runs_of_words(lengths: tuple[int, ...], look: Look) -> None:
    code = TableCode.of(np.array(lengths, np.uint8))
    bits, nbits = code.words(SYMBOLS)
    symbol_of = {
        f"{int(word):0{length}b}": symbol
        for symbol, (word, length) in enumerate(zip(bits, nbits.tolist(), strict=True))
        if length
    }
    for start, entry in enumerate(read_runs(code, look).tolist()):
        window, run, at = f"{start:0{look.window}b}", [], 0
        while len(run) < look.most:
            ends = range(at + 1, min(at + 12, look.window) + 1)
            word = next((window[at:end] for end in ends if window[at:end] in symbol_of), None)
            if word is None:
                break
            run.append(symbol_of[word])
            at += len(word)
        fields = entry.to_bytes(look.nbytes, "little")
        assert fields == bytes([*run, *[0] * (look.most - len(run)), at, len(run)])
