"""Arrays of every library: what an input is, and its values as a contiguous flat array.

Only this package asks what an array is. Kernels and codecs receive flat arrays.
"""
