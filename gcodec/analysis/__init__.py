"""Measurements on tensors and frames: statistics, fits, rates, comparisons, dissections.

Nothing here prints; the command in `gcodec.cli` presents the results.
"""
