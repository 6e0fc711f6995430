"""Launchers of inner_signs.cu; see `gcodec.kernels.bits.inner_signs`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.byte_planes import FLOAT_SHIFTS
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding


def move_signs_in(bits: Array, base: int) -> None:
    """Replace bit patterns by those with inner signs."""
    _launch("move_signs_in", bits, base)


def move_signs_out(bits: Array, base: int) -> None:
    """Replace patterns with inner signs by those of the floats."""
    _launch("move_signs_out", bits, base)


def _launch(name: str, bits: Array, base: int) -> None:
    patterns = bits.view(np.uint8), bits.itemsize, FLOAT_SHIFTS[bits.itemsize]
    launch_striding(device_with(bits), "inner_signs", name, bits.size, *patterns, bits.size, base)
