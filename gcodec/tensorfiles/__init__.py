"""Files of tensors: strict readers and atomic writers of each format.

Measuring what the files contain is the task of `gcodec.analysis`.
"""
