"""The codec `microscale`: OCP's MX formats and NVFP4, as their bytes or entropy-coded."""

from gcodec.codecs.microscale.codec import Microscale

__all__ = ["Microscale"]
