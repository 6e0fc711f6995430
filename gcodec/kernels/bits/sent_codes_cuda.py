"""Launchers of sent_codes.cu; see `gcodec.kernels.bits.sent_codes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels.bits import sent_codes
from gcodec.kernels.bits.bit_list_cuda import bits_before, blocks
from gcodec.kernels.bits.code_parts_cuda import launch_map
from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.bits.pack_cuda import pack_fields
from gcodec.runtime.cuda_grid import THREADS, device_with
from gcodec.runtime.deferred import Deferred, Leading, fetch, wanted

_SIGNS = FieldLayout(1)
_PLACE = 8  # bytes of a position


def sent(codes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Find the codes that are sent."""
    parts = _parts(codes)
    return _found(*fetch(device_with(codes), *parts))


def listed(codes: Any) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Have them fetched with what the host next waits for; what is returned tells them then."""
    device = device_with(codes)
    later = [Deferred(device, part, np.array) for part in _parts(codes)]
    for part in later:
        wanted(part)
    return lambda: _found(*(part.value for part in later))


def _parts(codes: Any) -> tuple[Any, ...]:
    """Return how many are sent, positions and signs, and the codes: these, or those, are empty.

    There are positions if they take no more bytes than the codes.
    """
    device = device_with(codes)
    flat = device.flat(codes)
    words = flat.view(np.uint32)
    given = words, np.int64(words.size)
    before = bits_before(device, "sent_codes", "count_sent", words.size, *given)
    room = -(-flat.size // _PLACE)
    positions, minus = device.empty(room, np.int64), device.zeros(room, np.uint8)
    counts = device.empty(3, np.int64)
    arguments = *given, before, positions, minus, np.int64(room), counts
    device.launch("sent_codes", "list_sent", max(blocks(words.size), 1), THREADS, *arguments)
    signs = device.zeros(-(-room // 32), np.uint32).view(np.uint8)
    signs[: _SIGNS.nbytes(room)] = pack_fields(minus, _SIGNS)
    few, every = counts[1:2], counts[2:]
    listed = Leading(positions.view(np.uint8), few, 64, 0), Leading(signs, few, 1, 0)
    return counts[:2], *listed, Leading(flat, every, 32, 0)


def _found(
    counts: np.ndarray, places: np.ndarray, signs: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    k, few = map(int, counts)
    if k > few:
        return sent_codes.sent(codes)
    return places.view(np.int64)[:k], signs[: _SIGNS.nbytes(k)]


def turned(codes: Any) -> Any:
    """Return symbols for codes, or codes for symbols."""
    table = sent_codes.turned(np.arange(256).astype(np.uint8))
    return launch_map(codes, 1, table, device_with(codes).empty(codes.size, np.uint8))
