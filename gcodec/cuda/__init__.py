"""Shells of the CUDA kernels, by the names and arguments of those in `gcodec.kernels`.

Each allocates on the device of its first argument, launches, and returns. What the host has to
know, it fetches once.
"""
