"""One message: its published bytes, and what belongs to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.device import device_of, host
from gcodec.scalars import Later, Leading, fetch
from gcodec.seek import SeekTable


class Payload(NamedTuple):
    """The published bytes of one message, and what the original keeps outside of them.

    Attributes
    ----------
    codec : Codec
        With every ``auto`` resolved.
    scalars : dict of str to number
        The values that belong to this message alone, such as a resolved threshold.
    data : (ceil(nbits / 8),) uint8 array
        On a device, where the tensor was on one and the codec works there.
    nbits : int
        Bits of the payload, its own norms, tables and padding included.
    seek : SeekTable or None
        Where the blocks of its bit string begin.
    """

    codec: Any
    scalars: dict[str, Any]
    data: np.ndarray
    nbits: int
    seek: SeekTable | None = None

    def tobytes(self) -> bytes:
        """Return the bytes that the paper or system defines."""
        return host(self.data).tobytes()

    def settled(self, *, data_too: bool = False) -> Payload:
        """Return it with the numbers that a device has yet to tell, and on demand with its data.

        All are fetched together, with what was noted of them; see `gcodec.scalars`.
        """
        return Undecided([self], 0).settled(data_too=data_too)

    def _later(self) -> list[Later]:
        return [n for n in (*self.scalars.values(), self.nbits, self.seek) if type(n) is Later]

    def _told(self, known: dict[int, np.ndarray], held: np.ndarray) -> Payload:
        """Return it with its numbers, given their words, and with other data."""

        def number(n: Any) -> Any:
            return n.tell(known[id(n.words)]) if type(n) is Later else n

        scalars = {key: number(n) for key, n in self.scalars.items()}
        of_numbers = any(type(n) is Later for n in self.scalars.values())
        codec = self.codec.of_message(scalars) if of_numbers else self.codec
        nbits = number(self.nbits)
        return Payload(codec, scalars, held[: -(-nbits // 8)], nbits, number(self.seek))

    def _held(self) -> Any:
        """Return what the host fetches of the data."""
        nbits: Any = self.nbits
        if type(nbits) is not Later or nbits.bits is None:
            return self.data
        return Leading(self.data, *nbits.bits)


class Undecided(NamedTuple):
    """Messages of the same data, of which a device has yet to tell which it is.

    Attributes
    ----------
    payloads : list of Payload
    which : Later or int
    """

    payloads: list[Payload]
    which: Any

    def settled(self, *, data_too: bool = False) -> Payload:
        """Return the one that it is; see `Payload.settled`."""
        first, which = self.payloads[0], self.which
        told = [number for payload in self.payloads for number in payload._later()]
        told += [which] if type(which) is Later else []
        data_too = data_too and device_of(first.data) is not None
        if not told and not data_too:
            return first
        words = {id(number.words): number.words for number in told}
        found = fetch(device_of(first.data, *told), *words.values(), *[first._held()] * data_too)
        known = dict(zip(words, found, strict=False))
        if type(which) is Later:
            which = which.tell(known[id(which.words)])
        chosen: Payload = self.payloads[which]
        return chosen._told(known, found[-1] if data_too else first.data)
