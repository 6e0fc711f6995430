"""Hot loops on numbers: plain Python functions that Numba compiles on first use.

A kernel gets contiguous one-dimensional arrays and scalars, allocates nothing and raises nothing.
The Python function beside it (its shell) checks sizes, allocates exactly and calls it, on the
thread pool where the input is large. Every index in a kernel is a loop bound over a length that
the shell has made sure of; the comment above the loop says which.
"""
