"""Launchers of sent_codes.cu; see `gcodec.kernels.bits.sent_codes`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels.bits import sent_codes
from gcodec.kernels.bits.bit_list_cuda import bits_before, blocks
from gcodec.kernels.bits.code_parts_cuda import launch_map
from gcodec.kernels.bits.pack import FieldLayout, pack_to
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with
from gcodec.runtime.deferred import Deferred, LeadingBytes, fetch, prefetch

_SIGNS = FieldLayout(1)
_POSITION = 8  # bytes of a position


def sent(codes: Array) -> tuple[np.ndarray, np.ndarray]:
    """Find the transmitted codes."""
    return _decoded(*fetch(device_with(codes), *_parts(codes)))


def listed(codes: Array) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Fetch the transmitted codes at the host's next wait; return a function that returns them."""
    device = device_with(codes)
    parts = [Deferred(device, part, np.array) for part in _parts(codes)]
    for part in parts:
        prefetch(part)
    return lambda: _decoded(*(part.value for part in parts))


def _parts(codes: Array) -> tuple[Array | LeadingBytes, ...]:
    """Return counts, positions, signs, and codes.

    If the positions take more bytes than the codes, positions and signs are empty; else the codes
    are empty.
    """
    device = device_with(codes)
    flat = device.flat(codes)
    words = flat.view(np.uint32)
    before = bits_before(device, "sent_codes", "count_sent", words.size, words, words.size)
    room = -(-flat.size // _POSITION)
    positions, minus = device.empty(room, np.int64), device.zeros(room, np.uint8)
    counts = device.empty(3, np.int64)
    arguments = words, words.size, before, positions, minus, room, counts
    device.launch("sent_codes", "list_sent", max(blocks(words.size), 1), THREADS, *arguments)
    signs = device.zeros(-(-room // 32), np.uint32).view(np.uint8)
    pack_to(minus, _SIGNS, signs[: _SIGNS.nbytes(room)])
    listed, unlisted = counts[1:2], counts[2:]
    return (
        counts[:2],
        LeadingBytes(positions.view(np.uint8), listed, 64, 0),
        LeadingBytes(signs, listed, 1, 0),
        LeadingBytes(flat, unlisted, 32, 0),
    )


def _decoded(
    counts: np.ndarray, positions: np.ndarray, signs: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    k, listed = map(int, counts)
    if k > listed:
        return sent_codes.sent(codes)
    return positions.view(np.int64)[:k], signs[: _SIGNS.nbytes(k)]


def turned(codes: Array) -> Array:
    """Replace codes by symbols, or symbols by codes."""
    return launch_map(codes, 1, sent_codes.turned(np.arange(256).astype(np.uint8)), codes)
