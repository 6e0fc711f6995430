"""The codec `microscale`: OCP's MX formats and NVFP4, as their bytes or entropy-coded.

The tensors of torchao are read and written by `gcodec.interop.torchao`.
"""

from gcodec.codecs.microscale.codec import Microscale

__all__ = ["Microscale"]
