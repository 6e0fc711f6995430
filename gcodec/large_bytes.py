"""Bytes objects made of pieces; large ones on huge pages, where the system has them.

The pages of a fresh bytes object are mapped one by one as they are written: for 40 MB that takes
longer than coding a tensor of as many bytes. NumPy asks Linux for huge pages where an array has
4 MiB or more, which is five times as fast; Python does not, so this does.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LEAST_NBYTES = 1 << 22  # from which on huge pages pay, as NumPy finds

# Functions of Python's C API, declared without a change to what others see of it.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return contiguous pieces one behind the other, as ``b"".join`` does."""
    nbytes = sum(memoryview(part).nbytes for part in parts)
    advise = _adviser()
    if nbytes < LEAST_NBYTES or advise is None:
        return b"".join(parts)
    # Python's C API lets a bytes object be written to until somebody else sees it.
    made, room = _uninitialised(nbytes)
    page = mmap.PAGESIZE
    first, last = -(-room.ctypes.data // page), (room.ctypes.data + nbytes) // page
    advise(first * page, (last - first) * page, mmap.MADV_HUGEPAGE)  # what it refuses stays slow
    at = 0
    for part in parts:
        piece = np.frombuffer(part, np.uint8)
        room[at : at + piece.size] = piece
        at += piece.size
    return made


def _uninitialised(nbytes: int) -> tuple[bytes, np.ndarray]:
    """Make a bytes object, and a (nbytes,) uint8 array of its memory."""
    made = _new_bytes(None, nbytes)
    room = (ctypes.c_uint8 * nbytes).from_address(_address_of(made))
    return made, np.ctypeslib.as_array(room)


@functools.cache
def _adviser() -> Callable[..., Any] | None:
    """Return Linux' madvise; None on other systems."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
