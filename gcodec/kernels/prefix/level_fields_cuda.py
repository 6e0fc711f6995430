"""Launchers of level_fields.cu; see `gcodec.kernels.prefix.level_fields`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.coded_mask_cuda import buckets_of, coded_before, words_in
from gcodec.kernels.prefix.level_fields import field_error, width_of
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, blocks, byte_view, device_with, raise_reported
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device

_EACH = 16  # elements for each thread


class Measured(NamedTuple):
    """Fields that are measured on a device, but not written yet.

    Attributes
    ----------
    arguments : tuple
        Kernel arguments for symbols and fields.
    n : int
        Number of elements.
    end : (1,) int64 array on the device
        The total number of bits. Setting it to 0 prevents the fields from being written.
    """

    arguments: tuple[object, ...]
    n: int
    end: Array

    @classmethod
    def of(cls, symbols: Array, s: int, coded: CodedMask, lead: int) -> Measured:
        """Measure the fields of levels up to s, which follow a lead of bytes."""
        device, width = device_with(symbols), width_of(s)
        end = device.empty(1, np.int64)
        device.launch(
            "level_fields", "count_bits", 1, 1, words_in(device, coded), width, 8 * lead, end
        )
        layout = coded.n, *_buckets(device, coded), width, 8 * lead
        return cls((*byte_view(symbols), *layout), coded.n, end)

    def deferred_marks(self) -> tuple[Deferred]:
        """Return the total number of bits; fields have no blocks."""
        return (Deferred(device_with(self.end), self.end, None, (self.end, 1, 0)),)

    def put(self, out: Array) -> None:
        """Write the fields to (words,) uint32 that are zero except for the lead."""
        arguments, grid = (*self.arguments, self.end, out, out.size), blocks(self.n, _EACH)
        device_with(out).launch("level_fields", "write_levels", grid, THREADS, *arguments)


def read(
    data: Array, first: int, s: int, coded: CodedMask, take: Callable[[int, Array], None]
) -> None:
    """Read the fields; `take` receives the symbols of all elements at once."""
    device = device_with(data)
    symbols = device.empty(coded.n, symbol_dtype(s))
    size, wrong = symbols.itemsize, device.zeros(1, np.uint64)
    layout = data, data.size, first, coded.n, *_buckets(device, coded), width_of(s), s, size
    arguments = *layout, symbols.view(np.uint8), wrong
    device.launch("level_fields", "read_levels", blocks(coded.n, _EACH), THREADS, *arguments)
    raise_reported(device, wrong, field_error)
    take(0, symbols)


def _buckets(device: Device, coded: CodedMask) -> tuple[Array, int, Array]:
    """Return the results of `buckets_of`, and the number of fields before each bucket."""
    none = coded.uncoded is None
    starts = device.empty(0, np.int64) if none else coded_before(device, coded)
    return *buckets_of(device, coded), starts
