"""Launcher of table_code.cu; see `gcodec.kernels.prefix.table_code`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.prefix.codewords_cuda import Words, rule_of
from gcodec.kernels.prefix.table_code import LONGEST, SYMBOLS, TableCode
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with


def code_of(lengths: Array) -> Words:
    """Return the words of the code with these word lengths; they stay on the device."""
    device = device_with(lengths)
    table = device.empty(SYMBOLS + 1, np.uint64)
    device.launch("table_code", "canonical_words", 1, SYMBOLS, lengths, table)
    rule, mapping, shift, _ = rule_of(TableCode(b""))
    return Words(table, rule, mapping, shift, LONGEST)
