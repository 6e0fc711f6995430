"""Copies from a CUDA device to the host, through a bounded amount of pinned memory.

A device copies at full speed, and without blocking the host, only to pinned memory. Pinned memory
is scarce, so arrays pass through two buffers of `BUFFER_SIZE` bytes: the device fills one while
the host empties the other. A call allocates the second buffer only when the first is full. Both
come from CuPy's pool of pinned memory, which is safe to use from several threads, returns the same
buffers to later calls, and frees them when the process ends. Each call has buffers of its own, so
threads do not wait for each other.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

BUFFER_SIZE = 2 << 20  # bytes
DIRECT_SIZE = 1 << 20  # bytes that a kernel writes to pinned memory itself, at most
_ALIGNMENT = 16  # bytes


class _Buffer:
    """A pinned buffer, and the arrays to which its parts are copied when they have arrived."""

    def __init__(self, cuda: Any) -> None:
        self.bytes = np.frombuffer(cuda.alloc_pinned_memory(BUFFER_SIZE), np.uint8, BUFFER_SIZE)
        self.event = cuda.Event(disable_timing=True)
        self.used = 0
        self._parts: list[tuple[int, np.ndarray]] = []

    def reserve(self, target: np.ndarray) -> int:
        """Return the address of a part that is later copied to `target`, which must fit."""
        start = self.used
        self._parts.append((start, target))
        self.used = -(-(start + target.size) // _ALIGNMENT) * _ALIGNMENT  # at most BUFFER_SIZE
        return int(self.bytes.ctypes.data) + start

    def empty(self) -> None:
        """Copy all parts to their arrays."""
        for start, target in self._parts:
            target[:] = self.bytes[start : start + target.size]
        self._parts.clear()
        self.used = 0


class Staging:
    """The pinned memory of one call, on one stream.

    Used in a ``with`` statement: when an error ends it, the copies in flight are waited for before
    their buffers go back to the pool.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.
    stream : cupy.cuda.Stream
        All copies are ordered on it.
    """

    def __init__(self, cuda: Any, stream: Any) -> None:
        self._cuda = cuda
        self._stream = stream
        self._filling: _Buffer | None = None
        self._in_flight: _Buffer | None = None  # full, and recorded

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(Exception):  # the first error is the one to report
                self._stream.synchronize()

    def reserve(self, target: np.ndarray) -> int:
        """Return the address of pinned memory for `target`, up to `BUFFER_SIZE` bytes as uint8.

        What the stream writes there is in `target` after `finish`.
        """
        if self._filling is None or target.size > BUFFER_SIZE - self._filling.used:
            self._filling = self._exchanged()
        return self._filling.reserve(target)

    def copy(self, source: Any, target: np.ndarray) -> None:
        """Copy device memory, given as a ``MemoryPointer``, to a (n,) uint8 array."""
        at = 0
        while at < target.size:
            space = BUFFER_SIZE - (0 if self._filling is None else self._filling.used)
            part = target[at : at + (space or BUFFER_SIZE)]
            (source + at).copy_to_host_async(self.reserve(part), part.size, self._stream)
            at += part.size

    def finish(self) -> None:
        """Wait for the stream; all arrays are then on the host."""
        self._stream.synchronize()
        for buffer in (self._in_flight, self._filling):
            if buffer is not None:
                buffer.empty()

    def _exchanged(self) -> _Buffer:
        """Return another buffer to fill: a new one, or the one in flight when it has arrived."""
        arriving, self._in_flight = self._in_flight, self._filling
        if self._in_flight is not None:
            self._in_flight.event.record(self._stream)
        if arriving is None:
            return _Buffer(self._cuda)
        arriving.event.synchronize()
        arriving.empty()
        return arriving
