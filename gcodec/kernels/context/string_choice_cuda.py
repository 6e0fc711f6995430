"""The shortest of several strings, as a device chooses it; the others are not written.

How long a string by class is, the host knows when it has made what comes before its symbols. Where
it seems to be the shortest, the one that is the shortest without it is written too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import hushed
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device


class Kept(NamedTuple):
    """What is written.

    Attributes
    ----------
    device : Device
    counts : (k,) int64 array
        What is to be counted of each string; 0 of those that are not written.
    silent : (k,) uint8 array
        Not 0 for those.
    told : Deferred
        Which it seems to be; which it is without the one that is estimated; and the bits of that.
    """

    device: Device
    counts: Any
    silent: Any
    told: Deferred

    @classmethod
    def of(
        cls,
        sizes: Any,
        more: Sequence[int],
        symbols: Any,
        estimate: Any | None = None,
        shortest: int = 0,
    ) -> Kept:
        """Choose it, the first of equals, all being measured but for the last.

        Parameters
        ----------
        sizes : (k,) int64 array on the device
            Bits of strings, of which there is to be added
        more : sequence of k int
        symbols : (k + 1,) int64 array on the device
            What is to be counted of each, and of the one that is estimated.
        estimate : (1,) int64 array on the device, optional
            Bits of another one, which is taken where they are less, and others are longer than
        shortest : int
        """
        device, count = device_with(sizes), len(more)
        counts, silent = device.empty(count + 1, np.int64), device.empty(count + 1, np.uint8)
        known, estimated = np.array(more, np.int64), estimate is not None
        other = estimate if estimated else device.zeros(1, np.int64)
        given = sizes, device.to_device(known), np.int32(count)
        with_other = other, np.bool_(estimated), np.int64(shortest)
        made = symbols, counts, silent, (told := device.empty(3, np.int64))
        device.launch("table_choice", "choose_string", 1, 1, *given, *with_other, *made)
        return cls(device, counts, silent, Deferred(device, told, np.array))

    @property
    def which(self) -> Deferred:
        """Which string it seems to be."""
        return Deferred(self.device, self.told.words, lambda told: int(self.told.tell(told)[0]))

    def count_of(self, k: int) -> Deferred:
        """Return what is to be counted of a string."""
        return Deferred(self.device, self.counts[k : k + 1])

    def coded(self, k: int, coded: CodedMask) -> CodedMask:
        """Return which symbols of words are written: those that have one, or none."""
        return hushed(self.device, coded, self.silent[k : k + 1])
