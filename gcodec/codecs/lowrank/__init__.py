"""The codec `lowrank`: the factorization of matrices, the allocation of bits and the message.

The factors are messages of `ecsq`, whose quantizers live in `gcodec.codecs.ecsq`.
"""

from gcodec.codecs.lowrank.codec import LowRank

__all__ = ["LowRank"]
