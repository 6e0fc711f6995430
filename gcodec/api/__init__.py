"""The functions that users call.

`frames` encodes and decodes tensors, `messages` many tensors, and `files` trees of tensors.
Codecs do the work, `gcodec.frame` defines the bytes of a frame, and `gcodec.tensorfiles` those of
a file.
"""

from gcodec.api.frames import (
    decode,
    decode_add,
    decode_range,
    decode_sparse,
    decode_sum,
    encode,
    iter_frames,
    warmup,
)
from gcodec.api.messages import decode_many, encode_many

__all__ = [
    "decode",
    "decode_add",
    "decode_many",
    "decode_range",
    "decode_sparse",
    "decode_sum",
    "encode",
    "encode_many",
    "iter_frames",
    "warmup",
]
