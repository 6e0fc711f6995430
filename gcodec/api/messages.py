"""Messages of many tensors: frames end to end, in which small tensors share a frame."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gcodec.api.frames import encode, iter_frames
from gcodec.arrays.large_bytes import joined
from gcodec.arrays.nonfinite import NonFinite, check_nonfinite
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import byte_view, inspect
from gcodec.codec import CodecLike
from gcodec.errors import Corrupt, LimitExceeded, ParameterError, Truncated
from gcodec.feedback import derive_seed
from gcodec.frame import (
    GROUP_BELOW,
    MEMBERS_NAME,
    Member,
    SharedFrame,
    check_key,
    check_many,
    cut,
    members_of,
    shared_frames,
)
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import MAX_TENSORS, Limits
from gcodec.policy import Policy, policy_of
from gcodec.runtime import pool
from gcodec.tensorfiles.frame_list import located
from gcodec.wire.primitives import DTYPE_CODES, ITEMSIZE


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

    Small tensors with the same codec and dtype share a frame, as if they were one vector: its
    scale and tables are those of all of them. Larger tensors have frames of their own, and are
    compressed on several threads. `Feedback.compress_many` also keeps what a lossy codec leaves
    out for the next message.

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
        Number of elements from which on a tensor has its own frame; 0 if all have. Only arrays on
        the host share frames.
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
    >>> message = gcodec.encode_many({"a": np.ones(3), "b": np.array([2.0, -2.0])}, "sign")
    >>> {name: x.tolist() for name, x in gcodec.decode_many(message).items()}
    {'a': [1.4, 1.4, 1.4], 'b': [1.4, -1.4]}
    """
    group_below = check_many("tensors", tensors, group_below)
    policy, seed = policy_of(codec), check_seed(seed)
    check_nonfinite(nonfinite)
    check_key(key)
    sources = {name: inspect(x, f"tensors[{name!r}]") for name, x in tensors.items()}
    groups = shared_frames(sources, policy.codec, group_below, DTYPE_CODES)

    def own_frame(name: str, tensor: TensorLike) -> bytes:
        own_seed = derive_seed(seed, name=name)
        try:
            return encode(tensor, policy, seed=own_seed, name=name, nonfinite=nonfinite, key=key)
        except (ParameterError, TypeError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from None

    def shared_frame(group: SharedFrame) -> bytes:
        own_seed = derive_seed(seed, name=group.joined_names)
        vector = group.vector()
        try:
            return encode(vector, group.codec, seed=own_seed, nonfinite=nonfinite, key=key)
        except ParameterError:
            for name, array in group.arrays.items():
                own_frame(name, array)  # raises an error that names the tensor
            raise

    frames = [frame for group in groups for frame in (group.members(key), shared_frame(group))]
    shared = {name for group in groups for name in group.arrays}
    others = [name for name in sources if name not in shared]
    frames += pool.run_each(lambda k, _: own_frame(others[k], tensors[others[k]]), len(others))
    return joined(frames)


def decode_many(
    message: bytes | bytearray | memoryview,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> dict[str, np.ndarray]:
    """Decode a message of many tensors, that of `encode_many` or of `Feedback.compress_many`.

    Parameters
    ----------
    message : bytes-like
        Frames without gaps.
    limits, key
        See `decode`. The limits also hold for the sum of all tensors.

    Returns
    -------
    dict
        Tensors by name, in the order of the message.

    Raises
    ------
    FormatError
        If the message is damaged, has a tensor without a name or two of the same name, exceeds
        the limits, or has more than 65,536 tensors.
    TypeError
        If `message` is not bytes-like; `gcodec.load_file` reads a file.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> message = gcodec.encode_many({"a": np.ones(2), "b": np.zeros((1, 2))}, "raw")
    >>> {name: x.shape for name, x in gcodec.decode_many(message).items()}
    {'a': (2,), 'b': (1, 2)}
    """
    limits = Limits.or_default(limits)
    data = byte_view(message, "message")  # no path, which iter_frames would open
    tensors: dict[str, np.ndarray] = {}
    members: list[Member] | None = None
    elements = nbytes = 0
    for number, frame in enumerate(iter_frames(data, limits=limits, key=key)):
        elements, nbytes = elements + frame.size, nbytes + frame.size * ITEMSIZE[frame.dtype]
        limits.check("the message", elements, nbytes)
        if members is None and frame.name == MEMBERS_NAME:
            with located(f"frame {number}", default=None):
                members = members_of(frame)
            continue
        if members is None:
            if frame.name is None:
                raise Corrupt(f"frame {number} has no name")
            members, places = [Member(frame.name, frame.shape)], [(0, frame.size)]
        else:
            with located(f"frame {number}", default=None):
                places = cut(frame, members)
        if len(tensors) + len(members) > MAX_TENSORS:
            raise LimitExceeded(f"more than {MAX_TENSORS} tensors in one message")
        flat = frame.decode().reshape(-1)
        for member, (start, end) in zip(members, places, strict=True):
            if member.name in tensors:
                raise Corrupt(f"frame {number}: {member.name!r} occurs twice")
            try:
                tensors[member.name] = flat[start:end].reshape(member.shape)
            except ValueError:
                shape = f"the shape of the member {member.name!r}"
                raise Corrupt(f"frame {number}: no array has {shape}") from None
        members = None
    if members is not None:
        raise Truncated("the message ends after a list of members")
    return tensors
