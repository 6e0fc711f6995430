"""Run production kernels with their arrays between inaccessible guard pages.

Each array argument of a kernel ends (or starts) directly at a guard page, so an access one byte
out of bounds ends the process with SIGSEGV. Inputs therefore run in forked children; when a child
dies, the parent reports the input that killed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fuzz.calls import redirected
from fuzz.fork import fork
from gcodec.runtime.jit import Kernel, grouped
from gcodec.runtime.lanes import STREAM

_PAGE = mmap.PAGESIZE
_NOBODY = 0  # PROT_NONE
_LINE = 64  # bytes of a cache line; arrays keep their offset in a line for streaming stores


class Region:
    """Memory between two inaccessible pages.

    Parameters
    ----------
    nbytes : int
        Bytes between the pages, a multiple of the page size.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, nbytes + 2 * _PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        address = self._bytes.ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (address, address + _PAGE + nbytes):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _NOBODY):
                raise OSError(ctypes.get_errno(), "mprotect")

    def hold(self, array: np.ndarray, at_end: bool, aligned: bool) -> np.ndarray:
        """Return a copy of a 1-d array that touches the guard page at one end.

        With `aligned`, the copy keeps its offset within a cache line, which may leave a gap before
        the guard page.
        """
        first, last = _PAGE, _PAGE + self.nbytes - array.nbytes
        start = last if at_end else first
        if aligned:
            off = (array.ctypes.data - self._bytes.ctypes.data - start) % _LINE
            start += off - _LINE if at_end and off else off
        held = self._bytes[start : start + array.nbytes].view(array.dtype)
        held[:] = array
        return held


class Guard:
    """Callable that runs kernels with their arrays in guarded regions.

    Parameters
    ----------
    at_end : bool
        Whether arrays end at the following guard page rather than start at the preceding one.
    """

    def __init__(self, at_end: bool) -> None:
        self.calls = 0
        self._at_end = at_end
        self._free: dict[int, list[Region]] = {}

    def __call__(self, kernel: Kernel, args: tuple[Any, ...]) -> Any:
        """Call a kernel."""
        self.calls += 1
        held: dict[tuple[int, int], np.ndarray] = {}
        taken: list[Region] = []
        guarded, back = [], []
        aligned = _streams(kernel, args)
        for value, word in zip(args, kernel.types, strict=True):
            if isinstance(value, np.ndarray) and not _overlaps(value, args):
                place = value.ctypes.data, value.nbytes
                if place not in held or not value.nbytes:
                    region = self._take(value.nbytes)
                    taken.append(region)
                    held[place] = region.hold(value, self._at_end, aligned)
                copy = held[place].view(value.dtype)
                if word.startswith("out "):
                    back.append((value, copy))
                value = copy
            guarded.append(value)
        result = kernel.run(*guarded)
        for value, copy in back:
            value[:] = copy
        for region in taken:
            self._free[region.nbytes].append(region)
        return result

    def _take(self, nbytes: int) -> Region:
        nbytes = max(_PAGE, 1 << (nbytes + _LINE - 1).bit_length())
        free = self._free.setdefault(nbytes, [])
        return free.pop() if free else Region(nbytes)


def _streams(kernel: Kernel, args: tuple[Any, ...]) -> bool:
    """Test whether a kernel stores past the cache, which its variant or an argument decides."""
    names = kernel.function.__code__.co_varnames
    values = dict(zip(names, grouped(kernel.signature, args), strict=False))
    return (
        "stream" in kernel.variant
        or values.get("store") == STREAM
        or bool(values.get("streaming"))
    )


def _overlaps(array: np.ndarray, args: tuple[Any, ...]) -> bool:
    """Test whether an array shares a part, but not all, of its memory with another argument."""
    start, stop = array.ctypes.data, array.ctypes.data + array.nbytes
    for other in args:
        if isinstance(other, np.ndarray) and other is not array:
            low, high = other.ctypes.data, other.ctypes.data + other.nbytes
            if low < stop and start < high and (low, high) != (start, stop):
                return True
    return False


@contextlib.contextmanager
def guarded(at_end: bool) -> Iterator[Guard]:
    """Run kernels between guard pages, on one thread, within a context."""
    before = os.environ.get("GCODEC_NUM_THREADS")
    os.environ["GCODEC_NUM_THREADS"] = "1"
    try:
        guard = Guard(at_end)
        with redirected(guard):
            yield guard
    finally:
        del os.environ["GCODEC_NUM_THREADS"]
        if before is not None:
            os.environ["GCODEC_NUM_THREADS"] = before


class Finding(NamedTuple):
    """An input that ended a child.

    Attributes
    ----------
    number : int
        Index of the input.
    what : str
        Name of the signal, or the traceback.
    """

    number: int
    what: str


def replay(
    target: Callable[[Any], None], inputs: Sequence[Any], at_end: bool
) -> tuple[int, list[Finding]]:
    """Run a target on inputs between guard pages, in forked children.

    Returns
    -------
    int
        Number of kernel calls.
    list of Finding
        Inputs that ended a child.
    """
    calls, findings, start = 0, [], 0
    while start < len(inputs):
        number, more, what = _child(target, inputs, start, at_end)
        calls += more
        if what is None:
            break
        findings.append(Finding(number, what))
        start = number + 1
    return calls, findings


def _child(
    target: Callable[[Any], None], inputs: Sequence[Any], start: int, at_end: bool
) -> tuple[int, int, str | None]:
    """Run inputs from `start` on in a child; return the last input, the calls and the failure."""
    shared = mmap.mmap(-1, 16)  # index of the input, and number of calls
    with tempfile.TemporaryFile() as report:
        sys.stdout.flush()
        child = fork()
        if child == 0:
            code = 1
            faulthandler.disable()
            try:
                with guarded(at_end) as guard:
                    for number in range(start, len(inputs)):
                        shared[:] = struct.pack("qq", number, guard.calls)
                        target(inputs[number])
                    shared[:] = struct.pack("qq", len(inputs), guard.calls)
                code = 0
            except BaseException:
                report.write(traceback.format_exc().encode())
                report.flush()
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        number, calls = struct.unpack("qq", shared[:])
        if status == 0:
            return number, calls, None
        report.seek(0)
        if status < 0:
            return number, calls, signal.Signals(-status).name
        return number, calls, report.read().decode()
