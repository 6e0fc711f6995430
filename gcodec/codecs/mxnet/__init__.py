"""The 2-bit and 1-bit quantizers of Apache MXNet."""

from gcodec.codecs.mxnet.one_bit import MXNet1Bit
from gcodec.codecs.mxnet.two_bit import MXNet2Bit

__all__ = ["MXNet1Bit", "MXNet2Bit"]
