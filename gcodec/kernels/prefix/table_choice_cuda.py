"""Launcher of table_choice.cu: the selection of the shortest string on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import without_words_if
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device


@dataclass(frozen=True, eq=False)
class Gate:
    """Words on a device by which kernels write a string, or nothing.

    Attributes
    ----------
    device : Device
    counts : (k,) int64 array on the device
        For each string, the symbols or bits to write: 0 if the gate is closed.
    closed : (k,) uint8 array on the device
        For each string, 0 if the gate is open.
    index : int
        Index of this string.
    """

    device: Device
    counts: Array
    closed: Array
    index: int

    @property
    def count(self) -> Deferred:
        """Number of symbols or bits to write."""
        return Deferred(self.device, self.counts[self.index : self.index + 1])

    def mask(self, coded: CodedMask) -> CodedMask:
        """Return the elements that have a word: those of `coded`, or none."""
        return without_words_if(self.device, coded, self.closed[self.index : self.index + 1])

    def counted(self) -> CodedMask:
        """Return a mask of `count` symbols, all of which are written."""
        return CodedMask(self.count, 1, None)  # type: ignore[arg-type]


def choose_string(
    device: Device,
    strings: Sequence[tuple[int | Deferred, int, int | Deferred]],
    min_nbits: int | None = None,
) -> tuple[list[Gate], Deferred]:
    """Select the shortest string, the first of equals.

    Parameters
    ----------
    device : Device
    strings : sequence of (nbits, more_nbits, count)
        For each string, its price in bits, in two parts, and the number that its open gate lets
        through.
    min_nbits : int, optional
        If given, the price of the last string is an estimate. That string is selected if its price
        is below all others, and if these are above `min_nbits`.

    Returns
    -------
    gates : list of Gate
        Open are those of the selected string, and of the shortest without an estimate.
    verdict : Deferred
        The value is a (3,) int64 array: index of the selected string, index of the shortest of the
        strings without an estimate, and the price of the latter.
    """
    has_estimate = min_nbits is not None
    rows = strings if has_estimate else [*strings, (0, 0, 0)]  # the last of k + 1 is not used
    nbits, more, counts = (_on_device(device, column) for column in zip(*rows, strict=True))
    k = len(rows) - 1
    inputs = nbits, more, k, nbits[k:], has_estimate, min_nbits or 0, counts
    opened, closed = device.empty(k + 1, np.int64), device.empty(k + 1, np.uint8)
    verdict = device.empty(3, np.int64)
    device.launch("table_choice", "choose_string", 1, 1, *inputs, opened, closed, verdict)
    gates = [Gate(device, opened, closed, index) for index in range(len(strings))]
    return gates, Deferred(device, verdict, np.array)


def _on_device(device: Device, numbers: Sequence[int | Deferred]) -> Array:
    """Return numbers as an int64 array on the device."""
    known = [0 if isinstance(number, Deferred) else number for number in numbers]
    array = device.to_device(np.array(known, np.int64))
    for k, number in enumerate(numbers):
        if isinstance(number, Deferred):
            array[k : k + 1] = number.words
    return array
