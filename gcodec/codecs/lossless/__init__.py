"""Tensors without any loss: byte planes, of which the one of exponents is entropy-coded."""

from gcodec.codecs.lossless.codec import Lossless

__all__ = ["Lossless"]
