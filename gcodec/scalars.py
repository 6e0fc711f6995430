"""Numbers of a message: those of the host, and those that a device has yet to tell.

Kernels leave a number, or whether all is right, in a word on the device; later kernels read it
there. The host takes such a number as a `Later`, and what it wants to know of it in the end as a
note: all notes of a call, and what it returns, are fetched together. So a call waits once for the
device, unless the host has to look at a number before it can go on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gcodec.errors import GcodecError

_T = TypeVar("_T", bound=tuple[Any, ...])


class _Note(NamedTuple):
    device: Any
    array: Any
    use: Callable[[np.ndarray], None]


class _Call(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.notes: list[_Note] = []


_call = _Call()


class once:
    """A call that waits for a device once: in it what is noted may wait for the end."""

    def __enter__(self) -> None:
        _call.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _call.depth -= 1
        if _call.depth or not _call.notes:
            return
        if kind is None or issubclass(kind, GcodecError):  # what was wrong before is said first
            fetch(_call.notes[0].device)
        else:
            _call.notes.clear()


def fetch(device: Any, *arrays: Any) -> list[np.ndarray]:
    """Copy arrays of a device to the host, and all that was noted; the one place that waits."""
    notes, _call.notes = _call.notes, []
    found: list[np.ndarray] = device.fetch([*(note.array for note in notes), *arrays])
    for told, note in zip(found, notes, strict=False):
        note.use(told)
    return found[len(notes) :]


def note(device: Any, array: Any, use: Callable[[np.ndarray], None]) -> None:
    """Have `use` called with an array once it is on the host: before a call ends, or now."""
    _call.notes.append(_Note(device, array, use))
    if not _call.depth:
        fetch(device)


class Later:
    """A number that a device has yet to tell: looking at it waits, kernels read its word.

    Attributes
    ----------
    device : Device
        Where it is.
    words : array on the device
        Mostly (1,), of the number.
    """

    __slots__ = ("_number", "_value", "device", "words")

    def __init__(
        self, device: Any, words: Any, number: Callable[[np.ndarray], Any] | None = None
    ) -> None:
        self.device = device
        self.words = words
        self._number = number or _first
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The number."""
        if self._value is None:
            self.tell(*fetch(self.device, self.words))
        return self._value

    def tell(self, words: np.ndarray) -> Any:
        """Take the number from its words on the host."""
        self._value = self._number(words)
        return self._value

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    __hash__ = None  # type: ignore[assignment]


def _first(words: np.ndarray) -> Any:
    return binary32(words[0]) if words.dtype == np.float32 else words[0].item()


def when_known(number: Any, use: Callable[[Any], None]) -> None:
    """Have a number looked at: now where the host knows it, else before the call ends."""
    if type(number) is Later:
        note(number.device, number.words, lambda words: use(number.tell(words)))
    else:
        use(number)


def settled(values: _T) -> _T:
    """Return a NamedTuple with the numbers that a device has yet to tell; waits once for all."""
    later = [value for value in values if type(value) is Later]
    if not later:
        return values
    told = iter(fetch(later[0].device, *(number.words for number in later)))
    every = (value.tell(next(told)) if type(value) is Later else value for value in values)
    return type(values)(*every)


def single(number: Any) -> Any:
    """Round a number to float32; one that only a device knows already is one."""
    return number if type(number) is Later else np.float32(number)


def binary32(value: float | np.floating[Any]) -> float:
    """Round to binary32; return the float whose shortest decimal is that of the binary32."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.float32(value)
    if math.isnan(rounded):
        return math.nan
    return float(str(rounded))
