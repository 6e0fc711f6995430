"""qsgd on every string of up to 16 bits: the compiled readers and the oracle agree.

The codec is too slow for so many strings, so a compiled loop calls its readers. The oracle decodes
every string that may still become one element; this module assembles messages from these elements,
and compares some of them with the oracle's. `test_qsgd_reference` covers refusals outside the
readers, such as nonzero padding.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from reference import qsgd as reference
from reference import universal
from reference.qsgd import Setting
from sweeps import thinned

from gcodec.errors import Corrupt
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import (
    level_codes,
    level_fields,
    look_ahead,
    prefix_read,
    run_level_place,
    run_level_read,
)
from gcodec.kernels.prefix.codewords import CORRUPT, LEVELS, TRUNCATED
from gcodec.kernels.prefix.prefix_table import WIDE, least_nbits, read_runs, read_singles
from gcodec.kernels.prefix.run_level import NEAR, read_pair_table
from gcodec.kernels.prefix.table_code import Look
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime.jit import Kernel, inline, kernel

# A string is a number: a one bit, followed by the bits of the string. Shorter strings come first.
MAX_NBITS = 16
SIZE = 2 << MAX_NBITS
EMPTY = 1
OK = 0
N = (1, 2, 3, 4)
NORM = np.array([1], ">f4").view(np.uint8)  # The norm.
NORM_NBITS = 8 * NORM.size
# The largest gap of two bytes: its omega codeword has 14 bits, its sign and level have 2.
LARGEST_GAP = 255
PAIRS_AT_ONCE = 4096  # Run–level pairs that the codec reads at a time.
BROKEN = prefix_read.BROKEN
UNREAD = -9
ALL_STRINGS = np.arange(SIZE)
NBITS = np.frexp(ALL_STRINGS.astype(np.float64))[1] - 1

# With s = 127, readers store one symbol elsewhere; with s = 300, symbols exceed a byte.
CASES = [
    *((Setting(s, form), ()) for form in reference.FORMS for s in (1, 3, 127)),
    *((Setting(s, "dense", code="rice"), (k,)) for s in (1, 3, 7) for k in (0, 1)),
    *((Setting(s, "dense", code="rice"), (k,)) for s, k in ((5, 3), (300, 6))),
    *(
        (Setting(s, "sparse", code="rice"), (k, g))
        for s, k, g in itertools.product((1, 3), (0, 1), (0, 1))
    ),
    *((Setting(s, "sparse", code="rice"), rices) for s, rices in ((5, (2, 3)), (300, (6, 0)))),
    *((Setting(s, "dense", code="packed"), ()) for s in (1, 2, 3, 5, 8, 300)),
]


def text_of(string: int) -> str:
    return f"{string:b}"[1:]


# --- messages of the oracle ----------------------------------------------------------------------


def oracle_outcome(
    setting: Setting, rices: tuple[int, ...], string: int, n: int
) -> tuple[int, list[int]]:
    """Return the oracle's status and symbols for a string."""
    text = text_of(string)
    data = NORM.tobytes() + universal.to_bytes(text)
    try:
        _, levels = reference.read(setting, data, NORM_NBITS + len(text), n, rices)
    except universal.Truncated:
        return TRUNCATED, []
    except universal.Corrupt:
        return CORRUPT, []
    return OK, [2 * abs(k) + (k < 0) for k in levels]


class Elements(NamedTuple):
    """The first element of each string: a codeword of a dense form, a run–level pair of a sparse
    form.

    `status` states whether the element is complete, `rest` is the remaining string, and `nbits` is
    the length of the shortest element.
    """

    status: np.ndarray
    gap: np.ndarray
    symbol: np.ndarray
    rest: np.ndarray
    nbits: int


def elements_of(setting: Setting, rices: tuple[int, ...]) -> Elements:
    """Ask the oracle about ever longer strings until their first elements are complete."""
    sizes = (1,) if setting.form == "dense" else (max(N), LARGEST_GAP)
    status = np.full(SIZE, TRUNCATED, np.int8)
    gap, symbol, rest = (
        np.zeros(SIZE, np.int64),
        np.zeros(SIZE, np.uint32),
        np.zeros_like(ALL_STRINGS),
    )
    lengths = []
    unfinished = [EMPTY]
    for string in unfinished:
        for n in sizes:  # The last size is slow, but no gap exceeds it.
            actual, symbols = oracle_outcome(setting, rices, string, n)
            if actual != CORRUPT:
                break
        if actual == TRUNCATED or string == EMPTY:
            if 2 * string < SIZE:
                unfinished += [2 * string, 2 * string + 1]
            continue
        places = np.flatnonzero(symbols) if setting.form == "sparse" else [0]
        length = len(text_of(string))
        for more in range(MAX_NBITS - length + 1):  # All strings with this prefix.
            part = slice(string << more, (string + 1) << more)
            status[part] = actual
            if actual == OK:
                (place,) = places
                gap[part], symbol[part] = place + 1, symbols[place]
                rest[part] = (1 << more) + np.arange(1 << more)
        if actual == OK:
            lengths.append(length)
    return Elements(status, gap, symbol, rest, min(lengths, default=MAX_NBITS + 1))


# Yields n, and the status and the n symbols of each string.
Results = Iterator[tuple[int, np.ndarray, np.ndarray]]


def dense_messages(first: Elements) -> Results:
    """Assemble dense messages from first elements: n codewords and nothing else."""
    for n in N:
        status, symbols = np.zeros(SIZE, np.int8), np.zeros((SIZE, n), np.uint32)
        string = ALL_STRINGS
        for i in range(n):
            status = np.where(status == OK, first.status[string], status)
            symbols[:, i] = first.symbol[string]
            string = first.rest[string]
        status[(status == OK) & (string != EMPTY)] = CORRUPT
        status[: 1 << min(n * first.nbits, MAX_NBITS + 1)] = TRUNCATED
        yield n, status, symbols


def sparse_messages(first: Elements) -> Results:
    """Assemble sparse messages from first elements: run–level pairs up to the end."""
    status, symbols = np.zeros(SIZE, np.int8), np.zeros((SIZE, max(N)), np.uint32)
    string, place = ALL_STRINGS, np.zeros(SIZE, np.int64)
    for _ in range(MAX_NBITS // first.nbits + 1):
        status = np.where((status == OK) & (string != EMPTY), first.status[string], status)
        continues = (status == OK) & (string != EMPTY)
        place += np.where(continues, first.gap[string], 0)
        in_range = np.flatnonzero(continues & (place <= max(N)))
        symbols[in_range, place[in_range] - 1] = first.symbol[string[in_range]]
        string = np.where(continues, first.rest[string], string)
    assert (string[status == OK] == EMPTY).all()
    for n in N:  # The oracle reads all codewords before it checks positions.
        yield n, np.where((status == OK) & (place > n), CORRUPT, status), symbols[:, :n]


# --- messages of gcodec --------------------------------------------------------------------------


@inline
def write_payload(data, nbits, value):
    """Write a string after the norm, followed by ones; return the size of the payload."""
    data[4:] = 255
    nbytes = (nbits + 7) >> 3
    for i in range(nbytes):
        data[4 + i] = (value << (MAX_NBITS - nbits)) >> (8 - 8 * i) & 255
    return 4 + nbytes


@functools.cache
def dense_loop(look: Look) -> Kernel:
    """Return a compiled loop that reads all strings with a reader of dense blocks."""
    read = prefix_read.reader(LEVELS, look)

    @kernel(
        f"in uint64[], in uint{8 * look.nbytes}[], in uint32[], out int64[], out uint8[], "
        "out uint64[], out uint8[], out int64[], out int64[], out int64[], out int64[], "
        "out int64[], out uint32[]",
        variant=read.variant,
    )
    def loop(
        code,
        runs,
        singles,
        state,
        out,
        wide,
        data,
        status,
        starts,
        bounds,
        statuses,
        ends,
        symbols,
    ):
        n = out.size
        for nbits in range(MAX_NBITS + 1):
            for value in range(1 << nbits):
                payload = data[: write_payload(data, nbits, value)]
                starts[0], starts[1], bounds[0] = NORM_NBITS, -1, n
                status[:] = 0
                out[:] = 77
                wide[:] = 77777
                read(
                    payload,
                    starts,
                    bounds,
                    False,
                    NORM_NBITS + nbits,
                    0.0,  # blocks are read from their begin
                    code,
                    runs,
                    singles,
                    state,
                    (out, wide, out),
                    status,
                )
                string = (1 << nbits) + value
                statuses[string], ends[string] = status[0], starts[1] - NORM_NBITS
                for i in range(n):
                    is_wide = out[i] == WIDE and wide.size > 0
                    symbols[n * string + i] = wide[i] if is_wide else np.uint64(out[i])

    return loop


@functools.cache
def sparse_loop(dtype: np.dtype[Any]) -> Kernel:
    """Return a compiled loop that reads all strings as run–level pairs, and places the levels."""
    read, place = run_level_read._read_pairs, run_level_place._placer(dtype)

    @kernel(
        "(in uint64[], in uint32[], in uint32[], in uint64[], in uint64[]), out int64[], "
        f"(out uint8[], out uint8[], out uint64[], out uint64[]), out {dtype}[], "
        "out uint8[], out int64[], out int64[], out int64[], in int64[], in float32[], "
        "out int64[], out uint32[]",
        variant=place.variant,
    )
    def loop(
        tables,
        state,
        pairs,
        out,
        data,
        status,
        starts,
        bounds,
        nowhere,
        norms,
        statuses,
        symbols,
    ):
        (gaps, codes, far, wide), most = pairs, out.size
        for nbits in range(MAX_NBITS + 1):
            for value in range(1 << nbits):
                string = (1 << nbits) + value
                starts[0], bounds[0] = NORM_NBITS, gaps.size
                status[:] = 0
                if nbits:  # The codec does not call its reader for empty strings.
                    payload = data[: write_payload(data, nbits, value)]
                    gaps[:8] = 77
                    codes[:8] = 77
                    end = NORM_NBITS + nbits
                    read(payload, starts, bounds, False, end, tables, state, pairs, status)
                    if status[0] == OK and status[1] != end:
                        status[0] = BROKEN
                statuses[most * string : most * (string + 1)] = status[0]
                if status[0] != OK:
                    continue
                bounds[0] = status[2]
                for n in range(1, most + 1):
                    status[0] = 0
                    out[:] = 0
                    place(
                        gaps,
                        codes,
                        far,
                        wide,
                        bounds,
                        nowhere,
                        0,
                        norms,
                        1,
                        np.uint32(1),
                        out[:n],
                        status,
                    )
                    case = most * string + n - 1
                    statuses[case] = status[0]
                    for i in range(n):
                        symbols[most * case + i] = out[i]

    return loop


def read_dense(setting: Setting, rices: tuple[int, ...]) -> Results:
    """Read all strings as dense messages with gcodec's reader."""
    code = level_codes.word_code(setting.code, setting.s, {"rice": sum(rices)})
    tables = read_runs(code, code.look), read_singles(code)
    for n in N:
        status, end = np.empty(SIZE, np.int64), np.empty(SIZE, np.int64)
        symbols = np.empty((SIZE, n), np.uint32)
        state = look_ahead.state()
        room = np.empty(n, np.uint8), np.empty(n if code.top >= WIDE else 0, np.uint64)
        string = np.concatenate([NORM, np.empty(12, np.uint8)]), np.empty(2, np.int64)
        blocks = np.empty(2, np.int64), np.empty(1, np.int64)
        dense_loop(code.look)(
            *(code.numbers, *tables, state, *room, *string, *blocks),
            *(status, end, symbols.reshape(-1)),
        )
        # The codec makes these checks around the reader.
        status[(status == OK) & (end != NBITS)] = CORRUPT
        status[n * least_nbits(code) > NBITS] = TRUNCATED
        yield n, status, symbols


def read_packed(setting: Setting, rices: tuple[int, ...]) -> Results:
    """Read strings as dense messages of fields of equal width with gcodec's reader.

    These strings are read one by one. So beyond the first 4096, only one in seven of two bytes is
    read, unless the run is long.
    """
    width = level_fields.width_of(setting.s)
    for n in N:
        status = np.where(n * width > NBITS, TRUNCATED, CORRUPT)  # The codec checks the length.
        symbols = np.zeros((SIZE, n), np.uint32)
        strings = np.flatnonzero(n * width == NBITS).tolist()
        read = [*strings[: 1 << 12], *thinned(strings[1 << 12 :], 7)]
        status[strings] = UNREAD
        status[read] = CORRUPT
        for string in read:
            data = np.append(NORM, np.frombuffer(universal.to_bytes(text_of(string)), np.uint8))
            take = functools.partial(put, symbols[string])
            with contextlib.suppress(Corrupt):
                level_fields.read(data, NORM_NBITS, setting.s, CodedMask.all(n), take)
                status[string] = OK
        yield n, status, symbols


def put(out: np.ndarray, at: int, symbols: np.ndarray) -> None:
    out[at : at + symbols.size] = symbols


def read_sparse(setting: Setting, rices: tuple[int, ...]) -> Results:
    """Read all strings as sparse messages with gcodec's reader."""
    scalars = dict(zip(("rice", "rice_gap"), rices, strict=False))
    code = level_codes.run_level_code(setting.code, setting.s, scalars)
    tables = (
        read_pair_table(code.gap, code.symbol),
        read_singles(code.gap, run_level_read.GAP_WINDOW, NEAR),
    )
    state = look_ahead.state()
    room = (
        np.empty(PAIRS_AT_ONCE, np.uint8),
        np.empty(PAIRS_AT_ONCE, np.uint8),
        np.empty(PAIRS_AT_ONCE, np.uint64),
    )
    wide = np.empty(PAIRS_AT_ONCE if code.symbol.top >= WIDE else 0, np.uint64)
    out = np.empty(max(N), symbol_dtype(setting.s))
    status = np.empty((SIZE, max(N)), np.int64)
    symbols = np.zeros((SIZE, max(N), max(N)), np.uint32)
    string = np.concatenate([NORM, np.empty(12, np.uint8)]), np.empty(3, np.int64)
    blocks = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(0, np.int64)
    no_norms = np.empty(0, np.float32)
    sparse_loop(out.dtype)(
        *(*tables, read_singles(code.symbol), code.gap.numbers, code.symbol.numbers),
        *(state, *room, wide, out),
        *(*string, *blocks, no_norms, status.reshape(-1), symbols.reshape(-1)),
    )
    for n in N:
        yield n, status[:, n - 1], symbols[:, n - 1, :n]


# --- tests --------------------------------------------------------------------------------------


def first_difference(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> Any:
    """Return the shortest string whose status or symbols differ, and both results; or None."""
    differs = (a[0] != b[0]) | ((a[0] == OK) & (a[1] != b[1]).any(axis=1))
    differs &= a[0] != UNREAD
    actual = np.flatnonzero(differs[EMPTY:]) + EMPTY
    if not actual.size:
        return None
    at = int(actual[0])
    return text_of(at), *((int(status[at]), symbols[at].tolist()) for status, symbols in (a, b))


@pytest.mark.parametrize(("setting", "rices"), thinned(CASES, 3))
def test_every_string(setting: Setting, rices: tuple[int, ...]) -> None:
    dense = setting.form == "dense"
    first = elements_of(setting, rices)
    messages = (dense_messages if dense else sparse_messages)(first)
    read = read_packed if setting.code == "packed" else read_dense if dense else read_sparse
    for (n, *expected), (_, *actual) in zip(messages, read(setting, rices), strict=True):
        assert first_difference(tuple(actual), tuple(expected)) is None, n
        # The assembled messages are those that the oracle reads.
        status, symbols = expected
        sample = [*range(EMPTY, 1 << 7), *range(1 << 7, SIZE, 190 + n)]
        for string in thinned(sample, 5):
            kind, values = oracle_outcome(setting, rices, string, n)
            assert status[string] == kind, (n, text_of(string))
            assert kind != OK or symbols[string].tolist() == values, (n, text_of(string))


# --- refusals that the specification defines -----------------------------------------------------


def omega_heads() -> set[str]:
    """Return prefixes of omega codewords below 2**64, at most 17 bits, 11 of the number."""
    words = {"0"}
    for nbits in range(2, 65):
        kept_nbits = min(nbits, 11)
        for first in range(1 << (kept_nbits - 1), 1 << kept_nbits):
            words.add(universal.omega(first << (nbits - kept_nbits)))
    return {word[: MAX_NBITS + 1] for word in words}


def rice_heads(k: int) -> set[str]:
    """Return prefixes of Rice codewords with at most as many zeros as a string has bits."""
    words = set()
    for zeros in range(MAX_NBITS + 1):
        kept_nbits = min(k, MAX_NBITS - zeros)
        for first in range(1 << kept_nbits):
            words.add(universal.rice(zeros << k | first << (k - kept_nbits), k))
    return {word[: MAX_NBITS + 1] for word in words}


def specified_status(heads: set[str]) -> np.ndarray:
    """Return whether each string has a complete codeword, begins one, or is corrupt."""
    begun, whole = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    for head in heads:
        string = int("1" + head, 2)
        if len(head) > MAX_NBITS:
            begun[string >> 1] = True
            continue
        begun[string] = True
        for more in range(MAX_NBITS - len(head) + 1):
            whole[string << more : (string + 1) << more] = True
    for string in range(SIZE // 2 - 1, 0, -1):
        begun[string] |= begun[2 * string] | begun[2 * string + 1]
    return np.where(whole, OK, np.where(begun, TRUNCATED, CORRUPT))


@pytest.mark.parametrize(
    ("setting", "rices"),
    [
        (Setting(3, "dense"), ()),
        *((Setting(3, "dense", code="rice"), (k,)) for k in (0, 1, 4)),
        *((Setting(3, "sparse", code="rice"), (0, g)) for g in (0, 3)),
    ],
)
def test_kinds_of_refusal(setting: Setting, rices: tuple[int, ...]) -> None:
    """A string within a first codeword is truncated if a number below 2**64 begins so."""
    rule = specified_status(rice_heads(rices[-1]) if rices else omega_heads())
    if not rices:  # A sign precedes the codeword.
        one = 1 << np.maximum(NBITS - 1, 0)
        rule = np.where(ALL_STRINGS > EMPTY, rule[ALL_STRINGS & (one - 1) | one], TRUNCATED)
    status = elements_of(setting, rices).status[EMPTY:]
    rule = rule[EMPTY:]
    assert np.array_equal(status[rule != OK], rule[rule != OK])
    if setting.form == "dense":
        assert not (status[rule == OK] == TRUNCATED).any()
    assert not rices or not (rule == CORRUPT).any()
    assert rices or (rule == CORRUPT).any()  # Groups of more than 64 bits are corrupt.
