"""Launcher of table_code.cu; see `gcodec.kernels.table_code`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.codewords import Words, rule_of
from gcodec.cuda.grid import device_with
from gcodec.kernels.table_code import LONGEST, SYMBOLS, TableCode


def code_of(lengths: Any) -> Words:
    """Return the words of a code, which stay on the device."""
    device = device_with(lengths)
    table = device.empty(SYMBOLS + 1, np.uint64)
    device.launch("table_code", "canonical_words", 1, SYMBOLS, lengths, table)
    rule, mapping, shift, _ = rule_of(TableCode(b""))
    return Words(table, rule, mapping, shift, LONGEST)
