"""Compilation, threads, memory and devices: the only package that knows Numba, LLVM and CuPy.

The package runs kernels without knowing any of them; `gcodec.kernels` contains the loops.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of NumPy or of CuPy. The alias is `Any` because CuPy declares no types."""

compilation_watchers: list[Callable[[str], AbstractContextManager[object]]] = []
"""Functions that return a context in which this process compiles the kernel of a given name."""
