"""One message: its published bytes, and what belongs to them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.device import host
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
