"""Bit strings that are written: one that grows at its end, and several joined to one.

The first bit of a string is the most significant of its first byte.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import discard

SLACK = 64  # bytes behind a string that words may reach
_LEAST = 4096  # bytes that a string grows by


class BitString:
    """A bit string that grows at its end.

    Parameters
    ----------
    lead : int
        Bytes before the string, which the caller fills when the string is complete.
    nbytes : int
        Bytes that it will probably have.
    """

    def __init__(self, lead: int = 0, nbytes: int = 0) -> None:
        self._lead = lead
        self.data = np.empty(lead + nbytes + SLACK, np.uint8)
        # Whole bytes so far; bits of the byte behind them, highest first; how many these are;
        # bytes that a word needs which found no room.
        self.state = np.array([lead, 0, 0, 0], np.uint64)

    @property
    def nbits(self) -> int:
        """Bits so far, those of the lead too."""
        whole, _, rest, _ = self.state.tolist()
        found: int = 8 * whole + rest
        return found

    def grow(self, nbytes: int = 0) -> None:
        """Make room for what found none, or for so many bytes more."""
        used = -(-self.nbits // 8)
        room = max(int(self.state[3]), nbytes, used // 4, _LEAST)
        data = np.empty(used + room + SLACK, np.uint8)
        data[self._lead : used] = self.data[self._lead : used]
        self.data = data

    def reserve(self, nbytes: int) -> None:
        """Make room for so many bytes more, if there is less."""
        if self.data.size < int(self.state[0]) + nbytes + SLACK:
            self.grow(nbytes)

    def extend(self, data: np.ndarray, nbits: int) -> None:
        """Put bits at the end: those of a (ceil(nbits / 8),) uint8 array, zeros behind them."""
        if nbits == 0:
            return
        self.reserve(data.size + 1)
        place, before, rest, _ = self.state.tolist()
        if rest == nbits % 8 == 0:
            self.data[place : place + data.size] = data
            self.state[0] = place + data.size
            return
        at = 8 * place + rest
        first = before >> 56 | int(data[0]) >> rest
        _copy(data, nbits, at, self.data)
        self.data[place] = first
        whole, rest = divmod(at + nbits, 8)
        last = int(self.data[whole]) << 56 if rest else 0
        self.state[:3] = whole, last, rest

    def trimmed(self) -> np.ndarray:
        """Return the bytes, the last filled up with zeros; the string ends with that."""
        self.data.resize(-(-self.nbits // 8), refcheck=False)
        return self.data


def written(
    task: Callable[[int, int], BitString],
    n: int,
    unit: int,
    before_join: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, int, dict[int, int]]:
    """Let tasks on the pool write parts of a string, and join them.

    Parameters
    ----------
    task : callable
        Gets a range of elements and returns the string of these; the first may have a lead.
    n, unit : int
        As for `pool.run`.
    before_join : callable, optional
        Gets `nbits` before memory for the whole string is taken; what it raises ends the call.

    Returns
    -------
    data : (ceil(nbits / 8),) uint8 array
    nbits : int
    starts : dict
        Of each part, by its first element, the bit where it begins.
    """
    parts = pool.run(lambda start, stop: (start, task(start, stop)), n, unit)
    nbits = sum(string.nbits for _, string in parts)
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
    places, starts, shared, at = {}, {}, [], 0
    for start, string in parts:
        places[start], starts[start] = string, at
        if at % 8 and string.nbits:  # the byte where one part ends and the next begins
            shared.append((at // 8, string.data[0] >> at % 8))
        at += string.nbits
    del parts, string
    out = np.empty(-(-nbits // 8), np.uint8)

    def copy(start: int, stop: int) -> None:
        string = places.pop(start)  # whose memory is free once it is copied
        _copy(string.data[: -(-string.nbits // 8)], string.nbits, starts[start], out)
        discard(string.data)

    pool.run(copy, n, unit)
    for byte, bits in shared:
        out[byte] |= bits
    return out, nbits, starts


@kernel("in uint8[], int64, int64, out uint8[]")
def _copy(part, nbits, at, out):
    # The bytes of a part of nbits > 0 bits from bit `at` on, but for the first if it is shared:
    # part.size == ceil(nbits / 8), and at + nbits <= 8 * out.size.
    shift = at & 7
    here = out[at >> 3 : (at + nbits + 7) >> 3]
    if shift == 0:
        for i in range(here.size):  # here.size == part.size
            here[i] = part[i]
        return
    left, right = np.uint8(8 - shift), np.uint8(shift)
    for i in range(1, min(here.size, part.size)):
        here[i] = np.uint8(part[i - 1] << left) | np.uint8(part[i] >> right)
    if here.size > part.size > 0:  # by one: the last bits of the part
        here[part.size] = np.uint8(part[part.size - 1] << left)
