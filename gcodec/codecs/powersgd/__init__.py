"""PowerSGD: a matrix as the product of two thin matrices."""

from gcodec.codecs.powersgd.codec import PowerSGD

__all__ = ["PowerSGD"]
