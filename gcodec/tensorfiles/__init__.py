"""Files of tensors: strict readers and atomic writers, one module for each format.

Measurements on the content of the files live in `gcodec.analysis`.
"""
