"""Frames: self-describing bytes of one compressed tensor.

`frame` defines the class, `header` the fields before the payload, `integrity` the checksums and
tags, `members` the frames that several small tensors share, and `summation` the sum of several
frames. The bytes of the payload belong to the codecs, and primitives such as LEB128 to `wire`.
"""

from gcodec.frame.frame import Frame, FrameLike
from gcodec.frame.header import Header, check_shape, dtype_named
from gcodec.frame.integrity import CHECKSUM_NBYTES, check_crc, check_key, crc32c, tag_of
from gcodec.frame.members import (
    GROUP_BELOW,
    MEMBERS_NAME,
    Member,
    SharedFrame,
    check_many,
    check_shared,
    cut,
    members_of,
    own_frames,
    shared_frames,
    stored_frame,
)
from gcodec.frame.summation import FrameSum

__all__ = [
    "CHECKSUM_NBYTES",
    "GROUP_BELOW",
    "MEMBERS_NAME",
    "Frame",
    "FrameLike",
    "FrameSum",
    "Header",
    "Member",
    "SharedFrame",
    "check_crc",
    "check_key",
    "check_many",
    "check_shape",
    "check_shared",
    "crc32c",
    "cut",
    "dtype_named",
    "members_of",
    "own_frames",
    "shared_frames",
    "stored_frame",
    "tag_of",
]
