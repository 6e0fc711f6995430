"""Message of one rank for one bucket of gradients, and the mean of the messages of all ranks.

    [tag] · kinds · [frame of the dense tensors] · frames

The kinds are one byte for each tensor that is not dense: `_ZERO`, `_CODED`, `_PLAIN` or `_SHARED`.
The dense tensors follow, end to end, in one ``raw`` frame; then come the frames of the other
tensors that have one of their own, in the order of the bucket; and at last the message of the
tensors that share frames, see `gcodec.Feedback.compress_many`.

With a key, every frame carries its own tag, and the message begins with another tag. That tag
covers the number of preceding buckets, the rank, the names of the tensors, the kinds and the tags
of the frames. A frame can therefore not be dropped, replayed later in the run, or passed off as
the frame of another rank.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gcodec.api import encode
from gcodec.arrays.large_bytes import joined
from gcodec.arrays.source import inspect
from gcodec.codec import Codec, Symbols
from gcodec.codecs.raw import Raw
from gcodec.errors import Corrupt, FormatError, ParameterError
from gcodec.feedback import Feedback, Transaction, derive_seed
from gcodec.feedback.states import is_no_residual
from gcodec.frame import (
    MEMBERS_NAME,
    Frame,
    FrameSum,
    check_key,
    check_shared,
    cut,
    members_of,
    tag_of,
)
from gcodec.kernels.numeric.reduce import all_finite, all_finite_corrected, max_abs_bits
from gcodec.limits import NO_LIMITS
from gcodec.runtime import Array
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.deferred import one_wait, prefetch
from gcodec.runtime.device import beside, device_of
from gcodec.runtime.memory import empty_beside, flattened
from gcodec.wire.primitives import TAG_NBYTES, Reader, encode_name

_ZERO = 0  # no frame: all values are 0, as for a parameter that took no part in the step
_CODED = 1  # a frame of the tensor's codec
_PLAIN = 2  # a raw frame: the codec refuses NaN and Inf, which loss scalers must find
_SHARED = 3  # a frame that several small tensors share
_PROBE = 1024  # leading elements, which show for most tensors that not all values are 0
_RAW = Raw()


class Part(NamedTuple):
    """One gradient of a bucket.

    Attributes
    ----------
    name : str
    values : float32 array
        Gradient, which `BucketCoder.encode` reads and `BucketCoder.average` overwrites. On a
        device, the values of all parts must be contiguous, and their codecs must have kernels
        for the device.
    codec : Codec or None
        Codec of the gradient, or None to send it dense, without loss.
    """

    name: str
    values: Array
    codec: Codec | None


class Key:
    """Secret key that appears in no attribute, text or pickle of the objects that hold it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | None) -> None:
        self._value = check_key(value)

    @property
    def value(self) -> bytes | None:
        """Bytes of the key, or None if messages are not authenticated."""
        return self._value

    def __repr__(self) -> str:
        return f"Key({'None' if self._value is None else '…'})"

    def __reduce__(self) -> NoReturn:
        holders = "DdpState, FsdpComm, DiLoCo, and models with a hook"
        raise TypeError(f"{holders} are not pickled, as they may hold a key; save a state_dict")


class BucketCoder:
    """Encoder of the buckets of a step, and decoder of the messages of all ranks.

    A step turns out to be valid only when its last bucket has been averaged. Until `commit` or
    `rollback`, all changes of the step can be undone.

    Parameters
    ----------
    feedback : Feedback or None
        Error feedback, or None for a hook without residuals.
    seed : int
    rank : int
        Number of this rank among those that average the gradients, from which seeds derive; that
        of the feedback is equal.
    key : Key
        Key of the tags in messages.
    group_below : int
        Number of elements below which tensors share frames, with feedback and on the host.
    sender : int, optional
        Rank of the sender in the tags. Default: `rank`.
    """

    def __init__(
        self,
        feedback: Feedback | None,
        seed: int,
        rank: int,
        key: Key,
        group_below: int = 0,
        sender: int | None = None,
    ) -> None:
        self.feedback = feedback
        self._group_below = 0 if feedback is None else group_below
        self._steps = None if feedback is None else Transaction(feedback)
        self._seed, self._rank, self._key = seed, rank, key
        self._sender = rank if sender is None else sender
        self._count = 0  # buckets so far, equal on every rank
        self._loaded: int | None = None  # step of a state that the other ranks do not know of
        self._sent: dict[str, tuple[bytes, Symbols]] = {}  # frames of the last messages, by tensor

    def take_place(self, rank: int) -> None:
        """Derive the seeds of further messages from another rank."""
        self._rank = rank
        if self.feedback is not None:
            self.feedback.rank = rank

    def announce(self, step: int) -> None:
        """Let the next message state that this rank has loaded a state of this step."""
        self._loaded = step

    def take_loaded(self) -> int | None:
        """Return the step of `announce`, once; None if there is none."""
        loaded, self._loaded = self._loaded, None
        return loaded

    @exact
    def encode(self, parts: Sequence[Part], step: int) -> bytes:
        """Return this rank's message."""
        return self.encode_shares([parts], step)[0]

    @exact
    def encode_shares(self, shares: Sequence[Sequence[Part]], step: int) -> list[bytes]:
        """Return this rank's message for each share of a bucket; all parts have other names."""
        self._count += 1
        self._sent.clear()
        return [self._encode(parts, step) for parts in shares]

    def _encode(self, parts: Sequence[Part], step: int) -> bytes:
        kinds = bytearray()
        frames: list[bytes] = []
        key = self._key.value
        dense = [part for part in parts if part.codec is None]
        if dense:
            values = _empty_for(dense)
            for part, place in zip(dense, consecutive(dense, values), strict=True):
                place.values[...] = part.values
                self._add_residual(part, place.values)
            frames.append(encode(values, _RAW, nonfinite="propagate", key=key))
        shared, shared_frames = self._share(parts)
        resident = self._encode_resident(parts)
        for name, values, codec in parts:
            if codec is None:
                continue
            if name in shared:
                kind, frame = _SHARED, b""
            elif name in resident:
                kind, frame = resident[name]
            else:
                kind, frame = self._encode_part(name, values, codec, step)
            kinds.append(kind)
            if frame:
                frames.append(frame)
        frames += shared_frames
        message = [bytes(kinds), *frames]
        if key is not None:
            message.insert(0, _tag(key, self._count, self._sender, parts, bytes(kinds), frames))
        return joined(message)

    def _add_residual(self, part: Part, values: Array) -> None:
        """Add what a dense tensor owes from a time when it had a codec, unless it took no part."""
        if self._steps is None or not self._steps.knows(part.name) or is_zero(flattened(values)):
            return
        owed = self._steps.take_residual(part.name, values.shape)
        if owed is not None:
            values += beside(owed, values)

    def max_nbytes(self, parts: Sequence[Part]) -> int | None:
        """Return the largest length of a message of finite values; None if a codec has none."""
        tag = 0 if self._key.value is None else TAG_NBYTES
        coded = [part for part in parts if part.codec is not None]
        dense = sum(part.values.size for part in parts if part.codec is None)
        nbytes = tag + len(coded)
        if len(coded) < len(parts):
            nbytes += _RAW.max_encoded_nbytes(dense) + tag
        try:
            for name, values, codec in coded:
                assert codec is not None
                codec = codec._with_shape(values.shape)
                nbytes += codec.max_encoded_nbytes(values.size, name) + tag
        except ParameterError:  # a parameter depends on the values
            return None
        return nbytes

    @exact
    def average(
        self,
        parts: Sequence[Part],
        messages: Sequence[bytes],
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Write the mean over all ranks, which has the same bits on every rank, to the parts.

        Frames that this rank has sent need not be unpacked, because it knows their symbols.

        Parameters
        ----------
        parts : sequence of Part
        messages : sequence of bytes
        ranks : sequence of int, optional
            Ranks of the senders. Default: 0, 1, …

        Raises
        ------
        FormatError
            If a message does not belong to this bucket, or lacks the tags of the key.
        """
        dense = [part for part in parts if part.codec is None]
        total = _empty_for(dense)
        dense_sum = FrameSum(total, total.shape)
        sums = {
            name: FrameSum(values, values.shape)
            for name, values, codec in parts
            if codec is not None
        }
        scale = 1 / len(messages)
        senders = range(len(messages)) if ranks is None else ranks
        for rank, message in zip(senders, messages, strict=True):
            with _errors_naming(rank):
                self._add(message, rank, parts, dense_sum, sums, scale)
        for one_sum in (dense_sum, *sums.values()):
            one_sum.finish()
        self._sent.clear()
        for part, place in zip(dense, consecutive(dense, total), strict=True):
            part.values[...] = place.values

    def _add(
        self,
        message: bytes,
        rank: int,
        parts: Sequence[Part],
        dense_sum: FrameSum,
        sums: Mapping[str, FrameSum],
        scale: float,
    ) -> None:
        """Add ``scale`` times the tensors of a rank's message to their sums.

        The dense tensors have one sum, end to end; the others have theirs by name.

        Raises
        ------
        FormatError, ParameterError, StopIteration
            If the message is not one of this bucket.
        """
        key = self._key.value
        kinds, frames, spans = _read(message, len(sums), key)
        if key is not None:
            tags = [message[span.stop - TAG_NBYTES : span.stop] for span in spans]
            expected = _tag(key, self._count, rank, parts, kinds, tags)
            if not hmac.compare_digest(message[:TAG_NBYTES], expected):
                raise Corrupt("it does not bear the tag of this key")
        unread = zip(frames, spans, strict=True)
        if len(sums) < len(parts):
            dense_sum.add(next(unread)[0], scale)
        sharing: dict[str, FrameSum] = {}
        for kind, (name, own_sum) in zip(kinds, sums.items(), strict=True):
            if kind == _SHARED:
                sharing[name] = own_sum
            elif kind != _ZERO:
                frame, span = next(unread)
                if frame.name != name:
                    raise Corrupt(f"it has {frame.name!r} in place of {name!r}")
                sent, symbols = self._sent.get(name, (b"", None))
                own_sum.add(frame, scale, symbols if message[span] == sent else None)
        _add_shared(sharing, (frame for frame, _ in unread), scale)
        if next(unread, None) is not None:
            raise Corrupt("it has too many frames")

    def commit(self) -> None:
        """Keep all changes of the step."""
        if self._steps is not None:
            self._steps.commit()

    def rollback(self) -> None:
        """Undo all changes of the step, because it is invalid or a message was not delivered."""
        if self._steps is not None:
            self._steps.rollback()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the `Feedback.state_dict` as it was after the last completed step."""
        return {} if self._steps is None else self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned, and drop the current step."""
        if self.feedback is not None:
            self.feedback.load_state_dict(state)
            self._steps = Transaction(self.feedback)

    def _share(self, parts: Sequence[Part]) -> tuple[set[str], list[bytes]]:
        """Compress the tensors that share frames; return their names and the frames."""
        small = {
            part.name: part.values
            for part in parts
            if part.codec is not None
            and part.values.size < self._group_below
            and device_of(part.values) is None
            and max_abs_bits(flattened(part.values))
        }
        if self._steps is None or len(small) < 2:
            return set(), []
        try:
            frames = self._steps.compress_shared(small, self._group_below, self._key.value)
        except ParameterError:  # `_encode_part` finds the tensor that is not finite
            return set(), []
        return {name for step in frames for name in step.names}, [
            frame for step in frames for frame in step.frames
        ]

    def _encode_resident(self, parts: Sequence[Part]) -> dict[str, tuple[int, bytes]]:
        """Return the kinds and frames of the tensors on a device, for which the host waits twice.

        If a tensor is not finite, this is empty, and nothing has changed.
        """
        coded = [part for part in parts if part.codec is not None]
        resident = {part.name: part.values for part in coded if device_of(part.values) is not None}
        if self._steps is None or len(resident) < 2:
            return {}
        with one_wait():
            tops = {name: max_abs_bits(flattened(values)) for name, values in resident.items()}
            for top in tops.values():
                prefetch(top)
        sent = {name: values for name, values in resident.items() if tops[name]}
        try:
            frames = self._steps.compress_resident(sent, self._key.value)
        except ParameterError:  # `_encode_part` finds the tensor that is not finite
            return {}
        return {name: (_CODED, frames[name]) if name in sent else (_ZERO, b"") for name in tops}

    def _encode_part(self, name: str, values: Array, codec: Codec, step: int) -> tuple[int, bytes]:
        """Return the kind of a tensor, and its frame."""
        flat, key = flattened(values), self._key.value
        if is_zero(flat):
            return _ZERO, b""
        try:
            if self._steps is not None:
                frame, symbols = self._steps.compress_known(name, values, key=key)
                if device_of(values) is None:
                    self._sent[name] = frame, symbols
                return _CODED, frame
            seed = derive_seed(self._seed, name=name, step=step, rank=self._rank)
            return _CODED, encode(values, codec, seed=seed, name=name, key=key)
        except ParameterError as error:
            if self._is_finite(name, values):
                raise ParameterError(f"tensor {name!r}: {error}") from error
        return _PLAIN, encode(values, _RAW, name=name, nonfinite="propagate", key=key)

    def _is_finite(self, name: str, values: Array) -> bool:
        """Return whether the gradient and its sum with a residual of equal shape are finite."""
        flat, feedback = inspect(values, "x").read().values, self.feedback
        if feedback is None:
            return all_finite(flat)
        memory = feedback.memory(name)
        try:
            residual = memory.residual
            if residual is None or is_no_residual(residual) or residual.shape != values.shape:
                return all_finite(flat)
            decay = np.float32(feedback.decay)
            return all_finite_corrected(flat, beside(residual, flat).reshape(-1), decay)
        finally:
            feedback.forget(name, memory)


@contextlib.contextmanager
def _errors_naming(rank: int) -> Iterator[None]:
    """Turn the errors of `BucketCoder._add` into one that names the rank of the sender."""
    try:
        yield
    except (FormatError, ParameterError, StopIteration) as error:
        reason = str(error) or "it ends too early"
        raise Corrupt(f"the message of rank {rank} is not of this bucket: {reason}") from error


def is_zero(flat: Array) -> bool:
    """Return whether a parameter took no part, so that its gradient is not sent.

    Its mean may reach no rank: DDP drops that of a parameter which no rank used.
    """
    # The first elements of most other tensors contain a value other than 0.
    return not max_abs_bits(flat[:_PROBE]) and not max_abs_bits(flat)


def _add_shared(sums: dict[str, FrameSum], frames: Iterator[Frame], scale: float) -> None:
    """Add ``scale`` times the tensors of the frames that several parts share to their sums.

    Raises
    ------
    Corrupt
        If a list of members is invalid, or the lists do not match the names of the sums.
    """
    while sums:
        listed, frame = next(frames), next(frames)
        if listed.name != MEMBERS_NAME:
            raise Corrupt("it lacks the frames that several tensors share")
        members = members_of(listed)
        check_shared(frame.name, frame.shape, members)
        own_sums = []
        for name, shape in members:  # before memory for them is allocated
            own_sum = sums.pop(name, None)
            if own_sum is None or own_sum.shape != shape:
                raise Corrupt(f"a shared frame has {name!r}, which is not expected there")
            own_sums.append(own_sum)
        total = np.zeros(frame.size, np.float32)
        frame.decode_add(total, scale)
        for own_sum, (_, values) in zip(own_sums, cut(total, members), strict=True):
            own_sum.add_values(values.reshape(-1))


def _empty_for(parts: Sequence[Part]) -> Array:
    """Return a float32 array for the values of all parts, on the device of the first part."""
    size = sum(part.values.size for part in parts)
    return empty_beside(size, np.float32, parts[0].values if parts else None)


def consecutive(parts: Sequence[Part], row: Array) -> list[Part]:
    """Return parts of the same names and shapes, whose values are consecutive in a row."""
    placed, start = [], 0
    for name, values, codec in parts:
        end = start + values.size
        placed.append(Part(name, row[start:end].reshape(values.shape), codec))
        start = end
    return placed


def _tag(
    key: bytes, count: int, rank: int, parts: Sequence[Part], kinds: bytes, frames: Sequence[bytes]
) -> bytes:
    """Return the tag of a message whose frames end with their own tags.

    The tagged bytes differ from those of any frame, and only one message produces them.
    """
    names = [encode_name(part.name) for part in parts]
    lengths = [len(names), *map(len, names), len(kinds), len(frames)]
    numbers = b"".join(number.to_bytes(8, "little") for number in (count, rank, *lengths))
    tags = [frame[-TAG_NBYTES:] for frame in frames]
    return tag_of(key, [b"gcodec bucket", numbers, *names, kinds, *tags])


def _read(message: bytes, count: int, key: bytes | None) -> tuple[bytes, list[Frame], list[slice]]:
    """Return the kinds of `count` tensors, all frames, and the bytes of each frame."""
    start = 0 if key is None else TAG_NBYTES
    kinds = message[start : start + count]
    if len(kinds) < count or any(kind > _SHARED for kind in kinds):
        raise Corrupt("its kinds are missing or unknown")
    frames, spans, reader = [], [], Reader(message, start + count)
    while (begin := reader.at) < len(message):
        frames.append(Frame.read(reader, NO_LIMITS, key))  # shapes are compared with the bucket's
        spans.append(slice(begin, reader.at))
    return kinds, frames, spans


def check_states(states: Iterable[Mapping[str, Any]]) -> None:
    """Raise `ParameterError` unless a `BucketCoder` takes each state; nothing changes."""
    for state in states:
        Feedback("raw").load_state_dict(state)
