"""The codecs `mxnet-2bit` and `mxnet-1bit`: the two quantizers of Apache MXNet.

The messages of MXNet, without a frame, belong to `gcodec.interop.mxnet`.
"""

from gcodec.codecs.mxnet.one_bit import MXNet1Bit
from gcodec.codecs.mxnet.two_bit import MXNet2Bit

__all__ = ["MXNet1Bit", "MXNet2Bit"]
