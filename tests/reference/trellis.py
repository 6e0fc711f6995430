"""Context strings with a trellis: two alternating quantizers, each with tables of its own.

Source: ``docs/wire-format.md``, context strings, *with a trellis*. The static tables are in the
file that it names. A symbol is twice a level h, plus its sign.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import ans, contexts
from .contexts import CLASSES, Line, String, Table
from .universal import Bits, Corrupt, to_text

FILE = contexts.FILE.with_name("trellis_tables.txt")
RUN = 1 << 16
LARGEST_K = 62
ODD, EVEN = 252, 254  # escapes
NEXT = 32_040
Pair = tuple[Table, Table]


class Model(NamedTuple):
    """The symbols of an alphabet in increasing order, and the frequency of each."""

    symbols: list[int]
    frequencies: list[int]


@functools.cache
def static_tables() -> list[tuple[list[Line], list[Line]]]:
    """Return the tables of the file, with 64 lines for each of the two quantizers."""
    texts = [line for line in FILE.read_text("ascii").splitlines() if not line.startswith("#")]
    lines: list[Line] = [tuple(int(word) for word in text.split()) for text in texts]
    assert len(lines) % (2 * CLASSES) == 0
    halves = [lines[at : at + CLASSES] for at in range(0, len(lines), CLASSES)]
    return list(zip(halves[::2], halves[1::2], strict=True))


def model_of(line: Line, quantizer: int) -> Model:
    """Return the model of a class for the given next quantizer."""
    escape, *each = line
    zero = contexts.model_of(line)[0]
    if len(each) > LARGEST_K or escape < 2:
        raise Corrupt("levels that a trellis does not have")
    symbols, frequencies = [0], [zero]
    for k, f in enumerate(each, 1):
        h = 2 * k - quantizer
        symbols += [2 * h, 2 * h + 1]
        frequencies += [f, f]
    return Model([*symbols, ODD, EVEN], [*frequencies, escape // 2, escape - escape // 2])


def models_of(table: int | Pair) -> list[list[Model]]:
    """Return the models of each quantizer, by class."""
    if isinstance(table, int):
        return _static_models(table)
    results = []
    for quantizer, (first, lines) in enumerate(table):
        result = [model_of(line, quantizer) for line in lines]
        last = len(lines) - 1
        results.append([result[min(max(c - first, 0), last)] for c in range(CLASSES)])
    return results


@functools.cache
def _static_models(number: int) -> list[list[Model]]:
    pair = static_tables()[number]
    return [[model_of(line, quantizer) for line in half] for quantizer, half in enumerate(pair)]


def order(n: int, lanes: int) -> list[int]:
    """Return the element index of each coded symbol."""
    results: list[int] = []
    for start in range(0, n, RUN):
        m = min(RUN, n - start)
        each = m // lanes
        results += [start + lane * each + t for t in range(each) for lane in range(lanes)]
        results += range(start + lanes * each, start + m)
    return results


def level(symbol: int) -> int:
    """Return the level k of a symbol."""
    return -(-(symbol // 2) // 2)


def after(state: int, k: int) -> int:
    """Return the state after a level of a quantizer."""
    return NEXT // 2 ** (4 * state + 2 * (k % 2)) % 4


class Paths:
    """The states of all lanes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.states = [0] * lanes

    def quantizer(self, at: int) -> int:
        """Return the next quantizer for the coded symbol at an index."""
        if at % RUN == 0:
            self.states = [0] * self.lanes
        return self.states[at % RUN % self.lanes] // 2

    def step(self, at: int, symbol: int) -> None:
        """Advance the state after a symbol."""
        lane = at % RUN % self.lanes
        self.states[lane] = after(self.states[lane], level(symbol))


def _classes(string: String, n: int) -> list[int]:
    matrix = string.width, string.group, string.rows, string.columns
    return contexts.classes_of(n, *matrix)


def _coded(string: String) -> Iterator[tuple[int, int, Model]]:
    """Return for each coded symbol its element index, the symbol, and its model."""
    models, classes = models_of(string.table), _classes(string, len(string.symbols))
    paths = Paths(string.lanes)
    for at, element in enumerate(order(len(classes), string.lanes)):
        symbol = string.symbols[element]
        yield element, symbol, models[paths.quantizer(at)][classes[element]]
        paths.step(at, symbol)


def write(string: String) -> str:
    """Return the bits of a string."""
    actual, places, models = {}, [], []
    for element, symbol, model in _coded(string):
        if symbol not in model.symbols[:-2]:
            actual[element] = symbol
            symbol = (EVEN, ODD)[level(symbol) % 2]
        places.append(model.symbols.index(symbol))
        models.append(model.frequencies)
    sent = ""
    if not isinstance(string.table, int):
        sent = "".join(contexts.table_text(table) for table in string.table)
    lead = contexts.lead(string, sent, dict(sorted(actual.items())))
    return lead + to_text(ans.encode_each(places, models, string.lanes))


def read_pair(bits: Bits) -> Pair:
    """Read the two transmitted tables."""
    first, second = contexts.read_table(bits), contexts.read_table(bits)
    models_of((first, second))
    return first, second


def read(bits: Bits, n: int) -> String:
    """Read a string of n > 0 symbols; see `contexts.read`."""
    string, decoded = contexts.read_lead(bits, n, len(static_tables()), read_pair)
    models, classes = models_of(string.table), _classes(string, n)
    elements, paths = order(n, string.lanes), Paths(string.lanes)
    chosen: list[Model] = []

    def model_at(at: int) -> Sequence[int]:
        chosen.append(models[paths.quantizer(at)][classes[elements[at]]])
        return chosen[-1].frequencies

    symbols = [0] * n
    escaped = []
    for at, place in enumerate(ans.read_path(bits, n, model_at, string.lanes)):
        element, symbol = elements[at], chosen[-1].symbols[place]
        if symbol in (ODD, EVEN):
            escaped.append(element)
            if level(decoded.get(element, symbol)) % 2 != (symbol == ODD):
                raise Corrupt("an escape of another parity than its outlier")
        symbols[element] = decoded.get(element, symbol)
        paths.step(at, symbol)
    if sorted(escaped) != [*decoded]:
        raise Corrupt("escapes that are not the outliers")
    return string._replace(symbols=symbols)
