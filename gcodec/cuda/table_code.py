"""Launcher of the words of a table that a device made; see `gcodec.kernels.table_code`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.codewords import HeldCode
from gcodec.cuda.grid import device_with
from gcodec.kernels.table_code import SYMBOLS


def code_of(lengths: Any) -> HeldCode:
    """Return a code to write with, whose words stay on the device."""
    device = device_with(lengths)
    singles = device.empty(SYMBOLS, np.uint64)
    device.launch("code_lengths", "canonical_words", 1, SYMBOLS, lengths, singles)
    return HeldCode(singles)
