"""Entropy-coded scalar quantization: quantizers, rate control and transform."""

from gcodec.codecs.ecsq.codec import ECSQ

__all__ = ["ECSQ"]
