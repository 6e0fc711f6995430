"""Kernels of the discrete cosine transform, and the selection of its coefficients.

The codec that uses them is `gcodec.codecs.dct8`.
"""
