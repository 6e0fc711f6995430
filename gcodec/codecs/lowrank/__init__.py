"""Low-rank factors of matrices, coded by ecsq: the factorization, its message and the codec."""

from gcodec.codecs.lowrank.codec import LowRank

__all__ = ["LowRank"]
