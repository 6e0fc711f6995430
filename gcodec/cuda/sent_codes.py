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
from gcodec.scalars import Leading, fetch

_SIGNS = FieldLayout(1)
_FEW = 2  # of the 16 codes of a word: there is room for so many sent ones at first


def sent(codes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Find the codes that are sent."""
    device = device_with(codes)
    words = device.flat(codes).view(np.uint32)
    given = words, np.int64(words.size)
    before = bits_before(device, "sent_codes", "count_sent", words.size, *given)
    room = _FEW * words.size
    while True:
        positions, minus = device.empty(room, np.int64), device.zeros(room, np.uint8)
        arguments = *given, before, positions, minus, np.int64(room)
        device.launch("sent_codes", "list_sent", blocks(words.size), THREADS, *arguments)
        signs = device.zeros(-(-room // 32), np.uint32).view(np.uint8)
        signs[: _SIGNS.nbytes(room)] = pack_fields(minus, _SIGNS)
        count = before[-1:]
        whole = Leading(positions.view(np.uint8), count, 64, 0), Leading(signs, count, 1, 0)
        counts, places, bits = fetch(device, count, *whole)
        if (k := int(counts[0])) <= room:
            return places.view(np.int64)[:k], bits[: _SIGNS.nbytes(k)]
        room = k


def turned(codes: Any) -> Any:
    """Return symbols for codes, or codes for symbols."""
    table = sent_codes.turned(np.arange(256).astype(np.uint8))
    return launch_map(codes, 1, table, device_with(codes).empty(codes.size, np.uint8))
