"""Arrays that residuals are written to: spare ones first, so that no step needs fresh memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.device import Device, device_of
from gcodec.kernels.memory import clear, empty_beside


class SpareArrays:
    """Float32 arrays that nobody reads, by device and number of elements.

    A step reads one array and writes another. The array that it has read then serves the next
    tensor of as many elements, so there is one array more than there are tensors of a size. Any
    number of threads may use one object: an array is handed to one of them alone.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Device | None, int], list[np.ndarray]] = {}

    def take(self, size: int, beside: Any = None) -> np.ndarray:
        """Return a (size,) array of any content, on the device of another array."""
        try:
            # A list hands out each of its items once, to whichever thread asks first.
            return self._arrays[device_of(beside), size].pop()
        except (KeyError, IndexError):
            return empty_beside(size, np.float32, beside)

    def take_zeros(self, size: int, beside: Any = None) -> np.ndarray:
        """Return a (size,) array of zeros, on the device of another array."""
        array = self.take(size, beside)
        clear(array)
        return array

    def give(self, array: np.ndarray) -> None:
        """Let an array be written to; nobody may read it any more."""
        self._arrays.setdefault((device_of(array), array.size), []).append(array.reshape(-1))

    def counts(self) -> list[int]:
        """Return the number of spare arrays of each device and size."""
        return [len(arrays) for arrays in self._arrays.values()]
