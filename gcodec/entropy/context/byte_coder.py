"""The context coder of bytes such as exponents: rANS with a model for each class.

Classes are those of `byte_scales`. Each has a model, whose frequencies add up to 2^12. A string
consists of

    lanes u8 · width LEB128 · group LEB128                                       whole bytes
    scales of rows · scales of columns, unless group is 0 · models · zeros to a byte
    rANS of all symbols

where the models are

    first class in 6 bits · last class in 6 bits
    for each class: least and largest byte, 8 bits each · the frequency of 0, then of each of these
    bytes: its bit length in 4 bits, and its bits but the highest

The least byte is at least 1. If it is 1 and the largest one 0, only 0 has a frequency; or, if that
is 0, the class uses the model of the preceding class. Classes before the first one and after the
last one use the nearest model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.bits import Bits
from gcodec.entropy.coder import BitSpan, RansString, Written, write_classed
from gcodec.entropy.context import byte_scales
from gcodec.entropy.context.byte_scales import (
    Sample,
    layouts_of,
    scales_of_sums,
    scales_of_symbols,
)
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.entropy.context.table_choice import lanes_of
from gcodec.entropy.rans import entropy_nbits
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf
from gcodec.kernels.bits.computed_symbols import Symbols
from gcodec.kernels.bits.sized_integers import LENGTH_NBITS, write_sized
from gcodec.kernels.context import class_map
from gcodec.kernels.context.byte_sums import LineSums
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.rans.rans_table import LEAST_LOG2, read_tables, write_tables
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES
from gcodec.runtime import Array
from gcodec.runtime.memory import empty_beside
from gcodec.wire.primitives import Reader

TOTAL = 1 << LEAST_LOG2
_CLASS, _BYTE = 6, 8  # bits of the fields of the models
_MOST_NBITS = 2 * _CLASS + CLASSES * (2 * _BYTE + 256 * (LENGTH_NBITS + LEAST_LOG2))
_HEAD_NBITS = 48  # approximate bits of the fields before the scales
_LONGEST, _FIXED = 64, 1 << 19  # upper bounds in bits: of a symbol, and of scales and models
_ENTRY_NBITS = 10  # approximate bits of a frequency


class Plan(NamedTuple):
    """Scales and models of a string, and its estimated size.

    Attributes
    ----------
    scales : Scales
    models : (64, 256) int64 array
        Frequencies by class and byte.
    used : (64,) bool array
        Classes that the string states models of.
    nbits : int
        Estimated bits of the string.
    """

    scales: Scales
    models: np.ndarray
    used: np.ndarray
    nbits: int


def longest_nbits(n: int) -> int:
    """Return an upper bound of the bits of a string of n symbols."""
    return _LONGEST * n + _FIXED if n else 0


def plan(symbols: Symbols, shape: tuple[int, ...], sample: Sample) -> Plan:
    """Plan the string of (n,) bytes of a tensor, n > 0."""
    n = symbols.size
    best: tuple[float, RowLayout] | None = None
    layouts = list(layouts_of(shape, sample.symbols.size))

    def consider(layout: RowLayout, sums: LineSums) -> None:
        nonlocal best
        scales = scales_of_sums(layout, sums.rows, sums.columns, sample.unit)
        (counts,) = class_map.class_counts(sample.symbols, [scales.arrays], 1)
        entries = int(np.count_nonzero(counts))
        nbits = sample.times * entropy_nbits(counts) + sample.lists_nbits(*scales.lists_nbits())
        nbits += _ENTRY_NBITS * entries
        if best is None or nbits < best[0]:
            best = nbits, layout

    for layout in layouts:
        consider(layout, sample.sums(layout))
    assert best is not None
    selected = best[1]
    if selected.width < n:
        sums = sample.sums(selected)
        for quantum in (2, 4):
            consider(selected._replace(quantum=quantum), sums)
    scales = scales_of_symbols(symbols, best[1], sample.unit)
    (counts,) = class_map.class_counts(symbols, [scales.arrays], 1)
    models, used = models_of(counts), counts.any(axis=1)
    nbits = _HEAD_NBITS + scales.nbits() + sent_nbits(models, used)
    nbits += _string_nbits(counts, models)
    return Plan(scales, models, used, nbits + 16 * lanes_of(nbits))


def models_of(counts: np.ndarray) -> np.ndarray:
    """Return frequencies for (64, 256) counts, not all 0; unused classes copy others."""
    numbers = counts.sum(axis=1, keepdims=True)
    scaled = (2 * TOTAL * counts + numbers) // np.maximum(2 * numbers, 1)
    scaled = np.where(counts > 0, np.maximum(scaled, 1), 0)
    used = np.flatnonzero(numbers)
    largest = scaled[used].argmax(axis=1)
    scaled[used, largest] += TOTAL - scaled[used].sum(axis=1)
    for row in used[scaled[used, largest] < 1].tolist():
        scaled[row] = rans.frequencies(counts[row], LEAST_LOG2)
    return scaled[_sources(numbers[:, 0] > 0)]


def _sources(used: np.ndarray) -> np.ndarray:
    """Return the class whose model each class uses: itself, the preceding, or the first one."""
    classes = np.where(used, np.arange(CLASSES), -1)
    sources: np.ndarray = np.maximum.accumulate(classes)
    return np.where(sources < 0, np.argmax(used), sources)


def _string_nbits(counts: np.ndarray, models: np.ndarray) -> int:
    costs = (LEAST_LOG2 << rans.POINT) - rans.log2_table()[models]
    high, low = counts >> 16, counts & 0xFFFF
    return (int((high * costs).sum()) << 16) + int((low * costs).sum()) >> rans.POINT


def sent_nbits(models: np.ndarray, used: np.ndarray) -> int:
    """Return the bits that models take in a string."""
    classes = np.flatnonzero(used)
    rows = models[classes]
    lengths = np.frexp(rows)[1]
    lows, highs = _ranges(rows)
    inside = np.maximum(highs - lows + 1, 0)
    tails = int(np.maximum(lengths - 1, 0).sum())
    span = int(classes[-1] - classes[0]) + 1
    numbers = span + int(inside.sum())
    return 2 * _CLASS + 2 * _BYTE * span + LENGTH_NBITS * numbers + tails


def _ranges(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and largest byte of each model but 0; 1 and 0 if there is none."""
    others = rows[:, 1:] > 0
    any_other = np.logical_or.reduce(others, axis=1)
    lows = np.where(any_other, others.argmax(axis=1) + 1, 1)
    highs = np.where(any_other, 255 - others[:, ::-1].argmax(axis=1), 0)
    return lows, highs


def _put_models(plan: Plan, string: BitString) -> None:
    classes = np.flatnonzero(plan.used)
    first, last = int(classes[0]), int(classes[-1])
    head = Bits.from01(f"{first:0{_CLASS}b}{last:0{_CLASS}b}")
    string.extend(head.data, head.nbits)
    lows, highs = _ranges(plan.models)
    for row in range(first, last + 1):
        low, high, model = 1, 0, np.zeros(1, np.int64)
        if plan.used[row]:
            low, high = int(lows[row]), int(highs[row])
            model = plan.models[row, [0, *range(low, high + 1)]]
        string.extend(np.array([low, high], np.uint8), 2 * _BYTE)
        write_sized(model, string)


def read_models(data: np.ndarray, at: int, end: int) -> tuple[np.ndarray, int]:
    """Read models from bit `at` on; also return the next bit.

    Raises
    ------
    FormatError
    """
    reader = BitReader(data, at, end, _MOST_NBITS, "the models of classes")
    first, last = reader.take(_CLASS), reader.take(_CLASS)
    if last < first:
        raise Corrupt(f"models of the classes {first} to {last}")
    models, used = np.zeros((CLASSES, 256), np.int64), np.zeros(CLASSES, np.bool_)
    for row in range(first, last + 1):
        low, high = reader.take(_BYTE), reader.take(_BYTE)
        if low < 1 or (low > high and (low, high) != (1, 0)):
            raise Corrupt(f"a model of the bytes {low} to {high}")
        model = reader.take_sized(2 + high - low)
        models[row, 0], models[row, low : high + 1] = model[0], model[1:]
        used[row] = (low, high) != (1, 0) or model[0] > 0
        if used[row] and model.sum() != TOTAL:
            raise Corrupt(f"frequencies of a class do not add up to {TOTAL}")
    if not used[first]:
        raise Corrupt("the first class has no model")
    return models[_sources(used)], reader.at


def write(
    plan: Plan,
    symbols: SymbolsOf | np.ndarray,
    n: int,
    front: BitString,
    lead: Callable[[np.ndarray], Array] = lambda head: head,
) -> Written:
    """Write the string of a plan.

    Parameters
    ----------
    plan : Plan
    symbols : callable or array
        Returns the symbols of a range; on a device, all symbols. See `dense_string.write`.
    n : int
        Number of symbols, above 0.
    front : BitString
        Whole bytes that precede the string.
    lead : callable, optional
        Returns the bytes that precede the rANS string, given `front` and the head of the string;
        on a device a `LeadingBytes`.
    """
    scales, lanes = plan.scales, lanes_of(plan.nbits)
    front.put(bytes((lanes,)))
    byte_scales.put(scales, front)
    _put_models(plan, front)
    nothing = np.empty(0, np.int64)

    def joined(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        if callable(symbols):
            part = symbols(start, stop, np.empty(stop - start, np.uint8))
        else:
            part = symbols[start:stop]
        class_map.join_symbols(part, *scales.arrays, start, nothing, room)
        return room

    words: SymbolsOf | np.ndarray = joined
    if not callable(symbols):
        words = joined(0, n, empty_beside(n, np.uint16, symbols))
    tables = write_tables(plan.models, LEAST_LOG2, [scales.possible_classes])
    return write_classed(tables, words, n, lead(front.trimmed()), lanes)


def open(span: BitSpan, n: int) -> RansString:
    """Open the string of n > 0 symbols, which begins with a whole byte.

    Raises
    ------
    FormatError
    """
    data, first, end, _ = span
    lanes = Reader(data[: end // 8].data, first // 8).byte()
    if lanes not in STATES:
        raise Corrupt(f"a string has {lanes} states, not 2, 8 or 32")
    scales, at = byte_scales.read(data, first + 8, end, n)
    models, at = read_models(data, at, end)
    span = span.aligned("models and symbols", at)
    tables = read_tables(models, LEAST_LOG2, [scales.possible_classes])
    string = RansString(span, n, tables, scales.classes, lanes)
    string.refuse_short()
    return string
