"""Concatenation to bytes objects, on huge pages where the system supports them.

Linux maps the pages of a new bytes object one by one as they are written, which takes longer than
encoding a tensor of the same size. NumPy requests huge pages for arrays of 4 MiB or more, which is
five times as fast. Python does not, so this module does.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.memory import Drainable, contents, release, whole_pages
from gcodec.runtime.memory import page_adviser as _adviser

LEAST_NBYTES = 1 << 22  # NumPy's threshold for huge pages
_CHUNK = 1 << 23  # bytes that are copied before their memory is released
_OBSERVED = 1 << 18  # bytes that a thread copies at a time, and that stay in its cache until then

# Functions of Python's C API, declared without changing the declarations that others see.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


class Observed(NamedTuple):
    """Part whose bytes are also read by a function, in the same pass over memory.

    Attributes
    ----------
    part : contiguous array or Drainable
        Bytes to copy.
    observe : callable
        Function that gets consecutive chunks of the bytes. It may change the parts that follow,
        but not their sizes.
    """

    part: np.ndarray | Drainable
    observe: Callable[[np.ndarray], None]


def joined(
    parts: Sequence[bytes | bytearray | memoryview | np.ndarray | Drainable | Observed],
) -> bytes:
    """Concatenate contiguous parts, as ``b"".join`` does.

    The memory of a part that is a `Drainable` of bytes is released while it is copied.
    """
    sources = [part.part if isinstance(part, Observed) else part for part in parts]
    observers = [part.observe if isinstance(part, Observed) else None for part in parts]
    buffers = [memoryview(contents(source)) for source in sources]
    nbytes, advise = sum([buffer.nbytes for buffer in buffers]), _adviser()
    if nbytes < LEAST_NBYTES or advise is None:
        for source, observe in zip(sources, observers, strict=True):
            if observe is not None:
                observe(contents(source))
        return b"".join(buffers)
    # Python's C API allows writing to a bytes object before any other code has seen it.
    result: bytes = _new_bytes(None, nbytes)
    memory = (ctypes.c_uint8 * nbytes).from_address(_address_of(result))
    target = np.ctypeslib.as_array(memory)
    # An error is ignored: the pages are then mapped one by one.
    advise(*whole_pages(target), mmap.MADV_HUGEPAGE)
    offset = 0
    for part, observe in zip(sources, observers, strict=True):
        source = np.frombuffer(contents(part), np.uint8)
        size = _CHUNK if observe is None or pool.thread_count() > 1 else _OBSERVED
        for start in range(0, source.size, size):
            stop = min(start + size, source.size)
            _copy(source[start:stop], target[offset + start : offset + stop], observe)
            release(part, start, stop)
        offset += source.size
    return result


def _copy(
    source: np.ndarray, target: np.ndarray, observe: Callable[[np.ndarray], None] | None
) -> None:
    """Copy bytes, while another thread observes them; with one thread, observe them first."""
    first = 0 if observe is None else 1  # number of the first task that copies

    def task(number: int, _: int) -> None:
        if observe is not None and not number:
            observe(source)
            return
        piece = slice((number - first) * _OBSERVED, (number - first + 1) * _OBSERVED)
        target[piece] = source[piece]

    pool.run_each(task, first + -(-source.size // _OBSERVED))
