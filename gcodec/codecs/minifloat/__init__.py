"""Minifloats: formats, scales, codebooks and payload."""

from gcodec.codecs.minifloat.codec import MiniFloatCodec

__all__ = ["MiniFloatCodec"]
