"""The codec `blockwise`: tables of numbers and a scale for each block, as several systems send.

The messages of these systems are read and written by modules of `gcodec.interop`.
"""

from gcodec.codecs.blockwise.codec import Blockwise
from gcodec.codecs.blockwise.layout import Layout

__all__ = ["Blockwise", "Layout"]
