"""One message: its published bytes, and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.runtime.deferred import Deferred, Leading, fetch
from gcodec.runtime.device import device_of, host
from gcodec.wire.seek import SeekTable


class PrefixedBytes(NamedTuple):
    """Bytes on a device into which the host puts others, when it knows them.

    Attributes
    ----------
    array : (n,) uint8 array
        Without them, and with room behind.
    lead : int
        How many come before them.
    front : callable
        Returns them, as a uint8 array on the host, once all is known.
    nbits : Deferred
        Bits of the array that count.
    """

    array: Any
    lead: int
    front: Callable[[], np.ndarray]
    nbits: Any

    def joined(self, held: Any, nbytes: int) -> Any:
        """Return the first bytes of all, given the array, where that lies."""
        device, front = device_of(held), self.front()
        parts = held[: self.lead], front, held[self.lead : max(nbytes - front.size, self.lead)]
        if device is None:
            found: Any = np.concatenate(parts)[:nbytes]
            return found
        out, at = device.empty(self.lead + front.size + parts[2].size, np.uint8), 0
        for part in (parts[0], device.to_device(front), parts[2]):
            out[at : at + part.size], at = part, at + part.size
        return out[:nbytes]


def array_of(data: Any) -> Any:
    """Return the array of the data of a message, maybe one into which others will be put."""
    return data.array if type(data) is PrefixedBytes else data


class MissedTarget(NamedTuple):
    """A target of the encoder that a tensor cannot meet, and what it takes instead.

    Attributes
    ----------
    parameter : str
        Such as "bits".
    target : float
        What the codec was asked for.
    reached : float
        The nearest to it that the tensor can have; about, for bits.
    """

    parameter: str
    target: float
    reached: float

    def __str__(self) -> str:
        """Return ``parameter=target: the nearest is …``."""
        return f"{self.parameter}={self.target!r}: the nearest is {self.reached:.3g}"


class Payload(NamedTuple):
    """The published bytes of one message, and what the original keeps outside of them.

    Attributes
    ----------
    codec : Codec
        With every ``auto`` resolved.
    scalars : dict of str to number
        The values that belong to this message alone, such as a resolved threshold.
    data : (ceil(nbits / 8),) uint8 array
        On a device, where the tensor was on one and the codec works there. There may be another
        kind of it until all is known, see `PrefixedBytes`.
    nbits : int
        Bits of the payload, its own norms, tables and padding included.
    seek : SeekTable or None
        Where the blocks of its bit string begin.
    missed : MissedTarget or None
        The target that the encoder could not meet. None where it met all, and of a payload that
        was read: bytes do not tell what was asked for.
    """

    codec: Any
    scalars: dict[str, Any]
    data: np.ndarray
    nbits: int
    seek: SeekTable | None = None
    missed: MissedTarget | None = None

    def tobytes(self) -> bytes:
        """Return the bytes that the paper or system defines."""
        return host(self.data).tobytes()

    def settled(self, *, data_too: bool = False) -> Payload:
        """Return it with the numbers that a device has yet to tell, and on demand with its data.

        All are fetched together, with what was noted of them; see `gcodec.runtime.deferred`.
        """
        return Undecided([self], 0).settled(data_too=data_too)

    def _later(self) -> list[Deferred]:
        return [n for n in (*self.scalars.values(), self.nbits, self.seek) if type(n) is Deferred]

    def _told(self, known: dict[int, np.ndarray], held: np.ndarray) -> Payload:
        """Return it with its numbers, given their words, and with other data."""

        def number(n: Any) -> Any:
            return n.tell(known[id(n.words)]) if type(n) is Deferred else n

        scalars = {key: number(n) for key, n in self.scalars.items()}
        of_numbers = any(type(n) is Deferred for n in self.scalars.values())
        codec = self.codec.of_message(scalars) if of_numbers else self.codec
        nbits = number(self.nbits)
        nbytes = -(-nbits // 8)
        given: Any = self.data
        data = given.joined(held, nbytes) if type(given) is PrefixedBytes else held[:nbytes]
        return Payload(codec, scalars, data, nbits, number(self.seek), self.missed)

    def _held(self) -> Any:
        """Return what the host fetches of the data."""
        nbits: Any = self.nbits
        data: Any = self.data
        if type(data) is PrefixedBytes:
            return Leading(data.array, *data.nbits.bits)
        if type(nbits) is not Deferred or nbits.bits is None:
            return self.data
        return Leading(self.data, *nbits.bits)


class Undecided(NamedTuple):
    """Messages of which a device has yet to tell which it is.

    Attributes
    ----------
    payloads : list of Payload
        Maybe of the same data.
    which : Deferred or int
    otherwise : callable, optional
        Given the one that was chosen, returns the number of another one if that is it, or a
        message on the host, or else None.
    """

    payloads: list[Payload]
    which: Any
    otherwise: Callable[[Payload], Payload | int | None] | None = None

    def settled(self, *, data_too: bool = False) -> Payload:
        """Return the one that it is; see `Payload.settled`."""
        first, which = self.payloads[0], self.which
        told = [number for payload in self.payloads for number in payload._later()]
        told += [which] if type(which) is Deferred else []
        array = array_of(first.data)
        data_too = data_too and device_of(array) is not None
        if not told and not data_too:
            return first
        words = {id(number.words): number.words for number in told}
        held = {id(p.data): p._held() for p in self.payloads} if data_too else {}
        found = fetch(device_of(array, *told), *words.values(), *held.values())
        known = dict(zip(words, found, strict=False))
        data = dict(zip(held, found[len(words) :], strict=True))
        if type(which) is Deferred:
            which = which.tell(known[id(which.words)])

        def made(number: int) -> Payload:
            chosen = self.payloads[number]
            array = data[id(chosen.data)] if data_too else array_of(chosen.data)
            return chosen._told(known, array)

        chosen = made(which)
        other = self.otherwise(chosen) if self.otherwise else None
        if other is None:
            return chosen
        return made(other) if isinstance(other, int) else other


class Candidates(NamedTuple):
    """Strings of which one is taken.

    Attributes
    ----------
    strings : list
    which : Deferred or int
    told : Deferred, optional
        Three numbers, the last two of which are: which it is if the string of "context" turns out
        not to be shorter than it, and its bits.
    before : int
        Bits before each string that are not of it.
    """

    strings: list[Any]
    which: Any = 0
    told: Deferred | None = None
    before: int = 0

    def undecided(self, message: Callable[[Any], Payload]) -> Undecided:
        """Return what is made of it, given what makes a message of a string."""

        def other(chosen: Payload) -> int | None:
            if self.told is None or chosen.codec.code != "context":
                return None
            _, best, least = map(int, self.told.value)
            return best if chosen.nbits >= self.before + least else None

        return Undecided([message(made) for made in self.strings], self.which, other)
