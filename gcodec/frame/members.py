r"""The list of tensors that share a frame, in a message of many tensors.

The tensors lie end to end in the vector of one frame. A frame named ``\members`` precedes it; its
tensor is JSON text, a list of pairs of a name and a shape. Specification: docs/wire-format.md,
"Messages of many tensors".
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from gcodec.errors import Corrupt, ParameterError
from gcodec.frame.frame import Frame
from gcodec.wire.primitives import LOG2_ADDRESSABLE, encode_name

MEMBERS_NAME = "\\members"
"""Name of the frame that contains the list."""

MAX_NBYTES = 1 << 23
"""Largest size of the JSON text in bytes."""

_MAX_NDIM = 64
_MAX_DIGITS = 20  # of the integers; Python refuses to parse thousands of digits


class Member(NamedTuple):
    """A tensor that shares a frame.

    Attributes
    ----------
    name : str
    shape : tuple of int
    """

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def write_members(members: Sequence[Member]) -> bytes:
    """Return the JSON text of the list.

    Raises
    ------
    ParameterError
        If the text exceeds `MAX_NBYTES`.
    """
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > MAX_NBYTES:
        raise ParameterError(
            f"grads: the names and shapes of {len(members)} small tensors take {len(text)} bytes, "
            f"and must take at most {MAX_NBYTES}; pass a lower group_below"
        )
    return text


def members_of(frame: Frame) -> list[Member]:
    """Read the list that a frame named `MEMBERS_NAME` contains.

    Raises
    ------
    FormatError
    """
    if frame.dtype != "uint8" or len(frame.shape) != 1:
        raise Corrupt("the list of members is not a vector of uint8")
    if frame.codec.name != "raw":
        raise Corrupt(f"the list of members has the codec {frame.codec.name} in place of raw")
    if frame.size > MAX_NBYTES:
        raise Corrupt(f"the list of members has {frame.size} bytes, more than {MAX_NBYTES}")
    try:
        pairs = json.loads(str(frame.decode().tobytes(), "utf-8"), parse_int=_integer)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Corrupt(f"the list of members is not JSON: {error}") from None
    if not isinstance(pairs, list) or not pairs:
        raise Corrupt("the list of members is not a list, or is empty")
    return [_member(pair) for pair in pairs]


def cut(frame: Frame, members: Sequence[Member]) -> list[tuple[int, int]]:
    """Return where each member begins and ends in the vector that the members share.

    Raises
    ------
    Corrupt
        If the frame has a name, or another number of elements.
    """
    ends = list(itertools.accumulate(member.size for member in members))
    if frame.name is not None or frame.shape != (ends[-1],):
        raise Corrupt(
            f"tensors of {ends[-1]} elements share a vector without a name, and not a frame "
            f"{frame.name!r} of shape {frame.shape}"
        )
    return list(zip([0, *ends], ends, strict=False))


def _member(pair: object) -> Member:
    if not isinstance(pair, list) or len(pair) != 2:
        raise Corrupt("a member is not a pair of a name and a shape")
    name, shape = pair
    try:
        encode_name(name)
    except ParameterError:  # no text, or half of a surrogate pair
        raise Corrupt("a member has no name that UTF-8 can write") from None
    if not isinstance(shape, list) or len(shape) > _MAX_NDIM:
        raise Corrupt(f"the member {name!r} has no shape of at most {_MAX_NDIM} dimensions")
    if not all(type(size) is int and 0 <= size < 2**62 for size in shape):
        raise Corrupt(f"the shape of the member {name!r} has a size that is no such integer")
    if 0 in shape and math.prod(filter(None, shape)) >> LOG2_ADDRESSABLE:
        raise Corrupt(f"no array has the shape of the member {name!r}")
    return Member(name, tuple(shape))


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else -1
