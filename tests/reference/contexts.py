"""Context strings: scales of rows and columns, class tables, outliers, the whole string.

Source: ``docs/wire-format.md``, context strings. The static tables are in the file that it names.
A `String` contains the coded symbols and all choices of an encoder: `write` returns its bits, and
`read` recovers it from them. A *line* contains the frequency of the escape, then those of 2, 4, …
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from . import ans, canonical, leb128, positions
from .universal import Bits, Corrupt, Truncated, fixed, read_rice, rice, to_text, unzigzag, zigzag

FILE = Path(__file__).parents[2] / "gcodec" / "entropy" / "context" / "class_tables.txt"
CLASSES = 64
LARGEST_SCALE = 127
ESCAPE = 254
LARGEST_TABLED = 126  # the largest magnitude of a table
SENT = 255  # the number of a table that is sent
LOG2 = 12
LANES = (2, 8, 32)
ROW_MIDDLE, COLUMN_MIDDLE = 40, 64
RICE, HUFFMAN, RANS = range(3)  # codes of lists
LARGEST_SHIFT = 3
LEAST_WIDTH = COLUMN_ROWS = 8
LARGEST_BITS = 40  # of a number of the outliers

Line = Sequence[int]


class ScaleList(NamedTuple):
    """The setting of a list of scales: its code, and the parameters of that code."""

    code: int
    shift: int
    least: int  # of the scales that are not 0
    center: int = 0
    k: int = 0  # of words
    model: Sequence[int] = ()  # lengths or frequencies


class Table(NamedTuple):
    """A transmitted table: the lines of consecutive classes."""

    first: int
    lines: Sequence[Line]


class String(NamedTuple):
    """A string: its symbols, and all choices of the encoder."""

    symbols: list[int]
    width: int
    group: int  # how many columns share a scale, 0 where they have none
    rows: list[int]
    columns: list[int]
    row_list: ScaleList
    column_list: ScaleList | None
    table: Any = 0  # a number, or a table that is sent: a Table, or two with a trellis
    lanes: int = 32
    gap_k: int = 0
    symbol_k: int = 0


# --- classes and tables -------------------------------------------------------------------------


@functools.cache
def static_tables() -> list[list[Line]]:
    """Return the tables of the file, with 64 lines each."""
    texts = [line for line in FILE.read_text("ascii").splitlines() if not line.startswith("#")]
    lines = [tuple(int(word) for word in text.split()) for text in texts]
    assert len(lines) % CLASSES == 0
    return [list(lines[at : at + CLASSES]) for at in range(0, len(lines), CLASSES)]


def classes_of(
    n: int, width: int, group: int, rows: Sequence[int], columns: Sequence[int]
) -> list[int]:
    """Return the class of each element."""
    results = []
    for at in range(n):
        i, j = divmod(at, width)
        results.append(rows[i] + (columns[j // group] if group else COLUMN_MIDDLE) - COLUMN_MIDDLE)
    return [min(max(c, 0), CLASSES - 1) for c in results]


def model_of(line: Line) -> list[int]:
    """Return the frequencies of the symbols 0, 2, 3, … and of the escape."""
    escape, *each = line
    rest = (1 << LOG2) - escape - 2 * sum(each)
    if min(escape, rest, *each) < 1 or len(each) > LARGEST_TABLED:
        raise Corrupt("frequencies that do not add up")
    return [rest, *(f for f in each for _ in range(2)), escape]


@functools.cache
def static_models(number: int) -> list[list[int]]:
    """Return the model of each class for a table of the file."""
    return [model_of(line) for line in static_tables()[number]]


def models_of(table: int | Table) -> list[list[int]]:
    """Return the model of each class."""
    if isinstance(table, int):
        return static_models(table)
    last = table.first + len(table.lines) - 1
    result = [model_of(line) for line in table.lines]
    return [result[min(max(c, table.first), last) - table.first] for c in range(CLASSES)]


def place(symbol: int, model: Sequence[int]) -> int:
    """Return the index of a symbol in the alphabet of a model, or the index of the escape."""
    assert symbol >= 0 and symbol != 1
    return max(0, min(symbol - 1, len(model) - 1))


def symbol_at(at: int, model: Sequence[int]) -> int:
    """Return the symbol at an index of an alphabet."""
    if at == len(model) - 1:
        return ESCAPE
    return at + 1 if at else 0


def table_text(table: Table) -> str:
    text = fixed(table.first, 6) + fixed(table.first + len(table.lines) - 1, 6)
    for line in table.lines:
        text += fixed(len(line) - 1, 7) + "".join(ans.number(f) for f in line)
    return text


def read_table(bits: Bits) -> Table:
    first, last = bits.number(6), bits.number(6)
    if first > last:
        raise Corrupt(f"classes from {first} to {last}")
    lines = []
    for _ in range(first, last + 1):
        t = bits.number(7)
        if t > LARGEST_TABLED:
            raise Corrupt(f"a largest magnitude of {t}")
        lines.append([ans.read_number(bits) for _ in range(1 + t)])
        model_of(lines[-1])
    return Table(first, lines)


# --- scales -------------------------------------------------------------------------------------


def octaves4(v: Fraction) -> int:
    """Return 4·log2(v) rounded to the nearest integer; no fraction v gives a tie."""
    m = round(4 * (math.log2(v.numerator) - math.log2(v.denominator)))
    while v**8 > Fraction(2) ** (2 * m + 1):
        m += 1
    while v**8 < Fraction(2) ** (2 * m - 1):
        m -= 1
    return m


def _scale(middle: int, v: Fraction, coarse: bool) -> int:
    if not v:
        return 0
    actual = middle + octaves4(v)
    if coarse:
        actual = 2 * ((actual + 1) // 2)
    return min(max(actual, 1), LARGEST_SCALE)


def scales_of(
    magnitudes: Sequence[int], width: int, group: int, coarse: bool = False
) -> tuple[list[int], list[int]]:
    """Return the scales of rows and columns that gcodec selects, or multiples of 2 if `coarse`."""
    cut = [min(m, LARGEST_TABLED + 1) for m in magnitudes]
    n, total = len(cut), sum(cut)
    parts = [cut[at : at + width] for at in range(0, n, width)]
    rows = [_scale(ROW_MIDDLE, Fraction(sum(part), len(part)), coarse) for part in parts]
    columns = []
    for first in range(0, width, group) if group else ():
        sample = [m for part in parts for m in part[first : first + group]]
        share = Fraction(sum(sample) * n, total * len(sample)) if total else Fraction(0)
        columns.append(_scale(COLUMN_MIDDLE, share, coarse))
    return rows, columns


def best_k(values: Sequence[int], most: int) -> int:
    """Return the least parameter that minimizes the length of the words."""
    return min(range(most + 1), key=lambda k: (sum((v >> k) + 1 + k for v in values), k))


def _numbers(scales: Sequence[int], setting: ScaleList) -> list[int]:
    """Return the coded number u of each scale."""
    assert all((scale - setting.least) % 2**setting.shift == 0 for scale in scales if scale)
    return [(scale - setting.least) // 2**setting.shift + 1 if scale else 0 for scale in scales]


def list_of(scales: Sequence[int], code: int, model: Sequence[int] = ()) -> ScaleList:
    """Return a list as gcodec writes it in a code; the writer may choose the frequencies."""
    sample = [scale for scale in scales if scale]
    least = min(sample, default=LARGEST_SCALE)
    shifts = range(LARGEST_SHIFT + 1)
    shift = max(z for z in shifts if all((scale - least) % 2**z == 0 for scale in sample))
    setting = ScaleList(code, shift, least)
    numbers = _numbers(scales, setting)
    if code == RICE:
        ordered = sorted(numbers)
        center = (ordered[(len(scales) - 1) // 2] + ordered[len(scales) // 2]) // 2
        return setting._replace(center=center, k=best_k([zigzag(u - center) for u in numbers], 7))
    counts = [numbers.count(u) for u in range(max(numbers) + 1)]
    result = canonical.lengths_of(counts) if code == HUFFMAN else ans.frequencies_of(counts)
    return setting._replace(model=model or result)


def write_list(scales: Sequence[int], setting: ScaleList) -> str:
    text = fixed(setting.code, 2) + fixed(setting.shift, 2) + fixed(setting.least, 7)
    numbers = _numbers(scales, setting)
    if setting.code == RICE:
        words = [rice(zigzag(u - setting.center), setting.k) for u in numbers]
        return text + fixed(setting.center, 7) + fixed(setting.k, 3) + "".join(words)
    assert len(setting.model) > max(numbers)
    string = fixed(len(setting.model) - 1, 8)
    if setting.code == HUFFMAN:
        words = canonical.words(setting.model)
        return text + string + canonical.table(setting.model) + "".join(words[u] for u in numbers)
    string += ans.table(setting.model)
    string += "0" * (-len(string) % 8)
    return text + string + to_text(ans.encode(numbers, setting.model))


def read_list(bits: Bits, count: int) -> tuple[list[int], ScaleList]:
    setting = ScaleList(bits.number(2), bits.number(2), bits.number(7))
    if setting.code == RICE:
        setting = setting._replace(center=bits.number(7), k=bits.number(3))
        numbers = [setting.center + unzigzag(read_rice(bits, setting.k)) for _ in range(count)]
    else:
        start = bits.at
        size = bits.number(8) + 1
        if setting.code == HUFFMAN:
            model = canonical.read_table(bits, size)
            words = canonical.words(model)
            numbers = [canonical.read_word(bits, words) for _ in range(count)]
        elif setting.code == RANS:
            model = ans.read_table(bits, size)
            if "1" in bits.take((start - bits.at) % 8):
                raise Corrupt("zeros before a string that are not")
            numbers = ans.read(bits, count, model)
        else:
            raise Corrupt("an unknown code of scales")
        if model[-1] == 0:
            raise Corrupt("a largest number that never occurs")
        setting = setting._replace(model=model)
    scales = [setting.least + (u - 1) * 2**setting.shift if u else 0 for u in numbers]
    if min(numbers) < 0 or max(scales) > LARGEST_SCALE:
        raise Corrupt("an invalid scale")
    return scales, setting


# --- outliers ---------------------------------------------------------------------------------


def outliers_of(symbols: Sequence[int], models: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the symbols that their model lacks, by position."""
    return {
        at: symbol
        for at, (symbol, model) in enumerate(zip(symbols, models, strict=True))
        if place(symbol, model) == len(model) - 1
    }


def outlier_ks(actual: dict[int, int]) -> tuple[int, int]:
    """Return the parameters of the words of gaps and of symbols."""
    return best_k(positions.gaps([*actual]), 31), best_k([*actual.values()], 31)


def _write_outliers(actual: dict[int, int], gap_k: int, symbol_k: int) -> str:
    if not actual:
        return ""
    gaps = "".join(rice(gap, gap_k) for gap in positions.gaps([*actual]))
    symbols = "".join(rice(symbol, symbol_k) for symbol in actual.values())
    return fixed(gap_k, 5) + gaps + fixed(symbol_k, 5) + symbols


def _read_number(bits: Bits, k: int) -> int:
    value = read_rice(bits, k)
    if value >> LARGEST_BITS:
        raise Corrupt(f"a number of {value.bit_length()} bits")
    return value


def _read_outliers(bits: Bits, count: int, n: int) -> tuple[dict[int, int], int, int]:
    gap_k, at, places = bits.number(5), -1, []
    for _ in range(count):
        at += 1 + _read_number(bits, gap_k)
        if at >= n:
            raise Corrupt(f"an outlier at {at} of {n}")
        places.append(at)
    symbol_k = bits.number(5)
    symbols = [_read_number(bits, symbol_k) for _ in places]
    if 1 in symbols:
        raise Corrupt("the symbol 1")
    return dict(zip(places, symbols, strict=True)), gap_k, symbol_k


# --- strings ------------------------------------------------------------------------------------


def models_each(string: String) -> list[list[int]]:
    """Return the model of each element; elements of a class share one object."""
    matrix = string.width, string.group, string.rows, string.columns
    each = classes_of(len(string.symbols), *matrix)
    models = models_of(string.table)
    return [models[c] for c in each]


def places_each(string: String) -> list[int]:
    """Return the symbols of the rANS string."""
    return [place(s, model) for s, model in zip(string.symbols, models_each(string), strict=True)]


def write_string(
    symbols: Sequence[int],
    width: int,
    group: int,
    scales: tuple[list[int], list[int]],
    table: int | Table = 0,
    lanes: int = 32,
    lists: tuple[int, int] = (RICE, RICE),
) -> String:
    """Return a string with these parts; the other choices are those of gcodec."""
    rows, columns = scales
    row_list, column_list = list_of(rows, lists[0]), None
    if group:
        column_list = list_of(columns, lists[1])
    matrix = width, group, rows, columns, row_list, column_list
    string = String(list(symbols), *matrix, table, lanes)
    actual = outliers_of(symbols, models_each(string))
    if actual:
        gap_k, symbol_k = outlier_ks(actual)
        string = string._replace(gap_k=gap_k, symbol_k=symbol_k)
    return string


def write(string: String) -> str:
    """Return the bits of a string, a whole number of bytes."""
    models = models_each(string)
    actual = outliers_of(string.symbols, models)
    sent = "" if isinstance(string.table, int) else table_text(string.table)
    return lead(string, sent, actual) + to_text(
        ans.encode_each(places_each(string), models, string.lanes)
    )


def lead(string: String, sent: str, actual: dict[int, int]) -> str:
    """Return the bits before the symbols, with a transmitted table and outliers."""
    number = string.table if isinstance(string.table, int) else SENT
    head = bytes([number, string.lanes])
    for field in (string.width, string.group, len(actual)):
        head += leb128.encode(field)
    text = to_text(head) + write_list(string.rows, string.row_list)
    if string.column_list is not None:
        text += write_list(string.columns, string.column_list)
    text += sent + _write_outliers(actual, string.gap_k, string.symbol_k)
    return text + "0" * (-len(text) % 8)


def read_leb128(bits: Bits) -> int:
    data = b""
    while not data or data[-1] >= 128:
        if len(data) == leb128.MAX_BYTES:
            raise Corrupt("a number of more than ten bytes")
        data += bytes([bits.number(8)])
    try:
        value, _ = leb128.decode(data, 0)
    except ValueError as error:
        raise Corrupt(str(error)) from None
    if value >= 1 << 64:
        raise Corrupt("a number of more than 64 bits")
    return value


def read(bits: Bits, n: int) -> String:
    """Read a string of n > 0 symbols; the caller handles the bits after the string.

    Raises
    ------
    Truncated, Corrupt
        The first error in reading order.
    """
    string, decoded = read_lead(bits, n, len(static_tables()), read_table)
    assert isinstance(string.table, (int, Table))
    matrix = string.width, string.group, string.rows, string.columns
    classed = models_of(string.table)
    models = [classed[c] for c in classes_of(n, *matrix)]
    places = ans.read_each(bits, models, string.lanes)
    symbols = [symbol_at(at, model) for at, model in zip(places, models, strict=True)]
    if [at for at, symbol in enumerate(symbols) if symbol == ESCAPE] != [*decoded]:
        raise Corrupt("escapes that are not the outliers")
    for at, symbol in decoded.items():
        symbols[at] = symbol
    return string._replace(symbols=symbols)


def read_symbols(bits: Bits, n: int, largest: int) -> list[int]:
    """Return the symbols, for codecs with other codes too; without symbols there is no string."""
    symbols = read(bits, n).symbols if n else []
    if max(symbols, default=0) > largest:
        raise Corrupt(f"a symbol above {largest}")
    return symbols


def level_of(symbol: int) -> int:
    """Return the level of a symbol: twice its magnitude, and 1 more if it is negative."""
    return -(symbol // 2) if symbol % 2 else symbol // 2


def read_lead(
    bits: Bits, n: int, tables: int, table_of: Callable[[Bits], Any]
) -> tuple[String, dict[int, int]]:
    """Read the bits before the symbols; return the outliers too."""
    assert n > 0 and bits.at % 8 == 0
    number, lanes = bits.number(8), bits.number(8)
    width, group, count = read_leb128(bits), read_leb128(bits), read_leb128(bits)
    if number != SENT and number >= tables:
        raise Corrupt(f"the table {number}")
    if lanes not in LANES:
        raise Corrupt(f"{lanes} lanes")
    if not min(n, LEAST_WIDTH) <= width <= n:
        raise Corrupt(f"rows of {width}")
    if group > width or (group and n < COLUMN_ROWS * width):
        raise Corrupt("groups of columns that are none")
    rows_count, columns_count = -(-n // width), -(-width // group) if group else 0
    if max(rows_count, columns_count, count) > len(bits.text):
        raise Truncated("fewer bits than scales, or than outliers")
    rows, row_list = read_list(bits, rows_count)
    columns, column_list = read_list(bits, columns_count) if group else ([], None)
    table = table_of(bits) if number == SENT else number
    decoded, gap_k, symbol_k = _read_outliers(bits, count, n) if count else ({}, 0, 0)
    bits.fill()
    matrix = width, group, rows, columns, row_list, column_list
    return String([], *matrix, table, lanes, gap_k, symbol_k), decoded
