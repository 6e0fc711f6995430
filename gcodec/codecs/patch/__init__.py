"""Exact differences of two tensors of the same dtype and shape, which only the old one decodes.

The functions for users, files and stores of patches live in `gcodec.patch`.
"""

from gcodec.codecs.patch.codec import Patch

__all__ = ["Patch"]
