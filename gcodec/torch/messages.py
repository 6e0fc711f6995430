"""What one rank sends of one bucket of gradients, and what comes of the messages of all.

    [tag] · kinds · [frame of the dense tensors] · frames

One byte for each tensor that is not dense says what is sent of it (`_NOTHING`, `_CODED` or
`_PLAIN`). The dense tensors follow, end to end, as one ``raw`` frame; then one frame for each of
the others of which something is sent, in the order of the bucket.

With a key every frame bears its tag, and the message begins with one of its own: of the number of
buckets before it, the rank, the names of the tensors, the kinds and the tags of the frames. So no
frame can be left out, sent again later in the run, or passed off as that of another rank.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.api import encode
from gcodec.arrays.intake import intake
from gcodec.arrays.large_bytes import joined
from gcodec.codec import Codec
from gcodec.codecs.raw import Raw
from gcodec.errors import Corrupt, FormatError, ParameterError
from gcodec.feedback import Feedback, Transaction, derive_seed
from gcodec.frame import Frame, check_key, tag_of
from gcodec.kernels.numeric.reduce import all_finite, all_finite_corrected, max_abs_bits
from gcodec.limits import Limits
from gcodec.runtime.device import beside
from gcodec.runtime.memory import clear, empty_beside, flattened
from gcodec.wire.primitives import TAG_NBYTES, encode_name

# A tensor of zeros, as of a parameter that took no part; a frame of its codec; a raw frame, which
# shows loss scalers the NaN or Inf that it holds.
_NOTHING, _CODED, _PLAIN = range(3)
_SOME = 1024  # elements
_DENSE = Raw()
_TRUSTED = Limits(1 << 62, 1 << 62)  # shapes are compared with those of the bucket


class Part(NamedTuple):
    """One gradient of a bucket.

    Attributes
    ----------
    name : str
    values : float32 array
        Read by `BucketCoder.encode`, and written by `BucketCoder.average`. On a device it must be
        contiguous, as must those of all parts, and codecs must work there.
    codec : Codec or None
        None: sent dense, and exact.
    """

    name: str
    values: np.ndarray
    codec: Codec | None


class Key:
    """A key that shows in no attribute, text or pickle of what holds it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes | None) -> None:
        self._value = check_key(value)

    @property
    def value(self) -> bytes | None:
        """The key, None where nothing is authenticated."""
        return self._value

    def __repr__(self) -> str:
        return f"Key({'None' if self._value is None else '…'})"

    def __reduce__(self) -> Any:
        raise TypeError("a key is not pickled")


class BucketCoder:
    """Encodes the buckets of a step, and averages the messages of all ranks.

    Whether a step counts is known when its last bucket is averaged: until `commit` or `rollback`
    all that the step has changed can be taken back.

    Parameters
    ----------
    feedback : Feedback or None
        None: without residuals.
    seed, rank : int
    key : Key
        Of the tags of messages.
    """

    def __init__(self, feedback: Feedback | None, seed: int, rank: int, key: Key) -> None:
        self.feedback = feedback
        self._steps = None if feedback is None else Transaction(feedback)
        self._seed, self._rank, self._key = seed, rank, key
        self._count = 0  # of the buckets so far, the same on every rank

    def encode(self, parts: Sequence[Part], step: int) -> bytes:
        """Return this rank's message."""
        kinds = bytearray()
        frames: list[bytes] = []
        key = self._key.value
        self._count += 1
        dense = [part.values.reshape(-1) for part in parts if part.codec is None]
        if dense:
            frames.append(encode(_joined(dense), _DENSE, nonfinite="propagate", key=key))
        for name, values, codec in parts:
            if codec is None:
                continue
            kind, frame = self._encode_one(name, values, codec, step)
            kinds.append(kind)
            if frame:
                frames.append(frame)
        message = [bytes(kinds), *frames]
        if key is not None:
            message.insert(0, _tag(key, self._count, self._rank, parts, bytes(kinds), frames))
        return joined(message)

    def average(self, parts: Sequence[Part], messages: Sequence[bytes]) -> None:
        """Write the mean over ranks to the parts: the same bits on every rank.

        Raises
        ------
        FormatError
            If a message is not one of such a bucket, or lacks the tags of the key.
        """
        coded = [part for part in parts if part.codec is not None]
        dense = [part for part in parts if part.codec is None]
        total = _zeros([part.values for part in dense])
        for part in coded:
            _clear(part.values)
        scale, key = 1 / len(messages), self._key.value
        for rank, message in enumerate(messages):
            try:
                kinds, frames = _read(message, len(coded), key)
                if key is not None:
                    tags = [message[end - TAG_NBYTES : end] for _, end in frames]
                    expected = _tag(key, self._count, rank, parts, kinds, tags)
                    if not hmac.compare_digest(message[:TAG_NBYTES], expected):
                        raise Corrupt("it does not bear the tag of this key")
                rest = (frame for frame, _ in frames)
                if dense:
                    next(rest).decode_add(total, scale)
                for kind, part in zip(kinds, coded, strict=True):
                    if kind == _NOTHING:
                        continue
                    frame = next(rest)
                    if frame.name != part.name:
                        raise Corrupt(f"it has {frame.name!r} in place of {part.name!r}")
                    frame.decode_add(part.values, scale)
                if next(rest, None) is not None:
                    raise Corrupt("it has more frames")
            except (FormatError, ParameterError, StopIteration) as error:
                what = str(error) or "it ends too early"
                raise Corrupt(
                    f"the message of rank {rank} is not of this bucket: {what}"
                ) from error
        at = 0
        for part in dense:
            size = part.values.size
            part.values[...] = total[at : at + size].reshape(part.values.shape)
            at += size

    def commit(self) -> None:
        """Keep what the step has changed."""
        if self._steps is not None:
            self._steps.commit()

    def rollback(self) -> None:
        """Take back what the step has changed: it does not count, or a message reached no one."""
        if self._steps is not None:
            self._steps.rollback()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the `Feedback.state_dict` of after the last step that has ended."""
        return {} if self._steps is None else self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; a step under way is forgotten."""
        if self.feedback is not None:
            self.feedback.load_state_dict(state)
            self._steps = Transaction(self.feedback)

    def _encode_one(
        self, name: str, values: np.ndarray, codec: Codec, step: int
    ) -> tuple[int, bytes]:
        if _all_zero(flattened(values)):
            return _NOTHING, b""
        try:
            return _CODED, self._code(name, values, codec, step)
        except ParameterError:
            if self._is_finite(name, values):
                raise
        key = self._key.value
        return _PLAIN, encode(values, _DENSE, name=name, nonfinite="propagate", key=key)

    def _code(self, name: str, values: np.ndarray, codec: Codec, step: int) -> bytes:
        key = self._key.value
        if self._steps is not None:
            return self._steps.compress(name, values, key=key)
        seed = derive_seed(self._seed, name=name, step=step, rank=self._rank)
        frame: bytes = encode(values, codec, seed=seed, name=name, key=key)
        return frame

    def _is_finite(self, name: str, values: np.ndarray) -> bool:
        """Whether the gradient is finite, and its sum with the residual, if they can be added."""
        flat = intake(values).values
        if self.feedback is None:
            return all_finite(flat)
        known = self.feedback.memory(name)
        if known.residual is None or known.residual.shape != values.shape:
            return all_finite(flat)
        residual = beside(known.residual, flat).reshape(-1)
        return all_finite_corrected(flat, residual, np.float32(self.feedback.decay))


def _all_zero(flat: np.ndarray) -> bool:
    """Whether a (n,) float32 array has no other values; the first of most have some."""
    return not max_abs_bits(flat[:_SOME]) and not max_abs_bits(flat)


def _clear(values: np.ndarray) -> None:
    """Write zeros to an array, which may be strided."""
    if values.flags.c_contiguous:
        clear(values.reshape(-1))
    else:
        values[...] = 0


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return (n,) float32 arrays end to end, where the first one lies."""
    made = empty_beside(sum(array.size for array in arrays), np.float32, arrays[0])
    at = 0
    for array in arrays:
        made[at : at + array.size] = array
        at += array.size
    return made


def _zeros(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return as many float32 zeros as there are elements, where the first array lies."""
    first = arrays[0] if arrays else None
    made = empty_beside(sum(array.size for array in arrays), np.float32, first)
    clear(made)
    return made


def _tag(
    key: bytes, count: int, rank: int, parts: Sequence[Part], kinds: bytes, frames: Sequence[bytes]
) -> bytes:
    """Return the tag of a message, whose frames end in their own tags.

    What it is made of is unlike any frame, and can be cut into its parts in one way alone.
    """
    names = [encode_name(part.name) for part in parts]
    lengths = [len(names), *map(len, names), len(kinds), len(frames)]
    numbers = b"".join(number.to_bytes(8, "little") for number in (count, rank, *lengths))
    tags = [frame[-TAG_NBYTES:] for frame in frames]
    return tag_of(key, [b"gcodec bucket", numbers, *names, kinds, *tags])


def _read(message: bytes, count: int, key: bytes | None) -> tuple[bytes, list[tuple[Frame, int]]]:
    """Return the kinds of the tensors that are not dense, and the frames after them.

    Of each frame there is also the byte where it ends.
    """
    start = 0 if key is None else TAG_NBYTES
    kinds = message[start : start + count]
    if len(kinds) < count or any(kind > _PLAIN for kind in kinds):
        raise Corrupt("its kinds are wrong")
    frames, at = [], start + count
    while at < len(message):
        frame, at = Frame.read(message, at, _TRUSTED, key)
        frames.append((frame, at))
    return kinds, frames
