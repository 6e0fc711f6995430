"""Exact patches of tensors, of files of tensors, and a store of the steps of a training.

The bytes of a patch belong to `gcodec.codecs.patch`.
"""
