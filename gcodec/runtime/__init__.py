"""Compiled kernels, threads, memory and devices.

`jit` declares kernels, `kernel_cache` finds their machine code, `compiler` and `lowering` make it,
and `loader` loads it. The loops themselves are in `gcodec.kernels`. Only these two packages import
Numba and llvmlite, and only `device` and `staging` use CuPy.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of NumPy or of CuPy. The alias is `Any` because CuPy declares no types."""

compilation_watchers: list[Callable[[str], AbstractContextManager[object]]] = []
"""Functions that return a context in which this process compiles the kernel of a given name."""
