"""Kernels of context modeling: scales of rows and columns, contexts, their tables and sizes.

The coder that uses them is `gcodec.entropy.context`.
"""
