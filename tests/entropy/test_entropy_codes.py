"""Each code against its definition, its lengths, its distribution and other programs."""

from __future__ import annotations

import functools
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from bitarray import bitarray
from bitarray.util import ba2int
from hypothesis import given
from hypothesis import strategies as st
from reference import universal
from segments import split_inputs
from sweeps import LONG
from verdicts import verdict

from gcodec import Corrupt, FormatError, Truncated, entropy
from gcodec.entropy import Bits, Code

LARGEST = 2**64 - 1
MAX_UNARY_ZEROS = 3000  # The largest unary part, in zeros, that a test writes.

SPECS = [
    *("omega", "gamma", "delta", "unary"),
    *(f"rice:k={k}" for k in (1, 2, 3, 7, 8, 15, 16, 31, 32, 47, 55, 56, 57, 62, 63)),
    *(f"expgolomb:k={k}" for k in (0, 1, 2, 3, 8, 16, 31, 32, 33, 62, 63)),
    *(f"golomb:b={b}" for b in (2, 3, 5, 6, 7, 9, 10, 100, 1000, 2**16 + 1, 2**32)),
    *(f"golomb:b={b}" for b in (2**57 - 1, 3 * 2**61, 2**63 - 1, 2**63, 2**63 + 1, LARGEST)),
]
EDGES = sorted({2**e + d for e in range(65) for d in (-1, 0, 1) if 0 <= 2**e + d <= LARGEST})
TABLE = "0,10 0,11 0,10 100 0,10 101 0,10 110 0,10 111 0,11 1000 0,11 1001 0,11 1010 0,"
TABLE += "11 1011 0,11 1100 0,11 1101 0,11 1110 0,11 1111 0,10 100 10000 0"


def unary_zeros(code: Code, value: int) -> int:
    """Return the number of zeros in the unary part of a codeword."""
    divisor = {"unary": 1, "rice": 1 << getattr(code, "k", 0), "golomb": getattr(code, "b", 1)}
    return value // divisor[code.name] if code.name in divisor else 0


@functools.cache
def values_of(spec: str) -> list[int]:
    """Return small values, and the edges whose codewords are short enough to write."""
    code = entropy.parse(spec)
    values = {*EDGES, *range(40), *(MAX_UNARY_ZEROS << e for e in (0, 2, 5))}
    values |= {LARGEST - n for n in range(3)}
    if hasattr(code, "b"):
        products = (code.b * n + d for n in (1, 2, 7) for d in (-1, 0, 1))
        values |= {n for n in products if 0 <= n <= LARGEST}
    return sorted(n for n in values if n >= code.first and unary_zeros(code, n) <= MAX_UNARY_ZEROS)


# --- codewords -----------------------------------------------------------------------------------


def test_omega_of_1_to_16() -> None:
    """The codewords equal the table in papers on QSGD."""
    words = TABLE.split(",")
    omega = entropy.parse("omega")
    for n, word in enumerate(words, start=1):
        assert omega.encode([n]) == Bits.from01(word)
        assert omega.decode(Bits.from01(word), 1)[0].tolist() == [n]
    assert omega.encode(range(1, 17)) == Bits.from01("".join(words))


@pytest.mark.parametrize("spec", SPECS)
def test_codewords(spec: str) -> None:
    code = entropy.parse(spec)
    write, _, first = universal.parse(spec)
    assert code.first == first
    values = values_of(spec)
    words = [write(value) for value in values]
    assert code.lengths(values).tolist() == [len(word) for word in words]
    for value, word in zip(values, words, strict=True):
        bits = code.encode([value])
        assert bits.to01() == word
        assert bits.tobytes() == universal.to_bytes(word)
        decoded, end = code.decode(bits, 1)
        assert (decoded.tolist(), end) == ([value], len(word))
    together = code.encode(values)
    assert together.to01() == "".join(words)
    decoded, end = code.decode(together, len(values))
    assert (decoded.tolist(), end) == (values, together.nbits)


@pytest.mark.parametrize("spec", SPECS)
def test_lengths_over_64_bits(spec: str) -> None:
    """Lengths are right also for codewords too long to write."""
    code = entropy.parse(spec)
    write, _, first = universal.parse(spec)
    values = [n for n in EDGES if n >= first]
    for value, length in zip(values, code.lengths(values).tolist(), strict=True):
        skipped = unary_zeros(code, value)
        divisor = value // skipped if skipped else 0
        if skipped > MAX_UNARY_ZEROS:
            divisor = getattr(code, "b", 1 << getattr(code, "k", 0))
            expected = skipped + len(write(value % divisor))
        else:
            expected = len(write(value))
        assert length == min(expected, LARGEST)


def test_published_lengths() -> None:
    rows = {
        (1, 1): (1, 1, 1),
        (2, 3): (3, 3, 4),
        (4, 7): (6, 5, 5),
        (8, 15): (7, 7, 8),
        (16, 31): (11, 9, 9),
        (32, 63): (12, 11, 10),
        (64, 127): (13, 13, 11),
        (128, 255): (14, 15, 14),
        (256, 511): (16, 17, 15),
        (2**15, 2**16 - 1): (23, 31, 24),
        (2**16, 2**17 - 1): (28, 33, 25),
        (2**63, LARGEST): (76, 127, 76),
    }
    for at, spec in enumerate(("omega", "gamma", "delta")):
        code = entropy.parse(spec)
        for (low, high), lengths in rows.items():
            values = [low, high, (low + high) // 2]
            assert set(code.lengths(values).tolist()) == {lengths[at]}


def test_shortest_elias_code_by_range() -> None:
    """The lengths are those that the documentation of delta states."""
    starts = [2**e for e in range(64)]
    omega, gamma, delta = (entropy.parse(spec).lengths(starts) for spec in SPECS[:3])
    shorter = [e for e in range(64) if omega[e] < delta[e]]
    assert shorter == [1, 3, 15]
    assert [e for e in range(64) if omega[e] == delta[e]] == [0, 7, 63]
    assert (gamma[:7] <= omega[:7]).all()


def test_codes_that_equal_others_with_a_parameter() -> None:
    values = [*range(300), 1000]
    pairs = [
        ("unary", "rice:k=0"),
        ("unary", "golomb:b=1"),
        *((f"rice:k={k}", f"golomb:b={2**k}") for k in (1, 5, 12)),
    ]
    for one, other in pairs:
        assert entropy.parse(one).encode(values) == entropy.parse(other).encode(values)
    successors = [n + 1 for n in values]
    assert entropy.parse("expgolomb").encode(values) == entropy.parse("gamma").encode(successors)


# --- streams ------------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> tuple[Code, list[int]]:
    """Return a code and values: mostly small ones, with long codewords among them."""
    spec = draw(st.sampled_from(SPECS))
    code = entropy.parse(spec)
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    scale = {"rice": getattr(code, "k", 0), "expgolomb": getattr(code, "k", 0)}.get(code.name, 0)
    scale = scale or (getattr(code, "b", 1) - 1).bit_length()
    rare = draw(st.sampled_from([0, 0.01, 0.3, 1]))
    values = []
    for _ in range(draw(st.sampled_from([0, 1, 2, 7, 8, 9, 63, 64, 65, 200, 1000]))):
        if rng.random() < rare:
            value = rng.choice(values_of(spec))
        else:
            value = rng.getrandbits(min(scale + rng.randrange(4), 64))
        values.append(max(value, code.first))
    return code, values


@given(streams())
def test_round_trip(stream: tuple[Code, list[int]]) -> None:
    code, values = stream
    bits = code.encode(values)
    assert bits.to01() == universal.encode(str(code), values)
    assert int(code.lengths(values).sum()) == bits.nbits
    decoded, end = code.decode(bits, len(values))
    assert (decoded.tolist(), end) == (values, bits.nbits)
    assert code.encode(decoded) == bits


@given(streams(), streams(), st.data())
def test_codewords_concatenate(
    stream: tuple[Code, list[int]], other: tuple[Code, list[int]], data: st.DataObject
) -> None:
    code, values = stream
    appended = [n for n in other[1] if n >= code.first and unary_zeros(code, n) <= MAX_UNARY_ZEROS]
    whole = code.encode(values + appended)
    assert whole.to01() == code.encode(values).to01() + code.encode(appended).to01()
    at, remaining = 0, values + appended
    while remaining:
        count = data.draw(st.integers(1, len(remaining)))
        decoded, at = code.decode(whole, count, start=at)
        assert decoded.tolist() == remaining[:count]
        remaining = remaining[count:]
    assert at == whole.nbits


@given(streams(), st.data())
def test_following_bits_are_ignored(stream: tuple[Code, list[int]], data: st.DataObject) -> None:
    code, values = stream
    bits = code.encode(values).to01()
    before, after = data.draw(st.text("01", max_size=80)), data.draw(st.text("01", max_size=80))
    decoded, end = code.decode(before + bits + after, len(values), start=len(before))
    assert (decoded.tolist(), end) == (values, len(before + bits))


@given(streams(), st.data())
def test_every_prefix_is_truncated(stream: tuple[Code, list[int]], data: st.DataObject) -> None:
    code, values = stream
    bits = code.encode(values)
    if not bits.nbits:
        return
    text = bits.to01()
    tried = {bits.nbits - 1, data.draw(st.integers(0, bits.nbits - 1))}
    ends = np.cumsum(code.lengths(values)).tolist()
    for cut in tried:
        with pytest.raises(Truncated):
            code.decode(Bits.from01(text[:cut]), len(values))
        whole = sum(end <= cut for end in ends)
        decoded, end = code.decode(Bits.from01(text[:cut]), whole)
        assert decoded.tolist() == values[:whole]
        assert end == ([0, *ends])[whole]


@pytest.mark.parametrize("spec", ["omega", "gamma", "delta", "rice:k=60", "expgolomb:k=3"])
def test_every_prefix_of_long_codewords(spec: str) -> None:
    code = entropy.parse(spec)
    values = [LARGEST, 1, 2**63, 5]
    text = code.encode(values).to01()
    for cut in range(len(text)):
        with pytest.raises(Truncated):
            code.decode(text[:cut], 4)


FAST_SPECS = ["omega", "gamma", "delta", "unary", "rice:k=2", "golomb:b=7", "expgolomb:k=1"]


@functools.cache
def values_and_text(spec: str) -> tuple[np.ndarray, str]:
    """Return some thousand values, with long codewords among them, and their codewords."""
    rng = np.random.default_rng(5)
    first = entropy.parse(spec).first
    values = (rng.geometric(0.3, 10_007) - 1 + first).astype(np.uint64)
    values[rng.integers(0, values.size, 20)] = rng.integers(300, 2000, 20)
    return values, universal.encode(spec, values.tolist())


@pytest.mark.parametrize("spec", FAST_SPECS)
def test_many_values(spec: str) -> None:
    """The string is long enough for kernels that work in blocks."""
    code = entropy.parse(spec)
    values, text = values_and_text(spec)
    values = np.tile(values, 60)
    bits = code.encode(values)
    assert bits.nbits == int(code.lengths(values).sum())
    assert bits.to01() == text * 60
    decoded, end = code.decode(bits, values.size)
    assert end == bits.nbits
    assert (decoded == values).all()
    with pytest.raises(Truncated):
        code.decode(bits, values.size + 1)


@pytest.mark.parametrize("spec", FAST_SPECS)
def test_threads_write_the_same_bits(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = entropy.parse(spec)
    values, text = values_and_text(spec)
    split_inputs(monkeypatch, 64)
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        for n in (values.size, 641, 64, 1):
            bits = code.encode(values[:n])
            assert bits.to01() == text[: bits.nbits]
            assert bits.nbits == int(code.lengths(values[:n]).sum())
            assert (code.decode(bits, n)[0] == values[:n]).all()


def test_long_runs_of_zeros() -> None:
    values = [2**23, 0, 2**24 + 5, 1, 2**22 + 3, 2]
    ones = np.cumsum(np.array(values) + 1) - 1
    for spec, parameter in (("unary", 1), ("golomb:b=1", 1), ("rice:k=8", 256)):
        code = entropy.parse(spec)
        scaled = [n * parameter for n in values]
        bits = code.encode(scaled)
        decoded, end = code.decode(bits, len(values))
        assert (decoded.tolist(), end) == (scaled, bits.nbits)
        if parameter == 1:
            assert np.flatnonzero(np.unpackbits(bits.data, count=bits.nbits)).tolist() == (
                ones.tolist()
            )


# --- arbitrary strings ---------------------------------------------------------------------------

HOSTILE_SPECS = [
    *("omega", "gamma", "delta", "unary", "rice:k=2", "rice:k=61", "golomb:b=3", "golomb:b=10"),
    *(f"golomb:b={3 * 2**61}", "expgolomb:k=0", "expgolomb:k=2", "expgolomb:k=61"),
]


def expected_outcome(
    spec: str, text: str, count: int
) -> tuple[list[int], int] | type[FormatError]:
    """Return the specified result of decoding `count` codewords."""
    read = universal.parse(spec)[1]
    values, at = [], 0
    for _ in range(count):
        actual = verdict(read, text, at)
        if not isinstance(actual, tuple):
            return Truncated if actual is universal.Truncated else Corrupt
        value, at = actual
        values.append(value)
    return values, at


def check(spec: str, text: str, count: int) -> None:
    """Check that `count` codewords decode to the specified result."""
    code = entropy.parse(spec)
    expected = expected_outcome(spec, text, count)
    if isinstance(expected, tuple):
        values, end = code.decode(text, count)
        assert (values.tolist(), end) == expected
    elif count > len(text) // int(code.lengths([code.first])[0]):
        with pytest.raises(Truncated):
            code.decode(text, count)
    else:
        with pytest.raises(expected):
            code.decode(text, count)


@pytest.mark.parametrize("spec", HOSTILE_SPECS)
def test_every_string_of_up_to_8_bits(spec: str) -> None:
    for length in range(10 if LONG else 9):
        for number in range(1 << length):
            text = universal.fixed(number, length)
            for count in (1, 2):
                check(spec, text, count)


@pytest.mark.parametrize("spec", HOSTILE_SPECS)
def test_random_strings(spec: str) -> None:
    """Decode all codewords of random strings with few or many ones, and one codeword more."""
    rng = random.Random(spec)
    read = universal.parse(spec)[1]
    for length in (64, 65, 200, 1000):
        for weight in (0.5, 0.1, 0.9):
            text = "".join("01"[rng.random() < weight] for _ in range(length))
            at, count = 0, 0
            while isinstance(actual := verdict(read, text, at), tuple):
                at, count = actual[1], count + 1
            check(spec, text, count)
            check(spec, text, count + 1)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("gamma", "0" * 64 + "1" * 65),
        ("gamma", "0" * 100),
        ("delta", universal.gamma(65) + "0" * 64),
        ("omega", universal.omega(64)[:-1] + "1" * 66),
        ("omega", universal.omega(LARGEST)[:-1] + "1"),
        ("omega", "1" * 1000),
        ("rice:k=63", "001" + "0" * 63),
        (f"golomb:b={LARGEST}", "01" + "1" * 64),
        ("expgolomb:k=0", "0" * 64 + "1" + "0" * 63 + "1"),
        ("expgolomb:k=0", "0" * 65 + "1" * 66),
        ("expgolomb:k=63", "001" + "0" * 65),
    ],
)
def test_values_beyond_64_bits_are_corrupt(spec: str, text: str) -> None:
    code = entropy.parse(spec)
    with pytest.raises(Corrupt):
        code.decode(text, 1)
    good = code.encode([7] * 50)
    with pytest.raises(Corrupt):
        code.decode(good.to01() + text, 51)
    assert code.decode(good.to01() + text, 50)[1] == good.nbits


# --- other programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["omega", "gamma", "delta", "unary", "rice:k=2", "golomb:b=5"])
def test_bitarray_agrees_on_codewords(spec: str) -> None:
    """bitarray's coder for any prefix code gives the same bits, with these codewords."""
    code = entropy.parse(spec)
    symbols = range(code.first, 60)
    words = {n: code.encode([n]).to_bitarray() for n in symbols}
    rng = random.Random(2)
    values = [rng.choice(symbols) for _ in range(500)]
    bits = code.encode(values)
    assert list(bits.to_bitarray().decode(words)) == values
    for order in ("big", "little"):
        written = bitarray(endian=order)
        written.encode(words, values)
        assert Bits.from_bitarray(written) == bits
        decoded, end = code.decode(written, len(values))
        assert (decoded.tolist(), end) == (values, len(written))


@given(st.integers(2, LARGEST))
def test_bitarray_agrees_on_numbers(n: int) -> None:
    word = entropy.parse("gamma").encode([n]).to_bitarray()
    assert ba2int(word) == n
    assert word.index(1) == n.bit_length() - 1
    assert ba2int(entropy.parse("omega").encode([n]).to_bitarray()[-1 - n.bit_length() : -1]) == n


# --- distributions ------------------------------------------------------------------------------


def kraft(spec: str, stop: int) -> Fraction:
    """Return the sum of 2^-length over all values below `stop`."""
    code = entropy.parse(spec)
    lengths = code.lengths(np.arange(code.first, stop, dtype=np.uint64)).tolist()
    return sum((Fraction(1, 2**length) for length in lengths), Fraction(0))


def test_kraft_sums() -> None:
    """The first codewords leave of 1 just the share of all others: the codes are complete."""
    assert kraft("unary", 20) == 1 - Fraction(1, 2**20)
    assert kraft("gamma", 2**12) == 1 - Fraction(1, 2**12)
    assert kraft("delta", 2**3) == 1 - Fraction(1, 4)
    assert kraft("delta", 2**7) == 1 - Fraction(1, 8)
    assert kraft("delta", 2**15) == 1 - Fraction(1, 16)
    assert [kraft("omega", stop) for stop in (2, 4, 16, 2**16)] == [
        1 - Fraction(1, 2**e) for e in (1, 2, 3, 4)
    ]
    for k in (1, 3):
        assert kraft(f"rice:k={k}", 9 << k) == 1 - Fraction(1, 2**9)
        assert kraft(f"expgolomb:k={k}", (2**9 - 1) << k) == 1 - Fraction(1, 2**9)
    for b in (2, 3, 5, 6, 7, 10, 13, 100):
        assert kraft(f"golomb:b={b}", 9 * b) == 1 - Fraction(1, 2**9)


def probabilities(spec: str, values: list[int]) -> list[Fraction]:
    """Return 2^-length of the codeword of each value."""
    return [Fraction(1, 2**n) for n in entropy.parse(spec).lengths(values).tolist()]


SAMPLE = sorted({*range(2, 200), *(n for n in EDGES if n > 200), 10**6, 3**30})


def test_gamma_suits_a_power_law() -> None:
    for n, p in zip(SAMPLE, probabilities("gamma", SAMPLE), strict=True):
        assert Fraction(1, 2 * n * n) <= p < Fraction(2, n * n)


def test_delta_suits_many_orders_of_magnitude() -> None:
    for n, p in zip(SAMPLE, probabilities("delta", SAMPLE), strict=True):
        log = math.log2(n)
        assert 1 / (2 * n * (log + 1) ** 2) <= float(p) * (1 + 1e-12)
        assert float(p) < 4 / (n * log**2)


def test_omega_follows_its_own_logarithms() -> None:
    assert probabilities("omega", [1]) == [Fraction(1, 2)]
    logs = [n.bit_length() - 1 for n in SAMPLE]
    pairs = zip(probabilities("omega", SAMPLE), probabilities("omega", logs), strict=True)
    for log, (p, of_log) in zip(logs, pairs, strict=True):
        assert p == of_log * Fraction(1, 2 ** (log + 1))


@pytest.mark.parametrize("k", [0, 2, 10])
def test_expgolomb_suits_a_shifted_power_law(k: int) -> None:
    for n, p in zip(SAMPLE, probabilities(f"expgolomb:k={k}", SAMPLE), strict=True):
        square = (n + 2**k) ** 2
        assert Fraction(2**k, 2 * square) <= p < Fraction(2 * 2**k, square)


def test_unary_and_rice_halve() -> None:
    assert probabilities("unary", [0, 1, 2, 63]) == [Fraction(1, 2**e) for e in (1, 2, 3, 64)]
    for k in (1, 4):
        values = list(range(200))
        actual = probabilities(f"rice:k={k}", values)
        halved = probabilities(f"rice:k={k}", [n + 2**k for n in values])
        assert [p / 2 for p in actual] == halved


@pytest.mark.parametrize("theta", [0.3, 0.5, 0.6, 0.62, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_the_best_golomb_code_of_a_geometric_distribution(theta: float) -> None:
    best = next(
        b
        for b in itertools.count(1)
        if theta**b + theta ** (b + 1) <= 1 < theta**b + theta ** (b - 1)
    )
    values = np.arange(int(60 / -math.log(theta)) + 2)
    p = (1 - theta) * theta**values
    means = {
        b: float((p * entropy.parse(f"golomb:b={b}").lengths(values)).sum())
        for b in range(1, 2 * best + 3)
    }
    assert means[best] == min(means.values())
    entropy_bits = float(-(p * np.log2(p)).sum())
    assert entropy_bits <= means[best] < entropy_bits + 0.15 or theta < 0.5
    assert abs(best - math.log(0.5) / math.log(theta)) <= 1
