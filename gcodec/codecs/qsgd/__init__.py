"""The codec `qsgd`: levels with stochastic rounding, and the forms of their payload.

The codes of levels and gaps as objects of their own belong to `gcodec.entropy`.
"""

from gcodec.codecs.qsgd.codec import QSGD

__all__ = ["QSGD"]
