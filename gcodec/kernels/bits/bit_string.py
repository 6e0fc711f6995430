"""Bit strings: one that grows at its end, and the concatenation of several.

The first bit of a string is the most significant bit of its first byte.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import Drainable, contents, discard, release

SLACK = 64  # bytes after the end of a string that stores of words may overwrite
SPARE = 1.01  # memory that is reserved for a string, relative to its estimated size
_LEAST_GROWTH = 4096  # bytes
_CHUNK = 1 << 23  # bytes that are copied before their memory is released

SymbolsOf = Callable[[int, int, np.ndarray], np.ndarray]


def parts_of(symbols: SymbolsOf | np.ndarray | Drainable) -> SymbolsOf:
    """Return a callable that returns parts of symbols; a callable is returned unchanged."""
    array = contents(symbols)
    return array if callable(array) else lambda start, stop, _: array[start:stop]


class BitString:
    """A bit string that grows at its end.

    Parameters
    ----------
    lead : int
        Number of bytes preceding the string, which the caller fills when the string is complete.
    nbytes : int
        Expected number of bytes.
    memory : uint8 array, optional
        Memory for lead and string, as long as there is room. Default: an array of its own.

    Attributes
    ----------
    data : uint8 array
        The lead, the string, and room for more.
    state : (4,) uint64 array
        Number of whole bytes; remaining bits, left-aligned; number of the remaining bits; number
        of bytes for which a kernel found no room. Kernels call these `at`, `acc`, `have` and
        `missing`.
    """

    def __init__(self, lead: int = 0, nbytes: int = 0, memory: np.ndarray | None = None) -> None:
        self._lead = lead
        self.data = np.empty(lead + nbytes + SLACK, np.uint8) if memory is None else memory
        self.state = np.zeros(4, np.uint64)
        self.state[0] = lead

    @classmethod
    def of(cls, data: np.ndarray) -> BitString:
        """Return the string that begins with the bytes of an array."""
        string = cls(0, data.size)
        string.extend(data, 8 * data.size)
        return string

    @property
    def nbits(self) -> int:
        """Number of bits, including the lead."""
        return 8 * self.state.item(0) + self.state.item(2)

    def grow(self, nbytes: int = 0) -> None:
        """Make room for `nbytes` more bytes, or for the bytes without room if they are more."""
        used = -(-self.nbits // 8)
        room = max(int(self.state[3]), nbytes, used // 4, _LEAST_GROWTH)
        data = np.empty(used + room + SLACK, np.uint8)
        data[self._lead : used] = self.data[self._lead : used]
        self.data = data

    def reserve(self, nbytes: int) -> None:
        """Ensure that there is room for `nbytes` more bytes."""
        if self.data.size < self.state.item(0) + nbytes + SLACK:
            self.grow(nbytes)

    def skip(self, nbytes: int) -> None:
        """Append bytes to a string of whole bytes; the caller writes them to `data`."""
        self.reserve(nbytes)
        self.state[0] = self.state.item(0) + nbytes

    def put(self, data: bytes) -> None:
        """Append bytes to a string of whole bytes."""
        start = self.state.item(0)
        self.skip(len(data))
        self.data.data[start : start + len(data)] = data

    def extend(self, data: np.ndarray | Drainable, nbits: int) -> None:
        """Append the bits of a (ceil(nbits / 8),) uint8 array whose last byte ends with zeros.

        A `Drainable` is released, unless its bits have to be shifted.
        """
        if nbits == 0:
            return
        array = contents(data)
        self.reserve(array.size + 1)
        whole, pending, used, _ = self.state.tolist()
        if not used and not nbits % 8:
            for start in range(0, array.size, _CHUNK):
                stop = min(start + _CHUNK, array.size)
                self.data[whole + start : whole + stop] = array[start:stop]
                release(data, start, stop)
            self.state[0] = whole + array.size
            return
        at = 8 * whole + used
        first = pending >> 56 | int(array[0]) >> used
        _copy(array, nbits, at, self.data)
        self.data[whole] = first
        whole, used = divmod(at + nbits, 8)
        last = int(self.data[whole]) << 56 if used else 0
        self.state[:3] = whole, last, used

    def replace_end(self, data: np.ndarray, nbits: int) -> None:
        """Replace the bits after the last whole byte by a longer string that begins with them."""
        self.state[1:3] = 0
        self.extend(data, nbits)

    def align(self) -> None:
        """Append zeros up to the end of a byte."""
        whole, pending, used, _ = self.state.tolist()
        if used:
            self.reserve(1)
            self.data[whole] = pending >> 56
            self.state[:3] = whole + 1, 0, 0

    def trimmed(self) -> np.ndarray:
        """Return the bytes, the last completed with zeros; the string cannot grow any more."""
        return _trimmed(self.data, -(-self.nbits // 8))


def _trimmed(data: np.ndarray, nbytes: int) -> np.ndarray:
    """Return the first bytes of an array; if it has memory of its own, free the rest."""
    if not data.flags.owndata:
        return data[:nbytes]
    data.resize(nbytes, refcheck=False)
    return data


def written(
    task: Callable[[int, int], BitString],
    n: int,
    unit: int,
    before_join: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, int, dict[int, int]]:
    """Write parts of a string in tasks on the thread pool, and join the parts.

    The other parts are appended to the first one if its memory has room for them.

    Parameters
    ----------
    task : callable
        Gets a range of elements and returns their string; the first string may have a lead.
    n, unit : int
        See `pool.run`.
    before_join : callable, optional
        Gets `nbits` before memory for the whole string is allocated. Its errors propagate.

    Returns
    -------
    data : (ceil(nbits / 8),) uint8 array
    nbits : int
    starts : dict
        Bit offset of each part, by the part's first element.
    """
    parts = pool.run(lambda start, stop: (start, task(start, stop)), n, unit)
    nbits = sum([string.nbits for _, string in parts])
    if before_join is not None:
        try:
            before_join(nbits)
        except BaseException:
            for _, string in parts:
                discard(string.data)
            raise
    if len(parts) == 1:
        ((start, string),) = parts
        return string.trimmed(), nbits, {start: 0}
    strings, starts, shared, at = {}, {}, [], 0
    for start, string in parts:
        strings[start], starts[start] = string, at
        if at % 8 and string.nbits:  # two parts share a byte
            shared.append((at // 8, string.data[0] >> at % 8))
        at += string.nbits
    nbytes, out = -(-nbits // 8), parts[0][1].data
    if out.size < nbytes:
        out = np.empty(nbytes, np.uint8)
    del parts, string

    def copy(start: int, stop: int) -> None:
        string = strings.pop(start)  # frees its memory after the copy
        if string.data is out:
            return
        _copy(string.data[: -(-string.nbits // 8)], string.nbits, starts[start], out)
        if string.data.flags.owndata:  # the caller may need memory of its own, such as the lead
            discard(string.data)

    pool.run(copy, n, unit)
    for byte, bits in shared:
        out[byte] |= bits
    return _trimmed(out, nbytes), nbits, starts


@kernel("in uint8[], int64, int64, out uint8[]")
def _copy(part, nbits, at, out):
    # Copies nbits > 0 bits to bit `at` and the following ones, except for a shared first byte.
    # part.size == ceil(nbits / 8), and at + nbits <= 8 * out.size.
    shift = at & 7
    target = out[at >> 3 : (at + nbits + 7) >> 3]
    if shift == 0:
        for i in range(target.size):  # target.size == part.size
            target[i] = part[i]
        return
    left, right = np.uint8(8 - shift), np.uint8(shift)
    for i in range(1, min(target.size, part.size)):
        target[i] = np.uint8(part[i - 1] << left) | np.uint8(part[i] >> right)
    if target.size > part.size > 0:  # by one byte, for the last bits of the part
        target[part.size] = np.uint8(part[part.size - 1] << left)
