"""Shrink a failing input while it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable

from fuzz import guard
from fuzz.targets import run

LARGEST = 4096  # bytes of a corpus file


def minimized(fails: Callable[[bytes], bool], data: bytes) -> bytes:
    """Remove pieces, then clear bytes, while `fails` returns True for the result."""
    size = max(len(data) // 2, 1)
    while size:
        at = 0
        while at < len(data):
            shorter = data[:at] + data[at + size :]
            if fails(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    for at in range(len(data)):
        plainer = data[:at] + b"\0" + data[at + 1 :]
        if data[at] and fails(plainer):
            data = plainer
    return data


def failure_of(target: str, data: bytes) -> str | None:
    """Return how a target fails on an input: type and place of the error, a signal, or None."""
    for at_end in (True, False):
        _, finding = guard.replay(lambda one: run(target, one), [data], at_end)
        if finding:
            lines = finding[0].what.strip().splitlines()
            place = [line.strip() for line in lines if line.strip().startswith("File ")][-1:]
            return " ".join([*place, lines[-1].partition(":")[0]])
    return None


def minimize(target: str, data: bytes) -> tuple[str | None, bytes]:
    """Return how a target fails on an input, and the smallest input with the same failure."""
    way = failure_of(target, data)
    return way, data if way is None else minimized(
        lambda one: failure_of(target, one) == way, data
    )
