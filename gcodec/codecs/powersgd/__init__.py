"""PowerSGD: a matrix as the product of two thin ones."""

from gcodec.codecs.powersgd.codec import PowerSGD

__all__ = ["PowerSGD"]
