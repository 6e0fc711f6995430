"""Deferred numbers: numbers of a message that still lie on a device.

Kernels leave a number, or the result of a check, in a word on the device, where later kernels read
it. The host holds such a number as a `Deferred`. What the host needs in the end is noted, and all
that a call noted is fetched together with what the call returns. So each call waits for the device
once, unless the host needs a number before it can go on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gcodec.errors import GcodecError
from gcodec.runtime import Array

if TYPE_CHECKING:
    from gcodec.runtime.device import Device

_SMALLEST, _LARGEST = 2.0**-126, 2.0**127  # magnitudes between these are normal as float32
_T = TypeVar("_T", bound=tuple[Any, ...])


class _PendingFetch(NamedTuple):
    """An array to be fetched, and the function that is called with it on the host."""

    device: Device
    array: Array | LeadingBytes
    use: Callable[[np.ndarray], object]


class _Copy(NamedTuple):
    """An array on a device, and the bytes on the host of which it is a copy."""

    device: Device
    array: Array
    known: np.ndarray


class _Call(threading.local):
    """The state of the outermost call of a thread."""

    depth = 0

    def __init__(self) -> None:
        self.pending: list[_PendingFetch] = []
        self.copies: list[_Copy] = []


_call = _Call()


class one_wait:
    """Context manager of a call that waits for a device once: notes are kept until its end.

    Contexts may be nested; the outermost one counts.
    """

    def __enter__(self) -> None:
        _call.depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _call.depth -= 1
        if _call.depth or not (_call.pending or _call.copies):
            return
        _call.copies.clear()
        if kind is None or issubclass(kind, GcodecError):  # an earlier error is raised first
            fetch_pending()
        _call.pending.clear()


def fetch(device: Device | None, *arrays: Array | LeadingBytes) -> list[np.ndarray]:
    """Copy arrays of a device, and all noted ones, to the host. Only this function waits."""
    assert device is not None
    notes, _call.pending = _call.pending, []
    fetched = device.fetch([*(note.array for note in notes), *arrays])
    for array, note in zip(fetched, notes, strict=False):
        note.use(array)
    return fetched[len(notes) :]


def fetch_pending() -> None:
    """Fetch all noted arrays, if there are any."""
    if _call.pending:
        fetch(_call.pending[0].device)


def copy_to_device(device: Device, known: np.ndarray) -> Array:
    """Copy (n,) bytes to a device; until the call ends, the host need not fetch parts of them."""
    array = device.to_device(known)
    if _call.depth:
        _call.copies.append(_Copy(device, array, known))
    return array


def host_copy_of(device: Device, array: Array) -> np.ndarray | None:
    """Return an array of a device from the bytes that `copy_to_device` copied there, or None."""
    if not array.size:
        return np.empty(array.shape, array.dtype)
    for copy in _call.copies:
        if copy.device is not device:
            continue
        start = device.address(array) - device.address(copy.array)
        if 0 <= start <= copy.known.size - array.nbytes:
            part = copy.known[start : start + array.nbytes]
            if array.dtype != np.uint8:
                part = part.copy().view(array.dtype)
            return part.reshape(array.shape)
    return None


def fetch_later(
    device: Device, array: Array | LeadingBytes, use: Callable[[np.ndarray], object]
) -> None:
    """Call a function with an array once it is on the host: before the call ends, or at once."""
    _call.pending.append(_PendingFetch(device, array, use))
    if not _call.depth:
        fetch(device)


class Deferred:
    """A number on a device. Kernels read its word; the host waits when it uses the number.

    Attributes
    ----------
    device : Device
    words : array on the device
        The words of the number, usually (1,).
    bits : tuple or None
        For the length of a string, the arguments `count`, `unit` and `more` of `LeadingBytes`.
    """

    __slots__ = ("_number", "_value", "bits", "device", "words")

    def __init__(
        self,
        device: Device,
        words: Array | LeadingBytes,
        number: Callable[[np.ndarray], Any] | None = None,
        bits: tuple[Array, int, int] | None = None,
    ) -> None:
        self.device = device
        self.words: Array = words
        self.bits = bits
        self._number = number or _first
        self._value: Any = None

    @property
    def is_known(self) -> bool:
        """Whether the host knows the number."""
        return self._value is not None

    @property
    def value(self) -> Any:
        """The number; fetched if it is not known."""
        if self._value is None:
            self.resolve(*fetch(self.device, self.words))
        return self._value

    def resolve(self, words: np.ndarray) -> Any:
        """Set and return the number, given its words on the host."""
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


def when_known(number: Any, use: Callable[[Any], object]) -> None:
    """Call a function with a number: at once if it is known, else before the call ends."""
    if type(number) is Deferred:
        fetch_later(number.device, number.words, lambda words: use(number.resolve(words)))
    else:
        use(number)


def prefetch(number: Any) -> None:
    """Fetch a deferred number with the next wait of the call, if a call is under way."""
    if type(number) is Deferred and _call.depth:
        _call.pending.append(_PendingFetch(number.device, number.words, number.resolve))


def map_deferred(function: Callable[..., Any], *numbers: Any) -> Any:
    """Apply a function to numbers; the result is a `Deferred` if some of the numbers are.

    All deferred ones among them must have the same words.
    """
    deferred = [number for number in numbers if type(number) is Deferred]
    if not deferred:
        return function(*numbers)

    def value(words: np.ndarray) -> Any:
        return function(*(n.resolve(words) if type(n) is Deferred else n for n in numbers))

    return Deferred(deferred[0].device, deferred[0].words, value)


class LeadingBytes(NamedTuple):
    """The first bytes of an array on a device; a word on the device states how many.

    Attributes
    ----------
    array : (n,) uint8 array on the device
        Whole words of four bytes. The fetched array has n bytes, too; only the leading ones are
        defined.
    count : (1,) int64 array on the device
    unit, more : int
        The bytes hold ``count * unit + more`` bits.
    """

    array: Array
    count: Array
    unit: int
    more: int


def require(condition: Any, error: Callable[[], Exception]) -> None:
    """Raise an error unless a condition is true: at once, or before the call ends."""

    def check(is_true: bool) -> None:
        if not is_true:
            raise error()

    when_known(condition, check)


class Transient:
    """Base of objects on a device that stand for deferred numbers, and are dropped with them."""

    __slots__ = ()


def resolved(values: _T) -> _T:
    """Return a NamedTuple with its deferred numbers on the host; waits at most once."""
    unknown = [value for value in values if type(value) is Deferred and not value.is_known]
    if unknown:
        arrays = fetch(unknown[0].device, *(number.words for number in unknown))
        for number, words in zip(unknown, arrays, strict=True):
            number.resolve(words)
    changed = [isinstance(value, (Deferred, Transient)) for value in values]
    if True not in changed:
        return values
    kept: list[Any] = [None if isinstance(value, Transient) else value for value in values]
    return type(values)(*(value.value if type(value) is Deferred else value for value in kept))


def as_float32(number: Any) -> Any:
    """Round a number to float32; a `Deferred` is returned as it is, since it is float32."""
    return number if type(number) is Deferred else np.float32(number)


def binary32(value: float | np.floating[Any]) -> float:
    """Round to binary32; return the float64 of the shortest decimal that stands for it."""
    if value and not _SMALLEST < abs(float(value)) < _LARGEST:  # the cast to float32 may warn
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.float32(value)
        return math.nan if math.isnan(rounded) else _shortest(rounded)
    return _shortest(np.float32(value))


def _shortest(number: np.float32) -> float:
    # str(number) would have the digits that np.set_printoptions asks for.
    return float(np.format_float_scientific(number))
