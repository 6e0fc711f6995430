"""The floating-point arithmetic of a thread.

A thread may flush subnormal numbers to zero, or round in another direction. PyTorch's
``torch.set_flush_denormal`` lets it, and so does loading a library that was compiled with
``-ffast-math``. Bytes and values would then depend on the process and on the thread, so the
functions that users call are `exact`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Python computes with variables when it runs, but with constants when it compiles.
_subnormal, _two, _one, _tiny = 2.0**-1074, 2.0, 1.0, 2.0**-60
_ROOM = 64  # bytes of C's ``fenv_t``, or more


def is_standard() -> bool:
    """Return whether this thread computes with subnormal numbers, and rounds to nearest."""
    return bool(_subnormal * _two) and _one + _tiny == _one - _tiny


def exact(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function compute as IEEE 754 says by default, and its caller as before."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if is_standard() or (library := _library()) is None:
            return function(*args, **kwargs)
        own = ctypes.create_string_buffer(_ROOM)
        library.fegetenv(own)
        standardize()
        try:
            return function(*args, **kwargs)
        finally:
            library.fesetenv(own)

    return call


def standardize() -> None:
    """Let this thread compute as IEEE 754 says by default, from now on."""
    if not is_standard() and (library := _library()) is not None:
        library.fesetenv(_default(library))


@functools.cache
def _library() -> Any:
    """Return C's library of mathematics; None if there is none."""
    for name in ("libm.so.6", None):
        with contextlib.suppress(OSError, TypeError, AttributeError):
            library = ctypes.PyDLL(name)
            library.fegetenv.argtypes = library.fesetenv.argtypes = [ctypes.c_void_p]
            return library
    return None


def _default(library: Any) -> Any:
    """Return the address of the default environment, C's ``FE_DFL_ENV``."""
    if sys.platform == "darwin":
        return ctypes.addressof(ctypes.c_char.in_dll(library, "_FE_DFL_ENV"))
    return ctypes.c_void_p(-1)
