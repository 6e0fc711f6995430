"""Kernels of the discrete cosine transform and of small linear transforms of chunks.

The codecs `gcodec.codecs.dct8` and `gcodec.codecs.ecsq` use them.
"""
