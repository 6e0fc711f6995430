"""Kernels of interleaved rANS: tables, readers and writers, scalar and vectorized.

The models that choose a table for each symbol live in `gcodec.kernels.context`.
"""
