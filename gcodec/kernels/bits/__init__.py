"""Kernels on fixed-width fields: packing, unpacking, signs, bitmaps.

Variable-length codes live in `gcodec.kernels.prefix` and `gcodec.kernels.rans`.
"""
