"""CUDA arrays of other libraries as CuPy arrays, and the streams of these libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from gcodec.runtime import Array
from gcodec.runtime.device import cupy_module


def adopted(x: object) -> Array:
    """Return an array of another library on a CUDA device as a CuPy array, without a copy.

    Parameters
    ----------
    x : object
        Array with ``__dlpack__`` or ``__cuda_array_interface__``.

    Raises
    ------
    ImportError, RuntimeError
        See `CupyDevice`.
    """
    cupy = cupy_module()
    try:
        return cupy.from_dlpack(x) if hasattr(type(x), "__dlpack__") else cupy.asarray(x)
    except RuntimeError as error:
        raise RuntimeError(f"an array on a CUDA device cannot be used there: {error}") from error


@contextlib.contextmanager
def on_stream(number: int, stream: int) -> Iterator[None]:
    """Launch kernels on a stream of another library.

    Parameters
    ----------
    number : int
        Number of the CUDA device.
    stream : int
        Pointer to the stream.
    """
    cuda = cupy_module().cuda
    if hasattr(cuda.Stream, "from_external"):
        current = cuda.Stream.from_external(_Stream(stream))
    else:  # before CuPy 14
        current = cuda.ExternalStream(stream, number)
    with cuda.Device(number), current:
        yield


class _Stream(NamedTuple):
    """A stream as an object of the CUDA stream protocol."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer
