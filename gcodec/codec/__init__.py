"""What a codec is: `base` defines the class, and `registry` finds the classes by name and by id.

`sparse` is the base of the codecs that send few elements.

The codecs themselves are in `gcodec.codecs`. A codec of your own needs no other module than this
one; see ``docs/add-a-codec.md``.
"""

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.codec.base import Codec, CodecLike, Symbols
from gcodec.codec.registry import Provided, provide, register, registered, with_id
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.fields.walker import FieldSpan, FieldValue, FieldWalker
from gcodec.kernels.bits.pack import check_length
from gcodec.payload import Payload
from gcodec.wire.kinds import Choice, Float32, Integer, binary32
from gcodec.wire.params import param

__all__ = [
    "Choice",
    "Codec",
    "CodecLike",
    "Corrupt",
    "FieldSpan",
    "FieldValue",
    "FieldWalker",
    "Float32",
    "Integer",
    "ParameterError",
    "Payload",
    "Provided",
    "Symbols",
    "Truncated",
    "binary32",
    "check_length",
    "nonfinite_error",
    "param",
    "provide",
    "register",
    "registered",
    "with_id",
]
