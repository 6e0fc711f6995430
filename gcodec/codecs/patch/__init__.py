"""Exact differences of two tensors of the same dtype and shape, which only the old one decodes."""

from gcodec.codecs.patch.codec import Patch

__all__ = ["Patch"]
