"""Tensors without any loss: elements are split into byte planes, and exponents entropy-coded.

The coder of exponents by row and column lives in `gcodec.entropy.context`; files that come back
byte for byte are those of `gcodec.tensorfiles`.
"""

from gcodec.codecs.lossless.codec import Lossless

__all__ = ["Lossless"]
