"""The codec `powersgd`: a matrix as the product of two thin matrices.

The training method, which averages the factors of all workers, is `gcodec.training.PowerSGD`.
"""

from gcodec.codecs.powersgd.codec import PowerSGD

__all__ = ["PowerSGD"]
