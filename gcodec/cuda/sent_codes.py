"""Launchers of sent_codes.cu; see `gcodec.kernels.sent_codes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.bit_list import bits_before, blocks
from gcodec.cuda.code_parts import launch_map
from gcodec.cuda.grid import THREADS, device_with
from gcodec.cuda.pack import pack_fields
from gcodec.kernels import sent_codes
from gcodec.kernels.pack import FieldLayout

_SIGNS = FieldLayout(1)


def sent(codes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Find the codes that are sent."""
    device = device_with(codes)
    words = device.flat(codes).view(np.uint32)
    given = words, np.int64(words.size)
    before = bits_before(device, "sent_codes", "count_sent", words.size, *given)
    k = int(device.to_host(before[-1:])[0])
    nbytes = _SIGNS.nbytes(k)
    told, minus = device.empty(k + -(-nbytes // 8), np.int64), device.empty(k, np.uint8)
    arguments = *given, before, told[:k], minus, np.int64(k)
    device.launch("sent_codes", "list_sent", blocks(words.size), THREADS, *arguments)
    told[k:].view(np.uint8)[:nbytes] = pack_fields(minus, _SIGNS)
    found = device.to_host(told)
    return found[:k], found[k:].view(np.uint8)[:nbytes]


def turned(codes: Any) -> Any:
    """Return symbols for codes, or codes for symbols."""
    table = sent_codes.turned(np.arange(256).astype(np.uint8))
    return launch_map(codes, 1, table, device_with(codes).empty(codes.size, np.uint8))
