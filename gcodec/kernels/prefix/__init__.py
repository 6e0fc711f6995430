"""Kernels of prefix codes: Huffman, Elias, Rice and Golomb words, their tables and strings.

The codes as objects live in `gcodec.entropy`.
"""
