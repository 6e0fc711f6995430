"""Time codecs on the tensors of a training step, beside a copy of the same memory."""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec.analysis import stats
from gcodec.analysis.dissect import Dissection
from gcodec.analysis.doubts import Origin, doubt
from gcodec.analysis.trials import squared_ratio
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.limits import Limits
from gcodec.tensorfiles.entries import Array

_LEAST = 2e-3  # seconds that are timed at once, so that the clock is exact
_LIMITS = Limits(1 << 62, 1 << 62)  # frames that were made here need none


class Tensor(NamedTuple):
    """One of the tensors to encode.

    Attributes
    ----------
    name : str
    values : array
        Of finite values.
    origin : Origin
    """

    name: str
    values: Array
    origin: Origin = Origin.WHOLE


class Timed(NamedTuple):
    """What a codec makes of all tensors, each a frame with its name.

    Attributes
    ----------
    codec : Codec
    values : int
    raw_nbytes : int
        Of the tensors.
    split : dict of str to int
        Bits of all frames, by what they are for.
    error : float
        ‖x − x̂‖² / ‖x‖².
    encode, decode : tuple of float
        Seconds for all tensors, one for each round.
    copies : tuple of float
        Seconds for a copy of all tensors, one for each round.
    encode_peak, decode_peak : int
        Bytes, beside those of the tensors and of the memory that is decoded to.
    doubt : str or None
        Why the codec cannot be judged on these tensors.
    """

    codec: Codec
    values: int
    raw_nbytes: int
    split: dict[str, int]
    error: float
    encode: tuple[float, ...]
    decode: tuple[float, ...]
    copies: tuple[float, ...]
    encode_peak: int
    decode_peak: int
    doubt: str | None

    @property
    def nbits(self) -> int:
        """Bits of all frames."""
        return sum(self.split.values())

    def rate(self, seconds: Sequence[float]) -> float:
        """Return the median over rounds in bytes of the tensors per second."""
        return self.raw_nbytes / statistics.median(seconds)

    def to_copy(self, seconds: Sequence[float]) -> float:
        """Return the median over rounds of the ratio to a copy; above 1 is faster."""
        ratios = (copy / own for copy, own in zip(self.copies, seconds, strict=True))
        return statistics.median(ratios)

    @property
    def pays_below(self) -> float:
        """Bits per second of a link below which it is quicker to send frames than the tensors.

        One side encodes, the other decodes, and nothing goes on meanwhile; 0 where frames are
        longer.
        """
        seconds = statistics.median(self.encode) + statistics.median(self.decode)
        return max(8 * self.raw_nbytes - self.nbits, 0) / seconds


class Bench:
    """A codec, ready to be timed.

    Parameters
    ----------
    codec : Codec
    tensors : sequence of Tensor
    outs : sequence of array
        Memory for decoded tensors, which all codecs may share.
    seed : int
        Of the run.

    Raises
    ------
    ParameterError
        If the codec refuses one of them.
    """

    def __init__(
        self, codec: Codec, tensors: Sequence[Tensor], outs: Sequence[Array], seed: int
    ) -> None:
        self.codec = codec
        self._tensors = tensors
        self._seeds = [derive_seed(seed, name=tensor.name) for tensor in tensors]
        self._outs = outs
        self._seconds: list[tuple[float, float, float]] = []
        self._frames = self._encode()
        self._decode()
        # Compiled is by now what had to be; the peaks are those of any later step.
        self._peaks = _peak(self._encode), _peak(self._decode)
        self._calls = self._encode, self._decode, self._copy
        self._times = [_repetitions(call) for call in self._calls]

    def _encoded(self, tensor: Tensor, seed: int) -> bytes:
        try:
            frame: bytes = gcodec.encode(tensor.values, self.codec, seed=seed, name=tensor.name)
            return frame
        except ParameterError as error:
            raise ParameterError(f"{self.codec}: tensor {tensor.name!r}: {error}") from None

    def _encode(self) -> list[bytes]:
        return list(map(self._encoded, self._tensors, self._seeds))

    def _decode(self) -> None:
        for frame, out in zip(self._frames, self._outs, strict=True):
            gcodec.decode(frame, out=out, limits=_LIMITS)

    def _copy(self) -> None:
        for tensor, out in zip(self._tensors, self._outs, strict=True):
            np.copyto(out, tensor.values)

    def round(self) -> None:
        """Time all calls once, one after the other."""
        encode, decode, copy = (
            _seconds(call, times) for call, times in zip(self._calls, self._times, strict=True)
        )
        self._seconds.append((encode, decode, copy))

    def timed(self) -> Timed:
        """Return what was found in all rounds."""
        self._decode()
        encode, decode, copies = zip(*self._seconds, strict=True)
        return Timed(
            codec=self.codec,
            values=sum(tensor.values.size for tensor in self._tensors),
            raw_nbytes=sum(tensor.values.nbytes for tensor in self._tensors),
            split=split_of(self._frames),
            error=self._error(),
            encode=encode,
            decode=decode,
            copies=copies,
            encode_peak=self._peaks[0],
            decode_peak=self._peaks[1],
            doubt=next(
                (why for each in self._tensors if (why := doubt(self.codec, each.origin))), None
            ),
        )

    def _error(self) -> float:
        pairs = list(zip(self._tensors, self._outs, strict=True))
        sizes = [tensor.values.size for tensor in self._tensors]
        signal = _joined(sizes, [stats.rms_error(tensor.values) for tensor, _ in pairs])
        return squared_ratio(
            _joined(sizes, [stats.rms_error(tensor.values, out) for tensor, out in pairs]), signal
        )


def _joined(sizes: Sequence[int], roots: Sequence[float]) -> float:
    """Return the root of the sum of squares of numbers of which root means are known."""
    return math.hypot(*(math.sqrt(n) * root for n, root in zip(sizes, roots, strict=True)))


def split_of(frames: Sequence[bytes]) -> dict[str, int]:
    """Count the bits of frames by what they are for, as `gcodec dissect` does."""
    total: Counter[str] = Counter()
    for data in frames:
        dissection = Dissection(data, most=0, limits=_LIMITS)
        for _ in dissection:
            pass
        if dissection.error is not None:
            raise dissection.error
        total.update(dissection.totals)
    return dict(total)


def _seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def _repetitions(call: Callable[[], object]) -> int:
    """Return how often to make a call, so that a clock can tell how long it takes."""
    times = 1
    while (seconds := _seconds(call, times)) * times < _LEAST / 2:
        times *= 2
    return max(1, math.ceil(_LEAST / seconds))


def _peak(call: Callable[[], object]) -> int:
    """Return the most bytes that a call takes at a time."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
