"""Compilation, threads, memory and devices: the only package that knows Numba, LLVM and CuPy.

It runs kernels and knows none of them; the loops themselves live in `gcodec.kernels`.
"""

from typing import Any, TypeAlias

Array: TypeAlias = Any
"""An array of NumPy or of CuPy; `Any`, because CuPy declares no types."""
