"""Measurements on tensors, frames and codecs: statistics, fits, rates, trials, timing, dissection.

Nothing here prints; the command in `gcodec.cli` presents the results.
"""
