"""Arrays of every library: `source` inspects the caller's array once and reads its values.

Only this package asks to which library, device and dtype an array belongs. Kernels and codecs
receive flat arrays.
"""
