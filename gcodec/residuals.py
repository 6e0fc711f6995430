"""Residuals by name: a step reads one array and writes another, and then they change places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gcodec.kernels.device import Device, device_of
from gcodec.kernels.memory import clear, empty_beside


class Residuals(Mapping[str, np.ndarray]):
    """Float32 arrays by name, and room for those that come next.

    The array that a step has read is room for the next tensor of as many elements. So there is one
    more than there are tensors of a size, and after the first steps no memory is fresh. What is
    lent to someone is no room until it is given back.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self._arrays: dict[str, np.ndarray] = dict(arrays or {})
        self._lent: set[str] = set()
        self._rooms: dict[tuple[Device | None, int], list[np.ndarray]] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def room(self, size: int, beside: Any = None) -> np.ndarray:
        """Return a (size,) array of any content, where another lies."""
        try:
            return self._rooms[device_of(beside), size].pop()
        except (KeyError, IndexError):
            return empty_beside(size, np.float32, beside)

    def zeros(self, size: int, beside: Any = None) -> np.ndarray:
        """Return a (size,) array of zeros, where another lies."""
        array = self.room(size, beside)
        clear(array)
        return array

    def replace(self, name: str, read: np.ndarray, written: np.ndarray) -> None:
        """Keep what a step has written; what it has read is room, if it lies there too."""
        is_room = name not in self._lent and device_of(read) is device_of(written)
        self._arrays[name] = written  # first: an interrupt may come at any time
        self._lent.discard(name)
        if is_room:
            self._free(read)

    def lend(self, name: str) -> np.ndarray:
        """Return the array itself, which from now on no step writes to."""
        self._lent.add(name)
        return self._arrays[name]

    def give_back(self, name: str, array: np.ndarray) -> None:
        """Let an array that was lent be written to, once it is not the residual any more."""
        if self._arrays.get(name) is array:
            self._lent.discard(name)
        else:
            self._free(array)

    def restore(self, name: str, array: np.ndarray | None) -> None:
        """Return to an array that was lent, and still is; or to none."""
        known, was_lent = self._arrays.get(name), name in self._lent
        if array is None:
            self._arrays.pop(name, None)
            self._lent.discard(name)
        else:
            self._lent.add(name)
            self._arrays[name] = array
        if known is not None and known is not array and not was_lent:
            self._free(known)

    def _free(self, array: np.ndarray) -> None:
        self._rooms.setdefault((device_of(array), array.size), []).append(array.reshape(-1))
