"""The codec `minifloat`: scales, codebooks, entropy codes and payload."""

from gcodec.codecs.minifloat.codec import MiniFloatCodec

__all__ = ["MiniFloatCodec"]
