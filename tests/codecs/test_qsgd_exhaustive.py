"""qsgd on every string of up to 16 bits: the compiled readers and the oracle find the same.

The codec takes too long for so many strings, so a loop of Numba calls its readers. The oracle is
asked about every string that may yet become one element; what elements make a message is put
together here, and held against the oracle on some of the strings. Refusals outside the readers,
such as that of fill, are in `test_qsgd_reference`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from reference import qsgd as reference
from reference import universal
from reference.qsgd import Setting
from sweeps import thinned

from gcodec.kernels.prefix import (
    level_codes,
    look_ahead,
    prefix_read,
    run_level_place,
    run_level_read,
)
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED
from gcodec.kernels.prefix.prefix_table import WIDE, least_nbits, read_runs, read_singles
from gcodec.kernels.prefix.run_level import NEAR, read_pair_table
from gcodec.kernels.quantize.levels import symbol_dtype

# A string is the number with its bits behind a one, so that shorter ones come first.
MOST = 16
SIZE = 2 << MOST
EMPTY = 1
OK = 0
N = (1, 2, 3, 4)
HEAD = np.array([1], ">f4").view(np.uint8)  # the norm
BEGIN = 8 * HEAD.size
FARTHEST = 255  # gap of two bytes: its omega word has 14 bits, sign and level have 2
UNITS = 4096  # that the codec reads at a time
BROKEN = prefix_read.BROKEN
ALL = np.arange(SIZE)
NBITS = np.frexp(ALL.astype(np.float64))[1] - 1

# With s = 127 there is a symbol that readers keep elsewhere; with 300, results are no bytes.
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


# --- what the oracle reads ----------------------------------------------------------------------


def judged(setting: Setting, rices: tuple[int, ...], string: int, n: int) -> tuple[int, list[int]]:
    """Ask the oracle: a status, and the symbols."""
    text = text_of(string)
    data = HEAD.tobytes() + universal.to_bytes(text)
    try:
        _, levels = reference.read(setting, data, BEGIN + len(text), n, rices)
    except universal.Truncated:
        return TRUNCATED, []
    except universal.Corrupt:
        return CORRUPT, []
    return OK, [2 * abs(k) + (k < 0) for k in levels]


class Elements(NamedTuple):
    """The first element of each string: of a dense form a word, of a sparse one a unit.

    `status` says whether there is one, `rest` is the string behind it, `nbits` are those of the
    shortest one.
    """

    status: np.ndarray
    gap: np.ndarray
    symbol: np.ndarray
    rest: np.ndarray
    nbits: int


def elements_of(setting: Setting, rices: tuple[int, ...]) -> Elements:
    """Ask the oracle about strings, and about longer ones while they may become an element."""
    sizes = (1,) if setting.form == "dense" else (max(N), FARTHEST)
    status = np.full(SIZE, TRUNCATED, np.int8)
    gap, symbol, rest = np.zeros(SIZE, np.int64), np.zeros(SIZE, np.uint32), np.zeros_like(ALL)
    lengths = []
    open_ = [EMPTY]
    for string in open_:
        for n in sizes:  # of which the last is slow, but no gap passes it
            actual, symbols = judged(setting, rices, string, n)
            if actual != CORRUPT:
                break
        if actual == TRUNCATED or string == EMPTY:
            if 2 * string < SIZE:
                open_ += [2 * string, 2 * string + 1]
            continue
        places = np.flatnonzero(symbols) if setting.form == "sparse" else [0]
        length = len(text_of(string))
        for more in range(MOST - length + 1):  # all that begin so
            part = slice(string << more, (string + 1) << more)
            status[part] = actual
            if actual == OK:
                (place,) = places
                gap[part], symbol[part] = place + 1, symbols[place]
                rest[part] = (1 << more) + np.arange(1 << more)
        if actual == OK:
            lengths.append(length)
    return Elements(status, gap, symbol, rest, min(lengths, default=MOST + 1))


Results = Iterator[tuple[int, np.ndarray, np.ndarray]]  # n, a status and n symbols of each string


def dense_messages(first: Elements) -> Results:
    for n in N:
        status, symbols = np.zeros(SIZE, np.int8), np.zeros((SIZE, n), np.uint32)
        string = ALL
        for i in range(n):
            status = np.where(status == OK, first.status[string], status)
            symbols[:, i] = first.symbol[string]
            string = first.rest[string]
        status[(status == OK) & (string != EMPTY)] = CORRUPT
        status[: 1 << min(n * first.nbits, MOST + 1)] = TRUNCATED
        yield n, status, symbols


def sparse_messages(first: Elements) -> Results:
    status, symbols = np.zeros(SIZE, np.int8), np.zeros((SIZE, max(N)), np.uint32)
    string, place = ALL, np.zeros(SIZE, np.int64)
    for _ in range(MOST // first.nbits + 1):
        status = np.where((status == OK) & (string != EMPTY), first.status[string], status)
        more = (status == OK) & (string != EMPTY)
        place += np.where(more, first.gap[string], 0)
        here = np.flatnonzero(more & (place <= max(N)))
        symbols[here, place[here] - 1] = first.symbol[string[here]]
        string = np.where(more, first.rest[string], string)
    assert (string[status == OK] == EMPTY).all()
    for n in N:  # the oracle reads all words before it looks at places
        yield n, np.where((status == OK) & (place > n), CORRUPT, status), symbols[:, :n]


# --- what gcodec reads --------------------------------------------------------------------------


@numba.njit(cache=False)
def fill(data, nbits, value):
    """Write a string behind the norm; return all bytes of the payload, ones behind them."""
    data[:4] = HEAD
    data[4:] = 255
    nbytes = (nbits + 7) >> 3
    for i in range(nbytes):
        data[4 + i] = (value << (MOST - nbits)) >> (8 - 8 * i) & 255
    return data[: 4 + nbytes]


@functools.cache
def dense_loop(kind: Any, look: Any) -> Any:
    read = prefix_read._reader(kind, look).built

    @numba.njit(cache=False)
    def loop(n, runs, singles, parameter, top, state, out, wide, statuses, ends, symbols):
        data, status = np.empty(16, np.uint8), np.empty(2, np.int64)
        starts, bounds = np.empty(2, np.int64), np.empty(1, np.int64)
        for nbits in range(MOST + 1):
            for value in range(1 << nbits):
                payload = fill(data, nbits, value)
                starts[0], starts[1], bounds[0] = BEGIN, -1, n
                status[:] = 0
                out[:] = 77
                wide[:] = 77777
                read(
                    payload,
                    starts,
                    bounds,
                    False,
                    BEGIN + nbits,
                    runs,
                    singles,
                    parameter,
                    top,
                    state,
                    out,
                    wide,
                    status,
                )
                string = (1 << nbits) + value
                statuses[string], ends[string] = status[0], starts[1] - BEGIN
                for i in range(n):
                    symbols[string, i] = wide[i] if out[i] == WIDE and wide.size else out[i]

    return loop


@functools.cache
def sparse_loop(kind: Any, dtype: np.dtype[Any]) -> Any:
    read, place = run_level_read._reader(kind).built, run_level_place._placer(dtype).built

    @numba.njit(cache=False)
    def loop(
        runs,
        gap_singles,
        singles,
        gap_parameter,
        parameter,
        top,
        state,
        gaps,
        codes,
        far,
        wide,
        out,
        statuses,
        symbols,
    ):
        data, status = np.empty(16, np.uint8), np.empty(3, np.int64)
        starts, bounds = np.empty(1, np.int64), np.empty(1, np.int64)
        nowhere = np.empty(0, np.int64)
        for nbits in range(MOST + 1):
            for value in range(1 << nbits):
                string = (1 << nbits) + value
                starts[0], bounds[0] = BEGIN, gaps.size
                status[:] = 0
                if nbits:  # else the codec reads nothing
                    payload = fill(data, nbits, value)
                    gaps[:8] = 77
                    codes[:8] = 77
                    read(
                        payload,
                        starts,
                        bounds,
                        False,
                        BEGIN + nbits,
                        runs,
                        gap_singles,
                        singles,
                        gap_parameter,
                        parameter,
                        top,
                        state,
                        gaps,
                        codes,
                        far,
                        wide,
                        status,
                    )
                    if status[0] == OK and status[1] != BEGIN + nbits:
                        status[0] = BROKEN
                statuses[string] = status[0]
                if status[0] != OK:
                    continue
                bounds[0] = status[2]
                for n in range(1, out.size + 1):
                    status[0] = 0
                    out[:] = 0
                    place(gaps, codes, far, wide, bounds, nowhere, 0, out[:n], status)
                    statuses[string, n - 1] = status[0]
                    for i in range(n):
                        symbols[string, n - 1, i] = out[i]

    return loop


def read_dense(setting: Setting, rices: tuple[int, ...]) -> Results:
    code = level_codes.word_code(setting.code, setting.s, {"rice": sum(rices)})
    tables = read_runs(code), read_singles(code)
    numbers = np.uint64(code.parameter), np.uint64(code.top)
    for n in N:
        status, end = np.empty(SIZE, np.int64), np.empty(SIZE, np.int64)
        symbols = np.empty((SIZE, n), np.uint32)
        state = look_ahead.state()
        room = np.empty(n, np.uint8), np.empty(n if code.top >= WIDE else 0, np.uint64)
        dense_loop(code.kind, code.look)(n, *tables, *numbers, state, *room, status, end, symbols)
        # As the codec does around the reader.
        status[(status == OK) & (end != NBITS)] = CORRUPT
        status[n * least_nbits(code) > NBITS] = TRUNCATED
        yield n, status, symbols


def read_sparse(setting: Setting, rices: tuple[int, ...]) -> Results:
    scalars = dict(zip(("rice", "rice_gap"), rices, strict=False))
    code = level_codes.run_level_code(setting.code, setting.s, scalars)
    tables = (
        read_pair_table(code.gap, code.symbol),
        read_singles(code.gap, run_level_read.GAP_WINDOW, NEAR),
    )
    numbers = map(np.uint64, (code.gap.parameter, code.symbol.parameter, code.symbol.top))
    state = look_ahead.state()
    room = np.empty(UNITS, np.uint8), np.empty(UNITS, np.uint8), np.empty(UNITS, np.uint64)
    wide = np.empty(UNITS if code.symbol.top >= WIDE else 0, np.uint64)
    out = np.empty(max(N), symbol_dtype(setting.s))
    status = np.empty((SIZE, max(N)), np.int64)
    symbols = np.zeros((SIZE, max(N), max(N)), np.uint32)
    sparse_loop(code.kind, out.dtype)(
        *tables,
        read_singles(code.symbol),
        *numbers,
        state,
        *room,
        wide,
        out,
        status,
        symbols,
    )
    for n in N:
        yield n, status[:, n - 1], symbols[:, n - 1, :n]


# --- tests --------------------------------------------------------------------------------------


def first_difference(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> Any:
    """Return the shortest string of which status or symbols differ, and these; or None."""
    differs = (a[0] != b[0]) | ((a[0] == OK) & (a[1] != b[1]).any(axis=1))
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
    decoded = (read_dense if dense else read_sparse)(setting, rices)
    for (n, *expected), (_, *got) in zip(messages, decoded, strict=True):
        assert first_difference(tuple(got), tuple(expected)) is None, n
        # The message that was put together is the one that the oracle reads.
        status, symbols = expected
        sample = [*range(EMPTY, 1 << 7), *range(1 << 7, SIZE, 190 + n)]
        for string in thinned(sample, 5):
            kind, values = judged(setting, rices, string, n)
            assert status[string] == kind, (n, text_of(string))
            assert kind != OK or symbols[string].tolist() == values, (n, text_of(string))


# --- the rule of the specification --------------------------------------------------------------


def omega_heads() -> set[str]:
    """How words of numbers below 2**64 begin: 17 bits at most, of which 11 are of the number."""
    words = {"0"}
    for nbits in range(2, 65):
        shown = min(nbits, 11)
        for first in range(1 << (shown - 1), 1 << shown):
            words.add(universal.omega(first << (nbits - shown)))
    return {word[: MOST + 1] for word in words}


def rice_heads(k: int) -> set[str]:
    """The same of Rice words, with no more zeros than a string has bits."""
    words = set()
    for zeros in range(MOST + 1):
        shown = min(k, MOST - zeros)
        for first in range(1 << shown):
            words.add(universal.rice(zeros << k | first << (k - shown), k))
    return {word[: MOST + 1] for word in words}


def by_the_rule(heads: set[str]) -> np.ndarray:
    """Whether each string has a word, begins one, or neither."""
    begun, whole = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    for head in heads:
        string = int("1" + head, 2)
        if len(head) > MOST:
            begun[string >> 1] = True
            continue
        begun[string] = True
        for more in range(MOST - len(head) + 1):
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
    """Bits that end in the first word are truncated, if one below 2**64 begins so."""
    rule = by_the_rule(rice_heads(rices[-1]) if rices else omega_heads())
    if not rices:  # a sign comes first
        one = 1 << np.maximum(NBITS - 1, 0)
        rule = np.where(ALL > EMPTY, rule[ALL & (one - 1) | one], TRUNCATED)
    status = elements_of(setting, rices).status[EMPTY:]
    rule = rule[EMPTY:]
    assert np.array_equal(status[rule != OK], rule[rule != OK])
    if setting.form == "dense":
        assert not (status[rule == OK] == TRUNCATED).any()
    assert not rices or not (rule == CORRUPT).any()
    assert rices or (rule == CORRUPT).any()  # groups of more than 64 bits
