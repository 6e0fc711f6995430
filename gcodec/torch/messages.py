"""What one rank sends of one bucket of gradients, and what comes of the messages of all.

    kinds · [frame of the dense tensors] · frames

One byte for each tensor that is not dense says what is sent of it (`_NOTHING`, `_CODED` or
`_PLAIN`). The dense tensors follow, end to end, as one ``raw`` frame; then one frame for each of
the others of which something is sent, in the order of the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gcodec.arrays import intake
from gcodec.codec import Codec
from gcodec.codecs.raw import Raw
from gcodec.coding import encode
from gcodec.errors import Corrupt, FormatError, ParameterError
from gcodec.feedback import Feedback, Memory
from gcodec.frame import Frame
from gcodec.kernels.device import beside
from gcodec.kernels.memory import clear, empty_beside, flattened
from gcodec.kernels.reduce import all_finite, all_finite_corrected, max_abs_bits
from gcodec.large_bytes import joined
from gcodec.limits import Limits
from gcodec.seeds import derive_seed

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


class BucketCoder:
    """Encodes a bucket, then averages the messages of all ranks.

    A step in which any rank's gradient holds NaN or Inf is one that loss scalers skip: the
    residual of that tensor is then, on all ranks, what it was.

    Parameters
    ----------
    feedback : Feedback or None
        None: without residuals.
    seed, rank : int
    """

    def __init__(self, feedback: Feedback | None, seed: int, rank: int) -> None:
        self.feedback = feedback
        self._seed, self._rank = seed, rank
        self._before: dict[str, Memory] = {}  # of what the message under way changed

    def encode(self, parts: Sequence[Part], step: int) -> bytes:
        """Return this rank's message."""
        kinds = bytearray()
        frames: list[bytes] = []
        dense = [part.values.reshape(-1) for part in parts if part.codec is None]
        if dense:
            frames.append(encode(_joined(dense), _DENSE, nonfinite="propagate"))
        for name, values, codec in parts:
            if codec is None:
                continue
            kind, frame = self._encode_one(name, values, codec, step)
            kinds.append(kind)
            frames.append(frame)
        return joined([bytes(kinds), *frames])

    def average(self, parts: Sequence[Part], messages: Sequence[bytes]) -> None:
        """Write the mean over ranks to the parts: the same bits on every rank.

        Raises
        ------
        FormatError
            If a message is not one of such a bucket.
        """
        coded = [part for part in parts if part.codec is not None]
        dense = [part for part in parts if part.codec is None]
        total = _zeros([part.values for part in dense])
        for part in coded:
            _clear(part.values)
        scale = 1 / len(messages)
        given_up = set()
        for rank, message in enumerate(messages):
            try:
                kinds, frames = _read(message, len(coded))
                if dense:
                    next(frames).decode_add(total, scale)
                for kind, part in zip(kinds, coded, strict=True):
                    if kind == _NOTHING:
                        continue
                    frame = next(frames)
                    if kind == _PLAIN:
                        given_up.add(part.name)
                    if frame.name != part.name:
                        raise Corrupt(f"it has {frame.name!r} in place of {part.name!r}")
                    frame.decode_add(part.values, scale)
                if next(frames, None) is not None:
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
        self._restore(given_up)
        self._forget()

    def give_up(self) -> None:
        """Undo what `encode` changed: its message reached no one."""
        self._restore(self._before)
        self._forget()

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
        return _PLAIN, encode(values, _DENSE, name=name, nonfinite="propagate")

    def _code(self, name: str, values: np.ndarray, codec: Codec, step: int) -> bytes:
        if self.feedback is None:
            seed = derive_seed(self._seed, name=name, step=step, rank=self._rank)
            frame: bytes = encode(values, codec, seed=seed, name=name)
            return frame
        self._before[name] = self.feedback.memory(name)
        return self.feedback.compress(name, values)

    def _is_finite(self, name: str, values: np.ndarray) -> bool:
        """Whether the gradient is finite, and its sum with the residual, if they can be added."""
        flat = intake(values).values
        known = self._before.get(name)
        if self.feedback is None or known is None:
            return all_finite(flat)
        if known.residual is None or known.residual.shape != values.shape:
            return all_finite(flat)
        residual = beside(known.residual, flat).reshape(-1)
        return all_finite_corrected(flat, residual, np.float32(self.feedback.decay))

    def _forget(self) -> None:
        for name, memory in self._before.items():
            if self.feedback is not None:
                self.feedback.forget(name, memory)
        self._before = {}

    def _restore(self, names: set[str] | dict[str, Memory]) -> None:
        for name in names:
            if self.feedback is not None and name in self._before:
                self.feedback.restore(name, self._before[name])


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


def _read(message: bytes, count: int) -> tuple[bytes, Iterator[Frame]]:
    """Return the kinds of the tensors that are not dense, and the frames behind them."""
    kinds = message[:count]
    if len(kinds) < count or any(kind > _PLAIN for kind in kinds):
        raise Corrupt("its kinds are wrong")
    return kinds, _frames(message, count)


def _frames(message: bytes, at: int) -> Iterator[Frame]:
    while at < len(message):
        frame, at = Frame.read(message, at, _TRUSTED, None)
        yield frame
