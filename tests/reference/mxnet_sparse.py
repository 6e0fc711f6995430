"""The sparse form of mxnet-2bit (``docs/wire-format.md``): signs, then Rice-coded gaps.

A sent element is a pair (index, whether it is negative); lists of them are in order.
"""

from __future__ import annotations

import itertools

Sent = list[tuple[int, bool]]

LARGEST_RICE = 47


def gaps(sent: Sent) -> list[int]:
    """Return how many elements before each one, back to the one before it, are not sent."""
    places = [-1, *(place for place, _ in sent)]
    return [after - before - 1 for before, after in itertools.pairwise(places)]


def length(sent: Sent, rice: int) -> int:
    """Return the bits of the payload with this Rice parameter."""
    return sum(2 + (gap >> rice) + rice for gap in gaps(sent))


def best_rice(sent: Sent) -> int:
    """Return the least parameter that makes the payload shortest; 0 where nothing is sent."""
    return min(range(LARGEST_RICE + 1), key=lambda rice: (length(sent, rice), rice))


def write(sent: Sent, rice: int) -> str:
    """Return the payload as a string of 0 and 1."""
    bits = "".join("1" if negative else "0" for _, negative in sent)
    for gap in gaps(sent):
        low = format(gap & (1 << rice) - 1, f"0{rice}b") if rice else ""
        bits += "0" * (gap >> rice) + "1" + low
    return bits


def read(bits: str, count: int, rice: int, n: int) -> Sent | None:
    """Return what was sent, or None where a reader must refuse."""
    if count > n or len(bits) < count:
        return None
    sent: Sent = []
    at, place = count, -1
    for k in range(count):
        one = bits.find("1", at)
        if one < 0 or one + 1 + rice > len(bits):
            return None
        low = bits[one + 1 : one + 1 + rice]
        place += 1 + ((one - at) << rice) + (int(low, 2) if low else 0)
        at = one + 1 + rice
        if place >= n:
            return None
        sent.append((place, bits[k] == "1"))
    return sent if at == len(bits) and rice == best_rice(sent) else None
