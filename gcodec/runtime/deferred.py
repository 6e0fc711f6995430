"""Numbers of a message: those of the host, and those that a device has yet to tell.

Kernels leave a number, or whether all is right, in a word on the device; later kernels read it
there. The host takes such a number as a `Deferred`, and what it wants to know of it in the end as
a note: all notes of a call, and what it returns, are fetched together. So a call waits once for
the device, unless the host has to look at a number before it can go on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gcodec.errors import GcodecError

_TINY, _HUGE = 2.0**-126, 2.0**127  # between which numbers are normal as float32
_T = TypeVar("_T", bound=tuple[Any, ...])


class _Note(NamedTuple):
    device: Any
    array: Any
    use: Callable[[np.ndarray], Any]


class _Copy(NamedTuple):
    device: Any
    array: Any
    known: np.ndarray


class _Call(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.notes: list[_Note] = []
        self.copies: list[_Copy] = []


_call = _Call()


class once:
    """A call that waits for a device once: in it what is noted may wait for the end."""

    def __enter__(self) -> None:
        _call.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _call.depth -= 1
        if _call.depth:
            return
        _call.copies.clear()
        if kind is None or issubclass(kind, GcodecError):  # what was wrong before is said first
            settle()
        _call.notes.clear()


def fetch(device: Any, *arrays: Any) -> list[np.ndarray]:
    """Copy arrays of a device to the host, and all that was noted; the one place that waits."""
    notes, _call.notes = _call.notes, []
    found: list[np.ndarray] = device.fetch([*(note.array for note in notes), *arrays])
    for told, note in zip(found, notes, strict=False):
        note.use(told)
    return found[len(notes) :]


def settle() -> None:
    """Fetch what was noted, if anything was."""
    if _call.notes:
        fetch(_call.notes[0].device)


def copied(device: Any, known: np.ndarray) -> Any:
    """Copy (n,) bytes to a device; in this call the host need not fetch what it knows."""
    array = device.to_device(known)
    if _call.depth:
        _call.copies.append(_Copy(device, array, known))
    return array


def known_of(device: Any, array: Any) -> np.ndarray | None:
    """Return what the host knows of an array already, as it is a part of what it copied there."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    for copy in _call.copies:
        if copy.device is not device:
            continue
        at = device.address(array) - device.address(copy.array)
        if 0 <= at <= copy.known.size - array.nbytes:
            part = copy.known[at : at + array.nbytes]
            if array.dtype != np.uint8:
                part = part.copy().view(array.dtype)
            return part.reshape(array.shape)
    return None


def note(device: Any, array: Any, use: Callable[[np.ndarray], None]) -> None:
    """Have `use` called with an array once it is on the host: before a call ends, or now."""
    _call.notes.append(_Note(device, array, use))
    if not _call.depth:
        fetch(device)


class Deferred:
    """A number that a device has yet to tell: looking at it waits, kernels read its word.

    Attributes
    ----------
    device : Device
        Where it is.
    words : array on the device
        Mostly (1,), of the number.
    bits : tuple or None
        Of how long a string is, see `Leading`: what is counted, in how many bits, and more bits.
    """

    __slots__ = ("_number", "_value", "bits", "device", "words")

    def __init__(
        self,
        device: Any,
        words: Any,
        number: Callable[[np.ndarray], Any] | None = None,
        bits: tuple[Any, int, int] | None = None,
    ) -> None:
        self.device = device
        self.words = words
        self.bits = bits
        self._number = number or _first
        self._value: Any = None

    @property
    def is_known(self) -> bool:
        """Whether the host knows it."""
        return self._value is not None

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
    if type(number) is Deferred:
        note(number.device, number.words, lambda words: use(number.tell(words)))
    else:
        use(number)


def wanted(number: Any) -> None:
    """Have a number fetched with what the call next waits for, if a device has yet to tell it."""
    if type(number) is Deferred and _call.depth:
        _call.notes.append(_Note(number.device, number.words, number.tell))


def mapped(use: Callable[..., Any], *numbers: Any) -> Any:
    """Return what is made of numbers: a `Deferred` where these are, all of the same words."""
    later = [number for number in numbers if type(number) is Deferred]
    if not later:
        return use(*numbers)

    def made(words: np.ndarray) -> Any:
        return use(*(n.tell(words) if type(n) is Deferred else n for n in numbers))

    return Deferred(later[0].device, later[0].words, made)


class Leading(NamedTuple):
    """The first bytes of an array on a device, as many as hold what a word there counts.

    Attributes
    ----------
    array : (n,) uint8 array
        In whole words of four bytes. What is fetched is as long, but what is behind is not told.
    count : (1,) int64 array
    unit, more : int
        Bits of each that is counted, and bits that there are besides.
    """

    array: Any
    count: Any
    unit: int
    more: int


def require(fits: Any, wrong: Callable[[], Exception]) -> None:
    """Raise what is wrong unless something is true: now, or before the call ends."""

    def check(told: bool) -> None:
        if not told:
            raise wrong()

    when_known(fits, check)


class Passing:
    """What stands in for numbers that a device has yet to tell, and is of no use afterwards."""

    __slots__ = ()


def settled(values: _T) -> _T:
    """Return a NamedTuple with the numbers that a device has yet to tell; waits once for all."""
    unknown = [value for value in values if type(value) is Deferred and not value.is_known]
    if unknown:
        found = fetch(unknown[0].device, *(number.words for number in unknown))
        for number, words in zip(unknown, found, strict=True):
            number.tell(words)
    if not any(type(value) is Deferred or isinstance(value, Passing) for value in values):
        return values
    every: list[Any] = [None if isinstance(value, Passing) else value for value in values]
    return type(values)(*(v.value if type(v) is Deferred else v for v in every))


def single(number: Any) -> Any:
    """Round a number to float32; one that only a device knows already is one."""
    return number if type(number) is Deferred else np.float32(number)


def binary32(value: float | np.floating[Any]) -> float:
    """Round to binary32; return the float whose shortest decimal is that of the binary32."""
    if not _TINY < abs(float(value)) < _HUGE:  # which NumPy may warn of
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.float32(value)
        return math.nan if math.isnan(rounded) else float(str(rounded))
    return float(str(np.float32(value)))
