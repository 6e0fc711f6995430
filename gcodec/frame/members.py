r"""The list of tensors that share a frame, in a message of many tensors.

The tensors lie end to end in the vector of one frame. A frame named ``\members`` precedes it; its
tensor is JSON text, a list of pairs of a name and a shape. Specification: docs/wire-format.md,
"Messages of many tensors".
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gcodec.errors import Corrupt

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
    """Return the JSON text of the list."""
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def read_members(data: bytes) -> list[Member]:
    """Read the JSON text of a list; raise `Corrupt` if it is invalid."""
    if len(data) > MAX_NBYTES:
        raise Corrupt(f"the list of members has {len(data)} bytes, more than {MAX_NBYTES}")
    try:
        pairs = json.loads(str(data, "utf-8"), parse_int=_integer)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Corrupt(f"the list of members is not JSON: {error}") from None
    if not isinstance(pairs, list) or not pairs:
        raise Corrupt("the list of members is not a list, or is empty")
    return [_member(pair) for pair in pairs]


def _member(pair: Any) -> Member:
    if not isinstance(pair, list) or len(pair) != 2:
        raise Corrupt("a member is not a pair of a name and a shape")
    name, shape = pair
    if not isinstance(name, str) or not _is_text(name):
        raise Corrupt("a member has no name that UTF-8 can write")
    if not isinstance(shape, list) or len(shape) > _MAX_NDIM:
        raise Corrupt(f"the member {name!r} has no shape of at most {_MAX_NDIM} dimensions")
    if not all(type(size) is int and 0 <= size < 2**62 for size in shape):
        raise Corrupt(f"the shape of the member {name!r} has a size that is no such integer")
    return Member(name, tuple(shape))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else -1
