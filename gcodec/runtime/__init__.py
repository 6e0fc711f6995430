"""Compilation, threads, memory and devices: the only package that knows Numba, LLVM and CuPy.

It runs kernels and knows none of them; the loops themselves live in `gcodec.kernels`.
"""
