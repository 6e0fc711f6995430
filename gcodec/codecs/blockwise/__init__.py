"""The codec `blockwise`: tables of numbers and a scale for each block, as several systems send."""

from gcodec.codecs.blockwise.codec import Blockwise

__all__ = ["Blockwise"]
