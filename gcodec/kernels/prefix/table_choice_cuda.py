"""Launcher of table_choice.cu: the selection of the shortest string on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import hushed
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
    silent : (k,) uint8 array on the device
        For each string, 0 if the gate is open.
    index : int
        Index of this string.
    """

    device: Device
    counts: Array
    silent: Array
    index: int

    @property
    def count(self) -> Deferred:
        """Number of symbols or bits to write."""
        return Deferred(self.device, self.counts[self.index : self.index + 1])

    def mask(self, coded: CodedMask) -> CodedMask:
        """Return the elements that have a word: those of `coded`, or none."""
        return hushed(self.device, coded, self.silent[self.index : self.index + 1])

    def counted(self) -> CodedMask:
        """Return a mask of `count` symbols, all of which are written."""
        return CodedMask(self.count, 1, None)  # type: ignore[arg-type]


def choose_string(
    device: Device,
    nbits: Sequence[int | Deferred],
    more_nbits: Sequence[int],
    counts: Sequence[int | Deferred],
    estimate: int | Deferred | None,
    min_nbits: int,
) -> tuple[list[Gate], Deferred]:
    """Select the shortest string, the first of equals.

    Parameters
    ----------
    device : Device
    nbits, more_nbits : sequence of k numbers
        Prices in bits, each in two parts.
    counts : sequence of k or k + 1 numbers
        Numbers that open gates let through.
    estimate : int or Deferred or None
        Estimated price of a further string. It is selected if it is below all prices, and if these
        are above `min_nbits`.
    min_nbits : int

    Returns
    -------
    gates : list of Gate
        One for each count. Open are those of the selected string, and of the shortest of the k.
    verdict : Deferred
        The value is a (3,) int64 array: index of the selected string, index of the shortest of the
        k, and its price.
    """
    k = len(nbits)
    has_estimate = estimate is not None
    estimates = [estimate] if estimate is not None else [0]
    counts = counts if has_estimate else [*counts, 0]
    open_counts, silent = device.empty(k + 1, np.int64), device.empty(k + 1, np.uint8)
    verdict = device.empty(3, np.int64)
    device.launch(
        *("table_choice", "choose_string", 1, 1),
        *(_on_device(device, nbits), _on_device(device, more_nbits), np.int32(k)),
        *(_on_device(device, estimates), np.bool_(has_estimate), np.int64(min_nbits)),
        *(_on_device(device, counts), open_counts, silent, verdict),
    )
    gates = [Gate(device, open_counts, silent, index) for index in range(len(counts))]
    return gates, Deferred(device, verdict, np.array)


def _on_device(device: Device, numbers: Sequence[int | Deferred]) -> Array:
    """Return numbers as an int64 array on the device."""
    known = [0 if isinstance(number, Deferred) else number for number in numbers]
    array = device.to_device(np.array(known, np.int64))
    for k, number in enumerate(numbers):
        if isinstance(number, Deferred):
            array[k : k + 1] = number.words
    return array
