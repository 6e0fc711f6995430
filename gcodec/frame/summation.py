"""Sums of frames in one pass over memory.

A loop of `Frame.decode_add` reads and writes the whole sum for each frame. `FrameSum` adds all
frames to one part of the sum while that part is in the cache.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import inspect, is_flat
from gcodec.codec import Symbols
from gcodec.errors import ParameterError
from gcodec.frame.frame import Frame
from gcodec.kernels.bits.dequantize import LevelString, adder
from gcodec.kernels.numeric import scatter
from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.runtime import Array, pool
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.cover import streams
from gcodec.runtime.deferred import one_wait
from gcodec.runtime.device import beside
from gcodec.runtime.memory import clear
from gcodec.wire.kinds import check_number

_PART = 1 << 18  # elements of the sum that stay in the cache while all frames are added
_LONG_PART = 1 << 20  # elements, if one kernel adds all frames and cuts the part into tiles
_SMALL = 1 << 12  # bytes of an array of a frame's symbols that may outlive the call of `add`

_Step: TypeAlias = Callable[[int, int, np.ndarray, bool], None]
"""Function that adds elements `start` to `stop - 1` to a part, or to 0 if the part is fresh."""


class _Addend(NamedTuple):
    """Symbols of a frame that are yet to be added."""

    frame: Frame
    symbols: Symbols
    scale: np.float32
    string: LevelString | None

    def step(self) -> _Step:
        """Return the function that adds a part of this frame."""
        return self.frame.codec._adder(self.symbols, self.frame.dtype, self.scale)


class FrameSum:
    """Sum of frames, with the same bits as calls of `Frame.decode_add` on an array of zeros.

    The frames are added in the order of the calls of `add`, whatever the number of threads.

    Parameters
    ----------
    out : float32 array
        Array that receives the sum. Its contents are undefined until `finish` returns.
    shape : tuple of int
        Shape of `out`.
    """

    def __init__(self, out: TensorLike, shape: tuple[int, ...]) -> None:
        self._source = inspect(out, "out")
        self.shape = shape
        with self._source.stream():
            self._target = self._source.target("float32", shape)
            whole = self._target if is_flat(self._target) else np.empty(shape, np.float32)
            self._sum = whole.reshape(-1)
        self._is_apart = whole is not self._target
        self._pending: list[_Addend] = []
        self._is_fresh = True

    def apart(self, frame: Frame) -> Frame:
        """Return a frame whose payload the sum does not overwrite; see `Frame.apart_from`."""
        return frame.apart_from(self._target)

    def check(self, frame: Frame, scale: float) -> np.float32:
        """Return the factor of a frame that `add` can add.

        Raises
        ------
        ParameterError
            If the frame has another shape, or stores integers, booleans or floats of 8 bits; or if
            `scale` is no number.
        """
        frame.check_floats()
        if frame.shape != self.shape:
            raise ParameterError.of("frame.shape", frame.shape, str(self.shape))
        with np.errstate(over="ignore"):
            return np.float32(check_number("scale", scale))

    @exact
    def add(self, frame: Frame, scale: float = 1.0, symbols: Symbols | None = None) -> None:
        """Unpack a frame, and add ``scale`` times its tensor, in this call or in a later one.

        The bytes of the frame must stay unchanged until `finish` returns. Its sender may pass the
        `symbols` that it has packed, all of them on the host, so that they need not be unpacked.

        Raises
        ------
        FormatError
            If the payload is damaged.
        ParameterError
            See `check`.
        """
        factor = self.check(frame, scale)
        codec, device = frame.codec, self._source.device
        with self._source.stream():
            payload, is_known = frame._payload_on(device), symbols is not None
            with one_wait():
                elements = frame._read_elements(payload, self._sum, symbols)
            if elements is not None:
                self._add_pending()
                # The sum began as zeros. It has no −0, which is the sum of −0 and −0 alone.
                scatter.add(self._sum, *elements, factor, has_minus_zero=False)
                return
            if device is not None or not codec._slice_unit(frame.size):
                with one_wait():
                    add: Callable[[np.float32, Array], None] = (
                        functools.partial(codec._dequantize_add, symbols, frame.dtype)
                        if is_known
                        else codec._read_adder(payload, frame.size, frame.dtype)
                    )
                self._add_pending()
                with np.errstate(all="ignore"):
                    add(factor, self._sum)
                return
            if not is_known:
                with one_wait():
                    symbols = codec._unpack(payload, frame.size)
            string = codec._level_string(symbols, frame.dtype)
            self._pending.append(_Addend(frame, symbols, factor, string))
            # At most one frame with unpacked symbols waits: those of all frames could need many
            # times the memory of the sum.
            if not is_known and not _is_view(symbols, payload.data):
                self._add_parts()

    @exact
    def add_values(self, values: Array) -> None:
        """Add a float32 array of the size of the sum, after earlier frames."""
        with self._source.stream(), np.errstate(all="ignore"):
            self._add_pending()
            add_scaled(beside(values.reshape(-1), self._sum), np.float32(1), self._sum)

    @exact
    def finish(self) -> None:
        """Complete the sum."""
        with self._source.stream():
            self._add_pending()
            if self._is_apart:
                self._target[...] = self._sum.reshape(self.shape)

    def _add_pending(self) -> None:
        """Add the pending frames, or write zeros if there have been no frames at all."""
        if self._pending:
            self._add_parts()
        elif self._is_fresh:
            clear(self._sum)
            self._is_fresh = False

    def _add_parts(self) -> None:
        """Add the pending frames part by part."""
        total, is_fresh, pending = self._sum, self._is_fresh, self._pending
        self._is_fresh, self._pending = False, []
        unit = math.lcm(*(addend.frame.codec._slice_unit(total.size) for addend in pending))
        steps, length = _steps(pending, total)
        length = -(-length // unit) * unit

        def task(start: int, stop: int) -> None:
            with np.errstate(all="ignore"):
                for begin in range(start, stop, length):
                    end = min(begin + length, stop)
                    for number, step in enumerate(steps):
                        step(begin, end, total[begin:end], is_fresh and not number)

        pool.run(task, total.size, length)


def _steps(pending: list[_Addend], total: np.ndarray) -> tuple[list[_Step], int]:
    """Return the steps that add all frames to a part of the sum, and the length of a part.

    Consecutive strings of codes of ±level and 0 take one step, as long as their code is the same.
    """
    codes = [None if addend.string is None else addend.string.code for addend in pending]
    is_one = codes[0] is not None and codes.count(codes[0]) == len(codes)
    steps: list[_Step] = []
    for code, numbers in itertools.groupby(range(len(codes)), codes.__getitem__):
        group = [pending[number] for number in numbers]
        strings = [addend.string for addend in group if addend.string is not None]
        if code is None:
            steps += [addend.step() for addend in group]
        else:
            scales = [addend.scale for addend in group]
            steps.append(adder(strings, scales, is_one and streams(total)))
    return steps, _LONG_PART if is_one else _PART


def _is_view(symbols: object, data: np.ndarray) -> bool:
    """Return whether symbols consist of numbers, small arrays and views of the payload."""
    if isinstance(symbols, np.ndarray):
        return symbols.nbytes <= _SMALL or np.may_share_memory(symbols, data)
    if isinstance(symbols, tuple):
        return all(_is_view(field, data) for field in symbols)
    return symbols is None or isinstance(symbols, (str, int, float, np.generic))
