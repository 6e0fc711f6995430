"""Launchers of sent_codes.cu; see `gcodec.kernels.sent_codes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.code_parts import launch_map
from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.cuda.pack import pack_fields
from gcodec.cuda.scan import sums_before
from gcodec.kernels import sent_codes
from gcodec.kernels.pack import FieldLayout

_PART = 512  # words of a warp
_SIGNS = FieldLayout(1)


def sent(codes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Find the codes that are sent."""
    device = device_with(codes)
    words = device.flat(codes).view(np.uint32)
    given, parts = (words, np.int64(words.size)), -(-words.size // _PART)
    counts, before = device.empty(parts, np.int64), device.empty(parts + 1, np.int64)
    grid = striding_blocks(parts, 1, THREADS // 32)
    device.launch("sent_codes", "count_sent", grid, THREADS, *given, counts)
    sums_before(device, counts, before)
    k = int(device.to_host(before[parts:])[0])
    nbytes = _SIGNS.nbytes(k)
    told, minus = device.empty(k + -(-nbytes // 8), np.int64), device.empty(k, np.uint8)
    arguments = *given, before, told[:k], minus, np.int64(k)
    device.launch("sent_codes", "list_sent", grid, THREADS, *arguments)
    told[k:].view(np.uint8)[:nbytes] = pack_fields(minus, _SIGNS)
    found = device.to_host(told)
    return found[:k], found[k:].view(np.uint8)[:nbytes]


def turned(codes: Any) -> Any:
    """Return symbols for codes, or codes for symbols."""
    table = sent_codes.turned(np.arange(256).astype(np.uint8))
    return launch_map(codes, 1, table, device_with(codes).empty(codes.size, np.uint8))
