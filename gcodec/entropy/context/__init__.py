"""The context coder: rANS with tables chosen by the scales of an element's row and column.

Its loops live in `gcodec.kernels.context`; codecs use it through `coder`.
"""
