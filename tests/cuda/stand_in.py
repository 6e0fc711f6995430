"""The part of CuPy that gcodec uses, on the host shim.

Copies to the host are asynchronous here too: they take place when the host waits for their stream
or for a later event, and until then the host reads a pattern. Their targets must be pinned memory
that is still allocated.
"""

from __future__ import annotations

import ctypes
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import shim
from shim import ShimArray, ShimDevice

PATTERN = 0xEE
_entered = threading.local()  # its `streams` are those that the thread has made the current one


class Pinned(bytearray):
    """Pinned memory, initially filled with a pattern."""


class PinnedPool:
    """A pool that counts pinned memory.

    Attributes
    ----------
    live, peak, requested : int
        Bytes allocated now, their maximum so far, and the sum of all requests.
    """

    def __init__(self) -> None:
        self.live = self.peak = self.requested = 0
        self._lock = threading.RLock()
        self._blocks: dict[int, int] = {}

    def allocate(self, nbytes: int) -> Pinned:
        memory = Pinned(bytes([PATTERN]) * nbytes)
        address = np.frombuffer(memory, np.uint8).ctypes.data if nbytes else 0
        with self._lock:
            self._blocks[address] = nbytes
            self.live += nbytes
            self.requested += nbytes
            self.peak = max(self.peak, self.live)
        weakref.finalize(memory, self._free, address)
        return memory

    def _free(self, address: int) -> None:
        with self._lock:
            self.live -= self._blocks.pop(address)

    def holds(self, address: int, nbytes: int) -> bool:
        with self._lock:
            return any(
                start <= address and address + nbytes <= start + size
                for start, size in self._blocks.items()
            )


class Stream:
    """Queued work of a stream.

    Attributes
    ----------
    overlapped : int
        Number of times that the host waited for an event while later work was queued.
    synchronized : int
        Number of times that the host waited for all work.
    awaited : list of int
        Pointers to the streams whose events this stream waits for.
    """

    def __init__(self, ptr: int = 0) -> None:
        self.ptr = ptr
        self.synchronized = 0
        self.awaited: list[int] = []
        self.queued: list[Callable[[], None]] = []
        self.done = 0  # finished operations of all that were queued
        self.overlapped = 0

    def synchronize(self) -> None:
        self.synchronized += 1
        self.run_until(self.done + len(self.queued))

    def record(self, event: Event) -> Event:
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        assert event.stream is not None, "the event was not recorded"
        self.awaited.append(event.stream.ptr)

    def __enter__(self) -> None:
        _entered.streams = [*getattr(_entered, "streams", ()), self]

    def __exit__(self, *_: Any) -> None:
        _entered.streams.pop()

    def run_until(self, position: int) -> None:
        while self.done < position:
            self.done += 1
            self.queued.pop(0)()

    @staticmethod
    def from_external(stream: Any) -> Any:
        return Stream(stream.__cuda_stream__()[1])


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.stream: Stream | None = None
        self._position = 0

    def record(self, stream: Stream) -> None:
        self.stream, self._position = stream, stream.done + len(stream.queued)

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run_until(self._position)
            self.stream.overlapped += bool(self.stream.queued)


class StandIn(types.ModuleType):
    """Stand-in for the module ``cupy``."""

    def __init__(self, capability: str = "90") -> None:
        super().__init__("cupy")
        self.device = ShimDevice()
        self.compiled: list[tuple[str, tuple[str, ...], str]] = []
        self.pinned = PinnedPool()
        self.local = threading.local()
        self.launching = threading.Lock()  # the shim runs one kernel at a time
        stand_in = self

        class Memory:
            def __init__(self, array: np.ndarray, offset: int = 0) -> None:
                self.array = array
                self.offset = offset
                self.ptr = array.ctypes.data + offset
                self.device_id = 0

            def __add__(self, offset: int) -> Memory:
                return Memory(self.array, self.offset + offset)

            def copy_to_host_async(self, to: int, nbytes: int, stream: Any) -> None:
                assert stream is stand_in.stream
                assert self.offset + nbytes <= self.array.nbytes
                data = self.array.reshape(-1).view(np.uint8)[self.offset : self.offset + nbytes]
                stand_in.write_later(to, data.tobytes())

        class ndarray(ShimArray):
            device = property(lambda array: types.SimpleNamespace(id=0))
            data = property(lambda array: Memory(array.array))

            # CuPy runs these on the current device, whichever the array lies on.

            def __setitem__(self, key: Any, value: Any) -> None:
                assert stand_in.entered, "no device was made the current one"
                super().__setitem__(key, value)

            def copy(self) -> ShimArray:
                assert stand_in.entered, "no device was made the current one"
                return super().copy()

        def own(array: ShimArray) -> ndarray:
            return ndarray(array.memory, array.array)

        class Device:
            compute_capability = capability

            def __init__(self, number: int) -> None:
                self.number = number

            def __enter__(self) -> None:
                stand_in.entered.append(self.number)

            def __exit__(self, *_: Any) -> None:
                stand_in.entered.pop()

        class RawModule:
            def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
                self.source = code.split(".cu\n")[0].rsplit("/", 1)[-1]
                stand_in.compiled.append((code, options, backend))

            def compile(self) -> None:
                stand_in.cuda.nvrtc.getVersion()
                if "broken" in stand_in.__dict__:
                    raise ValueError("error: invalid value for --gpu-architecture")

            def get_function(self, name: str) -> Any:
                source = next(file for file, kernel in shim.kernels() if kernel == name)

                def launch(grid: tuple[int, ...], block: tuple[int], args: Any) -> None:
                    assert stand_in.entered, "no device was made the current one"
                    with stand_in.launching:
                        stand_in.run(source, name, grid, block[0], args)

                return launch

        self.ndarray, self.RawModule = ndarray, RawModule
        self.cuda = types.SimpleNamespace(
            Device=Device,
            Event=Event,
            Stream=Stream,
            get_current_stream=lambda: self.stream,
            alloc_pinned_memory=self.pinned.allocate,
            nvrtc=types.SimpleNamespace(getVersion=lambda: (12, 9)),
        )
        self.empty = lambda n, dtype: own(self.device.empty(n, dtype))
        self.zeros = lambda n, dtype: own(self.device.zeros(n, dtype))
        self.asarray = lambda array: own(self.device.to_device(np.asarray(array)))
        self.from_dlpack = lambda x: self.asarray(np.from_dlpack(x))
        self.asnumpy = lambda array: array.array.copy()

        def contiguous(array: ShimArray) -> ndarray:
            array = own(array if array.flags.c_contiguous else array.copy())
            return own(array.reshape(-1)) if array.ndim == 0 else array  # at least one dimension

        self.ascontiguousarray = contiguous
        self.may_share_memory = self.device.overlap

    @property
    def stream(self) -> Stream:
        """Return the current stream; each thread begins with its own."""
        if entered := getattr(_entered, "streams", None):
            innermost: Stream = entered[-1]
            return innermost
        if not hasattr(self.local, "stream"):
            self.local.stream = Stream()
        actual: Stream = self.local.stream
        return actual

    @property
    def entered(self) -> list[Any]:
        """Return the devices that the thread has made the current one."""
        if not hasattr(self.local, "entered"):
            self.local.entered = []
        actual: list[Any] = self.local.entered
        return actual

    def write_later(self, to: int, data: bytes) -> None:
        """Queue a write to pinned memory, which takes place when the host waits."""

        def write() -> None:
            assert self.pinned.holds(to, len(data)), "a copy to memory that is not pinned"
            ctypes.memmove(to, data, len(data))

        self.stream.queued.append(write)

    def run(
        self, source: str, name: str, grid: tuple[int, ...], block: int, args: tuple[Any, ...]
    ) -> None:
        """Run a kernel, but delay its writes to host addresses until the host waits."""
        if name != "copy_leading":
            self.device.run(source, name, grid, block, *args)
            return
        *inputs, address = args
        assert type(address) is np.uintp
        written = self.device.zeros(int(inputs[1]), np.uint32)
        self.device.run(source, name, grid, block, *inputs, written)
        self.write_later(int(address), written.array.tobytes())
