"""Tensors without any loss: elements are split into byte planes, and exponents entropy-coded."""

from gcodec.codecs.lossless.codec import Lossless

__all__ = ["Lossless"]
