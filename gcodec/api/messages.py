"""Messages of many tensors: frames end to end, in which small tensors share a frame."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np

from gcodec.api.frames import frame_parts
from gcodec.arrays.large_bytes import joined
from gcodec.arrays.nonfinite import NonFinite, check_nonfinite
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import byte_view, inspect
from gcodec.codec import CodecLike
from gcodec.errors import Corrupt, LimitExceeded, ParameterError
from gcodec.feedback import derive_seed
from gcodec.frame import (
    GROUP_BELOW,
    Frame,
    Member,
    SharedFrame,
    check_key,
    check_many,
    cut,
    own_frames,
    shared_frames,
)
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import MAX_TENSORS, WORK_LIMITS, Limits
from gcodec.policy import Policy, policy_of
from gcodec.runtime import pool
from gcodec.runtime.arithmetic import exact
from gcodec.tensorfiles.frame_list import read_frames, with_members
from gcodec.wire.kinds import check_mapping
from gcodec.wire.primitives import DTYPE_CODES, ITEMSIZE

_Array = TypeVar("_Array", bound=TensorLike)


class _Places(NamedTuple):
    """Arrays of the caller, by name: those that the tensors resemble, or those that receive them.

    Attributes
    ----------
    argument : {"like", "out"}
        The parameter that contains them.
    arrays : mapping
    """

    argument: str
    arrays: Mapping[str, TensorLike]

    @classmethod
    def of(cls, like: object, out: object) -> _Places | None:
        """Check the arguments; return None if both are None."""
        if like is not None and out is not None:
            raise ParameterError("like and out: pass only one of them")
        argument, arrays = ("like", like) if out is None else ("out", out)
        if arrays is None:
            return None
        check_mapping(argument, arrays)
        return cls(argument, cast("Mapping[str, TensorLike]", arrays))

    def check(self, member: Member, dtype: str) -> None:
        """Raise an error unless a tensor fits its array."""
        with self._place(member.name) as array:
            source = inspect(array, self.argument)
            if self.argument == "out":
                source.target(dtype, member.shape)
            else:
                source.result_dtype(member.shape, dtype)

    def take(self, frame: Frame) -> Any:
        """Return the tensor of a frame like its array, or write the tensor there."""
        with self._place(str(frame.name)) as array:
            if self.argument == "out":
                return frame.decode(out=array)
            return frame.decode(like=array)

    @contextlib.contextmanager
    def _place(self, name: str) -> Iterator[TensorLike]:
        """Yield the array of a tensor; errors name the tensor."""
        if name not in self.arrays:
            raise ParameterError(f"{self.argument}: has no array for the tensor {name!r}")
        try:
            yield self.arrays[name]
        except (ParameterError, TypeError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from None


@exact
def encode_many(
    tensors: Mapping[str, TensorLike],
    codec: CodecLike | Policy,
    *,
    seed: int = 0,
    nonfinite: NonFinite = "raise",
    group_below: int = GROUP_BELOW,
    key: bytes | None = None,
) -> bytes:
    """Compress many tensors, such as the weights of a model, to one message.

    Small tensors with the same codec and dtype share a frame with one scale and one set of tables,
    as if they were one vector. With ``lossless``, only tensors with similar exponents share a
    frame. Larger tensors have their own frames. Several threads compress the frames.
    `Feedback.compress_many` also keeps what a lossy codec leaves out for the next message.

    Parameters
    ----------
    tensors : mapping
        Tensors by name; see `encode`.
    codec : str, mapping, Codec or Policy
        Codec of all tensors, or a `gcodec.Policy` that picks one for each. Integers, booleans and
        floats of 8 bits always remain unchanged: they are sent by this codec if it keeps every
        bit, as ``lossless`` does, or else by ``raw``.
    seed : int
        Seed for stochastic rounding; each tensor derives its own seed from it and from its name.
    nonfinite : {"raise", "zero", "propagate"}
        Policy for NaN and Inf; see `encode`.
    group_below : int
        Tensors with at least this number of elements have their own frames; with 0, all have. Only
        arrays on the host share frames.
    key : bytes, optional
        Secret of 1 to 64 bytes, with which each frame gets a tag; see `encode`.

    Returns
    -------
    bytes
        A message that `decode_many` reads. Specification: docs/wire-format.md, "Messages of many
        tensors".

    Raises
    ------
    ParameterError
        If an argument is invalid, or if a tensor contains NaN or Inf under ``"raise"``.
    TypeError
        If a tensor is no array, or gcodec does not support its dtype or its device.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> message = gcodec.encode_many({"a": np.arange(3), "b": np.float32([2, -2])}, "sign")
    >>> {name: x.tolist() for name, x in gcodec.decode_many(message).items()}
    {'a': [0, 1, 2], 'b': [2.0, -2.0]}
    """
    group_below = check_many("tensors", tensors, group_below)
    policy, seed = policy_of(codec), check_seed(seed)
    check_nonfinite(nonfinite)
    check_key(key)
    sources = {name: inspect(x, f"tensors[{name!r}]") for name, x in tensors.items()}
    groups = shared_frames(sources, policy.codec, group_below, DTYPE_CODES)

    def own_frame(name: str, tensor: TensorLike) -> list[bytes | memoryview]:
        own_seed = derive_seed(seed, name=name)
        try:
            return frame_parts(tensor, policy, own_seed, name, nonfinite, key)
        except (ParameterError, TypeError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from None

    def shared_frame(group: SharedFrame) -> list[bytes | memoryview]:
        own_seed = derive_seed(seed, name=group.joined_names)
        vector = group.vector()
        try:
            return frame_parts(vector, group.codec, own_seed, None, nonfinite, key)
        except ParameterError:
            for name, array in group.arrays.items():
                own_frame(name, array)  # raises an error that names the tensor
            raise

    shared = {name for group in groups for name in group.arrays}
    others = [name for name in sources if name not in shared]

    def frames(k: int, _: int) -> list[bytes | memoryview]:
        if k < len(groups):
            return [groups[k].members(key), *shared_frame(groups[k])]
        name = others[k - len(groups)]
        return own_frame(name, tensors[name])

    parts = pool.run_each(frames, len(groups) + len(others))
    return joined([part for own in parts for part in own])


@overload
def decode_many(
    message: bytes | bytearray | memoryview,
    *,
    like: None = None,
    out: None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> dict[str, np.ndarray]: ...


@overload
def decode_many(
    message: bytes | bytearray | memoryview,
    *,
    like: Mapping[str, _Array],
    out: None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> dict[str, _Array]: ...


@overload
def decode_many(
    message: bytes | bytearray | memoryview,
    *,
    like: None = None,
    out: Mapping[str, _Array],
    limits: Limits | None = None,
    key: bytes | None = None,
) -> dict[str, _Array]: ...


@exact
def decode_many(
    message: bytes | bytearray | memoryview,
    *,
    like: Mapping[str, TensorLike] | None = None,
    out: Mapping[str, TensorLike] | None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> dict[str, Any]:
    """Decode a message of many tensors, from `encode_many` or `Feedback.compress_many`.

    Parameters
    ----------
    message : bytes-like
        Frames without gaps.
    like : mapping, optional
        Arrays by name, whose library, device and float dtype the tensors take; see `decode`. Each
        tensor of the message must have one.
    out : mapping, optional
        Arrays by name that receive the tensors, such as the weights of a model; see `decode`. Each
        tensor of the message must have one, and other arrays remain as they are. After an error,
        some may be overwritten.
    limits : Limits, optional
        Bounds on each tensor, and on the sum of all. Default: ``Limits()``. With `like` or `out`,
        whose arrays bound the memory, only the default ``max_products`` applies.
    key : bytes, optional
        Key of the frames' tags. A frame without a tag of this key is refused.

    Returns
    -------
    dict
        Tensors by name, in the order of the message: NumPy arrays, arrays like those of `like`, or
        those of `out`.

    Raises
    ------
    FormatError
        If the message is damaged, has a tensor without a name or two of the same name, exceeds
        the limits, or has more than 65,536 tensors.
    ParameterError
        If `like` or `out` lacks a tensor, or has an array of another shape or dtype for it.
    TypeError
        If `message` is not bytes-like; `gcodec.load_file` reads a file.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> message = gcodec.encode_many({"a": np.ones(2), "b": np.zeros((1, 2))}, "raw")
    >>> {name: x.shape for name, x in gcodec.decode_many(message).items()}
    {'a': (2,), 'b': (1, 2)}
    """
    places = _Places.of(like, out)
    limits = WORK_LIMITS if limits is None and places is not None else Limits.or_default(limits)
    data = byte_view(message, "message")
    tensors: dict[str, Any] = {}
    elements = nbytes = 0
    stored_frames = read_frames(data, limits, key) if len(data) else iter(())
    for stored, members in with_members(stored_frames, lambda stored: stored.frame):
        frame = stored.frame
        elements, nbytes = elements + frame.size, nbytes + frame.size * ITEMSIZE[frame.dtype]
        limits.check("the message", elements, nbytes)
        if members is None and frame.name is None:
            raise Corrupt(f"frame {stored.number} has no name")
        names = [str(frame.name)] if members is None else [member.name for member in members]
        if len(tensors) + len(names) > MAX_TENSORS:
            raise LimitExceeded(f"more than {MAX_TENSORS} tensors in one message")
        for name in names:
            if name in tensors:
                raise Corrupt(f"frame {stored.number}: {name!r} occurs twice")
            tensors[name] = None
        with stored.locate_errors():
            if members is None:
                tensors[names[0]] = frame.decode() if places is None else places.take(frame)
            elif places is None:
                tensors.update(cut(frame.decode(), members))
            else:
                for member in members:  # before memory for them is allocated
                    places.check(member, frame.dtype)
                for own in own_frames(frame, members):
                    tensors[str(own.name)] = places.take(own)
    return tensors
