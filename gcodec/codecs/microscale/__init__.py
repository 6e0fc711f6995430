"""The codec `microscale`: OCP's MX formats and NVFP4, as their bytes or entropy-coded.

The tensors of torchao are read and written by `gcodec.interop.torchao`.
"""

from gcodec.codecs.microscale.codec import Microscale
from gcodec.codecs.microscale.payload import check_elements, check_scales

__all__ = ["Microscale", "check_elements", "check_scales"]
