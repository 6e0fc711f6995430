"""One message: its published bytes, and what belongs to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.device import device_of, host
from gcodec.scalars import Later, fetch
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
        later = {key: n for key, n in self.scalars.items() if type(n) is Later}
        data_too = data_too and device_of(self.data) is not None
        arrays = [number.words for number in later.values()] + [self.data] * data_too
        if not arrays:
            return self
        found = fetch(device_of(self.data, *later.values()), *arrays)
        told = {key: n.tell(words) for (key, n), words in zip(later.items(), found, strict=False)}
        scalars = {**self.scalars, **told}
        codec = self.codec.of_message(scalars) if told else self.codec
        return self._replace(
            codec=codec, scalars=scalars, data=found[-1] if data_too else self.data
        )
