"""Kernels on values: reductions, conversions, selection, histograms, products, random numbers.

Quantizers live in `gcodec.kernels.quantize`, bit strings in `gcodec.kernels.bits`.
"""
