"""Which index code is shortest for the positions of sent elements, and its string as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.tabled import Table
from gcodec.index_strings import CODES, TABLED, alphabet, lasts_of
from gcodec.kernels import bitmap, elias_fano, gap_classes, gap_rice
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.byte_counts import byte_counts
from gcodec.kernels.live import Live
from gcodec.seek import LOG2_BLOCK, SeekTable, first_worthwhile

Front = tuple[np.ndarray, int]  # bytes and bits of what a payload begins with


class Written(NamedTuple):
    """A payload that ends with positions.

    Attributes
    ----------
    code : str
        The index code that was taken.
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the payload is too short for one, or has no blocks.
    """

    code: str
    data: np.ndarray
    nbits: int
    seek: SeekTable | None


class _Plan(NamedTuple):
    """A string that can be written: its bits, of "rans" as estimated, and what writes it."""

    code: str
    nbits: int
    write: Callable[[BitString], tuple[np.ndarray, int, list[SeekTable]]]


def write(positions: np.ndarray, n: int, code: str, front: Front) -> Written:
    """Write positions behind what a payload begins with.

    Parameters
    ----------
    positions : (k,) int64 array
        Rising, from 0 to n − 1.
    n : int
        Elements, up to 2^62.
    code : str
        "auto" for the shortest, the first of equals.
    front : (ceil(nbits / 8),) uint8 array and nbits
    """
    if not positions.size:
        return Written(CODES[0] if code == "auto" else code, *front, None)
    plans = sorted(_plans(positions, n, code), key=lambda plan: plan.nbits)
    first, *others = plans
    written = _written(first, n, front)
    # Only the length of a string of rANS is not known before it is written.
    if first.code == "rans" and others and others[0].nbits < written.nbits - front[1]:
        return _written(others[0], n, front)
    return written


def _written(plan: _Plan, n: int, front: Front) -> Written:
    string = BitString(0, front[0].size)
    string.extend(*front)
    data, nbits, tables = plan.write(string)
    return Written(plan.code, data, nbits, first_worthwhile(n, nbits, *tables))


def _plans(positions: np.ndarray, n: int, code: str) -> list[_Plan]:
    """Return a plan for each code that may be taken."""
    plans = []
    if code in ("rice", "auto"):
        plans.append(_rice(positions))
    if code in ("eliasfano", "auto"):
        plans.append(_elias_fano(positions, n))
    if code in ("bitmap", "auto"):
        plans.append(_bitmap(positions, n))
    if code in (*TABLED, "auto"):
        classes = gap_classes.classes(positions)
        counts = byte_counts(classes)
        kinds: list[Any] = [code] if code != "auto" else list(TABLED)
        plans += [_classes(positions, n, classes, counts, kind) for kind in kinds]
    return plans


def _rice(positions: np.ndarray) -> _Plan:
    parameters, offsets = gap_rice.plan(positions)

    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        string.extend(gap_rice.write(positions, parameters, offsets), int(offsets[-1]))
        lasts = lasts_of(positions, 1 << gap_rice.LOG2_GROUP)
        table = SeekTable.of(gap_rice.LOG2_GROUP, offsets, lasts)
        return string.trimmed(), string.nbits, [table]

    return _Plan("rice", int(offsets[-1]), write)


def _elias_fano(positions: np.ndarray, n: int) -> _Plan:
    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        elias_fano.write(positions, n, string)
        every = 1 << LOG2_BLOCK
        offsets = elias_fano.offsets(positions, n, every)
        table = SeekTable.of(LOG2_BLOCK, offsets, lasts_of(positions, every))
        return string.trimmed(), string.nbits, [table]

    return _Plan("eliasfano", elias_fano.nbits(positions, n), write)


def _bitmap(positions: np.ndarray, n: int) -> _Plan:
    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        string.extend(bitmap.write(positions, n), n)
        return string.trimmed(), string.nbits, []

    return _Plan("bitmap", n, write)


def _classes(
    positions: np.ndarray, n: int, classes: np.ndarray, counts: np.ndarray, kind: tabled.Kind
) -> _Plan:
    table = Table.own(kind, counts, alphabet(n))
    raw = gap_classes.raw_nbits(counts)

    def symbols_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        return classes[start:stop]

    def write(string: BitString) -> tuple[np.ndarray, int, list[SeekTable]]:
        data, nbits, seek = tabled.write(table, symbols_of, Live.all(classes.size), string, n)
        whole = BitString(0, data.size + raw // 8)
        whole.extend(data, nbits)
        gap_classes.write_raw(positions, classes, raw, whole)
        if seek is not None and kind == "huffman":
            lasts = lasts_of(positions, 1 << seek.log2_block)
            seek = SeekTable.of(seek.log2_block, seek.offsets, lasts)
        return whole.trimmed(), whole.nbits, [] if seek is None else [seek]

    return _Plan(kind, table.nbits(counts) + raw, write)
