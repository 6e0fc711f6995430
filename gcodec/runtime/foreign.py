"""Arrays of other libraries on a CUDA device as CuPy's, and their streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from gcodec.runtime.device import cupy_module


def adopted(x: Any) -> Any:
    """Return an array of another library on a CUDA device as CuPy's, without a copy.

    Parameters
    ----------
    x : object
        With ``__dlpack__`` or ``__cuda_array_interface__``.

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
    """Launch on a stream of another library, told by its pointer."""
    cuda = cupy_module().cuda
    if hasattr(cuda.Stream, "from_external"):
        there = cuda.Stream.from_external(_Stream(stream))
    else:  # before CuPy 14
        there = cuda.ExternalStream(stream, number)
    with cuda.Device(number), there:
        yield


class _Stream(NamedTuple):
    """A stream as the CUDA stream protocol tells of it."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer
