"""The codec `minifloat`: scales, codebooks, the choice of the entropy code, and the payload.

The MX formats and NVFP4, which also consist of small floats, belong to `gcodec.codecs.microscale`.
"""

from gcodec.codecs.minifloat.codec import MiniFloatCodec

__all__ = ["MiniFloatCodec"]
