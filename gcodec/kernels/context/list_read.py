"""The reader of lists of scales that are Rice words or Huffman words; see `list_sizes`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.context.list_sizes import CODE, LENGTH, LONGEST, MOST, RICE, SCALE, SHIFT, TOP
from gcodec.kernels.numeric.words import peek
from gcodec.kernels.prefix.rice_words import read_rice
from gcodec.runtime.jit import kernel, subroutine

_SYMBOLS = 1 << TOP
_WINDOWS = 1 << LONGEST
_HEAD = CODE + SHIFT + SCALE
_FOUND = 5
# What may be wrong.
_ENDS, _CODE, _TABLE, _WORD, _SCALE = range(1, _FOUND + 1)
_ABOVE, _LOW = np.uint16(TOP), np.uint16(_SYMBOLS - 1)


class Read(NamedTuple):
    """What was read.

    Attributes
    ----------
    code : int
        0, 1, or 2 where the scales are still to be read.
    shift, least : int
    after : int
        The next bit.
    scales : (k,) uint8 array
    """

    code: int
    shift: int
    least: int
    after: int
    scales: np.ndarray


def read_list(data: np.ndarray, at: int, end: int, count: int) -> Read:
    """Read a list of so many scales from bit `at` on, of what ends at bit `end`.

    Raises
    ------
    FormatError
    """
    # Each takes a bit, or they are not read here.
    scales, found = np.empty(min(count, max(end - at, 0)), np.uint8), np.empty(_FOUND, np.int64)
    room, windows = np.empty(_SYMBOLS, np.uint8), np.empty(_WINDOWS, np.uint16)
    _read_list(data, at, end, count, room, windows, scales, found)
    wrong, code, shift, least, after = found.tolist()
    if wrong == _ENDS:
        raise Truncated(f"the bits end within a list of scales, at bit {end}")
    if wrong == _CODE:
        raise Corrupt(f"a list of scales of code {code}")
    if wrong == _TABLE:
        raise Corrupt("a list of scales has a table of no code")
    if wrong == _WORD:
        raise Corrupt(f"a list of scales has no valid word at bit {after}")
    if wrong == _SCALE:
        raise Corrupt(f"a scale is not from 0 to {MOST}")
    return Read(code, shift, least, after, scales)


@subroutine(variant="")
def _read_rice(data, at, end, least, shift, out):
    """Read Rice words; return what is wrong, and the bit behind."""
    if end - at < SCALE + RICE:
        return _ENDS, at
    head = np.int64(peek(data, at) >> np.uint64(64 - SCALE - RICE))
    centre, k, most = head >> RICE, head & ((1 << RICE) - 1), (MOST - least >> shift) + 1
    at, wrong = at + SCALE + RICE, 0
    for i in range(out.size):
        number, at = read_rice(data, at, end, k)
        if at < 0:
            return _ENDS, at
        moved = centre + (-1 - (number >> 1) if number & 1 else number >> 1)
        if moved < 0 or moved > most:
            wrong = _SCALE
        out[i] = np.uint8((moved - 1 << shift) + least if moved > 0 else 0)
    return wrong, at


@subroutine(variant="")
def _fill_windows(lengths, windows):
    """Write the symbol, and the bits of its word above it, of all next bits; 0 for no word.

    Tell if it is a code: words fill all windows, or there is one of a bit.
    """
    words, taken, longest = 0, np.int64(0), np.int64(0)
    for symbol in range(lengths.size):
        length = np.int64(lengths[symbol])
        if length > LONGEST:
            return False
        words += length > 0
        longest = max(longest, length)
        taken += np.int64(1) << LONGEST - length if length > 0 else 0
    if taken > _WINDOWS or (taken < _WINDOWS and (words != 1 or longest != 1)):
        return False
    windows[taken:] = 0
    at = 0
    for length in range(1, longest + 1):
        for symbol in range(lengths.size):
            if lengths[symbol] == length:
                behind = at + (1 << LONGEST - length)
                windows[at:behind] = np.uint16(length) << _ABOVE | np.uint16(symbol)
                at = behind
    return True


@subroutine(variant="")
def _read_words(data, at, end, least, shift, lengths, windows, out):
    """Read Huffman words; return what is wrong, and the bit behind."""
    if end - at < TOP:
        return _ENDS, at
    top = np.int64(peek(data, at) >> np.uint64(64 - TOP))
    at += TOP
    if end - at < LENGTH * (top + 1):
        return _ENDS, at
    for symbol in range(top + 1):
        lengths[symbol] = np.uint8(peek(data, at) >> np.uint64(64 - LENGTH))
        at += LENGTH
    if lengths[top] == 0 or not _fill_windows(lengths[: top + 1], windows):
        return _TABLE, at
    most, wrong = (MOST - least >> shift) + 1, 0
    for i in range(out.size):
        entry = windows[np.int64(peek(data, at) >> np.uint64(64 - LONGEST))]
        length = np.int64(entry >> _ABOVE)
        if length == 0:
            return (_WORD if at < end else _ENDS), at
        at += length
        if at > end:
            return _ENDS, at
        moved = np.int64(entry & _LOW)
        if moved > most:
            wrong = _SCALE
        out[i] = np.uint8((moved - 1 << shift) + least if moved > 0 else 0)
    return wrong, at


@kernel("in uint8[], int64, int64, int64, out uint8[], out uint16[], out uint8[], out int64[]")
def _read_list(data, at, end, count, lengths, windows, out, found):
    # 0 <= at; end <= 8 * data.size; lengths.size == _SYMBOLS, windows.size == _WINDOWS,
    # found.size == _FOUND. out.size is count, or all bits where these are fewer.
    found[:] = 0
    if end - at < _HEAD:
        found[0] = _ENDS
        return
    head = np.int64(peek(data, at) >> np.uint64(64 - _HEAD))
    code, shift = head >> SHIFT + SCALE, head >> SCALE & ((1 << SHIFT) - 1)
    least = head & ((1 << SCALE) - 1)
    found[1], found[2], found[3], found[4] = code, shift, least, at + _HEAD
    if code > 2:
        found[0] = _CODE
    elif code < 2 and out.size < count:
        found[0] = _ENDS
    elif code == 0:
        found[0], found[4] = _read_rice(data, at + _HEAD, end, least, shift, out)
    elif code == 1:
        at += _HEAD
        found[0], found[4] = _read_words(data, at, end, least, shift, lengths, windows, out)
