"""The rules of universal codes, one word at a time, against their definitions."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import sweeps
from bit_texts import bytes_of
from reference import universal
from verdicts import Reader, verdict

from gcodec.kernels.numeric.words import peek
from gcodec.kernels.prefix import codewords as cw
from gcodec.runtime.jit import Kernel, kernel

LARGEST = 2**64 - 1
LONG = 2000  # zeros above which a word is not compared bit by bit

# Values around each power of two, and random values of each size.
EDGES = sorted(
    {2**e + d for e in range(65) for d in (-2, -1, 0, 1) if 0 <= 2**e + d <= LARGEST}
    | {random.Random(e).getrandbits(e) for e in range(1, 65)}
)
DIVISORS = [1, 2, 3, 5, 6, 7, 8, 9, 10, 100, 2**16 + 1, 2**31, 2**32 + 1, 3 * 2**61]
DIVISORS += [2**62 - 1, 2**63 - 1, 2**63, 2**63 + 1, LARGEST - 1, LARGEST]
SETTINGS = [
    *((cw.OMEGA, 0), (cw.GAMMA, 0), (cw.DELTA, 0)),
    *((cw.RICE, k) for k in range(64)),
    *((cw.EXPGOLOMB, k) for k in range(64)),
    *((cw.GOLOMB, b) for b in DIVISORS),
]


def spelled(setting: tuple[cw.Rule, int]) -> str:
    return f"{setting[0].name}-{setting[1]}"


def writer(rule: cw.Rule, parameter: int) -> Callable[[int], str]:
    plain = getattr(universal, rule.name)
    if rule in (cw.OMEGA, cw.GAMMA, cw.DELTA):
        return plain
    return lambda n: plain(n, parameter)


def reader(rule: cw.Rule, parameter: int) -> Reader:
    plain = getattr(universal, f"read_{rule.name}")
    if rule in (cw.OMEGA, cw.GAMMA, cw.DELTA):
        return plain
    return lambda bits: plain(bits, parameter)


def values_of(rule: cw.Rule, parameter: int) -> list[int]:
    """Return values for a setting: of a rule with many parameters, far values take turns."""
    if rule in (cw.OMEGA, cw.GAMMA, cw.DELTA):
        return [n for n in EDGES if n >= 1]
    size = parameter.bit_length() if rule is cw.GOLOMB else parameter
    return [
        n
        for at, n in enumerate(EDGES)
        if sweeps.LONG or (at + parameter) % 3 == 0 or abs(n.bit_length() - size) <= 2
    ]


@functools.cache
def word_kernel(rule: cw.Rule) -> Kernel:
    word_of_rule = rule.word

    @kernel("uint64, uint64", variant=rule.name)
    def word(value, parameter):
        return word_of_rule(value, parameter)

    return word


@functools.cache
def value_kernel(rule: cw.Rule) -> Kernel:
    value_of_rule = rule.value

    @kernel("in uint8[], int64, int64, uint64", variant=rule.name)
    def value(data, at, end, parameter):
        return value_of_rule(data, at, end, parameter)

    return value


@kernel("in uint8[], int64")
def peeked(data, at):
    return peek(data, at)


def word_of(rule: cw.Rule, parameter: int, value: int) -> tuple[int, str]:
    """Return the number of leading zeros of a word, and the bits after them."""
    zeros, high, low, nbits = word_kernel(rule)(value, parameter)
    assert 1 <= nbits <= 128
    both = (high << 64 | low) & (1 << nbits) - 1
    return zeros, universal.fixed(both, nbits)


def value_at(
    rule: cw.Rule, parameter: int, data: np.ndarray, at: int, end: int
) -> tuple[int, int]:
    value, after = value_kernel(rule)(data, at, end, parameter)
    return value, after


def random_bits(rng: random.Random, count: int) -> str:
    return universal.fixed(rng.getrandbits(count), count)


@pytest.mark.parametrize("setting", SETTINGS, ids=spelled)
def test_words_match_their_definition(setting: tuple[cw.Rule, int]) -> None:
    """Words decode at any bit of a byte, and are truncated wherever they are cut."""
    rule, parameter = setting
    rng = random.Random(parameter)
    write = writer(*setting)
    for value in values_of(*setting):
        zeros, bits = word_of(*setting, value)
        if zeros > LONG:
            divisor = 1 << parameter if rule is cw.RICE else parameter
            assert (zeros, bits) == (value // divisor, write(value % divisor))
            continue
        word = "0" * zeros + bits
        assert word == write(value)
        before, tail = random_bits(rng, rng.randrange(20)), random_bits(rng, rng.randrange(90))
        at, end = len(before), len(before) + len(word)
        data = bytes_of(before + word + tail)
        assert value_at(*setting, data, at, end) == (value, end)
        assert value_at(*setting, data, at, end + len(tail)) == (value, end)
        for cut in {at, end - 1, rng.randrange(at, end)}:
            assert value_at(*setting, data, at, cut)[1] == cw.TRUNCATED


@pytest.mark.parametrize("name", ["OMEGA", "GAMMA", "DELTA", "RICE", "GOLOMB", "EXPGOLOMB"])
def test_longest_words_are_truncated_at_any_cut(name: str) -> None:
    rule = getattr(cw, name)
    parameter = {"RICE": 57, "GOLOMB": 2**57 + 1, "EXPGOLOMB": 3}.get(name, 0)
    for value in (LARGEST, LARGEST - 1, 2**63, 2**63 - 1):
        word = writer(rule, parameter)(value)
        data = bytes_of(word + "1" * 130)
        for cut in range(len(word)):
            assert value_at(rule, parameter, data, 0, cut)[1] == cw.TRUNCATED
        assert value_at(rule, parameter, data, 0, len(word)) == (value, len(word))


# --- arbitrary strings --------------------------------------------------------------------------

EXHAUSTIVE = [
    *((cw.OMEGA, 0), (cw.GAMMA, 0), (cw.DELTA, 0)),
    *((cw.RICE, k) for k in (0, 3, 51, 63)),
    *((cw.EXPGOLOMB, k) for k in (0, 2, 55, 63)),
    *((cw.GOLOMB, b) for b in (1, 3, 10, 2**61 - 1, 3 * 2**61, LARGEST)),
]


def judged(read: Reader, text: str) -> tuple[int, int]:
    result = verdict(read, text)
    if isinstance(result, tuple):
        return result
    return 0, cw.TRUNCATED if result is universal.Truncated else cw.CORRUPT


@functools.cache
def all_of_16() -> np.ndarray:
    return np.arange(1 << 16, dtype=">u2").view(np.uint8)


@pytest.mark.parametrize("setting", EXHAUSTIVE, ids=spelled)
def test_strings_of_up_to_12_bits_exhaustively(setting: tuple[cw.Rule, int]) -> None:
    read = reader(*setting)
    data = all_of_16()
    rng = random.Random(7)
    judgments = [(0, cw.TRUNCATED)]
    for length in range(17 if sweeps.LONG else 13):
        # Further bits change the verdict only of truncated words.
        judgments = [
            judged(read, universal.fixed(number, length))
            if (shorter := judgments[number >> 1])[1] == cw.TRUNCATED
            else shorter
            for number in range(1 << length)
        ]
        for number, expected in enumerate(judgments):
            # Bits after the string must not matter.
            at = 16 * (number << (16 - length) | rng.getrandbits(16 - length))
            value, after = value_at(*setting, data, at, at + length)
            assert (value, after - at if after >= 0 else after) == expected, (number, length)


def overflowing() -> Iterator[tuple[cw.Rule, int, str]]:
    """Yield the shortest bits of words of values above 64 bits."""
    yield cw.GAMMA, 0, "0" * 64
    yield cw.DELTA, 0, "0" * 7
    yield cw.DELTA, 0, universal.gamma(65)
    yield cw.DELTA, 0, universal.gamma(64 + 32)[:8]
    yield cw.OMEGA, 0, "10" + "110" + universal.binary(64) + "1"
    yield cw.OMEGA, 0, universal.omega(2**40)[:-1] + "1"
    yield cw.OMEGA, 0, universal.omega(LARGEST)[:-1] + "1"
    for k in (1, 2, 31, 63):
        if k > 50:
            yield cw.RICE, k, "0" * (2 ** (64 - k))
        yield cw.EXPGOLOMB, k, universal.expgolomb(2**64, k)[: -k or None]
        yield cw.EXPGOLOMB, k, "0" * (65 - k)
    yield cw.EXPGOLOMB, 0, universal.expgolomb(2**64, 0)
    yield cw.GOLOMB, 2**63, "00"
    yield cw.GOLOMB, 3 * 2**61, "000"
    yield cw.GOLOMB, 3 * 2**61, "001" + universal.golomb(2**62, 3 * 2**61)[1:3]
    yield cw.GOLOMB, LARGEST, "00"
    yield cw.GOLOMB, LARGEST, "01" + universal.golomb(1, LARGEST)[1:-1]


@pytest.mark.parametrize(
    ("rule", "parameter", "word"),
    [pytest.param(*case, id=f"{spelled(case[:2])}-{at}") for at, case in enumerate(overflowing())],
)
def test_values_beyond_64_bits(rule: cw.Rule, parameter: int, word: str) -> None:
    """Such words are corrupt from the first bit that makes the value too large."""
    for tail in ("", "0" * 130, "1" * 130):
        data = bytes_of(word + tail)
        end = len(word + tail)
        assert value_at(rule, parameter, data, 0, end)[1] == cw.CORRUPT
    read = reader(rule, parameter)
    for cut in range(len(word)):
        assert value_at(rule, parameter, bytes_of(word), 0, cut) == judged(read, word[:cut])


# --- bits and runs ------------------------------------------------------------------------------


def test_peek_reads_64_bits_anywhere() -> None:
    rng = random.Random(3)
    for size in range(24):
        text = "".join(rng.choices("01", k=8 * size))
        data = bytes_of(text)
        for at in range(8 * size + 70):
            expected = (text[at:] + "0" * 64)[:64]
            assert peeked(data, at) == int(expected, 2)


@pytest.mark.parametrize("at", range(9))
def test_runs_of_zeros_over_many_words(at: int) -> None:
    for zeros in (0, 1, 54, 55, 56, 57, 63, 64, 65, 127, 128, 129, 1000, 100_003):
        data = bytes_of("1" * at + "0" * zeros + "1" * 70)
        end = at + zeros + 1
        assert value_at(cw.RICE, 0, data, at, end) == (zeros, end)
        # A one after the end does not count.
        assert value_at(cw.RICE, 0, data, at, end - 1)[1] == cw.TRUNCATED
        kind = cw.CORRUPT if zeros > 63 else cw.TRUNCATED
        assert value_at(cw.GAMMA, 0, data, at, end - 1)[1] == kind
