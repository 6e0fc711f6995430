"""Launchers of dct_forward.cu and dct_inverse.cu; see `gcodec.codecs.dct8.transform`.

Coefficients are few, so the host quantizes and codes them: they are copied from and to the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.codecs.dct8.chunks import Chunks, Tiles
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_inverse import TABLED
from gcodec.runtime.cuda_grid import THREADS, device_with
from gcodec.runtime.device import Device

_HELD = 4096  # most elements of a chunk that fit into shared memory
_LISTED = 512  # most rows of coefficients whose lists fit into shared memory
_BLOCKS = 1 << 12
_ROOM = 1 << 26  # most elements of scratch memory


def select(
    values: Any, chunks: Chunks, k: int, other: Callable[[int], np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the k largest coefficients of each chunk, or None if one is not finite."""
    device, count = device_with(values), chunks.count
    blocks = _blocks(count, chunks.size)
    scratch = device.empty(2 * chunks.size * blocks if chunks.size > _HELD else 0, np.float32)
    words = device.zeros(2 * count * k + 1, np.uint32)  # positions, coefficients, the largest
    positions, coefficients = words[: count * k].view(np.int32), words[count * k : 2 * count * k]
    edge = np.bool_(isinstance(chunks, Tiles) or chunks.edge)
    layout = *_layout(values.size, chunks), edge, np.int64(count)
    bases = [_table(device, n, other, transposed=True) for n in chunks.sizes]
    sizes = [np.int32(n) for n in chunks.sizes]
    inputs = values.view(np.uint32), *layout, *sizes, *bases, np.int32(k), scratch
    outputs = positions, coefficients, words[2 * count * k :]
    device.launch("dct_forward", "dct_largest", blocks, THREADS, *inputs, *outputs)
    fetched = device.to_host(words)
    if fetched[-1] >= INFINITY_BITS:
        return None
    selected = fetched[:-1].reshape(2, count, k)
    return selected[0].view(np.int32), selected[1].view(np.float32)


def restore(
    starts: np.ndarray,
    positions: np.ndarray,
    coefficients: np.ndarray,
    chunks: Chunks,
    out: Any,
    other: Callable[[int], np.ndarray] | None = None,
) -> None:
    """Write the values of coefficients."""
    device, (a, b, c) = device_with(out), chunks.sizes
    most = min(int(np.diff(starts).max(initial=0)), a * b)
    blocks = _blocks(chunks.count, chunks.size)
    scratch = device.empty(2 * chunks.size * blocks if chunks.size > _HELD else 0, np.uint32)
    lists = device.empty((4 * most + 2) * blocks if most > _LISTED else 0, np.int32)
    inputs = [device.to_device(part) for part in (starts, positions, coefficients.view(np.uint32))]
    sizes = np.int64(positions.size), np.int64(chunks.count)
    layout = *_layout(out.size, chunks), np.int32(a), np.int32(b), np.int32(c)
    bases = [_table(device, n, other, transposed=False) for n in chunks.sizes]
    arguments = *inputs, *sizes, *layout, *bases, np.int32(most), scratch, lists
    device.launch("dct_inverse", "inverse", blocks, THREADS, *arguments, out.view(np.uint32))


def _layout(n: int, chunks: Chunks) -> tuple[np.int64, np.int64, np.int64]:
    if isinstance(chunks, Tiles):
        return np.int64(n), np.int64(chunks.rows), np.int64(chunks.columns)
    return np.int64(n), np.int64(0), np.int64(0)


def _blocks(count: int, size: int) -> int:
    return min(count, _BLOCKS if size <= _HELD else max(_ROOM // (2 * size), 1))


@functools.lru_cache(maxsize=64)
def _table(
    device: Device, n: int, other: Callable[[int], np.ndarray] | None, *, transposed: bool
) -> Any:
    """Return a basis on a device. A transposed matrix has one row for each point."""
    if n > TABLED:
        rows = basis.table(n)
    else:
        rows = (other or basis.basis)(n)
        rows = np.ascontiguousarray(rows.T if transposed else rows).reshape(-1)
    table = device.to_device(rows.view(np.uint32))
    device.to_host(
        table[:1]
    )  # wait, because the next user of the cached table may be on another stream
    return table
