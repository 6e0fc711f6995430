"""Bytes objects made of pieces; large ones on huge pages, where the system has them.

The pages of a fresh bytes object are mapped one by one as they are written: for 40 MB that takes
longer than coding a tensor of as many bytes. NumPy asks Linux for huge pages where an array has
4 MiB or more, which is five times as fast; Python does not, so this does.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from gcodec.runtime.memory import Drainable, contents, release
from gcodec.runtime.memory import page_adviser as _adviser

LEAST_NBYTES = 1 << 22  # from which on huge pages pay, as NumPy finds
_CHUNK = 1 << 23  # bytes that are copied before their memory is released

# Functions of Python's C API, declared without a change to what others see of it.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def joined(parts: Sequence[bytes | memoryview | Drainable]) -> bytes:
    """Return contiguous pieces one behind the other, as ``b"".join`` does.

    A piece may be a `Drainable` of bytes, whose memory is released as it is copied.
    """
    nbytes = sum(memoryview(contents(part)).nbytes for part in parts)
    advise = _adviser()
    if nbytes < LEAST_NBYTES or advise is None:
        return b"".join(contents(part) for part in parts)
    # Python's C API lets a bytes object be written to until somebody else sees it.
    made, room = _uninitialised(nbytes)
    page = mmap.PAGESIZE
    first, last = -(-room.ctypes.data // page), (room.ctypes.data + nbytes) // page
    advise(first * page, (last - first) * page, mmap.MADV_HUGEPAGE)  # what it refuses stays slow
    at = 0
    for part in parts:
        piece = np.frombuffer(contents(part), np.uint8)
        for start in range(0, piece.size, _CHUNK):
            stop = min(start + _CHUNK, piece.size)
            room[at + start : at + stop] = piece[start:stop]
            release(part, start, stop)
        at += piece.size
    return made


def _uninitialised(nbytes: int) -> tuple[bytes, np.ndarray]:
    """Make a bytes object, and a (nbytes,) uint8 array of its memory."""
    made = _new_bytes(None, nbytes)
    room = (ctypes.c_uint8 * nbytes).from_address(_address_of(made))
    return made, np.ctypeslib.as_array(room)
