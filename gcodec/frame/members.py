r"""The list of tensors that share a frame, in a message of many tensors.

The tensors lie end to end in the vector of one frame. A frame named ``\members`` precedes it; its
tensor is JSON text, a list of pairs of a name and a shape. Specification: docs/wire-format.md,
"Messages of many tensors".
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gcodec.arrays.source import Source
from gcodec.codec import Codec
from gcodec.codecs import parse_encoder
from gcodec.errors import Corrupt, ParameterError
from gcodec.frame.frame import Frame
from gcodec.frame.header import check_shape
from gcodec.limits import MAX_TENSORS
from gcodec.payload import Payload
from gcodec.wire.kinds import check_integer, check_mapping
from gcodec.wire.primitives import encode_name

GROUP_BELOW = 4096
"""Number of elements from which on a tensor has its own frame by default."""

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


class SharedFrame(NamedTuple):
    """Small tensors of the same codec and dtype, which share a frame.

    Attributes
    ----------
    codec : Codec
    arrays : dict
        The tensors by name, as NumPy arrays.
    """

    codec: Codec
    arrays: dict[str, np.ndarray]

    @property
    def joined_names(self) -> str:
        """The name from which the seed of the frame is derived."""
        return "\0".join(self.arrays)

    def vector(self) -> np.ndarray:
        """Return the elements of all tensors, end to end."""
        return np.concatenate([array.reshape(-1) for array in self.arrays.values()])

    def parts(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return views of the tensors in such a vector, in their shapes."""
        arrays = self.arrays.values()
        ends = itertools.accumulate(array.size for array in arrays)
        return [
            vector[end - array.size : end].reshape(array.shape)
            for end, array in zip(ends, arrays, strict=True)
        ]

    def clusters(self, dtype: str) -> list[SharedFrame]:
        """Divide the tensors, which all have this dtype, into one frame for each cluster."""
        numbers = self.codec._clusters([*self.arrays.values()], dtype)
        distinct = dict.fromkeys(numbers)
        if len(distinct) == 1:
            return [self]
        frames = {number: SharedFrame(self.codec, {}) for number in distinct}
        for number, (name, array) in zip(numbers, self.arrays.items(), strict=True):
            frames[number].arrays[name] = array
        return [*frames.values()]

    def members(self, key: bytes | None) -> bytes:
        """Return the frame that lists the tensors, which precedes the frame that they share.

        Raises
        ------
        ParameterError
            If the list exceeds `MAX_NBYTES`.
        """
        members = [Member(name, array.shape) for name, array in self.arrays.items()]
        text = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > MAX_NBYTES:
            raise ParameterError(
                f"the names and shapes of {len(members)} small tensors take {len(text)} bytes, "
                f"and must take at most {MAX_NBYTES}; pass a lower group_below"
            )
        codec = parse_encoder("raw")
        payload = Payload(codec, {}, np.frombuffer(text, np.uint8), 8 * len(text))
        return Frame(codec, "uint8", (len(text),), payload, MEMBERS_NAME, key).to_bytes()


def check_many(argument: str, tensors: object, group_below: object) -> int:
    """Check the tensors and `group_below` of a message of many tensors; return the latter."""
    check_mapping(argument, tensors)
    assert isinstance(tensors, Mapping)
    allowed = "an integer from 0 to 2**24"
    group_below = check_integer("group_below", group_below, 0, 1 << 24, allowed)
    if len(tensors) > MAX_TENSORS:
        count = f"{len(tensors)} tensors"
        raise ParameterError(f"{argument}: has {count}, must have at most {MAX_TENSORS}")
    for name in tensors:
        if encode_name(name) == MEMBERS_NAME.encode():
            raise ParameterError.of("name", name, f"a name other than {MEMBERS_NAME}")
    return group_below


def shared_frames(
    sources: Mapping[str, Source],
    codec_of: Callable[[str, tuple[int, ...], str], Codec],
    group_below: int,
    dtypes: Container[str],
) -> list[SharedFrame]:
    """Return the groups of small tensors that share frames.

    Parameters
    ----------
    sources : mapping
        Tensors by name. Those on a device have their own frames, as have empty tensors.
    codec_of : callable
        Returns the codec for a name, a shape and a dtype.
    group_below : int
        Number of elements from which on a tensor has its own frame.
    dtypes : container of str
        Dtypes of tensors that may share a frame.
    """
    groups: dict[tuple[int, str], SharedFrame] = {}  # by the identity of the codec
    for name, source in sources.items():
        if source.device is not None or not group_below:
            continue
        array, dtype = source.array_and_dtype()
        if 0 < array.size < group_below and dtype in dtypes:
            codec = codec_of(name, array.shape, dtype)
            key = id(codec), dtype
            if key not in groups:
                groups[key] = SharedFrame(codec, {})
            groups[key].arrays[name] = array
    clusters = [part for (_, dtype), group in groups.items() for part in group.clusters(dtype)]
    return [group for group in clusters if len(group.arrays) > 1]


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


def check_shared(name: str | None, shape: tuple[int, ...], members: Sequence[Member]) -> None:
    """Raise `Corrupt` unless a frame of this name and shape is one that the members share."""
    size = sum(member.size for member in members)
    if name is not None or shape != (size,):
        raise Corrupt(
            f"tensors of {size} elements share a vector without a name, and not a frame {name!r} "
            f"of shape {shape}"
        )


def cut(vector: np.ndarray, members: Sequence[Member]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of the members, and views of their elements in the vector of their frame."""
    start = 0
    for member in members:
        end = start + member.size
        yield member.name, vector[start:end].reshape(member.shape)
        start = end


def own_frames(frame: Frame, members: Sequence[Member]) -> Iterator[Frame]:
    """Yield a frame for each member of a shared frame, with its elements as they are."""
    for name, array in cut(frame.decode(), members):
        yield stored_frame(array, frame.dtype, name, frame.key)


def stored_frame(
    array: np.ndarray, dtype: str, name: str | None = None, key: bytes | None = None
) -> Frame:
    """Return a frame with the elements of an array on the host as they are, without a copy."""
    codec = _stored_codec(dtype)
    data = array.reshape(-1).view(np.uint8)
    return Frame(codec, dtype, array.shape, Payload(codec, {}, data, 8 * data.size), name, key)


@functools.cache
def _stored_codec(dtype: str) -> Codec:
    return parse_encoder("lossless:mode=stored")._with_dtype(dtype)


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
    check_shape(tuple(shape), named=f"the shape of the member {name!r}")
    return Member(name, tuple(shape))


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else -1
