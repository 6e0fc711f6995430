"""Kernels between floats and symbols: uniform, ternary, minifloat and trellis quantizers.

Nothing here writes bits; packing lives in the other kernel packages.
"""
