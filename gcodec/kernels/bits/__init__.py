"""Kernels for bit strings and fixed-width fields: packing, unpacking, signs, bitmaps.

`gcodec.kernels.prefix` and `gcodec.kernels.rans` contain the kernels of variable-length codes.
"""
