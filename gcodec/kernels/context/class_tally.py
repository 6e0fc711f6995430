"""How often symbols occur in each class: counts in tables that are all zero but for a while."""

from __future__ import annotations

import threading

import numpy as np

from gcodec.kernels.context.class_fill import CLASSES, fill_classes
from gcodec.kernels.numeric.words import load_word
from gcodec.runtime.jit import kernel, subroutine

TILE = 1 << 12  # elements
COUNTS = CLASSES * 256

_APART = COUNTS + 80  # at multiples of a page a processor takes one table for another
_TABLES = 4
_ALPHABET, _PART = 256, 32
_FIRST, _SECOND, _THIRD = (np.uint64(k * _APART) for k in range(1, _TABLES))
_LOW, _SIXTEEN, _ABOVE = np.uint64(0xFFFF), np.uint64(16), np.uint16(8)

_kept = threading.local()


def spare_tables() -> np.ndarray:
    """Return the tables of this thread for `tally`; kernels leave them zero."""
    if not hasattr(_kept, "spare"):
        _kept.spare = np.zeros(_TABLES * _APART, np.int32)
    found: np.ndarray = _kept.spare
    return found


def reach(counts: np.ndarray) -> np.ndarray:
    """Return one more than the largest magnitude of each model that occurs; 0 where none does.

    Parameters
    ----------
    counts : (k, 256) int64 array
        Of symbols.

    Returns
    -------
    (k,) uint8 array
    """
    found = np.empty(len(counts), np.uint8)
    _find_reach(counts.reshape(-1), found)
    return found


@subroutine(variant="")
def tally(symbols, rows, columns, width, start, step, room, joined, spare):
    """Count symbols of classes; return the least and the largest class, and the largest symbol.

    room.size == joined.size == TILE; spare has tables of zeros, whose sums will be the counts, see
    `taken`. Symbols are fewer than 2^31.
    """
    low, high, top = np.uint8(CLASSES - 1), np.uint8(0), np.uint8(0)
    for first in range(0, symbols.size, TILE):
        if (start + first) // TILE % step:
            continue
        part = symbols[first : first + TILE]
        classes, both = room[: part.size], joined[: part.size]
        fill_classes(rows, columns, width, start + first, classes)
        for i in range(part.size):
            low, high = min(low, classes[i]), max(high, classes[i])
            top = max(top, part[i])
        for i in range(part.size):
            both[i] = np.uint16(classes[i]) << _ABOVE | np.uint16(part[i])
        # Several tables, as a count that has just been raised is not ready to be raised again.
        whole = part.size - part.size % 4
        for i in range(0, whole, 4):
            word = load_word(both, i)
            spare[word & _LOW] += 1
            word >>= _SIXTEEN
            spare[_FIRST + (word & _LOW)] += 1
            word >>= _SIXTEEN
            spare[_SECOND + (word & _LOW)] += 1
            spare[_THIRD + (word >> _SIXTEEN)] += 1
        for i in range(whole, part.size):
            spare[np.uint64(both[i])] += 1
    return np.int64(low), np.int64(high), np.int64(top)


@subroutine(variant="")
def taken(spare, model, top, counts):
    """Set counts, of more than `top`, of the symbols up to that of a class; clear the tables'.

    Return the largest that occurs, or -2.
    """
    start, out = model * _ALPHABET, counts[: top + 1]
    one, two = spare[start : start + top + 1], spare[_APART + start : _APART + start + top + 1]
    three = spare[2 * _APART + start : 2 * _APART + start + top + 1]
    four = spare[3 * _APART + start : 3 * _APART + start + top + 1]
    last = np.int32(-2)
    for k in range(out.size):
        out[k] = np.int32(np.int32(one[k] + two[k]) + np.int32(three[k] + four[k]))
        one[k] = two[k] = three[k] = four[k] = 0
        last = max(last, np.int32(k) if out[k] > 0 else np.int32(-2))
    return np.int64(last)


@kernel("in int64[], out uint8[]")
def _find_reach(counts, found):
    # counts.size == _ALPHABET * found.size.
    for model in range(found.size):
        here, top = counts[model * _ALPHABET : (model + 1) * _ALPHABET], 0
        for first in range(0, _ALPHABET, _PART):
            part, some = here[first : first + _PART], np.int64(0)
            for k in range(part.size):
                some |= part[k]
            for k in range(part.size if some else 0):
                top = first + k + 2 if part[k] else top
        found[model] = np.uint8(top >> 1)
