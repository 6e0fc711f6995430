"""The codec `qsgd`: levels with stochastic rounding, and the forms of their payload."""

from gcodec.codecs.qsgd.codec import QSGD

__all__ = ["QSGD"]
