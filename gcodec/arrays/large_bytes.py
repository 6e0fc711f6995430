"""Concatenation to bytes objects, on huge pages where the system supports them.

Linux maps the pages of a new bytes object one by one as they are written, which takes longer than
encoding a tensor of the same size. NumPy requests huge pages for arrays of 4 MiB or more, which is
five times as fast. Python does not, so this module does.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from gcodec.runtime.memory import Drainable, contents, release
from gcodec.runtime.memory import page_adviser as _adviser

LEAST_NBYTES = 1 << 22  # NumPy's threshold for huge pages
_CHUNK = 1 << 23  # bytes that are copied before their memory is released

# Functions of Python's C API, declared without changing the declarations that others see.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def joined(parts: Sequence[bytes | memoryview | Drainable]) -> bytes:
    """Concatenate contiguous parts, as ``b"".join`` does.

    The memory of a part that is a `Drainable` of bytes is released while it is copied.
    """
    nbytes = sum(memoryview(contents(part)).nbytes for part in parts)
    advise = _adviser()
    if nbytes < LEAST_NBYTES or advise is None:
        return b"".join(contents(part) for part in parts)
    # Python's C API allows writing to a bytes object before any other code has seen it.
    result: bytes = _new_bytes(None, nbytes)
    memory = (ctypes.c_uint8 * nbytes).from_address(_address_of(result))
    target = np.ctypeslib.as_array(memory)
    page = mmap.PAGESIZE
    first, last = -(-target.ctypes.data // page), (target.ctypes.data + nbytes) // page
    # An error is ignored: the pages are then mapped one by one.
    advise(first * page, (last - first) * page, mmap.MADV_HUGEPAGE)
    offset = 0
    for part in parts:
        source = np.frombuffer(contents(part), np.uint8)
        for start in range(0, source.size, _CHUNK):
            stop = min(start + _CHUNK, source.size)
            target[offset + start : offset + stop] = source[start:stop]
            release(part, start, stop)
        offset += source.size
    return result
